"""Reason about unknown sizes and indices with z3: assumptions, products, and positions in row-major order.

`Claims` holds the assumptions of one case and asks z3 what follows from them. If the assumptions do not decide a
comparison, an exception is raised. A `Border` tells the enclosing sum where to split its range; a `Fork` splits the
case. `Integers` adds products and quotients. z3 cannot decide formulas with products of unknowns, so a product is an
uninterpreted function with the laws that proofs need. `Reshapes` converts an index under one shape to the index of the
same row-major position under another shape.
"""

import itertools
from contextlib import contextmanager
from typing import NamedTuple

import z3

from rlflow.proving.decisions import Border, Budget, Fork, Infeasible, Unprovable
from rlflow.proving.unknowns import (
    MAX_CLAIM,
    UNKNOWN,
    Int,
    Truth,
    mentions,
    monomials,
    plain,
    plain_claim,
    sorting_key,
    subterms,
    term_id,
    term_of,
    without_factors,
)

RLIMIT = 2_000_000  # limit of one query in z3's units of work; a limit in seconds would depend on the machine


class Claims:
    """The assumptions of one case as z3 claims. Some hold in the whole case, others only inside the open scopes.

    Attributes:
      obligations: (operator type, claim) pairs, the requirements of the right side's operators on their inputs; None
        while the left side is evaluated.
      operator: the type of the operator that is being evaluated.
      refused: the operator types for which the planner refuses a match if the inputs do not fit.
      indices: the names of the z3 constants that stand for indices, not for sizes.
    """

    def __init__(self, budget: Budget):
        self.solver, self.budget = z3.Solver(), budget
        self.solver.set("rlimit", RLIMIT)
        self.bound: list = []  # (index, size) pairs that the enclosing sums and maxima bind
        self.versions, self.counter, self.names = [0], 0, 0
        self.known_answers: dict = {}
        self.kept: list = []  # z3 terms whose ids are keys: z3 reuses the id of a freed term
        self.laws: list[dict] = [{}]  # assumed laws by id, one dictionary per open scope
        self.obligations: list | None = None
        self.operator = ""
        self.refused: frozenset = frozenset()
        self.indices: set[str] = set()

    def assume(self, claim) -> None:
        """Add a z3 claim or a Truth to the assumptions."""
        self.solver.add(plain_claim(claim))
        self.counter += 1
        self.versions[-1] = self.counter

    def feasible(self) -> bool:
        """Return False if z3 proves that the assumptions contradict each other."""
        self.budget.spend()
        return self.solver.check() != z3.unsat

    def entails(self, claim) -> bool:
        """Return True if z3 proves a claim (bool, z3 claim or Truth) from the assumptions, False if it does not."""
        claim = plain_claim(claim)
        if claim is True or claim is False:
            return claim
        if z3.is_true(claim) or z3.is_false(claim):
            return z3.is_true(claim)
        key = (claim.get_id(), self.versions[-1])
        if key not in self.known_answers:
            self.budget.spend()
            self.kept.append(claim)
            self.solver.push()
            self.solver.add(z3.Not(claim))
            self.known_answers[key] = self.solver.check() == z3.unsat
            self.solver.pop()
        return self.known_answers[key]

    def decide(self, truth: Truth) -> bool:
        """Return the answer to a comparison if the assumptions imply it.

        Raises:
          Border: if the answer is open and the comparison contains an index of an enclosing sum or maximum.
          Fork: if the answer is open otherwise.
          Unprovable: if the border cannot be found, or if the comparison is too large for a Fork.
        """
        if self.entails(truth.claim):
            return True
        if self.entails(z3.Not(truth.claim)):
            return False
        inner = [v for v, _ in self.bound if mentions(truth.claim, v)]
        if inner:
            raise Border(inner[-1], self.border(truth, inner[-1]))
        if len(subterms(truth.claim)) > MAX_CLAIM:
            raise Unprovable("a condition is too large")
        raise Fork([truth.claim, z3.Not(truth.claim)])

    def truth(self, kind: str, difference):
        """Return the comparison of a difference with 0: a bool if z3's simplifier decides it, else a Truth.

        Args:
          kind: "==", "<" or "<=".
          difference: a z3 integer term.
        """
        difference = z3.simplify(difference, som=True)
        claim = {"==": difference == 0, "<": difference < 0, "<=": difference <= 0}[kind]
        result = z3.simplify(claim)
        if z3.is_true(result) or z3.is_false(result):
            return z3.is_true(result)
        return Truth(self, claim, kind, difference)

    def border(self, truth: Truth, variable):
        """Return the value of `variable` from which on a comparison has another answer, as a z3 term.

        Args:
          truth: the comparison.
          variable: the index of an enclosing sum or maximum.

        Raises:
          Unprovable: if the difference that is compared with 0 is not linear in the variable with slope 1 or -1, or if
            the value depends on another index.
        """
        if not truth.kind:
            raise Unprovable("a condition inside a sum is no single comparison")
        d = truth.difference
        slope = z3.simplify(z3.substitute(d, (variable, variable + 1)) - d, som=True)
        if not z3.is_int_value(slope) or abs(slope.as_long()) != 1:
            raise Unprovable("a border inside a sum is not linear")
        up = slope.as_long() == 1
        zero = z3.simplify(variable - d if up else d + variable, som=True)  # where the difference is 0
        if any(mentions(zero, v) for v, _ in self.bound):
            raise Unprovable("a border inside a sum moves with another index")
        if truth.kind == "==":
            return zero + 1 if self.entails(zero <= 0) else zero
        return zero if (truth.kind == "<") == up else zero + 1

    def require(self, claim) -> None:
        """Assume a requirement of an operator on its inputs, or make it an obligation if the right side is evaluated.

        Raises:
          Infeasible: if the requirement is False on the left side, or on the right side for an operator in `refused`.
          Unprovable: if the requirement is False on the right side for any other operator.
        """
        if claim is False:
            if self.obligations is None or self.operator in self.refused:
                raise Infeasible
            raise Unprovable("the right side does not fit its inputs")
        if claim is True:
            return
        if self.obligations is None:
            self.assume(claim)
        else:
            self.obligations.append((self.operator, claim))

    def lemma(self, *claims) -> None:
        """Assume laws of uninterpreted functions. A law that is already assumed is skipped."""
        for claim in claims:
            if not any(claim.get_id() in laws for laws in self.laws):
                self.laws[-1][claim.get_id()] = claim
                self.assume(claim)

    # -- indices --

    @contextmanager
    def index_below(self, length):
        """Return a context manager that yields a new index k (a z3 constant) and assumes 0 ≤ k < length inside."""
        pair = self.summed_index(), plain(length)
        self.enter((pair,))
        self.bound.append(pair)
        try:
            yield pair[0]
        finally:
            self.bound.pop()
            self.leave()

    def summed_index(self):
        """Return the z3 constant for the index of `index_below`."""
        return self.fresh()

    def fresh(self):
        """Return a new z3 constant for an index, with a name that is not in use."""
        self.names += 1
        return self.index_symbol(f"k{self.names}")

    def index_symbol(self, name: str):
        """Return the z3 constant with the given name, and record that it is an index."""
        self.indices.add(name)
        return z3.Int(name)

    def enter(self, bound: tuple) -> None:
        """Open a scope with the assumption 0 ≤ index < size for each of the given (index, size) pairs."""
        self.solver.push()
        self.versions.append(self.versions[-1])
        self.laws.append({})
        for v, s in bound:
            self.assume(z3.And(v >= 0, v < s))

    def leave(self) -> None:
        """Close the innermost scope and drop its assumptions, except the laws of uninterpreted functions."""
        self.solver.pop()
        self.versions.pop()
        self.kept.append(self.laws[-1])
        self.lemma(*self.laws.pop().values())  # The laws hold outside the scope, too.


