"""The learned latency: what it learns from planted measurements, and the cost model that it makes."""

from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_arrays, write_arrays
from rlflow.costs import GraphCost, graph_cost
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.database import MeasuredPair
from rlflow.costs.latency_fit import families, learn, leave_out
from rlflow.costs.learned import COMMON, GraphNetwork, LatencyModel, LearnedCost, latency_path
from rlflow.costs.measurements import ESTIMATE, KernelGraph, Known
from rlflow.costs.profiled import ProfiledCost
from rlflow.env.state import Task
from tests.commands import printed
from tests.costs.graphs import graph
from tests.toys.planted_latencies import FACTORS, MODELS, SIZES, by_kind, measured, together
from tests.toys.timed import TimedAgain
from tests.toys.tiny import tiny_task


@pytest.fixture(scope="module")
def known() -> Known:
    return together([measured(name) for name in MODELS])


@pytest.fixture(scope="module")
def model(known) -> LatencyModel:
    return learn(known, 1)


def after_convolutions(graph: KernelGraph) -> float:
    """What reads a convolution takes twice as long."""
    convolutions = {row for row, kind in enumerate(graph.kinds) if kind.startswith("Conv")}
    edges = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    slower = {receiver for sender, receiver in edges if sender in convolutions}
    factors = np.array([2.0 if row in slower else 1.0 for row in range(len(graph.kinds))])
    return float(factors @ graph.numbers[:, ESTIMATE]) / 1e9


def off_by_kernel(graph: KernelGraph) -> float:
    """Every kernel is off by a share of its own, wherever it is, which nothing says."""
    rows = zip(graph.kinds, graph.numbers.tolist(), strict=True)
    return sum(row[ESTIMATE] * (0.85 + 0.3 * crc32(repr((kind, row)).encode()) / 2**32) for kind, row in rows) / 1e9


# -- what is learned -------------------------------------------------------------------------------


def test_factors_of_kinds_are_recovered_on_models_never_shown(known):
    judged = leave_out(known, 1)
    assert len(judged) == len(MODELS)
    for one in judged:
        assert one.error("learned") < 0.05 and one.rank_correlation("learned") > 0.95
        assert np.abs(one.deviations).max() < 3
    worst = {cost: max(one.error(cost) for one in judged) for cost in ("learned", "profiled")}
    assert worst["learned"] < worst["profiled"] / 4


def test_noisy_measurements_say_the_same_less_surely():
    exact, noisy = (together([measured(m, width=w, noise=w / 4) for m in MODELS]) for w in (0.001, 0.08))
    models = [learn(one, 1) for one in (exact, noisy)]
    conv = models[0].columns["Conv spatial"]
    assert [1 + m.weights[0] + m.weights[conv] for m in models] == pytest.approx([FACTORS["Conv spatial"]] * 2, abs=0.1)
    assert np.linalg.norm(models[0].spread[conv]) < np.linalg.norm(models[1].spread[conv])


def test_what_lies_around_an_operator_is_learned_which_no_factor_of_kinds_says():
    variants = together([measured(name, after_convolutions, count=20, width=0.002) for name in MODELS])
    learned = learn(variants._replace(pairs=variants.pairs[::2]), 1)
    of_kinds = np.arange(len(learned.weights)) < COMMON + len(learned.kinds)

    def error(weights: np.ndarray) -> float:
        model = replace(learned, weights=weights)
        pooled = {key: model.pooled(views) for key, views in variants.graphs.items()}
        unseen = [(*(pooled[graph, SIZES] for graph in one.pair[:2]), one.ratio) for one in variants.pairs[1::2]]
        return float(np.mean([abs(model.log_ratio(*graphs)[0] - np.log(ratio)) for *graphs, ratio in unseen]))

    for less in (0 * learned.weights, learned.weights * of_kinds):
        assert error(learned.weights) < 0.6 * error(less)


def test_a_model_that_is_judged_was_not_shown():
    """It takes twice what kernels like its own take elsewhere, which nobody can know."""
    strange = measured(MODELS[0], lambda graph: 2 * by_kind(graph))
    judged = leave_out(together([strange, *(measured(name) for name in MODELS[1:])]), 1)
    assert judged[0].original == strange.pairs[0].pair.original and judged[0].error("learned") > 0.4


