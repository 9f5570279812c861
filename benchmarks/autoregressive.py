"""Topoformer with a decoder that asks the network anew for every node (the paper's Table 4), for benchmarks.ordering.

The decoder of Bresson and Laurent 2021 for the travelling salesman, who may go to what is ready alone: the mean of all
nodes that ran and the last one of them attend to what is ready, and what they then ask for is compared with it. Where
the paper leaves something open: one layer; the start is a learned node; nodes are normalised before, as the encoder's
layers are; at first logits hardly differ. All else, what is learned from included, is Topoformer's
(`controllers/topoformer/`).
"""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from benchmarks.learned_orders import SAMPLES, instance_of, timed
from controllers.config import TopoformerConfig
from controllers.topoformer.controller import Topoformer
from controllers.topoformer.decoder import choices
from controllers.topoformer.network import NEVER, Encoder, Sizes, linear, norm
from controllers.topoformer.observation import Observation, observe
from controllers.topoformer.reinforce import DRAWN, SEEN, Network
from rlflow.tasks.ordering import Orders

HEADS = 4
LARGEST = 10.0  # logit
INDIFFERENT = 0.1  # gain of the last question: at first logits hardly differ, and the tangent is far from its ends


class Encoded(NamedTuple):
    """Of the nodes of B graphs, float32.

    nodes: [B, n, width].  keys: [B, HEADS, width / HEADS, n].  values: [B, HEADS, n, width / HEADS].
    targets: [B, width, n], which the last question is compared with.
    """

    nodes: tf.Tensor
    keys: tf.Tensor
    values: tf.Tensor
    targets: tf.Tensor


