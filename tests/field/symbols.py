"""Symbolic sizes, and files without a name, a shape, an order or an import that ONNX Runtime does not need."""

from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.field import Case

N, value = helper.make_node, helper.make_tensor_value_info
FLOAT, EQUAL = TensorProto.FLOAT, "No gain|faster"
RANDOM = np.random.default_rng(0).normal(size=(2, 16, 16)).astype("f")
WEIGHTS = [numpy_helper.from_array(array, name) for name, array in zip("wu", RANDOM, strict=True)]
SHAPES = [numpy_helper.from_array(np.array(sizes), name) for name, sizes in (("s", [0, -1, 16]), ("flat", [-1, 16]))]


def made(nodes, inputs, outputs, opset: int = 17, functions=(), weights=(*WEIGHTS, *SHAPES)) -> onnx.ModelProto:
    """Return a model from nodes and the (name, shape) pairs of its inputs and outputs."""
    inputs, outputs = ([value(name, FLOAT, shape) for name, shape in ports] for ports in (inputs, outputs))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(f.domain, 1) for f in functions)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=list(functions))


def cache(inputs, outputs) -> onnx.ModelProto:
    nodes = [
        N("Concat", ["past", "x"], ["all"], axis=1), N("MatMul", ["all", "w"], ["p"]), N("MatMul", ["p", "u"], ["q"]),
        N("Reshape", ["q", "s"], ["q1"]), N("Transpose", ["q1"], ["t"], perm=[1, 0, 2]),
        N("Transpose", ["t"], ["y"], perm=[1, 0, 2]),
    ]  # fmt: skip
    return made(nodes, inputs, outputs)


def sums() -> onnx.ModelProto:
    inputs = [("past", ["batch", "past", 16]), ("x", ["batch", "seq", 16])]
    return cache(inputs, [("y", ["output_batch", "past + seq", 16]), ("all", ["batch", "past+seq", 16])])


def unnamed() -> onnx.ModelProto:
    return cache([("past", [None, None, 16]), ("x", [None, None, 16])], [("y", None), ("all", None)])


def misnamed() -> onnx.ModelProto:
    nodes = [
        N("MatMul", ["x", "w"], ["p"]), N("MatMul", ["p", "u"], ["q"]), N("Reshape", ["q", "flat"], ["y"]),
        N("MatMul", ["past", "w"], ["z0"]), N("MatMul", ["z0", "u"], ["z"]),
    ]  # fmt: skip
    return made(nodes, [("past", ["N", 16]), ("x", ["N", "N", 16])], [("y", ["N", 16]), ("z", ["N", 16])])


def chain(x=("n", 16), y=("n", 16), between=(), **options) -> onnx.ModelProto:
    """Return y = Identity(x) · w · u; the nodes `between` replace the Identity."""
    products = [N("MatMul", ["x1", "w"], ["p"]), N("MatMul", ["p", "u"], ["y"])]
    nodes = [*(between or [N("Identity", ["x"], ["x1"])]), *products]
    return made(nodes, [("x", x)], [("y", y)], **options)


def changed(change, **options) -> onnx.ModelProto:
    """Return the model of `chain` after a function has changed it in place."""
    model = chain(**options)
    change(model)
    return model


def without_name(model: onnx.ModelProto) -> None:
    model.graph.ClearField("name")


def without_type(model: onnx.ModelProto) -> None:
    model.graph.output[0].ClearField("type")


def unsorted(model: onnx.ModelProto) -> None:
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[::-1])


def stale(model: onnx.ModelProto) -> None:
    """Declare intermediate types of another batch size and another rank."""
    model.graph.value_info.extend([value("p", FLOAT, [7, 16]), value("x1", FLOAT, [16])])


def repeated(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(model.graph.initializer[0])


def contradictory(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(RANDOM[1], "w"))


def same_names(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.name = "same"


def spelled(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.domain = "ai.onnx"


def two_opsets(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("ai.onnx", 15))


def old_ir(model: onnx.ModelProto) -> None:
    model.ir_version = 3
    del model.graph.initializer[2:]  # ONNX Runtime refuses unused weights in a file of this old version


def function(opset: int, op: str) -> onnx.FunctionProto:
    return helper.make_function("own", "F", ["a"], ["b"], [N(op, ["a"], ["b"])], [helper.make_opsetid("", opset)])


CALL = [N("F", ["x"], ["x1"], domain="own")]
CASES = {
    "a": Case(sums, says=EQUAL),
    "b": Case(unnamed, says=EQUAL),
    "c": Case(misnamed, says=EQUAL),
    "d": Case(partial(chain, None, None), 1, "input 'x' has no declared rank. .* --shape x=1x128 --fix"),
    "a-rank-is-given": Case(partial(chain, None, None), says="faster", options=("--shape", "x=4x16", "--fix")),
    "without-a-name": Case(partial(changed, without_name), says=EQUAL),
    "an-output-without-a-type": Case(partial(changed, without_type), says=EQUAL),
    "unsorted": Case(partial(changed, unsorted), says=EQUAL),
    "declared-types-are-stale": Case(partial(changed, stale, x=(4, 16), y=(9, 9, 9)), says="faster"),
    "a-weight-twice": Case(partial(changed, repeated), says=EQUAL),
    "two-weights-of-one-name": Case(partial(changed, contradictory), 1, "initializer name is not unique"),
    "nodes-of-one-name": Case(partial(changed, same_names), 1, "two nodes with same node name"),
    "the-domain-is-spelled-out": Case(partial(changed, spelled), says=EQUAL),
    "two-opsets": Case(partial(changed, two_opsets), says=EQUAL),
    "ir-3": Case(partial(changed, old_ir), says=EQUAL),
    "a-function-of-another-opset": Case(partial(chain, between=CALL, functions=[function(13, "Relu")]), says=EQUAL),
    "an-operator-too-new": Case(
        partial(chain, between=CALL, functions=[function(20, "Gelu")]), 1, "ONNX Runtime rejects|checker refuses"
    ),
    "a-domain-not-imported": Case(
        partial(chain, (4, 16), (4, 16), [N("QuickGelu", ["x"], ["x1"], domain="com.microsoft")]), says=EQUAL
    ),
    "an-unread-unknown-operator": Case(
        partial(chain, between=[N("Identity", ["x"], ["x1"]), N("Nope", ["x"], ["z"], domain="no.where")]), 1,
        "no.where",
    ),
}
