"""Measurements of whole graphs, kept in the timing database for later runs and for the learned cost.

`Measurements.keep` stores every end-to-end measurement, whatever its purpose: a reward, two files of a user, a contest,
a delivery. With it each graph is stored as a `KernelGraph`, the kinds and estimates of its operators without names, ids
and weights. The learned cost needs nothing else. No kernel is timed for this purpose: if a timing is missing, the
measurement is stored alone, and the graph is stored with its next measurement.

`Latencies` gives an agent the latency of a graph and counts the seconds of its measurements. A graph that is known from
an earlier run is looked up, but its seconds count at the first request all the same. Agents are therefore compared at
equal seconds on any machine. A lost measurement stays lost for the run, so that the reward of a step is reproducible.
It is not stored, and another run tries again.
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

FORMAT = 1  # of the bytes and of the meaning of the numbers
NUMBERS = len(NodeCost._fields)
ESTIMATE, LAUNCHES = NodeCost._fields.index("runtime_ps"), NodeCost._fields.index("launches")  # columns of the numbers
MOST_NODES = 50_000  # operators of all views of a graph together: larger graphs are not stored


class DamagedGraph(Exception):
    """Raised for bytes that hold no kernel graph; the message is the reason."""


class KernelGraph(NamedTuple):
    """The operators of one graph at one size of its symbols, without its constants.

    Attributes:
      kinds: the kind of each of n operators (`kind_of`).
      numbers: float64 [n, NUMBERS], the `NodeCost` of each operator.
    """

    kinds: tuple[str, ...]
    numbers: np.ndarray

    @classmethod
    def of(cls, cost: CostModel, graph: Graph) -> Self:
        """Return the kernel graph of a graph without symbols, with the estimates of a cost model."""
        running = [node for node in (graph.nodes[node_id] for node_id in graph.order) if not node.constant]
        numbers = np.array([cost.node_cost(graph, node) for node in running], float)
        return cls(tuple(kind_of(graph, node) for node in running), numbers.reshape(-1, NUMBERS))

    @property
    def parts_ps(self) -> dict[str, int]:
        """The estimate in picoseconds by kind of operator, kinds in alphabetical order."""
        result: dict[str, int] = {}
        for kind, ps in zip(self.kinds, self.numbers[:, ESTIMATE].tolist(), strict=True):
            if ps:
                result[kind] = result.get(kind, 0) + round(ps)
        return dict(sorted(result.items()))

    @property
    def launches(self) -> int:
        return round(self.numbers[:, LAUNCHES].sum())


def kind_of(graph: Graph, node: Node) -> str:
    """Return the operator's name; for a convolution also whether it is pointwise, grouped, depthwise or spatial.

    A fused operator has the kind of the plain operator, because ONNX Runtime often fuses the plain one by itself.
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
    """Serialise a graph at every size; return None if the graph is too large to be stored."""
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
    """Read a graph that `to_bytes` wrote.

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


Sizes = Sequence[Mapping[str, int]]  # size of each symbol, once for every typical size


class NotTimed(Exception):
    """Raised for a kernel without a stored timing."""


class KnownTimings(ProfiledCost):
    """The profiled cost without timing: `node_cost` raises NotTimed for a kernel without a stored timing."""

    def _timing(self, name, build) -> Timing:
        result = self.database.look_up(name, self.threads)
        if result is None:
            build()  # raises NoTimingOfItsOwn if the kernel cannot be timed by itself
            raise NotTimed(name)
        return result


class Measurements:
    """The store of measurements of whole graphs."""

    def __init__(self, database: TimingDatabase, threads: int):
        self.database, self.threads = database, threads
        self._cost = KnownTimings(database.path, threads)
        self._seen: set[tuple[str, str]] = set()  # (hash, sizes) of graphs that this object has stored

    def keep(
        self, original: Graph, graph: Graph, sizes: Sizes, ratio: Sequence[float], original_ms: float | None = None
    ) -> None:
        """Store a measurement of a graph beside its original.

        Args:
          original: the graph before all rewrites.
          graph: the measured graph.
          sizes: sizes of the symbols at which both were measured.
          ratio: latency of the graph divided by the latency of the original, and its 95 % interval (ratio, low, high).
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
    """The measurements that a cost can be learned from.

    Attributes:
      pairs: measurements whose two graphs are stored.
      graphs: by (hash, sizes), the graph at every size.
      damaged: number of stored graphs that cannot be read.
      unseen: number of measurements with a graph that is not stored.
    """

    pairs: list[MeasuredPair]
    graphs: dict[tuple[str, str], list[KernelGraph]]
    damaged: int
    unseen: int

    @classmethod
    def of(cls, database: TimingDatabase, threads: int) -> "Known":
        """Read all measurements with this number of threads from a database."""
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
        """Return the median latency in ms of each original, by (hash, sizes)."""
        taken: dict[tuple[str, str], list[float]] = {}
        for measured in self.pairs:
            if measured.original_ms is not None and math.isfinite(log_ratio_deviation(measured)):
                taken.setdefault((measured.pair.original, measured.pair.sizes), []).append(measured.original_ms)
        return {original: statistics.median(values) for original, values in taken.items()}


def log_ratio_deviation(measured: MeasuredPair) -> float:
    """Return the standard deviation of the log ratio of a measurement; infinity for an unusable interval."""
    if not 0 < measured.low <= measured.high < math.inf:
        return math.inf
    return math.log(measured.high / measured.low) / (2 * NORMAL)


MOST_LOST = 5  # lost measurements in a row: the machine or the model is then at fault, not the graph

Measure = Callable[[Graph, Graph, Sequence[Mapping[str, int]]], Latency]  # see `rlflow.costs.measured.Probe`


class Latencies:
    """Latencies of graphs, measured at their first request.

    Every method may raise RLFlowError if the database cannot be used or belongs to another machine.

    Attributes:
      seconds: measurement time of all requested graphs, lost measurements included.
    """

    def __init__(self, database: TimingDatabase, threads: int, measure: Measure):
        database.check_here()
        self.database, self.threads, self.seconds = database, threads, 0.0
        self._measure, self._measurements = measure, Measurements(database, threads)
        self._known: dict[tuple[str, str, str], Latency] = {}
        self._lost_in_a_row = 0

    def of(self, original: Graph, graph: Graph, sizes: Sequence[Mapping[str, int]]) -> Latency:
        """Return the latency of a graph beside its original, which may be lost (`Latency.lost`).

        Args:
          original: the graph before all rewrites.
          graph: the graph to measure.
          sizes: size of each symbol, once for every size to measure at.

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
