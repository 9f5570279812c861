"""Evaluate small integer and float tensors that are computed from sizes, such as shapes, axes and positions.

Exported models compute shapes at run time (Shape → Gather → Concat → Reshape). This module evaluates those operators
ahead of time, with ONNX's semantics. Contents are NumPy arrays; if an element depends on a symbol, the array has dtype
object with elements int, Dim, float or bool. An element that is not one polynomial for all sizes raises Undecided, and
the content stays unknown.
"""

import math
from collections.abc import Callable
from functools import reduce
from math import prod

import numpy as np
import onnx

from rlflow.graph import dims
from rlflow.graph.dims import Dim, Undecided
from rlflow.graph.ir import TensorType

CONTENT_LIMIT = 64  # elements; larger tensors are not evaluated


def content_array(kind: TensorType) -> np.ndarray | None:
    """Return the content of a type as an array of the type's shape; None if the content is unknown."""
    if kind.content is None:
        return None
    array = np.empty(len(kind.content), object)
    array[:] = kind.content
    return array.reshape(kind.shape) if any(type(v) is Dim for v in kind.content) else _numbers(array, kind)


def contents(
    op: str, attributes: dict, inputs: list[TensorType | None], values: list[np.ndarray | None],
    outputs: tuple[TensorType, ...],
) -> tuple[TensorType, ...]:  # fmt: skip
    """Return the types of the outputs, with their content if it can be computed.

    Args:
      op: ONNX operator.
      attributes: attribute name → value, including defaults.
      inputs: types of the inputs; None for an absent input.
      values: contents of the inputs; None for an unknown content.
      outputs: types of the outputs without content.
    """
    compute = _COMPUTE.get(op)
    if compute is None or not all(map(_is_small, outputs)):
        return outputs
    if op not in ("Shape", "Size") and any(v is None for v, kind in zip(values, inputs, strict=True) if kind):
        return outputs
    from_sizes = any(kind is not None and kind.content is not None for kind in inputs)
    if not from_sizes and any(kind.dtype not in _STEERING for kind in outputs):
        return outputs  # Float weights that are computed from weights never become sizes.
    try:
        with np.errstate(all="ignore"):
            result = compute(_Call(attributes, inputs, values, outputs))
    except (Undecided, TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError):
        return outputs
    arrays = result if isinstance(result, list) else [result]
    return tuple([_with_content(kind, array) for kind, array in zip(outputs, arrays, strict=False)])


def _is_small(kind: TensorType) -> bool:
    """Return True if the tensor has at most CONTENT_LIMIT elements and a data type that shape arithmetic uses."""
    if kind.dtype not in _NUMBERS or kind.shape is None or any(type(size) is Dim for size in kind.shape):
        return False
    return kind.size <= CONTENT_LIMIT


class _Call:
    def __init__(self, attributes, inputs, values, outputs):
        self.attributes, self.inputs, self.values, self.outputs = attributes, inputs, values, outputs

    def integers(self, slot: int, default=None):
        """Return the content of input `slot` as a flat list of integers; `default` if the input is absent."""
        if slot >= len(self.values) or self.values[slot] is None:
            return default
        return [int(v) for v in self.values[slot].reshape(-1)]

    def axis(self) -> int:
        return self.attributes.get("axis", 0)


def _with_content(kind: TensorType, array) -> TensorType:
    array = np.asarray(array)
    if array.shape != tuple(kind.shape):
        return kind
    flat = [v if isinstance(v, Dim) else v.item() if isinstance(v, np.generic) else v for v in array.reshape(-1)]
    if any(isinstance(v, float) and (v != v or str(v) == "-0.0") for v in flat):  # `==` is wrong for NaN and -0.0.
        return kind
    limit = _LARGEST.get(kind.dtype)  # At run time, larger values wrap around and fractions are rounded.
    if limit is not None and any(type(v) is not Dim and not (isinstance(v, int) and abs(v) <= limit) for v in flat):
        return kind
    exact = _EXACT_FLOATS.get(kind.dtype)  # larger integers are rounded; here they would be exact and grow without end
    if exact is not None and any(isinstance(v, int) and abs(v) > exact for v in flat):
        return kind
    return kind._replace(content=tuple(flat))


