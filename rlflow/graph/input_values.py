"""The values that a model's inputs must have, derived from the operators that read them.

An operator may demand certain values of an operand: Gather an index below the size of an axis, Reshape a shape with the
same number of elements, TopK a number of elements that there are. DEMANDS holds these demands. A demand on a computed
tensor is carried back to the tensors from which it is computed (CARRIERS), for example from `ids - 1000` to `ids`. The
demands that arrive at the inputs of the model are the result.

    allowed_values(model, model.graph.input)     {"ids": Values(low=1000, high=1009, whole=True)}

The walk visits each node once, also in the bodies of If, Loop and Scan, and in local functions, which are inlined. It
evaluates only constants of up to MAX_CONSTANT elements. ONNX's shape inference runs only if a demand needs the shape of
a computed tensor.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
import onnx.inliner
from onnx import helper, numpy_helper

MAX_CONSTANT = 1024  # elements of a constant that is evaluated
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
FEW = 3  # a size that nothing determines is at most this
LARGEST = 2.0**31  # absolute value of bounds; larger ones count as infinite


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
        """Return the values that two operators allow. If no value satisfies both, keep the values of this object."""
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


def allowed_values(
    model: onnx.ModelProto, inputs: Sequence[onnx.ValueInfoProto], plain: bool = False
) -> dict[str, Values]:
    """Return the inputs whose values the graph restricts, with the values that they may have.

    Args:
      model: the model; the contents of external weights are not needed.
      inputs: the declared inputs with numbers as sizes (`rlflow.graph.symbols.bind_shapes`).
      plain: True for values that change no shape, such as a TopK of all elements or a padding of 0.
    """
    if model.functions:
        model = onnx.inliner.inline_local_functions(light(model, inputs))
    walk = Walk(model, inputs, plain)
    walk.forward(model.graph)
    walk.back(model.graph)
    names = {value.name for value in inputs}
    return {name: values for name, values in walk.wanted.items() if name in names}


class Walk:
    """One walk through a graph, from its outputs to its inputs.

    Attributes:
      wanted: tensor → its allowed values so far.
      plain: see `allowed_values`.
      constants: tensor → content, for small constants.
      follows: tensors whose values are values of an input, possibly changed by arithmetic.
      concats: tensor → the Concat of the main graph that makes the tensor.
    """

    def __init__(self, model: onnx.ModelProto, inputs: Sequence[onnx.ValueInfoProto], plain: bool):
        self.model, self.inputs, self.plain = model, inputs, plain
        self.wanted: dict[str, Values] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.follows = {value.name for value in inputs}
        self.concats = {name: node for node in model.graph.node if node.op_type == "Concat" for name in node.output}
        self._dims: dict[str, list[int]] = {}
        self._inferred = False
        self._note_dims(inputs)

    # -- what the requirements ask -----------------------------------------------------------------

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
            for body in bodies(node):
                self._enter(node, body)
                self.forward(body)
            follows = [name for name in node.input if name in self.follows]
            if follows and (node.op_type in CARRIERS or any(bodies(node))):
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
        """Note the result of a node whose operands are small constants, if it has one of a few operators."""
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
            try:
                result = FOLDS[node.op_type]([self.constants[name] for name in node.input if name], attributes)
            except (ValueError, IndexError, TypeError, KeyError):
                return
            if result.size <= MAX_CONSTANT:
                self.constants[node.output[0]] = result

    # -- backward ------------------------------------------------------------------------------------

    def back(self, graph: onnx.GraphProto) -> None:
        for node in reversed(graph.node):
            for body in bodies(node):
                for inner, outer in _results(node, body):
                    if outer in self.wanted:
                        self.demand(inner, self.wanted[outer])
                self.back(body)
                for inner, outer in _operands(node, body):
                    if inner in self.wanted:
                        self.demand(outer, self.wanted[inner])
            if node.domain not in DOMAINS:
                continue
            demands = DEMANDS.get(node.op_type)
            if demands is not None and any(name in self.follows for name in node.input):
                self._demand_all(node, demands(self, node))
            carry = CARRIERS.get(node.op_type)
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
            waiting.extend(body for node in graph.node for body in bodies(node))


def light(model: onnx.ModelProto, inputs: Sequence[onnx.ValueInfoProto] = ()) -> onnx.ModelProto:
    """Return a copy of a model without the contents of large weights.

    Args:
      model: the model.
      inputs: declarations that replace the declarations of inputs with the same names.
    """
    copied = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph, sized = copied.graph, {value.name: value for value in inputs}
    graph.name = model.graph.name or "graph"
    graph.node.extend(model.graph.node)
    graph.input.extend(sized.get(value.name, value) for value in model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= MAX_CONSTANT and _is_inside(tensor):
            graph.initializer.append(tensor)
        else:
            graph.initializer.append(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims))
    return copied


def _is_inside(tensor: onnx.TensorProto) -> bool:
    """Return True if a tensor has its content: it lies in no other file, and `light` did not remove it."""
    fields = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
    filled = not math.prod(tensor.dims) or any(len(getattr(tensor, field)) for field in fields)
    return filled and tensor.data_location != onnx.TensorProto.EXTERNAL


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    return (attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH)


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


def _axis(node: onnx.NodeProto, default: int, name: str = "axis") -> int:
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


# -- demands: operator → the values that it demands of its operands -----------------------------------------


def _indices(table: int, indices: int, axis: int | None = 0, attribute: str = "axis"):
    """Return the demand of an operator that reads the operand `indices` as indices into the operand `table`."""

    def demand(walk: Walk, node: onnx.NodeProto) -> Demand:
        if has(node, indices) and operand(node, indices) in walk.follows:
            yield indices, index(walk.size(operand(node, table), _axis(node, axis, attribute) if attribute else axis))

    return demand


def _indices_nd(walk: Walk, node: onnx.NodeProto) -> Demand:
    if operand(node, 1) not in walk.follows:
        return
    dims, width = walk.dims(operand(node, 0)), walk.size(operand(node, 1), -1)
    first = _axis(node, 0, "batch_dims")
    columns = dims[first : first + (width or 1)] if dims else []
    yield 1, index(min(columns, default=None))


def _bounded(**bounds: tuple[float, float]):
    """Return the demand of whole numbers within bounds, for operands `at_1=(low, high)`."""
    allowed = [(int(name[3:]), Values(low, high, whole=True)) for name, (low, high) in bounds.items()]
    return lambda walk, node: iter(allowed)


def _embedding(walk: Walk, node: onnx.NodeProto) -> Demand:
    for ids, table in ((0, 2), (1, 4), (8, 3)):
        if has(node, ids) and has(node, table):
            yield ids, index(walk.size(operand(node, table), 0))


def _rotary(walk: Walk, node: onnx.NodeProto) -> Demand:
    ids, table = (1, 2) if node.domain == "com.microsoft" else (3, 1)
    if has(node, ids):
        first = walk.dims(operand(node, ids)) == [1]  # the position of the first element, not one position for each
        yield ids, exactly(0) if first else index(walk.size(operand(node, table), 0))


def _group_query(walk: Walk, node: onnx.NodeProto) -> Demand:
    sequence, past = walk.size(operand(node, 0), 1), walk.size(operand(node, 3), 2) if has(node, 3) else 0
    if sequence is not None and past is not None:
        yield 5, exactly(sequence + past - 1)
        yield 6, exactly(sequence + past)


def filled(known: Sequence[float], count: int | None, dims: Sequence[int] | None) -> list[float]:
    """Return a shape: fill the unknown sizes (NaN) such that the shape has a number of elements.

    Args:
      known: the sizes, NaN where they are unknown.
      count: the number of elements of the shape.
      dims: a shape of `count` elements, to which the result is similar.
    """
    holes = [k for k, size in enumerate(known) if math.isnan(size)]
    if count is None or dims is None or not holes:
        return [1.0 if math.isnan(size) else size for size in known]
    result = list(known)
    if len(holes) == len(known):  # keep the last axes, and join the first ones
        last = list(dims[len(dims) - len(known) + 1 :]) if len(known) > 1 else []
        last = [1] * (len(known) - 1 - len(last)) + last
        return [count / max(math.prod(last), 1), *map(float, last)]
    rest = count / max(math.prod(size for size in known if size > 0), 1)
    for k in holes:
        result[k] = 1.0
    if not any(size < 0 for size in known):
        result[holes[0]] = float(int(rest))
    return result


def _known_parts(walk: Walk, name: str, length: int) -> list[float]:
    """Return the content of an operand that a Concat makes of constants and unknown parts, NaN where it is unknown."""
    node = walk.concats.get(name) if length > 1 else None
    if node is not None:
        result: list[float] = []
        for part in node.input:
            dims = walk.dims(part)
            if part in walk.constants:
                result += walk.constants[part].reshape(-1).astype(float).tolist()
            else:
                result += [math.nan] * math.prod(dims or [1])
        if len(result) == length:
            return result
    return [math.nan] * length


def _target_shape(walk: Walk, node: onnx.NodeProto) -> Demand:
    """Demand the shape that a Reshape makes: the declared one, or one with as many elements as the operand."""
    length = walk.length(node, 1) if operand(node, 1) in walk.follows else None
    if length is None:
        return
    made, dims = walk.dims(node.output[0]), walk.dims(operand(node, 0))
    known = _known_parts(walk, operand(node, 1), length)
    if made is not None and len(made) == length:
        yield 1, exactly(*made)
    else:
        yield 1, exactly(*filled(known, None if dims is None else math.prod(dims), dims))


def _expanded(walk: Walk, node: onnx.NodeProto) -> Demand:
    length, dims = walk.length(node, 1), walk.dims(operand(node, 0))
    made = walk.dims(node.output[0])
    if operand(node, 1) not in walk.follows or length is None or dims is None:
        return
    more = 1 if walk.plain else FEW - 1
    wide = [*[more] * (length - len(dims)), *[more if size == 1 else size for size in dims[-length:]]]
    yield 1, exactly(*(made if made is not None and len(made) == length else wide))


def _sizes(*positions: int):
    """Return the demand of sizes that no shape determines."""
    return lambda walk, node: ((k, Values(1, FEW, whole=True, size=True)) for k in positions)


def _slice(walk: Walk, node: onnx.NodeProto) -> Demand:
    dims, count = walk.dims(operand(node, 0)), walk.length(node, 1)
    axes = walk.content(node, 3)
    axes = list(range(count or 0)) if axes is None else axes.reshape(-1).tolist()
    sizes = [dims[axis] for axis in axes] if dims else [FEW] * len(axes)
    starts = [0 if walk.plain or size < FEW else 1 for size in sizes]
    begins, ends = walk.content(node, 1), walk.content(node, 2)
    if begins is not None and begins.size == len(sizes):
        last = [size if b < 0 or walk.plain else max(size - 1, b + 1) for size, b in zip(sizes, begins, strict=True)]
    else:
        last = sizes
    if ends is not None and ends.size == len(sizes):
        starts = [s if e < 0 or e > s else 0 for s, e in zip(starts, ends.reshape(-1).tolist(), strict=True)]
    yield from ((1, exactly(*starts)), (2, exactly(*last)), (3, exactly(*axes)), (4, exactly(*[1] * len(axes))))


def _padded(walk: Walk, node: onnx.NodeProto) -> Demand:
    yield 1, Values(0, 0 if walk.plain else 1, whole=True)
    if has(node, 3):
        yield 3, exactly(*range(walk.length(node, 3) or 0))


def _resized(walk: Walk, node: onnx.NodeProto) -> Demand:
    dims, times = walk.dims(operand(node, 0)), 1.0 if walk.plain else 2.0
    if dims is None:
        return
    factors = [1.0 if axis < 2 and len(dims) > 2 else times for axis in range(len(dims))]
    scales = 1 if node.op_type == "Upsample" else 2
    axes = attributes_of(node).get("axes") or range(len(dims))
    yield scales, Values(exact=np.array([factors[axis] for axis in axes]))
    if scales == 2:
        yield 3, exactly(*[factors[axis] * dims[axis] for axis in axes])
        yield 1, Values(0.0, 1.0)


def _axes(walk: Walk, node: onnx.NodeProto) -> Demand:
    dims, count = walk.dims(operand(node, 0)), walk.length(node, 1)
    if operand(node, 1) not in walk.follows or count is None:
        return
    if node.op_type == "Unsqueeze":
        yield 1, exactly(*range(count))
    elif node.op_type == "Squeeze":
        ones = [axis for axis, size in enumerate(dims or []) if size == 1]
        yield 1, exactly(*ones[:count]) if len(ones) >= count else Values(0, 0, whole=True)
    elif dims is not None:
        yield 1, exactly(*range(max(len(dims) - count, 0), len(dims))[:count])


def _top(walk: Walk, node: onnx.NodeProto) -> Demand:
    axis = _axis(node, -1)
    made, count = walk.size(node.output[0], axis), walk.size(operand(node, 0), axis)
    if made is not None or (walk.plain and count):
        yield 1, exactly(made or count)
    else:
        yield 1, Values(1, count or 1, whole=True)


def _split(walk: Walk, node: onnx.NodeProto) -> Demand:
    count, size = walk.length(node, 1), walk.size(operand(node, 0), _axis(node, 0))
    if count and size and operand(node, 1) in walk.follows:
        made = [walk.size(name, _axis(node, 0)) for name in node.output]
        if node.op_type == "Split" and None not in made and sum(made) == size:
            yield 1, exactly(*made)
        else:
            part = size // count
            yield 1, exactly(*[part] * (count - 1), size - part * (count - 1))


def _range(walk: Walk, node: onnx.NodeProto) -> Demand:
    made = walk.size(node.output[0], 0)
    start, delta = walk.content(node, 0), walk.content(node, 2)
    first = 0.0 if start is None else float(start.reshape(-1)[0])
    step = 1.0 if delta is None else float(delta.reshape(-1)[0])
    yield 0, exactly(0)
    yield 2, exactly(1)
    if made is not None:
        yield 1, exactly(first + step * made)
    elif step > 0:
        yield 1, Values(first + 1, first + step * FEW, whole=True, size=True)
    else:
        yield 1, Values(first + step * FEW, first - 1, whole=True)


def _lengths(position: int, axis: int):
    def demand(walk: Walk, node: onnx.NodeProto) -> Demand:
        where = _axis(node, axis, "time_axis") if node.op_type == "ReverseSequence" else axis
        if has(node, position):
            yield position, Values(1, walk.size(operand(node, 0), where) or 1, whole=True)

    return demand


def _boxes(walk: Walk, node: onnx.NodeProto) -> Demand:
    if node.op_type == "NonMaxSuppression":
        yield 0, Values(0.0, 1.0, box=True)
        yield 1, Values(0.0, 1.0)
        yield 2, Values(1, walk.size(operand(node, 0), 1) or 1, whole=True)
        yield 3, Values(0.0, 1.0)
        yield 4, Values(0.0, 0.5)
    else:  # RoiAlign
        height = walk.size(operand(node, 0), 2) or 2
        yield 1, Values(0.0, max(height - 1.0, 1.0), box=True)
        yield 2, index(walk.size(operand(node, 0), 0))


def _classes(walk: Walk, node: onnx.NodeProto) -> Demand:
    yield 1, index(walk.size(operand(node, 0), 1))


def _one_hot(walk: Walk, node: onnx.NodeProto) -> Demand:
    depth, made = walk.content(node, 1), walk.size(node.output[0], _axis(node, -1))
    count = int(depth.reshape(-1)[0]) if depth is not None else made or FEW
    yield 0, index(count)
    yield 1, exactly(count)


def _divisor(walk: Walk, node: onnx.NodeProto) -> Demand:
    yield 1, Values(1, FEW, divisor=True)


def _probability(walk: Walk, node: onnx.NodeProto) -> Demand:
    yield (1 if node.op_type == "Dropout" else 0), Values(0.0, 0.9)


def _axis_operand(position: int):
    def demand(walk: Walk, node: onnx.NodeProto) -> Demand:
        dims = walk.dims(operand(node, 0))
        yield position, exactly(len(dims) - 1 if dims and node.op_type != "DFT" else max(len(dims or []) - 2, 0))

    return demand


def _keys(*names: str):
    """Return the demand of elements (or keys of a map) that are listed in one of several attributes of the node."""

    def demand(walk: Walk, node: onnx.NodeProto) -> Demand:
        attributes = attributes_of(node)
        found = next((attributes[name] for name in names if name in attributes), ())
        if isinstance(found, onnx.TensorProto):
            found = numpy_helper.to_array(found).reshape(-1).tolist()
        words = [word.decode(errors="replace") if isinstance(word, bytes) else word for word in found]
        yield 0, Values(words=tuple(words[:MAX_CONSTANT]))

    return demand


def _mel(walk: Walk, node: onnx.NodeProto) -> Demand:
    for position, value in enumerate((8, 32, 16000)):
        yield position, exactly(value)
    yield 3, Values(exact=np.array(0.0))
    yield 4, Values(exact=np.array(8000.0))


def _stft(walk: Walk, node: onnx.NodeProto) -> Demand:
    size = walk.size(operand(node, 0), 1) or 4
    window = walk.size(operand(node, 2), 0) if has(node, 2) else None
    yield 1, exactly(max(size // 4, 1))
    yield 3, exactly(window or max(size // 2, 1))


def _loop(walk: Walk, node: onnx.NodeProto) -> Demand:
    yield 0, Values(1, FEW, whole=True)
    yield 1, exactly(1)


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

DEMANDS: Mapping[str, Callable[[Walk, onnx.NodeProto], Demand]] = {
    "Gather": _indices(0, 1),
    "GatherElements": _indices(0, 1),
    "GatherBlockQuantized": _indices(0, 1, attribute="gather_axis"),
    "Scatter": _indices(0, 1),
    "ScatterElements": _indices(0, 1),
    "TensorScatter": _bounded(at_2=(0, 0)),
    "ArrayFeatureExtractor": _indices(0, 1, -1, attribute=""),
    "GatherND": _indices_nd,
    "ScatterND": _indices_nd,
    "EmbedLayerNormalization": _embedding,
    "RotaryEmbedding": _rotary,
    "GroupQueryAttention": _group_query,
    "OneHot": _one_hot,
    "Reshape": _target_shape,
    "Expand": _expanded,
    "Tile": lambda walk, node: iter([(1, Values(1, 1 if walk.plain else 2, whole=True))]),
    "ConstantOfShape": _sizes(0),
    "BlackmanWindow": _sizes(0),
    "HammingWindow": _sizes(0),
    "HannWindow": _sizes(0),
    "Slice": _slice,
    "Pad": _padded,
    "Resize": _resized,
    "Upsample": _resized,
    "CenterCropPad": lambda walk, node: iter([(1, exactly(*(walk.dims(operand(node, 0)) or ())))]),
    "Squeeze": _axes,
    "Unsqueeze": _axes,
    **{f"Reduce{name}": _axes for name in _REDUCTIONS},
    "CumSum": _axis_operand(1),
    "DFT": _axis_operand(2),
    "STFT": _stft,
    "MelWeightMatrix": _mel,
    "TopK": _top,
    "Split": _split,
    "SplitToSequence": _split,
    "SequenceAt": _bounded(at_1=(0, 0)),
    "SequenceErase": _bounded(at_1=(0, 0)),
    "SequenceInsert": _bounded(at_2=(0, 0)),
    "Range": _range,
    "Trilu": _bounded(at_1=(-1, 1)),
    "BitShift": _bounded(at_1=(0, 3)),
    "Div": _divisor,
    "Mod": _divisor,
    "RNN": _lengths(4, 0),
    "GRU": _lengths(4, 0),
    "LSTM": _lengths(4, 0),
    "ReverseSequence": _lengths(1, 0),
    "NonMaxSuppression": _boxes,
    "RoiAlign": _boxes,
    "NegativeLogLikelihoodLoss": _classes,
    "SoftmaxCrossEntropyLoss": _classes,
    "Bernoulli": _probability,
    "Dropout": _probability,
    "Loop": _loop,
    "LabelEncoder": _keys("keys_strings", "keys_int64s", "keys_floats", "keys_tensor", "classes_strings"),
    "CategoryMapper": _keys("cats_strings", "cats_int64s"),
    "OneHotEncoder": _keys("cats_strings", "cats_int64s"),
    "DictVectorizer": _keys("string_vocabulary", "int64_vocabulary"),
    "TfIdfVectorizer": _keys("pool_strings", "pool_int64s"),
}


# -- carriers: operator → the demands on its operands that follow from a demand on its result ---------------


def _same(*positions: int):
    """Return a carrier for an operator whose result has the elements of operands, in another shape or order."""
    return lambda walk, node, values: ((k, values) for k in positions)


def _elements(*positions: int):
    """Return a carrier for an operator whose result has some elements of operands; the places are not carried."""
    return lambda walk, node, values: ((k, values._replace(exact=None, distinct=False)) for k in positions)


def _all(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    return ((k, values._replace(exact=None, distinct=False)) for k in range(len(node.input)))


def _concat(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    """Divide the exact content of a list among the lists that the Concat joins."""
    at, lengths = 0, [walk.length(node, k) for k in range(len(node.input))]
    for k, length in enumerate(lengths):
        part = None
        if values.exact is not None and values.exact.ndim == 1 and None not in lengths:
            part = values.exact[at : at + length] if sum(lengths) == values.exact.size else None
            at += length
        yield k, values._replace(exact=part, distinct=False)


def _gathered(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    """Demand the gathered elements of a list at their places."""
    where, size, exact = walk.content(node, 1), walk.length(node, 0), None
    if values.exact is not None and where is not None and size is not None and where.size == values.exact.size:
        exact = np.full(size, math.nan)
        exact[where.reshape(-1).astype(np.int64)] = values.exact.reshape(-1)
    yield 0, values._replace(exact=exact, distinct=False)


def _moved(low: float, high: float, values: Values, exact: Callable[[np.ndarray], np.ndarray] | None) -> Values:
    """Return the values with other bounds, and with the exact content changed by a function."""
    if low > high:  # no value satisfies the bounds for all elements of a constant
        low, high = min(low, high), min(low, high)
    low, high = (bound if abs(bound) < LARGEST else math.copysign(math.inf, bound) for bound in (low, high))
    changed = None if values.exact is None or exact is None else exact(values.exact)
    return values._replace(low=low, high=high, exact=changed, distinct=False)


def _scalar(constant: np.ndarray) -> float | None:
    return float(constant.reshape(-1)[0]) if constant.size == 1 else None


def _other(walk: Walk, node: onnx.NodeProto) -> tuple[int, np.ndarray] | None:
    """Return (position of the operand that follows inputs, content of the other one) of a binary operator."""
    for position in (0, 1):
        constant = walk.content(node, 1 - position)
        if constant is not None and constant.size and constant.dtype.kind in "iuf":
            return position, constant.astype(float)
    return None


def _sum(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    found = _other(walk, node)
    if found is None:  # both operands follow inputs: each gets half
        half = _moved(
            math.ceil(values.low / 2) if math.isfinite(values.low) else values.low, values.high / 2, values, None
        )
        half = half._replace(high=math.floor(half.high) if math.isfinite(half.high) else half.high)
        yield from ((0, half), (1, half))
        return
    position, c = found
    one = _scalar(c)
    if node.op_type == "Add":
        moved = (values.low - c.min(), values.high - c.max(), (lambda exact: exact - one))
    elif position == 0:
        moved = (values.low + c.max(), values.high + c.min(), (lambda exact: exact + one))
    else:
        moved = (c.max() - values.high, c.min() - values.low, (lambda exact: one - exact))
    yield position, _moved(moved[0], moved[1], values, None if one is None else moved[2])


def _product(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    found = _other(walk, node)
    if found is None:
        root = math.isqrt(int(values.high)) if 0 <= values.high < LARGEST else values.high
        both = _moved(max(values.low, 0.0), root, values, None)
        yield from ((0, both), (1, both))
        return
    position, c = found
    one = _scalar(c)
    if one is None or one == 0:
        return
    bounds = sorted((values.low / one, values.high / one))
    if values.whole and all(map(math.isfinite, bounds)):
        bounds = [math.ceil(bounds[0]), math.floor(bounds[1])]
    yield position, _moved(*bounds, values, lambda exact: exact / one)


def _quotient(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    c = walk.content(node, 1)
    one = None if c is None else _scalar(c.astype(float)) if c.dtype.kind in "iuf" else None
    if one is not None and one > 0:
        whole = c.dtype.kind in "iu"
        yield 0, _moved(values.low * one, values.high * one + (one - 1 if whole else 0), values, lambda e: e * one)


def _negated(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    yield 0, _moved(-values.high, -values.low, values, lambda exact: -exact)


def _clipped(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    attributes = attributes_of(node)
    bounds = []
    for position, name in ((1, "min"), (2, "max")):
        content = walk.content(node, position)
        bounds.append(attributes.get(name) if content is None else _scalar(content.astype(float)))
    low, high = bounds
    if low is None or high is None or not (values.low <= low and high <= values.high):
        yield 0, values


def _remainder(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    c = walk.content(node, 1)
    if c is None or not (values.low <= 0 and c.size and c.max() - 1 <= values.high):
        yield 0, values._replace(exact=None, distinct=False)


def _summed(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    count = walk.length(node, 0) or 1
    high = math.floor(values.high / count) if math.isfinite(values.high) else values.high
    yield 0, _moved(max(values.low, 0.0) / count, high, values, None)


CARRIERS: Mapping[str, Callable[[Walk, onnx.NodeProto, Values], Demand]] = {
    **dict.fromkeys(
        ("Identity", "Cast", "CastLike", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Dropout"), _same(0)
    ),
    **dict.fromkeys(("Floor", "Ceil", "Round", "Relu", "Optional", "OptionalGetElement"), _same(0)),
    **dict.fromkeys(("Expand", "Slice", "Tile", "Split", "Abs", "ReduceMax", "ReduceMin", "Compress"), _elements(0)),
    **dict.fromkeys(("GatherElements", "GatherND", "SequenceAt", "ReverseSequence", "Trilu"), _elements(0)),
    **dict.fromkeys(("StringNormalizer", "CastMap", "Imputer"), _elements(0)),
    **dict.fromkeys(("Max", "Min", "SequenceConstruct"), _all),
    "ScatterElements": _elements(0, 2),
    "ScatterND": _elements(0, 2),
    "Pad": _elements(0, 2),
    "Where": _elements(1, 2),
    "Concat": _concat,
    "Gather": _gathered,
    "Add": _sum,
    "Sub": _sum,
    "Mul": _product,
    "Div": _quotient,
    "Neg": _negated,
    "Mod": _remainder,
    "Clip": _clipped,
    "CumSum": _summed,
    "ReduceSum": _summed,
}
