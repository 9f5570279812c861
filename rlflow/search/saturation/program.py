"""An integer program for the cheapest choice of operators from an e-graph, solved by HiGHS.

An `Option` computes some classes from others at a cost. The rows of a `Program` require that forced classes are made,
and that the needs of chosen options are made. Flow rows strengthen its linear relaxation and forbid most cycles;
`cycles_of` finds the remaining cycles, and `Program.forbid` cuts them off. scipy provides the solver, because OR-Tools
requires a version of protobuf with which this project is not tested.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Option(NamedTuple):
    """An operator of an e-graph that may be chosen.

    Attributes:
      cost: the cost of the operator in ps.
      makes: the classes of its outputs.
      needs: the classes of its inputs, without graph inputs and constants.
      node: the id of the operator.
    """

    cost: int
    makes: tuple[int, ...]
    needs: tuple[int, ...]
    node: int


def in_order(options: list[Option]) -> list[Option]:
    """Return the options that can be computed without cycles, each after options that make its needs."""
    waiting: dict[int, list[int]] = {}
    missing = [len(set(option.needs)) for option in options]
    for position, option in enumerate(options):
        for c in set(option.needs):
            waiting.setdefault(c, []).append(position)
    ready, made, ordered = [position for position, n in enumerate(missing) if n == 0], set(), []
    for position in ready:  # The loop extends this list.
        ordered.append(options[position])
        for c in options[position].makes:
            if c not in made:
                made.add(c)
                for reader in waiting.get(c, ()):
                    missing[reader] -= 1
                    if missing[reader] == 0:
                        ready.append(reader)
    return ordered


def makers_of(options: Iterable[Option]) -> dict[int, list[Option]]:
    """Return class → the options that make the class."""
    makers: dict[int, list[Option]] = {}
    for option in options:
        for c in option.makes:
            makers.setdefault(c, []).append(option)
    return makers


TOLERANCE = 1e-6  # relative tolerance of HiGHS
MAX_PICKS = 4  # largest number of flows from each forced class, see `Program._picks`


class Program:
    """An integer program over options.

    Column k < len(options) is 1 if option k is chosen. A row is (column → coefficient, number): the sum over the
    columns must be at least the number.

    The first rows require that forced classes are made, and that the needs of chosen options are made. Their linear
    relaxation is weak: three alternative options with value 1/3 need an option below them only with value 1/3. Flows
    strengthen the relaxation. For each flow, one need of each option is picked. In every choice, a path of chosen
    options then leads from a forced class down along the picked needs. One unit of flow follows this path, and the flow
    through an option is at most the option's column. Flows also forbid most cycles.

    Args:
      options: the options of one component.
      forced: the classes that every choice makes.
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
        """Add rows that require one of the options `some` if any of the readers is chosen.

        A cheapest choice contains no two readers that make the same classes, so such readers share a row.

        Args:
          some: columns of the options that make a class.
          readers: columns of the options that need the class.
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
        """Return at most MAX_PICKS ways to pick one need of each option.

        Way k picks the need that is the k-th most expensive to make, or the last one if the option has fewer needs.
        Needs that are forced or made in another component are not picked; the pick is None if no need remains.
        """
        cost: dict[int, int] = {}  # class → cost of making it, counting shared needs several times
        for option in in_order([o._replace(needs=tuple(c for c in o.needs if c in self.makers)) for o in self.options]):
            total = option.cost + sum(cost.get(c, 0) for c in option.needs)
            for c in option.makes:
                cost[c] = min(total, cost.get(c, total))
        ordered = []  # for each option its open needs, the costliest first
        for option in self.options:
            needs = [c for c in option.needs if c in self.makers and c not in forced]
            ordered.append(sorted(needs, key=lambda c: (-cost.get(c, 0), c)))
        ways = min(max(map(len, ordered), default=0), MAX_PICKS)
        picks = []
        for way in range(ways):
            picks.append([needs[min(way, len(needs) - 1)] if needs else None for needs in ordered])
        return picks

    def _flow(self, source: int, pick: list[int | None]) -> None:
        """Add the columns and rows for one unit of flow from a forced class down along the picked needs.

        Args:
          source: the forced class.
          pick: for each option the picked need, or None.
        """
        reached, stack = {source}, [source]
        while stack:
            for k in self.makers[stack.pop()]:
                if pick[k] is not None and pick[k] not in reached:
                    reached.add(pick[k])
                    stack.append(pick[k])
        used = sorted({k for c in reached for k in self.makers[c]})
        if all(pick[k] is None for k in used):
            return  # The flow would only repeat the row of the class.
        column = {k: self.columns + position for position, k in enumerate(used)}
        self.columns += len(used)
        self.rows += [({k: 1, column[k]: -1}, 0) for k in used]
        for c in sorted(reached):
            row = {column[k]: 1 for k in self.makers[c]}
            for k in self.readers.get(c, ()):
                if k in column and pick[k] == c:
                    row[column[k]] = row.get(column[k], 0) - 1
            self.rows.append((row, 1 if c == source else 0))

    def forbid(self, cycle: set[int]) -> None:
        """Add rows that cut off a cycle.

        If a chosen option needs a class of the cycle, the rows require an option that makes a class of the cycle
        without needing one.
        """
        outside = sorted({k for c in cycle for k in self.makers[c] if cycle.isdisjoint(self.options[k].needs)})
        if not cycle.isdisjoint(self.forced):
            self.rows.append((dict.fromkeys(outside, 1), 1))
        self._require(outside, sorted({k for c in cycle for k in self.readers.get(c, ())}))

    # -- HiGHS -------------------------------------------------------------------------------------

    def _arrays(self):
        """Return the program as arrays.

        Returns:
          (costs of the columns relative to the largest cost, largest cost in ps, sparse matrix of the rows, smallest
          allowed sum of each row).
        """
        from scipy.sparse import csr_array

        entries = [(r, k, value) for r, (row, _) in enumerate(self.rows) for k, value in row.items()]
        rows, columns, values = (np.array(part) for part in zip(*entries, strict=True))
        matrix = csr_array((values, (rows, columns)), shape=(len(self.rows), self.columns))
        costs = np.zeros(self.columns)
        costs[: len(self.options)] = [option.cost for option in self.options]
        scale = max(costs.max(), 1.0)
        return costs / scale, scale, matrix, np.array([least for _, least in self.rows])

    def relax(self, seconds: float) -> tuple[float, np.ndarray]:
        """Solve the linear relaxation. The value and all reduced costs are 0 if it is not solved within `seconds`.

        Returns:
          (optimal value in ps; float64 [number of options], the reduced cost of each option in ps).
        """
        from scipy.optimize import linprog

        costs, scale, matrix, least = self._arrays()
        result = linprog(
            costs, A_ub=-matrix, b_ub=-least, bounds=(0, None), method="highs", options={"time_limit": seconds}
        )
        if result.status != 0:
            return 0.0, np.zeros(len(self.options))
        return result.fun * scale, result.lower.marginals[: len(self.options)] * scale

    def solve(self, seconds: float) -> tuple[int, list[int] | None]:
        """Solve the integer program within a time limit.

        Returns:
          (lower bound in ps on the cost of every choice, columns of the options in the cheapest choice found). The
          second value is None if no choice was found.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        costs, scale, matrix, least = self._arrays()
        whole = np.arange(self.columns) < len(self.options)
        result = milp(
            costs, integrality=whole, bounds=Bounds(0, np.where(whole, 1, np.inf)),
            constraints=LinearConstraint(matrix, lb=least), options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )  # fmt: skip
        chosen = None if result.x is None else [int(k) for k in np.flatnonzero(result.x[whole] > 0.5)]
        if result.status == 0:
            return sum(self.options[k].cost for k in chosen), chosen
        dual = result.mip_dual_bound
        return 0 if dual is None or not np.isfinite(dual) else max(int(dual * scale * (1 - TOLERANCE)), 0), chosen


