"""What the cost of an operator may depend on, as a value that is the same in every process."""

import hashlib
from functools import cache

from onnx import TensorProto

from rlflow.graph.model import ABSENT, Graph, Node, Opaque, TensorType

CONTENT_LIMIT = 64  # elements; longer integer constants are weights or indices, whose content costs nothing
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def signature(graph: Graph, node: Node) -> tuple:
    """Operator, opset, attributes, types of inputs and outputs, and which inputs are constant.

    Of constants that steer what is computed (integers such as shapes and axes, and single numbers such as
    an exponent) the content counts too, and of computed tensors where it follows from sizes. Names and ids do not.
    Hashable; `text` writes it down.
    """
    inputs = (*node.inputs, *(tensor for _, tensor in node.captured)) if node.captured else node.inputs
    return (
        node.domain,
        node.op,
        graph.opset(node.domain),
        node.attributes,
        tuple([_input(graph, tensor) for tensor in inputs]),
        tuple([graph.types.get(tensor) for tensor in node.outputs]),
    )


def group_signature(graph: Graph, group: tuple[Node, ...]) -> tuple:
    """The signatures of nodes in topological order; of several nodes also which inputs are the same tensors."""
    if len(group) == 1:
        return (signature(graph, group[0]),)
    positions: dict[int, int] = {}
    return tuple(
        [
            (
                signature(graph, node),
                tuple([positions.setdefault(tensor, len(positions)) for tensor in (*node.inputs, *node.outputs)]),
            )
            for node in group
        ]
    )


def _input(graph: Graph, tensor: int) -> tuple | None:
    if tensor == ABSENT:
        return None
    constant = graph.constants.get(tensor)
    if constant is None:
        return graph.types.get(tensor), graph.is_constant(tensor), None
    return constant.type, True, constant.digest[:16] if has_content(constant.type) else None


@cache
def has_content(kind: TensorType) -> bool:
    """Whether the content of a constant of this type is part of a signature."""
    return kind.size == 1 or (kind.size <= CONTENT_LIMIT and kind.dtype not in _FLOATS)


def text(part) -> str:
    """A signature in one line, long attributes as their hash. Equal signatures give equal text."""
    if isinstance(part, TensorType) and part.content is None:
        part = part[:2]  # as in the timings that are kept
    if isinstance(part, Opaque):
        return f"<{hashlib.sha256(part.data).hexdigest()[:16]}>"
    if isinstance(part, tuple):
        return f"({','.join(map(text, part))})"
    return repr(part)
