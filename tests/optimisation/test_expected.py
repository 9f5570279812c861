"""What is measured next: what improvement is expected, and what a measurement says of the others."""

from dataclasses import replace

import numpy as np
import pytest

from rlflow.costs import latency_fit
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.latency_fit import learn
from rlflow.costs.learned import LearnedCost
from rlflow.costs.measurements import off
from rlflow.optimisation.candidates import Candidate, follow
from rlflow.optimisation.contest import Contender, NextMeasurement, by_expected_improvement, expected_improvement
from tests.toys.planted_latencies import MODELS, SIZES, measured, together
from tests.toys.tiny import tiny_task


@pytest.fixture(scope="module")
def known():
    return together([measured(name) for name in MODELS])


@pytest.fixture(scope="module")
def ignorant(known):
    """What was learned without the last model."""
    return learn(known._replace(pairs=known.pairs[:33]), 1)


def pooled_of(model, known):
    return {key: model.pooled(views) for key, views in known.graphs.items()}


@pytest.mark.parametrize("mean, deviation", [(0.1, 0.02), (-0.1, 0.02), (0.0, 0.1), (0.05, 0.05)])
def test_the_improvement_is_the_mean_over_what_may_be(mean, deviation):
    draws = np.random.default_rng(0).normal(mean, deviation, 400_000)
    assert expected_improvement(mean, deviation) == pytest.approx(np.maximum(-draws, 0).mean(), abs=3e-4)


def test_what_is_certain_improves_by_what_it_gains():
    assert expected_improvement(-0.2, 0.0) == 0.2 and expected_improvement(0.2, 0.0) == 0.0


def test_what_is_shown_afterwards_says_what_it_would_have_said_before(known, monkeypatch):
    fixed = {"common": (0.1,), "kinds": (0.1,), "network": (0.1,), "noise": (0.0,)}  # of kernels, which is shared
    monkeypatch.setattr(latency_fit, "CHOICES", fixed)
    family = known.pairs[33:]
    before = known._replace(pairs=[*known.pairs[:33], family[0]])  # the original's own says its level
    model = learn(before, 1)
    pooled = pooled_of(model, known)
    for one in family[1:]:
        model = model.after(pooled[one.pair.graph, SIZES], pooled[one.pair.original, SIZES], one.ratio, off(one))
    whole = learn(known, 1)
    for one in family:
        graphs = pooled[one.pair.graph, SIZES], pooled[one.pair.original, SIZES]
        assert model.log_ratio(*graphs) == pytest.approx(whole.log_ratio(*graphs), abs=1e-3)
    assert model.spread @ model.spread.T == pytest.approx(whole.spread @ whole.spread.T, abs=1e-3)


def test_a_measurement_makes_what_is_like_it_certain(known, ignorant):
    pooled, pairs = pooled_of(ignorant, known), known.pairs[33:]
    original, graph = pooled[pairs[0].pair.original, SIZES], pooled[pairs[1].pair.graph, SIZES]
    _, before = ignorant.log_ratio(graph, original)
    mean, after = ignorant.after(graph, original, 0.9, 0.001).log_ratio(graph, original)
    assert after < before and mean == pytest.approx(np.log(0.9), abs=0.01)
    assert ignorant.after(graph, original, 0.5, np.inf).log_ratio(graph, original) == (
        pytest.approx(ignorant.log_ratio(graph, original))
    )


def test_the_best_of_many_is_measured_among_the_first(known, ignorant):
    """Of ten graphs of a model never shown, in an order that says nothing."""
    pooled, pairs = pooled_of(ignorant, known), known.pairs[34:]
    original = pooled[pairs[0].pair.original, SIZES]
    choice = NextMeasurement(ignorant, original, [pooled[one.pair.graph, SIZES] for one in pairs])
    best = int(np.argmin([one.ratio for one in pairs]))
    for _ in range(3):
        number = choice.next()
        assert number not in choice.measured
        choice.show(number, pairs[number].ratio, off(pairs[number]))
    assert choice.best() == best
    for number in range(len(pairs)):
        choice.measured.setdefault(number, 1.0)
    assert choice.next() is None


def test_contenders_come_in_the_order_of_what_is_expected(ignorant):
    task = replace(tiny_task(MODELS[0]), cost=LearnedCost(AnalyticCost(), ignorant))
    rng, actions = np.random.default_rng(0), []
    for _ in range(5):
        valid = follow(task, actions).valid_actions()[:-1]
        actions = [*actions, tuple(map(int, valid[rng.integers(len(valid))]))]
    entered = [Contender(Candidate(str(k), follow(task, actions[:k]), actions[:k], 0, 0.0)) for k in range(6)]
    ordered = by_expected_improvement(task, entered)
    assert ordered[0] is entered[0] and sorted(map(id, ordered)) == sorted(map(id, entered))
    costs = [one.candidate.state.objective for one in ordered[1:]]
    sure = replace(ignorant, spread=0 * ignorant.spread, kernel_noise=0.0)
    task = replace(task, cost=LearnedCost(AnalyticCost(), sure))
    faster = [one.candidate.state.objective for one in by_expected_improvement(task, entered)[1:]]
    assert [cost for cost in faster if cost < entered[0].candidate.state.objective] == sorted(
        cost for cost in costs if cost < entered[0].candidate.state.objective
    )
    assert by_expected_improvement(tiny_task(MODELS[0]), entered) == entered
