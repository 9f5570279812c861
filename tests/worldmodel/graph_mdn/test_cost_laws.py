"""Test the cost laws: the fit recovers planted laws and extrapolates to sizes outside the data."""

import numpy as np
import pytest

from rlflow.collect.edits import OPERATOR_COLUMNS, SignatureFeatures
from rlflow.env.features import SIZE, SIZES, TENSOR_FEATURES
from worldmodel.graph_mdn.network import NODE_INPUTS, NodeBatch
from worldmodel.graph_mdn.network_inputs import SignatureTable
from worldmodel.graph_mdn.neural_costs import CONSTANT, CostLaws

PRODUCT, SUM, STRANGE = 17, 18, 19  # operators
LAUNCH, FLOP, BYTE = 1000.0, 0.02, 0.2  # ns


def nodes_of(kinds, shapes, constant=False) -> tuple[NodeBatch, SignatureTable]:
    """Return nodes that read [m, k] and [k, n] and make [m, n], for shapes (m, k, n), and their signature table."""
    operators, tensors = np.zeros((len(shapes), OPERATOR_COLUMNS), np.float32), []
    operators[:, 0] = kinds
    for m, k, n in shapes:
        for axes in ((m, k), (k, n), (m, n)):
            row = np.zeros(TENSOR_FEATURES, np.float32)
            row[CONSTANT], row[SIZE] = constant, np.log1p(np.prod(axes))
            row[SIZES][:2] = np.log1p(axes)
            tensors.append(row)
    table = SignatureTable()
    table.learn(SignatureFeatures(np.arange(len(shapes)), operators, np.arange(len(tensors)), np.array(tensors)))
    count, none = len(shapes), np.zeros(0, np.int32)
    rows, slots = np.arange(1, 1 + 3 * count), np.tile([0, 1, NODE_INPUTS], count)
    return NodeBatch(np.arange(1, 1 + count), rows, slots, np.repeat(np.arange(count), 3), none, none, none), table


def planted(kinds, shapes) -> np.ndarray:
    """Return log(1 + ns) by a roofline: a product takes the longer of arithmetic and memory, a sum takes memory
    time."""
    result = []
    for kind, (m, k, n) in zip(kinds, np.array(shapes, float), strict=True):
        moved = BYTE * (m * k + k * n + m * n)
        result.append(np.log1p(LAUNCH + (max(FLOP * m * k * n, moved) if kind == PRODUCT else moved)))
    return np.array(result)


def drawn(count: int, least: int, most: int, seed: int):
    random = np.random.default_rng(seed)
    shapes = np.exp(random.uniform(np.log(least), np.log(most), (count, 3))).astype(int)
    return random.choice([PRODUCT, SUM], count), shapes


def test_a_cost_law_holds_for_sizes_far_beyond_the_sizes_of_its_data():
    kinds, shapes = drawn(300, 4, 512, 0)
    laws = CostLaws.fit(nodes_of(kinds, shapes)[0], planted(kinds, shapes), nodes_of(kinds, shapes)[1])
    for seed, (least, most) in enumerate(((4, 512), (512, 8192))):
        kinds, shapes = drawn(200, least, most, 1 + seed)
        errors = np.abs(laws(*nodes_of(kinds, shapes)) - planted(kinds, shapes))
        assert errors.mean() < 0.01


def test_operators_of_constants_have_a_cost_law_of_their_own():
    kinds, shapes = drawn(60, 4, 512, 0)
    run, table = nodes_of(kinds, shapes)
    laws = CostLaws.fit(run, planted(kinds, shapes), table)
    constant, of_constants = nodes_of(kinds, shapes, constant=True)
    free = CostLaws.fit(constant, np.zeros(60), of_constants)
    assert not set(laws.kinds) & set(free.kinds)
    assert np.abs(free(constant, of_constants)).max() < 0.01


def test_an_unseen_operator_costs_the_mean_of_all_nodes():
    kinds, shapes = drawn(60, 4, 512, 0)
    costs = planted(kinds, shapes)
    laws = CostLaws.fit(*nodes_of(kinds, shapes)[:1], costs, nodes_of(kinds, shapes)[1])
    strange = laws(*nodes_of(np.full(5, STRANGE), shapes[:5]))
    np.testing.assert_allclose(strange, costs.mean(), rtol=1e-6)


def test_an_operator_kind_of_few_nodes_reuses_a_fitting_cost_law_of_a_larger_kind():
    """Predict a large fused product from the law of products if three small ones fit that law; otherwise they keep
    their own."""
    kinds, shapes = drawn(300, 4, 512, 0)
    few = np.array([(20, 30, 40), (64, 16, 8), (100, 50, 25)])
    large = np.array([(2000, 1000, 500), (4096, 4096, 64)])
    for factor in (0.0, 2.0):  # Added to the logarithm of the cost.
        costs = planted(np.full(3, PRODUCT), few) + factor
        nodes, table = nodes_of(np.append(kinds, [STRANGE] * 3), np.concatenate([shapes, few]))
        laws = CostLaws.fit(nodes, np.append(planted(kinds, shapes), costs), table)
        errors = np.abs(laws(*nodes_of(np.full(2, STRANGE), large)) - planted(np.full(2, PRODUCT), large))
        assert (errors < 0.01).all() if factor == 0 else (errors > 0.1).all()


def test_equal_nodes_count_once_in_a_cost_law():
    kinds, shapes = drawn(40, 4, 512, 0)
    costs = planted(kinds, shapes)
    once = CostLaws.fit(*nodes_of(kinds, shapes)[:1], costs, nodes_of(kinds, shapes)[1])
    often = np.repeat(np.arange(40), np.random.default_rng(0).integers(1, 9, 40))
    nodes, table = nodes_of(kinds[often], shapes[often])
    # Means of equal numbers are rounded, so the fits agree only approximately.
    again = CostLaws.fit(nodes, costs[often], table)
    np.testing.assert_allclose(again(nodes, table), once(nodes, table), atol=1e-5)


def test_saved_cost_laws_predict_the_same_and_damaged_ones_are_refused():
    kinds, shapes = drawn(40, 4, 512, 0)
    nodes, table = nodes_of(kinds, shapes)
    laws = CostLaws.fit(nodes, planted(kinds, shapes), table)
    np.testing.assert_array_equal(CostLaws.of(laws.arrays())(nodes, table), laws(nodes, table))
    with pytest.raises(ValueError, match="laws"):
        CostLaws.of(laws.arrays() | {"laws": laws.parameters[:, 1:]})
