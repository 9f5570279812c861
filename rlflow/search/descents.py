"""Descents: apply only rewrites that lower the cost, or random rewrites in proportion to their gain (GRASP).

- `steepest_descent` applies the rewrite with the largest gain. It is the greedy control for all results.
- `first_improvement` applies the first rewrite that gains, in the order of gains by the analytic cost. It suits costs
  that must be timed, since finding the largest gain requires the timings of all matches. A rewrite that leaves the cost
  equal and lowers the analytic cost counts as a gain. The cost stays equal if ONNX Runtime makes the same change itself
  when it loads a model. For example, ONNX Runtime folds normalisations into convolutions, and other rules apply only to
  the folded convolutions. A gain that is smaller than its uncertainty is taken only if no other gain is left: most such
  gains are noise, and each of them can make a large gain impossible. (A fused activation that "gained" 0.1 % kept a
  convolution from a form that takes a fifth less.) If no rewrite gains, a rewrite that loses little is tried together
  with rewrites that it makes possible (`_through_valley`).
- `grasp` (Feo and Resende 1995, doi 10.1007/BF01096763) draws whole descents at random under the analytic cost. If a
  descent ends cheaper than all descents before it, its rewrites are applied under the search's own cost. The first
  rewrite of a descent may gain nothing, because a steepest descent can lose possibilities. For example, it fuses a sum
  with a normalisation, and then no slice can move up through the fused operator.
"""

import math
from dataclasses import replace

import numpy as np

from rlflow.common.task import LocalState, Match
from rlflow.costs import Spread, graph_spread
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.predicted import predicting
from rlflow.env import BATCHED, SINGLE
from rlflow.env.batched import BatchedState, start_of
from rlflow.env.state import RewriteState
from rlflow.search.base import Limits, Position, Search, SearchResult, WithoutResult, matches_of, run_search

MOST_TIME = 1 / 2  # share of the search's remaining seconds that the timings of one step may take
VALLEY = 0.005  # share of the objective that the first match on the way through a valley may lose
WAY = 4  # largest number of matches on the way through a valley
# Share of the objective. A smaller uncertainty of a gain is not worth a timing, and a way through a valley must gain
# at least this share.
LEAST_GAIN = 0.0005


def greedy(state: LocalState, max_steps: int, seconds: float = math.inf) -> SearchResult:
    """Run the search `steepest_descent` from a state and return its result.

    Args:
      state: the state at which the descent begins.
      max_steps: largest number of rewrites.
      seconds: time limit.
    """
    return run_search(steepest_descent, state, Limits(seconds), max_steps=max_steps)


def steepest_descent(search: Search, max_steps: int) -> str:
    """Apply the match with the largest gain, the first match if several gains are equal, until no match gains.

    Args:
      search: the search.
      max_steps: largest number of rewrites.

    Returns:
      the reason of the end.
    """
    position = Position(search, search.start)
    for _ in range(max_steps):
        position, after = _steepest_step(position)
        while after is None and position.forget():
            position, after = _steepest_step(position)
        if after is None:
            return "local optimum"
        position = after
    return "steps"


def _steepest_step(position: Position) -> tuple[Position, Position | None]:
    """Apply the match with the largest gain.

    Returns:
      (the given position with its current cost, the reached position or None if no match gains).
    """
    for match in sorted(position.matches, key=lambda match: -position.gain(match)):
        if position.gain(match) <= 0:
            break
        position, after = _timed(position, match, position.after(match))
        if after.objective < position.objective:
            return position, after
    return position, None


def descent(position: Position) -> Position:
    """Apply the match with the largest gain until no match gains, and return the reached position."""
    while (after := _steepest_step(position)[1]) is not None:
        position = after
    return position


