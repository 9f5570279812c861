"""Conversion of NumPy graphs and episodes to the batched arrays of the networks.

Every compiled function declares its inputs with unknown leading dimensions (`graph_signature`, `sequence_signature`).
TensorFlow therefore does not trace a function again for a batch of another size.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rlflow.collect.episodes import Episode
from rlflow.common.task import EncodingSpec, GraphArrays
from worldmodel.spaces import valid_actions

NODES_PER_BATCH = 8192  # largest number of nodes in a batch of graphs to encode, unless a single graph has more


class GraphBatch(NamedTuple):
    """B concatenated graphs with n nodes and e edges in all: the fields of a graph_nets GraphsTuple and operator ids.

    Attributes:
      ops: int32 [n], operator ids.
      nodes: float32 [n, F], other features of nodes.
      edges: float32 [e, Fe], features of edges.
      globals: float32 [B, G], features of graphs.
      receivers, senders: int32 [e], indices of nodes in the batch.
      n_node, n_edge: int32 [B], the numbers of nodes and edges of each graph.
    """

    ops: np.ndarray
    nodes: np.ndarray
    edges: np.ndarray
    globals: np.ndarray
    receivers: np.ndarray
    senders: np.ndarray
    n_node: np.ndarray
    n_edge: np.ndarray


class Steps(NamedTuple):
    """B padded sequences of at most T steps. No result depends on the padding.

    Attributes:
      z: float32 [B, T + 1, Z], the latent states before, between and after the steps.
      counts: int32 [B, T + 1, N], the number of locations of each rule in these states.
      actions: int32 [B, T, 2], (xfer_id, location).
      rewards: float32 [B, T].
      terminated: float32 [B, T], 1 if the step terminated the episode, else 0.
      length: int32 [B], the number of steps of each sequence.
    """

    z: np.ndarray
    counts: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    length: np.ndarray

    def window(self, rows: np.ndarray, start: np.ndarray, stop: np.ndarray) -> "Steps":
        """Return one window of steps from each of k sequences, padded to the longest window (at least one step).

        Args:
          rows: int [k], the index of the sequence.
          start: int [k], the first step of the window.
          stop: int [k], the step after the last step of the window.
        """
        length = stop - start
        time = start[:, None] + np.arange(max(1, length.max()) + 1)
        states, steps = np.minimum(time, self.z.shape[1] - 1), np.minimum(time[:, :-1], self.rewards.shape[1] - 1)
        rows = rows[:, None]
        return Steps(
            self.z[rows, states], self.counts[rows, states], self.actions[rows, steps], self.rewards[rows, steps],
            self.terminated[rows, steps], length.astype(np.int32),
        )


def graph_signature(spec: EncodingSpec) -> GraphBatch:
    """Return the tf.function signature of a `GraphBatch` of any size, for an encoding with the sizes `spec`."""
    feature, index = (lambda size: tf.TensorSpec([None, size])), tf.TensorSpec([None], tf.int32)
    return GraphBatch(
        ops=index, nodes=feature(spec.node_features), edges=feature(spec.edge_features),
        globals=feature(spec.global_features), receivers=index, senders=index, n_node=index, n_edge=index,
    )


def sequence_signature(spec: EncodingSpec, latent: int) -> Steps:
    """Return the tf.function signature of `Steps` of any batch size and length.

    Args:
      spec: the sizes of the encoding.
      latent: Z, the size of the latent state.
    """
    return Steps(
        z=tf.TensorSpec([None, None, latent]), counts=tf.TensorSpec([None, None, spec.n_rules], tf.int32),
        actions=tf.TensorSpec([None, None, 2], tf.int32), rewards=tf.TensorSpec([None, None]),
        terminated=tf.TensorSpec([None, None]), length=tf.TensorSpec([None], tf.int32),
    )


def compiled(function: Callable, *signature) -> tf.types.experimental.PolymorphicFunction:
    """Return a function compiled by tf.function, which is traced once for arguments of this signature."""
    return tf.function(function, input_signature=signature, autograph=False)


def batch_graphs(graphs: Sequence[GraphArrays]) -> GraphBatch:
    """Concatenate one or more graphs; senders and receivers become indices of nodes in the batch."""
    n_node = np.array([len(graph.ops) for graph in graphs], np.int32)
    n_edge = np.array([len(graph.senders) for graph in graphs], np.int32)
    ops, nodes, edges, senders, receivers = (
        np.concatenate([getattr(graph, name) for graph in graphs])
        for name in ("ops", "nodes", "edges", "senders", "receivers")
    )
    offsets = np.repeat(np.cumsum(n_node, dtype=np.int32) - n_node, n_edge)
    return GraphBatch(
        ops.astype(np.int32), nodes.astype(np.float32), edges.astype(np.float32),
        np.stack([graph.globals for graph in graphs]).astype(np.float32),
        receivers.astype(np.int32) + offsets, senders.astype(np.int32) + offsets, n_node, n_edge,
    )


def batches_of_nodes(graphs: Sequence[GraphArrays]) -> Iterator[GraphBatch]:
    """Yield one or more graphs in order, in batches of at most NODES_PER_BATCH nodes; a larger graph is one batch."""
    batch, held = [], 0
    for graph in graphs:
        if batch and held + len(graph.ops) > NODES_PER_BATCH:
            yield batch_graphs(batch)
            batch, held = [], 0
        batch.append(graph)
        held += len(graph.ops)
    yield batch_graphs(batch)


def padded(arrays: Sequence[np.ndarray], room: int) -> np.ndarray:
    """Stack arrays of different lengths, padded with zeros.

    Args:
      arrays: n arrays [length, …] of one dtype and equal other dimensions.
      room: the number of zeros after the longest array.

    Returns:
      [n, longest + room, …].
    """
    result = np.zeros((len(arrays), max(map(len, arrays)) + room, *arrays[0].shape[1:]), arrays[0].dtype)
    for row, array in zip(result, arrays, strict=True):
        row[: len(array)] = array
    return result


def pack_episodes(episodes: Sequence[Episode], z: np.ndarray) -> Steps:
    """Pad episodes into one `Steps`.

    Invalid actions are left out, since they do not change the state and a dream gives them a fixed reward.

    Args:
      episodes: the episodes.
      z: float32 [number of graphs, Z], the latent states of all graphs of the episodes in order.
    """
    valid = [valid_actions(episode.actions, episode.counts[:-1]) for episode in episodes]
    length = np.array([mask.sum() for mask in valid], np.int32)
    size, longest = len(episodes), max(1, length.max())
    steps = Steps(
        z=np.zeros((size, longest + 1, z.shape[-1]), np.float32),
        counts=np.zeros((size, longest + 1, episodes[0].counts.shape[-1]), np.int32),
        actions=np.zeros((size, longest, 2), np.int32),
        rewards=np.zeros((size, longest), np.float32),
        terminated=np.zeros((size, longest), np.float32),
        length=length,
    )
    first = 0
    for row, (episode, mask) in enumerate(zip(episodes, valid, strict=True)):
        # An invalid action leaves the state as it was, so the state after the last valid one is the last state.
        kept = np.append(np.flatnonzero(mask), len(episode))
        steps.z[row, : len(kept)] = z[first + kept]
        steps.counts[row, : len(kept)] = episode.counts[kept]
        for name in ("actions", "rewards", "terminated"):
            getattr(steps, name)[row, : len(kept) - 1] = getattr(episode, name)[mask]
        first += len(episode) + 1
    return steps
