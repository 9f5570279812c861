"""Test graphs that resemble a rule's left side in ways that a case cannot express, and the order of locations."""

from collections.abc import Iterator

import onnx
from onnx import helper, parser

from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.rules.apply import apply
from rlflow.rules.language import families, load_rules
from rlflow.rules.locations import MatchTable, explain
from tests.rules.cases import CASES
from tests.rules.instances import assert_same, instantiate
from tests.suite import at_night, check_each

RULES = load_rules(families())
NO_MATCH = None  # The operators do not fit, so there is no refusal.


def model(text: str, opset: int = 20, ir_version: int = 8):
    """Return `(inputs) => (outputs) <initialisers> { nodes }` as a ModelProto."""
    return parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}]> g {text}')


STATISTICS = "<double[2] s = {1, 2}, double[2] b = {1, 2}, double[2] m = {1, 2}, double[2] v = {1, 2}>"
BN = f"(double[3,2] x) => (double[3,2] y) {STATISTICS}"
POOL = "MaxPool <kernel_shape = [2]>"
LOOK_ALIKES = [
    # Rule, reason, model, opset.
    ("dropout", NO_MATCH, "(double[3] x, bool t) => (double[3] y) <float r = {0.5}> { y = Dropout(x, r, t) }", 13),
    ("dropout", "another output", "(double[3] x) => (double[3] y, bool[3] m) { y, m = Dropout(x) }", 13),
    ("dropout", NO_MATCH, "(double[3] x) => (double[3] y) { y = Dropout <is_test = 0> (x) }", 6),
    ("identity", "the shape of a tensor", "(double[3] x) => (double[3] y) <int64 k = {0}> "
     "{ s = SequenceConstruct(x) t = Identity(s) y = SequenceAt(t, k) }", 16),
    ("add-zero", "the result would be", "(double[3] x) => (double[1,3] y) <double[1,1] z = {0}> { y = Add(x, z) }", 13),
    ("add-zero", "the result would be", "(double x) => (double[1] y) <double[1] z = {0}> { y = Add(z, x) }", 13),
    ("add-zero", NO_MATCH, "(double[1] x) => (double[2] y) <double[2] z = {0, 0}> { y = Add(x, z) }", 13),
    ("add-zero", NO_MATCH, "(double[1] x) => (double[1] y) <double[1] z = {1e-300}> { y = Add(x, z) }", 13),
    ("add-zero", NO_MATCH, "(double[3] x, double z) => (double[3] y) { y = Add(x, z) }", 13),
    ("mul-one", "the result would be", "(double[3] x) => (double[1,3] y) <double[1,1] z = {1}> { y = Mul(x, z) }", 13),
    ("mul-one", NO_MATCH, "(double[3] x) => (double[3] y) <double z = {1.0000005}> { y = Mul(x, z) }", 13),
    ("square", "the result would be", "(double[3] x) => (double[1,3] y) <double[1,1] z = {2}> { y = Pow(x, z) }", 13),
    ("square", NO_MATCH, "(double[3] x) => (double[3] y) <double z = {2.000001}> { y = Pow(x, z) }", 13),
    ("square", NO_MATCH, "(double x) => (double y) <double z = {2}> { y = Pow(z, x) }", 13),
    ("square-inverse", NO_MATCH, "(double[3] x, double[3] z) => (double[3] y) { y = Mul(x, z) }", 13),
    ("sum-of-two", NO_MATCH, "(double[3] x) => (double[3] y) { y = Sum(x, x, x) }", 13),
    ("sum-of-two", NO_MATCH, "(double[3] x) => (double[3] y) { y = Sum(x) }", 13),
    ("neg-neg", NO_MATCH, "(double[3] x) => (double[3] y) { a = Neg(x) y = Abs(a) }", 13),
    ("sub-constant", "what is subtracted", "(double[3] x) => (double[3] y) <double c = {1}> { y = Sub(c, x) }", 13),
    ("div-by-constant", "the divisor is not", "(double[3] x) => (double[3] y) <double c = {1}> { y = Div(c, x) }", 13),
    ("conv-batchnorm", NO_MATCH, f"(double[1,2,3] x, double[2,2,1] w) => (double[1,2,3] y) {STATISTICS} "
     "{ a = Conv(x, w) y = BatchNormalization <training_mode = 1> (a, s, b, m, v) }", 14),
    ("batchnorm-as-mul-add", NO_MATCH, BN + "{ y, a, c = BatchNormalization <training_mode = 1> (x, s, b, m, v) }", 14),
    ("batchnorm-as-mul-add", NO_MATCH, BN + "{ y, a, c, d, e = BatchNormalization(x, s, b, m, v) }", 9),
    ("batchnorm-as-mul-add", NO_MATCH, BN + "{ y = BatchNormalization(x, s, b, m, v) }", 8),
    ("conv-batchnorm", "a weight or statistic", f"(double[1,2,3] x) => (double[1,2,3] y) {STATISTICS} "
     "{ w = RandomNormal <dtype = 11, shape = [2, 2, 1]> () a = Conv(x, w) "
     "y = BatchNormalization(a, s, b, m, v) }", 15),
    ("conv-merge", NO_MATCH, "(double[1,2,5] x) => (double[1,2,4] y, double[1,2,2] z) "
     "<double[2,2,2] w = {1,2,3,4,5,6,7,8}> "
     "{ y = Conv(x, w) z = Conv <strides = [2]> (x, w) }", 13),
    ("conv-merge", NO_MATCH, "(double[1,1,5] x) => (double[1,1,4] y, double[1,1,4] z) "
     "<double[1,1,2] w = {1,2}, double[1] b = {1}> "
     "{ y = Conv(x, w) z = Conv(x, w, b) }", 13),
    ("relu-maxpool", "another output",
     f"(double[1,1,3] x) => (double[1,1,2] y, int64[1,1,2] i) {{ a = Relu(x) y, i = {POOL} (a) }}", 13),
    ("concat-maxpool-inverse", "another output",
     f"(double[1,1,3] x) => (double[1,2,2] y, int64[1,2,2] i) "
     f"{{ a = Concat <axis = 1> (x, x) y, i = {POOL} (a) }}", 13),
    ("reshape-reshape", NO_MATCH, "(double[2,3] x) => (double[0] y) <int64[1] s = {6}, int64[1] t = {0}> "
     "{ a = Reshape(x, s) y = Reshape <allowzero = 1> (a, t) }", 14),
    ("reshape-nothing", NO_MATCH, "(double[0,3] x) => (double[0,3] y) <int64[2] s = {0, 3}> "
     "{ y = Reshape <allowzero = 1> (x, s) }", 14),
    ("relu-reshape", NO_MATCH, "(double[0,3] x) => (double[3,0] y) <int64[2] s = {3, 0}> "
     "{ a = Reshape <allowzero = 1> (x, s) y = Relu(a) }", 14),
    ("flatten-as-reshape", NO_MATCH, "(double[2,3] x) => (double[1,6] y) { y = Flatten <axis = 0> (x) }", 13),
    ("squeeze-unsqueeze", NO_MATCH, "(double[1,3] x) => (double[3] y) <int64[1] s = {0}> "
     "{ a = Unsqueeze(x, s) y = Squeeze(a) }", 13),
    ("transpose-nothing", "the permutation moves", "(double[2,3] x) => (double[3,2] y) { y = Transpose(x) }", 13),
    ("add-transpose", NO_MATCH, "(double[2,2] x) => (double[2,2] y) "
     "{ a = Transpose(x) b = Transpose <perm = [0, 1]> (x) y = Add(a, b) }", 13),
    ("concat-concat", NO_MATCH, "(double[1,1] x) => (double[2,2] y) "
     "{ a = Concat <axis = 0> (x, x) y = Concat <axis = 1> (a, a) }", 13),
    ("relu-concat", NO_MATCH, "(double[2] x) => (double[4] y) { a = Relu(x) y = Concat <axis = 0> (a, a) }", 13),
    ("concat-of-split", NO_MATCH, "(double[4] x) => (double[4] y) <int64[2] s = {2, 2}> "
     "{ a, b = Split(x, s) y = Concat <axis = 0> (b, a) }", 13),
    ("concat-of-split", NO_MATCH, "(double[6] x) => (double[4] y) <int64[3] s = {2, 2, 2}> "
     "{ a, b, c = Split(x, s) y = Concat <axis = 0> (a, b) }", 13),
    ("concat-of-split", NO_MATCH, "(double[2,2] x) => (double[1,4] y) <int64[2] s = {1, 1}> "
     "{ a, b = Split(x, s) y = Concat <axis = 1> (a, b) }", 13),
    ("relu-split", NO_MATCH, "(double[4] x) => (double[2] y, double[2] z) <int64[2] s = {2, 2}> "
     "{ a, b = Split(x, s) y = Relu(a) z = Relu(a) }", 13),
    ("matmul-merge", NO_MATCH, "(double[2,2] x) => (double[2,2] y, double[2,2] z) <double[2,2] w = {1, 2, 3, 4}> "
     "{ y = MatMul(x, w) z = MatMul(w, x) }", 13),
    ("matmul-add-as-gemm-inverse", NO_MATCH, "(double[2,2] x) => (double[2,2] y) { y = Gemm(x, x) }", 13),
    ("matmul-add-as-gemm-inverse", NO_MATCH, "(double[2,2] x) => (double[2,2] y) "
     "{ y = Gemm <transA = 1> (x, x, x) }", 13),
    ("matmul-add-as-gemm-inverse", NO_MATCH, "(double[2,2] x) => (double[2,2] y) "
     "{ y = Gemm <beta = 0.5> (x, x, x) }", 13),
    ("gelu", NO_MATCH, "(double[2] x) => (double[2] y) <double r = {1.4142}, double o = {1}, double h = {0.5}> "
     "{ a = Div(x, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, h) }", 20),
    ("gelu", NO_MATCH, "(double[2] x, double[2] z) => (double[2] y) "
     "<double r = {1.4142135623730951}, double o = {1}, double h = {0.5}> "
     "{ a = Div(z, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, h) }", 20),
]  # fmt: skip


