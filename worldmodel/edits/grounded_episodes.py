"""Logged episodes in the numbers of their groundings."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlflow.collect.edits import Edit, MatchRecord
from worldmodel.edits.episode_follower import EpisodeFollower
from worldmodel.edits.grounding_index import GroundingIndex, Groundings
from worldmodel.edits.logged_edits import LoggedEdits

UNKNOWN_MATCH, NO_OP = -1, -2  # in place of the number of a match


class GroundedEpisode(NamedTuple):
    """One episode of T steps.

    xfer_ids: int64 [T], NO_OP. matches: int64 [T], what each action rewrote; UNKNOWN_MATCH if its pattern is unknown,
    NO_OP. nodes: T + 1 arrays of those there. gains: float64 [T], ps that each action took off the runtime. runtimes:
    T + 1 times (nodes, their runtimes in ps), of those that were logged anew. repeated: how many of its first steps
    another episode logged before.
    """

    xfer_ids: np.ndarray
    matches: np.ndarray
    nodes: list[np.ndarray]
    gains: np.ndarray
    runtimes: list[tuple[np.ndarray, np.ndarray]]
    repeated: int


def ground_episode(index: GroundingIndex, log: LoggedEdits, repeated: int = 0) -> GroundedEpisode:
    first = log.edits[0]
    follower = EpisodeFollower(index.grounding, first)
    runtime = {record.id: record.runtime_ps for record in first.nodes}
    matches, nodes, gains, runtimes = [], [_nodes(follower)], [], [_runtimes(follower, first)]
    for edit, taken in zip(log.edits[1:], log.taken, strict=True):
        matches.append(_number(follower, taken))
        follower.follow(edit, taken)
        nodes.append(_nodes(follower))
        gain = sum(runtime.pop(node) for node in edit.removed)
        for record in edit.nodes:
            gain += runtime.get(record.id, 0) - record.runtime_ps
            runtime[record.id] = record.runtime_ps
        gains.append(gain)
        runtimes.append(_runtimes(follower, edit))
    index.update()
    xfer_ids = [NO_OP if match is None else match.xfer_id for match in log.taken]
    return GroundedEpisode(
        np.array(xfer_ids, np.int64), np.array(matches, np.int64), nodes, np.array(gains, np.float64), runtimes,
        repeated,
    )  # fmt: skip


def _number(follower: EpisodeFollower, taken: MatchRecord | None) -> int:
    if taken is None:
        return NO_OP
    number = follower.match(taken)
    return UNKNOWN_MATCH if number is None else number


def _runtimes(follower: EpisodeFollower, edit: Edit) -> tuple[np.ndarray, np.ndarray]:
    nodes = np.array([follower.nodes[record.id] for record in edit.nodes], np.int64)
    return nodes, np.array([record.runtime_ps for record in edit.nodes], np.float64)


def _nodes(follower: EpisodeFollower) -> np.ndarray:
    return np.array(list(follower.nodes.values()), np.int64)


def by_grounding(groundings: Groundings, logs: Sequence[LoggedEdits]) -> dict[GroundingIndex, list[int]]:
    """The episodes, by number, of each grounding."""
    result: dict[GroundingIndex, list[int]] = {}
    for k, log in enumerate(logs):
        result.setdefault(groundings.of(log.edits[0]), []).append(k)
    return result
