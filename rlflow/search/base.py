"""The base of all searches: limits, the best state so far, and the gains of matches.

`Search` counts rewrites and seconds, raises LimitReached, and keeps the cheapest state. `run_search` runs a search
function and returns a `SearchResult` with single rewrites as actions. `Position` is a state with the known gains of its
matches. A gain is reused until a rewrite touches the neighbourhood of its match, so a search compares most matches
without applying them again. An outdated gain changes only the order in which matches are tried: the cost of a position
is always the cost of its state.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rlflow.common.system import resident_memory
from rlflow.common.task import CompoundState, LocalState, Match, StrainedState
from rlflow.costs import TimeIsUp
from rlflow.search import SEARCHES

MEMORY_EVERY = 256  # number of rewrites between two readings of the memory in use
NUMBERING = 0.1  # time that `Search.numbered` may take after the time limit, as a share of this limit
Path = tuple[Match, "Path | None"]  # the matches that led to a state, as a linked list with the last match first


class SearchResult(NamedTuple):
    """The result of a search.

    Attributes:
      state: the cheapest state found; a single state if the start is a `CompoundState`.
      actions: (xfer_id, location) of the single rewrites that lead from the start to `state`.
      interactions: number of rewrites applied, including rewrites that were only tried for their gain.
      stop: reason of the end: a limit ('seconds', 'interactions', 'memory'), 'interrupted', or the text that the search
        function returned.
      seconds: duration of the search, without the time to compute `actions`.
      trace: (seconds, interactions, best objective so far) at the start and at every improvement.
    """

    state: LocalState
    actions: list[tuple[int, int]]
    interactions: int
    stop: str
    seconds: float
    trace: list[tuple[float, int, int]]


class Limits(NamedTuple):
    """The limits of a search. After a limit is reached, no move begins; a move that has begun is completed.

    Attributes:
      seconds: largest duration.
      interactions: largest number of rewrites applied.
      memory: largest increase, in bytes, of the resident memory of the process during the search.
    """

    seconds: float = math.inf
    interactions: float = math.inf
    memory: float = math.inf


class LimitReached(Exception):
    """Raised when a limit is reached; the message is the name of the limit."""


class Search:
    """The progress of one search: its limits, the number of rewrites so far, and the cheapest state so far.

    Args:
      start: the state at which the search begins.
      limits: the limits.
      seed: seed of the random choices.
      progress: a tqdm-like object that is updated after every rewrite; None for no progress.
      clock: a function that returns seconds; the search sees time only through this clock.
      times: see `run_search`.

    Attributes:
      times: True if descents time predicted kernels.
      start: the state at which the search begins.
      compound: True if `start` is a `CompoundState`.
      rng: the random generator of the search.
      interactions: number of rewrites so far.
      best: the cheapest state so far.
      best_path: the matches that lead from the start to `best`.
      trace: see `SearchResult`.
    """

    def __init__(
        self, start: LocalState, limits: Limits = Limits(), seed: int = 0, progress=None,
        clock: Callable[[], float] = time.monotonic, times: bool = False,
    ):  # fmt: skip
        self.start, self.limits, self.rng, self.times = start, limits, np.random.default_rng(seed), times
        self.best, self.best_path, self.interactions = start, None, 0
        self.compound = isinstance(start, CompoundState)
        self._clock, self._began, self._progress = clock, clock(), progress
        self._best_choices = 0  # number of single choices on the best path
        self._followed, self._first = 0, 0.0  # number of calls of `follow`; seconds before the first one
        # Not the peak, which would count memory that was freed before the search as available.
        self._memory_at_start = resident_memory()
        self._next_memory_look = 0
        self.trace = [(0.0, 0, start.objective)]

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    def numbered(self) -> tuple[LocalState, list[tuple[int, int]]]:
        """Return the result of the function `numbered` for the best path.

        The function stops NUMBERING times the time limit after this limit. Its result is then the cheapest state that
        the function has reached on the path.
        """
        until = (1 + NUMBERING) * self.limits.seconds
        return numbered(self.start, self.best_path, lambda: self.seconds >= until)

    def follow(self, state: LocalState, match: Match) -> LocalState:
        """Apply a match, count its rewrites, and return the state that the match leads to.

        Args:
          state: the current state.
          match: a match of this state.

        Raises:
          LimitReached: a limit is reached.
        """
        self.check()
        if not self._followed:
            self._first = self.seconds
        self._followed += 1
        after = state.follow(match)
        rewrites = len(after.made) if hasattr(after, "made") else 1
        self.interactions += rewrites
        if self._progress is not None:
            self._progress.update(rewrites)
        return after

    def count(self) -> None:
        """Count a rewrite that the search tries without a state of the task.

        Raises:
          LimitReached: a limit is reached.
        """
        self.check()
        self.interactions += 1
        if self._progress is not None:
            self._progress.update(1)

    def gain(self, state: LocalState, match: Match) -> int:
        """Apply a match and return the decrease of the objective.

        In a compound state, only the first single choice of the match is applied.

        Args:
          state: the current state.
          match: a match of this state.

        Raises:
          LimitReached: a limit is reached.
        """
        if not self.compound:
            return state.objective - self.follow(state, match).objective
        return state.objective - self.follow(state.single, state.choices(match)[0]).objective

    def check(self) -> None:
        if self.interactions >= self.limits.interactions:
            raise LimitReached("interactions")
        # `numbered` repeats the best path choice by choice, which takes long if moves stand for many choices.
        seconds = self.seconds
        if seconds + (seconds - self._first) * self._best_choices / max(self._followed, 1) >= self.limits.seconds:
            raise LimitReached("seconds")
        if self.interactions >= self._next_memory_look:
            self._next_memory_look += MEMORY_EVERY
            if resident_memory() - self._memory_at_start > self.limits.memory:
                raise LimitReached("memory")

    def saw(self, state: LocalState, path: "Path | None") -> bool:
        """Store a state as `best` if it is cheaper than all states before, and return whether it is cheaper.

        Args:
          state: the state.
          path: the matches that lead from the start to the state.
        """
        if state.objective >= self.best.objective:
            return False
        self.keep(state, path)
        self.trace.append((self.seconds, self.interactions, state.objective))
        if self._progress is not None:
            gained = 100 * (1 - state.objective / self.start.objective)
            self._progress.set_postfix_str(f"best {gained:.2f} % lower", refresh=False)
        return True

    def keep(self, state: LocalState, path: "Path | None") -> None:
        """Make a state the best one, whatever its objective, for instance because costs have changed.

        Args:
          state: the best state, with its current cost.
          path: the matches that lead from the start to the state.
        """
        new, made = 0, path
        while made is not None and made is not self.best_path:
            match, made = made
            new += len(getattr(match, "members", (match,)))
        self._best_choices = new if made is None else self._best_choices + new
        self.best, self.best_path = state, path


def run_search(
    method: str | Callable[..., str], start: LocalState, limits: Limits = Limits(), seed: int = 0, progress=None,
    clock: Callable[[], float] = time.monotonic, times: bool = False, **options,
) -> SearchResult:
    """Run a search until it ends, a limit is reached or the user interrupts it, and return the best state found.

    Args:
      method: a name in SEARCHES, or a search function.
      start: the state at which the search begins.
      limits: the limits.
      seed: seed of the random choices.
      progress: a tqdm-like object that is updated after every rewrite; None for no progress.
      clock: a function that returns seconds. Work during which this clock stands still does not count.
      times: True if descents time the predicted kernels on which a step depends before they take the step. This needs a
        rewriting task with a predicted cost, and outdates the costs of states that were made before.
      **options: the options of the method.

    Raises:
      RLFlowError: no search has this name.
    """
    function = SEARCHES.get(method) if isinstance(method, str) else method
    search = Search(start, limits, seed, progress, clock, times)
    try:
        stop = function(search, **options)
    except LimitReached as limit:
        stop = str(limit)
    except TimeIsUp:
        stop = "seconds"
    except KeyboardInterrupt:
        stop = "interrupted"
    seconds = search.seconds
    state, actions = search.numbered()
    return SearchResult(state, actions, search.interactions, stop, seconds, search.trace)


def uninterrupted(result: SearchResult) -> SearchResult:
    """Return a result unchanged, or raise KeyboardInterrupt if the user interrupted the search.

    Callers use this if the best state of an incomplete search is of no use for them.
    """
    if result.stop == "interrupted":
        raise KeyboardInterrupt
    return result


def numbered(
    start: LocalState, path: "Path | None", time_is_up: Callable[[], bool] = lambda: False
) -> tuple[LocalState, list[tuple[int, int]]]:
    """Return the single state at the end of a path, and the actions that lead to it.

    If the path returns to an earlier graph of the path, the actions between the two visits are left out. If the time is
    up before the end of the path, or the deadline of the cost (`rlflow.costs.timing_until`) forbids to time a kernel of
    the path, the result is the cheapest state so far on the path.

    Args:
      start: the state at which the path begins.
      path: the matches of the path.
      time_is_up: a function that is called after each single choice and returns True if the time is up.

    Returns:
      (single state, the (xfer_id, location) pairs that lead from the start to this state).
    """
    first = start.single if isinstance(start, CompoundState) else start
    state, actions, objectives = first, [], [first.objective]
    try:
        for action, state in _single_steps_of(start, path):
            actions.append(action)
            objectives.append(state.objective)
            if time_is_up():
                raise TimeIsUp
    except TimeIsUp:  # The cost raises it, too: a move has a cost at its end, but not after each of its choices.
        cheapest = min(range(len(objectives)), key=objectives.__getitem__)
        if cheapest < len(actions):
            state = _follow(first, actions[:cheapest])
        return state, actions[:cheapest]
    shorter = _without_detours(first, actions, objectives)
    if len(shorter) < len(actions):  # Tensor names depend on the path, so the state is made again without the detours.
        state, actions = _follow(first, shorter), shorter
    return state, actions


def _follow(state: LocalState, actions: Iterable[tuple[int, int]]) -> LocalState:
    for xfer_id, location in actions:
        state = state.follow(state.match(xfer_id, location))
    return state


def _without_detours(
    state: LocalState, actions: Sequence[tuple[int, int]], objectives: Sequence[int]
) -> Sequence[tuple[int, int]]:
    """Leave out the actions between two visits of the same graph.

    Args:
      state: the single state at which the actions begin.
      actions: (xfer_id, location) pairs.
      objectives: the objective of this state and of the state after each action. Only states with equal objectives are
        compared, since hashes take time.
    """
    repeated = {objective for objective, times in Counter(objectives).items() if times > 1}
    if not repeated:
        return actions
    kept: list[tuple[int, int]] = []
    hashes = [state.hash if objectives[0] in repeated else None]
    for action, objective in zip(actions, objectives[1:], strict=True):
        state = _follow(state, [action])
        kept.append(action)
        visited = state.hash if objective in repeated else None
        if visited is not None and visited in hashes:  # Equal graphs have equal locations: later actions stay valid.
            place = hashes.index(visited)
            del kept[place:], hashes[place + 1 :]
        else:
            hashes.append(visited)
    return kept


def matches_of(path: "Path | None") -> list[Match]:
    """Return the matches of a path as a list, the first match first."""
    matches = []
    while path is not None:
        match, path = path
        matches.append(match)
    return matches[::-1]


def _single_steps_of(start: LocalState, path: "Path | None") -> Iterator[tuple[tuple[int, int], LocalState]]:
    """Yield the (sort, index) of each single choice of a path, with the single state that the choice leads to."""
    state, compound = start, isinstance(start, CompoundState)
    for match in matches_of(path):
        before, state = state, state.follow(match)
        if compound:
            yield from state.steps()
        else:
            yield (match.xfer_id, before.index_of(match)), state


# Distance in edges from a rewrite beyond which the known gain of a match is reused. The gain may then be outdated if
# the cost of a node depends on nodes further away (`Position.forget`).
EXACT_REACH = 1


class Position:
    """A state that a search has reached, with the known gains of its matches.

    The gain of a match mostly stays valid until a rewrite touches the neighbourhood of the match, so a position reuses
    gains of the previous position. A reused gain may be outdated if the cost of a node depends on nodes further away
    than EXACT_REACH, or if the objective is a maximum over nodes. This affects only the order in which matches are
    tried.

    Args:
      search: the search.
      state: the state.
      path: the matches that led from the start of the search to the state.
      before: the previous position, whose gains are reused.

    Attributes:
      search, state, path: the arguments of the same names.
      gained: decrease of the objective by the last match; if the match stood for several choices, the mean per choice.
    """

    def __init__(self, search: Search, state: LocalState, path: "Path | None" = None, before: "Position | None" = None):
        self.search, self.state, self.path = search, state, path
        self.gained: float = 0
        self._before = before  # dropped as soon as its gains are taken over
        self._all_new = False  # True if all gains were computed at this position
        self._costs_changed = False  # True if gains may have been computed before the costs changed

    @property
    def objective(self) -> int:
        """The objective of the state."""
        return self.state.objective

    @property
    def strain(self) -> Mapping[int, int] | None:
        """The strain of the state, or None if its objective is a sum; see `rlflow.common.task.StrainedState`."""
        return self.state.strain if isinstance(self.state, StrainedState) else None

    @cached_property
    def matches(self) -> list[Match]:
        """The matches of the state, ordered by action type and index."""
        return self.state.matches

    @cached_property
    def _gains(self) -> dict[int, tuple[Match, int]]:
        """The known gains: id(match) → (match, gain). Storing the match keeps it alive, so that its id stays unique."""
        before, self._before = self._before, None
        if before is None:
            return {}
        near, known = self.near(1 + min(self.state.reach, EXACT_REACH)), before._gains
        return {id(m): known[id(m)] for m in self.matches if id(m) in known and near.isdisjoint(m.nodes)}

    def gain(self, match: Match) -> int:
        """Return the decrease of the objective by a match, computed at the first call.

        If the match stands for several choices, this is the gain of its first choice. After `after` has applied the
        match, it is the mean gain of its choices.
        """
        known = self._gains.get(id(match))
        if known is None:
            known = self._gains[id(match)] = match, self.search.gain(self.state, match)
        return known[1]

    def choice(self, match: Match) -> Match:
        """Return the first single choice of a match; for a single state, the match itself."""
        return self.state.choices(match)[0] if self.search.compound else match

    def total_gain(self, match: Match) -> float:
        """Return an estimate of the decrease by all choices of a match together: `gain` times the number of choices."""
        return self.gain(match) * (len(self.state.choices(match)) if self.search.compound else 1)

    def forget(self) -> bool:
        """Drop all known gains if some may be outdated, and return whether gains were dropped."""
        far = self.state.reach > EXACT_REACH or self.strain is not None
        outdated = not self._all_new and (self._costs_changed or (self.path is not None and far))
        if outdated:
            self._gains, self._all_new = {}, True
        return outdated

    def after(self, match: Match) -> "Position":
        """Apply a match, store its exact gain, and return the position that the match leads to."""
        position = Position(self.search, self.search.follow(self.state, match), (match, self.path), self)
        self.found(match, position)
        self.search.saw(position.state, position.path)
        return position

    def found(self, match: Match, after: "Position") -> None:
        """Store the exact gain of a match, which leads to the position `after`."""
        after.gained = self.objective - after.objective
        if self.search.compound and len(after.state.made) > 1:
            after.gained /= len(after.state.made)
        self._gains[id(match)] = match, after.gained

    def recounted(self) -> "Position":
        """Return the same position, with the cost of its state computed with the current timings."""
        result = Position(self.search, self.state.with_current_cost(), self.path, self._before)
        if "_gains" in self.__dict__:
            result._gains = self._gains
        result._costs_changed = True
        return result

    def of_single(self) -> "Position":
        """Return a position of the same graph with one match per single choice.

        A search tries single choices from there, and `everywhere` then repeats the successful ones. If the state is not
        compound, the position itself is returned.
        """
        if not self.search.compound:
            return self
        result = Position(WithoutResult(self.search, compound=False), self.state.single)
        result._gains = {
            id(choice): (choice, gain) for match, gain in self._gains.values() for choice in self.state.choices(match)
        }
        return result

    def everywhere(self, tried: "Position", touched: set[int]) -> "tuple[Position, set[int]] | None":
        """Repeat a sequence of single choices at all equal matches, up to the first choice that cannot be repeated.

        If the state is not compound, the arguments are returned.

        Args:
          tried: a position that was reached from `of_single` by single choices.
          touched: ids of the nodes that these choices touched.

        Returns:
          (reached position, ids of the nodes touched on the way), or None if the objective of the reached position is
          not below the objective of this position.
        """
        if not self.search.compound:
            return tried, touched
        position, touched, replay = self, set(), self.state.start_replay()
        for choice in matches_of(tried.path):
            match = None if replay.is_made(choice) else replay.match(position.state, choice)
            if match is not None:
                position = position.after(match)
                touched |= position.state.touched
                replay.record_match(position.state)
            if not replay.is_made(choice):
                break
            replay.record_choice(choice)
        return (position, touched) if position.objective < self.objective else None

    def near(self, reach: int, node_ids=frozenset()) -> set[int]:
        """Return the ids of all nodes within a distance of the nodes that the last rewrite touched.

        Args:
          reach: distance in edges.
          node_ids: ids of further nodes, which count like touched nodes.
        """
        return self.state.near(self.state.touched.union(node_ids), reach)


class WithoutResult:
    """A proxy of a search for states that never become the best state of the search.

    The rewrites of these states count towards the limits of the search.

    Args:
      search: the search.
      compound: True if the states are `CompoundState` objects.
    """

    def __init__(self, search: Search, compound: bool):
        self._search, self.compound = search, compound

    gain = Search.gain

    def __getattr__(self, name: str):
        return getattr(self._search, name)

    def saw(self, state: LocalState, path: "Path | None") -> bool:
        return False
