"""Training data of the networks, and their losses.

The match network learns where rules applied, where they did not, and their effects. The node network learns the
differences between logged costs and the cost laws. Every batch is a function of (seed, step), so an interrupted and
resumed training gives the same weights as an uninterrupted one.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import tensorflow as tf

from worldmodel.edits.dream_states import NodeSets
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.learned_rules import Effect, LearnedRules, complete_effect
from worldmodel.edits.logged_episodes import GroundedEpisode
from worldmodel.edits.neighbourhood import around
from worldmodel.edits.rule_learning import TrainingSet, evenly_drawn, first_new_state
from worldmodel.graph_mdn.effects import Choices, Offer, Vocabulary, choices_of
from worldmodel.graph_mdn.network import MatchNetwork, NodeBatch, NodeNetwork, Table, likeliest
from worldmodel.graph_mdn.network_inputs import Asked, MatchBatch, MatchGraph, SignatureTable, match_batch
from worldmodel.graph_mdn.neural_costs import NODE_SIGNATURE, CostLaws, NodeRows, joined_nodes
from worldmodel.graph_mdn.neural_rules import MATCH_SIGNATURE
from worldmodel.network_parts import log_likelihood

REWRITTEN, APPLIED, REFUTED = 32, 32, 32  # number of examples from each list of `Examples` in a batch
FILLINGS = 16  # largest number of fillings of a slot in a batch; it bounds the time for rules with many different sizes
MATCH_BATCH = (*MATCH_SIGNATURE, *[tf.TensorSpec([None])] * 4)  # the fields of `Batch`


class Examples(NamedTuple):
    """The matches that the match networks learn from.

    Attributes:
      applied: matches to which their rule applied, for rules with at least one refuted match.
      refuted: matches of a rule's pattern to which the rule did not apply.
      rewritten: matches with a known effect.
      effects: the effect of each match in `rewritten`.
    """

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
    """A batch of M different matches with the targets of the match network.

    Attributes:
      matches, choices, table: the inputs of the network.
      applies: float32 [M], 1 if the rule applied to the match, else 0.
      drawn: float32 [M], how often the match was drawn.
      structures: float32 [C], `drawn` for the observed structure of each rewritten match, else 0.
      fillings: float32 [F], `drawn` for the observed filling of each slot of an observed structure, else 0.
    """

    matches: MatchBatch
    choices: Choices
    table: Table
    applies: np.ndarray
    drawn: np.ndarray
    structures: np.ndarray
    fillings: np.ndarray


def vocabulary_of(rules: LearnedRules, examples: Examples) -> Vocabulary:
    """Return the structures and fillings of the effects in `examples.rewritten`.

    Args:
      rules: the rules, which know the operator type of each operator.
      examples: the examples.
    """
    result = Vocabulary(rules.op_types)
    for (pattern, _), effect in zip(examples.rewritten, examples.effects, strict=True):
        result.learn(pattern, effect)
    return result


class MatchBatches:
    """A function from the number of a training step to a `Batch` of randomly drawn examples.

    A rule with n examples is drawn √n times as often as a rule with one example.

    Args:
      examples: the examples.
      vocabulary: the structures of effects.
      table: the features of signatures.
      seed: the seed of the drawing.
    """

    def __init__(self, examples: Examples, vocabulary: Vocabulary, table: SignatureTable, seed: int):
        self.examples, self.vocabulary, self.table, self.seed = examples, vocabulary, table, seed
        self._graphs: dict[tuple[int, int], MatchGraph] = {}  # by (index of a list, index of an example)
        self._targets: dict[int, tuple[Offer, int, list[int]]] = {}

    def __call__(self, step: int) -> Batch:
        random, examples, graphs, drawn = np.random.default_rng([self.seed, step]), self.examples, [], []
        for which, (known, size) in enumerate(
            ((examples.rewritten, REWRITTEN), (examples.applied, APPLIED), (examples.refuted, REFUTED))
        ):
            chosen, times = np.unique(_drawn_examples(random, known, size), return_counts=True)
            graphs.append([self._graph(which, known, k) for k in chosen.tolist()])
            drawn.append(times.astype(np.float32))
            if which == 0:
                targets = [self._target(k, random) for k in chosen.tolist()]
        offers = [offer for offer, _, _ in targets]
        structures = [offer.structures == happened for offer, happened, _ in targets]
        fillings = [np.isin(np.arange(len(offer.rows)), true) for offer, _, true in targets]
        times = drawn[0]
        return Batch(
            match_batch([graph for part in graphs for graph in part]), choices_of(offers), Table.of(self.table),
            np.repeat(np.array([1, 1, 0], np.float32), [len(part) for part in graphs]), np.concatenate(drawn),
            _weighted(structures, times), _weighted(fillings, times),
        )  # fmt: skip

    def _graph(self, which: int, known: list[Asked], k: int) -> MatchGraph:
        if (which, k) not in self._graphs:
            self._graphs[which, k] = MatchGraph.of(known[k], self.table)
        return self._graphs[which, k]

    def _target(self, k: int, random: np.random.Generator) -> tuple[Offer, int, np.ndarray]:
        """Return the target of a rewritten match.

        Args:
          k: the index of the match in `examples.rewritten`.
          random: the generator that draws the fillings to offer, if a slot has more than FILLINGS.

        Returns:
          (the offer with the slots of the observed structure alone, the number of this structure, int [S] the index of
          the observed filling of each slot among all fillings of the offer).
        """
        if k not in self._targets:
            self._targets[k] = self._observed(k)
        offer, happened, stood = self._targets[k]
        sizes = [len(values) for _, values in offer.named]
        if max(sizes, default=0) > FILLINGS:
            kept = [
                range(size) if size <= FILLINGS else _some(random, size, at)
                for size, at in zip(sizes, stood, strict=True)
            ]  # fmt: skip
            offer, stood = offer.limited(kept), [some.index(at) for some, at in zip(kept, stood, strict=True)]
        return offer, happened, np.searchsorted(offer.owners, np.arange(len(stood))) + np.array(stood, np.int64)

    def _observed(self, k: int) -> tuple[Offer, int, list[int]]:
        """Return the result of `_target` with all fillings, but with the indices of fillings within their slots."""
        effect = self.examples.effects[k]
        happened = self.vocabulary.number_of(effect)
        offer = Offer.of(self.vocabulary, self.table, self.examples.rewritten[k])
        is_own = offer.structures[offer.slots[:, 1]] == happened
        offer = offer.limited([
            range(len(values)) if own else () for own, (_, values) in zip(is_own.tolist(), offer.named, strict=True)
        ])  # fmt: skip
        slots = zip(offer.slots[:, 0].tolist(), offer.named, strict=True)
        return offer, happened, [values.index(self._observed_filling(slot, effect)) for slot, (_, values) in slots]

    def _observed_filling(self, slot: int, effect: Effect) -> int:
        """Return the operator, or the tensor signature, that an observed effect has in a slot of its structure."""
        _, is_tensor, k = self.vocabulary.slots[slot]
        return effect.made[k][1] if is_tensor else effect.added[k][0]


def _some(random: np.random.Generator, size: int, stood: int) -> list[int]:
    """Return FILLINGS of `size` indices in ascending order: `stood` and random other ones."""
    others = random.permutation(size - 1)[: FILLINGS - 1]
    return sorted([stood, *(others + (others >= stood)).tolist()])


def _weighted(true: list[np.ndarray], times: np.ndarray) -> np.ndarray:
    """Return the concatenated targets, float32, each times the number of draws of its match."""
    return np.concatenate([np.zeros(0, np.float32), *[one * weight for one, weight in zip(true, times, strict=True)]])


def _drawn_examples(random: np.random.Generator, known: list[Asked], size: int) -> list[int]:
    """Return the indices of `size` random examples, drawn as `MatchBatches` describes; [] if there are no examples."""
    if not known:
        return []
    rules = np.array([pattern.xfer_id for pattern, _ in known])
    chances = 1 / np.sqrt(np.bincount(rules)[rules])
    return random.choice(len(known), size, p=chances / chances.sum()).tolist()


def match_loss(network: MatchNetwork):
    """Return a function from the fields of a `Batch` to the losses of the network, in nats.

    "loss" is the sum of "applies" (matches to which the rule applied), "refuted" (the other matches), "structure" and
    "slot" (fillings), each a mean cross-entropy.
    """

    def loss(
        matches: MatchBatch, choices: Choices, table: Table, applies: tf.Tensor, drawn: tf.Tensor,
        structures: tf.Tensor, fillings: tf.Tensor,
    ) -> dict[str, tf.Tensor]:  # fmt: skip
        judged = network(matches, choices, table)
        errors = tf.nn.sigmoid_cross_entropy_with_logits(applies, judged.applies)
        positive, negative = _weighted_mean(errors, drawn * applies), _weighted_mean(errors, drawn * (1 - applies))
        structure = _surprise(judged.structures, structures, choices.structure_owners)
        slot = _surprise(judged.fillings, fillings, choices.filling_owners)
        return {
            "loss": positive + negative + structure + slot, "applies": positive, "refuted": negative,
            "structure": structure, "slot": slot,
        }  # fmt: skip

    return loss


def _weighted_mean(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(values * weights) / tf.maximum(tf.reduce_sum(weights), 1.0)


def _surprise(logits: tf.Tensor, true: tf.Tensor, owners: tf.Tensor) -> tf.Tensor:
    """Return the weighted mean −log p of the true entries, float32 [], where p is the softmax within each group.

    Args:
      logits: float32 [k].
      true: float32 [k], the weights of true entries; 0 for all others.
      owners: int32 [k], the group of each entry.
    """
    size = tf.reduce_max(tf.concat([owners, [-1]], axis=0)) + 1
    highest = tf.gather(tf.math.unsorted_segment_max(logits, owners, size), owners)
    shifted = logits - tf.stop_gradient(highest)
    total = tf.gather(tf.math.unsorted_segment_sum(tf.exp(shifted), owners, size), owners)
    return _weighted_mean(tf.math.log(total) - shifted, true)


SIGNATURES = 256  # number of single nodes in a batch, if costs do not depend on neighbourhoods
NODE_BATCH = (*NODE_SIGNATURE, tf.TensorSpec([None]))  # the tensor specifications of the batches of `NodeBatches`
# If costs depend on neighbourhoods, the examples are at most STATES whole graphs, STATES_AT_ONCE of them in a batch.
STATES, STATES_AT_ONCE = 400, 4


class CostedNodes(NamedTuple):
    """An example of the node network: n nodes with their logged costs.

    Attributes:
      nodes: the nodes.
      log_ns: float32 [n], log(1 + cost in ns) of each node; after `fit_laws`, the same minus the prediction of the law.
    """

    nodes: NodeBatch
    log_ns: np.ndarray


class NodeBatches:
    """A function from the number of a training step to (nodes, table, log_ns) of `at_once` randomly drawn examples.

    An example is one node (all with different signatures) or a whole graph.

    Args:
      examples: the examples; see `single_nodes` and `whole_graphs`.
      table: the features of signatures.
      at_once: the number of examples in a batch.
      seed: the seed of the drawing.
    """

    def __init__(self, examples: Sequence[CostedNodes], table: SignatureTable, at_once: int, seed: int):
        self.examples, self.table, self.at_once, self.seed = examples, table, at_once, seed

    def __call__(self, step: int) -> tuple[NodeBatch, Table, np.ndarray]:
        random = np.random.default_rng([self.seed, step])
        chosen = random.choice(len(self.examples), min(self.at_once, len(self.examples)), replace=False)
        drawn = [self.examples[k] for k in np.sort(chosen).tolist()]
        nodes = joined_nodes([example.nodes for example in drawn])
        return nodes, Table.of(self.table), np.concatenate([e.log_ns for e in drawn])


def single_nodes(training: TrainingSet, table: SignatureTable) -> list[CostedNodes]:
    """Return one node for each combination of operator signature and typical sizes, with the mean of its logged costs.

    Args:
      training: the training set.
      table: the features of signatures.
    """
    logged: dict[tuple, list[float]] = {}
    where: dict[tuple, tuple[NodeRows, int]] = {}
    for index, episodes in training.groups():
        rows = NodeRows(index, table)
        for episode in episodes:
            for nodes, runtimes in episode.runtimes[first_new_state(episode) :]:
                for node, runtime in zip(nodes.tolist(), runtimes.tolist(), strict=True):
                    key = index.grounding.first.sizes, *index.grounding.operator_signature(node)
                    logged.setdefault(key, []).append(runtime)
                    where.setdefault(key, (rows, node))
    nothing = np.zeros(0, np.int32)
    result = []
    for key, runtimes in logged.items():
        rows, node = where[key]
        result.append(
            CostedNodes(rows.batch(np.array([node]), nothing, nothing, nothing), _log_ns([np.mean(runtimes)]))
        )
    return result


def whole_graphs(training: TrainingSet, table: SignatureTable) -> list[CostedNodes]:
    """Return graphs with the costs of all their nodes: at most STATES states, evenly spaced over all episodes.

    States that an episode repeats from an earlier episode are not used.

    Args:
      training: the training set.
      table: the features of signatures.
    """
    states = []
    for index, episodes in training.groups():
        rows = NodeRows(index, table)
        for episode in episodes:
            states += [(index, rows, episode, t) for t in range(first_new_state(episode), len(episode.nodes))]
    return [_whole_graph(*state) for state in evenly_drawn(states, STATES)]


def _whole_graph(index: GroundingIndex, rows: NodeRows, episode: GroundedEpisode, t: int) -> CostedNodes:
    there = episode.nodes[t]
    states = NodeSets(index, [there])
    nodes, senders, receivers, makes = around(states, np.zeros(len(there), np.int64), there, 1)
    return CostedNodes(rows.batch(nodes, senders, receivers, makes), _log_ns(episode.costs(t)))


def _log_ns(runtimes_ps: Sequence[float]) -> np.ndarray:
    return np.log1p(np.array(runtimes_ps) / 1e3).astype(np.float32)


def fit_laws(examples: Sequence[CostedNodes], table: SignatureTable) -> tuple[CostLaws, list[CostedNodes]]:
    """Fit the cost laws to examples.

    Args:
      examples: nodes with log(1 + ns).
      table: the features of signatures.

    Returns:
      (the laws, the examples with log(1 + ns) minus the prediction of the laws).
    """
    nodes, log_ns = joined_nodes([example.nodes for example in examples]), [example.log_ns for example in examples]
    ends, every = np.cumsum([len(part) for part in log_ns]), np.concatenate(log_ns)
    laws = CostLaws.fit(nodes, every, table)
    left = np.split(every - laws(nodes, table), ends[:-1])
    return laws, [CostedNodes(example.nodes, part) for example, part in zip(examples, left, strict=True)]


def fit_node_statistics(network: NodeNetwork, examples: Sequence[CostedNodes], table: SignatureTable) -> None:
    """Set the normalisers of a node network to the statistics of its training data.

    Args:
      network: the network; modified.
      examples: the examples, with residuals as `fit_laws` returns them.
      table: the features of signatures.
    """
    network.encoder.signatures.fit(table)
    network.costs.update(tf.constant(np.concatenate([example.log_ns for example in examples]))[:, None])


def node_loss(network: NodeNetwork):
    """Return a function from a batch of `NodeBatches` to the losses of the network.

    "loss" is the mean −log p of the standardised residuals, in nats. "error" is the mean absolute error of the most
    likely log(1 + ns).
    """

    def loss(nodes: NodeBatch, table: Table, log_ns: tf.Tensor) -> dict[str, tf.Tensor]:
        mixture, costs = network(nodes, table), network.costs(log_ns[:, None])
        surprise = -log_likelihood(mixture, costs[:, 0])
        error = tf.abs(likeliest(mixture) - costs[:, 0]) * tf.sqrt(network.costs.variance[0])
        return {"loss": tf.reduce_mean(surprise), "error": tf.reduce_mean(error)}

    return loss
