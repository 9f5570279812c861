"""The integer program of a placement: the optimum of the simulator `additive`, and lower bounds of both simulators.

A variable y(k, m) is 1 if tensor k lies in memory m or in a faster one, so x(k, m) = y(k, m) − y(k, m − 1) is 1 if it
lies in memory m. t(i) is the time of step i; Σ t(i) is minimised. The constraints, in the notation of `simulators.py`:

- y(k, m) ≥ y(k, m − 1), and equality for an activation in a read-only memory. The last memory holds the rest.
- Weights and the activations that are alive have at most the capacity of memory m. Rows for the sections, the maximal
  sets of activations that are alive together, suffice. The memories 0 … m together have at most the sum of their
  capacities. This follows from the rows of each memory, but solvers cut and branch better on rows with variables y
  only.
- t(i) ≥ compute(i).
- `additive`: t(i) ≥ P(i, m) for every memory m. The program is exact: the rectifier leaves its placements as they are.
- A step of `additive` with few tensors has a variable λ(p) for each *pattern* p, a choice of memory for each of its
  tensors. Σ λ(p) = 1, the patterns with tensor k in memory m sum to x(k, m), and t(i) ≥ Σ λ(p) · time(p). Without
  integers this is the convex hull of the step's times. Memories whose port cannot exceed compute(i) are one choice.
- `compiler`: t(i) ≥ P(i, 0), and flows on every other port. s(i, m) bytes are prefetched from memory m and q(i, m)
  bytes wait to be written there after step i, at most the staging buffer together. In step i, port m loads
  s(i) − s(i − 1) + W(i) ≥ 0 bytes and writes q(i − 1) + A(i) − q(i) ≥ 0 bytes, and t(i) ≥ b_m · (loads + writes +
  inputs). Weights are prefetched for the next LOOKAHEAD steps only. An activation that the next step reads, and the
  last one, are written at once; what was read does not wait. The simulator makes one such flow for every map, so the
  program's bound is a lower bound. Addresses are ignored, and the simulator's flow may not be the best.
- Ports prefetch greedily, the faster ones first. After the turn of port m, in which s(i, m) bytes are staged, one of
  three holds, and binary variables say which: all weights ahead in memory m are staged; the staging buffer is full;
  port m has carried as many bytes as t(i) allows.

The solver is HiGHS, by scipy. Bounds are proved up to its tolerances, for which TOLERANCE is subtracted.
"""

import itertools
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from rlflow.tasks.placement.packing import sections
from rlflow.tasks.placement.simulators import LOOKAHEAD, Problem

TOLERANCE = 1e-6  # relative
GAP = 9e-5  # relative gap at which the search for a better placement ends
SCALE = 1000.0  # largest time and size in the program's own units, so that numbers are neither tiny nor huge
PATTERNS = 300  # largest number of patterns of a step; steps with more patterns get the rows t(i) ≥ P(i, m) instead
ONE = -1  # the key of the constant in linear expressions, which are dictionaries of column → coefficient


class Solved(NamedTuple):
    """The result of an integer program.

    Attributes:
      weights, outputs: int64 [n], the memory of each tensor; None if no placement was found in time.
      bound: a proved lower bound on the latency of every placement, in femtoseconds.
    """

    weights: np.ndarray | None
    outputs: np.ndarray | None
    bound: int


def _sum(*parts: tuple[float, dict[int, float]]) -> dict[int, float]:
    """Return the terms of Σ factor · terms; terms are column → coefficient, with the constant at ONE."""
    result: dict[int, float] = {}
    for factor, terms in parts:
        for column, value in terms.items():
            result[column] = result.get(column, 0.0) + factor * value
    return result


