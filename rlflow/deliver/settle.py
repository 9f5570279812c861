"""Timings on which a difference between two graphs hangs are taken again, in new sessions, until it is known.

A search that takes what promises to gain comes to where chance promises most; so what it came to says which timings
matter. Those that leave the difference most uncertain come first, time and again: each time halves the square of what
they may be off by.
"""

import time

from rlflow.costs import CostModel, graph_cost
from rlflow.costs.spread import graph_spread
from rlflow.costs.target import target_of
from rlflow.graph.model import Graph

ENOUGH = 0.5  # of a difference: so much of it may stay uncertain, and
NEGLIGIBLE = 0.001  # of the whole graph's runtime


def settle(cost: CostModel, graph: Graph, other: Graph, end: float) -> tuple[int, int]:
    """(by how many picoseconds the other graph takes longer, by how many that may be off) as they are known at the end.

    Nothing is timed where nothing may be off, and never in the place of another machine. States whose costs were
    counted before are of other timings then: `rlflow.env.state.Task.forget_costs`.

    Args:
      end: the clock (time.monotonic()) after which no timing begins.
    """
    timed_here = hasattr(cost, "time_again") and target_of(cost) is None
    while True:
        spread = graph_spread(cost, other) - graph_spread(cost, graph)
        runtime = graph_cost(cost, graph).runtime_ps
        longer = graph_cost(cost, other).runtime_ps - runtime
        known = spread.ps <= max(ENOUGH * abs(longer), NEGLIGIBLE * runtime)
        if known or not timed_here or time.monotonic() >= end:
            return longer, spread.ps
        cost.time_again(max(spread, key=lambda timing: abs(spread[timing])))
