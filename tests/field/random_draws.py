"""Operators that draw random numbers: outputs that depend on a draw are not compared, and no rewrite changes a draw."""

from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.field import Case

N, value = helper.make_node, helper.make_tensor_value_info


def constant(array, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def model(nodes, outputs=("y",), weights=(), functions=(), opset: int = 17) -> onnx.ModelProto:
    """Return q = x · w · u [4, 32], a product that one rewrite makes cheaper, followed by `nodes`."""
    rng = np.random.default_rng(0)
    products = [N("MatMul", ["x", "w"], ["p"]), N("MatMul", ["p", "u"], ["q"])]
    kinds = {"pick": (TensorProto.INT32, [4, 3]), "mask": (TensorProto.BOOL, [4, 32])}
    declared = [value(name, *kinds.get(name, (TensorProto.FLOAT, [4, 32]))) for name in outputs]
    matrices = [constant(rng.normal(size=(32, 32)).astype("f"), name) for name in "wu"]
    graph = helper.make_graph(
        [*products, *nodes], "g", [value("x", TensorProto.FLOAT, [4, 32])], declared,
        [*matrices, constant(np.float32(0), "nil"), *weights],
    )  # fmt: skip
    domains = [helper.make_opsetid(domain, 1) for domain in sorted({f.domain for f in functions})]
    imports = [helper.make_opsetid("", opset), *domains]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=list(functions))


def two(op: str, inputs, **attributes) -> list[onnx.NodeProto]:
    """Return y = q + e1 · e2, where e1 and e2 are two equal draws."""
    made = [N(op, inputs, [name], **attributes) for name in ("e1", "e2")]
    return [*made, N("Mul", ["e1", "e2"], ["e"]), N("Add", ["q", "e"], ["y"])]


def graph_of(nodes, output: str, inputs=()) -> onnx.GraphProto:
    return helper.make_graph(nodes, output, inputs, [value(output, TensorProto.FLOAT, [4, 32])])


def body_of_if() -> list[onnx.NodeProto]:
    noisy = graph_of([N("RandomNormalLike", ["q"], ["n"]), N("Add", ["q", "n"], ["then"])], "then")
    return [N("If", ["yes"], ["y"], then_branch=noisy, else_branch=graph_of([N("Neg", ["q"], ["else"])], "else"))]


def body_of_loop() -> list[onnx.NodeProto]:
    nodes = [N("RandomUniformLike", ["s"], ["n"]), N("Add", ["s", "n"], ["t"]), N("Identity", ["go"], ["on"])]
    body = helper.make_graph(
        nodes, "body",
        [value("k", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("s", TensorProto.FLOAT, [4, 32])],
        [value("on", TensorProto.BOOL, []), value("t", TensorProto.FLOAT, [4, 32])],
    )  # fmt: skip
    return [N("Loop", ["three", "yes", "q"], ["y"], body=body)]


def noise_function(opset: int = 17) -> onnx.FunctionProto:
    nodes = [N("RandomNormalLike", ["a"], ["n"]), N("Add", ["a", "n"], ["b"])]
    return helper.make_function("noise", "Noisy", ["a"], ["b"], nodes, [helper.make_opsetid("", opset)])


YES = [constant(True, "yes"), constant(np.int64(3), "three")]
RATIO = [constant(np.float32(0.3), "ratio"), constant(True, "yes")]
CUT = [constant(np.array([start]), name) for name, start in (("zero", 0), ("end", 32), ("one", 1))]
UNSEEDED = [
    N("RandomNormalLike", ["q"], ["e1"]), N("RandomNormalLike", ["q"], ["e2"]), N("Sub", ["e1", "e2"], ["e"]),
    N("Add", ["q", "e"], ["y"]),
]  # fmt: skip
PICK = [
    N("Softmax", ["q"], ["s"], axis=-1), N("Bernoulli", ["s"], ["b"]), N("Mul", ["b", "q"], ["y"]),
    N("Multinomial", ["q"], ["pick"], sample_size=3),
]  # fmt: skip
NIL = [N("RandomNormalLike", ["q"], ["e"]), N("Mul", ["e", "nil"], ["e0"]), N("Add", ["q", "e0"], ["y"])]
DROPOUT = [N("Dropout", ["q", "ratio", "yes"], ["y", "mask"], seed=3)]
# A rewrite reads only the first half of Concat's result; the other half is a draw.
UNREAD = [
    N("RandomNormalLike", ["q"], ["e"]), N("Concat", ["q", "e"], ["both"], axis=1),
    N("Slice", ["both", "zero", "end", "one"], ["y"]),
]  # fmt: skip
SHAPE = [N("RandomNormalLike", ["q"], ["e"]), N("Shape", ["e"], ["s"]), N("Reshape", ["q", "s"], ["y"])]
HALF = [constant(np.full((4, 32), 0.5, "f"), "half")]
SEEDED = {"shape": [4, 32], "seed": 7.0}
CASES = {
    "a": Case(partial(model, UNSEEDED), says="No gain|faster"),
    "b": Case(partial(model, two("RandomUniform", [], **SEEDED)), says="No gain|faster"),
    "c": Case(partial(model, PICK, ("y", "pick")), says="No gain|faster"),
    "d": Case(partial(model, NIL), says="No gain|faster"),
    "beside-a-draw": Case(partial(model, [*UNSEEDED, N("Relu", ["q"], ["z"])], ("y", "z")), says="faster"),
    "equal-seeds": Case(partial(model, two("RandomNormalLike", ["q"], seed=1.0)), says="faster"),
    "equal-bernoullis": Case(partial(model, two("Bernoulli", ["half"]), weights=HALF), says="faster"),
    "dropout": Case(partial(model, DROPOUT, ("y", "mask"), RATIO), says="faster"),
    "in-a-branch": Case(partial(model, body_of_if(), weights=YES), says="faster"),
    "in-a-loop": Case(partial(model, body_of_loop(), weights=YES), says="faster"),
    "in-a-function": Case(
        partial(model, [N("Noisy", ["q"], ["y"], domain="noise")], functions=[noise_function()]), says="faster"
    ),
    "an-unread-draw": Case(partial(model, UNREAD, weights=CUT), says="faster"),
    "a-draw-alone": Case(partial(model, [N("RandomNormalLike", ["q"], ["y"])]), says="faster"),
    "a-shape-of-a-draw": Case(partial(model, SHAPE), says="faster"),
    "opset-20": Case(partial(model, two("RandomUniformLike", ["q"]), opset=20), says="faster"),
    "opset-22": Case(partial(model, two("RandomUniformLike", ["q"]), opset=22), 1, "find an implementation"),
}
