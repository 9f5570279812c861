"""End-to-end latency of two models as a user runs them.

`measure` compares two models within seconds to minutes and gives a verdict: faster, slower or no difference shown. It
makes ONNX Runtime sessions of both models several times, alternately in either order, and bootstraps over these
session pairs (`ratio_of`). With one thread the clock is the processor time of the thread, and runs that the system
interrupted are left out. A busy machine therefore widens the confidence interval of the latency ratio and does not move
the interval. A model with symbolic sizes is measured at several sizes in the same sessions. The ratio is the geometric
mean over the sizes. If the candidate is slower at one size, the verdict is slower.
"""

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import say
from rlflow.common.processes import fresh_processes
from rlflow.common.system import interruptions, peak_memory_during, resident_memory
from rlflow.costs.timing import Z
from rlflow.graph import custom_ops
from rlflow.graph.feeds import Feeds, size_in_bytes
from rlflow.graph.onnx_reader import file_bytes
from rlflow.graph.onnx_runtime import Setup, machine, run, session
from rlflow.graph.onnx_writer import save_model

MIN_PAIRS, MAX_PAIRS = 3, 100  # pairs of runs (one run of each model) at one size with one session of each model
# The number of sessions of each model in a session pair. The original's session is made first at one time, the
# candidate's session at the other.
SESSION_PAIR = 2
MIN_SESSION_PAIRS = 3  # session pairs before an early stop, because the interval of fewer pairs is unreliable
TOGETHER = 2_000_000_000  # largest size in bytes of two models together whose sessions exist at the same time
# The smallest relative difference of two latencies that counts as faster or slower. Two copies of one file sometimes
# differ by about as much.
MARGIN = 0.01
RESAMPLES = 1000  # number of resamples of the bootstrap
# 97.5 % quantiles of Student's t distribution with 1, 2, … degrees of freedom.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


class Ratio(NamedTuple):
    """The candidate's latency divided by the original's latency, with the 95 % confidence interval [low, high].

    Below 1 the candidate is faster.
    """

    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.high < 1 - MARGIN:
            return "faster"
        return "slower" if self.low > 1 + MARGIN else "no difference shown"

    @property
    def is_clear(self) -> bool:
        """True if the verdict is faster or slower, or if the whole interval lies within 1 ± MARGIN."""
        return self.verdict != "no difference shown" or (self.low > 1 - MARGIN and self.high < 1 + MARGIN)


def ratio_of(sessions: Sequence[Sequence[float]], seed: int) -> Ratio:
    """Return the geometric mean of the sessions' median ratios, with an interval by bootstrap over session pairs.

    Two sessions of one file can differ in latency for as long as they exist, so pairs of runs in one session are not
    independent. Moreover, of two sessions, the session that was made second is often 2 % faster or slower, whichever
    file it holds. Therefore two consecutive sessions, which were made in different orders, form one session pair, and
    the bootstrap draws session pairs. If there is a single session pair, the bootstrap draws sessions. With n session
    pairs, the interval [middle + d, middle + e] of plain percentiles is too narrow for small n. The deviations d and e
    are multiplied by sqrt(n / (n - 1)) · t / 1.96 with Student's t: Hesterberg's expanded percentile interval.

    Args:
      sessions: for each of at least two sessions, the ratio of the candidate's to the original's latency in each pair
        of runs.
      seed: random seed of the bootstrap.
    """
    medians = [np.log(np.median(ratios)) for ratios in sessions]
    session_pairs = [np.mean(medians[k : k + SESSION_PAIR]) for k in range(0, len(medians), SESSION_PAIR)]
    units = np.array(session_pairs if len(session_pairs) > 1 else medians)
    n, middle = len(units), np.mean(units)
    means = units[np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))].mean(axis=1)
    widen = (n / (n - 1)) ** 0.5 * STUDENT[min(n - 1, len(STUDENT)) - 1] / Z
    low, high = middle + widen * (np.percentile(means, (2.5, 97.5)) - middle)
    return Ratio(*np.exp([middle, min(low, middle), max(high, middle)]).tolist())


