"""Feature vectors of single operators and single tensors, from which observation.py assembles observations.

`operator_features` encodes the attributes of an operator and its numbers of inputs and outputs. `tensor_features`
encodes the data type and shape of a tensor, and its content unless the tensor `is_large`. `shown` maps a
number to a logarithmic scale that keeps the sign. A value that has no column of its own, or that its column rounds,
goes into a hash (`fingerprint`). Different values have different fingerprints except for rare collisions.
"""

import hashlib
import struct
from collections.abc import Iterable
from functools import lru_cache
from math import log1p

import onnx
from onnx import TensorProto

from rlflow.graph import contrib
from rlflow.graph.dims import Dim, least
from rlflow.graph.ir import ABSENT, Constant, Graph, Node, TensorType, itemsize
from rlflow.rules.expressions import FLOATS
from rlflow.rules.match import REDUNDANT, attributes_of
from rlflow.rules.segments import content_of_constant

EXACT = 1 << 15  # integers of smaller magnitude have different values of `shown` in float32; others may be rounded
LARGEST_MAGNITUDE = 1e30  # magnitude to which `shown` clips numbers
FLOAT_UNIT = 1e-6  # unit of the logarithmic scale, small enough to separate an epsilon of 1e-5 from 1e-6
# Number of columns of a fingerprint, with 4 bits each. Two different values collide with probability 1 in 4·10⁹.
FINGERPRINT = 8


def shown(number) -> float:
    """Return a number on a logarithmic scale that keeps its sign, e.g. 1 + log(1 + n) for an integer n ≥ 0.

    A float is counted in units of FLOAT_UNIT. NaN becomes 0.5. The result is never 0, because 0 marks a missing number.
    """
    if number != number:
        return 0.5
    size = min(abs(number), LARGEST_MAGNITUDE)
    size = 1.0 + log1p(size / FLOAT_UNIT if isinstance(number, float) else size)
    return -size if number < 0 else size


def is_exact(number) -> bool:
    """Check whether the number is an integer of magnitude below EXACT. No other integer has the same `shown` value."""
    return isinstance(number, int) and -EXACT < number < EXACT


def scaled_row(numbers: Iterable, width: int) -> list[float]:
    """Return `shown` of each of the first `width` numbers, padded with zeros to this length.

    Args:
      numbers: the numbers.
      width: length of the result.
    """
    row = [shown(number) for number in tuple(numbers)[:width]]
    return row + [0.0] * (width - len(row))


def hashable(value):
    """Return a value in which each symbolic size, also inside tuples, is replaced by (its text, its least value)."""
    if isinstance(value, tuple):
        return tuple([hashable(part) for part in value])
    return (value.text, least(value)) if type(value) is Dim else value


