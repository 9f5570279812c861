"""Implement the symbolic algebra for rlflow.proving.semantics: numbers are sums of products, sizes are z3 integers.

Two numbers are proved equal if each term of one number equals one term of the other. z3 decides if the indices of two
elements are equal.
"""

import functools
import operator
from collections.abc import Callable
from contextlib import ExitStack
from fractions import Fraction

import z3

from rlflow.proving.decisions import Border, Budget, Fork, Rows, Unprovable
from rlflow.proving.normal_forms import NormalForms
from rlflow.proving.polynomials import (
    Applied,
    Element,
    Greatest,
    Inside,
    Poly,
    Term,
    atom_mentions,
    poly_mentions,
    skeleton,
    sole_atom,
    term_mentions,
)
from rlflow.proving.unknowns import UNKNOWN, Int, Truth, mentions, plain, term_of

WRITTEN_OUT = 5  # a sum of at most this known number of terms is written out


class Symbols(NormalForms):
    """The symbolic algebra: the arithmetic of NormalForms, with sums, maxima and comparisons of numbers.

    Attributes:
      reals: pairs of a product (a Term) and the z3 real variable that stands for the product in comparisons.
    """

    def __init__(self, assumptions, budget: Budget):
        self.reals: list[tuple] = []
        super().__init__(assumptions, budget)

    def windows(self, a, sizes: tuple, kernel: tuple) -> object | None:
        """Return None, so that rlflow.proving.reductions computes window positions from strides, pads and dilations."""

    def between(self, place: bytes, k, size, factor) -> tuple:
        """Return two unknown positions on the axis and an unknown weight; all depend only on the arguments.

        The arguments are as in rlflow.proving.numbers.coordinate.
        """
        low, high = (self.nearest(place, which, k, size, factor) for which in (b"lower", b"higher"))
        return low, high, self.element(f"weight, {place.decode()}", (k, size, factor))

    def nearest(self, place: bytes, rounding: bytes, k, size, factor) -> Int:
        """Return an unknown position on the axis that depends only on the arguments; see `between`."""
        k, size, factor = (term_of(value) for value in (k, size, factor))
        made = UNKNOWN[f"place, {place.decode()}, {rounding.decode()}", 3](k, size, factor)
        self.lemma(made >= 0, made < size)
        return Int(self, made)

    # -- numbers --

    def inside(self, pairs, value: Callable) -> Poly:
        """Return the number that is `value()` where all positions lie inside their sizes, and 0 elsewhere.

        Args:
          pairs: (position, size) pairs; a position lies inside if 0 ≤ position < size. An open comparison becomes a
            factor `Inside`.
          value: a function without arguments that returns the number.
        """
        claims = []
        for position, size in pairs:
            for claim in (position >= 0, position < size):
                if claim is False:
                    return self.number(0)
                if claim is not True and not self.entails(claim):
                    claims.append(claim.claim)
        if not claims:
            return value()
        return Poly(self, (Term(Fraction(1), (), tuple(map(Inside, claims))),)) * value()

    def total(self, sizes: tuple, body: Callable) -> Poly:
        """Return the sum of `body(k)` over all indices k below the sizes.

        Args:
          sizes: the size of each axis.
          body: a function from an index, a tuple with one integer per axis, to a number.
        """
        if not sizes:
            return body(())
        return self.sum(sizes[0], lambda k: self.total(sizes[1:], lambda rest: body((k, *rest))))

    def sum(self, size, body: Callable) -> Poly:
        """Return the sum of `body(k)` for 0 ≤ k < size.

        If the answer to a comparison in `body` changes within the range, the sum is split there into two sums. If the
        rule distinguishes the rows of a tensor that are zero, a sum over all rows is split into a sum over the rows of
        zeros and a sum over the other rows.
        """
        if isinstance(size, int) and size <= WRITTEN_OUT:
            return functools.reduce(operator.add, map(body, range(size)), self.number(0))
        ranges, result = [(0, size)], self.number(0)
        while ranges:
            low, high = ranges.pop(0)
            length = high - low
            if self.entails(length == 0):
                continue
            if self.entails(length == 1):
                result = result + body(low)
                continue
            with self.index_below(length) as variable:
                try:
                    result = result + self.bind(body(Int(self, z3.simplify(variable + plain(low)))), variable, length)
                    continue
                except Border as border:
                    if border.variable.get_id() != variable.get_id():
                        raise
                    position = border.position
                    if isinstance(border, Rows):
                        if low != 0 or size is not high:
                            raise Unprovable("a sum runs over some of the rows") from border
                        for count, row in border.rows:
                            result = result + self.sum(count, lambda k, row=row: body(row(k)))
                        continue
            middle = self.integer(plain(low) + position)
            if (middle <= low) or (middle >= high):
                raise Unprovable("a border lies outside of its sum")
            ranges[:0] = [(low, middle), (middle, high)]
        return result

    def rows(self, name: str, axis: int, size) -> tuple:
        """Return (number of rows, position of each) for the rows of a tensor that are zero, and for the others.

        Args:
          name: the name of the tensor.
          axis: the axis along which the rows lie.
          size: the size of the axis.

        Returns:
          two pairs of an integer and a function from an integer below it to a position along the axis.
        """
        counts = [self.symbol(f"{kind} of {name} along {axis}", 0) for kind in ("zeros", "nonzeros")]
        self.require(counts[0] + counts[1] == size)

        def row(kind: str, count, k) -> Int:
            made = UNKNOWN[f"{kind} of {name} along {axis}", 1](term_of(k))
            found = z3.And(made >= 0, made < plain(size), self.zero_row(name, axis, made) == (kind == "zeros"))
            self.lemma(z3.Implies(z3.And(term_of(k) >= 0, term_of(k) < plain(count)), found))
            return Int(self, made)

        return tuple(
            (count, lambda k, kind=kind, count=count: row(kind, count, k))
            for kind, count in zip(("zeros", "nonzeros"), counts, strict=True)
        )

    def zero_row(self, name: str, axis: int, position):
        """Return the z3 claim that all elements of a tensor at a position along an axis are zero."""
        return UNKNOWN[f"row of {name} along {axis} is zero", 1](position) == 1

    def is_zero_row(self, name: str, axis: int, size, position) -> bool:
        """Return True if the row of a tensor at a position along an axis is zero.

        Args:
          name: the name of the tensor.
          axis: the axis.
          size: the size of the axis.
          position: the position along the axis.

        Raises:
          Rows: if the position is the index of an enclosing sum.
          Fork: if the answer is open otherwise.
          Unprovable: if the answer is open and the position is computed from the index of an enclosing sum.
        """
        term = term_of(position)
        claim = self.zero_row(name, axis, term)
        if self.entails(claim):
            return True
        if self.entails(z3.Not(claim)):
            return False
        for variable, length in self.bound:
            if term.eq(variable) and self.entails(length == plain(size)):
                raise Rows(variable, self.rows(name, axis, size))
            if mentions(term, variable):
                raise Unprovable("a sum runs over some of the rows")
        raise Fork([claim, z3.Not(claim)])

    def bind(self, body: Poly, variable, length) -> Poly:
        """Return the sum of `body` for 0 ≤ `variable` < `length`. Multiply terms without the variable by the length."""
        terms = []
        for term in body.terms:
            if any(atom_mentions(atom, variable) for atom in term.factors):
                terms.append(term._replace(bound=(*term.bound, (variable, plain(length)))))
            else:
                times = self.number(length).terms
                terms += [self.term_product(term, t) for t in times]
        return self.gathered(tuple(terms))

    def greatest(self, sizes: tuple, body: Callable, inside: Callable) -> Poly:
        """Return the maximum of `body(k)` over the indices k below the sizes whose positions lie inside.

        Args:
          sizes: the size of each axis.
          body: a function from an index to a number.
          inside: a function from an index to (position, size) pairs. The index counts if 0 ≤ position < size holds for
            all pairs.
        """
        if all(self.is_one(size) for size in sizes) and not inside((0,) * len(sizes)):
            return body((0,) * len(sizes))
        k, variables = [], []
        try:
            with ExitStack() as scopes:
                for size in sizes:
                    if self.is_one(size):
                        k.append(0)
                    else:
                        variables.append((scopes.enter_context(self.index_below(size)), plain(size)))
                        k.append(Int(self, variables[-1][0]))
                value, pairs = body(tuple(k)), inside(tuple(k))
                claims = [c for position, size in pairs for c in (position >= 0, position < size)]
                if any(c is False for c in claims):
                    raise Unprovable("a maximum of nothing")
                claims = [c.claim for c in claims if isinstance(c, Truth) and not self.entails(c)]
        except Border as border:
            raise Unprovable("a maximum over parts") from border
        bound = tuple(variables)
        claim = z3.And(*claims) if claims else z3.BoolVal(True)
        return self.maximum(bound, claim, value, pairs)

    def maximum(self, bound: tuple, claim, value: Poly, pairs: list) -> Poly:
        """Return the maximum of a number over indices, with all parts moved out that do not depend on the indices.

        max(p + c) = max p + c, nested maxima become one, and max of max(p, c) is max(max p, c) if an index exists.

        Args:
          bound: (index, size) pairs.
          claim: the z3 claim that an index must satisfy to count.
          value: the number.
          pairs: the (position, size) pairs from which `claim` was made.
        """
        free = tuple(t for t in value.terms if not any(term_mentions(t, v) for v, _ in bound))
        if free and len(free) < len(value.terms):
            rest = Poly(self, tuple(t for t in value.terms if t not in free))
            return self.maximum(bound, claim, rest, pairs) + Poly(self, free)
        inner = sole_atom(value)
        if isinstance(inner, Greatest):
            return self.maximum((*bound, *inner.bound), z3.And(claim, inner.claim), inner.body, pairs)
        if isinstance(inner, Applied) and inner.name == "larger":
            free = [p for p in inner.arguments if not any(poly_mentions(p, v) for v, _ in bound)]
            rest = [p for p in inner.arguments if any(poly_mentions(p, v) for v, _ in bound)]
            if free and rest and self.has_index(bound, claim, pairs):
                least = rest[0] if len(rest) == 1 else self.larger_of(rest)
                return self.larger_of([self.maximum(bound, claim, least, pairs), *free])
        if not any(poly_mentions(value, v) for v, _ in bound) and self.has_index(bound, claim, pairs):
            return value
        return Poly(self, (Term(Fraction(1), (), (Greatest(bound, claim, value),)),))

    def has_index(self, bound: tuple, claim, pairs: list) -> bool:
        """Return True if an index is proved to satisfy the claim of a maximum; the arguments are as in `maximum`.

        Only one index is tried: along each axis, the first one whose position is not negative.
        """
        witness = []
        for variable, size in bound:
            position = next((plain(p) for p, _ in pairs if not isinstance(p, int) and mentions(p.term, variable)), None)
            if position is None:
                chosen = z3.IntVal(0)
            else:
                first = z3.simplify(z3.substitute(position, (variable, z3.IntVal(0))))
                chosen = z3.If(first < 0, -first, z3.IntVal(0))
            witness.append((variable, chosen))
            if not self.entails(z3.And(chosen >= 0, chosen < size)):
                return False
        return self.entails(z3.simplify(z3.substitute(claim, *witness) if witness else claim))

    def place_of_greatest(self, size, body: Callable, last: int) -> Poly:
        """Return the first or last index k below the size at which `body(k)` is largest.

        Two places are equal if both numbers are one increasing function of equal numbers. The place is therefore
        written with the number that is left after increasing functions are removed (`without_increasing`).

        Args:
          size: the number of indices.
          body: a function from an index to a number.
          last: 1 for the last index, 0 for the first.
        """
        with self.index_below(size) as variable:
            try:
                value = body(Int(self, variable))
            except Border as border:
                raise Unprovable("a place of a maximum over parts") from border
            value = self.without_increasing(value, variable)
        greatest = Greatest(((variable, plain(size)),), z3.BoolVal(True), value)
        return self.apply(f"place {last}", Poly(self, (Term(Fraction(1), (), (greatest,)),)))

    def without_increasing(self, value: Poly, variable) -> Poly:
        """Return a number that is largest at the same values of an index.

        The increasing functions that are removed are x + c, c·x for c > 0, exp, log, and -1/x for x > 0.

        Args:
          value: the number.
          variable: the index, a z3 constant.
        """
        while True:
            terms = tuple(t for t in value.terms if term_mentions(t, variable))
            value = Poly(self, terms)
            if len(terms) != 1 or terms[0].bound:
                return value
            term = terms[0]
            free = [f for f in term.factors if not atom_mentions(f, variable)]
            rest = [f for f in term.factors if atom_mentions(f, variable)]
            if not all(map(self.positive_atom, free)):
                return value
            sign = self.number(1 if term.coefficient > 0 else -1)
            exponents = [self.exponent(f) for f in rest]
            one = rest[0] if len(rest) == 1 and isinstance(rest[0], Applied) else None
            if term.coefficient > 0 and None not in exponents:
                value = self.number(0)
                for exponent in exponents:
                    value = value + exponent
            elif one is not None and one.name == "log" and term.coefficient > 0:
                value = one.arguments[0]
            elif one is not None and one.name == "inverse" and self.nonzero(one.arguments[0]):
                value = -sign * one.arguments[0]
            else:
                return sign * Poly(self, (Term(Fraction(1), (), tuple(rest)),))

    def exponent(self, atom) -> Poly | None:
        """Return p if the atom is exp(p) or 1/exp(-p), else None."""
        if isinstance(atom, Applied) and atom.name == "exp":
            return atom.arguments[0]
        inner = sole_atom(atom.arguments[0]) if isinstance(atom, Applied) and atom.name == "inverse" else None
        return -inner.arguments[0] if isinstance(inner, Applied) and inner.name == "exp" else None

    def larger(self, a: Poly, b: Poly) -> Poly:
        return self.larger_of([a, b])

    def ordered(self, a: Poly, b: Poly) -> Truth:
        """Return the comparison a ≤ b of two numbers as a Truth."""
        return Truth(self, self.real(a) <= self.real(b))

    def real(self, p: Poly):
        """Return a number as a z3 real term. Products become real variables, `larger` becomes z3's `If`."""
        total = z3.RealVal(0)
        for term in p.terms:
            product = z3.RealVal(str(term.coefficient))
            lattice = [f for f in term.factors if isinstance(f, Applied) and f.name == "larger" and not term.bound]
            if len(lattice) == len(term.factors) == 1:
                first, *rest = map(self.real, lattice[0].arguments)
                for other in rest:
                    first = z3.If(first >= other, first, other)
                total = total + product * first
            elif term.factors:
                total = total + product * self.unknown_real(term._replace(coefficient=Fraction(1)))
            else:
                total = total + product
        return total

    def unknown_real(self, term: Term):
        """Return the z3 real variable that stands for a product. Equal products get the same variable."""
        for other, real in self.reals:
            if skeleton(term) == skeleton(other) and self.same_term(term, other):
                return real
        plain_element = not term.bound and len(term.factors) == 1 and isinstance(term.factors[0], Element)
        name = f"{term.factors[0].name}{term.factors[0].index}" if plain_element else f"number {len(self.reals)}"
        self.reals.append((term, z3.Real(name)))
        return self.reals[-1][1]

    def same_by_order(self, one: Poly, two: Poly) -> bool:
        """Return True if z3 proves that two numbers are equal as real terms (`real`); this finds equal maxima."""
        return self.entails(self.real(one) == self.real(two))

    def larger_of(self, parts: list[Poly]) -> Poly:
        """Return the maximum of numbers.

        Nested maxima are merged, equal numbers count once, and the largest known coefficient is moved out as a factor.
        """
        flat: list[Poly] = []
        for p in parts:
            one = sole_atom(p)
            if isinstance(one, Applied) and one.name == "larger":
                flat += one.arguments
            else:
                flat.append(p)
        numbers = [p.number for p in flat if p.number is not None]
        kept: list[Poly] = [self.number(max(numbers))] if numbers else []
        for p in flat:
            if p.number is None and not any(self.same(p, other) for other in kept):
                kept.append(p)
        if len(kept) == 1:
            return kept[0]
        scale = max(abs(t.coefficient) for p in kept if p.number is None for t in p.terms)
        inner = [p * self.number(1 / scale) for p in kept]
        return self.number(scale) * self.apply("larger", *inner)
