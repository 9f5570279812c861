"""Test statements about two latencies on synthetic samples, and real measurements, whose speed is not asserted."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.costs import measured
from rlflow.costs.measured import MIN_PAIRS, MIN_SESSION_PAIRS, SESSION_PAIR, Ratio, Run, measure, ratio_of, run_memory
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.onnx_runtime import Setup
from tests.costs.graphs import model
from tests.suite import slow

ORDER = 0.025  # largest advantage of the session that was made second, with two sessions of one file


def samples(effect: float, sessions: int, session_noise: float, pair_noise: float, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = effect * np.exp(rng.normal(0, session_noise, sessions) + ORDER * (-1.0) ** np.arange(sessions))
    return [centre * np.exp(rng.normal(0, pair_noise, 20)) for centre in centres]


def stopped_early(groups: list[np.ndarray], seed: int) -> Ratio:
    """Return the ratio that `measure` reports for these ratios if it stops as soon as the interval is clear."""
    for end in range(SESSION_PAIR * MIN_SESSION_PAIRS, len(groups) + 1, SESSION_PAIR):
        ratio = ratio_of(groups[:end], seed)
        if ratio.is_clear:
            break
    return ratio


@pytest.mark.parametrize("sessions, least", [(6, 0.85), (10, 0.95)])
@pytest.mark.parametrize("effect, verdict", [(1.05, "slower"), (0.95, "faster")])
def test_a_planted_difference_is_shown(effect, verdict, sessions, least):
    result = [stopped_early(samples(effect, sessions, 0.01, 0.03, seed), seed).verdict for seed in range(200)]
    assert result.count(verdict) >= least * len(result)


@pytest.mark.parametrize("sessions", [6, *slow(10)])
@pytest.mark.parametrize("session_noise", (0.01, 0.05))
def test_no_difference_is_invented(sessions, session_noise):
    result = [stopped_early(samples(1.0, sessions, session_noise, 0.03, seed), seed).verdict for seed in range(200)]
    assert result.count("no difference shown") >= 0.95 * len(result)


@pytest.mark.parametrize("session_pairs", [2, *slow(3, 5)])
@pytest.mark.parametrize("outliers", (0.0, 0.1))
def test_the_confidence_interval_covers_the_true_ratio_in_90_percent_of_the_cases(session_pairs, outliers):
    held = 0
    for seed in range(500):
        # now and then the session of one side is 18 % slower for its whole life
        rng = np.random.default_rng([seed, 1])
        odd = (rng.random(SESSION_PAIR * session_pairs) < outliers) * rng.choice((-1, 1), SESSION_PAIR * session_pairs)
        groups = [
            g * 1.18**slow
            for g, slow in zip(samples(1.0, SESSION_PAIR * session_pairs, 0.01, 0.03, seed), odd, strict=True)
        ]
        ratio = ratio_of(groups, seed)
        held += ratio.low <= 1.0 <= ratio.high
    assert held >= 0.9 * 500


def test_the_effect_of_the_order_of_sessions_cancels():
    one_order, other = np.full(9, 1.02), np.full(9, 1 / 1.02)
    ratio = ratio_of([one_order, other] * 3, 0)
    assert ratio.low == pytest.approx(1) and ratio.high == pytest.approx(1)


def test_session_pairs_are_the_unit_of_the_bootstrap():
    # Two of four sessions are 10 % slower for their whole life. Many pairs of runs must not hide that there are only
    # two session pairs.
    # pairs.
    groups = [np.full(1000, 1.0), np.full(1000, 1.0), np.full(1000, 1.1), np.full(1000, 1.1)]
    ratio = ratio_of(groups, 0)
    assert ratio.low <= 1.0 and ratio.high >= 1.1 and ratio.verdict == "no difference shown"


def test_the_bootstrap_units_of_a_single_session_pair_are_its_sessions():
    assert ratio_of([[1.06], [1.04]], 0).verdict == "no difference shown"
    assert ratio_of([[1.06], [1.0599]], 0).verdict == "slower"


def test_the_interval_contains_the_ratio_and_is_reproducible_by_seed():
    for seed in range(5):
        groups = samples(1.0, 6, 0.05, 0.1, seed)
        ratio = ratio_of(groups, seed)
        assert ratio.low <= ratio.ratio <= ratio.high
        assert ratio == ratio_of(groups, seed)


def test_no_difference_within_the_margin_is_claimed():
    assert Ratio(0.995, 0.994, 0.996).verdict == "no difference shown"
    assert Ratio(1.005, 1.004, 1.006).verdict == "no difference shown"
    assert Ratio(0.9, 0.8, 0.98).verdict == "faster" and Ratio(1.1, 1.02, 1.2).verdict == "slower"
    assert Ratio(1.0, 0.995, 1.005).is_clear and not Ratio(1.0, 0.9, 1.1).is_clear


def test_disturbed_runs_are_ignored_if_enough_runs_are_calm():
    calm, disturbed = Run(1.0, True), Run(9.0, False)
    mixed = [[calm, disturbed] * MIN_PAIRS, [disturbed, calm] * MIN_PAIRS]
    assert measured._pairs(mixed).tolist() == [[1.0, 1.0]] * MIN_PAIRS
    few = [[calm, disturbed] * MIN_PAIRS, [disturbed] * 2 * MIN_PAIRS]
    assert measured._pairs(few).tolist() == [[1.0, 9.0], [9.0, 9.0]] * MIN_PAIRS


BODY = "g (float[N,64] x, float[64,64] w) => (float[N,64] y) {a = MatMul(x, w) y = Relu(a)}"


def test_measuring_a_model_against_itself_gives_a_complete_result():
    result = measure(model(BODY), model(BODY), threads=1, seconds=0.2, sessions=3, seed=0, sizes={"N = 64": {"N": 64}})
    assert json.loads(json.dumps(result)) == result
    assert result["interval"][0] <= result["ratio"] <= result["interval"][1]
    assert result["verdict"] in ("faster", "slower", "no difference shown")
    assert result["sessions"] == len(result["session_ratios"]) == 4 and result["pairs"] >= 4 * MIN_PAIRS
    assert result["original_ms"] > 0 and result["candidate_ms"] > 0 and 0 <= result["calm"] <= 1
    assert abs(result["original_memory_bytes"] - result["candidate_memory_bytes"]) < 2_000_000


class Planted:
    """A replacement of sessions and runs.

    Attributes:
        seconds: (side, length of its input) → duration of a run.
        clock: sum of the durations of all runs.
        sessions: number of sessions.
    """

    def __init__(self):
        self.seconds: dict[tuple[str, int], float] = {}
        self.clock, self.sessions = 0.0, 0

    def session(self, model, threads: int, setup: Setup) -> str:
        self.sessions += 1
        return model.graph.name

    def run(self, running: str, inputs: dict, threads: int) -> Run:
        taken = self.seconds[running, len(inputs["x"])]
        self.clock += taken
        return Run(taken, True)


@pytest.fixture
def planted(monkeypatch) -> Planted:
    result = Planted()
    monkeypatch.setattr(measured, "session", result.session)
    monkeypatch.setattr(measured, "run", lambda running, inputs: None)
    monkeypatch.setattr(measured, "_run", result.run)
    monkeypatch.setattr(measured, "time", SimpleNamespace(perf_counter=lambda: result.clock))
    return result


def at_two_lengths(short: float, long: float, planted: Planted, **options) -> dict:
    """Return a measurement: the candidate takes `short` of the original's time at 8 elements and `long` at 64."""
    planted.seconds |= {("old", 8): 0.1, ("new", 8): 0.1 * short, ("old", 64): 0.4, ("new", 64): 0.4 * long}
    old, new = (model(f"{name} (float[N] x) => (float[N] y) {{y = Neg(x)}}") for name in ("old", "new"))
    sizes = {f"N = {n}": {"x": (n,)} for n in (8, 64)}
    return measure(old, new, seconds=60.0, sizes=sizes, memory=False, **options)


