"""Extraction: the cheapest graph in an e-graph, or a lower bound on its cost.

If a chosen option needs a class, another chosen option must make the class. The cost of a choice counts each chosen
option once, whatever the number of its readers. A choice must be founded: computable from the inputs, without cycles.
`reduced` and the linear relaxation first drop the options that no choice below the known cost needs:

- options that need their own result, however their inputs are made (`Requirements`);
- options for which another option makes at least the same classes, costs at most as much, and needs only classes that
  the first option requires anyway;
- options whose reduced cost in the linear relaxation shows that a choice with them costs more than the known cost.

Removing the classes that every choice makes splits the options into independent components. Equal components are solved
once. An integer program starts with few of the rows that forbid cycles, so its value is a lower bound. For every cycle
in its solution, it receives a cut.
"""

import time
from collections.abc import Iterable

from rlflow.search.saturation.program import TOLERANCE, Option, Program, cycles_of, in_order, makers_of


def reduced(options: list[Option], wanted: frozenset[int]) -> list[Option]:
    """Drop options that are not necessary for a cheapest choice, until no further option can be dropped.

    An option is dropped if it cannot be computed, if no wanted class depends on it, or if `_undominated` drops it.

    Args:
      options: the options.
      wanted: the classes to be made.
    """
    while True:
        before = len(options)
        options = _undominated(_leading_to(options, wanted))
        if len(options) == before:
            return options


def _leading_to(options: list[Option], wanted: frozenset[int]) -> list[Option]:
    """Return the options that can be computed and on which a wanted class may depend.

    Each option follows options that make the classes it needs.
    """
    options = in_order(options)
    makers = makers_of(options)
    reached, stack = set(wanted), list(wanted)
    while stack:
        for option in makers.get(stack.pop(), ()):
            new = [c for c in option.needs if c not in reached]
            reached.update(new)
            stack += new
    return [option for option in options if not reached.isdisjoint(option.makes)]


class Requirements:
    """The required classes of each class: the classes that every way to compute it computes, itself included.

    The sets are the largest solution of two equations. The required classes of a class are the class itself and the
    intersection over the options that make it. The required classes of an option are the union over its needs. Sets are
    stored as bits of an integer.

    Args:
      options: the options; each follows options that make the classes it needs.
    """

    def __init__(self, options: list[Option]):
        makers = makers_of(options)
        self._bit = {c: 1 << position for position, c in enumerate(makers)}
        self._of_class = dict.fromkeys(makers, -1)  # −1 has all bits set
        changed = True
        while changed:
            changed = False
            for c, makes_it in makers.items():
                bits = -1
                for option in makes_it:
                    bits &= self.all(option.needs)
                bits |= self._bit[c]
                if bits != self._of_class[c]:
                    self._of_class[c], changed = bits, True

    def all(self, classes: Iterable[int]) -> int:
        """Return the union of the required classes of several classes, as a bit set."""
        bits = 0
        for c in classes:
            bits |= self._of_class[c]
        return bits

    def bits_of(self, classes: Iterable[int]) -> int:
        """Return the bit set that contains only the given classes."""
        return sum(self._bit[c] for c in set(classes))

    def of(self, classes: Iterable[int]) -> set[int]:
        """Return the union of the required classes of several classes, as a set."""
        bits = self.all(classes)
        return {c for c, bit in self._bit.items() if bits & bit}

    def needs_itself(self, option: Option) -> bool:
        """Return whether all classes that an option makes are required to compute the option."""
        bits = self.all(option.needs)
        return all(bits & self._bit[c] for c in option.makes)


def _undominated(options: list[Option]) -> list[Option]:
    """Drop options that need their own results, and options that are dominated by another option.

    The other option makes at least the same classes, costs at most as much, and needs only classes that the dominated
    option requires anyway. If two options dominate each other, the first one remains.
    """
    musts = Requirements(options)
    options = [option for option in options if not musts.needs_itself(option)]
    needs = {option: musts.bits_of(option.needs) for option in options}
    makers, beaten = makers_of(options), set()
    for option in reversed(options):
        there = musts.all(option.needs)
        for other in makers[option.makes[0]]:
            if (
                other is not option and other not in beaten and other.cost <= option.cost
                and needs[other] & ~there == 0 and set(option.makes) <= set(other.makes)
            ):  # fmt: skip
                beaten.add(option)
                break
    return [option for option in options if option not in beaten]


MIN_SECONDS = 0.1  # time limit of each integer program that is solved after the deadline


