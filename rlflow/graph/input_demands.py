"""The values that operators demand of their operands, such as an index below the size of an axis.

DEMANDS is the table: operator → a function that yields (position of an operand, `Values` of this operand) pairs. Some
entries are results of functions such as `_indices(table, indices)`, which serve several operators.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from rlflow.graph.input_walk import (
    FEW,
    MAX_CONSTANT,
    Demand,
    Values,
    Walk,
    attributes_of,
    axis_of,
    exactly,
    has,
    index,
    operand,
)


def _indices(table: int, indices: int, axis: int | None = 0, attribute: str = "axis"):
    """Return the demand of an operator that reads the operand `indices` as indices into the operand `table`."""

    def demand(walk: Walk, node: onnx.NodeProto) -> Demand:
        if has(node, indices) and operand(node, indices) in walk.follows:
            yield indices, index(walk.size(operand(node, table), axis_of(node, axis, attribute) if attribute else axis))

    return demand


def _indices_nd(walk: Walk, node: onnx.NodeProto) -> Demand:
    if operand(node, 1) not in walk.follows:
        return
    dims, width = walk.dims(operand(node, 0)), walk.size(operand(node, 1), -1)
    first = axis_of(node, 0, "batch_dims")
    columns = dims[first : first + (width or 1)] if dims else []
    yield 1, index(min(columns, default=None))


def _bounded(**bounds: tuple[float, float]):
    """Return the demand of whole numbers within bounds; `at_1=(low, high)` states the bounds of operand 1."""
    allowed = [(int(name[3:]), Values(low, high, whole=True)) for name, (low, high) in bounds.items()]
    return lambda walk, node: iter(allowed)


def _embedding(walk: Walk, node: onnx.NodeProto) -> Demand:
    for ids, table in ((0, 2), (1, 4), (8, 3)):
        if has(node, ids) and has(node, table):
            yield ids, index(walk.size(operand(node, table), 0))


def _rotary(walk: Walk, node: onnx.NodeProto) -> Demand:
    ids, table = (1, 2) if node.domain == "com.microsoft" else (3, 1)
    if has(node, ids):
        first = walk.dims(operand(node, ids)) == [1]  # the position of the first element, not one position for each
        yield ids, exactly(0) if first else index(walk.size(operand(node, table), 0))


def _group_query(walk: Walk, node: onnx.NodeProto) -> Demand:
    sequence, past = walk.size(operand(node, 0), 1), walk.size(operand(node, 3), 2) if has(node, 3) else 0
    if sequence is not None and past is not None:
        yield 5, exactly(sequence + past - 1)
        yield 6, exactly(sequence + past)


def filled(known: Sequence[float], count: int | None, dims: Sequence[int] | None) -> list[float]:
    """Return a shape with a number for each unknown size (NaN), so that it has `count` elements if that is possible.

    Args:
      known: the sizes, NaN where they are unknown.
      count: the wanted number of elements; None if it is unknown. Unknown sizes then become 1.
      dims: a shape of `count` elements, whose last axes the result keeps if all sizes are unknown; None if unknown.
    """
    holes = [k for k, size in enumerate(known) if math.isnan(size)]
    if count is None or dims is None or not holes:
        return [1.0 if math.isnan(size) else size for size in known]
    result = list(known)
    if len(holes) == len(known):  # keep the last axes, and join the first ones
        last = list(dims[len(dims) - len(known) + 1 :]) if len(known) > 1 else []
        last = [1] * (len(known) - 1 - len(last)) + last
        return [count / max(math.prod(last), 1), *map(float, last)]
    rest = count / max(math.prod(size for size in known if size > 0), 1)
    for k in holes:
        result[k] = 1.0
    if not any(size < 0 for size in known):
        result[holes[0]] = float(int(rest))
    return result


def _known_parts(walk: Walk, name: str, length: int) -> list[float]:
    """Return the content of an operand that a Concat makes of constants and unknown parts, NaN where it is unknown."""
    node = walk.concats.get(name) if length > 1 else None
    if node is not None:
        result: list[float] = []
        for part in node.input:
            dims = walk.dims(part)
            if part in walk.constants:
                result += walk.constants[part].reshape(-1).astype(float).tolist()
            else:
                result += [math.nan] * math.prod(dims or [1])
        if len(result) == length:
            return result
    return [math.nan] * length


def _target_shape(walk: Walk, node: onnx.NodeProto) -> Demand:
    """Demand the shape that a Reshape makes: the declared one, or one with as many elements as the operand."""
    length = walk.length(node, 1) if operand(node, 1) in walk.follows else None
    if length is None:
        return
    made, dims = walk.dims(node.output[0]), walk.dims(operand(node, 0))
    known = _known_parts(walk, operand(node, 1), length)
    if made is not None and len(made) == length:
        yield 1, exactly(*made)
    else:
        yield 1, exactly(*filled(known, None if dims is None else math.prod(dims), dims))


def _expanded(walk: Walk, node: onnx.NodeProto) -> Demand:
    length, dims = walk.length(node, 1), walk.dims(operand(node, 0))
    made = walk.dims(node.output[0])
    if operand(node, 1) not in walk.follows or length is None or dims is None:
        return
    more = 1 if walk.plain else FEW - 1
    wide = [*[more] * (length - len(dims)), *[more if size == 1 else size for size in dims[-length:]]]
    yield 1, exactly(*(made if made is not None and len(made) == length else wide))


def _sizes(*positions: int):
    """Return the demand of sizes that no shape determines."""
    return lambda walk, node: ((k, Values(1, FEW, whole=True, size=True)) for k in positions)


def _slice(walk: Walk, node: onnx.NodeProto) -> Demand:
    dims, count = walk.dims(operand(node, 0)), walk.length(node, 1)
    axes = walk.content(node, 3)
    axes = list(range(count or 0)) if axes is None else axes.reshape(-1).tolist()
    sizes = [dims[axis] for axis in axes] if dims else [FEW] * len(axes)
    starts = [0 if walk.plain or size < FEW else 1 for size in sizes]
    begins, ends = walk.content(node, 1), walk.content(node, 2)
    if begins is not None and begins.size == len(sizes):
        last = [size if b < 0 or walk.plain else max(size - 1, b + 1) for size, b in zip(sizes, begins, strict=True)]
    else:
        last = sizes
    if ends is not None and ends.size == len(sizes):
        starts = [s if e < 0 or e > s else 0 for s, e in zip(starts, ends.reshape(-1).tolist(), strict=True)]
    yield from ((1, exactly(*starts)), (2, exactly(*last)), (3, exactly(*axes)), (4, exactly(*[1] * len(axes))))


def _padded(walk: Walk, node: onnx.NodeProto) -> Demand:
    yield 1, Values(0, 0 if walk.plain else 1, whole=True)
    if has(node, 3):
        yield 3, exactly(*range(walk.length(node, 3) or 0))


def _resized(walk: Walk, node: onnx.NodeProto) -> Demand:
    dims, times = walk.dims(operand(node, 0)), 1.0 if walk.plain else 2.0
    if dims is None:
        return
    factors = [1.0 if axis < 2 and len(dims) > 2 else times for axis in range(len(dims))]
    scales = 1 if node.op_type == "Upsample" else 2
    axes = attributes_of(node).get("axes") or range(len(dims))
    yield scales, Values(exact=np.array([factors[axis] for axis in axes]))
    if scales == 2:
        yield 3, exactly(*[factors[axis] * dims[axis] for axis in axes])
        yield 1, Values(0.0, 1.0)


def _axes(walk: Walk, node: onnx.NodeProto) -> Demand:
    dims, count = walk.dims(operand(node, 0)), walk.length(node, 1)
    if operand(node, 1) not in walk.follows or count is None:
        return
    if node.op_type == "Unsqueeze":
        yield 1, exactly(*range(count))
    elif node.op_type == "Squeeze":
        ones = [axis for axis, size in enumerate(dims or []) if size == 1]
        yield 1, exactly(*ones[:count]) if len(ones) >= count else Values(0, 0, whole=True)
    elif dims is not None:
        yield 1, exactly(*range(max(len(dims) - count, 0), len(dims))[:count])


def _top(walk: Walk, node: onnx.NodeProto) -> Demand:
    axis = axis_of(node, -1)
    made, count = walk.size(node.output[0], axis), walk.size(operand(node, 0), axis)
    if made is not None or (walk.plain and count):
        yield 1, exactly(made or count)
    else:
        yield 1, Values(1, count or 1, whole=True)


def _split(walk: Walk, node: onnx.NodeProto) -> Demand:
    count, size = walk.length(node, 1), walk.size(operand(node, 0), axis_of(node, 0))
    if count and size and operand(node, 1) in walk.follows:
        made = [walk.size(name, axis_of(node, 0)) for name in node.output]
        if node.op_type == "Split" and None not in made and sum(made) == size:
            yield 1, exactly(*made)
        else:
            part = size // count
            yield 1, exactly(*[part] * (count - 1), size - part * (count - 1))


def _range(walk: Walk, node: onnx.NodeProto) -> Demand:
    made = walk.size(node.output[0], 0)
    start, delta = walk.content(node, 0), walk.content(node, 2)
    first = 0.0 if start is None else float(start.reshape(-1)[0])
    step = 1.0 if delta is None else float(delta.reshape(-1)[0])
    yield 0, exactly(0)
    yield 2, exactly(1)
    if made is not None:
        yield 1, exactly(first + step * made)
    elif step > 0:
        yield 1, Values(first + 1, first + step * FEW, whole=True, size=True)
    else:
        yield 1, Values(first + step * FEW, first - 1, whole=True)


def _lengths(position: int, axis: int):
    def demand(walk: Walk, node: onnx.NodeProto) -> Demand:
        where = axis_of(node, axis, "time_axis") if node.op_type == "ReverseSequence" else axis
        if has(node, position):
            yield position, Values(1, walk.size(operand(node, 0), where) or 1, whole=True)

    return demand


def _boxes(walk: Walk, node: onnx.NodeProto) -> Demand:
    if node.op_type == "NonMaxSuppression":
        yield 0, Values(0.0, 1.0, box=True)
        yield 1, Values(0.0, 1.0)
        yield 2, Values(1, walk.size(operand(node, 0), 1) or 1, whole=True)
        yield 3, Values(0.0, 1.0)
        yield 4, Values(0.0, 0.5)
    else:  # RoiAlign
        height = walk.size(operand(node, 0), 2) or 2
        yield 1, Values(0.0, max(height - 1.0, 1.0), box=True)
        yield 2, index(walk.size(operand(node, 0), 0))


def _classes(walk: Walk, node: onnx.NodeProto) -> Demand:
    yield 1, index(walk.size(operand(node, 0), 1))


def _one_hot(walk: Walk, node: onnx.NodeProto) -> Demand:
    depth, made = walk.content(node, 1), walk.size(node.output[0], axis_of(node, -1))
    count = int(depth.reshape(-1)[0]) if depth is not None else made or FEW
    yield 0, index(count)
    yield 1, exactly(count)


def _divisor(walk: Walk, node: onnx.NodeProto) -> Demand:
    yield 1, Values(1, FEW, divisor=True)


def _probability(walk: Walk, node: onnx.NodeProto) -> Demand:
    yield (1 if node.op_type == "Dropout" else 0), Values(0.0, 0.9)


def _axis_operand(position: int):
    def demand(walk: Walk, node: onnx.NodeProto) -> Demand:
        dims = walk.dims(operand(node, 0))
        yield position, exactly(len(dims) - 1 if dims and node.op_type != "DFT" else max(len(dims or []) - 2, 0))

    return demand


def _keys(*names: str):
    """Return the demand of elements (or keys of a map) that are listed in one of several attributes of the node."""

    def demand(walk: Walk, node: onnx.NodeProto) -> Demand:
        attributes = attributes_of(node)
        found = next((attributes[name] for name in names if name in attributes), ())
        if isinstance(found, onnx.TensorProto):
            found = numpy_helper.to_array(found).reshape(-1).tolist()
        words = [word.decode(errors="replace") if isinstance(word, bytes) else word for word in found]
        yield 0, Values(words=tuple(words[:MAX_CONSTANT]))

    return demand


def _mel(walk: Walk, node: onnx.NodeProto) -> Demand:
    for position, value in enumerate((8, 32, 16000)):
        yield position, exactly(value)
    yield 3, Values(exact=np.array(0.0))
    yield 4, Values(exact=np.array(8000.0))


def _stft(walk: Walk, node: onnx.NodeProto) -> Demand:
    size = walk.size(operand(node, 0), 1) or 4
    window = walk.size(operand(node, 2), 0) if has(node, 2) else None
    yield 1, exactly(max(size // 4, 1))
    yield 3, exactly(window or max(size // 2, 1))


def _loop(walk: Walk, node: onnx.NodeProto) -> Demand:
    yield 0, Values(1, FEW, whole=True)
    yield 1, exactly(1)


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

DEMANDS: Mapping[str, Callable[[Walk, onnx.NodeProto], Demand]] = {
    "Gather": _indices(0, 1),
    "GatherElements": _indices(0, 1),
    "GatherBlockQuantized": _indices(0, 1, attribute="gather_axis"),
    "Scatter": _indices(0, 1),
    "ScatterElements": _indices(0, 1),
    "TensorScatter": _bounded(at_2=(0, 0)),
    "ArrayFeatureExtractor": _indices(0, 1, -1, attribute=""),
    "GatherND": _indices_nd,
    "ScatterND": _indices_nd,
    "EmbedLayerNormalization": _embedding,
    "RotaryEmbedding": _rotary,
    "GroupQueryAttention": _group_query,
    "OneHot": _one_hot,
    "Reshape": _target_shape,
    "Expand": _expanded,
    "Tile": lambda walk, node: iter([(1, Values(1, 1 if walk.plain else 2, whole=True))]),
    "ConstantOfShape": _sizes(0),
    "BlackmanWindow": _sizes(0),
    "HammingWindow": _sizes(0),
    "HannWindow": _sizes(0),
    "Slice": _slice,
    "Pad": _padded,
    "Resize": _resized,
    "Upsample": _resized,
    "CenterCropPad": lambda walk, node: iter([(1, exactly(*(walk.dims(operand(node, 0)) or ())))]),
    "Squeeze": _axes,
    "Unsqueeze": _axes,
    **{f"Reduce{name}": _axes for name in _REDUCTIONS},
    "CumSum": _axis_operand(1),
    "DFT": _axis_operand(2),
    "STFT": _stft,
    "MelWeightMatrix": _mel,
    "TopK": _top,
    "Split": _split,
    "SplitToSequence": _split,
    "SequenceAt": _bounded(at_1=(0, 0)),
    "SequenceErase": _bounded(at_1=(0, 0)),
    "SequenceInsert": _bounded(at_2=(0, 0)),
    "Range": _range,
    "Trilu": _bounded(at_1=(-1, 1)),
    "BitShift": _bounded(at_1=(0, 3)),
    "Div": _divisor,
    "Mod": _divisor,
    "RNN": _lengths(4, 0),
    "GRU": _lengths(4, 0),
    "LSTM": _lengths(4, 0),
    "ReverseSequence": _lengths(1, 0),
    "NonMaxSuppression": _boxes,
    "RoiAlign": _boxes,
    "NegativeLogLikelihoodLoss": _classes,
    "SoftmaxCrossEntropyLoss": _classes,
    "Bernoulli": _probability,
    "Dropout": _probability,
    "Loop": _loop,
    "LabelEncoder": _keys("keys_strings", "keys_int64s", "keys_floats", "keys_tensor", "classes_strings"),
    "CategoryMapper": _keys("cats_strings", "cats_int64s"),
    "OneHotEncoder": _keys("cats_strings", "cats_int64s"),
    "DictVectorizer": _keys("string_vocabulary", "int64_vocabulary"),
    "TfIdfVectorizer": _keys("pool_strings", "pool_int64s"),
}
