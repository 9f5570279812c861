"""The cheapest graph in an e-graph, or a bound below it: an integer program, taken apart.

A class must be made by an option if anything chosen needs it; every option chosen is paid once, however many read it.
What is chosen must be founded: made from the inputs up, not in a circle. Options that no choice below the cost of one
that is known needs are dropped first, again and again:

- those that need what they give, in whatever way their inputs are made: `Requirements` knows what a class cannot do
  without;
- those beaten by another that gives at least the same, costs no more, and needs only what is there anyhow;
- those whose reduced cost in the linear relaxation lifts it above the cost that is known.

Classes that every choice must make cut the rest into components that are solved on their own; equal ones once. A
program begins without most of what forbids circles, which keeps it a bound, and gets a cut for every circle that shows
up.
"""

import time
from collections.abc import Iterable
from typing import NamedTuple

from rlflow.search.saturation.circles import circles_of
from rlflow.search.saturation.options import Option, in_order, makers_of
from rlflow.search.saturation.program import TOLERANCE, Program
from rlflow.search.saturation.reduction import Requirements, reduced

MIN_SECONDS = 0.1  # for one program, even when time is up


class Extraction(NamedTuple):
    """What is known of the cheapest choice.

    Attributes:
      bound: ps that no choice costs less than.
      choice: the best one, in an order in which it can be computed; None if none was seen that costs at most `known`.
    """

    bound: int
    choice: list[Option] | None


def extract(options: Iterable[Option], wanted: Iterable[int], known: int, seconds: float) -> Extraction:
    """The cheapest choice of options that makes the `wanted` classes out of nothing, or what is known of it in time.

    Graph inputs and constants are nobody's needs. `known` is the cost of some choice (ps).
    """
    end, wanted = time.monotonic() + seconds, frozenset(wanted)
    options, relaxed = _narrowed(list(options), wanted, known, end)
    if not wanted <= makers_of(options).keys():
        return Extraction(known, None)  # every choice costs more
    forced = Requirements(options).of(wanted)
    parts = _components(options, forced)
    solved: dict[tuple, tuple[int, list[int] | None]] = {}
    while True:
        bound, choice = 0, []
        for position, part in enumerate(sorted(parts, key=len)):  # what small ones leave of the time, large ones get
            key = _shape(part, forced)
            if key not in solved:
                left = (end - time.monotonic()) / (len(parts) - position)
                solved[key] = _solve(part, forced, max(left, MIN_SECONDS))
            result, positions = solved[key]
            bound += result
            choice = None if choice is None or positions is None else [*choice, *(part[k] for k in positions)]
        bound = min(max(bound, relaxed), known)
        circles = [] if choice is None else circles_of(choice)
        if not circles or time.monotonic() > end:
            return Extraction(bound, None if choice is None or circles else _needed(choice, wanted))
        for circle in circles:  # through several parts: they become one
            joined = [part for part in parts if any(not circle.isdisjoint(option.makes) for option in part)]
            parts = [part for part in parts if part not in joined] + [[option for part in joined for option in part]]


def _narrowed(options: list[Option], wanted: frozenset[int], known: int, end: float) -> tuple[list[Option], int]:
    """(the options that a choice of at most the cost `known` may hold, a bound in ps)."""
    bound, relaxed = 0, {}
    while True:
        options = reduced(options, wanted)
        if not wanted <= makers_of(options).keys():
            return [], bound
        forced = Requirements(options).of(wanted)
        components = _components(options, forced)
        relaxations = []
        for component in components:
            if time.monotonic() > end:
                return options, bound
            key = _shape(component, forced)
            if key not in relaxed:
                relaxed[key] = Program(component, forced).relax(max(end - time.monotonic(), MIN_SECONDS))
            relaxations.append(relaxed[key])
        value = sum(relaxation.value for relaxation in relaxations)
        bound = max(bound, int(value * (1 - TOLERANCE)))
        spare = known * (1 + TOLERANCE) + 1 - value
        kept = [
            option for component, relaxation in zip(components, relaxations, strict=True)
            for option, lift in zip(component, relaxation.reduced, strict=True) if lift <= spare
        ]  # fmt: skip
        if len(kept) == len(options):
            return options, bound
        options = kept


# -- what no cheapest choice needs -----------------------------------------------------------------


# -- components ------------------------------------------------------------------------------------


def _components(options: list[Option], forced: set[int]) -> list[list[Option]]:
    """Options that share a class which is not forced, directly or through others, in order."""
    parent: dict[int, int] = {}

    def find(c: int) -> int:
        while parent.setdefault(c, c) != c:
            parent[c] = c = parent[parent[c]]
        return c

    joins = []
    for option in options:
        # Those that make the same forced class choose between them, so they belong together.
        joined = [-1 - c if c in forced else c for c in option.makes] + [c for c in option.needs if c not in forced]
        for c in joined[1:]:
            parent[find(c)] = find(joined[0])
        joins.append(joined[0])
    result: dict[int, list[Option]] = {}
    for option, c in zip(options, joins, strict=True):
        result.setdefault(find(c), []).append(option)
    return list(result.values())


def _shape(component: list[Option], forced: set[int]) -> tuple:
    """Equal for components that are equal up to the names of classes."""
    names: dict[int, int] = {}

    def named(classes: tuple[int, ...]) -> tuple:
        return tuple((names.setdefault(c, len(names)), c in forced) for c in classes)

    return tuple((option.cost, named(option.makes), named(option.needs)) for option in component)


# -- one integer program ---------------------------------------------------------------------------


def _solve(options: list[Option], forced: set[int], seconds: float) -> tuple[int, list[int] | None]:
    """(bound in ps, positions of the options of the cheapest choice; None if there was no time to find one)."""
    end = time.monotonic() + seconds
    program, bound = Program(options, forced), 0
    while True:
        proved, chosen = program.solve(max(end - time.monotonic(), MIN_SECONDS))
        bound = max(bound, proved)
        if chosen is None:
            return bound, None
        inner = [options[k]._replace(needs=tuple(c for c in options[k].needs if c in program.makers)) for k in chosen]
        circles = circles_of(inner)
        if not circles:
            return bound, chosen
        if time.monotonic() > end:
            return bound, None
        for circle in circles:
            program.forbid(circle)


# -- circles ---------------------------------------------------------------------------------------


def _needed(chosen: list[Option], wanted: frozenset[int]) -> list[Option]:
    """The chosen options, founded, in order and without superfluous ones."""
    ordered = in_order(chosen)
    made: dict[int, Option] = {}
    for option in ordered:
        for c in option.makes:
            made.setdefault(c, option)
    needed, stack = set(), list(wanted)
    while stack:
        option = made[stack.pop()]
        if option not in needed:
            needed.add(option)
            stack += option.needs
    return [option for option in ordered if option in needed]
