"""What each group of rewrites of a delivered file does: the file beside the one without the group, by ablation.

Without a group is without what only it made possible, too: the shares of groups that need one another overlap and do
not add up to the whole. Estimated they always are; measured as time allows, those that gain most first. No more than
MOST are listed: of more, those whose own rewrites gained least are one last group, which is left out as one.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from rlflow.costs import TimeIsUp, timing_until
from rlflow.costs.measured import Ratio
from rlflow.costs.spread import graph_spread
from rlflow.deliver.candidates import Candidate
from rlflow.deliver.prune import groups
from rlflow.deliver.without import Rewrites
from rlflow.env.state import RewriteState, Task

MOST = 25  # groups that are listed
SECONDS = 5.0  # for all estimates
OTHERS = "all others"


def shares(task: Task, delivered: Candidate) -> list[tuple[dict, RewriteState]]:
    """The groups of its rewrites, what is estimated of each, and the graph without it; what gains most first.

    Of each: rule, or OTHERS, and its family, or None; count; gain_ps, by which the file's estimate is lower than
    without the group; off_ps, by how much that may be off; measured: None.
    """
    rewrites, state, result = Rewrites(task, delivered.actions), delivered.state, []
    few = groups(rewrites, rewrites.without(()))[::-1]
    if len(few) > MOST:
        few = [*few[: MOST - 1], set().union(*few[MOST - 1 :])]
    end = time.monotonic() + SECONDS
    with suppress(TimeIsUp), timing_until(task.cost, end):
        spread = graph_spread(task.cost, state.graph)
        for group in few:
            if time.monotonic() >= end:
                break
            rest = rewrites.without(group).states[-1]
            rules = {rewrites.actions[step][0] for step in group}
            rule = task.rules[rules.pop()] if len(rules) == 1 else None
            share = {
                "rule": rule.name if rule else OTHERS, "family": rule and rule.family, "count": len(group),
                "gain_ps": rest.objective - state.objective,
                "off_ps": (graph_spread(task.cost, rest.graph) - spread).ps, "measured": None,
            }  # fmt: skip
            result.append((share, rest))
    return sorted(result, key=lambda one: -one[0]["gain_ps"])


def measure_shares(
    known: list[tuple[dict, RewriteState]], measured: Callable[[RewriteState, float], dict], needed: float, end: float
) -> None:
    """Adds to each share what is measured of the delivered file beside the one without the group, until time is up.

    Args:
      measured: of such a graph, in so many seconds: what `rlflow.costs.measured.measure` says, that graph first.
      needed: seconds that one takes at least.  end: the clock (time.monotonic()) after which none begins.
    """
    for number, (share, without) in enumerate(known):
        left = end - time.monotonic()
        if left < needed:
            return
        result = measured(without, max(left / (len(known) - number), needed))
        share["measured"] = {key: result[key] for key in ("ratio", "interval", "verdict")}


def measured_families(shares: Sequence[Mapping]) -> Iterator[tuple[str, Ratio]]:
    """(family, latency with the group's rewrites of that without them) of the groups that were measured."""
    for share in shares:
        if share["measured"] is not None and share["family"] is not None:
            yield share["family"], Ratio(share["measured"]["ratio"], *share["measured"]["interval"])
