"""How a shape that a rule writes down is written without the sizes that are symbols.

A literal is a constant; `[batch, seq, 12, 64]` is none. But a Reshape of what has `batch` and `seq` in these places
already says the same with 0, and one more size with -1. What cannot be said so would have to be known.
"""

from math import prod

from rlflow.graph.dims import Dim, Undecided, least


def without_symbols(op: str | None, shape: tuple | None, sizes: tuple) -> tuple[int, ...]:
    """The sizes without symbols, as the operand of `op` after one of that shape. Undecided if they need them."""
    if op == "Reshape" and shape is not None:
        return _reshape(shape, sizes)
    if op == "Expand" and shape is not None:
        return _expand(shape, sizes)
    raise _unknown(sizes)


def _reshape(shape: tuple, sizes: tuple) -> tuple[int, ...]:
    result = [
        0 if type(size) is Dim and axis < len(shape) and shape[axis] is size else size
        for axis, size in enumerate(sizes)
    ]
    left = [axis for axis, size in enumerate(result) if type(size) is Dim]
    if left:
        rest = prod(size if size != 0 else shape[axis] for axis, size in enumerate(result) if axis != left[0])
        if len(left) > 1 or -1 in result or least(rest) < 1:
            raise _unknown(tuple(result[axis] for axis in left))
        result[left[0]] = -1
    return tuple(result)


def _expand(shape: tuple, sizes: tuple) -> tuple[int, ...]:
    result = list(sizes)
    for axis in range(-1, -min(len(shape), len(sizes)) - 1, -1):
        if result[axis] is shape[axis]:
            result[axis] = 1
    if any(type(size) is Dim for size in result):
        raise _unknown(tuple(size for size in result if type(size) is Dim))
    return tuple(result)


def _unknown(sizes: tuple) -> Undecided:
    names = ", ".join(dict.fromkeys(str(size) for size in sizes if type(size) is Dim))
    return Undecided(f"{names} would have to be known")
