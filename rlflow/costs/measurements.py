"""Measured latencies of whole graphs, stored in the timing database for later runs and for the learned cost.

`Measurements.keep` stores every end-to-end measurement, whatever its purpose: a reward, a comparison of two files of a
user, a contest, a delivery. It also stores both measured graphs as `KernelGraph`s: the kinds and estimated costs of
their operators without names, ids and weights. The learned cost needs nothing else. No kernel is timed for this
purpose. If a kernel of a graph was never timed, the graph is not stored now, but with its next measurement.

`Latencies` returns latencies of graphs to an agent and sums the duration of all measurements. If an earlier run has
measured a graph, its latency is looked up, but its duration counts all the same. Agents can therefore be compared at
equal measurement time. A lost measurement stays lost for the run, so that the reward of a step is reproducible. Lost
measurements are not stored, so another run measures the graph again.
"""

import io
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import say
from rlflow.costs import CostModel, NodeCost
from rlflow.costs.database import MeasuredPair, Pair, TimingDatabase
from rlflow.costs.measured import NORMAL, Latency, LostMeasurement
from rlflow.costs.profiled import ProfiledCost
from rlflow.costs.timing import Timing
from rlflow.graph import contrib
from rlflow.graph.ir import Graph, Node

FORMAT = 1  # version of the bytes of `to_bytes` and of the meaning of `KernelGraph.numbers`
NUMBERS = len(NodeCost._fields)
ESTIMATE, LAUNCHES = NodeCost._fields.index("runtime_ps"), NodeCost._fields.index("launches")  # columns of `numbers`
MOST_NODES = 50_000  # largest number of operators of a stored graph, summed over its typical sizes


class DamagedGraph(Exception):
    """Raised for bytes that hold no kernel graph; the message is the reason."""


class KernelGraph(NamedTuple):
    """The kinds and costs of the n non-constant operators of one graph at one size of its symbols.

    Attributes:
      kinds: the kind of each operator (`kind_of`).
      numbers: float64 [n, NUMBERS], the `NodeCost` of each operator.
    """

    kinds: tuple[str, ...]
    numbers: np.ndarray

    @classmethod
    def of(cls, cost: CostModel, graph: Graph) -> Self:
        """Return the kernel graph of a graph.

        Args:
          cost: the cost model that estimates the costs of the operators.
          graph: a graph whose sizes are numbers.
        """
        running = [node for node in (graph.nodes[node_id] for node_id in graph.order) if not node.constant]
        numbers = np.array([cost.node_cost(graph, node) for node in running], float)
        return cls(tuple(kind_of(graph, node) for node in running), numbers.reshape(-1, NUMBERS))

    @property
    def parts_ps(self) -> dict[str, int]:
        """Kind of operator → estimated picoseconds of all operators of this kind, kinds in alphabetical order."""
        result: dict[str, int] = {}
        for kind, ps in zip(self.kinds, self.numbers[:, ESTIMATE].tolist(), strict=True):
            if ps:
                result[kind] = result.get(kind, 0) + round(ps)
        return dict(sorted(result.items()))

    @property
    def launches(self) -> int:
        return round(self.numbers[:, LAUNCHES].sum())


def kind_of(graph: Graph, node: Node) -> str:
    """Return the kind of an operator: its name, e.g. "MatMul"; for a convolution also its form, e.g. "Conv pointwise".

    The forms are pointwise, spatial, grouped and depthwise. A fused operator (FusedConv) has the kind of the plain
    operator (Conv), because ONNX Runtime often fuses the plain operator by itself.

    Args:
      graph: the graph.
      node: a node of the graph.
    """
    known = node.domain in ("", contrib.DOMAIN)
    name = node.op.removeprefix("Fused") if known else f"{node.domain}.{node.op}"
    weight = graph.types.get(node.inputs[1]) if known and name == "Conv" else None
    if weight is None or weight.shape is None:
        return name
    group, (_, per_group, *window) = node.attribute("group", 1), weight.shape
    if group > 1:
        return f"{name} {'depthwise' if per_group == 1 else 'grouped'}"
    return f"{name} {'pointwise' if set(window) == {1} else 'spatial'}"


