"""Sizes and indices that are not known: z3 integers.

z3 knows no products of unknowns: they are functions, of which the laws that proofs need are assumed.
"""

import z3

from rlflow.rules.prover.claims import Claims
from rlflow.rules.prover.interrupts import Budget, Unprovable
from rlflow.rules.prover.terms import MAX_CLAIM, mentions, monomials, sorting_key, subterms, without_factors
from rlflow.rules.prover.unknowns import UNKNOWN, Int, Truth, plain, plain_claim, term_of


class Integers(Claims):
    """Sizes, indices, and what is known of them; `assumptions` are z3 claims that hold throughout."""

    def __init__(self, assumptions, budget: Budget):
        super().__init__(budget)
        self.products: dict = {}
        self.known_products: dict = {}  # (a, b, a · b) by the id of the product
        self.definitions: list[tuple] = []  # (symbol, what it is equal to)
        self.symbols: dict[str, z3.ArithRef] = {}
        self.divided_by: dict = {}  # what sizes were divided by, by id
        self.defined: list = []  # what the unknown functions are, for looking for numbers
        for claim in assumptions:
            self.assume(claim)
            self.add_product_laws(claim)

    # -- definitions --

    def assume(self, claim) -> None:
        super().assume(claim)
        if len(self.versions) == 1:
            self.define(plain_claim(claim))

    def define(self, claim) -> None:
        """An equation for a symbol replaces it by the other side from now on, so that products of it are known."""
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
                    self.put(symbol, rest)
                    return

    def put(self, symbol, rest) -> None:
        self.definitions.append((symbol, rest))
        for k, (old, known) in enumerate(self.definitions):
            if mentions(known, symbol):
                self.definitions[k] = (old, self.rebuilt(z3.substitute(known, (symbol, rest))))
        for a, b, made in list(self.known_products.values()):
            if mentions(a, symbol) or mentions(b, symbol):
                self.lemma(made == plain(self.product(self.integer(a), self.integer(b))))

    # -- integers --

    def rebuilt(self, term, done: dict | None = None):
        """The term with its products multiplied out again, after something was put into them."""
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
        if isinstance(term, int):
            return term
        if self.definitions:
            known = z3.substitute(term, *self.definitions)
            term = term if known.eq(term) else self.rebuilt(known)
        term = z3.simplify(term, som=True)
        return term.as_long() if z3.is_int_value(term) else Int(self, term)

    def symbol(self, name: str, least: int | None = 1):
        if name not in self.symbols:
            self.symbols[name] = z3.Int(name)
            if least is not None:
                self.assume(self.symbols[name] >= least)
        return self.integer(self.symbols[name])

    def choose(self, condition, yes, no):
        if isinstance(condition, Truth):
            if self.entails(condition.claim):
                return yes
            if self.entails(z3.Not(condition.claim)):
                return no
            return self.integer(z3.If(condition.claim, plain(yes), plain(no)))
        return yes if condition else no

    def wider(self, a, b):
        if self.entails(b == 1) or self.entails(a == b):
            return a
        return self.choose(a == 1, b, a)

    def met(self, size, whole, k):
        return k if self.entails(size == whole) else self.choose(size == 1, 0, k)

    def product(self, a, b):
        """a · b; of two unknowns an unknown function with the laws that proofs need."""
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
        """The product of unknowns, in one order."""
        first, *rest = sorted(factors, key=sorting_key) or [z3.IntVal(1)]
        for other in rest:
            first = self.product_of(first, other)
        return first

    def product_of(self, a, b):
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
        """The laws of all products in a claim."""
        for term in subterms(claim):
            if z3.is_app(term) and term.decl().name() == "product":
                self.product_of(*term.children())

    def floor_quotient(self, a, b):
        """a // b for b ≥ 1; what b divides is divided."""
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
        """(e, r) with a = e·b + r, where e has what b divides at sight."""
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
        """Whether a comparison is entailed, if need be since it is so of its multiples by what was divided by."""
        for b in self.divided_by.values():
            d = self.integer(claim.difference)
            multiple = term_of(self.product(d, b))
            self.lemma(z3.Implies(z3.And(plain(d) >= 1, b.term >= 1), multiple >= b.term))
            self.lemma(z3.Implies(z3.And(plain(d) <= -1, b.term >= 1), multiple <= -b.term))
        return self.entails(claim)

    def quotient_of(self, a, b) -> Int:
        """An unknown with a - b < unknown · b ≤ a; of sizes only a symbol, so that an equation can define it."""
        if self.is_size(a) and self.is_size(b):
            made = self.symbol(f"({a.sexpr()}) // ({b.sexpr()})", None)
        else:
            made = Int(self, a / b if z3.is_int_value(b) else UNKNOWN["quotient", 2](a, b))
        self.defined.append(term_of(made) == a / b)
        back = plain(made * self.integer(b))
        self.lemma(back <= a, a < back + b, z3.Implies(a >= 0, term_of(made) >= 0))
        return made

    def is_size(self, term) -> bool:
        """Whether a term has symbols of sizes only, and no index."""
        if term.decl().kind() == z3.Z3_OP_ITE:  # may be large, and no equation is solved for it
            return False
        return term.decl().name() not in self.indices and all(map(self.is_size, term.children()))