_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
_LARGEST = {dtype: np.iinfo(onnx.helper.tensor_dtype_to_np_dtype(dtype)).max for dtype in _INTEGERS}
_EXACT_FLOATS = {onnx.TensorProto.FLOAT: 2**24, onnx.TensorProto.DOUBLE: 2**53, onnx.TensorProto.FLOAT16: 2**11}
_STEERING = (*_INTEGERS, onnx.TensorProto.BOOL)  # types of shapes, indices and flags
_EXACT = (*_INTEGERS, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)  # types to which a size may be cast
_NUMBERS = (*_EXACT, onnx.TensorProto.BOOL, onnx.TensorProto.FLOAT16)


def _numbers(array: np.ndarray, kind: TensorType) -> np.ndarray:
    return array.astype(onnx.helper.tensor_dtype_to_np_dtype(kind.dtype)).reshape(kind.shape)


def _has_sizes(*arrays) -> bool:
    return any(array.dtype == object for array in arrays)


def _as_int(value):
    """Convert an integral float to an int, since Dim arithmetic needs integers; return other values unchanged."""
    return int(value) if isinstance(value, float | np.floating) and float(value).is_integer() else value


# -- operators on elements -------------------------------------------------------------------------


def _element_wise(exact: Callable, on_numbers: Callable) -> Callable:
    """Return the evaluator of an element-wise operator.

    Args:
      exact: function of single elements, used if an input contains symbolic sizes.
      on_numbers: function of whole arrays, used otherwise.
    """
    n_operands = exact.__code__.co_argcount
    by_element = np.frompyfunc(lambda *v: exact(*map(_as_int, v)), n_operands, 1)

    def compute(call: _Call):
        apply = by_element if _has_sizes(*call.values) else on_numbers
        if n_operands == 1:
            return apply(*call.values)
        return reduce(apply, call.values)  # Max and Min are variadic; a third NumPy argument would be the output.

    return compute


def _quotient(a, b):
    """Divide integers and round towards zero, as ONNX does; raise Undecided for symbolic sizes that may be negative."""
    if type(a) is not Dim and type(b) is not Dim:
        return abs(a) // abs(b) * (1 if (a >= 0) == (b >= 0) else -1)
    if a >= 0 and b > 0:
        return a // b
    raise Undecided("a negative size is divided")


def _divided(call: _Call):
    a, b = call.values
    if call.outputs[0].dtype in _INTEGERS:
        return np.frompyfunc(_quotient, 2, 1)(a, b)
    if not _has_sizes(a, b):
        return a / b

    def exact(x, y):
        result = _as_int(x) // _as_int(y)
        if result * _as_int(y) is not x and not dims.equal(result * _as_int(y), _as_int(x)):
            raise Undecided("a fraction of a size")
        return result

    return np.frompyfunc(exact, 2, 1)(a, b)


def _modulo(call: _Call):
    """Evaluate ONNX's Mod: the remainder has the sign of the divisor or, if fmod is 1, of the dividend."""
    on_numbers = np.fmod if call.attributes.get("fmod", 0) else np.mod

    def exact(x, y):
        if type(x) is not Dim and type(y) is not Dim:
            return on_numbers(x, y)
        return x - _quotient(x, y) * y

    a, b = call.values
    return np.frompyfunc(exact, 2, 1)(a, b) if _has_sizes(a, b) else on_numbers(a, b)


def _where(call: _Call):
    condition, a, b = np.broadcast_arrays(*call.values)
    result = np.empty(condition.shape, object)
    for k in np.ndindex(condition.shape):
        result[k] = a[k] if condition[k] else b[k]
    return result


def _cast(call: _Call):
    (array,), to = call.values, call.attributes["to"]
    if _has_sizes(array):
        if to not in _EXACT:
            raise Undecided("not every size is a number of this data type")
        return array
    return array.astype(onnx.helper.tensor_dtype_to_np_dtype(to))


def _power(call: _Call):
    a, b = call.values
    return np.power(a, b) if a.dtype == b.dtype else np.power(a.astype(float), b.astype(float)).astype(a.dtype)


# -- operators on positions ------------------------------------------------------------------------


def _shape(call: _Call):
    shape, array = call.inputs[0].shape, np.empty(len(call.inputs[0].shape), object)
    array[:] = shape
    return array[call.attributes.get("start", 0) : call.attributes.get("end")]


def _gather(call: _Call):
    data, positions = call.values
    return np.take(data, positions.astype(np.int64), axis=call.axis())


