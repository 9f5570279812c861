"""Type inference for one operator at a time, and checks that the inputs fit the operator.

ONNX's shape inference gives the types for numeric sizes. For symbolic sizes, symbolic.py computes the shapes and
contents.py the elements of small tensors. `misfit` rejects inputs that ONNX's inference accepts and ONNX Runtime
rejects (observed with onnx 1.23). `refused_at_some_size` checks an operator that a rule adds, for every value of the
symbols.
"""

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from math import prod

import numpy as np
import onnx
from onnx import checker, defs, helper, numpy_helper, shape_inference

from rlflow.common.errors import RLFlowError, first_line
from rlflow.graph import symbolic
from rlflow.graph.contents import CONTENT_LIMIT, content_array, contents
from rlflow.graph.dims import Dim, Undecided, equal
from rlflow.graph.ir import ABSENT, Constant, Graph, Node, Opaque, TensorType
from rlflow.graph.opsets import for_inference, moved_attributes, schema_version
from rlflow.graph.symbolic import ELEMENT_WISE


def misfit(
    op: str,
    attributes: dict,
    inputs: list[TensorType | None],
    values: list[np.ndarray | None],
    outputs: tuple[TensorType, ...],
) -> str | None:
    """Return the reason why the inputs do not fit the operator, or None if no error is found.

    Args:
      op: ONNX operator.
      attributes: attribute name → value.
      inputs: types of the inputs; None for an absent input.
      values: contents of small integer inputs; None for other inputs.
      outputs: types of the outputs by shape inference.
    """
    shape = inputs[0].shape if inputs and inputs[0] is not None else None
    if shape is None:
        return None
    if op == "Reshape" and prod(shape) != prod(outputs[0].shape):
        return "the numbers of elements differ"
    if op == "Split" and any(type(size) is int and size < 0 for output in outputs for size in output.shape):
        return "a part of negative size"
    if op == "Transpose" and "perm" in attributes and sorted(attributes["perm"]) != list(range(len(shape))):
        return "perm is no permutation of the axes"
    if (
        op == "Squeeze"
        and len(values) > 1
        and values[1] is not None
        and len({k % len(shape) for k in values[1].reshape(-1)}) < values[1].size
    ):
        return "an axis is named twice"
    bias = inputs[2] if op == "Gemm" and len(inputs) > 2 else None
    if bias is not None and bias.shape is not None and not _broadcasts_to(bias.shape, outputs[0].shape):
        return "the third input does not broadcast to the result"
    return None


POOLS = frozenset(("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"))


def refused_at_some_size(
    op: str, attributes: dict, inputs: list[TensorType | None], outputs: tuple[TensorType, ...]
) -> str | None:
    """Return the reason why an operator that a rule adds fails in ONNX Runtime at some size, or None.

    In the model's own operators, sizes that must be equal are assumed to be equal (symbolic.py). For an operator that a
    rule adds, the equality must be proved.

    Args:
      op: operator.
      attributes: attribute name → value.
      inputs, outputs: types; None for an absent input.

    Raises:
      Undecided: the answer depends on the values of the symbols.
    """
    if op in POOLS and not all(size > 0 for size in inputs[0].shape[1:]):
        return "there is nothing to pool"
    if op == "Attention" and not all(size > 0 for kind in inputs[:3] for size in kind.shape):
        return "there is nothing to attend to"
    shapes, results = [kind.shape for kind in inputs if kind is not None], [kind.shape for kind in outputs]
    if op == "FusedMatMul" and not shapes[0][-2 if attributes.get("transA") else -1] > 0:
        return "there is nothing to add up"  # For an empty sum, the kernel does not initialise its result.
    if not all(equal(a, b) for a, b in _must_be_equal(op, attributes, shapes, results)):
        return "the operands do not fit"
    return None