@pytest.mark.parametrize("together", [0, measured.TOGETHER])
def test_the_ratio_over_several_sizes_is_the_geometric_mean(planted, monkeypatch, together):
    monkeypatch.setattr(measured, "TOGETHER", together)
    result = at_two_lengths(0.9, 0.4, planted)
    assert result["ratio"] == pytest.approx(0.6) and result["verdict"] == "faster" and result["slower_at"] == []
    assert result["original_ms"] == pytest.approx(200) and result["candidate_ms"] == pytest.approx(120)
    assert {name: round(there["ratio"], 9) for name, there in result["at"].items()} == {"N = 8": 0.9, "N = 64": 0.4}
    assert json.loads(json.dumps(result)) == result


def test_a_candidate_slower_at_one_size_is_called_slower(planted):
    result = at_two_lengths(1.1, 0.5, planted)
    assert result["ratio"] < 0.75 and result["interval"][1] < 0.75
    assert result["verdict"] == "slower" and result["slower_at"] == ["N = 8"]


def test_a_loss_within_the_margin_at_one_size_does_not_count(planted):
    result = at_two_lengths(1.005, 0.5, planted)
    assert result["verdict"] == "faster" and result["slower_at"] == []


def test_sizes_share_the_sessions_and_the_time(planted):
    result = at_two_lengths(0.5, 0.5, planted)
    assert result["stopped"] == "the interval is clear" and planted.sessions == 2 * result["sessions"] == 12
    assert planted.clock == pytest.approx(60 * 6 / 10, rel=0.15)  # the last pair is finished after the limit


def test_no_further_session_pair_is_made_after_the_whole_time(planted):
    result = at_two_lengths(0.5, 0.5, planted, whole_seconds=1.0)
    assert result["stopped"] == "making sessions takes too long" and result["sessions"] == 2


def test_larger_activations_need_more_memory():
    def widened(width: int):
        return model(f"""g (float[1,1000] x) => (float[1] y) <int64[2] shape = {{{width}, 1000}}>
            {{ wide = Expand(x, shape) more = Exp(wide) y = ReduceSum <keepdims=0> (more) }}""")

    small, large = (run_memory(m, random_inputs(m, 0)) for m in (widened(10), widened(5000)))
    tensor = 4 * 5000 * 1000  # bytes; two such tensors live at once, in an arena that grows by powers of two
    assert 2 * tensor <= large - small < 6 * tensor


def test_memory_that_cannot_be_allocated_is_an_error():
    body = "g (float[1] x) => (float[1] y) {shape = Cast <to=7> (x) y = Expand(x, shape)}"
    with pytest.raises(RLFlowError):
        run_memory(model(body), {"x": np.full(1, -3, np.float32)})


def test_an_unbound_dimension_is_an_error():
    loose = model("g (float[N] x) => (float[N] y) {y = Neg(x)}")
    with pytest.raises(RLFlowError, match="--shape N=1"):
        measure(loose, loose)
