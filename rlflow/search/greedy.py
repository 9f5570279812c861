"""Greedy search: always the substitution that lowers the estimated cost most."""

import time
from typing import NamedTuple

from rlflow.costs import neighbourhood
from rlflow.rules.match import Match
from rlflow.state import RewriteState


class SearchResult(NamedTuple):
    """state: the best one found.  actions: how to get there.  interactions: substitutions carried out.
    stop: 'local optimum', 'steps' or 'seconds'."""

    state: RewriteState
    actions: list[tuple[int, int]]
    interactions: int
    stop: str


def greedy(state: RewriteState, max_steps: int, seconds: float = float("inf")) -> SearchResult:
    """Follows the steepest descent of the estimated runtime. Of equally good actions the first is taken.

    What a match gains is kept until a rewrite touches its neighbourhood; the match that is chosen is carried
    out and its gain counted anew, so the descent is never an illusion.
    """
    gains: dict[int, tuple[Match, int]] = {}  # id of a match → the match (kept alive) and its gain in ps
    actions, interactions, end = [], 0, time.monotonic() + seconds
    while len(actions) < max_steps:
        limit = state.task.max_locations
        matches = [
            (x, k, match) for x, found in enumerate(state.table.locations) for k, match in enumerate(found[:limit])
        ]
        for _, _, match in matches:
            if id(match) not in gains:
                if time.monotonic() > end:
                    return SearchResult(state, actions, interactions, "seconds")
                interactions += 1
                gains[id(match)] = match, state.cost.runtime_ps - state.follow(match).cost.runtime_ps
        gains = {id(match): gains[id(match)] for _, _, match in matches}
        after = None
        for x, k, match in sorted(matches, key=lambda m: (-gains[id(m[2])][1], m[0], m[1])):
            if gains[id(match)][1] <= 0:
                break
            interactions += 1
            candidate = state.follow(match)
            if candidate.cost.runtime_ps < state.cost.runtime_ps:
                after, action = candidate, (x, k)
                break
            gains[id(match)] = match, state.cost.runtime_ps - candidate.cost.runtime_ps
        if after is None:
            return SearchResult(state, actions, interactions, "local optimum")
        state = after
        actions.append(action)
        near = neighbourhood(state.graph, state.graph.touched, state.task.cost.reach + 1)
        gains = {key: found for key, found in gains.items() if near.isdisjoint(found[0].nodes)}
    return SearchResult(state, actions, interactions, "steps")
