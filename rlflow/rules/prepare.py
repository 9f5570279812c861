"""Preparation: the graph that the environment starts from.

Exporters write arithmetic on sizes anew in every block of a model. What of it is known for every size is rewritten
before anything else, by the rules of shape_arithmetic and in one fixed order, so that agents see the model that there
is behind it. The receipt's actions begin with these.

It ends. A rule that gives an operand as a constant lowers the number of operands that are computed and known, and one
that says nothing of zeros the number of those that do; none of the others raises these. One that lets a Shape be of an
earlier tensor lowers the number of operators before it; all the others take an operator away.
"""

from rlflow.graph.model import Graph
from rlflow.rules.apply import apply
from rlflow.rules.locations import MatchTable
from rlflow.rules.rule import RuleSet

FAMILY = "shape_arithmetic"
Actions = tuple[tuple[int, int], ...]  # (xfer_id, location)


def prepared(graph: Graph, rules: RuleSet) -> tuple[Graph, Actions]:
    """The graph without the shape arithmetic that is known, and the actions that lead there."""
    xfer_ids = [xfer_id for xfer_id, rule in enumerate(rules) if rule.family == FAMILY]
    own = RuleSet(tuple([rules[xfer_id] for xfer_id in xfer_ids]))
    actions, table = [], MatchTable(own, graph)
    while (position := next((k for k, count in enumerate(table.counts) if count), None)) is not None:
        graph = apply(graph, own[position], table.location(position, 0))
        table = MatchTable(own, graph, table)
        actions.append((xfer_ids[position], 0))
    return graph, tuple(actions)
