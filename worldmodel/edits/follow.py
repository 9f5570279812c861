"""Recorded episodes in the numbers of their worlds."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlflow.collect.edits import Edit
from worldmodel.edits.dreaming import Index
from worldmodel.edits.kinds import Kinds
from worldmodel.edits.learn import Unpacked
from worldmodel.edits.schemas import Schemas
from worldmodel.edits.world import Follower, World

UNKNOWN, NO_OP = -1, -2  # in the place of a place


class Followed(NamedTuple):
    """One episode of T steps. xfers: int64 [T], NO_OP. places: int64 [T], where each action was; UNKNOWN if its form is, NO_OP. nodes: T + 1 arrays of those there.

    gains: float64 [T], ps that each action took off the runtime. told: T + 1 times (nodes, their runtimes in ps), of those that were told anew.
    repeated: how many of its first steps another episode told before.
    """

    xfer_ids: np.ndarray
    places: np.ndarray
    nodes: list[np.ndarray]
    gains: np.ndarray
    told: list[tuple[np.ndarray, np.ndarray]]
    repeated: int


class Worlds:
    """The worlds of the initial graphs met so far, which all learn from the same schemas."""

    def __init__(self, schemas: Schemas, n_rules: int):
        self.schemas, self.kinds = schemas, Kinds(schemas, n_rules)
        self._known: dict[Edit, Index] = {}

    def of(self, first: Edit) -> Index:
        """The world that an episode starting with these nodes and matches takes place in."""
        if first not in self._known:
            self._known[first] = Index(World(self.schemas), self.kinds)
        return self._known[first]


def follow(index: Index, episode: Unpacked, repeated: int = 0) -> Followed:
    told, taken = episode
    follower = Follower(index.world, told[0])
    runtime = {record.id: record.runtime_ps for record in told[0].nodes}
    prices = [_told(follower, told[0])]
    places, nodes, gains = [], [_array(follower)], []
    for edit, match in zip(told[1:], taken, strict=True):
        place = NO_OP if match is None else follower.place(match)
        places.append(UNKNOWN if place is None else place)
        follower.follow(edit, match)
        nodes.append(_array(follower))
        gains.append(sum(runtime.pop(node) for node in edit.gone))
        for record in edit.nodes:
            gains[-1] += runtime.get(record.id, 0) - record.runtime_ps
            runtime[record.id] = record.runtime_ps
        prices.append(_told(follower, edit))
    index.update()
    xfer_ids = [NO_OP if match is None else match.xfer_id for match in taken]
    return Followed(np.array(xfer_ids, np.int64), np.array(places, np.int64), nodes, np.array(gains, np.float64), prices, repeated)


def _told(follower: Follower, edit: Edit) -> tuple[np.ndarray, np.ndarray]:
    return np.array([follower.node[record.id] for record in edit.nodes], np.int64), np.array([record.runtime_ps for record in edit.nodes], np.float64)


def _array(follower: Follower) -> np.ndarray:
    return np.array(list(follower.node.values()), np.int64)


def initial_runtime(first: Edit) -> int:
    """Estimated runtime in ps."""
    return sum(record.runtime_ps for record in first.nodes)


def by_world(worlds: Worlds, edits: Sequence[Unpacked]) -> dict[Index, list[int]]:
    """The episodes, by number, of each world."""
    result: dict[Index, list[int]] = {}
    for k, (told, _) in enumerate(edits):
        result.setdefault(worlds.of(told[0]), []).append(k)
    return result
