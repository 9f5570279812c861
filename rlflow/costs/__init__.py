"""What a graph costs: an exact sum of what its operators cost, or a quantity of the whole (`memory`).

A cost model has

    reach: int                           how many edges around a node its cost may look
    passes: container of str or None     the operators that it looks past, None for all
    open(threads, database) -> model     how a config makes one (a class method)
    node_cost(graph, node) -> NodeCost   depends on what `signature` holds, never on names or ids
    context: int                         optional, how many edges further, past any operator, what it sees may change it
    deadline: float                      optional, what `timing_until` sets, for one that times operators
    spread(graph, node) -> Spread        optional, by how much node_cost may be off: `rlflow.costs.spread`
    time_again(timing)                   optional, of one that times: takes a timing that its spread names once more
    target: Target or None               optional, the other machine that it estimates for: `rlflow.costs.target`
    whole(graph) -> int                  optional, of one of which a graph's cost is no sum: stands for that of runtimes
    unit: str, per_unit: float           optional, of another quantity than time: as `rlflow.tasks.base.Task` has them

and one line in `COSTS`. Costs are integers, so that a total that is updated by difference after a rewrite
equals the total counted anew, whatever the path. Constant nodes cost nothing: they are folded on export.
These are *estimates*; the latency of a whole graph is `rlflow.costs.measured`'s business.
"""

import math
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from rlflow.common.registry import Registry
from rlflow.graph.model import ABSENT, Graph, Node

COSTS = Registry(
    "cost",
    {
        "analytic": "rlflow.costs.analytic:AnalyticCost",
        "roofline": "rlflow.costs.calibrate:RooflineCost",
        "profiled": "rlflow.costs.profiled:ProfiledCost",
        "corrected": "rlflow.costs.corrected:CorrectedCost",
        "learned": "rlflow.costs.learned:LearnedCost",
        "memory": "rlflow.costs.memory.cost:MemoryCost",
    },
)


class NodeCost(NamedTuple):
    """Cost of one operator or of a sum of them: runtime in picoseconds, the bytes it reads and writes.

    A cost of another quantity than time has that in the place of the runtime.
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
    """An operator would have to be timed after the deadline."""


@contextmanager
def timing_until(model: CostModel, deadline: float) -> Iterator[None]:
    """In the block no timing begins after the deadline (time.monotonic()): `node_cost` raises TimeIsUp instead."""
    model.deadline = deadline
    try:
        yield
    finally:
        model.deadline = math.inf


def unit_of(model: CostModel) -> tuple[str, float]:
    """What people are told a cost in, and how much of it one such unit is."""
    return getattr(model, "unit", "ms"), getattr(model, "per_unit", 1e9)


def runtime_ms(cost: NodeCost) -> float:
    return cost.runtime_ps / 1e9


def graph_cost(model: CostModel, graph: Graph) -> NodeCost:
    """The sum over all nodes of the graph."""
    return GraphCost.of(model, graph).total


@dataclass(frozen=True)
class GraphCost:
    """The cost of one graph, ready to be updated after a rewrite.

    Attributes:
      total: the sum.
      nodes: node id → its cost.
      recounted: ids of the nodes that a rewrite touched or whose cost it changed.
    """

    total: NodeCost
    nodes: dict[int, NodeCost]
    recounted: frozenset[int] = frozenset()

    @classmethod
    def of(cls, model: CostModel, graph: Graph) -> "GraphCost":
        nodes = {node_id: model.node_cost(graph, node) for node_id, node in graph.nodes.items()}
        return cls(_of_whole(model, graph, _sum(nodes.values())), nodes)

    def after(self, model: CostModel, rewritten: Graph, touched: frozenset[int]) -> "GraphCost":
        """The cost of `rewritten`, which rewrites made of this cost's graph: only what they `touched` is counted anew.
        """
        affected = neighbourhood(rewritten, touched, model.reach, model.passes)
        affected = neighbourhood(rewritten, affected, context_of(model))
        nodes, recounted = self.nodes.copy(), set(touched)
        total = list(self.total)
        for node_id in affected:
            old = nodes.pop(node_id, FREE)
            new = FREE
            if node_id in rewritten.nodes:
                new = nodes[node_id] = model.node_cost(rewritten, rewritten.nodes[node_id])
            if new != old:
                recounted.add(node_id)
                total = [t + b - a for t, a, b in zip(total, old, new, strict=True)]
        return GraphCost(_of_whole(model, rewritten, NodeCost(*total)), nodes, frozenset(recounted))


def context_of(model: CostModel) -> int:
    """Of a cost model: see above."""
    return getattr(model, "context", 0)


def neighbourhood(graph: Graph, node_ids, reach: int, passes: Container[str] | None = None) -> set[int]:
    """The given ids, and those of all nodes of the graph within `reach` edges of them.

    Args:
      passes: operators that a path may lead through; None for all.
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
    """Peak bytes of activations when the nodes run in the canonical order, one buffer a tensor.

    An input lives until its last use, a result from its node to its last use, an output of the graph to
    the end. Weights are not counted; a tensor of unknown shape counts as 0 bytes.
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


def _of_whole(model: CostModel, graph: Graph, total: NodeCost) -> NodeCost:
    """The cost of a graph, of which the sum over all nodes is the total."""
    return total._replace(runtime_ps=model.whole(graph)) if hasattr(model, "whole") else total


def _sum(costs) -> NodeCost:
    columns = list(zip(*costs, strict=True))
    return NodeCost(*map(sum, columns)) if columns else FREE
