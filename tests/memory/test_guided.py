"""Test beams that priorities guide: exact without cuts, whatever the priorities; greedy if one set is kept."""

import numpy as np
import pytest

from rlflow.memory.order_search import MIN_GAIN, lowered, probable
from rlflow.memory.problem import by_priority, depth_first
from rlflow.tasks.ordering import layered
from tests.memory.small import all_orders, random_orders, small
from tests.suite import slow

ALL = 10**6


@pytest.mark.parametrize("seed", range(15))
def test_an_uncut_guided_search_finds_the_best_of_all_orders(seed):
    problem = small(seed)
    priorities, best = np.random.default_rng(seed).normal(0, 5, problem.n), problem.peaks(all_orders(problem)).min()
    assert best * MIN_GAIN < 1  # peaks are integers, so none lies within MIN_GAIN of the best peak
    assert problem.peak(probable(problem, priorities, ALL)) == best
    assert problem.peak(lowered(problem, priorities, ALL, depth_first(problem))) == best


@pytest.mark.parametrize("seed", range(3))
def test_a_guided_search_of_width_one_gives_the_greedy_order(seed):
    problem = layered(60, seed)
    priorities = np.random.default_rng(seed).normal(0, 5, problem.n)
    assert np.array_equal(probable(problem, priorities, 1), by_priority(problem, priorities[None])[0])


def good_order(problem) -> np.ndarray:
    orders = random_orders(problem, 2000, 0)
    return orders[problem.peaks(orders).argmin()]


def test_a_guided_search_follows_good_priorities():
    """The search follows priorities that decrease along a good order."""
    problem = layered(80, 0)
    good, priorities = good_order(problem), np.empty(problem.n)
    priorities[good] = -10.0 * np.arange(problem.n)
    assert problem.peak(probable(problem, priorities, 4)) <= problem.peak(good)
    assert problem.peak(probable(problem, -priorities, 4)) > problem.peak(good)
    first = depth_first(problem)
    assert problem.peak(lowered(problem, priorities, 4, first)) < problem.peak(lowered(problem, -priorities, 4, first))


@pytest.mark.parametrize("width", [20, *slow(1)])
def test_a_lowered_order_never_needs_more_memory(width):
    problem, gained = layered(80, 0), []
    for order in random_orders(problem, 5, 1):
        result = lowered(problem, np.zeros(problem.n), width, order)
        gained.append(problem.peak(order) - problem.peak(result))
    assert min(gained) >= 0 and (width == 1 or max(gained) > 0)
