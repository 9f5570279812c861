"""A cost model that must time each operator at its first occurrence, with a limit on the number of timings."""

import math
from dataclasses import replace

from rlflow.costs import NodeCost, TimeIsUp
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.signatures import signature
from rlflow.env.state import Task
from tests.toys.tiny import tiny_task


class TimedCost:
    """A cost model with twice the analytic cost.

    Attributes:
      timed: signatures of the operators that were timed so far, in this order.
      limit: largest number of timings.
    """

    reach, passes = 0, None

    def __init__(self, limit: float = math.inf):
        self.timed, self.limit, self._analytic = {}, limit, AnalyticCost()

    def node_cost(self, graph, node) -> NodeCost:
        cost = self._analytic.node_cost(graph, node)
        key = signature(graph, node)
        if not node.constant and key not in self.timed:
            if len(self.timed) >= self.limit:
                raise TimeIsUp
            self.timed[key] = len(self.timed)
        return cost._replace(runtime_ps=2 * cost.runtime_ps)


class TimedAgain(AnalyticCost):
    """The analytic cost, to which each repeated timing adds 10 µs for every operator."""

    more = 0

    def node_cost(self, graph, node) -> NodeCost:
        cost = super().node_cost(graph, node)
        return cost._replace(runtime_ps=cost.runtime_ps + self.more) if cost.runtime_ps else cost

    def time_again(self, timing: str) -> None:
        self.more += 10**7


def timed_task(name: str = "tiny_resnet18", limit: float = math.inf) -> Task:
    """Return the task of a tiny model with a cost model that has timed no operator yet."""
    return replace(tiny_task(name), cost=TimedCost(limit))
