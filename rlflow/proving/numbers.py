"""Compute operators and rules in plain numbers.

`Numbers` is the algebra in which all elements are fractions or floats. Tests use it to compare the operator
definitions with ONNX's reference implementation. `evaluate` computes one case of a rule with given sizes and random
elements; a difference between the two sides refutes the rule.
"""

import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction
from math import prod

import numpy as np
from onnx import TensorProto, helper

from rlflow.proving.cases import Case
from rlflow.proving.decisions import NotApplicable, Picks
from rlflow.proving.semantics import Tensor
from rlflow.rules.rule import Rule

NOTHING = float("-inf")  # maximum of an empty set
CASTS = (  # data types of onnx.TensorProto to which Cast is defined
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
    """Return a function that converts a number to a data type of onnx.TensorProto and back to a float."""
    target = helper.tensor_dtype_to_np_dtype(dtype)
    return lambda value: np.asarray(float(value)).astype(target).astype(np.float64).item()


# Functions that `Numbers.apply` computes in fractions and in floats, by name.
ALWAYS = {
    "flag": lambda value: int(value != 0),
    "equal": lambda a, b: int(a == b),
    "and": lambda a, b: int(a != 0 and b != 0),
} | {
    f"cast to {TensorProto.DataType.Value(name)}": _cast_to(TensorProto.DataType.Value(name)) for name in CASTS
}
# Functions that `Numbers.apply` computes only in floats, by name.
REAL = {
    "exp": math.exp, "log": math.log, "sqrt": math.sqrt, "erf": math.erf, "sin": math.sin, "power": math.pow,
    "is row": lambda index, row, rows: float(index in (row, row - rows)),  # an index may count from the end
}  # fmt: skip


class Invalid(Exception):
    """Raised if the inputs do not fit an operator, or if a result is not defined."""


class Numbers:
    """The algebra of plain numbers: exact fractions, or floats if `read` is float.

    Args:
      read: a function that converts a number of a rule or an attribute to a number of the algebra.
      functions: further functions that `apply` computes, by name.
    """

    def __init__(self, read: Callable = Fraction, functions: dict[str, Callable] | None = None):
        self.read, self.functions = read, ALWAYS | (functions or {})

    def require(self, holds: bool) -> None:
        if not holds:
            raise Invalid

    def windows(self, a, sizes: tuple, kernel: tuple) -> None:
        """Return None, so that rlflow.proving.reductions computes window positions from strides, pads and dilations."""

    def number(self, value):
        return self.read(Fraction(value)) if isinstance(value, str) else self.read(value)

    def known(self, value):
        return value

    def choose(self, condition, yes, no):
        return yes if condition else no

    def broadcast_size(self, a, b):
        return b if a == 1 else a

    def broadcast_index(self, size, whole, k):
        return 0 if size == 1 else k

    def total(self, sizes: tuple, body: Callable):
        return sum((body(k) for k in itertools.product(*map(range, sizes))), start=self.read(0))

    def greatest(self, sizes: tuple, body: Callable, inside: Callable):
        indices = itertools.product(*map(range, sizes))
        return max((body(k) for k in indices if all_within(inside(k))), default=NOTHING)

    def place_of_greatest(self, size: int, body: Callable, last: int) -> int:
        places = range(size - 1, -1, -1) if last else range(size)
        return max(places, key=body)

    def inside(self, pairs, value: Callable):
        return value() if all_within(pairs) else self.read(0)

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

    def between(self, place: bytes, k: int, size: int, factor: int) -> tuple:
        """Return the two positions between which a linear Resize interpolates, and the weight of the second one.

        The arguments are as in `coordinate`.
        """
        exact = min(max(coordinate(place, k, size, factor), Fraction(0)), Fraction(size - 1))
        return int(exact), min(int(exact) + 1, size - 1), self.number(exact - int(exact))

    def nearest(self, place: bytes, rounding: bytes, k: int, size: int, factor: int) -> int:
        """Return the position that a nearest Resize reads; `rounding` is its nearest_mode, the rest as `coordinate`."""
        exact, half = coordinate(place, k, size, factor), Fraction(1, 2)
        rounded = {
            b"floor": math.floor(exact), b"ceil": math.ceil(exact), b"round_prefer_floor": math.ceil(exact - half),
            b"round_prefer_ceil": math.floor(exact + half),
        }[rounding]  # fmt: skip
        return min(max(rounded, 0), size - 1)

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


def coordinate(place: bytes, k: int, size: int, factor: int) -> Fraction:
    """Return the place on an axis that a Resize reads; it may lie between two elements or outside of the axis.

    Args:
      place: the attribute coordinate_transformation_mode.
      k: the index after the Resize.
      size: the size of the axis before the Resize.
      factor: the size after the Resize divided by `size`, a whole number.
    """
    if place == b"align_corners":
        return Fraction(k * (size - 1), max(size * factor - 1, 1))
    if place == b"pytorch_half_pixel" and size * factor == 1:
        return Fraction(0)
    if place == b"asymmetric":
        return Fraction(k, factor)
    return Fraction(2 * k + 1, 2 * factor) - Fraction(1, 2)


def all_within(pairs) -> bool:
    """Return True if every (position, size) pair has 0 ≤ position < size."""
    return all(0 <= position < size for position, size in pairs)


def floats() -> Numbers:
    """Return the algebra in which elements are floats."""
    return Numbers(float, REAL)


TOLERANCE = 1e-6  # relative or absolute difference up to which two floats count as equal
# If the inputs of one of these operators do not fit, the planner refuses the match (rlflow.graph.shapes.infer_types).
CHECKED = frozenset((
    "Add", "Sub", "Mul", "Div", "Pow", "Sum", "Max", "Min", "MatMul", "Concat", "Split", "Reshape", "Unsqueeze", "Gemm",
    "Transpose",
))  # fmt: skip


class Numeric(Picks, Numbers):
    """One case in plain numbers, with given sizes and random elements.

    Args:
      picks: the decisions of the case, key → chosen option.
      sizes: the values of sizes, strides, pads and other integers, by name.
      seed: the seed of the elements; an even seed gives positive elements only.
    """

    def __init__(self, picks: dict, sizes: dict[str, int], seed: int):
        super().__init__(float, REAL)
        self.picks, self.sizes, self.random, self.elements = dict(picks), sizes, random.Random(seed), {}
        self.positive = seed % 2 == 0

    def symbol(self, name: str, least: int | None = 1) -> int:
        return self.sizes.get(name, 1 if least is None else max(least, 1))

    def rows(self, name: str, axis: int, size: int) -> tuple:
        """Return (number, position of each) for the rows of zeros, every second one, and for the other rows."""
        return (size // 2, lambda k: 2 * k + 1), ((size + 1) // 2, lambda k: 2 * k)

    def is_zero_row(self, name: str, axis: int, size: int, position: int) -> bool:
        return position % 2 == 1

    def element(self, name: str, index: tuple):
        if (name, index) not in self.elements:
            drawn = self.random.randint(1, 9) / 4
            sign = 1 if self.positive or self.random.random() < 0.5 else -1
            self.elements[name, index] = self.read(sign * drawn)
        return self.elements[name, index]


def evaluate(rule: Rule, world: Numeric, is_float: bool) -> str | None:
    """Compute both sides of a rule in plain numbers and compare them.

    Args:
      rule: the rule.
      world: the case in plain numbers.
      is_float: True for float tensors, False for int64.

    Returns:
      the first difference in words; None if both sides are equal.

    Raises:
      Invalid: if the left side is not defined, or if inputs of the right side do not fit and the planner refuses them.
      NotApplicable: if the rule does not match, a condition fails, or the output shapes of the two sides differ.
    """
    case = Case(rule, world, is_float)
    source = case.source()
    if not case.fires():
        raise NotApplicable
    wanted = [_all_elements(t) for t in source]
    try:
        target = case.target()
        if [t.shape for t in source] != [t.shape for t in target]:
            raise NotApplicable
        result = [_all_elements(t) for t in target]
    except Invalid as error:
        if world.operator in CHECKED:
            raise
        return _difference(case, f"the right side is not defined ({world.operator})", str(error))
    for left, right in zip(wanted, result, strict=True):
        for index, value in left.items():
            if not _equal(value, right[index]):
                return _difference(case, f"element {list(index)} is {float(value):.6g}", f"{float(right[index]):.6g}")
    return None


def _all_elements(tensor: Tensor) -> dict[tuple, float]:
    return {index: tensor.at(index) for index in itertools.product(*map(range, tensor.shape))}


def _equal(a, b) -> bool:
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _difference(case: Case, left: str, right: str) -> str:
    """Return a counterexample in words: shapes or contents of the inputs, the attributes, and both sides' results.

    Args:
      case: the case.
      left, right: the results of the left and the right side, in words.
    """
    tensors = []
    for name, tensor in sorted(case.tensors.items()):
        for t in tensor if isinstance(tensor, list) else [tensor]:
            tensors.append(
                f"{name}: {list(t.content) if t.content is not None else 'x'.join(map(str, t.shape)) or 'scalar'}"
            )
    values = [f"{name}={value}" for name, value in sorted(case.attributes.items()) if not hasattr(value, "spec")]
    values += [
        f"{rest.op}.{key}={rest[key]}"
        for rest in case.attributes.values()
        if hasattr(rest, "spec")
        for key in rest.keys()
    ]
    return f"{', '.join([*tensors, *values])}: left {left}, right {right}"
