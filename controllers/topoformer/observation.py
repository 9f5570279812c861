"""Observations of graphs: features of nodes, and the relation of every pair of nodes.

The seven graphs of the paper have no common edges, so any two nodes have exactly one of seven relations. One byte per
pair therefore holds all seven graphs, and the network looks its masks up in these bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from rlflow.common.task import GraphArrays

POSITIONS = 20  # eigenvectors of the Laplacian

# Relations of a second node to a first one. NOTHING: one of them is padding. INCOMPARABLE: neither precedes the other.
# The second precedes the first by an edge of the transitive reduction (EDGE), by another edge (SHORT_CUT) or without
# an edge (FAR); with _BACK it follows the first.
NOTHING, ITSELF, EDGE, SHORT_CUT, FAR, EDGE_BACK, SHORT_CUT_BACK, FAR_BACK, INCOMPARABLE = range(9)
BACK = EDGE_BACK - EDGE


class Observation(NamedTuple):
    """A batch of B graphs, padded at the end to n nodes each.

    features: float32 [B, n, F + POSITIONS], zeros for padding.
    relations: uint8 [B, n, n], the relation of the second node to the first, one of the constants above.
    edges: bool [B, n, n], True if an edge leads from the first node to the second.
    sizes: int32 [B], the number of nodes.
    """

    features: np.ndarray
    relations: np.ndarray
    edges: np.ndarray
    sizes: np.ndarray


def observe(graphs: Sequence[GraphArrays]) -> Observation:
    """Return the observation of acyclic graphs."""
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
    """Return the length of the longest path from a node without sources, int64 [n]."""
    depths, waiting, depth = np.zeros(len(edges), np.int64), edges.sum(axis=0), 0
    while len(ready := np.flatnonzero(waiting == 0)):
        depths[ready], waiting[ready] = depth, -1
        waiting -= edges[ready].sum(axis=0)
        depth += 1
    return depths


def _relations(edges: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Return the relations of a graph, uint8 [n, n]."""
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
    """Return eigenvectors of the Laplacian of the undirected graph, float [n, POSITIONS] (Dwivedi and Bresson 2021).

    They belong to the smallest eigenvalues except the first. Each is scaled by √n, with the sign that makes it grow
    with depth, so that the result does not depend on the numbering of nodes.
    """
    n, links = len(edges), (edges | edges.T).astype(np.float64)
    scale = 1 / np.sqrt(np.maximum(links.sum(axis=1), 1))
    laplacian = np.eye(n) - scale[:, None] * links * scale
    last = min(POSITIONS, n - 1)
    _, vectors = eigh(laplacian, subset_by_index=[0, last], check_finite=False)
    directed = vectors * np.where(depths @ vectors < 0, -1, 1) * np.sqrt(n)
    return np.pad(directed[:, 1:], [(0, 0), (0, POSITIONS - last)])
