"""Descents: always a rewrite that lowers the cost, or random ones in proportion to their gain (GRASP).

- `steepest_descent` takes the rewrite with the largest gain. It is the greedy control of every result.
- `first_improvement` takes the first rewrite that gains, in the order of the analytic cost. It suits costs that must be
  timed, since the largest gain is the most expensive to find.
- `grasp` (Feo and Resende 1995, doi 10.1007/BF01096763) draws whole descents by the analytic cost, and carries out each
  one that ends cheaper than all before. A draw may gain nothing at first: the steepest descent fuses a sum with a
  normalisation, and then no slice can move up through the fused operator.
"""

import math
from dataclasses import replace

import numpy as np

from rlflow.common.task import LocalState
from rlflow.costs.analytic import AnalyticCost
from rlflow.env import BATCHED, SINGLE
from rlflow.env.batched import start_of
from rlflow.search.base import Limits, Position, Search, SearchResult, matches_of, run_search


def greedy(state: LocalState, max_steps: int, seconds: float = math.inf) -> SearchResult:
    """Steepest descent from the state, at most so many rewrites and seconds."""
    return run_search(steepest_descent, state, Limits(seconds), max_steps=max_steps)


def steepest_descent(search: Search, max_steps: int) -> str:
    """Follows the steepest descent of the estimated runtime. Of equally good actions the first is taken."""
    position = Position(search, search.start)
    for _ in range(max_steps):
        after = steepest_step(position)
        if after is None and position.forget():
            after = steepest_step(position)
        if after is None:
            return "local optimum"
        position = after
    return "steps"


def steepest_step(position: Position) -> Position | None:
    """The position after the match that gains most, None if none gains anything."""
    for match in sorted(position.matches, key=lambda match: -position.gain(match)):
        if position.gain(match) <= 0:
            break
        after = position.after(match)
        if after.objective < position.objective:
            return after
    return None


def descent(position: Position) -> Position:
    """The local optimum at the end of the steepest descent."""
    while (after := steepest_step(position)) is not None:
        position = after
    return position


def promise_of(search: Search) -> Position:
    """Where the search begins, by the analytic cost. Rewrites count in the search's limits, and nothing that is seen
    from here is kept as its result."""
    task = replace(search.start.task, graph=search.start.graph, cost=AnalyticCost())
    return Position(_Unseen(search), start_of(task, BATCHED if search.compound else SINGLE))


class _Unseen:
    """A search of which nothing is kept, since it counts another cost."""

    def __init__(self, search: Search):
        self._search = search

    def __getattr__(self, name: str):
        return getattr(self._search, name)

    def saw(self, state, path) -> bool:
        return False


def first_improvement(search: Search, max_steps: int) -> str:
    """Follows the first match that gains anything, of those that gain most by the analytic cost first.

    Both costs see every graph; rewrites carried out for either count.
    """
    position = Position(search, search.start)
    promise = promise_of(search)
    for _ in range(max_steps):
        after = _first_step(position, promise)
        if after is None and position.forget():
            after = _first_step(position, promise)
        if after is None:
            return "local optimum"
        position, promise = after
    return "steps"


def _first_step(position: Position, promise: Position) -> tuple[Position, Position] | None:
    """Both positions after the first match that gains, None if none gains anything."""
    pairs = zip(position.matches, promise.matches, strict=True)  # equal graphs have equal matches, in the same order
    for match, promised in sorted(pairs, key=lambda pair: -promise.gain(pair[1])):
        if position.gain(match) > 0:  # of this very graph: known ones, which may be out of date, were no gains
            after = position.after(match)
            if after.objective >= position.objective:
                continue  # several choices that get in each other's way
            return after, promise.after(promised)
    return None


def grasp(search: Search, unit: float, max_steps: int, patience: int) -> str:
    """Draws descents from the start by the analytic cost, and follows each that ends cheaper by it than all before it
    by the search's own cost. Rewrites carried out for either count.

    Args:
      unit: a gain that is drawn a few times as often as none, as a share of the start's objective; larger ones are
        drawn in proportion.
      max_steps: rewrites that are drawn; the steepest descent goes on from there.
      patience: descents in a row that end no cheaper, after which it ends.
    """
    start = promise_of(search)
    unit *= max(start.objective, 1)  # views only cost nothing
    least, failed = start.objective, 0
    while failed < patience:
        end = descent(_random_descent(start, unit, max_steps))
        failed += 1
        if end.objective < least:
            least, failed = end.objective, 0
            _carry_out_path(search, end)
    return "patience"


def _random_descent(position: Position, unit: float, max_steps: int) -> Position:
    """The end of a random descent: where nothing gains; the first rewrite need not gain either."""
    rng = position.search.rng
    for step in range(max_steps):
        gains = np.array([position.gain(match) for match in position.matches], np.float64)
        if not gains.size or (step and gains.max() <= 0):
            break
        scaled = gains / unit
        weights = scaled + np.sqrt(scaled**2 + 1)  # 1 for no gain, ∝ gain above it, ∝ 1 / loss below
        position = position.after(position.matches[rng.choice(len(weights), p=weights / weights.sum())])
    return position


def _carry_out_path(search: Search, end: Position) -> None:
    """Carries out by the search's own cost what led to a position by another one."""
    position = Position(search, search.start)
    for match in matches_of(end.path):  # equal graphs have equal matches
        position = position.after(match)
