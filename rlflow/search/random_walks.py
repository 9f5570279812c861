"""Random walks: the paper's uniform random agent, and simulated annealing with reheating.

`random_play` is the control: another search must find a cheaper graph with the same number of interactions. `annealing`
starts from the end of a steepest descent and accepts a loss with probability exp(-loss / temperature). It draws most
rewrites near the rewrites accepted before, since a loss is useful only if the rewrite that it enables follows.
"""

import math

from rlflow.common.task import valid_actions
from rlflow.search.base import Position, Search
from rlflow.search.descents import descent


def random_play(search: Search, max_steps: int, episodes: int) -> str:
    """Play episodes of the paper's random agent: every valid action, NO-OP included, is equally probable.

    Args:
      search: the search.
      max_steps: number of steps after which an episode ends.
      episodes: number of episodes.

    Returns:
      the reason of the end.
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
    """Descend, then draw random rewrites and accept a loss with probability exp(-loss / temperature).

    The gain of a match stays known until a rewrite near the match, so a refused match costs no time when it is drawn
    again. Most draws (`focus`) are near the rewrites that the cooling has accepted. A loss is useful only if the
    rewrite that it enables follows. Among all matches of a large graph, that rewrite would hardly ever be drawn.

    Args:
      search: the search.
      restarts: number of coolings; each begins at the best graph so far and ends with a descent.
      steps: number of draws of a cooling.
      hot: first temperature, relative to the mean absolute gain of the matches of the start, without matches of gain 0.
        With 0, no loss is accepted.
      cold: last temperature, in the same unit; the temperature falls geometrically.
      focus: share of draws from the matches near the nodes that this cooling has touched.

    Returns:
      the reason of the end.
    """
    start = Position(search, search.start)
    moves = [abs(gain) for match in start.matches if (gain := start.gain(match))]
    if not start.matches:
        return "nothing to try"
    unit = sum(moves) / max(len(moves), 1)
    best = descent(start)
    for _ in range(restarts):
        search.check()  # a walk of known losses alone counts no rewrite
        result = descent(_best_while_cooling(best, steps, hot * unit, cold * unit, focus))
        best = min(best, result, key=lambda position: position.objective)
    return "restarts"


def _best_while_cooling(position: Position, steps: int, hot: float, cold: float, focus: float) -> Position:
    """Return the cheapest position of a random walk under falling temperature.

    Args:
      position: the position at which the walk begins.
      steps: number of draws.
      hot, cold: first and last temperature in the unit of the objective.
      focus: see `annealing`.
    """
    rng, best, around, touched = position.search.rng, position, [], set()
    for step in range(steps):
        matches = around if around and rng.random() < focus else position.matches
        if not matches:
            break
        match = matches[rng.integers(len(matches))]
        temperature = hot * (cold / hot) ** (step / steps) if hot else 0.0
        # the smallest gain that is accepted, ≤ 0
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
