"""Validation must be able to fail: planted faults of every kind, and no alarm where there is none."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rlflow.errors import RLFlowError
from rlflow.validate import relative_error, validate


def small_model(last: str = "Softmax", scale: float = 1.0) -> onnx.ModelProto:
    """x [2, 3, 8, 8] and y [2, 4] → scores [2, 4] and an integer `best` [2]; logits grow with `scale`."""
    rng = np.random.default_rng(0)

    def weight(name, *shape):
        return numpy_helper.from_array((rng.standard_normal(shape) / 4).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["m"], alpha=scale),
        helper.make_node("Sub", ["m", "y"], ["logits"]),
        helper.make_node(last, ["logits"], ["scores"]),
        helper.make_node("ArgMax", ["m"], ["best"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 3, 8, 8]), ("y", [2, 4]))],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [2, 4]),
         helper.make_tensor_value_info("best", TensorProto.INT64, [2])],
        [weight("w", 5, 3, 3, 3), weight("b", 5), weight("v", 5, 4)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights(model, name):
    return next(t for t in model.graph.initializer if t.name == name)


def node(model, op):
    return next(n for n in model.graph.node if n.op_type == op)


def change_weight(model):
    array = numpy_helper.to_array(weights(model, "w")).copy()
    array[0, 0, 0, 0] += 1e-2
    weights(model, "w").raw_data = array.tobytes()


def drop_node(model):
    node(model, "GlobalAveragePool").input[0] = "c"
    model.graph.node.remove(node(model, "Relu"))


def swap_operands(model):
    node(model, "Sub").input[:] = ["y", "m"]


def swap_graph_inputs(model):
    inputs = [*model.graph.input]
    del model.graph.input[:]
    model.graph.input.extend(inputs[::-1])


def rename_output(model):
    node(model, "Softmax").output[0] = model.graph.output[0].name = "probabilities"


def change_output_type(model):
    node(model, "Softmax").output[0] = "wide"
    model.graph.node.append(helper.make_node("Cast", ["wide"], ["scores"], to=TensorProto.DOUBLE))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE


def change_attribute(model):
    node(model, "Conv").attribute[0].ints[:] = [0, 0, 2, 2]


def forget_an_output(model):
    del model.graph.output[1]


def change_an_integer_output(model):
    model.graph.node.append(helper.make_node("Neg", ["arg"], ["best"]))
    node(model, "ArgMax").output[0] = "arg"


def break_the_order(model):
    nodes = [*model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes[::-1])


def give_a_wrong_shape(model):
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 5


FAULTS = {
    change_weight: "numerics",
    drop_node: "numerics",
    swap_operands: "numerics",
    change_attribute: "numerics",
    change_an_integer_output: "numerics",
    swap_graph_inputs: "interface",
    rename_output: "interface",
    change_output_type: "interface",
    forget_an_output: "interface",
    give_a_wrong_shape: "interface",
    break_the_order: "structure",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(fault):
    broken = small_model()
    fault(broken)
    found = validate(small_model(), broken)
    assert not found.ok
    assert FAULTS[fault] in {finding.kind for finding in found.failures()}


def test_a_model_equals_itself(tmp_path):
    onnx.save(small_model(), tmp_path / "model.onnx")
    for found in (validate(small_model(), small_model()), validate(tmp_path / "model.onnx", small_model())):
        assert found.ok and found.max_error == 0 and found.failures() == []
        assert {finding.kind for finding in found.findings} == {"structure", "interface", "numerics"}
        assert json.loads(json.dumps(found.to_dict())) == found.to_dict()


def test_rounding_passes_and_more_does_not():
    nudged = small_model()
    weights(nudged, "v").raw_data = (numpy_helper.to_array(weights(nudged, "v")) * np.float32(1 + 1e-5)).tobytes()
    found = validate(small_model(), nudged)
    assert found.ok and 0 < found.max_error < 1e-4
    assert not validate(small_model(), nudged, tolerance=1e-8).ok


@pytest.mark.parametrize("last", ["Softmax", "Sigmoid", "Tanh"])
def test_a_saturated_output_does_not_hide_an_error_before_it(last):
    original, broken = small_model(last, 1e5), small_model(last, 1.01e5)
    found = validate(original, broken)
    outputs = [f for f in found.findings if f.kind == "numerics" and "output" in f.message]
    assert outputs and all(finding.ok for finding in outputs)
    assert all(f"what enters {last}" in finding.message for finding in found.failures())
    assert len(found.failures()) == 3  # one a seed


def test_a_last_operator_that_changed_is_said_not_skipped():
    changed = small_model()
    node(changed, "Softmax").output[0] = "log"
    node(changed, "Softmax").op_type = "LogSoftmax"
    changed.graph.node.append(helper.make_node("Exp", ["log"], ["scores"]))
    found = validate(small_model(), changed)
    assert found.ok
    (said,) = [f for f in found.findings if "was not compared" in f.message]
    assert "not from a saturating operator" in said.message and said.value is None


def test_weights_outside_the_file_are_read_from_beside_it(tmp_path):
    folder = tmp_path / "there"
    folder.mkdir()
    onnx.save(small_model(), folder / "a.onnx", save_as_external_data=True, location="a.data", size_threshold=0)
    found = validate(folder / "a.onnx", folder / "a.onnx")
    assert found.ok and any("what enters Softmax" in finding.message for finding in found.findings)
    (folder / "a.data").unlink()
    assert not validate(small_model(), folder / "a.onnx").ok


def test_a_symbolic_dimension_may_become_what_it_was_bound_to():
    def batch(size):
        model = small_model()
        for value in (*model.graph.input, *model.graph.output):
            dim = value.type.tensor_type.shape.dim[0]
            dim.dim_param = "batch" if size is None else dim.dim_param
            if size is not None:
                dim.dim_value = size
        return model

    found = validate(batch(None), batch(2), shapes={"batch": 2})
    assert found.ok and any("batch = 2" in finding.message for finding in found.findings)
    assert not validate(batch(None), batch(3), shapes={"batch": 2}).ok
    with pytest.raises(RLFlowError, match="symbolic dimension 'batch'"):
        validate(batch(None), batch(2))


def test_what_cannot_be_read(tmp_path):
    (tmp_path / "junk.onnx").write_bytes(b"\xff" * 50)
    with pytest.raises(RLFlowError, match="is not an ONNX file"):
        validate(tmp_path / "junk.onnx", small_model())
    with pytest.raises(RLFlowError, match="cannot read .*missing.onnx"):
        validate(tmp_path / "missing.onnx", small_model())
    (finding,) = validate(small_model(), tmp_path / "junk.onnx").findings
    assert (finding.kind, finding.ok) == ("structure", False)


def test_values_that_are_not_finite_must_be_the_same():
    nan, inf = np.nan, np.inf
    assert relative_error(np.array([1, nan, inf]), np.array([1.5, nan, inf])) == 0.5
    assert relative_error(np.array([1, nan]), np.array([1, 1.0])) == inf
    assert relative_error(np.array([1, 1.0]), np.array([1, nan])) == inf
    assert relative_error(np.array([1, inf]), np.array([1, -inf])) == inf
    assert relative_error(np.zeros(2), np.array([0, 0.5])) == 0.5
    assert relative_error(np.zeros(0), np.zeros(0)) == 0
