"""Plans of the planner: the actions of one dreamt episode, and a way to shorten them."""

from typing import NamedTuple

import numpy as np

from rlflow.common.task import Match
from rlflow.search.base import Path, numbered
from worldmodel.base import DreamtState


class Plan(NamedTuple):
    """T actions in a row.

    actions: int64 [T, 2], (xfer_id, location).  counts: int32 [T, N + 1], what was observed before each of them.
    dreamt_return: the sum of the predicted rewards after the last.
    """

    actions: np.ndarray
    counts: np.ndarray
    dreamt_return: float


def empty_plan(n_xfer_ids: int) -> Plan:
    return Plan(np.zeros((0, 2), np.int64), np.zeros((0, n_xfer_ids), np.int32), 0.0)


def plan_along(start: DreamtState, path: Path | None) -> Plan:
    """The plan of the matches of a path from the start."""
    actions = numbered(start, path)[1]
    counts, state = [], start
    for xfer_id, location in actions:
        counts.append(np.append(state.counts, 1).astype(np.int32))
        state = state.follow(state.match(xfer_id, location))
    observed = np.array(counts, np.int32).reshape(-1, len(start.counts) + 1)
    return Plan(np.array(actions, np.int64).reshape(-1, 2), observed, state.gained)


def shortened(start: DreamtState, actions: list[tuple[int, int]]) -> Path | None:
    """The path of these actions without those that its end can do without.

    Each action that gained nothing is left out, with all that only it made possible, if the end is no costlier then.
    """
    matches, gains, state = [], [], start
    for xfer_id, location in actions:
        match = state.match(xfer_id, location)
        after = state.follow(match)
        matches.append(match)
        gains.append(state.objective - after.objective)
        state = after
    kept, objective = matches, state.objective
    for match, gain in zip(matches, gains, strict=True):
        if gain > 0 or match not in kept:
            continue
        index = kept.index(match)
        rest, end = _carried_out(start, kept[:index] + kept[index + 1 :])
        if end.objective <= objective:
            kept, objective = rest, end.objective
    path = None
    for match in kept:
        path = match, path
    return path


def _carried_out(start: DreamtState, matches: list[Match]) -> tuple[list[Match], DreamtState]:
    """(those of the matches that exist when it is their turn, the state after them)."""
    state, done = start, []
    for match in matches:
        if not state.offers(match):
            continue
        after = state.follow(match)
        if after is not state:
            state = after
            done.append(match)
    return done, state
