"""What may be said about two latencies, on synthetic samples; and one real measurement, whose speed is not asserted."""

import json

import numpy as np
import pytest

from rlflow.costs.measured import MIN_PAIRS, Ratio, measure, ratio_of
from rlflow.errors import RLFlowError
from tests.costs.graphs import model


def samples(effect: float, sessions: int, session_noise: float, pair_noise: float, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = effect * np.exp(rng.normal(0, session_noise, sessions))
    return [centre * np.exp(rng.normal(0, pair_noise, 20)) for centre in centres]


@pytest.mark.parametrize("effect, verdict", [(1.05, "slower"), (1.0, "no difference shown"), (0.95, "faster")])
def test_a_planted_difference_is_found_and_none_is_invented(effect, verdict):
    found = [ratio_of(samples(effect, 10, 0.01, 0.03, seed), seed).verdict for seed in range(10)]
    assert found.count(verdict) >= 9


def test_sessions_are_the_unit_of_the_bootstrap():
    # Two of four sessions are 10 % slower for as long as they live: many pairs must not hide that there are four.
    groups = [np.full(1000, 1.0), np.full(1000, 1.1), np.full(1000, 1.0), np.full(1000, 1.1)]
    ratio = ratio_of(groups, 0)
    assert ratio.low <= 1.0 and ratio.high >= 1.1 and ratio.verdict == "no difference shown"


def test_the_interval_holds_the_median_and_repeats_by_seed():
    for seed in range(5):
        groups = samples(1.0, 3, 0.05, 0.1, seed)
        ratio = ratio_of(groups, seed)
        assert ratio.low <= ratio.median <= ratio.high
        assert ratio == ratio_of(groups, seed)


def test_less_than_the_margin_is_never_claimed():
    assert Ratio(0.995, 0.994, 0.996).verdict == "no difference shown"
    assert Ratio(1.005, 1.004, 1.006).verdict == "no difference shown"
    assert Ratio(0.9, 0.8, 0.98).verdict == "faster" and Ratio(1.1, 1.02, 1.2).verdict == "slower"
    assert Ratio(1.0, 0.995, 1.005).clear and not Ratio(1.0, 0.9, 1.1).clear


def test_the_same_model_on_both_sides():
    body = "g (float[N,64] x, float[64,64] w) => (float[N,64] y) {a = MatMul(x, w) y = Relu(a)}"
    result = measure(model(body), model(body), threads=1, seconds=0.2, sessions=3, seed=0, shapes={"N": 64})
    assert json.loads(json.dumps(result)) == result
    assert result["interval"][0] <= result["ratio"] <= result["interval"][1]
    assert result["verdict"] in ("faster", "slower", "no difference shown")
    assert result["sessions"] == 3 and result["pairs"] >= 3 * MIN_PAIRS
    assert result["original_ms"] > 0 and result["candidate_ms"] > 0


def test_an_unbound_dimension_is_an_error():
    loose = model("g (float[N] x) => (float[N] y) {y = Neg(x)}")
    with pytest.raises(RLFlowError, match="symbolic dimension 'N'"):
        measure(loose, loose)
