"""Logged episodes: their edits, and the same steps in the numbers of a grounding.

An `EpisodeFollower` translates the ids of nodes and tensors in one episode into the numbers of its grounding.

Several episodes may contain the same real step, copied from an earlier episode. Such a step counts once in median
rewards, gains, numbers of rewrites, runtimes and the fit of z. In `mdn-rnn`, which samples whole episodes, it counts in
every episode.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from rlflow.collect.edits import Edit, MatchRecord, NodeRecord, TensorRecord, unpack
from rlflow.collect.episodes import Episode
from rlflow.common.errors import RLFlowError
from rlflow.graph.ir import ABSENT
from worldmodel.edits.grounding import Grounding
from worldmodel.edits.grounding_index import GroundingIndex, Groundings


class LoggedEdits(NamedTuple):
    """The logged edits of one episode of T steps.

    Attributes:
      edits: T + 1 edits; the first edit describes the initial state, and edit t + 1 the change by action t.
      taken: the T rewritten matches, one per action; None for NO-OP.
    """

    edits: list[Edit]
    taken: list[MatchRecord | None]


def logged_edits(episodes: Iterable[Episode]) -> list[LoggedEdits]:
    """Return the logged edits of each episode.

    Raises:
      RLFlowError: an episode has no edits.
    """
    result = []
    for episode in episodes:
        if episode.edits is None:
            raise RLFlowError(
                "these episodes hold no edits, which the world models 'edits' and 'graph-mdn' need. Collect them again "
                "or, if the task is not rewriting, say world_model.name=mdn-rnn"
            )
        result.append(LoggedEdits(*unpack(episode.edits)))
    return result


def repeated_steps(episodes: Sequence[Episode], logs: Sequence[LoggedEdits]) -> list[int]:
    """Return, for each episode, the number of its copied first steps that an earlier episode of the list contains too.

    Args:
      episodes: the episodes.
      logs: the logged edits of each episode.
    """
    after: dict[tuple, int] = {}  # (state, action) → state; a state is the number of the path to it
    result = []
    for episode, log in zip(episodes, logs, strict=True):
        state, repeated = after.setdefault((log.edits[0],), len(after)), episode.copied
        for t, action in enumerate(map(tuple, episode.actions.tolist())):
            if (state, action) not in after:
                after[state, action] = len(after)
                repeated = min(repeated, t)
            state = after[state, action]
        result.append(repeated)
    return result


def sizes_of(edit: Edit) -> dict[int, int]:
    """Return {tensor signature: number of elements} for the new tensors of an edit whose size is known."""
    return {tensor.signature: tensor.size for tensor in edit.tensors if tensor.size >= 0}


def initial_runtime(first: Edit) -> int:
    """Return the estimated runtime of an initial state, in ps, from the first edit of its episode."""
    return sum(record.runtime_ps for record in first.nodes)


class EpisodeFollower:
    """The current state of one episode in the numbers of a grounding, updated by the edits of the episode.

    Args:
      grounding: the grounding; it receives new nodes, tensors and matches.
      first: the first edit of the episode.

    Attributes:
      nodes: {id of a current node in the episode: the grounding's number of the node}.
      tensors: {id of a tensor in the episode: the grounding's number of the tensor}, for all tensors so far.
      matches: the current matches, in the ids of the episode.
    """

    def __init__(self, grounding: Grounding, first: Edit):
        self.grounding = grounding
        self.tensors: dict[int, int] = {}
        self.nodes: dict[int, int] = {}
        rank = {t: k for k, record in enumerate(first.nodes) for t in record.outputs}
        for record in first.tensors:
            self.tensors[record.id] = grounding.initial_tensor(
                record.id, rank.get(record.id, -1), record.rank_signature, record.signature
            )
        for record in first.nodes:
            self.nodes[record.id] = self._ground(record)
        self._there = set(self.nodes.values())
        self.matches = set(first.appeared)

    def numbers(self) -> np.ndarray:
        """Return the grounding's numbers of the current nodes, int64 [k]."""
        return np.array(list(self.nodes.values()), np.int64)

    def follow(self, edit: Edit, taken: MatchRecord | None) -> None:
        """Apply the edit of one step to the current state.

        Args:
          edit: the edit.
          taken: the match that the step rewrote; None for NO-OP.
        """
        if taken is not None:
            self._number_new_tensors(edit, self.tensors[taken.operands[-1]])
        changed = (*edit.removed, *[record.id for record in edit.nodes])
        self._there.difference_update([self.nodes[n] for n in changed if n in self.nodes])
        self.nodes |= {record.id: self._ground(record) for record in edit.nodes}
        self._there.update([self.nodes[record.id] for record in edit.nodes])
        for node_id in edit.removed:
            del self.nodes[node_id]
        self.matches -= set(edit.lost)
        self.matches |= set(edit.appeared)

    def _number_new_tensors(self, edit: Edit, owner: int) -> None:
        """Add the new tensors of a rewrite to `tensors`.

        The same match may have been rewritten before. The new tensors therefore get the numbers of the first copy (see
        `Grounding.effect`) whose tensors no current node reads.

        Args:
          edit: the edit of the rewrite.
          owner: the owner of the new tensors; see `Grounding.made_tensor`.
        """
        new = {record.id: record for record in edit.tensors}
        for copy in count():
            copies = defaultdict(lambda copy=copy: copy)
            for record in edit.nodes:
                self._number_tensors_of(record, owner, new, copies)
            if not self._in_use(new):
                return
            for tensor in new:
                del self.tensors[tensor]

    def _in_use(self, tensors: Iterable[int]) -> bool:
        """Return True if a current node reads one of the tensors, which are ids of the episode."""
        consumers = self.grounding.consumers
        return not self._there.isdisjoint(node for tensor in tensors for node in consumers[self.tensors[tensor]])

    def _number_tensors_of(
        self, record: NodeRecord, owner: int, new: dict[int, TensorRecord], copies: dict[tuple, int]
    ) -> None:
        """Add the new tensors that one node reads or makes to `tensors`, as `Grounding` does for imagined rewrites.

        Args:
          record: a new or changed node.
          owner, copies: see `Grounding.made_tensor`.
          new: {id of a tensor that the edit lists as new: its record}.
        """
        gives = next((self.tensors[t] for t in record.outputs if t in self.tensors), owner)
        for position, tensor in enumerate(record.inputs):
            if tensor not in self.tensors and tensor != ABSENT:  # a constant
                self._number_tensor(new[tensor], gives, (record.operator, (), position), copies)
        inputs = self._ground_tensors(record.inputs)
        for slot, tensor in enumerate(record.outputs):
            if tensor not in self.tensors and tensor != ABSENT:
                self._number_tensor(new[tensor], owner, (record.operator, inputs, slot), copies)

    def _number_tensor(self, record: TensorRecord, owner: int, maker: tuple, copies: dict[tuple, int]) -> None:
        number = self.grounding.made_tensor(owner, maker, record.rank_signature, record.signature, copies)
        self.tensors[record.id] = number

    def _ground(self, record: NodeRecord) -> int:
        self.grounding.rules.op_types.setdefault(record.operator, record.op_type)
        inputs, outputs = self._ground_tensors(record.inputs), self._ground_tensors(record.outputs)
        return self.grounding.node(record.operator, inputs, outputs)

    def _ground_tensors(self, tensors: Iterable[int]) -> tuple[int, ...]:
        return tuple([t if t == ABSENT else self.tensors[t] for t in tensors])

    def grounded(self, match: MatchRecord) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (nodes, operands) of a match in the grounding's numbers."""
        return tuple([self.nodes[n] for n in match.nodes]), self._ground_tensors(match.operands)

    def match(self, match: MatchRecord) -> int | None:
        """Return the grounding's number of a match; None if its pattern is not in the training data."""
        return self.grounding.match(match.xfer_id, *self.grounded(match))


# In arrays of match numbers: UNKNOWN_MATCH is a match whose pattern is not in the data, and NO_OP is the action NO-OP,
# which rewrites no match.
UNKNOWN_MATCH, NO_OP = -1, -2


class GroundedEpisode(NamedTuple):
    """One episode of T steps in the numbers of its grounding.

    Attributes:
      xfer_ids: int64 [T], the rule of each action; NO_OP for NO-OP.
      matches: int64 [T], the rewritten match; UNKNOWN_MATCH if its pattern is unknown, NO_OP for NO-OP.
      nodes: for each of the T + 1 states, int64 [k], its nodes.
      gains: float64 [T], runtime saved by each action (ps).
      runtimes: for each of the T + 1 edits, (int64 [k] new or changed nodes, float64 [k] their runtimes in ps). The
        first edit has all nodes of the initial graph.
      repeated: the number of first steps that an earlier episode logged.
    """

    xfer_ids: np.ndarray
    matches: np.ndarray
    nodes: list[np.ndarray]
    gains: np.ndarray
    runtimes: list[tuple[np.ndarray, np.ndarray]]
    repeated: int

    def costs(self, t: int) -> np.ndarray:
        """Return float64 [k], the logged runtimes (ps) of the nodes after t steps."""
        runtime = {}
        for nodes, runtimes in self.runtimes[: t + 1]:
            runtime |= zip(nodes.tolist(), runtimes.tolist(), strict=True)
        return np.array([runtime[node] for node in self.nodes[t].tolist()], np.float64)


def ground_episode(index: GroundingIndex, log: LoggedEdits, repeated: int = 0) -> GroundedEpisode:
    """Return an episode in the numbers of a grounding.

    Args:
      index: the grounding of the episode's initial graph; it receives new nodes, tensors and matches.
      log: the logged edits of the episode.
      repeated: the number of first steps that an earlier episode logged.
    """
    first = log.edits[0]
    follower = EpisodeFollower(index.grounding, first)
    runtime = {record.id: record.runtime_ps for record in first.nodes}
    matches, nodes, gains, runtimes = [], [follower.numbers()], [], [new_runtimes(follower, first)]
    for edit, taken in zip(log.edits[1:], log.taken, strict=True):
        matches.append(_match_number(follower, taken))
        follower.follow(edit, taken)
        nodes.append(follower.numbers())
        gain = sum(runtime.pop(node) for node in edit.removed)
        for record in edit.nodes:
            gain += runtime.get(record.id, 0) - record.runtime_ps
            runtime[record.id] = record.runtime_ps
        gains.append(gain)
        runtimes.append(new_runtimes(follower, edit))
    index.update()
    xfer_ids = [NO_OP if match is None else match.xfer_id for match in log.taken]
    return GroundedEpisode(
        np.array(xfer_ids, np.int64), np.array(matches, np.int64), nodes, np.array(gains, np.float64), runtimes,
        repeated,
    )  # fmt: skip


def _match_number(follower: EpisodeFollower, taken: MatchRecord | None) -> int:
    if taken is None:
        return NO_OP
    number = follower.match(taken)
    return UNKNOWN_MATCH if number is None else number


def new_runtimes(follower: EpisodeFollower, edit: Edit) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the nodes that an edit logs, int64 [k], and their runtimes in ps, float64 [k].

    Args:
      follower: the state after the edit.
      edit: the edit.
    """
    nodes = np.array([follower.nodes[record.id] for record in edit.nodes], np.int64)
    return nodes, np.array([record.runtime_ps for record in edit.nodes], np.float64)


def by_grounding(groundings: Groundings, logs: Sequence[LoggedEdits]) -> dict[GroundingIndex, list[int]]:
    """Group episodes by the grounding of their initial graph.

    Args:
      groundings: the groundings; a missing grounding is added.
      logs: the logged edits of the episodes.

    Returns:
      {grounding: indices of its episodes in `logs`}.
    """
    result: dict[GroundingIndex, list[int]] = {}
    for k, log in enumerate(logs):
        result.setdefault(groundings.of(log.edits[0]), []).append(k)
    return result
