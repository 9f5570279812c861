"""Prove rules for all shapes: in each case all sizes, strides and pads are symbols.

A proof assumes the requirements of the left side and the rule's conditions, and compares the elements of both sides at
a symbolic index. If a case is not proved, it is computed with plain numbers; a difference refutes the rule.

A proof knows few facts about `OpaqueWindows`: equal attributes and sizes give equal windows, the number of windows is
at least 1, no padding is negative, and windows without padding and `ceil_mode` lie inside the input. A proof by these
facts is quick and holds for every padding, stride and dilation at once. The facts suffice for rules that merge, split
or scale convolutions and pools, so opaque windows are tried first.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import z3

from rlflow.common.errors import first_line
from rlflow.proving.cases import Case
from rlflow.proving.decisions import (
    Border,
    Budget,
    Fork,
    Infeasible,
    NotApplicable,
    OutOfBudget,
    Picks,
    Undefined,
    Unprovable,
)
from rlflow.proving.numbers import CHECKED, Invalid, Numeric, evaluate
from rlflow.proving.semantics import Attributes
from rlflow.proving.symbolic import Symbols
from rlflow.proving.tensors import Tensor
from rlflow.proving.unknowns import UNKNOWN, Int, Truth, term_of
from rlflow.rules.expressions import Unknown
from rlflow.rules.rule import Rule

KEYS = ("auto_pad", "strides", "dilations", "pads", "ceil_mode")


@dataclass(frozen=True)
class OpaqueWindows:
    """Windows of a convolution or pool whose positions are uninterpreted functions of attributes and sizes.

    The class has the interface of rlflow.proving.reductions.Windows.
    """

    world: object  # the case, an Opaque
    name: str  # which attributes are given; windows with equal names and arguments are equal
    sizes: tuple  # spatial sizes of the input
    kernel: tuple  # spatial sizes of the kernel
    values: tuple  # the attributes that the rule names, as z3 terms
    padded: bool  # True if a window may reach beyond the input

    def arguments(self, axis: int) -> list:
        """Return the z3 terms on which the windows along one axis depend: sizes and attributes."""
        return [term_of(self.sizes[axis]), term_of(self.kernel[axis]), *self.values]

    def unknown(self, what: str, axis: int, arguments: list, least: int | None = None) -> Int:
        """Return a quantity of the windows as an uninterpreted integer.

        Args:
          what: the name of the quantity, such as "count".
          axis: the spatial axis.
          arguments: the z3 terms on which the quantity depends.
          least: the smallest possible value; None for no bound.
        """
        made = UNKNOWN[f"{what} of {self.name}, axis {axis} of {len(self.sizes)}", len(arguments)](*arguments)
        if least is not None:
            self.world.lemma(made >= least)
        return Int(self.world, made)

    def each(self, what: str, least: int) -> tuple:
        """Return the quantity `what` along each axis, an uninterpreted integer that is at least `least`."""
        return tuple(self.unknown(what, axis, self.arguments(axis), least) for axis in range(len(self.sizes)))

    @property
    def outputs(self) -> tuple:
        """The number of windows along each axis."""
        return self.each("count", 1)

    @property
    def begin(self) -> tuple:
        """The padding before the first element of each axis."""
        return self.each("begin", 0)

    @property
    def end(self) -> tuple:
        """The padding after the last element of each axis."""
        return self.each("end", 0)

    def positions(self, o: tuple, k: tuple) -> list[tuple]:
        """Return (input position, input size) along each axis, for output index o and kernel index k."""
        result = []
        for axis, size in enumerate(self.sizes):
            window, offset = term_of(o[axis]), term_of(k[axis])
            position = self.unknown("place", axis, [window, offset, *self.arguments(axis)])
            if not self.padded:
                exists = z3.And(
                    window >= 0, window < self.outputs[axis].term, offset >= 0, offset < term_of(self.kernel[axis])
                )
                self.world.lemma(z3.Implies(exists, z3.And(position.term >= 0, position.term < term_of(size))))
            result.append((position, size))
        return result


def opaque_windows(world, a: Attributes, sizes: tuple, kernel: tuple) -> OpaqueWindows | None:
    """Return opaque windows for one operator, or None if all its attributes are known.

    On the right side of a rule, the windows must equal the windows of an operator on the left side.

    Args:
      world: the case, an Opaque.
      a: the attributes of the operator.
      sizes: the spatial sizes of the input.
      kernel: the spatial sizes of the kernel.
    """
    sources = {key: next((source for source in a.sources if key in source), None) for key in KEYS}
    if all(is_known(world, key, source, kernel) for key, source in sources.items()):
        return None
    origins, values = [], []
    for key, source in sources.items():
        if isinstance(source, dict):
            value = source[key] if isinstance(source[key], tuple) else (source[key],)
            numbers = [v for v in value if isinstance(v, int | Int)]
            origins.append(f"{len(value)} given" if len(numbers) == len(value) else str(value))
            values += [term_of(v) for v in numbers]
        else:
            origins.append("none" if source is None else source.name)
    padded = not all(_unpadded(world, key, sources[key]) for key in ("auto_pad", "pads", "ceil_mode"))
    windows = OpaqueWindows(world, f"windows ({', '.join(origins)})", sizes, kernel, tuple(values), padded)
    arguments = [a for axis in range(len(sizes)) for a in windows.arguments(axis)]
    seen = world.windows_seen.setdefault((windows.name, len(arguments)), [])
    if world.obligations is None:
        seen.append(arguments)
    else:
        same = [z3.And([p == q for p, q in zip(arguments, other, strict=True)]) for other in seen]
        world.require(z3.simplify(z3.Or(same)) if same else False)
    return windows


def is_known(world, key: str, source, kernel: tuple) -> bool:
    """Return True if an attribute of a window operator needs no opaque windows.

    This is so if it is absent, written in the rule, decided in the case, or the dilation of a kernel of size 1.

    Args:
      world: the case.
      key: the name of the attribute.
      source: the mapping that contains the attribute: a dictionary for the rule's own, a Rest for `**a`, or None.
      kernel: the spatial sizes of the kernel.
    """
    if source is None or isinstance(source, dict):
        return True
    if key == "dilations" and all(world.entails(size == 1) for size in kernel):
        return True
    return world.picked(f"{source.name}.{key} given") is False or world.picked(f"{source.name}.{key}") is not None


def _unpadded(world, key: str, source) -> bool:
    """Return True if the value of an attribute never lets a window reach beyond the input; arguments as in `is_known`.
    """
    if source is None:
        return True
    if isinstance(source, dict):
        return key == "pads" and all(world.entails(size == 0) for size in source[key])
    return world.picked(f"{source.name}.{key} given") is False or world.picked(f"{source.name}.{key}") in (
        b"NOTSET",
        b"VALID",
        0,
    )


MAX_FAILURES = 3  # a proof stops after more unproved cases
POINTS = 6  # number of attempts to find a counterexample in an unproved case
LARGEST = 4  # largest size in a counterexample


class Outcome(NamedTuple):
    """The result of a proof for all shapes.

    Attributes:
      proof: all-shapes, refuted or unproved.
      cases: the number of cases in which the rule matches and its conditions hold.
      how: the method of the proof, the counterexample, or the reason why there is no proof.
    """

    proof: str
    cases: int
    how: str


class Symbolic(Picks, Symbols):
    """One case in the symbolic algebra, with explicit window positions.

    Args:
      steps: the decisions of the case, as (key, value) pairs, and its assumptions, as z3 claims.
      budget: the number of z3 queries that the proof may make.

    Attributes:
      case: the class that evaluates the rule.
      how: the method of the proof, in words.
    """

    case = Case
    how = "equal normal forms"

    def __init__(self, steps: tuple, budget: Budget):
        self.picks = dict(step for step in steps if isinstance(step, tuple))
        super().__init__((step for step in steps if not isinstance(step, tuple)), budget)


class Opaque(Symbolic):
    """One case in the symbolic algebra, with opaque windows. `windows_seen` holds the left side's windows."""

    how = "equal normal forms, whatever the windows"

    def __init__(self, steps: tuple, budget: Budget):
        self.windows_seen: dict[tuple, list] = {}
        super().__init__(steps, budget)

    def windows(self, a, sizes: tuple, kernel: tuple):
        return opaque_windows(self, a, sizes, kernel)


