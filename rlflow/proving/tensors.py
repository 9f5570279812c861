"""Define the tensors, attributes and broadcasting that the operator definitions use (rlflow.proving.semantics)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onnx import TensorProto

from rlflow.rules.expressions import FLOATS


@dataclass(frozen=True)
class Tensor:
    """A shape and a function from an index to an element.

    Attributes:
      shape: the size of each axis, an integer or an unknown integer of the algebra.
      at: a function from an index (one integer per axis) to the element there.
      dtype: a data type of onnx.TensorProto; only Cast, Div, Pow and ReduceMean compute differently for some types.
      content: the elements as integers if the tensor is a list such as a shape, axes or pads; else None.
      flat: a function from a row-major position to the element there; None if only `at` is defined.
      origin: the data type before a Cast that kept all values, or None if there was no such Cast.
      below: for a tensor of unknown indices, a size with -below ≤ element < below; else None.
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
    """The attributes of one operator: `a("axis", 0)` returns the value of `axis`, or 0 if it is absent.

    Args:
      sources: mappings from attribute names to values; the first mapping that has a name gives its value.
    """

    def __init__(self, *sources):
        self.sources = sources

    def __call__(self, name: str, default=None):
        return next((source[name] for source in self.sources if name in source), default)


def listed(m, content: tuple) -> Tensor:
    """Return the int64 tensor of rank 1 that holds the given integers.

    Args:
      m: the algebra, which chooses the element at an unknown index.
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
      m: the algebra, which receives the requirement that two sizes of an axis are equal or one of them is 1.
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
    """Return the element at index `i` of a tensor that is broadcast to the shape `whole`.

    Args:
      m: the algebra.
      t: the tensor before broadcasting.
      i: the index, with one integer per axis of `whole`.
      whole: the shape after broadcasting.
    """
    skip = len(i) - t.rank
    return t.at(tuple(map(m.broadcast_index, t.shape, whole[skip:], i[skip:])))


def pointwise(m, f: Callable, *tensors: Tensor) -> Tensor:
    """Broadcast tensors to one shape and apply a function elementwise.

    Args:
      m: the algebra.
      f: a function that takes one element of each tensor and returns an element of the result.
      tensors: the tensors; the result has the data type of the first tensor.
    """
    if len(tensors) == 1:
        return Tensor(tensors[0].shape, lambda i: f(tensors[0].at(i)), tensors[0].dtype)
    shape = broadcast_shape(m, *tensors)
    return Tensor(shape, lambda i: f(*(read(m, t, i, shape) for t in tensors)), tensors[0].dtype)


def require_not_enlarging(m, small: Tensor, large: Tensor) -> None:
    """Require that `small` broadcasts to the shape of `large` and does not enlarge it.

    Args:
      m: the algebra that receives the requirements on ranks and sizes.
      small: the tensor that may be broadcast.
      large: the tensor whose shape must be the shape of the result.
    """
    m.require(small.rank <= large.rank)
    for size, whole in zip(small.shape, large.shape[large.rank - small.rank :], strict=True):
        m.require((size == 1) | (size == whole))
