"""What all searches share: what they may spend, what they have spent, the best they have seen."""

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from rlflow.common.system import resident_memory
from rlflow.costs import TimeIsUp
from rlflow.search import SEARCHES
from rlflow.tasks.base import CompoundState, LocalState, Match, single_steps

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
