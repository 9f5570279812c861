"""End-to-end latency: two models as a user runs them, and what the difference shows.

`measure` gives a verdict. Its unit is a pair of sessions. A session keeps its memory layout for life, and it matters
which of two sessions was made first, whichever file it holds. So each side is made first once, and the bootstrap draws
session pairs and widens the interval when there are few (`ratio_of`). With one thread the clock is the time of the
thread, and runs from which the system took the core do not count if there are others: a busy machine widens the
interval and does not move it. A model with symbolic sizes is measured at several sizes in the same sessions. A session
counts with the geometric mean of its ratios over the sizes; one size at which the candidate is shown to be slower
decides the verdict.

`Probe` measures one graph beside its original in some tenths of a second, for rewards. A worker process keeps the
session of the original; both run in turns, and the median of the ratios counts. A crash or a hang costs one
measurement: the worker is replaced.
"""

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import say
from rlflow.common.processes import Worker, WorkerDied, fresh_processes
from rlflow.common.system import interruptions, peak_while, resident_memory
from rlflow.costs.timing import median_of
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import file_bytes
from rlflow.graph.onnx_runtime import Setup, machine, random_inputs, run, session
from rlflow.graph.onnx_writer import save_graph, save_model

MIN_PAIRS, MAX_PAIRS = 3, 100  # a session
SESSION_PAIR = 2  # sessions of a session pair: once the original's is made first, once the candidate's
MIN_SESSION_PAIRS = 3  # before an early stop; fewer than this and the interval says little
TOGETHER = 2_000_000_000  # bytes of two models, up to which both have a session at once: each holds all its weights
MARGIN = 0.01  # two copies of one file differ by more than this now and then: less is never claimed
RESAMPLES = 1000
NORMAL = 1.96  # the 97.5 % quantile, and those of Student's t with 1, 2, … degrees of freedom
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


class Ratio(NamedTuple):
    """Candidate / original latency, with its 95 % interval; below 1 the candidate is faster."""

    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.high < 1 - MARGIN:
            return "faster"
        return "slower" if self.low > 1 + MARGIN else "no difference shown"

    @property
    def clear(self) -> bool:
        """Whether more sessions would hardly change the verdict."""
        return self.verdict != "no difference shown" or (self.low > 1 - MARGIN and self.high < 1 + MARGIN)


