"""Test the timing of what decides: no other kernel is timed, and a search that predictions misled is corrected."""

import math

import numpy as np
import onnx
import pytest
from omegaconf import OmegaConf
from onnx import numpy_helper
from scipy import integrate, stats

from rlflow.costs import graph_cost, graph_spread, profiled, timing_until
from rlflow.costs.kernel_features import feature_names
from rlflow.costs.prior import Trees
from rlflow.costs.profiled import ProfiledCost
from rlflow.env import MOVES
from rlflow.env.batched import start_of
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.optimisation import deciding
from rlflow.optimisation.anytime import DESCENTS, BestSoFar
from rlflow.optimisation.candidates import Candidate
from rlflow.optimisation.deciding import (
    expected_improvement,
    predicting,
    search_in_rounds,
    time_what_decides,
    unproved,
    values,
)
from rlflow.runs.config import load_config
from rlflow.search.base import Limits, run_search
from tests.costs.priors import predicted, roofline_prior, timing_of
from tests.toys.chains import toy_task

KINDS = ("Abs", "Exp", "Neg", "Relu", "Tanh")
TRUTH = {"Relu": 4e9, "Abs": 8e9, "Neg": 2e9, "Exp": 6e9, "Tanh": 5e9}  # picoseconds


def cheaper(kind: str, log_factor: float) -> Trees:
    """Return an ensemble that predicts `log_factor` for kernels of one kind and 0 for all other kernels."""
    place = feature_names(KINDS).index(f"is {kind}")
    own = np.array([[0, 1, 2]], np.int16)
    feature, left, right = (np.array([row], np.int16) for row in ((place, 0, 0), (1, 1, 2), (2, 1, 2)))
    assert (left[0, 1:] == own[0, 1:]).all()
    return Trees(feature, np.array([[0.5, 0, 0]]), left, right, np.array([[0, 0, log_factor]]), 1)


@pytest.fixture
def timed(monkeypatch) -> list[str]:
    """Return the list of the operators that were timed; each operator takes its time in TRUTH."""
    operators = []

    def timing(timed_model, *_):
        (op,) = {node.op_type for node in timed_model.model.graph.node}
        operators.append(op)
        return timing_of(TRUTH[op])

    monkeypatch.setattr(profiled, "time_model", timing)
    return operators


@pytest.fixture
def task(tmp_path) -> Task:
    """Return a task of a chain whose Relus become Abs or Neg; the prior estimates Abs as far too cheap."""
    toy = toy_task(["Relu", "Exp", "Tanh"] * 3, "Relu(x) => Abs(x)\nRelu(x) => Neg(x)", dict.fromkeys(TRUTH, 0))
    prior = roofline_prior(log_factor=0.0, kinds=KINDS)._replace(mean=cheaper("Abs", -1.0))
    return Task(toy.graph, toy.rules, predicted(tmp_path, prior))


def replaced(task: Task, rule: int) -> Candidate:
    """Return the candidate in which one rule has replaced all Relus."""
    state, actions = task.initial, []
    while state.counts[rule]:
        state = state.apply(rule, 0)
        actions.append((rule, 0))
    return Candidate(f"rule-{rule}", state, actions, len(actions), 0.0)


@pytest.mark.parametrize("longer, deviation", [(0.0, 1.0), (0.5, 1.0), (3.0, 0.7), (10.0, 1.0)])
def test_expected_improvement_equals_the_numerically_integrated_gain(longer, deviation):
    density = stats.norm(longer, deviation).pdf
    mean, _ = integrate.quad(lambda d: max(-d, 0.0) * density(d), longer - 12 * deviation, 0.0)
    assert math.isclose(expected_improvement(longer, deviation), mean, rel_tol=1e-6, abs_tol=1e-12)
    assert expected_improvement(longer, 0.0) == 0.0


def test_kernels_that_all_candidates_share_have_no_value(task):
    graphs = [task.graph, *(replaced(task, rule).state.graph for rule in (0, 1))]
    worth = values(task.cost, graphs)
    assert worth and all(any(f"'{op}'" in name for op in ("Relu", "Abs", "Neg")) for name in worth)
    names = graph_spread(task.cost, task.graph).keys()
    assert any("'Exp'" in name for name in names)


def test_the_values_of_two_graphs_add_up_to_the_expected_improvement(task):
    graphs = [task.graph, replaced(task, 0).state.graph]
    costs = [graph_cost(task.cost, graph).runtime_ps for graph in graphs]
    difference = graph_spread(task.cost, graphs[0]) - graph_spread(task.cost, graphs[1])
    whole = expected_improvement(abs(costs[0] - costs[1]), difference.ps / 1.96)
    assert math.isclose(sum(values(task.cost, graphs).values()), whole, rel_tol=1e-3)


def test_only_the_kernels_that_the_best_candidate_depends_on_are_timed(task, timed, tmp_path):
    best = BestSoFar(task, tmp_path / "best.json")
    best.offer(replaced(task, 0))
    count = time_what_decides(best, 1e6)
    assert sorted(timed) == ["Abs", "Relu"] and count == 2
    assert not unproved(task.cost, [task.graph, best.candidates()[0].state.graph])
    (candidate,) = best.candidates()
    # the prior was wrong, and after the timings the costs show it
    assert candidate.state.objective > task.initial.objective
    assert candidate.state.objective == graph_cost(task.cost, candidate.state.graph).runtime_ps
    assert time_what_decides(best, 1e6) == 0 and len(timed) == 2