@lru_cache(maxsize=65536)
def fingerprint(hashed: tuple) -> tuple[float, ...]:
    """Return a hash of a tuple as FINGERPRINT numbers from −1 to 1, all different from 0; zeros for the empty tuple."""
    if not hashed:
        return (0.0,) * FINGERPRINT
    digest = hashlib.blake2b(repr(hashed).encode(), digest_size=FINGERPRINT // 2).digest()
    return tuple([half / 7.5 - 1 for byte in digest for half in (byte >> 4, byte & 15)])


def _vocabulary() -> list[tuple[str, str]]:
    """Return the (domain, name) of all known operators, sorted.

    The list contains the ONNX Runtime operators that rules use and the ONNX operators up to opset 23. Thus a newer onnx
    package does not change the numbers of the operators.
    """
    schemas = onnx.defs.get_all_schemas_with_history()
    standard = {("", s.name) for s in schemas if s.domain == "" and s.since_version <= 23}
    return sorted(standard | {(contrib.DOMAIN, name) for name in contrib.OPERATORS})


OPS = {operator: number for number, operator in enumerate(_vocabulary(), start=1)}
OTHER_OP, INPUT_OP, OUTPUT_OP = (len(OPS) + k for k in (1, 2, 3))
N_OPS = OUTPUT_OP + 1  # number of operator ids, with the id 0 of padding

# List attribute → number of columns. Longer lists and attributes without columns go into the fingerprint.
LIST_ATTRIBUTES = {"perm": 6, "kernel_shape": 3, "strides": 3, "dilations": 3, "pads": 6}
INTEGER_ATTRIBUTES = (
    "axis", "group", "keepdims", "transA", "transB", "to", "num_heads", "ceil_mode", "count_include_pad", "allowzero",
    "blocksize",
)  # fmt: skip
FLOAT_ATTRIBUTES = ("epsilon", "alpha", "beta", "scale")  # two columns each: `shown` and the number itself
LARGEST_FLOAT = 1e9  # a float attribute of at least this magnitude goes into the fingerprint

N_COUNTS = 9  # number of counts in `operator_features`
ATTRIBUTE_FEATURES = sum(LIST_ATTRIBUTES.values()) + len(INTEGER_ATTRIBUTES) + 2 * len(FLOAT_ATTRIBUTES)
OPERATOR_FEATURES = N_COUNTS + ATTRIBUTE_FEATURES + FINGERPRINT


def operator_id(node: Node) -> int:
    return OPS.get((node.domain, node.op), OTHER_OP)


def operator_features(graph: Graph, node: Node) -> bytes:
    """Return the features of one operator as the bytes of float32 [OPERATOR_FEATURES]: counts, attributes, fingerprint.

    Args:
      graph: the graph.
      node: a node of the graph.
    """
    given = [tensor for tensor in node.inputs if tensor != ABSENT]
    outputs = [tensor for tensor in node.outputs if tensor != ABSENT]
    unread = tuple([slot for slot, t in enumerate(node.outputs) if t != ABSENT and not graph.is_used(t)])
    counts = (
        float(node.constant),
        float(len(node.inputs)),
        float(len(given)),
        float(sum(map(graph.is_constant, given))),
        float(len(node.outputs)),
        float(len(outputs)),
        float(len(unread)),
        float(sum(tensor in graph.outputs for tensor in outputs)),
        float(len(node.captured)),
    )
    hidden = tuple([(slot, graph.types.get(node.outputs[slot])) for slot in unread])  # types of unread outputs
    absent = tuple([slot for slot, tensor in enumerate(node.outputs) if tensor == ABSENT])
    hashed = (hashable(hidden), absent) if hidden or absent else ()
    return struct.pack(f"{N_COUNTS}f", *counts) + attribute_features(graph, node, hashed)


def attribute_features(graph: Graph, node: Node, hashed: tuple = (), redundant: bool = False) -> bytes:
    """Return the attributes of one operator as the bytes of float32 [ATTRIBUTE_FEATURES + FINGERPRINT].

    Args:
      graph: the graph.
      node: a node of the graph.
      hashed: further values that the fingerprint depends on.
      redundant: True to include attributes in REDUNDANT, which follow from the weights or matter only in training.
    """
    values, others = attributes_of(graph, node)
    if operator_id(node) == OTHER_OP or node.overload:
        hashed = (*hashed, node.domain, node.op, node.overload)
    shown_here = [pair for pair in values.items() if redundant or (node.op, pair[0]) not in REDUNDANT]
    return _attribute_row(tuple(shown_here), others, hashed)


@lru_cache(maxsize=65536)
def _attribute_row(values: tuple, others: tuple, hashed: tuple) -> bytes:
    """Return the encoding of attributes that `attribute_features` returns.

    Args:
      values: (name, value) of all attributes with columns, defaults filled in; other attributes are allowed.
      others: (name, value) of the attributes that differ from their default.
      hashed: further values that the fingerprint depends on.
    """
    row, named = [], dict(values)
    for name, width in LIST_ATTRIBUTES.items():
        value = named.get(name) or ()
        row += scaled_row(value, width)
        if len(value) > width or not all(map(is_exact, value)):
            hashed = (*hashed, (name, hashable(value)))
    for name in INTEGER_ATTRIBUTES:
        value = named.get(name)
        row.append(shown(value) if isinstance(value, int) else 0.0)
        if value is not None and not is_exact(value):
            hashed = (*hashed, (name, value))
    for name in FLOAT_ATTRIBUTES:
        value = named.get(name)
        row += (shown(value), value) if isinstance(value, float) and abs(value) < LARGEST_FLOAT else (0.0, 0.0)
        if value is not None and not (isinstance(value, float) and abs(value) < LARGEST_FLOAT):
            hashed = (*hashed, (name, value))
    hashed = (*hashed, *[pair for pair in others if pair[0] not in _NAMED_ATTRIBUTES])
    return struct.pack(f"{ATTRIBUTE_FEATURES + FINGERPRINT}f", *row, *fingerprint(hashed))


_NAMED_ATTRIBUTES = frozenset((*LIST_ATTRIBUTES, *INTEGER_ATTRIBUTES, *FLOAT_ATTRIBUTES))


NUMBERS = frozenset((
    *FLOATS, TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
))  # fmt: skip
AXES = 6  # number of leading axes whose sizes have columns
ELEMENTS = 8  # number of leading elements of a known content that have columns
LARGEST_POWER = 8  # largest exponent in the columns POWERS

# 1 if the shape is known; 1 if the tensor is constant; 1 if it is a weight or literal; data type (ONNX's number); 1 for
# a floating-point type; 1 for bool; 1 + log2(bytes of an element).
TYPE = slice(0, 7)
RANK, SIZE = 7, 8  # number of axes, log(1 + elements); 0 if the shape is unknown
SIZES = slice(9, 9 + AXES)  # log(1 + size) of each axis
POWERS = slice(15, 15 + AXES)  # exponent of the largest power of 2 that divides the size, at most LARGEST_POWER
DEGREES = slice(21, 21 + AXES)  # degree of the size as a polynomial in the model's symbols, 0 for a number
LENGTH = 27  # 1 + log(1 + elements) if the content is shown, else 0
CONTENT = slice(28, 28 + ELEMENTS)  # leading elements of the content, on the scale of `shown`
TENSOR_FEATURES = 36 + FINGERPRINT

# The elements for the columns CONTENT (None if the content is not shown), and further values for the fingerprint.
Held = tuple[tuple | None, tuple]


def tensor_features(graph: Graph, view: Graph, tensor: int, shared: bool) -> bytes:
    """Return the features of one tensor as the bytes of float32 [TENSOR_FEATURES].

    Args:
      graph: the graph.
      view: the graph at the typical sizes.
      tensor: id of a tensor of the graph.
      shared: True if the tensor is a large weight and several operators read weights of equal content. The fingerprint
        then depends on the content.
    """
    kind, weight = graph.types.get(tensor), graph.constants.get(tensor)
    at = view.types[tensor] if kind is not None else None
    if weight is None:
        held = _content_of_computed(kind, at)
    elif is_large(weight):
        held = None, (weight.digest,) if shared else ()
    else:
        held = _content_of_literal(weight)
    return _tensor_row(kind, at, graph.is_constant(tensor), weight is not None, held)


def is_large(weight: Constant) -> bool:
    """Check whether a weight is no size, flag, factor or single number, so that its elements are no features.

    Conditions only compare such weights with each other, except in rules with `Rule.content_names`.
    """
    return content_of_constant(weight) is True


def _content_of_computed(kind: TensorType | None, at: TensorType | None) -> Held:
    if kind is None or kind.content is None:
        return None, ()
    return at.content, () if _has_columns(kind.content) else hashable(kind.content)


_CONTENTS: dict[str, Held] = {}  # by digest: a cache of the constants themselves would keep their models in memory
MAX_CONTENTS = 4096


def _content_of_literal(weight: Constant) -> Held:
    known = _CONTENTS.get(weight.digest)
    if known is None:
        if len(_CONTENTS) >= MAX_CONTENTS:
            _CONTENTS.clear()
        known = _CONTENTS[weight.digest] = _read_literal(weight)
    return known


def _read_literal(weight: Constant) -> Held:
    if weight.type.dtype not in NUMBERS:
        return None, (weight.digest,)
    held = tuple(weight.load().reshape(-1)[: ELEMENTS + 1].tolist())
    return held, () if _has_columns(held) else (weight.digest,)


def _has_columns(content: tuple) -> bool:
    return len(content) <= ELEMENTS and all(map(is_exact, content))


@lru_cache(maxsize=65536)
def _tensor_row(kind: TensorType | None, at: TensorType | None, constant: bool, weight: bool, held: Held) -> bytes:
    numbers, hashed = held
    shape = kind.shape if kind is not None else None
    row = [float(shape is not None), float(constant), float(weight), *_data_type(kind)]
    sizes = at.shape if shape is not None else ()
    row += [float(len(sizes)), log1p(at.size if at is not None else 0)]
    row += _padded([log1p(max(size, 0)) for size in sizes])
    row += _padded([_power_of_2(size) for size in sizes])
    row += _padded([_degree(size) for size in shape or ()])
    row += [0.0] if numbers is None else [1 + log1p(at.size)]
    row += scaled_row(numbers or (), ELEMENTS)
    if shape is not None and (len(shape) > AXES or not all(map(is_exact, shape))):
        hashed = (*hashed, hashable(shape))
    return struct.pack(f"{TENSOR_FEATURES}f", *row, *fingerprint(hashed))


def _data_type(kind: TensorType | None) -> tuple[float, ...]:
    if kind is None:
        return 0.0, 0.0, 0.0, 0.0
    bits = itemsize(kind.dtype).bit_length()
    return float(kind.dtype), float(kind.dtype in FLOATS), float(kind.dtype == TensorProto.BOOL), float(bits)


def _padded(numbers: list) -> list[float]:
    return [float(number) for number in numbers[:AXES]] + [0.0] * (AXES - len(numbers))


def _power_of_2(size: int) -> int:
    """Return the exponent of the largest power of 2 that divides a size, at most LARGEST_POWER; 0 for a size ≤ 0."""
    return min((size & -size).bit_length() - 1, LARGEST_POWER) if size > 0 else 0


def _degree(size) -> int:
    return max(len(factors) for factors, _ in size.terms) if type(size) is Dim else 0
