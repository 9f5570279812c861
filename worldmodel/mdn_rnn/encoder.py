"""The graph encoder: a message-passing network whose readout is the latent state z.

The network encodes, processes and decodes (Battaglia et al. 2018, graph_nets). The decoder is used only to train the
encoder: from the latent state alone it predicts the global features of the graph (costs), the number of nodes per
operator and the number of locations per rule.
"""

import sonnet as snt
import tensorflow as tf
from graph_nets import modules
from graph_nets.graphs import GraphsTuple

from rlflow.common.task import EncodingSpec
from worldmodel.mdn_rnn.batching import GraphBatch
from worldmodel.network_parts import Normaliser, full_step, processed, standardise
from worldmodel.spaces import Z_BOUND

POOL_RATE = 0.02  # weight of a batch in the moving averages of pooled features, which are used outside training


class GraphEncoder(snt.Module):
    """An encoder from B graphs to latent states z [B, Z], which do not depend on the order of nodes and edges."""

    def __init__(self, spec: EncodingSpec, latent: int, hidden: int, message_passing_steps: int):
        super().__init__(name="encoder")
        self.spec = spec
        self.node_statistics = Normaliser(spec.node_features, "node_statistics")
        self.edge_statistics = Normaliser(spec.edge_features, "edge_statistics")
        self.global_statistics = Normaliser(spec.global_features, "global_statistics")
        self.operator_embedding = snt.Embed(spec.n_ops, hidden, name="operators")
        self.embed = modules.GraphIndependent(
            edge_model_fn=lambda: snt.Linear(hidden),
            node_model_fn=lambda: snt.Linear(hidden),
            global_model_fn=lambda: snt.Linear(hidden),
        )
        self.process = [full_step(hidden, tf.math.unsorted_segment_mean) for _ in range(message_passing_steps)]
        # Graphs of one model differ in a few of hundreds of nodes. Standardising the pooled features (batch
        # normalisation) makes such differences visible to the later layers.
        self.pool = snt.Sequential([snt.Linear(2 * hidden), tf.nn.relu], name="pool")
        self.pool_statistics = Normaliser(3 * hidden, "pool_statistics")
        self.readout = snt.nets.MLP([2 * hidden, latent], name="readout")
        self.latent_statistics = Normaliser(latent, "latent_statistics")
        n_targets = spec.global_features + spec.n_rules + spec.n_ops
        self.target_statistics = Normaliser(n_targets, "target_statistics")
        self.decoder = snt.nets.MLP([2 * hidden, n_targets], name="decoder")

    def fit_inputs(self, batch: GraphBatch, counts: tf.Tensor, rate: float = 1.0) -> None:
        """Update the normalisers of the inputs, and of the decoder's targets, with the statistics of some graphs.

        Args:
          batch: B graphs.
          counts: int32 [B, N], the number of locations of each rule.
          rate: weight of the new statistics; 1 replaces the old ones.
        """
        self.node_statistics.update(batch.nodes, rate)
        self.global_statistics.update(batch.globals, rate)
        self.target_statistics.update(self._targets(batch, counts), rate)
        if len(batch.edges):
            self.edge_statistics.update(batch.edges, rate)

    def __call__(self, batch: GraphBatch) -> tf.Tensor:
        """Return the latent states z, float32 [B, Z], standardised over the training data and clipped to ±Z_BOUND."""
        return tf.clip_by_value(self.latent_statistics(self.latent(batch)), -Z_BOUND, Z_BOUND)

    def latent(self, batch: GraphBatch, training: bool = False) -> tf.Tensor:
        """Return the latent states before standardisation, [B, Z] within ±1.

        Args:
          batch: B graphs.
          training: True to standardise pooled features by the statistics of this batch, and update the moving averages.
            False to standardise them by the moving averages.
        """
        graphs = self.embed(GraphsTuple(
            nodes=tf.concat([self.operator_embedding(batch.ops), self.node_statistics(batch.nodes)], axis=-1),
            edges=self.edge_statistics(batch.edges),
            globals=self.global_statistics(batch.globals),
            receivers=batch.receivers, senders=batch.senders, n_node=batch.n_node, n_edge=batch.n_edge,
        ))
        graphs = processed(graphs, self.process)
        pooled = tf.math.unsorted_segment_sum(
            self.pool(graphs.nodes), _owners(batch.n_node), tf.shape(batch.n_node)[0]
        )
        pooled = tf.concat([pooled, graphs.globals], axis=-1)
        if training:
            self.pool_statistics.update(tf.stop_gradient(pooled), POOL_RATE)
            mean, variance = tf.nn.moments(pooled, axes=[0])
            pooled = standardise(pooled, mean, variance)
        else:
            pooled = self.pool_statistics(pooled)
        return tf.tanh(self.readout(tf.concat([pooled, self.global_statistics(batch.globals)], axis=-1)))

    def loss(self, batch: GraphBatch, counts: tf.Tensor, training: bool = False) -> tuple[tf.Tensor, dict]:
        """Return the loss of the decoder and its parts by name.

        The parts "costs", "counts" and "operators" are the mean squared errors of the standardised global features,
        location counts and operator counts. The loss is the sum of the parts.

        Args:
          batch: B graphs.
          counts: int32 [B, N], the number of locations of each rule.
          training: see `latent`.
        """
        predicted = self.decoder(self.latent(batch, training))
        sizes = [self.spec.global_features, self.spec.n_rules, self.spec.n_ops]
        errors = tf.split(tf.square(predicted - self.target_statistics(self._targets(batch, counts))), sizes, axis=-1)
        parts = dict(zip(("costs", "counts", "operators"), map(tf.reduce_mean, errors), strict=True))
        return tf.add_n(list(parts.values())), parts

    def _targets(self, batch: GraphBatch, counts: tf.Tensor) -> tf.Tensor:
        """Return the decoder's targets, [B, G + N + n_ops]: globals, and log(1 + n) of location and operator counts."""
        n_graphs, n_ops = tf.shape(batch.n_node)[0], self.spec.n_ops
        cells = _owners(batch.n_node) * n_ops + batch.ops
        histogram = tf.reshape(tf.math.bincount(cells, minlength=n_graphs * n_ops), [n_graphs, n_ops])
        logs = [tf.math.log1p(tf.cast(numbers, tf.float32)) for numbers in (counts, histogram)]
        return tf.concat([batch.globals, *logs], axis=-1)


def _owners(n_node: tf.Tensor) -> tf.Tensor:
    """Return the index of the graph that each node belongs to, int32 [n]; n_node: int32 [B], nodes of each graph."""
    return tf.repeat(tf.range(tf.shape(n_node)[0]), n_node)
