"""The cheapest graph in an e-graph, or a bound below it: an integer program, taken apart.

A class must be made by an option if anything chosen needs it; every option chosen is paid once, however many read it.
What is chosen must be founded: made from the inputs up, not in a circle. Options that no choice below the price of one
that is known needs are dropped first, again and again:

- those that need what they give, in whatever way their inputs are made: `_Musts` knows what a class cannot do without;
- those beaten by another that gives at least the same, costs no more, and needs only what is there anyhow;
- those whose reduced cost in the linear relaxation lifts it above the price that is known.

Classes that every choice must make cut the rest into components that are solved on their own; equal ones once. A
program begins without most of what forbids circles, which keeps it a bound, and gets a cut for every circle that shows up.
"""

import time
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

TOLERANCE = 1e-6  # relative, of what HiGHS calls proved
MIN_SECONDS = 0.1  # for one program, even when time is up
MAX_PICKS = 4  # ways to pick a need for each option, and so flows from each forced class


class Option(NamedTuple):
    """A way to compute the classes `makes` from the classes `needs`, by the operator `node` of the e-graph, for `price` (ps)."""

    price: int
    makes: tuple[int, ...]
    needs: tuple[int, ...]
    node: int


class Extraction(NamedTuple):
    """bound: ps that no choice costs less than.  choice: the best found, in an order in which it can be computed; None
    if none was found that costs no more than what was known."""

    bound: int
    choice: list[Option] | None


def extract(options: Iterable[Option], wanted: Iterable[int], known: int, seconds: float) -> Extraction:
    """The cheapest choice of options that makes the `wanted` classes out of nothing, or what is known of it in time.

    Graph inputs and constants are nobody's needs. `known` is the price of some choice (ps).
    """
    end, wanted = time.monotonic() + seconds, frozenset(wanted)
    options, relaxed = _narrowed(list(options), wanted, known, end)
    if not wanted <= _makers(options).keys():
        return Extraction(known, None)  # every choice costs more
    forced = _Musts(options).of(wanted)
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
        circles = [] if choice is None else _circles(choice)
        if not circles or time.monotonic() > end:
            return Extraction(bound, None if choice is None or circles else _needed(choice, wanted))
        for circle in circles:  # through several parts: they become one
            joined = [part for part in parts if any(not circle.isdisjoint(option.makes) for option in part)]
            parts = [part for part in parts if part not in joined] + [[option for part in joined for option in part]]


def _narrowed(options: list[Option], wanted: frozenset[int], known: int, end: float) -> tuple[list[Option], int]:
    """(the options that a choice of at most the price `known` may hold, a bound in ps)."""
    bound, relaxed = 0, {}
    while True:
        options = _reduce(options, wanted)
        if not wanted <= _makers(options).keys():
            return [], bound
        forced = _Musts(options).of(wanted)
        components = _components(options, forced)
        relaxations = []
        for component in components:
            if time.monotonic() > end:
                return options, bound
            key = _shape(component, forced)
            if key not in relaxed:
                relaxed[key] = _Program(component, forced).relax(max(end - time.monotonic(), MIN_SECONDS))
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


def _reduce(options: list[Option], wanted: frozenset[int]) -> list[Option]:
    while True:
        before = len(options)
        options = _unbeaten(_useful(options, wanted))
        if len(options) == before:
            return options


def _useful(options: list[Option], wanted: frozenset[int]) -> list[Option]:
    """Those that can be computed and lead to what is wanted, in an order in which they can be computed."""
    options = _in_order(options)
    makers = _makers(options)
    reached, stack = set(wanted), list(wanted)
    while stack:
        for option in makers.get(stack.pop(), ()):
            new = [c for c in option.needs if c not in reached]
            reached.update(new)
            stack += new
    return [option for option in options if not reached.isdisjoint(option.makes)]


