"""Greedy randomised descents by a cost that times nothing; what they come to is judged by the search's own.

The steepest descent takes the best fusion and with it the way to what is better still: once a sum and a normalisation
are one operator, no slice moves up through them. Here each descent draws its rewrites in proportion to what they gain
(GRASP, Feo and Resende 1995, doi 10.1007/BF01096763), and now and then one that gains nothing: such a one opens ways,
as a gather that becomes a slice does, which then moves up to where only one of two hundred rows is computed.
"""

import numpy as np

from rlflow.search.gains import Position
from rlflow.search.greedy import descent
from rlflow.search.promise import promise_of
from rlflow.search.search import Search, matches_of


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
        end = descent(_drawn(start, unit, max_steps))
        failed += 1
        if end.objective < least:
            least, failed = end.objective, 0
            _follow(search, end)
    return "patience"


def _drawn(position: Position, unit: float, max_steps: int) -> Position:
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


def _follow(search: Search, end: Position) -> None:
    """Carries out by the search's own cost what led to a position by another one."""
    position = Position(search, search.start)
    for match in matches_of(end.path):  # equal graphs have equal matches
        position = position.after(match)
