"""Reason about unknown sizes and indices with z3: assumptions, products, and positions in row-major order.

`Claims` holds the assumptions of one case and asks z3 what follows from them. A comparison that the assumptions do not
decide is either a border inside a sum, where the sum is then split (`Border`), or a `Fork`, whose options are tried one
by one. `Integers` adds products and quotients: z3 has no theory of products of unknowns, so they are functions with
the laws that proofs need. `Reshapes` converts an index under one shape to the index under another.
"""

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

RLIMIT = 2_000_000  # z3's unit of work for one query: a limit in seconds would depend on the machine


class Claims:
    """The assumptions of one case: z3 claims that hold throughout, or inside the currently bound indices.

    Attributes:
      obligations: (operator, claim) pairs that the right side requires; None while the left side is read.
      operator: the operator that is read now.
      refused: operators whose misfits the planner refuses.
      indices: the names of the symbols that are indices of elements.
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
        """Add a claim to the assumptions."""
        self.solver.add(plain_claim(claim))
        self.counter += 1
        self.versions[-1] = self.counter

    def feasible(self) -> bool:
        """Return False if z3 proves that the assumptions contradict each other."""
        self.budget.spend()
        return self.solver.check() != z3.unsat

    def entails(self, claim) -> bool:
        """Return True if z3 proves a claim from the assumptions."""
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
        """Decide a comparison. Raise a Border if it depends on a bound index, and a Fork if it is open otherwise."""
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
        """Return the comparison of a difference with 0: a bool if it is known at sight, else a Truth.

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
        """Return the first position in the range of `variable` at which the comparison has another answer.

        Args:
          truth: a comparison that is linear in the variable, with slope 1 or -1.
          variable: a bound index.
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
        """Take a requirement of an operator on its inputs.

        On the left side the requirement is assumed. On the right side it becomes an obligation.

        Raises:
          Infeasible: if the requirement is false and the case therefore cannot occur.
          Unprovable: if it is false and the planner would not refuse the match.
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
        """Assume laws of uninterpreted functions, each of them once."""
        for claim in claims:
            if not any(claim.get_id() in laws for laws in self.laws):
                self.laws[-1][claim.get_id()] = claim
                self.assume(claim)

    # -- indices --

    def index_below(self, length):
        """Return a context manager that binds a new index 0 ≤ k < length."""
        return _Index(self, length)

    def fresh(self):
        """Return a new index symbol."""
        self.names += 1
        return self.index_symbol(f"k{self.names}")

    def index_symbol(self, name: str):
        """Return the z3 symbol of an index with the given name."""
        self.indices.add(name)
        return z3.Int(name)

    def enter(self, bound: tuple) -> None:
        """Open a scope in which the given (index, size) pairs are bound."""
        self.solver.push()
        self.versions.append(self.versions[-1])
        self.laws.append({})
        for v, s in bound:
            self.assume(z3.And(v >= 0, v < s))

    def leave(self) -> None:
        """Close the innermost scope and keep its laws."""
        self.solver.pop()
        self.versions.pop()
        self.kept.append(self.laws[-1])
        self.lemma(*self.laws.pop().values())  # The laws hold outside the scope, too.


class _Index:
    """A context manager that binds an index 0 ≤ k < length and yields its z3 symbol."""

    def __init__(self, world: Claims, length):
        self.world, self.length = world, length

    def __enter__(self):
        variable = self.world.fresh()
        self.world.enter(((variable, plain(self.length)),))
        self.world.bound.append((variable, plain(self.length)))
        return variable

    def __exit__(self, *failure) -> None:
        self.world.bound.pop()
        self.world.leave()