def ratio_of(sessions: Sequence[Sequence[float]], seed: int) -> Ratio:
    """The geometric mean of the sessions' median ratios, and its interval by a bootstrap over session pairs.

    Two sessions of one file can differ for as long as they live, so that pairs of one session are not
    independent; and the one that was made second is often 2 % faster or slower than the first, whichever file
    it holds. So a session and the next one, made in the other order, are a session pair, and session pairs are what is
    drawn (of a single session pair its sessions). With few of them plain percentiles are too narrow: the deviations are
    widened by sqrt(n / (n - 1)) · t / 1.96, with Student's t (Hesterberg's expanded percentile interval).

    Args:
      sessions: for each of at least two sessions its pairs' ratios, candidate / original.
    """
    medians = [np.log(np.median(ratios)) for ratios in sessions]
    session_pairs = [np.mean(medians[k : k + SESSION_PAIR]) for k in range(0, len(medians), SESSION_PAIR)]
    units = np.array(session_pairs if len(session_pairs) > 1 else medians)
    n, middle = len(units), np.mean(units)
    means = units[np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))].mean(axis=1)
    widen = (n / (n - 1)) ** 0.5 * STUDENT[min(n - 1, len(STUDENT)) - 1] / NORMAL
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
) -> dict:
    """End-to-end latency of both models on this machine, with all of ONNX Runtime's optimisations.

    One pair of sessions lives at a time. Within it the models run in turns, the first one alternating, and
    every turn gives one ratio. Models that are large together (TOGETHER) have their sessions one after the
    other instead. It stops early, between pairs of two sessions, when the interval is clear.

    What other processes do is kept out as far as it can be: with one thread the time is that of its core, and
    runs during which the system took a core away do not count, where enough others are had.

    Args:
      threads: threads inside one operator.
      seconds: time for all pairs together, at most; making sessions comes on top, as do the MIN_PAIRS of a
        slow model. A session runs at most MAX_PAIRS at each size.
      sessions: pairs of sessions; an odd number is one more.
      seed: of the inputs and of the bootstrap.
      sizes: what the sizes to measure at are called → sizes for symbolic dimensions, as `bind_shapes` takes them; one
        call for a model without such dimensions.
      memory: whether `run_memory` of both is measured too, after the latencies and at the largest of the sizes; about
        a second a side.
      setups: how their sessions are set up.

    Returns (JSON-able): original_ms, candidate_ms (medians), ratio and interval (of candidate / original
    within pairs), verdict, pairs, calm (share of runs from which no core was taken; None: not known), sessions,
    session_ratios (the median of each), at (name of the sizes → original_ms, candidate_ms, ratio, interval, verdict
    there; the figures above are their geometric means), slower_at (the sizes at which the candidate is slower: one is
    enough for the verdict), side_by_side (false: one after the other), stopped, original_memory_bytes,
    candidate_memory_bytes (None: not measured), threads, seed, machine, onnxruntime.

    Raises:
      RLFlowError: ONNX Runtime refuses a model, or its inputs cannot be made.
    """
    inputs = {name: random_inputs(original, seed, shapes) for name, shapes in (sizes or {"": {}}).items()}
    side_by_side = _bytes(original) + _bytes(candidate) <= TOGETHER
    runs_of = _side_by_side if side_by_side else _one_after_the_other
    sides = ((original, setups[0]), (candidate, setups[1]))
    session_pairs = max(-(-sessions // SESSION_PAIR), 1)
    within = seconds / (SESSION_PAIR * session_pairs * len(inputs))
    times: list[list[np.ndarray]] = []  # of each session, at each of the sizes: seconds, [pairs, 2]
    calm: list[bool | None] = []
    stopped = "all sessions measured"
    for done in range(1, session_pairs + 1):
        for first in range(SESSION_PAIR):
            made = runs_of(sides, list(inputs.values()), threads, within, first)
            times.append([_pairs(runs) for runs in made])
            calm += [run.calm for runs in made for side in runs for run in side]
        if done >= min(MIN_SESSION_PAIRS, session_pairs):
            ratio, there = _ratios(times, seed)
            if all(each.clear for each in (ratio, *there)) and done < session_pairs:
                stopped = "the interval is clear"
                break
    at = {}
    for name, one_size, here in zip(inputs, zip(*times, strict=True), there, strict=True):
        at[name] = _figures(1e3 * np.median(np.concatenate(one_size), axis=0), here)
    slower_at = [name for name, figures in at.items() if figures["verdict"] == "slower"]
    latencies = [(figures["original_ms"], figures["candidate_ms"]) for figures in at.values()]
    result = _figures(np.exp(np.mean(np.log(latencies), axis=0)), ratio)
    largest = max(inputs.values(), key=lambda arrays: sum(array.nbytes for array in arrays.values()))
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
        "original_memory_bytes": _memory_beside(original, largest, threads, setups[0]) if memory else None,
        "candidate_memory_bytes": _memory_beside(candidate, largest, threads, setups[1]) if memory else None,
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
) -> list[float]:
    """For each candidate its share of the original's latency, in one session of each, all of which live at once.

    Args:
      inputs: one for each size; the ratios are geometric means over them.  seconds: for the runs at each of them.
      first: which session is made, and then run, first: 0 is the original's; the others follow in turn.

    Raises RLFlowError if ONNX Runtime refuses a model.
    """
    sides = [(model, Setup()) for model in (original, *candidates)]
    made = _side_by_side(sides, inputs, threads, seconds, first)
    medians = [np.median(_pairs(runs), axis=0) for runs in made]
    return np.exp(np.mean([np.log(one[1:] / one[0]) for one in medians], axis=0)).tolist()


def pairs_beside(
    original: onnxruntime.InferenceSession,
    candidate: onnx.ModelProto | Path | str,
    inputs: Sequence[dict[str, np.ndarray]],
    threads: int,
    seconds: float,
) -> list[np.ndarray]:
    """Seconds of runs in turns, [pairs, 2] at each of the inputs, of a session that is kept and of a new one of the
    candidate. seconds: for all of them together.

    Raises RLFlowError if ONNX Runtime refuses the candidate.
    """
    running = [original, warm_session(candidate, inputs, threads)]
    return [_pairs(_in_turns(running, one, threads, seconds / len(inputs), first=0)) for one in inputs]


def _ratios(times: list[list[np.ndarray]], seed: int) -> tuple[Ratio, list[Ratio]]:
    """Over all sizes, and at each of them."""
    there = [ratio_of([pairs[:, 1] / pairs[:, 0] for pairs in one_size], seed) for one_size in zip(*times, strict=True)]
    return ratio_of([[_session_ratio(session_times)] for session_times in times], seed), there


def _session_ratio(session_times: list[np.ndarray]) -> float:
    """The geometric mean, over the sizes, of the median ratio of a session's pairs."""
    return float(np.exp(np.mean([np.log(np.median(pairs[:, 1] / pairs[:, 0])) for pairs in session_times])))


def _figures(latencies_ms: np.ndarray, ratio: Ratio) -> dict:
    """latencies_ms: of original and candidate."""
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
    """Bytes that a model adds to the resident memory of a fresh process, at the fullest moment of its runs.

    That is its weights, the copies that kernels pack of them, activations, outputs and ONNX Runtime's own; the file's
    content while it is read is not counted. None where the system does not say (other than Linux with glibc).

    Raises RLFlowError if the model cannot be run, or the process dies of it.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx") if isinstance(model, onnx.ModelProto) else Path(model)
        if isinstance(model, onnx.ModelProto):
            save_model(model, path)
        try:
            with fresh_processes(1) as process:
                return process.submit(_added_memory, path, inputs, threads, setup).result()
        except BrokenProcessPool as error:
            raise RLFlowError("the process that measured a model's memory died; out of memory?") from error


def _memory_beside(model, inputs: dict[str, np.ndarray], threads: int, setup: Setup) -> int | None:
    """`run_memory` of a model whose latency is known by now, which is kept: None where it cannot be measured."""
    try:
        return run_memory(model, inputs, threads, setup)
    except RLFlowError as error:
        say(f"its memory is not known: {error}")
        return None


def _added_memory(path: Path, inputs: dict[str, np.ndarray], threads: int, setup: Setup) -> int | None:
    """In a fresh process: see `run_memory`."""
    before = resident_memory()
    running = session(path, threads, setup=setup)

    def runs() -> None:
        for _ in range(3):  # the first run allocates, the second may lay out anew what the first one needed
            run(running, inputs)

    peak = peak_while(runs)
    return None if peak is None else peak - before


def _bytes(model: onnx.ModelProto | Path | str) -> int:
    if isinstance(model, onnx.ModelProto):
        return model.ByteSize()
    return file_bytes(model)


class Run(NamedTuple):
    """seconds: of one run.  calm: whether the system took no core from it meanwhile; None where it does not say."""

    seconds: float
    calm: bool | None


def _side_by_side(
    sides, inputs: Sequence[dict[str, np.ndarray]], threads: int, seconds: float, first: int
) -> list[list[list[Run]]]:
    """For each of the inputs runs of the sides, (model, its setup), in turns, as many of each, in one session a side.

    `first` is made, and then run, first; `seconds` are for each of the inputs.
    """
    running = [None] * len(sides)
    for side in _in_order(first, len(sides)):
        running[side] = _warm(sides[side], inputs, threads)
    return [_in_turns(running, one, threads, seconds, first) for one in inputs]


def _in_turns(running, inputs: dict[str, np.ndarray], threads: int, seconds: float, first: int) -> list[list[Run]]:
    runs: list[list[Run]] = [[] for _ in running]
    end = time.perf_counter() + seconds
    while _goes_on(runs[0], end):
        for side in _in_order(first, len(running)):
            runs[side].append(_run(running[side], inputs, threads))
        first += 1
    return runs


def _in_order(first: int, count: int) -> list[int]:
    """All sides, from the first on."""
    return [(first + k) % count for k in range(count)]


def _one_after_the_other(
    sides, inputs: Sequence[dict[str, np.ndarray]], threads: int, seconds: float, first: int
) -> list[list[list[Run]]]:
    """As `_side_by_side`, but only one session lives at a time."""
    runs: list[list[list[Run]]] = [[[], []] for _ in inputs]
    running = _warm(sides[first], inputs, threads)
    for one, both in zip(inputs, runs, strict=True):
        end = time.perf_counter() + seconds / 2
        while _goes_on(both[first], end):
            both[first].append(_run(running, one, threads))
    del running
    running = _warm(sides[1 - first], inputs, threads)
    for one, both in zip(inputs, runs, strict=True):
        both[1 - first] = [_run(running, one, threads) for _ in both[first]]
    return runs


def _pairs(runs: list[list[Run]]) -> np.ndarray:
    """Seconds of the k-th calm run of each side, [pairs, sides]; of the k-th of all runs, where too few are calm."""
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
    """One that has allocated what it needs at each of the inputs. Raises RLFlowError if ONNX Runtime refuses."""
    running = session(model, threads, setup=setup)
    for one in inputs:
        for _ in range(2):  # the first run allocates
            run(running, one)
    return running


def _goes_on(done: list, end: float) -> bool:
    return len(done) < MIN_PAIRS or (len(done) < MAX_PAIRS and time.perf_counter() < end)


def _run(running: onnxruntime.InferenceSession, inputs: dict[str, np.ndarray], threads: int) -> Run:
    # ONNX Runtime's single thread is the caller's. Where that has a core for itself its time is the clock's; where
    # other processes take turns on the core, theirs is not counted.
    clock = time.thread_time if threads == 1 else time.perf_counter
    interrupted = interruptions()
    start = clock()
    running.run(None, inputs)
    seconds = clock() - start
    return Run(seconds, None if interrupted is None else interruptions() == interrupted)


SEED = 0  # of the inputs


class Latency(NamedTuple):
    """What a graph takes.

    ratio, low, high: as a share of what the original takes, with its 95 % interval; at several sizes geometric means.
    original_ms: what the original took meanwhile.  pairs: of runs.  seconds: that the measurement took, with making
    the sessions. Of a lost measurement all but the seconds is NaN or 0.
    """

    ratio: float
    low: float
    high: float
    original_ms: float
    pairs: int
    seconds: float

    @classmethod
    def lost_after(cls, seconds: float) -> "Latency":
        return cls(math.nan, math.nan, math.nan, math.nan, 0, seconds)

    @property
    def lost(self) -> bool:
        return not self.pairs

    @classmethod
    def of(cls, times: Sequence[np.ndarray], seconds: float) -> "Latency":
        """times: at each size the seconds of original and graph, [pairs, 2]."""
        ratios = np.array([median_of(pairs[:, 1] / pairs[:, 0]) for pairs in times])
        ratio, low, high = (ratios.prod(axis=0) ** (1 / len(times))).tolist()
        original_ms = 1e3 * float(np.exp(np.mean([np.log(np.median(pairs[:, 0])) for pairs in times])))
        return cls(ratio, low, high, original_ms, sum(map(len, times)), seconds)


class LostMeasurement(Exception):
    """A graph could not be measured; the message is why. The next one may be."""


class Probe:
    """Measures on this machine, with all of ONNX Runtime's optimisations.

    Args:
      threads: threads inside one operator.
      seconds: time for the runs of one measurement; a few pairs are run in any case, and MAX_PAIRS of
        `rlflow.costs.measured` at most.
      limit: seconds after which a measurement that has not ended is lost.
    """

    def __init__(self, threads: int, seconds: float, limit: float):
        self.threads, self.seconds, self.limit = threads, seconds, limit
        self._worker = Worker()
        self._original: tuple | None = None  # whose session the worker keeps

    def __call__(self, original: Graph, graph: Graph, sizes: Sequence[Mapping[str, int]]) -> Latency:
        """sizes: of the symbols, once for every size to measure at.

        Raises LostMeasurement; RLFlowError if ONNX Runtime refuses the original.
        """
        started, wanted = time.monotonic(), (original.hash, repr(sizes))
        kept, self._original = self._original, None  # until all has ended well: nobody knows what an interrupt leaves
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "model.onnx")
                if kept != wanted:
                    save_graph(original, path)
                    self._worker.run(_open, path, [dict(one) for one in sizes], self.threads, limit=self.limit)
                times = self._times(graph, path)
        except WorkerDied as error:
            raise LostMeasurement(str(error)) from error
        self._original = wanted
        return Latency.of(times, time.monotonic() - started)

    def _times(self, graph: Graph, path: Path) -> list[np.ndarray]:
        """See `pairs_beside`."""
        try:
            save_graph(graph, path)
            return self._worker.run(_run_beside_original, path, self.threads, self.seconds, limit=self.limit)
        except RLFlowError as error:
            raise LostMeasurement(str(error)) from error


# -- in the worker ---------------------------------------------------------------------------------


class _Kept(NamedTuple):
    original: onnxruntime.InferenceSession
    inputs: list[dict[str, np.ndarray]]


_kept: _Kept | None = None


def _open(path: Path, sizes: list[dict[str, int]], threads: int) -> None:
    """Makes the session of the original, which is kept."""
    global _kept
    inputs = [random_inputs(path, SEED, one) for one in sizes]
    _kept = _Kept(warm_session(path, inputs, threads), inputs)


def _run_beside_original(path: Path, threads: int, seconds: float) -> list[np.ndarray]:
    """See `pairs_beside`."""
    return pairs_beside(_kept.original, path, _kept.inputs, threads, seconds)
