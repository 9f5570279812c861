"""Output shapes of operators with symbolic sizes.

ONNX's inference passes a symbol through unchanged (transpositions, reductions, …) but does not compute with it. Each
Dim therefore enters that inference under a unique name (`name_of`) and is recovered by the name. This module computes
the shapes of operators that calculate with sizes (Concat, Reshape, Slice, Conv, …). Both inferences assume that the
model runs without an error at every size of interest.

A slice `x[:n]` of a fixed axis is assumed to have n elements, although n may exceed the axis. Models slice tables of
positions in this way, and a shorter result would not fit the tensor that it is added to. Validation also runs at sizes
that the user did not name, to catch a violation of this assumption.
"""

from collections.abc import Callable
from fractions import Fraction
from math import prod

import numpy as np

from rlflow.graph import dims
from rlflow.graph.contrib import SIZE
from rlflow.graph.dims import Dim, Undecided, larger, smaller
from rlflow.graph.ir import TensorType

RUNTIME_OPS = frozenset(("FusedConv",))  # operators of ONNX Runtime whose shapes this module computes
UNBOUNDED = (1 << 31) - 1  # a start or end of a Slice with at least this absolute value means an end of the axis

_NAMES: dict[Dim, str] = {}
_DIMS: dict[str, Dim] = {}


def name_of(dim: Dim) -> str:
    """Return the unique dimension name that represents a symbolic size in ONNX's shape inference."""
    name = _NAMES.get(dim)
    if name is None:
        name = _NAMES[dim] = f"{SIZE}{len(_NAMES)}"
        _DIMS[name] = dim
    return name


def named(name: str) -> Dim | None:
    """Return the size to which `name_of` gave this name; None for any other name."""
    return _DIMS.get(name)


def is_symbolic(kind: TensorType | None) -> bool:
    """Return True if a size or a known element of the tensor depends on a symbol."""
    return kind is not None and any(type(size) is Dim for size in (*(kind.shape or ()), *(kind.content or ())))


class Call:
    """One operator with the known shapes and contents of its inputs.

    Args:
      op: ONNX operator.
      attributes: attribute name → value, including defaults.
      inputs: types of the inputs; None for an absent input.
      values: contents of the inputs as arrays; None for an unknown content.
      n_outputs: number of outputs.
    """

    def __init__(self, op: str, attributes: dict, inputs: list, values: list, n_outputs: int):
        self.op, self.attributes, self.n_outputs = op, attributes, n_outputs
        self.shapes = [kind.shape if kind is not None else None for kind in inputs]
        self.values = values

    def sizes(self, slot: int, default=None) -> list | None:
        """Return the content of an input as a flat list of sizes.

        Args:
          slot: index of the input.
          default: result for an absent input.

        Raises:
          Undecided: the content is unknown.
        """
        if slot >= len(self.shapes) or self.shapes[slot] is None:
            return default
        if self.values[slot] is None:
            raise Undecided("a shape is computed from what is not known in advance")
        return [v if type(v) is Dim else v.item() if isinstance(v, np.generic) else v for v in self.values[slot].flat]

    def axis(self) -> int:
        return self.attributes.get("axis", 0) % len(self.shapes[0])


def computes(op: str) -> bool:
    """Return True if this module computes the output shapes of an operator, instead of ONNX's inference."""
    return op in _SHAPES


def shapes(call: Call) -> list[tuple] | None:
    """Return the output shapes of an operator; None if ONNX's inference handles it (see `computes`).

    Raises:
      Undecided: an output size is not one polynomial for all values of the symbols.
    """
    compute = _SHAPES.get(call.op)
    if compute is None:
        return None
    if call.shapes[0] is None and call.op not in ("ConstantOfShape", "Range"):
        raise Undecided("the shape of an input is not known")
    result = compute(call)
    return result if isinstance(result, list) else [result] * call.n_outputs


def broadcast(shapes_: list[tuple]) -> tuple:
    """Return the shape to which these shapes broadcast. Raise Undecided if two symbolic sizes differ on an axis."""
    rank = max(map(len, shapes_))
    result = [1] * rank
    for shape in shapes_:
        for axis, size in enumerate(shape, rank - len(shape)):
            result[axis] = _broadcast_size(result[axis], size)
    return tuple(result)


def _broadcast_size(a, b):
    if a is b or (type(a) is int and a == 1):
        return b
    if type(b) is int:
        return a if b == 1 else b
    if type(a) is int:
        return a
    raise Undecided(f"whether {a} = {b} would have to be known")


# -- operators -------------------------------------------------------------------------------------


def _concat(call: Call) -> tuple:
    axis, known = call.axis(), [shape for shape in call.shapes if shape is not None]
    if len(known) != len(call.shapes):
        raise Undecided("the shape of an input is not known")
    result = [_common_size([shape[k] for shape in known]) for k in range(len(known[0]))]
    result[axis] = sum(shape[axis] for shape in known)
    return tuple(result)


