"""Random well-typed expressions of the task `expressions`."""

import numpy as np

from rlflow.tasks.expressions.expr import BOOL, FLOAT, INTEGER, Expr, constant, is_tuple, is_vec, leaves, make, vec

FREE = {
    FLOAT: ("x", "y", "z"), INTEGER: ("i", "j"), BOOL: ("p",), vec(FLOAT): ("u", "v"), vec(vec(FLOAT)): ("m",),
    vec(INTEGER): ("w",), ("Tuple", FLOAT, FLOAT): ("s",),
}  # fmt: skip
KINDS = (FLOAT, FLOAT, INTEGER, vec(FLOAT), vec(vec(FLOAT)), ("Tuple", FLOAT, FLOAT), BOOL)


class Generator:
    """A generator of random expressions, in which most positions and sizes stay within vectors of 3 elements."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def pick(self, options):
        return options[self.rng.integers(len(options))]

    def size(self) -> Expr:
        return self.pick([constant(3), make("size", Expr.external("u", vec(FLOAT)))])

    def leaf(self, kind, scope: tuple) -> Expr:
        bound = [index for index, other in enumerate(scope) if other == kind]
        if bound and self.rng.random() < 0.6:
            return Expr.variable(self.pick(bound), kind)
        if kind == FLOAT and self.rng.random() < 0.3:
            return constant(float(self.pick([0.0, 1.0, -1.0, 2.5])))
        if kind == INTEGER and self.rng.random() < 0.3:
            return constant(int(self.rng.integers(3)))
        if kind == BOOL and self.rng.random() < 0.5:
            return constant(bool(self.rng.integers(2)))
        if kind in FREE:
            return Expr.external(self.pick(FREE[kind]), kind)
        if is_vec(kind):
            return make("constVec", constant(3), self.leaf(kind[1], scope))
        return make("tuple", *(self.leaf(part, scope) for part in kind[1:]))

    def draw(self, kind, depth: int, scope: tuple = ()) -> Expr:
        """Return an expression of a type; `scope` has the types of the variables around it, the innermost first."""
        if depth <= 0:
            return self.leaf(kind, scope)
        inner = lambda other, *binders: self.draw(other, depth - 1, (*binders, *scope))  # noqa: E731
        roll = self.rng.random()
        if roll < 0.12:
            value = inner(self.pick(KINDS))
            return make("let", value, inner(kind, value.type))
        if roll < 0.2:
            return make("if", inner(BOOL), inner(kind), inner(kind))
        if roll < 0.28:
            return make("get", make("tuple", inner(kind), inner(FLOAT)), value=0)
        if roll < 0.36:
            return make("index", self.leaf(INTEGER, scope), inner(vec(kind)))
        if kind == BOOL:
            other = self.pick([FLOAT, INTEGER])
            return make(self.pick(["eq", "gt", "gte"]), inner(other), inner(other))
        if kind == INTEGER:
            return make(self.pick(["add", "sub", "mul"]), inner(INTEGER), inner(INTEGER))
        if is_vec(kind) and roll < 0.7:
            if roll < 0.5:
                return make("build", self.size(), inner(kind[1], INTEGER))
            return make("deltaVec", self.size(), self.leaf(INTEGER, scope), inner(kind[1]))
        if is_tuple(kind) and roll < 0.85:
            return make("tuple", *(inner(part) for part in kind[1:]))
        if BOOL in leaves(kind):
            return self.leaf(kind, scope)
        if roll < 0.62:
            return make("sumbuild", self.size(), inner(kind, INTEGER))
        if roll < 0.66:
            return make("sum", inner(vec(kind)))
        if leaves(kind) == {INTEGER}:
            return make(self.pick(["add", "sub", "mul"]), inner(kind), inner(kind))
        op = self.pick(["add", "sub", "mul", "div"])
        return make(op, inner(kind), inner(self.pick([kind, FLOAT]) if op in ("mul", "div") else kind))
