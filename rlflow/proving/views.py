"""Evaluate expressions of the rule language in a case of a proof.

`View` shows a tensor of a case as the rule language sees it, `Rest` holds the attributes that `**a` binds, and
`value_of` evaluates an expression. `min`, `max`, `abs`, `all` and `any` are redefined here. Python's versions would
compare every two unknown sizes and split the case each time; these build one term and one comparison.
"""

import ast
import builtins
from functools import cache
from math import prod
from typing import Any, NamedTuple
from unittest.mock import patch

from rlflow.proving import draws
from rlflow.proving.decisions import NotApplicable
from rlflow.proving.symbolic import Symbols
from rlflow.proving.tensors import Tensor
from rlflow.proving.unknowns import Int, Truth
from rlflow.rules import expressions
from rlflow.rules.expressions import Unknown, compile_expression


def larger(a, b):
    """Return the larger of two integers as one conditional term."""
    return (a if isinstance(a, Int) else b).world.choose(a >= b, a, b)


def smaller(a, b):
    """Return the smaller of two integers as one conditional term."""
    return (a if isinstance(a, Int) else b).world.choose(a <= b, a, b)


def extreme(of_two, of_many):
    """Make `min` or `max` for unknown integers.

    Args:
      of_two: the extreme of two integers, at least one of them unknown.
      of_many: Python's function for known numbers.
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
    """Return the conjunction of bools and open comparisons."""
    result = True
    for item in items:
        if item is False or not (isinstance(item, Truth) or item):
            return False
        result = item & result if isinstance(item, Truth) else result
    return result


def some(items):
    """Return the disjunction of bools and open comparisons."""
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
    """The attributes that `**a` binds: pairs for the rule language, a mapping for the operator definitions.

    Args:
      case: the case that draws the values.
      name: the name in the rule.
      op: the operator's type.
      rank: the rank of the operator's first input.
      named: the attributes that the rule names itself.
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
        """Return True for `pads` if automatic padding excludes it."""
        return key == "pads" and "auto_pad" in self.spec and self["auto_pad"] != b"NOTSET"

    def _default(self, kind: str, default):
        count = {"sizes": self.rank - 2, "more": self.rank - 2, "pads": 2 * (self.rank - 2)}.get(kind)
        return default if count is None else (default,) * count

    def keys(self) -> list[str]:
        """Return the names of the attributes that are given in this case."""
        return [key for key in self.spec if self.is_given(key)]

    def is_given(self, key: str) -> bool:
        """Return True if an attribute is given and differs from its default."""
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
    """A list of integers with the interface of a small NumPy array."""

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
    """A tensor as the rule language sees it; it takes the part of rlflow.rules.expressions.Tensor."""

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


def _scalar(view: View):
    if not all(size == 1 for size in view.type.shape):
        raise Unknown("a number is not known in advance")
    return view.tensor.at((0,) * view.tensor.rank)


def _scalar_is(view: View, value, text: str) -> bool:
    """Return True if the only element of a constant equals a number; in symbols, it then replaces the element."""
    world, result = view.case.world, _scalar(view)
    if not isinstance(world, Symbols):
        return result == value
    if world.pick(text, (True, False)):
        view.case.values[view.id] = world.number(value)
        return True
    return False


class _ScalarEquality(ast.NodeTransformer):
    """Rewrites `scalar(c) == n` to `scalar_is`: the symbolic algebra cannot assume the value of an element."""

    def visit_Compare(self, node: ast.Compare):
        match node:
            case ast.Compare(ast.Call(ast.Name("scalar"), [ast.Name() as name]), [ast.Eq()], [value]):
                return ast.Call(ast.Name("scalar_is"), [name, value, ast.Constant(ast.unparse(node))], [])
        return self.generic_visit(node)


def _finite(*views: View) -> bool:
    """Return True: the numbers of proofs are real."""
    return True


@cache
def _compiled(text: str):
    own = {"full": _full, "scalar": _scalar, "scalar_is": _scalar_is, "attributes": _attributes, "finite": _finite}
    with patch.dict(expressions.FUNCTIONS, {**SIZE_FUNCTIONS, **own}):
        return compile_expression(_ScalarEquality().visit(ast.parse(text, mode="eval")).body, text)


def value_of(text: str, scope: dict):
    """Return the value of an expression of the rule language.

    Args:
      text: the expression.
      scope: the values of its names.
    """
    return _compiled(text)(scope)


def _attributes(pairs, name: bytes, default=None):
    """Return one attribute of `**a` and leave the decisions about the others open."""
    if isinstance(pairs, Rest):
        key = name.decode()
        return pairs[key] if key in pairs and pairs.is_given(key) else default
    return expressions.attributes(pairs, name, default)
