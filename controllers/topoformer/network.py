"""The network from graphs to priorities of nodes (Gagrani et al. 2022, section 4 and appendix C.2), and its orders.

The paper derives seven graphs from the given graph (see observation.py). Each of the seven has a group of attention
heads, in which a node attends only to its neighbours in that graph. A group adds nothing to a node without neighbours.
Layers are normalised before attention and MLP (pre-LN). The paper does not say how the outputs of the heads return to
the width of a node; here a linear layer projects them.

The next node of an order is drawn from the softmax of the priorities of ready nodes. A node is ready when all its
predecessors are in the order. The implementation draws one exponential waiting time per node, with the rate
exp(priority). Exponential times have no memory, so the ready node with the shortest remaining time has the distribution
of the softmax.
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
    Observation,
)

RANGE = 5.0  # standard deviation of the priorities of a graph
NEVER = -1e9  # logit of masked entries

GROUPS = {  # the relations to which each group of heads attends; all but "seven" are ablations of the paper's Table 3
    "seven": ((EDGE,), (SHORT_CUT,), (FAR,), (EDGE_BACK,), (SHORT_CUT_BACK,), (FAR_BACK,), (INCOMPARABLE,)),
    "both-ways": ((EDGE, SHORT_CUT), (EDGE_BACK, SHORT_CUT_BACK)),
    "forward": ((EDGE, SHORT_CUT),),
    "all": (tuple(range(ITSELF, INCOMPARABLE + 1)),),
    "none": (),
}


class Sizes(NamedTuple):
    """The sizes of a network, as in `TopoformerConfig`; `inputs` is the number of features of a node."""

    inputs: int
    width: int
    layers: int
    heads: int
    head_size: int


class Encoder(snt.Module):
    """The part of a network that embeds the nodes of a graph: a linear layer, then attention layers."""

    def __init__(self, sizes: Sizes, attends: str, rng: np.random.Generator):
        super().__init__()
        groups = GROUPS[attends]
        self.embedding = linear(rng, sizes.inputs, sizes.width, 1.0)
        self.layers = [Layer(sizes, len(groups), rng) for _ in range(sizes.layers)]
        self.masks = tf.constant(_masks(groups))

    def embedded(self, features: tf.Tensor, relations: tf.Tensor) -> tf.Tensor:
        """Return the embedding of each node, float32 [B, n, width].

        Args:
          features: float32 [B, n, inputs], of `Observation`.
          relations: uint8 [B, n, n], of `Observation`.
        """
        masks = tf.gather(self.masks, tf.cast(relations, tf.int32), axis=1)  # [G, B, n, n]
        masks = tf.transpose(masks, [1, 0, 2, 3])[:, :, None]
        some = tf.cast(tf.reduce_max(masks, axis=-1, keepdims=True) == 0, tf.float32)
        nodes = self.embedding(features)
        for layer in self.layers:
            nodes = layer(nodes, masks, some)
        return nodes


class Priorities(Encoder):
    """The network that maps features, relations and sizes of an `Observation` to priorities of nodes, float32 [B, n].

    Priorities have mean 0 and standard deviation RANGE over the nodes of each graph, and are 0 for padding.
    """

    def __init__(self, sizes: Sizes, attends: str, rng: np.random.Generator):
        super().__init__(sizes, attends, rng)
        width = sizes.width
        self.hidden, self.priority = linear(rng, width, width, np.sqrt(2)), linear(rng, width, 1, 1.0)

    def __call__(self, features: tf.Tensor, relations: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
        wanted = self.priority(tf.nn.relu(self.hidden(self.embedded(features, relations))))[..., 0]
        return _standardised(wanted, tf.sequence_mask(sizes, tf.shape(wanted)[1], tf.float32)) * RANGE


class Layer(snt.Module):
    """A layer of attention, then an MLP per node, each with a residual connection."""

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
        """Return the new embeddings of nodes, float32 [B, n, width].

        Args:
          nodes: float32 [B, n, width], embeddings.
          masks: float32 [B, G, 1, n, n], added to the attention logits of the G groups.
          some: float32 [B, G, 1, n, 1], 1 where a node may attend to at least one node in the group, else 0.
        """
        if self.groups:
            nodes += self.joined(self.attention(self.before_attention(nodes), masks, some))
        return nodes + self.out(tf.nn.gelu(self.hidden(self.before_mlp(nodes))))

    def attention(self, nodes: tf.Tensor, masks: tf.Tensor, some: tf.Tensor) -> tf.Tensor:
        """Return the concatenated outputs of all heads, float32 [B, n, G · heads · head_size]; see `__call__`."""
        count, n = tf.shape(nodes)[0], tf.shape(nodes)[1]
        split = tf.reshape(self.asks(nodes), [count, n, 3, self.groups, self.heads, self.head_size])
        queries, keys, values = tf.unstack(tf.transpose(split, [2, 0, 3, 4, 1, 5]))
        logits = tf.matmul(queries * self.head_size**-0.5, keys, transpose_b=True) + masks  # [B, G, heads, n, n]
        heads = tf.matmul(tf.nn.softmax(logits), values) * some
        return tf.reshape(tf.transpose(heads, [0, 3, 1, 2, 4]), [count, n, self.groups * self.heads * self.head_size])


class Normal(snt.initializers.Initializer):
    """An initialiser with a NumPy generator: standard normal inputs give outputs of standard deviation `gain`."""

    def __init__(self, rng: np.random.Generator, gain: float):
        self.rng, self.gain = rng, gain

    def __call__(self, shape, dtype):
        return tf.constant(self.gain * shape[0] ** -0.5 * self.rng.standard_normal(shape), dtype)


def linear(rng: np.random.Generator, inputs: int, outputs: int, gain: float) -> snt.Linear:
    """Return a linear layer whose variables exist already.

    Args:
      rng: the generator of the weights.
      inputs: the size of the input.
      outputs: the size of the output.
      gain: see `Normal`.
    """
    layer = snt.Linear(outputs, w_init=Normal(rng, gain))
    layer(tf.zeros([1, inputs]))  # creates the variables
    return layer


def norm(width: int) -> snt.LayerNorm:
    """Return a layer normalisation of the last axis whose variables exist already."""
    layer = snt.LayerNorm(axis=-1, create_scale=True, create_offset=True)
    layer(tf.zeros([1, 1, width]))
    return layer


def _masks(groups: tuple[tuple[int, ...], ...]) -> np.ndarray:
    """Return the term that each group adds to the attention logit of a pair, by its relation: float32 [G, relations].

    The term is 0 for the relations of the group, and NEVER otherwise.
    """
    masks = np.full((len(groups), INCOMPARABLE + 1), NEVER, np.float32)
    for mask, relatives in zip(masks, groups, strict=True):
        mask[list(relatives)] = 0
    return masks


def _standardised(values: tf.Tensor, there: tf.Tensor) -> tf.Tensor:
    """Standardise values, float32 [B, n], to mean 0 and standard deviation 1 over the nodes of each graph.

    there: float32 [B, n], 1 for nodes and 0 for padding. The result is 0 for padding.
    """
    count = tf.reduce_sum(there, axis=1, keepdims=True)
    centred = (values - tf.reduce_sum(values * there, axis=1, keepdims=True) / count) * there
    variance = tf.reduce_sum(centred**2, axis=1, keepdims=True) / count
    return centred * tf.math.rsqrt(variance + 1e-8)


LAST = 1e300  # waiting time of padding


def greedy(seen: Observation, priorities: np.ndarray) -> np.ndarray:
    """Return the orders in which the next node is the ready node of the highest priority, int64 [B, n].

    A node is ready when all its predecessors are in the order. Padding comes last.

    Args:
      seen: B graphs of n nodes.
      priorities: float [B, n].
    """
    return _run_ready_nodes(seen, np.arange(len(priorities)), -priorities.astype(np.float64), passing=False)


def sampled(seen: Observation, priorities: np.ndarray, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Sample orders, int64 [B, samples, n]: the next node is drawn by the softmax of the priorities of ready nodes.

    Padding comes last.

    Args:
      seen: B graphs of n nodes.
      priorities: float [B, n].
      samples: the number of orders of each graph.
      rng: the random generator.
    """
    count, n = priorities.shape
    graph = np.repeat(np.arange(count), samples)
    waits = rng.exponential(size=(len(graph), n)) * np.exp(-priorities.astype(np.float64))[graph]
    return _run_ready_nodes(seen, graph, waits, passing=True).reshape(count, samples, n)


