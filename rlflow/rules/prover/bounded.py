"""Proofs of rules for bounded shapes: every combination of ranks, axes, flags, sizes, strides and pads up to a bound.

In each of them both sides are written out element by element in the formal numbers of rlflow.rules.prover.formal, whose
normal
forms must be the same: so it holds for all numbers, of these shapes.
"""

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

from rlflow.common.errors import first_line
from rlflow.rules.expressions import Unknown
from rlflow.rules.patterns import Op, Star
from rlflow.rules.prover.cases import Case
from rlflow.rules.prover.formal import GRID, Formal, Formula
from rlflow.rules.prover.interrupts import Fork, NotHere, Unprovable
from rlflow.rules.prover.later import Choices, Later, deferred
from rlflow.rules.prover.numbers import Invalid
from rlflow.rules.prover.picks import Picks
from rlflow.rules.prover.points import CHECKED, Numeric, evaluate
from rlflow.rules.prover.tensors import Tensor
from rlflow.rules.rule import Rule

WORK = 5_000_000  # terms that are multiplied or added, and sizes that are tried, for one rule
CASE_WORK = 300  # what reading both sides of one case counts
POINTS = 4  # numbers tried where normal forms differ


class Bound(NamedTuple):
    """What is tried.

    Attributes:
      rank: the largest rank, and length of a list of sizes.
      sizes: the largest size of the first two axes and of the others.
      elements: the most elements of an input.
      step: the largest stride and dilation.
      pad: the largest padding at one end.
      count: how many inputs `*xs` stands for at most; None where a rule has no such.
    """

    rank: int
    sizes: tuple[int, int]
    elements: int
    step: int
    pad: int
    count: int | None = 2

    def __str__(self) -> str:
        first, others = self.sizes
        sizes = f"{first}" + (f" ({others} from the third axis on)" if others != first else "")
        result = f"ranks to {self.rank}, sizes to {sizes}, {self.elements} elements"
        result += f", strides to {self.step}, pads to {self.pad}"
        return result + (f", *inputs to {self.count}" if self.count is not None else "")

    def includes(self, other: "Bound") -> bool:
        return all(map(operator.ge, self.flat(), other.flat()))

    def flat(self) -> tuple[int, ...]:
        return (*self.sizes, self.rank, self.elements, self.step, self.pad, self.count or 0)


LADDER = (  # a proof covers at least the first that the rule fires in
    Bound(3, (2, 2), 8, 1, 1),
    Bound(3, (3, 3), 3, 1, 0, 0),  # an order of three is not its own inverse
    Bound(3, (4, 1), 4, 1, 0, 0),  # four groups
    Bound(3, (2, 2), 8, 2, 1, 0),
    Bound(3, (2, 2), 8, 2, 1),
    Bound(4, (2, 3), 18, 1, 1),
    Bound(3, (2, 3), 12, 2, 1),
    Bound(4, (2, 3), 18, 2, 1),
    Bound(3, (3, 4), 24, 3, 2),
    Bound(4, (3, 3), 24, 2, 2),
)


class Refuted(Exception):
    """The rule is wrong; the message is a counterexample."""


class World(Picks, Formal):
    """One case: decisions as far as they are taken, sizes that are chosen when they matter, formal numbers."""

    def __init__(self, picks: dict, bound: Bound, spend: Callable[[int], None]):
        values = {key[1:3]: value for key, value in picks.items() if key[0] == "value"}
        values |= {key[1:3]: key[3] for key, equal in picks.items() if key[0] == "equal" and equal}
        super().__init__(values, spend)
        self.picks, self.bound = dict(picks), bound
        self.choices = Choices(self.picks, spend)

    def pick(self, key: str, options: tuple):
        if isinstance(key, str) and key.startswith(("rank of ", "length of ")):
            options = tuple(k for k in options if k <= self.bound.rank)
        if isinstance(key, str) and key.startswith("how many "):
            options = tuple(k for k in options if k <= self.bound.count)
        return super().pick(key, options)

    def symbol(self, name: str, least: int | None = 1):
        if name in self.picks:
            return self.picks[name]
        return self.choices.open(name, self.range_of(name, least))

    def range_of(self, name: str, least: int | None) -> range:
        what, _, position = name.rpartition(".")
        if name.endswith("]"):  # an index along an axis
            return range(max(self.bound.sizes))
        if least == 0:
            return range(self.bound.pad + 1)
        if what.endswith((".strides", ".dilations")):
            return range(1, self.bound.step + 1)
        most = self.bound.sizes[position.isdigit() and int(position) > 1 and least == 1]
        if least is None:
            return range(-most - 1, most + 2)
        return range(least, (most if least > 0 else most**2) + 1)

    def require(self, holds) -> None:
        if isinstance(holds, Later):
            self.choices.claim(holds)
        elif not holds:
            raise Invalid

    def choose(self, condition, yes, no):
        return deferred(lambda c, a, b: a if c else b, condition, yes, no)

    def wider(self, a, b):
        return deferred(lambda p, q: q if p == 1 else p, a, b)

    def with_each(self, further: Iterable[dict]) -> Iterator[dict]:
        """The decisions of this case, with each of some further ones."""
        return (self.picks | one for one in further)

    def with_sizes(self) -> Iterator[dict]:
        """The decisions of this case, with each combination of sizes that they leave."""
        kept = {key: value for key, value in self.picks.items() if key[0] != "answer"}
        return (kept | sizes for sizes in self.choices.assignments())

    def decide_equal(self, name: str, index: tuple, value: Fraction) -> bool:
        return self.pick(("equal", name, index, value), (True, False))


