"""The signatures of operators, under which timings are stored.

A signature holds everything that the cost of an operator may depend on. Equal operators have equal signatures in every
process. Groups of operators with different signatures can still run equal kernels, which `kernel_digest` recognises.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import numpy as np
import onnx
from onnx import TensorProto

from rlflow.graph.ir import ABSENT, Graph, Node, Opaque, TensorType

# Largest number of elements of an integer constant whose content is part of a signature. The content of longer integer
# constants (weights, indices) does not change the cost.
CONTENT_LIMIT = 64
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def signature(graph: Graph, node: Node) -> tuple:
    """Return the signature of an operator: everything that its cost may depend on, as a hashable value.

    A signature holds the operator, the opset, the attributes, the types of inputs and outputs, and which inputs are
    constant. It also holds the content of short integer constants, of single numbers, and of computed tensors whose
    content follows from sizes. It holds no names and ids. `signature_text` converts it to a string.

    Args:
      graph: the graph.
      node: a node of the graph.
    """
    inputs = (*node.inputs, *(tensor for _, tensor in node.captured)) if node.captured else node.inputs
    return (
        node.domain,
        node.op,
        graph.opset(node.domain),
        _with_defaults(graph, node) if node.op == "Conv" else node.attributes,
        tuple([_input(graph, tensor) for tensor in inputs]),
        tuple([graph.types.get(tensor) for tensor in node.outputs]),
    )


def group_signature(graph: Graph, group: tuple[Node, ...]) -> tuple:
    """Return the signature of a group of nodes as a hashable value.

    It holds the signature of each node and, for several nodes, which of their inputs and outputs are the same tensor.

    Args:
      graph: the graph.
      group: nodes of the graph in topological order.
    """
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


def _with_defaults(graph: Graph, node: Node) -> tuple:
    """Return the attributes of a convolution, completed by the default values of the attributes that are missing."""
    weight = graph.types.get(node.inputs[1])
    if weight is None or weight.shape is None:
        return node.attributes
    return _filled(node.attributes, weight.shape[2:])


@cache
def _filled(attributes: tuple, kernel: tuple) -> tuple:
    """Return the attributes of a convolution with the defaults for a kernel of these sizes.

    The result is cached, since a signature is computed whenever the cost of an operator is looked up.
    """
    ones = (1,) * len(kernel)
    defaults = {"dilations": ones, "group": 1, "kernel_shape": kernel, "strides": ones}
    if "auto_pad" not in dict(attributes):
        defaults["pads"] = (0,) * (2 * len(kernel))
    return tuple(sorted((defaults | dict(attributes)).items()))


def _input(graph: Graph, tensor: int) -> tuple | None:
    if tensor == ABSENT:
        return None
    constant = graph.constants.get(tensor)
    if constant is None:
        return graph.types.get(tensor), graph.is_constant(tensor), None
    return constant.type, True, constant.digest[:16] if has_content(constant.type) else None


@cache
def has_content(kind: TensorType) -> bool:
    """Check if the content of a constant of this type is part of a signature."""
    return kind.size == 1 or (kind.size <= CONTENT_LIMIT and kind.dtype not in _FLOATS)


def signature_text(part) -> str:
    """Return a signature (or a part of it) as one line of text with hashes of large attributes.

    Equal signatures give equal text.
    """
    if isinstance(part, TensorType) and part.content is None:
        part = part[:2]  # Stored timings have this form.
    if isinstance(part, Opaque):
        return f"<{hashlib.sha256(part.data).hexdigest()[:16]}>"
    if isinstance(part, tuple):
        return f"({','.join(map(signature_text, part))})"
    return repr(part)


def kernel_digest(model: onnx.ModelProto, known: Mapping[str, np.ndarray] = MappingProxyType({})) -> str:
    """Return a digest of the operators that ONNX Runtime runs for a model that it has optimised.

    It depends on operators, attributes, types and the short contents that `signature` holds, but on no names. Groups of
    equal digest run equal kernels. Examples are a Conv with a BatchNormalization that ONNX Runtime folds into it, and
    the Conv that a rule makes of both.

    Args:
      model: the optimised model.
      known: name → array, for the inputs that must not be random, such as the sizes that an Expand reads.
    """
    graph, numbers = model.graph, {}
    kinds = {value.name: ("input", value.type.SerializeToString(deterministic=True)) for value in graph.input}
    kinds |= {tensor.name: _weight_facts(tensor) for tensor in graph.initializer}
    parts = [sorted((opset.domain, opset.version) for opset in model.opset_import if opset.domain == "")]
    for node in graph.node:
        given = [attribute for attribute in node.attribute if not _is_default(node.op_type, attribute)]
        attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in given)
        read = [(numbers.setdefault(name, len(numbers)), kinds.get(name)) if name else None for name in node.input]
        made = [numbers.setdefault(name, len(numbers)) if name else None for name in node.output]
        parts.append((node.domain, node.op_type, attributes, read, made))
    parts.append([numbers.get(value.name) for value in graph.output])
    parts.append([(numbers.get(name), array.dtype.str, array.tolist()) for name, array in sorted(known.items())])
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _is_default(op: str, attribute: onnx.AttributeProto) -> bool:
    """Return True if an attribute of a convolution or pool has the value that it has when it is left out."""
    match attribute.name:
        case "strides" | "dilations":
            return set(attribute.ints) == {1}
        case "pads":
            return set(attribute.ints) == {0}
        case "group":
            return attribute.i == 1
        case "auto_pad":
            return attribute.s == b"NOTSET"
    return attribute.name == "kernel_shape" and op in ("Conv", "FusedConv")  # The weight has this shape.


def _weight_facts(tensor: onnx.TensorProto) -> tuple:
    """Return the data type and shape of a weight, and a digest of its content if that is part of a signature."""
    kind = TensorType(tensor.data_type, tuple(tensor.dims))
    content = onnx.numpy_helper.to_array(tensor).tobytes() if has_content(kind) else b""
    return *kind[:2], hashlib.sha256(content).hexdigest()