def _timed(position: Position, match: Match, after: Position) -> tuple[Position, Position]:
    """Time the predicted kernels on which a promising step depends, if the search times kernels (`Search.times`).

    No kernel is timed if the step loses, if its gain is larger than the uncertainty of the gain, or if this uncertainty
    is below LEAST_GAIN of the objective. The same holds if the timings are expected to take more than MOST_TIME of the
    remaining seconds.

    Args:
      position: the position before the step.
      match: the match of the step.
      after: the position after the step.

    Returns:
      both positions, with their current costs.
    """
    search, gain = position.search, position.objective - after.objective
    if not search.times or gain < 0:
        return position, after
    spread, cost = _uncertainty(position.state, after.state), after.state.task.cost
    if not max(gain, LEAST_GAIN * position.objective) <= spread.ps:
        return position, after
    model = predicting(cost)
    predicted = [name for name in spread if model.is_predicted(name)]
    seconds = sum(map(model.seconds_to_time, predicted))
    if not predicted or seconds > MOST_TIME * (search.limits.seconds - search.seconds):
        return position, after
    for name in predicted:
        cost.time_again(name)
    after, position = after.recounted(), position.recounted()  # times the kernels
    position.found(match, after)
    search.keep(position.state, position.path)
    search.saw(after.state, after.path)
    return position, after


def _uncertainty(before: RewriteState | BatchedState, after: RewriteState | BatchedState) -> Spread:
    """Return the uncertainty of the gain by the match that leads from one state to the other."""
    cost, changed = before.task.cost, after.graph_cost.recounted
    return graph_spread(cost, after.graph, changed) - graph_spread(cost, before.graph, changed)


def _is_sure(before: LocalState, after: LocalState) -> bool:
    """Return True if the objective falls by more than the uncertainty of the timings that the last match changed.

    The objective of a task that is not about ONNX models is certain.
    """
    if not isinstance(after, RewriteState | BatchedState):
        return True
    return before.objective - after.objective > _uncertainty(before, after).ps


def start_by_analytic_cost(search: Search) -> Position:
    """Return a position of the search's first graph whose objective is the analytic cost.

    The objective of a task that is not about ONNX models needs no timings, so it stays as it is. Rewrites from this
    position count towards the limits of the search, but the reached states do not become its result.
    """
    if not isinstance(search.start, RewriteState | BatchedState):
        return Position(WithoutResult(search, compound=False), search.start)
    single = search.start.single if search.compound else search.start
    task = replace(single.task, graph=single.graph, cost=AnalyticCost())
    task.take_matches(single)  # In a large graph, finding the matches again would take most of a short search.
    return Position(WithoutResult(search, search.compound), start_of(task, BATCHED if search.compound else SINGLE))


def first_improvement(search: Search, max_steps: int) -> str:
    """Apply the first match that gains, in the order of decreasing gain by the analytic cost, until no match gains.

    No step raises the cost, and a step that leaves the cost equal lowers the analytic cost, so no graph returns. Every
    step is applied to a state of the search's own cost and to a state of the analytic cost. Rewrites of both states
    count as interactions.

    Args:
      search: the search.
      max_steps: largest number of rewrites.

    Returns:
      the reason of the end.
    """
    position = Position(search, search.start)
    promise = start_by_analytic_cost(search)
    for _ in range(max_steps):
        position, reached = _first_step(position, promise)
        while reached is None and position.forget():
            position, reached = _first_step(position, promise)
        reached = reached or _through_valley(position, promise)
        if reached is None:
            return "local optimum"
        position, promise = reached
    return "steps"


def _through_valley(position: Position, promise: Position) -> tuple[Position, Position] | None:
    """Apply a match that loses little, and then matches that it makes possible, if all together gain.

    Winograd's form of a convolution can lose by itself, but gain once its last product is a plain matrix product. Only
    matches are tried that gain by the analytic cost, the largest such gain first. The matches behind them are chosen by
    their gain under the search's own cost.

    Args:
      position, promise: as in `_first_step`, at a local optimum.

    Returns:
      the reached positions of both costs; None if no match leads to a gain of LEAST_GAIN of the objective.
    """
    enough, known = position.objective * (1 - LEAST_GAIN), {id(match) for match in position.matches}
    pairs = list(zip(position.matches, promise.matches, strict=True))
    for first in sorted(range(len(pairs)), key=lambda k: -promise.gain(pairs[k][1])):
        if promise.gain(pairs[first][1]) <= 0:
            break
        if not -VALLEY * position.objective <= position.gain(pairs[first][0]) < 0:
            continue
        end, way = position.after(pairs[first][0]), [first]
        while end.objective > enough and len(way) < WAY:
            new = [k for k, match in enumerate(end.matches) if id(match) not in known]
            best = max(new, key=lambda k: end.gain(end.matches[k]), default=None)
            if best is None or end.gain(end.matches[best]) <= 0:
                break
            end, way = end.after(end.matches[best]), [*way, best]
        if end.objective <= enough:
            for place in way:  # Equal graphs have equal matches in equal order.
                promise = promise.after(promise.matches[place])
            return end, promise
    return None


