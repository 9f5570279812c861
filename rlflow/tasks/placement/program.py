"""The integer program of a placement: the optimum of the simulator `additive`, and lower bounds of both simulators.

A variable x(k, m) is 1 if tensor k lies in memory m, and t(i) is the time of step i; Σ t(i) is minimised. Equations in
the words of `simulators.py`:

- Σ_m x(k, m) = 1, and x(k, m) = 0 for an activation in a read-only memory.
- At every step, weights and live activations in memory m have at most its capacity. Only the last memory has none.
- t(i) ≥ compute(i).
- `additive`: t(i) ≥ P(i, m) for every memory m. The program is exact: the rectifier leaves its placements as they are.
- `compiler`: t(i) ≥ P(i, 0), and flows on every other port. s(i, m) bytes are prefetched from memory m and q(i, m)
  bytes wait to be written there after step i, at most the staging buffer together. In step i, port m loads
  s(i) − s(i − 1) + W(i) ≥ 0 bytes and writes q(i − 1) + A(i) − q(i) ≥ 0 bytes, and t(i) ≥ b_m · (loads + writes +
  inputs). Weights are prefetched for the next LOOKAHEAD steps only, and activations that were read do not wait. The
  simulator makes one such flow for every map, so the program's bound is a lower bound. Addresses are ignored, and the
  simulator's flow may not be the best.

The solver is HiGHS, by scipy. Bounds are proved
up to its tolerances, for which TOLERANCE is subtracted.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from rlflow.tasks.placement.simulators import LOOKAHEAD, Problem

TOLERANCE = 1e-6  # relative
GAP = 9e-5  # relative gap at which the search for a better placement ends
SCALE = 1000.0  # largest time and size in the program's own units, so that numbers are neither tiny nor huge


class Solved(NamedTuple):
    """The result of an integer program.

    Attributes:
      weights, outputs: int64 [n], the memory of each tensor; None if no placement was found in time.
      bound: a proved lower bound on the latency of every placement, in femtoseconds.
    """

    weights: np.ndarray | None
    outputs: np.ndarray | None
    bound: int


class _Rows:
    """Constraints lower ≤ A x ≤ upper, built row by row."""

    def __init__(self):
        self.rows, self.columns, self.values, self.lower, self.upper = [], [], [], [], []

    def add(self, terms: dict[int, float], lower: float, upper: float = np.inf) -> None:
        """Add lower ≤ Σ value · x[column] ≤ upper for the terms column → value."""
        self.rows += [len(self.lower)] * len(terms)
        self.columns += terms
        self.values += terms.values()
        self.lower.append(lower)
        self.upper.append(upper)

    def constraint(self, columns: int) -> LinearConstraint:
        matrix = csr_array((self.values, (self.rows, self.columns)), shape=(len(self.lower), columns))
        return LinearConstraint(matrix, self.lower, self.upper)


class _Program:
    """The program of a problem, as arrays that `scipy.optimize.milp` takes.

    The first columns are x(k, m), for weights if k < n and for activations if n ≤ k < 2 n. The next columns are t(i),
    the time after the last step, and the bytes of weights in each memory. The pairs s(i, m), q(i, m) for m > 0 come
    last.
    """

    def __init__(self, problem: Problem):
        self.problem, self.n, self.memories = problem, len(problem.weights), len(problem.capacity)
        self.times = 2 * self.n * self.memories
        self.size = self.times + self.n + 1 + self.memories
        self.size += 2 * self.n * (self.memories - 1) if problem.staging else 0
        moved = int(problem.weight_reads.sum() + problem.outputs.sum() + problem.reads.sum() + problem.given.sum())
        # Femtoseconds of the program's unit of time, and bytes of its unit of size.
        self.unit = (int(problem.compute.sum()) + moved * int(problem.fs_per_byte[-1])) / SCALE
        self.bytes = max(int(problem.weights.sum() + problem.outputs.sum()), 1) / SCALE
        self.rows = _Rows()
        self.lower, self.upper = np.zeros(self.size), np.full(self.size, np.inf)
        self.upper[: self.times] = 1
        self.lower[self.times : self.times + self.n] = problem.compute / self.unit
        for m in np.flatnonzero(problem.weights_only):
            self.upper[self.x(np.arange(self.n, 2 * self.n), m)] = 0
        self.one_memory()
        self.capacities()
        self.ports()
        if problem.staging:
            self.staging()

    def x(self, tensor, memory):
        return tensor * self.memories + memory

    def one_memory(self) -> None:
        for tensor in range(2 * self.n):
            self.rows.add({self.x(tensor, m): 1.0 for m in range(self.memories)}, 1.0, 1.0)

    def capacities(self) -> None:
        problem, n = self.problem, self.n
        for m in range(self.memories - 1):
            held = self.times + n + 1 + m
            sizes = {self.x(i, m): -size / self.bytes for i, size in enumerate(problem.weights.tolist()) if size}
            self.rows.add({held: 1.0} | sizes, 0.0)
            alive: list[int] = []
            for i in range(n):
                alive = [j for j in alive if problem.last[j] >= i] + ([i] if problem.outputs[i] else [])
                self.rows.add({held: -1.0} | self.sizes(alive, m, -1.0), -problem.capacity[m] / self.bytes)

    def sizes(self, operators, m: int, sign: float) -> dict[int, float]:
        """Return column → signed size of the activations of operators in memory m."""
        sizes = self.problem.outputs
        return {self.x(self.n + int(j), m): sign * sizes[j] / self.bytes for j in operators if sizes[j]}

    def traffic(self, i: int, m: int) -> tuple[dict[int, float], float]:
        """Return (column → −time of its bytes, time of the model's inputs) on port m in step i, as in P(i, m)."""
        problem, scale = self.problem, self.problem.fs_per_byte[m] / self.unit
        terms = {}
        for column, size in ((self.x(i, m), problem.weight_reads[i]), (self.x(self.n + i, m), problem.outputs[i])):
            if size:
                terms[column] = -size * scale
        for k in range(problem.starts[i], problem.starts[i + 1]):
            column = self.x(self.n + int(problem.sources[k]), m)
            terms[column] = terms.get(column, 0.0) - problem.reads[k] * scale
        return terms, (problem.given[i] * scale if m == self.memories - 1 else 0.0)

    def ports(self) -> None:
        """Add t(i) ≥ P(i, m), with the flows of the staging buffer on both sides."""
        for i in range(self.n):
            for m in range(self.memories):
                terms, given = self.traffic(i, m)
                if self.problem.staging and m:
                    carried = self.problem.fs_per_byte[m] * self.bytes / self.unit
                    now, before = self.staged(i, m), self.staged(i - 1, m)
                    terms |= {now[0]: -carried, now[1]: carried}
                    terms |= {before[0]: carried, before[1]: -carried} if i else {}
                self.rows.add({self.times + i: 1.0} | terms, given)

    def staged(self, i: int, m: int) -> tuple[int, int]:
        """Return the columns of s(i, m) and q(i, m)."""
        first = self.times + self.n + 1 + self.memories + 2 * (i * (self.memories - 1) + m - 1)
        return first, first + 1

    def staging(self) -> None:
        """Add the limits of s and q, and the time in which port m completes its writes after the last step."""
        problem, n = self.problem, self.n
        first_reader = np.full(n, n)
        readers = np.repeat(np.arange(n), np.diff(problem.starts))
        np.minimum.at(first_reader, problem.sources, readers)
        for i in range(n):
            everything = {column: -1.0 for m in range(1, self.memories) for column in self.staged(i, m)}
            self.rows.add(everything, -problem.staging / self.bytes)
            for m in range(1, self.memories):
                (loaded, waiting), (loaded_before, waiting_before) = self.staged(i, m), self.staged(i - 1, m)
                own = {self.x(i, m): problem.weight_reads[i] / self.bytes}
                self.rows.add({loaded: 1.0} | own | ({loaded_before: -1.0} if i else {}), 0.0)
                self.rows.add({waiting: -1.0} | self.sizes([i], m, 1.0) | ({waiting_before: 1.0} if i else {}), 0.0)
                ahead = range(i + 1, min(i + 1 + LOOKAHEAD, n))
                self.rows.add({loaded: -1.0} | {self.x(j, m): problem.weight_reads[j] / self.bytes for j in ahead}, 0.0)
                unread = np.flatnonzero((np.arange(n) <= i) & (first_reader > i))
                self.rows.add({waiting: -1.0} | self.sizes(unread, m, 1.0), 0.0)
        for m in range(1, self.memories):
            carried = problem.fs_per_byte[m] * self.bytes / self.unit
            self.rows.add({self.times + n: 1.0, self.staged(n - 1, m)[1]: -carried}, 0.0)

    def solve(self, seconds: float, whole: bool):
        """Return the result of scipy's `milp`; `whole` is False for the relaxation without integers."""
        cost, integrality = np.zeros(self.size), np.zeros(self.size)
        cost[self.times : self.times + self.n + 1] = 1.0
        integrality[: self.times] = whole
        return milp(
            cost, integrality=integrality, bounds=Bounds(self.lower, self.upper),
            constraints=self.rows.constraint(self.size), options={"time_limit": seconds, "mip_rel_gap": GAP},
        )  # fmt: skip

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
    result = program.solve(seconds, whole=True)
    bound = program.femtoseconds(result.mip_dual_bound)
    if result.x is None:
        return Solved(None, None, bound)
    chosen = result.x[: program.times].reshape(2 * program.n, -1).argmax(axis=1)
    return Solved(chosen[: program.n], chosen[program.n :], bound)


def lower_bound(problem: Problem) -> int:
    """Return the bound of the relaxation without integers, in femtoseconds; equal problems give equal bounds."""
    program = _Program(problem)
    return program.femtoseconds(program.solve(600.0, whole=False).fun)
