"""Test GRASP: it takes rewrites without gain that make others possible, times no operator beyond its paths, and ends
after `patience` descents without a new best result."""

import onnx
import pytest

from rlflow.env.batched import start_of
from rlflow.env.graph_rewrite import EnvSpec, GraphRewriteEnv
from rlflow.env.state import Task
from rlflow.search import descents
from rlflow.search.base import Limits, matches_of, run_search
from rlflow.search.descents import greedy
from tests.suite import at_night, slow
from tests.toys.chains import toy_task
from tests.toys.timed import timed_task
from tests.toys.tiny import tiny_task

OPTIONS = {"unit": 1e-5, "max_steps": 100, "patience": 20}
ONE_ROW = """<ir_version: 8, opset_import: ["": 17]>
one_row (float[64,128] x, float[128,256] w, float[256,512] v) => (float[512] y, float[64,128] z) <int64 first = {0}> {
  a = MatMul(x, w)
  b = Erf(a)
  c = MatMul(b, v)
  y = Gather<axis = 0>(c, first)
  d = Relu(x)
  z = Relu(d)
}"""


def searched(start, seed: int = 0, limits: Limits = Limits(), **changes):
    return run_search("grasp", start, limits, seed, **(OPTIONS | changes))

VIEWS = """<ir_version: 8, opset_import: ["": 17]>
views (float[2,6] x) => (float[4,3] y) <int64[2] first = {3, 4}, int64[2] second = {4, 3}> {
  a = Reshape(x, first)
  y = Reshape(a, second)
}"""


def one_row() -> Task:
    """Return a task in which only the first of 64 rows is read after two products. Moving the slice gains nothing by
    itself; other rewrites gain at once."""
    return EnvSpec("", cost="analytic", threads=1).open(onnx.parser.parse_model(ONE_ROW))


@pytest.mark.parametrize("moves", ["single", "batched"])
def test_grasp_finds_gains_that_follow_a_rewrite_without_gain(moves):
    start = start_of(one_row(), moves)
    steepest = greedy(start, 100)
    assert 0.9 * start.objective < steepest.state.objective < start.objective
    result = searched(start, unit=1.0)  # With this unit, a large gain is drawn as often as none.
    assert result.state.objective < start.objective / 2
    assert "gather-as-slice" in [result.state.task.rules[xfer_id].name for xfer_id, _ in result.actions]


def test_grasp_judges_rewrites_drawn_by_the_roofline_by_the_cost_of_the_search():
    """Every rule saves a launch, so the analytic cost prefers each; with these costs no rule gains."""
    rules = "Relu(Abs(x)) => Neg(x)\nExp(Relu(x)) => Tanh(x)"
    costly = toy_task(["Relu", "Abs", "Relu", "Exp"], rules, {"Relu": 10, "Abs": 10, "Neg": 30, "Exp": 15, "Tanh": 40})
    assert searched(costly.initial).actions == []
    cheap = toy_task(["Relu", "Abs", "Relu", "Exp"], rules, {"Relu": 10, "Abs": 10, "Neg": 30, "Exp": 15, "Tanh": 1})
    result = searched(cheap.initial)
    assert (result.state.objective, [x for x, _ in result.actions]) == (10 + 10 + 1, [1])


@pytest.mark.parametrize("name", ["tiny_bert_base_fused", *slow("tiny_inception_v3")])
def test_grasp_times_only_the_operators_on_the_paths_that_it_applies_again(name, monkeypatch):
    task, again, steepest, paths = timed_task(name), timed_task(name), timed_task(name), []
    carry_out = descents._carry_out_path

    def recorded(search, end):
        paths.append(list(matches_of(end.path)))
        carry_out(search, end)

    monkeypatch.setattr(descents, "_carry_out_path", recorded)
    result = searched(task.initial, patience=1, seed=1)
    greedy(steepest.initial, 1000)
    assert result.state.objective < task.initial.objective
    for state, path in ((again.initial, path) for path in paths):
        for match in path:
            state = state.follow(match)
            assert state.objective  # times the new operators
    assert paths and task.cost.timed.keys() == again.cost.timed.keys()
    assert len(task.cost.timed) < 2 / 3 * len(steepest.cost.timed)


def test_grasp_draws_the_same_rewrites_whichever_cost_judges_them():
    by_itself, timed = searched(tiny_task().initial), searched(timed_task().initial)
    assert (by_itself.actions, by_itself.interactions) == (timed.actions, timed.interactions)


def test_grasp_begins_at_the_start_of_the_search():
    start = tiny_task().initial.apply(*map(int, tiny_task().initial.valid_actions()[0]))
    result = searched(start)
    assert result.trace[0][2] == start.objective > result.state.objective


def test_grasp_ends_after_its_patience_of_descents_without_gain():
    start = tiny_task().initial
    few, many = searched(start, patience=2), searched(start, patience=at_night(40, 12))
    assert few.stop == many.stop == "patience" and few.interactions < many.interactions
    assert many.state.objective <= few.state.objective


def test_grasp_draws_nothing_if_no_rule_matches():
    task = toy_task(["Relu", "Exp"], "Abs(Abs(x)) => Abs(x)", {"Relu": 1, "Exp": 1, "Abs": 1})
    result = searched(task.initial)
    assert (result.actions, result.interactions, result.stop) == ([], 0, "patience")


def test_grasp_and_rendering_work_on_a_model_that_costs_nothing():
    task = EnvSpec("", cost="analytic", threads=1).open(onnx.parser.parse_model(VIEWS))
    assert task.initial.objective == 0 and task.initial.matches
    assert searched(task.initial).stop == "patience"
    env = GraphRewriteEnv(task, render_mode="ansi")
    env.reset()
    assert "0.00 % better" in env.render()


def test_grasp_draws_among_losses_of_any_size():
    start = one_row().initial
    result = searched(start, unit=1e-300)  # relative to this unit, every loss is enormous
    assert result.state.objective < start.objective
