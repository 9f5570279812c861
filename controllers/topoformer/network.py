"""The network: from graphs to priorities of their nodes (Gagrani et al. 2022, section 4 and appendix C.2).

Attention in groups of heads, each of which sees related nodes alone: one group for each of the seven graphs. A node
that has none of a group's relatives gets nothing from it. Layers are normalised before, not after (pre-LN). Where the
paper leaves something open: what the heads give is projected to the width.
"""

from typing import NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from controllers.topoformer.observation import (
    EDGE,
    EDGE_BACK,
    FAR,
    FAR_BACK,
    INCOMPARABLE,
    ITSELF,
    SHORT_CUT,
    SHORT_CUT_BACK,
)

RANGE = 5.0  # standard deviation of a graph's priorities
NEVER = -1e9  # a logit

GROUPS = {  # which relatives each group of heads attends to; other than "seven" are ablations of the paper's Table 3
    "seven": ((EDGE,), (SHORT_CUT,), (FAR,), (EDGE_BACK,), (SHORT_CUT_BACK,), (FAR_BACK,), (INCOMPARABLE,)),
    "both-ways": ((EDGE, SHORT_CUT), (EDGE_BACK, SHORT_CUT_BACK)),
    "forward": ((EDGE, SHORT_CUT),),
    "all": (tuple(range(ITSELF, INCOMPARABLE + 1)),),
    "none": (),
}


class Sizes(NamedTuple):
    """Of a network; see `controllers.config.TopoformerConfig`. inputs: features of a node."""

    inputs: int
    width: int
    layers: int
    heads: int
    head_size: int


class Encoder(snt.Module):
    """What every network for orders begins with."""

    def __init__(self, sizes: Sizes, attends: str, rng: np.random.Generator):
        super().__init__()
        groups = GROUPS[attends]
        self.embedding = linear(rng, sizes.inputs, sizes.width, 1.0)
        self.layers = [Layer(sizes, len(groups), rng) for _ in range(sizes.layers)]
        self.masks = tf.constant(_masks(groups))

    def embedded(self, features: tf.Tensor, relations: tf.Tensor) -> tf.Tensor:
        """float32 [B, n, width].  features: float32 [B, n, inputs], relations: uint8 [B, n, n], of `Observation`."""
        masks = tf.gather(self.masks, tf.cast(relations, tf.int32), axis=1)  # [G, B, n, n]
        masks = tf.transpose(masks, [1, 0, 2, 3])[:, :, None]
        some = tf.cast(tf.reduce_max(masks, axis=-1, keepdims=True) == 0, tf.float32)
        nodes = self.embedding(features)
        for layer in self.layers:
            nodes = layer(nodes, masks, some)
        return nodes


class Priorities(Encoder):
    """From float32 [B, n, inputs], uint8 [B, n, n] and int32 [B], as `Observation` has them, to float32 [B, n]: the
    priorities, of mean 0 and standard deviation RANGE over the nodes of each graph; 0 where there is no node.
    """

    def __init__(self, sizes: Sizes, attends: str, rng: np.random.Generator):
        super().__init__(sizes, attends, rng)
        width = sizes.width
        self.hidden, self.priority = linear(rng, width, width, np.sqrt(2)), linear(rng, width, 1, 1.0)

    def __call__(self, features: tf.Tensor, relations: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
        wanted = self.priority(tf.nn.relu(self.hidden(self.embedded(features, relations))))[..., 0]
        return _standardised(wanted, tf.sequence_mask(sizes, tf.shape(wanted)[1], tf.float32)) * RANGE


class Layer(snt.Module):
    """Attention, then an MLP for each node; what both give is added."""

    def __init__(self, sizes: Sizes, groups: int, rng: np.random.Generator):
        super().__init__("layer")
        width, self.groups, self.heads, self.head_size = sizes.width, groups, sizes.heads, sizes.head_size
        inner = groups * sizes.heads * sizes.head_size
        self.before_mlp = norm(width)
        self.hidden, self.out = linear(rng, width, width, np.sqrt(2)), linear(rng, width, width, 1.0)
        if groups:
            self.before_attention = norm(width)
            self.asks, self.joined = linear(rng, width, 3 * inner, 1.0), linear(rng, inner, width, 1.0)

    def __call__(self, nodes: tf.Tensor, masks: tf.Tensor, some: tf.Tensor) -> tf.Tensor:
        """nodes: float32 [B, n, width].  masks: [B, G, 1, n, n], to be added.  some: [B, G, 1, n, 1], whether any."""
        if self.groups:
            nodes += self.joined(self.attention(self.before_attention(nodes), masks, some))
        return nodes + self.out(tf.nn.gelu(self.hidden(self.before_mlp(nodes))))

    def attention(self, nodes: tf.Tensor, masks: tf.Tensor, some: tf.Tensor) -> tf.Tensor:
        """float32 [B, n, G · heads · head_size]."""
        count, n = tf.shape(nodes)[0], tf.shape(nodes)[1]
        split = tf.reshape(self.asks(nodes), [count, n, 3, self.groups, self.heads, self.head_size])
        queries, keys, values = tf.unstack(tf.transpose(split, [2, 0, 3, 4, 1, 5]))
        logits = tf.matmul(queries * self.head_size**-0.5, keys, transpose_b=True) + masks  # [B, G, heads, n, n]
        heads = tf.matmul(tf.nn.softmax(logits), values) * some
        return tf.reshape(tf.transpose(heads, [0, 3, 1, 2, 4]), [count, n, self.groups * self.heads * self.head_size])


class Normal(snt.initializers.Initializer):
    """Drawn from a NumPy generator: what standard normal inputs give has the standard deviation `gain`."""

    def __init__(self, rng: np.random.Generator, gain: float):
        self.rng, self.gain = rng, gain

    def __call__(self, shape, dtype):
        return tf.constant(self.gain * shape[0] ** -0.5 * self.rng.standard_normal(shape), dtype)


def linear(rng: np.random.Generator, inputs: int, outputs: int, gain: float) -> snt.Linear:
    layer = snt.Linear(outputs, w_init=Normal(rng, gain))
    layer(tf.zeros([1, inputs]))  # makes the variables
    return layer


def norm(width: int) -> snt.LayerNorm:
    layer = snt.LayerNorm(axis=-1, create_scale=True, create_offset=True)
    layer(tf.zeros([1, 1, width]))
    return layer


def _masks(groups: tuple[tuple[int, ...], ...]) -> np.ndarray:
    """float32 [G, relations]: what is added to a group's logits."""
    masks = np.full((len(groups), INCOMPARABLE + 1), NEVER, np.float32)
    for mask, relatives in zip(masks, groups, strict=True):
        mask[list(relatives)] = 0
    return masks


def _standardised(values: tf.Tensor, there: tf.Tensor) -> tf.Tensor:
    """float32 [B, n], over the nodes that are there."""
    count = tf.reduce_sum(there, axis=1, keepdims=True)
    centred = (values - tf.reduce_sum(values * there, axis=1, keepdims=True) / count) * there
    variance = tf.reduce_sum(centred**2, axis=1, keepdims=True) / count
    return centred * tf.math.rsqrt(variance + 1e-8)
