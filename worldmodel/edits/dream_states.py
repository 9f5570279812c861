"""Batches of imagined states of one grounding, and a rewrite in some states of a batch.

A state is a set of nodes of the grounding. A step does not search for matches. As in a Rete network (Forgy 1982), a
batch keeps a counter of unmet conditions for every match. The grounding lists the matches that contain a node. The time
of a step is therefore proportional to its changes. The grounding computes only effects of matches that no imagined
rollout has rewritten before. A step also removes all nodes whose outputs have no consumer, which is not learned.

Of two symmetric matches, the environment uses the match whose nodes come first in the canonical order of the graph: the
depth-first post-order from the outputs. `first_of` walks only through the part of the graph that determines the order
of two nodes.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count

import numpy as np

from worldmodel.edits.grounding_index import GroundingIndex

AT_ONCE = 4096  # waiting matches or nodes that are processed in one batch, which limits the memory
# Arrays of `DreamStates` with one column per tensor or match → the value in a column without a tensor or match.
COLUMNS = {"producer": -1, "n_consumers": 0, "paid": 0, "variances": 0, "keys": 0, "open": 1}
SPARE = 4  # an array that is too small grows by at least 1 / SPARE of its size, so that this happens rarely


class NodeSets:
    """A batch of n states with their nodes, without matches and runtimes, in which edges can be followed.

    Attributes:
      index: the grounding.
      n: the number of states.
      producer: int32 [n, T], the node of the state whose primary output is this tensor; −1 without such a node.
    """

    def __init__(self, index: GroundingIndex, nodes: list[np.ndarray]):
        """Create a batch of states.

        Args:
          index: the grounding.
          nodes: for each state, int64 [k], the numbers of its nodes.
        """
        self.index, self.n = index, len(nodes)
        index.update()
        self.producer = np.full((self.n, len(index.grounding.order_keys)), -1, np.int32)
        rows, present = np.repeat(np.arange(self.n), [len(there) for there in nodes]), np.concatenate(nodes)
        self.producer[rows, index.primary_output.values[present]] = present

    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all present nodes as (int64 [k] index of the state, int64 [k] node)."""
        rows, tensors = np.nonzero(self.producer >= 0)
        return rows, self.producer[rows, tensors].astype(np.int64)

    def producers(self, rows: np.ndarray, tensors: np.ndarray) -> np.ndarray:
        """Return int [k], the present node that has each tensor among its outputs; −1 without such a node.

        Args:
          rows: int [k], the index of the state of each tensor.
          tensors: int [k], the tensors.
        """
        result, primary_output = self.producer[rows, tensors], self.index.primary_output.values
        for k in np.flatnonzero((result < 0) & self.index.has_secondary_producer.values[tensors]).tolist():
            candidates = self.index.grounding.producers[tensors[k]]
            result[k] = next((n for n in candidates if self.producer[rows[k], primary_output[n]] == n), -1)
        return result


