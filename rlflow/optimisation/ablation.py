"""Ablation of rewrites: find the gain of each group of rewrites, and take back the groups that gain nothing.

`Rewrites.without` repeats a candidate without some of its rewrites. It translates node and tensor ids, and also leaves
out later rewrites whose match no longer exists. The rewrites of one match class, wherever they are in the graph, form
a group, for example 12 equal GELU fusions.

`pruned` takes a group back if the estimated runtime then rises by no more than its uncertainty. It compares with the
graph that still has the group, and with the graph that has all groups, because many small losses could add up. A
search prefers graphs whose timings are too low by chance. `settle` therefore repeats the timings on which the
comparison depends, the most uncertain one first.

`shares` estimates the gain of each group: it compares the delivered graph with the graph without the group.
`measure_shares` measures the same gain end to end. Rewrites that only the group made possible are left out with the
group. The gains of dependent groups therefore overlap, and their sum is not the whole gain.
"""

import math
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from rlflow.common.errors import RLFlowError
from rlflow.costs import CostModel, TimeIsUp, graph_cost, graph_spread, timing_until
from rlflow.costs.measured import Ratio
from rlflow.costs.target import target_of
from rlflow.env.state import RewriteState, Task
from rlflow.graph.ir import Graph
from rlflow.optimisation.candidates import Candidate
from rlflow.rules.apply import match_signature
from rlflow.rules.match import Match
from rlflow.rules.segments import Segment

KEPT_EVERY = 64  # number of rewrites between two states that a `Chain` keeps


class Chain:
    """A repetition of a candidate without some of its rewrites.

    Attributes:
      steps: the positions in the candidate of the repeated rewrites.
      actions: the (xfer_id, location) pairs of the repeated rewrites; locations can differ from the candidate's.
      objectives: the objective of the initial state and of the state after each repeated rewrite.
      state: the state after the last repeated rewrite.
    """

    def __init__(self, initial: RewriteState):
        self.steps: list[int] = []
        self.actions: list[tuple[int, int]] = []
        self.objectives, self.state = [initial.objective], initial
        self._matches: list[Match] = []
        self._kept = {0: initial}  # number of rewrites → state; all states would take too much memory

    def add(self, step: int, action: tuple[int, int], match: Match) -> None:
        """Repeat one rewrite of the candidate.

        Args:
          step: the position of the rewrite in the candidate.
          action: the (xfer_id, location) pair of the rewrite in the chain.
          match: the match of the action in the last state.
        """
        self.steps.append(step)
        self.actions.append(action)
        self._matches.append(match)
        self.state = self.state.follow(match)
        self.objectives.append(self.state.objective)
        if len(self.steps) % KEPT_EVERY == 0:
            self._kept[len(self.steps)] = self.state

    def state_after(self, count: int) -> RewriteState:
        """Return the state after the first `count` repeated rewrites."""
        if count == len(self.steps):
            return self.state
        first = count // KEPT_EVERY * KEPT_EVERY
        state = self._kept[first]
        for match in self._matches[first:count]:
            state = state.follow(match)
        return state

    @property
    def graph(self) -> Graph:
        """The graph of the last state."""
        return self.state.graph


