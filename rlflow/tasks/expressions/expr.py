"""Expressions of the ksc language as immutable trees with types, and equality up to the names of bound variables.

The language is the first-order functional language of Knossos (the intermediate language of `microsoft/knossos-ksc`):
numbers, tuples, vectors (`build`, `sumbuild`, `index`, `size`), `let`, `if` and calls. A bound variable is a de Bruijn
index: the number of binders between the variable and its binder. Two expressions are therefore equal up to renaming
exactly if their trees are equal, and a digest of the tree (`Expr.key`) decides this in constant time. The names that a
file gives to variables survive as hints for the printer and have no part in equality.

    x = Expr.external("x", FLOAT)
    make("add", x, make("mul", x, constant(2.0))).type      "Float"

A type is "Float", "Integer", "Bool", ("Vec", type), ("Tuple", type, …) or ("Lam", argument type, result type).
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from rlflow.common.errors import RLFlowError

FLOAT, INTEGER, BOOL = "Float", "Integer", "Bool"
SCALARS = (FLOAT, INTEGER)
ARITHMETIC = ("add", "sub", "mul", "div")
COMPARISONS = ("eq", "gt", "gte")
BINDERS = {"let": 1, "lam": 0, "build": 1, "sumbuild": 1}  # operator → position of the argument under the binder
# Operator → number of arguments, without the bound variable; a tuple has any number of arguments but 1.
ARITY = {
    "constant": 0, "variable": 0, "external": 0, "let": 2, "lam": 1, "apply": 2, "if": 3, "assert": 2, "tuple": None,
    "get": 1, "add": 2, "sub": 2, "mul": 2, "div": 2, "eq": 2, "gt": 2, "gte": 2, "exp": 1, "log": 1, "to_float": 1,
    "build": 2, "sumbuild": 2, "index": 2, "size": 1, "sum": 1, "deltaVec": 3, "constVec": 2,
}  # fmt: skip


class External(NamedTuple):
    """A name that the program does not define: a free variable or a function.

    Attributes:
      name: the name.
      cost: for a function the cost of its body in units of 1e-4, to which `cost` adds CALL for each call; else 0.
    """

    name: str
    cost: int


def vec(element) -> tuple:
    return ("Vec", element)


def is_vec(kind) -> bool:
    return kind[0] == "Vec"


def is_tuple(kind) -> bool:
    return kind[0] == "Tuple"


def is_function(kind) -> bool:
    return kind[0] == "Lam"


def leaves(kind) -> set:
    """Return the types of the scalars that a value of a type consists of."""
    if isinstance(kind, str):
        return {kind}
    return set().union(*map(leaves, kind[1:]))


def elements(kind, vector_size: int) -> int:
    """Return the number of scalars in a value of a type.

    Args:
      kind: the type.
      vector_size: the assumed number of elements of every vector.
    """
    if is_vec(kind):
        return vector_size * elements(kind[1], vector_size)
    return sum(elements(part, vector_size) for part in kind[1:]) if is_tuple(kind) else 1


class Expr:
    """One node of an expression, with the whole tree below it. Create nodes with `make`, `constant` and `Expr.…`.

    Attributes:
      op: the operator, a key of `ARITY`.
      args: the arguments. The argument at `BINDERS[op]` stands under one more binder than the node.
      value: of a constant its number, of a variable its de Bruijn index, of an external the `External`, of `lam` the
        type of its argument, of `get` the position from 0; else None.
      type: the type.
      hint: of a binder, the name of its variable for the printer, or None. It has no part in equality.
      key: bytes [16], a digest that is equal exactly for expressions that are equal up to renaming.
      free: the free de Bruijn indices, as the set bits of an integer.
      size: number of nodes of the tree.
      calls: False only if the tree mentions no function that is bound outside the tree. If True, the cost of the tree
        may depend on these functions. It can be True without such a function if other variables are free.
      cost: the cost in units of 1e-4, stored by `cost.cost_of` if `calls` is False; None if it is not stored.
      local: the rewrites at this node, stored by `rules.local_rewrites`; None if they are not stored.
    """

    __slots__ = ("op", "args", "value", "type", "hint", "key", "free", "size", "calls", "cost", "local")

    def __init__(self, op: str, args: tuple["Expr", ...], value, kind, hint: str | None = None):
        self.op, self.args, self.value, self.type, self.hint = op, args, value, kind, hint
        self.cost = self.local = None
        free, size, calls = 0, 1, False
        under = BINDERS.get(op)
        for position, arg in enumerate(args):
            size += arg.size
            free |= arg.free >> 1 if position == under else arg.free
            calls = calls or arg.calls
        if op == "variable":
            free, calls = 1 << value, is_function(kind)
        elif calls and not free:
            calls = False
        self.free, self.size, self.calls = free, size, calls
        digest = blake2b(_label(op, value, kind if op == "constant" else None), digest_size=16)
        for arg in args:
            digest.update(arg.key)
        self.key = digest.digest()

    def __reduce__(self):
        return Expr, (self.op, self.args, self.value, self.type, self.hint)

    def __eq__(self, other) -> bool:
        return isinstance(other, Expr) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Expr({self.op}, {self.value}, {self.args})" if self.args else f"Expr({self.op}, {self.value})"

    @staticmethod
    def variable(index: int, kind) -> "Expr":
        return Expr("variable", (), index, kind)

    @staticmethod
    def external(name: str, kind, cost: int = 0) -> "Expr":
        return Expr("external", (), External(name, cost), kind)

    def mentions(self, index: int) -> bool:
        """Return whether the variable with a de Bruijn index, counted from this node, occurs in the tree."""
        return bool(self.free >> index & 1)

    def with_args(self, args: tuple["Expr", ...]) -> "Expr":
        """Return the node with other arguments of the same types."""
        return Expr(self.op, args, self.value, self.type, self.hint)

    def nodes(self) -> Iterator["Expr"]:
        """Yield the nodes in preorder, each before its arguments."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.args))


