"""One form per operator inside the graph, independent of the model's opset.

In the history of ONNX some attributes became inputs (`axes` of Squeeze, `split` of Split, …). Inside the graph such an
operator always has its newer form, so that one rule serves all opsets. An export restores the form of the model's
opset; rewrites never change the opset. `SINCE` lists the oldest opset in which an operator has the semantics that rules
assume; in models of older opsets rules ignore the operator.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import onnx

from rlflow.graph.repairs import plain_domain


class Moved(NamedTuple):
    """The attributes of one operator that became inputs in a later opset.

    Attributes:
      version: the first opset in which they are inputs.
      attributes: (attribute name, index of the input, NumPy dtype of the input) triples.
    """

    version: int
    attributes: tuple[tuple[str, int, type], ...]


_AXES_18 = Moved(18, (("axes", 1, np.int64),))

MOVED: dict[str, Moved] = {
    "Squeeze": Moved(13, (("axes", 1, np.int64),)),
    "Unsqueeze": Moved(13, (("axes", 1, np.int64),)),
    "Split": Moved(13, (("split", 1, np.int64),)),
    "ReduceSum": Moved(13, (("axes", 1, np.int64),)),
    "ReduceMean": _AXES_18,
    "ReduceMax": _AXES_18,
    "ReduceMin": _AXES_18,
    "ReduceSumSquare": _AXES_18,
    "ReduceL2": _AXES_18,
    "Clip": Moved(11, (("min", 1, np.float32), ("max", 2, np.float32))),
    "Pad": Moved(11, (("pads", 1, np.int64), ("value", 2, np.float32))),
    "Slice": Moved(10, (("starts", 1, np.int64), ("ends", 2, np.int64), ("axes", 3, np.int64))),
}

COUNTS_PARTS = 18  # first opset in which a Split into equal parts must state the number of parts (num_outputs)

# The oldest opset in which the operator has the semantics that rules assume; 1 for operators that are not listed.
SINCE: dict[str, int] = {
    "Add": 7, "Sub": 7, "Mul": 7, "Div": 7, "Pow": 7, "Gemm": 7, "BatchNormalization": 9, "Reshape": 5,
    "Softmax": 13, "LogSoftmax": 13, "Dropout": 7, "Sum": 8, "Max": 8, "Min": 8, "Concat": 4, "MaxPool": 1,
    "Squeeze": 1, "AveragePool": 7, "Expand": 8, "LayerNormalization": 17, "Gelu": 20, "Pad": 2,
    "RMSNormalization": 23, "Attention": 23, "Resize": 13, "GroupNormalization": 21, "DFT": 17, "STFT": 17,
    "ScatterElements": 16, "ScatterND": 16,
}  # fmt: skip


def schema_version(op: str, domain: str, opset: int) -> int:
    """Return the opset whose schema describes the form that an operator has inside the graph.

    Args:
      op, domain: the operator.
      opset: version of the operator's domain that the model imports.
    """
    return max(opset, MOVED[op].version) if domain == "" and op in MOVED else opset


def supported(op: str, domain: str, opset: int) -> bool:
    """Return True if rules may match or add an operator in a model that imports version `opset` of its domain."""
    return opset >= (SINCE.get(op, 1) if domain == "" else 1)


def for_inference(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return the node, or a substitute for which ONNX infers the types that the results of the node have.

    - ONNX infers no type for GroupNormalization. The substitute is an InstanceNormalization.
    - For a pool with `ceil_mode`, the inference of older opsets also counts windows that begin behind the image. ONNX
      Runtime computes no such window. The substitute has no `ceil_mode` (`_with_floor`).
    - For an STFT without the attribute `onesided`, ONNX assumes 0, although the default is 1. The substitute states 1.
    """
    if node.domain:
        return node
    if node.op_type == "GroupNormalization":
        return onnx.helper.make_node("InstanceNormalization", node.input, node.output)
    if node.op_type == "STFT" and not node.attribute:  # `onesided` is its only attribute
        return onnx.helper.make_node("STFT", node.input, node.output, onesided=1)
    return _with_floor(node) if node.op_type in ("AveragePool", "LpPool", "MaxPool") else node


def _with_floor(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a pool without `ceil_mode` that has the output sizes of a pool with `ceil_mode`; other pools unchanged.

    Let a window span K elements (with dilation), let s be the stride, and p the padding behind the image. If s > K - p,
    every stride position in the image begins a window. A pool with windows of one element and p = 0 has the same number
    of windows. Otherwise, s - 1 more elements of padding round the number of windows up.
    """
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    kernel, mode = list(attributes.get("kernel_shape", ())), attributes.get("auto_pad", b"NOTSET")
    if not attributes.get("ceil_mode") or mode not in (b"NOTSET", b"VALID"):
        return node
    n = len(kernel)
    pads = [0] * 2 * n if mode == b"VALID" else list(attributes.get("pads", [0] * 2 * n))
    strides, dilations = (list(attributes.get(name, [1] * n)) for name in ("strides", "dilations"))
    if not len(pads) // 2 == len(strides) == len(dilations) == n:
        return node  # ONNX states what is wrong.
    for k in range(n):
        if strides[k] > dilations[k] * (kernel[k] - 1) + 1 - pads[n + k]:
            kernel[k], dilations[k], pads[n + k] = 1, 1, 0
        else:
            pads[n + k] += strides[k] - 1
    result = onnx.helper.make_node(
        node.op_type, node.input, node.output, kernel_shape=kernel, pads=pads, strides=strides
    )
    if "dilations" in attributes:
        result.attribute.append(onnx.helper.make_attribute("dilations", dilations))
    return result


@cache
def takes(op: str, domain: str, opset: int, n_inputs: int) -> bool:
    """Return True if an operator can have `n_inputs` inputs inside the graph.

    Args:
      op, domain: the operator; an operator without a schema can have any number.
      opset: version of the operator's domain that the model imports.
      n_inputs: number of inputs, including inputs that are attributes in this opset.
    """
    try:
        written = onnx.defs.get_schema(op, opset, domain).max_input
    except onnx.defs.SchemaError:
        return True
    return n_inputs <= written + len(moved_attributes(op, domain, opset))


def attributes_to_inputs(node: onnx.NodeProto, opset: int) -> list[tuple[int, np.ndarray]]:
    """Return (index of the input, its value) for each attribute of a node that is an input inside the graph.

    Args:
      node: a node as the file contains it.
      opset: version of the node's domain that the model imports.
    """
    moved = moved_attributes(node.op_type, plain_domain(node.domain), opset)
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} if moved else {}
    return [(slot, np.asarray(values[name], dtype)) for name, slot, dtype in moved if name in values]


def moved_attributes(op: str, domain: str, opset: int) -> tuple[tuple[str, int, type], ...]:
    """Return (attribute name, index of the input, dtype) for each input that is an attribute in version `opset`."""
    moved = MOVED.get(op) if domain == "" else None
    return moved.attributes if moved is not None and opset < moved.version else ()
