"""Symbolic sizes: polynomials with integer coefficients in a model's symbols and in floors of such polynomials.

A symbolic dimension of a model (`batch`, `seq`) is a symbol. Arithmetic on sizes gives a `Dim`: `12·seq`,
`past + seq`, `(height - 1)//2 + 1`. Equal Dims are the same object, so that shapes with Dims hash and compare as fast
as numeric shapes. A constant polynomial is an int, never a Dim.

`==` tests whether two Dims are the same polynomial. The comparisons `equal`, `<`, `bool`, … hold for *every* value of
the symbols: they return True or False, or raise `Undecided` if the answer depends on the values. The values of a symbol
start at its `least`: 1, since rules are proved for sizes from 1, or 0 for a dimension that may be empty (symbols.py).
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

# These limits exceed the needs of real models and bound the work for untrusted models.
MAX_TERMS = 64  # terms of one polynomial
MAX_DEGREE = 8  # degree of a term; the work of `least` doubles with each degree
MAX_ATOMS = 128  # symbols and floors in a size, including those inside floors
MAX_NUMBER = 2**63  # exclusive bound on coefficients and sizes
MAX_EXPRESSION = 1000  # characters of an expression


class Undecided(Exception):
    """Raised if no single answer holds for all values of the symbols; the message states the unknown fact."""


class Symbol(NamedTuple):
    """A named size with an unknown value, at least `least`."""

    name: str
    least: int


class Floor(NamedTuple):
    """The largest integer that is at most dim / divisor; the divisor is a positive int."""

    dim: "Dim"
    divisor: int


Atom = Symbol | Floor
Monomial = tuple[Atom, ...]  # factors, sorted by text; () for the constant term

_KNOWN: dict[tuple, "Dim"] = {}  # terms → the unique Dim with these terms


class Dim:
    """A symbolic size: a polynomial that is not constant. Create a Dim only by `symbol`, `parse` and arithmetic."""

    __slots__ = ("terms", "text", "atoms")
    terms: tuple[tuple[Monomial, int], ...]
    atoms: int  # number of symbols and floors in the polynomial, including those inside floors

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self):
        return _from_terms, (dict(self.terms),)

    # -- arithmetic: a constant result is an int ------------------------------------------------------

    def __add__(self, other):
        return _sum(self, other, 1)

    def __sub__(self, other):
        return _sum(self, other, -1)

    def __rsub__(self, other):
        return _sum(other, self, -1)

    def __neg__(self):
        return _sum(0, self, -1)

    def __mul__(self, other):
        mine, others = _terms(self), _terms(other)
        if others is None:
            return NotImplemented
        result: dict[Monomial, int] = {}
        for left, a in mine.items():
            for right, b in others.items():
                monomial = tuple(sorted((*left, *right), key=_text_of_atom))
                result[monomial] = result.get(monomial, 0) + a * b
        return _from_terms(result)

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other):
        if type(other) is Dim:
            return _exact_quotient(self, other)
        if _terms(other) is None:
            return NotImplemented
        if other <= 0:
            raise Undecided(f"{self} is divided by {other}")
        whole = {monomial: a // other for monomial, a in self.terms if not monomial or a % other == 0}
        rest = _from_terms({monomial: a % other if not monomial else a for monomial, a in self.terms if a % other})
        return _from_terms(whole) + (rest // other if type(rest) is int else _floor(rest, other))

    def __rfloordiv__(self, other):
        if 0 <= other and self > other:
            return 0
        raise Undecided(f"what {other} / ({self}) is would have to be known")

    def __mod__(self, other):
        return self - self // other * other

    def __rmod__(self, other):
        return other - other // self * self

    def __truediv__(self, other):
        raise Undecided(f"{self} would have to be known")

    def __rtruediv__(self, other):
        raise Undecided(f"{self} would have to be known")

    def __abs__(self):
        return self if self >= 0 else -self

    def __index__(self):
        raise Undecided(f"{self} would have to be known")

    __int__ = __float__ = __index__

    # -- comparisons: an answer for all values of the symbols, or Undecided ---------------------------

    def __bool__(self) -> bool:
        return not equal(self, 0)

    def __le__(self, other) -> bool:
        return _at_most(self, other, self, "<=", other)

    def __lt__(self, other) -> bool:
        return _at_most(self + 1, other, self, "<", other)

    def __ge__(self, other) -> bool:
        return _at_most(other, self, self, ">=", other)

    def __gt__(self, other) -> bool:
        return _at_most(other + 1, self, self, ">", other)


def symbol(name: str, least: int = 1) -> Dim:
    return _from_terms({(Symbol(name, least),): 1})


def equal(a, b) -> bool:
    """Return True if two sizes are equal for all values of the symbols, and False if they differ for all values.

    Raises:
      Undecided: neither is proved.
    """
    difference = a - b
    if type(difference) is not Dim:
        return difference == 0
    if least(difference) > 0 or least(-difference) > 0:
        return False
    raise Undecided(f"whether {a} = {b} would have to be known")


def larger(a, b):
    """Return the size that is proved at least as large as the other for all values of the symbols.

    Raises:
      Undecided: neither size is proved so.
    """
    if least(a - b) >= 0:
        return a
    if least(b - a) >= 0:
        return b
    raise Undecided(f"which of {a} and {b} is larger would have to be known")


def smaller(a, b):
    """Return the size that is proved at most as large as the other for all values of the symbols.

    Raises:
      Undecided: neither size is proved so.
    """
    return b if larger(a, b) is a else a


def _at_most(a, b, *question) -> bool:
    if least(b - a) >= 0:
        return True
    if least(a - b) > 0:
        return False
    raise Undecided(f"whether {' '.join(map(str, question))} would have to be known")


def least(dim) -> int | float:
    """Return a number that a size never falls below for any values of the symbols; -inf if no bound is found.

    A floor with a positive coefficient is taken once as an unknown number, and once by its bound
    ⌊x / d⌋ ≥ (x - d + 1) / d. The larger result counts. The second way proves h ≤ 4·((h + 3)//4), for example.
    """
    return _least_of_size(dim) if type(dim) is Dim else dim


@lru_cache(65536)  # Without it, the work would double with each floor inside a floor.
def _least_of_size(dim: Dim) -> int | float:
    return max(_least_of_terms(dim, by_bound) for by_bound in (False, True))


def _least_of_terms(dim: Dim, by_bound: bool) -> int | float:
    """Return a lower bound on a size, or -inf; see `least`.

    Args:
      dim: the size.
      by_bound: True to replace each floor with a positive coefficient by its lower bound.
    """
    # Substitute atom = least value + offset with offset ≥ 0. If all coefficients are then ≥ 0, the constant term is a
    # lower bound.
    total: dict[Monomial, Fraction] = {}
    for monomial, a in dim.terms:
        if len(monomial) == 1 and type(monomial[0]) is Floor and (a < 0 or by_bound):  # use floor(x) ≤ x, or the bound
            inner, divisor = monomial[0]
            parts = [(inner_monomial, Fraction(a * b, divisor)) for inner_monomial, b in inner.terms]
            if a > 0:
                parts.append(((), Fraction(-a * (divisor - 1), divisor)))
        else:
            parts = [(monomial, Fraction(a))]
        for part, coefficient in parts:
            shifted = _in_offsets(part)
            if shifted is None:
                return float("-inf")
            for product, b in shifted.items():
                total[product] = total.get(product, 0) + coefficient * b
    constant = total.pop((), Fraction(0))
    if any(a < 0 for a in total.values()):
        return float("-inf")
    return math.ceil(constant)  # Sizes are integers.


def at(dim, sizes: Mapping[str, int]) -> int:
    """Return the number that a size has at given values of its symbols.

    Args:
      dim: an int or a Dim.
      sizes: symbol → value.
    """
    if type(dim) is not Dim:
        return dim
    return sum(a * math.prod(_atom_at(atom, sizes) for atom in monomial) for monomial, a in dim.terms)


def symbols_of(dim) -> frozenset[str]:
    """Return the names of the symbols in a size."""
    if type(dim) is not Dim:
        return frozenset()
    names = set()
    for monomial, _ in dim.terms:
        for atom in monomial:
            names |= {atom.name} if type(atom) is Symbol else symbols_of(atom.dim)
    return frozenset(names)


_OPERATIONS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip


def multiple(size) -> tuple[str, int] | None:
    """Return (s, k) for a size k·s of one symbol s and a positive number k, and None for every other size."""
    if type(size) is not Dim or len(size.terms) != 1:
        return None
    ((monomial, times),) = size.terms
    is_symbol = len(monomial) == 1 and type(monomial[0]) is Symbol
    return (monomial[0].name, times) if is_symbol and times > 0 else None


def parse(text: str, named: Callable[[str], Dim | None]):
    """Parse an expression of names, integers, +, -, * and //.

    Args:
      text: the expression.
      named: function name → size; None for an unknown name.

    Returns:
      An int or a Dim; None if the text is no such expression, is too long or contains an unknown name.
    """
    if len(text) > MAX_EXPRESSION:
        return None
    try:
        return _size_of_expression(ast.parse(text.strip(), mode="eval").body, named)
    except (SyntaxError, ValueError, Undecided, RecursionError, MemoryError):
        return None


# -- implementation --------------------------------------------------------------------------------


def _size_of_expression(node: ast.expr, named):
    match node:
        case ast.Constant(value=int(number)) if type(number) is int:
            return number
        case ast.Name(id=name):
            known = named(name)
            if known is None:
                raise ValueError(name)
            return known
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_size_of_expression(operand, named)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            a, b = _size_of_expression(left, named), _size_of_expression(right, named)
            if type(op) is ast.FloorDiv and type(b) is int and b <= 0:
                raise ValueError("division")
            return _OPERATIONS[type(op)](a, b)
    raise ValueError("no arithmetic of sizes")


def _terms(size) -> dict[Monomial, int] | None:
    if type(size) is Dim:
        return dict(size.terms)
    try:
        return {(): operator.index(size)}
    except TypeError:
        return None


def _sum(a, b, sign: int):
    result, others = _terms(a), _terms(b)
    if result is None or others is None:
        return NotImplemented
    for monomial, coefficient in others.items():
        result[monomial] = result.get(monomial, 0) + sign * coefficient
    return _from_terms(result)


def _from_terms(terms: Mapping[Monomial, int]):
    """Return the size with these terms (monomial → coefficient): an int, or the unique Dim."""
    kept = {monomial: a for monomial, a in terms.items() if a}
    if not kept.keys() - {()}:
        return kept.get((), 0)
    if len(kept) > MAX_TERMS or max(map(len, kept)) > MAX_DEGREE or max(map(abs, kept.values())) >= MAX_NUMBER:
        raise Undecided("a size grows out of bounds")
    ordered = tuple(sorted(kept.items(), key=lambda item: (-len(item[0]), [_text_of_atom(a) for a in item[0]])))
    known = _KNOWN.get(ordered)
    if known is None:
        atoms = sum(1 if type(atom) is Symbol else 1 + atom.dim.atoms for monomial in kept for atom in monomial)
        if atoms > MAX_ATOMS:
            raise Undecided("a size grows out of bounds")
        known = object.__new__(Dim)
        known.terms, known.text, known.atoms = ordered, _text(ordered), atoms
        known = _KNOWN.setdefault(ordered, known)
    return known


def _floor(dim: Dim, divisor: int):
    """Return ⌊dim / divisor⌋, and merge a nested floor: ⌊(⌊p/a⌋ + q)/b⌋ = ⌊(p + a·q)/(a·b)⌋."""
    for monomial, a in dim.terms:
        if a == 1 and len(monomial) == 1 and type(monomial[0]) is Floor:
            inner = monomial[0]
            return (inner.dim + (dim - _from_terms({monomial: 1})) * inner.divisor) // (inner.divisor * divisor)
    return _from_terms({(Floor(dim, divisor),): 1})


def _exact_quotient(dividend: Dim, divisor: Dim):
    """Divide polynomials exactly by long division. Raise Undecided if there is a remainder."""
    (lead, coefficient), *_ = divisor.terms
    result, rest = 0, dividend
    while type(rest) is Dim:
        (monomial, a), *_ = rest.terms
        if a % coefficient or any(monomial.count(atom) < lead.count(atom) for atom in lead):
            break
        left = list(monomial)
        for atom in lead:
            left.remove(atom)
        part = _from_terms({tuple(left): a // coefficient})
        result, rest = result + part, rest - part * divisor
    if type(rest) is Dim or rest:
        raise Undecided(f"what {dividend} / ({divisor}) is would have to be known")
    return result


def _in_offsets(monomial: Monomial) -> dict[Monomial, int] | None:
    """Replace each atom of a monomial by its least value plus an offset, and expand the product.

    Returns:
      Product of atoms, which now stand for their offsets → coefficient; None if an atom has no least value.
    """
    result: dict[Monomial, int] = {(): 1}
    for atom in monomial:
        lowest = _least_of(atom)
        if lowest == float("-inf"):
            return None
        grown: dict[Monomial, int] = {}
        for part, a in result.items():
            with_atom = tuple(sorted((*part, atom), key=_text_of_atom))
            grown[with_atom] = grown.get(with_atom, 0) + a
            if lowest:
                grown[part] = grown.get(part, 0) + a * lowest
        result = grown
    return result


def _least_of(atom: Atom) -> int | float:
    """Return a lower bound on an atom; -inf for a floor of an unbounded polynomial."""
    if type(atom) is Symbol:
        return atom.least
    lowest = least(atom.dim)
    return lowest // atom.divisor if type(lowest) is int else lowest


def _atom_at(atom: Atom, sizes: Mapping[str, int]) -> int:
    return sizes[atom.name] if type(atom) is Symbol else at(atom.dim, sizes) // atom.divisor


def _text_of_atom(atom: Atom) -> str:
    """Return an atom as text, for sorting and printing; quote the name of a symbol if it is no identifier."""
    if type(atom) is Floor:
        return f"(({atom.dim})//{atom.divisor})"
    return atom.name if atom.name.isidentifier() else f"'{atom.name}'"


def _text(terms: tuple[tuple[Monomial, int], ...]) -> str:
    parts = []
    for monomial, a in terms:
        factors = [str(abs(a))] if abs(a) != 1 or not monomial else []
        factors += [_text_of_atom(atom) for atom in monomial]
        parts.append(("- " if a < 0 else "+ ") + "*".join(factors))
    text = " ".join(parts)
    return text[2:] if text.startswith("+ ") else "-" + text[2:]
