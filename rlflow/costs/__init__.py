"""The cost of a graph: an exact integer sum over its operators, or a quantity of the whole graph (`memory`).

A cost model has one line in `COSTS`. Its members:

    reach: int                           largest distance in edges of the nodes that a node's cost may depend on
    passes: container of str or None     operators that a path to these nodes may lead through; None: all operators
    open(threads, database) -> model     class method: make the model for a number of threads and a timing database
    node_cost(graph, node) -> NodeCost   depends on the content of `signatures.signature`, never on names or ids
    deadline: float                      optional, for a model that times operators: set by `timing_until`
    spread(graph, node) -> Spread        optional: the uncertainty of node_cost, for each timing that it depends on
    time_again(timing)                   optional, for a model that times operators: repeat a timing in its spread
    target: Target or None               optional: the other machine whose timings it uses (`rlflow.costs.target`)
    whole(graph) -> int                  optional, if the cost of a graph is not a sum: replaces the sum of runtimes
    strain(graph) -> mapping             optional, with `whole`, if the cost is a maximum: see `StrainedState`
    unit: str, per_unit: float           optional, if a cost is not a time (`rlflow.common.task.Task`)

Costs are integers, so a total that is updated by difference after a rewrite equals a full recount. Constant nodes cost
nothing, because export folds them. Costs are estimates; `rlflow.costs.measured` measures the latency of a whole graph.

A `Spread` is the uncertainty of a sum of timings. Searches use only the estimated cost. After a search,
`rlflow.optimisation.ablation` repeats the timings that decide the result and takes back rewrites whose gain is smaller
than the uncertainty of the gain.
"""

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from rlflow.common.layers import layered
from rlflow.common.options import option
from rlflow.common.registry import Registry
from rlflow.graph.dims import at
from rlflow.graph.ir import ABSENT, Graph, Node

COSTS = Registry(
    "cost",
    {
        "analytic": "rlflow.costs.analytic:AnalyticCost",
        "roofline": "rlflow.costs.analytic:RooflineCost",
        "profiled": "rlflow.costs.profiled:ProfiledCost",
        "predicted": "rlflow.costs.predicted:PredictedCost",
        "memory": "rlflow.memory.cost:MemoryCost",
    },
)


class NodeCost(NamedTuple):
    """The cost of one operator or of several operators together.

    Attributes:
      runtime_ps: runtime in picoseconds; in a cost model that does not estimate time, the quantity that it estimates.
      flops: number of floating-point operations.
      bytes: number of bytes that are read and written.
      launches: number of kernel launches.
    """

    runtime_ps: int
    flops: int
    bytes: int
    launches: int


FREE = NodeCost(0, 0, 0, 0)


class CostModel(Protocol):
    reach: int
    passes: Container[str] | None

    @classmethod
    def open(cls, threads: int, database: Path | None) -> "CostModel": ...

    def node_cost(self, graph: Graph, node: Node) -> NodeCost: ...


class TimeIsUp(Exception):
    """Raised if an operator would have to be timed after the deadline of the cost model (`timing_until`)."""


@contextmanager
def timing_until(model: CostModel, deadline: float) -> Iterator[None]:
    """Set a deadline within the block, after which `node_cost` raises TimeIsUp instead of starting a timing.

    Args:
      model: the cost model.
      deadline: time in seconds on the clock time.monotonic().
    """
    model.deadline = deadline
    try:
        yield
    finally:
        model.deadline = math.inf


def unit_of(model: CostModel) -> tuple[str, float]:
    """Return the unit in which costs are shown and the cost of one unit, e.g. ("ms", 1e9) for costs in picoseconds."""
    return getattr(model, "unit", "ms"), getattr(model, "per_unit", 1e9)


def runtime_ms(cost: NodeCost) -> float:
    return cost.runtime_ps / 1e9


def graph_cost(model: CostModel, graph: Graph) -> NodeCost:
    """Return the cost of a whole graph, computed from all of its nodes."""
    return GraphCost.of(model, graph).total


