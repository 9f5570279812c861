"""Small models with a few rules each, from which few graphs can be reached."""

from functools import cache

import numpy as np
import onnx
from onnx import numpy_helper

from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules
from rlflow.rules.rule import RuleSet

# Name → (model, sizes of its weights, rules).
TOYS = {
    "a clamp moves to where a convolution takes it in": (
        "(float[1,4,6,6] x) => (y) { a = Conv(x, w) b = MaxPool<kernel_shape=[2,2]>(a) y = Relu(b) }",
        {"w": (4, 4, 1, 1)},
        "relu-maxpool relu-maxpool-inverse fused-conv fused-conv-inverse",
    ),
    "two convolutions become one, with their clamps": (
        "(float[1,4,6,6] x) => (y) { a = Conv(x, w) b = Conv(x, u) c = Relu(a) d = Relu(b) y = Concat<axis=1>(c, d) }",
        {"w": (4, 4, 1, 1), "u": (8, 4, 1, 1)},
        "conv-merge relu-concat concat-relu concat-of-split relu-split",
    ),
    "a merged result is read in parts": (
        "(float[1,4,6,6] x) => (y) { a = Conv(x, w) b = Conv(x, u) c = Relu(a) d = Relu(b) y = Add(c, d) }",
        {"w": (4, 4, 1, 1), "u": (4, 4, 1, 1)},
        "conv-merge relu-split split-of-relu fused-conv fused-conv-inverse conv-sum",
    ),
    "what goes in a circle": (
        "(float[6,8] x) => (y) { a = Transpose<perm=[1,0]>(x) b = Relu(a) c = Transpose<perm=[1,0]>(b) y = Relu(c) }",
        {},
        "relu-transpose relu-transpose-inverse transpose-transpose relu-relu transpose-nothing",
    ),
    "a shared inner tensor": (
        "(float[1,4,6,6] x) => (y, z) { a = Conv(x, w) y = Relu(a) z = Tanh(a) }",
        {"w": (4, 4, 1, 1)},
        "fused-conv fused-conv-inverse",
    ),
    "a costly operator that a cheap one replaces": (
        "(float[8,8] x) => (y) { a = Pow(x, two) b = Add(a, zero) y = Div(b, two) }",
        {"two": 2.0, "zero": 0.0},
        "square add-zero div-by-constant mul-constants",
    ),
    "a product of two": (
        "(float[2,6] x) => (y, z) { a = MatMul(x, w) b = MatMul(x, u) y = Relu(a) z = Relu(b) }",
        {"w": (6, 4), "u": (6, 3)},
        "matmul-merge split-of-relu relu-split",
    ),
}  # fmt: skip


@cache
def toy(name: str) -> Task:
    text, weights, rules = TOYS[name]
    return task(text, weights, RuleSet(tuple(rule for rule in load_rules() if rule.name in rules.split())))


def task(text: str, weights: dict, rules: RuleSet) -> Task:
    """Return the task of a model. `weights`: name → sizes of a random weight, or the content of the weight."""
    typed = text.replace("=> (", "=> (float[] ").replace(", z)", ", float[] z)")
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 20]> toy {typed}')
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    random = np.random.default_rng(0)
    for weight, sizes in weights.items():
        array = random.standard_normal(sizes) if isinstance(sizes, tuple) else np.array(sizes)
        model.graph.initializer.append(
            numpy_helper.from_array(array.astype(np.float32 if array.dtype == float else array.dtype), weight)
        )
    return Task(
        load_graph(onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)), rules, AnalyticCost()
    )