class Integers(Claims):
    """Unknown sizes and indices with products and quotients.

    Attributes:
      known_products: (a, b, a · b) triples of z3 terms, by the z3 id of the product.
      definitions: (symbol, term) pairs; each symbol equals its term and is replaced by it.
      symbols: the z3 constants of sizes, by name.
      divided_by: the unknown divisors of all quotients so far, by z3 id.
      defined: the exact equations of products and quotients, used only in the search for counterexamples.
    """

    def __init__(self, assumptions, budget: Budget):
        super().__init__(budget)
        self.products: dict = {}
        self.known_products: dict = {}
        self.definitions: list[tuple] = []
        self.symbols: dict[str, z3.ArithRef] = {}
        self.divided_by: dict = {}
        self.defined: list = []
        for claim in assumptions:
            self.assume(claim)
            self.add_product_laws(claim)

    # -- definitions --

    def assume(self, claim) -> None:
        """Add a claim to the assumptions. Outside of all scopes, also turn its equations into definitions."""
        super().assume(claim)
        if len(self.versions) == 1:
            self.define(plain_claim(claim))

    def define(self, claim) -> None:
        """Solve the equations in a claim for one symbol each, and replace these symbols from now on.

        Products of a replaced symbol can then be multiplied out.
        """
        if claim is True or claim is False:
            return
        if z3.is_and(claim):
            for child in claim.children():
                self.define(child)
        if not z3.is_eq(claim) or not z3.is_int(claim.arg(0)) or len(subterms(claim)) > MAX_CLAIM:
            return
        difference = z3.simplify(z3.substitute(claim.arg(0) - claim.arg(1), *self.definitions), som=True)
        for coefficient, factors in monomials(difference):
            if abs(coefficient) == 1 and len(factors) == 1 and z3.is_const(factors[0]):
                symbol = factors[0]
                rest = z3.simplify(symbol - coefficient * difference, som=True)
                if not mentions(rest, symbol):
                    self.substitute_definition(symbol, rest)
                    return

    def substitute_definition(self, symbol, rest) -> None:
        """Record that `symbol` equals the z3 term `rest`, and insert `rest` in older definitions and products."""
        self.definitions.append((symbol, rest))
        for k, (old, known) in enumerate(self.definitions):
            if mentions(known, symbol):
                self.definitions[k] = (old, self.rebuilt(z3.substitute(known, (symbol, rest))))
        for a, b, made in list(self.known_products.values()):
            if mentions(a, symbol) or mentions(b, symbol):
                self.lemma(made == plain(self.product(self.integer(a), self.integer(b))))

    # -- integers --

    def rebuilt(self, term, done: dict | None = None):
        """Return a z3 term with its products and quotients simplified again, as a substitution in it requires.

        Args:
          term: the term.
          done: a cache of results by z3 id; None for an empty one.
        """
        done = {} if done is None else done
        if term.get_id() not in done:
            children = [self.rebuilt(child, done) for child in term.children()]
            if z3.is_app(term) and term.decl().name() == "product":
                made = term_of(self.product(*map(self.integer, children)))
            elif z3.is_app(term) and term.decl().name() == "quotient":
                made = term_of(self.floor_quotient(*map(self.integer, children)))
            else:
                made = z3.simplify(term.decl()(*children), som=True) if children else term
            done[term.get_id()] = made
        return done[term.get_id()]

    def integer(self, term):
        """Return a z3 term as a simplified integer of the algebra: a Python int if it is known, else an Int."""
        if isinstance(term, int):
            return term
        if self.definitions:
            known = z3.substitute(term, *self.definitions)
            term = term if known.eq(term) else self.rebuilt(known)
        term = z3.simplify(term, som=True)
        return term.as_long() if z3.is_int_value(term) else Int(self, term)

    def symbol(self, name: str, least: int | None = 1):
        """Return the unknown integer with the given name.

        Args:
          name: the name; the same name gives the same integer.
          least: the smallest possible value, assumed at the first use of the name; None for no bound.
        """
        if name not in self.symbols:
            self.symbols[name] = z3.Int(name)
            if least is not None:
                self.assume(self.symbols[name] >= least)
        return self.integer(self.symbols[name])

    def choose(self, condition, yes, no):
        """Return `yes` if the condition holds, else `no`. If the condition is open, return a conditional z3 term.

        Args:
          condition: a bool or a Truth.
          yes, no: integers of the algebra.
        """
        if isinstance(condition, Truth):
            if self.entails(condition.claim):
                return yes
            if self.entails(z3.Not(condition.claim)):
                return no
            return self.integer(z3.If(condition.claim, plain(yes), plain(no)))
        return yes if condition else no

    def broadcast_size(self, a, b):
        """Return the broadcast size of two sizes, which must be equal or contain a 1."""
        if self.entails(b == 1) or self.entails(a == b):
            return a
        return self.choose(a == 1, b, a)

    def broadcast_index(self, size, whole, k):
        """Return the index on an axis of the given size that broadcasting maps index k to.

        Args:
          size: the size of the axis, equal to `whole` or 1.
          whole: the size after broadcasting.
          k: the index after broadcasting.
        """
        return k if self.entails(size == whole) else self.choose(size == 1, 0, k)

    def product(self, a, b):
        """Return a · b. A product of two unknowns is an uninterpreted function with the laws that proofs need."""
        a, b = self.integer(plain(a)), self.integer(plain(b))
        if isinstance(a, int) or isinstance(b, int):
            return self.integer(plain(a) * plain(b))
        for one, other in ((a, b), (b, a)):
            if self.entails(one.term == 1):
                return other
            if self.entails(one.term == 0):
                return 0
        total = 0
        for c, one in monomials(a.term):
            for d, other in monomials(b.term):
                total = total + c * d * self.monomial(one + other)
        return self.integer(total)

    def product_of_all(self, sizes: list):
        result = 1
        for size in sizes:
            result = result * size
        return result

    def monomial(self, factors: tuple):
        """Return the product of z3 terms, multiplied in one fixed order so that equal products are equal terms."""
        first, *rest = sorted(factors, key=sorting_key) or [z3.IntVal(1)]
        for other in rest:
            first = self.product_of(first, other)
        return first

    def product_of(self, a, b):
        """Return the uninterpreted product of two z3 terms, and assume its laws: units, signs and monotonicity."""
        made = UNKNOWN["product", 2](a, b)
        self.known_products[made.get_id()] = (a, b, made)
        self.defined.append(made == a * b)
        self.lemma(z3.Implies(z3.And(a >= 1, b >= 1), z3.And(made >= a, made >= b)))
        self.lemma(z3.Implies(z3.And(a >= 0, b >= 0), made >= 0))
        for one, other in ((a, b), (b, a)):
            self.lemma(z3.Implies(one == 1, made == other), z3.Implies(one == 0, made == 0))
            self.lemma(z3.Implies(z3.And(one <= -1, other >= 1), made <= -other))
            alike = self.products.setdefault(other.get_id(), {})
            for c, known in alike.values():
                if not c.eq(one):
                    self.lemma(z3.Implies(z3.And(one <= c, other >= 0), made <= known))
                    self.lemma(z3.Implies(z3.And(c <= one, other >= 0), known <= made))
                    self.lemma(z3.Implies(z3.And(one < c, other >= 0), made + other <= known))
                    self.lemma(z3.Implies(z3.And(c < one, other >= 0), known + other <= made))
                    self.lemma(z3.Implies(z3.And(one <= c + 1, other >= 0), made <= known + other))
                    self.lemma(z3.Implies(z3.And(c <= one + 1, other >= 0), known <= made + other))
            alike[one.get_id()] = (one, made)
            self.kept.append(other)
        return made

    def add_product_laws(self, claim) -> None:
        """Assume the laws of all products that occur in a claim."""
        for term in subterms(claim):
            if z3.is_app(term) and term.decl().name() == "product":
                self.product_of(*term.children())

    def floor_quotient(self, a, b):
        """Return a // b. Raise Unprovable if b ≥ 1 is not proved.

        The terms of `a` that are visibly multiples of b are divided exactly.
        """
        a, b = self.integer(plain(a)), self.integer(plain(b))
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        if not self.entails(b >= 1):
            raise Unprovable("a divisor may not be positive")
        if isinstance(b, Int):
            self.divided_by[b.term.get_id()] = b
            for whole in (0, 1):
                if self.entails(z3.And(plain(a) >= whole * b.term, plain(a) < (whole + 1) * b.term)):
                    return whole
        whole, rest = self.divided(a, b)
        if isinstance(rest, int) and rest == 0:
            return whole
        if isinstance(rest, int) and isinstance(b, int):
            return whole + rest // b
        if not (isinstance(whole, int) and whole == 0):
            return whole + self.floor_quotient(rest, b)
        return whole + self.quotient_of(term_of(rest), term_of(b))

    def divided(self, a, b) -> tuple:
        """Return (e, r) with a = e·b + r, where e is made of the terms of `a` that are visibly multiples of b."""
        parts, whole, rest = monomials(term_of(b)), z3.IntVal(0), z3.IntVal(0)
        times, divisor = parts[0]
        for coefficient, factors in monomials(term_of(a)):
            left = without_factors(factors, divisor) if len(parts) == 1 else None
            if left is None or (divisor and coefficient % times):
                rest = rest + coefficient * self.monomial(factors)
            elif divisor:
                whole = whole + coefficient // times * self.monomial(left)
            else:
                whole = whole + coefficient // times * self.monomial(factors)
                rest = rest + coefficient % times * self.monomial(factors)
        return self.integer(whole), self.integer(rest)

    def follows(self, claim: Truth) -> bool:
        """Return True if the assumptions imply a comparison d = 0, d < 0 or d ≤ 0.

        For each earlier divisor b, laws about d·b are assumed first; they let z3 use assumptions about multiples of b.
        """
        for b in self.divided_by.values():
            d = self.integer(claim.difference)
            multiple = term_of(self.product(d, b))
            self.lemma(z3.Implies(z3.And(plain(d) >= 1, b.term >= 1), multiple >= b.term))
            self.lemma(z3.Implies(z3.And(plain(d) <= -1, b.term >= 1), multiple <= -b.term))
        return self.entails(claim)

    def quotient_of(self, a, b) -> Int:
        """Return an unknown integer q with the assumption a - b < q·b ≤ a.

        If a and b consist of sizes, q is a symbol, so that an equation can define it.
        """
        if self.is_size(a) and self.is_size(b):
            made = self.symbol(f"({a.sexpr()}) // ({b.sexpr()})", None)
        else:
            made = Int(self, a / b if z3.is_int_value(b) else UNKNOWN["quotient", 2](a, b))
        self.defined.append(term_of(made) == a / b)
        back = plain(made * self.integer(b))
        self.lemma(back <= a, a < back + b, z3.Implies(a >= 0, term_of(made) >= 0))
        return made

    def is_size(self, term) -> bool:
        """Return True if a z3 term contains no index and no conditional."""
        if term.decl().kind() == z3.Z3_OP_ITE:  # A conditional may be large, and no equation is solved for it.
            return False
        return term.decl().name() not in self.indices and all(map(self.is_size, term.children()))


