"""The networks of EGRL as functions of flat parameter vectors, which evolution crosses and mutates.

The policy is a graph U-Net (Gao & Ji 2019) of graph attention layers (Veličković et al. 2018). Each of its levels keeps
the nodes with the highest scores and connects kept nodes that were at most two edges apart; on the way up the nodes
return to their places. The paper gives the sizes, not the ratios of the pools. The critic embeds each node with its
action, exchanges messages twice and averages over the nodes.

In the shapes, n is the number of operators, F of features, M of memories, B of actions in a batch.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rlflow.common.task import GraphArrays

NEVER = -1e9  # added to the attention logit of two nodes without an edge
FEATURE_SCALE = 0.1  # Most features are logarithms of sizes, below 25; this factor brings them below 2.5.
CRITIC_STEPS = 2  # exchanges of messages

Shapes = Mapping[str, tuple[int, ...]]


class Seen(NamedTuple):
    """The observation of a graph.

    Attributes:
      features: float32 [n, F].
      links: float32 [n, n], 1 between the two ends of an edge in both directions, and on the diagonal.
    """

    features: np.ndarray
    links: np.ndarray


SEEN = Seen(tf.TensorSpec([None, None]), tf.TensorSpec([None, None]))


def observe(graph: GraphArrays) -> Seen:
    """Return the observation of the graph of an instance, with scaled features."""
    links = np.eye(len(graph.nodes), dtype=np.float32)
    links[graph.senders, graph.receivers] = links[graph.receivers, graph.senders] = 1
    return Seen(FEATURE_SCALE * graph.nodes, links)


def split(vector: tf.Tensor, shapes: Shapes) -> dict[str, tf.Tensor]:
    """Split a flat vector into named parameters.

    Args:
      vector: float32 [P], all parameters.
      shapes: name → shape of a parameter, in the order in which the vector contains the parameters.

    Returns:
      name → float32 array of this shape.
    """
    parts = tf.split(vector, [int(np.prod(shape)) for shape in shapes.values()])
    return {name: tf.reshape(part, shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def initial(shapes: Shapes, rng: np.random.Generator) -> np.ndarray:
    """Return a random flat vector, float32: normal weights of variance 1 / inputs, and biases (one axis) of 0."""
    parts = []
    for shape in shapes.values():
        scale = shape[0] ** -0.5 if len(shape) > 1 else 0.0
        parts.append(scale * rng.standard_normal(int(np.prod(shape))))
    return np.concatenate(parts).astype(np.float32)


class Policy(NamedTuple):
    """The sizes of a policy. Its parameters are a flat vector.

    Attributes:
      features: F.
      memories: M.
      hidden, output, depth, heads, pool: see `controllers.controller_options.EGRLConfig`.
      slowest: a constant added to the logits of the last memory, so that an untrained policy leaves tensors there.
    """

    features: int
    memories: int
    hidden: int
    output: int
    depth: int
    heads: int
    pool: float
    slowest: float

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = {"input/w": (self.features, self.hidden), "input/b": (self.hidden,)}
        names = [f"{way}{level}" for level in range(self.depth) for way in ("down", "up")]
        for name in (*names, "bottom"):
            head = (self.hidden // self.heads, self.heads)
            shapes |= {
                f"{name}/w": (self.hidden, self.hidden), f"{name}/skip": (self.hidden, self.hidden),
                f"{name}/b": (self.hidden,), f"{name}/send": head, f"{name}/receive": head,
            }  # fmt: skip
        shapes |= {f"pool{level}": (self.hidden, 1) for level in range(self.depth)}
        return shapes | {
            "output/w": (self.hidden, self.output), "output/b": (self.output,),
            "logits/w": (self.output, 2 * self.memories), "logits/b": (2 * self.memories,),
        }  # fmt: skip

    def logits(self, vector: tf.Tensor, seen: Seen) -> tf.Tensor:
        """Return the logits of the memories of weights and of activations, float32 [n, 2, M].

        Args:
          vector: float32 [P], the parameters.
          seen: the observation of a graph with n operators.
        """
        p = split(vector, self.shapes)
        x, links, levels = tf.nn.elu(seen.features @ p["input/w"] + p["input/b"]), seen.links, []
        for level in range(self.depth):
            x = self.attention(p, f"down{level}", x, links)
            weights = p[f"pool{level}"]
            scores = tf.tanh((x @ weights)[:, 0] / (tf.norm(weights) + 1e-6))
            kept = tf.math.ceil(self.pool * tf.cast(tf.shape(x)[0], tf.float32))
            values, places = tf.math.top_k(scores, tf.cast(kept, tf.int32))
            levels.append((x, links, places))
            x = tf.gather(x, places) * values[:, None]
            rows = tf.gather(links, places)
            links = tf.cast(tf.matmul(rows, rows, transpose_b=True) > 0, tf.float32)
        x = self.attention(p, "bottom", x, links)
        for level in reversed(range(self.depth)):
            skipped, links, places = levels[level]
            x = skipped + tf.scatter_nd(places[:, None], x, tf.shape(skipped))
            x = self.attention(p, f"up{level}", x, links)
        x = tf.nn.elu(x @ p["output/w"] + p["output/b"])
        logits = tf.reshape(x @ p["logits/w"] + p["logits/b"], [-1, 2, self.memories])
        return logits + self.slowest * tf.one_hot(self.memories - 1, self.memories)

    def attention(self, p: Mapping[str, tf.Tensor], name: str, x: tf.Tensor, links: tf.Tensor) -> tf.Tensor:
        """Return a graph attention layer with a linear skip, float32 [n, hidden].

        Args:
          p: name → parameter.
          name: the name of the layer.
          x: float32 [n, hidden].
          links: float32 [n, n].
        """
        h = tf.reshape(x @ p[f"{name}/w"], [-1, self.hidden // self.heads, self.heads])
        h = tf.transpose(h, [2, 0, 1])  # heads first, so that neighbours are the last axis of the softmax
        sent, received = (h @ tf.transpose(p[f"{name}/{way}"])[:, :, None] for way in ("send", "receive"))
        logits = tf.nn.leaky_relu(received + tf.transpose(sent, [0, 2, 1]), 0.2) + NEVER * (1 - links)
        mixed = tf.nn.softmax(logits) @ h  # [heads, n, hidden / heads]
        mixed = tf.reshape(tf.transpose(mixed, [1, 2, 0]), [-1, self.hidden])
        return tf.nn.elu(mixed + x @ p[f"{name}/skip"] + p[f"{name}/b"])


class Critic(NamedTuple):
    """The sizes of a critic: F features, M memories and the width of its layers."""

    features: int
    memories: int
    width: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        width = self.width
        shapes = {"features": (self.features, width), "actions": (2 * self.memories, width), "b": (width,)}
        for step in range(CRITIC_STEPS):
            shapes |= {f"own{step}": (width, width), f"near{step}": (width, width), f"b{step}": (width,)}
        return shapes | {"hidden/w": (width, width), "hidden/b": (width,), "value/w": (width, 1), "value/b": (1,)}

    def values(self, vector: tf.Tensor, seen: Seen, actions: tf.Tensor) -> tf.Tensor:
        """Return the values of B placements of the same graph, float32 [B].

        Args:
          vector: float32 [P], the parameters.
          seen: the observation of a graph with n operators.
          actions: float32 [B, n, 2 M], the one-hot memories of weights and activations, with or without noise.
        """
        p, shape = split(vector, self.shapes), tf.shape(actions)
        near = tf.sparse.from_dense(seen.links / tf.reduce_sum(seen.links, axis=1, keepdims=True))
        # Rows are (operator, action): one matrix product serves the whole batch, and so does one sum over neighbours.
        rows = tf.reshape(tf.transpose(actions, [1, 0, 2]), [-1, 2 * self.memories])
        x = tf.repeat(seen.features @ p["features"], shape[0], axis=0) + rows @ p["actions"]
        x = tf.nn.elu(x + p["b"])
        for step in range(CRITIC_STEPS):
            around = tf.sparse.sparse_dense_matmul(near, tf.reshape(x, [shape[1], -1]))
            around = tf.reshape(around, [-1, self.width])
            x += tf.nn.elu(x @ p[f"own{step}"] + around @ p[f"near{step}"] + p[f"b{step}"])
        mean = tf.reduce_mean(tf.reshape(x, [shape[1], shape[0], self.width]), axis=0)
        return (tf.nn.elu(mean @ p["hidden/w"] + p["hidden/b"]) @ p["value/w"] + p["value/b"])[:, 0]
