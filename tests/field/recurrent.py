"""Recurrent networks: LSTM, GRU and RNN without optional outputs, inputs or lengths; loops, scans and branches."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.field import Case
from tests.toys import bodies


def _model(nodes, inputs, outputs, weights) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=7)


def _network(kind: str) -> onnx.ModelProto:
    """Return the model of the script's variant `kind`."""
    random, node = np.random.default_rng(0), helper.make_node

    def weight(name, *shape):
        return numpy_helper.from_array((random.normal(size=shape) / 3).astype("f"), name)

    def numbers(name, *values):
        return numpy_helper.from_array(np.array(values), name)

    def value(name, shape, dtype=TensorProto.FLOAT):
        return helper.make_tensor_value_info(name, dtype, shape)

    x = value("x", ["steps", "batch", 8])
    if kind == "a":
        weights = [weight("W", 2, 24, 8), weight("R", 2, 24, 6), weight("P", 2, 18), numbers("flat", 0, 0, -1)]
        inputs, outputs = ["x1", "W", "R", "", "lens", "", "", "P"], ["all", "", "cell"]
        nodes = [
            node("Identity", ["x"], ["x1"]),
            node("LSTM", inputs, outputs, hidden_size=6, direction="bidirectional"),
            node("Transpose", ["all"], ["t"], perm=[0, 2, 1, 3]),
            node("Reshape", ["t", "flat"], ["y"]),
        ]
        results = [value("y", ["steps", "batch", 12]), value("cell", [2, "batch", 6])]
        return _model(nodes, [x, value("lens", ["batch"], TensorProto.INT32)], results, weights)
    if kind == "b":
        weights = [weight("W", 1, 18, 8), weight("R", 1, 18, 6), weight("B", 1, 36), numbers("ax", 0)]
        nodes = [
            node("GRU", ["x", "W", "R", "B"], ["", "last"], hidden_size=6, linear_before_reset=1),
            node("Squeeze", ["last", "ax"], ["y"]),
        ]
        return _model(nodes, [x], [value("y", ["batch", 6])], weights)
    if kind == "c":
        weights = [weight("W", 1, 6, 8), weight("R", 1, 6, 6), numbers("ax", 1)]
        options = {"hidden_size": 6, "direction": "reverse", "activations": ["Relu"], "clip": 3.0}
        nodes = [
            node("RNN", ["x", "W", "R", "", "", "h"], ["all"], **options), node("Squeeze", ["all", "ax"], ["y"])
        ]  # fmt: skip
        return _model(nodes, [x, value("h", [1, "batch", 6])], [value("y", ["steps", "batch", 6])], weights)
    weights = [weight("w", 8, 8), weight("u", 8, 8), weight("W", 1, 24, 8), weight("R", 1, 24, 6)]
    nodes = [
        node("MatMul", ["x", "w"], ["p"]), node("MatMul", ["p", "u"], ["q"]),
        node("Transpose", ["q"], ["t"], perm=[1, 0, 2]), node("Transpose", ["t"], ["tt"], perm=[1, 0, 2]),
        node("LSTM", ["tt", "W", "R"], ["", "hid", ""], hidden_size=6), node("Identity", ["hid"], ["y"]),
    ]  # fmt: skip
    return _model(nodes, [x], [value("y", [1, "batch", 6])], weights)


def _while_loop() -> onnx.ModelProto:
    """Return a Loop without a trip count, which ends when a maximum reaches a limit."""
    return bodies.parsed("""g (float[3] x) => (float[3] y) <float limit = {50.0}, bool go = {1}, float three = {3.0}> {
      positive = Abs(x) start = Add(positive, three)
      y = Loop <body = b (int64 i, bool on, float[3] h) => (bool on2, float[3] h2) {
          n = Neg(h) m = Neg(n) h2 = Add(m, m) s = ReduceMax <keepdims = 0> (h2) on2 = Less(s, limit) }>
        ("", go, start) }""")


def _no_trip() -> onnx.ModelProto:
    """Return a Loop whose trip count may be 0."""
    return bodies.parsed("""g (float[3] x) => (float[3] y) <int64 n = {0}, bool go = {1}> {
      y = Loop <body = b (int64 i, bool on, float[3] h) => (bool on2, float[3] h2) {
          on2 = Identity(on) r = Relu(h) h2 = Relu(r) }> (n, go, x) }""")


