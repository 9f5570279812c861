"""Test the predicted cost: timed kernels cost their timing, other kernels a prediction; only requests cause timings."""

import pickle
from pathlib import Path

import pytest

from rlflow.common.errors import RLFlowError
from rlflow.costs import graph_cost, graph_spread, profiled
from rlflow.costs.database import TimingDatabase
from rlflow.costs.predicted import SHIPPED, PredictedCost, prior_path
from rlflow.costs.prior import Prior
from rlflow.costs.profiled import ProfiledCost
from rlflow.graph.onnx_reader import load_graph
from rlflow.zoo import load
from tests.costs.graphs import check_is_local, conv, graph, only
from tests.costs.priors import predicted, roofline_prior, timing_of, with_speeds

ROOT = Path(__file__).parents[2]
NODES = "a = Conv(x, w, b) s = Exp(a) t = Softmax(s) y = Tanh(t)"


@pytest.fixture
def never_timed(monkeypatch):
    monkeypatch.setattr(profiled, "time_model", lambda *_: pytest.fail("a kernel was timed"))


@pytest.fixture
def timed(monkeypatch) -> list:
    """Return the list of the timed models; each model takes 7 µs."""
    models = []

    def timing(timed, *_):
        models.append(timed.model)
        return timing_of(7e6)

    monkeypatch.setattr(profiled, "time_model", timing)
    return models


def name_of(cost: PredictedCost, g, op: str) -> str:
    """Return the name, as used in the spread, of the kernel of the only operator `op`."""
    (name,) = [name for name in cost.spread(g, only(g, op)) if f"'{op}'" in name]
    return name


@pytest.mark.usefixtures("never_timed")
def test_all_kernels_are_predicted_and_none_is_timed(tmp_path):
    cost, g = predicted(tmp_path), conv(NODES)
    assert graph_cost(cost, g).runtime_ps > 0
    assert all(cost.is_predicted(name) for name in graph_spread(cost, g))
    # the cost depends only on the database and the prior
    assert graph_cost(predicted(tmp_path), g) == graph_cost(cost, g)


@pytest.mark.usefixtures("timed")
def test_a_timed_kernel_costs_its_timing_and_is_not_corrected(tmp_path):
    cost, g = predicted(tmp_path), conv(NODES)
    before = graph_cost(cost, g)
    name = name_of(cost, g, "Softmax")
    cost.time_again(name)
    node = only(g, "Softmax")
    assert cost.node_cost(g, node) == ProfiledCost(cost.database.path).node_cost(g, node)
    assert cost.node_cost(g, node).runtime_ps == 7_000_000 and not cost.is_predicted(name)
    others = [cost.node_cost(g, only(g, op)) for op in ("Conv", "Exp", "Tanh")]
    cost.correct()
    assert cost.node_cost(g, node).runtime_ps == 7_000_000
    # their predictions learn from the timing
    assert [cost.node_cost(g, only(g, op)) for op in ("Conv", "Exp", "Tanh")] != others
    assert graph_cost(cost, g) != before


def test_only_the_requested_kernel_is_timed(tmp_path, timed):
    cost, g = predicted(tmp_path), conv(NODES)
    graph_cost(cost, g)
    cost.time_again(name_of(cost, g, "Tanh"))
    graph_cost(cost, g)
    (model,) = timed
    assert [node.op_type for node in model.graph.node] == ["Tanh"]
    cost.time_again(name_of(cost, g, "Exp"))
    cost.keep_predictions()  # this drops the request, so nothing is timed
    graph_cost(cost, g)
    assert len(timed) == 1


@pytest.mark.usefixtures("timed")
def test_the_predicted_cost_equals_the_profiled_cost_if_all_kernels_are_timed(tmp_path):
    cost, g = predicted(tmp_path), load_graph(load("tiny_squeezenet1_1"))
    for name in graph_spread(cost, g):
        cost.time_again(name)
    graph_cost(cost, g)
    profiled_cost = ProfiledCost(cost.database.path)
    for one in (cost, predicted(tmp_path)):
        one.correct()
        assert graph_cost(one, g) == graph_cost(profiled_cost, g)
        assert graph_spread(one, g) == graph_spread(profiled_cost, g)


