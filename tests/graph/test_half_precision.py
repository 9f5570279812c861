"""Test widened models: they keep the original's interface and weights, and compute like its float32 twin."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper, parser

import rlflow
from rlflow.common.errors import RLFlowError
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.half_precision import SMALL, is_half, twin, twin_arrays, widened
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import to_model
from rlflow.optimisation.receipt import make_receipt, replay
from rlflow.optimisation.validate.numerics import relative_error
from rlflow.rules.language import families, load_rules
from rlflow.rules.locations import MatchTable
from rlflow.search.descents import greedy
from tests.suite import slow
from tests.toys.half import halved

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
# name → (model, number of Casts to float32 and back that widening adds)
MODELS = {
    "an output that another node reads": ("(float16[4] x) => (float16[4] y, float16[4] z) {y = Exp(x) z = Neg(y)}", 3),
    "an input that is an output": ("(float16[4] x) => (float16[4] x, float16[4] z) {z = Neg(x)}", 2),
    "a small weight that is an output": ("(float16[2] x) => (float16[2] y, float16[2] w) <float16[2] w = {1, 2}> "
                                         "{y = Mul(x, w)}", 3),
    "mixed precision": ("(float[4] x) => (float[4] y) {a = Cast<to = 10>(x) b = Exp(a) y = Cast<to = 1>(b)}", 0),
    "integers": ("(float16[4] x) => (int64[1] i, float16[1] top) <int64[1] k = {1}> {top, i = TopK(x, k)}", 2),
    "a literal": ("(float16[2] x) => (float16[2] y) {c = Constant<value = float16[2] {1, 2}>() y = Add(x, c)}", 2),
    "a fill": ("(int64[1] n) => (float16[n] y) {y = ConstantOfShape<value = float16[1] {16384}>(n)}", 1),
    "branches": ("(float16[2] x, bool c) => (float16[2] y) <float16[2] w = {1, 2}> {"
                 "y = If(c) <then_branch = t () => (float16[2] a) {a = Mul(x, w)}, "
                 "else_branch = e () => (float16[2] b) {h = Neg(x) b = Exp(h)}>}", 2),
    "a branch of outer tensors": ("(float16[2] x, bool c) => (float16[2] y) {u = Exp(x) y = If(c) <"
                                  "then_branch = t () => (float16[2] a) {a = Identity(u)}, "
                                  "else_branch = e () => (float16[2] b) {b = Identity(x)}>}", 2),
}  # fmt: skip


def parsed(name: str) -> onnx.ModelProto:
    return parser.parse_model(f"{HEADER} g {MODELS[name][0]}")


@pytest.mark.parametrize("name", MODELS)
def test_a_widened_model_keeps_its_interface_and_is_at_least_as_accurate(name):
    model = parsed(name)
    wide = widened(model, "")
    onnx.checker.check_model(wide, full_check=True)
    assert (wide.graph.input, wide.graph.output) == (model.graph.input, model.graph.output)
    casts = [node for node in wide.graph.node if node.op_type == "Cast" and node.name]
    assert len(casts) == MODELS[name][1]
    inputs = {"n": np.array([3])} if name == "a fill" else random_inputs(model, 0)
    outputs = run(session(wide, 1, False), inputs)
    own = run(session(model, 1, False), inputs)
    exact = run(session(twin(model, ""), 1, False), twin_arrays(model, inputs))
    for ours, theirs, right in zip(outputs, own, exact, strict=True):
        assert ours.dtype == theirs.dtype
        assert relative_error(right, ours) <= relative_error(right, theirs)


def test_large_weights_stay_in_half_precision_and_small_ones_do_not():
    model = halved("tiny_bert_base")
    wide = widened(model, "")
    before = {tensor.name: tensor for tensor in model.graph.initializer}
    half = [tensor for tensor in wide.graph.initializer if tensor.data_type == TensorProto.FLOAT16]
    assert half and all(tensor == before[tensor.name] and np.prod(tensor.dims) > SMALL for tensor in half)
    outputs = {name for node in wide.graph.node for name in node.output}
    assert {node.name for node in model.graph.node} <= {node.name for node in wide.graph.node}
    assert {name for node in model.graph.node for name in node.output} <= outputs


@pytest.mark.parametrize("name", ["tiny_resnet18", *slow("tiny_bert_base")])
def test_rewritten_widened_models_are_at_least_as_accurate_and_can_be_replayed(name):
    model = halved(name)
    task = rlflow.load_task(model, cost="analytic", widen=True)
    result = greedy(task.initial, 20, 20.0)
    made, inputs = to_model(result.state.graph), random_inputs(model, 0)
    values = [run(session(each, 1), inputs) for each in (model, made)]
    exact = run(session(twin(model, ""), 1, False), twin_arrays(model, inputs))
    for right, own, ours in zip(exact, *values, strict=True):
        assert relative_error(right, ours) <= relative_error(right, own)
    steps = (*task.preparation, *result.actions)
    receipt = make_receipt(task.original, task.rules, [], steps, result.state.graph, {}, widened=task.widened)
    assert receipt["widened"] and to_model(replay(receipt, model)) == made
    with pytest.raises(RLFlowError):
        replay(receipt | {"widened": False}, model)


def test_large_literals_stay_in_half_precision():
    model = parsed("a literal")
    large = numpy_helper.from_array(np.ones((SMALL, 2), np.float16), "c")
    model.graph.node[0].attribute[0].t.CopyFrom(large)
    model.graph.output[0].type.tensor_type.shape.dim.insert(0, model.graph.output[0].type.tensor_type.shape.dim[0])
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = SMALL
    wide = widened(model, "")
    assert wide.graph.node[1].attribute[0].t == large
    assert run(session(wide, 1, False), random_inputs(model, 0))[0].dtype == np.float16
    assert load_graph(model, widen=True).hash != load_graph(model).hash


REFUSED = {
    "draws": ("(float16[4] x) => (float16[4] y) {r = RandomNormalLike(x) y = Add(x, r)}", ()),
    "'a'": ("(float16[4] x) => (float16[4] y) {a = Neg(x) y = Exp(a)}", ("a",)),
    "'y' is not a tensor": ("(float16[4] x) => (seq(float16[4]) y) {y = SequenceConstruct(x)}", ()),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_model_that_depends_on_its_precision_is_not_widened(why):
    text, keep = REFUSED[why]
    with pytest.raises(RLFlowError, match=why):
        widened(parser.parse_model(f"{HEADER} g {text}"), "", keep)


def test_exact_and_widen_exclude_each_other():
    with pytest.raises(RLFlowError, match="Choose one"):
        rlflow.load_task(halved("tiny_bert_base"), cost="analytic", widen=True, exact=True)


def test_the_float32_twin_has_no_half_precision():
    assert all(is_half(parsed(name)) and not is_half(twin(parsed(name), "")) for name in MODELS if "mixed" not in name)


def test_sequences_of_a_widened_model_are_float32():
    model = onnx.shape_inference.infer_shapes(parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float16[2] a, float16[2] b) => (float16[4] y)
        { s = SequenceConstruct(b, a)  y = ConcatFromSequence<axis = 0>(s) }"""))
    given = {"a": np.float16([1, 2]), "b": np.float16([3, 4])}
    assert run(session(widened(model, ""), 1), given)[0].tolist() == [3, 4, 1, 2]


def test_scalars_of_gelu_are_those_that_the_exporter_meant():
    text = """<ir_version: 8, opset_import: ["" : 20]> g (float16[2, 8] x) => (float16[2, 8] y)
        { p = Pow(x, three)  m = Mul(p, c)  a = Add(x, m)  n = Mul(a, s)  t = Tanh(n)  u = Add(t, one)
          v = Mul(x, half)  y = Mul(v, u) }"""
    model = parser.parse_model(text)
    for name, value in {"half": 0.5, "one": 1, "three": 3, "c": 0.044715, "s": 0.7978845}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.float16(value), name))
    rules = load_rules(families())
    assert MatchTable(rules, load_graph(model, widen=True)).counts[rules.index("gelu-tanh")] == 1


def test_a_declared_weight_that_stays_in_half_precision_keeps_its_type():
    text = "g (float16[2, 64] x) => (float16[2, 32] y) { y = MatMul(x, w) }"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    model.graph.initializer.append(numpy_helper.from_array(np.ones((64, 32), np.float16), "w"))
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("w", TensorProto.FLOAT16, [64, 32]))
    onnx.checker.check_model(widened(model, ""), full_check=True)
    onnx.checker.check_model(to_model(load_graph(model, widen=True)), full_check=True)