def prove_all_shapes(rule: Rule, readings: tuple[bool, ...], kind: type[Symbolic], budget: Budget) -> Outcome:
    """Prove a rule for all shapes.

    Args:
      rule: the rule.
      readings: (True,) to prove the rule for float tensors, (True, False) for float and int64 tensors.
      kind: the class of the cases: Opaque, Symbolic or WrittenOut. With Opaque no counterexamples are searched for.
      budget: the number of z3 queries that the proof may make.
    """
    failures, fired = [], 0
    try:
        for is_float in readings:
            for world, fires, reason in explore(rule, is_float, kind, budget):
                fired += fires
                if reason is not None:
                    failures.append(reason)
                    result = counterexample(rule, world, is_float) if kind is not Opaque else None
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
    return Outcome("unproved", fired, failures[0]) if failures else Outcome("all-shapes", fired, kind.how)


def explore(
    rule: Rule, is_float: bool, kind: type[Symbolic], budget: Budget
) -> Iterable[tuple[Symbolic, bool, str | None]]:
    """Yield (world, fires, reason) for every case of a rule.

    Args:
      rule: the rule.
      is_float: True for float tensors, False for int64.
      kind: the class of the cases: Opaque, Symbolic or WrittenOut.
      budget: the number of z3 queries that the proof may make.

    Yields:
      the case, True if the rule matches in it and its conditions hold, and the reason why the case is not proved (None
      for a proved case).
    """
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
    """Prove one case of a rule.

    Args:
      rule: the rule.
      world: the algebra, assumptions and decisions of the case.
      is_float: True for float tensors, False for int64.

    Returns:
      True if the rule applies and both sides are equal; False if the rule does not apply in this case.

    Raises:
      Unprovable: if the rule applies and the sides are not proved equal.
    """
    try:
        case = world.case(rule, world, is_float)
        source = case.source()
        if not world.feasible() or not case.fires():
            return False
        world.obligations, world.refused = [], CHECKED
        target = case.target()
        if [t.rank for t in source] != [t.rank for t in target]:
            return False
        for one, other in zip(source, target, strict=True):
            for a, b in zip(one.shape, other.shape, strict=True):
                if not _assume_equal(world, a == b):
                    return False
        if not world.feasible():
            return False
    except (Infeasible, NotApplicable, Unknown):
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