@dataclass(frozen=True)
class GraphCost:
    """The cost of one graph, which can be updated after a rewrite.

    Attributes:
      total: cost of the whole graph.
      nodes: node id → cost of the node.
      recounted: ids of the touched nodes of the last rewrite, and of the nodes whose cost it changed.
    """

    total: NodeCost
    nodes: dict[int, NodeCost]
    recounted: frozenset[int] = frozenset()

    @classmethod
    def of(cls, model: CostModel, graph: Graph) -> "GraphCost":
        nodes = {node_id: cost_of_all_runs(model, graph, node) for node_id, node in graph.nodes.items()}
        return cls(_with_whole_cost(model, graph, _sum(nodes.values())), layered(nodes))

    def after(self, model: CostModel, rewritten: Graph, touched: frozenset[int]) -> "GraphCost":
        """Return the cost of the graph after rewrites; compute only the costs of nodes that may have changed.

        Args:
          model: the cost model that computed `self`.
          rewritten: the graph after the rewrites.
          touched: ids of the touched nodes of the rewrites (`Graph.touched`).
        """
        affected = neighbourhood(rewritten, touched, model.reach, model.passes)
        nodes, recounted = self.nodes.copy(), set(touched)
        total = list(self.total)
        for node_id in affected:
            old = nodes.pop(node_id, FREE)
            new = FREE
            if node_id in rewritten.nodes:
                new = nodes[node_id] = cost_of_all_runs(model, rewritten, rewritten.nodes[node_id])
            if new != old:
                recounted.add(node_id)
                total = [t + b - a for t, a, b in zip(total, old, new, strict=True)]
        return GraphCost(_with_whole_cost(model, rewritten, NodeCost(*total)), nodes, frozenset(recounted))


def cost_of_all_runs(model: CostModel, graph: Graph, node: Node) -> NodeCost:
    """Return the cost of a node, times the number of runs of the bodies that contain the node."""
    cost = model.node_cost(graph, node)
    return NodeCost(*[runs_of(model, graph, node) * part for part in cost]) if node.body else cost


def runs_of(model: CostModel, graph: Graph, node: Node) -> int:
    """Return how often a node runs in one run of the model: the product of the runs of the bodies around the node.

    If a number of runs depends on symbols, it is taken at the sizes of the graph (`Graph.at`). The result is 1 if the
    cost model itself counts the runs (`AtSizes.counts_runs`).
    """
    runs, body, sizes = 1, 0 if getattr(model, "counts_runs", False) else node.body, graph.sizes
    while body:
        runs, body = runs * max(at(graph.interface.bodies[body].runs, sizes), 1), graph.interface.bodies[body].outer
    return runs


def neighbourhood(graph: Graph, node_ids, reach: int, passes: Container[str] | None = None) -> set[int]:
    """Return the given node ids and the ids of all nodes within `reach` edges of them.

    Args:
      graph: the graph.
      node_ids: ids to start from; ids that are not in the graph are allowed.
      reach: largest number of edges on a path from the given nodes.
      passes: operators that a path may lead through; None for all operators.
    """
    result = set(node_ids)
    frontier = result
    for step in range(reach):
        around = set()
        for node_id in frontier & graph.nodes.keys():
            node = graph.nodes[node_id]
            if step and passes is not None and node.op not in passes:
                continue
            around.update(graph.producers[t] for t in node.reads() if t in graph.producers)
            around.update(c for t in node.outputs for c in graph.consumers.get(t, ()))
        frontier = around - result
        result = result | frontier
    return result


def peak_memory(graph: Graph) -> int:
    """Return the peak bytes of activations when the nodes run in the canonical order with one buffer per tensor.

    An input lives until its last use, a result from its node to its last use, and an output of the graph until the
    end. Weights are not counted, and a tensor of unknown shape counts as 0 bytes.
    """
    order = [n for n in graph.order if not graph.nodes[n].constant]
    last_use = {tensor: position for position, n in enumerate(order) for tensor in graph.nodes[n].reads()}
    last_use |= {tensor: len(order) for tensor in graph.outputs}

    def size(tensor: int) -> int:
        return graph.types[tensor].nbytes if tensor in graph.types else 0

    live = sum(size(t) for t in set(graph.inputs) & last_use.keys())
    dying: dict[int, list[int]] = {}
    for tensor in set(graph.inputs) & last_use.keys():
        dying.setdefault(last_use[tensor], []).append(tensor)
    peak = live
    for position, node_id in enumerate(order):
        for tensor in graph.nodes[node_id].outputs:
            if tensor != ABSENT:
                live += size(tensor)
                dying.setdefault(last_use.get(tensor, position), []).append(tensor)
        peak = max(peak, live)
        live -= sum(size(tensor) for tensor in dying.pop(position, ()))
    return peak


