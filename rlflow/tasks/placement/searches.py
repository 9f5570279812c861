"""Searches for a placement without learning: greedy-DP, annealing and random search.

Every search counts its evaluations, so that methods can be compared at equal evaluations. It returns the best valid
decision, the numbers of evaluations at which it improved, and the objectives there.
"""

import math
import time
from typing import NamedTuple

import numpy as np

from rlflow.tasks.placement.program import GAP, solve
from rlflow.tasks.placement.task import Placements

ANNEALED = 50_000  # evaluations of annealing in `best_placement`
FIRST_TEMPERATURE, LAST_TEMPERATURE = 0.01, 0.0001  # of annealing, in units of the relative change of the objective


class Found(NamedTuple):
    """The result of a search.

    Attributes:
      decision: int64 [n], the best decision, which needs no repair.
      objective: its latency in femtoseconds.
      evaluations: the number of decisions evaluated.
      curve: (evaluations so far, best objective so far) at each improvement.
    """

    decision: np.ndarray
    objective: int
    evaluations: int
    curve: list[tuple[int, int]]


class Best:
    """The best decision so far, and the number of evaluations."""

    def __init__(self, instance: Placements, start: np.ndarray, limit: int, seconds: float):
        """Evaluate `start`, int64 [n]. The search ends after `limit` evaluations or after `seconds`."""
        self.instance, self.limit, self.deadline = instance, limit, time.monotonic() + seconds
        self.evaluations, self.curve = 0, []
        self.objective = np.iinfo(np.int64).max
        self.evaluate(start[None])

    @property
    def is_over(self) -> bool:
        return self.evaluations >= self.limit or time.monotonic() > self.deadline

    def evaluate(self, decisions: np.ndarray):
        result = self.instance.evaluate(decisions)
        first = int(result.objectives.argmin())
        if result.objectives[first] < self.objective:
            self.decision, self.objective = result.decisions[first], int(result.objectives[first])
            self.curve.append((self.evaluations + first + 1, self.objective))
        self.evaluations += len(decisions)
        return result

    def found(self) -> Found:
        return Found(self.decision, self.objective, self.evaluations, self.curve)


def all_slowest(instance: Placements) -> np.ndarray:
    """Return the decision, int64 [n], that leaves every tensor in the last memory: the paper's initial mapping."""
    return np.full(instance.workload.n, instance.memories**2 - 1)


def greedy_dp(instance: Placements, limit: int = 10**9, seconds: float = math.inf) -> Found:
    """Choose the best of all maps of one operator after another, until a pass changes nothing (the paper's baseline).

    The other operators keep their maps. The first pass begins with all tensors in the last memory. A map that needs a
    repair is not taken, as in the paper, where its reward is negative.

    Args:
      instance: the instance.
      limit: largest number of evaluations; the last operator is finished.
      seconds: time limit.
    """
    decision, options = all_slowest(instance), instance.memories**2
    best, before = Best(instance, decision, limit, seconds), None
    while not best.is_over and not np.array_equal(before, decision):
        before = decision.copy()
        for node in range(len(decision)):
            if best.is_over:
                break
            maps = np.tile(decision, (options, 1))
            maps[:, node] = np.arange(options)
            result = best.evaluate(maps)
            objectives = np.where(result.repaired == 0, result.objectives, np.iinfo(np.int64).max)
            objectives[decision[node]] -= 1  # of equal maps the present one stays
            decision[node] = int(objectives.argmin())
    return best.found()


def anneal(
    instance: Placements, limit: int, seed: int, start: np.ndarray | None = None, seconds: float = math.inf
) -> Found:
    """Search by simulated annealing: change the map of one random operator, and repair the result.

    Args:
      instance: the instance.
      limit: number of evaluations; the temperature falls geometrically over them.
      seed: seed of the random numbers.
      start: int64 [n], the decision to begin with; None for all tensors in the last memory.
      seconds: time limit.
    """
    rng, options = np.random.default_rng(seed), instance.memories**2
    best = Best(instance, all_slowest(instance) if start is None else start, limit, seconds)
    current, objective = best.decision, best.objective
    while not best.is_over:
        temperature = FIRST_TEMPERATURE * (LAST_TEMPERATURE / FIRST_TEMPERATURE) ** (best.evaluations / limit)
        other = current.copy()
        node = rng.integers(len(current))
        other[node] = (other[node] + rng.integers(1, options)) % options
        result = best.evaluate(other[None])
        change = (int(result.objectives[0]) - objective) / objective
        if change <= 0 or rng.random() < math.exp(-change / temperature):
            current, objective = result.decisions[0], int(result.objectives[0])
    return best.found()


def random_search(instance: Placements, limit: int, seed: int) -> Found:
    """Evaluate random decisions after their repair.

    Args:
      instance: the instance.
      limit: the number of evaluations.
      seed: the seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    best = Best(instance, all_slowest(instance), limit, math.inf)
    while not best.is_over:
        best.evaluate(rng.integers(instance.space.nvec, size=(min(256, limit - best.evaluations), instance.workload.n)))
    return best.found()


def best_placement(instance: Placements, seconds: float, seed: int) -> tuple[dict[str, Found], int]:
    """Place a model by the heuristic, by the integer program, and by annealing from the last memory and from the best.

    Annealing gets the time that the integer program leaves. The integer program gets half of the time if it is only a
    relaxation. If a placement meets the bound, annealing is left out.

    Args:
      instance: the instance.
      seconds: time limit of all methods together.
      seed: seed of annealing.

    Returns:
      (name of a method → its result, a proved lower bound in femtoseconds).
    """
    begun = time.monotonic()
    found = {"heuristic": Best(instance, instance.control(), 1, math.inf).found()}
    solved = solve(instance.problem, seconds / 2 if instance.problem.staging else seconds)
    if solved.weights is not None:
        decision = instance.memories * solved.weights + solved.outputs
        found["integer program"] = Best(instance, decision, 1, math.inf).found()
    best = min(found.values(), key=lambda one: one.objective)
    if best.objective > solved.bound * (1 + 2 * GAP):
        for name, start in (("annealing", None), ("annealing from the best", best.decision)):
            left = seconds - (time.monotonic() - begun)
            found[name] = anneal(instance, ANNEALED, seed, start, left)
    return found, solved.bound
