"""A walk through a graph that finds which values its inputs must have.

The walk has two passes. The forward pass evaluates small constants and notes which tensors depend on inputs. The
backward pass goes from the outputs to the inputs. An operator demands values of its operands (input_demands.py). A
demand on a computed tensor is carried to the tensors from which the tensor is computed (input_values.py).

Each pass visits each node once, also in the bodies of If, Loop and Scan. Only constants of up to MAX_CONSTANT elements
are kept. ONNX's shape inference runs only if a demand needs the shape of a computed tensor.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rlflow.graph.opsets import for_inference
from rlflow.graph.repairs import clear_negative_sizes, subgraphs

MAX_CONSTANT = 1024  # elements of a constant that is evaluated
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
FEW = 3  # a size that nothing determines is at most this
LARGEST = 2.0**31  # a bound with at least this absolute value counts as infinite


class Values(NamedTuple):
    """The values that a tensor may have.

    Attributes:
      low, high: inclusive bounds of all elements.
      exact: content that works, float64, NaN where any value within the bounds works; None if no element is known.
      whole: True if the elements must be integers, whatever the data type.
      distinct: True if the elements must be sorted and different.
      box: True if the last axis has 4 corners of a box, the first two below the last two.
      size: True if the elements are sizes that no shape determines.
      divisor: True if only integers are restricted, because an integer division by 0 ends the process.
      words: keys, texts or integers of a table, from which the elements are taken; () for all values.
    """

    low: float = -math.inf
    high: float = math.inf
    exact: np.ndarray | None = None
    whole: bool = False
    distinct: bool = False
    box: bool = False
    size: bool = False
    divisor: bool = False
    words: tuple = ()

    def allows(self, value: float) -> bool:
        """Return True if every element may have this value."""
        return self.low <= value <= self.high and self.exact is None and not (self.distinct or self.box or self.words)

    def both(self, other: "Values") -> "Values":
        """Return the values that two operators allow; if their bounds exclude each other, keep the bounds of `self`."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        exact = self.exact
        if exact is None:
            exact = other.exact
        elif other.exact is not None and exact.shape == other.exact.shape:
            exact = np.where(np.isnan(exact), other.exact, exact)
        if low > high:
            low, high = self.low, self.high
        return Values(
            low, high, exact, self.whole or other.whole, self.distinct or other.distinct, self.box or other.box,
            self.size or other.size, self.divisor and other.divisor, self.words or other.words,
        )  # fmt: skip


def index(count: int | None) -> Values:
    """Return the values of an index into an axis of `count` elements; None for an unknown count."""
    return Values(0, count - 1 if count else 1, whole=True)


def exactly(*values: float) -> Values:
    return Values(exact=np.array(values, float), whole=True)


Demand = Iterator[tuple[int, Values]]  # (position of an operand, its allowed values)


