"""The latent state z of a graph: a sum over its nodes, each seen with its neighbourhood by message passing.

    z = (Σ v(node) − mean) / std,   v(node) = a linear map of the node after R rounds of message passing

A rewrite changes v only within R edges of the changed nodes, so a step encodes only these nodes anew and keeps all
other vectors. Equal neighbourhoods have equal keys (worldmodel/edits/neighbourhood.py), so every neighbourhood is
encoded once for all dreams and initial graphs. The networks are independent of the size of the graph and of the names
of nodes.

The network is trained on real states to encode what a controller needs. A linear decoder reads the change of Σ v(node)
since the initial graph. It predicts the changes of the location counts and of the cost since the initial graph, and the
further fall of the cost in the rest of the episode.
"""

from collections.abc import Sequence

import numpy as np
import sonnet as snt
import tensorflow as tf

from worldmodel.edits.dream_states import NodeSets
from worldmodel.edits.grounding_index import GroundingIndex, GrowingArray
from worldmodel.edits.neighbourhood import Neighbourhoods, around, neighbourhoods
from worldmodel.edits.rule_learning import TrainingSet, evenly_drawn, first_new_state
from worldmodel.graph_mdn.network import NodeBatch, NodeEncoder, Table
from worldmodel.graph_mdn.network_inputs import SignatureTable
from worldmodel.graph_mdn.neural_costs import NODE_SIGNATURE, NodeRows
from worldmodel.network_parts import Normaliser
from worldmodel.spaces import Z_BOUND

CHANGES = 2  # targets besides the location counts: the cost, and its further fall in the rest of the episode
STATES = 400  # largest number of training states, at equal distances
SMALL = 0.01  # standard deviation of the decoder's initial weights, since a sum over many nodes is large
LEAST_VARIANCE = 1e-9  # an entry of z that varies less is not standardised
GRAPHS = 4  # graphs in a batch; the first one is the initial graph of the others


class LatentNetwork(snt.Module):
    """A graph network from nodes to vectors, and a linear decoder of the sum of the vectors.

    Args:
      width: the width of embeddings and hidden layers.
      rounds: R, the number of rounds of message passing.
      latent: Z, the size of the vector of a node.
      targets: M, the number of targets of the decoder; see `LatentBatches`.

    Attributes:
      sums: the standardisation of the sums over the nodes of a graph.
      changes: the standardisation of the decoder's targets.
    """

    def __init__(self, width: int, rounds: int, latent: int, targets: int):
        super().__init__(name="latent_network")
        self.encoder = NodeEncoder(width, rounds)
        self.vector = snt.Linear(latent, name="vector")
        small = snt.initializers.TruncatedNormal(stddev=SMALL)
        self.decoder = snt.Linear(targets, with_bias=False, w_init=small, name="decoder")
        self.sums = Normaliser(latent, "sums")
        self.changes = Normaliser(targets, "changes")

    def __call__(self, nodes: NodeBatch, table: Table) -> tf.Tensor:
        """Return the vector of each node, float32 [n, Z]."""
        return self.vector(self.encoder(nodes, table))


class GraphLatents:
    """A cache of the vectors of all neighbourhoods met so far, and the conversion of sums of vectors to z.

    Cached vectors come from the weights of the network at the time of encoding. Create a new object after a training.

    Args:
      network, table, rounds: the attributes of these names.
      latent: Z, the size of a vector.

    Attributes:
      network: the network.
      table: the features of signatures.
      rounds: R, the number of rounds of message passing.
    """

    def __init__(self, network: LatentNetwork, table: SignatureTable, rounds: int, latent: int):
        self.network, self.table, self.rounds = network, table, rounds
        self._call = tf.function(network.__call__, input_signature=NODE_SIGNATURE, autograph=False)
        self._vectors, self._numbers = GrowingArray(np.float64, latent), {}
        self._vectors.reserve(1)
        self._mean, variance = network.sums.mean.numpy(), network.sums.variance.numpy()
        self._std = np.sqrt(np.where(variance > LEAST_VARIANCE, variance, 1.0))

    @property
    def vectors(self) -> np.ndarray:
        """float64 [M, Z], the vectors so far; row 0 is zero and stands for a missing node."""
        return self._vectors.values

    def z(self, sums: np.ndarray) -> np.ndarray:
        """Return the latent states, float32 [.., Z], from sums of vectors, float64 [.., Z]."""
        return np.clip((sums - self._mean) / self._std, -Z_BOUND, Z_BOUND).astype(np.float32)

    def numbers(self, states: NodeSets, rows: NodeRows, near: Neighbourhoods) -> np.ndarray:
        """Return for k nodes the indices of their vectors in `vectors`, uint32 [k]; encode new neighbourhoods first.

        Args:
          states: the batch of states.
          rows: the nodes of the grounding as rows of the signature table.
          near: the nodes with their neighbourhood keys, for at least R distances.
        """
        index = states.index
        keys = near.keys[self.rounds - 1] if self.rounds else index.signature_hash.values[near.nodes] >> np.uint64(32)
        unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        new = [k for k, key in zip(first.tolist(), unique.tolist(), strict=True) if key not in self._numbers]
        if new:
            walk = around(states, near.rows[new], near.nodes[new], self.rounds)
            made = self._call(rows.batch(*walk), Table.of(self.table)).numpy()[: len(new)]
            at = self._vectors.reserve(len(new))
            self._vectors.data[at : at + len(new)] = made
            self._numbers |= {int(keys[k]): at + i for i, k in enumerate(new)}
        return np.array([self._numbers[key] for key in unique.tolist()], np.uint32)[inverse]

    def of_nodes(self, index: GroundingIndex, rows: NodeRows, nodes: Sequence[np.ndarray]) -> np.ndarray:
        """Return the latent states of n graphs, float32 [n, Z].

        Args:
          index: the grounding of the graphs.
          rows: the nodes of the grounding as rows of the signature table.
          nodes: for each graph, int64 [k], the numbers of its nodes.
        """
        states = NodeSets(index, list(nodes))
        near = neighbourhoods(states, *states.cells(), self.rounds)
        numbers = self.numbers(states, rows, near)
        sums = np.zeros((states.n, len(self._mean)))
        np.add.at(sums, near.rows, self.vectors[numbers])
        return self.z(sums)


