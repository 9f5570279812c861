"""Evaluate expressions of the rule language in a case of a proof.

`View` gives expressions access to a tensor of a case, `Rest` holds the attributes that `**a` binds, and `value_of`
evaluates an expression. `min`, `max`, `abs`, `all` and `any` are redefined here. Python's versions would split the case
at every comparison of two unknown sizes. The versions here build one conditional term or one comparison instead.
"""

import ast
import builtins
from functools import cache
from math import prod
from typing import Any, NamedTuple
from unittest.mock import patch

import z3

from rlflow.proving import draws
from rlflow.proving.decisions import Fork, NotApplicable, Unprovable
from rlflow.proving.symbolic import Symbols
from rlflow.proving.tensors import Tensor
from rlflow.proving.unknowns import Int, Truth, mentions
from rlflow.rules import expressions
from rlflow.rules.expressions import Unknown, compile_expression


def larger(a, b):
    """Return the larger of two integers, at least one unknown, as one conditional term."""
    return (a if isinstance(a, Int) else b).world.choose(a >= b, a, b)


def smaller(a, b):
    """Return the smaller of two integers, at least one unknown, as one conditional term."""
    return (a if isinstance(a, Int) else b).world.choose(a <= b, a, b)


def extreme(of_two, of_many):
    """Make a version of `min` or `max` that takes unknown integers.

    Args:
      of_two: a function that returns the smaller or larger of two integers, at least one of them unknown.
      of_many: Python's `min` or `max`, for known numbers.
    """
    def result(*values):
        items = builtins.list(values[0]) if len(values) == 1 else values
        if not builtins.any(isinstance(item, Int) for item in items):
            return of_many(items)
        first, *rest = items
        for other in rest:
            first = of_two(first, other) if isinstance(first, Int) or isinstance(other, Int) else of_many(first, other)
        return first

    return result


def absolute(value):
    return larger(value, -value) if isinstance(value, Int) else builtins.abs(value)


def every(items):
    """Return the conjunction of bools and open comparisons, a bool or a Truth. This replaces Python's `all`."""
    result = True
    for item in items:
        if item is False or not (isinstance(item, Truth) or item):
            return False
        result = item & result if isinstance(item, Truth) else result
    return result


def some(items):
    """Return the disjunction of bools and open comparisons, a bool or a Truth. This replaces Python's `any`."""
    result = False
    for item in items:
        if not isinstance(item, Truth) and item:
            return True
        result = item | result if isinstance(item, Truth) else result
    return result


SIZE_FUNCTIONS = {
    "min": extreme(smaller, builtins.min),
    "max": extreme(larger, builtins.max),
    "abs": absolute,
    "all": every,
    "any": some,
}


class Rest:
    """The attributes that `**a` binds, a mapping from names to values. Reading a value may split the case.

    Args:
      case: the Case that chooses the values.
      name: the name of the binding in the rule, such as `a`.
      op: the operator's type.
      rank: the rank of the operator's first input.
      named: the attributes that the rule writes before `**a`, which `**a` does not bind.
    """

    def __init__(self, case: Any, name: str, op: str, rank: int, named: set[str]):
        self.case, self.name, self.op, self.rank = case, name, op, rank
        self.spec = {key: value for key, value in draws.REST.get(op, {}).items() if key not in named}

    def __contains__(self, key: str) -> bool:
        if key in self.spec and self.spec[key][0].startswith("maybe "):
            return self.case.world.pick(f"{self.name}.{key} given", (False, True))
        return key in self.spec

    def __getitem__(self, key: str):
        kind, default = self.spec[key]
        if kind in ("sizes", "pads", "more", "size", "real", "axis") and default is not None:
            if self.case.world.picked(f"{self.name}.{key} given") is False or self._clash(key):
                return self._default(kind, default)
        return self.case.draw(f"{self.name}.{key}", kind, default, self.rank)

    def _clash(self, key: str) -> bool:
        """Return True if the attribute is `pads` and automatic padding forbids it."""
        return key == "pads" and "auto_pad" in self.spec and self["auto_pad"] != b"NOTSET"

    def _default(self, kind: str, default):
        count = {"sizes": self.rank - 2, "more": self.rank - 2, "pads": 2 * (self.rank - 2)}.get(kind)
        return default if count is None else (default,) * count

    def keys(self) -> list[str]:
        """Return the names of the attributes that are given in this case."""
        return [key for key in self.spec if self.is_given(key)]

    def is_given(self, key: str) -> bool:
        """Return True if an attribute is given in this case.

        Raises:
          NotApplicable: if a given integer or list equals the default; the case without the attribute covers this case.
        """
        kind, default = self.spec[key]
        if kind == "pick":
            return self[key] != default[0]
        if default is None:
            return key in self
        if self._clash(key) or not self.case.world.pick(f"{self.name}.{key} given", (False, True)):
            return False
        if kind != "real":
            usual = self._default(kind, default)
            same = self[key] == usual
            if same:
                raise NotApplicable
        return True


class _Type(NamedTuple):
    shape: tuple
    dtype: int

    @property
    def size(self):
        return prod(self.shape)


class _Held(NamedTuple):
    """A list of known integers with the methods of a constant (rlflow.graph.ir.Constant) and of its NumPy array."""

    content: tuple

    class dtype:
        kind = "i"

    class _Small(NamedTuple):
        size: int = 1

    type = _Small()

    def load(self):
        return self

    def reshape(self, *shape):
        return self

    def tolist(self):
        return list(self.content)