class Rewrites:
    """The rewrites of a candidate with their matches, from which the candidate is repeated without some rewrites.

    Attributes:
      task: the rewriting task.
      actions: the candidate's (xfer_id, location) pairs, valid from the initial state.
      matches: the match of each action.
      classes: the match class of each match.
    """

    def __init__(self, task: Task, actions: Sequence[tuple[int, int]], end: float = math.inf):
        """Follow the actions once.

        Args:
          task: the rewriting task.
          actions: the candidate's (xfer_id, location) pairs, valid from the initial state.
          end: the value of time.monotonic() after which TimeIsUp is raised, here and in `without`.
        """
        self.task, self.actions = task, [(int(xfer_id), int(location)) for xfer_id, location in actions]
        self.end = end
        self.matches: list[Match] = []
        self.classes: list[tuple] = []
        self._first_ids: list[int] = []  # first id of the nodes and tensors that each rewrite makes
        state = task.initial
        for xfer_id, location in self.actions:
            self._ask_the_time()
            match = state.table.location(xfer_id, location)
            self.matches.append(match)
            self.classes.append(match_signature(state.graph, task.rules[xfer_id], match.nodes, match.bindings))
            self._first_ids.append(state.graph.next_id)
            state = state.follow(match)

    def _ask_the_time(self) -> None:
        """Raise TimeIsUp if the time limit has passed."""
        if time.monotonic() >= self.end:
            raise TimeIsUp

    def without(self, steps: Container[int]) -> Chain:
        """Repeat the candidate without the rewrites at these positions and without later rewrites that need them.

        A later rewrite needs a left-out rewrite if its match, with ids translated, is not in the new state.
        """
        chain = Chain(self.task.initial)
        now: dict[int, int] = {}  # id of a node or tensor made by a rewrite in the candidate → its id in this chain
        for step, match in enumerate(self.matches):
            if step in steps:
                continue
            self._ask_the_time()
            state = chain.state
            number = self._same_match(state, match, now)
            if number is None or not state.is_valid(match.xfer_id, number):
                continue
            here, first = state.table.location(match.xfer_id, number), state.graph.next_id
            if here.plan.n_new == match.plan.n_new:
                now |= {self._first_ids[step] + k: first + k for k in range(match.plan.n_new)}
            chain.add(step, (match.xfer_id, number), here)
        return chain

    def _same_match(self, state: RewriteState, match: Match, now: dict[int, int]) -> int | None:
        """Return the location of a match of the candidate in a state of a chain; None if the state lacks the match.

        Args:
          state: the state of the chain.
          match: the match, with the ids of the candidate.
          now: id in the candidate → id in the chain, for nodes and tensors made by rewrites.
        """
        made_by_rules = self.task.graph.next_id

        def here(number: int) -> int | None:
            return now.get(number) if number >= made_by_rules else number

        def bound(name: str, value):
            if name not in self.task.rules[match.xfer_id].tensor_names:
                return value
            return value.renamed(here) if isinstance(value, Segment) else here(value)

        nodes = tuple(map(here, match.nodes))
        bindings = {name: bound(name, value) for name, value in match.bindings.items()}
        return state.table.location_of(replace(match, nodes=nodes, bindings=bindings))


SETTLED_SHARE = 0.5  # largest uncertainty of a settled difference of runtimes, as a share of the difference
NEGLIGIBLE_SHARE = 0.001  # uncertainty of a difference that is always accepted, as a share of the graph's runtime


