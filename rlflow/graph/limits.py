"""Limits on untrusted models: a file of a few bytes can declare tensors or calls that exhaust memory or time.

Each check raises RLFlowError. `check_declarations` and `check_expansion` run before ONNX's shape inference, and
`check_types` checks the inferred types before memory for the tensors is allocated.
"""

import math
from collections.abc import Mapping

import onnx

from rlflow.common.errors import RLFlowError
from rlflow.graph import contrib
from rlflow.graph.ir import TensorType, itemsize
from rlflow.graph.repairs import subgraphs

MAX_TENSOR_BYTES = 1 << 34  # bytes of one tensor; far more than models for CPUs need
MAX_CONSTANT_BYTES = 1 << 31  # bytes of the result of a constant expression, which an export may store as a weight
MAX_NESTING = 100  # levels of functions that call functions and of bodies in bodies
MAX_FUNCTION_NODES = 50_000  # nodes of model functions, counted once per call
MAX_SHAPE_LENGTH = 1_000_000  # elements of an integer tensor whose content ONNX's shape inference computes
# Operators whose integer results ONNX's shape inference computes from integer inputs.
PROPAGATED = frozenset(("Add", "Cast", "Concat", "Gather", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"))
ELEMENT_TYPES = frozenset(onnx.TensorProto.DataType.values())


def check_types(types: Mapping[str, TensorType], limit: int = MAX_TENSOR_BYTES) -> None:
    """Check tensor types for negative sizes, unknown element types and excessive memory.

    Args:
      types: tensor name → type. In the number of bytes, symbolic sizes count as 1.
      limit: largest number of bytes of one tensor.

    Raises:
      RLFlowError: a tensor fails a check.
    """
    for name, kind in types.items():
        if kind.dtype not in ELEMENT_TYPES:
            raise RLFlowError(f"tensor '{name}' has the element type {kind.dtype}, which ONNX does not know")
        if any(type(size) is int and size < 0 for size in kind.shape or ()):
            raise RLFlowError(f"tensor '{name}' has a negative size: {list(kind.shape)}")
        size = math.prod(size for size in kind.shape or () if type(size) is int) * itemsize(kind.dtype)
        if size > limit:
            raise RLFlowError(
                f"tensor '{name}' {list(kind.shape)} would take {size / 2**30:.3g} GiB, the limit is "
                f"{limit / 2**30:.3g} GiB"
            )


def check_expansion(model: onnx.ModelProto) -> None:
    """Raise RLFlowError if shape inference would take excessive time or memory on a model that the checker accepts.

    ONNX's inference walks through a model function again at every call, so its time grows exponentially with the
    nesting of calls. It also computes the contents of integer tensors, which can double in length at every Concat.
    """
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    walked = 0

    def walk(nodes, lengths: dict[str, int], depth: int = 0) -> None:
        """Add the nodes of called functions to `walked`, and the lengths of computed integer tensors to `lengths`.

        `lengths` maps the name of a tensor whose content inference computes to its number of elements.
        """
        nonlocal walked
        if depth > MAX_NESTING:
            raise RLFlowError(f"the functions and bodies of the model are nested deeper than {MAX_NESTING} levels")
        for node in nodes:
            for graph in subgraphs(node.attribute):
                walk(graph.node, lengths, depth + 1)
            function = functions.get((node.domain, node.op_type, node.overload))
            if function is not None:
                walked += len(function.node)
                if walked > MAX_FUNCTION_NODES:
                    raise RLFlowError(f"the functions of the model amount to more than {MAX_FUNCTION_NODES} nodes")
                actual = {f: lengths[a] for f, a in zip(function.input, node.input, strict=False) if a in lengths}
                walk(function.node, actual, depth + 1)
                lengths |= {a: actual[f] for f, a in zip(function.output, node.output, strict=False) if f in actual}
            else:
                length = _shape_length(node, lengths)
                if length is not None and node.output:
                    lengths[node.output[0]] = length

    walk(model.graph.node, {t.name: math.prod(t.dims) for t in model.graph.initializer if _may_be_shape(t)})


def _shape_length(node: onnx.NodeProto, lengths: Mapping[str, int]) -> int | None:
    """Estimate the number of elements of a node's first output; None if inference does not compute its content.

    `lengths` maps the names of tensors with computed contents to their numbers of elements.
    """
    if node.op_type in ("Shape", "Size"):
        return 1  # The exact length does not matter, only its growth.
    if node.op_type == "Constant":
        return max((math.prod(a.t.dims) for a in node.attribute if _may_be_shape(a.t)), default=None)
    if node.op_type not in PROPAGATED or any(name and name not in lengths for name in node.input):
        return None
    known = [lengths[name] for name in node.input if name]
    if node.op_type != "Concat":
        return max(known, default=None)
    if sum(known) > MAX_SHAPE_LENGTH:
        raise RLFlowError(f"the shape '{node.output[0]}' has more than {MAX_SHAPE_LENGTH} elements")
    return sum(known)


def _may_be_shape(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in (tensor.INT32, tensor.INT64) and len(tensor.dims) <= 1


def check_declarations(model: onnx.ModelProto) -> None:
    """Raise RLFlowError for mistakes that the ONNX checker accepts.

    The mistakes are a model function named like an operator of ONNX Runtime, and a Constant without exactly one value.
    """
    for function in model.functions:
        if function.domain == contrib.DOMAIN and function.name in contrib.OPERATORS:
            raise RLFlowError(
                f"the model has its own function {function.domain}.{function.name}, an operator of ONNX Runtime's"
            )
    for node in model.graph.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx") and len(node.attribute) != 1:
            raise RLFlowError(
                f"the Constant that gives '{node.output[0]}' must have one value, not {len(node.attribute)}"
            )
