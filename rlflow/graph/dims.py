"""Sizes that are not numbers: polynomials with integer coefficients in a model's symbols, and in floors of such.

A symbolic dimension of a model (`batch`, `seq`) is a symbol; what operators make of sizes is a `Dim`: `12·seq`,
`past + seq`, `(height - 1)//2 + 1`. A Dim is a value: equal ones are the same object, so that shapes with them are as
fast to hash and compare as shapes of numbers. A polynomial that is a number is an int, never a Dim.

`==` says whether two Dims are the same polynomial. Questions about sizes (`equal`, `<`, `bool`, …) are answered for
*every* size at once: with yes, with no, or with `Undecided`. A symbol is at least its `least`: 1, as rules are proved
for sizes from 1, or 0 for what may be empty (rlflow.graph.symbols).
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import NamedTuple

# Models do not need more, and strangers' must not grow without bound.
MAX_TERMS = 64  # of one polynomial
MAX_DEGREE = 8  # of a term; the work of `least` doubles with each
MAX_ATOMS = 128  # symbols and floors that a size is written with, those inside floors included
MAX_NUMBER = 2**63  # a size of a tensor is below it
MAX_EXPRESSION = 1000  # characters of the text of one


class Undecided(Exception):
    """The answer is not the same for every size; the message says what would have to be known."""


class Symbol(NamedTuple):
    """A size that is named and not known, at least `least`."""

    name: str
    least: int


class Floor(NamedTuple):
    """The integer part of dim / divisor."""

    dim: "Dim"
    divisor: int


Atom = Symbol | Floor
Monomial = tuple[Atom, ...]  # sorted by text; () is the constant

_KNOWN: dict[tuple, "Dim"] = {}  # terms → the one Dim that has them


class Dim:
    """A polynomial that is not a number; made by `symbol`, `parse` and arithmetic only."""

    __slots__ = ("terms", "text", "atoms")
    terms: tuple[tuple[Monomial, int], ...]
    atoms: int  # how many symbols and floors it is written with

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self):
        return _made, (dict(self.terms),)

    # -- arithmetic: the result is an int where it is a number ----------------------------------------

    def __add__(self, other):
        return _combined(self, other, 1)

    def __sub__(self, other):
        return _combined(self, other, -1)

    def __rsub__(self, other):
        return _combined(other, self, -1)

    def __neg__(self):
        return _combined(0, self, -1)

    def __mul__(self, other):
        mine, others = _terms(self), _terms(other)
        if others is None:
            return NotImplemented
        result: dict[Monomial, int] = {}
        for left, a in mine.items():
            for right, b in others.items():
                monomial = tuple(sorted((*left, *right), key=_text_of_atom))
                result[monomial] = result.get(monomial, 0) + a * b
        return _made(result)

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other):
        if type(other) is Dim:
            return _quotient(self, other)
        if _terms(other) is None:
            return NotImplemented
        if other <= 0:
            raise Undecided(f"{self} is divided by {other}")
        whole = {monomial: a // other for monomial, a in self.terms if not monomial or a % other == 0}
        rest = _made({monomial: a % other if not monomial else a for monomial, a in self.terms if a % other})
        return _made(whole) + (rest // other if type(rest) is int else _floor(rest, other))

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

    # -- questions: an answer for every size, or Undecided --------------------------------------------

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
    return _made({(Symbol(name, least),): 1})


def equal(a, b) -> bool:
    """Whether two sizes are equal. Raises Undecided where that differs from size to size."""
    difference = a - b
    if type(difference) is not Dim:
        return difference == 0
    if least(difference) > 0 or least(-difference) > 0:
        return False
    raise Undecided(f"whether {a} = {b} would have to be known")


def larger(a, b):
    """The one of two sizes that is at least the other. Raises Undecided where that differs from size to size."""
    if least(a - b) >= 0:
        return a
    if least(b - a) >= 0:
        return b
    raise Undecided(f"which of {a} and {b} is larger would have to be known")


def smaller(a, b):
    """The other one."""
    return b if larger(a, b) is a else a


def _at_most(a, b, *question) -> bool:
    if least(b - a) >= 0:
        return True
    if least(a - b) > 0:
        return False
    raise Undecided(f"whether {' '.join(map(str, question))} would have to be known")


def least(dim) -> int | float:
    """An int that no value of the size is below; -inf where none is known."""
    if type(dim) is not Dim:
        return dim
    # In atoms counted from their least values all that is not the constant is at least 0 if its coefficient is.
    total: dict[Monomial, Fraction] = {}
    for monomial, a in dim.terms:
        if a < 0 and len(monomial) == 1 and type(monomial[0]) is Floor:  # a floor is at most what it is the floor of
            inner, divisor = monomial[0]
            parts = [(inner_monomial, Fraction(a * b, divisor)) for inner_monomial, b in inner.terms]
        else:
            parts = [(monomial, Fraction(a))]
        for part, coefficient in parts:
            shifted = _shifted(part)
            if shifted is None:
                return float("-inf")
            for product, b in shifted.items():
                total[product] = total.get(product, 0) + coefficient * b
    constant = total.pop((), Fraction(0))
    if any(a < 0 for a in total.values()):
        return float("-inf")
    return math.ceil(constant)  # a size is whole


def at(dim, sizes: Mapping[str, int]) -> int:
    """The number that a size is where its symbols have these sizes."""
    if type(dim) is not Dim:
        return dim
    return sum(a * math.prod(_atom_at(atom, sizes) for atom in monomial) for monomial, a in dim.terms)


def symbols_of(dim) -> frozenset[str]:
    """The names of the symbols that a size depends on."""
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


def parse(text: str, named: Callable[[str], Dim | None]):
    """The size that an expression of names, integers, +, -, * and // says; None if it is none, or names others."""
    if len(text) > MAX_EXPRESSION:
        return None
    try:
        return _parsed(ast.parse(text.strip(), mode="eval").body, named)
    except (SyntaxError, ValueError, Undecided, RecursionError, MemoryError):
        return None


