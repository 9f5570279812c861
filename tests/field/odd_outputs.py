"""Models with unusual outputs.

Such an output is read by another node or listed twice, or it is an input, a weight, a constant or made by no node.
"""

from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.field import Case

N, value = helper.make_node, helper.make_tensor_value_info
FLOAT, EQUAL = TensorProto.FLOAT, "No gain|faster"
SHAPE, X = ["n", 8, 8, 8], ("x", ["n", 3, 8, 8])


def model(outputs, more=(), nodes=None, inputs=(), opset: int = 17) -> onnx.ModelProto:
    """Return a model x → c1 → n1 → r1 → c2 = y → t → z of two convolutions and two transposes that cancel.

    Args:
      outputs: (name, shape) or (name, shape, type) of the outputs.
      more: further nodes.
      nodes: nodes that replace the convolutions and transposes; None for these.
      inputs: further inputs, written like outputs.
      opset: version of the opset.
    """
    rng = np.random.default_rng(0)
    kernels = (("w1", (8, 3, 3, 3)), ("w2", (8, 8, 3, 3)))
    weights = [numpy_helper.from_array(rng.normal(size=shape).astype("f"), name) for name, shape in kernels]
    weights += [numpy_helper.from_array((1 + rng.random(8)).astype("f"), name) for name in "sbmv"]
    usual = [
        N("Conv", ["x", "w1"], ["c1"], pads=[1] * 4), N("BatchNormalization", ["c1", *"sbmv"], ["n1"]),
        N("Relu", ["n1"], ["r1"]), N("Conv", ["r1", "w2"], ["c2"], pads=[1] * 4), N("Identity", ["c2"], ["y"]),
        N("Transpose", ["y"], ["t"], perm=[0, 2, 3, 1]), N("Transpose", ["t"], ["z"], perm=[0, 3, 1, 2]),
    ]  # fmt: skip
    ports = [
        [value(name, *([*kind, FLOAT][:1] if kind else [FLOAT]), shape) for name, shape, *kind in side]
        for side in ((X, *inputs), outputs)
    ]
    graph = helper.make_graph([*(usual if nodes is None else nodes), *more], "g", *ports, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


Z, Y, R = ("z", SHAPE), ("y", SHAPE), ("r1", SHAPE)
READ_ON = [Z, Y, ("n1", SHAPE), ("c1", SHAPE), ("t", SHAPE)]
CONSTANT = [
    N("Constant", [], ["k0"], value_floats=[1.0, 2.0]), N("Neg", ["k0"], ["k1"]), N("Shape", ["x"], ["size"]),
    N("Identity", ["w1"], ["kernel"]),
]  # fmt: skip
KNOWN = [("k1", [2]), Z, ("size", [4], TensorProto.INT64), ("kernel", [8, 3, 3, 3])]
UNUSED = [("unused", [2, "k"], TensorProto.INT64), ("text", [1], TensorProto.STRING)]
NO_SHAPE = ("z", None)
TEXT = [N("Constant", [], ["words"], value_strings=[b"a", b"b"])]
LIST = [N("SequenceConstruct", ["z", "y"], ["both"]), N("SequenceLength", ["both"], ["length"])]
CASES = {
    "a": Case(partial(model, [*READ_ON, X, ("s", [8])]), says=EQUAL),
    "b": Case(partial(model, [Z, R, Z]), says=EQUAL),
    "c": Case(partial(model, KNOWN, CONSTANT, inputs=UNUSED), says=EQUAL),
    "d": Case(partial(model, [("s", [8]), X], nodes=[]), says="No gain"),
    "three-times": Case(partial(model, [Y, Y, Y]), says=EQUAL),
    "twice-with-other-names-of-sizes": Case(partial(model, [Z, ("z", ["m", 8, "h", 8])]), says=EQUAL),
    "an-input-twice": Case(partial(model, [X, Z, X]), says=EQUAL),
    "a-weight-twice": Case(partial(model, [("w1", [8, 3, 3, 3]), Z, ("w1", [8, 3, 3, 3])]), says=EQUAL),
    "twice-without-a-shape": Case(partial(model, [NO_SHAPE, NO_SHAPE]), says=EQUAL),
    "two-names-of-one-value": Case(partial(model, [Y, ("c2", SHAPE), Z]), says=EQUAL),
    "an-output-that-nothing-makes": Case(partial(model, [Z, ("gone", [1])]), 1, "not an output of any node"),
    "no-output": Case(partial(model, []), 1, "output should be requested"),
    "words": Case(partial(model, [Z, ("words", [2], TensorProto.STRING)], TEXT), says=EQUAL),
    "the-length-of-a-list": Case(partial(model, [Z, ("length", [], TensorProto.INT64)], LIST), says=EQUAL),
    "declared-with-another-rank": Case(partial(model, [("z", ["n", 8]), R]), says=EQUAL),
    "declared-with-another-type": Case(partial(model, [("z", SHAPE, TensorProto.INT64)]), 1, "rejects|infer"),
}