def _run_ready_nodes(seen: Observation, graph: np.ndarray, waits: np.ndarray, passing: bool) -> np.ndarray:
    """Compute many orders in parallel, int64 [orders, n]: the next node is the ready node with the shortest wait.

    Args:
      seen: B graphs of n nodes.
      graph: int64 [orders], the index of the graph that each order belongs to.
      waits: float64 [orders, n], the waiting time of each node.
      passing: True to subtract the wait of the chosen node from the waits of all ready nodes at each step.
    """
    lanes, n = np.arange(len(graph)), waits.shape[1]
    waits = np.where(np.arange(n) < seen.sizes[graph, None], waits, LAST)
    sources = seen.edges.sum(axis=1, dtype=np.int32)[graph]
    orders = np.empty((len(graph), n), np.int64)
    for step in range(n):
        left = np.where(sources == 0, waits, np.inf)
        orders[:, step] = chosen = left.argmin(axis=1)
        if passing:
            waits -= np.where(sources == 0, left[lanes, chosen, None], 0)
        sources[lanes, chosen] = -1
        sources -= seen.edges[graph, chosen]
    return orders


def log_probabilities(priorities: tf.Tensor, orders: tf.Tensor, edges: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Return the log-probabilities, float32 [B, S], with which `sampled` draws the given orders.

    Args:
      priorities: float32 [B, n].
      orders: int [B, S, n].
      edges: bool [B, n, n], as in `Observation`.
      sizes: int32 [B], the number of nodes of each graph.
    """
    logits = tf.where(choices(orders, edges, sizes), priorities[:, None, None], NEVER)
    chosen = tf.gather(priorities, orders, batch_dims=1)
    terms = chosen - tf.reduce_logsumexp(logits, axis=-1)
    return tf.reduce_sum(tf.where(tf.sequence_mask(sizes, tf.shape(orders)[2])[:, None], terms, 0.0), axis=-1)


def choices(orders: tf.Tensor, edges: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Return the mask of the nodes that are ready at each step of an order, bool [B, S, step, node].

    Args:
      orders: int [B, S, n].
      edges: bool [B, n, n], as in `Observation`.
      sizes: int32 [B], the number of nodes of each graph.
    """
    n = tf.shape(orders)[2]
    steps, at = tf.range(n), tf.argsort(orders, axis=-1)  # at: the step at which each node runs
    ends = tf.where(edges[:, None], at[..., None] + 1, 0)
    ready = tf.reduce_max(ends, axis=2)  # [B, S, n]: the first step at which each node may run
    there = (ready[:, :, None] <= steps[:, None]) & (steps[:, None] <= at[:, :, None])
    return there & tf.sequence_mask(sizes, n)[:, None, None]
