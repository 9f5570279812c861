"""Motifs of shape arithmetic: operators that compute shapes from symbolic sizes, as exporters write them.

`Sketch.arrays` holds the value of each tensor that is computed from sizes, at the drawn sizes.
"""

import numpy as np
from onnx import TensorProto, helper

from benchmarks.random_models.motifs import commuted, scalar, transpose
from benchmarks.random_models.sketch import Misfit, Sketch, Tensor

# -- numbers made of sizes -------------------------------------------------------------------------


def known(s: Sketch, kind: str, *inputs: Tensor, holds, **attributes) -> Tensor:
    """Draw a node with one result and store the value of the result in `Sketch.arrays`.

    Args:
        s: the sketch.
        kind: the operator.
        inputs: the operands.
        holds: value of the result at the drawn sizes.
        attributes: further arguments of `Sketch.op`.
    """
    value = np.asarray(holds)
    made = s.op(kind, *inputs, bound=float(np.abs(value).max(initial=0)), **attributes)
    s.arrays[made.name] = value
    return made


def held(s: Sketch, x: Tensor) -> np.ndarray:
    return s.arrays[x.name]


def integers(s: Sketch, *numbers: int) -> Tensor:
    return s.constant(np.array(numbers, np.int64))


def shape_of(s: Sketch, x: Tensor) -> Tensor:
    return known(s, "Shape", x, holds=np.array(x.shape, np.int64))


def entry(s: Sketch, x: Tensor, axis: int, single: bool = False) -> Tensor:
    """Draw the size of x along an axis, by Shape and a Slice or Gather, as exporters do.

    Args:
        s: the sketch.
        x: the tensor.
        axis: the axis.
        single: True for a scalar, False for int64 [1].
    """
    shape, size = shape_of(s, x), np.int64(x.shape[axis])
    if single:
        return known(s, "Gather", shape, s.constant(np.int64(axis)), holds=size)
    if s.chance(0.4):
        late = {"starts": np.array([axis]), "ends": np.array([axis + 1]), "axes": np.array([0])}
        return known(s, "Slice", shape, late=late, holds=[size])
    if s.chance(0.5):
        return known(s, "Gather", shape, integers(s, axis), holds=[size])
    number = known(s, "Gather", shape, s.constant(np.int64(axis)), holds=size)
    return known(s, "Unsqueeze", number, late={"axes": np.array([0])}, holds=[size])


def reckoned(s: Sketch, size: Tensor) -> Tensor:
    """Return `size`, or draw (size · c) / c, (size + c) − c or a Cast, which have the same value."""
    value, c = held(s, size), s.constant(np.full(size.shape, s.pick([1, 2, 3]), np.int64))
    match s.pick(["as it is", "as it is", "product", "sum", "cast"]):
        case "product":
            product = known(s, "Mul", size, c, holds=value * held(s, c))
            return known(s, "Div", product, c, holds=value)
        case "sum":
            added = known(s, "Add", size, c, holds=value + held(s, c))
            return known(s, "Sub", added, c, holds=value)
        case "cast":
            return known(s, "Cast", size, to=TensorProto.INT64, holds=value)
    return size


def sizes_of(s: Sketch, *parts: Tensor | int) -> Tensor:
    """Draw a Concat of computed sizes (int64 [1]) and integers, and return its tensor, int64 [n]."""
    tensors = [integers(s, part) if isinstance(part, int) else reckoned(s, part) for part in parts]
    return known(s, "Concat", *tensors, axis=0, holds=np.concatenate([held(s, t) for t in tensors]))


def number_of(s: Sketch, size: Tensor, like: Tensor) -> Tensor:
    """Draw a Cast of a size to the data type of `like`."""
    to = helper.np_dtype_to_tensor_dtype(like.dtype)
    return s.op("Cast", size, to=to, bound=float(held(s, size).max()))


# -- what they steer -------------------------------------------------------------------------------


def states(s: Sketch) -> Tensor:
    """Return an existing tensor or a new input [batch, length, width], whose length and mostly batch are symbols."""
    sizes = list(s.symbols.values())
    return s.find(
        lambda t: t.dtype == s.float and len(t.shape) == 3 and t.shape[1] in sizes and t.shape[2] in (4, 6),
        lambda: s.input((s.pick([*sizes, 1, 2]), s.pick(sizes), s.pick([4, 6]))),
    )


def reshaped(s: Sketch, x: Tensor, sizes: Tensor) -> Tensor:
    return s.op("Reshape", x, sizes, bound=x.bound)


