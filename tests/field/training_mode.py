"""Operators that still train: Dropout with a mask, BatchNormalization with the statistics of the batch."""

from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.field import Case

N, value = helper.make_node, helper.make_tensor_value_info
SHAPE = ["n", 6, 8, 8]
EQUAL = "No gain|faster"


def constant(array, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def model(nodes, others=(), weights=(), opset: int = 15, inputs=()) -> onnx.ModelProto:
    """Return a model c = Conv(x), followed by `nodes`, which make the output y.

    `others` are further outputs (name, shape, type).
    """
    rng = np.random.default_rng(0)
    vectors = [constant((1 + rng.random(6)).astype("f"), name) for name in ("scale", "b", "mean", "var")]
    kernel = constant(rng.normal(size=(6, 3, 3, 3)).astype("f"), "w")
    outputs = [value("y", TensorProto.FLOAT, SHAPE), *(value(name, kind, shape) for name, shape, kind in others)]
    graph = helper.make_graph(
        [N("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), *nodes], "g",
        [value("x", TensorProto.FLOAT, ["n", 3, 8, 8]), *inputs], outputs, [kernel, *vectors, *weights],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


def dropout(ratio, training=True, mask: bool = True, opset: int = 15, inputs=()) -> onnx.ModelProto:
    """Return y = Relu(Dropout(c)); a ratio or training mode of None is left out."""
    given = [("ratio", None if ratio is None else np.float32(ratio)), ("train", training)]
    weights = [constant(array, name) for name, array in given if array is not None and not isinstance(array, str)]
    operands = [name if array is not None else "" for name, array in given]
    nodes = [N("Dropout", ["c", *operands], ["d", "mask"] if mask else ["d"]), N("Relu", ["d"], ["y"])]
    others = [("mask", SHAPE, TensorProto.BOOL)] if mask else []
    return model(nodes, others, weights, opset, inputs)


def normalised(training: int, opset: int = 15, outputs=("d", "m2", "v2")) -> onnx.ModelProto:
    node = N("BatchNormalization", ["c", "scale", "b", "mean", "var"], outputs, momentum=0.9)
    if training:
        node.attribute.append(helper.make_attribute("training_mode", training))
    return model([node, N("Relu", ["d"], ["y"])], [(n, [6], TensorProto.FLOAT) for n in outputs[1:]], opset=opset)


def old() -> onnx.ModelProto:
    nodes = [
        N("BatchNormalization", ["c", "scale", "b", "mean", "var"], ["d"]), N("Dropout", ["d"], ["e", ""], ratio=0.5),
        N("Relu", ["e"], ["y"]),
    ]  # fmt: skip
    return model(nodes, opset=7)


MODE = [value("train", TensorProto.BOOL, [])]
CASES = {
    "a": Case(partial(dropout, 0.0), says=EQUAL),
    "b": Case(partial(normalised, 1), says=EQUAL),
    "c": Case(partial(dropout, 0.5), says=EQUAL),
    "d": Case(old, says=EQUAL),
    "mode-false": Case(partial(dropout, 0.5, False), says=EQUAL),
    "mode-absent": Case(partial(dropout, 0.5, None), says=EQUAL),
    "ratio-absent": Case(partial(dropout, None, True), says=EQUAL),
    "mode-is-an-input": Case(partial(dropout, 0.5, "given", inputs=MODE), says=EQUAL),
    "without-mask": Case(partial(dropout, 0.25, True, False), says=EQUAL),
    "opset-22": Case(partial(dropout, 0.5, opset=22), says=EQUAL),
    "opset-12": Case(partial(dropout, 0.5, opset=12), says=EQUAL),
    "all-dropped": Case(partial(dropout, 0.99), says=EQUAL),
    "statistics-unread": Case(partial(normalised, 1, outputs=("d",)), 1, "ONNX Runtime rejects .*Training_mode"),
    "inference": Case(partial(normalised, 0, outputs=("d",)), says="faster"),
    "opset-9-statistics": Case(
        partial(normalised, 0, opset=9, outputs=("d", "m2", "v2", "saved_m", "saved_v")), says=EQUAL
    ),
}