def test_what_kernels_are_off_by_themselves_is_no_law_and_known_to_be():
    judged = leave_out(together([measured(name, off_by_kernel, width=0.002) for name in MODELS]), 1)

    def error_of_ratios(cost: str) -> float:
        ratios = [(one.costs[cost] / one.measured_ms) / (one.costs[cost][0] / one.measured_ms[0]) for one in judged]
        return float(np.mean(np.abs(np.concatenate(ratios) - 1)))

    assert error_of_ratios("learned") < 1.1 * error_of_ratios("profiled")
    assert all(one.model.kernel_noise in (0.06, 0.1) for one in judged)  # it is 0.3 / sqrt(12)
    certain = [replace(one.model, spread=0 * one.model.spread) for one in judged]  # of w: kernels are off all the same
    pairs = zip(judged, certain, strict=True)
    deviations = np.concatenate([one._replace(model=model).deviations for one, model in pairs])
    assert 0.5 < np.mean(deviations**2) ** 0.5 < 2


def test_an_infinitely_uncertain_measurement_changes_nothing(known, model):
    useless = [
        one._replace(ratio=9.0, low=low, high=high, original_ms=1e6)
        for one, (low, high) in zip(known.pairs, 20 * [(0.0, np.inf), (1.0, np.inf), (0.0, 9.0)], strict=False)
    ]
    again = learn(known._replace(pairs=known.pairs + useless), 1)
    assert np.array_equal(again.weights, model.weights) and np.array_equal(again.spread, model.spread)


def test_an_estimate_that_is_right_is_not_changed():
    right = together([measured(m, lambda g: float(g.numbers[:, ESTIMATE].sum()) / 1e9) for m in MODELS])
    assert learn(right, 1).weights == pytest.approx(0, abs=1e-6)


def test_the_order_and_the_names_of_operators_do_not_matter(known, model):
    (view,) = known.graphs[known.pairs[25].pair.graph, SIZES]  # whose operators have several neighbours
    order = np.random.default_rng(0).permutation(len(view.kinds))
    row = np.argsort(order).astype(np.int32)
    edges = np.random.default_rng(1).permutation(len(view.senders))
    shuffled = KernelGraph(
        tuple(view.kinds[k] for k in order), view.numbers[order], row[view.senders[edges]], row[view.receivers[edges]]
    )
    fresh = replace(model, network=GraphNetwork(model.network.arrays))  # which has met nothing in another order
    one, other = model.pooled([view]), fresh.pooled([shuffled])
    assert other.features == pytest.approx(one.features, rel=1e-12)
    colours = (network.colours(of) for network, of in ((model.network, view), (fresh.network, shuffled)))
    first, second = ([n.features(c) for c in cs] for n, cs in zip((model.network, fresh.network), colours, strict=True))
    assert all(np.array_equal(second[row[k]], features) for k, features in enumerate(first))  # to the last bit


def test_what_is_learned_has_the_same_bits_in_every_process():
    program = (
        "from rlflow.costs.latency_fit import learn; from tests.toys.planted_latencies import measured;"
        "print(learn(measured('tiny_squeezenet1_1', count=2), 1).weights.tobytes().hex())"
    )

    assert printed(program, "1") == printed(program, "2")


def test_without_measurements_it_refuses():
    with pytest.raises(RLFlowError, match="there is none"):
        learn(Known([], {}, 0, 0), 1)


def test_graphs_that_measurements_connect_are_one_family(known):
    assert sorted(map(len, families(known))) == [11, 11, 11, 11]
    first, second = families(known)[:2]
    bridge = MeasuredPair(first[3].pair._replace(original=second[5].pair.graph), 1.0, 0.9, 1.1, None)
    assert sorted(map(len, families(known._replace(pairs=[*known.pairs, bridge])))) == [11, 11, 23]
    assert leave_out(known._replace(pairs=first), 1) == []


# -- the cost model --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS[:2])
def test_a_cost_kept_by_difference_is_the_one_counted_anew(model, name):
    """Whatever lies around an operator changes what it costs."""
    task = replace(tiny_task(name), cost=LearnedCost(AnalyticCost(), model))
    rng, state = np.random.default_rng(0), task.initial
    for _ in range(25):
        actions = state.valid_actions()[:-1]
        state = state.apply(*map(int, actions[rng.integers(len(actions))]))
        anew = GraphCost.of(LearnedCost(AnalyticCost(), model), state.graph)
        assert state.graph_cost.nodes == anew.nodes and state.cost == anew.total