def computed_reshapes(s: Sketch) -> None:
    """Draw Reshapes to computed shapes, which split and merge attention heads, or merge and split two other axes."""
    x = states(s)
    batch, length, width = (entry(s, x, axis) for axis in range(3))
    if s.chance(0.5):
        y = reshaped(s, x, s.pick([
            lambda: sizes_of(s, batch, length, 2, -1), lambda: sizes_of(s, batch, -1, 2, x.shape[2] // 2),
            lambda: sizes_of(s, batch, length, 2, x.shape[2] // 2), lambda: sizes_of(s, 0, 0, 2, -1),
        ])())  # fmt: skip
        y = transpose(s, y, [0, 2, 1, 3])
        if s.chance(0.7):
            reshaped(s, transpose(s, y, [0, 2, 1, 3]), sizes_of(s, batch, length, s.pick([x.shape[2], -1])))
    else:
        y = reshaped(s, x, sizes_of(s, -1, width))
        y = s.op("Relu", y) if s.chance(0.5) else y
        reshaped(s, y, sizes_of(s, batch, s.pick([length, -1]), width))


def computed_attention(s: Sketch) -> None:
    """Draw attention with computed Reshapes, perhaps with a scale computed from a size and with a causal mask."""
    x = states(s)
    batch, length = entry(s, x, 0), entry(s, x, 1)
    depth = x.shape[2] // 2

    def apart(y: Tensor, perm: list[int]) -> Tensor:
        return transpose(s, reshaped(s, y, sizes_of(s, batch, s.pick([length, -1]), 2, depth)), perm)

    q, k, v = (s.op(s.pick(["Relu", "Neg", "Identity"]), x) for _ in range(3))
    q = apart(q, [0, 2, 1, 3])
    if s.chance(0.6):
        root = s.op("Sqrt", number_of(s, entry(s, q, 3), q), bound=2)
        q = s.op("Div", q, root, bound=q.bound)
    z = s.op("MatMul", q, apart(k, [0, 2, 3, 1]), bound=min(256, q.bound * k.bound * depth))
    if s.chance(0.5):
        z = commuted(s, "Add", z, mask(s, x))
    z = s.op("Softmax", z, axis=-1 if s.opset < 13 or s.chance(0.8) else 3, bound=1)
    z = s.op("MatMul", z, apart(v, [0, 2, 1, 3]), bound=v.bound)
    reshaped(s, transpose(s, z, [0, 2, 1, 3]), sizes_of(s, batch, length, s.pick([x.shape[2], -1])))


def positions(s: Sketch, x: Tensor, axis: int) -> Tensor:
    """Draw a Range from 0 to the size of x along an axis, exclusive: int64 [size]."""
    if s.opset < 11:
        raise Misfit
    size = entry(s, x, axis, single=True)
    return known(s, "Range", s.constant(np.int64(0)), size, s.constant(np.int64(1)), holds=np.arange(x.shape[axis]))


def mask(s: Sketch, x: Tensor) -> Tensor:
    """Draw a causal mask [length, length] of the data type of x: -8 for later positions, otherwise 0."""
    along = positions(s, x, 1)
    rows, columns = (s.op("Unsqueeze", along, late={"axes": np.array([axis])}) for axis in (1, 0))
    later = s.op("Less", rows, columns)
    return s.op("Where", later, scalar(s, x, -8.0), scalar(s, x, 0.0), bound=8)


def guarded_scores(s: Sketch) -> None:
    """Draw a Softmax of attention scores, perhaps masked, and then Where(IsNaN(p), 0, p), which replaces NaN by 0."""
    mask = s.pick(["none", "chosen", "stored"])
    length = s.symbols.get("seq", 3) if mask == "none" else 3  # a mask in a constant has a fixed size
    q, k = s.input((s.pick([1, 2]), 2, length, 4)), s.input((s.pick([1, 2]), 2, 4, length))
    z = s.op("MatMul", q, k, bound=16)
    chosen = s.rng.random((1, 1, s.pick([1, length]), length)) < 0.5
    match mask:
        case "chosen":
            z = s.op("Add", z, s.op("Where", s.constant(chosen), scalar(s, z, 0.0), scalar(s, z, -8.0), bound=8))
        case "stored":
            z = s.op("Add", z, s.constant(np.where(chosen, 0, -8).astype(z.dtype)), bound=8)
    p = s.op("Softmax", z, axis=s.pick([-1, 3]) if s.opset >= 11 else 3, bound=1)
    s.op("Where", s.op("IsNaN", p), scalar(s, p, s.pick([0.0, 0.0, 0.5])), p, bound=1)


def positions_added(s: Sketch) -> None:
    """Draw a tensor plus position / 8 along its length, or only the causal mask of a tensor."""
    x = states(s)
    if s.chance(0.4):
        mask(s, x)
        return
    along = s.op("Unsqueeze", number_of(s, positions(s, x, 1), x), late={"axes": np.array([1])})
    commuted(s, "Add", x, commuted(s, "Mul", along, scalar(s, x, 0.125)))


def expanded(s: Sketch) -> None:
    """Draw Expand to a computed shape. Half of these shapes are Where(shape == -1, ones, shape), as exporters write."""
    x = states(s)
    row = s.weight((1, 1, x.shape[2])) if s.chance(0.5) else s.input((1, x.shape[1], x.shape[2]))
    target = shape_of(s, x) if s.chance(0.4) else sizes_of(s, entry(s, x, 0), entry(s, x, 1), x.shape[2])
    if s.chance(0.5) and s.opset >= 11:
        shape, n = held(s, target), integers(s, 3)
        minus = s.attribute_tensor(np.array([1], np.int64))
        ones = known(s, "ConstantOfShape", n, holds=np.ones(3, np.int64), **minus)
        minus_one = s.constant(np.int64(-1))
        if s.chance(0.4):
            minus_one = known(s, "Mul", ones, minus_one, holds=-np.ones(3, np.int64))
        same = s.op("Equal", target, minus_one, bound=1)
        target = known(s, "Where", same, ones, target, holds=shape)
    y = s.op("Expand", row, target, bound=row.bound)
    if s.chance(0.6):
        commuted(s, s.pick(["Add", "Mul"]), x, y)


def filled(s: Sketch) -> None:
    """Draw a tensor plus or times a ConstantOfShape of its own shape."""
    x = states(s)
    number = s.pick([0.0, 1.0, 0.5])
    fill = s.op("ConstantOfShape", shape_of(s, x), bound=1, **s.attribute_tensor(np.array([number], x.dtype)))
    commuted(s, s.pick(["Add", "Mul"]), x, fill)


def cut_by_size(s: Sketch) -> None:
    """Draw a Slice with computed bounds.

    It cuts a table to the length of a tensor, or it removes the first half, the first position or all positions except
    the last one of a tensor.
    """
    x = states(s)
    length = entry(s, x, 1)
    axes, zero = integers(s, 1), integers(s, 0)
    if s.opset < 10:
        raise Misfit
    form = s.pick(["table", "table", "first", "last", "half"])
    if form == "table":
        table = s.weight((1, 40, x.shape[2]))
        commuted(s, "Add", x, s.op("Slice", table, zero, length, axes, bound=table.bound))
        return
    one = integers(s, 1)
    size = x.shape[1]
    if form == "first":
        s.op("Slice", x, one, length, axes, bound=x.bound)
    elif form == "last":
        s.op("Slice", x, known(s, "Sub", length, one, holds=[size - 1]), length, axes, bound=x.bound)
    else:
        half = known(s, "Div", length, integers(s, 2), holds=[size // 2])
        s.op("Slice", x, half, length, axes, bound=x.bound)


def cached(s: Sketch) -> None:
    """Draw a Concat of a past and a new tensor, then perhaps a Slice or a Reshape of it, or a use of its length."""
    x = states(s)
    past = s.input((x.shape[0], s.symbols.get("past", 3), x.shape[2]))
    joined = s.op("Concat", past, x, axis=1)
    match s.pick(["nothing", "cut", "number", "reshape"]):
        case "cut" if s.opset >= 10:
            s.op("Slice", joined, entry(s, past, 1), entry(s, joined, 1), integers(s, 1), bound=x.bound)
        case "number":
            commuted(s, "Mul", x, number_of(s, entry(s, joined, 1), x))
        case "reshape":
            reshaped(s, joined, sizes_of(s, entry(s, x, 0), entry(s, joined, 1), 2, -1))


def mean_by_count(s: Sketch) -> None:
    """Draw the mean over positions as ReduceSum, divided by the computed number of positions."""
    x = states(s)
    summed = s.op("ReduceSum", x, late={"axes": np.array([1])}, keepdims=1, bound=x.bound * x.shape[1])
    s.op("Div", summed, number_of(s, entry(s, x, 1), x), bound=x.bound)


SHAPE_MOTIFS = {  # motif → relative frequency
    computed_reshapes: 4, computed_attention: 3, positions_added: 2, expanded: 3, filled: 1.5, cut_by_size: 3,
    cached: 2, mean_by_count: 1.5, guarded_scores: 1.5,
}  # fmt: skip
