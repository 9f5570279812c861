"""Implement the algebra of formal numbers for rlflow.proving.semantics: sizes are integers, elements are unknowns.

A number is Σ coefficient · Π atom^exponent with exact coefficients. An atom is an element, or a function of numbers.
Numbers with equal normal forms are equal for all values of the elements: nothing is sampled. Some laws hold only if a
divisor is not 0 or the argument of a square root is not negative. The prover uses these laws for divisors and roots
that the left side contains, and for numbers that are known to be positive.
"""

import itertools
from collections.abc import Callable, Iterable
from fractions import Fraction
from math import isqrt
from operator import index

from rlflow.proving.decisions import Fork, Unprovable
from rlflow.proving.numbers import Invalid, Numbers, all_within
from rlflow.proving.polynomials import IRRATIONAL, read_float

MAX_TERMS = 4000  # largest number of terms of one number
GRID = (-1, 0, Fraction(1, 2), 1, 2)  # values tried for an unknown number that a condition compares
HALF = Fraction(1, 2)
Monomial = tuple[tuple[int, Fraction], ...]  # (atom, exponent) pairs, sorted by atom


class Formula:
    """A sum of products in normal form: a map from monomials to nonzero coefficients."""

    __slots__ = ("world", "terms")
    __hash__ = None

    def __init__(self, world: "Formal", terms: dict[Monomial, Fraction]):
        self.world, self.terms = world, terms

    @property
    def number(self) -> Fraction | None:
        """The value if the number is a constant; None if it contains an atom."""
        return self.terms.get((), 0) if not self.terms or (len(self.terms) == 1 and () in self.terms) else None

    @property
    def key(self) -> frozenset:
        """The set of (monomial, coefficient) pairs, a hashable form of the number."""
        return frozenset(self.terms.items())

    def times(self, factor: Fraction) -> "Formula":
        """Return the number multiplied by a known factor."""
        return Formula(self.world, {m: simple(c * factor) for m, c in self.terms.items()})

    def __add__(self, other) -> "Formula":
        return self.world.sum_of((self, self.world.number(other)))

    def __neg__(self) -> "Formula":
        return Formula(self.world, {m: -c for m, c in self.terms.items()})

    def __sub__(self, other) -> "Formula":
        return self + (-self.world.number(other))

    def __rsub__(self, other) -> "Formula":
        return -self + other

    def __mul__(self, other) -> "Formula":
        return self.world.product_of(self, self.world.number(other))

    def __truediv__(self, other) -> "Formula":
        return self.world.quotient(self, self.world.number(other))

    def __rtruediv__(self, other) -> "Formula":
        return self.world.quotient(self.world.number(other), self)

    __radd__, __rmul__ = __add__, __mul__

    def __eq__(self, other) -> bool:
        return self.world.asked_equal(self - self.world.number(other))

    def __le__(self, other) -> bool:
        return self.world.asked(self - self.world.number(other)) <= 0

    def __lt__(self, other) -> bool:
        return self.world.asked(self - self.world.number(other)) < 0

    def __ge__(self, other) -> bool:
        return not self < other

    def __gt__(self, other) -> bool:
        return not self <= other


