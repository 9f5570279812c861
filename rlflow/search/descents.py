"""Descents: apply only rewrites that lower the cost, or random rewrites in proportion to their gain (GRASP).

- `steepest_descent` takes the rewrite with the largest gain. It is the greedy control of every result.
- `first_improvement` takes the first rewrite that gains, in the order of the analytic cost. It suits costs that must be
  timed, since the largest gain is the most expensive to find.
- `grasp` (Feo and Resende 1995, doi 10.1007/BF01096763) draws whole descents by the analytic cost, and repeats each one
  that ends cheaper than all before by the search's own cost. The first rewrite of a draw may gain nothing. Steepest
  descent fuses a sum with a normalisation, for example, and then no slice can move up through the fused operator.
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
    """Run the steepest descent from a state.

    Args:
      state: the state at which the descent begins.
      max_steps: largest number of rewrites.
      seconds: time limit.
    """
    return run_search(steepest_descent, state, Limits(seconds), max_steps=max_steps)


def steepest_descent(search: Search, max_steps: int) -> str:
    """Apply the rewrite of the largest gain until no rewrite gains; of equal gains, take the first.

    Args:
      search: the search.
      max_steps: largest number of rewrites.

    Returns:
      the reason of the end.
    """
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
    """Return the position after the match of the largest gain, or None if no match gains."""
    for match in sorted(position.matches, key=lambda match: -position.gain(match)):
        if position.gain(match) <= 0:
            break
        after = position.after(match)
        if after.objective < position.objective:
            return after
    return None


def descent(position: Position) -> Position:
    """Return the local optimum at the end of the steepest descent."""
    while (after := steepest_step(position)) is not None:
        position = after
    return position


def start_by_analytic_cost(search: Search) -> Position:
    """Return the start of a search under the analytic cost.

    Rewrites from this position count towards the search's limits, and no state seen from here becomes its result.
    """
    task = replace(search.start.task, graph=search.start.graph, cost=AnalyticCost())
    return Position(_WithoutResult(search), start_of(task, BATCHED if search.compound else SINGLE))


class _WithoutResult:
    """A view of a search that keeps no result, because the states seen have another cost."""

    def __init__(self, search: Search):
        self._search = search

    def __getattr__(self, name: str):
        return getattr(self._search, name)

    def saw(self, state, path) -> bool:
        return False


def first_improvement(search: Search, max_steps: int) -> str:
    """Apply the first match that gains, in the order of decreasing gain by the analytic cost.

    The search follows every graph under both costs; rewrites under either cost count as interactions.

    Args:
      search: the search.
      max_steps: largest number of rewrites.

    Returns:
      the reason of the end.
    """
    position = Position(search, search.start)
    promise = start_by_analytic_cost(search)
    for _ in range(max_steps):
        after = _first_step(position, promise)
        if after is None and position.forget():
            after = _first_step(position, promise)
        if after is None:
            return "local optimum"
        position, promise = after
    return "steps"


def _first_step(position: Position, promise: Position) -> tuple[Position, Position] | None:
    """Return both positions after the first match that gains, or None if no match gains."""
    pairs = zip(position.matches, promise.matches, strict=True)  # Equal graphs have equal matches in equal order.
    for match, promised in sorted(pairs, key=lambda pair: -promise.gain(pair[1])):
        if position.gain(match) > 0:  # A positive gain was computed for this graph: reused gains are not positive.
            after = position.after(match)
            if after.objective >= position.objective:
                continue  # The choices of one move can hinder each other.
            return after, promise.after(promised)
    return None


def grasp(search: Search, unit: float, max_steps: int, patience: int) -> str:
    """Draw descents from the start by the analytic cost, and repeat the best ones by the search's own cost.

    A descent is repeated if it ends cheaper, by the analytic cost, than all descents before it. Rewrites under either
    cost count as interactions.

    Args:
      search: the search.
      unit: a gain, as a share of the start's objective, that is drawn a few times as often as no gain. Larger gains are
        drawn in proportion.
      max_steps: number of random rewrites of a descent; the steepest descent continues from there.
      patience: number of successive descents without improvement after which the search ends.

    Returns:
      the reason of the end.
    """
    start = start_by_analytic_cost(search)
    unit *= max(start.objective, 1)  # a graph of views alone costs 0
    least, failed = start.objective, 0
    while failed < patience:
        end = descent(_random_descent(start, unit, max_steps))
        failed += 1
        if end.objective < least:
            least, failed = end.objective, 0
            _carry_out_path(search, end)
    return "patience"


def _random_descent(position: Position, unit: float, max_steps: int) -> Position:
    """Return the end of a random descent, where no match gains; the first rewrite is drawn even if no match gains."""
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
    """Apply the matches that led to a position of another cost under the search's own cost."""
    position = Position(search, search.start)
    for match in matches_of(end.path):  # Equal graphs have equal matches, whatever the cost.
        position = position.after(match)
