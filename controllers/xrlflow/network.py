"""The graph network of X-RLflow (section 3.4) with policy and value heads, and its input, the meta-graph.

    nodes    h' = σ(W [operator ‖ Σ input shapes])                              equation 6
    layers   h' = σ(Σ α W h) over the node's sources and the node itself        equation 7, `layers` times
    globals  g  = σ(W Σ h)                                                      equation 8

A meta-graph joins several observations of candidates, so that the network processes them in one pass.

A sum over hundreds of nodes would hide the change of a three-node rewrite. The sum over the current graph is therefore
divided by its number of nodes. A candidate is represented by the *difference* to the current graph: the sum of the rows
that it adds minus the sum of the rows that it replaces. Whole candidates give the same numbers. NO-OP gives 0.

With `gains` the logits are the output of the head, which begins near 0, plus a learned multiple of
asinh(gain / GAIN_UNIT), since gains differ by orders of magnitude. The policy then has to learn only where an estimate
misleads. NO-OP is masked while any candidate has an estimated gain.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from controllers.controller_options import XRLflowConfig
from controllers.masked import MaskedCategorical
from controllers.policies import Orthogonal, linear
from rlflow.env.candidates import NODE_COLUMNS
from rlflow.env.features import N_OPS

FEATURES = NODE_COLUMNS - 1  # number of features of a node besides its operator id


class MetaGraph(NamedTuple):
    """B concatenated observations of `rlflow.env.candidates.CandidateEnv`, with rows and candidates renumbered.

    The observations have n rows, e edges, r replaced rows and C candidates in all, the current graphs included.

    Attributes:
      ops: int32 [n], operator ids.
      nodes: float32 [n, FEATURES], the other features of the rows.
      senders, receivers: int32 [e], the rows at the two ends of each edge.
      owners: int32 [n], the candidate of each row.
      replaced, replacers: int32 [r], pairs of a row of a current graph and a candidate that lacks this row.
      gains: float32 [C], the estimated gains in percent of the initial objective; 0 if they are not observed.
      counts: int32 [B], the number of candidates of each observation, the current graph included.
    """

    ops: tf.Tensor
    nodes: tf.Tensor
    senders: tf.Tensor
    receivers: tf.Tensor
    owners: tf.Tensor
    replaced: tf.Tensor
    replacers: tf.Tensor
    gains: tf.Tensor
    counts: tf.Tensor


_NUMBERS = tf.TensorSpec([None], tf.int32)
SPEC = MetaGraph(  # any sizes, so that functions are compiled once
    _NUMBERS, tf.TensorSpec([None, FEATURES], tf.float32), *[_NUMBERS] * 5, tf.TensorSpec([None], tf.float32), _NUMBERS
)


def joined(observations: Sequence[Mapping[str, np.ndarray]]) -> MetaGraph:
    """Join one or more observations of `CandidateEnv` into a meta-graph."""
    counts = [len(one["actions"]) for one in observations]
    rows, candidates = _exclusive_sums([len(one["ops"]) for one in observations]), _exclusive_sums(counts)

    def together(key: str, offsets: Sequence[int] | None = None) -> np.ndarray:
        parts = [one[key] for one in observations]
        return np.concatenate(parts if offsets is None else [p + n for p, n in zip(parts, offsets, strict=True)])

    return MetaGraph(
        together("ops"), together("nodes"), together("senders", rows), together("receivers", rows),
        together("owners", candidates), together("replaced", rows), together("replacers", candidates),
        np.concatenate([one.get("gains", np.zeros(len(one["actions"]), np.float32)) for one in observations]),
        np.array(counts, np.int32),
    )  # fmt: skip


def _exclusive_sums(sizes: Sequence[int]) -> np.ndarray:
    """Return the sum of the earlier sizes for each size, int32: [3, 2, 4] gives [0, 3, 5]."""
    return (np.cumsum(sizes) - sizes).astype(np.int32)


HEAD = (256, 64)  # units of the hidden layers of both heads
# The logit of a candidate includes weight · asinh(gain / GAIN_UNIT), with gain and GAIN_UNIT in percent of the initial
# objective. GAIN_WEIGHT is the initial value of the learned weight.
GAIN_UNIT, GAIN_WEIGHT = 1e-3, 1.0
SLOPE = 0.2  # slope of the leaky ReLU in attention (Veličković et al. 2018)


class Network(snt.Module):
    """The graph network with policy and value heads.

    `compiled` is a function that is compiled once for all sizes. It maps a meta-graph to the log-probabilities of the
    candidates, float32 [B, largest count], and the values, float32 [B].
    """

    def __init__(self, config: XRLflowConfig, rng: np.random.Generator):
        super().__init__("network")
        width, self.padding = config.width, config.padding if config.head == "flattened" else None
        self.operators = snt.Embed(N_OPS, width, initializer=Orthogonal(rng, 1.0), name="operators")
        self.node_update = linear(rng, FEATURES, width, np.sqrt(2), "node_update")
        self.layers = [Attention(rng, width, f"attention_{k}") for k in range(config.layers)]
        self.global_update = linear(rng, width, config.global_width, np.sqrt(2), "global_update")
        self.change_update = linear(rng, width, config.global_width, np.sqrt(2), "change_update")
        seen = config.global_width * (2 if self.padding is None else 2 + self.padding)
        outputs = 1 if self.padding is None else 1 + self.padding
        self.policy_head = _Head(rng, seen, outputs, 0.01, "policy_head")
        self.value_head = _Head(rng, seen, 1, 1.0, "value_head")
        self.gain_weight = tf.Variable(GAIN_WEIGHT, name="gain_weight") if config.gains else None
        self.compiled = tf.function(self._log_probs_and_values, input_signature=[SPEC], autograph=False)

    def __call__(self, graph: MetaGraph) -> tuple[MaskedCategorical, tf.Tensor]:
        """Return the distribution over candidates, [B, largest count], and the values of the states, float32 [B]."""
        current, changes = self.encoded(graph)
        if self.padding is None:
            return self._by_candidate(graph, current, changes)
        return self._flattened(graph.counts, current, changes)

    def encoded(self, graph: MetaGraph) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the encodings of the current graphs, and of the difference of each candidate to its current graph.

        Returns:
          (float32 [B, global_width], float32 [all candidates, global_width]).
        """
        rows = self.rows(graph)
        number = tf.reduce_sum(graph.counts)
        sums = tf.math.unsorted_segment_sum(tf.cast(rows, tf.float64), graph.owners, number)
        without = tf.cast(tf.gather(rows, graph.replaced), tf.float64)
        sums -= tf.math.unsorted_segment_sum(without, graph.replacers, number)
        first = tf.cumsum(graph.counts, exclusive=True)  # the candidates that are the current graphs
        nodes = tf.math.unsorted_segment_sum(tf.ones_like(graph.owners), graph.owners, number)
        nodes = tf.maximum(tf.gather(nodes, first), 1)  # a graph may have no nodes left
        current = tf.gather(sums, first) / tf.cast(nodes, tf.float64)[:, None]
        unchanged = tf.math.unsorted_segment_sum(tf.ones_like(first), first, number) == 1
        changes = tf.where(unchanged[:, None], tf.zeros_like(sums), sums)
        return (
            tf.nn.relu(self.global_update(tf.cast(current, tf.float32))),
            tf.nn.relu(self.change_update(tf.cast(changes, tf.float32))),
        )

    def rows(self, graph: MetaGraph) -> tf.Tensor:
        """Return the embedding of each of the n rows after the last attention layer, float32 [n, width]."""
        rows = tf.nn.relu(self.operators(graph.ops) + self.node_update(graph.nodes))
        for layer in self.layers:
            rows = layer(rows, graph.senders, graph.receivers)
        return rows

    def _by_candidate(self, graph: MetaGraph, current, changes) -> tuple[MaskedCategorical, tf.Tensor]:
        """Return (distribution, values): one head scores every candidate by its graph and its change.

        The value depends on the current graph and on the mean change of its candidates.

        Args:
          graph: the meta-graph.
          current, changes: the result of `encoded`.
        """
        counts = graph.counts
        graphs = tf.repeat(current, counts, axis=0)
        logits = self.policy_head(tf.concat([graphs, changes], axis=1))[:, 0]
        of_graphs = tf.RaggedTensor.from_row_lengths(changes, counts)
        values = self.value_head(tf.concat([current, tf.reduce_mean(of_graphs, axis=1)], axis=1))[:, 0]
        if self.gain_weight is not None:
            logits += self.gain_weight * tf.asinh(graph.gains / GAIN_UNIT)
        logits = tf.RaggedTensor.from_row_lengths(logits, counts).to_tensor()
        mask = tf.sequence_mask(counts, tf.shape(logits)[1])
        if self.gain_weight is not None:
            gains = tf.RaggedTensor.from_row_lengths(graph.gains, counts)
            ends = tf.reduce_max(gains, axis=1, keepdims=True) <= 0
            mask = tf.concat([tf.logical_and(mask[:, :1], ends), mask[:, 1:]], axis=1)
        return MaskedCategorical(logits, mask), values

    def _flattened(self, counts, current, changes) -> tuple[MaskedCategorical, tf.Tensor]:
        """Return (distribution, values) by the heads of the paper, whose input is one vector per observation.

        The vector concatenates the encodings of the current graph, of NO-OP and of the first `padding` candidates.

        Args:
          counts: int32 [B], the number of candidates of each observation.
          current, changes: the result of `encoded`.
        """
        most, width = 1 + self.padding, changes.shape[1]
        padded = tf.RaggedTensor.from_row_lengths(changes, counts).to_tensor(shape=[None, most, width])
        seen = tf.concat([current, tf.reshape(padded, [-1, most * width])], axis=1)
        return MaskedCategorical(self.policy_head(seen), tf.sequence_mask(counts, most)), self.value_head(seen)[:, 0]

    def _log_probs_and_values(self, graph: MetaGraph) -> tuple[tf.Tensor, tf.Tensor]:
        distribution, values = self(graph)
        return distribution.log_probs, values


