"""Test that a written model keeps what RLFlow does not read: attributes, notes, annotations, weights of every type."""

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from rlflow.common.errors import RLFlowError
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.rules.locations import explain
from tests.graph.test_onnx_files import RULES, model, rewritten
from tests.nightly.onnx_cases import compare, outputs_of

FLOAT = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
NEG_NEG = "g (float[2] x) => (float[2] y, float[2] z) { a = Neg(x) b = Neg(a) y = Abs(b) z = Relu(b) }"


# -- attributes ------------------------------------------------------------------------------------


def attributes() -> dict[str, onnx.AttributeProto]:
    """Return one attribute of every type and the empty attributes."""
    tensor = numpy_helper.from_array(np.array([np.nan, -0.0], np.float32), "t")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["u"])], "g", [], [helper.make_value_info("u", FLOAT)])
    indices = numpy_helper.from_array(np.array([1], np.int64))
    sparse = helper.make_sparse_tensor(numpy_helper.from_array(np.ones(1, np.float32), "s"), indices, [3])
    given = {
        "float": 0.1, "floats": [0.1, -0.0], "int": -7, "ints": [2**62, -1], "string": b"\xff\0",
        "strings": [b"", b"\xff"],
        "tensor": tensor, "tensors": [tensor, tensor], "graph": graph, "graphs": [graph], "sparse": sparse,
        "type": FLOAT, "types": [FLOAT],
    }  # fmt: skip
    empty = {"no_ints": AttributeProto.INTS, "no_floats": AttributeProto.FLOATS, "no_strings": AttributeProto.STRINGS}
    protos = [helper.make_attribute(name, value) for name, value in given.items()]
    protos += [helper.make_attribute(name, [], attr_type=kind) for name, kind in empty.items()]
    return {proto.name: proto for proto in protos}


@pytest.mark.parametrize("name", attributes())
def test_an_attribute_of_an_unknown_operator_keeps_its_bytes(name):
    before = model("g (float[2] x) => (float[2] y) { y = own.Thing(x) }", domains=', "own": 1')
    before.graph.node[0].attribute.append(attributes()[name])
    (after,) = to_model(load_graph(before)).graph.node
    assert after.SerializeToString(deterministic=True) == before.graph.node[0].SerializeToString(deterministic=True)


@pytest.mark.parametrize("op, shape, declared", [("Squeeze", (1, 2), (2,)), ("ReduceSum", (2,), (1,))])
def test_an_empty_attribute_survives_although_the_graph_holds_an_input_instead(op, shape, declared):
    node = helper.make_node(op, ["x"], ["y"], domain="")
    node.attribute.append(helper.make_attribute("axes", [], attr_type=AttributeProto.INTS))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in (("x", shape), ("y", declared))]
    before = helper.make_model(
        helper.make_graph([node], "g", values[:1], values[1:]),
        opset_imports=[helper.make_opsetid("", 11)],
        ir_version=8,
    )
    assert to_model(load_graph(before)) == before


# -- notes and annotations -------------------------------------------------------------------------


def noted() -> onnx.ModelProto:
    before = model(NEG_NEG)
    before.configuration.add(name="two", num_devices=2)
    for node in before.graph.node:
        node.doc_string = f"from {node.op_type}"
        node.metadata_props.add(key="line", value=node.output[0])
        node.device_configurations.add(configuration_id="two", pipeline_stage=1)
    return before


def test_documentation_metadata_and_devices_of_nodes_survive_a_round_trip():
    before = noted()
    assert to_model(load_graph(before)) == before


def test_a_removed_node_takes_its_doc_string_with_the_node():
    before = noted()
    after = to_model(rewritten(load_graph(before), "neg-neg")).graph.node
    assert [(node.op_type, node.doc_string) for node in after] == [("Abs", "from Abs"), ("Relu", "from Relu")]
    merged = model("g (float[2] x, float[2] z) => (float[2] y) { y = Sum(x, z) }")
    merged.graph.node[0].doc_string = "from Sum"
    (add,) = to_model(rewritten(load_graph(merged), "sum-of-two")).graph.node
    assert (add.op_type, add.doc_string) == ("Add", "")


def test_quantisation_annotations_stay_as_long_as_their_tensors():
    """An annotation is removed with its tensor only.

    Only an annotation reads the scale of a, while the scale of w is also the input of an operator.
    """
    before = model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, float sa = {0.5}, float sw = {2}> "
        "{ a = Neg(x) b = Neg(a) c = Add(b, w) y = Mul(c, sw) }")
    for tensor, scale in (("a", "sa"), ("w", "sw")):
        annotation = before.graph.quantization_annotation.add(tensor_name=tensor)
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=scale)
    graph = load_graph(before)
    after = to_model(graph)
    assert list(after.graph.quantization_annotation) == list(before.graph.quantization_annotation)
    assert sorted(t.name for t in after.graph.initializer) == ["sa", "sw", "w"]
    onnx.checker.check_model(after)
    gone = to_model(rewritten(graph, "neg-neg"))
    assert [a.tensor_name for a in gone.graph.quantization_annotation] == ["w"]


