"""Names of tensors, nodes and sizes that collide, repeat or are unusual; protected names; custom operators.

The first cases come from the script from which this kind was collected.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.field import Case
from tests.toys.custom import LIBRARY, custom_model

ROLES = ("x", "w", "u", "p", "q", "a", "y", "b", "t", "tt")  # the tensors of `chain`
PLAIN = dict(zip(ROLES, ROLES, strict=True))
FASTER = r"(faster|No gain|estimated)"


def chain(
    graph: str = "g", labels: tuple[str, ...] = ("", "", ""), rows: str | int = "batch size/ß", **names: str
) -> onnx.ModelProto:
    """Return two MatMuls, an Add, two Transposes that cancel, and a Relu.

    Args:
      graph: name of the graph.
      labels: names of the MatMuls and of the first Transpose.
      rows: size of the first axis of input and output.
      **names: role of a tensor (see ROLES) → its name.
    """
    n, rng, make = PLAIN | names, np.random.default_rng(0), helper.make_node
    nodes = [
        make("MatMul", [n["x"], n["w"]], [n["p"]], labels[0]),
        make("MatMul", [n["p"], n["u"]], [n["q"]], labels[1]),
        make("Add", [n["q"], n["b"]], [n["a"]]),
        make("Transpose", [n["a"]], [n["t"]], labels[2], perm=[1, 0]),
        make("Transpose", [n["t"]], [n["tt"]], perm=[1, 0]),
        make("Relu", [n["tt"]], [n["y"]]),
    ]
    shapes = {"w": (16, 16), "u": (16, 16), "b": (16,)}
    weights = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n[k]) for k, s in shapes.items()]
    ports = [helper.make_tensor_value_info(n[role], TensorProto.FLOAT, [rows, 16]) for role in "xy"]
    made = helper.make_graph(nodes, graph, ports[:1], ports[1:], weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("ai.onnx", 17)], ir_version=8)


def called(*texts: str, **more) -> onnx.ModelProto:
    return chain(**dict(zip(ROLES, texts, strict=True)), **more)


def like_new_names() -> onnx.ModelProto:
    """Return a model whose tensors have names that RLFlow itself would make."""
    return called(
        "x", "w", "u", "w+u (folded)", "p+q (fused)", "p+q+a (fused):0", "y", "p+q+a (fused) input 2",
        "p (rewritten)", "constant",
    )  # fmt: skip


def with_body() -> onnx.ModelProto:
    """Return a model with an If whose branches use names of the kind that RLFlow makes."""
    model = chain(rows=4)
    one, other = (
        helper.make_graph(
            [helper.make_node(op, ["tt"], ["q+a (fused):0"]), helper.make_node("Neg", ["q+a (fused):0"], ["out"])],
            op, [], [helper.make_tensor_value_info("out", TensorProto.FLOAT, [4, 16])],
        )
        for op in ("Tanh", "Abs")
    )  # fmt: skip
    model.graph.input.append(helper.make_tensor_value_info("choice", TensorProto.BOOL, []))
    del model.graph.node[-1]
    model.graph.node.append(helper.make_node("If", ["choice"], ["y"], then_branch=one, else_branch=other))
    return model


def documented() -> onnx.ModelProto:
    model = chain()
    for node in model.graph.node:
        node.doc_string = "line one\nline two"
    model.graph.value_info.append(helper.make_tensor_value_info("tt", TensorProto.FLOAT, ["rows of my own", 16]))
    model.graph.doc_string = "a\tb"
    model.metadata_props.add(key="made by", value="us")
    return model


def steps_before_batch() -> onnx.ModelProto:
    """Return a model of sequences whose batch is the second axis."""
    model = chain()
    for value in (*model.graph.input, *model.graph.output):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, ["steps", "batch", 16]))
    for node in model.graph.node:
        if node.op_type == "Transpose":
            node.attribute[0].ints[:] = [0, 2, 1]
    return model


def wrong_declaration() -> onnx.ModelProto:
    """Return a model that declares another type for an intermediate tensor, as stale exports do."""
    model = chain(rows=4)
    model.graph.value_info.append(helper.make_tensor_value_info("tt", TensorProto.FLOAT, ["batch", 16]))
    return model


CASES = {
    "a": Case(
        lambda: called("x", "w_1", "w_2", "Constant_0", "folded_0", "rewritten_1", "y", "MatMul_0", "x_1", "0"),
        says=FASTER,
    ),
    "b": Case(
        lambda: called(
            "in put:0", "wérts/ß 1", "重み", "a\nb", 'qu"ote', "semi;colon,", "out{put}=<y>", "../p", "tab\t", "%s{0}",
            labels=("in put:00", "in put:01", "in put:02"),
        ),
        says=FASTER,
    ),
    "c": Case(
        lambda: called("x", "w" * 3000, "u" * 3000, "MatMul", "Relu", "Add", "y", "first", "second", "third",
                       labels=("x", "", "")),
        says=FASTER,
    ),
    "like-new-names": Case(like_new_names, says=FASTER),
    "names-in-a-body": Case(with_body, says=FASTER),
    "e": Case(lambda: chain(graph=""), says=FASTER),
    "long-paths": Case(
        lambda: chain(labels=tuple("/model" + "/layer" * 400 + f"/op{k}" for k in range(3))), says=FASTER
    ),
    "documented": Case(documented, says=FASTER),
    "symbol-of-its-own": Case(wrong_declaration, says=FASTER),
    "steps-before-batch": Case(steps_before_batch, says=FASTER),
    "keep-a-tensor": Case(chain, says=FASTER, options=("--keep", "t")),
    "keep-a-node": Case(lambda: chain(labels=("one", "two", "three")), says=FASTER, options=("--keep", "three")),
    "keep-an-input-and-a-weight": Case(chain, says=FASTER, options=("--keep", "x", "--keep", "w")),
    "keep-what-is-not-there": Case(chain, 1, "--keep tx: the model has no tensor and no node of this name; did you",
                                   options=("--keep", "tx")),
    "skip-an-unknown-rule": Case(chain, 1, "no rule is named 'transpose-transpos'; did you mean 'transpose-transpose'",
                                 options=("--skip-rule", "transpose-transpos")),
    "only-one-rule": Case(chain, says=FASTER, options=("--only-rule", "transpose-transpose")),
    "skip-all-that-is-chosen": Case(
        chain, 1, "no rule of transpose-transpose is left",
        options=("--only-rule", "transpose-transpose", "--skip-rule", "transpose-transpose"),
    ),
    "custom-operator": Case(custom_model, says=FASTER, custom_ops=(LIBRARY,)),
    "custom-operator-without-its-library": Case(
        custom_model, 1, "NegPos of the domain 'ai.onnx.contrib'.*--custom-ops"
    ),
    "custom-operator-not-in-the-library": Case(
        lambda: custom_model("PosNeg"), 1, "PosNeg of the domain 'ai.onnx.contrib'", custom_ops=(LIBRARY,)
    ),
    "library-that-is-none": Case(custom_model, 1, "no such file", custom_ops=("none.so",)),
}  # fmt: skip
