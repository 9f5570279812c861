"""Test graphs as arrays: they hold numbers at the typical sizes, what is symbolic, and everything that masks depend
on."""

import gc
import weakref
from collections import Counter

import numpy as np
import pytest

from benchmarks.random_models.random_model import random_model
from rlflow.common.task import GraphArrays
from rlflow.env.features import CONTENT, DEGREES, FINGERPRINT, LENGTH, POWERS, SIZE, SIZES, TENSOR_FEATURES
from rlflow.env.observation import (
    COSTS,
    EDGE_FEATURES,
    GLOBAL_FEATURES,
    NODE_FEATURES,
    SIZE_SLOTS,
    TENSOR,
    TOTALS,
    size_features,
)
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules
from rlflow.zoo import load
from tests.env.look_alikes import changes, disguised, equal, seen, state_of
from tests.env.observation_walks import Tally, compare
from tests.suite import at_night
from tests.toys.sizes import encoder_task
from tests.toys.systems import SIGNS_AND_PRODUCTS, onnx_model, task_of


def columns(*parts: int | slice) -> set[int]:
    """Return the columns of `edges` that hold these parts of a tensor's features."""
    of_tensor = range(TENSOR.start, TENSOR.stop)
    slices = [slice(part, part + 1) if isinstance(part, int) else part for part in parts]
    return {column for part in slices for column in of_tensor[part]}


def states(*tasks, steps: int = 8, seed: int = 0):
    """Yield the states of all tasks after the same random actions."""
    rng, now = np.random.default_rng(seed), [task.initial for task in tasks]
    for _ in range(steps):
        yield now
        valid = now[0].valid_actions()[:-1]
        action = valid[rng.integers(len(valid))]
        now = [state.apply(*action) for state in now]


def differing(one: np.ndarray, other: np.ndarray) -> set[int]:
    return set(np.flatnonzero((one != other).any(axis=0)).tolist())


def test_observations_at_two_sizes_differ_only_in_features_of_sizes_and_costs():
    """The masks, operators, edges and fingerprints are equal; only features of sizes and costs differ."""
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


def test_a_model_with_fixed_sizes_differs_only_in_symbolic_features():
    # No other size is 23. With this seed no rule compares a symbolic size with another size.
    for symbolic, fixed in states(encoder_task(23), encoder_task(sequence=23), seed=2):
        one, other = symbolic.arrays(), fixed.arrays()
        assert np.array_equal(symbolic.counts, fixed.counts)
        assert np.array_equal(one.ops, other.ops) and np.array_equal(one.nodes, other.nodes)
        fingerprint = slice(TENSOR_FEATURES - FINGERPRINT, TENSOR_FEATURES)
        assert differing(one.edges, other.edges) <= columns(DEGREES, LENGTH, CONTENT, fingerprint)
        assert not other.edges[:, sorted(columns(DEGREES))].any() and not other.globals[TOTALS:][:SIZE_SLOTS].any()
        assert np.array_equal(one.globals[:TOTALS], other.globals[:TOTALS])
        assert symbolic.objective == fixed.objective


def test_edge_features_mark_the_symbolic_axes_of_each_tensor():
    """Scores [1, heads, seq, seq] have two symbolic axes, and x [1, seq, 32] has one; no leading axis is symbolic."""
    arrays = encoder_task(8).initial.arrays()
    degrees = {tuple(row[:4]) for row in arrays.edges[:, sorted(columns(DEGREES))].astype(int).tolist()}
    assert degrees == {(0, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 1, 1)}


def test_axes_that_are_merged_are_one_symbolic_axis_of_degree_two():
    """The tensors are x [batch, seq, 4] → a [batch, seq, 4] → b [batch·seq, 4] → c; the leading axis is symbolic in
    each."""
    model = onnx_model("a = Relu(x)\nb = Flatten(a)\nc = Neg(b)", {"x": ("batch", "seq", 4)}, "c", b={"axis": 2})
    task = task_of(model, SIGNS_AND_PRODUCTS)
    task = Task(task.graph, task.rules, task.cost, sizes=({"batch": 2, "seq": 8},))
    edges = task.initial.arrays().edges[:, TENSOR]
    assert edges[:, DEGREES][:, :3].tolist() == [[1, 1, 0], [1, 1, 0], [2, 0, 0], [2, 0, 0]]
    assert np.allclose(edges[:, SIZE], np.log1p(2 * 8 * 4))


def test_observation_arrays_have_the_declared_widths():
    arrays: GraphArrays = encoder_task(8).initial.arrays()
    assert arrays.nodes.shape[1] == NODE_FEATURES and arrays.edges.shape[1] == EDGE_FEATURES
    assert arrays.globals.shape == (GLOBAL_FEATURES,)
    assert encoder_task(8).encoding_spec == encoder_task(64).encoding_spec == encoder_task(sequence=8).encoding_spec


def test_size_features_are_ordered_by_the_names_of_the_symbols():
    """Several typical sizes give the mean of their logarithms. If there are more symbols than slots, the last ones are
    left out."""
    expected = np.log1p([2, np.expm1(np.log1p([16, 256]).mean())])
    both = size_features(({"seq": 16, "batch": 2}, {"batch": 2, "seq": 256}))
    assert np.allclose(both[:2], expected) and not both[2:].any()
    many = size_features(({f"s{k}": k + 1 for k in range(SIZE_SLOTS + 2)},))
    assert np.allclose(many, np.log1p(np.arange(SIZE_SLOTS) + 1))


# -- masks are a function of the observation -----------------------------------------------------------