def _backward_scan() -> onnx.ModelProto:
    """Return a Scan from the last step to the first, along the second axis, whose results are stored in reverse."""
    return bodies.parsed(f"""g (float[2,T,4] x, float[2,4] h0) => (float[2,4] h, float[2,T,4] y)
      <{bodies.named("w", 4, 4)}> {{
      h, y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], scan_output_axes = [1],
        scan_output_directions = [1], body = b (float[2,4] hp, float[2,4] xt) => (float[2,4] hn, float[2,4] o) {{
          u = MatMul(hp, w) v = MatMul(xt, w) s = Add(u, v) hn = Tanh(s) n = Neg(hn) o = Neg(n) }}> (h0, x) }}""")


def _sequence_loop() -> onnx.ModelProto:
    """Return a Loop that carries a sequence of tensors."""
    return bodies.parsed("""g (float[2] x) => (float[6] y) <int64 n = {2}, bool go = {1}> {
      first = SequenceConstruct(x)
      s = Loop <body = b (int64 i, bool on, seq(float[2]) q) => (bool on2, seq(float[2]) q2) {
          on2 = Identity(on) r = Relu(x) t = Relu(r) q2 = SequenceInsert(q, t) }> (n, go, first)
      y = ConcatFromSequence <axis = 0> (s) }""")


def _shared_names() -> onnx.ModelProto:
    """Return two Scans in a row whose bodies use the same names for different tensors."""
    body = """body = b (float[4] hp, float[4] xt) => (float[4] hn, float[4] o) {
        a = Mul(xt, k) n = Neg(a) c = Neg(n) hn = ACT(c) o = Add(hp, hn) }"""
    return bodies.parsed(f"""g (float[5,4] x) => (float[5,4] z) <float k = {{2.0}}, float[4] h0 = {{0, 0, 0, 0}}> {{
      h1, y = Scan <num_scan_inputs = 1, {body.replace("ACT", "Tanh")}> (h0, x)
      h2, z = Scan <num_scan_inputs = 1, {body.replace("ACT", "Relu")}> (h1, y) }}""")


def _embedded_lstm() -> onnx.ModelProto:
    """Return an LSTM in a branch of an If, after two transposes that cancel."""
    return bodies.parsed(f"""g (bool c, float[3,2,4] x) => (float[3,1,2,2] y)
      <{bodies.named("W", 1, 8, 4)}, {bodies.named("R", 1, 8, 2)}> {{
      y = If (c) <then_branch = t () => (float[3,1,2,2] p) {{
          a = Transpose <perm = [1, 0, 2]> (x) b = Transpose <perm = [1, 0, 2]> (a)
          p = LSTM <hidden_size = 2> (b, W, R) }},
        else_branch = e () => (float[3,1,2,2] q) {{
          n = Neg(x) q = LSTM <hidden_size = 2, direction = "reverse"> (n, W, R) }}> }}""")


CASES = {
    **{kind: Case(lambda kind=kind: _network(kind)) for kind in "abcd"},
    "lstm-as-scan": Case(bodies.lstm, says="faster"),
    "lstm-as-scan-of-any-size": Case(lambda: bodies.lstm("steps", "batch"), says="faster"),
    "selective-scan-as-loop": Case(bodies.mamba, says="faster"),
    "branches-with-captures": Case(bodies.branches, says="faster"),
    "nested-bodies": Case(bodies.nested, says="faster"),
    "growing-state": Case(bodies.growing, says="faster"),
    "function-in-a-branch": Case(bodies.function, says="faster"),
    "pipeline-of-scikit-learn": Case(bodies.learned, says="faster"),
    "while-loop": Case(_while_loop, says="faster"),
    "no-trip": Case(_no_trip),
    "backward-scan": Case(_backward_scan, says="faster"),
    "loop-over-a-sequence": Case(_sequence_loop),
    "same-names-in-two-scans": Case(_shared_names, says="faster"),
    "lstm-in-a-branch": Case(_embedded_lstm, says="faster"),
}
