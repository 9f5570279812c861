"""Everything that is measured end to end is kept, with what a learned latency sees of the graphs: what it learns from.

Who measures says so in one call, whatever it measured for: a step that is rewarded, two files of a user, a contest,
what is delivered. Estimates of a graph's kernels are part of what is seen, and nothing is timed for them: of a graph
with kernels that were never timed the measurement is kept, and the graph is not seen until it is measured again.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from rlflow.costs.database import MeasuredPair, Pair, TimingDatabase
from rlflow.costs.kernel_graph import DamagedGraph, KernelGraph, from_bytes, to_bytes
from rlflow.costs.measured import NORMAL
from rlflow.costs.profiled import ProfiledCost
from rlflow.costs.timing import Timing
from rlflow.graph.model import Graph

Sizes = Sequence[Mapping[str, int]]  # of the symbols, once for every size


class NotTimed(Exception):
    """A kernel was never timed."""


class KnownTimings(ProfiledCost):
    """The profiled cost, which times nothing. Raises NotTimed, from `node_cost`."""

    def _timing(self, name, build) -> Timing:
        result = self.database.look_up(name, self.threads)
        if result is None:
            build()  # which says so if the kernel has no timing of its own
            raise NotTimed(name)
        return result


class Measurements:
    """Where measurements of whole graphs are kept. Raises RLFlowError, from `keep`, if the database cannot be used."""

    def __init__(self, database: TimingDatabase, threads: int):
        self.database, self.threads = database, threads
        self._cost = KnownTimings(database.path, threads)
        self._seen: set[tuple[str, str]] = set()  # that were kept by this object

    def keep(
        self, original: Graph, graph: Graph, sizes: Sizes, ratio: Sequence[float], original_ms: float | None = None
    ) -> None:
        """ratio: what the graph takes of what the original takes, and its 95 % interval."""
        text = sizes_text(sizes)
        self.database.keep_measurement(Pair(graph.hash, original.hash, text), self.threads, ratio, original_ms)
        for one in (original, graph):
            if (one.hash, text) not in self._seen:
                with suppress(NotTimed):
                    self._see(one, sizes, text)

    def _see(self, graph: Graph, sizes: Sizes, text: str) -> None:
        kernels = to_bytes([KernelGraph.of(self._cost, graph.at(one)) for one in sizes])
        if kernels is not None:
            self.database.keep_graph(graph.hash, text, self.threads, kernels)
        self._seen.add((graph.hash, text))


def sizes_text(sizes: Sizes) -> str:
    return repr([sorted(one.items()) for one in sizes])


class Known(NamedTuple):
    """What there is to learn from.

    pairs: of which both graphs are seen.  graphs: (hash, sizes) → the graph at every size.
    damaged: graphs whose bytes hold none.  unseen: measurements of which a graph is not seen.
    """

    pairs: list[MeasuredPair]
    graphs: dict[tuple[str, str], list[KernelGraph]]
    damaged: int
    unseen: int

    @classmethod
    def of(cls, database: TimingDatabase, threads: int) -> "Known":
        graphs, damaged = {}, 0
        for key, kernels in database.graphs(threads).items():
            try:
                graphs[key] = from_bytes(kernels)
            except DamagedGraph:
                damaged += 1
        taken = database.measurements(threads)
        pairs = [m for m in taken if all((graph, m.pair.sizes) in graphs for graph in m.pair[:2])]
        return cls(pairs, graphs, damaged, len(taken) - len(pairs))

    def original_ms(self) -> dict[tuple[str, str], float]:
        """(hash, sizes) of originals → the median of what they took."""
        taken: dict[tuple[str, str], list[float]] = {}
        for measured in self.pairs:
            if measured.original_ms is not None and math.isfinite(off(measured)):
                taken.setdefault((measured.pair.original, measured.pair.sizes), []).append(measured.original_ms)
        return {original: statistics.median(values) for original, values in taken.items()}


def off(measured: MeasuredPair) -> float:
    """Standard deviation of the logarithm of the ratio; infinity where the interval says nothing."""
    if not 0 < measured.low <= measured.high < math.inf:
        return math.inf
    return math.log(measured.high / measured.low) / (2 * NORMAL)