class Walk:
    """One walk through a graph: call `forward`, then `back`; `wanted` then holds the result.

    Attributes:
      wanted: tensor → its allowed values so far.
      plain: see `rlflow.graph.input_values.allowed_values`.
      demands, carriers: the tables DEMANDS and CARRIERS.
      constants: tensor → content, for small constants.
      follows: tensors whose values are values of an input, possibly changed by arithmetic.
      concats: tensor → the Concat of the main graph that makes the tensor.
    """

    def __init__(
        self, model: onnx.ModelProto, inputs: Sequence[onnx.ValueInfoProto], plain: bool,
        demands: Mapping[str, Callable], carriers: Mapping[str, Callable],
    ):  # fmt: skip
        self.model, self.inputs, self.plain = model, inputs, plain
        self.demands, self.carriers = demands, carriers
        self.wanted: dict[str, Values] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.follows = {value.name for value in inputs}
        self.concats = {name: node for node in model.graph.node if node.op_type == "Concat" for name in node.output}
        self._dims: dict[str, list[int]] = {}
        self._inferred = False
        self._note_dims(inputs)

    # -- facts about operands, for the functions in DEMANDS and CARRIERS ------------------------------

    def dims(self, name: str) -> list[int] | None:
        """Return the shape of a tensor, or None if a size is unknown."""
        if not name:
            return None
        if name in self.constants:
            return list(self.constants[name].shape)
        if name not in self._dims and not self._inferred:
            self._inferred = True
            self._infer()
        return self._dims.get(name)

    def size(self, name: str, axis: int) -> int | None:
        dims = self.dims(name)
        return dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None

    def length(self, node: onnx.NodeProto, position: int) -> int | None:
        """Return the number of elements of an operand; None if it is unknown."""
        dims = self.dims(operand(node, position))
        return None if dims is None else math.prod(dims)

    def content(self, node: onnx.NodeProto, position: int) -> np.ndarray | None:
        """Return the content of an operand if it is a small constant."""
        return self.constants.get(operand(node, position))

    # -- forward: constants, and the tensors that follow inputs ---------------------------------------

    def forward(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            self._dims.setdefault(tensor.name, list(tensor.dims))
            if tensor.name not in self.follows and math.prod(tensor.dims) <= MAX_CONSTANT and _is_inside(tensor):
                self.constants[tensor.name] = numpy_helper.to_array(tensor)
        self._note_dims((*graph.output, *graph.value_info))
        for node in graph.node:
            for body in subgraphs(node.attribute):
                self._enter(node, body)
                self.forward(body)
            follows = [name for name in node.input if name in self.follows]
            if follows and (node.op_type in self.carriers or any(subgraphs(node.attribute))):
                self.follows.update(node.output)
            elif not follows and node.domain in DOMAINS[:2]:
                self._fold(node)

    def _enter(self, node: onnx.NodeProto, body: onnx.GraphProto) -> None:
        for inner, outer in _operands(node, body):
            if outer in self.follows:
                self.follows.add(inner)
            if outer in self._dims and node.op_type == "Loop":
                self._dims.setdefault(inner, self._dims[outer])

    def _fold(self, node: onnx.NodeProto) -> None:
        """Store the content of a Constant, or the result of an operator in FOLDS whose operands are small constants."""
        attributes = attributes_of(node)
        if node.op_type == "Constant":
            value = next(iter(attributes.values()), None)
            if isinstance(value, onnx.TensorProto):
                self._dims[node.output[0]] = list(value.dims)
                if math.prod(value.dims) > MAX_CONSTANT or not _is_inside(value):
                    return
                value = numpy_helper.to_array(value)
            if value is not None and not isinstance(value, onnx.SparseTensorProto):
                self.constants[node.output[0]] = np.asarray(value)
        elif node.op_type in FOLDS and all(name in self.constants for name in node.input if name):
            if sum(self.constants[name].size for name in node.input if name) > 2 * MAX_CONSTANT:
                return
            try:
                result = FOLDS[node.op_type]([self.constants[name] for name in node.input if name], attributes)
            except (ValueError, IndexError, TypeError, KeyError):
                return
            if result.size <= MAX_CONSTANT:
                self.constants[node.output[0]] = result

    # -- backward ------------------------------------------------------------------------------------

    def back(self, graph: onnx.GraphProto) -> None:
        for node in reversed(graph.node):
            for body in subgraphs(node.attribute):
                for inner, outer in _results(node, body):
                    if outer in self.wanted:
                        self.demand(inner, self.wanted[outer])
                self.back(body)
                for inner, outer in _operands(node, body):
                    if inner in self.wanted:
                        self.demand(outer, self.wanted[inner])
            if node.domain not in DOMAINS:
                continue
            demands = self.demands.get(node.op_type)
            if demands is not None and any(name in self.follows for name in node.input):
                self._demand_all(node, demands(self, node))
            carry = self.carriers.get(node.op_type)
            if carry is not None:
                for name in node.output:
                    if name in self.wanted:
                        self._demand_all(node, carry(self, node, self.wanted[name]))

    def _demand_all(self, node: onnx.NodeProto, demands: Demand) -> None:
        for position, values in demands:
            if has(node, position):
                self.demand(operand(node, position), values)

    def demand(self, name: str, values: Values) -> None:
        if name in self.follows:
            self.wanted[name] = self.wanted[name].both(values) if name in self.wanted else values

    # -- shapes ----------------------------------------------------------------------------------------

    def _note_dims(self, values: Iterable[onnx.ValueInfoProto]) -> None:
        for value in values:
            tensor = value.type.tensor_type
            dims = [dim.dim_value for dim in tensor.shape.dim]
            if value.type.HasField("tensor_type") and tensor.HasField("shape") and all(dims):
                self._dims.setdefault(value.name, dims)

    def _infer(self) -> None:
        try:
            inferred = onnx.shape_inference.infer_shapes(light(self.model, self.inputs), data_prop=True)
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
            return
        waiting = [inferred.graph]
        while waiting:
            graph = waiting.pop()
            self._note_dims((*graph.value_info, *graph.output))
            waiting.extend(body for node in graph.node for body in subgraphs(node.attribute))


def light(model: onnx.ModelProto, inputs: Sequence[onnx.ValueInfoProto] = ()) -> onnx.ModelProto:
    """Return a copy of a model for ONNX's shape inference, without the contents of large weights.

    Args:
      model: the model.
      inputs: declarations that replace the declarations of inputs with the same names.
    """
    copied = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph, sized = copied.graph, {value.name: value for value in inputs}
    graph.name = model.graph.name or "graph"
    graph.node.extend(map(for_inference, model.graph.node))
    graph.input.extend(sized.get(value.name, value) for value in model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= MAX_CONSTANT and _is_inside(tensor):
            graph.initializer.append(tensor)
        else:
            graph.initializer.append(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims))
    clear_negative_sizes(graph)
    return copied


def _is_inside(tensor: onnx.TensorProto) -> bool:
    """Return True if a tensor has its content: it lies in no other file, and `light` did not remove it."""
    fields = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
    filled = not math.prod(tensor.dims) or any(len(getattr(tensor, field)) for field in fields)
    return filled and tensor.data_location != onnx.TensorProto.EXTERNAL


def _operands(node: onnx.NodeProto, body: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Yield (input of the body, operand of the node) for a Loop or Scan."""
    if node.op_type in ("Loop", "Scan"):
        given = node.input[2:] if node.op_type == "Loop" else node.input
        inner = body.input[2:] if node.op_type == "Loop" else body.input
        for formal, actual in zip(inner, given, strict=False):
            yield formal.name, actual


def _results(node: onnx.NodeProto, body: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Yield (output of the body, result of the node)."""
    inner = body.output[1:] if node.op_type == "Loop" else body.output
    for formal, actual in zip(inner, node.output, strict=False):
        yield formal.name, actual


def operand(node: onnx.NodeProto, position: int) -> str:
    """Return the name of an operand; an empty text if the node does not have it."""
    return node.input[position] if position < len(node.input) else ""


def has(node: onnx.NodeProto, position: int) -> bool:
    return operand(node, position) != ""


def attributes_of(node: onnx.NodeProto) -> dict[str, object]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute if attribute.type}


def axis_of(node: onnx.NodeProto, default: int, name: str = "axis") -> int:
    return attributes_of(node).get(name, default)


FOLDS: Mapping[str, Callable[[list[np.ndarray], Mapping], np.ndarray]] = {
    "Identity": lambda x, a: x[0],
    "Cast": lambda x, a: x[0].astype(helper.tensor_dtype_to_np_dtype(a["to"])),
    "Neg": lambda x, a: -x[0],
    "Add": lambda x, a: x[0] + x[1],
    "Sub": lambda x, a: x[0] - x[1],
    "Mul": lambda x, a: x[0] * x[1],
    "Concat": lambda x, a: np.concatenate(x, a["axis"]),
    "Squeeze": lambda x, a: x[0].squeeze(),
    "Unsqueeze": lambda x, a: x[0].reshape(-1) if x[0].ndim == 0 else x[0],
    "Gather": lambda x, a: np.take(x[0], x[1].astype(np.int64), a.get("axis", 0)),
}
