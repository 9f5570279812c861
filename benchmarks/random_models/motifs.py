"""Motifs of random models: substructures that rules match, almost match or produce.

A motif is a function of a `Sketch` that draws nodes, that is, adds them to the sketch. Most motifs choose at random
between forms that a rule matches and similar forms that the rule must refuse. Attributes, the order of operands and
broadcast shapes are random, too, if they do not matter to the rule. This module has motifs of element-wise operators,
of layout and of reductions, and helpers for all motifs. The other motifs are in modules named after their subject.
"""

from math import prod

import numpy as np
from onnx import helper

from benchmarks.random_models.sketch import Misfit, Sketch, Tensor

# -- parts of motifs -------------------------------------------------------------------------------


def scalar(s: Sketch, x: Tensor, value: float) -> Tensor:
    """Return a constant of shape () with the data type of x."""
    return s.constant(np.asarray(value, x.dtype))


def without_double(s: Sketch) -> None:
    """Raise Misfit if the sketch is in float64, for which ONNX Runtime has no kernels of operators such as Gelu."""
    if s.float == np.float64:
        raise Misfit


def calm(s: Sketch, x: Tensor, bound: float) -> Tensor:
    """Return x if its elements are at most `bound` in absolute value, otherwise draw and return Tanh of x."""
    return s.op("Tanh", x, bound=1) if x.bound > bound else x


def positive(s: Sketch, x: Tensor) -> Tensor:
    """Draw |x|, sigmoid(x) or x², plus 0.5, 1 or 2.

    The elements of the result are at least 0.5, so roots and quotients of the result amplify no rounding error.
    """
    kind = s.pick(["Abs", "Sigmoid", "Mul"] if x.bound <= 12 else ["Abs", "Sigmoid"])
    y = s.op("Mul", x, x) if kind == "Mul" else one(s, kind, x)
    return commuted(s, "Add", y, scalar(s, x, s.pick([0.5, 1.0, 2.0])))


def commuted(s: Sketch, kind: str, x: Tensor, y: Tensor) -> Tensor:
    return s.op(kind, y, x) if s.chance(0.3) else s.op(kind, x, y)


def operand(s: Sketch, x: Tensor, positive: bool = False) -> Tensor:
    """Return a weight of a random shape that broadcasts against x, mostly to the shape of x.

    Args:
        s: the sketch.
        x: the other operand.
        positive: True for positive elements only.
    """
    rank, shape = len(x.shape), x.shape
    forms = [(), (), (1,), shape, shape[-1:], tuple(n if s.chance(0.5) else 1 for n in shape)]
    if rank > 1:
        channels = (shape[1], *[1] * (rank - 2))
        forms += [channels, (1, *channels)] * (3 if rank > 2 else 1)
    if s.chance(0.05):
        forms = [(2, *shape), (1, *shape), (1,) * (rank + 1)]
    return s.weight(s.pick(forms), dtype=x.dtype, positive=positive)


def with_constant(s: Sketch, x: Tensor, kind: str) -> Tensor:
    """Draw Add, Sub, Mul or Div of x and a constant. With probability 0.12 the constant is neutral (0 or 1).

    Args:
        s: the sketch.
        x: the tensor.
        kind: the operator.
    """
    if s.chance(0.12):
        neutral = 0 if kind in ("Add", "Sub") else 1
        c = s.constant(np.full(s.pick([(), (1,), (1,) * len(x.shape)]), neutral, x.dtype))
        return s.op(kind, x, c, bound=x.bound)
    if kind == "Div":
        c = operand(s, x, positive=True)
        return s.op("Div", x, c, bound=2 * x.bound)
    c = operand(s, x)
    return s.op("Sub", x, c) if kind == "Sub" and s.chance(0.8) else commuted(s, kind, x, c)


# -- element-wise ----------------------------------------------------------------------------------


def constants_chain(s: Sketch) -> None:
    x, kind = s.number(), s.pick(["Add", "Mul", "Sub", "Div"])
    for _ in range(int(s.rng.integers(1, 4))):
        x = with_constant(s, x, kind)
        kind = kind if s.chance(0.5) else s.pick(["Add", "Mul", "Sub", "Div"])


