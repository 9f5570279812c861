"""Training of the node network: from what nodes were logged to cost."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from worldmodel.edits.dream_states import DreamStates
from worldmodel.edits.grounded_episodes import GroundedEpisode
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.neighbourhood import around
from worldmodel.edits.training_set import TrainingSet, evenly_drawn, first_new_state
from worldmodel.graph_mdn.cost_laws import CostLaws
from worldmodel.graph_mdn.network import NodeBatch, NodeNetwork, Table, likeliest
from worldmodel.graph_mdn.neural_costs import NODES
from worldmodel.graph_mdn.node_batches import NodeRows, joined
from worldmodel.graph_mdn.signature_table import SignatureTable
from worldmodel.mdn_rnn.mdn import log_likelihood

SIGNATURES = 256  # of nodes in a batch, where each is judged by itself
BATCH = (*NODES, tf.TensorSpec([None]))  # what `NodeBatches` draws
STATES, STATES_AT_ONCE = 400, 4  # graphs that are learnt from, and of a batch, where neighbourhoods count


class Costed(NamedTuple):
    """Nodes and what they cost. log_ns: float32 [n], log(1 + ns), or what laws leave over of that."""

    nodes: NodeBatch
    log_ns: np.ndarray


class NodeBatches:
    """Step → (Costed, table), drawn from examples.

    examples: one of all nodes with different operator signatures, or one a graph.
    """

    def __init__(self, examples: Sequence[Costed], table: SignatureTable, at_once: int, seed: int):
        self.examples, self.table, self.at_once, self.seed = examples, table, at_once, seed

    def __call__(self, step: int) -> tuple[NodeBatch, Table, np.ndarray]:
        random = np.random.default_rng([self.seed, step])
        chosen = random.choice(len(self.examples), min(self.at_once, len(self.examples)), replace=False)
        drawn = [self.examples[k] for k in np.sort(chosen).tolist()]
        nodes = joined([example.nodes for example in drawn])
        return nodes, Table.of(self.table), np.concatenate([e.log_ns for e in drawn])


def single_nodes(training: TrainingSet, table: SignatureTable) -> list[Costed]:
    """One example for each operator signature at each of the typical sizes, of its mean cost."""
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
        result.append(Costed(rows.batch(np.array([node]), nothing, nothing, nothing), _log_ns([np.mean(runtimes)])))
    return result


def whole_graphs(training: TrainingSet, table: SignatureTable) -> list[Costed]:
    """At most STATES graphs with what all their nodes cost, evenly drawn from those that no other episode logged."""
    states = []
    for index, episodes in training.groups():
        rows = NodeRows(index, table)
        for episode in episodes:
            states += [(index, rows, episode, t) for t in range(first_new_state(episode), len(episode.nodes))]
    return [_whole_graph(*state) for state in evenly_drawn(states, STATES)]


def _whole_graph(index: GroundingIndex, rows: NodeRows, episode: GroundedEpisode, t: int) -> Costed:
    runtime = {}
    for nodes, runtimes in episode.runtimes[: t + 1]:
        runtime |= zip(nodes.tolist(), runtimes.tolist(), strict=True)
    there = episode.nodes[t]
    states = DreamStates(index, [there], int(index.rule.values.max(initial=0)) + 1)
    nodes, senders, receivers, makes = around(states, np.zeros(len(there), np.int64), there, 1)
    return Costed(rows.batch(nodes, senders, receivers, makes), _log_ns([runtime[node] for node in nodes.tolist()]))


def _log_ns(runtimes_ps: Sequence[float]) -> np.ndarray:
    return np.log1p(np.array(runtimes_ps) / 1e3).astype(np.float32)


def fit_laws(examples: Sequence[Costed], table: SignatureTable) -> tuple[CostLaws, list[Costed]]:
    """(the laws of the examples, the examples with what these leave over)."""
    nodes, log_ns = joined([example.nodes for example in examples]), [example.log_ns for example in examples]
    ends, every = np.cumsum([len(part) for part in log_ns]), np.concatenate(log_ns)
    laws = CostLaws.fit(nodes, every, table)
    left = np.split(every - laws(nodes, table), ends[:-1])
    return laws, [Costed(example.nodes, part) for example, part in zip(examples, left, strict=True)]


def fit_node_statistics(network: NodeNetwork, examples: Sequence[Costed], table: SignatureTable) -> None:
    network.signatures.fit(table)
    network.costs.update(tf.constant(np.concatenate([example.log_ns for example in examples]))[:, None])


def node_loss(network: NodeNetwork):
    """The loss of a batch: −log p of the standardised costs, in nats."""

    def loss(nodes: NodeBatch, table: Table, log_ns: tf.Tensor) -> dict[str, tf.Tensor]:
        mixture, costs = network(nodes, table), network.costs(log_ns[:, None])
        surprise = -log_likelihood(mixture, costs[:, 0])
        error = tf.abs(likeliest(mixture) - costs[:, 0]) * tf.sqrt(network.costs.variance[0])
        return {"loss": tf.reduce_mean(surprise), "error": tf.reduce_mean(error)}

    return loss
