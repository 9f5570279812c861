"""The networks that value states and choices: a gated graph neural network (Li et al. 2016), and a head for each.

    nodes     x = LayerNorm(E[operator] + W f)      f: features of the node
    messages  m = Σ tanh(U e) ⊙ (A h)               over all edges of a node, in both directions; e: features
    nodes     h' = GRU(h, m), h = x at first        equation 7 of Knossos, `propagations` times
    readout   r = Σ σ(G [h, x]) ⊙ tanh(R [h, x])    over the nodes of a graph
    states    V = MLP(r)                            equation 5 of Knossos, for 1 to `horizon` steps
    choices   Q = MLP([n, n̄, T[sort], r])           n = [h, x] of the first node of a choice, n̄ the mean over its nodes

Without propagations the network sees a set of nodes without edges. This is the control "without GNN" of the paper.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from controllers.controller_options import QSTAR, AStarConfig
from controllers.policies import Orthogonal, linear
from rlflow.common.task import EncodingSpec, GraphArrays, LocalState, Match


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


class Choices(NamedTuple):
    """The A choices of one graph or of several concatenated graphs.

    Attributes:
      sorts: int32 [A], action types.
      firsts: int32 [A], the row of the first node (`Match.nodes[0]`) of each choice.
      rows, owners: int32 [P], the rows of all nodes of all choices, and the number of the choice of each.
    """

    sorts: np.ndarray
    firsts: np.ndarray
    rows: np.ndarray
    owners: np.ndarray


def choices_of(state: LocalState, matches: Sequence[Match]) -> Choices:
    """Return matches of a state as choices in its graph.

    Args:
      state: the state.
      matches: A matches of this state, each with at least one node.
    """
    rows = [[state.rows[node] for node in match.nodes] for match in matches]
    return Choices(
        np.array([match.xfer_id for match in matches], np.int32), np.array([each[0] for each in rows], np.int32),
        np.array([row for each in rows for row in each], np.int32),
        np.repeat(np.arange(len(rows), dtype=np.int32), [len(each) for each in rows]),
    )  # fmt: skip


def joined_choices(graphs: Sequence[GraphArrays], choices: Sequence[Choices]) -> Choices:
    """Concatenate the choices of one or more graphs, and renumber rows and choices as `joined` renumbers the graphs.

    Args:
      graphs: the graphs.
      choices: the choices of each graph.
    """
    rows, numbers, result = 0, 0, []
    for graph, one in zip(graphs, choices, strict=True):
        result.append(Choices(one.sorts, one.firsts + rows, one.rows + rows, one.owners + numbers))
        rows, numbers = rows + len(graph.ops), numbers + len(one.sorts)
    return Choices(*(np.concatenate(parts).astype(np.int32) for parts in zip(*result, strict=True)))


class ValueNetwork(snt.Module):
    """The network V, or Q if `config.search` is qstar; see the docstring of the module.

    Args:
      config: the options.
      spec: the sizes of the task's graphs.
      rng: the generator of the initial weights.

    Attributes:
      values: a function that is compiled once for all sizes, from `Graphs` to the values float32 [B, horizon], or from
        (`Graphs`, `Choices`) to the values float32 [A, horizon].
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
        if config.search == QSTAR:
            self.sorts = snt.Embed(spec.n_rules, width, initializer=Orthogonal(rng, 1.0), name="sorts")
        inputs = 6 * width if config.search == QSTAR else width
        self.hidden = [
            linear(rng, *sizes, 1.0, f"hidden_{k}") for k, sizes in enumerate([(inputs, hidden), (hidden, hidden)])
        ]
        self.last = linear(rng, hidden, config.horizon, 0.0, "last")
        self.signature = signature(spec, config.search)
        self.values = tf.function(self._forward, input_signature=self.signature, autograph=False)

    def _forward(self, graphs: Graphs, choices: Choices | None = None, seeds: tf.Tensor | None = None) -> tf.Tensor:
        """Return the values, float32 [B, horizon], or [A, horizon] if there are choices.

        Args:
          graphs: the graphs.
          choices: the choices; None for values of the graphs.
          seeds: int32 [2, 2], the seeds of dropout; None for no dropout.
        """
        x = self.normal(self.operators(graphs.ops) + self.features(graphs.nodes))
        h = self._propagated(x, graphs) if self.propagations else x
        both = tf.concat([h, x], axis=1)
        rows = tf.sigmoid(self.weight(both)) * tf.tanh(self.readout(both))
        result = tf.math.unsorted_segment_sum(rows, graphs.owners, graphs.number)
        if choices is not None:
            mean = tf.math.unsorted_segment_mean(
                tf.gather(both, choices.rows), choices.owners, tf.shape(choices.sorts)[0]
            )
            around = tf.gather(result, tf.gather(graphs.owners, choices.firsts))
            result = tf.concat([tf.gather(both, choices.firsts), mean, self.sorts(choices.sorts), around], axis=1)
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

    def loss(self, inputs: Sequence, targets: tf.Tensor, known: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """Return the mean Huber loss of the known targets, float32 [].

        Args:
          inputs: the arguments of `values`, for n values.
          targets: float32 [n, horizon].
          known: float32 [n, horizon], 1 for each target that counts, otherwise 0.
          seeds: int32 [2, 2], the seeds of dropout.
        """
        error = tf.abs(self._forward(*inputs, seeds=seeds) - targets)
        losses = tf.where(error < 1.0, 0.5 * tf.square(error), error - 0.5)
        return tf.reduce_sum(losses * known) / tf.maximum(tf.reduce_sum(known), 1.0)


def signature(spec: EncodingSpec, search: str) -> list:
    """Return the specifications of the arguments of `ValueNetwork.values` for a task and a search."""
    numbers = tf.TensorSpec([None], tf.int32)
    graphs = Graphs(
        numbers, tf.TensorSpec([None, spec.node_features]), tf.TensorSpec([None, spec.edge_features]), numbers, numbers,
        numbers, tf.TensorSpec([], tf.int32),
    )  # fmt: skip
    return [graphs, Choices(*[numbers] * 4)] if search == QSTAR else [graphs]
