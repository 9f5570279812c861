"""Test the observation: the relations follow their definitions and do not depend on node numbers or other graphs."""

import numpy as np
import pytest

from controllers.topoformer import observation as seen
from controllers.topoformer.observation import observe
from tests.controllers.topoformer.graphs import instance, renumbered


def ways(edges: np.ndarray) -> np.ndarray:
    """Return the length of the longest path from one node to another in edges, int [n, n]; 0 without a path."""
    longest, power = np.zeros(edges.shape, int), edges.astype(int)
    for length in range(1, len(edges)):
        longest[power > 0] = length
        power = (power @ edges > 0).astype(int)
    return longest


@pytest.mark.parametrize("seed", range(4))
def test_relations_of_two_nodes_follow_from_the_paths_between_them(seed):
    graph = observe([instance(25, seed).arrays()])
    edges, longest = graph.edges[0], ways(graph.edges[0])
    expected = np.full(edges.shape, seen.INCOMPARABLE)
    for back, (after, linked) in enumerate([(longest.T, edges.T), (longest, edges)]):
        expected[after == 1] = seen.EDGE + 3 * back  # Another path would be longer.
        expected[(after > 1) & linked] = seen.SHORT_CUT + 3 * back
        expected[(after > 1) & ~linked] = seen.FAR + 3 * back
    np.fill_diagonal(expected, seen.ITSELF)
    assert np.array_equal(graph.relations[0], expected)
    assert len(np.unique(expected)) == 8


def test_positions_are_eigenvectors_that_grow_with_depth():
    graph = observe([instance(40, 0).arrays()])
    edges, positions = graph.edges[0], graph.features[0, :, -seen.POSITIONS :].astype(float)
    links = (edges | edges.T).astype(float)
    scale = np.diag(links.sum(axis=1) ** -0.5)
    laplacian = np.eye(40) - scale @ links @ scale
    values = np.linalg.eigvalsh(laplacian)[1 : seen.POSITIONS + 1]
    np.testing.assert_allclose(laplacian @ positions, positions * values, atol=1e-5)
    np.testing.assert_allclose((positions**2).mean(axis=0), 1, atol=1e-5)
    assert (ways(edges).max(axis=0) @ positions > 0).all()


def test_numbers_of_nodes_do_not_matter():
    one = instance(60, 3)
    order = np.random.default_rng(0).permutation(60)
    first, second = observe([one.arrays()]), observe([renumbered(one, order).arrays()])
    np.testing.assert_allclose(second.features[0], first.features[0, order], atol=1e-4)
    assert np.array_equal(second.relations[0], first.relations[0][order][:, order])


def test_small_graphs_are_padded_with_zeros_in_a_batch():
    small, large = instance(12, 0).arrays(), instance(30, 1).arrays()
    both, one = observe([small, large]), observe([small])
    assert both.sizes.tolist() == [12, 30]
    for name in ("features", "relations", "edges"):
        padded, whole = getattr(both, name)[0], getattr(one, name)[0]
        inside = tuple(slice(size) for size in whole.shape)
        assert np.array_equal(padded[inside], whole) and padded.astype(bool).sum() == whole.astype(bool).sum()
