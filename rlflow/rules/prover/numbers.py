"""The algebra of numbers for rlflow.rules.prover.semantics: every element is computed, in fractions or in floats."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from math import prod

import numpy as np
from onnx import TensorProto, helper

NOTHING = float("-inf")  # the greatest of no numbers
CASTS = (
    "FLOAT",
    "FLOAT16",
    "DOUBLE",
    "BFLOAT16",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "BOOL",
)


def _cast_to(dtype: int) -> Callable:
    target = helper.tensor_dtype_to_np_dtype(dtype)
    return lambda value: np.asarray(float(value)).astype(target).astype(np.float64).item()


ALWAYS = {
    "flag": lambda value: int(value != 0),
    "equal": lambda a, b: int(a == b),
    "and": lambda a, b: int(a != 0 and b != 0),
} | {
    f"cast to {TensorProto.DataType.Value(name)}": _cast_to(TensorProto.DataType.Value(name)) for name in CASTS
}
REAL = {"exp": math.exp, "log": math.log, "sqrt": math.sqrt, "erf": math.erf, "power": math.pow}


class Invalid(Exception):
    """The inputs do not fit the operator."""


class Numbers:
    """Exact fractions, or floats where `read` is float.

    Args:
      read: makes a number of what a rule or an attribute says.
      functions: what `apply` computes, by name.
    """

    def __init__(self, read: Callable = Fraction, functions: dict[str, Callable] | None = None):
        self.read, self.functions = read, ALWAYS | (functions or {})

    def require(self, holds: bool) -> None:
        if not holds:
            raise Invalid

    def windows(self, a, sizes: tuple, kernel: tuple) -> None:
        """They are counted out."""

    def number(self, value):
        return self.read(Fraction(value)) if isinstance(value, str) else self.read(value)

    def known(self, value):
        return value

    def choose(self, condition, yes, no):
        return yes if condition else no

    def wider(self, a, b):
        return b if a == 1 else a

    def met(self, size, whole, k):
        return 0 if size == 1 else k

    def total(self, sizes: tuple, body: Callable):
        return sum((body(k) for k in itertools.product(*map(range, sizes))), start=self.read(0))

    def greatest(self, sizes: tuple, body: Callable, inside: Callable):
        indices = itertools.product(*map(range, sizes))
        return max((body(k) for k in indices if _within(inside(k))), default=NOTHING)

    def inside(self, pairs, value: Callable):
        return value() if _within(pairs) else self.read(0)

    def quotient(self, a, b):
        if b == 0:
            raise Invalid
        return a / b

    def larger(self, a, b):
        return max(a, b)

    def apply(self, name: str, *arguments):
        if name == "integer quotient":
            self.require(arguments[1] != 0)
            return self.read(int(Fraction(arguments[0]) / Fraction(arguments[1])))
        try:
            return self.read(self.functions[name](*arguments))
        except (ValueError, OverflowError) as error:
            raise Invalid from error

    def position(self, shape: tuple, index: tuple) -> int:
        position = 0
        for size, k in zip(shape, index, strict=True):
            position = position * size + k
        return position

    def index(self, position: int, shape: tuple) -> tuple:
        result = []
        for size in reversed(shape):
            result.append(position % size)
            position //= size
        return tuple(reversed(result))

    def reshaped(self, shape: tuple, wanted: tuple, allowzero: int) -> tuple:
        self.require(allowzero or all(size != 0 or k < len(shape) for k, size in enumerate(wanted)))
        sizes = [shape[k] if size == 0 and not allowzero else size for k, size in enumerate(wanted)]
        free = [k for k, size in enumerate(sizes) if size == -1]
        others = prod(size for size in sizes if size != -1)
        if free:
            self.require(len(free) == 1 and others > 0)
            sizes[free[0]] = prod(shape) // others
        self.require(prod(sizes) == prod(shape) and min(sizes, default=0) >= 0)
        return tuple(sizes)


def _within(pairs) -> bool:
    return all(0 <= position < size for position, size in pairs)


def floats() -> Numbers:
    return Numbers(float, REAL)
