"""Test models that ONNX Runtime runs but the ONNX checker refuses: they are read, and keep their interface."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from rlflow.common.errors import RLFlowError
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.graph.repairs import check_model
from rlflow.optimisation.validate import validate
from tests.field import odd_outputs, symbols
from tests.suite import check_each

X = {"x": np.random.default_rng(1).normal(size=(4, 16)).astype("f")}
REPAIRED = {  # change of the model → message of its repair
    symbols.without_name: "the graph has no name",
    symbols.unsorted: "the nodes are not in topological order",
    symbols.repeated: "a weight is stored twice",
    symbols.spelled: "the domain of nodes is written as ai.onnx",
    symbols.two_opsets: "a domain is imported twice",
}
# no repair is needed, and the written file keeps the deviation
ACCEPTED = (symbols.without_type, symbols.old_ir, symbols.stale)


def in_onnxruntime(model: onnx.ModelProto, given=X) -> list:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    running = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return running.run(None, given)


def test_a_model_that_onnx_runtime_runs_is_read_and_computes_the_same():
    def check(change) -> None:
        model = symbols.changed(change, x=(4, 16), y=(4, 16))
        before = model.SerializeToString()
        _, said = check_model(model)
        assert [text.split(" (")[0] for text in said] == ([REPAIRED[change]] if change in REPAIRED else [])
        graph = load_graph(model)
        assert model.SerializeToString() == before, "the caller's model was changed"
        after = to_model(graph)
        assert list(after.graph.output) == list(model.graph.output)
        assert list(after.graph.input) == list(model.graph.input)
        np.testing.assert_array_equal(*in_onnxruntime(model), *in_onnxruntime(after))
        assert validate(model, after).ok

    check_each(check, [*REPAIRED, *ACCEPTED])


def test_the_last_of_two_opset_imports_counts_as_in_onnx_runtime():
    model = symbols.chain((4, 16), (4, 1), [helper.make_node("ReduceSum", ["x"], ["x0"], axes=[1])])
    model.graph.node[1].input[0] = "x"
    model.graph.node.append(helper.make_node("Identity", ["x0"], ["sum"]))
    model.graph.output.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT, [4, 1]))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 16
    model.opset_import.append(helper.make_opsetid("ai.onnx", 11))  # in opset 11 `axes` is an attribute of ReduceSum
    assert load_graph(model).opset("") == 11
    assert np.allclose(in_onnxruntime(model)[1], X["x"].sum(1, keepdims=True), atol=1e-5)


def test_a_function_has_the_opset_of_the_model_as_in_onnx_runtime():
    called = symbols.chain((2, 4, 16), (2, 4, 16), symbols.CALL, functions=[symbols.function(11, "Softmax")])
    assert len(check_model(called)[1]) == 1
    after, given = to_model(load_graph(called)), {"x": np.random.default_rng(2).normal(size=(2, 4, 16)).astype("f")}
    np.testing.assert_array_equal(*in_onnxruntime(called, given), *in_onnxruntime(after, given))


def test_a_negative_size_is_an_unknown_size_as_in_onnx_runtime():
    model = symbols.chain((-1, 16), (-1, 16))
    assert check_model(model)[1] == ["sizes of x, y are negative (unknown sizes, as in ONNX Runtime)"]
    after = to_model(load_graph(model))
    np.testing.assert_array_equal(*in_onnxruntime(model), *in_onnxruntime(after))


def test_an_output_named_twice_stays_named_twice():
    model = odd_outputs.model([odd_outputs.Z, odd_outputs.R, odd_outputs.Z])
    assert [value.name for value in to_model(load_graph(model)).graph.output] == ["z", "r1", "z"]


def test_outdated_declared_types_are_ignored():
    graph = load_graph(symbols.changed(symbols.stale, x=(4, 16), y=(9, 9, 9)))
    assert {graph.types[tensor].shape for node in graph.nodes.values() for tensor in node.outputs} == {(4, 16)}


def test_a_model_that_cannot_be_repaired_safely_is_refused():
    cyclic = symbols.chain(between=[helper.make_node("Identity", ["p"], ["x1"])])
    with pytest.raises(RLFlowError, match="topologically sorted"):
        load_graph(cyclic)
    with pytest.raises(RLFlowError, match="not unique"):
        load_graph(symbols.changed(symbols.contradictory))


def test_a_weight_without_a_name_is_left_out():
    model = symbols.chain()
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), ""))
    repaired, said = check_model(model)
    assert said == ["a weight has no name"] and len(repaired.graph.initializer) == len(model.graph.initializer) - 1
