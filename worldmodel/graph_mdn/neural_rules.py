"""Learned rules that recall what the data contain, and ask match networks about everything else.

The `Judge` evaluates batches of matches with all networks of an ensemble and caches the answers. It predicts the
condition of every new match, but the effect of a match only when a dream rewrites the match. Effects take most of the
time, and most matches are never rewritten.

Networks that were trained on the same data from different initial weights agree where the data determine the answer,
and disagree elsewhere (deep ensembles; Lakshminarayanan et al. 2017). A single network gave high probabilities to wrong
effects, which controllers then exploited.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
import tensorflow as tf

from rlflow.env.features import AXES
from worldmodel.edits.learned_rules import Effect, LearnedRules, Signature, complete_effect
from worldmodel.graph_mdn.effects import COPIES, Choices, Offer, Vocabulary, choices_of
from worldmodel.graph_mdn.network import TABLE, MatchNetwork, Table
from worldmodel.graph_mdn.network_inputs import EDGE_COLUMNS, Asked, MatchBatch, MatchGraph, SignatureTable, match_batch

AT_ONCE = 256  # largest number of matches in a batch

_INTS = tf.TensorSpec([None], tf.int32)
MATCH_SIGNATURE = (  # inputs of any size, so that the network is traced once
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


class LikelyEffect(NamedTuple):
    """The prediction of an ensemble for the effect of one match.

    Attributes:
      effect: the most probable structure with the most probable filling of each slot, by the mean probability over the
        networks; None if no match with the same wiring was ever rewritten.
      sure: the smallest probability that a network of the ensemble gives to this effect. Fillings that differ only in
        the content of a tensor count as equal: contents can depend on weights, which the networks do not see, and
        contents do not change the cost.
    """

    effect: Effect | None
    sure: float


class Judge:
    """An ensemble of match networks that predicts conditions and effects of matches and caches them.

    Attributes:
      networks: the ensemble.
      vocabulary: the structures of effects.
      table: the features of signatures.
    """

    def __init__(self, networks: Sequence[MatchNetwork], vocabulary: Vocabulary, table: SignatureTable):
        self.networks, self.vocabulary, self.table = networks, vocabulary, table
        matches, _, of_table = MATCH_SIGNATURE
        self._call_conditions = tf.function(self._conditions, input_signature=(matches, of_table), autograph=False)
        self._call_effects = tf.function(self._effects, input_signature=MATCH_SIGNATURE, autograph=False)
        self._applies: dict[Asked, float] = {}
        self._likely: dict[Asked, LikelyEffect] = {}

    def _conditions(self, *batch) -> list[tf.Tensor]:
        return [tf.sigmoid(network.condition(*batch)) for network in self.networks]

    def _effects(self, *batch) -> list[tuple[tf.Tensor, tf.Tensor]]:
        return [network(*batch)[1:] for network in self.networks]

    def applies(self, asked: Asked) -> float:
        """Return the probability that the rule applies to a match, as the mean over the networks."""
        self.meet([asked])
        return self._applies[asked]

    def effect(self, asked: Asked) -> LikelyEffect:
        """Return the most probable effect of a match."""
        self.expect([asked])
        return self._likely[asked]

    def meet(self, several: Iterable[Asked]) -> None:
        """Compute and cache the answers of `applies` for matches without a cached answer."""
        for part in _batches(several, self._applies):
            matches = match_batch([MatchGraph.of(asked, self.table) for asked in part])
            applies = np.mean(self._call_conditions(matches, Table.of(self.table)), axis=0)
            self._applies |= zip(part, applies.tolist(), strict=True)

    def expect(self, several: Iterable[Asked]) -> None:
        """Compute and cache the answers of `effect` for matches without a cached answer."""
        for part in _batches(several, self._likely):
            self._likely |= zip(part, self._likely_effects(part), strict=True)

    def _likely_effects(self, several: list[Asked]) -> list[LikelyEffect]:
        offers = [Offer.of(self.vocabulary, self.table, asked) for asked in several]
        choices, named = choices_of(offers), [slot for offer in offers for slot in offer.named]
        matches = match_batch([MatchGraph.of(asked, self.table) for asked in several])
        judged = self._call_effects(matches, choices, Table.of(self.table))
        structures = np.stack([segment_softmax(of_one.numpy(), choices.structure_owners) for of_one, _ in judged])
        fillings = np.stack([segment_softmax(of_one.numpy(), choices.filling_owners) for _, of_one in judged])
        bounds = Bounds.of(choices, len(several))
        return [
            self._likeliest(owner, asked, named, choices, bounds, structures, fillings)
            for owner, asked in enumerate(several)
        ]

    def _likeliest(
        self, owner: int, asked: Asked, named: list, choices: Choices, bounds: "Bounds", structures: np.ndarray,
        fillings: np.ndarray,
    ) -> LikelyEffect:  # fmt: skip
        """Return the most probable effect of a match.

        Args:
          owner: the index of the match.
          asked: the pattern and signature of the match.
          named: for each slot, (True for a tensor, the signatures or operators that may fill the slot).
          choices: the possible structures and fillings of all matches.
          bounds: where the structures, slots and fillings of each owner are in `choices`.
          structures: float [networks, C], the probability of each structure.
          fillings: float [networks, F], the probability of each filling.
        """
        first, end = bounds.structures[owner : owner + 2].tolist()
        if first == end:
            return LikelyEffect(None, 0.0)
        best = first + int(structures[:, first:end].mean(axis=0).argmax())
        sure, chosen = structures[:, best], ([], [])  # operators, tensors
        for slot in range(bounds.slots[best], bounds.slots[best + 1]):
            is_tensor, values = named[slot]
            which = slice(bounds.fillings[slot], bounds.fillings[slot + 1])
            of_slot, likeliest = fillings[:, which], fillings[:, which].mean(axis=0).argmax()
            chosen[is_tensor].append(values[likeliest])
            if is_tensor:
                kinds = self.table.kinds[choices.fillings[which]]
                sure = sure * of_slot[:, kinds == kinds[likeliest]].sum(axis=1)
            else:
                sure = sure * of_slot[:, likeliest]
        pattern, signature = asked
        ranks = dict(zip(signature[len(pattern.nodes) :], pattern.rank_signatures, strict=True))
        effect = self.vocabulary.effect(int(choices.structures[best]), *chosen, ranks)
        return LikelyEffect(effect, float(sure.min()))


def _batches(several: Iterable[Asked], known: Mapping[Asked, object]) -> Iterator[list[Asked]]:
    """Return the matches that are not in `known`, each once, in batches of at most AT_ONCE matches."""
    new = list(dict.fromkeys(asked for asked in several if asked not in known))
    return (new[first : first + AT_ONCE] for first in range(0, len(new), AT_ONCE))


class Bounds(NamedTuple):
    """Where the entries of each owner begin in `Choices`, whose owners ascend; a last entry is the end of the last one.

    Attributes:
      structures: int [M + 1], the first structure of each match.
      slots: int [C + 1], the first slot of each structure.
      fillings: int [S + 1], the first filling of each slot.
    """

    structures: np.ndarray
    slots: np.ndarray
    fillings: np.ndarray

    @classmethod
    def of(cls, choices: Choices, matches: int) -> Self:
        """Return the bounds in the choices of this number of matches."""
        owners = choices.structure_owners, choices.slot_structures, choices.filling_owners
        sizes = matches, len(choices.structures), len(choices.slots)
        return cls(*[np.searchsorted(of, np.arange(n + 1)) for of, n in zip(owners, sizes, strict=True)])


def segment_softmax(logits: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Return the softmax of logits within each group of equal owners, float [k].

    Args:
      logits: float [k].
      owners: int [k], the group of each logit, ascending.
    """
    if not len(logits):
        return logits
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    number = np.repeat(np.arange(len(first)), np.diff(first, append=len(owners)))
    powers = np.exp(logits - np.maximum.reduceat(logits, first)[number])
    return powers / np.add.reduceat(powers, first)[number]


