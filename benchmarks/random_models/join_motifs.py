"""Motifs of Concat and Split."""

import numpy as np

from benchmarks.random_models.motifs import commuted, perm_of, transpose
from benchmarks.random_models.sketch import Misfit, Sketch, Tensor


def signed(s: Sketch, axis: int, x: Tensor) -> int:
    return axis - len(x.shape) if s.chance(0.3) else axis


def split(s: Sketch, x: Tensor, axis: int, parts: int | None = None) -> list[Tensor]:
    """Draw a Split and return its results, with random sizes or as equal parts without the input `split`.

    Args:
        s: the sketch.
        x: the tensor.
        axis: the axis.
        parts: number of parts; None for two or three.

    Raises:
        Misfit: the axis has fewer elements than parts.
    """
    size, parts = x.shape[axis], parts or s.pick([2, 2, 2, 3])
    if size < parts:
        raise Misfit
    if size % parts == 0 and s.chance(0.15):
        counted = {"num_outputs": parts} if s.opset >= 18 else {}
        return s.op("Split", x, outputs=parts, axis=signed(s, axis, x), **counted)
    cuts = sorted(1 + k for k in s.permutation(size - 1)[: parts - 1])
    sizes = np.diff([0, *cuts, size])
    return s.op("Split", x, late={"split": sizes}, outputs=parts, axis=signed(s, axis, x))


def wide(s: Sketch) -> tuple[Tensor, int]:
    """Return a tensor and one of its axes of size 2 or more."""
    x = s.number(low=1)
    axes = [k for k, n in enumerate(x.shape) if n > 1]
    if not axes:
        x = s.input([4, 3], x.dtype)
        axes = [0, 1]
    return x, s.pick(axes)


def concat(s: Sketch, axis: int, *xs: Tensor) -> Tensor:
    return s.op("Concat", *xs, axis=signed(s, axis, xs[0]))


def split_concat(s: Sketch) -> None:
    x, axis = wide(s)
    parts = split(s, x, axis)
    if s.chance(0.3):
        parts = [parts[k] for k in s.permutation(len(parts))]
    if s.chance(0.4) and x.dtype.kind == "f":
        parts = [s.op("Relu", part) if s.chance(0.9) else part for part in parts]
    if s.chance(0.15):
        parts = parts[1:]
    concat(s, axis if s.chance(0.9) else int(s.rng.integers(len(x.shape))), *parts)


def relu_split(s: Sketch) -> None:
    x, axis = wide(s)
    if x.dtype.kind == "i":
        raise Misfit
    for part in split(s, x, axis):
        if s.chance(0.9):
            s.op("Relu", part)


def split_split(s: Sketch) -> None:
    x = s.real(low=1, high=3) if s.chance(0.5) else s.input([s.pick([4, 6, 8]), 2])
    axis = int(np.argmax(x.shape))
    parts = split(s, x, axis)
    inner = s.pick([k for k, part in enumerate(parts) if part.shape[axis] > 1] or [0])
    split(s, parts[inner], axis)


def split_of_concat(s: Sketch) -> None:
    x = s.number(low=1)
    axis = int(s.rng.integers(len(x.shape)))
    sizes = list(x.shape)
    sizes[axis] = s.pick([1, 2, 3])
    y = s.like(x) if s.chance(0.5) else s.input(sizes, x.dtype)
    joined = concat(s, axis, x, y)
    if s.chance(0.75):
        sizes = np.array([x.shape[axis], y.shape[axis]])
        s.op("Split", joined, late={"split": sizes}, outputs=2, axis=signed(s, axis, x))
    else:
        split(s, joined, axis, 2)


def transposed_split(s: Sketch) -> None:
    x, axis = wide(s)
    perm = perm_of(s, len(x.shape))
    for part in split(s, x, axis):
        transpose(s, part, perm if s.chance(0.9) else perm_of(s, len(x.shape)))


def concats(s: Sketch) -> None:
    """Draw a Concat of one to four tensors, some with Relu, then perhaps another Concat and a Relu."""
    x = s.number(low=1)
    axis = int(s.rng.integers(len(x.shape)))
    xs = [x, *(s.like(x) for _ in range(s.pick([0, 1, 1, 2])))]
    if x.dtype.kind == "f" and s.chance(0.4):
        xs = [s.op("Relu", y) if s.chance(0.85) else y for y in xs]
    joined = concat(s, axis, *xs)
    if s.chance(0.4):
        joined = concat(s, axis if s.chance(0.8) else 0, joined, x) if s.chance(0.5) else concat(s, axis, x, joined)
    if x.dtype.kind == "f" and s.chance(0.5):
        s.op("Relu", joined)


