"""Test drawn inputs: they satisfy the requirements of the graph, and ONNX Runtime runs the model on them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rlflow.common.errors import RLFlowError
from rlflow.graph.drawn_inputs import MANNERS, random_inputs
from rlflow.graph.onnx_runtime import run, session

TABLE = np.arange(28, dtype=np.float32).reshape(7, 4)
INITIALIZERS = {
    "table": TABLE, "thousand": np.int64(1000), "offsets": np.array([0, 3], np.int64), "two": np.int64(2),
    "zero": np.int64(0), "six": np.int64(6), "one": np.int64(1), "first": np.array([0]), "fours": np.array([4]),
    "iou": np.float32(0.5), "score": np.float32(0.1), "values": np.array([0, 1], np.float32),
}  # fmt: skip
INT, FLOAT, BOOL, TEXT = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL, TensorProto.STRING


def small(nodes, inputs, opset=17):
    """Return a model of (operator, inputs, outputs, attributes) nodes, whose last result is its output.

    Args:
      nodes: the nodes; the domain of an operator that ONNX does not have is ai.onnx.ml.
      inputs: name → (element type, shape).
      opset: version of the opset.
    """
    made = []
    for op, operands, results, attributes in nodes:
        domain = "" if onnx.defs.has(op, "") else "ai.onnx.ml"
        made.append(
            helper.make_node(op, operands.split(" ") if operands else [], results.split(), domain=domain, **attributes)
        )
    used = {name for node in made for name in node.input}
    used |= {name for node in made for a in node.attribute for inner in a.g.node for name in inner.input}
    weights = [numpy_helper.from_array(np.asarray(a), name) for name, a in INITIALIZERS.items() if name in used]
    ports = [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()]
    out = onnx.ValueInfoProto(name=made[-1].output[0])
    domains = {"": opset, "ai.onnx.ml": 3}
    graph = helper.make_graph(made, "g", ports, [out], weights)
    opsets = [helper.make_opsetid(*pair) for pair in domains.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model)
    model.graph.output[0].CopyFrom(
        next(v for v in (*inferred.graph.output, *inferred.graph.value_info) if v.name == out.name)
    )
    for dim in model.graph.output[0].type.tensor_type.shape.dim:  # declared sizes must not reveal the inputs
        dim.Clear()
    return model


def body(nodes, outputs, inputs=()):
    named = [
        helper.make_node(op, operands.split(), results.split(), **attributes)
        for op, operands, results, attributes in nodes
    ]
    return helper.make_graph(
        named, "body", [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
        [helper.make_tensor_value_info(n, t, s) for n, t, s in outputs],
    )  # fmt: skip


LOOK_UP = ("Gather", "table i", "y", {})
PICK = body([("Gather", "table ids", "picked", {})], [("picked", FLOAT, [5, 4])])
CASES = {  # name → (nodes, inputs)
    "an index minus a constant": ([("Sub", "ids thousand", "i", {}), LOOK_UP], {"ids": (INT, [50])}),
    "an index plus one": ([("Add", "ids one", "i", {}), LOOK_UP], {"ids": (INT, [50])}),
    "fields with offsets": ([("Add", "ids offsets", "i", {}), LOOK_UP], {"ids": (INT, [9, 2])}),
    "a constant minus an index": ([("Sub", "six ids", "i", {}), LOOK_UP], {"ids": (INT, [50])}),
    "a multiple": ([("Mul", "ids two", "d", {}), ("Sub", "d thousand", "i", {}), LOOK_UP], {"ids": (INT, [50])}),
    "floats cast to an index": (
        [("Cast", "ids", "c", {"to": INT}), ("Sub", "c thousand", "i", {}), LOOK_UP], {"ids": (FLOAT, [50])},
    ),
    "a chosen index": ([("Where", "c a b", "w", {}), ("Sub", "w thousand", "i", {}), LOOK_UP],
                       {"a": (INT, [9]), "b": (INT, [9]), "c": (BOOL, [9])}),
    "joined indices": ([("Concat", "a b", "w", {"axis": 0}), ("Sub", "w thousand", "i", {}), LOOK_UP],
                       {"a": (INT, [9]), "b": (INT, [2])}),
    "the sum of two": ([("Add", "a b", "i", {}), LOOK_UP], {"a": (INT, [50]), "b": (INT, [50])}),
    "an offset computed from constants": (
        [("Add", "thousand six", "o", {}), ("Sub", "ids o", "i", {}), LOOK_UP], {"ids": (INT, [50])},
    ),
    "elements": ([("GatherElements", "table i", "y", {"axis": 1})], {"i": (INT, [7, 9])}),
    "n-dimensional": ([("Sub", "ids thousand", "i", {}), ("GatherND", "table i", "y", {})], {"ids": (INT, [9, 2])}),
    "scattered": ([("ScatterElements", "table i u", "y", {"axis": 1})], {"i": (INT, [7, 1]), "u": (FLOAT, [7, 1])}),
    "an index within If": (
        [("Sub", "raw thousand", "ids", {}), ("If", "c", "y", {"then_branch": PICK, "else_branch": body(
            [("Gather", "table ids", "other", {})], [("other", FLOAT, [5, 4])])})],
        {"raw": (INT, [5]), "c": (BOOL, [])},
    ),
    "a target shape": ([("Reshape", "x s", "y", {})], {"x": (FLOAT, [4, 6]), "s": (INT, [3])}),
    "a target of two scalars": (
        [("Unsqueeze", "h first", "h1", {}), ("Unsqueeze", "w first", "w1", {}),
         ("Concat", "h1 w1 fours", "s", {"axis": 0}), ("Reshape", "x s", "y", {})],
        {"x": (FLOAT, [4, 6]), "h": (INT, []), "w": (INT, [])},
    ),
    "an expansion": ([("Expand", "x s", "y", {})], {"x": (FLOAT, [4, 1]), "s": (INT, [3])}),
    "repeats": ([("Tile", "x s", "y", {})], {"x": (FLOAT, [4, 6]), "s": (INT, [2])}),
    "a slice": ([("Slice", "x a b", "y", {})], {"x": (FLOAT, [4, 6]), "a": (INT, [2]), "b": (INT, [2])}),
    "a padding": ([("Pad", "x p", "y", {"mode": "reflect"})], {"x": (FLOAT, [4, 6]), "p": (INT, [4])}),
    "scales": ([("Resize", "x  s", "y", {})], {"x": (FLOAT, [1, 2, 4, 6]), "s": (FLOAT, [4])}),
    "a filled tensor": ([("ConstantOfShape", "s", "y", {})], {"s": (INT, [3])}),
    "a range": ([("Range", "six limit two", "y", {})], {"limit": (INT, [])}),
    "axes": ([("Unsqueeze", "x a", "y", {})], {"x": (FLOAT, [4, 6]), "a": (INT, [2])}),
    "axes of a sum": ([("ReduceSum", "x a", "y", {})], {"x": (FLOAT, [4, 6, 2]), "a": (INT, [2])}),
    "parts": ([("Split", "x p", "y z", {"axis": 1}), ("Neg", "z", "o", {})], {"x": (FLOAT, [4, 7]), "p": (INT, [2])}),
    "the number of elements": ([("TopK", "x k", "v y", {})], {"x": (FLOAT, [4, 6]), "k": (INT, [1])}),
    "a length": ([("ReverseSequence", "x n", "y", {})], {"x": (FLOAT, [6, 4]), "n": (INT, [4])}),
    "a divisor": ([("Div", "a b", "y", {})], {"a": (INT, [50]), "b": (INT, [50])}),
    "a probability": ([("Bernoulli", "p", "y", {"seed": 1.0})], {"p": (FLOAT, [50])}),
    "boxes": ([("NonMaxSuppression", "b s n iou score", "y", {})],
              {"b": (FLOAT, [1, 5, 4]), "s": (FLOAT, [1, 1, 5]), "n": (INT, [1])}),
    "regions": ([("RoiAlign", "x r i", "y", {})],
                {"x": (FLOAT, [2, 1, 8, 8]), "r": (FLOAT, [3, 4]), "i": (INT, [3])}),
    "a depth": ([("OneHot", "i d values", "y", {})], {"i": (INT, [5]), "d": (INT, [])}),
    "keys": ([("LabelEncoder", "k", "y", {"keys_strings": ["left", "right"], "values_int64s": [5, 7]}),
              ("Sub", "y six", "z", {})], {"k": (TEXT, [50])}),
}  # fmt: skip


@pytest.mark.parametrize("manner", MANNERS[:2])
def test_the_model_runs_on_drawn_inputs(manner):
    for name, (nodes, inputs) in CASES.items():
        model = small(nodes, inputs, opset=16 if name == "scattered" else 17)
        for seed in range(3):
            feeds = random_inputs(model, seed, manner=manner)
            try:
                results = run(session(model, 1), feeds)
            except RLFlowError as error:
                pytest.fail(f"{name}, seed {seed}: {error}; {feeds}")
            assert len(results) == len(model.graph.output) > 0, name


def test_all_rows_of_a_table_are_drawn_even_through_arithmetic():
    for name, least in {
        "an index minus a constant": 1000, "an index plus one": -1, "a constant minus an index": 0, "a multiple": 500,
        "floats cast to an index": 1000,
    }.items():  # fmt: skip
        nodes, inputs = CASES[name]
        count = 4 if name == "a multiple" else 7
        assert set(random_inputs(small(nodes, inputs), 0)["ids"].tolist()) == set(range(least, least + count)), name


def test_drawn_inputs_satisfy_the_constraints_of_the_graph():
    def drawn(name):
        return random_inputs(small(*CASES[name]), 0)

    np.testing.assert_array_equal(np.prod(drawn("a target shape")["s"]), 24)
    np.testing.assert_array_equal(drawn("a target of two scalars")["h"] * drawn("a target of two scalars")["w"], 6)
    np.testing.assert_array_equal(np.sum(drawn("parts")["p"]), 7)
    assert 0 <= drawn("a probability")["p"].min() and drawn("a probability")["p"].max() <= 1
    boxes = drawn("boxes")["b"]
    assert (boxes[..., :2] <= boxes[..., 2:]).all()
    assert {"left", "right"} <= set(drawn("keys")["k"].tolist())


@pytest.mark.parametrize("manner", MANNERS)
def test_other_manners_of_drawing_keep_exact_values_and_do_not_make_floats_constant(manner):
    nodes, inputs = CASES["a target shape"]
    feeds = random_inputs(small(nodes, inputs), 0, manner=manner)
    assert np.prod(feeds["s"]) == 24
    floats = [array for array in feeds.values() if array.dtype.kind == "f"]
    assert floats and all(len(np.unique(array)) > 1 for array in floats)


def test_sequences_optionals_and_maps_are_drawn():
    element = helper.make_tensor_type_proto(FLOAT, [2, 3])
    sequence, optional = helper.make_sequence_type_proto(element), helper.make_optional_type_proto(element)
    chances = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(FLOAT, []))
    words = {"domain": "ai.onnx.ml", "string_vocabulary": ["cat", "dog"]}
    nodes = [
        helper.make_node("ConcatFromSequence", ["xs"], ["x"], axis=0),
        helper.make_node("OptionalGetElement", ["o"], ["z"]),
        helper.make_node("DictVectorizer", ["m"], ["v"], **words),
    ]
    inputs = [helper.make_value_info(n, t) for n, t in (("xs", sequence), ("o", optional), ("m", chances))]
    outputs = [onnx.ValueInfoProto(name=name) for name in "xzv"]
    for value, shape in zip(outputs, ([6, 3], [2, 3], [1, 2]), strict=True):
        value.type.CopyFrom(helper.make_tensor_type_proto(FLOAT, shape))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    made = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=opsets, ir_version=8)
    x, z, v = run(session(made, 1), random_inputs(made, 0))
    assert x.shape[1] == 3 and z.shape == (2, 3) and np.isfinite(v).all() and np.any(v)


def test_a_default_of_an_input_is_not_replaced():
    nodes = [helper.make_node("Add", ["x", "c"], ["y"])]
    ports = [helper.make_tensor_value_info(name, FLOAT, [2]) for name in "xcy"]
    weight = numpy_helper.from_array(np.ones(2, np.float32), "c")
    made = helper.make_model(helper.make_graph(nodes, "g", ports[:2], ports[2:], [weight]))
    assert list(random_inputs(made, 0)) == ["x"]
