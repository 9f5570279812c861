"""Prove rules for bounded shapes: every combination of ranks, axes, flags, sizes, strides and pads up to a bound.

Both sides are computed element by element in formal numbers (rlflow.proving.formal). Their normal forms must be equal,
so a proof holds for all elements of tensors of these shapes. The bounds in LADDER are tried in turn until a fixed
amount of work is used up.

Sizes stay open while the left side and the conditions are evaluated (`Deferred`, `Choices`). A comparison of open sizes
splits the case, and each new case keeps its answer as a claim. Only sizes that satisfy all claims of a case are then
enumerated, so most combinations are never visited.
"""

import itertools
import operator
from collections.abc import Callable, Iterator
from math import prod
from typing import NamedTuple

from rlflow.common.errors import first_line
from rlflow.proving.cases import Case, MemoizedCase
from rlflow.proving.decisions import Fork, NotApplicable, Picks, Undefined, Unprovable
from rlflow.proving.draws import MAX_RANK, demanded
from rlflow.proving.formal import GRID, Formal, Formula
from rlflow.proving.numbers import CHECKED, Invalid, Numeric, evaluate
from rlflow.proving.tensors import Tensor
from rlflow.rules.expressions import Unknown
from rlflow.rules.patterns import Star
from rlflow.rules.rule import Rule

STEPS = 10  # integer operations per unit of work
FEW = 500  # largest number of values that `Choices.may_hold` tries


class Deferred:
    """An integer or a truth value that depends on open sizes. `bool` splits the case by its truth value.

    Attributes:
      choices: the open sizes of the case.
      open: the names of the open sizes on which the value depends.
      evaluate: a function from a dictionary, size name → integer, to the value.
      steps: the number of integer operations of one evaluation.
    """

    __slots__ = ("choices", "open", "evaluate", "steps")

    def __init__(self, choices: "Choices", open_names: frozenset[str], evaluate: Callable[[dict], int], steps: int):
        self.choices, self.open, self.evaluate, self.steps = choices, open_names, evaluate, steps

    def __bool__(self):
        return self.choices.decide(self)

    def __index__(self):
        return self.choices.choose(self)

    __hash__ = __int__ = __index__


def defer(f: Callable, *arguments):
    """Return `f(*arguments)`, or a Deferred of this value if an argument is a Deferred."""
    later = [a for a in arguments if isinstance(a, Deferred)]
    if not later:
        return f(*arguments)
    names = frozenset().union(*(a.open for a in later))
    parts = [a.evaluate if isinstance(a, Deferred) else (lambda env, known=a: known) for a in arguments]
    return Deferred(
        later[0].choices, names, lambda env: f(*[part(env) for part in parts]), sum(a.steps for a in later) + 1
    )


def _deferred_operator(f: Callable) -> Callable:
    def apply(self: Deferred, other):
        mine = self.evaluate
        if isinstance(other, Deferred):
            others = other.evaluate
            return Deferred(
                self.choices,
                self.open | other.open,
                lambda env: f(mine(env), others(env)),
                self.steps + other.steps + 1,
            )
        return Deferred(self.choices, self.open, lambda env: f(mine(env), other), self.steps + 1)

    return apply


def _reflected_operator(f: Callable) -> Callable:
    def apply(self: Deferred, other):
        mine = self.evaluate
        return Deferred(self.choices, self.open, lambda env: f(other, mine(env)), self.steps + 1)

    return apply


for _name, _f in {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod,
    "truediv": operator.truediv, "and": operator.and_, "or": operator.or_,
}.items():  # fmt: skip
    setattr(Deferred, f"__{_name}__", _deferred_operator(_f))
    setattr(Deferred, f"__r{_name}__", _reflected_operator(_f))
for _f in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
    setattr(Deferred, f"__{_f.__name__}__", _deferred_operator(_f))
Deferred.__neg__ = lambda self: defer(operator.neg, self)
Deferred.__invert__ = lambda self: defer(operator.not_, self)


