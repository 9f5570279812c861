"""Prove rules with matrices of numbers (`array`) for all shapes: sums over known sizes are written out term by term.

A transform such as Winograd's is a product with a matrix of numbers. The terms of the product cancel only if every
entry of the matrix is read. `WrittenOut` therefore adds up a sum over an axis of known size entry by entry. An index
that is divided by a known number is split into quotient and remainder. Terms are added up if they are structurally
equal, without a question to z3. Sums over unknown sizes stay sums.
"""

from collections.abc import Callable

import z3

from rlflow.proving.all_shapes import Symbolic
from rlflow.proving.cases import MemoizedCase
from rlflow.proving.decisions import Budget, Fork
from rlflow.proving.polynomials import Element, Inside, Poly, Term, atom_mentions
from rlflow.proving.unknowns import Int, mentions, monomials, plain, subterms, term_id, term_of, without_factors

MAX_KNOWN = 64  # largest known size of a sum that is written out
QUOTIENT = "'"  # last letter of the name of a quotient that `WrittenOut.floor_quotient` introduces


class ScopedCase(MemoizedCase):
    """A case that computes each element once in each scope of summed indices."""

    def key(self, index: tuple) -> tuple:
        return (self.world.scope, *map(term_id, index))


class WrittenOut(Symbolic):
    """One case in the symbolic algebra, in which sums over known sizes are written out.

    Attributes:
      proved: (z3 id of a claim, scope) for each claim that was proved in a scope of summed indices.
      undecided: z3 ids of claims that were neither proved nor refuted.
      scopes: the (index, size) pairs of each open scope, by z3 id.
      atoms: id of an atom → (the atom, its number); structurally equal atoms have the same number.
      numbers: the structure of an atom → its number.
      mentioned: (number of an atom, z3 id of an index) → True if the index occurs in the atom.
      quotients: ids of two integers, scope → (both integers, their floor quotient).
      simplified: z3 id of a term, number of definitions → (the term, its value in the algebra).
    """

    case = ScopedCase

    def __init__(self, steps: tuple, budget: Budget):
        self.proved: set = set()
        self.undecided: set = set()
        self.scopes: list[tuple] = []
        self.atoms: dict[int, tuple] = {}
        self.numbers: dict[tuple, int] = {}
        self.mentioned: dict[tuple, bool] = {}
        self.quotients: dict[tuple, tuple] = {}
        self.simplified: dict[tuple, tuple] = {}
        super().__init__(steps, budget)
        claims = [step for step in steps if not isinstance(step, tuple)]
        names = (one.decl().name() for claim in claims for one in subterms(claim) if z3.is_const(one))
        self.indices.update(name for name in names if name.endswith(QUOTIENT))

    # -- scopes of summed indices --

    @property
    def scope(self) -> tuple:
        """The (index, size) pairs of all open scopes, by z3 id."""
        return tuple(self.scopes)

    def summed_index(self):
        """Return one index for all sums at the same depth, so that equal terms of two sums are structurally equal."""
        return self.index_symbol(f"sum {len(self.bound)}")

    def enter(self, bound: tuple) -> None:
        self.kept.append(bound)
        self.scopes.append(tuple((v.get_id(), term_of(size).get_id()) for v, size in bound))
        super().enter(bound)

    def leave(self) -> None:
        super().leave()
        self.scopes.pop()

    def entails(self, claim) -> bool:
        """Return True if z3 proves a claim. A claim that was proved stays proved, because assumptions are only added.
        """
        claim = getattr(claim, "claim", claim)
        if isinstance(claim, bool):
            return claim
        key = claim.get_id(), self.scope
        if key not in self.proved:
            if not super().entails(claim):
                return False
            self.kept.append(claim)
            self.proved.add(key)
        return True

    # -- numbers --

    def sum(self, size, body: Callable) -> Poly:
        size = self.integer(plain(size))
        if isinstance(size, int) and size <= MAX_KNOWN:
            return self.gathered(tuple(term for k in range(size) for term in body(k).terms))
        return super().sum(size, body)

    def inside(self, pairs, value: Callable) -> Poly:
        """Return the number that is `value()` where all positions lie inside their sizes, and 0 elsewhere."""
        claims = []
        for position, size in pairs:
            for claim in (position >= 0, position < size):
                if isinstance(claim, bool):
                    if not claim:
                        return self.number(0)
                elif claim.claim.get_id() in self.undecided:
                    claims.append(claim.claim)
                elif not self.entails(claim.claim):
                    if self.entails(z3.Not(claim.claim)):
                        return self.number(0)
                    claims.append(claim.claim)
                    self.kept.append(claim.claim)
                    self.undecided.add(claim.claim.get_id())
        return Poly(self, (Term(1, (), tuple(map(Inside, claims))),)) * value() if claims else value()

    def term_product(self, one: Term, two: Term) -> Term:
        """Return the product of two terms. If all factors are elements and claims, only repeated claims are dropped."""
        one, two = self.apart(one), self.apart(two)
        if one.bound and two.bound or not all(isinstance(f, Element | Inside) for f in (*one.factors, *two.factors)):
            return super().term_product(one, two)
        claims = {self.number_of_atom(f): f for f in (*one.factors, *two.factors) if isinstance(f, Inside)}
        elements = [f for f in (*one.factors, *two.factors) if isinstance(f, Element)]
        return Term(one.coefficient * two.coefficient, one.bound + two.bound, (*claims.values(), *elements))

    def apart(self, term: Term) -> Term:
        """Return an equal term that sums over no index of an open scope; sums at the same depth share their index."""
        here = {v.get_id() for v, _ in self.bound} if term.bound else ()
        return self.renamed(term) if any(v.get_id() in here for v, _ in term.bound) else term

    def bind(self, body: Poly, variable, length) -> Poly:
        """Return the sum of `body` for 0 ≤ `variable` < `length`."""
        bound, terms = ((variable, plain(length)),), []
        self.kept.append(bound)
        for term in body.terms:
            if any(v.eq(variable) for v, _ in term.bound):
                term = self.renamed(term)
            if any(self.is_mentioned(atom, variable) for atom in term.factors):
                terms.append(term._replace(bound=term.bound + bound))
            else:
                terms += (Poly(self, (term,)) * self.number(length)).terms
        return self.gathered(tuple(terms))

    def gathered(self, terms: tuple[Term, ...]) -> Poly:
        """Return the sum of terms as a Poly, in which structurally equal terms are added up."""
        groups: dict = {}
        for term in terms:
            bound = tuple([(v.get_id(), term_of(size).get_id()) for v, size in term.bound])
            key = bound, tuple(sorted(map(self.number_of_atom, term.factors)))
            known = groups.get(key)
            groups[key] = term if known is None else known._replace(coefficient=known.coefficient + term.coefficient)
        return Poly(self, tuple(term for term in groups.values() if term.coefficient))

    def number_of_atom(self, atom) -> int:
        """Return a number that is the same for structurally equal atoms."""
        known = self.atoms.get(id(atom))
        if known is None:
            match atom:
                case Element(name, index):
                    key = ("element", name, *(k.get_id() for k in index))
                case Inside(claim):
                    key = ("inside", claim.get_id())
                case _:
                    key = ("other", id(atom))
            known = self.atoms[id(atom)] = atom, self.numbers.setdefault(key, len(self.numbers))
        return known[1]

    def is_mentioned(self, atom, variable) -> bool:
        """Return True if an index occurs in an atom; the answer is cached."""
        key = self.number_of_atom(atom), variable.get_id()
        if key not in self.mentioned:
            self.mentioned[key] = atom_mentions(atom, variable)
        return self.mentioned[key]

    # -- integers --

    def floor_quotient(self, a, b):
        """Return a // b. An index a that is divided by a known b splits the case by the remainder a - (a // b)·b.

        The index of a sum splits no case. A size a that is divided by a known b gives one symbol, which is not negative
        if a is not negative.
        """
        key = term_id(a), term_id(b), self.scope
        if key not in self.quotients:
            self.quotients[key] = a, b, self.new_quotient(a, b)
        return self.quotients[key][2]

    def new_quotient(self, a, b):
        """Return a // b; see `floor_quotient`, which keeps the results."""
        a, b = self.integer(plain(a)), self.integer(plain(b))
        if isinstance(a, Int) and isinstance(b, int):
            whole, rest = self.divided(a, b)
            if isinstance(rest, Int) and self.is_size(a.term):
                return self.quotient_of(a.term, z3.IntVal(b))
            fixed = isinstance(rest, Int) and not any(mentions(rest.term, v) for v, _ in self.bound)
            if fixed and has_symbol(rest.term):
                quotient = z3.Int(f"{rest.term.sexpr()} // {b}{QUOTIENT}")
                raise Fork([rest.term == b * quotient + k for k in range(b)])
        return super().floor_quotient(a, b)

    def integer(self, term):
        """Return a z3 term as a simplified integer of the algebra. The results are kept until a symbol is defined."""
        if isinstance(term, int):
            return term
        key = term.get_id(), len(self.definitions)
        if key not in self.simplified:
            self.simplified[key] = term, super().integer(term)
        return self.simplified[key][1]

    def divided(self, a, b) -> tuple:
        """Return (e, r) with a = e·b + r. If b has several terms, the terms of `a` are divided by its longest term."""
        parts = monomials(term_of(b))
        if len(parts) == 1:
            return super().divided(a, b)
        times, divisor = max(parts, key=lambda part: len(part[1]))
        whole, rest = self.integer(0), a
        for coefficient, factors in monomials(term_of(a)):
            left = without_factors(factors, divisor)
            if left is not None and coefficient % times == 0:
                part = self.integer(coefficient // times * self.monomial(left))
                whole, rest = whole + part, rest - self.product(part, b)
        return whole, rest

    def exact_quotient(self, a, b):
        """Return a / b if `a` is visibly a multiple of b, else None."""
        whole, rest = self.divided(self.integer(plain(a)), self.integer(plain(b)))
        return whole if isinstance(rest, int) and rest == 0 else None

    # -- positions in row-major order --

    def moved(self, old: list[tuple], sizes: list) -> list:
        """Return the index of a position under the sizes of a new shape; axes are divided and joined one by one."""
        return self.regrouped(list(old), sizes) or super().moved(old, sizes)

    def regrouped(self, old: list[tuple], sizes: list) -> list | None:
        """Return the index of a position under other sizes, or None if the sizes are not visibly multiples.

        Args:
          old: the (size, index) pair of each axis of the old shape.
          sizes: the sizes of the new shape.
        """
        result = []
        for wanted in sizes:
            if not old:
                return None
            size, index = old.pop(0)
            while not self.same_size(size, wanted):
                inner = self.exact_quotient(size, wanted)
                if inner is not None:  # the new axis is the first part of this axis
                    first = index // inner
                    old.insert(0, (inner, index - first * inner))
                    size, index = wanted, first
                    continue
                missing = self.exact_quotient(wanted, size)
                if missing is None or not old:
                    return None
                next_size, next_index = old.pop(0)
                inner = self.exact_quotient(next_size, missing)
                if inner is not None and not self.is_one(inner):  # the next axis begins with the missing part
                    first = next_index // inner
                    old.insert(0, (inner, next_index - first * inner))
                    next_size, next_index = missing, first
                size, index = size * next_size, index * next_size + next_index
            result.append(index)
        return result if not old else None

    def reshaped(self, shape: tuple, wanted: tuple, allowzero: int) -> tuple:
        """Return the output shape of Reshape, whose size for -1 is the exact quotient if there is one."""
        sizes = [shape[k] if isinstance(size, int) and size == 0 else size for k, size in enumerate(wanted)]
        free = [k for k, size in enumerate(sizes) if isinstance(size, int) and size == -1]
        others = [size for size in sizes if not (isinstance(size, int) and size == -1)]
        if len(free) == 1 and all(self.entails(size >= 1) for size in others):
            whole = list(shape)
            for position in reversed(range(len(others))):
                same = next((k for k, size in enumerate(whole) if self.same_size(size, others[position])), None)
                if same is not None:
                    del others[position], whole[same]
            found = self.exact_quotient(self.product_of_all(whole), self.product_of_all(others))
            if found is not None:
                return tuple(found if k == free[0] else size for k, size in enumerate(sizes))
        return super().reshaped(shape, wanted, allowzero)


def has_symbol(term) -> bool:
    """Return True if an equation with the z3 term can be solved for a symbol."""
    return any(abs(times) == 1 and len(factors) == 1 and z3.is_const(factors[0]) for times, factors in monomials(term))
