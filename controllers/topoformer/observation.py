"""Observations of graphs: features of nodes, and the relation of every pair of nodes.

The paper derives seven graphs from the given graph: the edges of its transitive reduction, its other edges, the pairs
that only a longer path connects, the reverses of these three, and the pairs that no path connects. No two of these
graphs share an edge, so any two different nodes have exactly one of seven relations. One byte per pair therefore holds
all seven graphs, and the network looks up its attention masks by these bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from rlflow.common.task import GraphArrays

POSITIONS = 20  # the number of features of a node that come from eigenvectors of the Laplacian

# The relation of a second node to a first node. NOTHING: one of them is padding. INCOMPARABLE: no path connects them.
# EDGE, SHORT_CUT and FAR: a path leads from the second node to the first, by an edge of the transitive reduction, by
# another edge, or only over further nodes. With _BACK, such a path leads from the first node to the second.
NOTHING, ITSELF, EDGE, SHORT_CUT, FAR, EDGE_BACK, SHORT_CUT_BACK, FAR_BACK, INCOMPARABLE = range(9)
BACK = EDGE_BACK - EDGE


class Observation(NamedTuple):
    """A batch of B graphs, padded at the end to n nodes each.

    features: float32 [B, n, F + POSITIONS], zeros for padding.
    relations: uint8 [B, n, n], where [b, i, j] is the relation of node j to node i, one of the constants above.
    edges: bool [B, n, n], where [b, i, j] is True if an edge leads from node i to node j.
    sizes: int32 [B], the number of nodes without padding.
    """

    features: np.ndarray
    relations: np.ndarray
    edges: np.ndarray
    sizes: np.ndarray


def observe(graphs: Sequence[GraphArrays]) -> Observation:
    """Return the observation of one or more acyclic graphs with F node features each."""
    sizes = np.array([len(graph.nodes) for graph in graphs], np.int32)
    count, n, known = len(graphs), sizes.max(), graphs[0].nodes.shape[1]
    features = np.zeros((count, n, known + POSITIONS), np.float32)
    relations, edges = np.zeros((count, n, n), np.uint8), np.zeros((count, n, n), bool)
    for k, (graph, size) in enumerate(zip(graphs, sizes, strict=True)):
        edges[k, graph.senders, graph.receivers] = True
        own = edges[k, :size, :size]
        depths = _depths(own)
        features[k, :size, :known], features[k, :size, known:] = graph.nodes, _positions(own, depths)
        relations[k, :size, :size] = _relations(own, depths)
    return Observation(features, relations, edges, sizes)


def _depths(edges: np.ndarray) -> np.ndarray:
    """Return the number of edges of the longest path that ends at each node, int64 [n]; edges: bool [n, n]."""
    depths, waiting, depth = np.zeros(len(edges), np.int64), edges.sum(axis=0), 0
    while len(ready := np.flatnonzero(waiting == 0)):
        depths[ready], waiting[ready] = depth, -1
        waiting -= edges[ready].sum(axis=0)
        depth += 1
    return depths


def _relations(edges: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Return the relation of every pair of nodes of one graph, uint8 [n, n]; see `Observation`.

    Args:
      edges: bool [n, n].
      depths: int64 [n], the result of `_depths`.
    """
    after, short_cuts = np.zeros_like(edges), np.zeros_like(edges)
    for node in np.argsort(-depths):
        beyond = after[edges[node]].any(axis=0)
        after[node], short_cuts[node] = edges[node] | beyond, edges[node] & beyond
    kinds = np.where(short_cuts, SHORT_CUT, np.where(edges, EDGE, FAR)).astype(np.uint8)
    relations = np.full(edges.shape, INCOMPARABLE, np.uint8)
    relations[after] = (kinds + BACK)[after]
    relations.T[after] = kinds[after]
    np.fill_diagonal(relations, ITSELF)
    return relations


def _positions(edges: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Return eigenvectors of the normalised Laplacian of the undirected graph as node features, float [n, POSITIONS].

    The eigenvectors belong to the smallest eigenvalues except the first (Dwivedi and Bresson 2021). Each is scaled by
    √n and has the sign for which its product with the depths is positive, so that the result does not depend on the
    numbering of nodes. A graph with too few nodes has columns of zeros at the end.
    """
    n, links = len(edges), (edges | edges.T).astype(np.float64)
    scale = 1 / np.sqrt(np.maximum(links.sum(axis=1), 1))
    laplacian = np.eye(n) - scale[:, None] * links * scale
    last = min(POSITIONS, n - 1)
    _, vectors = eigh(laplacian, subset_by_index=[0, last], check_finite=False)
    directed = vectors * np.where(depths @ vectors < 0, -1, 1) * np.sqrt(n)
    return np.pad(directed[:, 1:], [(0, 0), (0, POSITIONS - last)])
