"""Test the idioms of exporters, each as a tiny model: the named rules bring it to the wanted form."""

from collections import Counter

import numpy as np
import onnx
import pytest

from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import to_model
from rlflow.rules.apply import apply
from rlflow.rules.language import load_rules
from rlflow.rules.locations import MatchTable, prepared
from rlflow.rules.rule import RuleSet

RULES = load_rules()

# Name: the model, the rules, how often each operator occurs in it afterwards.
IDIOMS = {
    "gelu of torch's newer exporter, half the curve": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[1, 4, 6] x) => (float[1, 4, 8] y)
        <float[6, 8] w = {WEIGHT}, float[8] b = {BIAS}, float r = {1.4142135}, float one = {1.0}, float half = {0.5}> {
            m = MatMul(x, w)  t = Add(m, b)  d = Div(t, r)  f = Erf(d)  p = Add(f, one)  h = Mul(half, p)  y = Mul(t, h)
        }""",
        ["bias-gelu-inside"],
        {"MatMul": 1, "BiasGelu": 1},
    ),
    "the same without an offset of its own, brought to the form that ONNX Runtime knows": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[4, 6] x) => (float[4, 8] y)
        <float[6, 8] w = {WEIGHT}, float[8] b = {BIAS}, float r = {1.4142135}, float one = {1.0}, float half = {0.5}> {
            t = Gemm(x, w, b)  d = Div(t, r)  f = Erf(d)  p = Add(f, one)  h = Mul(half, p)  y = Mul(t, h)
        }""",
        ["mul-constant-outward"],
        {"Gemm": 1, "Div": 1, "Erf": 1, "Add": 1, "Mul": 2},
    ),
    "a residual sum before a normalisation": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[1, 4, 8] x, float[1, 4, 8] r) => (float[1, 4, 8] y)
        <float[8] s = {BIAS}, float[8] b = {BIAS}> { t = Add(x, r)  y = LayerNormalization(t, s, b) }""",
        ["layer-normalization-of-sum"],
        {"Sum": 1, "LayerNormalization": 1},
    ),
    "queries and keys that are each scaled by a root": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[1, 2, 4, 6] q, float[1, 2, 6, 5] k) => (float[1, 2, 4, 5] y)
        <float s = {0.6389431}> { a = Mul(q, s)  b = Mul(k, s)  y = MatMul(a, b) }""",
        ["fused-matmul-of-roots"],
        {"FusedMatMul": 1},
    ),
    "a mask that masks nothing": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[1, 2, 33, 33] x) => (float[1, 2, 33, 33] y)
        <bool[1, 1, 33, 33] c = {TRUE}, float zero = {0.0}, float least = {-3.4e38}> {
            m = Where(c, zero, least)  t = Add(x, m)  y = Softmax(t)
        }""",
        [],
        {"Softmax": 1},
    ),
    "a guard that cannot fire": (
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[1, 2, 4, 6] q, float[1, 2, 6, 4] k, bool[1, 1, 4, 4] c) => (float[1, 2, 4, 4] y)
        <float zero = {0.0}, float least = {-3.4e38}> {
            s = MatMul(q, k)  m = Where(c, zero, least)  t = Add(s, m)  p = Softmax(t)  n = IsNaN(p)
            y = Where(n, zero, p)
        }""",
        [],
        {"MatMul": 1, "Where": 1, "Add": 1, "Softmax": 1},
    ),
    "a guard behind a mask that was stored as finite numbers": (
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[1, 2, 4, 6] q, float[1, 2, 6, 3] k) => (float[1, 2, 4, 3] y)
        <float zero = {0.0}, float[1, 1, 1, 3] mask = {0.0, -3.4e38, 0.0}> {
            s = MatMul(q, k)  t = Add(s, mask)  p = Softmax(t)  n = IsNaN(p)  y = Where(n, zero, p)
        }""",
        [],
        {"MatMul": 1, "Add": 1, "Softmax": 1},
    ),
    "a guard that can fire, since all may be masked by -inf: it stays": (
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[1, 2, 2, 6] q, float[1, 2, 6, 2] k) => (float[1, 2, 2, 2] y)
        <float zero = {0.0}, float[1, 1, 2, 2] mask = {0.0, -inf, -inf, -inf}> {
            s = MatMul(q, k)  t = Add(s, mask)  p = Softmax(t)  n = IsNaN(p)  y = Where(n, zero, p)
        }""",
        [],
        {"MatMul": 1, "Add": 1, "Softmax": 1, "IsNaN": 1, "Where": 1},
    ),
    "a class token: nothing but its row goes through the last layers": (
        """<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> g (float[1, 5, 6] x) => (float[1, 6] y)
        <float[6, 8] w = {WEIGHT}, float[8] b = {BIAS}, float[8, 6] u = {WEIGHT}, float[6] s = {SCALE}, int64 i = {0}> {
            m = MatMul(x, w)  t = com.microsoft.BiasGelu(m, b)  n = MatMul(t, u)  o = LayerNormalization(n, s, s)
            y = Gather <axis = 1> (o, i)
        }""",
        ["gather-as-slice", "slice-of-layernorm", "slice-of-matmul-rows", "slice-of-bias-gelu"],
        {"Slice": 1, "MatMul": 2, "BiasGelu": 1, "LayerNormalization": 1, "Squeeze": 1},
    ),
    "a class token behind the heads of an attention": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[1, 2, 5, 4] x) => (float[1, 6] y)
        <int64[3] r = {1, 5, 8}, float[8, 6] w = {WEIGHT}, int64 i = {0}> {
            t = Transpose <perm = [0, 2, 1, 3]> (x)  m = Reshape(t, r)  n = MatMul(m, w)  y = Gather <axis = 1> (n, i)
        }""",
        ["gather-as-slice", "slice-of-matmul-rows", "slice-of-reshape", "slice-of-transpose"],
        {"Slice": 1, "Transpose": 1, "Reshape": 1, "MatMul": 1, "Squeeze": 1},
    ),
    "a depthwise convolution of six channels, which become sixteen": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y)
        <float[6, 8, 1, 1] w = {WEIGHT}, float[6, 1, 1, 1] u = {SCALE}, float[6] b = {SCALE},
         float[8, 6, 1, 1] v = {WEIGHT}> {
            m = Conv(x, w, b)  t = Relu(m)  n = Conv <group = 6> (t, u, b)  y = Conv(n, v)
        }""",
        ["depthwise-conv-bias-of-conv-padded", "conv-of-slice"],
        {"Conv": 3, "Relu": 1},
    ),
    "the same where a sum is in between": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[1, 6, 4, 4] x, float[1, 6, 4, 4] r) => (float[1, 8, 4, 4] y)
        <float[6, 1, 1, 1] u = {SCALE}, float[8, 6, 1, 1] v = {WEIGHT}> {
            t = Add(x, r)  m = Relu(t)  n = Conv <group = 6> (m, u)  y = Conv(n, v)
        }""",
        ["depthwise-conv-channels-padded", "conv-of-slice"],
        {"Add": 1, "Relu": 1, "Pad": 1, "Conv": 2},
    ),
    "a pool behind the first convolution": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[1, 8, 4, 4] x) => (float[1, 8, 2, 2] y)
        <float[6, 8, 1, 1] w = {WEIGHT}, float[6] b = {SCALE}, float[8, 6, 1, 1] v = {WEIGHT}> {
            m = Conv(x, w, b)  t = Relu(m)  n = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (t)  y = Conv(n, v)
        }""",
        ["maxpool-of-conv-padded", "conv-of-slice"],
        {"Conv": 2, "Relu": 1, "MaxPool": 1},
    ),
    "a channel shuffle of torch, and the halves that follow": (
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[1, 3, 4, 4] x, float[1, 3, 4, 4] r) => (float[1, 3, 4, 4] y, float[1, 3, 4, 4] z)
        <int64[5] s = {1, 2, 3, 4, 4}, int64[4] q = {1, 6, 4, 4}> {
            t = Concat <axis = 1> (x, r)  m = Reshape(t, s)
            n = Transpose <perm = [0, 2, 1, 3, 4]> (m)  o = Reshape(n, q)
            y, z = Split <axis = 1, num_outputs = 2> (o)
        }""",
        ["shuffle-as-gather", "split-of-gather"],
        {"Concat": 1, "Gather": 2},
    ),
    "Keras's adjustment of two samplings, normalised where they are joined": (
        """<ir_version: 8, opset_import: ["": 15]>
        g (float[1, 8, 4, 4] x, float[1, 8, 4, 4] r) => (float[1, 12, 2, 2] y)
        <float[6, 8, 1, 1] w = {WEIGHT}, float[6] b = {SCALE}, float[12, 1, 1] k = {SCALE, SCALE}> {
            o = AveragePool <kernel_shape = [1, 1], strides = [2, 2]> (x)  m = Conv(o, w)
            p = AveragePool <kernel_shape = [1, 1], strides = [2, 2]> (r)  n = Conv(p, w)
            t = Concat <axis = 1> (m, n)  f = Mul(t, k)  y = Add(f, k)
        }""",
        ["conv-of-sampling", "mul-of-concat", "conv-mul", "add-of-concat", "conv-add"],
        {"Conv": 2, "Concat": 1},
    ),
    "a gate of one number a channel": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y)
        { m = GlobalAveragePool(x)  g = Sigmoid(m)  y = Mul(g, x) }""",
        ["gate-in-blocks"],
        {"GlobalAveragePool": 1, "Sigmoid": 1, "Resize": 1, "Mul": 1},
    ),
    "the mean of all places": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[1, 8, 4, 4] x) => (float[1, 8] y)
        <int64[2] r = {2, 3}> { y = ReduceMean <keepdims = 0> (x, r) }""",
        ["mean-as-globalaveragepool-squeeze"],
        {"GlobalAveragePool": 1, "Squeeze": 1},
    ),
    "SiLU": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[4, 8] x) => (float[4, 8] y)
        { s = Sigmoid(x)  y = Mul(x, s) }""",
        ["silu"],
        {"QuickGelu": 1},
    ),
    "RMSNorm of torch's newer exporter": (
        """<ir_version: 11, opset_import: ["": 23]> g (float[1, 4, 8] x) => (float[1, 4, 8] y)
        <float[8] s = {BIAS}, float two = {2.0}, float e = {1e-6}, int64[1] last = {-1}> {
            p = Pow(x, two)  m = ReduceMean(p, last)  a = Add(m, e)  q = Sqrt(a)  r = Reciprocal(q)  n = Mul(x, r)
            y = Mul(s, n)
        }""",
        ["rms-normalization"],
        {"RMSNormalization": 1},
    ),
}  # fmt: skip


