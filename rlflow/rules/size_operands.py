"""The shape operands of new operators where sizes are symbols: constants, or operators that compute the sizes.

`without_symbols` expresses sizes by the 0 and -1 of Reshape or the 1 of Expand. A rule may also write `computed(…)`
around sizes. New operators then compute the sizes at run time from the shapes of the rule's tensors:

    Slice(y, [0, 0], computed(dim(x, 2), dim(x, 3) - 2), [2, 3])
    Slice(y, [0, 0], Add(Slice(Shape(x), [2], [4]), [0, -2]), [2, 3])   # if both sizes are symbols
"""

from collections.abc import Mapping
from itertools import groupby
from math import prod

from rlflow.graph.dims import Dim, Undecided, least
from rlflow.rules.patterns import Literal, Op, Output, Var


def without_symbols(op: str | None, shape: tuple | None, sizes: tuple) -> tuple[int, ...]:
    """Return integers that, as the shape operand of Reshape or Expand, give an output with symbolic sizes.

    Args:
      op: the operator that reads the operand; only for Reshape and Expand such integers can exist.
      shape: the shape of the operator's data input; None if unknown.
      sizes: the wanted sizes of the output, some of them symbolic.

    Raises:
      Undecided: if no such integers are found.
    """
    if op == "Reshape" and shape is not None:
        return _reshape_operand(shape, sizes)
    if op == "Expand" and shape is not None:
        return _expand_operand(shape, sizes)
    raise _undecided_sizes(sizes)


def computed_sizes(sizes: tuple, shapes: Mapping[str, tuple], op: str) -> Output:
    """Return a pattern of operators that compute sizes at run time from shapes.

    Each symbolic size must be the size of an axis in `shapes` plus a number. For Reshape without a -1 in `sizes`, the
    first size without such an axis becomes -1, which Reshape infers.

    Args:
      sizes: the sizes, at least one of them symbolic.
      shapes: name of a variable of the rule → shape of the tensor that it stands for.
      op: the operator that reads the sizes.

    Raises:
      Undecided: a symbolic size has no such axis, or can be 0, which Reshape reads as "copy the size of the input".
    """
    if op == "Reshape" and not all(least(size) >= 1 for size in sizes if type(size) is Dim):
        raise _undecided_sizes(sizes)
    places = [_place_of(size, shapes) if type(size) is Dim else None for size in sizes]
    unknown = [k for k, size in enumerate(sizes) if type(size) is Dim and places[k] is None]
    if op == "Reshape" and unknown and -1 not in sizes:
        sizes = (*sizes[: unknown[0]], -1, *sizes[unknown[0] + 1 :])
        unknown = unknown[1:]
    if unknown:
        raise _undecided_sizes(tuple(sizes[k] for k in unknown))
    parts = []
    # Successive numbers become one constant, and the sizes of successive axes become one slice of a shape.
    starts = [None if place is None else (place[0], place[1] - k) for k, place in enumerate(places)]
    for start, group in groupby(range(len(sizes)), key=lambda k: starts[k]):
        positions = list(group)
        if start is None:
            parts.append(_constant([sizes[k] for k in positions]))
            continue
        name, first, _ = places[positions[0]]
        whole = _new("Shape", Var(name))
        part = _new("Slice", whole, _constant([first]), _constant([first + len(positions)]))
        offsets = [places[k][2] for k in positions]
        parts.append(_new("Add", part, _constant(offsets)) if any(offsets) else part)
    return parts[0] if len(parts) == 1 else _new("Concat", *parts, axis=0)


def _place_of(size: Dim, shapes: Mapping[str, tuple]) -> tuple | None:
    """Return (name, axis, difference) of the first axis whose size differs from `size` by a number only, or None."""
    for name, shape in shapes.items():
        for axis, other in enumerate(shape):
            if type(other) is Dim and type(size - other) is int:
                return name, axis, size - other
    return None


def _constant(numbers: list[int]) -> Literal:
    return Literal(lambda scope: tuple(numbers), str(numbers))


def _new(op: str, *inputs, **attributes: int) -> Output:
    """Return the output of a new operator; its key consists of its name and the texts of its inputs."""
    values = tuple((name, Literal(lambda scope, value=value: value, str(value))) for name, value in attributes.items())
    return Output(Op((op, *map(_text_of, inputs)), op, "", inputs, values, None), 0)


def _text_of(pattern) -> str:
    return str(pattern.op.key) if isinstance(pattern, Output) else getattr(pattern, "text", None) or pattern.name


def _reshape_operand(shape: tuple, sizes: tuple) -> tuple[int, ...]:
    result = [
        0 if type(size) is Dim and axis < len(shape) and shape[axis] is size else size
        for axis, size in enumerate(sizes)
    ]
    left = [axis for axis, size in enumerate(result) if type(size) is Dim]
    if left:
        rest = prod(size if size != 0 else shape[axis] for axis, size in enumerate(result) if axis != left[0])
        if len(left) > 1 or -1 in result or least(rest) < 1:
            raise _undecided_sizes(tuple(result[axis] for axis in left))
        result[left[0]] = -1
    return tuple(result)


def _expand_operand(shape: tuple, sizes: tuple) -> tuple[int, ...]:
    result = list(sizes)
    for axis in range(-1, -min(len(shape), len(sizes)) - 1, -1):
        if result[axis] is shape[axis]:
            result[axis] = 1
    if any(type(size) is Dim for size in result):
        raise _undecided_sizes(tuple(size for size in result if type(size) is Dim))
    return tuple(result)


def _undecided_sizes(sizes: tuple) -> Undecided:
    names = ", ".join(dict.fromkeys(str(size) for size in sizes if type(size) is Dim))
    return Undecided(f"{names} would have to be known")
