"""Test orders and their probabilities on graphs that are small enough to enumerate all orders."""

import numpy as np
import pytest

from controllers.topoformer.network import greedy, log_probabilities, sampled
from controllers.topoformer.observation import observe
from rlflow.memory.problem import by_priority
from rlflow.tasks.ordering import Orders
from tests.controllers.topoformer.graphs import instance
from tests.memory.small import all_orders, small


def probabilities(seen, priorities: np.ndarray, orders: np.ndarray) -> np.ndarray:
    log_p = log_probabilities(priorities.astype(np.float32), orders, seen.edges, seen.sizes)
    return np.exp(log_p.numpy().astype(float))


@pytest.mark.parametrize("seed", range(6))
def test_the_probabilities_of_all_orders_add_up_to_one(seed):
    problem = small(seed)
    seen = observe([Orders(problem, np.arange(6)).arrays()])
    orders = all_orders(problem)
    chances = probabilities(seen, np.random.default_rng(seed).normal(0, 2, (1, 6)), orders[None])
    assert chances.sum() == pytest.approx(1, abs=1e-5) and (chances > 0).all()


def test_orders_are_drawn_as_often_as_they_are_probable():
    problem, draws = small(1), 20_000
    seen, rng = observe([Orders(problem, np.arange(6)).arrays()]), np.random.default_rng(0)
    priorities, orders = rng.normal(0, 1, (1, 6)), all_orders(problem)
    expected = probabilities(seen, priorities, orders[None])[0]
    number = {tuple(order): k for k, order in enumerate(orders.tolist())}
    drawn = [number[tuple(order)] for order in sampled(seen, priorities, draws, rng)[0].tolist()]
    shares = np.bincount(drawn, minlength=len(orders)) / draws
    assert len(orders) > 5
    assert (abs(shares - expected) < 4.5 * np.sqrt(expected * (1 - expected) / draws)).all()


def test_the_greedy_order_is_the_one_by_priority():
    one = instance(40, 2)
    priorities = np.random.default_rng(0).normal(size=(1, 40))
    assert np.array_equal(greedy(observe([one.arrays()]), priorities), by_priority(one.problem, priorities))


def test_other_graphs_in_the_batch_change_no_order_or_probability():
    graphs, rng = [instance(10, 0).arrays(), instance(17, 1).arrays()], np.random.default_rng(0)
    both, one = observe(graphs), observe(graphs[:1])
    priorities = np.concatenate([rng.normal(size=(2, 10)), np.zeros((2, 7))], axis=1)
    orders = greedy(both, priorities)
    assert np.array_equal(orders[0, :10], greedy(one, priorities[:1, :10])[0])
    assert np.array_equal(orders[0, 10:], np.arange(10, 17))
    drawn = sampled(both, priorities, 5, rng)
    alike = probabilities(one, priorities[:1, :10], drawn[:1, :, :10])
    np.testing.assert_allclose(probabilities(both, priorities, drawn)[:1], alike, rtol=1e-4)
