"""Test the known faults of ONNX Runtime: each fault still exists, and its trigger recognises the pattern."""

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.optimisation.validate.known_faults import KNOWN, ONNXRUNTIME, known_faults
from tests.suite import each_of

PAGE = (Path(__file__).parents[2] / "docs" / "FAULTS.md").read_text(encoding="utf-8")
MODELS = dict(re.findall(r"^## (\S+)\n.*?^```\n(.*?)\n```$", PAGE, re.DOTALL | re.MULTILINE))  # fault → its model
BY_NAME = {fault.name: onnx.parser.parse_model(MODELS[fault.name]) for fault in KNOWN}
QUOTIENT = "k = Div (x, r)"
INVERSE = "one = Constant <value_float = 1.0> ()\n  i = Div (one, r)\n  k = Mul (x, i)"
# Changes after which a model no longer shows the fault: (fault, text of the model, other text).
HARMLESS = [
    # the test below makes z an output, so that t has two readers
    ("PadFusion", "y = MaxPool", "z = Relu (t)\n  y = MaxPool"),
    ("PadFusion", "Pad (x, p)", 'Pad <mode = "edge"> (x, p)'),
    ("PadFusion", "0, 1, 1}", "0, 0, 0}"),
    ("PadFusion", "1}> {\n  t = Pad (x, p)", "1}, float z = {-0.0}> {\n  t = Pad (x, p, z)"),
    ("PadFusion", "MaxPool <", 'MaxPool <auto_pad = "VALID", '),
    ("PadFusion", "y = MaxPool", "y, i = MaxPool"),
    ("PadFusion", "{0, 0,", "{0, 1,"),
    ("PadFusion", "{0, 0, 0,", "{0, 0, -1,"),
    ("PadFusion", "t = Pad (x", "r = Relu (x)\n  t = Pad (r"),
    ("PadFusion-width", "[2, 1]", "[3, 1]"),
    ("PadFusion-width", "y = AveragePool", "z = Relu (t)\n  y = AveragePool"),
    ("NchwcTransformer-AveragePool", "kernel_shape", "count_include_pad = 1, kernel_shape"),
    ("NchwcTransformer-AveragePool", "float[1,16,1,1]", "float[1,16,2,1]"),
    ("NchwcTransformer-AveragePool", "dilations = [2", "dilations = [1"),
    ("FuseReluClip", "Relu (x)", "Neg (x)"),
    ("FuseReluClip", "double", "float"),
    ("ConvAddActivationFusion", ", float[1,6,4,4] p)", ")"),
    ("ConvAddActivationFusion", "Add (p, q)", "Add (q, q)"),
    ("GemmTransposeFusion", ", float[3,2] a)", ")"),
    (
        "MatMulAddFusion",
        "float[0] x) => (float[2] y) <float[0,2] w = {}",
        "float[1] x) => (float[2] y) <float[1,2] w = {3.0, 4.0}",
    ),
    ("MatmulTransposeFusion", "p = MatMul (s, t)", "r = Relu (t)\n  p = MatMul (s, r)"),
    ("MatmulTransposeFusion", "3,0]", "3,1]"),
    ("ReshapeFusion", "s = Concat <axis = 0> (k, z)", "c = Concat <axis = 0> (k, z)\n  s = Abs (c)"),
    (
        "ReshapeFusion",
        "k = Mul (n, n)",
        "h = Shape (x)\n  i = Constant <value_int = 0> ()\n  j = Gather (h, i)\n  k = Unsqueeze (j, z)",
    ),
    ("ReshapeFusion-sizes", "r = Reshape (d, k)", "i = Sub (k, k)\n  r = Squeeze (d, i)"),
    ("ReshapeFusion-sizes", "y = Reshape (x, r)", "t = Neg (r)\n  y = Reshape (x, r)"),
    ("MatMulScaleFusion", "u = MatMul (a, y)", "u = Relu (a)"),
    ("MatMulScaleFusion", "b = Mul (a, d)", "b = Mul (x, d)"),
    ("MatMulScaleFusion", "v = MatMul (b, y)", "t = Transpose (b)\n  v = Relu (t)"),
    ("MatMulScaleFusion-digits", "0.7", "0.75"),
    ("MatMulScaleFusion-digits", "u = MatMul (x, y)", "t = MatMul (x, y)\n  u = Relu (t)"),
    ("MatMulScaleFusion-digits", "double", "float"),
    ("MatMulScaleFusion-digits", "MatMul", "Add"),
    ("LayerNormFusion-epsilon", "float[4] e = {0.5, 0.5, 0.5, 0.5}", "float[1] e = {0.5}"),
    ("LayerNormFusion-epsilon", "Div (x, r)", "Mul (x, r)"),
    ("LayerNormFusion-epsilon", QUOTIENT, INVERSE.replace("1.0", "2.0")),
    ("LayerNormFusion-epsilon", QUOTIENT, "i = Reciprocal (r)\n  k = Mul (x, i)"),
    ("LayerNormFusion-order", "Add (e, m)", "Add (m, e)"),
    ("LayerNormFusion-order", "Sub (z, c)", "Add (z, c)"),
    ("SimplifiedLayerNormFusion-empty", "float[3,0] x) => (float[3,0] y)", "float[3,1] x) => (float[3,1] y)"),
    ("SimplifiedLayerNormFusion-empty", "float[3,0] x) => (float[3,0] y)", "float[0,3] x) => (float[0,3] y)"),
    ("SimplifiedLayerNormFusion-float16", "u = Mul (z, e)", "u = Mul (z, two)"),
    ("SimplifiedLayerNormFusion", "q = Pow (x, two)", "q = Relu (x)"),
    ("SimplifiedLayerNormFusion-vector", "Mul (g, k)", "Mul (k, g)"),
    ("SimplifiedLayerNormFusion", "double", "float"),
    ("SimplifiedLayerNormFusion", "Div (x, r)", "Mul (x, r)"),
]