@lru_cache(maxsize=100_000)
def _label(op: str, value, kind) -> bytes:
    return repr((op, value, kind)).encode()


def constant(value: float | int | bool, kind=None) -> Expr:
    """Return a constant.

    Args:
      value: the number or truth value.
      kind: "Float", "Integer" or "Bool"; None to derive the type from the Python type of the value.
    """
    if kind is None:
        kind = BOOL if isinstance(value, bool) else INTEGER if isinstance(value, int) else FLOAT
    return Expr("constant", (), {FLOAT: float, INTEGER: int, BOOL: bool}[kind](value), kind)


def make(op: str, *args: Expr, value=None, hint: str | None = None) -> Expr:
    """Return a node with the type that follows from its arguments.

    Args:
      op: the operator, except constants, variables and externals.
      *args: the arguments.
      value, hint: see `Expr`.

    Raises:
      RLFlowError: the number or the types of the arguments do not fit the operator.
    """
    arity = ARITY.get(op)
    if op not in ARITY or (len(args) == 1 if arity is None else len(args) != arity):
        raise RLFlowError(f"'{op}' does not take {len(args)} arguments")
    kind = _TYPES[op](value, *(arg.type for arg in args))
    if kind is None:
        shown = ", ".join(type_text(arg.type) for arg in args)
        raise RLFlowError(f"'{op}' does not take arguments of the types {shown}")
    return Expr(op, args, value, kind, hint)


def type_text(kind) -> str:
    """Return a type as ksc writes it."""
    return kind if isinstance(kind, str) else f"({' '.join([kind[0], *map(type_text, kind[1:])])})"


def _arithmetic(_, left, right):
    if left == right:
        return left if leaves(left) <= {FLOAT, INTEGER} else None
    if left in SCALARS and leaves(right) == {left}:
        return right  # a number and each element
    return left if right in SCALARS and leaves(left) == {right} else None


def _only(condition: bool, kind):
    return kind if condition else None


_TYPES: dict[str, Callable] = {
    **dict.fromkeys(ARITHMETIC, _arithmetic),
    **dict.fromkeys(COMPARISONS, lambda _, left, right: _only(left == right and left in SCALARS, BOOL)),
    **dict.fromkeys(("exp", "log"), lambda _, kind: _only(kind == FLOAT, FLOAT)),
    "to_float": lambda _, kind: _only(kind == INTEGER, FLOAT),
    "let": lambda _, value, body: body,
    "lam": lambda parameter, body: ("Lam", parameter, body),
    "apply": lambda _, function, arg: _only(is_function(function) and function[1] == arg, function[-1]),
    "if": lambda _, test, yes, no: _only(test == BOOL and yes == no, yes),
    "assert": lambda _, test, body: _only(test == BOOL, body),
    "tuple": lambda _, *parts: ("Tuple", *parts),
    "get": lambda position, kind: kind[position + 1] if is_tuple(kind) and position + 1 < len(kind) else None,
    "build": lambda _, size, body: _only(size == INTEGER, vec(body)),
    "sumbuild": lambda _, size, body: _only(size == INTEGER, body),
    "index": lambda _, position, vector: _only(position == INTEGER and is_vec(vector), vector[1]),
    "size": lambda _, vector: _only(is_vec(vector), INTEGER),
    "sum": lambda _, vector: _only(is_vec(vector), vector[1]),
    "deltaVec": lambda _, size, position, element: _only(size == position == INTEGER, vec(element)),
    "constVec": lambda _, size, element: _only(size == INTEGER, vec(element)),
}  # fmt: skip


def rename(expr: Expr, new_index: Callable[[int], int], depth: int = 0) -> Expr:
    """Return the expression with other indices for its free bound variables.

    Args:
      expr: the expression.
      new_index: index of a variable, counted from the root of `expr` → its new index.
      depth: number of binders between the root and `expr`, whose variables stay.
    """
    if not expr.free >> depth:
        return expr
    if expr.op == "variable":
        return Expr.variable(new_index(expr.value - depth) + depth, expr.type)
    under = BINDERS.get(expr.op)
    return expr.with_args(
        tuple(rename(arg, new_index, depth + (position == under)) for position, arg in enumerate(expr.args))
    )


def shift(expr: Expr, by: int, start: int = 0) -> Expr:
    """Return the expression for a place with `by` more binders (fewer if negative) outside its `start` innermost ones.

    Args:
      expr: the expression; if `by` is negative, it mentions no variable of a binder that it leaves.
      by: number of binders.
      start: number of innermost binders around the expression that stay.
    """
    return rename(expr, lambda index: index + by if index >= start else index) if by else expr


def replace_at(expr: Expr, path: list[int], change: Callable[[Expr], Expr]) -> Expr:
    """Return the expression with the subtree at a path replaced.

    Args:
      expr: the root.
      path: the positions of arguments that lead from the root to the subtree.
      change: function of the subtree; it must return an expression of the same type.
    """
    chain = [expr]
    for position in path:
        chain.append(chain[-1].args[position])
    result = change(chain.pop())
    for node, position in zip(reversed(chain), reversed(path), strict=True):
        result = node.with_args(node.args[:position] + (result,) + node.args[position + 1 :])
    return result
