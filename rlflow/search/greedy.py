"""Greedy search: always the rewrite that lowers the estimated cost most."""

import math

from rlflow.search.gains import Position
from rlflow.search.search import Limits, Search, SearchResult, run_search
from rlflow.tasks.base import LocalState


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