def two(s: Sketch) -> None:
    x = s.number()
    y = s.like(x) if s.chance(0.8) else s.input([n if s.chance(0.5) else 1 for n in x.shape], x.dtype)
    commuted(s, s.pick(["Add", "Mul", "Sub"]), x, y)


def several(s: Sketch) -> None:
    """Draw Sum, Max or Min of one to four tensors of equal shape."""
    x = s.real(empty=True)
    kinds = ["Sum", "Sum", "Max", "Min"] if s.float != np.float64 or s.opset < 13 else ["Sum", "Max"]
    s.op(s.pick(kinds), x, *(s.like(x) for _ in range(s.pick([0, 0, 1, 1, 1, 2, 3]))))


def constant_outward(s: Sketch) -> None:
    """Draw (x + c) + y or (x + c) · d with constants c and d; some sums are products instead."""
    x = s.number()
    inner = with_constant(s, x, s.pick(["Add", "Add", "Mul"]))
    if s.chance(0.5):
        commuted(s, s.pick(["Add", "Add", "Mul"]), inner, s.like(inner))
    else:
        commuted(s, "Mul", inner, operand(s, inner))


def factored(s: Sketch) -> None:
    """Draw x·d + y·d or, less often, x·d + y·e with constants d and e."""
    x = s.number()
    y, d = s.like(x), operand(s, x)
    e = d if s.chance(0.8) else operand(s, x)
    commuted(s, "Add", commuted(s, "Mul", x, d), commuted(s, "Mul", y, e))


def unary(s: Sketch) -> None:
    kind = s.pick(["Relu", "Relu", "Neg", "Identity", "Abs", "Sigmoid", "Tanh", "Clip", "Dropout", "Softmax"])
    x = s.real(low=1, empty=kind != "Softmax") if kind in ("Sigmoid", "Tanh", "Softmax") else s.number()
    if x.dtype.kind == "i" and kind not in ("Neg", "Identity", "Abs"):
        if kind != "Relu" or x.dtype != np.int32 or s.opset < 14:
            raise Misfit
    for _ in range(s.pick([1, 1, 2])):
        x = one(s, kind, x)


def one(s: Sketch, kind: str, x: Tensor) -> Tensor:
    match kind:
        case "Clip" if s.opset < 12 and x.dtype == np.float64:
            raise Misfit  # ONNX Runtime has no kernel
        case "Clip":
            low, high = (np.asarray(v, x.dtype) if s.chance(0.8) else None for v in (s.pick([0.0, -0.5]), 1.5))
            return s.op("Clip", x, late={"min": low, "max": high})
        case "Dropout":
            late = {"ratio": np.asarray(0.25, x.dtype)} if s.chance(0.4) else {}
            mask, unnamed = s.chance(0.3), s.chance(0.5)
            outputs = s.op("Dropout", x, late=late, outputs=1 + mask, omitted=[1] if unnamed else [])
            return outputs[0] if isinstance(outputs, list) else outputs
        case "Softmax":
            return s.op("Softmax", x, axis=s.pick([-1, len(x.shape) - 1, 0, 1 if len(x.shape) > 1 else 0]), bound=1)
        case "Sigmoid" | "Tanh":
            return s.op(kind, x, bound=1)
    return s.op(kind, x)


def square(s: Sketch) -> None:
    x = s.number()
    if x.bound > 12:
        raise Misfit
    if s.chance(0.4):
        s.op("Mul", x, x)
    elif x.dtype.kind == "f" or s.opset >= 12:
        dtype = x.dtype if s.opset < 12 or s.chance(0.7) else s.pick(["int64", "float32"])
        exponent = s.constant(np.full(s.pick([(), (), (1,), x.shape[-1:]]), s.pick([2, 2, 2, 1]), dtype))
        s.op("Pow", x, exponent, bound=max(x.bound**2, x.bound))