def _must_be_equal(op: str, attributes: dict, shapes: list[tuple], results: list[tuple]) -> Iterator[tuple]:
    """Yield the pairs of sizes that must be equal for the operator to run.

    Args:
      op: operator.
      attributes: attribute name → value.
      shapes, results: shapes of the present inputs, and of the outputs.
    """
    if op in ELEMENT_WISE:
        yield from (pair for shape in shapes for pair in _broadcast_pairs(shape, results[0]))
    elif op == "MatMul" and all(shapes):
        left, right = shapes
        yield left[-1], right[-2:][0]
        if min(len(left), len(right)) > 2:
            yield from (pair for shape in shapes for pair in _broadcast_pairs(shape[:-2], results[0][:-2]))
    elif op == "Gemm":
        left, right = shapes[:2]
        yield left[0 if attributes.get("transA") else 1], right[1 if attributes.get("transB") else 0]
    elif op == "Concat":
        axis = attributes["axis"] % len(shapes[0])
        for other in shapes[1:]:
            yield from (pair for k, pair in enumerate(zip(shapes[0], other, strict=True)) if k != axis)
    elif op == "Split":
        axis = attributes.get("axis", 0) % len(shapes[0])
        yield shapes[0][axis], sum(shape[axis] for shape in results)


def _broadcast_pairs(shape: tuple, whole: tuple) -> Iterator[tuple]:
    """Return (size, size of the result) for each axis of `shape` that is not 1; `whole` is the result's shape."""
    return (pair for pair in zip(shape[::-1], whole[::-1], strict=False) if type(pair[0]) is Dim or pair[0] != 1)


def _broadcasts_to(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Return True if a tensor of this shape broadcasts to the shape `whole`."""
    return len(shape) <= len(whole) and all(a in (1, b) for a, b in zip(shape[::-1], whole[::-1], strict=False))


INFERENCE_ERRORS = (
    shape_inference.InferenceError, checker.ValidationError, defs.SchemaError, ValueError, RuntimeError
)  # fmt: skip
SHAPE_VALUE_LIMIT = 1024  # elements; shape inference never reads the content of a larger constant
FLAGS_LIMIT = 2**20  # elements of a boolean constant whose content rules may read, such as an attention mask


@cache
def attribute_defaults(op: str, domain: str, version: int) -> dict:
    """Return attribute name → default value from the operator's schema; {} for an unknown operator."""
    try:
        schema = defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return {}
    given = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    defaults = {name: helper.get_attribute_value(value) for name, value in given.items()}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in defaults.items()}


def attribute_proto(op: str, domain: str, version: int, name: str, value) -> onnx.AttributeProto:
    """Return an AttributeProto of the type that the operator's schema declares.

    Args:
      op, domain, version: the operator; the type is guessed from the value for an unknown operator.
      name: name of the attribute.
      value: value as in `Node.attributes`.
    """
    if isinstance(value, Opaque):
        return onnx.AttributeProto.FromString(value.data)
    try:
        declared = defs.get_schema(op, version, domain).attributes.get(name)
    except defs.SchemaError:
        declared = None
    kind = int(declared.type) if declared is not None else None
    return helper.make_attribute(name, list(value) if isinstance(value, tuple) else value, attr_type=kind)


def node_proto(
    graph: Graph, node: Node, name: Callable[[int], str], load: Callable[[int], np.ndarray]
) -> onnx.NodeProto:
    """Return a node in the form of the model's opset, in which some inputs are attributes (see opsets.py).

    Args:
      graph: graph of the node.
      node: the node.
      name: function tensor id → ONNX name.
      load: function tensor id → content of a constant.
    """
    opset = graph.opset(node.domain)
    moved = moved_attributes(node.op, node.domain, opset)
    slots = {slot for _, slot, _ in moved}
    inputs = ["" if slot in slots else name(tensor) for slot, tensor in enumerate(node.inputs)]
    while moved and inputs and not inputs[-1]:
        inputs.pop()
    outputs = [name(tensor) for tensor in node.outputs]
    proto = helper.make_node(
        node.op, inputs, outputs, name=node.name, domain=node.domain, overload=node.overload or None
    )
    version = schema_version(node.op, node.domain, opset)
    proto.attribute.extend(attribute_proto(node.op, node.domain, version, key, value) for key, value in node.attributes)
    for attribute, slot, _ in moved:
        if slot < len(node.inputs) and node.inputs[slot] != ABSENT:
            value = load(node.inputs[slot]).tolist()
            proto.attribute.append(attribute_proto(node.op, node.domain, opset, attribute, value))
    return proto


