"""First-improvement descent: what a cheap cost promises most is tried first, and the first that gains is taken.

For a cost that has to time operators which it has not met: the steepest descent knows all neighbours before its first
step, this one times only what lies on its way, and each gain is kept as soon as it is known.
"""

from rlflow.search.gains import Position
from rlflow.search.promise import promise_of
from rlflow.search.search import Search


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