@pytest.mark.usefixtures("timed")
def test_equal_kernels_share_prediction_and_timing(tmp_path):
    folded, apart = conv("y = Conv(x, w, b)"), conv("a = Conv(x, w) y = BatchNormalization(a, b, b, b, b)")
    cost = predicted(tmp_path)

    def runtimes() -> set[int]:
        return {cost.node_cost(g, only(g, "Conv")).runtime_ps for g in (folded, apart)}

    (before,) = runtimes()
    cost.time_again(name_of(cost, apart, "Conv"))
    (known,) = {cost.node_cost(apart, only(apart, "Conv")).runtime_ps}
    cost.correct()
    assert cost.is_predicted(name_of(cost, folded, "Conv"))
    assert cost.node_cost(folded, only(folded, "Conv")).runtime_ps == pytest.approx(known, rel=0.1)
    for g in (apart, folded):
        cost.time_again(name_of(cost, g, "Conv"))
        cost.node_cost(g, only(g, "Conv"))
    (after,) = runtimes()
    assert after >= 7_000_000 > before  # the total may include a reorder, which is predicted
    assert len([name for name in cost.database.timings(1) if "Conv" in name]) == 1


@pytest.mark.usefixtures("never_timed")
def test_the_incrementally_updated_cost_equals_the_cost_counted_anew(tmp_path):
    check_is_local(predicted(tmp_path), load_graph(load("tiny_resnet18")))


@pytest.mark.usefixtures("timed")
def test_a_copy_in_another_process_predicts_the_same(tmp_path):
    cost, g = predicted(tmp_path), conv(NODES)
    cost.time_again(name_of(cost, g, "Exp"))
    graph_cost(cost, g)
    assert graph_cost(pickle.loads(pickle.dumps(cost)), g) == graph_cost(cost, g)


@pytest.mark.usefixtures("never_timed")
def test_a_kernel_with_a_subgraph_is_not_predicted(tmp_path):
    branches = "then_branch = t () => (float[2] u) { u = Exp(x) }, else_branch = e () => (float[2] v) { v = Neg(x) }"
    body = f"g (bool c, float[2] x) => (float[2] y) {{ y = If <{branches}> (c) }}"
    cost, g = predicted(tmp_path), graph(body, bodies=False)
    assert graph_cost(cost, g).runtime_ps > 0 and len(cost.fallbacks) == 1


@pytest.mark.usefixtures("never_timed")
def test_the_shipped_prior_is_used_if_there_is_no_other(tmp_path):
    g, database = conv(NODES), with_speeds(tmp_path / "costs.sqlite").path
    shipped = graph_cost(PredictedCost.open(1, database), g)
    assert shipped == graph_cost(PredictedCost(database, 1, Prior.load(SHIPPED)), g)
    assert shipped != graph_cost(predicted(tmp_path), g)


def test_a_damaged_prior_is_not_replaced_by_the_shipped_one(tmp_path):
    database = with_speeds(tmp_path / "costs.sqlite").path
    prior_path(database).write_bytes(b"no prior")
    with pytest.raises(RLFlowError, match="costs train"):
        PredictedCost.open(1, database)


def test_no_kernel_is_predicted_for_another_machine(tmp_path):
    database = with_speeds(tmp_path / "costs.sqlite")
    assert type(PredictedCost.open(1, database.path)) is PredictedCost
    imported = TimingDatabase(tmp_path / "target.sqlite")
    imported.import_rows("another machine", database.rows(1))
    assert type(PredictedCost.open(1, imported.path)) is ProfiledCost


def test_the_shipped_prior_is_small_and_the_model_card_states_its_facts():
    facts, card = Prior.load(SHIPPED).facts, (ROOT / "docs" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert SHIPPED.stat().st_size <= 2_000_000
    errors = facts["left_out"]
    for text in (
        f"{facts['kernels']:,} kernels", *facts["machines"], f"{100 * errors['median_relative_error']:.1f} %",
        f"{errors['rank_correlation']:.3f}", f"{100 * errors['within_80']:.0f} %",
    ):  # fmt: skip
        assert text in card


@pytest.mark.usefixtures("never_timed")
def test_the_prior_beside_the_database_is_used(tmp_path):
    g = conv(NODES)
    slow = predicted(tmp_path, roofline_prior(log_factor=2.0))
    slow.prior.save(prior_path(slow.database.path))
    opened = PredictedCost.open(1, slow.database.path)
    assert graph_cost(opened, g) == graph_cost(slow, g) != graph_cost(predicted(tmp_path), g)
