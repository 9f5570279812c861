"""An integer that is not known (`Int`), a comparison of such (`Truth`), and functions of which nothing is known."""

from typing import Any

import z3


class Int:
    """An integer that is not known."""

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
    """A comparison that may be open; `bool` decides it, or asks (`Fork`, `Border`)."""

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
    return value.term if isinstance(value, Int) else value


def plain_claim(claim):
    return claim.claim if isinstance(claim, Truth) else claim


def term_of(value):
    return z3.IntVal(value) if isinstance(value, int) else plain(value)


def term_id(value):
    return ("number", value) if isinstance(value, int) else value.term.get_id()


class _Unknown(dict):
    """Functions from integers to an integer of which nothing is known, by (name, number of arguments)."""

    def __missing__(self, key):
        name, count = key
        self[key] = z3.Function(name, *[z3.IntSort()] * count, z3.IntSort())
        return self[key]


UNKNOWN = _Unknown()
