"""A candidate without some of its rewrites: the rest is made again, ids translated.

What matched what a rewrite made is left out with it.
"""

from collections.abc import Container, Sequence
from typing import NamedTuple

from rlflow.env.state import RewriteState, Task
from rlflow.graph.model import Graph
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
