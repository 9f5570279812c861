"""What learned orders are compared with, and what is said of it."""

import numpy as np

from benchmarks import learned_orders, ordering
from benchmarks.learned_orders import (
    CONTROL,
    DRAWN,
    METHODS,
    beside_beams,
    depth_first_beside,
    inside,
    plain_beams,
    within,
)
from controllers.topoformer.controller import Topoformer
from rlflow.memory.order_search import optimum, walk
from rlflow.memory.problem import random_depth_first
from tests.controllers.topoformer.graphs import TINY, instance


def test_plain_beams_get_wider_until_one_takes_too_long(monkeypatch):
    problem, seconds = instance(40, 0).problem, iter([0.1, 0.2, 0.4, 0.8, 1.6])
    monkeypatch.setattr(learned_orders, "timed", lambda work: (work(), next(seconds)))
    beams = plain_beams(problem, 0.5)
    assert [one["width"] for one in beams] == [1, 2, 4, 8] and beams[-1]["seconds"] == 0.8
    assert all(one["peak"] == walk(problem, one["width"]).peak for one in beams)
    assert within(beams, 0.3)["peak"] == min(one["peak"] for one in beams[:2])
    assert within(beams, 0.01) == beams[0]


def test_random_orders_are_drawn_as_long_as_a_method_takes():
    problem, peaks = learned_orders.instance_of(60, 3).problem, depth_first_beside(60, 3, {"quick": 0.0, "slow": 0.5})
    first, many = (problem.peaks(random_depth_first(problem, DRAWN, seed)).min() for seed in (0, 1))
    assert peaks["quick"] == first and peaks["slow"] <= min(first, many)


def test_every_method_has_a_peak_that_an_order_has_and_a_beam_beside_it():
    controller, best = Topoformer(TINY, instance(12, 0)), optimum(learned_orders.instance_of(20, 3).problem, 60)
    result = beside_beams(controller, 20, 3)
    assert set(result) == {*METHODS, CONTROL} and best.proved
    assert all(one["peak"] >= best.peak and one["beam"] >= best.peak and one["seconds"] > 0 for one in result.values())
    assert result["inside"]["peak"] <= result["beam"]["peak"]
    assert best.peak <= inside(controller, 20, 3, 0.2)["peak"] <= result["inside"]["peak"]


def test_gaps_are_means_over_graphs_of_one_size():
    figures = {
        "drawn": {"ab-1000-0": {"beam": 120}},
        "learned": {"ab-1000-0": {"beam": {"peak": 90, "beam": 100}}, "ab-1000-1": {"beam": {"peak": 100, "beam": 100}},
                    "ab-500-0": {"beam": {"peak": 300, "beam": 100}}},
        "inside": {"ab-500-0": {"peak": 95}, "ab-500-7": {"peak": 1}}, "wide": {"0": {"beam": 100}},
        "ablations": {"500-0-0-seven": {"beam": {"peak": 90}}, "500-0-1-seven": {"beam": {"peak": 110}},
                      "500-0-0-both-ways": {"beam": {"peak": 104}}, "500-1-0-both-ways": {"beam": {"peak": 900}}},
    }  # fmt: skip
    assert ordering.learned_gap(figures, 1000, "beam") == -5 and ordering.learned_gap(figures, 100, "beam") is None
    assert ordering.drawn_gap(figures, 1000, "beam") == -25 and ordering.drawn_gap(figures, 500, "beam") is None
    assert np.isclose(ordering.drawn_gap(figures, 1000, "beam", "beam"), -16.67)
    assert ordering.inside_gap(figures) == -5
    assert np.allclose(ordering.ablated_gaps(figures, 500, "both-ways", "beam"), [4])
    assert np.allclose(ordering.ablated_gaps(figures, 500, "seven", "beam"), [-10, 10])
