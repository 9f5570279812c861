"""The algebra of symbols for rlflow.prover.semantics: sizes and indices are z3 integers, elements are sums of products.

A number is Σ coefficient · Σ over bound indices · product of atoms (`Poly`, `Term`). Two numbers are equal if their
terms pair off, with z3 deciding whether indices are equal. A comparison that the assumptions do not decide is either a
border inside a sum, which is then split there, or a `Fork` for whoever runs the proof: he tries both.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import z3

RLIMIT = 2_000_000  # z3's own unit of work for one question, so that answers do not depend on the machine
MAX_TERMS = 400  # of one number


class Fork(Exception):
    """A decision that the assumptions leave open; `options` are assumptions to try one by one."""

    def __init__(self, options: list):
        self.options = options


class Unprovable(Exception):
    """What is asked is beyond this algebra; the message says what."""


class Infeasible(Exception):
    """The assumptions contradict each other: there is no such case."""


class Border(Exception):
    """A comparison that changes its answer inside the range of a bound index, at `place`."""

    def __init__(self, variable, place):
        self.variable, self.place = variable, place


# -- integers --------------------------------------------------------------------------------------


class Int:
    """An integer that is not known."""

    __slots__ = ("world", "term")
    __hash__ = None

    def __init__(self, world: "Symbols", term):
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


def plain(value):
    return value.term if isinstance(value, Int) else value


class Truth:
    """A comparison that may be open; `bool` decides it, or asks (`Fork`, `Border`)."""

    def __init__(self, world: "Symbols", claim, kind: str = "", difference=None):
        self.world, self.claim, self.kind, self.difference = world, claim, kind, difference

    def __bool__(self):
        return self.world.decide(self)

    def __or__(self, other):
        return True if other is True else self if other is False else Truth(self.world, z3.Or(self.claim, other.claim))

    def __and__(self, other):
        return False if other is False else self if other is True else Truth(self.world, z3.And(self.claim, other.claim))

    def __invert__(self):
        return Truth(self.world, z3.Not(self.claim))

    __ror__, __rand__ = __or__, __and__


# -- numbers ---------------------------------------------------------------------------------------


class Element(NamedTuple):
    """An element of a tensor, or with no indices a number that is not known."""

    name: str
    index: tuple


class Size(NamedTuple):
    """An integer as a number."""

    term: z3.ArithRef


class Inside(NamedTuple):
    """1 where the claim holds, else 0."""

    claim: z3.BoolRef


class Applied(NamedTuple):
    """A function; the order of `larger`'s arguments means nothing."""

    name: str
    arguments: tuple


class Greatest(NamedTuple):
    """The maximum of `body` over the bound indices at which the claim holds."""

    bound: tuple  # of (variable, size)
    claim: z3.BoolRef
    body: "Poly"


class Term(NamedTuple):
    coefficient: Fraction
    bound: tuple  # of (variable, size): what is summed over
    factors: tuple


@dataclass(frozen=True)
class Poly:
    """A sum of terms."""

    world: "Symbols"
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
        """The number, where it is a known one."""
        if not self.terms:
            return Fraction(0)
        one = self.terms[0]
        return one.coefficient if len(self.terms) == 1 and not one.bound and not one.factors else None


IRRATIONAL = {  # what the nearest float stands for: (rational factor, under the root)
    1.4142135623730951: (Fraction(1), Fraction(2)),
    0.7071067811865475: (Fraction(1, 2), Fraction(2)),
    0.7071067811865476: (Fraction(1, 2), Fraction(2)),
}
POSITIVE_FUNCTIONS = ("exp",)


class Place(NamedTuple):
    """A place in row-major order."""

    shape: tuple
    index: tuple


