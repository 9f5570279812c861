"""Bring symbolic numbers (rlflow.proving.polynomials) to normal form: add up equal terms and cancel divisors.

Two numbers are proved equal if all terms of their difference cancel.
"""

import itertools
from collections.abc import Iterator
from fractions import Fraction

import z3

from rlflow.proving.decisions import Budget, Infeasible, Unprovable
from rlflow.proving.integers import Reshapes
from rlflow.proving.polynomials import (
    IRRATIONAL,
    Applied,
    Element,
    Greatest,
    Inside,
    Poly,
    Size,
    Term,
    atom_mentions,
    read_float,
    skeleton,
    substituted,
    substituted_poly,
)
from rlflow.proving.ranges import regrouped
from rlflow.proving.unknowns import Int, mentions, monomials

MAX_TERMS = 400  # largest number of terms of one number


class NormalForms(Reshapes):
    """The arithmetic of symbolic numbers: sums, products, quotients and equality of Polys.

    Args:
      assumptions: z3 claims that hold in the whole case.
      budget: the number of z3 queries that the proof may make.
    """

    def __init__(self, assumptions, budget: Budget):
        self.defined_on_left: dict[str, list[Poly]] = {}  # "divisor", "root" or "log" → the left side's arguments
        self.closed = False  # True once the left side is read and `defined_on_left` is complete
        super().__init__(assumptions, budget)

    def number(self, value) -> Poly:
        """Return a float, a fraction, a known or unknown integer, or a Poly, as a Poly."""
        if isinstance(value, Poly):
            return value
        if isinstance(value, Int):
            return self.number_of(value)
        if isinstance(value, float) and value in IRRATIONAL:
            factor, root = IRRATIONAL[value]
            return self.number(factor) * self.apply("sqrt", self.number(root))
        value = read_float(value) if isinstance(value, float) else Fraction(value)
        return Poly(self, (Term(value, (), ()),) if value else ())

    def number_of(self, value: Int) -> Poly:
        """Return an unknown integer as a Poly. A product of sizes gives one factor per size, so that each can cancel.
        """
        if len(parts := monomials(value.term)) > 1:
            return Poly(self, (Term(Fraction(1), (), (Size(value.term),)),))
        coefficient, factors = parts[0]
        return Poly(self, (Term(Fraction(coefficient), (), tuple(map(Size, factors))),))

    def known(self, value: Poly) -> Fraction | None:
        """Return the value of a constant number; None if the number is unknown."""
        return value.number

    def element(self, name: str, index: tuple) -> Poly:
        """Return the unknown element at `index` of the tensor `name`."""
        index = tuple(z3.IntVal(k) if isinstance(k, int) else k.term for k in index)
        return Poly(self, (Term(Fraction(1), (), (Element(name, index),)),))

    def apply(self, name: str, *arguments: Poly) -> Poly:
        """Return the value of a function of numbers.

        Exponentials, logarithms and roots of square integers are simplified.

        Args:
          name: the name of the function, such as "sqrt" or "exp".
          arguments: the arguments of the function.
        """
        known = arguments[0].number
        if name == "sqrt" and known is not None and known >= 0:
            for root in range(0, 1000):
                if root * root == known:
                    return self.number(root)
        if name == "exp":
            return self.exponential(arguments[0])
        if name == "log":
            return self.logarithm(arguments[0])
        if name == "sqrt":
            self.check_defined("root", arguments[0])
        return Poly(self, (Term(Fraction(1), (), (Applied(name, tuple(arguments)),)),))

    def logarithm(self, p: Poly) -> Poly:
        """Return log(p), with log(exp(a)·b) = a + log(b) and log(b/a) = log(b) - log(a) for a positive a.

        The factors `exp(a)` and `1/a` may stand before a sum over indices.
        """
        result, term = self.number(0), p.terms[0] if len(p.terms) == 1 else None
        for factor in term.factors if term is not None else ():
            known = isinstance(factor, Applied) and factor.name in ("exp", "inverse") and self.positive_atom(factor)
            if known and not any(atom_mentions(factor, v) for v, _ in term.bound):
                inner = factor.arguments[0]
                result = result + (inner if factor.name == "exp" else -self.logarithm(inner))
                term = term._replace(factors=tuple(f for f in term.factors if f is not factor))
        rest = p if term is None else Poly(self, (term,))
        if rest.number == 1:
            return result
        self.check_defined("log", rest)
        return result + Poly(self, (Term(Fraction(1), (), (Applied("log", (rest,)),)),))

    def exponential(self, p: Poly) -> Poly:
        """Return exp(p), with exp(a + b) = exp(a)·exp(b) and exp(-a) = 1/exp(a)."""
        result = self.number(1)
        for term in p.terms:
            one = Poly(self, (term._replace(coefficient=abs(term.coefficient)),))
            factor = Poly(self, (Term(Fraction(1), (), (Applied("exp", (one,)),)),))
            result = result * (factor if term.coefficient > 0 else self.inverse(factor))
        return result

    # -- division --

    def quotient(self, a: Poly, b: Poly) -> Poly:
        return a * self.inverse(b)

    def inverse(self, p: Poly) -> Poly:
        """Return 1/p. The inverse of a product is the product of the inverses.

        Raises:
          Infeasible: if p is 0.
          Unprovable: if only the right side of the rule divides by p, and p is not known to be positive.
        """
        if p.number == 0:
            raise Infeasible
        if p.number is not None:
            return self.number(1 / p.number)
        if len(p.terms) == 1 and not p.terms[0].bound:
            result = self.number(1 / p.terms[0].coefficient)
            for factor in p.terms[0].factors:
                result = result * self.inverse_of_atom(factor)
            return result
        if len(p.terms) == 1:
            return self.inverse_of_sum(p.terms[0])
        return self.inverse_of(p)

    def inverse_of_sum(self, term: Term) -> Poly:
        """Return the inverse of a sum over indices, with 1/(Σ f·g) = 1/f · 1/(Σ g) if f contains no summed index."""
        inner = [f for f in term.factors if any(atom_mentions(f, v) for v, _ in term.bound)]
        outer = [f for f in term.factors if not any(atom_mentions(f, v) for v, _ in term.bound)]
        result = self.inverse_of(Poly(self, (Term(Fraction(1), term.bound, tuple(inner)),)))
        for factor in outer:
            result = result * self.inverse_of_atom(factor)
        return result * self.number(1 / term.coefficient)

    def inverse_of_atom(self, atom) -> Poly:
        if isinstance(atom, Applied) and atom.name == "inverse":
            return atom.arguments[0]
        p = Poly(self, (Term(Fraction(1), (), (atom,)),))
        if isinstance(atom, Applied) and atom.name == "sqrt" and atom.arguments[0].number is not None:
            return self.number(1 / atom.arguments[0].number) * p
        return self.inverse_of(p)

    def inverse_of(self, p: Poly) -> Poly:
        """Return 1/p as one atom, and record p if the left side divides by it.

        Raises:
          Unprovable: if the right side divides by p and p may be 0.
        """
        self.check_defined("divisor", p)
        return Poly(self, (Term(Fraction(1), (), (Applied("inverse", (p,)),)),))

    def is_divisor(self, p: Poly) -> bool:
        """Return True if p is known not to be 0, because p is positive or the left side divides by p."""
        return self.is_defined("divisor", p)

    def check_defined(self, what: str, p: Poly) -> None:
        """Record that the left side divides by p or takes its root or logarithm.

        On the right side, check that the left side contains the same operation, which is then defined.

        Args:
          what: "divisor", "root" or "log".
          p: the argument of the operation.

        Raises:
          Unprovable: if only the right side contains the operation and p may not be positive.
        """
        if not self.closed:
            self.defined_on_left.setdefault(what, []).append(p)
        elif not self.is_defined(what, p):
            raise Unprovable(f"the right side has a {what} that the left side does not have")

    def is_defined(self, what: str, p: Poly) -> bool:
        return self.nonzero(p) or any(self.same(p, other) for other in self.defined_on_left.get(what, ()))

    def nonzero(self, p: Poly) -> bool:
        """Return True if p counts as positive: coefficients and atoms are positive, and each sum has `some_index`."""
        return bool(p.terms) and all(t.coefficient > 0 and self.positive(t) for t in p.terms)

    def positive(self, term: Term) -> bool:
        claims = [f.claim for f in term.factors if isinstance(f, Inside)]
        others = [f for f in term.factors if not isinstance(f, Inside)]
        return all(map(self.positive_atom, others)) and self.some_index(term.bound, claims)

    def positive_atom(self, atom) -> bool:
        if isinstance(atom, Applied) and atom.name == "inverse":
            return self.nonzero(atom.arguments[0])
        if isinstance(atom, Size):
            return self.entails(atom.term >= 1)
        return isinstance(atom, Applied) and atom.name == "exp"

    def some_index(self, bound: tuple, claims: list) -> bool:
        """Return True if each index is proved to have a value in its range that satisfies the claims about this index.

        For each index, only 0 and the values at which one side of a claim is 0 are tried. A claim that contains none of
        the indices must hold.

        Args:
          bound: (index, size) pairs; 0 ≤ index < size must hold.
          claims: z3 claims about the indices.
        """
        free = [claim for claim in claims if not any(mentions(claim, variable) for variable, _ in bound)]
        if not all(map(self.entails, free)):
            return False
        for variable, size in bound:
            starts = [z3.IntVal(0)]
            for claim in claims:
                if mentions(claim, variable):
                    for child in (c for c in claim.children() if mentions(c, variable)):
                        at_zero = z3.simplify(z3.substitute(child, (variable, z3.IntVal(0))), som=True)
                        starts += [
                            z3.If(at_zero < 0, -at_zero, z3.IntVal(0)),
                            z3.If(at_zero > 0, at_zero, z3.IntVal(0)),
                        ]
            own = [c for c in claims if mentions(c, variable)]
            for start in starts:
                met = [z3.substitute(c, (variable, start)) for c in own]
                if self.entails(z3.And(start >= 0, start < size, *met)):
                    break
            else:
                return False
        return True

    # -- terms --

    def term_product(self, one: Term, two: Term) -> Term:
        """Return the product of two terms, with common factors cancelled."""
        ours = {v.get_id() for v, _ in one.bound}
        if any(v.get_id() in ours for v, _ in two.bound):
            two = self.renamed(two)
        return self.cancelled(
            Term(one.coefficient * two.coefficient, one.bound + two.bound, one.factors + two.factors)
        )

    def renamed(self, term: Term) -> Term:
        """Return an equal term whose bound indices are new z3 constants."""
        pairs = [(v, self.fresh()) for v, _ in term.bound]
        factors = tuple(substituted(f, pairs) for f in term.factors)
        return Term(term.coefficient, tuple((n, s) for (_, n), (_, s) in zip(pairs, term.bound, strict=True)), factors)

    def cancelled(self, term: Term) -> Term:
        """Return a term simplified by p · (1/p) = 1 if p is not 0, by √n · √n = n, and without repeated claims."""
        claims = [f for f in term.factors if isinstance(f, Inside)]
        if len(claims) > 1:
            self.enter(term.bound)
            kept: list = []
            for claim in claims:
                if not any(self.same_atom(claim, other) for other in kept):
                    kept.append(claim)
            self.leave()
            if len(kept) < len(claims):
                term = term._replace(factors=(*kept, *(f for f in term.factors if not isinstance(f, Inside))))
        roots = [
            f for f in term.factors if isinstance(f, Applied) and f.name == "sqrt" and f.arguments[0].number is not None
        ]
        for one, other in itertools.combinations(roots, 2):
            if one.arguments[0].number == other.arguments[0].number:
                rest = list(term.factors)
                rest.remove(one)
                rest.remove(other)
                return self.cancelled(Term(term.coefficient * one.arguments[0].number, term.bound, tuple(rest)))
        for position, factor in enumerate(term.factors):
            if isinstance(factor, Applied) and factor.name == "inverse" and len(factor.arguments[0].terms) == 1:
                rest = term.factors[:position] + term.factors[position + 1 :]
                left = self.without(term._replace(factors=rest), factor.arguments[0].terms[0])
                if left is not None and self.is_divisor(factor.arguments[0]):
                    return self.cancelled(left)
        return term

    def without(self, term: Term, part: Term) -> Term | None:
        """Return the term divided by `part`, or None if `part` is not a factor of it."""
        if len(part.bound) > len(term.bound) or len(part.factors) > len(term.factors):
            return None
        for chosen in itertools.permutations(term.bound, len(part.bound)):
            if not all(self.entails(s == t) for (_, s), (_, t) in zip(chosen, part.bound, strict=True)):
                continue
            pairs = [(old, new) for (old, _), (new, _) in zip(part.bound, chosen, strict=True)]
            rest = list(term.factors)
            if all(self.take(rest, substituted(f, pairs)) for f in part.factors):
                gone = [v for v, _ in chosen]
                if not any(atom_mentions(f, v) for f in rest for v in gone):
                    ids = {v.get_id() for v in gone}
                    bound = tuple(pair for pair in term.bound if pair[0].get_id() not in ids)
                    return Term(term.coefficient / part.coefficient, bound, tuple(rest))
        return None

    def take(self, factors: list, wanted) -> bool:
        """Remove one factor that equals `wanted` from the list and return True; return False if no factor does."""
        for position, factor in enumerate(factors):
            if self.same_atom(factor, wanted):
                del factors[position]
                return True
        return False

    def gathered(self, terms: tuple[Term, ...]) -> Poly:
        """Return the sum of terms as a Poly, in which equal terms are added up.

        Only terms with the same `skeleton` are compared. Raise Unprovable if there are more than MAX_TERMS terms.
        """
        if len(terms) > MAX_TERMS:
            raise Unprovable("a number has too many terms")
        groups: dict = {}
        for term in terms:
            alike = groups.setdefault(skeleton(term), [])
            for position, other in enumerate(alike):
                if self.same_term(term, other):
                    alike[position] = other._replace(coefficient=other.coefficient + term.coefficient)
                    break
            else:
                alike.append(term)
        return Poly(self, tuple(t for alike in groups.values() for t in alike if t.coefficient))

    def minimal(self, p: Poly) -> Poly:
        """Return an equal number with standardised sums (rlflow.proving.ranges) and without redundant claims."""
        return self.gathered(tuple(self.minimal_term(regrouped(self, term)) for term in p.terms))

    def minimal_term(self, term: Term) -> Term:
        """Return the term without each claim that the term's other claims imply."""
        claims = [f for f in term.factors if isinstance(f, Inside)]
        others = [self.minimal_atom(f) for f in term.factors if not isinstance(f, Inside)]
        self.enter(term.bound)
        for claim in claims[::-1]:
            rest = [c.claim for c in claims if c is not claim]
            if rest and self.entails(z3.Implies(z3.And(rest), claim.claim)):
                claims = [c for c in claims if c is not claim]
        self.leave()
        return term._replace(factors=(*claims, *others))

    def minimal_atom(self, atom):
        match atom:
            case Applied(name, arguments):
                return Applied(name, tuple(map(self.minimal, arguments)))
            case Greatest(bound, claim, body):
                return self.minimal_greatest(bound, claim, self.minimal(body))
        return atom

    def minimal_greatest(self, bound: tuple, claim, body: Poly) -> Greatest:
        """Return an equal maximum; if its body is one product without claims, the steps of `regrouped` are applied.

        Args:
          bound: (index, size) pairs.
          claim: the z3 claim that an index must satisfy to count.
          body: the number.
        """
        one, claim = body.terms[0] if len(body.terms) == 1 else None, z3.simplify(claim)
        if one is None or one.bound or not z3.is_true(claim) or any(isinstance(f, Inside) for f in one.factors):
            return Greatest(bound, claim, body)
        made = regrouped(self, one._replace(bound=bound))
        return Greatest(made.bound, claim, Poly(self, (made._replace(bound=()),)))

    # -- equality --

    def same(self, one: Poly, two: Poly) -> bool:
        """Return True if two numbers are proved equal: all terms of their difference cancel."""
        return not (one - two).terms

    def matchings(self, olds: tuple, news: tuple) -> Iterator[list[tuple]]:
        """Yield each one-to-one assignment of old to new bound indices of equal sizes, as a list of (old, new) pairs.

        Args:
          olds, news: the (index, size) pairs of two sums or maxima.
        """
        if len(olds) == len(news):
            for order in itertools.permutations(olds):
                if all(self.entails(s == t) for (_, s), (_, t) in zip(news, order, strict=True)):
                    yield [(old, new) for (old, _), (new, _) in zip(order, news, strict=True)]

    def same_term(self, one: Term, two: Term) -> bool:
        """Return True if two terms are proved equal, apart from their coefficients."""
        for pairs in self.matchings(two.bound, one.bound):
            self.enter(one.bound)
            rest = list(one.factors)
            same = all(self.take(rest, substituted(f, pairs)) for f in two.factors)
            self.leave()
            if same:
                return True
        return False

    def same_atom(self, one, two) -> bool:
        if type(one) is not type(two):
            return False
        match one:
            case Element(name, index):
                return name == two.name and len(index) == len(two.index) and self.same_index(index, two.index)
            case Size(term):
                return self.same_index((term,), (two.term,))
            case Inside(claim):
                return claim.eq(two.claim) or self.entails(claim == two.claim)
            case Applied(name, arguments):
                if name != two.name or len(arguments) != len(two.arguments):
                    return False
                orders = itertools.permutations(two.arguments) if name == "larger" else [two.arguments]
                return any(all(map(self.same, arguments, order)) for order in orders)
            case Greatest(bound, claim, body):
                return self.same_greatest(bound, claim, body, two)
        raise TypeError(one)

    def same_greatest(self, bound, claim, body, two: Greatest) -> bool:
        for pairs in self.matchings(two.bound, bound):
            self.enter(bound)
            same = self.entails(claim == z3.substitute(two.claim, *pairs) if pairs else claim == two.claim)
            same = same and self.same(body, substituted_poly(two.body, pairs))
            self.leave()
            if same:
                return True
        return False

    def same_index(self, one: tuple, two: tuple) -> bool:
        """Return True if z3 proves that two indices are equal."""
        open_pairs = [a == b for a, b in zip(one, two, strict=True) if not a.eq(b)]
        return not open_pairs or self.entails(z3.simplify(z3.And(*open_pairs)))
