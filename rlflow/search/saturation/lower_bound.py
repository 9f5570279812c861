"""A proved lower bound on the cost of every graph within a stated scope, by equality saturation.

The e-graph starts with the model and the given results of searches, and grows by all rules in iterations (explore.py).
The cheapest choice of its operators is an integer program (extract.py), whose dual bound holds even if the time runs
out. Every graph in the scope maps onto the e-graph: its tensors onto classes and its operators onto operators of equal
cost. The operators of such a graph therefore form a founded choice that costs at most as much as the graph. A graph is
in the scope if both conditions hold:

- Any number of rewrites make it of the starting graphs, and no rewrite needs more than `iterations` − 1 other rewrites
  before it.
- No rewrite merges two operators that compute the same, or two operators that read a common weight. An e-graph contains
  every form of an operator at once, and merging these forms would never end.

The e-graph also contains graphs that no sequence of rewrites makes. These graphs can only lower the bound. The cost
must be a sum over single operators; other costs are refused.
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
    """Return an `Option` for every operator of an e-graph that is computed at run time.

    Args:
      egraph: the e-graph.
      cost: the cost model that gives the cost of an option.

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
    """Build the graph of chosen operators, together with the constants that they read.

    Tensors of the original graph keep their ids, and therefore their names.

    Args:
      egraph: the e-graph.
      chosen: ids of the operators, each after the operators that make its inputs.
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


SHARE = 0.5  # share of the remaining time for the next iteration, and then again for its integer program
# If an iteration after the first one finds no cheaper graph, and the relative gap between the best graph and the bound
# exceeds this value, the iterations end.
SMALL_GAP = 0.01


@dataclass(frozen=True)
class Bound:
    """A lower bound on the cost of all graphs in a scope, and the cheapest graph found.

    Attributes:
      lower_bound_ps: the bound in ps. Every graph in the scope costs at least this much, up to the relative tolerance
        of HiGHS (1e-6).
      best_ps: cost of `best` in ps.
      best: the cheapest known graph, built from the e-graph or given at the start.
      scope: a text that describes the graphs that the bound covers.
      saturated: True if further iterations would add nothing; the scope then contains rewrites that need any number of
        rewrites before them.
      iterations: number of whole iterations on which the bound is based.
      stop: reason of the end: 'saturated', 'iterations', 'nodes', 'seconds', or 'gap' if the next iteration found no
        cheaper graph and its bound was too far below the best graph.
      classes, nodes: number of classes and of operators in the e-graph, without constants.
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
        """Return the largest share of a graph's cost that any graph in the scope can save.

        Args:
          cost_ps: the cost of the graph in ps.
        """
        return (cost_ps - self.lower_bound_ps) / cost_ps if cost_ps else 0.0


def lower_bound(
    task: Task, seconds: float = 600.0, known: Sequence[Graph] = (), max_iterations: int = 4, max_nodes: int = 30_000,
    progress: Callable[[int, int], None] | None = None,
) -> Bound:  # fmt: skip
    """Compute a lower bound on the cost of all graphs that the rules make of a task's graph, within a scope.

    Args:
      task: the rewriting task.
      seconds: approximate duration.
      known: results of searches from the task's graph. The e-graph starts with these graphs, too, so the scope also
        contains the graphs that few rewrites make of them.
      max_iterations: largest number of iterations.
      max_nodes: largest number of operators in the e-graph.
      progress: called with (number of whole iterations, number of operators) after each iteration.

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
    """Return the bound of the e-graph after some iterations, without the attributes that describe the whole run.

    Args:
      task: the rewriting task.
      egraph: the e-graph.
      best: the cheapest known graph that the e-graph contains.
      iterations: number of iterations so far.
      seconds: time limit.
    """
    choices = extraction_options(egraph, task.cost)
    best_ps = graph_cost(task.cost, best).runtime_ps
    drawn = [c for node in egraph.nodes.values() if node.draw for c in node.outputs if c != ABSENT]
    wanted = [c for c in (*egraph.outputs, *drawn) if c not in egraph.inputs and not egraph.is_constant(c)]
    bound, choice = extract(choices, wanted, best_ps, seconds)
    if choice is not None:
        built = graph_of(egraph, [option.node for option in choice], task.graph)
        best_ps, best = min((best_ps, best), (graph_cost(task.cost, built).runtime_ps, built), key=lambda pair: pair[0])
    classes = len({c for option in choices for c in option.makes})
    return Bound(bound, best_ps, best, "", False, iterations, "", classes, len(choices), 0.0)


def _scope_text(iterations: int, saturated: bool, known: int) -> str:
    begun = "the model" + (f" and {known} result{'s' if known > 1 else ''} of searches" if known else "")
    if not iterations:
        return f"the mixtures of {begun}"
    how = "in any number" if saturated else f"in any number, none needing more than {iterations - 1} others before it"
    return (
        f"all graphs that the rewrites make of {begun}, {how}, "
        "as long as they merge no two operators that are equal or read a common weight"
    )