def choice(s: Sketch) -> None:
    """Draw Where with a condition that compares x with a constant."""
    x = s.number()
    y = s.like(x)
    if not x.exact and x.dtype.kind == "f":  # this result is continuous where rounding can change the condition
        threshold = s.constant(np.asarray(0.25, x.dtype))
        s.op("Where", s.op("Less", x, threshold), threshold, x, bound=max(x.bound, 1))
    else:
        compared = s.op(s.pick(["Less", "Greater"]), x, s.constant(np.asarray(1, x.dtype)))
        s.op("Where", compared, x, y, bound=max(x.bound, y.bound))


# Data type → data types to which a cast loses no information for the values of a sketch.
WIDER = {
    "float16": ["float32", "float64"], "float32": ["float64"], "float64": [], "int32": ["int64", "float64"],
    "int64": ["float64"],
}  # fmt: skip


def casts(s: Sketch) -> None:
    """Draw one Cast, or two in a row.

    Only exact floating-point tensors are cast to a smaller type, because a cast could enlarge a rounding error.
    """
    x = s.number()
    wider = WIDER[x.dtype.name]
    narrower = ["float32", "float16"] if x.exact and x.dtype.kind == "f" else ["float32"] if x.dtype.kind == "i" else []
    first = s.pick((wider * 2 + narrower) or [x.dtype.name])
    y = casted(s, x, first if s.chance(0.9) else x.dtype.name)
    if s.chance(0.6):
        casted(s, y, s.pick([x.dtype.name, x.dtype.name, first, *wider]))


def casted(s: Sketch, x: Tensor, dtype: str) -> Tensor:
    return s.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def clamps(s: Sketch) -> None:
    """Draw two or three clamps in a row; each is a Relu, or a Clip with or without an upper bound."""
    x = s.real(empty=True)
    for _ in range(s.pick([2, 2, 3])):
        if s.chance(0.4):
            x = s.op("Relu", x)
        elif s.opset < 12 and x.dtype == np.float64:
            raise Misfit  # ONNX Runtime has no kernel
        else:
            low, high = s.pick([(0.0, 1.5), (0.0, 1.5), (0.0, 1.0), (-0.5, 0.125), (0.25, 1.0)])
            x = s.op(
                "Clip",
                x,
                late={"min": np.asarray(low, x.dtype), "max": np.asarray(high, x.dtype) if s.chance(0.8) else None},
            )


def clamped_sum(s: Sketch) -> None:
    """Draw relu(relu(x) + relu(y)), or a look-alike: relu(relu(x) + y) or relu(relu(x) - relu(y)).

    Only in the first form is the outer Relu redundant.
    """
    x = s.real()
    y = s.op("Relu", s.like(x)) if s.chance(0.85) else s.like(x)
    s.op("Relu", commuted(s, "Add" if s.chance(0.85) else "Sub", s.op("Relu", x), y))


def equals(s: Sketch) -> None:
    """Draw the same activation of one tensor two or three times; some of them are replaced by Neg."""
    x, kind = s.real(low=1), s.pick(["Relu", "Sigmoid", "Sigmoid", "Tanh"])
    for _ in range(s.pick([2, 2, 3])):
        one(s, kind if s.chance(0.9) else "Neg", x)


# -- layout ----------------------------------------------------------------------------------------


def transpose(s: Sketch, x: Tensor, perm: list[int] | None) -> Tensor:
    return s.op("Transpose", x, perm=perm) if perm is not None else s.op("Transpose", x)


def perm_of(s: Sketch, rank: int) -> list[int] | None:
    return None if s.chance(0.2) else list(range(rank)) if s.chance(0.1) else s.permutation(rank)


def between(s: Sketch, x: Tensor) -> Tensor:
    """Return x or, at random, the output of an element-wise operator on x that commutes with Transpose and Reshape."""
    activations = ["Relu", "Relu", "Sigmoid", "Tanh"] if x.shape else ["Relu"]
    return s.pick([
        lambda: x, lambda: x,
        lambda: one(s, s.pick(activations), x) if x.dtype.kind == "f" else x,
        lambda: commuted(s, s.pick(["Mul", "Mul", "Add"]), x, s.weight(s.pick([(), (1,), (1, 1)]), dtype=x.dtype)),
    ])()  # fmt: skip


