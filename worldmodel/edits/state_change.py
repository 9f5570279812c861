"""One step of some states: the nodes that go and come, and what that does to the matches."""

from collections.abc import Callable
from itertools import count

import numpy as np

from worldmodel.edits.dream_states import DreamStates


def rewrite(states: DreamStates, rows: np.ndarray, matches: np.ndarray) -> "StateChange":
    """Rewrites one match in each of the (different) states rows, of which the effect is known."""
    effects = _with_unused_tensors(states, rows, matches)
    change = StateChange(states, rows)
    rewired = change.rewired(effects)
    states.grow()  # before anything changes: counters of new matches begin with what is there now
    change.apply(effects, *rewired)
    return change


def _with_unused_tensors(states: DreamStates, rows: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """The effects, with made tensors that nothing reads yet: the same match may have been rewritten there before."""
    effects = states.index.effects(matches).copy()
    for copy in count(1):
        states.grow()
        which, tensors = states.index.made.take(effects)
        used = np.unique(which[states.n_consumers[rows[which], tensors] > 0])
        if not len(used):
            return effects
        effects[used] = [states.index.effect_of_copy(match, copy) for match in matches[used].tolist()]


class StateChange:
    """What one step did. removed, added: (states, nodes) of what went and came; a node may do both."""

    def __init__(self, states: DreamStates, rows: np.ndarray):
        self.states, self.index, self.rows = states, states.index, rows
        self.removed: list[tuple[np.ndarray, np.ndarray]] = []
        self.added: list[tuple[np.ndarray, np.ndarray]] = []
        self.read: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # (states, tensors, ±1)

    def add_to(self, totals: np.ndarray, values: Callable[[np.ndarray], np.ndarray]) -> None:
        """Adds to totals, [n, …], the values of the nodes that came, less those of the nodes that went."""
        for events, sign in ((self.removed, -1.0), (self.added, 1.0)):
            for rows, nodes in events:
                np.add.at(totals, rows, sign * values(nodes))

    def rewired(self, effects: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(states, nodes that will read another tensor, the nodes that they become)."""
        grounding, index, producer = self.index.grounding, self.index, self.states.producer
        which, pairs = index.rewired.take(effects)
        states, consumers_there, becoming = ([np.zeros(0, np.int64)] for _ in range(3))
        old, new = pairs[::2], pairs[1::2]
        for tensor, other in {*zip(old.tolist(), new.tolist(), strict=True)}:
            rows = self.rows[which[::2][(old == tensor) & (new == other)]]
            indexed = index.primary_output.size  # without those that this loop makes
            consumers = np.array([n for n in grounding.consumers[tensor] if n < indexed], np.int64)
            at, k = np.nonzero(producer[rows[:, None], index.primary_output.values[consumers]] == consumers)
            become = {node: grounding.rewired_node(node, tensor, other) for node in np.unique(consumers[k]).tolist()}
            states.append(np.array(rows[at], np.int64))
            consumers_there.append(consumers[k])
            becoming.append(np.array([become[n] for n in consumers[k].tolist()], np.int64))
        return np.concatenate(states), np.concatenate(consumers_there), np.concatenate(becoming)

    def apply(self, effects: np.ndarray, consumers_in: np.ndarray, consumers: np.ndarray, become: np.ndarray) -> None:
        index, rows = self.index, self.rows
        which, nodes = index.removed.take(effects)
        self._remove(rows[which], nodes)
        which, nodes = index.added.take(effects)
        self._add(rows[which], nodes)
        still = self._remove(consumers_in, consumers)  # the removed ones may have been among the consumers
        self._add(consumers_in[still], become[still])
        made_by, made = index.outputs.take(nodes)
        rewired_in, pairs = index.rewired.take(effects)
        self._sweep([(rows[which][made_by], made), (rows[rewired_in], pairs)])
        self._settle()
        self.states.admit(*(np.concatenate(parts) for parts in zip(*self.added, strict=True)))

    def _remove(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Which of them were there."""
        states, primary_output = self.states, self.index.primary_output.values
        there = states.producer[rows, primary_output[nodes]] == nodes
        rows, nodes = rows[there], nodes[there]
        states.producer[rows, primary_output[nodes]] = -1
        self.removed.append((rows, nodes))
        self._count_consumers(rows, nodes, -1)
        return there

    def _add(self, rows: np.ndarray, nodes: np.ndarray) -> None:
        states, primary_output = self.states, self.index.primary_output.values
        new = states.producer[rows, primary_output[nodes]] != nodes
        rows, nodes = rows[new], nodes[new]
        states.producer[rows, primary_output[nodes]] = nodes
        self.added.append((rows, nodes))
        self._count_consumers(rows, nodes, 1)

    def _count_consumers(self, rows: np.ndarray, nodes: np.ndarray, sign: int) -> None:
        rows, tensors = self.states.count_consumers(rows, nodes, sign)
        self.read.append((rows, tensors, np.full(len(rows), sign, np.int16)))

    def _sweep(self, suspects: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Removes nodes that nothing reads any more, and then what only they read."""
        states, index = self.states, self.index
        rows, tensors = (np.concatenate(parts) for parts in zip(*[r[:2] for r in self.read], *suspects, strict=True))
        while len(rows):
            unread = states.n_consumers[rows, tensors] == 0
            rows, tensors = rows[unread], tensors[unread]
            producers = states.producers(rows, tensors)
            rows, nodes = _unique(rows[producers >= 0], producers[producers >= 0])
            which, made = index.outputs.take(nodes)
            used = np.bincount(which, states.n_consumers[rows[which], made] > 0, len(nodes)) > 0
            dead = ~used & ~index.is_output.values[nodes]
            rows, nodes = rows[dead], nodes[dead]
            self._remove(rows, nodes)
            which, tensors = index.inputs.take(nodes)
            rows = rows[which]

    def _settle(self) -> None:
        """Brings the conditions of matches, and the counts of rules and match classes, up to date."""
        states, index = self.states, self.index
        width = states.open.shape[1]
        cells, steps = [], []
        for events, sign in ((self.removed, 1), (self.added, -1)):
            rows, nodes = (np.concatenate(parts) for parts in zip(*events, strict=True))
            which, matches = index.matches_of.take(nodes)
            cells.append(rows[which] * width + matches)
            steps.append(np.full(len(which), sign, np.int16))
        rows, tensors, changes = self._single_changes()
        which, matches = index.single_consumer_matches.take(tensors)
        cells.append(rows[which] * width + matches)
        steps.append(changes[which])
        cells = np.concatenate(cells)
        flat, touched = states.open.reshape(-1), np.unique(cells)
        before = flat[touched] == 0
        np.add.at(flat, cells, np.concatenate(steps))
        change = (flat[touched] == 0).astype(np.int32) - before
        touched, change = touched[change != 0], change[change != 0]
        rows, matches = touched // width, touched % width
        np.add.at(states.counts, (rows, index.rule.values[matches]), change)
        np.add.at(states.class_counts, (rows, index.match_class.values[matches]), change)

    def _single_changes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(states, tensors, −1 where a tensor came to have a single consumer, 1 where it ceased to)."""
        rows, tensors, signs = (np.concatenate(parts) for parts in zip(*self.read, strict=True))
        width = self.states.n_consumers.shape[1]
        cells, inverse = np.unique(rows * width + tensors, return_inverse=True)
        difference = np.bincount(inverse, signs, len(cells)).astype(np.int16)
        now = self.states.n_consumers.reshape(-1)[cells]
        change = ((now - difference) == 1).astype(np.int16) - (now == 1)
        return cells[change != 0] // width, cells[change != 0] % width, change[change != 0]


def _unique(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Different (row, value) pairs, in order."""
    pairs = np.unique(np.stack([rows, values], axis=1), axis=0) if len(rows) else np.zeros((0, 2), np.int64)
    return pairs[:, 0], pairs[:, 1]
