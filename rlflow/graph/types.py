"""The type of a tensor: what its elements are, its shape, and what it holds where that follows from sizes."""

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import onnx

from rlflow.graph.dims import at


class TensorType(NamedTuple):
    """`dtype` is onnx.TensorProto.DataType; `shape` is None where it is not known, its sizes are int or Dim.

    `content`: the elements (int, Dim, float or bool) of a small computed tensor, in row-major order, where they follow
    from sizes; None where they do not, and for constants.
    """

    dtype: int
    shape: tuple | None
    content: tuple | None = None

    @property
    def size(self) -> int:
        """Number of elements (0 if the shape is unknown)."""
        return prod(self.shape) if self.shape is not None else 0

    @property
    def nbytes(self) -> int:
        return self.size * itemsize(self.dtype)

    def __repr__(self) -> str:
        held = f", content={self.content}" if self.content is not None else ""
        return f"TensorType(dtype={self.dtype}, shape={self.shape}{held})"


def itemsize(dtype: int) -> int:
    """Bytes per element of an ONNX data type (4 for types without a fixed width)."""
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(dtype)).itemsize
    except (KeyError, TypeError):
        return 4


class TypesAt(Mapping):
    """The types of a graph where its symbols have given sizes."""

    def __init__(self, types: dict[int, TensorType], sizes: Mapping[str, int]):
        self._types, self._sizes = types, tuple(sorted(sizes.items()))

    def __getitem__(self, tensor: int) -> TensorType:
        return _type_at(self._types[tensor], self._sizes)

    def __iter__(self):
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)


@lru_cache(maxsize=65536)
def _type_at(kind: TensorType, sizes: tuple[tuple[str, int], ...]) -> TensorType:
    known = dict(sizes)
    shape, content = (part and tuple([at(v, known) for v in part]) for part in (kind.shape, kind.content))
    return TensorType(kind.dtype, shape, content)