# -- as bytes --------------------------------------------------------------------------------------


def to_bytes(views: list[KernelGraph]) -> bytes | None:
    """Serialise the kernel graphs of one graph at its typical sizes; return None for more than MOST_NODES operators."""
    if sum(len(view.kinds) for view in views) > MOST_NODES:
        return None
    arrays = {"format": np.array(FORMAT), "views": np.array(len(views))}
    for number, view in enumerate(views):
        names, kinds = np.unique(np.array(view.kinds, dtype=str), return_inverse=True)
        arrays |= {f"{number}/names": names, f"{number}/kinds": kinds.astype(np.int32)}
        arrays[f"{number}/numbers"] = view.numbers
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def from_bytes(data: bytes) -> list[KernelGraph]:
    """Return the kernel graphs that `to_bytes` serialised.

    Raises:
      DamagedGraph: the bytes hold something else.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        if arrays["format"] != FORMAT:
            raise ValueError("another format")
        return [_view(arrays, number) for number in range(int(arrays["views"]))]
    except Exception as error:  # Damaged bytes raise errors of zipfile, zlib and NumPy, among others.
        raise DamagedGraph(str(error)) from error


def _view(arrays: dict[str, np.ndarray], number: int) -> KernelGraph:
    names, kinds, numbers = (arrays[f"{number}/{part}"] for part in ("names", "kinds", "numbers"))
    numbers = numbers[:, :NUMBERS]  # earlier versions stored two more columns, and edges
    if numbers.shape != (len(kinds), NUMBERS) or not np.isfinite(numbers).all() or (numbers < 0).any():
        raise ValueError("numbers are missing")
    if kinds.ndim != 1 or (len(kinds) and not 0 <= kinds.min() <= kinds.max() < len(names)):
        raise ValueError("kinds are missing")
    return KernelGraph(tuple(names[kinds].tolist()), numbers)


Sizes = Sequence[Mapping[str, int]]  # for each typical size, symbol → size


class NotTimed(Exception):
    """Raised for a kernel without a stored timing."""


class KnownTimings(ProfiledCost):
    """The profiled cost from stored timings alone; `node_cost` raises NotTimed for a kernel without a stored timing."""

    def _shared(self, name, build):
        return self.database.timed_as(name, self.threads) or name, build

    def _timing(self, name, build) -> Timing:
        result = self.database.look_up(name, self.threads)
        if result is None:
            build()  # raises NoTimingOfItsOwn if the kernel cannot be timed by itself
            raise NotTimed(name)
        return result


class Measurements:
    """A writer of measurements of whole graphs into a timing database."""

    def __init__(self, database: TimingDatabase, threads: int):
        self.database, self.threads = database, threads
        self._cost = KnownTimings(database.path, threads)
        self._seen: set[tuple[str, str]] = set()  # (hash, sizes) of graphs that this object has stored

    def keep(
        self, original: Graph, graph: Graph, sizes: Sizes, ratio: Sequence[float], original_ms: float | None = None
    ) -> None:
        """Store a measurement of a graph beside its original, and the operators of both graphs.

        Args:
          original: the graph before all rewrites.
          graph: the measured graph.
          sizes: for each size at which both graphs were measured, symbol → size.
          ratio: (ratio, low, high): latency of the graph / latency of the original, and its 95 % interval.
          original_ms: latency of the original; None if it is not known.

        Raises:
          RLFlowError: the database cannot be used.
        """
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
    """The stored measurements and graphs from which a cost can be learned.

    Attributes:
      pairs: measurements whose two graphs are stored.
      graphs: (hash of a graph, sizes as text) → its kernel graph at each size.
      damaged: number of stored graphs that cannot be read.
      unseen: number of measurements that `pairs` lacks because one of their graphs is not stored or damaged.
    """

    pairs: list[MeasuredPair]
    graphs: dict[tuple[str, str], list[KernelGraph]]
    damaged: int
    unseen: int

    @classmethod
    def of(cls, database: TimingDatabase, threads: int) -> "Known":
        """Read measurements and graphs from a database.

        Args:
          database: the database.
          threads: threads of ONNX Runtime in the measurements.
        """
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
        """Return (hash of an original, sizes as text) → the median of its measured latencies in ms."""
        taken: dict[tuple[str, str], list[float]] = {}
        for measured in self.pairs:
            if measured.original_ms is not None and math.isfinite(log_ratio_deviation(measured)):
                taken.setdefault((measured.pair.original, measured.pair.sizes), []).append(measured.original_ms)
        return {original: statistics.median(values) for original, values in taken.items()}


def log_ratio_deviation(measured: MeasuredPair) -> float:
    """Return the standard deviation of log(ratio) that the 95 % interval implies; infinity for an invalid interval."""
    if not 0 < measured.low <= measured.high < math.inf:
        return math.inf
    return math.log(measured.high / measured.low) / (2 * NORMAL)


# The number of consecutive lost measurements after which `Latencies` gives up, because then the machine or the model is
# at fault, not one graph.
MOST_LOST = 5

Measure = Callable[[Graph, Graph, Sequence[Mapping[str, int]]], Latency]  # see `rlflow.costs.measured.Probe`


class Latencies:
    """A cache of latencies; a graph whose latency is not stored is measured at its first request.

    Every method may raise RLFlowError if the database cannot be used or belongs to another machine.

    Attributes:
      seconds: total duration of the measurements of all requested graphs, lost and stored measurements included.
    """

    def __init__(self, database: TimingDatabase, threads: int, measure: Measure):
        database.check_here()
        self.database, self.threads, self.seconds = database, threads, 0.0
        self._measure, self._measurements = measure, Measurements(database, threads)
        self._known: dict[tuple[str, str, str], Latency] = {}
        self._lost_in_a_row = 0

    def of(self, original: Graph, graph: Graph, sizes: Sequence[Mapping[str, int]]) -> Latency:
        """Return the latency of a graph relative to its original; the measurement may be lost (`Latency.lost`).

        Args:
          original: the graph before all rewrites.
          graph: the graph to measure.
          sizes: for each size to measure at, symbol → size.

        Raises:
          RLFlowError: MOST_LOST measurements in a row were lost, or ONNX Runtime refuses the original.
        """
        key = graph.hash, original.hash, sizes_text(sizes)
        if key not in self._known:
            latency = self.database.latency(*key, self.threads) or self._new(key, original, graph, sizes)
            self.seconds += latency.seconds
            self._known[key] = latency
        return self._known[key]

    def _new(self, key: tuple, original: Graph, graph: Graph, sizes) -> Latency:
        with self.database.lock():
            latency = self.database.latency(*key, self.threads)
            if latency is not None:
                return latency  # Another process has measured it meanwhile.
            latency = self._measured(key, original, graph, sizes)
        if not latency.lost:
            self._measurements.keep(original, graph, sizes, latency[:3], latency.original_ms)
        return latency

    def _measured(self, key: tuple, original: Graph, graph: Graph, sizes) -> Latency:
        started = time.monotonic()
        try:
            latency = self._measure(original, graph, sizes)
        except LostMeasurement as error:
            self._lost_in_a_row += 1
            if self._lost_in_a_row == MOST_LOST:
                raise RLFlowError(
                    f"{MOST_LOST} measurements in a row were lost ({error}); raise env.measure_limit if the model "
                    "needs more time"
                ) from error
            say(f"a measurement was lost ({error}); the reward of its step is 0")
            return Latency.lost_after(time.monotonic() - started)
        self._lost_in_a_row = 0
        self.database.keep_latency(*key, self.threads, latency)
        return latency
