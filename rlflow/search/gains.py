"""What each match of a state gains, known without carrying out again what nothing near it has changed."""

from collections.abc import Mapping
from functools import cached_property

from rlflow.search.search import Path, Search
from rlflow.tasks.base import LocalState, Match, StrainedState

EXACT_REACH = 1  # costs that look further hardly change that far away; see `Position.forget`


class Position:
    """A state that a search has reached, with the gains of its matches.

    A gain is local: it stays what it was until a rewrite touches the match's neighbourhood, so a position takes over
    those of the position before. Where the cost looks further than EXACT_REACH, or is that of the worst part alone, one
    may be out of date; then only the order in which matches are tried suffers: the cost of a position is always that of
    its state.

    Attributes:
      state: the state.  path: how it was reached, as `Search.saw` takes it.
      gained: by how many picoseconds the last match lowered the cost; of several choices, each in the mean.
    """

    def __init__(self, search: Search, state: LocalState, path: "Path | None" = None, before: "Position | None" = None):
        self.search, self.state, self.path = search, state, path
        self.gained: float = 0
        self._before = before  # until its gains are taken over
        self._recounted = False  # whether no gain is from a position before

    @property
    def objective(self) -> int:
        """Of its state."""
        return self.state.objective

    @property
    def strain(self) -> Mapping[int, int] | None:
        """Of its state, where that has it: see `rlflow.tasks.base.StrainedState`."""
        return self.state.strain if isinstance(self.state, StrainedState) else None

    @cached_property
    def matches(self) -> list[Match]:
        """Those that the state offers, by rule and location."""
        return self.state.matches

    @cached_property
    def _gains(self) -> dict[int, tuple[Match, int]]:
        """id of a match → the match (kept alive) and its gain."""
        before, self._before = self._before, None
        if before is None:
            return {}
        near, known = self.near(1 + min(self.state.reach, EXACT_REACH)), before._gains
        return {id(m): known[id(m)] for m in self.matches if id(m) in known and near.isdisjoint(m.nodes)}

    def gain(self, match: Match) -> int:
        """By how many picoseconds the match lowers the cost; of several choices, the first of them, or each in the mean
        once they were carried out."""
        known = self._gains.get(id(match))
        if known is None:
            known = self._gains[id(match)] = match, self.search.gain(self.state, match)
        return known[1]

    def choice(self, match: Match) -> Match:
        """The first that a match stands for; of a single state the match itself."""
        return self.state.choices(match)[0] if self.search.compound else match

    def lowers(self, match: Match) -> float:
        """By how much all choices of a match lower the cost together, if each gains as `gain` says."""
        return self.gain(match) * (len(self.state.choices(match)) if self.search.compound else 1)

    def forget(self) -> bool:
        """Drops the gains if some may be out of date, and says whether so; they are counted anew when asked for."""
        far = self.state.reach > EXACT_REACH or self.strain is not None
        stale = self.path is not None and far and not self._recounted
        if stale:
            self._gains, self._recounted = {}, True
        return stale

    def after(self, match: Match) -> "Position":
        """The position behind a match, which is carried out; its gain is known for certain then."""
        position = Position(self.search, self.search.follow(self.state, match), (match, self.path), self)
        position.gained = self.objective - position.objective
        if self.search.compound and len(position.state.made) > 1:
            position.gained /= len(position.state.made)
        self._gains[id(match)] = match, position.gained
        self.search.saw(position.state, position.path)
        return position

    def of_single(self) -> "Position":
        """The same state where a match is one choice, to try what may then be carried out `everywhere`."""
        if not self.search.compound:
            return self
        result = Position(Trial(self.search), self.state.single)
        result._gains = {
            id(choice): (choice, gain) for match, gain in self._gains.values() for choice in self.state.choices(match)
        }
        return result

    def everywhere(self, tried: "Position", touched: set[int]) -> "tuple[Position, set[int]] | None":
        """What led from `of_single` to a position, and touched those nodes there, carried out at all alike matches.

        As far as that can be; None if it lowers the cost no further than here.
        """
        if not self.search.compound:
            return tried, touched
        position, touched, carrying = self, set(), self.state.carrying()
        for choice in tried.matches_before():
            match = None if carrying.is_made(choice) else carrying.match(position.state, choice)
            if match is not None:
                position = position.after(match)
                touched |= position.state.touched
                carrying.followed(position.state)
            if not carrying.is_made(choice):
                break
            carrying.passed(choice)
        return (position, touched) if position.objective < self.objective else None

    def matches_before(self) -> list[Match]:
        """Those that led here, the first one first."""
        result, path = [], self.path
        while path is not None:
            match, path = path
            result.append(match)
        return result[::-1]

    def near(self, reach: int, node_ids=frozenset()) -> set[int]:
        """Ids of the nodes within `reach` edges of what the last rewrite touched, or of the given ones."""
        return self.state.near(self.state.touched.union(node_ids), reach)


class Trial:
    """Single choices that a search of compound states tries: it spends as the search, and nothing is a result."""

    compound = False

    def __init__(self, search: Search):
        self.follow = search.follow_single

    def gain(self, state: LocalState, match: Match) -> int:
        return state.objective - self.follow(state, match).objective

    def saw(self, state: LocalState, path: "Path | None") -> bool:
        return False
