"""What is assumed of a case, and what follows from it: questions to z3.

A comparison that the assumptions do not decide is either a border inside a sum, which is then split there, or a `Fork`
for whoever runs the proof: he tries both.
"""

import z3

from rlflow.rules.prover.interrupts import Border, Budget, Fork, Infeasible, Unprovable
from rlflow.rules.prover.terms import MAX_CLAIM, mentions, subterms
from rlflow.rules.prover.unknowns import Truth, plain, plain_claim

RLIMIT = 2_000_000  # z3's own unit of work for one question, so that answers do not depend on the machine


class Claims:
    """The assumptions of one case: z3 claims that hold throughout, or inside the indices that are bound just now."""

    def __init__(self, budget: Budget):
        self.solver, self.budget = z3.Solver(), budget
        self.solver.set("rlimit", RLIMIT)
        self.bound: list = []  # (index, size) that a sum or maximum binds just now
        self.versions, self.counter, self.names = [0], 0, 0
        self.known_answers: dict = {}
        self.kept: list = []  # z3 terms whose ids are keys
        self.laws: list[dict] = [{}]  # that were assumed, for each index that is bound, by id
        self.obligations: list | None = None  # (operator, claim) that the right side requires, once it is read
        self.operator = ""
        self.refused: frozenset = frozenset()  # operators of which a misfit is refused when a rule is planned
        self.indices: set[str] = set()  # names of symbols that are indices of elements

    def assume(self, claim) -> None:
        self.solver.add(plain_claim(claim))
        self.counter += 1
        self.versions[-1] = self.counter

    def feasible(self) -> bool:
        self.budget.spend()
        return self.solver.check() != z3.unsat

    def entails(self, claim) -> bool:
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
        difference = z3.simplify(difference, som=True)
        claim = {"==": difference == 0, "<": difference < 0, "<=": difference <= 0}[kind]
        result = z3.simplify(claim)
        if z3.is_true(result) or z3.is_false(result):
            return z3.is_true(result)
        return Truth(self, claim, kind, difference)

    def border(self, truth: Truth, variable):
        """The position inside the range of `variable` from which on the comparison has another answer."""
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

    def lemma(self, *claims) -> None:
        """Laws of the unknown functions, each assumed once."""
        for claim in claims:
            if not any(claim.get_id() in laws for laws in self.laws):
                self.laws[-1][claim.get_id()] = claim
                self.assume(claim)

    # -- indices --

    def index_below(self, length):
        return _Index(self, length)

    def fresh(self):
        self.names += 1
        return self.index_symbol(f"k{self.names}")

    def index_symbol(self, name: str):
        self.indices.add(name)
        return z3.Int(name)

    def enter(self, bound: tuple) -> None:
        self.solver.push()
        self.versions.append(self.versions[-1])
        self.laws.append({})
        for v, s in bound:
            self.assume(z3.And(v >= 0, v < s))

    def leave(self) -> None:
        self.solver.pop()
        self.versions.pop()
        self.kept.append(self.laws[-1])
        self.lemma(*self.laws.pop().values())  # they hold outside, too


class _Index:
    """A bound index 0 ≤ k < length, inside a `with`."""

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
