"""Test the lower bound: no graph that the engine reaches costs less, and a saturated e-graph attains the bound."""

from dataclasses import replace

import numpy as np
import pytest

from rlflow.cli.main import main
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.costs import graph_cost
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import to_model
from rlflow.rules.language import load_rules
from rlflow.rules.rule import RuleSet
from rlflow.search.descents import greedy
from rlflow.search.saturation.lower_bound import lower_bound
from tests.suite import at_night, slow
from tests.toys.reachable import reachable
from tests.toys.saturated import TOYS, task, toy
from tests.toys.systems import rule_set
from tests.toys.tiny import tiny_task


@pytest.mark.parametrize("name", TOYS)
def test_a_saturated_bound_is_the_cheapest_graph_that_the_engine_reaches(name):
    # These are all reachable graphs, except for one toy with infinitely many.
    result, _ = reachable(toy(name).initial, 8)
    assert len(result) > 2
    bound = lower_bound(toy(name), 30, max_iterations=20)
    assert bound.saturated and bound.stop == "saturated"
    cheapest = min(state.cost.runtime_ps for state in result.values())
    assert bound.lower_bound_ps == bound.best_ps == graph_cost(toy(name).cost, bound.best).runtime_ps == cheapest


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_no_graph_within_the_number_of_iterations_costs_less_than_the_bound(name, iterations):
    bound = lower_bound(toy(name), 30, max_iterations=iterations)
    result, _ = reachable(toy(name).initial, iterations)
    assert bound.lower_bound_ps <= min(state.cost.runtime_ps for state in result.values())


@pytest.mark.parametrize("name", ["tiny_resnet18", *slow("tiny_squeezenet1_1", "tiny_mobilenet_v2")])
def test_the_best_graph_computes_the_same_and_no_search_beats_the_bound(name):
    start = tiny_task(name).initial
    result = greedy(start, 500).state
    bound = lower_bound(start.task, 60, [result.graph], max_iterations=3)
    assert not bound.saturated and bound.iterations == 3
    assert bound.lower_bound_ps <= bound.best_ps <= result.cost.runtime_ps <= start.cost.runtime_ps
    assert bound.gap(bound.best_ps) == 0 < bound.gap(start.cost.runtime_ps) < 1
    original, best = to_model(start.graph), to_model(bound.best)
    inputs = random_inputs(original, 0)
    for wanted, got in zip(run(session(original, 1), inputs), run(session(best, 1), inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_the_results_of_searches_widen_the_scope_of_a_bound():
    start = tiny_task("tiny_resnet18").initial
    result = greedy(start, 500).state
    single, with_it = (lower_bound(start.task, 30, graphs, max_iterations=1) for graphs in ([], [result.graph]))
    assert with_it.lower_bound_ps == result.cost.runtime_ps < single.lower_bound_ps
    assert "1 result" in with_it.scope


def test_limits_end_saturation_before_an_iteration_changes_the_e_graph():
    start = tiny_task("tiny_resnet18").initial
    whole = lower_bound(start.task, 30, max_iterations=2)
    limited = lower_bound(start.task, 30, max_iterations=9, max_nodes=500)
    assert (limited.stop, limited.iterations, limited.nodes) == ("nodes", 2, whole.nodes)
    none = lower_bound(start.task, 0)
    assert (none.stop, none.iterations) == ("seconds", 0)
    assert none.lower_bound_ps <= none.best_ps == start.cost.runtime_ps


def test_a_bound_is_the_same_every_time():
    first, second = (
        lower_bound(tiny_task("tiny_squeezenet1_1"), 30, max_iterations=at_night(3, 2)) for _ in range(2)
    )
    assert (first.lower_bound_ps, first.nodes, first.best.hash) == (
        second.lower_bound_ps,
        second.nodes,
        second.best.hash,
    )


@pytest.mark.parametrize("more", [{"reach": 1}, {"whole": lambda cost, graph: 7}], ids="".join)
def test_a_cost_that_is_no_sum_over_single_operators_has_no_bound(more):
    start = toy(next(iter(TOYS)))
    cost = type("Other", (type(start.cost),), more)()
    with pytest.raises(RLFlowError, match="sum over single operators"):
        lower_bound(replace(start, cost=cost), 10)


def test_a_rule_with_a_condition_on_consumers_has_no_bound():
    rules = rule_set("single: why\n  Relu(Neg(x)) => Neg(Relu(x))\n  if unshared(x)")
    with pytest.raises(RLFlowError, match="single"):
        lower_bound(task("(float[8] x) => (y) { a = Neg(x) y = Relu(a) }", {}, rules), 10)


@pytest.mark.parametrize("name", slow("tiny_squeezenet1_1", "tiny_bert_base", "tiny_resnet50"))
def test_no_walk_of_the_engine_ends_below_the_bound(name):
    """Check walks of as many random rewrites as saturation iterations, from the model and from the result of a
    search."""
    start = tiny_task(name).initial
    result = greedy(start, 500).state
    iterations = 2
    bound = lower_bound(start.task, 60, [result.graph], max_iterations=iterations)
    assert bound.iterations == iterations
    random, costs = np.random.default_rng(0), set()
    for walk in range(60):
        state = (start, result)[walk % 2]
        for _ in range(iterations):
            state = state.apply(*random.choice(state.valid_actions()[:-1]))
        costs.add(state.cost.runtime_ps)
    assert bound.lower_bound_ps <= min(costs) and len(costs) > 20


def test_rules_for_more_outputs_than_an_operator_has_do_not_prevent_a_bound():
    rules = RuleSet(tuple(rule for rule in load_rules() if rule.name.startswith("split-in-")))
    text = "(float[4] x) => (y) { a, b = Split<axis=0>(x, n) y = Add(a, b) }"
    bound = lower_bound(task(text, {"n": np.array([2, 2])}, rules), 10)
    assert bound.saturated and bound.lower_bound_ps > 0


def test_the_command_prints_the_gaps(tmp_path, capsys):
    assert (
        main(
            [
                "bound",
                "--model",
                "tiny_resnet18",
                "--iterations",
                "1",
                "--seconds",
                "30",
                "--json",
                str(tmp_path / "b.json"),
            ]
        )
        == 0
    )
    results = read_json(tmp_path / "b.json")
    assert results["iterations"] == 1 and results["best"]["gap"] == 0 < results["original"]["gap"]
    assert results["scope"] in capsys.readouterr().out
    assert main(["bound", "--model", "tiny_resnet18", "--iterations", "0"]) == 1
    assert "at least 1" in capsys.readouterr().err
