"""A grounding as NumPy arrays, so that NumPy can advance a batch of states at once.

The arrays grow with the grounding: one value per row in a `GrowingArray`, a list per row in `RaggedLists`. A
`GroundingIndex` has the arrays of one initial graph, and `Groundings` has the index of each initial graph met so far.

The index also defines the model's location numbers: the order of the matches of a rule. Matches are sorted by match
class, then by the position of their nodes in the initial graph.
"""

from bisect import bisect, bisect_left
from collections.abc import Iterable

import numpy as np

from rlflow.collect.edits import OUTPUT, Edit
from rlflow.graph.ir import ABSENT
from worldmodel.edits.grounding import GroundEffect, Grounding
from worldmodel.edits.learned_rules import LearnedRules, MatchClasses


class GrowingArray:
    """A NumPy array with a growing first axis.

    Attributes:
      data: the allocated array; only its first `size` rows are in use.
      size: the number of rows in use.
    """

    def __init__(self, dtype, *shape: int):
        self.data, self.size = np.zeros((64, *shape), dtype), 0

    def append(self, value) -> None:
        self.reserve(1)
        self.data[self.size - 1] = value

    def reserve(self, rows: int) -> int:
        """Append `rows` rows of zeros and return the index of the first new row."""
        self.size += rows
        while self.size > len(self.data):
            self.data = np.concatenate([self.data, np.zeros_like(self.data)])
        return self.size - rows

    def insert(self, at: int, value) -> None:
        """Insert a row with a value before the row with the index `at`."""
        self.reserve(1)
        self.data[at + 1 : self.size] = self.data[at : self.size - 1]
        self.data[at] = value

    def delete(self, at: int) -> None:
        self.data[at : self.size - 1] = self.data[at + 1 : self.size]
        self.size -= 1

    @property
    def values(self) -> np.ndarray:
        return self.data[: self.size]


