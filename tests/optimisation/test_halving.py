"""Test successive halving: the best contender wins, close contenders get most of the time, and the time limit holds."""

import math

import numpy as np
import pytest

from rlflow.optimisation import contest as module
from rlflow.optimisation.contest import MOST_DRAWS, halve


class Bench:
    """Contenders with known latency ratios and known noise; the clock advances only while they are measured.

    Attributes:
      asked: the contenders of each draw.
    """

    def __init__(self, monkeypatch, ratios: list[float], noise: float = 0.0, side: float = 1.0, seed: int = 0):
        self.ratios, self.noise, self.side, self.now, self.asked = ratios, noise, side, 0.0, []
        self.rng = np.random.default_rng(seed)
        monkeypatch.setattr(module, "time", type("Time", (), {"monotonic": lambda: self.now}))

    def draw(self, left: list[int]) -> list[float]:
        self.asked.append(tuple(left))
        self.now += self.side * (len(left) + 1)
        return [self.ratios[k] * math.exp(self.noise * self.rng.normal()) for k in left]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_halving_without_noise_orders_all_candidates_correctly(monkeypatch, count):
    ratios = np.random.default_rng(count).permutation(np.linspace(0.8, 1.1, count)).tolist()
    order, results = halve(count, Bench(monkeypatch, ratios).draw, 1e6)
    assert [ratios[k] for k in order] == sorted(ratios) and order[0] == int(np.argmin(ratios))
    assert [len(results[k]) for k in order] == sorted((len(one) for one in results), reverse=True)


def test_the_worse_half_is_dropped_after_every_heat(monkeypatch):
    bench = Bench(monkeypatch, [1.0, 0.9, 0.8, 1.1, 0.95])
    halve(5, bench.draw, 1e6)
    heats = list(dict.fromkeys(bench.asked))
    assert [sorted(one) for one in heats] == [[0, 1, 2, 3, 4], [1, 2, 4], [1, 2]]
    assert len(bench.asked) == 3 * MOST_DRAWS


def test_halving_finds_the_best_although_single_draws_are_noisy(monkeypatch):
    """The winner is found despite noise of 1 %: the other contenders are at least 2 % slower.

    By a single draw, another contender would win about one time in ten.
    """
    wins = 0
    for seed in range(100):
        ratios = np.random.default_rng(seed).uniform(0.93, 1.05, 8).tolist()
        ratios[seed % 8] = 0.91
        order, _ = halve(8, Bench(monkeypatch, ratios, 0.01, seed=seed).draw, 1e6)
        wins += order[0] == seed % 8
    assert wins >= 99


@pytest.mark.parametrize("count, seconds", [(2, 9), (5, 18), (8, 26), (8, 40), (13, 61)])
def test_halving_keeps_its_time_limit_and_uses_the_time(monkeypatch, count, seconds):
    bench = Bench(monkeypatch, np.linspace(0.9, 1.0, count).tolist())
    order, _ = halve(count, bench.draw, seconds)
    assert bench.now <= seconds and sorted(order) == list(range(count)) and order[0] == 0
    # A draw of the last two contenders and the original takes 3 s; if more time is left, all their draws were made.
    if seconds - bench.now > 3:
        assert len(bench.asked[-1]) == 2 and bench.asked.count(bench.asked[-1]) == MOST_DRAWS


@pytest.mark.parametrize("end, wanted", [(0.0, [3, 1, 0, 2]), (-1.0, [0, 1, 2, 3])])
def test_halving_without_time_ranks_by_one_draw_or_keeps_the_order(monkeypatch, end, wanted):
    bench = Bench(monkeypatch, [0.9, 0.8, 1.0, 0.7])
    order, results = halve(4, bench.draw, end)
    assert order == wanted and [len(one) for one in results] == [len(bench.asked)] * 4
    assert len(bench.asked) == (end == 0.0)