def _in_order(options: list[Option]) -> list[Option]:
    """The options that can be computed at all, each after others that make what it needs."""
    waiting: dict[int, list[int]] = {}
    missing = [len(set(option.needs)) for option in options]
    for position, option in enumerate(options):
        for c in set(option.needs):
            waiting.setdefault(c, []).append(position)
    ready, made, ordered = [position for position, n in enumerate(missing) if n == 0], set(), []
    for position in ready:  # grows
        ordered.append(options[position])
        for c in options[position].makes:
            if c not in made:
                made.add(c)
                for reader in waiting.get(c, ()):
                    missing[reader] -= 1
                    if missing[reader] == 0:
                        ready.append(reader)
    return ordered


def _makers(options: Iterable[Option]) -> dict[int, list[Option]]:
    makers: dict[int, list[Option]] = {}
    for option in options:
        for c in option.makes:
            makers.setdefault(c, []).append(option)
    return makers


class _Musts:
    """What a class, or an option, cannot be computed without. Sets are whole numbers, a bit for each class.

    The largest solution of: a class cannot do without itself and what none of its options can do without; an option not
    without what any of its needs cannot. `options` must be in an order in which they can be computed.
    """

    def __init__(self, options: list[Option]):
        makers = _makers(options)
        self._bit = {c: 1 << position for position, c in enumerate(makers)}
        self._of_class = dict.fromkeys(makers, -1)  # all there is
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
        bits = 0
        for c in classes:
            bits |= self._of_class[c]
        return bits

    def exactly(self, classes: Iterable[int]) -> int:
        return sum(self._bit[c] for c in set(classes))

    def of(self, classes: Iterable[int]) -> set[int]:
        bits = self.all(classes)
        return {c for c, bit in self._bit.items() if bits & bit}

    def is_circular(self, option: Option) -> bool:
        """Whether all that the option gives would be there before it could be computed."""
        bits = self.all(option.needs)
        return all(bits & self._bit[c] for c in option.makes)


def _unbeaten(options: list[Option]) -> list[Option]:
    """Without those that are circular or beaten; of equally good ones the first stays.

    An option is beaten by one that gives at least the same, costs no more, and needs only what the option cannot do without.
    """
    musts = _Musts(options)
    options = [option for option in options if not musts.is_circular(option)]
    needs = {option: musts.exactly(option.needs) for option in options}
    makers, beaten = _makers(options), set()
    for option in reversed(options):
        there = musts.all(option.needs)
        for other in makers[option.makes[0]]:
            if (
                other is not option and other not in beaten and other.price <= option.price
                and needs[other] & ~there == 0 and set(option.makes) <= set(other.makes)
            ):  # fmt: skip
                beaten.add(option)
                break
    return [option for option in options if option not in beaten]


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

    return tuple((option.price, named(option.makes), named(option.needs)) for option in component)


# -- one integer program ---------------------------------------------------------------------------


def _solve(options: list[Option], forced: set[int], seconds: float) -> tuple[int, list[int] | None]:
    """(bound in ps, places of the options of the cheapest choice; None if there was no time to find one)."""
    end = time.monotonic() + seconds
    program, bound = _Program(options, forced), 0
    while True:
        proved, chosen = program.solve(max(end - time.monotonic(), MIN_SECONDS))
        bound = max(bound, proved)
        if chosen is None:
            return bound, None
        inner = [options[k]._replace(needs=tuple(c for c in options[k].needs if c in program.makers)) for k in chosen]
        circles = _circles(inner)
        if not circles:
            return bound, chosen
        if time.monotonic() > end:
            return bound, None
        for circle in circles:
            program.forbid(circle)


class _Relaxation(NamedTuple):
    """The linear relaxation: its value and the reduced cost of each option (ps)."""

    value: float
    reduced: np.ndarray