def _common_size(sizes: list):
    """Return one of several sizes that must be equal for the model to run; prefer an int.

    `shapes.refused_at_some_size` checks the equality for operators that a rule adds.
    """
    return next((size for size in sizes if type(size) is int), sizes[0])


def _reshape(call: Call) -> tuple:
    shape, zero_is_size = call.shapes[0], call.attributes.get("allowzero", 0)
    sizes = []
    for axis, size in enumerate(call.sizes(1)):
        sizes.append(shape[axis] if type(size) is int and size == 0 and not zero_is_size else size)
    free = [axis for axis, size in enumerate(sizes) if type(size) is int and size == -1]
    if free:
        known = prod(size for axis, size in enumerate(sizes) if axis != free[0])
        sizes[free[0]] = prod(shape) // known
    return tuple(sizes)


def _flatten(call: Call) -> tuple:
    axis, shape = call.attributes.get("axis", 1), call.shapes[0]
    axis += len(shape) if axis < 0 else 0
    return prod(shape[:axis]), prod(shape[axis:])


def _slice(call: Call) -> tuple:
    shape, starts, ends = list(call.shapes[0]), call.sizes(1), call.sizes(2)
    axes, steps = call.sizes(3, list(range(len(starts)))), call.sizes(4, [1] * len(starts))
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        shape[axis] = cut(shape[axis], start, end, step)
    return tuple(shape)