def written(text: str) -> onnx.ModelProto:
    """Return the model of a text in which words stand for the content of weights."""
    numbers = lambda count: ", ".join(f"{np.sin(k + 1.0):.6f}" for k in range(count))  # noqa: E731
    words = {"WEIGHT": numbers(48), "BIAS": numbers(8), "SCALE": numbers(6), "TRUE": ", ".join("1" * 33 * 33)}
    for word, content in words.items():
        text = text.replace(word, content)
    return onnx.parser.parse_model(text)


def rewritten(graph: Graph, names: list[str]) -> Graph:
    """Return the prepared graph after the named rules have been applied until none matches."""
    graph, _ = prepared(graph, RULES)
    own = RuleSet(tuple(rule for rule in RULES if rule.name in names))
    assert len(own) == len(names)
    table = MatchTable(own, graph)
    while (position := next((k for k, count in enumerate(table.counts) if count), None)) is not None:
        graph = apply(graph, own[position], table.location(position, 0))
        table = MatchTable(own, graph, table)
    return graph


@pytest.mark.parametrize("text, names, wanted", IDIOMS.values(), ids=IDIOMS)
def test_an_idiom_is_rewritten_to_the_wanted_form(text, names, wanted):
    model = written(text)
    graph = rewritten(load_graph(model), names)
    assert Counter(node.op for node in graph.nodes.values() if not node.constant) == wanted
    random = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        array = random.standard_normal([dim.dim_value for dim in value.type.tensor_type.shape.dim])
        feeds[value.name] = array.astype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    before, after = (run(session(m, 1), feeds) for m in (model, to_model(graph)))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def test_only_the_row_of_a_class_token_is_multiplied():
    text, names, _ = IDIOMS["a class token: nothing but its row goes through the last layers"]
    graph = rewritten(load_graph(written(text)), names)
    rows = [graph.types[node.outputs[0]].shape[1] for node in graph.nodes.values() if node.op == "MatMul"]
    assert rows == [1, 1]


def test_a_depthwise_convolution_is_padded_to_whole_vectors_of_channels():
    text, names, _ = IDIOMS["a depthwise convolution of six channels, which become sixteen"]
    graph = rewritten(load_graph(written(text)), names)
    channels = [graph.types[node.outputs[0]].shape[1] for node in graph.nodes.values() if node.op == "Conv"]
    assert channels == [16, 16, 8]
