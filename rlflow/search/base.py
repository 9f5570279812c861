"""The base of all searches: limits, the best state so far, and the gains of matches.

`Search` counts rewrites and seconds, raises LimitReached, and keeps the cheapest state. `run_search` runs a method and
returns a `SearchResult` with single rewrites as actions. `Position` is a state with the known gains of its matches. A
gain stays valid until a rewrite touches the neighbourhood of its match, so a search judges most neighbours without
carrying them out. An outdated gain changes only the order of trials: the cost of a position is always the cost of its
state.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rlflow.common.system import resident_memory
from rlflow.common.task import CompoundState, LocalState, Match, StrainedState, single_steps
from rlflow.costs import TimeIsUp
from rlflow.search import SEARCHES

MEMORY_EVERY = 256  # rewrites between two looks at the memory
Path = tuple[Match, "Path | None"]  # the matches that led to a state, the last one first


class SearchResult(NamedTuple):
    """The result of a search.

    Attributes:
      state: the cheapest one that it saw.  actions: (xfer_id, location) pairs that lead there from the start; both of
        single states, where the start is a `CompoundState`.
      interactions: rewrites carried out, those that were only tried for their gain included.
      stop: why it ended: a limit ('seconds', 'interactions', 'memory'), 'interrupted', or the method's own reason.
      seconds: until it ended; numbering the actions comes on top.
      trace: (seconds, interactions, best objective so far), first the start, then at every improvement.
    """

    state: LocalState
    actions: list[tuple[int, int]]
    interactions: int
    stop: str
    seconds: float
    trace: list[tuple[float, int, int]]


class Limits(NamedTuple):
    """After how much no move begins; one that has begun is carried out whole, whatever it rewrites.

    seconds; interactions: rewrites carried out; memory: bytes that the process has grown by since the search began.
    """

    seconds: float = math.inf
    interactions: float = math.inf
    memory: float = math.inf


class LimitReached(Exception):
    """Its text is the name of the limit."""


class Search:
    """One search in progress.

    Attributes:
      start: the state it begins at.  rng: decides its random choices.  interactions: rewrites so far.
      best: the cheapest state so far.
    """

    def __init__(
        self, start: LocalState, limits: Limits = Limits(), seed: int = 0, progress=None,
        clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        self.start, self.limits, self.rng = start, limits, np.random.default_rng(seed)
        self.best, self.best_path, self.interactions = start, None, 0
        self.compound = isinstance(start, CompoundState)
        self._clock, self._began, self._progress = clock, clock(), progress
        self._held = resident_memory()  # the most so far would take what was held earlier for room
        self._next_memory_look = 0
        self.trace = [(0.0, 0, start.objective)]

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    def follow(self, state: LocalState, match: Match) -> LocalState:
        """The state after a match of the state's. Raises LimitReached where there is nothing left to spend."""
        self._check()
        after = state.follow(match)
        self._spent(len(after.made) if self.compound else 1)
        return after

    def gain(self, state: LocalState, match: Match) -> int:
        """By how much a match of the state's lowers the objective; of several choices, what the first one does. Raises
        LimitReached."""
        if not self.compound:
            return state.objective - self.follow(state, match).objective
        return state.objective - self.follow_single(state.single, state.choices(match)[0]).objective

    def follow_single(self, state: LocalState, choice: Match) -> LocalState:
        """The single state after one choice. Raises LimitReached."""
        self._check()
        after = state.follow(choice)
        self._spent(1)
        return after

    def _check(self) -> None:
        if self.interactions >= self.limits.interactions:
            raise LimitReached("interactions")
        if self.seconds >= self.limits.seconds:
            raise LimitReached("seconds")
        if self.interactions >= self._next_memory_look:
            self._next_memory_look += MEMORY_EVERY
            if resident_memory() - self._held > self.limits.memory:
                raise LimitReached("memory")

    def _spent(self, rewrites: int) -> None:
        self.interactions += rewrites
        if self._progress is not None:
            self._progress.update(rewrites)

    def saw(self, state: LocalState, path: "Path | None") -> bool:
        """Keeps the state if it is the cheapest so far, and says whether it is."""
        if state.objective >= self.best.objective:
            return False
        self.best, self.best_path = state, path
        self.trace.append((self.seconds, self.interactions, state.objective))
        if self._progress is not None:
            gained = 100 * (1 - state.objective / self.start.objective)
            self._progress.set_postfix_str(f"best {gained:.2f} % lower", refresh=False)
        return True


def run_search(
    method: str | Callable[..., str], start: LocalState, limits: Limits = Limits(), seed: int = 0, progress=None,
    clock: Callable[[], float] = time.monotonic, **options,
) -> SearchResult:
    """Searches until the method has enough, a limit is reached or the user interrupts; the best so far is the result.

    Args:
      method: a name of SEARCHES, or such a function.  options: its own.
      progress: a tqdm-like object that is updated after every rewrite.
      clock: seconds that go on; what it leaves out is not counted.

    Raises RLFlowError if no method has that name.
    """
    function = SEARCHES.get(method) if isinstance(method, str) else method
    search = Search(start, limits, seed, progress, clock)
    try:
        stop = function(search, **options)
    except LimitReached as limit:
        stop = str(limit)
    except TimeIsUp:
        stop = "seconds"
    except KeyboardInterrupt:
        stop = "interrupted"
    seconds = search.seconds
    state, actions = numbered(start, search.best_path)
    return SearchResult(state, actions, search.interactions, stop, seconds, search.trace)


def uninterrupted(result: SearchResult) -> SearchResult:
    """A result that something else is built on, which half of a search would falsify. Raises KeyboardInterrupt again
    where the search was interrupted."""
    if result.stop == "interrupted":
        raise KeyboardInterrupt
    return result


def numbered(start: LocalState, path: "Path | None") -> tuple[LocalState, list[tuple[int, int]]]:
    """The actions of a path, without detours that return to an earlier graph of it, and the state at their end."""
    first = start.single if isinstance(start, CompoundState) else start
    state, actions, hashes, detours = first, [], [start.hash], False
    for action, state in _steps(start, path):
        actions.append(action)
        if state.hash in hashes:  # equal graphs have equal locations, so what follows fits there too
            kept, detours = hashes.index(state.hash), True
            del actions[kept:], hashes[kept + 1 :]
        else:
            hashes.append(state.hash)
    if detours:  # a graph knows in its names which detours it came by
        state = first
        for xfer_id, location in actions:
            state = state.follow(state.match(xfer_id, location))
    return state, actions


def matches_of(path: "Path | None") -> list[Match]:
    """Of a path, the first one first."""
    matches = []
    while path is not None:
        match, path = path
        matches.append(match)
    return matches[::-1]


def _steps(start: LocalState, path: "Path | None") -> Iterator[tuple[tuple[int, int], LocalState]]:
    """Each single choice of a path, and the single state that it leads to."""
    state, compound = start, isinstance(start, CompoundState)
    for match in matches_of(path):
        before, state = state, state.follow(match)
        if compound:
            yield from single_steps(before, state)
        else:
            yield (match.xfer_id, before.index_of(match)), state


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
        """Of its state, where that has it: see `rlflow.common.task.StrainedState`."""
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
