"""One form per operator inside the graph, independent of the model's opset.

In the history of ONNX some attributes became inputs (`axes` of Squeeze, `split` of Split, …). Inside the graph such an
operator always has its newer form, so that each rule is written once. An export restores the form of the model's opset,
which never changes. `SINCE` lists the oldest opset whose operator has the semantics that rules assume; rules ignore
operators of older opsets.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import onnx


class Moved(NamedTuple):
    """The attributes that became inputs in opset `version`, as (attribute, input slot, dtype) triples."""

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
    "Clip": Moved(11, (("min", 1, np.float32), ("max", 2, np.float32))),
    "Pad": Moved(11, (("pads", 1, np.int64), ("value", 2, np.float32))),
    "Slice": Moved(10, (("starts", 1, np.int64), ("ends", 2, np.int64), ("axes", 3, np.int64))),
}

COUNTS_PARTS = 18  # first opset in which a Split into equal parts has the attribute num_outputs

# The oldest opset in which the operator has the semantics that rules assume; 1 for operators that are not listed.
SINCE: dict[str, int] = {
    "Add": 7, "Sub": 7, "Mul": 7, "Div": 7, "Pow": 7, "Gemm": 7, "BatchNormalization": 9, "Reshape": 5,
    "Softmax": 13, "LogSoftmax": 13, "Dropout": 7, "Sum": 8, "Max": 8, "Min": 8, "Concat": 4, "MaxPool": 1,
    "Squeeze": 1, "AveragePool": 7, "Expand": 8, "LayerNormalization": 17, "Gelu": 20, "Pad": 2,
    "RMSNormalization": 23, "Attention": 23, "Resize": 13,
}  # fmt: skip


def schema_version(op: str, domain: str, opset: int) -> int:
    """Return the opset whose schema describes the operator's form inside the graph."""
    return max(opset, MOVED[op].version) if domain == "" and op in MOVED else opset


def supported(op: str, domain: str, opset: int) -> bool:
    """Return True if rules may match or add the operator in a model of this opset."""
    return opset >= (SINCE.get(op, 1) if domain == "" else 1)


@cache
def takes(op: str, domain: str, opset: int, n_inputs: int) -> bool:
    """Return True if the operator can have `n_inputs` inputs in a model of this opset."""
    try:
        written = onnx.defs.get_schema(op, opset, domain).max_input
    except onnx.defs.SchemaError:
        return True
    return n_inputs <= written + len(moved_attributes(op, domain, opset))


def attributes_to_inputs(node: onnx.NodeProto, opset: int) -> list[tuple[int, np.ndarray]]:
    """Return the (input slot, array) pairs to add for the newer form of a node; [] if the node already has it."""
    moved = MOVED.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if moved is None or opset >= moved.version:
        return []
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return [
        (slot, np.asarray(values[name], dtype)) for name, slot, dtype in moved.attributes if name in values
    ]


def moved_attributes(op: str, domain: str, opset: int) -> tuple[tuple[str, int, type], ...]:
    """Return the (attribute, input slot, dtype) triples that are inputs in the graph but attributes in this opset."""
    moved = MOVED.get(op) if domain == "" else None
    return moved.attributes if moved is not None and opset < moved.version else ()