def _assume_equal(world: Symbols, claim) -> bool:
    """Assume an equality of two sizes, and return False if it is known to be false.

    The sizes are output sizes of the two sides of a rule; the planner refuses a match if they differ.
    """
    if isinstance(claim, Truth):
        world.assume(claim)
        return True
    return bool(claim)


def compare(world: Symbolic, one: Tensor, other: Tensor, number: int) -> None:
    """Raise Unprovable unless an output of the left side is proved equal to the same output of the right side.

    Args:
      world: the algebra of the case.
      one: the output of the left side.
      other: the output of the right side.
      number: the position of the output, which gives the index symbols their names.
    """
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
    except Infeasible:  # The left side divides by 0, so it has no value here.
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
    """Return plain numbers for which the two sides of a rule differ, in words, or None if none are found."""
    for seed in range(POINTS):
        sizes = some_sizes(world, seed)
        if sizes is None:
            return None
        try:
            result = evaluate(rule, Numeric(world.picks, sizes, seed), is_float)
        except (Invalid, NotApplicable, Unknown, Fork):
            continue
        if result is not None:
            return result
    return None


def some_sizes(world: Symbolic, seed: int) -> dict[str, int] | None:
    """Return small sizes, name → size, that the assumptions of a case allow.

    Args:
      world: the case.
      seed: the seed of the random choice among such sizes.

    Returns:
      the sizes, or None if z3 finds none in two seconds per query.
    """
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
