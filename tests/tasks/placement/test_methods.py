"""Test the integer program and the searches against an enumeration of all maps."""

import itertools

import numpy as np
import pytest

from benchmarks.placement import random_search
from rlflow.tasks.placement.program import lower_bound, solve
from rlflow.tasks.placement.searches import all_slowest, anneal, best_placement, greedy_dp
from rlflow.tasks.placement.simulators import SIMULATORS
from tests.tasks.placement.models import chain, instance, random_workload


def every_map(problem) -> np.ndarray:
    return np.array(list(itertools.product(range(problem.memories**2), repeat=problem.workload.n)))


@pytest.mark.parametrize("seed", range(3))
def test_the_integer_program_finds_the_optimum_of_the_additive_simulator(seed):
    problem = instance(random_workload(5, seed), sram=70)
    best = problem.evaluate(every_map(problem)).objectives.min()
    solved = solve(problem.problem, 30)
    result = problem.evaluate((2 * solved.weights + solved.outputs)[None])
    assert result.objectives[0] == best and not result.repaired[0]
    assert best * (1 - 1e-4) - 1 <= solved.bound <= best and lower_bound(problem.problem) <= solved.bound


def test_weights_alone_respect_the_capacities():
    """Without activations only capacities matter: 70 + 60 bytes exceed 100, and 70 bytes in SRAM save most."""
    problem = instance(chain([70, 60], [0, 0], [1, 1]))
    solved = solve(problem.problem, 30)
    assert solved.weights.tolist() == [0, 1] and 699 <= solved.bound <= 100 + 600


@pytest.mark.parametrize(
    "seed, staging, flash", [(0, 10, False), (1, 10, False), (2, 40, False), (3, 20, True), (7, 30, True)]
)
def test_no_placement_costs_less_than_the_bound_for_the_compiler_simulator(seed, staging, flash):
    problem = instance(random_workload(4 if flash else 5, seed), "compiler", sram=70, staging=staging, flash=flash)
    best = problem.evaluate(every_map(problem)).objectives.min()
    assert 0 < lower_bound(problem.problem) <= solve(problem.problem, 30).bound <= best


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_searches_return_valid_maps_and_count_their_evaluations(simulator):
    problem = instance(random_workload(8, 0), simulator, sram=90, staging=16)
    start = int(problem.evaluate(all_slowest(problem)[None]).objectives[0])
    for found in (greedy_dp(problem), anneal(problem, 300, 0), random_search(problem, 300, 0)):
        result = problem.evaluate(found.decision[None])
        assert result.objectives[0] == found.objective < start and not result.repaired[0]
        counts, objectives = zip(*found.curve, strict=True)
        assert counts[0] == 1 and counts[-1] <= found.evaluations and list(objectives) == sorted(objectives)[::-1]
    assert anneal(problem, 300, 0).decision.tolist() == anneal(problem, 300, 0).decision.tolist()


def test_greedy_dp_ends_where_no_single_operator_can_change():
    problem = instance(random_workload(8, 4), sram=90)
    found = greedy_dp(problem)
    for node, option in itertools.product(range(8), range(4)):
        other = found.decision.copy()
        other[node] = option
        result = problem.evaluate(other[None])
        assert result.repaired[0] or result.objectives[0] >= found.objective


def test_best_placement_is_the_optimum_and_its_gap_is_proved():
    problem = instance(random_workload(5, 1), sram=70)
    found, bound = best_placement(problem, 1, 0)
    best = problem.evaluate(every_map(problem)).objectives.min()
    assert min(one.objective for one in found.values()) == best >= bound >= best * (1 - 1e-4) - 1
