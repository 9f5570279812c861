"""Test the generator of layered graphs: every graph has the properties of the paper's appendix A."""

from math import ceil, sqrt

import numpy as np
import pytest

from rlflow.tasks import ordering as module
from rlflow.tasks.ordering import UNIT, layered

SIZES = [1, 2, 25, 100, 500]


@pytest.mark.parametrize("n", SIZES)
def test_equal_seeds_give_equal_graphs_and_edges_lead_to_later_nodes(n):
    for seed in range(3):
        one, other = layered(n, seed), layered(n, seed)
        assert one.n == n and np.array_equal(one.edges, other.edges) and np.array_equal(one.size, other.size)
        assert (one.edges[:, 0] < one.edges[:, 1]).all() and (one.size > 0).all() and (one.work > 0).all()
    assert n < 25 or not np.array_equal(layered(n, 0).size, layered(n, 1).size)


def test_layers_have_the_number_and_sizes_of_the_equations():
    """Check equations 11 and 12: about √(n (1/W − 1)) layers of one size each, none above 1.75 times the mean."""
    for seed in range(20):
        layers = module._layers(500, np.random.default_rng(seed))
        assert np.concatenate(layers).tolist() == list(range(500))
        sizes = [len(layer) for layer in layers]
        assert max(sizes) <= 500 / ceil(sqrt(500)) * 1.75
        assert 500 / max(sizes) <= len(layers) <= 2.5 * ceil(sqrt(500 * 3))


@pytest.mark.parametrize("above, below", [(7, 7), (3, 11), (11, 3), (1, 5), (5, 1), (1, 1), (20, 14)])
def test_every_node_has_an_edge_to_the_next_layer_and_their_number_is_equation_13s(above, below):
    first, second = np.arange(above), np.arange(above, above + below)
    for seed in range(5):
        edges = module._between(first, second, np.random.default_rng(seed))
        assert len(edges) == len(set(edges)) == int(above * below * 0.2 + 0.8 * max(above, below) + 0.5)
        assert {a for a, _ in edges} == set(first.tolist()) and {b for _, b in edges} == set(second.tolist())


def test_skip_edges_pass_over_a_layer_and_stay_near_their_column():
    layers = np.split(np.arange(60), 6)
    edges = module._skips(layers, 400, np.random.default_rng(0))
    assert len(edges) == ceil(400 * 0.14 / 0.86)
    for source, target in edges:
        assert target // 10 >= source // 10 + 2 and source % 10 <= target % 10 <= source % 10 + 2
    assert module._skips(layers[:2], 400, np.random.default_rng(0)) == []


def test_sizes_come_from_the_mixture():
    rng = np.random.default_rng(0)
    sizes = np.array([module._size(rng) for _ in range(3000)]) / UNIT
    drawn = np.random.default_rng(1).choice(4, 60000, p=module.WEIGHTS)
    wanted = np.random.default_rng(2).normal(np.array(module.MEANS)[drawn], np.array(module.DEVIATIONS)[drawn])
    wanted = wanted[wanted > 0]
    assert np.allclose(np.quantile(sizes, (0.2, 0.5, 0.8)), np.quantile(wanted, (0.2, 0.5, 0.8)), atol=0.1)