def measure(
    original: onnx.ModelProto | Path | str,
    candidate: onnx.ModelProto | Path | str,
    threads: int = 1,
    seconds: float = 20.0,
    sessions: int = 10,
    seed: int = 0,
    sizes: Mapping[str, Mapping[str, object]] | None = None,
    memory: bool = True,
    setups: tuple[Setup, Setup] = (Setup(), Setup()),
    feeds: Feeds | None = None,
    whole_seconds: float = math.inf,
) -> dict:
    """Measure the end-to-end latency of two models on this machine, with all of ONNX Runtime's optimisations.

    One session of each model exists at a time. The two sessions run in turns, with alternating first model, and every
    pair of runs gives one ratio. If both models together exceed TOGETHER bytes, the sessions exist one after the other
    instead. The measurement stops early, after a session pair, if the verdict is clear (`Ratio.is_clear`).

    Args:
      original, candidate: the models or their files.
      threads: threads inside one operator.
      seconds: time for all runs. Making sessions takes additional time, and so do the MIN_PAIRS runs of a slow model.
      sessions: largest number of sessions of each model; an odd number is rounded up.
      seed: random seed of the inputs and of the bootstrap.
      sizes: name of each point to measure at → sizes of the symbolic dimensions there, as `bind_shapes` takes them;
        None for a model without symbolic dimensions.
      memory: also measure `run_memory` of both models at the largest size, which takes about a second for each.
      setups: session options of the original and of the candidate.
      feeds: the inputs of the original; None to draw them.
      whole_seconds: time, including the making of sessions, after which no further session pair is made. One session
        pair (SESSION_PAIR sessions of each model) is always made; its interval is wide.

    Returns:
      a JSON-able mapping:
        original_ms, candidate_ms: median latency of each model; geometric mean of the medians at several sizes
        ratio, interval: candidate's latency / original's latency within pairs of runs, and its 95 % interval
        verdict: faster, slower or no difference shown
        at: key of `sizes` → original_ms, candidate_ms, ratio, interval and verdict at this point
        slower_at: keys of `sizes` at which the candidate is slower
        pairs, sessions: number of pairs of runs, and number of sessions of each model
        session_ratios: median ratio of each session
        calm: fraction of the runs without interruption; None if the system does not report interruptions
        side_by_side: false if the sessions existed one after the other
        stopped: why the measurement ended
        original_memory_bytes, candidate_memory_bytes: result of `run_memory`; None if not measured
        threads, seed, machine, onnxruntime: threads and seed as given, name of the machine, ONNX Runtime's version

    Raises:
      RLFlowError: ONNX Runtime refuses a model, or its inputs cannot be made.
    """
    inputs = (feeds or Feeds.of(original)).at(sizes or {"": {}}, seed)
    side_by_side = _bytes(original) + _bytes(candidate) <= TOGETHER
    runs_of = _side_by_side if side_by_side else _one_after_the_other
    sides = ((original, setups[0]), (candidate, setups[1]))
    session_pairs = max(-(-sessions // SESSION_PAIR), 1)
    within = seconds / (SESSION_PAIR * session_pairs * len(inputs))
    times: list[list[np.ndarray]] = []  # for each session and each size, run times in seconds, [pairs, 2]
    calm: list[bool | None] = []
    stopped, end = "all sessions measured", time.perf_counter() + whole_seconds
    for done in range(1, session_pairs + 1):
        for first in range(SESSION_PAIR):
            made = runs_of(sides, list(inputs.values()), threads, within, first)
            times.append([_pairs(runs) for runs in made])
            calm += [run.calm for runs in made for side in runs for run in side]
        late = time.perf_counter() >= end
        if late or done >= min(MIN_SESSION_PAIRS, session_pairs):
            of_sessions = [[_session_ratio(session_times)] for session_times in times]
            at_sizes = [[pairs[:, 1] / pairs[:, 0] for pairs in one_size] for one_size in zip(*times, strict=True)]
            ratio, there = ratio_of(of_sessions, seed), [ratio_of(one_size, seed) for one_size in at_sizes]
            if done == session_pairs:
                break
            if late or all(each.is_clear for each in (ratio, *there)):
                stopped = "making sessions takes too long" if late else "the interval is clear"
                break
    at = {}
    for name, one_size, here in zip(inputs, zip(*times, strict=True), there, strict=True):
        at[name] = _figures(1e3 * np.median(np.concatenate(one_size), axis=0), here)
    slower_at = [name for name, figures in at.items() if figures["verdict"] == "slower"]
    latencies = [(figures["original_ms"], figures["candidate_ms"]) for figures in at.values()]
    result = _figures(np.exp(np.mean(np.log(latencies), axis=0)), ratio)
    largest = max(inputs.values(), key=size_in_bytes)
    memories = [None, None]
    if memory:
        with ThreadPoolExecutor(len(sides) if side_by_side else 1) as pool:
            memories = list(pool.map(lambda side: _memory_beside(side[0], largest, threads, side[1]), sides))
    return result | {
        "verdict": "slower" if slower_at else ratio.verdict,
        "at": at,
        "slower_at": slower_at,
        "pairs": sum(len(pairs) for session_times in times for pairs in session_times),
        "calm": None if None in calm else float(np.mean(calm)),
        "sessions": len(times),
        "session_ratios": [_session_ratio(session_times) for session_times in times],
        "side_by_side": side_by_side,
        "stopped": stopped,
        "original_memory_bytes": memories[0],
        "candidate_memory_bytes": memories[1],
        "threads": threads,
        "seed": seed,
        "machine": machine(),
        "onnxruntime": onnxruntime.__version__,
    }


def ratios_in_turns(
    original: Path | str,
    candidates: Sequence[Path | str],
    inputs: Sequence[dict[str, np.ndarray]],
    threads: int,
    seconds: float,
    first: int,
    setups: Sequence[Setup] = (),
) -> list[float]:
    """Measure the latency of several candidates relative to the original, with one session of each model at once.

    Args:
      original: file of the original.
      candidates: files of the candidates.
      inputs: for each size, the input arrays by name; the ratios are geometric means over the sizes.
      threads: threads inside one operator.
      seconds: time for the runs at each size.
      first: position in [original, *candidates] of the model whose session is made and run first; the next models
        follow in cyclic order.
      setups: session options of each candidate; empty for ONNX Runtime's defaults.

    Returns:
      for each candidate, its latency divided by the latency of the original.

    Raises:
      RLFlowError: ONNX Runtime refuses a model.
    """
    setups = setups or [Setup()] * len(candidates)
    sides = [(original, Setup()), *zip(candidates, setups, strict=True)]
    made = _side_by_side(sides, inputs, threads, seconds, first)
    medians = [np.median(_pairs(runs), axis=0) for runs in made]
    return np.exp(np.mean([np.log(one[1:] / one[0]) for one in medians], axis=0)).tolist()


def latency(
    model: onnx.ModelProto | Path | str, inputs: dict[str, np.ndarray], threads: int, seconds: float
) -> float:
    """Measure the median latency of a model in milliseconds, in one session.

    Args:
      model: the model or its file.
      inputs: the input arrays by name.
      threads: threads inside one operator.
      seconds: time for the runs; at least MIN_PAIRS runs are made.

    Raises:
      RLFlowError: ONNX Runtime refuses the model.
    """
    running = warm_session(model, [inputs], threads)
    return 1e3 * float(np.median(_pairs(_in_turns([running], inputs, threads, seconds, first=0))))


def pairs_beside(
    original: onnxruntime.InferenceSession,
    candidate: onnx.ModelProto | Path | str,
    inputs: Sequence[dict[str, np.ndarray]],
    threads: int,
    seconds: float,
) -> list[np.ndarray]:
    """Measure the run times of an existing session of the original and a new session of a candidate, run in turns.

    Args:
      original: the existing session.
      candidate: the candidate's model or its file.
      inputs: for each size, the input arrays by name.
      threads: threads inside one operator.
      seconds: time for the runs at all sizes together.

    Returns:
      for each size, the run times in seconds, float64 [pairs, 2]: original, candidate.

    Raises:
      RLFlowError: ONNX Runtime refuses the candidate.
    """
    running = [original, warm_session(candidate, inputs, threads)]
    return [_pairs(_in_turns(running, one, threads, seconds / len(inputs), first=0)) for one in inputs]


def _session_ratio(session_times: list[np.ndarray]) -> float:
    """Return the median ratio candidate / original of a session's pairs of runs, averaged geometrically over the sizes.

    Args:
      session_times: for each size, run times in seconds, [pairs, 2].
    """
    return float(np.exp(np.mean([np.log(np.median(pairs[:, 1] / pairs[:, 0])) for pairs in session_times])))


def _figures(latencies_ms: np.ndarray, ratio: Ratio) -> dict:
    """Return the entries original_ms, candidate_ms, ratio, interval and verdict of the result of `measure`.

    Args:
      latencies_ms: float64 [2], latency of the original and of the candidate.
      ratio: the ratio of these latencies.
    """
    original_ms, candidate_ms = latencies_ms.tolist()
    return {
        "original_ms": original_ms,
        "candidate_ms": candidate_ms,
        "ratio": ratio.ratio,
        "interval": [ratio.low, ratio.high],
        "verdict": ratio.verdict,
    }


def run_memory(
    model: onnx.ModelProto | Path | str, inputs: dict[str, np.ndarray], threads: int = 1, setup: Setup = Setup()
) -> int | None:
    """Measure by how many bytes a model raises the resident memory of a fresh process at the peak of its runs.

    The bytes include weights, the packed copies that kernels make of weights, activations, outputs and ONNX Runtime's
    own memory. Memory that only the reading of the file needs is not counted.

    Args:
      model: the model or its file.
      inputs: input arrays of the runs by name.
      threads: threads inside one operator.
      setup: session options.

    Returns:
      the number of bytes; None on a system other than Linux with glibc, which does not report the peak.

    Raises:
      RLFlowError: the model cannot be run, or the process dies.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx") if isinstance(model, onnx.ModelProto) else Path(model)
        if isinstance(model, onnx.ModelProto):
            save_model(model, path)
        try:
            with fresh_processes(1, partial(custom_ops.load, custom_ops.loaded())) as process:
                return process.submit(_added_memory, path, inputs, threads, setup).result()
        except BrokenProcessPool as error:
            raise RLFlowError("the process that measured a model's memory died, probably out of memory") from error


def _memory_beside(model, inputs: dict[str, np.ndarray], threads: int, setup: Setup) -> int | None:
    """Return the result of `run_memory`. If it fails, show the reason and return None, to keep the measured latency."""
    try:
        return run_memory(model, inputs, threads, setup)
    except RLFlowError as error:
        say(f"the memory of a model is not known: {error}")
        return None


def _added_memory(path: Path, inputs: dict[str, np.ndarray], threads: int, setup: Setup) -> int | None:
    """Return the result of `run_memory` for a model file, measured in the present process, which must be fresh."""
    before = resident_memory()
    running = session(path, threads, setup=setup)

    def runs() -> None:
        for _ in range(3):  # The first run allocates, and the second may allocate again with the sizes of the first.
            run(running, inputs)

    peak = peak_memory_during(runs)
    return None if peak is None else peak - before


def _bytes(model: onnx.ModelProto | Path | str) -> int:
    if isinstance(model, onnx.ModelProto):
        return model.ByteSize()
    return file_bytes(model)


class Run(NamedTuple):
    """One timed run of a model.

    Attributes:
      seconds: duration of the run; with one thread, processor time of the thread.
      calm: False if the system took a core away during the run; None if the system does not report this.
    """

    seconds: float
    calm: bool | None


def _side_by_side(
    sides, inputs: Sequence[dict[str, np.ndarray]], threads: int, seconds: float, first: int
) -> list[list[list[Run]]]:
    """Run several models in turns, with one session of each model.

    Args:
      sides: (model, setup) for each model.
      inputs: for each size, the input arrays by name.
      threads: threads inside one operator.
      seconds: time for the runs at each size.
      first: index in `sides` of the model whose session is made and run first.

    Returns:
      the runs by size, model and turn.
    """
    running = [None] * len(sides)
    for side in _in_order(first, len(sides)):
        running[side] = _warm(sides[side], inputs, threads)
    return [_in_turns(running, one, threads, seconds, first) for one in inputs]


def _in_turns(running, inputs: dict[str, np.ndarray], threads: int, seconds: float, first: int) -> list[list[Run]]:
    runs: list[list[Run]] = [[] for _ in running]
    end = time.perf_counter() + seconds
    while _needs_more_runs(runs[0], end):
        for side in _in_order(first, len(running)):
            runs[side].append(_run(running[side], inputs, threads))
        first += 1
    return runs


def _in_order(first: int, count: int) -> list[int]:
    """Return the positions 0 … count − 1 in cyclic order from `first` modulo count, e.g. [1, 2, 0] for 1 and 3."""
    return [(first + k) % count for k in range(count)]


def _one_after_the_other(
    sides, inputs: Sequence[dict[str, np.ndarray]], threads: int, seconds: float, first: int
) -> list[list[list[Run]]]:
    """Run two models as `_side_by_side` does, but make the second session only after all runs of the first one."""
    runs: list[list[list[Run]]] = [[[], []] for _ in inputs]
    running = _warm(sides[first], inputs, threads)
    for one, both in zip(inputs, runs, strict=True):
        end = time.perf_counter() + seconds / 2
        while _needs_more_runs(both[first], end):
            both[first].append(_run(running, one, threads))
    del running
    running = _warm(sides[1 - first], inputs, threads)
    for one, both in zip(inputs, runs, strict=True):
        both[1 - first] = [_run(running, one, threads) for _ in both[first]]
    return runs


def _pairs(runs: list[list[Run]]) -> np.ndarray:
    """Pair the k-th calm run of each model with the k-th calm runs of the other models.

    If a model has fewer than MIN_PAIRS calm runs, all runs are paired.

    Args:
      runs: for each model, its runs.

    Returns:
      run times in seconds, float64 [pairs, models].
    """
    kept = [[run.seconds for run in side if run.calm] for side in runs]
    if min(map(len, kept)) < MIN_PAIRS:
        kept = [[run.seconds for run in side] for side in runs]
    return np.array(list(zip(*kept, strict=False)))


def _warm(side, inputs: Sequence[dict[str, np.ndarray]], threads: int) -> onnxruntime.InferenceSession:
    model, setup = side
    return warm_session(model, inputs, threads, setup)


def warm_session(
    model: onnx.ModelProto | Path | str, inputs: Sequence[dict[str, np.ndarray]], threads: int, setup: Setup = Setup()
) -> onnxruntime.InferenceSession:
    """Make a session and run it twice at each size, so that it has allocated its memory.

    Args:
      model: the model or its file.
      inputs: for each size, the input arrays by name.
      threads: threads inside one operator.
      setup: session options.

    Raises:
      RLFlowError: ONNX Runtime refuses the model.
    """
    running = session(model, threads, setup=setup)
    for one in inputs:
        for _ in range(2):  # The first run allocates.
            run(running, one)
    return running


def _needs_more_runs(done: list, end: float) -> bool:
    return len(done) < MIN_PAIRS or (len(done) < MAX_PAIRS and time.perf_counter() < end)


def _run(running: onnxruntime.InferenceSession, inputs: dict[str, np.ndarray], threads: int) -> Run:
    # With one thread ONNX Runtime runs in the thread of the caller. Its processor time does not count other processes
    # that share the core.
    clock = time.thread_time if threads == 1 else time.perf_counter
    interrupted = interruptions()
    start = clock()
    running.run(None, inputs)
    seconds = clock() - start
    return Run(seconds, None if interrupted is None else interruptions() == interrupted)
