"""The correction of estimates: what it learns from synthetic measurements, and the cost model that it makes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import cost_trust
from rlflow.common.errors import RLFlowError
from rlflow.costs import corrected, graph_cost
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.corrected import (
    LEAST,
    MOST,
    CorrectedCost,
    Correction,
    Measurement,
    correction_path,
    fit,
    kind_of,
    parts,
    read_measurements,
)  # fmt: skip
from rlflow.costs.profiled import ProfiledCost
from rlflow.graph.onnx_runtime import machine
from rlflow.optimisation.candidates import follow
from rlflow.rules.language import load_rules
from tests.costs.graphs import conv, graph, only
from tests.costs.measurements import FACTORS, OVERHEAD, measurements


def test_known_factors_are_learned():
    result = fit(measurements())
    assert result.factors == pytest.approx(FACTORS, rel=0.01) and result.overhead_ps == pytest.approx(
        OVERHEAD, rel=0.02
    )
    assert result.error["greatest"] < 0.01 and (result.models, result.graphs) == (6, 48)
    noisy = fit(measurements(noise=0.01))
    assert noisy.factors == pytest.approx(FACTORS, rel=0.05) and 0.003 < noisy.error["mean"] < 0.02


def test_an_estimate_that_is_right_is_not_changed():
    right = [m._replace(measured_ms=sum(m.parts_ps.values()) / 1e9) for m in measurements()]
    result = fit(right)
    assert result.common == pytest.approx(1, abs=1e-6) and result.factors == pytest.approx(
        dict.fromkeys(FACTORS, 1), abs=1e-6
    )
    assert result.overhead_ps == pytest.approx(0, abs=1)


def test_what_was_never_measured_gets_the_common_factor():
    alike = [m._replace(measured_ms=1.3 * sum(m.parts_ps.values()) / 1e9) for m in measurements()]
    assert 1.2 < fit(alike).milliseconds({"Softmax": 10**9}, 0) < 1.31


def test_factors_stay_in_their_bounds():
    absurd = [
        m._replace(measured_ms=(m.parts_ps["Conv"] + 50 * m.parts_ps["MatMul"] - 1e5 * m.launches) / 1e9)
        for m in measurements()
    ]
    result = fit(absurd)
    assert result.factors["MatMul"] == MOST and result.overhead_ps >= 0
    assert all(LEAST <= factor <= MOST for factor in (result.common, *result.factors.values()))


def test_what_a_bound_takes_away_the_others_make_good():
    equations = np.array([[1.0, 0, 0], [1, 1, 0], [0, 0, 1]])  # x = 7, x + y = 9: with x = 5 at most, y is 4 and not 2
    assert corrected._bounded(equations, np.array([7.0, 9, 1])) == pytest.approx([MOST, 4, 1])


def test_of_one_model_no_error_is_known():
    assert fit(measurements(models=1)).error is None
    with pytest.raises(RLFlowError, match="there is none"):
        fit([])


def test_a_correction_survives_its_file(tmp_path):
    result = fit(measurements(noise=0.01), threads=2)
    result.save(tmp_path / "c.json")
    assert Correction.load(tmp_path / "c.json") == result


@pytest.mark.parametrize(
    "change", ({"format": 0}, {"factors": {"Conv": "1"}}, {"common": -1.0}, {"strange": 1}, {"factors": []})
)
def test_a_damaged_file_is_refused(tmp_path, change):
    path = tmp_path / "c.json"
    fit(measurements()).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RLFlowError, match="holds no correction"):
        Correction.load(path)


def test_kinds_distinguish_convolutions():
    def kind(weight: str, group: int) -> str:
        result = graph(
            f"g (float[1,8,9,9] x, float[{weight}] w) => (float[a,b,c,d] y) {{y = Conv<group={group}>(x, w)}}"
        )
        return kind_of(result, only(result, "Conv"))

    assert [kind("8,8,1,1", 1), kind("8,8,3,3", 1), kind("8,1,3,3", 8), kind("8,4,1,1", 2)] == [
        "Conv pointwise", "Conv spatial", "Conv depthwise", "Conv grouped",
    ]  # fmt: skip


def test_a_fused_operator_is_of_the_plain_ones_kind():
    result = graph("""g (float[1,8,9,9] x, float[8,8,3,3] w) => (float[a,b,c,d] y)
        {z = com.microsoft.FusedConv<activation="Relu">(x, w) y = elsewhere.FusedConv(z, w)}""")
    kinds = {node.domain: kind_of(result, node) for node in result.nodes.values()}
    assert kinds == {"com.microsoft": "Conv spatial", "elsewhere": "elsewhere.FusedConv"}


def test_the_cost_of_a_graph_is_the_corrected_sum():
    result = conv("a = Conv(x, w, b) c = Relu(a) y = Exp(c)")
    correction = Correction(1.5, {"Conv spatial": 2.0, "Relu": 0.5}, 1e6)
    estimate = AnalyticCost()
    parts_ps, launches = parts(estimate, result)
    assert sorted(parts_ps) == ["Conv spatial", "Exp", "Relu"] and launches == 3
    expected = 2 * parts_ps["Conv spatial"] + 0.5 * parts_ps["Relu"] + 1.5 * parts_ps["Exp"] + 3e6
    total, before = graph_cost(CorrectedCost(estimate, correction), result), graph_cost(estimate, result)
    assert total.runtime_ps == pytest.approx(expected, abs=2) and isinstance(total.runtime_ps, int)
    assert total[1:] == before[1:] and correction.milliseconds(parts_ps, launches) == pytest.approx(expected / 1e9)


def test_it_is_opened_beside_the_database(tmp_path):
    database = tmp_path / "costs.sqlite"
    with pytest.raises(RLFlowError, match="no correction of costs for threads=1"):
        CorrectedCost.open(1, database)
    Correction(3.0, {}, 0.0).save(correction_path(1, database))
    result = graph("g (float[64] x) => (float[64] y) {y = Exp(x)}")
    estimated = graph_cost(ProfiledCost.open(1, database), result).runtime_ps
    assert graph_cost(CorrectedCost.open(1, database), result).runtime_ps == 3 * estimated
    Correction(3.0, {}, 0.0, machine="another").save(correction_path(1, database))
    with pytest.raises(RLFlowError, match="made on another machine"):
        CorrectedCost.open(1, database)


def test_measurements_are_read_from_the_benchmark(tmp_path):
    import onnxruntime

    path = tmp_path / "cost_trust.json"
    one = {"parts_ps": {"Conv": 5}, "launches": 1, "measured_ms": 2.0}
    result = {
        "machine": machine(), "versions": {"onnxruntime": onnxruntime.__version__},
        "figures": {"threads": 2, "models": {"resnet18": {"graphs": [one]}}},
    }  # fmt: skip
    path.write_text(json.dumps(result))
    assert read_measurements(path) == ([Measurement("resnet18", {"Conv": 5}, 1, 2.0)], 2)
    path.write_text(json.dumps(result | {"machine": "another"}))
    with pytest.raises(RLFlowError, match="another machine"):
        read_measurements(path)
    path.write_text("{}")
    with pytest.raises(RLFlowError, match="no result"):
        read_measurements(path)


# -- what the report of trust says -----------------------------------------------------------------


def test_rank_correlations_with_ties():
    # ranks 1, 2.5, 2.5, 4; of six pairs five agree, one is tied
    a, b = np.array([1.0, 2, 2, 4]), np.array([10.0, 20, 30, 40])
    assert cost_trust.spearman(a, b) == pytest.approx(0.9487, abs=1e-4)
    assert cost_trust.kendall(a, b) == pytest.approx(5 / 30**0.5)
    assert cost_trust.spearman(a, -np.exp(a)) == pytest.approx(-1) and cost_trust.kendall(a, -a) == pytest.approx(-1)
    assert cost_trust.spearman(a, np.ones(4)) == cost_trust.kendall(np.ones(4), a) == 0


@pytest.mark.parametrize("noise", (0.01, 0.05, 0.2))
def test_the_noise_ceiling_is_the_correlation_of_two_measurements(noise):
    rng = np.random.default_rng(0)
    truth = rng.normal(0, 0.05, 400)
    first, second = (np.exp(truth[:, None] + rng.normal(0, noise, (400, 6))) for _ in range(2))
    again = cost_trust.spearman(first.mean(axis=1), second.mean(axis=1))
    assert cost_trust.noise_ceiling(first.tolist()) == pytest.approx(again, abs=0.06)


def test_variants_are_chosen_far_apart():
    assert cost_trust.apart([0.0, 0.1, 1.0, 0.1, 0.5], 3) == [0, 2, 4]
    assert sorted(cost_trust.apart([0.0, 0.0, 0.0], 9)) == [0, 1, 2] and cost_trust.apart([], 3) == []


def test_the_same_seed_gives_the_same_variants(monkeypatch):
    monkeypatch.setattr(cost_trust, "RANDOM_WALKS", 7)
    task = replace(cost_trust.make_task("tiny_squeezenet1_1", 0), rules=load_rules(["convolution", "concat"]))
    result = cost_trust.variants(task, 0)
    assert result == cost_trust.variants(task, 0) != cost_trust.variants(task, 1)
    assert len({variant["hash"] for variant in result} | {task.graph.hash}) == len(result) + 1 > 8
    assert all(follow(task, variant["actions"]).graph.hash == variant["hash"] for variant in result)
