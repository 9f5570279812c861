"""The values that a model's inputs must have, derived from the operators that read them.

An operator may demand certain values of an operand. Gather demands an index below the size of an axis, Reshape a shape
with the same number of elements, and TopK a count that is at most the size of an axis. DEMANDS
(rlflow/graph/input_demands.py) holds these demands. A demand on a computed tensor is carried back to the tensors from
which the tensor is computed (CARRIERS), for example from `ids - 1000` to `ids`. The demands that arrive at the inputs
of the model are the result.

    allowed_values(model, model.graph.input)     {"ids": Values(low=1000, high=1009, whole=True)}

`Walk` (rlflow/graph/input_walk.py) goes through the graph, also through bodies; local functions are inlined.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np
import onnx
import onnx.inliner

from rlflow.graph.bodies import CANNOT_BE_INLINED
from rlflow.graph.input_demands import DEMANDS
from rlflow.graph.input_walk import (
    LARGEST,
    Demand,
    Values,
    Walk,
    attributes_of,
    light,
)


def allowed_values(
    model: onnx.ModelProto, inputs: Sequence[onnx.ValueInfoProto], plain: bool = False
) -> dict[str, Values]:
    """Return the inputs whose values the graph restricts, with the values that they may have.

    Args:
      model: the model; the contents of external weights are not needed.
      inputs: the declared inputs with numbers as sizes (`rlflow.graph.symbols.bind_shapes`).
      plain: True for values that change no shape, such as a TopK of all elements or a padding of 0.
    """
    if model.functions:
        with suppress(*CANNOT_BE_INLINED):  # then the demands inside functions are not known
            model = onnx.inliner.inline_local_functions(light(model, inputs))
    walk = Walk(model, inputs, plain, DEMANDS, CARRIERS)
    walk.forward(model.graph)
    walk.back(model.graph)
    names = {value.name for value in inputs}
    return {name: values for name, values in walk.wanted.items() if name in names}


def _same(*positions: int):
    """Return a carrier for an operator whose result has the elements of operands, in another shape or order."""
    return lambda walk, node, values: ((k, values) for k in positions)


def _elements(*positions: int):
    """Return a carrier for an operator whose result has some elements of operands; the places are not carried."""
    return lambda walk, node, values: ((k, values._replace(exact=None, distinct=False)) for k in positions)


def _all(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    return ((k, values._replace(exact=None, distinct=False)) for k in range(len(node.input)))


def _concat(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    """Divide the exact content of a list among the lists that the Concat joins."""
    at, lengths = 0, [walk.length(node, k) for k in range(len(node.input))]
    for k, length in enumerate(lengths):
        part = None
        if values.exact is not None and values.exact.ndim == 1 and None not in lengths:
            part = values.exact[at : at + length] if sum(lengths) == values.exact.size else None
            at += length
        yield k, values._replace(exact=part, distinct=False)


def _gathered(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    """Demand the gathered elements of a list at their places."""
    where, size, exact = walk.content(node, 1), walk.length(node, 0), None
    if values.exact is not None and where is not None and size is not None and where.size == values.exact.size:
        exact = np.full(size, math.nan)
        exact[where.reshape(-1).astype(np.int64)] = values.exact.reshape(-1)
    yield 0, values._replace(exact=exact, distinct=False)


def _moved(low: float, high: float, values: Values, exact: Callable[[np.ndarray], np.ndarray] | None) -> Values:
    """Return the values with other bounds, and with the exact content changed by a function."""
    if low > high:  # no value satisfies the bounds for all elements of a constant
        low, high = min(low, high), min(low, high)
    low, high = (bound if abs(bound) < LARGEST else math.copysign(math.inf, bound) for bound in (low, high))
    changed = None if values.exact is None or exact is None else exact(values.exact)
    return values._replace(low=low, high=high, exact=changed, distinct=False)


def _scalar(constant: np.ndarray) -> float | None:
    return float(constant.reshape(-1)[0]) if constant.size == 1 else None


def _other(walk: Walk, node: onnx.NodeProto) -> tuple[int, np.ndarray] | None:
    """Return (position of one operand, content of the other operand) of a binary operator with a constant operand.

    Return None if neither operand is a small constant of numbers. Then both may depend on inputs.
    """
    for position in (0, 1):
        constant = walk.content(node, 1 - position)
        if constant is not None and constant.size and constant.dtype.kind in "iuf":
            return position, constant.astype(float)
    return None


def _sum(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    found = _other(walk, node)
    if found is None:  # both operands follow inputs: each gets half
        half = _moved(
            math.ceil(values.low / 2) if math.isfinite(values.low) else values.low, values.high / 2, values, None
        )
        half = half._replace(high=math.floor(half.high) if math.isfinite(half.high) else half.high)
        yield from ((0, half), (1, half))
        return
    position, c = found
    one = _scalar(c)
    if node.op_type == "Add":
        moved = (values.low - c.min(), values.high - c.max(), (lambda exact: exact - one))
    elif position == 0:
        moved = (values.low + c.max(), values.high + c.min(), (lambda exact: exact + one))
    else:
        moved = (c.max() - values.high, c.min() - values.low, (lambda exact: one - exact))
    yield position, _moved(moved[0], moved[1], values, None if one is None else moved[2])


def _product(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    found = _other(walk, node)
    if found is None:
        root = math.isqrt(int(values.high)) if 0 <= values.high < LARGEST else values.high
        both = _moved(max(values.low, 0.0), root, values, None)
        yield from ((0, both), (1, both))
        return
    position, c = found
    one = _scalar(c)
    if one is None or one == 0:
        return
    bounds = sorted((values.low / one, values.high / one))
    if values.whole and all(map(math.isfinite, bounds)):
        bounds = [math.ceil(bounds[0]), math.floor(bounds[1])]
    yield position, _moved(*bounds, values, lambda exact: exact / one)


def _quotient(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    c = walk.content(node, 1)
    one = None if c is None else _scalar(c.astype(float)) if c.dtype.kind in "iuf" else None
    if one is not None and one > 0:
        whole = c.dtype.kind in "iu"
        yield 0, _moved(values.low * one, values.high * one + (one - 1 if whole else 0), values, lambda e: e * one)


def _negated(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    yield 0, _moved(-values.high, -values.low, values, lambda exact: -exact)


def _clipped(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    attributes = attributes_of(node)
    bounds = []
    for position, name in ((1, "min"), (2, "max")):
        content = walk.content(node, position)
        bounds.append(attributes.get(name) if content is None else _scalar(content.astype(float)))
    low, high = bounds
    if low is None or high is None or not (values.low <= low and high <= values.high):
        yield 0, values


def _remainder(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    c = walk.content(node, 1)
    if c is None or not (values.low <= 0 and c.size and c.max() - 1 <= values.high):
        yield 0, values._replace(exact=None, distinct=False)


def _summed(walk: Walk, node: onnx.NodeProto, values: Values) -> Demand:
    count = walk.length(node, 0) or 1
    high = math.floor(values.high / count) if math.isfinite(values.high) else values.high
    yield 0, _moved(max(values.low, 0.0) / count, high, values, None)


CARRIERS: Mapping[str, Callable[[Walk, onnx.NodeProto, Values], Demand]] = {
    **dict.fromkeys(
        ("Identity", "Cast", "CastLike", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Dropout"), _same(0)
    ),
    **dict.fromkeys(("Floor", "Ceil", "Round", "Relu", "Optional", "OptionalGetElement"), _same(0)),
    **dict.fromkeys(("Expand", "Slice", "Tile", "Split", "Abs", "ReduceMax", "ReduceMin", "Compress"), _elements(0)),
    **dict.fromkeys(("GatherElements", "GatherND", "SequenceAt", "ReverseSequence", "Trilu"), _elements(0)),
    **dict.fromkeys(("StringNormalizer", "CastMap", "Imputer"), _elements(0)),
    **dict.fromkeys(("Max", "Min", "SequenceConstruct"), _all),
    "ScatterElements": _elements(0, 2),
    "ScatterND": _elements(0, 2),
    "Pad": _elements(0, 2),
    "Where": _elements(1, 2),
    "Concat": _concat,
    "Gather": _gathered,
    "Add": _sum,
    "Sub": _sum,
    "Mul": _product,
    "Div": _quotient,
    "Neg": _negated,
    "Mod": _remainder,
    "Clip": _clipped,
    "CumSum": _summed,
    "ReduceSum": _summed,
}
