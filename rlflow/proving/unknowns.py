"""Represent unknown integers and open comparisons on top of z3.

`Int` is an unknown integer, `Truth` is a comparison that may be open, and UNKNOWN holds uninterpreted functions. The
first functions of the file analyse z3's integer terms: `monomials`, `subterms` and `mentions`.
"""

from typing import Any

import z3

MAX_CLAIM = 40  # largest number of subterms of a comparison that may split a case


def monomials(term) -> list[tuple]:
    """Return (coefficient, factors) pairs for an integer z3 term: the term is the sum of their products."""
    if z3.is_int_value(term):
        return [(term.as_long(), ())]
    if z3.is_add(term):
        return [pair for child in term.children() for pair in monomials(child)]
    if z3.is_mul(term) and z3.is_int_value(term.arg(0)):
        return [(term.arg(0).as_long() * c, factors) for c, factors in monomials(term.arg(1))]
    if z3.is_app(term) and term.decl().name() == "product":
        return [(1, tuple(f for child in term.children() for _, fs in monomials(child) for f in fs))]
    return [(1, (term,))]


def sorting_key(term) -> tuple:
    """Return the sorting key of a factor of a product.

    Small terms are sorted by their text, so that the order does not depend on z3's internal numbers.
    """
    return (0, term.sexpr(), 0) if len(subterms(term)) <= MAX_CLAIM else (1, term.decl().name(), term.hash())


def without_factors(factors: tuple, divisor: tuple) -> tuple | None:
    """Return the factors of a product after division by other factors, or None if one of these is missing.

    Args:
      factors: the factors of the product, as z3 terms.
      divisor: the factors to remove, each one once.
    """
    left = list(factors)
    for wanted in divisor:
        position = next((k for k, factor in enumerate(left) if factor.eq(wanted)), None)
        if position is None:
            return None
        del left[position]
    return tuple(left)


def subterms(term) -> list:
    """Return each distinct subterm of a z3 term once, including the term itself."""
    seen, waiting = {}, [term]
    while waiting:
        one = waiting.pop()
        if one.get_id() not in seen:
            seen[one.get_id()] = one
            waiting += one.children()
    return list(seen.values())


def mentions(term, variable) -> bool:
    """Return True if a z3 term contains the variable.

    Args:
      term: a z3 term, or a Python integer or boolean, which contains no variable.
      variable: a z3 constant.
    """
    if isinstance(term, int | bool):
        return False
    wanted = variable.get_id()
    return any(one.get_id() == wanted for one in subterms(term))


class Int:
    """An unknown integer: a z3 term, and the algebra (rlflow.proving.integers) that computes with the integer."""

    __slots__ = ("world", "term")
    __hash__ = None

    def __init__(self, world: Any, term):
        self.world, self.term = world, term

    def _wrap(self, term):
        return self.world.integer(term)

    def __add__(self, other):
        return self._wrap(self.term + plain(other))

    def __sub__(self, other):
        return self._wrap(self.term - plain(other))

    def __rsub__(self, other):
        return self._wrap(plain(other) - self.term)

    def __neg__(self):
        return self._wrap(-self.term)

    def __mul__(self, other):
        return self.world.product(self, other)

    def __floordiv__(self, other):
        return self.world.floor_quotient(self, other)

    def __rfloordiv__(self, other):
        return self.world.floor_quotient(other, self)

    def __truediv__(self, other):
        return self.world.quotient(self.world.number(self), self.world.number(other))

    def __rtruediv__(self, other):
        return self.world.quotient(self.world.number(other), self.world.number(self))

    def __mod__(self, other):
        return self - (self // other) * other

    def __eq__(self, other):
        return self.world.truth("==", self.term - plain(other)) if isinstance(other, int | Int) else False

    def __ne__(self, other):
        return ~(self == other) if isinstance(other, int | Int) else True

    def __lt__(self, other):
        return self.world.truth("<", self.term - plain(other))

    def __le__(self, other):
        return self.world.truth("<=", self.term - plain(other))

    def __gt__(self, other):
        return self.world.truth("<", plain(other) - self.term)

    def __ge__(self, other):
        return self.world.truth("<=", plain(other) - self.term)

    __radd__, __rmul__ = __add__, __mul__


class Truth:
    """A comparison that may be open. `bool` decides it, or raises a Fork or a Border.

    Attributes:
      world: the algebra that decides the comparison.
      claim: the comparison as a z3 claim.
      kind: "==", "<" or "<=" for a single comparison of `difference` with 0, else "".
      difference: the z3 term that is compared with 0.
    """

    def __init__(self, world: Any, claim, kind: str = "", difference=None):
        self.world, self.claim, self.kind, self.difference = world, claim, kind, difference

    def __bool__(self):
        return self.world.decide(self)

    def __or__(self, other):
        return True if other is True else self if other is False else Truth(self.world, z3.Or(self.claim, other.claim))

    def __and__(self, other):
        return (
            False if other is False else self if other is True else Truth(self.world, z3.And(self.claim, other.claim))
        )

    def __invert__(self):
        return Truth(self.world, z3.Not(self.claim))

    __ror__, __rand__ = __or__, __and__


def plain(value):
    """Return the z3 term of an Int, and any other value unchanged."""
    return value.term if isinstance(value, Int) else value


def plain_claim(claim):
    """Return the z3 claim of a Truth, and any other value unchanged."""
    return claim.claim if isinstance(claim, Truth) else claim


def term_of(value):
    """Return an integer of the algebra as a z3 term."""
    return z3.IntVal(value) if isinstance(value, int) else plain(value)


def term_id(value):
    """Return a key of an integer of the algebra; equal keys mean equal integers."""
    return ("number", value) if isinstance(value, int) else value.term.get_id()


class _Unknown(dict):
    """A dictionary from (name, number of arguments) to an uninterpreted z3 function of integers; made on demand."""

    def __missing__(self, key):
        name, count = key
        self[key] = z3.Function(name, *[z3.IntSort()] * count, z3.IntSort())
        return self[key]


UNKNOWN = _Unknown()