class Attention(snt.Module):
    """One attention head: a node attends to itself and to the senders of its edges (Veličković et al. 2018)."""

    def __init__(self, rng: np.random.Generator, width: int, name: str):
        super().__init__(name)
        self.linear = linear(rng, width, width, np.sqrt(2), "linear")
        self.ends = linear(rng, width, 2, 1.0, "ends")  # logit terms of a node as sender and as receiver

    def __call__(self, rows: tf.Tensor, senders: tf.Tensor, receivers: tf.Tensor) -> tf.Tensor:
        """Return the new embeddings of n nodes, float32 [n, width].

        Args:
          rows: float32 [n, width], the embeddings.
          senders: int32 [e], the source of each edge.
          receivers: int32 [e], the target of each edge.
        """
        number, values = tf.shape(rows)[0], self.linear(rows)
        sent, received = tf.unstack(self.ends(values), axis=1)
        logits = tf.nn.leaky_relu(tf.gather(sent, senders) + tf.gather(received, receivers), SLOPE)  # [e]
        itself = tf.nn.leaky_relu(sent + received, SLOPE)  # [n]
        top = tf.stop_gradient(tf.maximum(itself, tf.math.unsorted_segment_max(logits, receivers, number)))
        weights, own = tf.exp(logits - tf.gather(top, receivers)), tf.exp(itself - top)
        total = own + tf.math.unsorted_segment_sum(weights, receivers, number)
        messages = weights[:, None] * tf.gather(values, senders)
        mixed = own[:, None] * values + tf.math.unsorted_segment_sum(messages, receivers, number)
        return tf.nn.relu(mixed / total[:, None])


class _Head(snt.Module):
    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int, gain: float, name: str):
        super().__init__(name)
        sizes = (inputs, *HEAD)
        self.hidden = [linear(rng, *sizes[k : k + 2], np.sqrt(2), f"hidden_{k}") for k in range(len(HEAD))]
        self.last = linear(rng, HEAD[-1], outputs, gain, "last")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        for layer in self.hidden:
            x = tf.nn.relu(layer(x))
        return self.last(x)
