"""Proofs of rules for all shapes: in each case all sizes, strides and pads are symbols.

A rule is taken apart into cases (ranks, axes, flags, presence of attributes; see rlflow.rules.prover.cases). What the
left side and the conditions say is assumed, and the elements of the two sides are compared at an index that is a
symbol, too. Where symbols do not reach, numbers are put in for them; one that tells the sides apart refutes the
rule.
"""

import random
from collections.abc import Iterable
from typing import NamedTuple

import z3

from rlflow.common.errors import first_line
from rlflow.rules.expressions import Unknown
from rlflow.rules.prover.cases import Case
from rlflow.rules.prover.interrupts import Border, Budget, Fork, Infeasible, NotHere, OutOfBudget, Undefined, Unprovable
from rlflow.rules.prover.numbers import Invalid
from rlflow.rules.prover.opaque import opaque_windows
from rlflow.rules.prover.picks import Picks
from rlflow.rules.prover.points import CHECKED, Numeric, evaluate
from rlflow.rules.prover.symbolic import Symbols
from rlflow.rules.prover.tensors import Tensor
from rlflow.rules.prover.unknowns import Int, Truth
from rlflow.rules.rule import Rule

MAX_FAILURES = 3  # cases that could not be shown, before a rule is given up
POINTS = 6  # numbers tried in one case
LARGEST = 4  # size in a counterexample


class Outcome(NamedTuple):
    """`proof` is all-shapes, refuted or unproved; `cases` fired, or `how` says why none did or what fails."""

    proof: str
    cases: int
    how: str


class Symbolic(Picks, Symbols):
    """One case; `steps` are its decisions and assumptions."""

    def __init__(self, steps: tuple, budget: Budget):
        self.picks = dict(step for step in steps if isinstance(step, tuple))
        super().__init__((step for step in steps if not isinstance(step, tuple)), budget)


class Opaque(Symbolic):
    """Windows are what the left side says, whatever that is."""

    def __init__(self, steps: tuple, budget: Budget):
        self.windows_seen: dict[tuple, list] = {}
        super().__init__(steps, budget)

    def windows(self, a, sizes: tuple, kernel: tuple):
        return opaque_windows(self, a, sizes, kernel)


HOW = {Symbolic: "equal normal forms", Opaque: "equal normal forms, whatever the windows"}


def prove_all_shapes(rule: Rule, readings: tuple[bool, ...], kind: type[Symbolic], budget: Budget) -> Outcome:
    """Shows all cases of a rule in symbols of that kind; numbers are tried where windows are not opaque.

    `readings` says whether the tensors are of floats: (True, False) for a rule that integers may take, too.
    """
    failures, fired = [], 0
    try:
        for is_float in readings:
            for world, fires, reason in explore(rule, is_float, kind, budget):
                fired += fires
                if reason is not None:
                    failures.append(reason)
                    result = counterexample(rule, world, is_float) if kind is Symbolic else None
                    if result is not None:
                        return Outcome("refuted", fired, result)
                    if kind is Opaque or len(failures) > MAX_FAILURES:
                        return Outcome("unproved", fired, failures[0])
    except OutOfBudget:
        failures.append("too many questions")
    except Undefined as undefined:
        failures.append(str(undefined))
    except (TypeError, AttributeError, IndexError, ValueError) as error:
        failures.append(f"the symbols do not reach: {first_line(error)}")
    if not fired and not failures:
        failures.append("no case fires")
    return Outcome("unproved", fired, failures[0]) if failures else Outcome("all-shapes", fired, HOW[kind])


def explore(
    rule: Rule, is_float: bool, kind: type[Symbolic], budget: Budget
) -> Iterable[tuple[Symbolic, bool, str | None]]:
    """(world, whether the rule fires, why it could not be shown) for every case."""
    waiting: list[tuple] = [()]
    while waiting:
        steps = waiting.pop()
        world = kind(steps, budget)
        try:
            if not world.feasible():
                continue
            fired, reason = check_case(rule, world, is_float), None
        except Fork as fork:
            waiting += [(*steps, option) for option in reversed(fork.options)]
            continue
        except (Unprovable, Border, RecursionError) as failure:
            fired, reason = True, str(failure)
        yield world, fired, reason


