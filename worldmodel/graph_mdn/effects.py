"""The effect of a rewrite as a series of choices between candidates, which a network can score.

First the network chooses a structure, then a filling for each slot of the structure. A structure is an effect without
operators and tensor signatures: which nodes of the match are removed, the number and types of new nodes, and all
connections. Every new operator and every new tensor is a slot of the structure. A slot is filled with an operator or
tensor signature of the match (a copy), or with one that the rule has made before. Rules add and split channels. A
network cannot detect from logarithms of sizes which size is a sum of two others, so the result of `sums` is an input.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np

from rlflow.env.features import AXES
from worldmodel.edits.learned_rules import Effect, MatchPattern, NodePattern, wirings_of
from worldmodel.graph_mdn.network_inputs import Asked, SignatureTable

SUMMANDS = 12  # `sums` considers the first SUMMANDS tensors of a match
COPIES = 32  # a slot can copy from the first COPIES nodes, or the first COPIES tensors, of a match


class Structure(NamedTuple):
    """An effect without operators and tensor signatures.

    Attributes:
      removed, rewired: as in `Effect`.
      added: the new nodes as in `Effect`, but with op types instead of operators.
      made: the number of new tensors.
    """

    removed: tuple[int, ...]
    added: tuple[NodePattern, ...]
    rewired: tuple[tuple[int, int], ...]
    made: int


class Vocabulary:
    """The observed structures of effects, and the observed fillings of their slots.

    Attributes:
      op_types: operator → operator type, for all observed nodes; see worldmodel/edits/learned_rules.py.
      structures: all structures; the number of a structure is its index.
      slots: all slots as (number of the structure, True for a tensor, index within the structure); the number of a slot
        is its index.
      slot_numbers: entry of `slots` → number of the slot.
      of_wiring: wiring of a pattern (see `wirings_of`) → numbers of the structures that were observed with it.
      operators: (rule, op type) → operators of new nodes, in the order of their first observation.
      tensors: rule → signatures of new tensors, in the order of their first observation.
      ranks: tensor signature → rank signature, for all new tensors.
    """

    def __init__(self, op_types: dict[int, int]):
        self.op_types = op_types
        self.structures: list[Structure] = []
        self.slots: list[tuple[int, bool, int]] = []
        self.slot_numbers: dict[tuple[int, bool, int], int] = {}
        self.of_wiring: dict[tuple, list[int]] = defaultdict(list)
        self.operators: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.tensors: dict[int, list[int]] = defaultdict(list)
        self.ranks: dict[int, int] = {}
        self._numbers: dict[Structure, int] = {}

    def learn(self, pattern: MatchPattern, effect: Effect) -> None:
        """Add the structure of an observed effect, and the fillings of its slots.

        Args:
          pattern: the pattern of the match.
          effect: the effect of rewriting the match.
        """
        structure = self._structure(effect)
        if structure not in self._numbers:
            number = self._numbers[structure] = len(self.structures)
            self.structures.append(structure)
            for is_tensor, n in ((False, len(structure.added)), (True, structure.made)):
                for k in range(n):
                    self.slot_numbers[number, is_tensor, k] = len(self.slots)
                    self.slots.append((number, is_tensor, k))
        for key in wirings_of(pattern):
            _note(self.of_wiring[key], self._numbers[structure])
        for operator, _, _ in effect.added:
            _note(self.operators[pattern.xfer_id, self.op_types[operator]], operator)
        for rank, signature in effect.made:
            _note(self.tensors[pattern.xfer_id], signature)
            self.ranks[signature] = rank

    def number_of(self, effect: Effect) -> int:
        """Return the number of the structure of an effect that was added before."""
        return self._numbers[self._structure(effect)]

    def _structure(self, effect: Effect) -> Structure:
        added = tuple([(self.op_types[operator], *tensors) for operator, *tensors in effect.added])
        return Structure(effect.removed, added, effect.rewired, len(effect.made))

    def candidates(self, pattern: MatchPattern) -> list[int]:
        """Return the numbers of the structures that were observed with the wiring of a pattern, or [].

        If no structure was observed with exactly this wiring, the order of the inputs of each node is ignored.
        """
        closer, wider = wirings_of(pattern)
        return self.of_wiring.get(closer) or self.of_wiring.get(wider, [])

    def fillings(self, asked: Asked, structure: int, is_tensor: bool, k: int) -> list[int]:
        """Return the possible fillings of a slot: tensor signatures, or operators of the slot's op type.

        The values of the match come first, then other values that the rule has made; duplicates are left out.

        Args:
          asked: the pattern and signature of the match.
          structure: the number of the structure.
          is_tensor: True if the slot is a tensor, False if it is an operator.
          k: the index of the slot among the tensors, or the operators, of the structure.
        """
        pattern, signature = asked
        if is_tensor:
            return list(dict.fromkeys([*signature[len(pattern.nodes) :], *self.tensors[pattern.xfer_id]]))
        op_type = self.structures[structure].added[k][0]
        own = [operator for operator, (kind, *_) in zip(signature, pattern.nodes, strict=False) if kind == op_type]
        return list(dict.fromkeys([*own, *self.operators[pattern.xfer_id, op_type]]))

    def effect(self, structure: int, operators: Iterable[int], tensors: Iterable[int], ranks: dict[int, int]) -> Effect:
        """Return the effect that a structure with filled slots describes.

        Args:
          structure: the number of the structure.
          operators: the operator of each new node.
          tensors: the signature of each new tensor.
          ranks: tensor signature → rank signature, for the tensors of the match.
        """
        of = self.structures[structure]
        added = [(operator, *node[1:]) for operator, node in zip(operators, of.added, strict=True)]
        made = [(ranks[tensor] if tensor in ranks else self.ranks[tensor], tensor) for tensor in tensors]
        return Effect(of.removed, tuple(added), of.rewired, tuple(made))


def _note(known: list[int], new: int) -> None:
    if new not in known:
        known.append(new)


class Choices(NamedTuple):
    """The possible structures and fillings for M matches: C structures with S slots and F fillings in all.

    Attributes:
      structures: int32 [C], the number of each structure in the vocabulary.
      structure_owners: int32 [C], the index of the match that each structure belongs to.
      slots: int32 [S], the number of each slot in the vocabulary.
      slot_owners: int32 [S], the index of the match that each slot belongs to.
      slot_structures: int32 [S], the index of each slot's structure in `structures`.
      fillings: int32 [F], the row of each filling in the signature table, of tensors or of operators.
      filling_owners: int32 [F], the index of each filling's slot in `slots`.
      are_tensors: bool [F], True for fillings of tensor slots.
      copies: float32 [F, COPIES], 1 where the filling equals the match's tensor (or operator) with this index.
      operators, tensors: int32 [F, COPIES], the match's operators and tensors as rows of the table; 0 after the last.
      sums: float32 [F, 2 · AXES], the result of `sums` for tensors, 0 for operators.
    """

    structures: np.ndarray
    structure_owners: np.ndarray
    slots: np.ndarray
    slot_owners: np.ndarray
    slot_structures: np.ndarray
    fillings: np.ndarray
    filling_owners: np.ndarray
    are_tensors: np.ndarray
    copies: np.ndarray
    operators: np.ndarray
    tensors: np.ndarray
    sums: np.ndarray


class Offer(NamedTuple):
    """The possible structures of one match: C structures with S slots and F fillings in all.

    Attributes:
      structures: int32 [C], the number of each structure in the vocabulary.
      slots: int32 [S, 2], the number of each slot in the vocabulary, and the index of its structure in `structures`.
      named: for each slot, (True for a tensor, the signatures or operators that may fill the slot).
      owners: int32 [F], the index of each filling's slot in `slots`.
      rows: int32 [F], the row of each filling in the signature table.
      copies, sums: as in `Choices`.
      of_match: int32 [2, COPIES], the match's operators and tensors as rows of the table; 0 after the last.
    """

    structures: np.ndarray
    slots: np.ndarray
    named: list[tuple[bool, list[int]]]
    owners: np.ndarray
    rows: np.ndarray
    copies: np.ndarray
    sums: np.ndarray
    of_match: np.ndarray

    @classmethod
    def of(cls, vocabulary: Vocabulary, table: SignatureTable, asked: Asked) -> Self:
        """Return the structures that were observed with the pattern of a match, with all possible fillings.

        Args:
          vocabulary: the structures and fillings.
          table: the features of signatures.
          asked: the pattern and signature of the match.
        """
        pattern, signature = asked
        n_nodes, structures = len(pattern.nodes), vocabulary.candidates(pattern)
        of_match = np.zeros((2, COPIES), np.int32)
        operators = table.operator_rows(signature[:n_nodes][:COPIES])
        tensors = table.tensor_rows(signature[n_nodes:][:COPIES])
        of_match[0, : len(operators)], of_match[1, : len(tensors)] = operators, tensors
        slots, named, rows, copies = [], [], [], [np.zeros((0, COPIES), np.float32)]
        for index, structure in enumerate(structures):
            of = vocabulary.structures[structure]
            for is_tensor, n in ((False, len(of.added)), (True, of.made)):
                own = signature[n_nodes:] if is_tensor else signature[:n_nodes]
                for k in range(n):
                    values = vocabulary.fillings(asked, structure, is_tensor, k)
                    if values:
                        slots.append((vocabulary.slot_numbers[structure, is_tensor, k], index))
                        named.append((is_tensor, values))
                        rows += table.tensor_rows(values) if is_tensor else table.operator_rows(values)
                        copies.append(_copies(values, own))
        sizes, rows = [len(values) for _, values in named], np.array(rows, np.int32)
        are_tensors = np.repeat([is_tensor for is_tensor, _ in named], sizes).astype(bool)
        return cls(
            np.array(structures, np.int32), np.array(slots, np.int32).reshape(-1, 2), named,
            np.repeat(np.arange(len(sizes)), sizes).astype(np.int32), rows, np.concatenate(copies),
            _sums_of(table, np.where(are_tensors, rows, 0), tensors), of_match,
        )  # fmt: skip

    def limited(self, kept: Sequence[Sequence[int]]) -> Self:
        """Return the offer with fewer fillings, without slots that have none left.

        Args:
          kept: for each slot, the ascending indices of the fillings to keep.
        """
        first = np.searchsorted(self.owners, np.arange(len(self.slots)))
        indices = [start + np.array(of_slot, np.int64) for start, of_slot in zip(first, kept, strict=True)]
        which = np.concatenate([np.zeros(0, np.int64), *indices])
        left = [slot for slot, of_slot in enumerate(kept) if len(of_slot)]
        named = [(self.named[slot][0], [self.named[slot][1][k] for k in kept[slot]]) for slot in left]
        owners = np.repeat(np.arange(len(left)), [len(kept[slot]) for slot in left]).astype(np.int32)
        return self._replace(
            slots=self.slots[left], named=named, owners=owners, rows=self.rows[which], copies=self.copies[which],
            sums=self.sums[which],
        )  # fmt: skip


def choices_of(offers: Sequence[Offer]) -> Choices:
    """Return the offers of M matches as arrays, in the order of the matches.

    Args:
      offers: the offer of each match; with fewer offers than matches, the last matches have no possible structures.
    """
    if not offers:
        return choices_of([NOTHING])
    structures, slots, fillings = (
        [len(getattr(offer, name)) for offer in offers] for name in ("structures", "slots", "rows")
    )  # fmt: skip
    matches = np.arange(len(offers), dtype=np.int32)
    first_structure, first_slot = _first(structures), _first(slots)
    of_match = np.stack([offer.of_match for offer in offers])[np.repeat(matches, fillings)]
    are_tensors = [np.array([is_tensor for is_tensor, _ in offer.named], bool)[offer.owners] for offer in offers]
    return Choices(
        np.concatenate([offer.structures for offer in offers]), np.repeat(matches, structures),
        np.concatenate([offer.slots[:, 0] for offer in offers]), np.repeat(matches, slots),
        np.concatenate([offer.slots[:, 1] for offer in offers]) + np.repeat(first_structure, slots),
        np.concatenate([offer.rows for offer in offers]),
        np.concatenate([offer.owners for offer in offers]) + np.repeat(first_slot, fillings),
        np.concatenate(are_tensors), np.concatenate([offer.copies for offer in offers]), of_match[:, 0], of_match[:, 1],
        np.concatenate([offer.sums for offer in offers]),
    )  # fmt: skip


def _first(sizes: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *sizes[:-1]], dtype=np.int32)


def _sums_of(table: SignatureTable, rows: np.ndarray, of_match: list[int]) -> np.ndarray:
    """Return the result of `sums` for tensors as rows of the table; row 0 gets zeros.

    Args:
      table: the features of signatures.
      rows: int [F], the tensors.
      of_match: the tensors of the match, as rows of the table.
    """
    once, number = np.unique(rows, return_inverse=True)
    sizes, theirs = (np.expm1(table.numbers[np.array(some, int), :AXES]) for some in (once, of_match))
    return sums(sizes, theirs)[number]


def _copies(named: list[int], own: tuple[int, ...]) -> np.ndarray:
    """Return float32 [len(named), COPIES], 1 where a possible filling equals the match's value with this index."""
    result = np.zeros((len(named), COPIES), np.float32)
    at = {signature: k for k, signature in enumerate(named)}
    for position, signature in enumerate(own[:COPIES]):
        if signature in at:
            result[at[signature], position] = 1.0
    return result


