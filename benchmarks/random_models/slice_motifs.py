"""Motifs of Slice and Gather: slices of computed tensors, slices of slices, and several slices of one tensor."""

import numpy as np

from benchmarks.random_models.activation_motifs import without_double
from benchmarks.random_models.join_motifs import concat
from benchmarks.random_models.matrix_motifs import columns, fused_matmul, gemm, matmul, same_rows
from benchmarks.random_models.motifs import calm, commuted, perm_of, positive, reduced, scalar, transpose
from benchmarks.random_models.sketch import Misfit, Sketch, Tensor


def cut(s: Sketch, x: Tensor, axis: int, first: int, last: int) -> Tensor:
    """Draw a Slice of x along an axis, seldom with step 2.

    Args:
        s: the sketch.
        x: the tensor.
        axis: the axis.
        first: first index of the slice.
        last: end of the slice, exclusive.
    """
    late = {
        "starts": np.array([first]),
        "ends": np.array([last]),
        "axes": np.array([axis - len(x.shape) if s.chance(0.2) else axis]),
    }
    if s.opset < 10 or s.chance(0.85):
        return s.op("Slice", x, late=late)
    step = 1 if s.chance(0.8) else 2
    return s.op("Slice", x, *map(s.constant, late.values()), s.constant(np.array([step])), bound=x.bound)


def part(s: Sketch, x: Tensor, axis: int | None = None) -> Tensor:
    """Draw a Slice of x with random bounds along an axis; None stands for a random axis."""
    axis = int(s.rng.integers(len(x.shape))) if axis is None else axis
    size = x.shape[axis]
    if size == 0:
        raise Misfit
    first = int(s.rng.integers(size)) if s.chance(0.7) else 0
    return cut(s, x, axis, first, int(s.rng.integers(first, size)) + 1)


def sliced_curve(s: Sketch) -> None:
    x = s.real(low=1)
    kinds = ["Relu", "Tanh", "Sigmoid", "Sqrt", "Neg"]
    kinds += [] if s.float == np.float64 else ["Erf"] + ["Gelu"] * 3 * (s.opset >= 20)  # no kernels for float64
    kind = s.pick(kinds)
    if kind == "Sqrt":
        x = positive(s, calm(s, x, 8))
    part(s, s.op(kind, x, bound=max(x.bound, 1)))


def sliced_pair(s: Sketch) -> None:
    """Draw a Slice of Add, Sub, Mul, Div or Pow; the second operand may have size 1 along some axes."""
    kind = s.pick(["Add", "Sub", "Sub", "Mul", "Div", "Div", "Pow", "Pow"])
    x = s.real(low=1)
    if kind == "Pow":
        x = positive(s, calm(s, x, 1))
        exponents = s.rng.choice([0.5, 2.0, 1.0], [n if s.chance(0.4) else 1 for n in x.shape])
        y = s.op("Pow", x, s.constant(exponents, x.dtype), bound=x.bound**2)
    else:
        other = (
            s.like(x)
            if s.chance(0.5)
            else s.input([n if s.chance(0.4) else 1 for n in x.shape][int(s.chance(0.2)) :], x.dtype)
        )
        if kind == "Div":
            other = positive(s, calm(s, other, 8)) if other.shape else scalar(s, x, 0.5)
        y = s.op(kind, x, other, **{"bound": 2 * x.bound} if kind == "Div" else {})
    part(s, y)


