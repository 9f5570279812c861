"""Test the beam search over sets of nodes: it is exact without cuts, and its bounds and orders are valid with cuts."""

import time

import numpy as np
import pytest

from rlflow.memory.order_search import walk
from rlflow.tasks.ordering import layered
from tests.memory.small import all_orders, random_orders, small
from tests.suite import at_night

ALL = 10**6


@pytest.mark.parametrize("seed", range(at_night(25, 10)))
def test_an_uncut_beam_finds_the_best_of_all_orders(seed):
    problem = small(seed)
    result, best = walk(problem, ALL), problem.peaks(all_orders(problem)).min()
    assert result.exact and result.peak == best == problem.peak(result.order)


@pytest.mark.parametrize("seed", range(at_night(25, 10)))
def test_an_uncut_beam_refutes_a_limit_below_the_best_and_finds_the_best_from_a_floor(seed):
    problem = small(seed)
    best = int(problem.peaks(all_orders(problem)).min())
    refuted = walk(problem, ALL, limit=best - 1, floor=best - 1)
    assert refuted.order is None and refuted.exact and best - 1 < refuted.beyond <= best
    result = walk(problem, ALL, limit=best, floor=best)
    assert problem.peak(result.order) == best


def test_a_beam_that_drops_states_is_not_called_exact():
    problem = layered(40, 0)
    exact = walk(problem, ALL)
    assert exact.exact and exact.peak == problem.peak(exact.order)
    for width in (1, 10, 100):
        result = walk(problem, width)
        assert result.peak == problem.peak(result.order) >= exact.peak
        assert not result.exact
    assert exact.peak <= problem.peaks(random_orders(problem, 2000, 0)).min()


def test_equal_walks_give_equal_orders():
    problem = layered(100, 1)
    assert np.array_equal(walk(problem, 50).order, walk(problem, 50).order)


def test_sizes_too_large_for_tie_breaking_are_compared_by_their_peaks():
    problem = small(2)
    huge = type(problem)(**{**vars_of(problem), "size": problem.size << 40, "work": problem.work << 40})
    assert walk(huge, ALL).peak == walk(problem, ALL).peak << 40


def vars_of(problem) -> dict:
    return {name: getattr(problem, name) for name in problem.__dataclass_fields__}


def test_a_walk_after_its_deadline_proves_nothing():
    assert walk(layered(50, 0), 10, deadline=time.monotonic() - 1)[::2] == (None, False)
