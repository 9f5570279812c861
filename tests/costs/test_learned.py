"""The learned cost: what it learns from synthetic and planted measurements, and the cost model that it makes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.costs import COSTS, GraphCost, graph_cost, learned
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.database import MeasuredPair
from rlflow.costs.learned import (
    MAX_FACTOR,
    MIN_FACTOR,
    Correction,
    LearnedCost,
    MeasuredGraph,
    correction_path,
    families,
    fit,
    learn,
    leave_out,
    spearman,
)
from rlflow.costs.measurements import KernelGraph, Known, kind_of
from rlflow.costs.profiled import ProfiledCost
from tests.costs.graphs import conv, graph, only
from tests.toys.planted_latencies import FACTORS as PLANTED
from tests.toys.planted_latencies import MODELS, by_kind, measured, together
from tests.toys.tiny import tiny_task

FACTORS, OVERHEAD = {"Conv": 1.2, "MatMul": 0.9, "Relu": 2.0}, 2e6


def measurements(models: int = 6, variants: int = 8, noise: float = 0.0, seed: int = 0) -> list[MeasuredGraph]:
    rng = np.random.default_rng(seed)
    made = []
    for number in range(models):
        base = {kind: 1e9 * rng.uniform(1, 10) for kind in FACTORS}
        for _ in range(variants):
            parts_ps = {kind: int(ps * rng.uniform(0.5, 1.5)) for kind, ps in base.items()}
            launches = int(rng.integers(500, 3000))
            truth = sum(FACTORS[kind] * ps for kind, ps in parts_ps.items()) + OVERHEAD * launches
            made.append(MeasuredGraph(f"m{number}", parts_ps, launches, truth / 1e9 * np.exp(rng.normal(0, noise))))
    return made


# -- the fit ---------------------------------------------------------------------------------------


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
    assert result.factors["MatMul"] == MAX_FACTOR and result.overhead_ps >= 0
    assert all(MIN_FACTOR <= factor <= MAX_FACTOR for factor in (result.common, *result.factors.values()))


def test_of_one_model_no_error_is_known():
    assert fit(measurements(models=1)).error is None
    with pytest.raises(RLFlowError, match="nothing to learn from"):
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
    with pytest.raises(RLFlowError, match="holds no learned cost"):
        Correction.load(path)


# -- kinds -----------------------------------------------------------------------------------------


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


# -- learning from a database ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def known() -> Known:
    return together([measured(name) for name in MODELS])


def test_factors_move_towards_the_planted_ones(known):
    """Kinds that grow together in all graphs share what is planted, so factors are not recovered exactly."""
    result = learn(known, 2)
    assert (result.models, result.graphs, result.threads) == (len(MODELS), 44, 2)
    for kind in ("Conv spatial", "Conv pointwise", "Relu"):
        assert abs(result.factors[kind] - PLANTED[kind]) < 0.6 * abs(1 - PLANTED[kind])


def test_models_left_out_are_estimated_by_the_others(known):
    judged = leave_out(known, 1)
    assert len(judged) == len(MODELS)
    for one in judged:
        assert one.error("learned") < 0.05 and one.rank_correlation("learned") > 0.9
    worst = {cost: max(one.error(cost) for one in judged) for cost in ("learned", "profiled")}
    assert worst["learned"] < worst["profiled"] / 4


def test_a_model_that_is_judged_was_not_shown():
    """It takes twice what kernels like its own take elsewhere, which no other model can say."""
    strange = measured(MODELS[0], lambda graph: 2 * by_kind(graph))
    judged = leave_out(together([strange, *(measured(name) for name in MODELS[1:])]), 1)
    assert judged[0].original == strange.pairs[0].pair.original and judged[0].error("learned") > 0.4


def test_an_infinitely_uncertain_measurement_changes_nothing(known):
    useless = [
        one._replace(ratio=9.0, low=low, high=high, original_ms=1e6)
        for one, (low, high) in zip(known.pairs, 20 * [(0.0, np.inf), (1.0, np.inf), (0.0, 9.0)], strict=False)
    ]
    assert learn(known._replace(pairs=known.pairs + useless), 1) == learn(known, 1)


def test_repeated_measurements_are_averaged_by_their_certainty():
    once = measured(MODELS[0], count=3)
    pair = once.pairs[-1]
    again = pair._replace(ratio=4 * pair.ratio, low=pair.low * 1.0, high=pair.high * 1e6)  # says nearly nothing
    surely, doubtfully = (learned.measured_models(one) for one in (once, once._replace(pairs=[*once.pairs, again])))
    (surely,), (doubtfully,) = surely.values(), doubtfully.values()
    assert doubtfully[-1].measured_ms == pytest.approx(surely[-1].measured_ms, rel=1e-3)


def test_several_sizes_are_one_graph_of_their_mean_shares():
    one, other = (KernelGraph(("Exp", "Neg"), np.array([[ps, 0, 0, 1], [60.0, 0, 0, 1]])) for ps in (40.0, 340.0))
    parts_ps, launches = learned._mean_parts([one, other])
    assert sum(parts_ps.values()) == pytest.approx(200) and parts_ps["Exp"] == pytest.approx(200 * (0.4 + 0.85) / 2)
    assert launches == pytest.approx(200 * (2 / 100 + 2 / 400) / 2)


def test_without_measurements_it_refuses():
    with pytest.raises(RLFlowError, match="nothing to learn from"):
        learn(Known([], {}, 0, 0), 1)


def test_graphs_that_measurements_connect_are_one_family(known):
    assert sorted(map(len, families(known))) == [11, 11, 11, 11]
    first, second = families(known)[:2]
    bridge = MeasuredPair(first[3].pair._replace(original=second[5].pair.graph), 1.0, 0.9, 1.1, None)
    assert sorted(map(len, families(known._replace(pairs=[*known.pairs, bridge])))) == [11, 11, 23]
    assert leave_out(known._replace(pairs=first), 1) == []


def test_rank_correlation_with_ties():
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4.
    a, b = np.array([1.0, 2, 2, 4]), np.array([10.0, 20, 30, 40])
    assert spearman(a, b) == pytest.approx(0.9487, abs=1e-4)
    assert spearman(a, -np.exp(a)) == pytest.approx(-1) and spearman(a, np.ones(4)) == 0


# -- the cost model --------------------------------------------------------------------------------


def test_the_former_name_is_refused_with_the_present_one():
    with pytest.raises(RLFlowError, match="'corrected' is now called 'learned'"):
        COSTS.check("corrected")


def test_the_cost_of_a_graph_is_the_scaled_sum():
    result = conv("a = Conv(x, w, b) c = Relu(a) y = Exp(c)")
    correction = Correction(1.5, {"Conv spatial": 2.0, "Relu": 0.5}, 1e6)
    estimate = AnalyticCost()
    kernels = KernelGraph.of(estimate, result)
    parts_ps, launches = kernels.parts_ps, kernels.launches
    assert sorted(parts_ps) == ["Conv spatial", "Exp", "Relu"] and launches == 3
    expected = 2 * parts_ps["Conv spatial"] + 0.5 * parts_ps["Relu"] + 1.5 * parts_ps["Exp"] + 3e6
    total, before = graph_cost(LearnedCost(estimate, correction), result), graph_cost(estimate, result)
    assert total.runtime_ps == pytest.approx(expected, abs=2) and isinstance(total.runtime_ps, int)
    assert total[1:] == before[1:] and correction.milliseconds(parts_ps, launches) == pytest.approx(expected / 1e9)


@pytest.mark.parametrize("name", MODELS[:2])
def test_a_cost_kept_by_difference_is_the_one_counted_anew(known, name):
    cost = LearnedCost(AnalyticCost(), learn(known, 1))
    rng, state = np.random.default_rng(0), replace(tiny_task(name), cost=cost).initial
    for _ in range(25):
        actions = state.valid_actions()[:-1]
        state = state.apply(*map(int, actions[rng.integers(len(actions))]))
        anew = GraphCost.of(cost, state.graph)
        assert state.graph_cost.nodes == anew.nodes and state.cost == anew.total


def test_it_is_opened_beside_the_database(tmp_path):
    database = tmp_path / "costs.sqlite"
    with pytest.raises(RLFlowError, match="no cost was learned for threads=1"):
        LearnedCost.open(1, database)
    Correction(3.0, {}, 0.0).save(correction_path(1, database))
    result = graph("g (float[64] x) => (float[64] y) {y = Exp(x)}")
    estimated = graph_cost(ProfiledCost.open(1, database), result).runtime_ps
    assert graph_cost(LearnedCost.open(1, database), result).runtime_ps == 3 * estimated
    Correction(3.0, {}, 0.0, machine="another").save(correction_path(1, database))
    with pytest.raises(RLFlowError, match="learned on another machine"):
        LearnedCost.open(1, database)