class RaggedLists:
    """Growing lists of integers, stored in one int32 array; row i is list i.

    A list that exceeds its capacity moves to the end of the array and gets twice the capacity.
    """

    def __init__(self):
        self._flat = GrowingArray(np.int32)
        self._starts, self._counts, self._rooms = (GrowingArray(np.int64) for _ in range(3))

    def __len__(self) -> int:
        return self._starts.size

    def append(self, values: Iterable[int]) -> None:
        values = list(values)
        start = self._flat.reserve(len(values))
        self._flat.data[start : self._flat.size] = values
        self._starts.append(start)
        self._counts.append(len(values))
        self._rooms.append(len(values))

    def add(self, row: int, value: int) -> None:
        """Append a value to the list with the index `row`."""
        count = self._counts.data[row]
        if count == self._rooms.data[row]:
            self._move(row)
        self._flat.data[self._starts.data[row] + count] = value
        self._counts.data[row] += 1

    def _move(self, row: int) -> None:
        start, count = self._starts.data[row], self._counts.data[row]
        room = max(2 * count, 4)
        to = self._flat.reserve(room)
        self._flat.data[to : to + count] = self._flat.data[start : start + count]
        self._starts.data[row], self._rooms.data[row] = to, room

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all values of the lists with the indices `rows`, int [k].

        Returns:
          (int [m] position of the value's list in `rows`, int32 [m] value).
        """
        counts = self._counts.data[rows]
        ends = np.cumsum(counts)
        at = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self._starts.data[rows] - ends + counts, counts)
        return np.repeat(np.arange(len(rows)), counts), self._flat.data[at]


UNKNOWN, NOT_ASKED = -1, -2  # in `effect_row`: the effect is unknown; the effect is not computed yet


class GroundingIndex:
    """The arrays of one grounding. Row i belongs to the node, tensor, match, waiting match or effect with number i.

    An attribute with a dtype is a `GrowingArray`. All other attributes below are `RaggedLists` of numbers of the
    grounding.

    One row per node:
      primary_output: int32, the first tensor that the node makes.
      is_output: bool, True if the node stands for an output of the whole graph.
      signature_hash: uint64, hash of operator and signature.
      inputs, outputs: the tensors that the node reads (each once) and makes.
      matches_of, waiting_of: the matches and the waiting matches that contain the node.

    One row per tensor:
      consumers: the nodes that read the tensor.
      has_secondary_producer: bool, True if a node makes the tensor as an output other than its first.
      single_consumer_matches: the matches that require this tensor to have exactly one consumer.

    One row per match:
      rule: int32, the xfer_id.
      match_class: int32, the match class, which symmetric matches share.
      nodes: the matched nodes.
      single_consumers: the tensors that must have exactly one consumer.
      n_conditions: int16, the number of `nodes` and `single_consumers`; one more for a match that must never be
        present.
      has_symmetric: bool, True if the match has a symmetric match.
      effect_row: int32, the row of the effect, UNKNOWN or NOT_ASKED.

    One row per waiting match:
      waiting_nodes: its nodes.
      is_waiting: bool, True until the waiting match has become a match.

    One row per effect:
      seen: bool, as in `GroundEffect`.
      removed, added, rewired, made: as in `GroundEffect`; the pairs of `rewired` are flattened.
    """

    def __init__(self, grounding: Grounding, match_classes: MatchClasses):
        self.grounding, self.match_classes = grounding, match_classes
        self.primary_output, self.is_output = GrowingArray(np.int32), GrowingArray(bool)
        self.signature_hash = GrowingArray(np.uint64)
        self.inputs, self.outputs, self.matches_of = RaggedLists(), RaggedLists(), RaggedLists()
        self.waiting_of, self.waiting_nodes, self.is_waiting = RaggedLists(), RaggedLists(), GrowingArray(bool)
        self.consumers, self.has_secondary_producer = RaggedLists(), GrowingArray(bool)
        self.single_consumer_matches = RaggedLists()
        self.rule, self.match_class = GrowingArray(np.int32), GrowingArray(np.int32)
        self.nodes, self.single_consumers, self.n_conditions = RaggedLists(), RaggedLists(), GrowingArray(np.int16)
        self.has_symmetric, self.effect_row = GrowingArray(bool), GrowingArray(np.int32)
        self.seen = GrowingArray(bool)
        self.removed, self.added, self.rewired, self.made = RaggedLists(), RaggedLists(), RaggedLists(), RaggedLists()
        self._rows_of_copies: dict[tuple[int, int], int] = {}
        self._sorted: dict[int, tuple[list[tuple], GrowingArray]] = {}  # rule → (sort keys, matches), ascending
        self.update()

    def update(self) -> None:
        """Add rows for tensors, nodes and matches that the grounding received since the last call."""
        grounding = self.grounding
        while len(self.single_consumer_matches) < len(grounding.order_keys):
            self.single_consumer_matches.append(())
            self.consumers.append(())
            self.has_secondary_producer.append(False)
        for node in range(self.primary_output.size, len(grounding.nodes)):
            self._add_node(node)
        for waiting in range(self.is_waiting.size, len(grounding.waiting)):
            self.is_waiting.append(True)
            _, nodes = grounding.waiting[waiting]
            self.waiting_nodes.append(nodes)
            for node in nodes:
                self.waiting_of.add(node, waiting)
        new = grounding.matches[self.rule.size :]
        grounding.rules.meet((match.pattern, grounding.match_signature(match)) for match in new)
        for match in range(self.rule.size, len(grounding.matches)):
            self._add_match(match)

    def _add_node(self, node: int) -> None:
        operator, inputs, outputs = self.grounding.nodes[node]
        self.primary_output.append(self.grounding.primary_outputs[node])
        self.is_output.append(operator == OUTPUT)
        _, signature = self.grounding.operator_signature(node)
        self.signature_hash.append(hash_of((operator, *signature)))
        for tensor in outputs[1:]:
            if tensor != ABSENT:
                self.has_secondary_producer.data[tensor] = True
        read = sorted(set(inputs) - {ABSENT})
        self.inputs.append(read)
        self.outputs.append(t for t in outputs if t != ABSENT)
        self.matches_of.append(())
        self.waiting_of.append(())
        for tensor in read:
            self.consumers.add(tensor, node)

    def _add_match(self, match: int) -> None:
        grounding, rules = self.grounding, self.grounding.rules
        ground, signature = grounding.matches[match], grounding.match_signature(grounding.matches[match])
        learned = rules.patterns[ground.pattern]
        single_consumers = [ground.tensors[t] for t in learned.single_consumers]
        self.rule.append(learned.pattern.xfer_id)
        self.match_class.append(self._class_of(match))
        shown = grounding.symmetric_match.get(match, match) >= match and rules.applies(ground.pattern, signature)
        never = not shown  # adds a condition that is never met, so the match is never present
        self.n_conditions.append(len(ground.nodes) + len(single_consumers) + never)
        self.nodes.append(ground.nodes)
        self.single_consumers.append(single_consumers)
        for node in ground.nodes:
            self.matches_of.add(node, match)
        for tensor in single_consumers:
            self.single_consumer_matches.add(tensor, match)
        self.effect_row.append(NOT_ASKED)
        self.has_symmetric.append(match in grounding.symmetric_match)
        self.has_symmetric.data[self.representative(match)] |= match in grounding.symmetric_match
        self._sort(learned.pattern.xfer_id, match)

    def admit(self, waiting: np.ndarray) -> None:
        """Turn waiting matches, int [k], into matches; called when a state contains all nodes of each match."""
        for number in waiting.tolist():
            self.grounding.admit(number)
        self.is_waiting.data[waiting] = False
        self.update()

    def _class_of(self, match: int) -> int:
        """Return the match class of a match. Two symmetric matches share the smaller of their two classes."""
        grounding, symmetric = self.grounding, self.grounding.symmetric_match.get(match, match)
        if symmetric < match:
            return int(self.match_class.values[symmetric])
        classes = []
        for naming in (match, symmetric):
            ground = grounding.matches[naming]
            signature = grounding.match_signature(ground)
            classes.append(self.match_classes.of(self.rule.values[match], ground.pattern, signature))
        return min(classes)

    # -- the order of a rule's matches -------------------------------------------------------------

    def _sort(self, xfer_id: int, match: int) -> None:
        """Insert a match into the order of its rule. Two symmetric matches have one place, at the smaller sort key."""
        symmetric = self.grounding.symmetric_match.get(match, match)
        if symmetric > match:
            return  # the match is inserted together with its symmetric match
        orders, matches = self._sorted.setdefault(xfer_id, ([], GrowingArray(np.int32)))
        if symmetric < match:  # the symmetric match may already be in the order
            before = int(self.match_class.values[symmetric]), self._order_as_named(symmetric)
            at = bisect_left(orders, before)
            while at < len(orders) and orders[at] == before and matches.values[at] != symmetric:
                at += 1
            if at < len(orders) and orders[at] == before:
                del orders[at]
                matches.delete(at)
        order = self.order_of(symmetric)
        at = bisect(orders, order)
        orders.insert(at, order)
        matches.insert(at, symmetric)

    def order_of(self, match: int) -> tuple:
        """Return the sort key of a match among its rule's matches: (match class, position in the initial graph)."""
        symmetric = self.grounding.symmetric_match.get(match, match)
        return int(self.match_class.values[match]), min(self._order_as_named(match), self._order_as_named(symmetric))

    def _order_as_named(self, match: int) -> tuple:
        ground = self.grounding.matches[match]
        return self.grounding.order_of(ground.nodes, ground.operands)

    def matches_of_rule(self, xfer_id: int) -> np.ndarray:
        """Return int32 [k], all matches of a rule, present or not, in the order of the model's location numbers."""
        return self._sorted[xfer_id][1].values

    def representative(self, match: int) -> int:
        """Return the smaller number of two symmetric matches, or the match itself if it has no symmetric match."""
        return min(match, self.grounding.symmetric_match.get(match, match))

    # -- effects -----------------------------------------------------------------------------------

    def effects(self, matches: np.ndarray) -> np.ndarray:
        """Return int32 [k], the row of the effect of each match, int [k]; UNKNOWN if the effect is unknown."""
        self.update()
        grounding, new = self.grounding, np.unique(matches[self.effect_row.values[matches] == NOT_ASKED]).tolist()
        asked = [grounding.matches[match] for match in new]
        grounding.rules.expect((match.pattern, grounding.match_signature(match)) for match in asked)
        for match in new:
            effect = grounding.effect(match)
            self.effect_row.data[match] = UNKNOWN if effect is None else self._add_effect(effect)
        return self.effect_row.values[matches]

    def effect_of_copy(self, match: int, copy: int) -> int:
        """Return the row of the effect of a match that makes another copy of the new tensors; see `Grounding.effect`.

        Args:
          match: the number of a match with known effect.
          copy: the number of the copy, above 0.
        """
        if (match, copy) not in self._rows_of_copies:
            self._rows_of_copies[match, copy] = self._add_effect(self.grounding.effect(match, copy))
        return self._rows_of_copies[match, copy]

    def _add_effect(self, effect: GroundEffect) -> int:
        self.seen.append(effect.seen)
        self.removed.append(effect.removed)
        self.added.append(effect.added)
        self.rewired.append(tensor for pair in effect.rewired for tensor in pair)
        self.made.append(effect.made)
        return len(self.made) - 1


class Groundings:
    """The groundings of learned rules on the initial graphs met so far.

    Args:
      rules: the learned rules.
      n_rules: N, the number of rules.

    Attributes:
      rules: the learned rules.
      match_classes: the match classes of these rules.
      known: {first edit of an initial graph: its grounding}.
    """

    def __init__(self, rules: LearnedRules, n_rules: int):
        self.rules, self.match_classes = rules, MatchClasses(rules, n_rules)
        self.known: dict[Edit, GroundingIndex] = {}

    def of(self, first: Edit) -> GroundingIndex:
        """Return the grounding of an initial graph. Create the grounding at the first call for this graph.

        Args:
          first: the first edit of an episode, which describes the initial graph.
        """
        if first not in self.known:
            self.known[first] = GroundingIndex(Grounding(self.rules, first), self.match_classes)
        return self.known[first]


def hash_of(values: Iterable[int]) -> int:
    """Return a 64-bit hash of integers that is the same in every process (FNV-1a on words, with one more shift)."""
    result = 0xCBF29CE484222325
    for value in values:
        result = ((result ^ (value & 0xFFFFFFFFFFFFFFFF)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        result ^= result >> 29
    return result
