"""What the network sees of graphs: features of nodes, and for every two nodes how they are related.

The seven graphs of the paper have no edge in common: of any two nodes one is related to the other in exactly one of
seven ways. So a byte for each pair holds them all, and masks are looked up where they are needed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from rlflow.common.task import GraphArrays

POSITIONS = 20  # eigenvectors of the Laplacian

# What a node is to another: nothing (one of them is padding), itself, before it, after it ("back"), neither. Before and
# after it: by an edge of the transitive reduction, by another edge, without an edge.
NOTHING, ITSELF, EDGE, SHORT_CUT, FAR, EDGE_BACK, SHORT_CUT_BACK, FAR_BACK, INCOMPARABLE = range(9)
BACK = EDGE_BACK - EDGE


class Observation(NamedTuple):
    """B graphs side by side, of n nodes each; smaller ones are padded at their ends.

    features: float32 [B, n, F + POSITIONS], zeros where there is no node.
    relations: uint8 [B, n, n]: what the second node is to the first; a constant above.
    edges: bool [B, n, n]: whether an edge leads from the first node to the second.
    sizes: int32 [B], how many nodes there are.
    """

    features: np.ndarray
    relations: np.ndarray
    edges: np.ndarray
    sizes: np.ndarray


def observe(graphs: Sequence[GraphArrays]) -> Observation:
    """Their edges must not lead in a circle."""
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
    """int64 [n]: the most edges from a node without sources."""
    depths, waiting, depth = np.zeros(len(edges), np.int64), edges.sum(axis=0), 0
    while len(ready := np.flatnonzero(waiting == 0)):
        depths[ready], waiting[ready] = depth, -1
        waiting -= edges[ready].sum(axis=0)
        depth += 1
    return depths


def _relations(edges: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """uint8 [n, n], of a graph."""
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
    """float [n, POSITIONS]: eigenvectors of the Laplacian without directions (Dwivedi and Bresson 2021), those of the
    smallest eigenvalues but the first, each as large and so directed that no numbering of the nodes matters: it grows
    with depth.
    """
    n, links = len(edges), (edges | edges.T).astype(np.float64)
    scale = 1 / np.sqrt(np.maximum(links.sum(axis=1), 1))
    laplacian = np.eye(n) - scale[:, None] * links * scale
    last = min(POSITIONS, n - 1)
    _, vectors = eigh(laplacian, subset_by_index=[0, last], check_finite=False)
    directed = vectors * np.where(depths @ vectors < 0, -1, 1) * np.sqrt(n)
    return np.pad(directed[:, 1:], [(0, 0), (0, POSITIONS - last)])