def transposes(s: Sketch) -> None:
    x = between(s, s.number(low=1))
    for _ in range(int(s.rng.integers(1, 4))):
        x = between(s, transpose(s, x, perm_of(s, len(x.shape))))


def reshape(s: Sketch, x: Tensor, sizes) -> Tensor:
    return s.op("Reshape", x, s.constant(np.array(sizes, np.int64)), bound=x.bound)


def shape_for(s: Sketch, x: Tensor) -> list[int]:
    """Return a shape for Reshape that keeps the number of elements of x; some sizes are written as -1 or 0."""
    if s.chance(0.2):
        return list(x.shape)
    if prod(x.shape) == 0:
        return [0, *x.shape[1:]][: len(x.shape)]
    left, sizes = prod(x.shape), []
    for _ in range(int(s.rng.integers(0, 3))):
        sizes.append(s.pick([n for n in (1, 2, 3, 4, 6) if left % n == 0]))
        left //= sizes[-1]
    sizes = [sizes[k] for k in s.permutation(len(sizes))]
    sizes.insert(int(s.rng.integers(len(sizes) + 1)), -1 if s.chance(0.5) else left)
    return [0 if k < len(x.shape) and n == x.shape[k] and s.chance(0.3) else n for k, n in enumerate(sizes)]


def reshapes(s: Sketch) -> None:
    x = between(s, s.number())
    for _ in range(int(s.rng.integers(1, 4))):
        if s.chance(0.2) and x.shape:
            axis = s.pick([None, 1, 1, int(s.rng.integers(len(x.shape) + 1))])
            x = between(s, s.op("Flatten", x) if axis is None else s.op("Flatten", x, axis=axis))
        else:
            x = between(s, reshape(s, x, shape_for(s, x)))


def squeezes(s: Sketch) -> None:
    """Draw Unsqueeze, then Squeeze of the same or of another axis, then perhaps Unsqueeze again."""
    x = s.number(high=3)
    axes = sorted(s.permutation(len(x.shape) + 1)[: s.pick([1, 1, 2])])
    x = s.op("Unsqueeze", x, late={"axes": np.array(axes)})
    if s.chance(0.3):
        x = s.op("Neg", x)
    ones = [k for k, n in enumerate(x.shape) if n == 1]
    others = [s.pick(ones)] if s.chance(0.3) else axes
    y = s.op("Squeeze", x, late={"axes": np.array(others)} if s.chance(0.9) else {})
    if s.chance(0.6):
        again = others if s.chance(0.8) and max(others) < len(y.shape) + len(others) else [0]
        s.op("Unsqueeze", y, late={"axes": np.array(again)})


def transposed_sum(s: Sketch) -> None:
    x = s.number(low=1)
    y, perm = s.like(x), perm_of(s, len(x.shape))
    other = perm if s.chance(0.8) else perm_of(s, len(x.shape))
    commuted(s, s.pick(["Add", "Add", "Mul"]), transpose(s, x, perm), transpose(s, y, other))


def moves(s: Sketch) -> None:
    """Draw one operator that moves or copies elements: Gather, Slice, Expand, Tile or Pad."""
    x = s.number(low=1)
    axis = int(s.rng.integers(len(x.shape)))
    size = x.shape[axis]
    match s.pick(["gather", "slice", "expand", "tile", "pad", "shuffle"]):
        case "gather" if size:
            rows = np.asarray(s.rng.integers(0, size, s.pick([(), (2,), (2, 2)])))
            s.op("Gather", x, s.constant(rows), axis=axis, bound=x.bound)
        case "slice":
            bounds = {"starts": [int(size > 1)], "ends": [size], "axes": [axis]}
            s.op("Slice", x, late={name: np.array(value) for name, value in bounds.items()})
        case "expand":
            sizes = [n if n != 1 else s.pick([1, 2, 3]) for n in x.shape]
            s.op("Expand", x, s.constant(np.array(sizes)), bound=x.bound)
        case "tile":
            s.op("Tile", x, s.constant(np.array([s.pick([1, 1, 2]) for _ in x.shape], np.int64)), bound=x.bound)
        case "pad" if x.dtype == s.float:
            late = {"pads": s.rng.integers(0, 2, 2 * len(x.shape))}
            s.op("Pad", x, late=late | ({"value": np.asarray(0.5, x.dtype)} if s.chance(0.5) else {}))
        case "shuffle":
            s.op("Gather", x, s.constant(np.array(s.permutation(size), np.int64)), axis=axis, bound=x.bound)


