"""Evaluate expressions in NumPy, and compare two programs on random inputs.

A vector is an array if it is rectangular and consists of numbers, else a list; a tuple is a tuple. EXTERNALS holds the
functions that a program may declare without a definition.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.tasks.expressions.expr import BOOL, FLOAT, INTEGER, Expr, is_function, is_tuple, is_vec

# Elements of every vector of random inputs. With 3 elements a vector can also hold the entries below the diagonal of a
# matrix of 3 rows, as the GMM programs of `recorded` require.
SIZE = 3
LOW, HIGH = 0.5, 2.0  # range of random numbers; positive, so that quotients and logarithms are defined
TOLERANCE = 1e-8  # largest difference of equal results, relative to the largest number of the result


class Function(NamedTuple):
    """A function as a value: its `lam` and the values of the variables around it."""

    lam: Expr
    bound: tuple | None


def _matrix_vector_gradient(matrix, vector, gradient):
    return np.outer(gradient, vector), np.asarray(matrix).T @ gradient


EXTERNALS: dict[str, Callable] = {
    "add$vfvf": lambda a, b: _combine(np.add, a, b), "pow": lambda x, p: x**p, "abs": abs, "tanh": math.tanh,
    "cosh": math.cosh, "lgamma": math.lgamma, "dotv": lambda a, b: float(np.dot(a, b)),
    "mul$Mat$Vec": lambda a, b: np.asarray(a) @ b, "rev$mul$Mat$Vec": _matrix_vector_gradient,
}  # fmt: skip
_ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
_COMPARISONS = {"eq": lambda a, b: a == b, "gt": lambda a, b: a > b, "gte": lambda a, b: a >= b}


def evaluate(expr: Expr, free: dict | None = None, bound: tuple | None = None):
    """Return the value of an expression.

    Args:
      expr: the expression.
      free: name of a free variable → its value.
      bound: the values of the binders around the expression as a linked list (value, rest), the innermost first.

    Raises:
      RLFlowError: the value is not defined, because of an external function, an index, a size, an assertion or a
        division of integers by 0.
    """
    op, args = expr.op, expr.args
    if op == "constant":
        return expr.value
    if op == "variable":
        for _ in range(expr.value):
            bound = bound[1]
        return bound[0]
    if op == "external":
        return _external(expr, free or {})
    if op == "lam":
        return Function(expr, bound)
    if op == "let":
        return evaluate(args[1], free, (evaluate(args[0], free, bound), bound))
    if op == "if":
        return evaluate(args[1 if evaluate(args[0], free, bound) else 2], free, bound)
    values = [evaluate(arg, free, bound) for arg in args[: 1 if op in ("build", "sumbuild") else None]]
    if op == "apply":
        return call(values[0], values[1], free)
    if op in ("build", "sumbuild"):
        if values[0] < 1:
            raise RLFlowError(f"{op} of {values[0]} elements")
        elements = [evaluate(args[1], free, (k, bound)) for k in range(values[0])]
        return _stack(elements) if op == "build" else _sum(elements)
    if op in _ARITHMETIC:
        if op == "div" and expr.type == INTEGER:
            if values[1] == 0:
                raise RLFlowError("an integer is divided by 0")
            return values[0] // values[1]
        return _combine(_ARITHMETIC[op], *values)
    return _primitive(op, expr, values)


def _primitive(op: str, expr: Expr, values: list):
    first = values[0] if values else None
    if op in _COMPARISONS:
        return bool(_COMPARISONS[op](*values))
    if op == "tuple":
        return tuple(values)
    if op == "get":
        return first[expr.value]
    if op == "assert":
        if not first:
            raise RLFlowError("an assertion does not hold")
        return values[1]
    if op in ("exp", "log"):
        return float(np.exp(first) if op == "exp" else np.log(first))
    if op == "to_float":
        return float(first)
    if op == "size":
        return len(first)
    if op == "sum":
        return _sum(first)
    if op == "constVec":
        return _stack([values[1]] * first)
    position, vector = (values[1], [None] * first) if op == "deltaVec" else values
    if not 0 <= position < len(vector):
        raise RLFlowError(f"position {position} of a vector of {len(vector)} elements")
    if op == "index":
        return _plain(vector[position])
    zero = _combine(np.multiply, 0.0 if _is_real(values[2]) else 0, values[2])
    return _stack([values[2] if k == position else zero for k in range(first)])


def _is_real(value) -> bool:
    if isinstance(value, (tuple, list)):
        return _is_real(value[0])
    return np.asarray(value).dtype.kind == "f"


def call(function: Function | Callable, argument, free: dict | None = None):
    """Return the value of a function at an argument.

    Args:
      function: a `Function`, or a Python function such as those in EXTERNALS.
      argument: the argument; a Python function gets the parts of a tuple as separate arguments.
      free: name of a free variable → its value.
    """
    if isinstance(function, Function):
        return evaluate(function.lam.args[0], free, (argument, function.bound))
    return function(*argument) if isinstance(argument, tuple) else function(argument)


def _external(expr: Expr, free: dict):
    name = expr.value.name
    if name in free:
        return free[name]
    if name not in EXTERNALS or not is_function(expr.type):
        raise RLFlowError(f"'{name}' has no value here")
    return EXTERNALS[name]


def _plain(value):
    return value.item() if isinstance(value, np.generic) else value


def _stack(elements: list):
    """Return a vector: an array if all elements are numbers or arrays of one shape."""
    if isinstance(elements[0], (tuple, list)):
        return elements
    same = not isinstance(elements[0], np.ndarray) or len({np.shape(each) for each in elements}) == 1
    return np.array(elements) if same else elements


def _combine(operator: Callable, left, right):
    """Apply an operator on numbers to each pair of elements; a number is paired with every element."""
    for value, other, swapped in ((left, right, False), (right, left, True)):
        if isinstance(value, (tuple, list)):
            others = other if isinstance(other, (tuple, list, np.ndarray)) else [other] * len(value)
            if len(others) != len(value):
                raise RLFlowError(f"vectors of {len(value)} and {len(others)} elements")
            pairs = zip(value, others, strict=True)
            result = [_combine(operator, b, a) if swapped else _combine(operator, a, b) for a, b in pairs]
            return tuple(result) if isinstance(value, tuple) else result
    try:
        return _plain(operator(left, right))
    except ValueError as error:
        raise RLFlowError(f"vectors of different sizes: {error}") from error


def _sum(elements):
    total = _plain(elements[0])
    for each in elements[1:]:
        total = _combine(np.add, total, each)
    return _plain(total)


def random_value(kind, rng: np.random.Generator):
    """Return a random value of a type. Vectors have SIZE elements, and integers are positions in such a vector.

    Args:
      kind: the type, without functions.
      rng: the random generator.
    """
    if is_vec(kind):
        return _stack([random_value(kind[1], rng) for _ in range(SIZE)])
    if is_tuple(kind):
        return tuple(random_value(part, rng) for part in kind[1:])
    if kind == FLOAT:
        return float(rng.uniform(LOW, HIGH))
    if kind in (INTEGER, BOOL):
        return int(rng.integers(SIZE)) if kind == INTEGER else bool(rng.integers(2))
    raise RLFlowError(f"no random value has the type {kind}")


def flat(value) -> np.ndarray:
    """Return the numbers of a value as one float64 array."""
    if isinstance(value, (tuple, list)):
        return np.concatenate([flat(each) for each in value]) if len(value) else np.zeros(0)
    return np.ravel(np.asarray(value, np.float64))


def is_finite(value) -> bool:
    return bool(np.isfinite(flat(value)).all())


def difference(one, other) -> float:
    """Return the largest difference of two values, relative to the largest absolute number in both.

    Args:
      one, other: values as `evaluate` returns them.

    Returns:
      The difference; infinity if the values hold different counts of numbers, or if a number is not finite.
    """
    left, right = flat(one), flat(other)
    if left.shape != right.shape or not is_finite(one) or not is_finite(other):
        return math.inf
    scale = max(np.abs(left).max(initial=0), np.abs(right).max(initial=0))
    return float(np.abs(left - right).max() / scale) if scale else 0.0


def run(expr: Expr, seed: int):
    """Return the value of an expression or of a program's function at random inputs.

    Args:
      expr: the root; free variables get random values, and a function is called with a random argument.
      seed: seed of the inputs. Equal types and names get equal inputs.
    """
    free = {}
    for node in expr.nodes():
        if node.op == "external" and not is_function(node.type):
            name = node.value.name
            free[name] = random_value(node.type, np.random.default_rng([seed, *name.encode()]))
    with np.errstate(all="ignore"):
        value = evaluate(expr, free)
        if is_function(expr.type):
            value = call(value, random_value(expr.type[1], np.random.default_rng(seed)), free)
    return value


def largest_difference(one: Expr, other: Expr, seeds: int = 5) -> float:
    """Return the largest `difference` of two expressions at the inputs of several seeds.

    Inputs at which the first expression has no finite value, such as the logarithm of a negative number, do not count.

    Args:
      one, other: the expressions, as in `run`.
      seeds: the number of seeds, which are 0, 1, ….

    Raises:
      RLFlowError: an expression has no value at some of the inputs, or the first one nowhere a finite value.
    """
    wanted = {seed: value for seed in range(seeds) if is_finite(value := run(one, seed))}
    if not wanted:
        raise RLFlowError("the program has no finite value at random inputs")
    return max(difference(value, run(other, seed)) for seed, value in wanted.items())
