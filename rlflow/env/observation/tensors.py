"""What is seen of one tensor: its type, and its content where rules look at that."""

import struct
from functools import lru_cache
from math import log1p

from onnx import TensorProto

from rlflow.env.observation.scales import FINGERPRINT, exactly, fingerprint, is_exact, row_of
from rlflow.graph.dims import Dim
from rlflow.graph.model import Constant, Graph
from rlflow.graph.types import TensorType, itemsize
from rlflow.rules.apply import content_of_constant
from rlflow.rules.expressions import FLOATS

NUMBERS = frozenset((
    *FLOATS, TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
))  # fmt: skip
AXES = 6  # whose sizes have columns, the first ones
ELEMENTS = 8  # of a small content
LARGEST_POWER = 8  # of 2, by which a size is divisible

TYPE = slice(0, 7)  # known, constant, a weight or literal, data type (ONNX's number), float, bool, log2 of its bytes
RANK, SIZE = 7, 8  # axes, log(1 + elements); 0 if the shape is not known
SIZES = slice(9, 9 + AXES)  # log(1 + size) of each axis
POWERS = slice(15, 15 + AXES)  # the power of 2 by which the size is divisible, at most LARGEST_POWER
DEGREES = slice(21, 21 + AXES)  # degree of the size in the model's symbols, 0 for a number
LENGTH = 27  # 1 + log(1 + elements of a content that is seen), else 0
CONTENT = slice(28, 28 + ELEMENTS)  # `shown`
TENSOR_FEATURES = 36 + FINGERPRINT

Held = tuple[tuple | None, tuple]  # the numbers of a content that is seen, and what `fingerprint` is to take of it


def tensor_features(graph: Graph, view: Graph, tensor: int, shared: bool) -> bytes:
    """float32 [TENSOR_FEATURES] of one tensor.

    view: the graph at the typical sizes.  shared: of a large weight, whether other operators read an equal one.
    """
    kind, weight = graph.types.get(tensor), graph.constants.get(tensor)
    at = view.types[tensor] if kind is not None else None
    if weight is None:
        held = _computed(kind, at)
    elif is_large(weight):
        held = None, (weight.digest,) if shared else ()
    else:
        held = _literal(weight)
    return _features(kind, at, graph.is_constant(tensor), weight is not None, held)


def is_large(weight: Constant) -> bool:
    """Whether rules do not look at its content, but for whether another one's is equal."""
    return content_of_constant(weight) is True


def _computed(kind: TensorType | None, at: TensorType | None) -> Held:
    if kind is None or kind.content is None:
        return None, ()
    return at.content, () if _fits(kind.content) else exactly(kind.content)


@lru_cache(maxsize=4096)
def _literal(weight: Constant) -> Held:
    if weight.type.dtype not in NUMBERS:
        return None, (weight.digest,)
    held = tuple(weight.load().reshape(-1)[: ELEMENTS + 1].tolist())
    return held, () if _fits(held) else (weight.digest,)


def _fits(content: tuple) -> bool:
    return len(content) <= ELEMENTS and all(map(is_exact, content))


@lru_cache(maxsize=65536)
def _features(kind: TensorType | None, at: TensorType | None, constant: bool, weight: bool, held: Held) -> bytes:
    numbers, unsaid = held
    shape = kind.shape if kind is not None else None
    row = [float(shape is not None), float(constant), float(weight), *_data_type(kind)]
    sizes = at.shape if shape is not None else ()
    row += [float(len(sizes)), log1p(at.size if at is not None else 0)]
    row += _padded([log1p(max(size, 0)) for size in sizes])
    row += _padded([_power_of_2(size) for size in sizes])
    row += _padded([_degree(size) for size in shape or ()])
    row += [0.0] if numbers is None else [1 + log1p(at.size)]
    row += row_of(numbers or (), ELEMENTS)
    if shape is not None and (len(shape) > AXES or not all(map(is_exact, shape))):
        unsaid = (*unsaid, exactly(shape))
    return struct.pack(f"{TENSOR_FEATURES}f", *row, *fingerprint(unsaid))


def _data_type(kind: TensorType | None) -> tuple[float, ...]:
    if kind is None:
        return 0.0, 0.0, 0.0, 0.0
    bits = itemsize(kind.dtype).bit_length()
    return float(kind.dtype), float(kind.dtype in FLOATS), float(kind.dtype == TensorProto.BOOL), float(bits)


def _padded(numbers: list) -> list[float]:
    return [float(number) for number in numbers[:AXES]] + [0.0] * (AXES - len(numbers))


def _power_of_2(size: int) -> int:
    """0 of an odd size, and of 0."""
    return min((size & -size).bit_length() - 1, LARGEST_POWER) if size > 0 else 0


def _degree(size) -> int:
    return max(len(factors) for factors, _ in size.terms) if type(size) is Dim else 0
