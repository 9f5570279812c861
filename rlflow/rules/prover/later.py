"""Integers that are chosen later.

Sizes stay open while the left side and the conditions of a rule are read. What must be known is decided as true or
false, both ways, and kept as a claim; only what meets all claims is chosen in the end. So most combinations never
arise.
"""

import operator
from collections.abc import Callable, Iterator

from rlflow.rules.prover.interrupts import Fork, NotHere

STEPS = 10  # operations on integers that count as one unit of work
FEW = 500  # values that are tried to see whether a claim may hold


class Later:
    """An integer, or a truth, that depends on open sizes.

    Attributes:
      open: the names of these sizes.
      evaluate: its value where they are as a dictionary says.
      steps: how many operations that takes.
    """

    __slots__ = ("choices", "open", "evaluate", "steps")

    def __init__(self, choices: "Choices", open_names: frozenset[str], evaluate: Callable[[dict], int], steps: int):
        self.choices, self.open, self.evaluate, self.steps = choices, open_names, evaluate, steps

    def __bool__(self):
        return self.choices.decide(self)

    def __index__(self):
        return self.choices.choose(self)

    __hash__ = __int__ = __index__


def deferred(f: Callable, *arguments):
    """f(arguments), as soon as they are known."""
    later = [a for a in arguments if isinstance(a, Later)]
    if not later:
        return f(*arguments)
    names = frozenset().union(*(a.open for a in later))
    parts = [a.evaluate if isinstance(a, Later) else (lambda env, known=a: known) for a in arguments]
    return Later(
        later[0].choices, names, lambda env: f(*[part(env) for part in parts]), sum(a.steps for a in later) + 1
    )


def _method(f: Callable) -> Callable:
    def apply(self: Later, other):
        mine = self.evaluate
        if isinstance(other, Later):
            others = other.evaluate
            return Later(
                self.choices,
                self.open | other.open,
                lambda env: f(mine(env), others(env)),
                self.steps + other.steps + 1,
            )
        return Later(self.choices, self.open, lambda env: f(mine(env), other), self.steps + 1)

    return apply


def _turned(f: Callable) -> Callable:
    def apply(self: Later, other):
        mine = self.evaluate
        return Later(self.choices, self.open, lambda env: f(other, mine(env)), self.steps + 1)

    return apply


for _name, _f in {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod,
    "truediv": operator.truediv, "and": operator.and_, "or": operator.or_,
}.items():  # fmt: skip
    setattr(Later, f"__{_name}__", _method(_f))
    setattr(Later, f"__r{_name}__", _turned(_f))
for _f in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
    setattr(Later, f"__{_f.__name__}__", _method(_f))
Later.__neg__ = lambda self: deferred(operator.neg, self)
Later.__invert__ = lambda self: deferred(operator.not_, self)


class Choices:
    """The open sizes of a case, the values that each may take, and what is claimed of them.

    Args:
      picks: holds the answers to what had to be known so far, under ("answer", how many there were before).
      spend: called with how much work is done.
    """

    def __init__(self, picks: dict, spend: Callable[[int], None]):
        self.picks, self.spend, self.answers = picks, spend, 0
        self.values: dict[str, list[int]] = {}
        self.claims: list[Later] = []

    def open(self, name: str, values: range) -> Later:
        self.values.setdefault(name, list(values))
        return Later(self, frozenset((name,)), lambda env: env[name], 1)

    def claim(self, claim: Later) -> None:
        self.claims.append(claim)
        if len(claim.open) == 1:
            (name,) = claim.open
            self.values[name] = [v for v in self.values[name] if _holds(claim, {name: v})]
            if not self.values[name]:
                raise NotHere

    def decide(self, truth: Later) -> bool:
        key = ("answer", self.answers)
        if key not in self.picks:
            possible = [answer for answer in (True, False) if self.may_be(truth if answer else ~truth)]
            if len(possible) != 1:
                raise Fork([(key, answer) for answer in possible])
            self.picks[key] = possible[0]
        self.answers += 1
        self.claim(truth if self.picks[key] else ~truth)
        return self.picks[key]

    def choose(self, number: Later):
        """Raises a Fork over the values of a size that the number depends on."""
        name = next(name for name in self.values if name in number.open)
        raise Fork([(name, v) for v in self.values[name]])

    def may_be(self, claim: Later) -> bool:
        """Whether it may hold together with all that is claimed. No for an answer is certain."""
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
        """Every combination of values that meets all claims."""
        return self.solutions(list(self.values), self.claims)

    def solutions(self, names: list[str], claims: list[Later], most: int | None = None) -> Iterator[dict[str, int]]:
        """Those for some names; raises _TooMany when more than `most` values are tried."""
        checks: list[list[Later]] = [[] for _ in names]
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
                if all(_holds(claim, env) for claim in checks[k]):
                    yield from fill(k + 1, env)

        return fill(0, {})


class _TooMany(Exception):
    pass


def _holds(claim: Later, env: dict) -> bool:
    try:
        return bool(claim.evaluate(env))
    except ZeroDivisionError:
        return True  # whoever reads the case with these sizes sees it
