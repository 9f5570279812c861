"""The measured cost: two models end to end, as a user runs them, and what may be said about the difference."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime

from rlflow.graph.onnx_reader import model_files
from rlflow.runtime import machine, random_inputs, run, session

MIN_PAIRS, MAX_PAIRS = 3, 100  # a session
MIN_SESSIONS = 5  # before an early stop; fewer than this and the interval says little
TOGETHER = 2_000_000_000  # bytes of two models, up to which both have a session at once: each holds all its weights
MARGIN = 0.01  # two copies of one file differ by more than this now and then: less is never claimed
RESAMPLES = 1000


class Ratio(NamedTuple):
    """Median of candidate / original latencies, with its 95 % interval; below 1 the candidate is faster."""

    median: float
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
    """The median ratio and its interval, by a bootstrap that resamples sessions, then pairs within them.

    Two sessions of one file can differ for as long as they live, so that pairs of one session are not
    independent: the session is the unit that is drawn. With few units the plain percentiles are too
    narrow; the deviations are widened by sqrt(n / (n - 1)), the bias of a variance over n sessions.

    Args:
      sessions: for each session its pairs' ratios, candidate / original.
    """
    rng = np.random.default_rng(seed)
    groups = [np.asarray(ratios, float) for ratios in sessions]
    median = _middle(groups)
    draws = np.empty(RESAMPLES)
    for k in range(RESAMPLES):
        chosen = rng.integers(0, len(groups), len(groups))
        draws[k] = _middle([groups[g][rng.integers(0, len(groups[g]), len(groups[g]))] for g in chosen])
    low, high = np.percentile(draws, (2.5, 97.5)).tolist()
    widen = (len(groups) / max(len(groups) - 1, 1)) ** 0.5
    return Ratio(median, min(median, median + (low - median) * widen), max(median, median + (high - median) * widen))


def _middle(groups: list[np.ndarray]) -> float:
    """The median over all pairs."""
    return float(np.median(np.concatenate(groups)))


def measure(
    original: onnx.ModelProto | Path | str,
    candidate: onnx.ModelProto | Path | str,
    threads: int = 1,
    seconds: float = 20.0,
    sessions: int = 10,
    seed: int = 0,
    shapes: Mapping[str, object] | None = None,
) -> dict:
    """End-to-end latency of both models on this machine, with all of ONNX Runtime's optimisations.

    One pair of sessions lives at a time. Within it the models run in turns, the first one alternating, and
    every turn gives one ratio. Models that are large together (TOGETHER) have their sessions one after the
    other instead. It stops early, between sessions, when the interval is clear.

    Args:
      threads: threads inside one operator.
      seconds: time for all pairs together, at most; making sessions comes on top, as do the MIN_PAIRS of a
        slow model. A session runs at most MAX_PAIRS.
      sessions: pairs of sessions.
      seed: of the inputs and of the bootstrap.
      shapes: sizes for symbolic dimensions, as `load_graph` takes them.

    Returns (JSON-able): original_ms, candidate_ms (medians), ratio and interval (of candidate / original
    within pairs), verdict, pairs, sessions, side_by_side (false: one after the other), stopped, threads, seed,
    machine, onnxruntime.

    Raises:
      RLFlowError: ONNX Runtime refuses a model, or its inputs cannot be made.
    """
    inputs = random_inputs(original, seed, shapes)
    side_by_side = _bytes(original) + _bytes(candidate) <= TOGETHER
    pairs_of = _side_by_side if side_by_side else _one_after_the_other
    times: list[np.ndarray] = []
    ratio, stopped = None, "all sessions measured"
    for index in range(sessions):
        times.append(pairs_of((original, candidate), inputs, threads, seconds / sessions, index % 2))
        if index + 1 >= min(MIN_SESSIONS, sessions):
            ratio = ratio_of([pairs[:, 1] / pairs[:, 0] for pairs in times], seed)
            if ratio.clear and index + 1 < sessions:
                stopped = "the interval is clear"
                break
    original_ms, candidate_ms = 1e3 * np.median(np.concatenate(times), axis=0)
    return {
        "original_ms": float(original_ms),
        "candidate_ms": float(candidate_ms),
        "ratio": ratio.median,
        "interval": [ratio.low, ratio.high],
        "verdict": ratio.verdict,
        "pairs": sum(map(len, times)),
        "sessions": len(times),
        "side_by_side": side_by_side,
        "stopped": stopped,
        "threads": threads,
        "seed": seed,
        "machine": machine(),
        "onnxruntime": onnxruntime.__version__,
    }


def _bytes(model: onnx.ModelProto | Path | str) -> int:
    if isinstance(model, onnx.ModelProto):
        return model.ByteSize()
    return sum(file.stat().st_size for file in model_files(model))


def _side_by_side(models, inputs: dict[str, np.ndarray], threads: int, seconds: float, first: int) -> np.ndarray:
    """Seconds of alternating runs in one session a model, [pairs, 2]; `first` is made, and then run, first."""
    running = [None, None]
    for side in (first, 1 - first):
        running[side] = _warm(models[side], inputs, threads)
    pairs = []
    end = time.perf_counter() + seconds
    while _goes_on(pairs, end):
        pair = [0.0, 0.0]
        for side in (first, 1 - first):
            pair[side] = _seconds(running[side], inputs)
        pairs.append(pair)
        first = 1 - first
    return np.array(pairs)


def _one_after_the_other(models, inputs: dict[str, np.ndarray], threads: int, seconds: float, first: int) -> np.ndarray:
    """As `_side_by_side`, but only one session lives at a time: the k-th run of each makes a pair."""
    times: list[list[float]] = [[], []]
    running = _warm(models[first], inputs, threads)
    end = time.perf_counter() + seconds / 2
    while _goes_on(times[first], end):
        times[first].append(_seconds(running, inputs))
    del running
    running = _warm(models[1 - first], inputs, threads)
    times[1 - first] = [_seconds(running, inputs) for _ in times[first]]
    return np.array(times).T


def _warm(model, inputs: dict[str, np.ndarray], threads: int) -> onnxruntime.InferenceSession:
    running = session(model, threads)
    for _ in range(2):  # the first run allocates
        run(running, inputs)
    return running


def _goes_on(done: list, end: float) -> bool:
    return len(done) < MIN_PAIRS or (len(done) < MAX_PAIRS and time.perf_counter() < end)


def _seconds(running: onnxruntime.InferenceSession, inputs: dict[str, np.ndarray]) -> float:
    start = time.perf_counter()
    running.run(None, inputs)
    return time.perf_counter() - start