class Autoregressive(Encoder):
    """From graphs to logits of the nodes that are ready, at every step of an order."""

    def __init__(self, sizes: Sizes, attends: str, rng: np.random.Generator):
        super().__init__(sizes, attends, rng)
        width = sizes.width
        self.normalised, self.offers = norm(width), linear(rng, width, 3 * width, 1.0)
        self.start = tf.Variable(rng.standard_normal(width), dtype=tf.float32)
        self.context, self.asks = linear(rng, 2 * width, width, 1.0), linear(rng, width, width, 1.0)
        self.joined, self.question = linear(rng, width, width, 1.0), linear(rng, width, width, INDIFFERENT)

    def encode(self, features: tf.Tensor, relations: tf.Tensor) -> Encoded:
        nodes = self.normalised(self.embedded(features, relations))
        keys, values, targets = tf.split(self.offers(nodes), 3, axis=-1)
        turned = tf.transpose(_by_head(keys), [0, 1, 3, 2])
        return Encoded(nodes, turned, _by_head(values), tf.transpose(targets, [0, 2, 1]))

    def logits(self, encoded: Encoded, last: tf.Tensor, mean: tf.Tensor, ready: tf.Tensor) -> tf.Tensor:
        """float32 [B, R, n], of R steps each.

        last, mean: float32 [B, R, width], of the nodes that ran.  ready: bool [B, R, n].
        """
        context = self.context(tf.concat([last, mean], axis=-1))
        asked = _by_head(self.asks(context))
        seen = tf.where(ready[:, None], tf.matmul(asked, encoded.keys) * asked.shape[-1] ** -0.5, NEVER)
        heads = tf.transpose(tf.matmul(tf.nn.softmax(seen), encoded.values), [0, 2, 1, 3])
        context += self.joined(tf.reshape(heads, tf.shape(context)))
        wanted = tf.matmul(self.question(context), encoded.targets) * context.shape[-1] ** -0.5
        return tf.where(ready, LARGEST * tf.tanh(wanted), NEVER)

    def log_probabilities(self, encoded: Encoded, orders: tf.Tensor, edges: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
        """float32 [B, S], of orders as `drawn` draws them; all steps at once.

        orders: int [B, S, n].  edges: bool [B, n, n].  sizes: int32 [B].
        """
        count, samples, n = tf.unstack(tf.shape(orders))
        first = tf.broadcast_to(self.start, [count, samples, 1, self.start.shape[0]])
        last = tf.concat([first, tf.gather(encoded.nodes, orders[..., :-1], batch_dims=1)], axis=2)
        mean = tf.cumsum(last, axis=2) / tf.cast(tf.range(n) + 1, tf.float32)[:, None]
        steps = last, mean, choices(orders, edges, sizes)
        rows = [tf.reshape(one, [count, samples * n, one.shape[-1] or n]) for one in steps]
        logits = tf.reshape(self.logits(encoded, *rows), [count, samples, n, n])
        terms = tf.gather(tf.nn.log_softmax(logits), orders, batch_dims=3)
        return tf.reduce_sum(tf.where(tf.sequence_mask(sizes, n)[:, None], terms, 0.0), axis=-1)


def _by_head(vectors: tf.Tensor) -> tf.Tensor:
    """float32 [B, HEADS, R, width / HEADS], of [B, R, width]."""
    shape = tf.shape(vectors)
    split = tf.reshape(vectors, [shape[0], shape[1], HEADS, vectors.shape[-1] // HEADS])
    return tf.transpose(split, [0, 2, 1, 3])


def drawn(
    module: Autoregressive, encoded: Encoded, seen: Observation, samples: int, rng: np.random.Generator | None = None
) -> np.ndarray:
    """int64 [B, samples, n], orders by chance, or without `rng` the most probable node at each step; padding comes
    last. Step by step the same as `Autoregressive.logits`, in NumPy.
    """
    nodes, keys, values, targets = (one.numpy() for one in encoded)
    context_of, asked_of, joined, question = map(_affine, (module.context, module.asks, module.joined, module.question))
    count, n, width = nodes.shape
    graph, lanes, there = np.arange(count)[:, None], np.arange(samples), np.arange(n) < seen.sizes[:, None, None]
    sources = np.repeat(seen.edges.sum(axis=1, dtype=np.int32)[:, None], samples, axis=1)  # that are yet to run
    last = np.broadcast_to(module.start.numpy(), (count, samples, width))
    ran, orders = last, np.empty((count, samples, n), np.int64)
    for step in range(n):
        ready = (sources == 0) & there
        context = context_of(np.concatenate([last, ran / (step + 1)], axis=-1))
        asked = asked_of(context).reshape(count, samples, HEADS, -1).transpose(0, 2, 1, 3)
        attention = np.where(ready[:, None], asked @ keys * asked.shape[-1] ** -0.5, NEVER)
        attention = np.exp(attention - attention.max(axis=-1, keepdims=True))
        heads = attention @ values / attention.sum(axis=-1, keepdims=True)
        context += joined(heads.transpose(0, 2, 1, 3).reshape(context.shape))
        wanted = np.where(there, LARGEST * np.tanh(question(context) @ targets * width**-0.5), NEVER)
        if rng is not None:
            wanted += rng.gumbel(size=wanted.shape)
        orders[..., step] = chosen = np.where(sources == 0, wanted, -np.inf).argmax(axis=-1)
        last = nodes[graph, chosen]
        ran = ran + last
        sources[graph, lanes, chosen] = -1
        sources -= seen.edges[graph, chosen]
    return orders


def _affine(layer: snt.Linear) -> Callable[[np.ndarray], np.ndarray]:
    weights, bias = layer.w.numpy(), layer.b.numpy()
    return lambda vectors: vectors @ weights + bias


class Decoded(Network):
    """An autoregressive network as it is used."""

    def __init__(self, sizes: Sizes, attends: str, rng: np.random.Generator):
        self.module = Autoregressive(sizes, attends, rng)
        self.compiled = tf.function(self.module.encode, SEEN[:2])
        encoded = Encoded(*(tf.TensorSpec([None] * rank) for rank in (3, 4, 4, 3)))
        self.log_probabilities = tf.function(self.module.log_probabilities, (encoded, *DRAWN[1:]))

    def encoded(self, seen: Observation) -> Encoded:
        return self.compiled(seen.features, seen.relations)

    def greedy(self, seen):
        return drawn(self.module, self.encoded(seen), seen, 1)[:, 0]

    def sampled(self, seen, samples, rng):
        encoded = self.encoded(seen)
        orders = drawn(self.module, encoded, seen, samples, rng)
        return orders, self.log_probabilities(encoded, orders, seen.edges, seen.sizes)


class Decoder(Topoformer):
    """Topoformer's training of such a network; it has no priorities, so no beams."""

    name = "autoregressive"
    Network = Decoded


@cache
def learnt(folder: Path, attends: str, epochs: int, training: int) -> Decoder:
    """Trained in the folder for so many epochs with the seed `training`; a training that was killed goes on."""
    small = instance_of(10, 0)
    controller = Decoder(TopoformerConfig(attends=attends, epochs=epochs), small, training)
    controller.train(small, training, folder)
    return controller


def peaks(network: Decoded, instance: Orders, seed: int) -> dict[str, dict]:
    """As `learned_orders.learned_peaks`, of the best network that a training has seen."""
    started = time.process_time()
    seen = observe([instance.arrays()])
    encoded = network.encoded(seen)
    before, rng, result = time.process_time() - started, np.random.default_rng(seed), {}
    for name, ask in (("greedy", (1,)), ("sample", (SAMPLES, rng))):
        peak, seconds = timed(lambda: instance.problem.peaks(drawn(network.module, encoded, seen, *ask)[0]).min())
        result[name] = {"peak": int(peak), "seconds": before + seconds}
    return result