def negative_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {name: -np.abs(array) for name, array in random_inputs(model, 0).items()}


def is_run_right(model: onnx.ModelProto) -> bool:
    """Return True if ONNX Runtime gives equal outputs with and without its optimisations."""
    inputs = negative_inputs(model)
    wanted = run(session(model, 1, optimise=False), inputs)
    try:
        given = run(session(model, 1, optimise=True), inputs)
    except RLFlowError:
        return False
    tolerance = 1e-10 if wanted[0].dtype == np.float64 else 1e-5
    return all(np.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(wanted, given, strict=True))


@pytest.mark.parametrize("name", BY_NAME)
def test_every_known_fault_exists_and_its_trigger_detects_it(name):
    """The fault exists and its trigger sees it.

    If a newer ONNX Runtime has mended the fault, this test fails: the fault must then be removed from the list.
    """
    model = BY_NAME[name]
    onnx.checker.check_model(model, full_check=True)
    assert onnxruntime.__version__ == ONNXRUNTIME, "the list is of another version: update docs/FAULTS.md"
    assert not is_run_right(model)
    assert known_faults(load_graph(model)) == {name: 1}


def test_the_page_of_faults_shows_every_fault_with_its_model():
    assert PAGE.startswith(f"# Known faults of ONNX Runtime {ONNXRUNTIME}\n")
    assert list(MODELS) == [fault.name for fault in KNOWN]
    assert all(f"## {fault.name}\n\n{fault.what[0].upper()}{fault.what[1:]}.\n" in PAGE for fault in KNOWN)


@pytest.mark.parametrize("name, text, other", [
    ("MatMulScaleFusion-digits", "v = Mul (u, k)", "w = Add (k, k)\n  t = Mul (u, w)\n  v = Mul (t, k)"),
    ("SimplifiedLayerNormFusion-vector", "y = Mul (g, k)", "p = Mul (k, g)\n  y = Add (g, p)"),
])  # fmt: skip
def test_variants_of_a_fault_trigger_are_detected(name, text, other):
    assert text in MODELS[name]
    assert known_faults(load_graph(onnx.parser.parse_model(MODELS[name].replace(text, other))))[name] > 0


def test_a_fault_triggered_by_a_declared_shape_is_detected_without_that_shape():
    """A model with a symbolic size is read without the declared shapes of its results.

    The declared shape of y does not follow from the graph, so the fault's trigger must not rely on this shape.
    """
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 15]>
        g (float[1,1,1,4] x, int64[1,2] d, float[n] p) => (float[1,4] y, float[n] q) <int64[1] k = {-1}> {
          r = Reshape (d, k)
          y = Squeeze (x, r)
          q = Relu (p)
        }"""
    )
    graph = load_graph(model)
    assert graph.types[graph.outputs[0]].shape is None and known_faults(graph) == {"ReshapeFusion-sizes": 1}
    session(model, 1, optimise=False)
    with pytest.raises(RLFlowError, match="_new_reshape"):
        session(model, 1, optimise=True)


def test_chained_pads_trigger_the_fault_by_their_total_width():
    chain = "s = Pad (x, p)\n  t = Pad (s, p)"
    for one, seen in ((1, 1), (0, 0)):
        text = MODELS["PadFusion-width"].replace("t = Pad (x, p)", chain).replace("2, 0, 0", f"{one}, 0, 0")
        model = onnx.parser.parse_model(text.replace("5,4", f"{3 + 2 * one},4"))
        assert known_faults(load_graph(model)) == ({"PadFusion-width": 1} if seen else {})
        assert is_run_right(model) == (not seen)


@pytest.mark.parametrize("inverse", [INVERSE, INVERSE.replace("x, i", "i, x")])
@pytest.mark.parametrize(
    "name", ["LayerNormFusion-epsilon", "LayerNormFusion-order", "SimplifiedLayerNormFusion-vector"]
)
def test_a_product_with_an_inverse_triggers_the_same_fault_as_a_quotient(name, inverse):
    assert QUOTIENT in MODELS[name]
    model = onnx.parser.parse_model(MODELS[name].replace(QUOTIENT, inverse))
    assert not is_run_right(model)
    assert known_faults(load_graph(model)) == {name: 1}


def test_pads_of_only_some_axes_do_not_trigger_the_fault():
    """Since opset 18 a Pad can have pads for some axes only; such a Pad does not trigger the fault."""
    text = MODELS["PadFusion-width"].replace(": 15", ": 18")
    named = text.replace("int64[8] p = {0, 0, 2, 0, 0, 0, 0, 0}", "int64[2] p = {2, 0}, int64[1] a = {-2}")
    for some, seen in ((text, 1), (named.replace("Pad (x, p)", "Pad (x, p, , a)"), 0)):
        model = onnx.parser.parse_model(some)
        onnx.checker.check_model(model, full_check=True)
        assert known_faults(load_graph(model))["PadFusion-width"] == seen
        assert is_run_right(model) == (not seen)


@each_of(HARMLESS)
def test_harmless_variants_of_a_fault_run_right_and_are_not_refused(change):
    name, text, other = change
    assert text in MODELS[name]
    model = onnx.parser.parse_model(MODELS[name].replace(text, other))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")  # the changed model may have another output shape
    given = {name for node in model.graph.node for name in node.input}
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for node in model.graph.node for name in node.output
        if name not in given and name not in {value.name for value in model.graph.output}
    )  # fmt: skip
    model = onnx.shape_inference.infer_shapes(model)
    assert is_run_right(model)
    assert not known_faults(load_graph(model))
