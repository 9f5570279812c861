"""What a model may declare. A file of a few bytes can ask for any amount of memory and time; it is refused at once."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping

import onnx

from rlflow.common.errors import RLFlowError
from rlflow.graph import contrib
from rlflow.graph.ir import TensorType, itemsize

MAX_TENSOR_BYTES = 1 << 34  # far beyond what runs on a CPU, and far below where sums of sizes overflow
MAX_CONSTANT_BYTES = 1 << 31  # of a constant expression, which a file of a few bytes can hold and an export may fold
MAX_FUNCTION_NODES = 50_000  # of all calls together
MAX_SHAPE_LENGTH = 1_000_000
PROPAGATED = frozenset(("Add", "Cast", "Concat", "Gather", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"))
ELEMENT_TYPES = frozenset(onnx.TensorProto.DataType.values())


def check_types(types: Mapping[str, TensorType], limit: int = MAX_TENSOR_BYTES) -> None:
    """Raises RLFlowError if a tensor has a negative size, a type that ONNX lacks, or more than `limit` bytes."""
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
    """Raises RLFlowError if shape inference would blow up on a model that the checker has accepted.

    It walks through the functions of a model anew at every call, and it computes the contents of shapes, which
    grow with every Concat.
    """
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    walked = 0

    def walk(nodes, lengths: dict[str, int]) -> None:
        """`lengths` maps the tensors whose content inference knows to their numbers of elements."""
        nonlocal walked
        for node in nodes:
            for graph in _subgraphs(node):
                walk(graph.node, lengths)
            function = functions.get((node.domain, node.op_type, node.overload))
            if function is not None:
                walked += len(function.node)
                if walked > MAX_FUNCTION_NODES:
                    raise RLFlowError(f"the functions of the model amount to more than {MAX_FUNCTION_NODES} nodes")
                actual = {f: lengths[a] for f, a in zip(function.input, node.input, strict=False) if a in lengths}
                walk(function.node, actual)
                lengths |= {a: actual[f] for f, a in zip(function.output, node.output, strict=False) if f in actual}
            else:
                length = _shape_length(node, lengths)
                if length is not None:
                    lengths[node.output[0]] = length

    walk(model.graph.node, {t.name: math.prod(t.dims) for t in model.graph.initializer if _may_be_shape(t)})


def _shape_length(node: onnx.NodeProto, lengths: Mapping[str, int]) -> int | None:
    """The number of elements of the node's first output; None if inference does not know its content."""
    if node.op_type in ("Shape", "Size"):
        return 1  # not exactly, but what matters is how it grows
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


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def check_declarations(model: onnx.ModelProto) -> None:
    """Raises RLFlowError for what the checker lets pass although it has no meaning."""
    twice = [name for name, times in Counter(value.name for value in model.graph.output).items() if times > 1]
    if twice:
        raise RLFlowError(f"the model declares output '{twice[0]}' twice")
    for function in model.functions:
        if function.domain == contrib.DOMAIN and function.name in contrib.OPERATORS:
            raise RLFlowError(
                f"the model has its own function {function.domain}.{function.name}, an operator of ONNX Runtime's"
            )
    versions: dict[str, int] = {}
    for opset in model.opset_import:
        domain = "" if opset.domain == "ai.onnx" else opset.domain
        if versions.setdefault(domain, opset.version) != opset.version:
            raise RLFlowError(f"the model imports two opsets of the domain '{domain}'")
    for node in model.graph.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx") and len(node.attribute) != 1:
            raise RLFlowError(
                f"the Constant that gives '{node.output[0]}' must have one value, not {len(node.attribute)}"
            )