def _with_whole_cost(model: CostModel, graph: Graph, total: NodeCost) -> NodeCost:
    """Return the total with the runtime replaced by `model.whole(graph)`, or unchanged if the model has no `whole`."""
    return total._replace(runtime_ps=model.whole(graph)) if hasattr(model, "whole") else total


def _sum(costs) -> NodeCost:
    columns = list(zip(*costs, strict=True))
    return NodeCost(*map(sum, columns)) if columns else FREE


class Spread(dict[str, int]):
    """The uncertainty of a sum of timings: an immutable mapping from the name of a timing to its error in the sum.

    The error is the half-width in picoseconds of the timing's 95 % interval, times the factor of the timing in the sum;
    it is never 0. Equal kernels share a timing, so their errors add up. In the difference of two graphs' costs, the
    timings of common kernels cancel.
    """

    def plus(self, other: Mapping[str, int], times: float) -> "Spread":
        """Return the spread of a + times · b, if this is the spread of a.

        Args:
          other: the spread of b.
          times: the factor of b.
        """
        if not other:
            return self
        result = Spread(self)
        for timing, off in other.items():
            together = result.pop(timing, 0) + round(times * off)
            if together:
                result[timing] = together
        return result

    def __sub__(self, other: "Spread") -> "Spread":
        return self.plus(other, -1)

    @property
    def ps(self) -> int:
        """The half-width in picoseconds of the sum's 95 % interval, if errors of different timings are independent."""
        return round(sum(off * off for off in self.values()) ** 0.5)


EXACT = Spread()


def node_spread(cost, graph: Graph, node: Node) -> Spread:
    """Return the uncertainty of the cost of one operator; EXACT if the cost model has no `spread`."""
    return cost.spread(graph, node) if hasattr(cost, "spread") else EXACT


def graph_spread(cost, graph: Graph, node_ids: Iterable[int] | None = None) -> Spread:
    """Return the uncertainty of the cost of a graph.

    Args:
      cost: the cost model.
      graph: the graph.
      node_ids: ids of the nodes whose costs are added up; ids that are not in the graph are allowed. None for all.
    """
    result = EXACT
    for node_id in graph.nodes if node_ids is None else graph.nodes.keys() & node_ids:
        node = graph.nodes[node_id]
        result = result.plus(node_spread(cost, graph, node), runs_of(cost, graph, node))
    return result


@dataclass(frozen=True)
class CostOptions:
    """The cost of a graph.

    All stages of a run use the same number of threads, so that a controller learns from estimates for the number of
    threads with which its result is measured. Timings with several threads need an otherwise idle machine. Before
    `collect` with several workers and the profiled cost, time the kernels with `costs record` or by a search, as
    `optimise --learn` does. The analytic cost does not depend on threads.
    """

    name: str = option(
        "predicted",
        "predicted (operators cost their timing on this machine, or a prediction; `optimise` times the ones that "
        "decide), profiled (every operator is timed when it is first needed), analytic (a roofline, the same "
        "everywhere), roofline (with the constants of this machine: `costs calibrate`); "
        "memory (bytes at the peak, in the best order) is for searches and agents: `memory --rewrite` delivers by it",
    )
    threads: int | None = option(
        None,
        "threads of ONNX Runtime in estimates and measurements; null: one for each core that this process may use; a "
        "run keeps the number",
    )
    database: str | None = option(None, "SQLite file with the timings; null: ~/.cache/rlflow/costs.sqlite")
