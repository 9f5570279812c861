"""Test files in a better order: the default order is the one that runs, and files are equal, small and repeatable."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.onnx_reader import load_graph, model_files
from rlflow.graph.onnx_runtime import Setup, run, session
from rlflow.graph.onnx_writer import copy_model
from rlflow.memory.allocation import default_order, plan, priority_order, problem_of
from rlflow.memory.ordered_files import added_by_runs, is_blocked, name_nodes, names, order_shown, reorder, same_bits
from rlflow.memory.pipeline import (
    Optimised,
    Row,
    best_order,
    choose_setup,
    make_order_receipt,
    named_sizes,
    repeat,
    snippet,
    write_in_order,
)
from rlflow.zoo import load
from tests.docs.test_commands import with_open_batch
from tests.memory.irregular import irregular, peaks, residual
from tests.memory.sessions import observe

AS_WRITTEN = Setup(as_written=True)


@pytest.fixture
def opened(tmp_path):
    """Return a function that writes a model to a file and opens it as `Optimised`, each time in a new folder."""

    def open_model(model: onnx.ModelProto, shapes=None, fix: bool = False) -> Optimised:
        folder = tmp_path / f"opened-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        onnx.save(model, tmp_path / "source.onnx")
        return Optimised(tmp_path / "source.onnx", folder, shapes or {}, fix)

    return open_model


def test_the_usual_order_is_not_the_best_and_the_best_is_proved(opened):
    model = opened(irregular())
    ordered = best_order(model, 30)
    graph = load_graph(model.source)
    assert ordered.usual == names(graph, default_order(graph))  # ONNX Runtime fused nothing
    assert (model.peak(ordered.usual), model.peak(ordered.best)) == peaks()
    assert ordered.bound == peaks()[1]


def test_the_written_model_gives_the_same_bits_and_allocates_as_simulated(opened):
    model = opened(irregular())
    executed = write_in_order(model, best_order(model, 30).best, 1)
    inputs = random_inputs(model.source, 7)
    wanted, given = run(session(model.source, 1), inputs), run(session(model.path, 1, setup=AS_WRITTEN), inputs)
    assert wanted[0].tobytes() == given[0].tobytes()
    graph, seen = load_graph(model.path), observe(model.path, "priority")
    problem, nodes = problem_of(graph)
    assert seen.order == list(range(problem.n))
    assert problem.peak(np.arange(problem.n)) == model.peak(executed) == peaks()[1]
    assert plan(graph, priority_order(graph))[0] == seen.block
    assert names(graph, nodes) == executed


def test_a_model_already_in_the_best_order_has_nothing_to_gain(opened):
    model = opened(load("tiny_mobilenet_v2"))
    ordered = best_order(model, 30)
    assert ordered.best is ordered.usual and ordered.bound == model.peak(ordered.usual)


def test_the_simulated_memory_of_blocked_convolutions_equals_the_observed_memory(opened):
    model = opened(residual())
    assert is_blocked(model.path) and model.unknown == 0
    executed = write_in_order(model, best_order(model, 30).best, 1)
    block, _ = plan(model.graph, [model.nodes[k] for k in model.positions(executed)])
    assert block == observe(model.path, "priority").block == 2 * 16 * 8 * 8 * 4


def test_an_order_gives_the_same_file_whatever_names_onnx_runtime_gives_the_nodes(opened):
    models = [opened(load("tiny_mobilenet_v2")) for _ in range(4)]
    for model in models:
        reorder(model.path, models[0].usual[0])
    assert len({model.path.read_bytes() for model in models}) == 1


@pytest.mark.parametrize("shapes, fix, sizes", [({}, False, {"batch": 1}), ({"batch": 3}, False, {"batch": 3}),
                                                ({"batch": 3}, True, {})])  # fmt: skip
def test_symbolic_sizes_are_counted_at_the_typical_sizes_or_frozen(opened, shapes, fix, sizes):
    fixed = opened(load("tiny_resnet18"))
    of_one = fixed.peak(fixed.usual[0])
    model = opened(with_open_batch(load("tiny_resnet18")), shapes, fix)
    assert model.sizes == sizes and model.unknown == 0
    assert model.peak(model.usual[0]) == shapes.get("batch", 1) * of_one
    write_in_order(model, model.usual[0], 1)
    batch = onnx.load(model.path).graph.input[0].type.tensor_type.shape.dim[0]
    assert batch.dim_value == 3 if fix else batch.dim_param == "batch"


def test_several_sizes_are_refused(opened):
    with pytest.raises(RLFlowError, match="one size of each"):
        opened(with_open_batch(load("tiny_resnet18")), {"batch": (1, 3)})


def test_a_model_with_external_weights_can_be_reordered(tmp_path):
    source, out, folder = tmp_path / "source.onnx", tmp_path / "out" / "smaller.onnx", tmp_path / "folder"
    onnx.save(residual(), source, save_as_external_data=True, location="weights", size_threshold=0)
    folder.mkdir()
    model = Optimised(source, folder, {}, False)
    write_in_order(model, model.usual[0], 1)
    copy_model(model.path, out, same=False)
    assert [path.name for path in model_files(out)] == ["smaller.onnx", "smaller.onnx.data"]
    assert same_bits([(source, Setup()), (out, AS_WRITTEN)], [random_inputs(source, 5)], 1)


def test_values_that_are_no_tensors_count_as_zero_and_a_model_that_runs_nothing_is_refused(opened):
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => '
    body = "(seq(float[2]) y) { a = Exp(x) s = SequenceConstruct(a, x) y = SequenceInsert(s, x) }"
    model = opened(onnx.parser.parse_model(head + body))
    assert model.unknown == 2 and model.peak(write_in_order(model, model.usual[0], 1)) == 8
    with pytest.raises(RLFlowError, match="nothing to order"):
        opened(onnx.parser.parse_model(head + "(float[2] y) <float[2] k = {1, 2}> { y = Neg(k) }"))


def test_nodes_get_unique_names():
    model = irregular()
    model.graph.node[0].name = model.graph.node[1].name = "same"
    model.graph.node[2].name = "own"
    name_nodes(model.graph)
    given = [node.name for node in model.graph.node]
    assert len(set(given)) == len(given) and all(given) and given[2] == "own"


def test_unnamed_nodes_keep_the_file_order_if_all_named_nodes_do():
    nodes = irregular().graph.node
    for node in nodes:
        node.name = node.output[0]
    made = [node.name for node in nodes]
    assert order_shown(nodes, [*made[::-1], "inner", made[0]]) == made[::-1]
    nodes[1].name = ""
    assert order_shown(nodes, made) == made
    nodes[1].name = made[2]  # neither of two nodes with the same name can be identified
    assert order_shown(nodes, made) == made
    with pytest.raises(RLFlowError, match="disagree on the order"):
        order_shown(nodes, made[::-1])


def test_the_worst_of_the_orders_that_sessions_run_counts(opened):
    model = opened(irregular())
    best = best_order(model, 30).best
    model.usual = [best, model.usual[0]]
    assert model.peak(best_order(model, 30).usual) == peaks()[0]


# -- refusals --------------------------------------------------------------------------------------


def test_a_written_model_with_other_output_bits_is_refused(opened):
    model = opened(irregular())
    wrong = onnx.load(model.path)
    next(node for node in wrong.graph.node if node.op_type == "Sin").op_type = "Tan"
    onnx.save(wrong, model.path)
    with pytest.raises(RLFlowError, match="other bits"):
        write_in_order(model, model.usual[0], 1)


def test_a_session_order_other_than_the_simulated_order_is_refused(opened, monkeypatch):
    model = opened(irregular())
    monkeypatch.setattr("rlflow.memory.pipeline.priority_order", default_order)
    with pytest.raises(RLFlowError, match="in the simulated order"):
        write_in_order(model, best_order(model, 30).best, 1)


def test_outputs_are_compared_by_bits_and_not_by_values(tmp_path):
    for name, constant in {"plus": "0.0", "minus": "-0.0"}.items():
        text = f'<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) <float z = {{{constant}}}>'
        onnx.save(onnx.parser.parse_model(text + " { y = Mul(x, z) }"), tmp_path / f"{name}.onnx")
    sides = [(tmp_path / f"{name}.onnx", Setup()) for name in ("plus", "minus")]
    assert same_bits([sides[0], sides[0]], [{"x": np.ones(2, np.float32)}], 1)
    assert not same_bits(sides, [{"x": np.ones(2, np.float32)}], 1)


@pytest.mark.parametrize("change, reason", [
    (lambda order: order[:-1], "other nodes"),
    (lambda order: [*order[:-1], "no such node"], "other nodes"),
    (lambda order: order[::-1], "before a node that it depends on"),
])  # fmt: skip
def test_an_invalid_order_is_refused(opened, change, reason):
    model = opened(irregular())
    with pytest.raises(RLFlowError, match=reason):
        model.peak(change(model.usual[0]))


# -- receipts --------------------------------------------------------------------------------------


def receipt_of(model: Optimised) -> dict:
    ordered = best_order(model, 30)
    executed = write_in_order(model, ordered.best, 1)
    return json.loads(json.dumps(make_order_receipt(model, model, ordered, executed, AS_WRITTEN, {}, False)))


def test_a_receipt_reproduces_the_same_file(opened):
    model, again = opened(irregular()), opened(irregular())
    receipt = receipt_of(model)
    assert (receipt["bytes"]["usual_peak"], receipt["bytes"]["peak"]) == peaks() and named_sizes(receipt) == ({}, False)
    assert repeat(receipt, again, again, 1) == receipt["order"]
    assert again.path.read_bytes() == model.path.read_bytes()


@pytest.mark.parametrize("damage, reason", [
    (lambda one: one.update(original_sha256="0" * 64), "belongs to another model"),
    (lambda one: one["bytes"].update(peak=1), "says peak = 1 bytes, but its orders need"),
    (lambda one: one["bytes"].pop("block"), "says block = None bytes"),
    (lambda one: one.update(usual_order=one["order"]), "says usual_peak"),
    (lambda one: one.update(order=one["usual_order"]), "says peak"),
    (lambda one: one["order"].reverse(), "before a node that it depends on"),
    (lambda one: one["order"].pop(), "other nodes"),
    (lambda one: one.update(order=5), "malformed"),
    (lambda one: one.pop("model_sha256"), "'model_sha256'"),
    (lambda one: one.update(model_sha256="0" * 64), "another file here"),
])  # fmt: skip
def test_a_damaged_receipt_is_refused(opened, damage, reason):
    receipt = receipt_of(opened(irregular()))
    damage(receipt)
    with pytest.raises(RLFlowError, match=reason):
        model = opened(irregular())
        repeat(receipt, model, model, 1)


@pytest.mark.parametrize("receipt", [[], {}, {"task": "ordering", "format": 9}, {"task": "ordering", "format": 1}])
def test_a_malformed_receipt_is_refused(receipt):
    with pytest.raises(RLFlowError, match="not a receipt"):
        named_sizes(receipt)


# -- setups ----------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say")
def test_runs_add_the_predicted_memory_if_sessions_keep_nothing(tmp_path):
    onnx.save(irregular(8192), tmp_path / "model.onnx")
    bare = Setup(pattern=False, arena=False, reuse=False)
    added = added_by_runs(tmp_path / "model.onnx", random_inputs(tmp_path / "model.onnx", 0), 1, bare)
    assert added == pytest.approx(peaks(8192)[0], rel=0.03)


@pytest.mark.parametrize("sizes, ratios, chosen", [
    ((1e8, 5e7, 2e7), (None, 0.99, 1.01), 2),
    ((1e8, 5e7, 2e7), (None, 0.99, 1.30), 1),  # the third is shown to be slower
    ((1e8, 5e7, 2e7), (None, 1.20, 1.30), 0),
    ((1e8, 5e7, 5e7), (None, 1.20, None), 0),  # the third was not measured and needs no less than the second
    ((1e8, 5e7, 4.95e7), (None, 0.99, 0.99), 1),  # the third needs hardly less, for more changes
    ((1e5, 5e4, 1e4), (None, 0.99, 0.99), 0),  # a saving of a few bytes
    ((None, None, None), (None, 0.99, 0.99), 0),
])  # fmt: skip
def test_the_setup_with_the_least_memory_is_chosen_unless_its_runs_are_slow(sizes, ratios, chosen):
    rows = []
    for size, ratio in zip(sizes, ratios, strict=True):
        rows.append(Row(str(len(rows)), None, size, {"ratio": ratio} if ratio else None))
    assert choose_setup(rows, 0.05) is rows[chosen]


def test_the_snippet_opens_the_file_with_the_options_of_the_setup(tmp_path):
    path, setup = tmp_path / "it's.onnx", Setup(as_written=True, arena=False)
    onnx.save(irregular(), path)
    names_of: dict = {}
    exec(snippet(path, setup), names_of)
    options = names_of["session"].get_session_options()
    for name, value in setup.options().items():
        assert getattr(options, name) == value
    assert Path(path).exists() and not options.enable_cpu_mem_arena and options.enable_mem_pattern