def sliced_rows(s: Sketch) -> None:
    """Draw a Slice of an operator that mixes or moves elements: Softmax, a mean, a product, Transpose or Concat."""
    x = s.real(low=2, high=4)
    rank = len(x.shape)
    axis = int(s.rng.integers(rank))
    kinds = ["softmax", "mean", "matmul", "matmul", "transpose", "concat"] + ["norm"] * 2 * (s.opset >= 17)
    match s.pick(kinds):
        case "softmax":
            part(s, s.op("Softmax", x, axis=s.pick([-1, axis]), bound=1))
        case "mean":
            part(s, reduced(s, "ReduceMean", x, [axis], keepdims=1))
        case "norm":
            scales = [s.weight(x.shape[-1:]) for _ in range(s.pick([1, 2]))]
            y = s.op("LayerNormalization", x, *scales, epsilon=0.5, bound=max(10, 2 * x.shape[-1] ** 0.5 + 2))
            part(s, y)
        case "matmul":
            y = matmul(s, x, columns(s, x))
            part(s, y, len(y.shape) - s.pick([1, 2]) if len(y.shape) > 1 else 0)
        case "transpose":
            part(s, transpose(s, x, perm_of(s, rank)))
        case "concat":
            y, at = concat(s, axis, x, s.like(x)), int(s.rng.integers(2)) * x.shape[axis]
            last = int(s.rng.integers(1, x.shape[axis] + 1)) if s.chance(0.8) else x.shape[axis] + 1
            cut(s, y, axis, at, at + last)


def sliced_own(s: Sketch) -> None:
    """Draw a Slice, mostly of rows, of Gemm, FusedMatMul, BiasGelu or QuickGelu."""
    match s.pick(["gemm", "matmul", "bias", "quick"]):
        case "gemm":
            y = gemm(s, s.real(rank=2), {"transB": 1} if s.chance(0.4) else {})
        case "matmul":
            x = same_rows(s)
            y = fused_matmul(s, x, s.weight((x.shape[-1], s.pick([2, 3])), x.shape[-1]), s.pick([0.5, 1.5]))
        case "bias":
            without_double(s)
            x = s.real(low=2)
            y = s.op("com.microsoft.BiasGelu", x, s.weight(x.shape[-1:]), bound=x.bound + 2)
        case "quick":
            y = s.op("com.microsoft.QuickGelu", s.real(low=2), alpha=s.pick([1.0, 1.5]))
    part(s, y, len(y.shape) - (2 if s.chance(0.8) else 1))


def cuts(s: Sketch) -> None:
    """Draw two Slices along one axis: two equal ones, two that partition the tensor, or a Slice of a Slice."""
    x = s.number(low=1)
    axis = int(s.rng.integers(len(x.shape)))
    size = x.shape[axis]
    if size < 2:
        raise Misfit
    at = int(s.rng.integers(1, size))
    match s.pick(["same", "parts", "again"]):
        case "same":
            cut(s, x, axis, 0, at)
            cut(s, x, axis, 0, at if s.chance(0.85) else size)
        case "parts":
            cut(s, x, axis, 0, at)
            cut(s, x, axis, at if s.chance(0.85) else 0, size)
        case "again":
            part(s, cut(s, x, axis, 0, at))


def cuts_of_two(s: Sketch) -> None:
    """Draw Add or Mul of slices of two tensors, mostly with equal bounds."""
    x = s.number(low=1)
    y, axis = s.like(x), int(s.rng.integers(len(x.shape)))
    size = x.shape[axis]
    if size < 2:
        raise Misfit
    first = int(s.rng.integers(size - 1))
    other = first if s.chance(0.9) else 0
    commuted(s, s.pick(["Add", "Mul"]), cut(s, x, axis, first, first + 1), cut(s, y, axis, other, other + 1))


def choices(s: Sketch) -> None:
    """Draw one Gather or two in a row, each with one to three indices or a scalar index."""
    x = s.number(low=1)
    axis = int(s.rng.integers(len(x.shape)))
    for _ in range(s.pick([1, 2, 2, 2])):
        at = axis if s.chance(0.9) else 0
        if len(x.shape) <= at or x.shape[at] == 0:
            raise Misfit
        positions = s.rng.integers(0, x.shape[at], s.pick([(2,), (3,), (1,), ()]))
        x = s.op("Gather", x, s.constant(np.asarray(positions)), axis=at, bound=x.bound)


SLICE_MOTIFS = {  # motif → relative frequency
    sliced_curve: 2, sliced_pair: 2.5, sliced_rows: 2.5, sliced_own: 1, cuts: 1.5, cuts_of_two: 1, choices: 1,
}  # fmt: skip