class Remembering(Case):
    """A case whose inputs have few elements, each of which is computed once."""

    def variable(self, *arguments) -> Tensor:
        tensor = super().variable(*arguments)
        if tensor.content is None:
            self.world.require(prod(tensor.shape) <= self.world.bound.elements)
        return tensor

    def operator(self, op: Op, read: Callable) -> list[Tensor]:
        if op.key not in self.made:
            self.made[op.key] = [_remembered(t) for t in super().operator(op, read)]
        return self.made[op.key]


def _remembered(tensor: Tensor) -> Tensor:
    known: dict[tuple, Formula] = {}

    def at(index: tuple) -> Formula:
        if index not in known:
            known[index] = tensor.at(index)
        return known[index]

    return replace(tensor, at=at)


class Point(Numeric):
    """A case in numbers, with the numbers that its conditions have chosen."""

    def __init__(self, world: World, seed: int):
        super().__init__(world.picks, world.picks, seed)
        self.elements = {key: self.read(value) for key, value in world.values.items()}


# -- one case --------------------------------------------------------------------------------------


def check(world: World, case: Case, source: list[Tensor]) -> bool:
    """Whether the rule may be planned; then its sides are equal. Raises Unprovable if that is not seen."""
    try:
        target = case.target()
    except Invalid as error:
        if world.operator in CHECKED:
            return False
        raise Unprovable(f"the inputs may not fit {world.operator} on the right side") from error
    if [t.shape for t in source] != [t.shape for t in target]:
        return False
    wanted = [{index: element_of(t, index) for index in indices_of(t)} for t in source]
    world.closed = True
    for left, right in zip(wanted, target, strict=True):
        for index, value in left.items():
            if value is not None:
                result = element_of(right, index)
                if result is None:
                    raise Unprovable("the right side divides by zero")
                if not world.same(value, result):
                    raise Unprovable("the two sides have different normal forms")
    return True


def indices_of(tensor: Tensor) -> Iterator[tuple]:
    return itertools.product(*map(range, tensor.shape))


def element_of(tensor: Tensor, index: tuple) -> Formula | None:
    """None if it is not defined: a division by zero."""
    try:
        return tensor.at(index)
    except Invalid:
        return None


# -- all cases -------------------------------------------------------------------------------------


def walk(rule: Rule, is_float: bool, bound: Bound, spend: Callable[[int], None], visit: Callable) -> None:
    """Calls visit(world, case, outputs of the left side) for every case in the bound in which the rule fires."""
    waiting: list[Iterator[dict]] = [iter([{}])]
    while waiting:
        picks = next(waiting[-1], None)
        if picks is None:
            waiting.pop()
            continue
        spend(CASE_WORK)
        world = World(picks, bound, spend)
        case = Remembering(rule, world, is_float)
        try:
            source = case.source()
            if not case.fires():
                continue
            if world.choices.values:
                waiting.append(world.with_sizes())
            else:
                visit(world, case, source)
        except Fork as fork:
            waiting.append(world.with_each(dict([option]) for option in fork.options))
        except (Invalid, NotHere, Unknown):
            continue


def prove_within(rule: Rule, is_float: bool, bound: Bound, spend: Callable[[int], None], shown: set) -> int:
    """How many cases hold; those that were shown before are not shown again, the others are added."""
    count = 0

    def visit(world: World, case: Case, source: list[Tensor]) -> None:
        nonlocal count
        key = (is_float, *world.picks.items())
        try:
            if key in shown or check(world, case, source):
                shown.add(key)
                count += 1
        except Unprovable as reason:
            refute(rule, world, is_float)
            raise Unprovable(f"{reason} ({in_words(world.picks)})") from reason

    walk(rule, is_float, bound, spend, visit)
    return count


def refute(rule: Rule, world: World, is_float: bool) -> None:
    """Raises Refuted if numbers tell the sides apart."""
    for seed in range(POINTS):
        try:
            result = evaluate(rule, Point(world, seed), is_float)
        except (Invalid, NotHere, Unknown, ZeroDivisionError):
            continue
        if result is not None:
            raise Refuted(result)


def in_words(picks: dict[Any, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in picks.items())


def prove_bounded(rule: Rule, kinds: tuple[bool, ...] = (True,), work: int = WORK) -> tuple[str, int]:
    """What was covered, in words, and the number of cases that hold.

    Args:
      kinds: whether the tensors are of floats; (True, False) for both readings.
      work: how much may be done; the bounds that it is enough for are covered.

    Raises Refuted with a counterexample, Unprovable if equality is not seen, TimeoutError if the work is not enough for
    the least bound.
    """
    left, covered, shown = work, [], set()

    def spend(amount: int) -> None:
        nonlocal left
        left -= amount
        if left < 0:
            raise TimeoutError

    for bound in bounds_of(rule):
        try:
            if sum(prove_within(rule, is_float, bound, spend, shown) for is_float in kinds):
                covered.append(bound)
        except TimeoutError:
            break
        except (TypeError, AttributeError, IndexError, ValueError) as error:
            raise Unprovable(f"the formal numbers do not reach: {first_line(error)}") from error
    if not any(bound.pad for bound in covered):
        raise TimeoutError if left < 0 else Unprovable("no case fires")
    words = [str(b) for b in covered if not any(b != other and other.includes(b) for other in covered)]
    if any(has_values(key) for key in shown):
        words.append(f"numbers that conditions compare: {', '.join(map(str, GRID))}")
    return "; ".join(words), len(shown)


def bounds_of(rule: Rule) -> list[Bound]:
    starred = any(isinstance(i, Star) for op in rule.ops for i in op.inputs)
    return list(LADDER if starred else dict.fromkeys(bound._replace(count=None) for bound in LADDER))


def has_values(key: tuple) -> bool:
    return any(isinstance(name, tuple) and name[0] == "value" for name, _ in key[1:])
