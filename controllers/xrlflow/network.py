"""X-RLflow's graph network (section 3.4) with its two heads: what the policy thinks of each candidate, and the value.

    nodes    h' = σ(W [operator ‖ Σ shapes of what it reads])                   equation 6
    layers   h' = σ(Σ α W h) over the nodes that it reads from, and itself      equation 7, `layers` times
    globals  g  = σ(W Σ h)                                                      equation 8

A sum over hundreds of nodes would hide what a rewrite of three changes. So of the graph as it is the sum is divided by
its number of nodes; of a candidate it is the *difference* to the graph as it is. Differences are what patches have: the
rows that a candidate adds, less those that it replaces. Of whole candidates they are the same numbers; NO-OP, the graph
as it is, differs by 0.

Where gains are shown (`gains`), the policy begins as a draw among what is estimated to gain: its logits are those of
the head, which begins near 0, and a learned multiple of asinh(gain / GAIN_UNIT), since gains differ by orders of
magnitude. So what it has to learn is where an estimate misleads: what a rewrite makes possible, and what does not pay.
While something gains, NO-OP is no choice.
"""

import numpy as np
import sonnet as snt
import tensorflow as tf

from controllers.config import XRLflowConfig
from controllers.masked import MaskedCategorical
from controllers.policies import Orthogonal
from controllers.xrlflow.meta_graphs import FEATURES, SPEC, MetaGraph
from rlflow.env.features import N_OPS

HEAD = (256, 64)  # units of both heads' layers
GAIN_UNIT, GAIN_WEIGHT = 1e-3, 1.0  # percent; the multiple to begin with
SLOPE = 0.2  # of the leaky rectifier that attention takes (Veličković et al. 2018)


class Network(snt.Module):
    """Its weights are a function of the generator; it is compiled once, for any sizes."""

    def __init__(self, config: XRLflowConfig, rng: np.random.Generator):
        super().__init__("network")
        width, self.padding = config.width, config.padding if config.head == "flattened" else None
        self.operators = snt.Embed(
            N_OPS, width, initializer=Orthogonal(rng, 1.0), densify_gradients=True, name="operators"
        )
        self.node_update = _linear(rng, FEATURES, width, np.sqrt(2), "node_update")
        self.layers = [Attention(rng, width, f"attention_{k}") for k in range(config.layers)]
        self.global_update = _linear(rng, width, config.global_width, np.sqrt(2), "global_update")
        self.change_update = _linear(rng, width, config.global_width, np.sqrt(2), "change_update")
        seen = config.global_width * (2 if self.padding is None else 2 + self.padding)
        outputs = 1 if self.padding is None else 1 + self.padding
        self.policy_head = _Head(rng, seen, outputs, 0.01, "policy_head")
        self.value_head = _Head(rng, seen, 1, 1.0, "value_head")
        self.gain_weight = tf.Variable(GAIN_WEIGHT, name="gain_weight") if config.gains else None
        self.compiled = tf.function(self._log_probs_and_values, input_signature=[SPEC])

    def __call__(self, graph: MetaGraph) -> tuple[MaskedCategorical, tf.Tensor]:
        """The distribution over the candidates of each observation [B, most of them], and the values float32 [B]."""
        current, changes = self.encoded(graph)
        if self.padding is None:
            return self._by_candidate(graph, current, changes)
        return self._flattened(graph.counts, current, changes)

    def encoded(self, graph: MetaGraph) -> tuple[tf.Tensor, tf.Tensor]:
        """(float32 [B, globals] of the graphs as they are, [all candidates, globals] of what each changes)."""
        rows = self.rows(graph)
        number = tf.reduce_sum(graph.counts)
        sums = tf.math.unsorted_segment_sum(tf.cast(rows, tf.float64), graph.owners, number)
        without = tf.cast(tf.gather(rows, graph.replaced), tf.float64)
        sums -= tf.math.unsorted_segment_sum(without, graph.replacers, number)
        first = tf.cumsum(graph.counts, exclusive=True)  # the candidates that are the graphs as they are
        nodes = tf.math.unsorted_segment_sum(tf.ones_like(graph.owners), graph.owners, number)
        nodes = tf.maximum(tf.gather(nodes, first), 1)  # all may have been rewritten away
        current = tf.gather(sums, first) / tf.cast(nodes, tf.float64)[:, None]
        unchanged = tf.math.unsorted_segment_sum(tf.ones_like(first), first, number) == 1
        changes = tf.where(unchanged[:, None], tf.zeros_like(sums), sums)
        return (
            tf.nn.relu(self.global_update(tf.cast(current, tf.float32))),
            tf.nn.relu(self.change_update(tf.cast(changes, tf.float32))),
        )

    def rows(self, graph: MetaGraph) -> tf.Tensor:
        """float32 [n, width]: of each row after the last layer."""
        rows = tf.nn.relu(self.operators(graph.ops) + self.node_update(graph.nodes))
        for layer in self.layers:
            rows = layer(rows, graph.senders, graph.receivers)
        return rows

    def _by_candidate(self, graph: MetaGraph, current, changes) -> tuple[MaskedCategorical, tf.Tensor]:
        """One head scores each candidate, whatever its number; the value is of the graph and the mean change."""
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
        """X-RLflow's: the first `padding` candidates and NO-OP laid end to end into a dense layer."""
        most, width = 1 + self.padding, changes.shape[1]
        padded = tf.RaggedTensor.from_row_lengths(changes, counts).to_tensor(shape=[None, most, width])
        seen = tf.concat([current, tf.reshape(padded, [-1, most * width])], axis=1)
        return MaskedCategorical(self.policy_head(seen), tf.sequence_mask(counts, most)), self.value_head(seen)[:, 0]

    def _log_probs_and_values(self, graph: MetaGraph) -> tuple[tf.Tensor, tf.Tensor]:
        distribution, values = self(graph)
        return distribution.log_probs, values


class Attention(snt.Module):
    """One head of attention over the nodes that a node reads from, and itself (Veličković et al. 2018)."""

    def __init__(self, rng: np.random.Generator, width: int, name: str):
        super().__init__(name)
        self.linear = _linear(rng, width, width, np.sqrt(2), "linear")
        self.ends = _linear(rng, width, 2, 1.0, "ends")  # what a node adds to a logit as sender, and as receiver

    def __call__(self, rows: tf.Tensor, senders: tf.Tensor, receivers: tf.Tensor) -> tf.Tensor:
        """float32 [n, width] of [n, width]."""
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
        self.hidden = [_linear(rng, *sizes[k : k + 2], np.sqrt(2), f"hidden_{k}") for k in range(len(HEAD))]
        self.last = _linear(rng, HEAD[-1], outputs, gain, "last")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        for layer in self.hidden:
            x = tf.nn.relu(layer(x))
        return self.last(x)


def _linear(rng: np.random.Generator, inputs: int, outputs: int, gain: float, name: str) -> snt.Linear:
    layer = snt.Linear(outputs, w_init=Orthogonal(rng, gain), name=name)
    layer(tf.zeros([1, inputs]))  # makes the variables
    return layer
