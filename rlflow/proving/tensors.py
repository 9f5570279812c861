"""What the definitions of rlflow.proving.semantics are written in: tensors, attributes, broadcasting."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onnx import TensorProto

from rlflow.rules.expressions import FLOATS


@dataclass(frozen=True)
class Tensor:
    """`at` gives the element at an index, `content` the integers of a shape or a list of axes, if known.

    Attributes:
      dtype: of onnx.TensorProto; only Cast and the division of integers depend on it.
      flat: the element at a position in row-major order; None where that follows from `at`.
      origin: a narrower data type that has all of its numbers, too.
      below: of indices that are not known: a size with -below ≤ index < below.
    """

    shape: tuple
    at: Callable[[tuple], Any]
    dtype: int = TensorProto.FLOAT
    content: tuple | None = None
    flat: Callable | None = None
    origin: int | None = None
    below: Any = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def floats(self) -> bool:
        return self.dtype in FLOATS


class Attributes:
    """The attributes of one operator; `a("axis", 0)` is the value, or what it is by default."""

    def __init__(self, *sources):
        self.sources = sources

    def __call__(self, name: str, default=None):
        return next((source[name] for source in self.sources if name in source), default)


def listed(m, content: tuple) -> Tensor:
    """The int64 tensor of one axis that holds these integers."""

    def at(i):
        *others, result = content
        for k in reversed(range(len(others))):
            result = m.choose(i[0] == k, others[k], result)
        return result

    return Tensor((len(content),), at, TensorProto.INT64, content)


def broadcast_shape(m, *tensors: Tensor) -> tuple:
    """The common shape; sizes that differ must be 1."""
    rank, result = max(t.rank for t in tensors), []
    for axis in range(-rank, 0):
        first, *others = (t.shape[axis] for t in tensors if t.rank >= -axis)
        size = first
        for other in others:
            m.require((other == size) | (other == 1) | (size == 1))
            size = m.wider(size, other)
        result.append(size)
    return tuple(result)


def read(m, t: Tensor, i: tuple, whole: tuple):
    """The element of `t` that meets index i of a tensor of shape `whole`, which `t` is broadcast to."""
    skip = len(i) - t.rank
    return t.at(tuple(map(m.met, t.shape, whole[skip:], i[skip:])))


def pointwise(m, f: Callable, *tensors: Tensor) -> Tensor:
    if len(tensors) == 1:
        return Tensor(tensors[0].shape, lambda i: f(tensors[0].at(i)), tensors[0].dtype)
    shape = broadcast_shape(m, *tensors)
    return Tensor(shape, lambda i: f(*(read(m, t, i, shape) for t in tensors)), tensors[0].dtype)


def only_as(m, small: Tensor, large: Tensor) -> None:
    """Requires that `small` broadcasts to the shape of `large` without enlarging it."""
    m.require(small.rank <= large.rank)
    for size, whole in zip(small.shape, large.shape[large.rank - small.rank :], strict=True):
        m.require((size == 1) | (size == whole))
