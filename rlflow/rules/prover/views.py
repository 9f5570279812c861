"""Tensors of a case as the rule language sees them, and the value of its expressions there."""

import ast
from functools import cache
from math import prod
from typing import Any, NamedTuple
from unittest.mock import patch

from rlflow.rules import expressions
from rlflow.rules.expressions import Unknown, compile_expression
from rlflow.rules.prover import choices
from rlflow.rules.prover.rest import Rest
from rlflow.rules.prover.symbolic import Symbols
from rlflow.rules.prover.tensors import Tensor


class _Type(NamedTuple):
    shape: tuple
    dtype: int

    @property
    def size(self):
        return prod(self.shape)


class _Held(NamedTuple):
    """A list of integers instead of a NumPy array."""

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
    """A tensor as the rule language sees it (instead of rlflow.rules.expressions.Tensor)."""

    def __init__(self, case: Any, name: str, tensor: Tensor | None):
        self.case, self.id, self.tensor, self.graph, self.constants = case, name, tensor, self, self
        self.consumers, self.outputs = {name: (0,)}, ()

    @property
    def type(self) -> _Type:
        if self.tensor is None:
            raise Unknown("the shape of a tensor is not known")
        return _Type(self.tensor.shape, self.tensor.dtype)

    def is_constant(self, name: str) -> bool:
        return self.case.constness(name)

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
    """Whether the one element of a constant is that number; in symbols it is replaced by it then."""
    world, result = view.case.world, _scalar(view)
    if not isinstance(world, Symbols):
        return result == value
    if world.pick(text, (True, False)):
        view.case.values[view.id] = world.number(value)
        return True
    return False


class _ScalarEquality(ast.NodeTransformer):
    """`scalar(c) == n` as a question of its own: symbols cannot assume that an element is a number."""

    def visit_Compare(self, node: ast.Compare):
        match node:
            case ast.Compare(ast.Call(ast.Name("scalar"), [ast.Name() as name]), [ast.Eq()], [value]):
                return ast.Call(ast.Name("scalar_is"), [name, value, ast.Constant(ast.unparse(node))], [])
        return self.generic_visit(node)


def _finite(*views: View) -> bool:
    """Numbers of proofs are real."""
    return True


@cache
def _compiled(text: str):
    own = {"full": _full, "scalar": _scalar, "scalar_is": _scalar_is, "attributes": _attributes, "finite": _finite}
    with patch.dict(expressions.FUNCTIONS, {**choices.FUNCTIONS, **own}):
        return compile_expression(_ScalarEquality().visit(ast.parse(text, mode="eval")).body, text)


def value_of(text: str, scope: dict):
    return _compiled(text)(scope)


def _attributes(pairs, name: bytes, default=None):
    """One attribute of what `**a` holds, without asking for the others."""
    if isinstance(pairs, Rest):
        key = name.decode()
        return pairs[key] if key in pairs and pairs.is_given(key) else default
    return expressions.attributes(pairs, name, default)
