"""From priorities to orders: of the nodes that are ready, each is the next one as probably as the softmax says.

How that is drawn: a node that becomes ready waits for an exponentially distributed time, whose rate is the exponential
of its priority, and runs when it is over. As such times have no memory, the next one is drawn by the softmax, whatever
has run before; and one number a node is all that is to be drawn.
"""

import numpy as np
import tensorflow as tf

from controllers.topoformer.network import NEVER
from controllers.topoformer.observation import Observation

LAST = 1e300  # when padding runs


def greedy(seen: Observation, priorities: np.ndarray) -> np.ndarray:
    """int64 [B, n], the orders in which the most probable node is next; padding comes last.

    priorities: float [B, n].
    """
    return _run(seen, np.arange(len(priorities)), -priorities.astype(np.float64), passing=False)


def sampled(seen: Observation, priorities: np.ndarray, samples: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [B, samples, n], orders by chance; padding comes last."""
    count, n = priorities.shape
    graph = np.repeat(np.arange(count), samples)
    waits = rng.exponential(size=(len(graph), n)) * np.exp(-priorities.astype(np.float64))[graph]
    return _run(seen, graph, waits, passing=True).reshape(count, samples, n)


def _run(seen: Observation, graph: np.ndarray, waits: np.ndarray, passing: bool) -> np.ndarray:
    """int64 [lanes, n]: of all that is ready, what has the shortest wait runs next.

    graph: int64 [lanes], which one.  waits: float64 [lanes, n].  passing: whether time passes for what is ready.
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
    """float32 [B, S], of orders as `sampled` draws them.

    priorities: float32 [B, n].  orders: int [B, S, n].  edges: bool [B, n, n].  sizes: int32 [B].
    """
    logits = tf.where(choices(orders, edges, sizes), priorities[:, None, None], NEVER)
    chosen = tf.gather(priorities, orders, batch_dims=1)
    terms = chosen - tf.reduce_logsumexp(logits, axis=-1)
    return tf.reduce_sum(tf.where(tf.sequence_mask(sizes, tf.shape(orders)[2])[:, None], terms, 0.0), axis=-1)


def choices(orders: tf.Tensor, edges: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """bool [B, S, step, node]: which nodes are ready when orders, as above, choose one of them."""
    n = tf.shape(orders)[2]
    steps, at = tf.range(n), tf.argsort(orders, axis=-1)  # at: the step at which each node runs
    ends = tf.where(edges[:, None], at[..., None] + 1, 0)
    ready = tf.reduce_max(ends, axis=2)  # [B, S, n]: from which step on each may run
    there = (ready[:, :, None] <= steps[:, None]) & (steps[:, None] <= at[:, :, None])
    return there & tf.sequence_mask(sizes, n)[:, None, None]