# -- two at once -----------------------------------------------------------------------------------


def two_splits(s: Sketch) -> None:
    """Draw a Split of each of two tensors, mostly with equal sizes, then Add, Mul or Concat of corresponding parts."""
    x, axis = wide(s)
    y = s.like(x)
    if s.chance(0.7):
        first = int(s.rng.integers(1, x.shape[axis]))
        sizes = np.array([first, x.shape[axis] - first])
        cut = [s.op("Split", t, late={"split": sizes}, outputs=2, axis=signed(s, axis, x)) for t in (x, y)]
    else:
        cut = [split(s, t, axis, 2) for t in (x, y)]
    kind, joint = s.pick(["Add", "Mul", "Concat"]), int(s.rng.integers(len(x.shape)))
    for parts in zip(*cut, strict=True):
        commuted(s, kind, *parts) if kind != "Concat" else concat(s, joint, *parts)


def changed_parts(s: Sketch) -> None:
    """Draw a Split into two parts, then Add or Mul of each part with its own weight or with one common tensor."""
    x, axis = wide(s)
    kind, shared = s.pick(["Add", "Mul"]), along(s, x, axis) if s.chance(0.35) else None
    for part in split(s, x, axis, 2):
        shape = [n if k == axis or s.chance(0.5) else 1 for k, n in enumerate(part.shape)]
        other = shared or s.weight(shape if s.chance(0.9) else shape[-1:], dtype=x.dtype)
        commuted(s, kind, part, other)


def along(s: Sketch, x: Tensor, axis: int) -> Tensor:
    """Return a weight or a new input that broadcasts against x and mostly has size 1 along the axis."""
    sizes = [n if k != axis and s.chance(0.5) else 1 for k, n in enumerate(x.shape)]
    sizes = sizes if s.chance(0.9) else x.shape
    return s.weight(sizes, dtype=x.dtype) if s.chance(0.5) else s.input(sizes, x.dtype)


def split_later(s: Sketch) -> None:
    """Draw a Split after a Concat and a Transpose, after a Relu, or after Add or Mul with a tensor that broadcasts."""
    x = s.number(low=1)
    axis, perm = int(s.rng.integers(len(x.shape))), s.permutation(len(x.shape))
    if s.chance(0.35):
        split(s, commuted(s, s.pick(["Add", "Mul"]), x, along(s, x, axis)), axis, 2)
    elif s.chance(0.75):
        y = transpose(s, concat(s, axis, x, s.like(x)), perm)
        at = perm.index(axis) if s.chance(0.85) else 0
        sizes = [x.shape[axis]] * 2 if perm[at] == axis and s.chance(0.85) else None
        s.op("Split", y, late={"split": np.array(sizes)}, outputs=2, axis=at) if sizes else split(s, y, at, 2)
    elif x.dtype.kind == "f":
        split(s, s.op("Relu", x), axis, 2)


def joined_pairs(s: Sketch) -> None:
    """Draw a Concat of two sums or products, or a sum or product of two Concats, of three or four tensors."""
    x, kind = s.number(low=1), s.pick(["Add", "Mul", "Mul"])
    y, z, w = (s.like(x) for _ in range(3))
    axis = int(s.rng.integers(len(x.shape)))
    if s.chance(0.2):
        z = x
    if s.chance(0.5):
        concat(s, axis, commuted(s, kind, x, y), commuted(s, kind if s.chance(0.9) else "Sub", z, w))
    else:
        other = axis if s.chance(0.85) else int(s.rng.integers(len(x.shape)))
        commuted(s, kind, concat(s, axis, x, y), concat(s, other, z, w))


def joined_twice(s: Sketch) -> None:
    """Draw a Concat of two Concats, with random axes."""
    x = s.number(low=1)
    y, z, w = (s.like(x) for _ in range(3))
    first, second = (int(s.rng.integers(len(x.shape))) for _ in range(2))
    concat(s, second, concat(s, first, x, y), concat(s, first if s.chance(0.9) else second, z, w))


JOIN_MOTIFS = {  # motif → relative frequency
    split_concat: 3, relu_split: 2, split_split: 2, split_of_concat: 2, transposed_split: 2, concats: 3,
    two_splits: 2, changed_parts: 2, split_later: 2, joined_pairs: 1.5, joined_twice: 1,
}  # fmt: skip