class LatentBatches:
    """A function from the number of a training step to a batch of GRAPHS graphs of one grounding and their targets.

    A batch is (nodes, table, owners int32 [n]: the graph of each node, targets float32 [GRAPHS, M]). The first graph is
    the initial one, with targets 0. The M = N + CHANGES targets of a graph are:

    - for each rule, the change of log(1 + location count) since the initial graph;
    - the change of the cost since the initial graph, as a share of the initial cost;
    - the change from the cost to the smallest cost in the rest of the episode, at most 0, as a share of the initial
      cost.

    Args:
      training: the training set.
      table: the features of signatures.
      seed: the seed of the random choices.

    Attributes:
      targets: float32 [S, M], the targets of all S training states.
    """

    def __init__(self, training: TrainingSet, table: SignatureTable, seed: int):
        self.table, self.seed = table, seed
        states = [
            (index, k, t) for index, numbers in training.by_grounding.items() for k in numbers
            for t in range(max(first_new_state(training.grounded[k]), 1), len(training.grounded[k].nodes))
        ]  # fmt: skip
        self._states = evenly_drawn(states, STATES)
        self._rows = {index: NodeRows(index, table) for index in training.by_grounding}
        self._nodes = [training.grounded[k].nodes[t] for _, k, t in self._states]
        firsts = {index: numbers[0] for index, numbers in training.by_grounding.items()}
        self._firsts = {index: training.grounded[first].nodes[0] for index, first in firsts.items()}
        self._of = {index: [s for s, state in enumerate(self._states) if state[0] is index] for index in self._rows}
        self.targets = np.stack([_targets(training.episodes[k], t) for _, k, t in self._states])

    def __call__(self, step: int) -> tuple[NodeBatch, Table, np.ndarray, np.ndarray]:
        random = np.random.default_rng([self.seed, step])
        index = self._states[random.integers(len(self._states))][0]
        chosen = random.choice(self._of[index], GRAPHS - 1)
        nodes, owners = self._batch(index, [self._firsts[index], *[self._nodes[s] for s in chosen.tolist()]])
        targets = np.concatenate([np.zeros_like(self.targets[:1]), self.targets[chosen]])
        return nodes, Table.of(self.table), owners, targets

    def _batch(self, index: GroundingIndex, graphs: list[np.ndarray]) -> tuple[NodeBatch, np.ndarray]:
        states = NodeSets(index, graphs)
        rows, nodes = states.cells()
        return self._rows[index].batch(*around(states, rows, nodes, 1)), rows.astype(np.int32)

    def sums(self, network: LatentNetwork) -> np.ndarray:
        """Return the sums over the nodes of all training states and of the initial graphs, float32 [.., Z]."""
        call, result = tf.function(network.__call__, input_signature=NODE_SIGNATURE, autograph=False), []
        for index, numbers in self._of.items():
            graphs = [self._firsts[index], *[self._nodes[s] for s in numbers]]
            for first in range(0, len(graphs), GRAPHS):
                nodes, owners = self._batch(index, graphs[first : first + GRAPHS])
                vectors = call(nodes, Table.of(self.table))
                result.append(tf.math.unsorted_segment_sum(vectors, owners, owners.max() + 1).numpy())
        return np.concatenate(result)


def _targets(episode, t: int) -> np.ndarray:
    """Return the targets of the state after t steps of an episode, float32 [M]; see `LatentBatches`."""
    counts = np.log1p(episode.counts[t]) - np.log1p(episode.counts[0])
    costs = episode.costs / episode.costs[0]
    return np.concatenate([counts, [costs[t] - 1.0, costs[t:].min() - costs[t]]]).astype(np.float32)


# The tensor specifications of the batches of `LatentBatches`.
LATENT_BATCH = (*NODE_SIGNATURE, tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None]))


def latent_loss(network: LatentNetwork):
    """Return a function from a batch of `LatentBatches` to the losses of the network.

    "loss" is the sum of "locations", "cost" and "further": mean squared errors of the standardised targets.
    """

    def loss(nodes: NodeBatch, table: Table, owners: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
        sums = tf.math.unsorted_segment_sum(network(nodes, table), owners, tf.shape(targets)[0])
        errors = tf.square(network.decoder(sums[1:] - sums[:1]) - _scaled(network, targets[1:]))
        parts = {"locations": errors[:, :-CHANGES], "cost": errors[:, -2], "further": errors[:, -1]}
        means = {name: tf.reduce_mean(part) for name, part in parts.items()}
        return {"loss": tf.add_n(list(means.values())), **means}

    return loss


def _scaled(network: LatentNetwork, targets: tf.Tensor) -> tf.Tensor:
    """Return targets over their standard deviation; the initial graph, whose change is 0, keeps the target 0."""
    return network.changes(targets) - network.changes(tf.zeros_like(targets))