class Symbols:
    """The algebra; `assumptions` are z3 claims that hold throughout."""

    def __init__(self, assumptions=()):
        self.solver = z3.Solver()
        self.solver.set("rlimit", RLIMIT)
        self.bound: list = []
        self.versions, self.counter, self.names = [0], 0, 0
        self.known_answers: dict = {}
        self.kept: list = []  # z3 terms whose ids are keys
        self.products: dict = {}
        self.told: list[dict] = [{}]
        self.reals: list[tuple] = []
        self.origins: dict = {}
        self.divisors: list[Poly] = []  # what the left side divides by
        self.obligations: list | None = None  # (operator, claim) that the right side requires, once it is read
        self.closed = False  # whether the left side is read, so that `divisors` is complete
        self.operator = ""
        self.refused: frozenset = frozenset()  # operators of which a misfit is refused when a rule is planned
        self.symbols: dict[str, z3.ArithRef] = {}
        self.defined: list = []  # what the unknown functions are, for looking for numbers
        for claim in assumptions:
            self.assume(claim)

    # -- claims --

    def assume(self, claim) -> None:
        self.solver.add(plain_claim(claim))
        self.counter += 1
        self.versions[-1] = self.counter

    def feasible(self) -> bool:
        return self.solver.check() != z3.unsat

    def entails(self, claim) -> bool:
        claim = plain_claim(claim)
        if claim is True or claim is False:
            return claim
        if z3.is_true(claim) or z3.is_false(claim):
            return z3.is_true(claim)
        key = (claim.get_id(), self.versions[-1])
        if key not in self.known_answers:
            self.kept.append(claim)
            self.solver.push()
            self.solver.add(z3.Not(claim))
            self.known_answers[key] = self.solver.check() == z3.unsat
            self.solver.pop()
        return self.known_answers[key]

    def decide(self, truth: Truth) -> bool:
        if self.entails(truth.claim):
            return True
        if self.entails(z3.Not(truth.claim)):
            return False
        inner = [v for v, _ in self.bound if mentions(truth.claim, v)]
        if inner:
            raise Border(inner[-1], self.border(truth, inner[-1]))
        raise Fork([truth.claim, z3.Not(truth.claim)])

    def truth(self, kind: str, difference):
        difference = z3.simplify(difference, som=True)
        claim = {"==": difference == 0, "<": difference < 0, "<=": difference <= 0}[kind]
        found = z3.simplify(claim)
        if z3.is_true(found) or z3.is_false(found):
            return z3.is_true(found)
        return Truth(self, claim, kind, difference)

    def border(self, truth: Truth, variable):
        """The place inside the range of `variable` from which on the comparison has another answer."""
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

    # -- integers --

    def integer(self, term):
        term = z3.simplify(term, som=True)
        return term.as_long() if z3.is_int_value(term) else Int(self, term)

    def symbol(self, name: str, least: int | None = 1):
        if name not in self.symbols:
            self.symbols[name] = z3.Int(name)
            if least is not None:
                self.assume(self.symbols[name] >= least)
        return Int(self, self.symbols[name])

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

    def monomial(self, factors: tuple):
        """The product of unknowns, in one order."""
        first, *rest = sorted(factors, key=lambda t: t.sexpr()) or [z3.IntVal(1)]
        for other in rest:
            first = self.product_of(first, other)
        return first

    def product_of(self, a, b):
        made = UNKNOWN["product", 2](a, b)
        self.defined.append(made == a * b)
        self.lemma(z3.Implies(z3.And(a >= 1, b >= 1), z3.And(made >= a, made >= b)))
        self.lemma(z3.Implies(z3.And(a >= 0, b >= 0), made >= 0))
        for one, other in ((a, b), (b, a)):
            self.lemma(z3.Implies(one == 1, made == other), z3.Implies(one == 0, made == 0))
            alike = self.products.setdefault(other.get_id(), {})
            for c, known in alike.values():
                if not c.eq(one):
                    self.lemma(z3.Implies(z3.And(one <= c, other >= 0), made <= known))
                    self.lemma(z3.Implies(z3.And(c <= one, other >= 0), known <= made))
                    self.lemma(z3.Implies(z3.And(one < c, other >= 0), made + other <= known))
                    self.lemma(z3.Implies(z3.And(c < one, other >= 0), known + other <= made))
            alike[one.get_id()] = (one, made)
            self.kept.append(other)
        return made

    def lemma(self, *claims) -> None:
        """Laws of the unknown functions, each told once."""
        for claim in claims:
            if not any(claim.get_id() in told for told in self.told):
                self.told[-1][claim.get_id()] = claim
                self.assume(claim)

    def floor_quotient(self, a, b):
        if isinstance(b, int):
            return self.integer(plain(a) / b) if b > 0 else -(a // -b)
        if self.entails(b == 1):
            return a
        if self.entails(z3.And(plain(a) >= 0, plain(a) < b.term)):
            return 0
        made = Int(self, UNKNOWN["quotient", 2](plain(a), b.term))
        self.defined.append(made.term == plain(a) / b.term)
        back = plain(made * b)
        self.lemma(z3.Implies(b.term >= 1, z3.And(back <= plain(a), plain(a) < back + b.term)))
        self.lemma(z3.Implies(z3.And(b.term >= 1, plain(a) >= 0), made.term >= 0))
        return made

    # -- places --

    def place(self, shape: tuple, index: tuple) -> Place:
        return Place(shape, index)

    def index(self, place: Place, shape: tuple) -> tuple:
        """The index of that place under another shape, of which equal sizes at both ends are taken as they are."""
        old = [pair for pair in zip(place.shape, place.index, strict=True) if not self.is_one(pair[0])]
        new = [k for k, size in enumerate(shape) if not self.is_one(size)]
        found: list = [0] * len(shape)
        while old and new and self.same_size(old[0][0], shape[new[0]]):
            found[new.pop(0)] = old.pop(0)[1]
        while old and new and self.same_size(old[-1][0], shape[new[-1]]):
            found[new.pop()] = old.pop()[1]
        if len(old) == 1 and len(new) == 1:
            found[new[0]] = old[0][1]
        elif new:
            for k, part in zip(new, self.moved(old, [shape[k] for k in new]), strict=True):
                found[k] = part
        return tuple(found)

    def moved(self, old: list[tuple], sizes: list) -> list:
        """The indices under `sizes` of a place given as (size, index) pairs; back again it is what it was."""
        origin = self.origins.get(tuple(term_id(index) for _, index in old))
        if origin is not None and len(origin[0]) == len(sizes):
            if all(self.same_size(a, b) for a, b in zip(origin[0], sizes, strict=True)):
                return origin[1]
        given = [z3.IntVal(plain(v)) if isinstance(v, int) else plain(v) for pair in old for v in pair]
        given += [z3.IntVal(v) if isinstance(v, int) else plain(v) for v in sizes]
        made = []
        for k, size in enumerate(sizes):
            part = UNKNOWN[f"place {len(old)} {len(sizes)} {k}", len(given)](*given) if given else z3.IntVal(0)
            self.lemma(part >= 0, part < plain(size))
            made.append(Int(self, part))
        self.kept += [m.term for m in made]
        self.origins[tuple(m.term.get_id() for m in made)] = ([s for s, _ in old], [i for _, i in old])
        return made

    def is_one(self, size) -> bool:
        return self.entails(size == 1)

    def same_size(self, a, b) -> bool:
        return self.entails(a == b)

    def reshaped(self, shape: tuple, wanted: tuple, allowzero: int) -> tuple:
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
        """Of sizes that are not known: whatever shape ONNX's inference makes of them, which both sides must share."""
        given = [z3.IntVal(v) if isinstance(v, int) else plain(v) for v in (*shape, *wanted)]
        made = []
        for k, size in enumerate(wanted):
            whole = Int(self, UNKNOWN[f"size {len(shape)} {len(wanted)} {k}", len(given)](*given))
            self.lemma(whole.term >= 1, z3.Implies(plain(size) > 0, whole.term == plain(size)))
            if k < len(shape):
                self.lemma(z3.Implies(plain(size) == 0, whole.term == plain(shape[k])))
            made.append(whole)
        self.require_same_total(shape, tuple(made))
        return tuple(made)

    def rest_of(self, shape: tuple, sizes: list):
        """The size that is left when the others have taken theirs."""
        old = [size for size in shape if not self.is_one(size)]
        sizes = [size for size in sizes if not self.is_one(size)]
        for size in list(sizes):
            same = next((k for k, other in enumerate(old) if self.same_size(size, other)), None)
            if same is not None:
                sizes.remove(size)
                del old[same]
        if not sizes:
            found = 1
            for size in old:
                found = found * size
            return found
        given = [z3.IntVal(v) if isinstance(v, int) else plain(v) for v in (*old, *sizes)]
        made = Int(self, UNKNOWN[f"rest {len(old)} {len(sizes)}", len(given)](*given))
        self.lemma(made.term >= 1)
        return made

    def require_same_total(self, shape: tuple, other: tuple) -> None:
        old = [size for size in shape if not self.is_one(size)]
        new = [size for size in other if not self.is_one(size)]
        while old and new and self.same_size(old[0], new[0]):
            old, new = old[1:], new[1:]
        while old and new and self.same_size(old[-1], new[-1]):
            old, new = old[:-1], new[:-1]
        if not old or not new:
            for size in old + new:
                self.require(size == 1)
        elif len(old) == 1 and len(new) == 1:
            self.require(old[0] == new[0])
        # otherwise a fact about products of sizes that no proof needs; ONNX's shape inference checks it

    # -- numbers --

    def number(self, value) -> Poly:
        if isinstance(value, Poly):
            return value
        if isinstance(value, Int):
            return Poly(self, (Term(Fraction(1), (), (Size(value.term),)),))
        if isinstance(value, float) and value in IRRATIONAL:
            factor, root = IRRATIONAL[value]
            return self.number(factor) * self.apply("sqrt", self.number(root))
        value = read_float(value) if isinstance(value, float) else Fraction(value)
        return Poly(self, (Term(value, (), ()),) if value else ())

    def known(self, value: Poly) -> Fraction | None:
        return value.number

    def element(self, name: str, index: tuple) -> Poly:
        index = tuple(z3.IntVal(k) if isinstance(k, int) else k.term for k in index)
        return Poly(self, (Term(Fraction(1), (), (Element(name, index),)),))

    def inside(self, pairs, value: Callable) -> Poly:
        claims = []
        for place, size in pairs:
            for claim in (place >= 0, place < size):
                if claim is False:
                    return self.number(0)
                if claim is not True and not self.entails(claim):
                    claims.append(claim.claim)
        if not claims:
            return value()
        return Poly(self, (Term(Fraction(1), (), tuple(map(Inside, claims))),)) * value()

    def total(self, sizes: tuple, body: Callable) -> Poly:
        if not sizes:
            return body(())
        return self.sum(sizes[0], lambda k: self.total(sizes[1:], lambda rest: body((k, *rest))))

    def sum(self, size, body: Callable) -> Poly:
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
                    place = border.place
            middle = self.integer(plain(low) + place)
            ranges[:0] = [(low, high)] if not self.between(low, middle, high) else [(low, middle), (middle, high)]
        return result

    def between(self, low, middle, high) -> bool:
        """Asks (`Fork`) where a border lies if that is open. True: inside the range."""
        if (middle <= low) or (middle >= high):
            raise Unprovable("a border lies outside of its sum")
        return True

    def index_below(self, length):
        return _Index(self, length)

    def fresh(self):
        self.names += 1
        return z3.Int(f"k{self.names}")

    def bind(self, body: Poly, variable, length) -> Poly:
        terms = []
        for term in body.terms:
            if any(atom_mentions(atom, variable) for atom in term.factors):
                terms.append(term._replace(bound=(*term.bound, (variable, plain(length)))))
            else:
                times = self.number(length).terms
                terms += [self.term_product(term, t) for t in times]
        return self.gathered(tuple(terms))

    def greatest(self, sizes: tuple, body: Callable, inside: Callable) -> Poly:
        if all(self.is_one(size) for size in sizes) and not inside((0,) * len(sizes)):
            return body((0,) * len(sizes))
        variables, entered = [], []
        try:
            for size in sizes:
                scope = self.index_below(size)
                variables.append(scope.__enter__())
                entered.append(scope)
            k = tuple(Int(self, v) for v in variables)
            value, pairs = body(k), inside(k)
            claims = [c.claim for place, size in pairs for c in (place >= 0, place < size) if isinstance(c, Truth)]
        except Border as border:
            raise Unprovable("a maximum over parts") from border
        finally:
            for scope in reversed(entered):
                scope.__exit__(None, None, None)
        bound = tuple((v, plain(size)) for v, size in zip(variables, sizes, strict=True))
        claim = z3.And(*claims) if claims else z3.BoolVal(True)
        return self.maximum(bound, claim, value, pairs)

    def maximum(self, bound: tuple, claim, value: Poly, pairs: list) -> Poly:
        """max of max(p, c) is max(max p, c) if there is an index at all; the same for a non-negative number as factor."""
        if len(value.terms) == 1 and not value.terms[0].bound and value.terms[0].coefficient == 1:
            factors = value.terms[0].factors
            if len(factors) == 1 and isinstance(factors[0], Applied) and factors[0].name == "larger":
                free = [p for p in factors[0].arguments if not any(poly_mentions(p, v) for v, _ in bound)]
                rest = [p for p in factors[0].arguments if any(poly_mentions(p, v) for v, _ in bound)]
                if free and rest and self.has_index(bound, claim, pairs):
                    inner = rest[0] if len(rest) == 1 else self.larger_of(rest)
                    return self.larger_of([self.maximum(bound, claim, inner, pairs), *free])
        if not any(poly_mentions(value, v) for v, _ in bound) and self.has_index(bound, claim, pairs):
            return value
        return Poly(self, (Term(Fraction(1), (), (Greatest(bound, claim, value),)),))

    def has_index(self, bound: tuple, claim, pairs: list) -> bool:
        """Whether a window holds an element: the first kernel place that is not before the input."""
        witness = []
        for variable, size in bound:
            place = next((plain(p) for p, _ in pairs if not isinstance(p, int) and mentions(p.term, variable)), None)
            if place is None:
                chosen = z3.IntVal(0)
            else:
                first = z3.simplify(z3.substitute(place, (variable, z3.IntVal(0))))
                chosen = z3.If(first < 0, -first, z3.IntVal(0))
            witness.append((variable, chosen))
            if not self.entails(z3.And(chosen >= 0, chosen < size)):
                return False
        return self.entails(z3.simplify(z3.substitute(claim, *witness))) if witness else True

    def larger(self, a: Poly, b: Poly) -> Poly:
        return self.larger_of([a, b])

    def ordered(self, a: Poly, b: Poly) -> Truth:
        return Truth(self, self.real(a) <= self.real(b))

    def real(self, p: Poly):
        """A number for z3: products are unknown reals, `larger` is what it says."""
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
        for other, real in self.reals:
            if skeleton(term) == skeleton(other) and self.same_term(term, other):
                return real
        plain_element = not term.bound and len(term.factors) == 1 and isinstance(term.factors[0], Element)
        name = f"{term.factors[0].name}{term.factors[0].index}" if plain_element else f"number {len(self.reals)}"
        self.reals.append((term, z3.Real(name)))
        return self.reals[-1][1]

    def same_by_order(self, one: Poly, two: Poly) -> bool:
        """Whether z3 sees that two numbers with maxima are equal."""
        return self.entails(self.real(one) == self.real(two))

    def larger_of(self, parts: list[Poly]) -> Poly:
        flat: list[Poly] = []
        for p in parts:
            one = p.terms[0] if len(p.terms) == 1 else None
            nested = one is not None and one.coefficient == 1 and not one.bound and len(one.factors) == 1
            if nested and isinstance(one.factors[0], Applied) and one.factors[0].name == "larger":
                flat += one.factors[0].arguments
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

    def apply(self, name: str, *arguments: Poly) -> Poly:
        known = arguments[0].number
        if name == "sqrt" and known is not None and known >= 0:
            for root in range(0, 1000):
                if root * root == known:
                    return self.number(root)
        if name == "exp":
            return self.exponential(arguments[0])
        return Poly(self, (Term(Fraction(1), (), (Applied(name, tuple(arguments)),)),))

    def exponential(self, p: Poly) -> Poly:
        """exp(a + b) = exp(a)·exp(b), exp(-a) = 1/exp(a)."""
        result = self.number(1)
        for term in p.terms:
            one = Poly(self, (term._replace(coefficient=abs(term.coefficient)),))
            factor = Poly(self, (Term(Fraction(1), (), (Applied("exp", (one,)),)),))
            result = result * (factor if term.coefficient > 0 else self.inverse(factor))
        return result

    def quotient(self, a: Poly, b: Poly) -> Poly:
        return a * self.inverse(b)

    def inverse(self, p: Poly) -> Poly:
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
        """1 / Σ f·g is 1/f · 1/Σ g for what does not depend on the sum's indices."""
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
        self.note_divisor(p)
        return Poly(self, (Term(Fraction(1), (), (Applied("inverse", (p,)),)),))

    def note_divisor(self, p: Poly) -> None:
        if not self.closed:
            self.divisors.append(p)
        elif not self.is_divisor(p):
            raise Unprovable("the right side divides by what the left side does not")

    def is_divisor(self, p: Poly) -> bool:
        """Whether p is not 0: by itself, or since the left side divides by it."""
        return self.nonzero(p) or any(self.same(p, other) for other in self.divisors)

    def nonzero(self, p: Poly) -> bool:
        """Whether p is a sum of products of what is positive, summed over indices that exist."""
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
        return isinstance(atom, Applied) and atom.name in POSITIVE_FUNCTIONS

    def some_index(self, bound: tuple, claims: list) -> bool:
        """Whether some index meets all claims `place >= 0` and `place < size` (tried: the first not before 0)."""
        witness = []
        for variable, size in bound:
            starts = [z3.IntVal(0)]
            for claim in claims:
                if mentions(claim, variable):
                    for child in (c for c in claim.children() if mentions(c, variable)):
                        at_zero = z3.simplify(z3.substitute(child, (variable, z3.IntVal(0))), som=True)
                        starts += [z3.If(at_zero < 0, -at_zero, z3.IntVal(0)), z3.If(at_zero > 0, at_zero, z3.IntVal(0))]
            own = [c for c in claims if mentions(c, variable)]
            for start in starts:
                met = [z3.substitute(c, (variable, start)) for c in own]
                if self.entails(z3.And(start >= 0, start < size, *met)):
                    witness.append(start)
                    break
            else:
                return False
        return True

    # -- terms --

    def term_product(self, one: Term, two: Term) -> Term:
        ours = {v.get_id() for v, _ in one.bound}
        if any(v.get_id() in ours for v, _ in two.bound):
            two = self.renamed(two)
        return self.cancelled(
            Term(one.coefficient * two.coefficient, one.bound + two.bound, one.factors + two.factors)
        )

    def renamed(self, term: Term) -> Term:
        pairs = [(v, self.fresh()) for v, _ in term.bound]
        factors = tuple(substituted(f, pairs) for f in term.factors)
        return Term(term.coefficient, tuple((n, s) for (_, n), (_, s) in zip(pairs, term.bound, strict=True)), factors)

    def cancelled(self, term: Term) -> Term:
        """p · (1/p) is 1 where p is not 0; √n · √n is n; what is said twice counts once."""
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
        roots = [f for f in term.factors if isinstance(f, Applied) and f.name == "sqrt" and f.arguments[0].number is not None]
        for one, other in itertools.combinations(roots, 2):
            if one.arguments[0].number == other.arguments[0].number:
                rest = list(term.factors)
                rest.remove(one)
                rest.remove(other)
                return self.cancelled(Term(term.coefficient * one.arguments[0].number, term.bound, tuple(rest)))
        for place, factor in enumerate(term.factors):
            if isinstance(factor, Applied) and factor.name == "inverse" and len(factor.arguments[0].terms) == 1:
                rest = term.factors[:place] + term.factors[place + 1 :]
                left = self.without(term._replace(factors=rest), factor.arguments[0].terms[0])
                if left is not None and self.is_divisor(factor.arguments[0]):
                    return self.cancelled(left)
        return term

    def without(self, term: Term, part: Term) -> Term | None:
        """The term divided by a part of it, if it is a product of the two."""
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
        for place, factor in enumerate(factors):
            if self.same_atom(factor, wanted):
                del factors[place]
                return True
        return False

    def gathered(self, terms: tuple[Term, ...]) -> Poly:
        """Equal terms become one. Cheap: only terms that look alike are compared."""
        if len(terms) > MAX_TERMS:
            raise Unprovable("a number has too many terms")
        groups: dict = {}
        for term in terms:
            alike = groups.setdefault(skeleton(term), [])
            for place, other in enumerate(alike):
                if self.same_term(term, other):
                    alike[place] = other._replace(coefficient=other.coefficient + term.coefficient)
                    break
            else:
                alike.append(term)
        return Poly(self, tuple(t for alike in groups.values() for t in alike if t.coefficient))

    def same(self, one: Poly, two: Poly) -> bool:
        return not (one - two).terms

    def same_term(self, one: Term, two: Term) -> bool:
        """Whether the terms are equal but for their coefficients."""
        if len(one.bound) != len(two.bound):
            return False
        for order in itertools.permutations(two.bound):
            if not all(self.entails(s == t) for (_, s), (_, t) in zip(one.bound, order, strict=True)):
                continue
            pairs = [(old, new) for (old, _), (new, _) in zip(order, one.bound, strict=True)]
            self.enter(one.bound)
            rest = list(one.factors)
            same = all(self.take(rest, substituted(f, pairs)) for f in two.factors)
            self.leave()
            if same:
                return True
        return False

    def enter(self, bound: tuple) -> None:
        self.solver.push()
        self.versions.append(self.versions[-1])
        self.told.append({})
        for v, s in bound:
            self.assume(z3.And(v >= 0, v < s))

    def leave(self) -> None:
        self.solver.pop()
        self.versions.pop()
        self.kept.append(self.told[-1])
        self.lemma(*self.told.pop().values())  # they hold outside, too

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
        for order in itertools.permutations(two.bound) if len(bound) == len(two.bound) else ():
            if all(self.entails(s == t) for (_, s), (_, t) in zip(bound, order, strict=True)):
                pairs = [(old, new) for (old, _), (new, _) in zip(order, bound, strict=True)]
                self.enter(bound)
                same = self.entails(claim == z3.substitute(two.claim, *pairs) if pairs else claim == two.claim)
                same = same and self.same(body, substituted_poly(two.body, pairs))
                self.leave()
                if same:
                    return True
        return False

    def same_index(self, one: tuple, two: tuple) -> bool:
        open_pairs = [a == b for a, b in zip(one, two, strict=True) if not a.eq(b)]
        return not open_pairs or self.entails(z3.simplify(z3.And(*open_pairs)))


def read_float(value: float) -> Fraction:
    """The simple fraction whose nearest float it is, else the decimal."""
    simple = Fraction(value).limit_denominator(10_000)
    return simple if float(simple) == value else Fraction(str(value))


class _Index:
    """A bound index 0 ≤ k < length, inside a `with`."""

    def __init__(self, world: Symbols, length):
        self.world, self.length = world, length

    def __enter__(self):
        variable = self.world.fresh()
        self.world.enter(((variable, plain(self.length)),))
        self.world.bound.append((variable, plain(self.length)))
        return variable

    def __exit__(self, *failure) -> None:
        self.world.bound.pop()
        self.world.leave()


class _Unknown(dict):
    """Functions from integers to an integer of which nothing is known, by (name, number of arguments)."""

    def __missing__(self, key):
        name, count = key
        self[key] = z3.Function(name, *[z3.IntSort()] * count, z3.IntSort())
        return self[key]


UNKNOWN = _Unknown()


def plain_claim(claim):
    return claim.claim if isinstance(claim, Truth) else claim


def monomials(term) -> list[tuple]:
    """A linear term as (coefficient, unknowns that are multiplied) pairs."""
    if z3.is_int_value(term):
        return [(term.as_long(), ())]
    if z3.is_add(term):
        return [pair for child in term.children() for pair in monomials(child)]
    if z3.is_mul(term) and z3.is_int_value(term.arg(0)):
        return [(term.arg(0).as_long() * c, factors) for c, factors in monomials(term.arg(1))]
    if z3.is_app(term) and term.decl().name() == "product":
        return [(1, tuple(f for child in term.children() for _, fs in monomials(child) for f in fs))]
    return [(1, (term,))]


def term_id(value):
    return ("number", value) if isinstance(value, int) else value.term.get_id()


def mentions(term, variable) -> bool:
    if isinstance(term, int | bool):
        return False
    if term.get_id() == variable.get_id():
        return True
    return any(mentions(child, variable) for child in term.children())


def poly_mentions(p: Poly, variable) -> bool:
    return any(
        any(atom_mentions(f, variable) for f in t.factors) or any(mentions(s, variable) for _, s in t.bound)
        for t in p.terms
    )


def atom_mentions(atom, variable) -> bool:
    match atom:
        case Element(index=index):
            return any(mentions(k, variable) for k in index)
        case Size(term):
            return mentions(term, variable)
        case Inside(claim):
            return mentions(claim, variable)
        case Applied(arguments=arguments):
            return any(poly_mentions(p, variable) for p in arguments)
        case Greatest(claim=claim, body=body):
            return mentions(claim, variable) or poly_mentions(body, variable)
    raise TypeError(atom)


def substituted(atom, pairs: list):
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
            return Greatest(bound, z3.substitute(claim, *pairs), substituted_poly(body, pairs))
    raise TypeError(atom)


def substituted_poly(p: Poly, pairs: list) -> Poly:
    return Poly(p.world, tuple(t._replace(factors=tuple(substituted(f, pairs) for f in t.factors)) for t in p.terms))


def skeleton(term: Term) -> tuple:
    """What equal terms have in common."""
    names = [getattr(f, "name", type(f).__name__) for f in term.factors]
    return len(term.bound), tuple(sorted(names))