def sums(sizes: np.ndarray, of_match: np.ndarray) -> np.ndarray:
    """Return which axis sizes of tensors are sums or differences of sizes in the match, float32 [F, 2 · axes].

    The first half is 1 where a size is the sum of the sizes of two tensors of the match on the same axis. The second
    half is 1 where a size is the difference of two such sizes.

    Args:
      sizes: float32 [F, axes], the sizes of F tensors; 0 for an axis that a tensor does not have.
      of_match: float32 [k, axes], the sizes of the match's tensors, likewise.
    """
    of_match = of_match[:SUMMANDS]
    one, other = np.triu_indices(len(of_match), 1)
    both, there = (of_match[one], of_match[other]), sizes[:, None] > 0  # [pairs, axes], [F, 1, axes]
    pair = np.minimum(*both) > 0
    is_sum = there & pair & (np.abs(both[0] + both[1] - sizes[:, None]) < 0.5)
    is_part = there & pair & (np.abs(np.abs(both[0] - both[1]) - sizes[:, None]) < 0.5)
    return np.concatenate([is_sum.any(axis=1), is_part.any(axis=1)], axis=1).astype(np.float32)


NOTHING = Offer(  # no structures at all
    np.zeros(0, np.int32), np.zeros((0, 2), np.int32), [], np.zeros(0, np.int32), np.zeros(0, np.int32),
    np.zeros((0, COPIES), np.float32), np.zeros((0, 2 * AXES), np.float32), np.zeros((2, COPIES), np.int32),
)  # fmt: skip