def test_no_kernel_is_timed_and_no_request_is_kept_after_the_deadline(task, timed, tmp_path):
    best = BestSoFar(task, tmp_path / "best.json")
    best.offer(replaced(task, 0))
    assert time_what_decides(best, 0.0) == 0
    graph_cost(task.cost, best.candidates()[0].state.graph)
    assert timed == []


@pytest.fixture
def unsure(tmp_path, monkeypatch) -> Task:
    """Return a task like `task`, but each gain by predictions is smaller than its uncertainty."""
    for op, ps in {"Relu": 1.4e6, "Abs": 2.0e6, "Neg": 0.7e6}.items():
        monkeypatch.setitem(TRUTH, op, ps)
    toy = toy_task(["Relu", "Exp", "Tanh"] * 3, "Relu(x) => Abs(x)\nRelu(x) => Neg(x)", dict.fromkeys(TRUTH, 0))
    prior = roofline_prior(deviation=1.0, kinds=KINDS)._replace(mean=cheaper("Abs", -1.0))
    return Task(toy.graph, toy.rules, predicted(tmp_path, prior))


@pytest.mark.parametrize("name", DESCENTS)
@pytest.mark.parametrize("moves", MOVES)
def test_a_descent_times_a_step_before_it_takes_it(unsure, timed, name, moves):
    misled = run_search(name, start_of(unsure, moves), max_steps=100)
    assert {node.op for node in misled.state.graph.nodes.values()} == {"Abs", "Exp", "Tanh"} and timed == []
    result = run_search(name, start_of(unsure, moves), max_steps=100, times=True)
    assert {node.op for node in result.state.graph.nodes.values()} == {"Neg", "Exp", "Tanh"}
    assert sorted(timed) == ["Abs", "Neg", "Relu"] and result.stop == "local optimum"
    gain = graph_cost(unsure.cost, unsure.graph).runtime_ps - graph_cost(unsure.cost, result.state.graph).runtime_ps
    assert gain == 3 * round(TRUTH["Relu"] - TRUTH["Neg"])
    # the search has kept the state that timings prefer, although the misled state had seemed to be better
    assert result.trace[-1][2] == result.state.with_current_cost().objective


@pytest.mark.parametrize("name", DESCENTS)
def test_a_descent_takes_no_unsure_step_that_it_may_not_time(unsure, timed, name):
    with timing_until(unsure.cost, 0.0):
        result = run_search(name, unsure.initial, max_steps=100, times=True)
    assert (timed, result.stop, result.actions) == ([], "seconds", [])


def test_a_descent_times_no_step_that_would_take_most_of_its_time(unsure, timed):
    needed = sum(predicting(unsure.cost).seconds_to_time(name) for name in graph_spread(unsure.cost, unsure.graph))
    for seconds, times in ((1.0 * needed, False), (9.0 * needed, True)):
        run_search("descent", unsure.initial, Limits(seconds), clock=lambda: 0.0, max_steps=100, times=True)
        assert bool(timed) is times


def test_the_expected_seconds_of_a_timing_grow_with_the_bytes_of_its_weights(tmp_path):
    def seconds(size: int) -> float:
        text = '<ir_version: 8, opset_import: ["": 17]> g (float[1, N] x) => (float[1, N] y) <float[N, N] w = {0}> '
        model = onnx.parser.parse_model((text + "{ y = MatMul (x, w) }").replace("N", str(size)).replace("{0}", "{}"))
        weight = numpy_helper.from_array(np.zeros((size, size), np.float32), "w")
        model.graph.initializer[0].CopyFrom(weight)
        graph, cost = load_graph(model), predicted(tmp_path)
        (name,) = [name for name in graph_spread(cost, graph) if cost.is_predicted(name)]
        return cost.seconds_to_time(name)

    assert 0.08 < seconds(2048) - seconds(64) < 0.3  # 16 MB of weights; the runs take some of it, too


def test_a_search_misled_by_predictions_ends_at_the_best_graph_by_timings(task, timed, tmp_path, monkeypatch):
    monkeypatch.setattr(deciding, "SEARCHES", 1.0)  # so that the searches end by themselves
    options = OmegaConf.to_container(load_config().search) | {"interactions": 400}
    options["annealing"]["restarts"] = 1
    best = BestSoFar(task, tmp_path / "best.json")
    result = search_in_rounds(best, options, 1e6, seed=0)
    found, known = best.candidates()[0].state, ProfiledCost(predicting(task.cost).database.path)
    assert {node.op for node in found.graph.nodes.values()} == {"Neg", "Exp", "Tanh"}
    assert len(timed) == len(set(timed)) and {"Abs", "Relu", "Neg"} <= set(timed)
    changed = [node for node in found.graph.nodes.values() if node.op == "Neg"]
    assert all(found.graph_cost.nodes[node.id] == known.node_cost(found.graph, node) for node in changed)
    rounds = result["rounds"]
    assert len(rounds) > 1 and rounds[-1]["timed"] == 0 and sum(one["timed"] for one in rounds) == len(timed)
    assert sum(rounds[0]["rewrites"].values()) > 0