def does_not_fire(look_alike: tuple) -> None:
    rule, reason, text, opset = look_alike
    matches, refusals = explain(load_graph(model(text, opset)), RULES, rule)
    assert not matches
    if reason is NO_MATCH:
        assert not refusals
    else:
        assert any(refusal.reason.startswith(reason) for refusal in refusals), refusals


def test_no_rule_fires_on_a_look_alike_of_its_pattern():
    check_each(does_not_fire, LOOK_ALIKES)


def test_a_default_that_the_caller_may_override_is_not_constant():
    text = """(double[1,1,3] x, double[1,1,1] w, double k) => (double[1,1,3] y)
              <double[1,1,1] w = {2}, double k = {3}> { a = Conv(x, w) y = Mul(a, k) }"""
    refusal = explain(load_graph(model(text, ir_version=8)), RULES, "conv-mul")[1][0]
    assert refusal.reason == "weight or factor is not constant"
    # In this IR version the caller cannot override a default.
    assert explain(load_graph(model(text, ir_version=3)), RULES, "conv-mul")[0]


def nothing_fires_where_shapes_are_unknown(case) -> None:
    """Check that no rule fires if every input of the left side passes through an operator unknown to ONNX."""
    known = instantiate(case, RULES)
    for value in known.graph.input:
        for node in known.graph.node:
            node.input[:] = [f"{name}_u" if name == value.name else name for name in node.input]
        known.graph.node.insert(0, helper.make_node("Thing", [value.name], [f"{value.name}_u"], domain="own"))
    known.opset_import.append(helper.make_opsetid("own", 1))
    graph = load_graph(known)
    for tensor in set(graph.types) - set(graph.constants) - set(graph.inputs):
        del graph.types[tensor]
    assert not any(MatchTable(RULES, graph).locations)


