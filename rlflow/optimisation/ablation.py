"""Remove rewrites from a candidate: measure what each group of rewrites gains, and take back groups that gain nothing.

`Rewrites.without` repeats a candidate without some of its rewrites. Node and tensor ids are translated, and a
rewrite that matched something that is no longer made is left out as well. Rewrites of one match class, wherever they
are, form a group (`gelu ×12`).

`pruned` takes a group back if the estimate rises by no more than its uncertainty, compared both with the graph that
still has the group and with the graph that has all groups: otherwise many small losses would add up to a certain
one. `settle` repeats the timings on which such a decision depends, the most uncertain first, because a search
favours the graphs whose timings err most in their favour. Each repetition halves the variance.

`shares` estimates, and `measure_shares` measures, the delivered file against the file without one group. Leaving out
a group also leaves out the rewrites that only the group made possible, so shares of dependent groups overlap and do
not add up to the whole gain.
"""

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from rlflow.costs import CostModel, TimeIsUp, graph_cost, graph_spread, timing_until
from rlflow.costs.measured import Ratio
from rlflow.costs.target import target_of
from rlflow.env.state import RewriteState, Task
from rlflow.graph.ir import Graph
from rlflow.optimisation.candidates import Candidate
from rlflow.rules.apply import match_signature
from rlflow.rules.match import Match


class Chain(NamedTuple):
    """Rewrites of a candidate that can be made without others, and the states along them.

    Attributes:
      steps: positions in the candidate.  actions: their (xfer_id, location) pairs here.  states: one more.
    """

    steps: list[int]
    actions: list[tuple[int, int]]
    states: list[RewriteState]

    @property
    def graph(self) -> Graph:
        """The last one."""
        return self.states[-1].graph


class Rewrites:
    """The rewrites of a candidate.

    Attributes:
      actions: valid (xfer_id, location) pairs.  matches: what they are.  classes: of each match, equal for alike ones.
    """

    def __init__(self, task: Task, actions: Sequence[tuple[int, int]]):
        self.task, self.actions = task, [(int(xfer_id), int(location)) for xfer_id, location in actions]
        self.matches: list[Match] = []
        self.classes: list[tuple] = []
        self._first_ids: list[int] = []  # of what each rewrite makes
        state = task.initial
        for xfer_id, location in self.actions:
            match = state.table.location(xfer_id, location)
            self.matches.append(match)
            self.classes.append(match_signature(state.graph, task.rules[xfer_id], match.nodes, match.bindings))
            self._first_ids.append(state.graph.next_id)
            state = state.follow(match)

    def without(self, steps: Container[int]) -> Chain:
        """The candidate without these, and without what matched something that is not made any more."""
        chain = Chain([], [], [self.task.initial])
        now: dict[int, int] = {}  # id of a node or tensor that the candidate made → its id here
        for step, match in enumerate(self.matches):
            if step in steps:
                continue
            state = chain.states[-1]
            number = self._same_match(state, match, now)
            if number is None or not state.is_valid(match.xfer_id, number):
                continue
            here, first = state.table.location(match.xfer_id, number), state.graph.next_id
            if here.plan.n_new == match.plan.n_new:
                now |= {self._first_ids[step] + k: first + k for k in range(match.plan.n_new)}
            chain.steps.append(step)
            chain.actions.append((match.xfer_id, number))
            chain.states.append(state.follow(here))
        return chain

    def _same_match(self, state: RewriteState, match: Match, now: dict[int, int]) -> int | None:
        """The location at which the match is found in a state of other ids."""
        made_by_rules = self.task.graph.next_id

        def here(number: int) -> int | None:
            return now.get(number) if number >= made_by_rules else number

        def bound(name: str, value):
            if name not in self.task.rules[match.xfer_id].tensor_names:
                return value
            return tuple(map(here, value)) if isinstance(value, tuple) else here(value)

        nodes = tuple(map(here, match.nodes))
        bindings = {name: bound(name, value) for name, value in match.bindings.items()}
        for number, other in enumerate(state.table.of_rule(match.xfer_id)):
            if other.nodes == nodes and other.bindings == bindings:
                return number
        return None


SETTLED_SHARE = 0.5  # of a difference: so much of it may stay uncertain, and
NEGLIGIBLE_SHARE = 0.001  # of the whole graph's runtime


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
        known = spread.ps <= max(SETTLED_SHARE * abs(longer), NEGLIGIBLE_SHARE * runtime)
        if known or not timed_here or time.monotonic() >= end:
            return longer, spread.ps
        cost.time_again(max(spread, key=lambda timing: abs(spread[timing])))


def pruned(task: Task, actions: Sequence[tuple[int, int]], seconds: float, again: bool = True) -> list[tuple[int, int]]:
    """The actions without the groups of rewrites that do not pay; those that gained least are tried first.

    Args:
      actions: valid (xfer_id, location) pairs.  seconds: after which nothing more is tried.
      again: whether timings may be taken again. They are others then: `Task.forget_costs`.
    """
    end, rewrites, out = time.monotonic() + seconds, Rewrites(task, actions), set()
    whole = kept = rewrites.without(out)
    with suppress(TimeIsUp), timing_until(task.cost, end):
        settle(task.cost, whole.graph, task.graph, time.monotonic() + seconds / 4 * again)
        before = None
        while kept is not before:
            before, waiting = kept, groups(rewrites, kept)
            for number, group in enumerate(waiting):
                now = time.monotonic()
                if now >= end:
                    raise TimeIsUp
                rest = rewrites.without(out | group)
                until = now + (end - now) / (len(waiting) - number) * again
                if len(rest.steps) < len(kept.steps) and all(
                    _pays_nothing(task, rest, beside, until) for beside in (kept, whole)
                ):
                    out, kept = out | group, rest
    return kept.actions


def groups(rewrites: Rewrites, chain: Chain) -> list[set[int]]:
    """The rewrites of a chain, those of one class together, as positions in the candidate; first what gained least."""
    alike: dict[tuple, set[int]] = {}
    gains: dict[tuple, int] = {}
    for step, before, after in zip(chain.steps, chain.states, chain.states[1:], strict=False):
        key = rewrites.classes[step]
        alike.setdefault(key, set()).add(step)
        gains[key] = gains.get(key, 0) + before.objective - after.objective
    return [alike[key] for key in sorted(alike, key=gains.__getitem__)]


def _pays_nothing(task: Task, rest: Chain, beside: Chain, until: float) -> bool:
    """Whether the rest takes longer by no more than may be chance."""
    longer, off = settle(task.cost, beside.graph, rest.graph, until)
    return longer <= off


MOST_GROUPS = 25  # groups that are listed
ESTIMATE_SECONDS = 5.0  # for all estimates
OTHERS = "all others"


def shares(task: Task, delivered: Candidate) -> list[tuple[dict, RewriteState]]:
    """The groups of its rewrites, what is estimated of each, and the graph without it; what gains most first.

    Of each: rule, or OTHERS, and its family, or None; count; gain_ps, by which the file's estimate is lower than
    without the group; off_ps, by how much that may be off; measured: None.
    """
    rewrites, state, result = Rewrites(task, delivered.actions), delivered.state, []
    few = groups(rewrites, rewrites.without(()))[::-1]
    if len(few) > MOST_GROUPS:
        few = [*few[: MOST_GROUPS - 1], set().union(*few[MOST_GROUPS - 1 :])]
    end = time.monotonic() + ESTIMATE_SECONDS
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