class _Program:
    """Column k < len(options) is 1 if option k is chosen; rows are (column → coefficient) with a sum ≥ a number.

    The rows say that forced classes are made, and what a chosen option needs. In fractions that is weak: an option chosen
    by a third asks for a third of what three such need together. So there are flows, too: whatever one need is picked
    for each option, from every forced class a path of chosen options leads down along these needs; a unit of flow on it
    takes at most the share by which the options are chosen. Flows also forbid most circles.
    """

    def __init__(self, options: list[Option], forced: set[int]):
        self.options, self.columns = options, len(options)
        self.makers: dict[int, list[int]] = {}
        self.readers: dict[int, list[int]] = {}
        for k, option in enumerate(options):
            for c in option.makes:
                self.makers.setdefault(c, []).append(k)
            for c in option.needs:
                self.readers.setdefault(c, []).append(k)
        self.forced = [c for c in self.makers if c in forced]
        self.rows: list[tuple[dict[int, int], int]] = []
        for c, makers in self.makers.items():
            if c in forced:
                self.rows.append((dict.fromkeys(makers, 1), 1))
            else:
                self._require(makers, self.readers.get(c, ()))
        for pick in self._picks(forced):
            for c in self.forced:
                self._flow(c, pick)

    def _require(self, some: Iterable[int], readers: Iterable[int]) -> None:
        """Some of the options `some` are chosen if one of the readers is.

        Of the options that give the same, no cheapest choice holds two: they share a row.
        """
        alike: dict[tuple, list[int]] = {}
        for k in readers:
            alike.setdefault(self.options[k].makes, []).append(k)
        for group in alike.values():
            row = dict.fromkeys(some, 1)
            for k in group:
                row[k] = row.get(k, 0) - 1
            self.rows.append((row, 0))

    def _picks(self, forced: set[int]) -> list[list[int | None]]:
        """Some ways to pick a need for each option: the dearest one, the second dearest, …; None where none is left open.

        Classes that are forced, or made elsewhere, are made anyhow.
        """
        price: dict[int, int] = {}
        for option in _in_order([o._replace(needs=tuple(c for c in o.needs if c in self.makers)) for o in self.options]):
            total = option.price + sum(price.get(c, 0) for c in option.needs)
            price.update({c: min(total, price.get(c, total)) for c in option.makes})
        open_ = [
            sorted((c for c in option.needs if c in self.makers and c not in forced), key=lambda c: (-price.get(c, 0), c))
            for option in self.options
        ]
        ways = min(max(map(len, open_), default=0), MAX_PICKS)
        return [[needs[min(way, len(needs) - 1)] if needs else None for needs in open_] for way in range(ways)]

    def _flow(self, source: int, pick: list[int | None]) -> None:
        """A unit of flow from a forced class down the picked needs."""
        reached, stack = {source}, [source]
        while stack:
            for k in self.makers[stack.pop()]:
                if pick[k] is not None and pick[k] not in reached:
                    reached.add(pick[k])
                    stack.append(pick[k])
        used = sorted({k for c in reached for k in self.makers[c]})
        if all(pick[k] is None for k in used):
            return  # the flow would be no more than the row of the class
        column = {k: self.columns + position for position, k in enumerate(used)}
        self.columns += len(used)
        self.rows += [({k: 1, column[k]: -1}, 0) for k in used]
        for c in sorted(reached):
            row = {column[k]: 1 for k in self.makers[c]}
            for k in self.readers.get(c, ()):
                if k in column and pick[k] == c:
                    row[column[k]] = row.get(column[k], 0) - 1
            self.rows.append((row, 1 if c == source else 0))

    def forbid(self, circle: set[int]) -> None:
        """If any class of the circle is used, one of them is made from outside of it."""
        outside = sorted({k for c in circle for k in self.makers[c] if circle.isdisjoint(self.options[k].needs)})
        if not circle.isdisjoint(self.forced):
            self.rows.append((dict.fromkeys(outside, 1), 1))
        self._require(outside, sorted({k for c in circle for k in self.readers.get(c, ())}))

    # -- HiGHS -------------------------------------------------------------------------------------

    def _arrays(self):
        """(prices as shares of the highest, that one, matrix, least sums)"""
        from scipy.sparse import csr_array

        entries = [(r, k, value) for r, (row, _) in enumerate(self.rows) for k, value in row.items()]
        rows, columns, values = (np.array(part) for part in zip(*entries, strict=True))
        matrix = csr_array((values, (rows, columns)), shape=(len(self.rows), self.columns))
        prices = np.zeros(self.columns)
        prices[: len(self.options)] = [option.price for option in self.options]
        scale = max(prices.max(), 1.0)
        return prices / scale, scale, matrix, np.array([least for _, least in self.rows])

    def relax(self, seconds: float) -> _Relaxation:
        """Says nothing, which is true, when time ends."""
        from scipy.optimize import linprog

        prices, scale, matrix, least = self._arrays()
        result = linprog(prices, A_ub=-matrix, b_ub=-least, bounds=(0, None), method="highs", options={"time_limit": seconds})
        if result.status != 0:
            return _Relaxation(0.0, np.zeros(len(self.options)))
        return _Relaxation(result.fun * scale, result.lower.marginals[: len(self.options)] * scale)

    def solve(self, seconds: float) -> tuple[int, list[int] | None]:
        """(bound in ps, the options of the best choice; None if there was no time to find one)."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        prices, scale, matrix, least = self._arrays()
        whole = np.arange(self.columns) < len(self.options)
        result = milp(
            prices, integrality=whole, bounds=Bounds(0, np.where(whole, 1, np.inf)),
            constraints=LinearConstraint(matrix, lb=least), options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )  # fmt: skip
        chosen = None if result.x is None else [int(k) for k in np.flatnonzero(result.x[whole] > 0.5)]
        if result.status == 0:
            return sum(self.options[k].price for k in chosen), chosen
        dual = result.mip_dual_bound
        return 0 if dual is None or not np.isfinite(dual) else max(int(dual * scale * (1 - TOLERANCE)), 0), chosen


# -- circles ---------------------------------------------------------------------------------------


def _circles(chosen: list[Option]) -> list[set[int]]:
    """Sets of classes, none of which a chosen option makes from outside of the set; none if all is founded."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    founded = {c for option in _in_order(chosen) for c in option.makes}
    left = [option for option in chosen if not founded.issuperset(option.makes)]
    position = {c: k for k, c in enumerate(dict.fromkeys(c for option in left for c in option.makes if c not in founded))}
    edges = {(position[c], position[n]) for option in left for c in option.makes for n in option.needs if c in position and n in position}
    if not edges:
        return []
    rows, columns = np.array(sorted(edges)).T
    matrix = csr_array((np.ones(len(edges)), (rows, columns)), shape=(len(position), len(position)))
    _, labels = connected_components(matrix, connection="strong")
    open_ = {labels[row] for row, column in edges if labels[row] != labels[column]}
    closed: dict[int, set[int]] = {}
    for c, label in zip(position, labels, strict=True):
        if label not in open_:
            closed.setdefault(label, set()).add(c)
    return [_smaller(members, left) for members in closed.values()]


def _smaller(circle: set[int], chosen: list[Option]) -> set[int]:
    """The shortest circle among classes that make one another, if no chosen option makes any of it from outside; else all."""
    following: dict[int, list[int]] = {c: [] for c in circle}
    for option in chosen:
        for c in circle.intersection(option.makes):
            following[c] += [n for n in option.needs if n in circle]
    shortest = circle
    for start in following:
        before, queue = {start: None}, [start]
        for c in queue:
            if start in following[c]:
                path = set()
                while c is not None:
                    path.add(c)
                    c = before[c]
                shortest = min(shortest, path, key=len)
                break
            for n in following[c]:
                if n not in before:
                    before[n] = c
                    queue.append(n)
    outside = any(not shortest.isdisjoint(o.makes) and shortest.isdisjoint(o.needs) for o in chosen)
    return circle if outside else shortest


def _needed(chosen: list[Option], wanted: frozenset[int]) -> list[Option]:
    """The chosen options, founded, in order and without superfluous ones."""
    ordered = _in_order(chosen)
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
