"""Preparation: the graph that the environment starts from where a model's sizes are symbols.

Exporters write arithmetic on sizes anew in every block of a model. What of it is known for every size is rewritten
before anything else, by the rules of shape_arithmetic and in one fixed order, so that agents see the model that there
is behind it. The receipt's actions begin with these.

It ends. A rule that gives an operand as a constant lowers the number of operands that are computed and known; all the
others take an operator away and make no new operand of that kind. Each of these numbers only falls, and none is below 0.
"""

from rlflow.graph.model import Graph
from rlflow.rules.apply import apply
from rlflow.rules.locations import MatchTable
from rlflow.rules.rule import RuleSet

FAMILY = "shape_arithmetic"
Actions = tuple[tuple[int, int], ...]  # (xfer_id, location)


def prepared(graph: Graph, rules: RuleSet) -> tuple[Graph, Actions]:
    """The graph without the shape arithmetic that is known, and the actions that lead there.

    A graph without symbols stays as it is.
    """
    if not graph.interface.symbols:
        return graph, ()
    own = [xfer_id for xfer_id, rule in enumerate(rules) if rule.family == FAMILY]
    actions, table = [], MatchTable(rules, graph)
    while (xfer_id := next((xfer_id for xfer_id in own if table.counts[xfer_id]), None)) is not None:
        graph = apply(graph, rules[xfer_id], table.location(xfer_id, 0))
        table = MatchTable(rules, graph, table)
        actions.append((xfer_id, 0))
    return graph, tuple(actions)
