"""Training of the match network: from where rules applied, where they did not, and what they did."""

from functools import partial
from typing import NamedTuple, Self

import numpy as np
import tensorflow as tf

from worldmodel.edits.learned_rules import LearnedRules, complete_effect
from worldmodel.edits.match_patterns import Effect
from worldmodel.graph_mdn.effects import Choices, Menu, Vocabulary
from worldmodel.graph_mdn.judge import JUDGED
from worldmodel.graph_mdn.match_graphs import Asked, MatchBatch, match_batch
from worldmodel.graph_mdn.network import MatchNetwork, Table
from worldmodel.graph_mdn.signature_table import SignatureTable

REWRITTEN, APPLIED, REFUTED = 32, 32, 32  # examples of each sort in a batch
FILLINGS = 16  # that are offered for a slot at most, so that rules of many sizes cost no more than others
BATCH = (*JUDGED, *[tf.TensorSpec([None])] * 3)  # the fields of `Batch`


class Examples(NamedTuple):
    """applied, refuted: matches to which their rules applied, and to which they did not, of rules that ever did not.
    rewritten: those of which it
    was seen what happened; effects: that."""

    applied: list[Asked]
    refuted: list[Asked]
    rewritten: list[Asked]
    effects: list[Effect]

    @classmethod
    def of(cls, rules: LearnedRules) -> Self:
        result, judged = cls([], [], [], []), rules.refutable()
        for learned in rules.patterns:
            result.refuted.extend([(learned.pattern, signature) for signature in sorted(learned.refuted)])
            for signature, seen in learned.effects.items():
                if learned.pattern.xfer_id in judged:
                    result.applied.append((learned.pattern, signature))
                if seen:
                    result.rewritten.append((learned.pattern, signature))
                    result.effects.append(complete_effect(seen))
        return result


class Batch(NamedTuple):
    """What is judged, and what is true of it.

    matches, choices, table: what the network takes.
    applies: float32 [M], 1 or 0.
    structures: float32 [C], 1 for the one that happened.
    fillings: float32 [F], 1 for the one that stood in a slot of that structure; 0 in all slots of the others.
    """

    matches: MatchBatch
    choices: Choices
    table: Table
    applies: np.ndarray
    structures: np.ndarray
    fillings: np.ndarray


def vocabulary_of(rules: LearnedRules, examples: Examples) -> Vocabulary:
    result = Vocabulary(rules.op_types)
    for (pattern, _), effect in zip(examples.rewritten, examples.effects, strict=True):
        result.learn(pattern, effect)
    return result


class MatchBatches:
    """Step → batch, drawn from the examples. A rule of n examples is drawn √n times as often as a rule of one."""

    def __init__(self, examples: Examples, vocabulary: Vocabulary, table: SignatureTable, seed: int):
        self.examples, self.vocabulary, self.table, self.seed = examples, vocabulary, table, seed

    def __call__(self, step: int) -> Batch:
        random, examples = np.random.default_rng([self.seed, step]), self.examples
        rewritten = _drawn(random, examples.rewritten, REWRITTEN)
        asked, applies = [examples.rewritten[k] for k in rewritten], [1.0] * len(rewritten)
        for known, size, label in ((examples.applied, APPLIED, 1.0), (examples.refuted, REFUTED, 0.0)):
            drawn = _drawn(random, known, size)
            asked += [known[k] for k in drawn]
            applies += [label] * len(drawn)
        return self._batch(asked, applies, [examples.effects[k] for k in rewritten], random)

    def _batch(
        self, asked: list[Asked], applies: list[float], effects: list[Effect], random: np.random.Generator
    ) -> Batch:
        """effects: of the first matches."""
        menu, vocabulary = Menu(self.vocabulary, self.table), self.vocabulary
        happened = np.array([vocabulary.number_of(effect) for effect in effects], np.int32)
        for owner, (match, effect) in enumerate(zip(asked, effects, strict=False)):
            some = partial(self._some, random, effect, happened[owner])
            menu.add(owner, match, vocabulary.candidates(match[0]), some)
        choices = menu.choices()
        structures = choices.structures == happened[choices.structure_owners]
        slots, true = structures[choices.slot_structures], np.zeros(len(choices.fillings), np.float32)
        ends = np.searchsorted(choices.filling_owners, np.arange(len(slots) + 1))
        for slot in np.flatnonzero(slots).tolist():
            stood = self._stood(choices.slots[slot], effects[choices.slot_owners[slot]])
            true[ends[slot] + menu.named[slot][1].index(stood)] = 1.0
        return Batch(
            match_batch(asked, self.table), choices, Table.of(self.table),
            np.array(applies, np.float32), structures.astype(np.float32), true,
        )  # fmt: skip

    def _some(
        self, random: np.random.Generator, effect: Effect, happened: int, slot: int, named: list[int]
    ) -> list[int]:
        """What is offered for a slot: what stood there and as many others; of a structure that did not happen, none."""
        if self.vocabulary.slots[slot][0] != happened:
            return []
        if len(named) <= FILLINGS:
            return named
        stood = named.index(self._stood(slot, effect))
        others = random.choice(len(named) - 1, FILLINGS - 1, replace=False)
        return [named[k] for k in sorted([stood, *(others + (others >= stood)).tolist()])]

    def _stood(self, slot: int, effect: Effect) -> int:
        """The signature that stood in a slot of the structure that happened."""
        _, is_tensor, k = self.vocabulary.slots[slot]
        return effect.made[k][1] if is_tensor else effect.added[k][0]


def _drawn(random: np.random.Generator, known: list[Asked], size: int) -> list[int]:
    """Numbers of examples."""
    if not known:
        return []
    rules = np.array([pattern.xfer_id for pattern, _ in known])
    chances = 1 / np.sqrt(np.bincount(rules)[rules])
    return random.choice(len(known), size, p=chances / chances.sum()).tolist()


def match_loss(network: MatchNetwork):
    """The loss of a `Batch`, in nats: of whether rules apply, of the structure, and of what stands in a slot."""

    def loss(
        matches: MatchBatch, choices: Choices, table: Table, applies: tf.Tensor, structures: tf.Tensor,
        fillings: tf.Tensor,
    ) -> dict[str, tf.Tensor]:  # fmt: skip
        judged = network(matches, choices, table)
        errors = tf.nn.sigmoid_cross_entropy_with_logits(applies, judged.applies)
        positive, negative = _mean(errors, applies), _mean(errors, 1 - applies)
        structure = _surprise(judged.structures, structures, choices.structure_owners)
        slot = _surprise(judged.fillings, fillings, choices.filling_owners)
        return {
            "loss": positive + negative + structure + slot, "applies": positive, "refuted": negative,
            "structure": structure, "slot": slot,
        }  # fmt: skip

    return loss


def _mean(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(values * weights) / tf.maximum(tf.reduce_sum(weights), 1.0)


def _surprise(logits: tf.Tensor, true: tf.Tensor, owners: tf.Tensor) -> tf.Tensor:
    """Mean −log p of the true ones, [k]; p among those of one owner, int [k]."""
    size = tf.reduce_max(tf.concat([owners, [-1]], axis=0)) + 1
    highest = tf.gather(tf.math.unsorted_segment_max(logits, owners, size), owners)
    shifted = logits - tf.stop_gradient(highest)
    total = tf.gather(tf.math.unsorted_segment_sum(tf.exp(shifted), owners, size), owners)
    return _mean(tf.math.log(total) - shifted, true)