def extract(
    options: Iterable[Option], wanted: Iterable[int], known: int, seconds: float
) -> tuple[int, list[Option] | None]:
    """Find the cheapest choice of options that makes all wanted classes, or a lower bound on its cost.

    Args:
      options: the options; their needs do not contain graph inputs and constants.
      wanted: the classes to be made.
      known: cost in ps of a valid choice that the caller knows.
      seconds: time limit.

    Returns:
      (lower bound in ps on the cost of every choice, at most `known`; the cheapest choice found, each option after the
        options that make its needs). The second value is None if no founded choice was found.
    """
    end, wanted = time.monotonic() + seconds, frozenset(wanted)
    options, relaxed = _narrowed(list(options), wanted, known, end)
    if not wanted <= makers_of(options).keys():
        return known, None  # every choice costs more
    forced = Requirements(options).of(wanted)
    parts = _components(options, forced)
    solved: dict[tuple, tuple[int, list[int] | None]] = {}
    while True:
        bound, choice = 0, []
        for position, part in enumerate(sorted(parts, key=len)):  # Time that small parts leave goes to large parts.
            key = _shape(part, forced)
            if key not in solved:
                left = (end - time.monotonic()) / (len(parts) - position)
                solved[key] = _solve(part, forced, max(left, MIN_SECONDS))
            result, positions = solved[key]
            bound += result
            choice = None if choice is None or positions is None else [*choice, *(part[k] for k in positions)]
        bound = min(max(bound, relaxed), known)
        cycles = [] if choice is None else cycles_of(choice)
        if not cycles or time.monotonic() > end:
            return bound, None if choice is None or cycles else _without_superfluous(choice, wanted)
        for cycle in cycles:  # The parts that a cycle runs through are joined into one part.
            joined = [part for part in parts if any(not cycle.isdisjoint(option.makes) for option in part)]
            parts = [part for part in parts if part not in joined] + [[option for part in joined for option in part]]


def _narrowed(options: list[Option], wanted: frozenset[int], known: int, end: float) -> tuple[list[Option], int]:
    """Return the options that a choice of cost ≤ `known` may contain, and a lower bound on the cost of every choice.

    Args:
      options: the options.
      wanted: the classes to be made.
      known: cost in ps of a valid choice.
      end: time of the monotonic clock at which the work stops.
    """
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
        value = sum(component_value for component_value, _ in relaxations)
        bound = max(bound, int(value * (1 - TOLERANCE)))
        spare = known * (1 + TOLERANCE) + 1 - value
        kept = [
            option for component, (_, reduced_costs) in zip(components, relaxations, strict=True)
            for option, lift in zip(component, reduced_costs, strict=True) if lift <= spare
        ]  # fmt: skip
        if len(kept) == len(options):
            return options, bound
        options = kept


# -- components ------------------------------------------------------------------------------------


def _components(options: list[Option], forced: set[int]) -> list[list[Option]]:
    """Split the options into components, which can be solved independently.

    Two options are in one component if both make or need a class that is not forced, or both make the same forced
    class. This relation is closed transitively.

    Args:
      options: the options.
      forced: the classes that every choice makes.
    """
    parent: dict[int, int] = {}

    def find(c: int) -> int:
        while parent.setdefault(c, c) != c:
            parent[c] = c = parent[parent[c]]
        return c

    joins = []
    for option in options:
        # Options that make the same forced class are alternatives, so they belong to one component.
        joined = [-1 - c if c in forced else c for c in option.makes] + [c for c in option.needs if c not in forced]
        for c in joined[1:]:
            parent[find(c)] = find(joined[0])
        joins.append(joined[0])
    result: dict[int, list[Option]] = {}
    for option, c in zip(options, joins, strict=True):
        result.setdefault(find(c), []).append(option)
    return list(result.values())


def _shape(component: list[Option], forced: set[int]) -> tuple:
    """Return a key that is equal for components that are equal up to the numbers of their classes."""
    names: dict[int, int] = {}

    def named(classes: tuple[int, ...]) -> tuple:
        return tuple((names.setdefault(c, len(names)), c in forced) for c in classes)

    return tuple((option.cost, named(option.makes), named(option.needs)) for option in component)


# -- one integer program ---------------------------------------------------------------------------


def _solve(options: list[Option], forced: set[int], seconds: float) -> tuple[int, list[int] | None]:
    """Solve the integer program of one component.

    Args:
      options: the options of the component.
      forced: the classes that every choice makes.
      seconds: the time limit.

    Returns:
      (lower bound in ps on the cost of every choice, positions in `options` of the cheapest choice). The second value
        is None if no choice without cycles was found in time.
    """
    end = time.monotonic() + seconds
    program, bound = Program(options, forced), 0
    while True:
        proved, chosen = program.solve(max(end - time.monotonic(), MIN_SECONDS))
        bound = max(bound, proved)
        if chosen is None:
            return bound, None
        inner = [options[k]._replace(needs=tuple(c for c in options[k].needs if c in program.makers)) for k in chosen]
        cycles = cycles_of(inner)
        if not cycles:
            return bound, chosen
        if time.monotonic() > end:
            return bound, None
        for cycle in cycles:
            program.forbid(cycle)


def _without_superfluous(chosen: list[Option], wanted: frozenset[int]) -> list[Option]:
    """Return the chosen options that the wanted classes depend on, each after the options that compute its operands."""
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