SURE_EFFECT = 0.9  # `NeuralRules.least_sure` without calibration, or if calibration finds no value
# Calibration chooses `least_sure` so that at least LEAST_SAMPLES new effects of held-out episodes have at least this
# probability, and at least the share RIGHT of these effects is correct.
RIGHT, LEAST_SAMPLES = 0.95, 10


class NeuralRules(LearnedRules):
    """Learned rules with a memory and a `Judge`; their patterns are the patterns in the data.

    The data determine the answer for a pattern and signature that they contain, so a network could only be wrong there.
    A rule that was never refuted is assumed to apply, since no network can learn a condition without counterexamples.

    Attributes:
      judge: the ensemble of match networks.
      judged: the xfer_ids of the rules with a refuted match in the data that the judge learned from. The judge predicts
        their conditions.
      recalls: False if the judge also predicts what the data contain.
      least_sure: an effect of at least this probability counts as known.
    """

    judge: Judge
    judged: frozenset[int]
    recalls: bool
    least_sure: float

    @classmethod
    def of(cls, rules: LearnedRules, judge: Judge, recalls: bool = True) -> Self:
        """Return rules with the learned data of `rules` that ask the networks about all other matches.

        Args:
          rules: the learned rules.
          judge: the networks.
          recalls: False to ask the networks about every match.
        """
        result = cls.__new__(cls)
        result.__dict__.update(rules.__dict__)
        result.judge, result.recalls, result.least_sure = judge, recalls, SURE_EFFECT
        result.judged = rules.refutable()
        return result

    def meet(self, several: Iterable[tuple[int, Signature]]) -> None:
        asked = [(self.patterns[number].pattern, signature) for number, signature in several
                 if self._recalled_condition(number, signature) is None]  # fmt: skip
        self.judge.meet(asked)

    def expect(self, several: Iterable[tuple[int, Signature]]) -> None:
        asked = [(self.patterns[number].pattern, signature) for number, signature in several
                 if not self._recalled_effects(number, signature)]  # fmt: skip
        self.judge.expect(asked)

    def _recalled_effects(self, number: int, signature: Signature) -> Counter[Effect] | None:
        """Return the recorded effects of a match; None or no effect if the judge has to predict one."""
        return self.patterns[number].effects.get(signature) if self.recalls else None

    def _recalled_condition(self, number: int, signature: Signature) -> bool | None:
        """Return if a rule applies to a match; None if the judge has to predict it."""
        learned = self.patterns[number]
        if self.recalls and (signature in learned.effects or signature in learned.refuted):
            return signature in learned.effects
        return None if learned.pattern.xfer_id in self.judged else True

    def applies(self, number: int, signature: Signature) -> bool:
        recalled = self._recalled_condition(number, signature)
        return self.judge.applies((self.patterns[number].pattern, signature)) >= 0.5 if recalled is None else recalled

    def effect(self, number: int, signature: Signature) -> tuple[Effect | None, bool]:
        """Return (effect, sure): the recorded effect, or else the most probable effect.

        A recorded effect is sure. Any other effect is sure if the smallest probability that a network gives to it is at
        least `least_sure`. The effect is None if no match with the same wiring was ever rewritten.

        Args:
          number: the number of the pattern.
          signature: the signature of the match.
        """
        if seen := self._recalled_effects(number, signature):
            return complete_effect(seen), True
        effect, sure = self.judge.effect((self.patterns[number].pattern, signature))
        return effect, sure >= self.least_sure

    def calibrate(self, others: LearnedRules) -> None:
        """Set `least_sure` from matches that the networks never saw, so that few sure effects are wrong.

        The samples are the rewrites in other episodes whose pattern is known and whose signature these rules do not
        settle; see `LearnedPattern.settles`.

        Args:
          others: rules learned from episodes from which the networks did not learn.
        """
        asked, seen = [], []
        for learned in others.patterns:
            number = self.numbers.get(learned.pattern)
            for signature, effects in learned.effects.items() if number is not None else ():
                if effects and not self.patterns[number].settles(signature):
                    asked.append((learned.pattern, signature))
                    seen.append(effects)
        self.judge.expect(asked)
        likely = [self.judge.effect(match) for match in asked]
        sure = np.array([one.sure for one in likely])
        right = np.array([one.effect in effects for one, effects in zip(likely, seen, strict=True)], bool)
        self.least_sure = least_sure(sure, right)


def least_sure(sure: np.ndarray, right: np.ndarray) -> float:
    """Return the smallest probability from which on predicted effects are reliable.

    A probability qualifies if at least LEAST_SAMPLES of the given effects have at least this probability, and at least
    the share RIGHT of these effects is right.

    Args:
      sure: float [n], the probability of each predicted effect.
      right: bool [n], True if the effect was observed.

    Returns:
      The probability, or SURE_EFFECT if no probability qualifies.
    """
    order = np.argsort(-sure, kind="stable")
    share = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    is_last = np.diff(sure[order], append=-1.0) != 0  # of all effects of equal probability
    enough = np.flatnonzero((share >= RIGHT) & is_last)
    enough = enough[enough >= LEAST_SAMPLES - 1]
    return float(sure[order[enough[-1]]]) if len(enough) else SURE_EFFECT