def shape_value(graph_or_constants, tensor: int) -> np.ndarray | None:
    """Return the content of an integer or boolean tensor such as a shape or axes; None for other or large tensors.

    Args:
      graph_or_constants: a Graph, or tensor id → Constant. A Graph also gives contents that are computed from symbolic
        sizes; their elements can be Dims.
      tensor: tensor id.
    """
    whole = isinstance(graph_or_constants, Graph)
    constants = graph_or_constants.constants if whole else graph_or_constants
    constant: Constant | None = constants.get(tensor)
    if constant is None:
        kind = graph_or_constants.types.get(tensor) if whole else None
        array = content_array(kind) if kind is not None else None
        return array if array is not None and kind.dtype in _STEERING else None
    if not steers(constant.type):
        return None
    array = constant.load()
    return array if array.dtype.kind in "iub" else None


def steers(kind: TensorType) -> bool:
    """Return True if a constant of this type is so small that rules and shape inference may read its content."""
    return kind.size <= SHAPE_VALUE_LIMIT or (kind.dtype == onnx.TensorProto.BOOL and kind.size <= FLAGS_LIMIT)


_STEERING = (onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL)


def known_value(graph: Graph, tensor: int) -> np.ndarray | None:
    """Return the content of a tensor with at most CONTENT_LIMIT numbers, possibly Dims; None for other tensors."""
    constant = graph.constants.get(tensor)
    if constant is not None:
        return constant.load() if constant.type.size <= CONTENT_LIMIT and constant.type.dtype in _NUMBERS else None
    kind = graph.types.get(tensor)
    return content_array(kind) if kind is not None else None


_NUMBERS = (*_STEERING, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)


@lru_cache(maxsize=65536)
def _infer(op, domain, version, attributes, n_outputs, inputs, values) -> tuple[TensorType | None, ...]:
    names = [f"i{k}" if kind is not None else "" for k, kind in enumerate(inputs)]
    while names and not names[-1]:
        names.pop()
    outputs = [f"o{k}" for k in range(n_outputs)]
    node = helper.make_node(op, names, outputs, domain=domain)
    node.attribute.extend(attribute_proto(op, domain, version, name, value) for name, value in attributes)
    types = {n: type_proto(t) for n, t in zip(names, inputs, strict=False) if n}
    data = {f"i{k}": numpy_helper.from_array(np.array(v, np.dtype(d)).reshape(s)) for k, v, d, s in values}
    node = for_inference(node)
    schema = defs.get_schema(node.op_type, version, domain)
    result = shape_inference.infer_node_outputs(
        schema, node, types, data, opset_imports=[helper.make_opsetid(domain, version)], ir_version=10
    )
    return tuple(tensor_type(result.get(name)) for name in outputs)


def tensor_type(proto: onnx.TypeProto | None) -> TensorType | None:
    if proto is None or not proto.HasField("tensor_type"):
        return None
    tensor = proto.tensor_type
    sizes = [d.dim_value if d.HasField("dim_value") else symbolic.named(d.dim_param) for d in tensor.shape.dim]
    known = tensor.HasField("shape") and None not in sizes
    return TensorType(tensor.elem_type, tuple(sizes) if known else None)


def type_proto(kind: TensorType) -> onnx.TypeProto:
    """Return the ONNX type of a TensorType; a symbolic size appears under its name from `symbolic.name_of`."""
    shape = kind.shape
    if shape is not None:
        shape = [symbolic.name_of(size) if type(size) is Dim else size for size in shape]
    return helper.make_tensor_type_proto(kind.dtype, shape)