def cycles_of(chosen: list[Option]) -> list[set[int]]:
    """Return the cycles of a choice. The list is empty if the choice is founded.

    A cycle is a set of classes such that every chosen option that makes a class of the set also needs a class of the
    set.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    founded = {c for option in in_order(chosen) for c in option.makes}
    left = [option for option in chosen if not founded.issuperset(option.makes)]
    position: dict[int, int] = {}  # class → its row and column in the matrix
    for option in left:
        for c in option.makes:
            if c not in founded:
                position.setdefault(c, len(position))
    edges = set()
    for option in left:
        for c in option.makes:
            if c in position:
                edges.update((position[c], position[n]) for n in option.needs if n in position)
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
    return [_shortest_cycle(members, left) for members in closed.values()]


def _shortest_cycle(cycle: set[int], chosen: list[Option]) -> set[int]:
    """Return the shortest cycle of needs within a set of classes.

    If a chosen option makes a class of this cycle without needing one, the whole set is returned.

    Args:
      cycle: the set of classes, a result of `cycles_of` before it is shortened.
      chosen: the chosen options that cannot be computed.
    """
    following: dict[int, list[int]] = {c: [] for c in cycle}
    for option in chosen:
        for c in cycle.intersection(option.makes):
            following[c] += [n for n in option.needs if n in cycle]
    shortest = cycle
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
    return cycle if outside else shortest