# -- weights ---------------------------------------------------------------------------------------

TYPES = sorted(set(TensorProto.DataType.keys()) - {"UNDEFINED"})


@pytest.mark.parametrize("name", TYPES)
def test_a_weight_of_every_type_keeps_its_bits(name):
    """The number of elements is odd, because types of 2 and 4 bits are packed into bytes."""
    kind = TensorProto.DataType.Value(name)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    texts = np.array(["a", "", "ü"], object)
    array = texts if name == "STRING" else np.arange(6).reshape(2, 3)[:, ::2].ravel()[:3].astype(dtype)
    before = model("g (float[2] x) => (float[2] y) { y = own.Thing(x, w) }", domains=', "own": 1')
    before.graph.initializer.append(numpy_helper.from_array(array, "w"))
    (after,) = to_model(load_graph(before)).graph.initializer
    assert after.data_type == kind
    compare(array, numpy_helper.to_array(after), 0, 0)


def test_graphs_with_different_weights_have_different_hashes():
    hashes = set()
    for value in (1, 2, -1):
        before = model("g (float[2] x) => (float[2] y) { y = own.Thing(x, w) }", domains=', "own": 1')
        array = np.array([value, 1, 1]).astype(helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16))
        before.graph.initializer.append(numpy_helper.from_array(array, "w"))
        hashes.add(load_graph(before).hash)
    assert len(hashes) == 3


def test_a_string_weight_that_is_not_valid_text_is_named():
    before = model("g (string[2] x) => (bool[2] y) { y = Equal(x, w) }")
    before.graph.initializer.append(
        TensorProto(name="w", data_type=TensorProto.STRING, dims=[1], string_data=[b"\xff"])
    )
    with pytest.raises(RLFlowError, match="cannot read the weight 'w'"):
        load_graph(before)


def test_a_random_weight_is_not_folded():
    """A weight with dropout in training is random: folding a factor into the weight would fix the draw."""
    before = model("g (float[1,2] x) => (float[1,2] y) "
        "<float[2,2] w = {1, 2, 3, 4}, float r = {0.5}, bool t = {1}, float k = {2}> "
        "{ d = Dropout(w, r, t) m = MatMul(x, d) y = Mul(m, k) }")
    graph = load_graph(before)
    assert explain(graph, RULES, "mul-into-weight")[1][0].reason == "weight or factor is not constant"
    assert [node.op_type for node in to_model(graph).graph.node] == ["Dropout", "MatMul", "Mul"]


def test_a_sparse_default_survives_and_its_override_still_acts():
    before = model("g (float[3] x, float[3] w) => (float[3] y) { a = Neg(x) b = Neg(a) y = Add(b, w) }")
    values = numpy_helper.from_array(np.array([3.0, 4.0], np.float32), "w")
    indices = numpy_helper.from_array(np.array([0, 2], np.int64))
    before.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    after = to_model(rewritten(load_graph(before), "neg-neg"))
    assert list(after.graph.sparse_initializer) == list(before.graph.sparse_initializer)
    x = np.ones(3, np.float32)
    for inputs in ([x], [x, x]):
        compare(outputs_of(before, inputs), outputs_of(after, inputs), 0, 0)


# -- what ONNX Runtime runs --------------------------------------------------------------------------

SEQUENCE = """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, int64 i = {1}> {
    s = SequenceConstruct(w, w) c = SequenceAt(s, i) a = Add(x, c) y = Add(a, w) }"""


def test_a_weight_that_was_in_a_sequence_may_be_folded():
    before = model(SEQUENCE)
    after = to_model(rewritten(load_graph(before), "add-constants"))
    assert len(after.graph.node) == 1
    x = np.array([3, 4], np.float32)
    compare(outputs_of(before, [x]), outputs_of(after, [x]), 1e-6, 0)


def test_a_value_that_a_nested_subgraph_reads_may_be_replaced():
    inner = """If (c) <then_branch = p () => (float[2] {0}) {{ {0} = Neg(a) }},
                       else_branch = q () => (float[2] {1}) {{ {1} = Abs(a) }}>"""
    before = model(f"""g (float[2] x, bool c) => (float[2] y) {{
        b = Neg(x) a = Neg(b)
        y = If (c) <then_branch = t () => (float[2] u) {{ u = {inner.format("u1", "u2")} }},
                    else_branch = e () => (float[2] v) {{ v = {inner.format("v1", "v2")} }}> }}""")
    after = to_model(rewritten(load_graph(before), "neg-neg"))
    assert [node.op_type for node in after.graph.node] == ["If"]  # this shows that the innermost nodes read x
    for branch in (True, False):
        inputs = [np.array([3, -4], np.float32), np.array(branch)]
        compare(outputs_of(before, inputs), outputs_of(after, inputs), 1e-6, 0)
