"""A proved lower bound on the cost of every graph within a stated scope, by equality saturation.

The e-graph starts with the model and the given results of searches, and grows by all rules in iterations (explore.py).
The cheapest choice of its operators is an integer program (extract.py), whose dual bound holds even if the time runs
out. Every graph in the scope maps onto the e-graph: its tensors onto classes and its operators onto operators of equal
cost. So the operators of the graph form a founded choice that costs no more than the graph. The scope is every graph

- that rewrites make of the starting graphs, in any number, if none needs more than `iterations` - 1 others before it;
- in whose derivation no rewrite merges two operators that compute the same, or two that read a common weight. An
  e-graph contains every form of an operator at once, and merging these forms would never end.

The e-graph also contains mixtures that no sequence of rewrites gives. They can only lower the bound. The cost must be a
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
    """Return every operator that is computed at run time as an option with its cost.

    Args:
      egraph: the e-graph.
      cost: the cost model.

    Raises:
      RLFlowError: the cost of an operator depends on its surroundings, or the cost is a quantity of the whole graph.
    """
    why = "a bound needs a cost that is a sum over single operators, such as the analytic cost; this cost"
    if hasattr(cost, "whole"):
        raise RLFlowError(f"{why} is a quantity of the whole graph")
    if cost.reach:
        raise RLFlowError(f"{why} charges an operator according to its surroundings")
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
    """Return the graph of chosen operators, together with the constants that they read.

    Tensors of the original graph keep their ids, and therefore their names.

    Args:
      egraph: the e-graph.
      chosen: ids of the operators, in an order in which they can be computed.
      original: the graph that the e-graph began with.
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
        again = {c for c in node.outputs if c in made}  # another chosen operator computes the class, too
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


SHARE = 0.5  # share of the remaining seconds for the next iteration, and again for its integer program
SMALL_GAP = 0.01  # relative gap between the best graph and the bound up to which another iteration pays


@dataclass(frozen=True)
class Bound:
    """A lower bound on the cost of all graphs in a scope, and the cheapest graph found.

    Attributes:
      lower_bound_ps: cost that no graph in the scope falls below, to the tolerance of HiGHS (1e-6).
      best_ps: cost of `best`.
      best: the cheapest known graph, built from the e-graph or given at the start.
      scope: a sentence that describes the graphs that the bound covers.
      saturated: True if more iterations would find nothing new, so that the number of rewrites is not limited.
      iterations: number of whole iterations.
      stop: reason of the end: 'saturated', 'iterations', 'nodes', 'seconds', or 'gap' if the integer program of the
        next iteration was not solved in time.
      classes, nodes: size of the e-graph without constants.
      seconds: total duration.
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
        """Return the largest possible distance of a graph in the scope from the best graph, as a share of its cost."""
        return (cost_ps - self.lower_bound_ps) / cost_ps if cost_ps else 0.0


def lower_bound(
    task: Task, seconds: float = 600.0, known: Sequence[Graph] = (), max_iterations: int = 4, max_nodes: int = 30_000,
    progress: Callable[[int, int], None] | None = None,
) -> Bound:  # fmt: skip
    """Compute a lower bound for a task.

    Args:
      task: the task.
      seconds: approximate duration.
      known: results of searches from the task's graph; they and all graphs near them become part of the scope.
      max_iterations: largest number of iterations.
      max_nodes: largest number of operators in the e-graph.
      progress: called with (whole iterations, number of operators) after each iteration.

    Raises:
      RLFlowError: the model has symbolic sizes, the cost is not a sum over single operators, or a rule depends on the
        readers of a tensor.
    """
    if task.graph.interface.symbols:
        names = " ".join(f"--shape {name}=SIZE" for name in task.graph.interface.symbols)
        raise RLFlowError(f"a bound holds only for fixed sizes, and the model has symbolic ones; pass {names} --fix")
    started = time.monotonic()
    end = started + seconds
    egraph = EGraph(task.graph)
    for graph in known:
        egraph.put(graph)
    explorer, stop = Explorer(egraph, task.rules), "iterations"
    cheapest = min((task.graph, *known), key=lambda graph: graph_cost(task.cost, graph).runtime_ps)
    deepest = _bound_of(task, egraph, cheapest, 0, SHARE * (end - time.monotonic()))
    for iterations in range(1, max_iterations + 1):
        left_early = explorer.iterate(max_nodes, SHARE * (end - time.monotonic()))
        if left_early in ("nodes", "seconds"):
            stop = left_early
            break
        solved = _bound_of(task, egraph, deepest.best, iterations, SHARE * (end - time.monotonic()))
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
        scope=_scope_text(deepest.iterations, stop == "saturated", len(known)),
    )  # fmt: skip


def _bound_of(task: Task, egraph: EGraph, best: Graph, iterations: int, seconds: float) -> Bound:
    """Return the bound of the e-graph after some iterations; `best` is the cheapest graph known to be in the e-graph.
    """
    choices = extraction_options(egraph, task.cost)
    best_ps = graph_cost(task.cost, best).runtime_ps
    wanted = [c for c in egraph.outputs if c not in egraph.inputs and not egraph.is_constant(c)]
    extraction = extract(choices, wanted, best_ps, seconds)
    if extraction.choice is not None:
        built = graph_of(egraph, [option.node for option in extraction.choice], task.graph)
        best_ps, best = min((best_ps, best), (graph_cost(task.cost, built).runtime_ps, built), key=lambda pair: pair[0])
    classes = len({c for option in choices for c in option.makes})
    return Bound(extraction.bound, best_ps, best, "", False, iterations, "", classes, len(choices), 0.0)


def _scope_text(iterations: int, saturated: bool, known: int) -> str:
    begun = "the model" + (f" and {known} result{'s' if known > 1 else ''} of searches" if known else "")
    if not iterations:
        return f"the mixtures of {begun}"
    how = "in any number" if saturated else f"in any number, none needing more than {iterations - 1} others before it"
    return (
        f"all graphs that the rewrites make of {begun}, {how}, "
        "as long as they merge no two operators that are equal or read a common weight"
    )
