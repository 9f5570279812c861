"""A proved lower bound on the cost of every graph within a stated scope, by equality saturation.

The e-graph starts with the model and the given results of searches, and grows by all rules in iterations (explore.py).
The cheapest choice of its operators is an integer program (extract.py), whose dual bound holds even if the time runs
out. Every graph in the scope maps onto the e-graph: its tensors onto classes and its operators onto operators of equal
cost. So the operators of the graph form a founded choice that costs no more than the graph. The scope is every graph

- that rewrites make of the starting graphs, in any number, if none needs more than `iterations` - 1 others before it;
- in whose derivation no rewrite merges two operators that compute the same, or two that read a common weight. An
  e-graph holds every form of an operator at once, and merging these forms would never end.

The e-graph also holds mixtures that no sequence of rewrites gives. They can only lower the bound. The cost must be a
sum over single operators; other costs are refused.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from rlflow.common.errors import RLFlowError
from rlflow.costs import CostModel, graph_cost
from rlflow.env.state import Task
from rlflow.graph.ir import ABSENT, Graph, Node
from rlflow.search.saturation.egraph import EGraph
from rlflow.search.saturation.explore import Explorer
from rlflow.search.saturation.extract import Option, extract


def extraction_options(egraph: EGraph, cost: CostModel) -> list[Option]:
    """Every operator that a run computes, with its cost: what every graph is charged that holds it.

    Raises RLFlowError for a cost model that charges an operator according to what stands around it, or counts a
    quantity of the whole graph.
    """
    why = "a bound needs a cost that is a sum over single operators, as the analytic one is; this one"
    if hasattr(cost, "whole"):
        raise RLFlowError(f"{why} counts a quantity of the whole graph")
    if cost.reach:
        raise RLFlowError(f"{why} charges an operator according to what stands around it")
    given = set(egraph.inputs)
    return [
        Option(
            cost.node_cost(egraph, node).runtime_ps,
            tuple(c for c in node.outputs if c != ABSENT),
            tuple(dict.fromkeys(c for c in node.reads() if c not in given and not egraph.is_constant(c))),
            node.id,
        )
        for node in egraph.nodes.values() if not node.constant
    ]  # fmt: skip


def graph_of(egraph: EGraph, chosen: Sequence[int], original: Graph) -> Graph:
    """The graph of the chosen operators, in an order in which they can be computed, and the constants they read.

    Tensors of the original keep their ids, and so their names.
    """
    tensors, fresh = egraph.tensors(), count(original.next_id)
    made: set[int] = set()
    nodes: list[Node] = []

    def tensor(c: int) -> int:
        if c == ABSENT:
            return ABSENT
        if c not in tensors:
            tensors[c] = next(fresh)
        return tensors[c]

    def add(node: Node) -> None:
        for c in node.reads():
            if egraph.is_constant(c) and c not in egraph.constants and c not in made:
                add(egraph.nodes[next(iter(egraph.makers[c]))])
        again = {c for c in node.outputs if c in made}  # another operator gives it already
        outputs = tuple(next(fresh) if c in again else tensor(c) for c in node.outputs)
        made.update(node.outputs)
        captured = tuple((name, tensor(c)) for name, c in node.captured)
        nodes.append(
            replace(node, id=next(fresh), inputs=tuple(map(tensor, node.inputs)), outputs=outputs, captured=captured)
        )

    for node_id in chosen:
        add(egraph.nodes[node_id])
    outputs = [tensor(c) for c in egraph.outputs]
    constants = {tensor(c): constant for c, constant in egraph.constants.items() if c in tensors}
    types = {t: egraph.types[c] for c, t in tensors.items() if egraph.types[c] is not None}
    return Graph.build(original.interface, nodes, types, constants, original.inputs, outputs)


SHARE = 0.5  # of the seconds that are left, for the next iteration, and for its integer program
SMALL_GAP = 0.01  # between the best graph and the bound, with which it pays to go deeper


@dataclass(frozen=True)
class Bound:
    """What is known about the cheapest graph.

    Attributes:
      lower_bound_ps: no graph in the scope costs less, to the tolerance of HiGHS (1e-6).
      best_ps, best: the cheapest graph that is known, and its cost: built from the e-graph, or one that it began with.
      scope: the graphs that the bound speaks of, in words.
      saturated: whether more iterations would bring nothing new, so that the number of rewrites is not limited.
      iterations: whole iterations.
      stop: why no more iterations were taken: 'saturated', 'iterations', 'nodes', 'seconds', or 'gap': after the next
        one the integer program could not be solved in time.
      classes, nodes: of the e-graph, constants left out.
      seconds: all together.
    """

    lower_bound_ps: int
    best_ps: int
    best: Graph
    scope: str
    saturated: bool
    iterations: int
    stop: str
    classes: int
    nodes: int
    seconds: float

    def gap(self, cost_ps: int) -> float:
        """How far a graph in the scope is from the best at most, as a share of its cost."""
        return (cost_ps - self.lower_bound_ps) / cost_ps if cost_ps else 0.0


def lower_bound(
    task: Task, seconds: float = 600.0, known: Sequence[Graph] = (), max_iterations: int = 4, max_nodes: int = 30_000,
    progress: Callable[[int, int], None] | None = None,
) -> Bound:  # fmt: skip
    """The bound for a task within about so many seconds.

    Args:
      known: results of searches from the task's graph; they and what is near them are part of the scope.
      max_iterations, max_nodes: limits of the e-graph.
      progress: called with (whole iterations, operators) after each.

    Raises:
      RLFlowError: the model has symbolic sizes, the cost is not one of single operators, or a rule asks who else reads
        a tensor.
    """
    if task.graph.interface.symbols:
        names = " ".join(f"--shape {name}=SIZE" for name in task.graph.interface.symbols)
        raise RLFlowError(f"a bound speaks of fixed sizes; fix them: {names} --fix")
    started = time.monotonic()
    end = started + seconds
    egraph = EGraph(task.graph)
    for graph in known:
        egraph.put(graph)
    explorer, stop = Explorer(egraph, task.rules), "iterations"
    cheapest = min((task.graph, *known), key=lambda graph: graph_cost(task.cost, graph).runtime_ps)
    deepest = _solved(task, egraph, cheapest, 0, SHARE * (end - time.monotonic()))
    for iterations in range(1, max_iterations + 1):
        left_early = explorer.iterate(max_nodes, SHARE * (end - time.monotonic()))
        if left_early in ("nodes", "seconds"):
            stop = left_early
            break
        solved = _solved(task, egraph, deepest.best, iterations, SHARE * (end - time.monotonic()))
        if progress is not None:
            progress(iterations, len(egraph.nodes))
        if solved.gap(solved.best_ps) > SMALL_GAP and solved.best_ps == deepest.best_ps and iterations > 1:
            stop = "gap"
            break
        deepest = solved
        if left_early == "saturated":
            stop = left_early
            break
    return replace(
        deepest, stop=stop, saturated=stop == "saturated", seconds=time.monotonic() - started,
        scope=_scope(deepest.iterations, stop == "saturated", len(known)),
    )  # fmt: skip


def _solved(task: Task, egraph: EGraph, best: Graph, iterations: int, seconds: float) -> Bound:
    """What an e-graph says after so many iterations; `best` is the cheapest graph that is known to be in it."""
    choices = extraction_options(egraph, task.cost)
    best_ps = graph_cost(task.cost, best).runtime_ps
    wanted = [c for c in egraph.outputs if c not in egraph.inputs and not egraph.is_constant(c)]
    extraction = extract(choices, wanted, best_ps, seconds)
    if extraction.choice is not None:
        built = graph_of(egraph, [option.node for option in extraction.choice], task.graph)
        best_ps, best = min((best_ps, best), (graph_cost(task.cost, built).runtime_ps, built), key=lambda pair: pair[0])
    classes = len({c for option in choices for c in option.makes})
    return Bound(extraction.bound, best_ps, best, "", False, iterations, "", classes, len(choices), 0.0)


def _scope(iterations: int, saturated: bool, known: int) -> str:
    begun = "the model" + (f" and {known} result{'s' if known > 1 else ''} of searches" if known else "")
    if not iterations:
        return f"the mixtures of {begun}"
    how = "in any number" if saturated else f"in any number, none needing more than {iterations - 1} others before it"
    return (
        f"all graphs that the rewrites make of {begun}, {how}, "
        "as long as they merge no two operators that are equal or read a common weight"
    )