class Position(NamedTuple):
    """A position in row-major order, stored as the index of this position under a shape."""

    shape: tuple
    index: tuple


class Reshapes(Integers):
    """Integers, with the conversion of an index to the index of the same row-major position under another shape.

    Attributes:
      origins: z3 ids of the converted indices → (sizes, indices) before the conversion, and the sizes after it.
    """

    def __init__(self, assumptions, budget: Budget):
        self.origins: dict = {}
        super().__init__(assumptions, budget)

    def position(self, shape: tuple, index: tuple) -> Position:
        """Return the row-major position of an index under a shape."""
        return Position(shape, index)

    def index(self, position: Position, shape: tuple) -> tuple:
        """Return the index of a row-major position under another shape.

        Leading and trailing axes that both shapes have in common keep their indices. If the last axis of one shape has
        a known size, and the last axis of the other shape is visibly a larger multiple of this size, the larger axis is
        treated as two axes.
        """
        old = [pair for pair in zip(position.shape, position.index, strict=True) if not self.is_one(pair[0])]
        new = [k for k, size in enumerate(shape) if not self.is_one(size)]
        result: list = [0] * len(shape)
        while old and new and self.same_size(old[0][0], shape[new[0]]):
            result[new.pop(0)] = old.pop(0)[1]
        while old and new:
            (size, k), wanted = old[-1], shape[new[-1]]
            if self.same_size(size, wanted):
                result[new.pop()] = old.pop()[1]
            elif (parts := self.parts_of(size, wanted)) is not None:
                old[-1:] = [(parts, k // wanted), (wanted, k - (k // wanted) * wanted)]
            elif (parts := self.parts_of(wanted, size)) is not None:
                sizes, old = [*(shape[axis] for axis in new[:-1]), parts], old[:-1]
                inner = self.index(Position(*zip(*old, strict=True)), tuple(sizes))
                for axis, part in zip(new, inner, strict=True):
                    result[axis] = part
                result[new[-1]] = inner[-1] * size + k
                return tuple(result)
            else:
                break
        if len(old) == 1 and len(new) == 1:
            result[new[0]] = old[0][1]
        elif new:
            for k, part in zip(new, self.moved(old, [shape[k] for k in new]), strict=True):
                result[k] = part
        return tuple(result)

    def parts_of(self, size, part):
        """Return size / part if `part` is a known number and `size` is visibly a larger multiple of it, else None."""
        if not isinstance(part, int) or not isinstance(size, Int):
            return None
        parts, rest = self.divided(size, part)
        return parts if isinstance(rest, int) and rest == 0 else None

    def moved(self, old: list[tuple], sizes: list) -> list:
        """Return the index of a position under the sizes of a new shape, as uninterpreted integers.

        If an earlier conversion from the new sizes to the old ones made the old indices, the indices before that
        conversion are returned.

        Args:
          old: the (size, index) pair of each axis of the old shape.
          sizes: the sizes of the new shape.
        """
        origin = self.origins.get(tuple(term_id(index) for _, index in old))
        if origin is not None:
            before, place, after = origin
            pairs = [*zip(before, sizes, strict=False), *zip(after, [size for size, _ in old], strict=True)]
            if len(before) == len(sizes) and all(self.same_size(a, b) for a, b in pairs):
                return place
        given = list(map(term_of, (*itertools.chain(*old), *sizes)))
        made = []
        for k, size in enumerate(sizes):
            part = UNKNOWN[f"place {len(old)} {len(sizes)} {k}", len(given)](*given) if given else z3.IntVal(0)
            self.lemma(part >= 0, part < plain(size))
            made.append(Int(self, part))
        self.kept += [m.term for m in made]
        self.origins[tuple(m.term.get_id() for m in made)] = ([s for s, _ in old], [i for _, i in old], sizes)
        return made

    def is_one(self, size) -> bool:
        return self.entails(size == 1)

    def same_size(self, a, b) -> bool:
        return self.entails(a == b)

    def reshaped(self, shape: tuple, wanted: tuple, allowzero: int) -> tuple:
        """Return the output shape of Reshape.

        Args:
          shape: the shape of the input.
          wanted: the elements of the second input; 0 copies the input's size and -1 is inferred.
          allowzero: the attribute `allowzero` of Reshape; not used. A known 0 always copies, because a 0 with
            allowzero=1 would make an empty tensor, and no case contains empty tensors.
        """
        if any(isinstance(size, Int) for size in wanted):
            return self.reshaped_as(shape, wanted)
        for k, size in enumerate(wanted):
            self.require(size != 0 or k < len(shape))
        sizes = [shape[k] if size == 0 else size for k, size in enumerate(wanted)]
        free = [k for k, size in enumerate(sizes) if isinstance(size, int) and size == -1]
        if free:
            others = [size for k, size in enumerate(sizes) if k != free[0]]
            sizes[free[0]] = self.rest_of(shape, others)
        else:
            self.require_same_total(shape, tuple(sizes))
        return tuple(sizes)

    def reshaped_as(self, shape: tuple, wanted: tuple) -> tuple:
        """Return the output shape of Reshape if some elements of its second input are unknown.

        A size that may be 0 or -1 gives an uninterpreted function of both shapes, so equal arguments give equal sizes.

        Args:
          shape: the shape of the input.
          wanted: the elements of the second input.
        """
        given = list(map(term_of, (*shape, *wanted)))
        made = []
        for k, size in enumerate(wanted):
            if self.entails(size > 0):
                made.append(size)
                continue
            whole = Int(self, UNKNOWN[f"size {len(shape)} {len(wanted)} {k}", len(given)](*given))
            self.lemma(whole.term >= 1, z3.Implies(plain(size) > 0, whole.term == plain(size)))
            if k < len(shape):
                self.lemma(z3.Implies(plain(size) == 0, whole.term == plain(shape[k])))
            made.append(whole)
        self.require_same_total(shape, tuple(made))
        return tuple(made)

    def rest_of(self, shape: tuple, sizes: list):
        """Return the size that Reshape infers for -1: the number of elements divided by the product of other sizes.

        Args:
          shape: the shape of the input.
          sizes: all sizes of the output except the inferred one.
        """
        old = [size for size in shape if not self.is_one(size)]
        sizes = [size for size in sizes if not self.is_one(size)]
        for size in list(sizes):
            same = next((k for k, other in enumerate(old) if self.same_size(size, other)), None)
            if same is not None:
                sizes.remove(size)
                del old[same]
        if not sizes:
            return self.product_of_all(old)
        given = list(map(term_of, (*old, *sizes)))
        made = Int(self, UNKNOWN[f"rest {len(old)} {len(sizes)}", len(given)](*given))
        self.lemma(made.term >= 1)
        return made

    def require_same_total(self, shape: tuple, other: tuple) -> None:
        """Require that two shapes have equally many elements, unless both have several sizes that do not cancel."""
        old = [size for size in shape if not self.is_one(size)]
        new = [size for size in other if not self.is_one(size)]
        while old and new and self.same_size(old[0], new[0]):
            old, new = old[1:], new[1:]
        while old and new and self.same_size(old[-1], new[-1]):
            old, new = old[:-1], new[:-1]
        if not old or not new:
            for size in old + new:
                self.require(size == 1)
        elif len(old) == 1 or len(new) == 1:
            self.require(self.product_of_all(old) == self.product_of_all(new))
        # Otherwise both shapes keep several sizes. No proof needs that equation; ONNX's shape inference checks it.
