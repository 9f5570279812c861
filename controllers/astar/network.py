"""The value network of Knossos: a gated graph neural network (Li et al. 2016) with one output for each number of steps.

    nodes     x = LayerNorm(E[operator] + W f)      f: features of the node
    messages  m = Σ tanh(U e) ⊙ (A h)               over all edges of a node, in both directions; e: features
    nodes     h' = GRU(h, m), h = x at first        equation 7, `propagations` times
    readout   r = Σ σ(G [h, x]) ⊙ tanh(R [h, x])    over the nodes of a graph
    values    V = MLP(r)                            equation 5, for 1 to `horizon` steps

Without propagations the network sees a set of nodes without edges. This is the control "without GNN" of the paper.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from controllers.controller_options import AStarConfig
from controllers.policies import Orthogonal, linear
from rlflow.common.task import EncodingSpec, GraphArrays


class Graphs(NamedTuple):
    """B concatenated graphs with N nodes and M edges in all.

    Attributes:
      ops: int32 [N], operator ids.
      nodes, edges: float32 [N, F] and [M, Fe], the features.
      senders, receivers: int32 [M], the rows at the ends of each edge.
      owners: int32 [N], the graph of each node.
      number: int32 [], B.
    """

    ops: tf.Tensor
    nodes: tf.Tensor
    edges: tf.Tensor
    senders: tf.Tensor
    receivers: tf.Tensor
    owners: tf.Tensor
    number: tf.Tensor


def joined(graphs: Sequence[GraphArrays]) -> Graphs:
    """Concatenate one or more graphs."""
    sizes = [len(graph.ops) for graph in graphs]
    first = np.cumsum(sizes) - sizes
    edges = np.repeat(first, [len(graph.senders) for graph in graphs])

    def together(name: str) -> np.ndarray:
        return np.concatenate([getattr(graph, name) for graph in graphs])

    return Graphs(
        together("ops"), together("nodes"), together("edges"), (together("senders") + edges).astype(np.int32),
        (together("receivers") + edges).astype(np.int32), np.repeat(np.arange(len(graphs), dtype=np.int32), sizes),
        np.int32(len(graphs)),
    )  # fmt: skip


class ValueNetwork(snt.Module):
    """The network V; see the docstring of the module.

    Args:
      config: the options.
      spec: the sizes of the task's graphs.
      rng: the generator of the initial weights.

    Attributes:
      values: a function that is compiled once for all sizes, from `Graphs` to the values float32 [B, horizon].
    """

    def __init__(self, config: AStarConfig, spec: EncodingSpec, rng: np.random.Generator):
        super().__init__("value")
        width, hidden = config.width, config.hidden
        self.propagations, self.dropout = config.propagations, config.dropout
        self.operators = snt.Embed(spec.n_ops, width, initializer=Orthogonal(rng, 1.0), name="operators")
        self.features = linear(rng, spec.node_features, width, 1.0, "features")
        self.normal = snt.LayerNorm(-1, True, True, name="normal")
        self.normal(tf.zeros([1, width]))  # creates the variables
        if config.propagations:
            self.scales = [linear(rng, spec.edge_features, width, np.sqrt(width), f"scales_{k}") for k in range(2)]
            self.messages = [linear(rng, width, width, 1.0, f"messages_{k}") for k in range(2)]
            self.gates = linear(rng, 2 * width, 2 * width, 1.0, "gates")
            self.proposal = linear(rng, 2 * width, width, 1.0, "proposal")
        self.weight = linear(rng, 2 * width, width, 1.0, "weight")
        self.readout = linear(rng, 2 * width, width, 1.0, "readout")
        self.hidden = [
            linear(rng, *sizes, 1.0, f"hidden_{k}") for k, sizes in enumerate([(width, hidden), (hidden, hidden)])
        ]
        self.last = linear(rng, hidden, config.horizon, 0.0, "last")
        self.values = tf.function(self._forward, input_signature=[signature(spec)], autograph=False)

    def _forward(self, graphs: Graphs, seeds: tf.Tensor | None = None) -> tf.Tensor:
        """Return the values, float32 [B, horizon].

        Args:
          graphs: the graphs.
          seeds: int32 [2, 2], the seeds of dropout; None for no dropout.
        """
        x = self.normal(self.operators(graphs.ops) + self.features(graphs.nodes))
        h = self._propagated(x, graphs) if self.propagations else x
        both = tf.concat([h, x], axis=1)
        rows = tf.sigmoid(self.weight(both)) * tf.tanh(self.readout(both))
        result = tf.math.unsorted_segment_sum(rows, graphs.owners, graphs.number)
        for number, layer in enumerate(self.hidden):
            result = tf.tanh(layer(result))
            if seeds is not None and self.dropout:
                result = tf.nn.experimental.stateless_dropout(result, self.dropout, seeds[number])
        return self.last(result)

    def _propagated(self, h: tf.Tensor, graphs: Graphs) -> tf.Tensor:
        n, width = tf.shape(h)[0], h.shape[1]
        ends = (graphs.senders, graphs.receivers), (graphs.receivers, graphs.senders)
        scales = [tf.tanh(scale(graphs.edges)) for scale in self.scales]
        for _ in range(self.propagations):
            received = 0.0
            for (sources, targets), scale, message in zip(ends, scales, self.messages, strict=True):
                sent = scale * tf.gather(message(h), sources)
                received += tf.math.unsorted_segment_sum(sent, targets, n)
            update, reset = tf.split(tf.sigmoid(self.gates(tf.concat([received, h], axis=1))), 2, axis=1)
            proposal = tf.tanh(self.proposal(tf.concat([received, reset * h], axis=1)))
            h = tf.ensure_shape(h + update * (proposal - h), [None, width])
        return h

    def loss(self, graphs: Graphs, targets: tf.Tensor, known: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """Return the mean Huber loss of the known targets, float32 [].

        Args:
          graphs: B graphs.
          targets: float32 [B, horizon].
          known: float32 [B, horizon], 1 for each target that counts, otherwise 0.
          seeds: int32 [2, 2], the seeds of dropout.
        """
        error = tf.abs(self._forward(graphs, seeds) - targets)
        losses = tf.where(error < 1.0, 0.5 * tf.square(error), error - 0.5)
        return tf.reduce_sum(losses * known) / tf.maximum(tf.reduce_sum(known), 1.0)


def signature(spec: EncodingSpec) -> Graphs:
    """Return the specifications of the tensors of `Graphs` for a task."""
    numbers = tf.TensorSpec([None], tf.int32)
    return Graphs(
        numbers, tf.TensorSpec([None, spec.node_features]), tf.TensorSpec([None, spec.edge_features]), numbers, numbers,
        numbers, tf.TensorSpec([], tf.int32),
    )  # fmt: skip