def test_the_cost_is_what_the_model_says(known, model):
    result = graph_cost(LearnedCost(AnalyticCost(), model), tiny_task(MODELS[0]).graph)
    (view,) = known.graphs[tiny_task(MODELS[0]).graph.hash, SIZES]
    assert result.runtime_ps / 1e9 == pytest.approx(model.milliseconds(model.pooled([view])), rel=1e-6)
    assert result.runtime_ps / 1e9 == pytest.approx(by_kind(view), rel=0.01)
    assert result[1:] == graph_cost(AnalyticCost(), tiny_task(MODELS[0]).graph)[1:]


def test_colours_that_were_forgotten_cost_the_same(model, monkeypatch):
    graphs = [tiny_task(name).graph for name in MODELS]
    before = [graph_cost(LearnedCost(AnalyticCost(), model), one) for one in graphs]
    monkeypatch.setattr("rlflow.costs.learned.LARGEST", 3)
    cost = LearnedCost(AnalyticCost(), replace(model, network=GraphNetwork(model.network.arrays)))
    assert [graph_cost(cost, one) for one in reversed(graphs)] == before[::-1]


def test_what_is_timed_again_changes_what_is_seen_of_a_graph(model):
    estimate, result = TimedAgain(), tiny_task(MODELS[0]).graph
    cost = LearnedCost(estimate, model)
    before = graph_cost(cost, result)
    cost.time_again("any")
    assert before != graph_cost(cost, result) == graph_cost(LearnedCost(estimate, model), result)


def test_it_is_opened_beside_the_database(tmp_path, model):
    database = tmp_path / "costs.sqlite"
    with pytest.raises(RLFlowError, match="no latency was learned for threads=1"):
        LearnedCost.open(1, database)
    network = replace(model, weights=np.eye(len(model.weights))[0])  # everything takes twice as long
    network.save(latency_path(1, database))
    result = graph("g (float[64] x) => (float[64] y) {y = Exp(x)}")
    estimated = graph_cost(ProfiledCost.open(1, database), result).runtime_ps
    assert graph_cost(LearnedCost.open(1, database), result).runtime_ps == 2 * estimated
    replace(model, machine="another").save(latency_path(1, database))
    with pytest.raises(RLFlowError, match="learned on another machine"):
        LearnedCost.open(1, database)


def test_a_model_survives_its_file(tmp_path, model, known):
    model.save(tmp_path / "m.npz")
    loaded, views = LatencyModel.load(tmp_path / "m.npz"), known.graphs[known.pairs[3].pair.graph, SIZES]
    assert loaded.milliseconds(loaded.pooled(views)) == model.milliseconds(model.pooled(views))
    assert (loaded.kinds, loaded.kernel_noise, loaded.originals) == (model.kinds, model.kernel_noise, len(MODELS))


@pytest.mark.parametrize(
    "change",
    ({"format": np.array(0)}, {"weights": np.zeros(3)}, {"spread": np.full(1, np.nan)}, {"network/own1": np.zeros(1)}),
)
def test_a_damaged_file_is_refused(tmp_path, model, change):
    model.save(tmp_path / "m.npz")
    write_arrays(tmp_path / "m.npz", read_arrays(tmp_path / "m.npz") | change)
    with pytest.raises(RLFlowError, match="holds no learned latency"):
        LatencyModel.load(tmp_path / "m.npz")
    (tmp_path / "m.npz").write_bytes(b"PK\3\4")
    with pytest.raises(RLFlowError, match="cannot read"):
        LatencyModel.load(tmp_path / "m.npz")


def test_a_task_has_it_at_typical_sizes(model):
    body = "g (float[N,64] x, float[64,64] w) => (float[N,64] y) {a = MatMul(x, w) b = Relu(a) y = Exp(b)}"
    symbolic, sizes = graph(body), ({"N": 8}, {"N": 512})
    cost = LearnedCost(AnalyticCost(), model)
    task = Task(symbolic, tiny_task().rules, cost, sizes=sizes)
    expected = [graph_cost(cost, symbolic.at(one)).runtime_ps for one in sizes]
    assert task.initial.objective == pytest.approx((expected[0] * expected[1]) ** 0.5, rel=1e-6)
    assert task.cost.context == cost.context
