"""Represent unknown numbers as sums of products of atoms.

A number (`Poly`) is a sum of terms. A `Term` is a coefficient times the sum, over all values of its bound indices, of a
product of atoms.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import z3

from rlflow.proving.unknowns import Truth, mentions


class Element(NamedTuple):
    """An atom: an element of a tensor, or a single unknown number if the index is empty."""

    name: str
    index: tuple


class Size(NamedTuple):
    """An atom: an unknown integer, given as a z3 term."""

    term: z3.ArithRef


class Inside(NamedTuple):
    """An atom: 1 where a z3 claim about sizes and indices holds, else 0."""

    claim: z3.BoolRef


class Applied(NamedTuple):
    """An atom: the function `name` of numbers. The function `larger` is the maximum of its arguments."""

    name: str
    arguments: tuple


class Greatest(NamedTuple):
    """An atom: the maximum of `body` over the bound indices for which the claim holds."""

    bound: tuple  # (variable, size) pairs
    claim: z3.BoolRef
    body: "Poly"


class Term(NamedTuple):
    """A coefficient times the sum, over the bound indices, of the product of the factors."""

    coefficient: Fraction
    bound: tuple  # (variable, size) pairs of the sum's indices
    factors: tuple


@dataclass(frozen=True)
class Poly:
    """An unknown number, given as a sum of terms."""

    world: Any  # rlflow.proving.symbolic.Symbols
    terms: tuple[Term, ...]
    __hash__ = None

    def __add__(self, other: "Poly") -> "Poly":
        return self.world.gathered(self.terms + other.terms)

    def __neg__(self) -> "Poly":
        return Poly(self.world, tuple(t._replace(coefficient=-t.coefficient) for t in self.terms))

    def __sub__(self, other: "Poly") -> "Poly":
        return self + (-other)

    def __mul__(self, other: "Poly") -> "Poly":
        return self.world.gathered(
            tuple(self.world.term_product(one, two) for one in self.terms for two in other.terms)
        )

    def __truediv__(self, other) -> "Poly":
        return self.world.quotient(self, self.world.number(other))

    def __rtruediv__(self, other) -> "Poly":
        return self.world.quotient(self.world.number(other), self)

    def __rmul__(self, other) -> "Poly":
        return self.world.number(other) * self

    def __le__(self, other) -> "Truth":
        return self.world.ordered(self, self.world.number(other))

    def __ge__(self, other) -> "Truth":
        return self.world.ordered(self.world.number(other), self)

    def __lt__(self, other) -> "Truth":
        return ~(self >= other)

    def __gt__(self, other) -> "Truth":
        return ~(self <= other)

    @property
    def number(self) -> Fraction | None:
        """The value if the number is a constant; None if it contains an atom."""
        if not self.terms:
            return Fraction(0)
        one = self.terms[0]
        return one.coefficient if len(self.terms) == 1 and not one.bound and not one.factors else None


IRRATIONAL = {  # float → (rational factor, number under the root) that it stands for
    1.4142135623730951: (Fraction(1), Fraction(2)),
    0.7071067811865475: (Fraction(1, 2), Fraction(2)),
    0.7071067811865476: (Fraction(1, 2), Fraction(2)),
}


def read_float(value: float) -> Fraction:
    """Return the fraction with denominator ≤ 10,000 whose nearest float is `value`.

    If there is no such fraction, return the shortest decimal fraction that Python prints for `value`.
    """
    simple = Fraction(value).limit_denominator(10_000)
    return simple if float(simple) == value else Fraction(str(value))


def poly_mentions(p: Poly, variable) -> bool:
    """Return True if the variable occurs free in a number."""
    return any(term_mentions(t, variable) for t in p.terms)


def atom_mentions(atom, variable) -> bool:
    """Return True if the variable occurs free in an atom."""
    match atom:
        case Element(index=index):
            return any(mentions(k, variable) for k in index)
        case Size(term):
            return mentions(term, variable)
        case Inside(claim):
            return mentions(claim, variable)
        case Applied(arguments=arguments):
            return any(poly_mentions(p, variable) for p in arguments)
        case Greatest(bound=bound, claim=claim, body=body):
            bound_here = any(v.get_id() == variable.get_id() for v, _ in bound)
            return not bound_here and (mentions(claim, variable) or poly_mentions(body, variable))
    raise TypeError(atom)


def term_mentions(term: Term, variable) -> bool:
    """Return True if the variable occurs free in a term."""
    if any(v.get_id() == variable.get_id() for v, _ in term.bound):
        return False
    return any(atom_mentions(f, variable) for f in term.factors) or any(
        mentions(size, variable) for _, size in term.bound
    )


def sole_atom(p: Poly):
    """Return the atom if the number is a single atom with coefficient 1 and no bound index; else None."""
    if len(p.terms) == 1 and p.terms[0].coefficient == 1 and not p.terms[0].bound and len(p.terms[0].factors) == 1:
        return p.terms[0].factors[0]
    return None


def substituted(atom, pairs: list):
    """Return an atom in which z3 terms are replaced.

    Args:
      atom: the atom.
      pairs: (old, new) pairs of z3 terms; an index that the atom binds itself is not replaced.
    """
    if not pairs:
        return atom
    match atom:
        case Element(name, index):
            return Element(name, tuple(z3.simplify(z3.substitute(k, *pairs), som=True) for k in index))
        case Size(term):
            return Size(z3.substitute(term, *pairs))
        case Inside(claim):
            return Inside(z3.substitute(claim, *pairs))
        case Applied(name, arguments):
            return Applied(name, tuple(substituted_poly(p, pairs) for p in arguments))
        case Greatest(bound, claim, body):
            pairs = free_pairs(bound, pairs)
            if captures(bound, pairs):
                fresh = [(v, body.world.fresh()) for v, _ in bound]
                bound = tuple((new, size) for (_, new), (_, size) in zip(fresh, bound, strict=True))
                claim, body = z3.substitute(claim, *fresh), substituted_poly(body, fresh)
            return Greatest(bound, z3.substitute(claim, *pairs), substituted_poly(body, pairs)) if pairs else atom
    raise TypeError(atom)


def substituted_poly(p: Poly, pairs: list) -> Poly:
    """Return a number in which z3 terms are replaced.

    Args:
      p: the number.
      pairs: (old, new) pairs of z3 terms.
    """
    return Poly(p.world, tuple(substituted_term(p.world, term, pairs) for term in p.terms))


def substituted_term(world, term: Term, pairs: list) -> Term:
    """Return a term in which z3 terms are replaced, except the term's bound indices.

    If a new z3 term mentions a bound index of the term, this index is renamed first.

    Args:
      world: the algebra that renames bound indices.
      term: the term.
      pairs: (old, new) pairs of z3 terms.
    """
    pairs = free_pairs(term.bound, pairs)
    if captures(term.bound, pairs):
        term = world.renamed(term)
    return term._replace(factors=tuple(substituted(f, pairs) for f in term.factors)) if pairs else term


def free_pairs(bound: tuple, pairs: list) -> list:
    """Return the (old, new) pairs whose `old` is not a bound index.

    Args:
      bound: (index, size) pairs.
      pairs: (old, new) pairs of z3 terms.
    """
    own = {v.get_id() for v, _ in bound}
    return [(old, new) for old, new in pairs if old.get_id() not in own]


def captures(bound: tuple, pairs: list) -> bool:
    """Return True if `new` of an (old, new) pair mentions one of the bound indices; arguments as in `free_pairs`."""
    return any(mentions(new, v) for _, new in pairs for v, _ in bound)


def skeleton(term: Term) -> tuple:
    """Return a key that is the same for equal terms: the number of bound indices and the sorted factor names."""
    names = [getattr(f, "name", type(f).__name__) for f in term.factors]
    return len(term.bound), tuple(sorted(names))
