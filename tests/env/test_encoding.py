"""Graphs as arrays where sizes are symbolic: numbers at the typical sizes, and beside them what is symbolic."""

import numpy as np

from rlflow.env.encoding import EDGE_FEATURES, NODE_FEATURES, SIZE_SLOTS, TOTALS, size_features
from rlflow.env.state import Task
from rlflow.tasks.base import GraphArrays
from tests.toys.sizes import encoder_task
from tests.toys.systems import SIGNS_AND_PRODUCTS, onnx_model, task_of

# columns of GraphArrays, see `node_features` and `arrays`
COSTS, N_SYMBOLIC, LEADING, DEGREE = slice(0, 3), 18, 19, 20
ELEMENTS, LAST_DIMENSIONS = 9, slice(10, 14)
BYTES = 1  # of edges


def states(*tasks, steps: int = 8, seed: int = 0):
    """States of each task after the same random actions, side by side."""
    rng, now = np.random.default_rng(seed), [task.initial for task in tasks]
    for _ in range(steps):
        yield now
        valid = now[0].valid_actions()[:-1]
        action = valid[rng.integers(len(valid))]
        now = [state.apply(*action) for state in now]


def differing(one: np.ndarray, other: np.ndarray) -> set[int]:
    return set(np.flatnonzero((one != other).any(axis=0)).tolist())


def test_two_typical_sizes_differ_in_the_features_of_sizes_alone():
    """The masks are the same, and so are operators, edges and all that no size enters."""
    of_sizes = {0, 1, 2, ELEMENTS, *range(LAST_DIMENSIONS.start, LAST_DIMENSIONS.stop)}
    for small, large in states(encoder_task(8), encoder_task(64)):
        assert small.graph.hash == large.graph.hash
        assert np.array_equal(small.counts, large.counts)
        one, other = small.arrays(), large.arrays()
        for name in ("ops", "senders", "receivers"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
        assert differing(one.nodes, other.nodes) <= of_sizes and ELEMENTS in differing(one.nodes, other.nodes)
        assert differing(one.edges, other.edges) == {BYTES}
        assert one.globals[TOTALS] < other.globals[TOTALS]


def test_the_fixed_twin_differs_in_what_is_symbolic_alone():
    for symbolic, fixed in states(encoder_task(16), encoder_task(sequence=16)):
        one, other = symbolic.arrays(), fixed.arrays()
        assert np.array_equal(symbolic.counts, fixed.counts)
        assert np.array_equal(one.ops, other.ops) and np.array_equal(one.edges, other.edges)
        assert np.array_equal(one.nodes[:, :N_SYMBOLIC], other.nodes[:, :N_SYMBOLIC])
        assert not other.nodes[:, N_SYMBOLIC:].any() and not other.globals[TOTALS:].any()
        assert np.array_equal(one.globals[:TOTALS], other.globals[:TOTALS])
        assert symbolic.objective == fixed.objective


def test_what_is_symbolic_is_said_of_each_tensor():
    """Scores [1, heads, seq, seq] have two symbolic axes, of degree 2; x [1, seq, 32] has one; none leads."""
    task = encoder_task(8)
    graph, arrays = task.graph, task.initial.arrays()
    for node_id, row in zip(graph.order, arrays.nodes, strict=True):
        shape = graph.types[graph.nodes[node_id].outputs[0]].shape
        symbolic = sum(not isinstance(size, int) for size in shape)
        assert row[N_SYMBOLIC] == row[DEGREE] == symbolic and row[LEADING] == 0
    assert {1, 2} <= set(arrays.nodes[:, N_SYMBOLIC].astype(int).tolist())


def test_axes_that_are_merged_are_one_symbolic_axis_of_degree_two():
    """x [batch, seq, 4] → [batch·seq, 4]; the leading axis is symbolic in both."""
    model = onnx_model("a = Relu(x)\nb = Flatten(a)\nc = Neg(b)", {"x": ("batch", "seq", 4)}, "c", b={"axis": 2})
    task = task_of(model, SIGNS_AND_PRODUCTS)
    task = Task(task.graph, task.rules, task.cost, sizes=({"batch": 2, "seq": 8},))
    rows = task.initial.arrays().nodes
    assert rows[:, [N_SYMBOLIC, LEADING, DEGREE]].tolist() == [[2, 1, 2], [1, 1, 2], [1, 1, 2]]
    assert np.allclose(rows[:, ELEMENTS], np.log1p(2 * 8 * 4))


def test_the_shapes_of_the_arrays_are_those_that_the_spec_says():
    arrays: GraphArrays = encoder_task(8).initial.arrays()
    assert arrays.nodes.shape[1] == NODE_FEATURES and arrays.edges.shape[1] == EDGE_FEATURES
    assert arrays.globals.shape == (TOTALS + SIZE_SLOTS,)
    assert encoder_task(8).encoding_spec == encoder_task(64).encoding_spec == encoder_task(sequence=8).encoding_spec


def test_sizes_stand_in_the_order_of_the_names_of_their_symbols():
    """Over several typical sizes their mean, in logarithms; more symbols than slots leave the last ones out."""
    expected = np.log1p([2, np.expm1(np.log1p([16, 256]).mean())])
    both = size_features(({"seq": 16, "batch": 2}, {"batch": 2, "seq": 256}))
    assert np.allclose(both[:2], expected) and not both[2:].any()
    many = size_features(({f"s{k}": k + 1 for k in range(SIZE_SLOTS + 2)},))
    assert np.allclose(many, np.log1p(np.arange(SIZE_SLOTS) + 1))
