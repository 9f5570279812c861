"""Small models whose peak depends on the order, as ONNX Runtime runs them."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

KEPT = ("Sin", "Cos", "Atan", "Sinh", "Sigmoid")
TIMES = 16


def irregular(width: int = 64) -> onnx.ModelProto:
    """Return a model with one branch of large intermediates and a small result, and with branches that keep their size.

    The other branches are last in the file, but ONNX Runtime runs them first, so their results wait while the large
    intermediates exist.
    """
    nodes = [
        helper.make_node("Tile", ["x", "times"], ["copies"]),
        helper.make_node("Exp", ["copies"], ["large"]),
        helper.make_node("ReduceMax", ["large"], ["small"], axes=[0], keepdims=1),
    ]
    nodes += [helper.make_node(op, ["x"], [op.lower()]) for op in KEPT]
    nodes.append(helper.make_node("Concat", ["small", *(op.lower() for op in KEPT)], ["all"], axis=0))
    nodes.append(helper.make_node("ReduceMean", ["all"], ["y"]))
    times = helper.make_tensor("times", TensorProto.INT64, [2], [TIMES, 1])
    return _model(nodes, (8, width), (1, 1), [times])


def peaks(width: int = 64) -> tuple[int, int]:
    """Return the peaks in bytes of ONNX Runtime's order and of the best order.

    In the first order all results of KEPT wait while Exp runs, in the second none.
    """
    one = 8 * width * 4
    return (len(KEPT) + 2 * TIMES) * one, 2 * TIMES * one


def residual() -> onnx.ModelProto:
    """Return convolutions of 16 channels, stored in blocks; two of them can add to the result of an earlier one."""
    shapes, rng = {"pads": [1] * 4}, np.random.default_rng(0)
    nodes, last = [], "x"
    for block in "ab":
        for name in (f"{block}1", f"{block}2", f"{block}3"):
            nodes.append(helper.make_node("Conv", [last, "weight"], [name], **shapes))
            last = name
        nodes.append(helper.make_node("Add", [last, f"{block}1"], [f"{block}4"]))
        last = f"{block}4"
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["y"]))
    weight = numpy_helper.from_array(rng.standard_normal((16, 16, 3, 3)).astype(np.float32), "weight")
    return _model(nodes, (1, 16, 8, 8), (1, 16, 1, 1), [weight])


def _model(nodes, shape, result, weights) -> onnx.ModelProto:
    given, made = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, size)] for name, size in (("x", shape), ("y", result))
    )
    graph = helper.make_graph(nodes, "irregular", given, made, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
