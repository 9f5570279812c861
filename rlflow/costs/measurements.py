"""Measurements of whole graphs, kept in the timing database for later runs and for a learned latency.

Every end-to-end measurement is kept by one call (`Measurements.keep`), whatever it was made for: a reward, two files of
a user, a contest, a delivery. Each graph is kept with it as a `KernelGraph`: kinds and estimates of the
operators that run. A kernel graph holds no names, ids or weights, so that a latency can be learned later without the
graph. No kernel is timed for it: if a timing is missing, the measurement is kept, and the graph is kept at its next
measurement.

`Latencies` is the budget of an agent that measures. A graph that was measured before is looked up, but its seconds
count at the first request in any case, so that agents are compared at equal seconds on any machine. A lost measurement
stays lost for the run, so that a step is worth the same whenever it is asked about; it is not stored, and another run
tries again.
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

FORMAT = 1  # of the bytes and of what the numbers mean
NUMBERS = len(NodeCost._fields)
ESTIMATE, LAUNCHES = NodeCost._fields.index("runtime_ps"), NodeCost._fields.index("launches")  # columns of the numbers
MOST_NODES = 50_000  # of all views of a graph: larger ones are not kept


class DamagedGraph(Exception):
    """Bytes that hold no kernel graph; the message is why."""


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
    """A graph at every size; None if it is too large to be kept."""
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
    """What `to_bytes` was given. Raises DamagedGraph."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        if arrays["format"] != FORMAT:
            raise ValueError("another format")
        return [_view(arrays, number) for number in range(int(arrays["views"]))]
    except Exception as error:  # zipfile, zlib, OSError, KeyError, ValueError: damaged bytes can fail anywhere
        raise DamagedGraph(str(error)) from error


def _view(arrays: dict[str, np.ndarray], number: int) -> KernelGraph:
    names, kinds, numbers = (arrays[f"{number}/{part}"] for part in ("names", "kinds", "numbers"))
    numbers = numbers[:, :NUMBERS]  # earlier versions stored two more columns, and edges
    if numbers.shape != (len(kinds), NUMBERS) or not np.isfinite(numbers).all() or (numbers < 0).any():
        raise ValueError("numbers are missing")
    if kinds.ndim != 1 or (len(kinds) and not 0 <= kinds.min() <= kinds.max() < len(names)):
        raise ValueError("kinds are missing")
    return KernelGraph(tuple(names[kinds].tolist()), numbers)


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


MOST_LOST = 5  # in a row: then it is the machine or the model, and not this graph

Measure = Callable[[Graph, Graph, Sequence[Mapping[str, int]]], Latency]  # see `rlflow.costs.measured.Probe`


class Latencies:
    """Asked for by graph; what is not known yet is measured.

    Attributes:
      seconds: that the measurements took of all that was asked about, those that were lost included.

    Raises RLFlowError if the database cannot be used or is another machine's.
    """

    def __init__(self, database: TimingDatabase, threads: int, measure: Measure):
        database.check_here()
        self.database, self.threads, self.seconds = database, threads, 0.0
        self._measure, self._measurements = measure, Measurements(database, threads)
        self._known: dict[tuple[str, str, str], Latency] = {}
        self._lost_in_a_row = 0

    def of(self, original: Graph, graph: Graph, sizes: Sequence[Mapping[str, int]]) -> Latency:
        """What the graph takes, which a lost measurement does not say.

        original: what the graph was rewritten from.  sizes: of the symbols, once for every size to measure at.

        Raises RLFlowError if MOST_LOST measurements in a row are lost, or ONNX Runtime refuses the original.
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
                return latency  # another process has measured it while we waited
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
                raise RLFlowError(f"{MOST_LOST} measurements in a row were lost ({error})") from error
            say(f"a measurement was lost ({error}); its step earns nothing")
            return Latency.lost_after(time.monotonic() - started)
        self._lost_in_a_row = 0
        self.database.keep_latency(*key, self.threads, latency)
        return latency
