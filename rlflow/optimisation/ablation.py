"""Ablation of rewrites: find what each group of rewrites gains, and take back the groups that gain nothing.

`Rewrites.without` repeats a candidate without some of its rewrites. It translates node and tensor ids, and leaves out
rewrites that matched a node which is no longer made. Rewrites of one match class, wherever they are, form a group
(`gelu ×12`).

`pruned` takes a group back if the estimate then rises by no more than its uncertainty. It compares with the graph that
still has the group and with the graph that has all groups, because many small losses could add up. `settle` repeats the
timings that decide, the most uncertain first: a search favours graphs whose timings err in their favour. Each
repetition halves the variance.

`shares` estimates, and `measure_shares` measures, the delivered file against the file without one group. Rewrites that
only the group made possible are left out with it. Shares of dependent groups therefore overlap and do not add up to the
whole gain.
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
    """Rewrites of a candidate that can be made without some others, and the states along them.

    Attributes:
      steps: positions of the rewrites in the candidate.
      actions: their (xfer_id, location) pairs in this chain.
      states: the initial state and the state after each rewrite.
    """

    steps: list[int]
    actions: list[tuple[int, int]]
    states: list[RewriteState]

    @property
    def graph(self) -> Graph:
        """The graph of the last state."""
        return self.states[-1].graph


class Rewrites:
    """The rewrites of a candidate, which can be repeated without some of them.

    Attributes:
      actions: valid (xfer_id, location) pairs.
      matches: the match of each action.
      classes: the match class of each match.
    """

    def __init__(self, task: Task, actions: Sequence[tuple[int, int]]):
        self.task, self.actions = task, [(int(xfer_id), int(location)) for xfer_id, location in actions]
        self.matches: list[Match] = []
        self.classes: list[tuple] = []
        self._first_ids: list[int] = []  # first id of the nodes and tensors that each rewrite makes
        state = task.initial
        for xfer_id, location in self.actions:
            match = state.table.location(xfer_id, location)
            self.matches.append(match)
            self.classes.append(match_signature(state.graph, task.rules[xfer_id], match.nodes, match.bindings))
            self._first_ids.append(state.graph.next_id)
            state = state.follow(match)

    def without(self, steps: Container[int]) -> Chain:
        """Repeat the candidate without these steps, and without the rewrites that matched something made by them."""
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
        """Return the location of the match in a state with other ids; None if it is not there."""
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


SETTLED_SHARE = 0.5  # uncertainty at which a difference is settled, as a share of the difference
NEGLIGIBLE_SHARE = 0.001  # uncertainty that is always accepted, as a share of the graph's runtime


def settle(cost: CostModel, graph: Graph, other: Graph, end: float) -> tuple[int, int]:
    """Repeat timings until the difference of two graphs is certain enough or the time is over.

    Nothing is timed if the difference is certain already or the timings belong to another machine. The costs of earlier
    states are outdated after this call: see `rlflow.env.state.Task.forget_costs`.

    Args:
      cost: the cost of the task.
      graph: the graph to compare with.
      other: the graph that is compared.
      end: the clock (time.monotonic()) after which no timing begins.

    Returns:
      By how many picoseconds `other` takes longer, and the uncertainty of this number in picoseconds.
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
    """Return the actions without the groups of rewrites that gain nothing; groups of the lowest gain are tried first.

    Args:
      task: the opened task.
      actions: valid (xfer_id, location) pairs.
      seconds: time limit.
      again: whether timings may be repeated; call `Task.forget_costs` afterwards.
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
                    _gains_nothing(task, rest, beside, until) for beside in (kept, whole)
                ):
                    out, kept = out | group, rest
    return kept.actions


def groups(rewrites: Rewrites, chain: Chain) -> list[set[int]]:
    """Return the rewrites of a chain grouped by match class, lowest gain first.

    Args:
      rewrites: the rewrites of the candidate.
      chain: the rewrites that are grouped.

    Returns:
      Sets of positions in the candidate.
    """
    alike: dict[tuple, set[int]] = {}
    gains: dict[tuple, int] = {}
    for step, before, after in zip(chain.steps, chain.states, chain.states[1:], strict=False):
        key = rewrites.classes[step]
        alike.setdefault(key, set()).add(step)
        gains[key] = gains.get(key, 0) + before.objective - after.objective
    return [alike[key] for key in sorted(alike, key=gains.__getitem__)]


def _gains_nothing(task: Task, rest: Chain, beside: Chain, until: float) -> bool:
    """Return whether `rest` takes longer than `beside` by no more than the uncertainty."""
    longer, off = settle(task.cost, beside.graph, rest.graph, until)
    return longer <= off


MAX_GROUPS = 25  # largest number of listed groups
ESTIMATE_SECONDS = 5.0  # time limit of all estimates together
OTHERS = "all others"


def shares(task: Task, delivered: Candidate) -> list[tuple[dict, RewriteState]]:
    """Estimate the gain of each group of rewrites of the delivered candidate.

    Args:
      task: the opened task.
      delivered: the candidate.

    Returns:
      (share, state without the group) pairs, highest gain first. A share holds `rule` (or OTHERS), `family` (or None),
        `count`, `gain_ps` (estimate without the group minus estimate with it), `off_ps` (its uncertainty) and
        `measured` (None).
    """
    rewrites, state, result = Rewrites(task, delivered.actions), delivered.state, []
    few = groups(rewrites, rewrites.without(()))[::-1]
    if len(few) > MAX_GROUPS:
        few = [*few[: MAX_GROUPS - 1], set().union(*few[MAX_GROUPS - 1 :])]
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
    """Measure the delivered file against the file without each group, and store the result in the shares.

    Args:
      known: the result of `shares`.
      measured: measures a state against the delivered file in a number of seconds (`rlflow.costs.measured.measure`).
      needed: seconds that one measurement takes at least.
      end: the clock (time.monotonic()) after which no measurement begins.
    """
    for number, (share, without) in enumerate(known):
        left = end - time.monotonic()
        if left < needed:
            return
        result = measured(without, max(left / (len(known) - number), needed))
        share["measured"] = {key: result[key] for key in ("ratio", "interval", "verdict")}


def measured_families(shares: Sequence[Mapping]) -> Iterator[tuple[str, Ratio]]:
    """Yield (family, latency with the group divided by the latency without it) for each measured group."""
    for share in shares:
        if share["measured"] is not None and share["family"] is not None:
            yield share["family"], Ratio(share["measured"]["ratio"], *share["measured"]["interval"])
