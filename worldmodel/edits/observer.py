"""Real episodes in the eyes of the world model "edits": their latents, and its own numbering of their locations."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from rlflow.collect.edits import MatchRecord, edit_between, first_edit, match_record
from rlflow.env.state import RewriteState
from rlflow.rules.match import Match
from worldmodel.edits.episode_follower import EpisodeFollower
from worldmodel.edits.node_values import node_latents


class EditsObserver:
    """See `worldmodel.base.Observer`. Locations of a rule are numbered by match class, then by where their nodes lie in
    the initial graph. It also is the `Observer` of rlflow.collect.rollouts, which explores what the model does not
    know."""

    h = np.zeros(0, np.float32)

    def __init__(self, model):
        self.model = model

    def begin(self, state: RewriteState) -> None:
        first = first_edit(state)
        self.model.observe(state, first)
        index = self.model.groundings.of(first)
        self._index, self.follower, self.state = index, EpisodeFollower(index.grounding, first), state
        self._located: dict[int, dict] = defaultdict(dict)  # rule → match, as `_name` names it → its order
        self._locate(first.lost, first.appeared)
        self._node_latents = node_latents(index, self.model.latents)
        self._times = self.model.groundings.rules.times()

    def follow(self, action: Sequence[int], state: RewriteState) -> None:
        self.took(self.state.table.location(*self.real_action(action)), state)

    def took(self, match: Match, state: RewriteState) -> None:
        """A match of the state led to this one."""
        edit = edit_between(self.state, match, state)
        self.model.observe(state, edit)
        self.follower.follow(edit, match_record(self.state, match))
        self._locate(edit.lost, edit.appeared)
        self.state = state

    # -- observations ------------------------------------------------------------------------------

    @property
    def z(self) -> np.ndarray:
        self._index.update()
        nodes = np.array(list(self.follower.nodes.values()), np.int64)
        return self.model.bounded(self.model.latents.offset + self._node_latents(nodes).sum(axis=0))

    @property
    def counts(self) -> np.ndarray:
        return self.state.counts

    @property
    def class_counts(self) -> np.ndarray:
        limit, classes = self.model.spec.max_locations, []
        for xfer_id, located in self._located.items():
            allowed = located.values() if len(located) <= limit else self._orders(xfer_id)
            classes += [match_class for match_class, _ in allowed]
        return np.bincount(classes, minlength=len(self.model.match_classes)).astype(np.int32)

    def real_action(self, action: Sequence[int]) -> tuple[int, int]:
        xfer_id, number = int(action[0]), int(action[1])
        orders = self._orders(xfer_id)
        return xfer_id, sorted(range(len(orders)), key=orders.__getitem__)[number]

    # -- the order of locations --------------------------------------------------------------------

    def _orders(self, xfer_id: int) -> list[tuple]:
        """Of the locations that the environment allows, by its numbers: their classes and, within these, their
        order."""
        matches = islice(self.state.table.of_rule(xfer_id), self.model.spec.max_locations)
        return [self._located[xfer_id][self._name(match_record(self.state, match))] for match in matches]

    def _locate(self, lost: Iterable[MatchRecord], appeared: Iterable[MatchRecord]) -> None:
        for match in lost:
            self._located[match.xfer_id].pop(self._name(match), None)  # a match of a symmetric rule is recorded twice
        for match in appeared:
            of_rule, name, order = self._located[match.xfer_id], self._name(match), self._order(match)
            of_rule[name] = min(order, of_rule.get(name, order))

    def _name(self, match: MatchRecord) -> MatchRecord | frozenset[int]:
        return frozenset(match.nodes) if match.xfer_id in self.model.groundings.rules.symmetric else match

    def _order(self, match: MatchRecord) -> tuple:
        """As `GroundingIndex.order_of` has it; of a pattern that was never seen, the last of its rule."""
        number, index = self.follower.match(match), self._index
        if number is None:
            match_class = index.match_classes.of(match.xfer_id, None, ())
            return match_class, index.grounding.order_of(*self.follower.grounded(match))
        index.update()
        return index.order_of(number)

    # -- what exploration asks ---------------------------------------------------------------------

    def knows(self, match: Match) -> bool:
        """Whether the model saw such a match of the state rewritten, with just this signature."""
        number = self.follower.match(match_record(self.state, match))
        if number is None:
            return False
        effect = self._index.effects(np.array([number]))[0]
        return bool(effect >= 0 and self._index.seen.values[effect])

    def times(self, xfer_id: int) -> int:
        """How many rewrites of the rule the model saw."""
        return self._times[xfer_id]

    def expects(self, match: Match) -> float:
        """The median gain of the matches of its pattern, else of its rule (ps)."""
        number = self.follower.match(match_record(self.state, match))
        pattern = None if number is None else self._index.grounding.matches[number].pattern
        return self.model.costs.gains(match.xfer_id, pattern, None)[0]