class View:
    """A tensor of a case with the interface of rlflow.rules.expressions.Tensor, for expressions of the rule language.

    Args:
      case: the Case that contains the tensor.
      name: the name of the tensor in the rule.
      tensor: the tensor; None for an absent input.
    """

    def __init__(self, case: Any, name: str, tensor: Tensor | None):
        self.case, self.id, self.tensor, self.graph, self.constants = case, name, tensor, self, self
        self.consumers, self.outputs = {name: (0,)}, ()

    @property
    def type(self) -> _Type:
        if self.tensor is None:
            raise Unknown("the shape of a tensor is not known")
        return _Type(self.tensor.shape, self.tensor.dtype)

    def is_constant(self, name: str) -> bool:
        return self.case.is_constant(name)

    def get(self, name: str):
        known = self.tensor is not None and self.tensor.content is not None
        return _Held(self.tensor.content) if known else None


def _full(number, like: View, *sizes) -> Tensor:
    world = like.case.world
    return Tensor(tuple(sizes), lambda i: world.number(number), like.type.dtype)


def _eye(size, like: View) -> Tensor:
    world = like.case.world
    return Tensor((size, size), lambda i: world.inside([(i[0] - i[1], 1)], lambda: world.number(1)), like.type.dtype)


def _array(numbers: tuple, like: View) -> Tensor:
    world, shape, level = like.case.world, [], numbers
    while isinstance(level, tuple):
        shape.append(len(level))
        level = level[0]

    def at(index: tuple):
        result = numbers
        for k in index:
            result = result[_known_position(world, k, len(result)) if isinstance(k, Int) else k]
        return world.number(result)

    return Tensor(tuple(shape), at, like.type.dtype)


def _known_position(world, k: Int, size: int) -> int:
    """Split the case by the value of an index below a known size.

    Raises:
      Fork: if the index is proved to be at least 0 and below the size; in each new case the index is a number.
      Unprovable: if this is not proved, or if the index depends on the index of a sum.
    """
    if not world.entails(z3.And(k.term >= 0, k.term < size)) or any(mentions(k.term, v) for v, _ in world.bound):
        raise Unprovable("an index of a matrix of numbers is not known")
    raise Fork([k.term == value for value in range(size)])


def _scalar(view: View):
    if not all(size == 1 for size in view.type.shape):
        raise Unknown("a number is not known in advance")
    return view.tensor.at((0,) * view.tensor.rank)


def _scalar_is(view: View, value, text: str) -> bool:
    """Return True if the only element of a constant equals a number.

    In the symbolic algebra the answer is a decision of the case; if it is True, the number replaces the element.

    Args:
      view: the constant.
      value: the number.
      text: the key of the decision.
    """
    world, result = view.case.world, _scalar(view)
    if not isinstance(world, Symbols):
        return result == value
    if world.pick(text, (True, False)):
        view.case.values[view.id] = world.number(value)
        return True
    return False


class _ForProofs(ast.NodeTransformer):
    """A transformer of syntax trees that replaces what a proof reads in another way.

    `scalar(c) == n` becomes a call of `scalar_is` (`_scalar_is`), because the symbolic algebra has no assumptions about
    the values of elements. `worthwhile(…)` becomes True, because a proof covers the places where a rule does not pay.
    """

    def visit_Call(self, node: ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "worthwhile":
            return ast.Constant(True)
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare):
        match node:
            case ast.Compare(ast.Call(ast.Name("scalar"), [ast.Name() as name]), [ast.Eq()], [value]):
                return ast.Call(ast.Name("scalar_is"), [name, value, ast.Constant(ast.unparse(node))], [])
        return self.generic_visit(node)


def _finite(*views: View) -> bool:
    """Return True, because all elements are real numbers in proofs."""
    return True


def _zeros(view: View, axis: int) -> Tensor:
    return view.case.rows(view, axis)[0]


def _nonzeros(view: View, axis: int) -> Tensor:
    return view.case.rows(view, axis)[1]


def length(items) -> Any:
    """Return the number of items, also of a list whose length is an unknown integer."""
    return items.shape[0] if isinstance(items, Tensor) else builtins.len(items)


@cache
def _compiled(text: str):
    own = {
        "full": _full, "array": _array, "scalar": _scalar, "scalar_is": _scalar_is, "attributes": _attributes,
        "finite": _finite, "zeros": _zeros, "nonzeros": _nonzeros, "len": length,
        "factors": lambda view: view.tensor.content, "eye": _eye,
    }  # fmt: skip
    with patch.dict(expressions.FUNCTIONS, {**SIZE_FUNCTIONS, **own}):
        return compile_expression(_ForProofs().visit(ast.parse(text, mode="eval")).body, text)


def value_of(text: str, scope: dict):
    """Return the value of an expression of the rule language in a case.

    Args:
      text: the expression.
      scope: name → value: attributes, numbers and Views.
    """
    return _compiled(text)(scope)


def _attributes(pairs, name: bytes, default=None):
    """Return one attribute of `**a`, or the default if it is absent. Decisions about other attributes stay open."""
    if isinstance(pairs, Rest):
        key = name.decode()
        return pairs[key] if key in pairs and pairs.is_given(key) else default
    return expressions.attributes(pairs, name, default)