class Choices:
    """The open sizes of a case, the values that each size may take, and the claims about the sizes.

    Args:
      picks: the decisions of the case so far; ("answer", n) is the key of the answer to the n-th comparison.
      spend: a function that is called with the amount of work done.
    """

    def __init__(self, picks: dict, spend: Callable[[int], None]):
        self.picks, self.spend, self.answers = picks, spend, 0
        self.values: dict[str, list[int]] = {}
        self.claims: list[Deferred] = []

    def open(self, name: str, values: range) -> Deferred:
        """Return an open size as a Deferred.

        Args:
          name: the name of the size.
          values: the values that the size may take.
        """
        self.values.setdefault(name, list(values))
        return Deferred(self, frozenset((name,)), lambda env: env[name], 1)

    def claim(self, claim: Deferred) -> None:
        """Add a claim. A claim about one size removes the values of this size that contradict it.

        Raises:
          NotApplicable: if no value is left.
        """
        self.claims.append(claim)
        if len(claim.open) == 1:
            (name,) = claim.open
            self.values[name] = [v for v in self.values[name] if _claim_holds(claim, {name: v})]
            if not self.values[name]:
                raise NotApplicable

    def decide(self, truth: Deferred) -> bool:
        """Return the answer to a comparison and add it to the claims; raise a Fork if both answers are possible."""
        key = ("answer", self.answers)
        if key not in self.picks:
            possible = [answer for answer in (True, False) if self.may_hold(truth if answer else ~truth)]
            if len(possible) != 1:
                raise Fork([(key, answer) for answer in possible])
            self.picks[key] = possible[0]
        self.answers += 1
        self.claim(truth if self.picks[key] else ~truth)
        return self.picks[key]

    def choose(self, number: Deferred):
        """Raise a Fork over the possible values of the first open size on which the number depends."""
        name = next(name for name in self.values if name in number.open)
        raise Fork([(name, v) for v in self.values[name]])

    def may_hold(self, claim: Deferred) -> bool:
        """Return False if a claim contradicts the other claims, and True if not or if FEW values do not decide."""
        names, claims, rest = set(claim.open), [claim], list(self.claims)
        while linked := [other for other in rest if other.open & names]:
            claims += linked
            rest = [other for other in rest if not other.open & names]
            names = names.union(*(other.open for other in linked))
        ordered = sorted(names, key=lambda name: (name not in claim.open, list(self.values).index(name)))
        try:
            return next(self.solutions(ordered, claims, FEW), None) is not None
        except _TooMany:
            return True

    def assignments(self) -> Iterator[dict[str, int]]:
        """Yield each combination of open sizes, name → value, that satisfies all claims."""
        return self.solutions(list(self.values), self.claims)

    def solutions(self, names: list[str], claims: list[Deferred], most: int | None = None) -> Iterator[dict[str, int]]:
        """Yield each combination of values of some sizes, name → value, that satisfies the claims.

        Args:
          names: the names of the sizes, in the order in which values are assigned.
          claims: claims about these sizes only.
          most: the largest number of values to try; None for no limit.

        Raises:
          _TooMany: while iterating, if more values than `most` are tried.
        """
        checks: list[list[Deferred]] = [[] for _ in names]
        for claim in claims:
            checks[max(map(names.index, claim.open))].append(claim)
        work = [1 + sum(claim.steps for claim in result) // STEPS for result in checks]
        tries = 0

        def fill(k: int, env: dict) -> Iterator[dict]:
            nonlocal tries
            if k == len(names):
                yield dict(env)
                return
            for value in self.values[names[k]]:
                self.spend(work[k])
                tries += 1
                if most is not None and tries > most:
                    raise _TooMany
                env[names[k]] = value
                if all(_claim_holds(claim, env) for claim in checks[k]):
                    yield from fill(k + 1, env)

        return fill(0, {})


class _TooMany(Exception):
    """Raised if `Choices.solutions` tries more values than allowed."""


def _claim_holds(claim: Deferred, env: dict) -> bool:
    try:
        return bool(claim.evaluate(env))
    except ZeroDivisionError:
        return True  # Reading the case with these sizes raises it again.


WORK = 5_000_000  # largest amount of work per rule; one unit is a term multiplied or added, or a size tried
CASE_WORK = 300  # work that each visited case costs in addition to its terms and sizes
POINTS = 4  # number of random assignments that `refute` tries in a case whose normal forms differ


class Bound(NamedTuple):
    """The limits of a bounded proof.

    Attributes:
      rank: the largest rank, and the largest length of a list of sizes.
      sizes: (largest size of the first two axes, largest size of the other axes).
      elements: the largest number of elements of an input.
      step: the largest stride and dilation in `**a`. Strides and dilations that a rule names are limited like sizes.
      pad: the largest padding at one end.
      count: the largest number of inputs of `*xs`; None for a rule without `*xs`.
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
        """Return True if no limit of the other bound is larger than the same limit of this bound."""
        return all(map(operator.ge, self.flat(), other.flat()))

    def flat(self) -> tuple[int, ...]:
        """Return all limits as one tuple; a missing count is 0."""
        return (*self.sizes, self.rank, self.elements, self.step, self.pad, self.count or 0)


LADDER = (  # The bounds in the order in which they are tried. A proof must cover at least one bound with pad > 0.
    Bound(3, (2, 2), 8, 1, 1),
    Bound(3, (3, 3), 3, 1, 0, 0),  # a permutation of three need not be its own inverse
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
    """Raised if the two sides of a rule differ; the message is a counterexample."""


class World(Picks, Formal):
    """One case of a bounded proof: the algebra of formal numbers, the decisions of the case, and its open sizes.

    Args:
      picks: the decisions so far, key → chosen option.
      bound: the limits of sizes, ranks and counts.
      spend: a function that is called with the amount of work done.
    """

    def __init__(self, picks: dict, bound: Bound, spend: Callable[[int], None]):
        values = {key[1:3]: value for key, value in picks.items() if key[0] == "value"}
        values |= {key[1:3]: key[3] for key, equal in picks.items() if key[0] == "equal" and equal}
        super().__init__(values, spend)
        self.picks, self.bound = dict(picks), bound
        self.choices = Choices(self.picks, spend)

    def pick(self, key: str, options: tuple):
        if isinstance(key, str) and key.startswith(("rank of ", "length of ")):
            options = tuple(k for k in options if k <= self.bound.rank or k > MAX_RANK)  # conditions ask for more
        if isinstance(key, str) and key.startswith("how many "):
            options = tuple(k for k in options if k <= self.bound.count)
        return super().pick(key, options)

    def symbol(self, name: str, least: int | None = 1):
        """Return the integer with the given name: its value if the case has chosen one, else an open size.

        Args:
          name: the name, such as `x.0` for the size of axis 0 of x.
          least: the smallest possible value; None for an integer that may be negative.
        """
        if name in self.picks:
            return self.picks[name]
        return self.choices.open(name, self.range_of(name, least))

    def range_of(self, name: str, least: int | None) -> range:
        """Return the values that the integer with the given name may take within the bound; see `symbol`."""
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
        if isinstance(holds, Deferred):
            self.choices.claim(holds)
        elif not holds:
            raise Invalid

    def place_of_greatest(self, size, body: Callable, last: int):
        raise Undefined("places of maxima have no definition within bounds")

    def rows(self, name: str, axis: int, size):
        raise Undefined("rows of zeros have no definition within bounds")

    def choose(self, condition, yes, no):
        return defer(lambda c, a, b: a if c else b, condition, yes, no)

    def broadcast_size(self, a, b):
        return defer(lambda p, q: q if p == 1 else p, a, b)

    def with_sizes(self) -> Iterator[dict]:
        """Yield the decisions of this case, extended by each combination of open sizes that satisfies the claims.

        The answers to comparisons are left out, because the sizes determine them.
        """
        kept = {key: value for key, value in self.picks.items() if key[0] != "answer"}
        return (kept | sizes for sizes in self.choices.assignments())


class BoundedCase(MemoizedCase):
    """A case whose input tensors have at most `world.bound.elements` elements."""

    def variable(self, *arguments) -> Tensor:
        tensor = super().variable(*arguments)
        if tensor.content is None:
            self.world.require(prod(tensor.shape) <= self.world.bound.elements)
        return tensor


# -- one case --------------------------------------------------------------------------------------


def check(world: World, case: Case, source: list[Tensor]) -> bool:
    """Compare both sides of a rule in one case.

    Args:
      world: the algebra and the decisions of the case.
      case: the evaluation of the rule, whose left side is already computed.
      source: the output tensors of the left side.

    Returns:
      True if both sides are equal; False if the planner refuses the match because inputs or output shapes do not fit.

    Raises:
      Unprovable: if the sides are not proved equal.
    """
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
    """Yield every index of a tensor."""
    return itertools.product(*map(range, tensor.shape))


def element_of(tensor: Tensor, index: tuple) -> Formula | None:
    """Return the element at an index, or None if its value is not defined (for example 1/0)."""
    try:
        return tensor.at(index)
    except Invalid:
        return None


# -- all cases -------------------------------------------------------------------------------------


def walk(rule: Rule, is_float: bool, bound: Bound, spend: Callable[[int], None], visit: Callable) -> None:
    """Call a function for every case within a bound in which the rule matches and its conditions hold.

    Args:
      rule: the rule.
      is_float: True for float tensors, False for int64.
      bound: the limits of the cases.
      spend: a function that is called with the amount of work done; it may raise TimeoutError.
      visit: the function, which is called with (World, BoundedCase, output tensors of the left side).
    """
    waiting: list[Iterator[dict]] = [iter([{}])]
    while waiting:
        picks = next(waiting[-1], None)
        if picks is None:
            waiting.pop()
            continue
        spend(CASE_WORK)
        world = World(picks, bound, spend)
        case = BoundedCase(rule, world, is_float)
        try:
            source = case.source()
            if not case.fires():
                continue
            if world.choices.values:
                waiting.append(world.with_sizes())
            else:
                visit(world, case, source)
        except Fork as fork:
            waiting.append(iter([world.picks | {key: option} for key, option in fork.options]))
        except (Invalid, NotApplicable, Unknown):
            continue


def prove_within(rule: Rule, is_float: bool, bound: Bound, spend: Callable[[int], None], shown: set) -> int:
    """Prove a rule for all cases within a bound.

    Args:
      rule: the rule.
      is_float: True for float tensors, False for int64.
      bound: the limits of the cases.
      spend: a function that is called with the amount of work done.
      shown: keys of the cases proved within smaller bounds, which are not proved again; new keys are added.

    Returns:
      the number of cases within the bound that are proved.

    Raises:
      Refuted: if the two sides differ for some plain numbers.
      Unprovable: if a case is neither proved nor refuted.
    """
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
            decisions = ", ".join(f"{key}={value}" for key, value in world.picks.items())
            raise Unprovable(f"{reason} ({decisions})") from reason

    walk(rule, is_float, bound, spend, visit)
    return count


def refute(rule: Rule, world: World, is_float: bool) -> None:
    """Evaluate a case with random plain numbers, and raise Refuted if the two sides of the rule differ.

    Elements are random, except where the case fixes their values.
    """
    for seed in range(POINTS):
        point = Numeric(world.picks, world.picks, seed)
        point.elements = {key: point.read(value) for key, value in world.values.items()}
        try:
            result = evaluate(rule, point, is_float)
        except (Invalid, NotApplicable, Unknown, ZeroDivisionError):
            continue
        if result is not None:
            raise Refuted(result)


def prove_bounded(rule: Rule, kinds: tuple[bool, ...] = (True,), work: int = WORK) -> tuple[str, int]:
    """Prove a rule for all cases within the bounds of LADDER.

    Args:
      rule: the rule.
      kinds: (True,) to prove the rule for float tensors, (True, False) for float and int64 tensors.
      work: the largest amount of work in the units of WORK; the proof covers the bounds that are finished by then.

    Returns:
      (the covered bounds in words, the number of proved cases).

    Raises:
      Refuted: if a counterexample is found.
      Unprovable: if a case is neither proved nor refuted, or if the rule matches in no case with pads.
      TimeoutError: if the work does not suffice for any bound with pads.
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
    words += [f"rank {rank} where a condition asks for it" for rank in demanded(rule)]
    if any(has_values(key) for key in shown):
        words.append(f"numbers that conditions compare: {', '.join(map(str, GRID))}")
    return "; ".join(words), len(shown)


def bounds_of(rule: Rule) -> list[Bound]:
    """Return the bounds to try: LADDER, without counts and without duplicates if the rule has no `*xs`."""
    starred = any(isinstance(i, Star) for op in rule.ops for i in op.inputs)
    return list(LADDER if starred else dict.fromkeys(bound._replace(count=None) for bound in LADDER))


def has_values(key: tuple) -> bool:
    """Return True if a key of `shown` in `prove_within` contains chosen values of elements."""
    return any(isinstance(name, tuple) and name[0] == "value" for name, _ in key[1:])