def _first_step(position: Position, promise: Position) -> tuple[Position, tuple[Position, Position] | None]:
    """Apply the first match that gains under the search's own cost.

    A match that leaves the cost equal and lowers the analytic cost counts as a gain. A gain within its uncertainty is
    taken only if there is no other.

    Args:
      position: a position under the search's own cost.
      promise: the position of the same graph under the analytic cost; its gains determine the order of the matches.

    Returns:
      (the given position with its current cost, the reached positions of both costs or None if no match gains).
    """
    unsure = None
    pairs = zip(position.matches, promise.matches, strict=True)  # Equal graphs have equal matches in equal order.
    for match, promised in sorted(pairs, key=lambda pair: -promise.gain(pair[1])):
        gain = position.gain(match)
        if gain < 0 or (gain == 0 and (promise.gain(promised) <= 0 or _ends_path(position, match))):
            continue
        position, after = _timed(position, match, position.after(match))
        gain = position.objective - after.objective
        if gain < 0:
            continue  # The choices of one move can hinder each other, and a timing can contradict a prediction.
        if gain > 0 and not _is_sure(position.state, after.state):
            unsure = unsure or (match, promised)
            continue
        then = promise.after(promised)
        if gain > 0 or then.objective < promise.objective:
            return position, (after, then)
    if unsure is None:
        return position, None
    after = position.after(unsure[0])
    return position, (after, promise.after(unsure[1])) if after.objective < position.objective else None


def _ends_path(position: Position, match: Match) -> bool:
    """Return True if a match adds an operator of ONNX Runtime's own domains, on which few rules apply."""
    if not isinstance(position.state, RewriteState | BatchedState):
        return False
    rule = position.state.task.rules[match.xfer_id]
    return any(op.domain for op in rule.target_ops)


def grasp(search: Search, unit: float, max_steps: int, patience: int) -> str:
    """Draw random descents under the analytic cost, and apply the best of them under the search's own cost.

    A descent is applied again if its end has a lower analytic cost than the ends of all descents before it. Rewrites
    under both costs count as interactions.

    Args:
      search: the search.
      unit: a gain, as a share of the analytic cost of the start. A match with this gain is drawn 2.4 times as often as
        a match without gain. The probability of a larger gain is nearly proportional to the gain.
      max_steps: number of random rewrites of a descent; a steepest descent continues from there.
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
    """Draw matches in proportion to their gains until no match gains or `max_steps` is reached; return the end.

    The first match is drawn even if no match gains.

    Args:
      position: the position at which the descent begins.
      unit: a gain in the unit of the objective, see `grasp`.
      max_steps: largest number of draws.
    """
    rng = position.search.rng
    for step in range(max_steps):
        gains = np.array([position.gain(match) for match in position.matches], np.float64)
        if not gains.size or (step and gains.max() <= 0):
            break
        scaled = gains / unit
        size = np.abs(scaled) + np.hypot(scaled, 1)
        weights = np.where(scaled > 0, size, 1 / size)  # 1 for no gain, ∝ gain above it, ∝ 1 / loss below
        position = position.after(position.matches[rng.choice(len(weights), p=weights / weights.sum())])
    return position


def _carry_out_path(search: Search, end: Position) -> None:
    """Apply the matches that led to a position under the analytic cost, but from the search's start under its own cost.
    """
    position = Position(search, search.start)
    for match in matches_of(end.path):  # Equal graphs have equal matches, whatever the cost.
        position = position.after(match)
