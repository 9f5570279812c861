"""The match network as others ask it: whether rules apply to matches, and what they do there; remembered."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rlflow.env.observation.tensors import AXES
from worldmodel.edits.match_patterns import Effect
from worldmodel.graph_mdn.effects import COPIES, Choices, Menu, Vocabulary
from worldmodel.graph_mdn.match_graphs import EDGE_COLUMNS, Asked, MatchBatch, match_batch
from worldmodel.graph_mdn.network import TABLE, MatchNetwork, Table
from worldmodel.graph_mdn.signature_table import SignatureTable

AT_ONCE = 256  # matches that are judged at once

_INTS = tf.TensorSpec([None], tf.int32)
JUDGED = (  # what the network takes, of any size, so that it is traced once
    MatchBatch(*[_INTS] * 5, tf.TensorSpec([None, EDGE_COLUMNS]), *[_INTS] * 4),
    Choices(
        *[_INTS] * 7,
        tf.TensorSpec([None], tf.bool),
        tf.TensorSpec([None, COPIES]),
        *[tf.TensorSpec([None, COPIES], tf.int32)] * 2,
        tf.TensorSpec([None, 2 * AXES]),
    ),
    TABLE,
)


class Verdict(NamedTuple):
    """applies: probability. effect: the likeliest; None if the like was never rewritten. sure: its probability and that
    of all that differ from it in contents of tensors alone: what those are, weights may say, which nobody sees, and
    nothing costs more for it."""

    applies: float
    effect: Effect | None
    sure: float


class Judge:
    """network, vocabulary, table: what it judges with."""

    def __init__(self, network: MatchNetwork, vocabulary: Vocabulary, table: SignatureTable):
        self.network, self.vocabulary, self.table = network, vocabulary, table
        self._call = tf.function(network, input_signature=JUDGED, autograph=False)
        self._known: dict[Asked, Verdict] = {}

    def __call__(self, asked: Asked) -> Verdict:
        if asked not in self._known:
            self.consider([asked])
        return self._known[asked]

    def consider(self, several: Sequence[Asked]) -> None:
        """Judges these at once, which costs little more than one."""
        new = list(dict.fromkeys(asked for asked in several if asked not in self._known))
        for first in range(0, len(new), AT_ONCE):
            part = new[first : first + AT_ONCE]
            self._known |= zip(part, self._judged(part), strict=True)

    def _judged(self, several: list[Asked]) -> list[Verdict]:
        menu = Menu(self.vocabulary, self.table)
        for owner, asked in enumerate(several):
            menu.add(owner, asked, self.vocabulary.candidates(asked[0]))
        choices = menu.choices()
        judged = self._call(match_batch(several, self.table), choices, Table.of(self.table))
        applies = tf.sigmoid(judged.applies).numpy()
        structures = segment_softmax(judged.structures.numpy(), choices.structure_owners)
        fillings = segment_softmax(judged.fillings.numpy(), choices.filling_owners)
        result = []
        for owner, asked in enumerate(several):
            effect, sure = self._likeliest(owner, asked, menu, choices, structures, fillings)
            result.append(Verdict(float(applies[owner]), effect, sure))
        return result

    def _likeliest(
        self, owner: int, asked: Asked, menu: Menu, choices: Choices, structures: np.ndarray, fillings: np.ndarray
    ) -> tuple[Effect | None, float]:
        offered = np.flatnonzero(choices.structure_owners == owner)
        if not len(offered):
            return None, 0.0
        best = offered[structures[offered].argmax()]
        sure, chosen = float(structures[best]), ([], [])  # operators, tensors
        for slot in np.flatnonzero(choices.slot_structures == best):
            is_tensor, named = menu.named[slot]
            which = choices.filling_owners == slot
            of_slot, likeliest = fillings[which], fillings[which].argmax()
            chosen[is_tensor].append(named[likeliest])
            if is_tensor:
                kinds = self.table.kinds[choices.fillings[which]]
                sure *= float(of_slot[kinds == kinds[likeliest]].sum())
            else:
                sure *= float(of_slot[likeliest])
        pattern, signature = asked
        ranks = dict(zip(signature[len(pattern.nodes) :], pattern.rank_signatures, strict=True))
        return self.vocabulary.effect(int(choices.structures[best]), *chosen, ranks), sure


def segment_softmax(logits: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Probabilities among those of one owner, ascending; both [k]."""
    if not len(logits):
        return logits
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    number = np.repeat(np.arange(len(first)), np.diff(first, append=len(owners)))
    powers = np.exp(logits - np.maximum.reduceat(logits, first)[number])
    return powers / np.add.reduceat(powers, first)[number]
