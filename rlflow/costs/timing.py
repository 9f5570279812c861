"""Time the runs of a model in ONNX Runtime, with the caches as a whole graph leaves them."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnxruntime

from rlflow.common.errors import first_line
from rlflow.common.system import interruptions
from rlflow.costs.kernel_layout import NoTimingOfItsOwn
from rlflow.costs.kernel_models import Timed, roused
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.onnx_runtime import session

WARM_UPS = 2  # untimed runs of each session before the first timed run; one run for a kernel slower than its budget
MIN_REPEATS = 3  # smallest number of timed runs
SESSIONS = 8  # largest number of sessions of one model; a kernel that is slow for its budget gets fewer
# Bytes of all sets of input and output arrays together: more than the caches of one core hold, and half of a typical
# last-level cache. Small arrays have at most SETS sets.
CYCLED, SETS = 16_000_000, 64
NUMBERS = {  # types of tensors that have a NumPy type
    f"tensor({name})" for name in "bool float float16 double int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
}
MEMORY = 200_000_000  # largest size of weights, inputs and outputs in bytes times the number of sessions
PATIENCE = 10  # multiple of the time budget that a kernel gets if other processes interrupt its runs
Z = 1.96  # 97.5 % quantile of the normal distribution
# The relative deviation of medians between processes, which does not shrink with the number of runs. It was chosen with
# 62 kernels timed in 5 processes each: the intervals of a kernel are disjoint in fewer than 1 of 10 pairs (4 without).
BETWEEN_SESSIONS = 0.03


class Timing(NamedTuple):
    """The time of one run of a kernel.

    Attributes:
      median: median over the runs in nanoseconds.
      low, high: 95 % confidence interval of the median, which covers differences between sessions and processes.
      repeats: number of timed runs.
    """

    median: float
    low: float
    high: float
    repeats: int

    @property
    def half_width(self) -> float:
        """Half-width of the 95 % confidence interval of the median, in nanoseconds."""
        return (self.high - self.low) / 2

    def combined_with(self, other: "Timing") -> "Timing":
        """Combine this timing with a timing of the same kernel in other sessions.

        The medians are weighted by the inverse square of the half-widths of their intervals. The half-width of the
        result is at least half the difference of the medians.
        """
        weights = 1 / max(self.half_width, 1.0) ** 2, 1 / max(other.half_width, 1.0) ** 2
        median = (weights[0] * self.median + weights[1] * other.median) / sum(weights)
        off = max(sum(weights) ** -0.5, abs(self.median - other.median) / 2)
        return Timing(median, max(median - off, 0.0), median + off, self.repeats + other.repeats)

    @classmethod
    def of(cls, times: list[int]) -> "Timing":
        """Compute the timing from the nanoseconds of all runs of a kernel in one process."""
        return cls(*median_with_interval(times), len(times))


def median_with_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Return (median, low, high): the median of measured values and its 95 % interval across processes.

    The values come from one process. The deviations of low and high from the median combine (root of the sum of
    squares) the interval by order statistics and the deviation between processes, BETWEEN_SESSIONS · median.
    """
    ordered = np.sort(np.asarray(values, float))
    around, last = Z * len(ordered) ** 0.5 / 2, len(ordered) - 1  # The rank of the median is binomial.
    low, high = int(len(ordered) / 2 - around), int(np.ceil(len(ordered) / 2 + around))
    median, low, high = (float(at) for at in (np.median(ordered), ordered[max(low, 0)], ordered[min(high, last)]))
    elsewhere = BETWEEN_SESSIONS * median
    low, high = median - math.hypot(median - low, elsewhere), median + math.hypot(high - median, elsewhere)
    return median, max(low, 0.0), high


