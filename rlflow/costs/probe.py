"""The measured latency of one graph beside its original within tenths of a second, for rewards.

A worker process keeps the session of the original. Original and graph run in turns, and the result is the median ratio
of their latencies. If the worker crashes or exceeds the time limit, one measurement is lost and the worker is replaced.
"""

import hashlib
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime

from rlflow.common.errors import RLFlowError
from rlflow.common.files import file_hash
from rlflow.common.processes import Worker, WorkerDied
from rlflow.costs.measured import pairs_beside, warm_session
from rlflow.costs.timing import median_with_interval
from rlflow.graph import custom_ops
from rlflow.graph.feeds import Feeds
from rlflow.graph.ir import Constant, Graph
from rlflow.graph.onnx_writer import save_graph

SEED = 0  # seed of the random inputs of a `Probe`

Sizes = Sequence[Mapping[str, int]]  # for each typical size, symbol → size


def sizes_text(sizes: Sizes) -> str:
    return repr([sorted(one.items()) for one in sizes])


class Latency(NamedTuple):
    """The latency of a graph relative to its original. A lost measurement has NaN latencies and 0 pairs.

    Attributes:
      ratio, low, high: latency of the graph / latency of the original with its 95 % interval; geometric means over
        several sizes.
      original_ms: latency of the original in the same measurement.
      pairs: number of pairs of runs.
      seconds: duration of the measurement, including the time to make sessions.
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
        """Compute the latency from the times of runs of the original and the graph.

        Args:
          times: for each size, run times in seconds, float64 [pairs, 2]: original, graph.
          seconds: duration of the measurement, including the time to make sessions.
        """
        ratios = np.array([median_with_interval(pairs[:, 1] / pairs[:, 0]) for pairs in times])
        ratio, low, high = (ratios.prod(axis=0) ** (1 / len(times))).tolist()
        original_ms = 1e3 * float(np.exp(np.mean([np.log(np.median(pairs[:, 0])) for pairs in times])))
        return cls(ratio, low, high, original_ms, sum(map(len, times)), seconds)


class LostMeasurement(Exception):
    """Raised when one graph could not be measured; the message is the reason. Other graphs may still be measured."""


class Probe:
    """A function that measures the latency of a graph beside its original within tenths of a second.

    ONNX Runtime runs both on this machine with all of its optimisations.

    Args:
      threads: threads inside one operator.
      seconds: time for the runs of one measurement, with MIN_PAIRS to MAX_PAIRS pairs of runs.
      limit: seconds after which a measurement that has not ended is lost.
      feeds: the inputs of the original; None to draw them.
    """

    def __init__(self, threads: int, seconds: float, limit: float, feeds: Feeds | None = None):
        self.threads, self.seconds, self.limit, self.feeds = threads, seconds, limit, feeds
        self._worker = Worker()
        self._original: tuple | None = None  # (hash, sizes) of the original whose session the worker keeps

    def __reduce__(self):
        # The worker stays with the process that started it.
        return Probe, (self.threads, self.seconds, self.limit, self.feeds)

    def conditions(self, sizes: Sizes) -> str:
        """Return a text that is equal for measurements under equal conditions.

        The conditions are the sizes, the inputs, the seconds of the runs and the libraries of custom operators. Graphs
        and threads are not part of the text.

        Args:
          sizes: for each point to measure at, symbol → size.

        Raises:
          RLFlowError: the inputs cannot be made, or a library cannot be read.
        """
        inputs = self.feeds and hashlib.sha256(repr(_digests(_inputs(self.feeds, sizes))).encode()).hexdigest()
        return repr((sizes_text(sizes), inputs, float(self.seconds), file_hash(*custom_ops.loaded())))

    def __call__(self, original: Graph, graph: Graph, sizes: Sizes) -> Latency:
        """Measure a graph beside its original.

        Args:
          original: the graph before all rewrites.
          graph: the graph to measure.
          sizes: for each point to measure at, symbol → size.

        Raises:
          LostMeasurement: the graph could not be measured.
          RLFlowError: ONNX Runtime refuses the original.
        """
        started, wanted = time.monotonic(), (original.hash, repr(sizes))
        kept, self._original = self._original, None  # An interrupt may leave the worker in any state.
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "model.onnx")
                if kept != wanted:
                    save_graph(original, path)
                    given = path, [dict(one) for one in sizes], self.threads, self.feeds, custom_ops.loaded()
                    self._worker.run(_open, *given, limit=self.limit)
                times = self._times(graph, path)
        except WorkerDied as error:
            raise LostMeasurement(str(error)) from error
        self._original = wanted
        return Latency.of(times, time.monotonic() - started)

    def _times(self, graph: Graph, path: Path) -> list[np.ndarray]:
        """Save the graph to `path` and return its run times beside the original in the worker (`pairs_beside`)."""
        try:
            save_graph(graph, path)
            return self._worker.run(_run_beside_original, path, self.threads, self.seconds, limit=self.limit)
        except RLFlowError as error:
            raise LostMeasurement(str(error)) from error


def _inputs(feeds: Feeds, sizes: Sizes) -> list[dict[str, np.ndarray]]:
    """Return the input arrays by name for each size."""
    return list(feeds.at({str(k): one for k, one in enumerate(sizes)}, SEED).values())


def _digests(value: object) -> object:
    """Return a copy of nested lists and dictionaries in which each array is replaced by its digest."""
    if isinstance(value, np.ndarray):
        return Constant.of(value).digest
    if isinstance(value, list):
        return [_digests(one) for one in value]
    return {key: _digests(one) for key, one in value.items()} if isinstance(value, dict) else value


# -- in the worker ---------------------------------------------------------------------------------


class _Kept(NamedTuple):
    original: onnxruntime.InferenceSession
    inputs: list[dict[str, np.ndarray]]


_kept: _Kept | None = None


def _open(
    path: Path, sizes: list[dict[str, int]], threads: int, feeds: Feeds | None, libraries: tuple[str, ...]
) -> None:
    """Make a session of the original, run it at each size, and keep session and inputs in `_kept` of the worker.

    `libraries` are the parent's libraries of custom operators.
    """
    global _kept
    custom_ops.load(libraries)
    inputs = _inputs(feeds or Feeds.of(path), sizes)
    _kept = _Kept(warm_session(path, inputs, threads), inputs)


def _run_beside_original(path: Path, threads: int, seconds: float) -> list[np.ndarray]:
    """Return the run times of the kept session of the original and of a candidate (`pairs_beside`)."""
    return pairs_beside(_kept.original, path, _kept.inputs, threads, seconds)