class DreamStates(NodeSets):
    """A batch of n states of one grounding with at most T tensors and J matches.

    Tensors, nodes and matches are numbers of the grounding. The arrays may have more than T or J columns.

    Attributes:
      producer: int32 [n, T], the node of the state whose primary output is this tensor; −1 without such a node.
      n_consumers: int16 [n, T], the number of nodes of the state that read this tensor.
      open: int16 [n, J], the number of unmet conditions of this match; the match is present if it is 0. Columns without
        a match are 1.
      counts: int32 [n, N], the number of present matches of each rule.
      class_counts: int32 [n, K], the number of present matches of each match class.
      paid: float64 [n, T], the runtime (ps) of the node in `producer`.
      variances: float64 [n, T], the variance (ps²) of each runtime in `paid`.
      keys: uint32 [n, T, reach], the neighbourhood keys that gave the runtime in `paid` (see neighbourhood.py).
      totals: float64 [n, width], sums over the nodes of each state.

    The batch only stores and copies `paid`, `variances`, `keys` and `totals`. Its user, such as a simulator, computes
    and writes their values. The simulator of "edits" writes no runtimes if runtimes do not depend on neighbourhoods.
    """

    def __init__(self, index: GroundingIndex, nodes: list[np.ndarray], n_rules: int, reach: int = 0, width: int = 0):
        """Create a batch of states.

        Args:
          index: the grounding.
          nodes: for each state, int64 [k], the numbers of its nodes.
          n_rules: N.
          reach: number of neighbourhood keys per node; 0 if runtimes do not depend on neighbourhoods.
          width: number of columns of `totals`.
        """
        super().__init__(index, nodes)
        tensors = self.producer.shape[1]
        self.totals = np.zeros((self.n, width))
        self.n_consumers = np.zeros((self.n, tensors), np.int16)
        self.paid, self.variances = np.zeros((2, self.n, tensors))
        self.keys = np.zeros((self.n, tensors, reach), np.uint32)
        self.open, self.n_matches = np.ones((self.n, 0), np.int16), 0
        self.counts = np.zeros((self.n, n_rules), np.int32)
        self.class_counts = np.zeros((self.n, len(index.match_classes)), np.int32)
        rows, nodes = np.repeat(np.arange(self.n), [len(there) for there in nodes]), np.concatenate(nodes)
        self.count_consumers(rows, nodes, 1)
        self.grow()
        waiting = np.flatnonzero(index.is_waiting.values)
        for first in range(0, len(waiting), AT_ONCE):
            self._admit_there(waiting[first : first + AT_ONCE])
        for first in range(0, len(nodes), AT_ONCE):
            self._meet(rows[first : first + AT_ONCE], nodes[first : first + AT_ONCE])
        self.grow()

    def set_costs(self, nodes: Sequence[np.ndarray], costs: Sequence[np.ndarray]) -> None:
        """Write known runtimes (ps) of nodes to `paid`, and the variance 0 to `variances`.

        Args:
          nodes: for each of the first states, int64 [k], present nodes.
          costs: for each of these states, float64 [k], the runtimes of these nodes; () changes nothing.
        """
        for row, (here, of_nodes) in enumerate(zip(nodes, costs, strict=False)):
            cells = row, self.index.primary_output.values[here]
            self.paid[cells], self.variances[cells] = of_nodes, 0.0

    def count_consumers(self, rows: np.ndarray, nodes: np.ndarray, sign: int) -> tuple[np.ndarray, np.ndarray]:
        """Update the number of consumers of all inputs of k nodes that were added or removed.

        Args:
          rows: int [k], the index of the state of each node.
          nodes: int [k], the nodes.
          sign: 1 if the nodes were added, −1 if they were removed.

        Returns:
          (int [m] indices of states, int [m] tensors): the entries of `n_consumers` that changed, one per input.
        """
        which, tensors = self.index.inputs.take(nodes)
        np.add.at(self.n_consumers, (rows[which], tensors), np.int16(sign))
        return rows[which], tensors

    def grow(self) -> None:
        """Add columns for tensors and matches that the grounding received since the last call."""
        index = self.index
        index.update()
        more = len(index.grounding.order_keys) - self.producer.shape[1]
        if more > 0:
            room = max(more, self.producer.shape[1] // SPARE)
            self.producer = np.concatenate([self.producer, np.full((self.n, room), -1, np.int32)], axis=1)
            self.n_consumers = np.concatenate([self.n_consumers, np.zeros((self.n, room), np.int16)], axis=1)
            self.paid = np.concatenate([self.paid, np.zeros((self.n, room))], axis=1)
            self.variances = np.concatenate([self.variances, np.zeros((self.n, room))], axis=1)
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

    # -- waiting matches ----------------------------------------------------------------------------

    def _admit_there(self, waiting: np.ndarray) -> None:
        """Turn waiting matches, int [k], into matches, if all nodes of the match are present in some state."""
        missing = np.zeros((self.n, len(waiting)), np.int16)
        which, nodes = self.index.waiting_nodes.take(waiting)
        np.add.at(missing, (slice(None), which), 1 - self._present(nodes))
        self._admit(waiting[(missing == 0).any(axis=0)])

    def admit(self, rows: np.ndarray, nodes: np.ndarray) -> None:
        """Turn the waiting matches whose nodes are now all present into matches.

        Args:
          rows: int [k], the index of the state of each added node.
          nodes: int [k], the nodes that were added by a step.
        """
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
        """Create the matches of two nodes with a common input, where one node is given and the other one is present.

        Args:
          rows: int [k], the index of the state of each given node.
          nodes: int [k], the given nodes; absent nodes are skipped.
        """
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
        """Return a new batch with copies of the states with the indices `rows`, int [k], which may repeat."""
        other = DreamStates.__new__(DreamStates)
        other.index, other.n, other.n_matches = self.index, len(rows), self.n_matches
        for name in (*COLUMNS, "counts", "class_counts", "totals"):
            setattr(other, name, getattr(self, name)[rows])
        return other

    def copy_rows(self, rows: np.ndarray, source: "DreamStates") -> None:
        """Replace states of this batch by the first state of another batch of the same grounding.

        Args:
          rows: int [k], the indices of the states to replace.
          source: the other batch; its arrays may have fewer or more columns.
        """
        source.grow()
        self.grow()
        for name, empty in COLUMNS.items():
            values, begun = getattr(self, name), getattr(source, name)[0]
            width = min(values.shape[1], len(begun))
            values[rows] = empty
            values[rows, :width] = begun[:width]
        for name in ("counts", "class_counts", "totals"):
            getattr(self, name)[rows] = getattr(source, name)[0]

    # -- queries -----------------------------------------------------------------------------------

    def matches_at(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return int [k], the matches that valid actions choose.

        Args:
          rows: int [k], the index of the state of each action.
          actions: int [k, 2], valid (xfer_id, location) pairs in the model's location numbers.
        """
        self.grow()
        result = np.zeros(len(rows), np.int64)
        for xfer_id in np.unique(actions[:, 0]).tolist():
            these = np.flatnonzero(actions[:, 0] == xfer_id)
            matches = self.index.matches_of_rule(xfer_id)
            there = np.cumsum(self.open[rows[these][:, None], matches] == 0, axis=1)
            result[these] = matches[(there <= actions[these, 1:]).sum(axis=1)]
        return result


def as_named_by_environment(states: DreamStates, rows: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """Replace each match by its symmetric match if the environment uses the symmetric match.

    Args:
      states: the batch of states.
      rows: int [k], the index of the state of each match.
      matches: int [k], present matches.

    Returns:
      int [k], the matches that the environment uses.
    """
    named, grounding = matches.copy(), states.index.grounding
    for k in np.flatnonzero(states.index.has_symmetric.values[matches]).tolist():
        match, symmetric = int(matches[k]), grounding.symmetric_match[int(matches[k])]
        one, other = grounding.matches[match].nodes, grounding.matches[symmetric].nodes
        differ = next(i for i in range(len(one)) if one[i] != other[i])
        if first_of(states, int(rows[k]), one[differ], other[differ]) == other[differ]:
            named[k] = symmetric
    return named


def first_of(states: DreamStates, row: int, one: int, other: int) -> int:
    """Return the node that comes first in the canonical order of a state, `one` or `other`.

    Args:
      states: the batch of states.
      row: the index of the state.
      one, other: two present nodes.
    """
    grounding, producer = states.index.grounding, states.producer[row]
    primary_outputs = grounding.primary_outputs
    entrances, around = _entrances(states, row, one, other)
    met: set[int] = set()
    for entrance in entrances:
        stack = [(entrance, iter(grounding.nodes[entrance][1]))]
        while stack:
            node, inputs = stack[-1]
            tensor = next(inputs, None)
            if tensor is None:
                if node in (one, other):
                    return node
                stack.pop()
            elif tensor >= 0:
                for below in grounding.producers[tensor]:
                    if below in around and below not in met and producer[primary_outputs[below]] == below:
                        met.add(below)
                        stack.append((below, iter(grounding.nodes[below][1])))
                        break
    return one


def _entrances(states: DreamStates, row: int, one: int, other: int) -> tuple[list[int], set[int]]:
    """Find the nodes from which a depth-first walk determines the order of two nodes.

    Returns:
      (entrances, around). If all paths from the two nodes to outputs lead through one node, the first such node is the
      only entrance. Otherwise the entrances are all output nodes that depend on the two nodes, in canonical order.
      `around` is the set of the nodes that depend on the two nodes, up to the entrances.
    """
    grounding, producer, is_output = states.index.grounding, states.producer[row], states.index.is_output.values
    order_keys, primary_outputs = grounding.order_keys, grounding.primary_outputs
    around, outputs = {one, other}, []
    heap = sorted((order_keys[primary_outputs[node]], node) for node in around)
    while len(heap) > 1 or (outputs and heap):
        _, node = heappop(heap)
        if is_output[node]:
            outputs.append(node)
        for tensor in grounding.nodes[node][2]:
            for consumer in grounding.consumers[tensor] if tensor >= 0 else ():
                if consumer not in around and producer[primary_outputs[consumer]] == consumer:
                    around.add(consumer)
                    heappush(heap, (order_keys[primary_outputs[consumer]], consumer))
    if heap:
        return [heap[0][1]], around
    return sorted(outputs, key=lambda node: order_keys[primary_outputs[node]]), around


def rewrite(states: DreamStates, rows: np.ndarray, matches: np.ndarray) -> "StateChange":
    """Rewrite one match in each of k states of a batch, and return the change.

    Args:
      states: the batch; modified.
      rows: int [k], different indices of states.
      matches: int [k], the match to rewrite in each of these states; it is present and its effect is known.
    """
    effects = _with_unused_tensors(states, rows, matches)
    change = StateChange(states, rows)
    rewired = change.rewired(effects)
    states.grow()  # before any change, because counters of new matches start from the present state
    change.apply(effects, *rewired)
    return change


def _with_unused_tensors(states: DreamStates, rows: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """Return the effects of k matches such that no tensor made by an effect has a consumer in its state yet.

    If the same match was rewritten before and its new tensors are still in use, the effect makes copies of them.

    Args:
      states: the batch of states.
      rows: int [k], the index of the state of each match.
      matches: int [k], matches with known effects.

    Returns:
      int [k], rows of effects in the `GroundingIndex`.
    """
    effects = states.index.effects(matches).copy()
    for copy in count(1):
        states.grow()
        which, tensors = states.index.made.take(effects)
        used = np.unique(which[states.n_consumers[rows[which], tensors] > 0])
        if not len(used):
            return effects
        effects[used] = [states.index.effect_of_copy(match, copy) for match in matches[used].tolist()]


class StateChange:
    """The nodes that one step removes and adds in some states of a batch.

    Attributes:
      states: the batch.
      rows: int [k], the indices of the states that the step rewrites.
      removed, added: lists of (int [m] indices of states, int [m] nodes). A node may be in both lists.
      read: list of (int [m] indices of states, int [m] tensors, int16 [m] ±1): gained and lost consumers of tensors.
    """

    def __init__(self, states: DreamStates, rows: np.ndarray):
        self.states, self.index, self.rows = states, states.index, rows
        self.removed: list[tuple[np.ndarray, np.ndarray]] = []
        self.added: list[tuple[np.ndarray, np.ndarray]] = []
        self.read: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # see the class

    def add_to(self, totals: np.ndarray, values: Callable[[np.ndarray], np.ndarray]) -> None:
        """Update a total of node values per state: add the values of added nodes, subtract the values of removed nodes.

        Args:
          totals: float64 [n, …], the total of each state of the batch; modified.
          values: a function from nodes, int [m], to their values, float64 [m, …].
        """
        for events, sign in ((self.removed, -1.0), (self.added, 1.0)):
            for rows, nodes in events:
                np.add.at(totals, rows, sign * values(nodes))

    def rewired(self, effects: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find the present nodes that read tensors which the effects rewire.

        Args:
          effects: int [k], the row of the effect in each rewritten state.

        Returns:
          (int [m] indices of states, int [m] nodes that read old tensors, int [m] nodes that replace them and read the
          new tensors). No pair of state and node occurs twice.
        """
        grounding, index, producer = self.index.grounding, self.index, self.states.producer
        which, pairs = index.rewired.take(effects)
        rewired: dict[tuple[int, int], tuple] = {}  # (state, consumer) → its pairs (old tensor, new tensor)
        old, new = pairs[::2], pairs[1::2]
        for pair in sorted({*zip(old.tolist(), new.tolist(), strict=True)}):
            rows = self.rows[which[::2][(old == pair[0]) & (new == pair[1])]]
            consumers = np.array(grounding.consumers[pair[0]], np.int64)
            at, k = np.nonzero(producer[rows[:, None], index.primary_output.values[consumers]] == consumers)
            for cell in zip(rows[at].tolist(), consumers[k].tolist(), strict=True):
                rewired[cell] = *rewired.get(cell, ()), pair
        replaced = sorted({(node, of_node) for (_, node), of_node in rewired.items()})
        become = {(node, of_node): grounding.rewired_node(node, dict(of_node)) for node, of_node in replaced}
        result = [(row, node, become[node, of_node]) for (row, node), of_node in rewired.items()]
        states, consumers, becoming = np.array(result, np.int64).reshape(-1, 3).T
        return states, consumers, becoming

    def apply(self, effects: np.ndarray, consumers_in: np.ndarray, consumers: np.ndarray, become: np.ndarray) -> None:
        """Carry out the rewrites in the states of the batch, and record the changes in the attributes.

        Args:
          effects: int [k], the row of the effect in each rewritten state.
          consumers_in, consumers, become: int [m] each, the result of `rewired`.
        """
        index, rows = self.index, self.rows
        which, nodes = index.removed.take(effects)
        self._remove(rows[which], nodes)
        which, nodes = index.added.take(effects)
        self._add(rows[which], nodes)
        still = self._remove(consumers_in, consumers)  # a consumer may already be removed
        self._add(consumers_in[still], become[still])
        made_by, made = index.outputs.take(nodes)
        rewired_in, pairs = index.rewired.take(effects)
        self._sweep([(rows[which][made_by], made), (rows[rewired_in], pairs)])
        self._settle()
        self.states.admit(*(np.concatenate(parts) for parts in zip(*self.added, strict=True)))

    def _remove(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Remove nodes from states; return bool [m], True for the nodes that were present.

        Args:
          rows: int [m], the index of the state of each node.
          nodes: int [m], the nodes.
        """
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
        """Remove nodes whose outputs have no consumer, and repeat this for the producers of their inputs.

        Nodes that stand for outputs of the graph stay.

        Args:
          suspects: list of (int [m] indices of states, int [m] tensors) to check besides the tensors in `read`.
        """
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
        """Update the numbers of unmet conditions of matches, and the numbers of matches per rule and per class."""
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
        """Return the tensors that now have exactly one consumer, and the tensors that had exactly one before the step.

        Returns:
          (int [m] indices of states, int [m] tensors, int16 [m]: −1 for one consumer now, 1 for one consumer before).
        """
        rows, tensors, signs = (np.concatenate(parts) for parts in zip(*self.read, strict=True))
        width = self.states.n_consumers.shape[1]
        cells, inverse = np.unique(rows * width + tensors, return_inverse=True)
        difference = np.bincount(inverse, signs, len(cells)).astype(np.int16)
        now = self.states.n_consumers.reshape(-1)[cells]
        change = ((now - difference) == 1).astype(np.int16) - (now == 1)
        return cells[change != 0] // width, cells[change != 0] % width, change[change != 0]


def _unique(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct pairs (rows[i], values[i]) in ascending order, as two arrays int [m]."""
    pairs = np.unique(np.stack([rows, values], axis=1), axis=0) if len(rows) else np.zeros((0, 2), np.int64)
    return pairs[:, 0], pairs[:, 1]