def time_model(timed: Timed, threads: int, budget_ms: float) -> Timing:
    """Time runs of a model on random inputs, with the caches as a whole graph leaves them.

    In a whole graph the operator before has just written the input of a kernel, and other tensors have been written
    since the memory of its output was last used. Therefore the runs take turns with several sets of input and output
    arrays, and the inputs are written before each run. The sets have about CYCLED bytes together; each session has at
    least one set. Runs on a single small set would find all arrays in the caches of the core, so that operators that
    move data would be too fast. Several sessions also evict each other's weights, and average over memory layouts. A
    slow kernel depends less on caches and memory layouts. If its budget allows few runs, it gets only as many sessions
    as runs, and not more sets than runs (or MIN_REPEATS).

    With several threads all sets share the inputs, which are not written again. The thread that wrote them would have
    all of them in its cache. In a whole graph each thread has written a part, and here each has read a part.

    With one thread the clock is the processor time of the thread, which stops while other processes run. With more
    threads the clock is the wall time, and the model is `roused`. Runs that the system interrupted are left out, unless
    fewer than MIN_REPEATS runs would remain.

    Args:
      timed: the model.
      threads: threads of ONNX Runtime.
      budget_ms: time for all runs and for writing their inputs; up to PATIENCE times as much if the system interrupts
        the runs.

    Raises:
      NoTimingOfItsOwn: ONNX Runtime refuses the model, or its inputs cannot be made.
    """
    weights = timed.model.ByteSize() + sum(array.nbytes for array in timed.apart.values())
    model = roused(timed.model, threads) if threads > 1 else timed.model

    def new_session() -> onnxruntime.InferenceSession:
        return session(model, threads, timed.optimise, apart=timed.apart)

    try:
        inputs = random_inputs(model, seed=0) | timed.given
        sessions = [new_session()]
        start = time.perf_counter()
        outputs = _results(sessions[0], inputs)
        per_budget = int(budget_ms / (1e3 * (time.perf_counter() - start)))  # number of runs that the budget allows
        held = sum(array.nbytes for array in (*inputs.values(), *outputs) if array is not None)
        for _ in range(min(SESSIONS, MEMORY // (weights + held), per_budget) - 1):
            sessions.append(new_session())
        sets = min(SETS, -(-CYCLED // max(held, 1)), max(per_budget, MIN_REPEATS))
        count, writes = max(sets, len(sessions)), threads == 1
        turns = [_Turn.of(sessions[k % len(sessions)], inputs, outputs, writes) for k in range(count)]
        for turn in turns[1 : len(sessions)]:
            turn.run()
        for _ in range(WARM_UPS - 1 if per_budget >= 1 else 0):
            for turn in turns:
                turn.run()
    except Exception as error:  # The exception classes of ONNX Runtime are undocumented.
        raise NoTimingOfItsOwn(first_line(error)) from error
    clock = time.thread_time_ns if threads == 1 else time.perf_counter_ns
    calm, all_times = [], []
    start = time.perf_counter_ns()
    while True:
        for turn in turns:
            turn.write_inputs()
            interrupted = interruptions()
            before = clock()
            turn.run()
            taken = clock() - before
            all_times.append(taken)
            if interruptions() == interrupted:
                calm.append(taken)
        spent = (time.perf_counter_ns() - start) / (1e6 * budget_ms)
        if len(calm if spent <= PATIENCE else all_times) >= MIN_REPEATS and spent > 1:
            break
    return Timing.of(calm if len(calm) >= MIN_REPEATS else all_times)


def _results(running: onnxruntime.InferenceSession, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray | None]:
    """Run a session and return its outputs; None for an output whose type NumPy lacks, such as text or bfloat16."""
    binding = _binding(running, inputs, [None] * len(running.get_outputs()))
    running.run_with_iobinding(binding)
    return [_array(value) for value in binding.get_outputs()]


def _array(value: onnxruntime.OrtValue) -> np.ndarray | None:
    if not value.is_tensor() or value.data_type() not in NUMBERS:
        return None
    return value.numpy()


def _binding(running: onnxruntime.InferenceSession, inputs, outputs) -> onnxruntime.IOBinding:
    """Bind inputs (by name) and outputs of a session to arrays; ONNX Runtime allocates an output given as None."""
    binding = running.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    for output, array in zip(running.get_outputs(), outputs, strict=True):
        if array is None:
            binding.bind_output(output.name)
        else:
            binding.bind_ortvalue_output(output.name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    return binding


class _Turn(NamedTuple):
    """The runs of a session on one set of input and output arrays.

    Attributes:
      write_inputs: writes the values of the inputs into their arrays, as the operator before a kernel does, or nothing.
      run: runs the session without copying inputs and outputs.
      arrays: the inputs and outputs, which ONNX Runtime does not keep alive.
    """

    write_inputs: Callable[[], None]
    run: Callable[[], None]
    arrays: list[np.ndarray | None]

    @classmethod
    def of(
        cls, running: onnxruntime.InferenceSession, inputs: Mapping[str, np.ndarray],
        outputs: Sequence[np.ndarray | None], writes: bool,
    ) -> "_Turn":  # fmt: skip
        """Return the runs of a session on arrays of its own.

        Args:
          running: the session.
          inputs: the inputs by name; the runs use copies if `writes` is True, else these arrays.
          outputs: the outputs of a first run; the runs write to copies.
          writes: True if `write_inputs` writes the inputs.
        """
        own = {name: array.copy() if writes else array for name, array in inputs.items()}
        results = [None if array is None else array.copy() for array in outputs]
        binding = _binding(running, own, results)

        def write_inputs() -> None:
            for name, array in own.items() if writes else ():
                np.copyto(array, inputs[name])

        return cls(write_inputs, lambda: running.run_with_iobinding(binding), [*own.values(), *results])