def walked(graph, rng, steps: int = 12):
    """Yield (state, the same state of a disguise of the graph) along a random walk."""
    one, other = state_of(graph, load_rules()), state_of(disguised(graph, rng), load_rules())
    for _ in range(steps):
        yield one, other
        xfer_id = int(rng.choice(np.flatnonzero(one.counts)))
        location = int(rng.integers(one.counts[xfer_id]))
        one, other = one.apply(xfer_id, location), other.apply(xfer_id, location)


@pytest.mark.parametrize("name", ["tiny_resnet18", "tiny_bert_base", "tiny_shufflenet_v2"])
def test_graphs_that_rules_cannot_tell_apart_look_the_same(name):
    """Other ids, weights and unshared literals do not change the observation, unless several operators read one large
    weight."""
    compared = 0
    for one, other in walked(load_graph(load(name)), np.random.default_rng(0)):
        assert one.graph.hash != other.graph.hash and np.array_equal(one.counts, other.counts)
        if all(len(readers) == 1 for readers in one.entries.readers.values()):
            assert equal(one.arrays(), other.arrays())
            compared += 1
    assert compared > 3


def test_a_change_that_a_mask_depends_on_is_seen():
    """Change one attribute, literal, size, data type, wire or output at a time, which a condition can read."""
    tally = Tally(load_rules(), np.random.default_rng(1))
    models = [load("tiny_shufflenet_v2"), random_model(8)]
    for model in at_night([load("tiny_bert_base_fused"), *models, random_model(3)], models):
        before = state_of(load_graph(model), load_rules())
        possible, known = list(changes(before.graph, tally.rng)), Counter()
        for k in tally.rng.permutation(len(possible)):
            change = possible[k]
            known[change.what] += 1
            after = seen(change, load_rules()) if known[change.what] <= at_night(2, 1) else None
            if after is not None:
                tally.add_change(change.what, before, after)
    assert not any(kind["not seen"] for kind in tally.changes.values())
    depends = {what for what, kind in tally.changes.items() if kind["masks differ"]}
    assert depends >= {
        "attribute axis", "attribute perm", "attribute group", "attribute strides", "literal", "size + 1", "size × 2",
        "rank", "data type", "shape not known", "inputs exchanged", "one input twice", "a copy of an operator",
        "an input for a weight",
    }  # fmt: skip


def test_nodes_with_equal_neighbourhoods_have_equal_matches():
    """A network that passes messages sees only neighbourhoods. Equal neighbourhoods of 6 edges have equal matches. At
    distance 0 they do not, so the test can fail."""
    tally = Tally(load_rules(), np.random.default_rng(2))
    for problem in [(load("tiny_resnet18"), {}, 12), *((random_model(k), {}, 12) for k in range(at_night(4, 2)))]:
        compare(*problem, 12, tally)
    nearest, *_, farthest = tally.nodes.values()
    assert farthest["pairs"] > 500 and not farthest["matches differ"] and nearest["matches differ"]


# -- kept from state to state --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny_inception_v3", "tiny_bert_base"])
def test_arrays_first_computed_after_a_walk_equal_the_arrays_of_a_new_task(name):
    states = [one for one, _ in walked(load_graph(load(name)), np.random.default_rng(3), 20)]
    task, last = states[0].task, states[-1]
    assert "entries" not in vars(states[10])
    anew = Task(last.graph, task.rules, task.cost).initial
    assert last.entries == anew.entries
    for left, right in zip(last.arrays()[:-1], anew.arrays()[:-1], strict=True):
        assert np.array_equal(left, right)


def test_a_large_weight_has_a_fingerprint_while_another_operator_reads_an_equal_weight():
    """Only another operator with an equal weight makes the fingerprint necessary, at any distance."""
    lines = "a = MatMul(x, w)\nb = Relu(a)\nc = Neg(b)\nd = Abs(c)\ne = Neg(d)\nf = MatMul(e, u)\ng = Neg(f)"
    model = onnx_model(lines, {"x": (4, 4)}, "g", {"w": (4, 4), "u": (4, 4)})
    both = task_of(model, "drop:\n  Relu(MatMul(x, w)) => Relu(x)").initial
    marked = lambda state: [bool(row.any()) for row in weights(state.arrays())[:, -FINGERPRINT:]]  # noqa: E731
    assert marked(both) == [True, True] and marked(both.apply(0, 0)) == [False]


def test_a_rewrite_that_makes_two_operators_equal_updates_the_features_of_their_consumer():
    model = onnx_model(
        "a = Neg(x)\nb = Neg(a)\nc = Add(b, y)\nd = Add(x, y)\ne = Mul(c, d)", {"x": (4,), "y": (4,)}, "e"
    )
    before = task_of(model, "twice:\n  Neg(Neg(x)) => x").initial
    _, after = before.arrays(), before.apply(0, 0)
    anew = Task(after.graph, after.task.rules, after.task.cost).initial
    assert np.array_equal(after.arrays().edges, anew.arrays().edges)


def weights(arrays: GraphArrays) -> np.ndarray:
    """Return the edges of weights and literals."""
    return arrays.edges[arrays.senders == arrays.receivers]


def test_no_weight_stays_in_memory_once_its_graph_is_gone():
    """A cache of constants would keep the model in memory, because their contents are read from it."""
    graph = load_graph(load("tiny_bert_base"))
    loads = [weakref.ref(constant.load) for constant in graph.constants.values()]
    state = state_of(graph, load_rules())
    assert state.counts.any() and len(state.arrays().ops)
    assert all(load() for load in loads)
    del graph, state
    gc.collect()
    assert not any(load() for load in loads)
