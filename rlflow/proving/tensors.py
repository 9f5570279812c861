"""Define tensors, attributes and broadcasting for the operator definitions of rlflow.proving.semantics."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onnx import TensorProto

from rlflow.rules.expressions import FLOATS


@dataclass(frozen=True)
class Tensor:
    """A shape and a function from an index to an element.

    Attributes:
      shape: one size of the algebra per axis.
      at: returns the element at an index.
      dtype: a data type of onnx.TensorProto; only Cast and the division of integers depend on it.
      content: the integers of a shape or a list of axes; None if they are not known.
      flat: returns the element at a row-major position; None if `at` is the only source of elements.
      origin: a narrower data type that can hold all elements, too, or None.
      below: for a tensor of unknown indices, a size with -below ≤ index < below.
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
        """True if the data type is a floating-point type."""
        return self.dtype in FLOATS


class Attributes:
    """The attributes of one operator: `a("axis", 0)` returns the value of `axis`, or 0 if it is absent."""

    def __init__(self, *sources):
        self.sources = sources

    def __call__(self, name: str, default=None):
        return next((source[name] for source in self.sources if name in source), default)


def listed(m, content: tuple) -> Tensor:
    """Return the int64 tensor of rank 1 that holds the given integers.

    Args:
      m: the algebra.
      content: the integers.
    """

    def at(i):
        *others, result = content
        for k in reversed(range(len(others))):
            result = m.choose(i[0] == k, others[k], result)
        return result

    return Tensor((len(content),), at, TensorProto.INT64, content)


def broadcast_shape(m, *tensors: Tensor) -> tuple:
    """Return the common shape of tensors under NumPy broadcasting.

    Args:
      m: the algebra; it is required to have equal sizes or sizes of 1 along each axis.
      tensors: tensors of any ranks.
    """
    rank, result = max(t.rank for t in tensors), []
    for axis in range(-rank, 0):
        first, *others = (t.shape[axis] for t in tensors if t.rank >= -axis)
        size = first
        for other in others:
            m.require((other == size) | (other == 1) | (size == 1))
            size = m.broadcast_size(size, other)
        result.append(size)
    return tuple(result)


def read(m, t: Tensor, i: tuple, whole: tuple):
    """Return the element of a broadcast tensor.

    Args:
      m: the algebra.
      t: the tensor before broadcasting.
      i: an index into the broadcast tensor.
      whole: the shape of the broadcast tensor.
    """
    skip = len(i) - t.rank
    return t.at(tuple(map(m.broadcast_index, t.shape, whole[skip:], i[skip:])))


def pointwise(m, f: Callable, *tensors: Tensor) -> Tensor:
    """Apply a function to the elements of broadcast tensors.

    Args:
      m: the algebra.
      f: takes one element per tensor and returns an element.
      tensors: the inputs; the result has the data type of the first one.
    """
    if len(tensors) == 1:
        return Tensor(tensors[0].shape, lambda i: f(tensors[0].at(i)), tensors[0].dtype)
    shape = broadcast_shape(m, *tensors)
    return Tensor(shape, lambda i: f(*(read(m, t, i, shape) for t in tensors)), tensors[0].dtype)


def require_not_enlarging(m, small: Tensor, large: Tensor) -> None:
    """Require that `small` broadcasts to the shape of `large` and does not enlarge it.

    Args:
      m: the algebra that takes the requirement.
      small: the tensor that may be broadcast.
      large: the tensor whose shape must stay.
    """
    m.require(small.rank <= large.rank)
    for size, whole in zip(small.shape, large.shape[large.rank - small.rank :], strict=True):
        m.require((size == 1) | (size == whole))