def cut(size, start, end, step: int):
    """Return the number of elements that ONNX's Slice takes from an axis.

    Args:
      size: size of the axis, int or Dim.
      start, end: as in ONNX's Slice, int or Dim.
      step: not 0; must be positive for symbolic sizes.

    Raises:
      Undecided: the number is not one polynomial for all values of the symbols.
    """
    if type(size) is int and all(type(v) is int for v in (start, end)):
        if step < 0:  # ONNX clamps a start before the axis to the first element, and such an end to before it.
            start, end = max(start, -size), None if end < -size else end
        return len(range(*slice(start, end, step).indices(size)))
    if step < 0:
        raise Undecided("a cut runs backwards along a symbolic axis")
    first, last = _border(start, size), _border(end, size)
    return larger((last - first + step - 1) // step, 0)


def _border(border, size):
    """Return the position of a start or end of a Slice, counted from the beginning of an axis and clamped to it.

    `border` is the start or end as ONNX writes it (negative: from the end of the axis), `size` the size of the axis.
    """
    if type(border) is int and abs(border) >= UNBOUNDED:
        return size if border > 0 else 0
    if dims.least(border) < 0:
        if dims.least(-border) <= 0:
            return _chosen_or_border(larger, border, 0)  # The sign depends on the symbols, as for seq - 4.
        return _chosen_or_border(larger, size + border, 0)
    return _chosen_or_border(smaller, border, size)


def _chosen_or_border(choose: Callable, border, limit):
    try:
        return choose(border, limit)
    except Undecided:
        if type(limit) is Dim:
            raise
        return border  # Assume that the table is long enough; see the docstring of the module.


def _expand(call: Call) -> tuple:
    return broadcast([call.shapes[0], tuple(call.sizes(1))])


def _tile(call: Call) -> tuple:
    return tuple(size * times for size, times in zip(call.shapes[0], call.sizes(1), strict=True))


def _range(call: Call) -> tuple:
    (start,), (limit,), (delta,) = call.sizes(0), call.sizes(1), call.sizes(2)
    start, limit, delta = (int(v) if isinstance(v, float) and v.is_integer() else v for v in (start, limit, delta))
    if type(delta) is Dim:
        raise Undecided("the step of a Range is a size")
    if delta < 0:
        start, limit, delta = limit, start, -delta
    return (larger((limit - start + delta - 1) // delta, 0),)


def _split(call: Call) -> list[tuple]:
    shape, axis = call.shapes[0], call.axis()
    sizes = call.sizes(1)
    if sizes is None:
        part = (shape[axis] + call.n_outputs - 1) // call.n_outputs  # The last part gets the smaller remainder.
        sizes = [part] * (call.n_outputs - 1) + [shape[axis] - part * (call.n_outputs - 1)]
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]


def _pad(call: Call) -> tuple:
    shape, pads = list(call.shapes[0]), call.sizes(1)
    axes = call.sizes(3, list(range(len(shape))))
    for k, axis in enumerate(axes):
        shape[axis] = shape[axis] + pads[k] + pads[k + len(axes)]
    return tuple(shape)


def _resize(call: Call) -> tuple:
    shape = list(call.shapes[0])
    axes = call.attributes.get("axes", tuple(range(len(shape))))
    if call.attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise Undecided("the sides keep their ratio")
    sizes = call.sizes(3)
    if sizes is not None:
        for axis, size in zip(axes, sizes, strict=True):
            shape[axis] = size
        return tuple(shape)
    scales = call.sizes(1 if call.op == "Upsample" else 2)
    for axis, scale in zip(axes, scales, strict=True):
        if type(scale) is Dim:
            raise Undecided("a scale is a size")
        ratio = Fraction(scale).limit_denominator(1 << 10)
        if float(np.float32(float(ratio))) != float(np.float32(scale)):
            raise Undecided("a scale is no simple fraction")
        shape[axis] = shape[axis] * ratio.numerator // ratio.denominator
    return tuple(shape)


def _window(call: Call, kernel: tuple) -> list:
    """Return the number of window positions on each spatial axis (axes from 2 on)."""
    sides = call.shapes[0][2:]
    attributes, n = call.attributes, len(sides)
    strides, dilations = (attributes.get(name, (1,) * n) for name in ("strides", "dilations"))
    pads, mode = attributes.get("pads", (0,) * 2 * n), attributes.get("auto_pad", b"NOTSET")
    result = []
    for k, side in enumerate(sides):
        if mode in (b"SAME_UPPER", b"SAME_LOWER"):
            result.append((side + strides[k] - 1) // strides[k])
            continue
        around = 0 if mode == b"VALID" else pads[k] + pads[n + k]
        room = side + around - (dilations[k] * (kernel[k] - 1) + 1)
        if attributes.get("ceil_mode", 0):
            up = (room + strides[k] - 1) // strides[k]
            begun = 0 if mode == b"VALID" else pads[k]
            result.append(up + 1 if up * strides[k] < side + begun else up)  # Every window must begin in the image.
        else:
            result.append(room // strides[k] + 1)
    return result


def _conv(call: Call) -> tuple:
    weight = call.shapes[1]
    return (call.shapes[0][0], weight[0], *_window(call, call.attributes.get("kernel_shape") or weight[2:]))


def _pool(call: Call) -> tuple:
    return (*call.shapes[0][:2], *_window(call, call.attributes["kernel_shape"]))


def _conv_transpose(call: Call) -> tuple:
    shape, weight, attributes = call.shapes[0], call.shapes[1], call.attributes
    n, kernel = len(shape) - 2, attributes.get("kernel_shape") or weight[2:]
    if attributes.get("output_shape") or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise Undecided("a transposed convolution pads by itself")
    strides, dilations = (attributes.get(name, (1,) * n) for name in ("strides", "dilations"))
    pads, more = attributes.get("pads", (0,) * 2 * n), attributes.get("output_padding", (0,) * n)
    sides = [
        strides[k] * (shape[2 + k] - 1) + more[k] + dilations[k] * (kernel[k] - 1) + 1 - pads[k] - pads[n + k]
        for k in range(n)
    ]
    return (shape[0], weight[1] * attributes.get("group", 1), *sides)


def _depth_to_space(call: Call) -> tuple:
    (batch, channels, height, width), block = call.shapes[0], call.attributes["blocksize"]
    return batch, channels // (block * block), height * block, width * block


def _space_to_depth(call: Call) -> tuple:
    (batch, channels, height, width), block = call.shapes[0], call.attributes["blocksize"]
    return batch, channels * block * block, height // block, width // block


def _element_wise(call: Call) -> tuple:
    if None in call.shapes:
        raise Undecided("the shape of an input is not known")
    return broadcast(call.shapes)


def _matmul(call: Call) -> tuple:
    a, b = call.shapes
    if a is None or b is None:
        raise Undecided("the shape of an input is not known")
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()  # both empty for vectors
    return (*broadcast([a[:-2], b[:-2]]), *rows, *columns)


ELEMENT_WISE = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "Equal", "Less", "LessOrEqual", "Greater",
    "GreaterOrEqual", "And", "Or", "Xor", "Where", "BitShift", "PRelu",
)  # fmt: skip
_SHAPES: dict[str, Callable] = {
    "Concat": _concat, "Reshape": _reshape, "Flatten": _flatten, "Slice": _slice, "Expand": _expand, "Tile": _tile,
    "ConstantOfShape": lambda call: tuple(call.sizes(0)), "Range": _range, "Split": _split, "Pad": _pad,
    "Resize": _resize, "Upsample": _resize, "Conv": _conv, "FusedConv": _conv, "ConvTranspose": _conv_transpose,
    "MaxPool": _pool, "AveragePool": _pool, "LpPool": _pool, "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth, "MatMul": _matmul,
}  # fmt: skip
_SHAPES |= dict.fromkeys(ELEMENT_WISE, _element_wise)