class _Model:
    """Columns and rows of a program, built one by one."""

    def __init__(self):
        # For each column its cost, lower and upper bound, and whether it is an integer.
        self.cost, self.least, self.most, self.whole = [], [], [], []
        self.rows, self.columns, self.values, self.lower, self.upper = [], [], [], [], []

    def column(self, least: float = 0.0, cost: float = 0.0, whole: bool = False) -> int:
        """Add a variable, which is 0 or 1 if `whole`, and return its number. Its lower bound is `least`."""
        values = least, 1.0 if whole else np.inf, cost, whole
        for column, value in zip((self.least, self.most, self.cost, self.whole), values, strict=True):
            column.append(value)
        return len(self.cost) - 1

    def row(self, terms: dict[int, float], equal: bool = False) -> None:
        """Add the constraint terms ≥ 0, or terms = 0."""
        terms = dict(terms)
        bound = -terms.pop(ONE, 0.0)
        self.rows += [len(self.lower)] * len(terms)
        self.columns += terms
        self.values += terms.values()
        self.lower.append(bound)
        self.upper.append(bound if equal else np.inf)

    def solve(self, seconds: float, whole: bool):
        """Return the result of scipy's `milp`; `whole` is False for the relaxation without integers."""
        shape = len(self.lower), len(self.cost)
        matrix = csr_array((self.values, (self.rows, self.columns)), shape=shape)
        return milp(
            self.cost, integrality=np.array(self.whole) & whole, bounds=Bounds(self.least, self.most),
            constraints=LinearConstraint(matrix, self.lower, self.upper),
            options={"time_limit": seconds, "mip_rel_gap": GAP},
        )  # fmt: skip