def moved(s: Sketch) -> None:
    """Draw a Transpose before or after a Softmax or a reduction along one axis."""
    x = s.real(low=2)
    perm, kind = perm_of(s, len(x.shape)), s.pick(["Softmax", "Softmax", "ReduceMean", "ReduceSum"])
    if s.chance(0.5):
        over_axis(s, kind, transpose(s, x, perm))
    else:
        transpose(s, over_axis(s, kind, x), perm)


def over_axis(s: Sketch, kind: str, x: Tensor) -> Tensor:
    axis = int(s.rng.integers(-len(x.shape), len(x.shape)))
    if kind == "Softmax":
        return s.op("Softmax", x, axis=axis, bound=1)
    return reduced(s, kind, x, [axis], keepdims=1)


def reduced(s: Sketch, kind: str, x: Tensor, axes: list[int] | None, **keep) -> Tensor:
    """Draw a reduction.

    Args:
        s: the sketch.
        kind: the operator, for instance "ReduceSum".
        x: the tensor.
        axes: the reduced axes; None for all axes.
        keep: the attribute `keepdims`, or nothing for its default 1.
    """
    summands = prod(x.shape if axes is None else [x.shape[axis] for axis in axes]) if kind == "ReduceSum" else 1
    return s.op(kind, x, late={} if axes is None else {"axes": np.array(axes)}, bound=x.bound * summands, **keep)


def reduction(s: Sketch) -> None:
    x = s.real(low=1)
    axes = sorted(s.permutation(len(x.shape))[: s.pick([1, 1, 2])])
    keep = {} if s.chance(0.4) else {"keepdims": s.pick([0, 1])}
    if s.chance(0.4):
        axes = [axis - len(x.shape) for axis in axes]
    reduced(s, s.pick(["ReduceMean", "ReduceSum", "ReduceMax"]), x, axes if s.chance(0.9) else None, **keep)


def reductions(s: Sketch) -> None:
    """Draw a reduction, then another reduction, a Squeeze, or a division by the number of reduced elements."""
    x, kind = s.real(low=1), s.pick(["ReduceMean", "ReduceSum", "ReduceSum", "ReduceMax"])
    axes = s.permutation(len(x.shape))
    first, second = sorted(axes[: s.pick([1, 1, 2])]), axes[-1:]
    y = reduced(s, kind, x, first, keepdims=0 if s.chance(0.1) else 1)
    count = prod(x.shape[axis] for axis in first)
    match s.pick(["again", "again", "squeeze", "mean"]):
        case "again" if second[0] >= len(y.shape):
            raise Misfit
        case "again":
            reduced(s, kind if s.chance(0.9) else "ReduceMax", y, second, keepdims=1)
        case "squeeze":
            gone = first if s.chance(0.85) else second
            if max(gone) >= len(y.shape):  # which shape inference does not mind before opset 13
                raise Misfit
            s.op("Squeeze", y, late={"axes": np.array(gone)})
        case "mean":
            s.op("Div", y, scalar(s, x, count if s.chance(0.85) else 2), bound=y.bound)


def top(s: Sketch) -> None:
    """Draw TopK with k = 1; the model may use one or both outputs."""
    x = s.real(low=1)
    if x.exact:
        s.op("TopK", x, late={"k": np.array([1], np.int64)}, outputs=2, axis=-1, bound=max(x.bound, x.shape[-1]))

MOTIFS = {  # motif → relative frequency
    constants_chain: 6, two: 3, several: 2, constant_outward: 3, factored: 2, unary: 6, square: 2, choice: 1, casts: 1,
    clamps: 1.5, clamped_sum: 0.7, equals: 0.7,
    transposes: 4, reshapes: 4, squeezes: 3, transposed_sum: 2, moves: 3, moved: 1, reduction: 2, reductions: 2,
    top: 0.5,
}  # fmt: skip
