"""Graphs as arrays: numbers at the typical sizes, beside them what is symbolic, and all that masks depend on."""

import numpy as np

from rlflow.env.observation.arrays import COSTS, GLOBAL_FEATURES, SIZE_SLOTS, TENSOR, TOTALS, size_features
from rlflow.env.observation.entries import EDGE_FEATURES, NODE_FEATURES
from rlflow.env.observation.scales import FINGERPRINT
from rlflow.env.observation.tensors import CONTENT, DEGREES, LENGTH, POWERS, SIZE, SIZES, TENSOR_FEATURES
from rlflow.env.state import Task
from rlflow.tasks.base import GraphArrays
from tests.toys.sizes import encoder_task
from tests.toys.systems import SIGNS_AND_PRODUCTS, onnx_model, task_of


def columns(*parts: int | slice) -> set[int]:
    """Of `edges`, those of these parts of a tensor's features."""
    of_tensor = range(TENSOR.start, TENSOR.stop)
    slices = [slice(part, part + 1) if isinstance(part, int) else part for part in parts]
    return {column for part in slices for column in of_tensor[part]}


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
    """The masks are the same, and so are operators and all that no size enters, fingerprints among them."""
    of_sizes = columns(SIZE, SIZES, POWERS, LENGTH, CONTENT)
    for small, large in states(encoder_task(8), encoder_task(64)):
        assert small.graph.hash == large.graph.hash
        assert np.array_equal(small.counts, large.counts)
        one, other = small.arrays(), large.arrays()
        for name in ("ops", "senders", "receivers"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
        assert differing(one.nodes, other.nodes) <= set(range(COSTS.stop))
        assert columns(SIZE) < differing(one.edges, other.edges) <= of_sizes
        assert one.globals[TOTALS] < other.globals[TOTALS]


def test_the_fixed_twin_differs_in_what_is_symbolic_alone():
    for symbolic, fixed in states(encoder_task(23), encoder_task(sequence=23)):  # no other size is 23
        one, other = symbolic.arrays(), fixed.arrays()
        assert np.array_equal(symbolic.counts, fixed.counts)
        assert np.array_equal(one.ops, other.ops) and np.array_equal(one.nodes, other.nodes)
        fingerprint = slice(TENSOR_FEATURES - FINGERPRINT, TENSOR_FEATURES)
        assert differing(one.edges, other.edges) <= columns(DEGREES, LENGTH, CONTENT, fingerprint)
        assert not other.edges[:, sorted(columns(DEGREES))].any() and not other.globals[TOTALS:][:SIZE_SLOTS].any()
        assert np.array_equal(one.globals[:TOTALS], other.globals[:TOTALS])
        assert symbolic.objective == fixed.objective


def test_what_is_symbolic_is_said_of_each_tensor_that_is_read():
    """Scores [1, heads, seq, seq] have two symbolic axes; x [1, seq, 32] has one; none leads."""
    arrays = encoder_task(8).initial.arrays()
    degrees = {tuple(row[:4]) for row in arrays.edges[:, sorted(columns(DEGREES))].astype(int).tolist()}
    assert degrees == {(0, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 1, 1)}


def test_axes_that_are_merged_are_one_symbolic_axis_of_degree_two():
    """x [batch, seq, 4] → a [batch, seq, 4] → b [batch·seq, 4] → c; the leading axis is symbolic in all."""
    model = onnx_model("a = Relu(x)\nb = Flatten(a)\nc = Neg(b)", {"x": ("batch", "seq", 4)}, "c", b={"axis": 2})
    task = task_of(model, SIGNS_AND_PRODUCTS)
    task = Task(task.graph, task.rules, task.cost, sizes=({"batch": 2, "seq": 8},))
    edges = task.initial.arrays().edges[:, TENSOR]
    assert edges[:, DEGREES][:, :3].tolist() == [[1, 1, 0], [1, 1, 0], [2, 0, 0], [2, 0, 0]]
    assert np.allclose(edges[:, SIZE], np.log1p(2 * 8 * 4))


def test_the_shapes_of_the_arrays_are_those_that_the_spec_says():
    arrays: GraphArrays = encoder_task(8).initial.arrays()
    assert arrays.nodes.shape[1] == NODE_FEATURES and arrays.edges.shape[1] == EDGE_FEATURES
    assert arrays.globals.shape == (GLOBAL_FEATURES,)
    assert encoder_task(8).encoding_spec == encoder_task(64).encoding_spec == encoder_task(sequence=8).encoding_spec


def test_sizes_stand_in_the_order_of_the_names_of_their_symbols():
    """Over several typical sizes their mean, in logarithms; more symbols than slots leave the last ones out."""
    expected = np.log1p([2, np.expm1(np.log1p([16, 256]).mean())])
    both = size_features(({"seq": 16, "batch": 2}, {"batch": 2, "seq": 256}))
    assert np.allclose(both[:2], expected) and not both[2:].any()
    many = size_features(({f"s{k}": k + 1 for k in range(SIZE_SLOTS + 2)},))
    assert np.allclose(many, np.log1p(np.arange(SIZE_SLOTS) + 1))
