"""Test the simulation of ONNX Runtime against real sessions: every node of the order, every byte of the block."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rlflow.graph.onnx_reader import load_graph
from rlflow.memory import allocation
from rlflow.memory.allocation import OVERWRITES, Lifetime, best_fit, default_order, plan, priority_order, problem_of
from rlflow.zoo import load
from tests.memory.sessions import observe
from tests.suite import slow

ORDERS = {"default": default_order, "priority": priority_order}


@pytest.mark.parametrize("name, mode", [
    ("tiny_bert_base", "priority"), *slow(("tiny_inception_v3", "default"), ("tiny_mobilenet_v2", "default")),
])  # fmt: skip
def test_a_session_runs_and_allocates_as_simulated(name, mode, tmp_path):
    model = load(name)
    onnx.save(model, tmp_path / "model.onnx")
    graph, seen = load_graph(model), observe(tmp_path / "model.onnx", mode)
    assert ORDERS[mode](graph) == nodes_at(model, graph, seen.order)
    assert plan(graph, ORDERS[mode](graph))[0] == seen.block > 0


OTHERS = ("Abs", "Exp", "Hardmax", "Neg", "Sign", "ScatterND")  # operators that do not overwrite their input


def test_a_session_overwrites_the_inputs_of_these_operators_alone(tmp_path, monkeypatch):
    """Each operator reads a result of its own size; the smallest runs first, and gaps fit no later result.

    The simulation equals the session, and no longer if one operator is taken from OVERWRITES or added to it.
    """
    nodes, values = [], [numpy_helper.from_array(np.ones((1, 1), np.float32), "ones")]
    for k, op in enumerate((*sorted(OVERWRITES), *OTHERS)):
        values.append(numpy_helper.from_array(np.array([99 - k, 64]), f"shape{k}"))
        read = [f"a{k}"]
        if op.startswith("Scatter"):
            values.append(numpy_helper.from_array(np.zeros((1, 1), np.int64), f"at{k}"))
            read += [f"at{k}", "ones" if op == "ScatterElements" else "row"]
        nodes.append(helper.make_node("Expand", ["x", f"shape{k}"], [f"a{k}"]))
        nodes.append(helper.make_node(op, read, [f"b{k}"], **({"to": TensorProto.FLOAT} if op == "Cast" else {})))
    values.append(numpy_helper.from_array(np.ones((1, 64), np.float32), "row"))
    nodes.append(helper.make_node("Concat", [f"b{k}" for k in range(len(nodes) // 2)], ["y"], axis=0))
    given, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in
                     (("x", (1, 64)), ("y", (None, 64))))  # fmt: skip
    graph = helper.make_graph(nodes, "g", [given], [result], values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    graph, seen = load_graph(model), observe(tmp_path / "model.onnx", "default")
    assert plan(graph, default_order(graph))[0] == seen.block
    for op in (*OVERWRITES, *OTHERS):
        monkeypatch.setattr(allocation, "OVERWRITES", OVERWRITES ^ {op})
        assert plan(graph, default_order(graph))[0] != seen.block, op


def nodes_at(model: onnx.ModelProto, graph, positions: list[int]) -> list[int]:
    """Return the ids of the nodes at the given positions in the file."""
    kept = [position for position, node in enumerate(model.graph.node) if node.op_type != "Constant"]
    return [dict(zip(kept, sorted(graph.nodes), strict=True))[position] for position in positions]


def model_of(*nodes, outputs=("y",), shape=(64, 4)) -> onnx.ModelProto:
    """Return a model of nodes, each written "y = Op(a, b)", with one input x of that shape."""
    protos = []
    for node in nodes:
        made, _, call = node.partition(" = ")
        op, _, read = call.rstrip(")").partition("(")
        protos.append(helper.make_node(op, read.split(", "), made.split(", ")))
    given, results = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names] for names in (["x"], outputs)
    )
    graph = helper.make_graph(protos, "small", given, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


KB = 64 * 4 * 4  # bytes of one tensor


@pytest.mark.parametrize("nodes, blocks, peak", [
    (["a = Exp(x)", "b = Exp(a)", "y = Exp(b)"], 2, 2),
    (["a = Exp(x)", "b = Relu(a)", "y = Exp(b)"], 1, 2),  # b is written over a; an output is not part of the block
    (["a = Exp(x)", "b = Relu(a)", "c = Relu(a)", "y = Add(b, c)"], 2, 3),  # c is written over a, but b is not
    (["a = Exp(x)", "b = Exp(a)", "c = Exp(b)", "y = Exp(c)"], 2, 2),  # c takes the buffer of a
    (["b = Relu(x)", "y = Exp(b)"], 1, 2),  # nothing is written over an input
    (["a = Exp(x)", "b = Identity(a)", "y = Add(a, b)"], 1, 2),  # b is a view of a
    (["a = Exp(x)", "y = Relu(a)"], 1, 2),  # an output is not written over another buffer
])  # fmt: skip
def test_the_plan_and_the_peak_account_for_shared_buffers(nodes, blocks, peak):
    graph = load_graph(model_of(*nodes))
    assert plan(graph, sorted(graph.nodes))[0] == blocks * KB
    problem, ids = problem_of(graph)
    assert problem.peak(np.arange(len(ids))) == peak * KB


def test_the_default_order_breaks_ties_by_the_file_with_the_last_node_first():
    graph = load_graph(model_of("a = Exp(x)", "b = Abs(x)", "c = Neg(a)", "y = Add(b, c)"))
    ops = [graph.nodes[node].op for node in default_order(graph)]
    assert ops == ["Exp", "Neg", "Abs", "Add"]
    assert [graph.nodes[node].op for node in priority_order(graph)] == ["Exp", "Abs", "Neg", "Add"]


def test_the_priority_order_runs_shape_nodes_first():
    shape = helper.make_node("Shape", ["a"], ["s"])
    model = model_of("a = Exp(x)", "b = Abs(x)", "c = Neg(b)", "y = Add(a, c)")
    model.graph.node.append(shape)
    model.graph.output.append(helper.make_tensor_value_info("s", TensorProto.INT64, (2,)))
    graph = load_graph(model)
    assert [graph.nodes[node].op for node in priority_order(graph)] == ["Exp", "Shape", "Abs", "Neg", "Add"]


@pytest.mark.parametrize("seed", range(5))
def test_no_two_live_buffers_overlap(seed):
    rng = np.random.default_rng(seed)
    firsts = np.sort(rng.integers(0, 40, 60))
    buffers = [Lifetime(int(first), int(first + rng.integers(0, 9)), int(rng.integers(0, 20))) for first in firsts]
    offsets, peak = best_fit(buffers)
    assert_apart(buffers, offsets)
    assert peak == max(offset + one.size for one, offset in zip(buffers, offsets, strict=True))


def assert_apart(buffers, offsets):
    for k, (one, at) in enumerate(zip(buffers, offsets, strict=True)):
        for other, there in list(zip(buffers, offsets, strict=True))[:k]:
            together = one.first <= other.last and other.first <= one.last
            assert not together or at + one.size <= there or there + other.size <= at


def test_best_fit_takes_the_narrowest_gap_or_the_end_of_the_block():
    gone, stays = Lifetime(0, 0, 30), Lifetime(0, 9, 10)
    assert best_fit([gone, stays, Lifetime(0, 0, 20), Lifetime(1, 9, 15)])[0] == [0, 30, 40, 40]
