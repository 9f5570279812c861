"""Small changes: valid, never worse, and enough to find the best of small problems."""

import numpy as np
import pytest

from rlflow.costs.memory.sorting import breadth_first
from rlflow.tasks.ordering.local_search import local_search, moved
from tests.tasks.ordering.small import all_orders, small


@pytest.mark.parametrize("seed", range(8))
def test_a_search_never_gets_worse_and_finds_the_best_of_small_problems(seed):
    problem = small(seed)
    start, peaks = breadth_first(problem), problem.peaks(all_orders(problem))
    result = [local_search(problem, start, steps, seed) for steps in (0, 1, 20)]
    values = [problem.peak(order) for order in result]
    assert np.array_equal(result[0], start) and values == sorted(values, reverse=True)
    assert values[-1] <= np.quantile(peaks, 0.2)


def test_a_node_moves_to_every_place_where_it_may_stand_and_to_no_other():
    problem, rng = small(4), np.random.default_rng(0)
    orders = {tuple(order) for order in all_orders(problem)}
    start = breadth_first(problem)
    for node in range(problem.n):
        reached = {tuple(moved(problem, start, node, rng).tolist()) for _ in range(200)}
        rest = [other for other in start if other != node]
        assert reached == {order for order in orders if [other for other in order if other != node] == rest}