class _Program:
    """The program of a problem. Tensor k is the weights of operator k if k < n, and the activation of k − n otherwise.

    The first columns are y(k, m) for every memory but the last, then t(i).
    """

    def __init__(self, problem: Problem):
        self.problem, self.n, self.last = problem, len(problem.weights), len(problem.capacity) - 1
        moved = int(problem.weight_reads.sum() + problem.outputs.sum() + problem.reads.sum() + problem.given.sum())
        # Femtoseconds of the program's unit of time, and bytes of its unit of size.
        self.unit = (int(problem.compute.sum()) + moved * int(problem.fs_per_byte[-1])) / SCALE
        self.bytes = max(int(problem.weights.sum() + problem.outputs.sum()), 1) / SCALE
        self.sizes = np.concatenate([problem.weights, problem.outputs]) / self.bytes
        self.model = _Model()
        for _ in range(2 * self.n * self.last):
            self.model.column(whole=True)
        self.times = [self.model.column(least=time / self.unit, cost=1.0) for time in problem.compute.tolist()]
        self.memories()
        self.capacities()
        if problem.staging:
            self.staging()
        for i in range(self.n):
            self.step(i)

    def upto(self, k: int, m: int) -> dict[int, float]:
        """Return the terms of y(k, m)."""
        if m == self.last:
            return {ONE: 1.0}
        return {k * self.last + m: 1.0} if m >= 0 else {}

    def inside(self, k: int, m: int) -> dict[int, float]:
        """Return the terms of x(k, m)."""
        return _sum((1.0, self.upto(k, m)), (-1.0, self.upto(k, m - 1)))

    def memories(self) -> None:
        """Add the rows of one memory for each tensor."""
        for k, m in itertools.product(range(2 * self.n), range(self.last)):
            self.model.row(self.inside(k, m), equal=k >= self.n and bool(self.problem.weights_only[m]))

    def capacities(self) -> None:
        """Add the rows of the capacity of each memory m, and of the memories 0 … m together."""
        made = np.flatnonzero(self.problem.outputs)
        last = self.problem.last[made]
        alive = [made[(made <= step) & (last >= step)] + self.n for step in sections(made, last + 1)] or [made]
        for m in range(self.last):
            for first in sorted({0, m}):
                self.capacity(first, m, alive)

    def capacity(self, first: int, last: int, alive: list[np.ndarray]) -> None:
        """Add the rows of the capacity of the memories first … last together.

        Args:
          first, last: the numbers of the memories.
          alive: sets of activations that are alive together, by their tensor numbers.
        """

        def held(tensors) -> list[tuple[float, dict[int, float]]]:
            inside = (_sum((1.0, self.upto(k, last)), (-1.0, self.upto(k, first - 1))) for k in tensors)
            return [(-self.sizes[k], terms) for k, terms in zip(tensors, inside, strict=True) if self.sizes[k]]

        weights = self.model.column()
        self.model.row(_sum((1.0, {weights: 1.0}), *held(range(self.n))))
        room = {ONE: self.problem.capacity[first : last + 1].sum() / self.bytes, weights: -1.0}
        for tensors in alive:
            self.model.row(_sum((1.0, room), *held(tensors.tolist())))

    def traffic(self, i: int) -> dict[int, int]:
        """Return tensor → the bytes of this tensor that step i reads and writes."""
        problem, n = self.problem, self.n
        result = {i: int(problem.weight_reads[i]), n + i: int(problem.outputs[i])}
        for k in range(problem.starts[i], problem.starts[i + 1]):
            source = n + int(problem.sources[k])
            result[source] = result.get(source, 0) + int(problem.reads[k])
        return {k: size for k, size in result.items() if size}

    def step(self, i: int) -> None:
        """Add t(i) ≥ P(i, m), with patterns or with the flows of the staging buffer on both sides."""
        problem, traffic = self.problem, self.traffic(i)
        given = [0] * self.last + [int(problem.given[i])]
        cost = problem.fs_per_byte.tolist()
        busy = [m for m in range(self.last + 1) if (sum(traffic.values()) + given[m]) * cost[m] > problem.compute[i]]
        idle = [m for m in range(self.last + 1) if m not in busy]
        if not problem.staging and (len(busy) + bool(idle)) ** len(traffic) <= PATTERNS:
            if busy:
                self.patterns(i, traffic, [[m] for m in busy] + [idle] * bool(idle), given)
            return
        for m in range(self.last + 1):
            self.model.row(self.idle(i, m))

    def idle(self, i: int, m: int) -> dict[int, float]:
        """Return the terms of t(i) − P(i, m), with the flows of the staging buffer."""
        port = [(float(size), self.inside(k, m)) for k, size in self.traffic(i).items()]
        port.append((float(self.problem.given[i]) if m == self.last else 0.0, {ONE: 1.0}))
        if self.problem.staging and m:
            for step, sign in ((i, self.bytes), (i - 1, -self.bytes)):
                loaded, waiting = self.staged[step, m]
                port.append((sign, {loaded: 1.0, waiting: -1.0}))
        scale = self.problem.fs_per_byte[m] / self.unit
        return _sum((1.0, {self.times[i]: 1.0}), *((-scale * size, terms) for size, terms in port))

    def patterns(self, i: int, traffic: dict[int, int], choices: list[list[int]], given: list[int]) -> None:
        """Add the patterns of step i.

        Args:
          i: the step.
          traffic: the result of `traffic`.
          choices: lists of memories. Each memory whose port can exceed compute(i) is a list of its own, and the other
            memories are one list.
          given: bytes of the model's inputs that the step reads through each port.
        """
        cost, longest, members = self.problem.fs_per_byte.tolist(), {}, {}
        for pattern in itertools.product(range(len(choices)), repeat=len(traffic)):
            port = list(given)
            for choice, size in zip(pattern, traffic.values(), strict=True):
                port[choices[choice][0]] += size
            column = self.model.column()
            busy = (size * cost[m] for m, size in enumerate(port) if [m] in choices)
            longest[column] = -max(int(self.problem.compute[i]), *busy) / self.unit
            for k, choice in zip(traffic, pattern, strict=True):
                members.setdefault((k, choice), {})[column] = 1.0
        self.model.row(_sum((1.0, longest), (1.0, {self.times[i]: 1.0})))
        self.model.row(dict.fromkeys(longest, 1.0) | {ONE: -1.0}, equal=True)
        for (k, choice), columns in members.items():
            parts = [(-1.0, self.inside(k, m)) for m in choices[choice]]
            self.model.row(_sum((1.0, columns), *parts), equal=True)

    def staging(self) -> None:
        """Add s and q with their limits, and the time in which port m completes its writes after the last step."""
        problem, n, model = self.problem, self.n, self.model
        steps, ports, first_reader = np.arange(n), range(1, self.last + 1), np.full(n, n)
        np.minimum.at(first_reader, problem.sources, np.repeat(steps, np.diff(problem.starts)))
        self.evicted = np.where((first_reader > steps + 1) & (steps < n - 1), self.sizes[n:], 0.0)
        # (step, port) → s and q. Step −1 is before the first one.
        self.staged = {(i, m): (model.column(), model.column()) for i in range(-1, n) for m in ports}
        for m in ports:
            model.row(dict.fromkeys(self.staged[-1, m], -1.0))
        for i in range(n):
            buffer = [(-1.0, dict.fromkeys(self.staged[i, m], 1.0)) for m in ports]
            model.row(_sum((problem.staging / self.bytes, {ONE: 1.0}), *buffer))
            unread = np.flatnonzero((steps <= i) & (first_reader > i)).tolist()
            for m in ports:
                (loaded, waiting), (loaded_before, waiting_before) = self.staged[i, m], self.staged[i - 1, m]
                own = problem.weight_reads[i] / self.bytes, self.inside(i, m)
                model.row(_sum((1.0, {loaded: 1.0, loaded_before: -1.0}), own))
                written = self.evicted[i], self.inside(n + i, m)
                model.row(_sum((1.0, {waiting_before: 1.0, waiting: -1.0}), written))
                model.row(_sum((-1.0, {loaded: 1.0}), *self.ahead(i, m)))
                model.row(_sum((-1.0, {waiting: 1.0}), *((self.evicted[j], self.inside(n + j, m)) for j in unread)))
                if m < self.last:
                    self.turn(i, m)
        end = model.column(cost=1.0)
        for m in ports:
            carried = problem.fs_per_byte[m] * self.bytes / self.unit
            model.row({end: 1.0, self.staged[n - 1, m][1]: -carried})

    def ahead(self, i: int, m: int) -> list[tuple[float, dict[int, float]]]:
        """Return the sizes of weights that port m may prefetch in step i, with the terms of x."""
        following = range(i + 1, min(i + 1 + LOOKAHEAD, self.n))
        loads = self.problem.weight_reads / self.bytes
        return [(loads[j], self.inside(j, m)) for j in following if loads[j]]

    def turn(self, i: int, m: int) -> None:
        """Add the end of the turn of port m in step i: all weights are staged, the buffer is full, or the port busy."""
        problem, model, ahead = self.problem, self.model, self.ahead(i, m)
        if not ahead:
            return
        full, busy, most = model.column(whole=True), model.column(whole=True), sum(size for size, _ in ahead)
        staged = {self.staged[i, m][0]: 1.0, full: most, busy: most}
        model.row(_sum((1.0, staged), *((-size, terms) for size, terms in ahead)))
        # Upper limit of the staged bytes at the end of the turn: slower ports still stage the bytes of the step before,
        # and no port has completed a write.
        held = [(1.0, {self.staged[i if port <= m else i - 1, port][0]: 1.0}) for port in range(1, self.last + 1)]
        for port in range(1, self.last + 1):
            held += [(1.0, {self.staged[i - 1, port][1]: 1.0}), (self.evicted[i], self.inside(self.n + i, port))]
        model.row(_sum((-problem.staging / self.bytes, {full: 1.0}), *held))
        moved = sum(self.traffic(i).values()) + int(problem.given[i]) + problem.staging
        longest = max(int(problem.compute[i]), moved * int(problem.fs_per_byte[-1])) / self.unit
        byte = problem.fs_per_byte[m] / self.unit  # the port carries whole bytes
        model.row(_sum((1.0, {ONE: longest + byte, busy: -longest}), (-1.0, self.idle(i, m))))

    def placement(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the memories of weights and activations, int64 [n] each, of a solution."""
        y = np.round(x[: 2 * self.n * self.last]).astype(np.int64).reshape(2, self.n, self.last)
        return tuple(self.last - y.sum(axis=2))

    def femtoseconds(self, bound: float | None) -> int:
        """Return a bound of the solver in femtoseconds; the sum of all computation if it has none."""
        known = bound is not None and np.isfinite(bound)
        return max(int(bound * self.unit * (1 - TOLERANCE)) if known else 0, int(self.problem.compute.sum()))


def solve(problem: Problem, seconds: float) -> Solved:
    """Solve the integer program of a problem.

    Args:
      problem: the problem. A problem with a staging buffer belongs to `compiler`, and the program is a relaxation.
      seconds: time limit of the solver. The bound of a solver that was stopped is still proved.
    """
    program = _Program(problem)
    result = program.model.solve(seconds, whole=True)
    bound = program.femtoseconds(result.mip_dual_bound)
    if result.x is None:
        return Solved(None, None, bound)
    return Solved(*program.placement(result.x), bound)


def lower_bound(problem: Problem) -> int:
    """Return a lower bound on the latency of every placement in femtoseconds, by the relaxation without integers.

    The result depends on the problem alone, so equal problems give equal bounds.
    """
    program = _Program(problem)
    return program.femtoseconds(program.model.solve(600.0, whole=False).fun)