class Formal(Numbers):
    """The algebra of formal numbers.

    Args:
      values: (tensor name, index) → value, for the elements whose values the decisions of the case fix.
      spend: a function that is called with the number of terms that an operation multiplies or adds.
    """

    def __init__(self, values: dict[tuple, Fraction], spend: Callable[[int], None]):
        super().__init__(self.number)
        self.values, self.spend = values, spend
        self.atoms: dict[tuple, int] = {}
        self.names: list[tuple] = []  # atom → (kind, its parts)
        self.elements: dict[tuple, Formula] = {}
        self.products: dict[tuple, tuple] = {}
        self.defined: set[tuple[str, int]] = set()  # (kind, atom) of the left side's divisors, roots and logarithms
        self.units: dict[int, Fraction] = {}
        self.closed = False  # True once the left side is read and `defined` is complete

    # -- sums and products --

    def number(self, value) -> Formula:
        """Return a constant as a Formula. A float becomes the simple fraction or root whose nearest float it is."""
        if isinstance(value, Formula):
            return value
        if isinstance(value, float):
            if value in IRRATIONAL:
                factor, root = IRRATIONAL[value]
                return self.root(self.number(root)).times(factor)
            value = read_float(value)
        value = simple(Fraction(value)) if isinstance(value, Fraction | str) else index(value)
        return Formula(self, {(): value} if value else {})

    def known(self, value: Formula) -> Fraction | None:
        """Return the value of a constant number; None if the number contains an atom."""
        return value.number

    def element(self, name: str, index: tuple) -> Formula:
        """Return an element of a tensor: its value if the case fixes one, else an unknown.

        Args:
          name: the name of the tensor.
          index: the index of the element.
        """
        if (name, index) not in self.elements:
            known = self.values.get((name, index))
            made = self.single(self.atom("element", name, index)) if known is None else self.number(known)
            self.elements[name, index] = made
        return self.elements[name, index]

    def atom(self, *name) -> int:
        """Return the id of the atom with this name, its position in `names`; a new name gets a new id."""
        if name not in self.atoms:
            self.atoms[name] = len(self.names)
            self.names.append(name)
        return self.atoms[name]

    def single(self, atom: int, exponent=1) -> Formula:
        """Return a power of the atom with this id as one monomial that is not multiplied out."""
        return Formula(self, {((atom, exponent),): 1})

    def sum_of(self, parts: Iterable[Formula]) -> Formula:
        """Return the sum of any number of Formulas in normal form."""
        result: dict[Monomial, Fraction] = {}
        work = 0
        for part in parts:
            work += 1 + len(part.terms)
            for monomial, coefficient in part.terms.items():
                result[monomial] = result.get(monomial, 0) + coefficient
        self.spend(work)
        return self.made(result)

    def made(self, terms: dict[Monomial, Fraction]) -> Formula:
        """Return the number with these terms, without zero coefficients.

        Raises:
          Unprovable: if there are more than MAX_TERMS terms.
        """
        if len(terms) > MAX_TERMS:
            raise Unprovable("a number has too many terms")
        return Formula(self, {m: c if c.__class__ is int else simple(c) for m, c in terms.items() if c})

    def product_of(self, one: Formula, two: Formula) -> Formula:
        self.spend(1 + len(one.terms) * len(two.terms))
        result: dict[Monomial, Fraction] = {}
        for m, c in one.terms.items():
            for n, d in two.terms.items():
                for monomial, coefficient in self.products.get((m, n)) or self.monomials(m, n):
                    result[monomial] = result.get(monomial, 0) + c * d * coefficient
        return self.made(result)

    def monomials(self, one: Monomial, two: Monomial) -> tuple:
        """Return the product of two monomials as a sum of (monomial, coefficient) pairs.

        Whole powers of primes and whole positive powers of sums are multiplied out.
        """
        key = (one, two)
        if key not in self.products:
            powers = dict(one)
            for atom, exponent in two:
                powers[atom] = powers.get(atom, 0) + exponent
            rest = self.number(1)
            for atom, exponent in powers.items():
                kind, *content = self.names[atom]
                whole = exponent // 1
                if kind == "prime" and whole:
                    rest = rest.times(Fraction(content[0]) ** whole)
                elif kind == "sum" and whole > 0:
                    for _ in range(whole):
                        rest = rest * content[0].formula
                else:
                    continue
                powers[atom] -= whole
            monomial = tuple(sorted((a, e) for a, e in powers.items() if e))
            self.products[key] = tuple(
                (Formula(self, {monomial: 1}) * rest).terms.items() if rest.number != 1 else ((monomial, 1),)
            )
        return self.products[key]

    def total(self, sizes: tuple, body: Callable) -> Formula:
        """Return the sum of `body(k)` over all indices k below the sizes (one integer per axis)."""
        return self.sum_of(body(k) for k in itertools.product(*map(range, sizes)))

    # -- functions --

    def function_atom(self, name: str, *arguments: Formula) -> int:
        """Return the id of the atom name(arguments). Equal arguments give the same id."""
        contents = tuple(map(_Content, arguments))
        if (name, *contents) not in self.atoms:
            for atom, (other, *known) in enumerate(self.names):
                if other == name and all(self.same_content(*pair) for pair in zip(contents, known, strict=True)):
                    self.atoms[name, *contents] = atom
                    break
        return self.atom(name, *contents)

    def same_content(self, one: "_Content", two: "_Content") -> bool:
        """Return True if two arguments of functions are proved equal."""
        may_be = one == two or self.has_other_forms(one.formula) or self.has_other_forms(two.formula)
        return may_be and self.same(one.formula, two.formula)

    def has_other_forms(self, p: Formula) -> bool:
        """Return True if a number with another normal form may be equal: p contains a maximum or the inverse of a sum.
        """
        pairs = (pair for monomial in p.terms for pair in monomial)
        return any(self.is_larger(a) or (e < 0 and self.names[a][0] == "sum") for a, e in pairs)

    def apply(self, name: str, *arguments: Formula) -> Formula:
        """Return the value of a function of numbers, with roots, exponentials and integer quotients simplified.

        Args:
          name: the name of the function, such as "sqrt" or "exp".
          arguments: the arguments of the function.
        """
        if name == "sqrt":
            return self.root(arguments[0])
        if name == "exp":
            return Formula(self, {tuple(sorted(self.power(m, c) for m, c in arguments[0].terms.items())): 1})
        if name == "integer quotient":
            whole, by = (p.number for p in arguments)
            if by == 0:
                raise Invalid
            if whole is not None and by is not None:
                return self.number(int(Fraction(whole) / Fraction(by)))
            if by is None:
                self.note("divisor", self.function_atom("sum", arguments[1]))
        if name == "log":
            self.note("log", self.function_atom("sum", arguments[0]))
        return self.single(self.function_atom(name, *arguments))

    def power(self, monomial: Monomial, coefficient: Fraction) -> tuple[int, Fraction]:
        """Return exp(coefficient · monomial) as (atom, exponent).

        The atom is exp(u · monomial), where u is the absolute value of the first coefficient that this monomial had.
        """
        atom = self.atom("exp", monomial)
        unit = self.units.setdefault(atom, abs(coefficient))
        return atom, simple(Fraction(coefficient) / unit)

    def quotient(self, a: Formula, b: Formula) -> Formula:
        return a * self.inverse(b)

    def inverse(self, p: Formula) -> Formula:
        """Return 1/p. The inverse of a product is a product of inverses; a sum becomes an atom with exponent -1.

        Raises:
          Invalid: if p is 0.
          Unprovable: if only the right side of the rule divides by p, and p is not known to be positive.
        """
        if not p.terms:
            raise Invalid
        scale, common, rest = self.primitive(p)
        powers = [(a, -e) for a, e in common]
        if rest.number is None:
            powers.append((self.function_atom("sum", rest), -1))
        for atom, _ in powers:
            self.note("divisor", atom)
        return Formula(self, dict(self.monomials(tuple(sorted(powers)), ()))).times(1 / Fraction(scale))

    def primitive(self, p: Formula) -> tuple[Fraction, Monomial, Formula]:
        """Return (c, m, q) with p = c·m·q: a constant, a monomial, and a sum.

        The terms of q have no atom in common, and its leading coefficient is 1.
        """
        powers: dict[int, list] = {}
        for atom, exponent in (pair for monomial in p.terms for pair in monomial):
            powers.setdefault(atom, []).append(exponent)
        least = {atom: min(result if len(result) == len(p.terms) else (0, *result)) for atom, result in powers.items()}
        common = tuple(sorted((a, e) for a, e in least.items() if e))
        rest = p * Formula(self, {tuple((a, -e) for a, e in common): 1}) if common else p
        scale = rest.terms[max(rest.terms)]
        return scale, common, rest.times(1 / Fraction(scale))

    def root(self, p: Formula) -> Formula:
        """Return √p. Positive factors are moved out of the root; the remaining number is an atom with exponent ½."""
        if p.number is not None:
            return self.root_of_number(p.number)
        scale, common, rest = self.primitive(p)
        outside = tuple((a, e * HALF) for a, e in common if self.positive(a))
        inside = tuple((a, e) for a, e in common if not self.positive(a))
        left = (rest * Formula(self, {inside: 1})).times(1 if scale > 0 else -1)
        result = self.root_of_number(abs(scale)) * Formula(self, dict(self.monomials(outside, ())))
        if left.number == 1:
            return result
        (monomial, coefficient), *others = left.terms.items()
        if not others and coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
            atom = monomial[0][0]
        else:
            atom = self.function_atom("sum", left)
        self.note("root", atom)
        return result * self.single(atom, HALF)

    def root_of_number(self, value: Fraction) -> Formula:
        """Return the square root of a constant as a product of a fraction and the roots of primes, which are atoms.

        Raises:
          Invalid: if the constant is negative.
        """
        if value < 0:
            raise Invalid
        value = Fraction(value)
        left, outside, powers = value.numerator * value.denominator, Fraction(1, value.denominator), []
        for prime in itertools.chain(range(2, 1000), (isqrt(left), left)):
            while prime > 1 and left % (prime * prime) == 0:
                left, outside = left // (prime * prime), outside * prime
            if prime > 1 and left % prime == 0:
                left = left // prime
                powers.append((self.atom("prime", prime), HALF))
        return Formula(self, {tuple(sorted(powers)): simple(outside)} if value else {})

    def positive(self, atom: int) -> bool:
        """Return True if the atom is known to be positive."""
        kind, *content = self.names[atom]
        if kind == "sum":
            terms = content[0].formula.terms
            return all(c > 0 and all(self.positive(a) for a, _ in m) for m, c in terms.items())
        return kind in ("exp", "prime")

    def note(self, what: str, atom: int) -> None:
        """Record that the left side divides by an atom or takes its root or logarithm.

        On the right side, check that the left side contains the same operation, which is then defined.

        Args:
          what: the operation: "divisor", "root" or "log".
          atom: the id of the atom.

        Raises:
          Unprovable: if only the right side contains the operation and the atom may not be positive.
        """
        if (what, atom) in self.defined or self.positive(atom):
            return
        if self.closed:
            raise Unprovable(f"the right side has a {what} that the left side does not have")
        self.defined.add((what, atom))

    # -- equality --

    def same(self, one: Formula, two: Formula) -> bool:
        """Return True if two numbers are proved equal.

        Their difference is multiplied by its divisors; it must then be 0, or a sum of maxima that is 0 (`same_maxima`).
        """
        difference = one - two
        while difference.terms:
            powers: dict[int, Fraction] = {}
            for atom, exponent in (pair for monomial in difference.terms for pair in monomial):
                if exponent < 0 and self.names[atom][0] == "sum":
                    powers[atom] = min(powers.get(atom, 0), exponent // 1)
            if not powers:
                return self.same_maxima(difference)
            atom = min(powers)
            difference = difference * self.single(atom, -powers[atom])
        return True

    def same_maxima(self, difference: Formula) -> bool:
        """Return True if a sum with maxima of both signs is proved to be 0.

        The positive and the negative maxima are each written as one maximum by max(a, b) + max(c, d) = max(a + c, …).
        """
        maxima = {m: c for m, c in difference.terms.items() if len(m) == 1 and m[0][1] == 1 and self.is_larger(m[0][0])}
        rest = Formula(self, {m: c for m, c in difference.terms.items() if m not in maxima})
        if not any(c > 0 for c in maxima.values()) or not any(c < 0 for c in maxima.values()):
            return False
        sides = [[rest], [self.number(0)]]
        for monomial, coefficient in maxima.items():
            side, parts = 0 if coefficient > 0 else 1, self.parts_of(monomial[0][0])
            sides[side] = _without_copies([p + q.times(abs(coefficient)) for p in sides[side] for q in parts])
        return {p.key for p in sides[0]} == {p.key for p in sides[1]}

    # -- maxima --

    def is_larger(self, atom: int) -> bool:
        """Return True if the atom is a maximum."""
        return self.names[atom][0] == "larger"

    def parts_of(self, atom: int) -> list[Formula]:
        """Return the arguments of an atom that is a maximum."""
        return [Formula(self, dict(key)) for key in self.names[atom][1]]

    def larger(self, a: Formula, b: Formula) -> Formula:
        return self.largest([a, b])

    def greatest(self, sizes: tuple, body: Callable, inside: Callable) -> Formula:
        """Return the maximum of `body(k)` over indices k below the sizes whose positions lie inside.

        Args:
          sizes: the size of each axis.
          body: a function from an index to a number.
          inside: a function from an index to (position, size) pairs. The index counts if 0 ≤ position < size holds for
            all pairs; if no index counts, the result is the atom "nothing".
        """
        result = [body(k) for k in itertools.product(*map(range, sizes)) if all_within(inside(k))]
        return self.largest(result) if result else self.single(self.atom("nothing"))

    def largest(self, parts: list[Formula]) -> Formula:
        """Return the maximum of numbers, with common summands and a positive factor moved out of the maximum."""
        flat, nothing = [q for p in parts for q in self.flattened(p)], self.single(self.atom("nothing")).key
        kept = _without_copies([p for p in flat if p.key != nothing] or flat[:1])
        if len(kept) == 1:
            return kept[0]
        monomials = {m: None for p in kept for m in p.terms}
        shared = self.made({m: min(p.terms.get(m, 0) for p in kept) for m in monomials})
        kept = [p - shared for p in kept]
        if any(self.maximum_in(p) is not None for p in kept):
            return shared + self.largest(kept)
        scale = max(c for p in kept for c in p.terms.values())
        key = frozenset(p.times(1 / Fraction(scale)).key for p in kept)
        return shared + self.single(self.atom("larger", key)).times(scale)

    def maximum_in(self, p: Formula) -> Monomial | None:
        """Return the monomial of a maximum that p contains with a positive coefficient, or None."""
        return next(
            (m for m, c in p.terms.items() if c > 0 and len(m) == 1 and m[0][1] == 1 and self.is_larger(m[0][0])), None
        )

    def flattened(self, p: Formula) -> list[Formula]:
        """Return numbers whose maximum equals p, found with max(a, b) + c = max(a + c, b + c)."""
        monomial = self.maximum_in(p)
        if monomial is None:
            return [p]
        factor = p.terms[monomial]
        rest = Formula(self, {m: c for m, c in p.terms.items() if m != monomial})
        return [r for q in self.parts_of(monomial[0][0]) for r in self.flattened(rest + q.times(factor))]

    # -- comparisons in conditions --

    def asked(self, p: Formula) -> Fraction:
        """Return the value of a number that a condition compares.

        If the number contains an element, raise a Fork that gives this element each value in GRID.
        """
        if p.number is None:
            name, index = self.one_element(p)
            raise Fork([(("value", name, index), value) for value in GRID])
        return p.number

    def asked_equal(self, p: Formula) -> bool:
        """Return True if p is 0. If p = a·x + b for an element x, decide in this case if x = -b/a.

        Raises:
          Unprovable: if p is neither a constant nor of this form.
        """
        if p.number is not None:
            return p.number == 0
        name, index = self.one_element(p)
        if (
            len(p.terms) > 2
            or ((self.atom("element", name, index), 1),) not in p.terms
            or (len(p.terms) == 2 and () not in p.terms)
        ):
            raise Unprovable("a condition compares numbers that are not known")
        value = simple(Fraction(-p.terms.get((), 0)) / p.terms[(self.atom("element", name, index), 1),])
        return self.pick(("equal", name, index, value), (True, False))

    def one_element(self, p: Formula) -> tuple[str, tuple]:
        """Return (tensor name, index) of the first element in p; raise Unprovable if p contains no element."""
        for atom, _ in (pair for monomial in p.terms for pair in monomial):
            if self.names[atom][0] == "element":
                return self.names[atom][1:]
        raise Unprovable("a condition compares numbers that are not known")


class _Content:
    """A number as a part of an atom's name. Equality and hash depend on the number's normal form."""

    __slots__ = ("formula", "key")

    def __init__(self, formula: Formula):
        self.formula, self.key = formula, formula.key

    def __eq__(self, other) -> bool:
        return self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def simple(value: Fraction) -> Fraction | int:
    """Return a whole fraction as an int, because integers are many times faster."""
    return value.numerator if value.denominator == 1 else value


def _without_copies(parts: list[Formula]) -> list[Formula]:
    """Drop each number that another number equals or exceeds by a constant."""
    result: dict[frozenset, Formula] = {}
    for p in parts:
        key = frozenset((m, c) for m, c in p.terms.items() if m)
        if key not in result or p.terms.get((), 0) > result[key].terms.get((), 0):
            result[key] = p
    return list(result.values())
