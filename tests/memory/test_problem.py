"""Test the peaks of orders: batches of orders equal a count by hand."""

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.memory import problem as module
from rlflow.memory.problem import Problem, breadth_first, by_priority, depth_first
from tests.memory.small import all_orders, counted, random_orders, small


@pytest.mark.parametrize("seed", range(12))
def test_peaks_equal_the_count_by_hand(seed):
    problem = small(seed)
    orders = all_orders(problem)
    drawn = orders[np.random.default_rng(seed).permutation(len(orders))[:40]]
    assert problem.peaks(drawn).tolist() == [counted(problem, order) for order in drawn]


def test_the_memory_use_follows_the_equations_of_the_paper():
    """Equations 2, 3 and 15 of the paper hold on a graph of four nodes."""
    problem = Problem.of_nodes([3, 5, 2, 1], [0, 0, 0, 4], [(0, 1), (0, 2), (1, 3), (2, 3)])
    assert problem.usage(np.array([[0, 1, 2, 3]])).tolist() == [[3, 8, 10, 12]]
    assert problem.peak([0, 1, 2, 3]) == 12


def test_peaks_do_not_depend_on_the_batch_size(monkeypatch):
    problem = small(3)
    orders = all_orders(problem)
    whole = problem.peaks(orders)
    monkeypatch.setattr(module, "MAX_ELEMENTS", 1)
    assert np.array_equal(problem.peaks(orders), whole)
    assert problem.peaks(orders[:0]).shape == (0,)


@pytest.mark.parametrize("order", [[0, 0, 1, 2], [3, 1, 2, 0], [0, 1, 2]])
def test_an_invalid_order_is_refused(order):
    problem = Problem.of_nodes([1] * 4, [0] * 4, [(0, 1), (2, 3)])
    with pytest.raises(RLFlowError, match="not a valid order"):
        problem.peak(order)


@pytest.mark.parametrize("seed", range(6))
def test_orders_made_without_a_search_are_valid(seed):
    problem = small(seed, 9)
    priorities = np.random.default_rng(seed).random((20, 9))
    for order in [depth_first(problem), breadth_first(problem), *random_orders(problem, 20, seed)]:
        assert problem.is_order(order)
    for order, wanted in zip(by_priority(problem, priorities), priorities, strict=True):
        assert problem.is_order(order)
        for position, node in enumerate(order):
            later = [n for n in order[position + 1 :] if wanted[n] > wanted[node]]
            # no node of higher priority was ready
            assert all(set(problem.before[n]) & set(order[position:]) for n in later)


def test_the_depth_first_order_follows_a_branch_and_the_breadth_first_order_waits():
    problem = Problem.of_nodes([1] * 6, [0] * 6, [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5)])
    assert depth_first(problem).tolist() == [0, 1, 3, 2, 4, 5]
    assert breadth_first(problem).tolist() == [0, 1, 2, 3, 4, 5]


def test_random_orders_choose_every_ready_node_with_equal_probability():
    problem = Problem.of_nodes([1] * 3, [0] * 3, [(0, 1)])
    orders = random_orders(problem, 4000, 0)
    for order, likely in {(0, 1, 2): 0.25, (0, 2, 1): 0.25, (2, 0, 1): 0.5}.items():
        assert abs(np.mean((orders == order).all(axis=1)) - likely) < 0.03
