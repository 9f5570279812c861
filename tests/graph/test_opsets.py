"""Test opsets: attributes became inputs as in ONNX's own schemas, and pools give sizes as in ONNX Runtime."""

from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, defs, helper
from onnxruntime import InferenceSession

from rlflow.graph.input_walk import light
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.graph.opsets import COUNTS_PARTS, MOVED


@pytest.mark.parametrize("op", MOVED)
def test_attributes_became_inputs_at_the_opsets_in_the_table(op):
    moved = MOVED[op]
    before, after = defs.get_schema(op, moved.version - 1, ""), defs.get_schema(op, moved.version, "")
    assert after.since_version == moved.version
    for name, slot, _ in moved.attributes:
        assert name in before.attributes and name not in after.attributes
        assert after.inputs[slot].name in (name, f"constant_{name}")


@pytest.mark.parametrize("opset", [MOVED["Split"].version, COUNTS_PARTS])
def test_an_equal_split_gets_explicit_sizes_and_is_written_unchanged(opset):
    counted = "<axis = 1, num_outputs = 2>" if opset >= COUNTS_PARTS else "<axis = 1>"
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[2, 6] x) => (float[2, 3] y, float[2, 3] z)'
    model = onnx.parser.parse_model(f"{text} {{ y, z = Split {counted} (x) }}")
    graph = load_graph(model)
    (node,) = graph.nodes.values()
    assert graph.constants[node.inputs[1]].load().tolist() == [3, 3]
    assert list(to_model(graph).graph.node) == list(model.graph.node)


def test_an_unequal_split_gets_no_explicit_sizes():
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[5] x) => (float[3] y, float[2] z)'
    (node,) = load_graph(onnx.parser.parse_model(f"{text} {{ y, z = Split <num_outputs = 2> (x) }}")).nodes.values()
    assert len(node.inputs) == 1


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool", "LpPool"])
def test_a_pool_that_rounds_up_has_no_window_behind_the_image(op):
    """A window never starts behind the image; one model has images of all sizes, because making a session is slow."""
    runs = 0
    for kernel, stride, begin, end, dilation in product((1, 2, 3), (1, 2, 3, 4), (0, 1), (0, 1, 2), (1, 2)):
        if max(begin, end) >= kernel or (op == "AveragePool" and dilation > 1):
            continue
        lengths = [n for n in range(2, 9) if n + begin + end >= dilation * (kernel - 1) + 1]
        given = [helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, [1, 1, n]) for n in lengths]
        made = [helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, ["a", "b", f"c{n}"]) for n in lengths]
        window = {"kernel_shape": [kernel], "strides": [stride], "pads": [begin, end], "ceil_mode": 1}
        if op != "AveragePool":
            window["dilations"] = [dilation]
        nodes = [helper.make_node(op, [f"x{n}"], [f"y{n}"], **window) for n in lengths]
        opsets = [helper.make_opsetid("", 18)]
        model = helper.make_model(helper.make_graph(nodes, "g", given, made), opset_imports=opsets, ir_version=8)
        feeds = {f"x{n}": np.ones((1, 1, n), np.float32) for n in lengths}
        values = InferenceSession(model.SerializeToString()).run(None, feeds)
        graph = load_graph(model)
        shapes = [value.shape for value in values]
        assert [graph.types[tensor].shape for tensor in graph.outputs] == shapes, window
        inferred = onnx.shape_inference.infer_shapes(light(model)).graph.output
        sizes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim][2:] for value in inferred]
        assert sizes == [list(shape[2:]) for shape in shapes], window
        runs += len(values)
    assert runs > 200


def test_a_short_time_transform_is_onesided_unless_the_model_says_otherwise():
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1, 9] x) => (float[a, b, c, d] y) '
    weights = "<int64 p = {2}, float[4] w = {1, 1, 1, 1}, int64 n = {4}> "
    for stated, bins in (("", 3), ("<onesided = 1> ", 3), ("<onesided = 0> ", 4)):
        model = onnx.parser.parse_model(f"{text}{weights}{{ y = STFT {stated}(x, p, w, n) }}")
        (value,) = InferenceSession(model.SerializeToString()).run(None, {"x": np.ones((1, 9), np.float32)})
        graph = load_graph(model)
        assert graph.types[graph.outputs[0]].shape == value.shape == (1, 3, bins, 2)