def check_case(rule: Rule, world: Symbolic, is_float: bool) -> bool:
    """Whether the rule fires in this case; then its sides are shown equal. Raises Unprovable where they are not."""
    try:
        case = Case(rule, world, is_float)
        source = case.source()
        if not world.feasible() or not case.fires():
            return False
        world.obligations, world.refused = [], CHECKED
        target = case.target()
        if [t.rank for t in source] != [t.rank for t in target]:
            return False
        for one, other in zip(source, target, strict=True):
            for a, b in zip(one.shape, other.shape, strict=True):
                if not _allowed(world, a == b):
                    return False
        if not world.feasible():
            return False
    except (Infeasible, NotHere, Unknown):
        return False
    for op, claim in world.obligations:
        if op in CHECKED:
            world.assume(claim)
        elif not world.entails(claim) and not (claim.kind and world.follows(claim)):
            raise Unprovable(f"the inputs may not fit {op} on the right side")
    if not world.feasible():
        return False
    for k, (one, other) in enumerate(zip(source, target, strict=True)):
        compare(world, one, other, k)
    return True


def _allowed(world: Symbols, claim) -> bool:
    """Shapes that differ are refused when the rule is planned, so equal ones may be assumed."""
    if isinstance(claim, Truth):
        world.assume(claim)
        return True
    return bool(claim)


def compare(world: Symbolic, one: Tensor, other: Tensor, number: int) -> None:
    """Raises Unprovable if output `number` of the two sides is not seen to be equal at every index."""
    index = []
    for k, size in enumerate(one.shape):
        position = world.index_symbol(f"i{number}.{k}")
        world.assume(z3.And(position >= 0, position < (size.term if isinstance(size, Int) else size)))
        index.append(world.integer(position))
    if not world.feasible():
        return
    world.closed = False
    try:
        left = world.number(one.at(tuple(index)))
    except Infeasible:  # what the left side divides by is 0: it has no value
        return
    world.closed = True
    try:
        right = world.number(other.at(tuple(index)))
    except Infeasible as error:
        raise Unprovable("the right side divides by 0") from error
    if world.same(left, right) or world.same_by_order(left, right):
        return
    if not world.same(world.minimal(left), world.minimal(right)):
        raise Unprovable("the two sides have different normal forms")


# -- numbers instead of symbols ----------------------------------------------------------------------


def counterexample(rule: Rule, world: Symbolic, is_float: bool) -> str | None:
    """A difference of the two sides in numbers that the case allows, in words."""
    for seed in range(POINTS):
        sizes = some_sizes(world, seed)
        if sizes is None:
            return None
        try:
            result = evaluate(rule, Numeric(world.picks, sizes, seed), is_float)
        except (Invalid, NotHere, Unknown, Fork):
            continue
        if result is not None:
            return result
    return None


def some_sizes(world: Symbolic, seed: int) -> dict[str, int] | None:
    """Small sizes that the case's assumptions allow."""
    solver, chance = z3.Solver(), random.Random(seed)
    solver.set("timeout", 2000)
    solver.add(world.solver.assertions())
    solver.add(world.defined)
    solver.add([z3.And(s <= LARGEST, s >= -LARGEST) for s in world.symbols.values()])
    if solver.check() != z3.sat:
        return None
    for symbol in chance.sample(list(world.symbols.values()), len(world.symbols)):
        wanted = symbol == chance.choice((1, 2, 2, 3, 3, 4))
        if solver.check(wanted) == z3.sat:
            solver.add(wanted)
    if solver.check() != z3.sat:
        return None
    model = solver.model()
    return {name: model.eval(s, model_completion=True).as_long() for name, s in world.symbols.items()}
