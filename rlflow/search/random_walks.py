"""Random walks: the paper's uniform random agent, and simulated annealing with reheating.

`random_play` is the control: another search must beat it with the same number of interactions. `annealing` starts from
the steepest descent and accepts a loss with probability exp(-loss / temperature). It draws most rewrites near the last
accepted one, since a loss pays only if the rewrite that it enables follows.
"""

import math

from rlflow.common.task import valid_actions
from rlflow.search.base import Position, Search
from rlflow.search.descents import descent


def random_play(search: Search, max_steps: int, episodes: int) -> str:
    """Episodes of the paper's random agent from the start: every valid action, NO-OP included, is equally probable.

    Args:
      max_steps: steps after which an episode is cut.
      episodes: how many are played.
    """
    spec = search.start.task.encoding_spec
    for _ in range(episodes):
        state, path = search.start, None
        for _ in range(max_steps):
            valid = valid_actions(state.counts, spec.stop)
            if not len(valid):
                break
            xfer_id, location = (int(part) for part in valid[search.rng.integers(len(valid))])
            if xfer_id == spec.n_rules:
                break
            match = state.match(xfer_id, location)
            state, path = search.follow(state, match), (match, path)
            search.saw(state, path)
    return "episodes"


def annealing(search: Search, restarts: int, steps: int, hot: float, cold: float, focus: float) -> str:
    """Descends, then draws rewrites at random and accepts a loss with probability exp(-loss / temperature).

    What a match gains is known until something near it changes, so that what is refused costs nothing the second
    time. Most of the draws (`focus`) are near the last accepted rewrite: a loss pays only if what it enables
    follows, and among all matches of a large graph that would hardly ever be drawn before the loss is undone.

    Args:
      restarts: coolings; each begins at the best graph so far and ends with a descent.
      steps: draws of a cooling.
      hot, cold: the first and the last temperature, in units of the mean absolute gain of the start's matches that
        gain or lose anything; the temperature falls geometrically.  hot = 0: no loss is accepted.
      focus: the share of draws near the last accepted rewrite.
    """
    start = Position(search, search.start)
    moves = [abs(gain) for match in start.matches if (gain := start.gain(match))]
    if not start.matches:
        return "nothing to try"
    unit = sum(moves) / max(len(moves), 1)
    best = descent(start)
    for _ in range(restarts):
        result = descent(_cooled(best, steps, hot * unit, cold * unit, focus))
        best = min(best, result, key=lambda position: position.objective)
    return "restarts"


def _cooled(position: Position, steps: int, hot: float, cold: float, focus: float) -> Position:
    """The cheapest position that a random walk under falling temperature meets."""
    rng, best, around, touched = position.search.rng, position, [], set()
    for step in range(steps):
        matches = around if around and rng.random() < focus else position.matches
        if not matches:
            break
        match = matches[rng.integers(len(matches))]
        temperature = hot * (cold / hot) ** (step / steps) if hot else 0.0
        # the loss that is just accepted, ≤ 0
        least = temperature * math.log(1.0 - rng.random()) if temperature else 0.0
        if position.gain(match) < least:
            continue
        after = position.after(match)
        if after.gained < least:
            continue
        position = after
        touched |= position.state.touched
        near = position.near(1, touched)
        around = [match for match in position.matches if not near.isdisjoint(match.nodes)]
        if position.objective < best.objective:
            best = position
    return best