def settle(cost: CostModel, graph: Graph, other: Graph, end: float) -> tuple[int, int]:
    """Repeat timings until the difference of two graphs' estimated runtimes is certain enough or the time is over.

    The difference is certain enough if its uncertainty is at most SETTLED_SHARE of the difference, or NEGLIGIBLE_SHARE
    of the runtime of `graph`. No timing is repeated if the cost times nothing or uses timings of another machine. After
    repetitions, call `rlflow.env.state.Task.forget_costs`, because the states hold the earlier costs.

    Args:
      cost: the cost model of the task.
      graph: the graph to compare with.
      other: the graph that is compared.
      end: the value of time.monotonic() after which no repetition begins.

    Returns:
      The estimated runtime of `other` minus the runtime of `graph`, and the half-width of the 95 % interval of this
      difference, both in picoseconds.
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


def pruned(task: Task, candidate: Candidate, seconds: float, again: bool = True) -> Candidate:
    """Take back the groups of rewrites that gain nothing, and return the candidate with the other rewrites.

    Groups are tried in the order of their gain, lowest first, until no group can be taken back or the time is over.

    Args:
      task: the rewriting task.
      candidate: the candidate; its actions are valid from the initial state.
      seconds: the time limit.
      again: True to repeat uncertain timings (`settle`); the caller must then call `Task.forget_costs`.
    """
    end, out, kept = time.monotonic() + seconds, set(), None
    with suppress(TimeIsUp), timing_until(task.cost, end):
        rewrites = Rewrites(task, candidate.actions, end)
        whole = kept = rewrites.without(out)
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
                # For two graphs with the group: the rise of the estimated runtime without it, and its uncertainty.
                differences = (settle(task.cost, beside.graph, rest.graph, until) for beside in (kept, whole))
                if len(rest.steps) < len(kept.steps) and all(longer <= off for longer, off in differences):
                    out, kept = out | group, rest
    return candidate if kept is None else replace(candidate, actions=kept.actions, state=kept.state)


def groups(rewrites: Rewrites, chain: Chain) -> list[set[int]]:
    """Group the rewrites of a chain by match class.

    Args:
      rewrites: all rewrites of the candidate.
      chain: the repetition of the candidate whose rewrites are grouped.

    Returns:
      For each group the positions of its rewrites in the candidate. The group whose rewrites lower the objective least
      comes first.
    """
    alike: dict[tuple, set[int]] = {}
    gains: dict[tuple, int] = {}
    for step, before, after in zip(chain.steps, chain.objectives, chain.objectives[1:], strict=False):
        key = rewrites.classes[step]
        alike.setdefault(key, set()).add(step)
        gains[key] = gains.get(key, 0) + before - after
    return [alike[key] for key in sorted(alike, key=gains.__getitem__)]


MAX_GROUPS = 25  # largest number of groups in `shares`; the groups of the lowest gain are joined into one
ESTIMATE_SECONDS = 5.0
OTHERS = "all others"


def shares(
    task: Task, delivered: Candidate, seconds: float = ESTIMATE_SECONDS
) -> list[tuple[dict, RewriteState]]:
    """Estimate the gain of each group of rewrites of the delivered candidate.

    Args:
      task: the rewriting task.
      delivered: the delivered candidate.
      seconds: the time limit of the estimates of all groups together. Groups that are not estimated by then are missing
        from the result.

    Returns:
      (share, state without the group) pairs, highest gain first. A share is a dictionary: `rule` (its name, or OTHERS
      for joined groups), `family` (of the rule, or None), `count` (number of rewrites), `gain_ps` (objective without
      the group minus objective with it, in picoseconds), `off_ps` (the uncertainty of this gain) and `measured` (None;
      see `measure_shares`).
    """
    end, state, result = time.monotonic() + seconds, delivered.state, []
    with suppress(TimeIsUp), timing_until(task.cost, end):
        rewrites = Rewrites(task, delivered.actions, end)
        few = groups(rewrites, rewrites.without(()))[::-1]
        if len(few) > MAX_GROUPS:
            few = [*few[: MAX_GROUPS - 1], set().union(*few[MAX_GROUPS - 1 :])]
        spread = graph_spread(task.cost, state.graph)
        for group in few:
            rest = rewrites.without(group).state
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
    """Measure the delivered file against the file without one group, for each group in turn while time is left.

    The latency ratio delivered / without the group, its 95 % interval and the verdict are stored in the entry
    `measured` of each share.

    Args:
      known: the result of `shares`, which is changed.
      measured: a function that measures the delivered file against a state for a number of seconds, and returns the
        dictionary of `rlflow.costs.measured.measure`. If it raises RLFlowError, the group stays without a measurement.
      needed: the number of seconds that one measurement takes at least.
      end: the value of time.monotonic() at the end. A measurement begins only if `needed` seconds are left.
    """
    for number, (share, without) in enumerate(known):
        left = end - time.monotonic()
        if left < needed:
            return
        try:
            result = measured(without, max(left / (len(known) - number), needed))
        except RLFlowError:  # no check has seen the file without the group, which ONNX Runtime can refuse
            continue
        share["measured"] = {key: result[key] for key in ("ratio", "interval", "verdict")}


def measured_families(shares: Sequence[Mapping]) -> Iterator[tuple[str, Ratio]]:
    """Yield (rule family, latency with the group / latency without it) for each measured group of one rule."""
    for share in shares:
        if share["measured"] is not None and share["family"] is not None:
            yield share["family"], Ratio(share["measured"]["ratio"], *share["measured"]["interval"])