def test_no_rule_fires_or_fails_if_shapes_are_unknown():
    cases = [case for case in CASES if case.reason is None]
    check_each(nothing_fires_where_shapes_are_unknown, cases[:: at_night(1, 10)])


def test_no_rule_fires_if_an_unknown_tensor_gets_symbolic_sizes():
    text = """(float[n] x) => (float[n, 6] y) <int64[1] six = {6}>
              { size = Shape(x) sizes = Concat <axis = 0> (size, six) u = Identity(x) y = Reshape(u, sizes) }"""
    made = model(text)
    made.graph.node[2].CopyFrom(helper.make_node("Thing", ["x"], ["u"], domain="own"))
    made.opset_import.append(helper.make_opsetid("own", 1))
    refusal = explain(load_graph(made), RULES, "reshape-to-known")[1][0]
    assert refusal.reason == "n would have to be known"


COUNTED = [
    # Rule, number of locations, model.
    ("conv-merge", 1, "(double[1,1,3] x) => (double[1,1,3] y) <double[1,1,1] w = {2}, double[1,1,1] u = {3}> "
     "{ a = Conv(x, w) b = Conv(x, u) y = Sub(b, a) }"),
    ("matmul-merge", 3, "(double[2,1] x) => (double[2,1] y) <double[1,1] w = {2}, double[1,1] u = {3}> "
     "{ a = MatMul(x, w) b = MatMul(x, u) c = MatMul(x, u) d = Mul(b, a) y = Sub(d, c) }"),
    ("conv-enlarge-without-bias", 1, "(double[1,1,3,3] x) => (double[1,1,3,3] y) "
     "<double[1,1,1,1] w = {2}, double[1,1,3,3] u = {1,2,3,4,5,6,7,8,9}> "
     "{ a = Conv(x, w) b = Conv <pads = [1, 1, 1, 1]> (x, u) y = Sub(a, b) }"),
    ("conv-enlarge-without-bias", 1, "(double[1,1,3,3] x) => (double[1,1,3,3] y) "
     "<double[1,1,1,1] w = {2}, double[1,1,3,3] u = {1,2,3,4,5,6,7,8,9}> "
     "{ a = Conv(x, w) b = Conv <pads = [1, 1, 1, 1]> (x, u) y = Sub(b, a) }"),
    ("relu-split", 1, "(double[4] x) => (double[2] y) <int64[2] s = {2, 2}> "
     "{ a, b = Split(x, s) c = Relu(a) d = Relu(b) y = Sub(c, d) }"),
    ("relu-split", 1, "(double[4] x) => (double[2] y) <int64[2] s = {2, 2}> "
     "{ a, b = Split(x, s) c = Relu(a) d = Relu(b) y = Sub(d, c) }"),
    ("batchnorm-as-mul-add", 1, BN + "{ y = BatchNormalization <momentum = 0.99> (x, s, b, m, v) }"),
]  # fmt: skip


def with_neighbours_swapped(text: str) -> Iterator[onnx.ModelProto]:
    """Yield the model of a text, and one model for each two neighbouring nodes that can run in the other order."""
    yield model(text)
    for k in range(len(model(text).graph.node) - 1):
        other = model(text)
        one, next_one = (onnx.NodeProto.FromString(other.graph.node[i].SerializeToString()) for i in (k, k + 1))
        if set(one.output).isdisjoint(next_one.input):
            other.graph.node[k].CopyFrom(next_one)
            other.graph.node[k + 1].CopyFrom(one)
            yield other


def is_matched_once(counted: tuple) -> None:
    rule, count, text = counted
    for before in with_neighbours_swapped(text):
        has_matches(before, rule, count)


def has_matches(before: onnx.ModelProto, rule: str, count: int) -> None:
    graph = load_graph(before)
    matches = explain(graph, RULES, rule)[0]
    assert len(matches) == count
    assert matches == MatchTable(RULES, graph).locations[RULES.index(rule)]
    for match in matches:
        assert_same(before, to_model(apply(graph, RULES[match.xfer_id], match)))


def test_every_match_is_found_exactly_once_in_every_order_of_the_nodes():
    check_each(is_matched_once, COUNTED)
