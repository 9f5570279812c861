"""What each operator of an e-graph costs."""

from rlflow.common.errors import RLFlowError
from rlflow.costs import CostModel, context_of
from rlflow.graph.model import ABSENT
from rlflow.search.saturation.egraph import EGraph
from rlflow.search.saturation.extract import Option


def options(egraph: EGraph, cost: CostModel) -> list[Option]:
    """Every operator that a run computes, with its cost: what every graph is charged that holds it.

    Raises RLFlowError for a cost model that charges an operator according to what stands around it, or counts a
    quantity of the whole graph.
    """
    why = "a bound needs a cost that is a sum over single operators, as the analytic one is; this one"
    if hasattr(cost, "whole"):
        raise RLFlowError(f"{why} counts a quantity of the whole graph")
    if cost.reach or context_of(cost):
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
