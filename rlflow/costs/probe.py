"""A fast measurement of one graph's latency, beside the graph that it was rewritten from.

The sessions live in a worker process. It keeps the one of the original and makes one of each graph that it is asked
about; both run in turns, so that what slows the machine down slows both, and what counts is the median of the ratios.
A measurement of some tenths of a second says so much and not more: two sessions of one file differ for as long as they
live, which the interval states (`rlflow.costs.timing.median_of`), and a verdict on what is delivered wants many
sessions (`rlflow.costs.measured.measure`).

An interrupt, a crash or a hang costs one measurement: the worker is given up, and the next one is measured in another.
"""

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime

from rlflow.common.errors import RLFlowError
from rlflow.common.processes import Worker, WorkerDied
from rlflow.costs.measured import pairs_beside, warm_session
from rlflow.costs.timing import median_of
from rlflow.graph.model import Graph
from rlflow.graph.onnx_runtime import random_inputs
from rlflow.graph.onnx_writer import save_graph

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
            return self._worker.run(_run, path, self.threads, self.seconds, limit=self.limit)
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


def _run(path: Path, threads: int, seconds: float) -> list[np.ndarray]:
    """See `pairs_beside`."""
    return pairs_beside(_kept.original, path, _kept.inputs, threads, seconds)