# -- how it is done --------------------------------------------------------------------------------


def _parsed(node: ast.expr, named):
    match node:
        case ast.Constant(value=int(number)) if type(number) is int:
            return number
        case ast.Name(id=name):
            known = named(name)
            if known is None:
                raise ValueError(name)
            return known
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_parsed(operand, named)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            a, b = _parsed(left, named), _parsed(right, named)
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


def _combined(a, b, sign: int):
    result, others = _terms(a), _terms(b)
    if result is None or others is None:
        return NotImplemented
    for monomial, coefficient in others.items():
        result[monomial] = result.get(monomial, 0) + sign * coefficient
    return _made(result)


def _made(terms: Mapping[Monomial, int]):
    """The size with these terms: an int, or the one Dim."""
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
    """The integer part of dim / divisor; of a floor plus something one floor: ⌊(⌊p/a⌋ + q)/b⌋ = ⌊(p + a·q)/(a·b)⌋."""
    for monomial, a in dim.terms:
        if a == 1 and len(monomial) == 1 and type(monomial[0]) is Floor:
            inner = monomial[0]
            return (inner.dim + (dim - _made({monomial: 1})) * inner.divisor) // (inner.divisor * divisor)
    return _made({(Floor(dim, divisor),): 1})


def _quotient(dividend: Dim, divisor: Dim):
    """The polynomial that times `divisor` is `dividend`, by long division. Raises Undecided if there is none."""
    (lead, coefficient), *_ = divisor.terms
    result, rest = 0, dividend
    while type(rest) is Dim:
        (monomial, a), *_ = rest.terms
        if a % coefficient or any(monomial.count(atom) < lead.count(atom) for atom in lead):
            break
        left = list(monomial)
        for atom in lead:
            left.remove(atom)
        part = _made({tuple(left): a // coefficient})
        result, rest = result + part, rest - part * divisor
    if type(rest) is Dim or rest:
        raise Undecided(f"what {dividend} / ({divisor}) is would have to be known")
    return result


def _shifted(monomial: Monomial) -> dict[Monomial, int] | None:
    """The product in atoms counted from their least values; None where one has none."""
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
    """The least value of an atom; -inf for a floor of what may be any number."""
    if type(atom) is Symbol:
        return atom.least
    lowest = least(atom.dim)
    return lowest // atom.divisor if type(lowest) is int else lowest


def _atom_at(atom: Atom, sizes: Mapping[str, int]) -> int:
    return sizes[atom.name] if type(atom) is Symbol else at(atom.dim, sizes) // atom.divisor


def _text_of_atom(atom: Atom) -> str:
    """Of every atom another one, since atoms are sorted by it: a file may call a size "((s)//2)", or "a - b"."""
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
