"""Many states of one grounding side by side, in arrays: a state is which nodes are there.

Nothing is searched for in a step: every node knows the matches that wait for it (a Rete network, Forgy 1982), so
counters tell which matches are there, and a step costs what it changes, for hundreds of dreams at once. The grounding
is asked only about what no dream did before. What nothing reads any more goes: a law of dataflow, not learnt.
"""

import numpy as np

from worldmodel.edits.grounding_index import GroundingIndex

AT_ONCE = 4096  # waiting matches, and nodes, that are asked about at once
SPARE = 4  # arrays grow by this part of what they are, at least, so that growing is rare


class DreamStates:
    """n states of one grounding. producer: int32 [n, T], the node that is there under a tensor, −1 for none.
    n_consumers: int16 [n, T].

    open: int16 [n, ≥ J], conditions of a match that are not met; it is there where that is 0. Columns of matches to
    come are 1.
    counts: int32 [n, N], by rule. class_counts: int32 [n, K].
    What others note here where a node's cost depends on its neighbourhood: paid, float64 [n, T], its runtime (ps);
    keys, uint32 [n, T, reach], what was around it then (see neighbourhood.py).
    """

    def __init__(self, index: GroundingIndex, nodes: list[np.ndarray], n_rules: int, reach: int = 0):
        """nodes: those that are there, for each state.  reach: edges that a node's cost looks at; 0 keeps no keys."""
        self.index, self.n = index, len(nodes)
        index.update()
        tensors = len(index.grounding.order_keys)
        self.producer = np.full((self.n, tensors), -1, np.int32)
        self.n_consumers = np.zeros((self.n, tensors), np.int16)
        self.paid, self.keys = np.zeros((self.n, tensors)), np.zeros((self.n, tensors, reach), np.uint32)
        self.open, self.n_matches = np.ones((self.n, 0), np.int16), 0
        self.counts = np.zeros((self.n, n_rules), np.int32)
        self.class_counts = np.zeros((self.n, len(index.match_classes)), np.int32)
        rows, nodes = np.repeat(np.arange(self.n), [len(there) for there in nodes]), np.concatenate(nodes)
        self.producer[rows, index.primary_output.values[nodes]] = nodes
        self.count_consumers(rows, nodes, 1)
        self.grow()
        waiting = np.flatnonzero(index.is_waiting.values)
        for first in range(0, len(waiting), AT_ONCE):
            self._admit_there(waiting[first : first + AT_ONCE])
        for first in range(0, len(nodes), AT_ONCE):
            self._meet(rows[first : first + AT_ONCE], nodes[first : first + AT_ONCE])
        self.grow()

    def count_consumers(self, rows: np.ndarray, nodes: np.ndarray, sign: int) -> tuple[np.ndarray, np.ndarray]:
        """Nodes come (1) or go (−1): their tensors have one consumer more, or less. The (states, tensors) concerned."""
        which, tensors = self.index.inputs.take(nodes)
        np.add.at(self.n_consumers, (rows[which], tensors), np.int16(sign))
        return rows[which], tensors

    def grow(self) -> None:
        """Takes over what the grounding has grown by."""
        index = self.index
        index.update()
        more = len(index.grounding.order_keys) - self.producer.shape[1]
        if more > 0:
            room = max(more, self.producer.shape[1] // SPARE)
            self.producer = np.concatenate([self.producer, np.full((self.n, room), -1, np.int32)], axis=1)
            self.n_consumers = np.concatenate([self.n_consumers, np.zeros((self.n, room), np.int16)], axis=1)
            self.paid = np.concatenate([self.paid, np.zeros((self.n, room))], axis=1)
            keys = np.zeros((self.n, room, self.keys.shape[2]), np.uint32)
            self.keys = np.concatenate([self.keys, keys], axis=1)
        more = index.rule.size - self.open.shape[1]
        if more > 0:
            room = max(more, self.open.shape[1] // SPARE)
            self.open = np.concatenate([self.open, np.ones((self.n, room), np.int16)], axis=1)
        if index.rule.size > self.n_matches:
            self._add_matches(np.arange(self.n_matches, index.rule.size))
            self.n_matches = index.rule.size

    def _add_matches(self, new: np.ndarray) -> None:
        index = self.index
        still = np.broadcast_to(index.n_conditions.values[new], (self.n, len(new))).copy()
        which, nodes = index.nodes.take(new)
        np.subtract.at(still, (slice(None), which), self._present(nodes))
        which, tensors = index.single_consumers.take(new)
        np.subtract.at(still, (slice(None), which), self._single(tensors))
        self.open[:, new] = still
        np.add.at(self.counts, (slice(None), index.rule.values[new]), still == 0)
        np.add.at(self.class_counts, (slice(None), index.match_class.values[new]), still == 0)

    def _present(self, nodes: np.ndarray) -> np.ndarray:
        return (self.producer[:, self.index.primary_output.values[nodes]] == nodes).astype(np.int16)

    def _single(self, tensors: np.ndarray) -> np.ndarray:
        return (self.n_consumers[:, tensors] == 1).astype(np.int16)

    # -- matches that wait ------------------------------------------------------------------------

    def _admit_there(self, waiting: np.ndarray) -> None:
        """Admits those of these waiting matches, int [k], whose nodes some state has all."""
        missing = np.zeros((self.n, len(waiting)), np.int16)
        which, nodes = self.index.waiting_nodes.take(waiting)
        np.add.at(missing, (slice(None), which), 1 - self._present(nodes))
        self._admit(waiting[(missing == 0).any(axis=0)])

    def admit(self, rows: np.ndarray, nodes: np.ndarray) -> None:
        """These nodes came, int [k] both: admits the matches that waited for them alone."""
        index = self.index
        self._meet(rows, nodes)
        self.grow()
        which, waiting = index.waiting_of.take(nodes)
        still = index.is_waiting.values[waiting]
        rows, waiting = rows[which[still]], waiting[still]
        which, nodes = index.waiting_nodes.take(waiting)
        absent = self.producer[rows[which], index.primary_output.values[nodes]] != nodes
        self._admit(np.unique(waiting[np.bincount(which, absent, len(waiting)) == 0]))

    def _meet(self, rows: np.ndarray, nodes: np.ndarray) -> None:
        """These nodes, int [k] both, meet those that read the same, where they are there."""
        index, primary_output = self.index, self.index.primary_output.values
        there = self.producer[rows, primary_output[nodes]] == nodes
        rows, nodes = rows[there], nodes[there].astype(np.int64)
        which, tensors = index.inputs.take(nodes)
        rows, nodes = rows[which], nodes[which]
        which, others = index.consumers.take(tensors)
        rows, nodes = rows[which], nodes[which]
        there = (self.producer[rows, primary_output[others]] == others) & (nodes != others)
        for pair in np.unique(nodes[there] * len(primary_output) + others[there]).tolist():
            index.grounding.meet(*divmod(pair, len(primary_output)))

    def _admit(self, waiting: np.ndarray) -> None:
        if len(waiting):
            self.index.admit(waiting)
            self.grow()

    # -- copies ------------------------------------------------------------------------------------

    def taken(self, rows: np.ndarray) -> "DreamStates":
        """Copies of the states in rows, int [k], which may be the same."""
        other = DreamStates.__new__(DreamStates)
        other.index, other.n, other.n_matches = self.index, len(rows), self.n_matches
        for name in ("producer", "n_consumers", "paid", "keys", "open", "counts", "class_counts"):
            setattr(other, name, getattr(self, name)[rows])
        return other

    def copy_rows(self, rows: np.ndarray, source: "DreamStates") -> None:
        """Puts the states in rows, int [k], to the first state of `source`, which may be of a smaller grounding."""
        source.grow()
        self.grow()
        for name, empty in (("producer", -1), ("n_consumers", 0), ("paid", 0), ("keys", 0), ("open", 1)):
            values, begun = getattr(self, name), getattr(source, name)[0]
            width = min(values.shape[1], len(begun))
            values[rows] = empty
            values[rows, :width] = begun[:width]
        for name in ("counts", "class_counts"):
            getattr(self, name)[rows] = getattr(source, name)[0]

    # -- questions ---------------------------------------------------------------------------------

    def matches_at(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """The matches of valid actions, int [k, 2] in states rows: int [k]."""
        self.grow()
        result = np.zeros(len(rows), np.int64)
        for xfer_id in np.unique(actions[:, 0]).tolist():
            these = np.flatnonzero(actions[:, 0] == xfer_id)
            matches = self.index.matches_of_rule(xfer_id)
            there = np.cumsum(self.open[rows[these][:, None], matches] == 0, axis=1)
            result[these] = matches[(there <= actions[these, 1:]).sum(axis=1)]
        return result

    def producers(self, rows: np.ndarray, tensors: np.ndarray) -> np.ndarray:
        """The nodes that make the tensors there, −1 for none (a state holds a node under its primary output alone)."""
        result, primary_output = self.producer[rows, tensors], self.index.primary_output.values
        for k in np.flatnonzero((result < 0) & self.index.has_secondary_producer.values[tensors]).tolist():
            candidates = self.index.grounding.producers[tensors[k]]
            result[k] = next((n for n in candidates if self.producer[rows[k], primary_output[n]] == n), -1)
        return result