def infer_types(
    op: str, domain: str, opset: int, attributes: tuple, inputs: list[TensorType | None],
    values: list[np.ndarray | None], n_outputs: int,
) -> tuple[TensorType, ...]:
    """Return the types of the outputs of one operator.

    Args:
      op, domain, opset: the operator, its domain, and the version of the domain that the model imports.
      attributes: (name, value) pairs as in `Node.attributes`.
      inputs: types of the inputs; None for an absent input.
      values: contents of small inputs (shapes, and numbers computed from sizes); None for other inputs.
      n_outputs: number of outputs.

    Raises:
      RLFlowError: the inputs do not fit the operator, or the shape of an output cannot be determined.
    """
    kinds = "iubf" if op in ("Resize", "Upsample") else "iub"  # The scales of a Resize are floats.
    known = tuple(
        (k, tuple(v.reshape(-1).tolist()), v.dtype.str, v.shape)
        for k, v in enumerate(values) if v is not None and v.dtype.kind in kinds
    )  # fmt: skip
    version = schema_version(op, domain, opset)
    shapes = tuple(kind and kind._replace(content=None) for kind in inputs)
    try:
        result = _infer(op, domain, version, attributes, n_outputs, shapes, known)
    except INFERENCE_ERRORS as error:
        raise RLFlowError(f"{op} does not fit its inputs: {first_line(error)}") from error
    named = attribute_defaults(op, domain, version) | dict(attributes)
    if domain == "ai.onnx.ml" and result[0] is not None and result[0].shape is None:
        result = (result[0]._replace(shape=_learned_shape(op, named, inputs[0])), *result[1:])
    if any(map(symbolic.is_symbolic, inputs)) and (not domain or op in symbolic.RUNTIME_OPS):
        result = _in_symbols(op, named, inputs, values, result)
    if any(t is None or t.shape is None for t in result):
        raise RLFlowError(f"the shape that {op} gives cannot be known")
    try:
        reason = misfit(op, dict(attributes), inputs, values, result) if not domain else None
    except Undecided as undecided:  # Reshape: the comparison of the numbers of elements
        raise RLFlowError(f"the shape that {op} gives cannot be known: {undecided}") from undecided
    if reason is not None:
        raise RLFlowError(f"{op} does not fit its inputs: {reason}")
    return contents(op, named, inputs, values, result) if not domain else result


def _learned_shape(op: str, attributes: dict, kind: TensorType) -> tuple | None:
    """Return the shape of the result of an operator of ai.onnx.ml that ONNX's inference does not know, or None.

    Args:
      op: the operator.
      attributes: attribute name → value.
      kind: type of the first input.
    """
    if op in ("Scaler", "Normalizer", "Imputer"):
        return kind.shape
    if op == "LinearRegressor" and kind.shape is not None and len(kind.shape) == 2:
        return kind.shape[0], attributes.get("targets", 1)
    return None


def _in_symbols(op: str, attributes: dict, inputs: list, values: list, by_onnx: tuple) -> tuple:
    """Return the output types `by_onnx` with the shapes that symbolic.py computes; unchanged for other operators."""
    try:
        shapes = symbolic.shapes(symbolic.Call(op, attributes, inputs, values, len(by_onnx)))
    except Undecided as undecided:
        raise RLFlowError(f"the shape that {op} gives cannot be known: {undecided}") from undecided
    except (TypeError, ValueError, IndexError, KeyError, ZeroDivisionError, OverflowError) as error:
        raise RLFlowError(f"{op} does not fit its inputs: {first_line(error)}") from error
    if shapes is None:
        return by_onnx
    if len(shapes) != len(by_onnx):
        raise RLFlowError(f"{op} does not fit its inputs: it gives {len(shapes)} outputs, not {len(by_onnx)}")
    if any(type(size) is int and size < 0 for shape in shapes for size in shape):
        raise RLFlowError(f"{op} does not fit its inputs: it gives a negative size")
    return tuple([kind and TensorType(kind.dtype, tuple(shape)) for kind, shape in zip(by_onnx, shapes, strict=True)])