class Integers(Claims):
    """Unknown sizes and indices with products and quotients.

    Attributes:
      known_products: (a, b, a · b) triples, by the id of the product.
      definitions: (symbol, term it equals) pairs.
      symbols: the z3 symbols of sizes, by name.
      divided_by: the divisors so far, by id.
      defined: equations of the uninterpreted functions, used only to search for counterexamples.
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
        """Add a claim. Outside all scopes, solve its equations for symbols, too."""
        super().assume(claim)
        if len(self.versions) == 1:
            self.define(plain_claim(claim))

    def define(self, claim) -> None:
        """Solve an equation for a symbol and replace the symbol from now on, so that products of it are known."""
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
        """Record the definition of a symbol and rewrite older definitions and products with it."""
        self.definitions.append((symbol, rest))
        for k, (old, known) in enumerate(self.definitions):
            if mentions(known, symbol):
                self.definitions[k] = (old, self.rebuilt(z3.substitute(known, (symbol, rest))))
        for a, b, made in list(self.known_products.values()):
            if mentions(a, symbol) or mentions(b, symbol):
                self.lemma(made == plain(self.product(self.integer(a), self.integer(b))))

    # -- integers --

    def rebuilt(self, term, done: dict | None = None):
        """Multiply out the products of a term again, after a substitution."""
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
        """Return the unknown size of a name.

        Args:
          name: the name; the same name gives the same size.
          least: the smallest possible value; None for no bound.
        """
        if name not in self.symbols:
            self.symbols[name] = z3.Int(name)
            if least is not None:
                self.assume(self.symbols[name] >= least)
        return self.integer(self.symbols[name])

    def choose(self, condition, yes, no):
        """Return `yes` if the condition holds, else `no`, without splitting the case.

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
        """Return the broadcast size of two sizes: they are equal, or one of them is 1."""
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
        """Return the product of unknowns, multiplied in one fixed order."""
        first, *rest = sorted(factors, key=sorting_key) or [z3.IntVal(1)]
        for other in rest:
            first = self.product_of(first, other)
        return first

    def product_of(self, a, b):
        """Return the uninterpreted product of two z3 terms and assume its laws."""
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
        """Return a // b for b ≥ 1. Terms of `a` that b divides at sight are divided."""
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
        """Return (e, r) with a = e·b + r, where e holds the terms that b divides at sight."""
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
        """Return True if a comparison is entailed. Multiples of it by earlier divisors are tried, too."""
        for b in self.divided_by.values():
            d = self.integer(claim.difference)
            multiple = term_of(self.product(d, b))
            self.lemma(z3.Implies(z3.And(plain(d) >= 1, b.term >= 1), multiple >= b.term))
            self.lemma(z3.Implies(z3.And(plain(d) <= -1, b.term >= 1), multiple <= -b.term))
        return self.entails(claim)

    def quotient_of(self, a, b) -> Int:
        """Return an unknown q with a - b < q · b ≤ a; for sizes a symbol, so that an equation can define it."""
        if self.is_size(a) and self.is_size(b):
            made = self.symbol(f"({a.sexpr()}) // ({b.sexpr()})", None)
        else:
            made = Int(self, a / b if z3.is_int_value(b) else UNKNOWN["quotient", 2](a, b))
        self.defined.append(term_of(made) == a / b)
        back = plain(made * self.integer(b))
        self.lemma(back <= a, a < back + b, z3.Implies(a >= 0, term_of(made) >= 0))
        return made

    def is_size(self, term) -> bool:
        """Return True if a term consists of symbols of sizes and of no index."""
        if term.decl().kind() == z3.Z3_OP_ITE:  # A conditional may be large, and no equation is solved for it.
            return False
        return term.decl().name() not in self.indices and all(map(self.is_size, term.children()))


class Position(NamedTuple):
    """A position in row-major order, kept as an index under a shape."""

    shape: tuple
    index: tuple


class Reshapes(Integers):
    """Integers, and positions in row-major order that are read under another shape.

    Attributes:
      origins: ids of converted indices → the (sizes, indices) that they were converted from.
    """

    def __init__(self, assumptions, budget: Budget):
        self.origins: dict = {}
        super().__init__(assumptions, budget)

    def position(self, shape: tuple, index: tuple) -> Position:
        """Return the row-major position of an index under a shape."""
        return Position(shape, index)

    def index(self, position: Position, shape: tuple) -> tuple:
        """Convert a position to the index under another shape. Equal sizes at both ends keep their indices."""
        old = [pair for pair in zip(position.shape, position.index, strict=True) if not self.is_one(pair[0])]
        new = [k for k, size in enumerate(shape) if not self.is_one(size)]
        result: list = [0] * len(shape)
        while old and new and self.same_size(old[0][0], shape[new[0]]):
            result[new.pop(0)] = old.pop(0)[1]
        while old and new and self.same_size(old[-1][0], shape[new[-1]]):
            result[new.pop()] = old.pop()[1]
        if len(old) == 1 and len(new) == 1:
            result[new[0]] = old[0][1]
        elif new:
            for k, part in zip(new, self.moved(old, [shape[k] for k in new]), strict=True):
                result[k] = part
        return tuple(result)

    def moved(self, old: list[tuple], sizes: list) -> list:
        """Return the indices under `sizes` of a position. Converting them back gives the original indices.

        Args:
          old: (size, index) pairs of the position.
          sizes: the sizes of the new shape.
        """
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
        """Return the shape that Reshape makes.

        Args:
          shape: the shape of the input.
          wanted: the sizes of the second input; 0 copies a size and -1 stands for the rest.
          allowzero: the attribute of that name; unused here, since sizes are at least 1.
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
        """Return the output shape for unknown wanted sizes: uninterpreted sizes that both sides of a rule share."""
        given = [z3.IntVal(v) if isinstance(v, int) else plain(v) for v in (*shape, *wanted)]
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
        """Return the quotient of the total size by the given sizes, the value of -1 in Reshape."""
        old = [size for size in shape if not self.is_one(size)]
        sizes = [size for size in sizes if not self.is_one(size)]
        for size in list(sizes):
            same = next((k for k, other in enumerate(old) if self.same_size(size, other)), None)
            if same is not None:
                sizes.remove(size)
                del old[same]
        if not sizes:
            result = 1
            for size in old:
                result = result * size
            return result
        given = [z3.IntVal(v) if isinstance(v, int) else plain(v) for v in (*old, *sizes)]
        made = Int(self, UNKNOWN[f"rest {len(old)} {len(sizes)}", len(given)](*given))
        self.lemma(made.term >= 1)
        return made

    def require_same_total(self, shape: tuple, other: tuple) -> None:
        """Require that two shapes have equally many elements."""
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
