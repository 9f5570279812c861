"""Searches for a placement without learning: greedy-DP and annealing.

Every search counts its evaluations, so that methods can be compared after equal numbers of evaluations. It returns the
best valid decision and the curve of its improvements (`Found`).
"""

import math
import time
from typing import NamedTuple

import numpy as np

from rlflow.tasks.placement.program import GAP, solve
from rlflow.tasks.placement.simulators import COMPILER, compiled, rectified_latency
from rlflow.tasks.placement.task import Placements

ANNEALED = 1_000_000  # evaluations of one annealing in `best_placement`
# Temperatures of annealing, in units of the relative change of the objective: first, first from a good start, last.
HOT, WARM, COLD = 0.02, 0.002, 0.0001
SWAPS = 0.5  # share of the steps of annealing that swap two tensors
CHUNK = 1000  # steps of annealing after which the deadline is checked


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
        self.count(len(decisions), first, result.decisions[first], int(result.objectives[first]))
        return result

    def count(self, evaluations: int, first: int, decision: np.ndarray, objective: int) -> None:
        """Count evaluations, and keep the best one if it is an improvement.

        Args:
          evaluations: the number of evaluations.
          first: the number of the best one among these evaluations, from 0.
          decision: int64 [n], its decision.
          objective: its latency in femtoseconds.
        """
        if objective < self.objective:
            self.decision, self.objective = decision, objective
            self.curve.append((self.evaluations + first + 1, objective))
        self.evaluations += evaluations

    def found(self) -> Found:
        return Found(self.decision, self.objective, self.evaluations, self.curve)


def all_slowest(instance: Placements) -> np.ndarray:
    """Return the decision, int64 [n], that leaves every tensor in the last memory: the paper's initial mapping."""
    return np.full(instance.workload.n, instance.memories**2 - 1)


def greedy_dp(instance: Placements, limit: int = 10**9, seconds: float = math.inf) -> Found:
    """Improve the memories of one operator after another, until a pass changes nothing (the paper's baseline).

    All M² options of an operator (memory of its weights, memory of its activation) are evaluated while the other
    operators keep theirs, and the best option is taken. The first pass begins with all tensors in the last memory. An
    option that needs a repair is not taken. This agrees with the paper, where such an option has a negative reward.

    Args:
      instance: the instance.
      limit: largest number of evaluations; all options of the last operator are still evaluated.
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
            objectives[decision[node]] -= 1  # of equally good options the present one stays
            decision[node] = int(objectives.argmin())
    return best.found()


def anneal(
    instance: Placements, limit: int, seed: int, start: np.ndarray | None = None, seconds: float = math.inf
) -> Found:
    """Search by simulated annealing: move a random tensor or swap the memories of two, and repair the result.

    Args:
      instance: the instance.
      limit: number of evaluations. The temperature falls geometrically over the evaluations, or over the seconds if the
        seconds end first.
      seed: seed of the random numbers.
      start: int64 [n], a good decision to begin with; None for all tensors in the last memory.
      seconds: time limit.
    """
    rng, problem, begun = np.random.default_rng(seed), instance.problem, time.monotonic()
    hottest, begin = (HOT, all_slowest(instance)) if start is None else (WARM, start)
    best = Best(instance, begin, limit, seconds)
    maps = np.stack(np.divmod(best.decision, instance.memories))
    tensors, objective = np.flatnonzero(np.concatenate([problem.weights, problem.outputs])), best.objective
    while len(tensors) and instance.memories > 1 and not best.is_over:
        steps = min(CHUNK, limit - best.evaluations)
        share = np.maximum((best.evaluations + np.arange(steps)) / limit, (time.monotonic() - begun) / seconds)
        moved, other = rng.choice(tensors, (2, steps))
        other[rng.random(steps) >= SWAPS] = -1
        lowest, objective, first, found = _anneal(
            problem, instance.simulator == COMPILER, maps, objective, moved, other,
            rng.integers(1, instance.memories, steps), np.log(rng.random(steps)),
            hottest * (COLD / hottest) ** share,
        )  # fmt: skip
        best.count(steps, first, instance.memories * found[0] + found[1], lowest)
    return best.found()


@compiled
def _anneal(problem, addresses, maps, objective, moved, other, shifts, logarithms, temperatures):
    """Anneal a rectified map in place: `maps`, int64 [2, n], the memories of weights and activations.

    Step k moves the tensor moved[k] by shifts[k] memories if other[k] is negative. Otherwise it swaps the memories of
    moved[k] and other[k]. The number of a tensor is its index in the flat map. A step that raises the latency is
    accepted if the relative increase is at most −temperatures[k] · logarithms[k].

    Returns:
      (the lowest latency of all steps, the last accepted latency, the number of the step with the lowest latency, the
      map of this step); latencies are in femtoseconds.
    """
    memories, lowest, first, found = len(problem.capacity), np.int64(2**62), 0, maps.copy()
    for k in range(len(moved)):
        trial = maps.copy()
        flat = trial.reshape(-1)
        i, j = moved[k], other[k]
        if j < 0:
            flat[i] = (flat[i] + shifts[k]) % memories
        else:
            flat[i], flat[j] = flat[j], flat[i]
        latency = rectified_latency(problem, trial[0], trial[1], addresses)
        if latency < lowest:
            lowest, first, found = latency, k, trial
        if latency - objective <= -temperatures[k] * logarithms[k] * objective:
            maps[:] = trial
            objective = latency
    return lowest, objective, first, found


def best_placement(instance: Placements, seconds: float, seed: int) -> tuple[dict[str, Found], int]:
    """Place a model by the heuristic, by the integer program, and by annealing from the best placement so far.

    Annealing is repeated in the time that the integer program leaves, until a placement meets the bound. The integer
    program gets half of the time if it is only a relaxation (simulator `compiler`), and may use all of it otherwise.

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
    evaluations = 0
    while best.objective > solved.bound * (1 + 2 * GAP) and (left := seconds - (time.monotonic() - begun)) > 0:
        annealed = anneal(instance, ANNEALED, seed, best.decision, left)
        evaluations, seed = evaluations + annealed.evaluations, seed + 1
        found["annealing"] = best = annealed._replace(evaluations=evaluations)
    return found, solved.bound