def _slice(call: _Call):
    data, starts, ends = call.values[0], call.integers(1), call.integers(2)
    axes = call.integers(3, list(range(len(starts))))
    steps = call.integers(4, [1] * len(starts))
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = data.shape[axis]
        end = None if step < 0 and end < -size else end
        data = data[(slice(None),) * (axis % data.ndim) + (slice(start, end, step),)]
    return data


def _squeeze(call: _Call):
    axes = call.integers(1)
    return np.squeeze(call.values[0], tuple(axes) if axes is not None else None)


def _reshape(call: _Call):
    return call.values[0].reshape(call.outputs[0].shape)


def _split(call: _Call):
    ends = np.cumsum([kind.shape[call.axis()] for kind in call.outputs])
    return np.split(call.values[0], ends[:-1], axis=call.axis())


def _range(call: _Call):
    start, limit, delta = (array.reshape(-1)[0] for array in call.values)
    if _has_sizes(*call.values):
        count = call.outputs[0].shape[0]
        return np.array([start + k * delta for k in range(count)], object)
    return np.arange(start, limit, delta)


def _constant_of_shape(call: _Call):
    value = call.attributes.get("value")
    fill = np.float32(0)
    if value is not None:
        fill = onnx.numpy_helper.to_array(onnx.AttributeProto.FromString(value.data).t).reshape(-1)[0]
    return np.full(call.outputs[0].shape, fill)


def _reduce(combine: Callable) -> Callable:
    def compute(call: _Call):
        axes = call.integers(1) or call.attributes.get("axes")
        if axes is None and call.attributes.get("noop_with_empty_axes"):
            return call.values[0]
        axes = range(call.values[0].ndim) if axes is None else axes
        result = call.values[0]
        for axis in sorted({axis % result.ndim for axis in axes}, reverse=True):
            result = combine(result, axis)
        return np.asarray(result).reshape(call.outputs[0].shape)

    return compute


_COMPUTE: dict[str, Callable] = {
    "Shape": _shape,
    "Size": lambda call: np.array(prod(call.inputs[0].shape), object),
    "Identity": lambda call: call.values[0],
    "Cast": _cast,
    "Add": _element_wise(lambda a, b: a + b, np.add),
    "Sub": _element_wise(lambda a, b: a - b, np.subtract),
    "Mul": _element_wise(lambda a, b: a * b, np.multiply),
    "Div": _divided,
    "Mod": _modulo,
    "Pow": _power,
    "Neg": _element_wise(lambda a: -a, np.negative),
    "Abs": _element_wise(lambda a: abs(a), np.abs),
    "Sqrt": lambda call: np.sqrt(call.values[0]),
    "Reciprocal": lambda call: 1 / call.values[0],
    "Floor": _element_wise(lambda a: a if type(a) is Dim else math.floor(a), np.floor),
    "Ceil": _element_wise(lambda a: a if type(a) is Dim else math.ceil(a), np.ceil),
    "Round": _element_wise(lambda a: a if type(a) is Dim else round(a), np.round),
    "Max": _element_wise(dims.larger, np.maximum),
    "Min": _element_wise(dims.smaller, np.minimum),
    "Equal": _element_wise(dims.equal, np.equal),
    "Less": _element_wise(lambda a, b: a < b, np.less),
    "LessOrEqual": _element_wise(lambda a, b: a <= b, np.less_equal),
    "Greater": _element_wise(lambda a, b: a > b, np.greater),
    "GreaterOrEqual": _element_wise(lambda a, b: a >= b, np.greater_equal),
    "Not": lambda call: np.logical_not(call.values[0].astype(bool)),
    "And": lambda call: np.logical_and(*[v.astype(bool) for v in call.values]),
    "Or": lambda call: np.logical_or(*[v.astype(bool) for v in call.values]),
    "Where": _where,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": lambda call: np.concatenate(call.values, axis=call.axis()),
    "Squeeze": _squeeze,
    "Unsqueeze": _reshape,
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Transpose": lambda call: np.transpose(call.values[0], call.attributes.get("perm")),
    "Split": _split,
    "Expand": lambda call: np.broadcast_to(call.values[0], call.outputs[0].shape),
    "Tile": lambda call: np.tile(call.values[0], call.integers(1)),
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
    "ReduceProd": _reduce(lambda array, axis: np.prod(array, axis=axis)),
    "ReduceSum": _reduce(lambda array, axis: np.sum(array, axis=axis)),
}
