"""Test first-improvement descent: its end, the order of its tries, and that it times no operator beyond its path."""

import pytest

from rlflow.costs import graph_cost
from rlflow.costs.analytic import AnalyticCost
from rlflow.env import BATCHED, SINGLE
from rlflow.env.batched import start_of
from rlflow.optimisation.candidates import states_along
from rlflow.search.base import Position, Search, run_search
from rlflow.search.descents import _through_valley, greedy, start_by_analytic_cost
from tests.suite import slow
from tests.toys.chains import random_task, toy_task
from tests.toys.timed import TimedCost, timed_task
from tests.toys.tiny import tiny_task

MODELS = ["tiny_squeezenet1_1", *slow("tiny_resnet18", "tiny_bert_base_fused", "tiny_inception_v3")]


def descend(start, max_steps: int = 1000):
    return run_search("descent", start, max_steps=max_steps)


@pytest.mark.parametrize("name", MODELS)
def test_a_descent_by_the_analytic_cost_equals_steepest_descent(name):
    start = tiny_task(name).initial
    assert descend(start).actions == greedy(start, 1000).actions


@pytest.mark.parametrize("seed", range(12))
def test_a_descent_ends_in_a_local_optimum_and_each_step_lowers_cost_or_size(seed):
    task = random_task(seed, length=8)
    result = descend(task.initial)
    assert result.stop == "local optimum"
    states = states_along(task, result.actions)
    along = [(state.cost.runtime_ps, len(state.graph.nodes)) for state in states]
    assert all(after < before for before, after in zip(along, along[1:], strict=False))
    costs = [state.cost.runtime_ps for state in states]
    neighbours = [result.state.apply(int(x), int(k)).cost.runtime_ps for x, k in result.state.valid_actions()[:-1]]
    assert min(neighbours, default=costs[-1]) >= costs[-1] == result.state.cost.runtime_ps


def test_a_rewrite_that_gains_by_the_analytic_cost_alone_is_left_out():
    """Every rule saves a launch, so the analytic cost prefers each; with these costs only the second rule gains."""
    costs = {"Relu": 10, "Abs": 10, "Neg": 30, "Exp": 15, "Tanh": 1}
    rules = "Relu(Abs(x)) => Neg(x)\nExp(Relu(x)) => Tanh(x)\nAbs(Relu(x)) => Neg(x)"
    result = descend(toy_task(["Relu", "Abs", "Relu", "Exp"], rules, costs).initial)
    assert (result.actions, result.state.cost.runtime_ps) == ([(1, 0)], 10 + 10 + 1)


@pytest.mark.parametrize(
    ("neg", "tanh", "actions"),
    [
        (2005, 500, [(0, 0), (1, 0)]),  # loses 5 of 3,000, then gains 2,505
        (2020, 500, []),  # loses more than half a percent at first
        (2005, 3004, []),  # loses in all
    ],
)
def test_a_rewrite_that_loses_little_is_taken_if_it_makes_a_larger_gain_possible(neg, tanh, actions):
    """Both rules save a launch, so the analytic cost prefers them."""
    costs = {"Abs": 1000, "Relu": 1000, "Exp": 1000, "Neg": neg, "Tanh": tanh}
    rules = "Relu(Abs(x)) => Neg(x)\nExp(Neg(x)) => Tanh(x)"
    result = descend(toy_task(["Abs", "Relu", "Exp"], rules, costs).initial)
    assert (result.stop, result.actions) == ("local optimum", actions)
    assert result.state.cost.runtime_ps == (tanh if actions else 3000)


@pytest.mark.parametrize(("tanh", "objective"), [(500, 500), (2999, None), (3004, None)])
def test_a_way_through_a_valley_ends_only_at_a_gain_of_a_twentieth_of_a_percent(tanh, objective):
    costs = {"Abs": 1000, "Relu": 1000, "Exp": 1000, "Neg": 2005, "Tanh": tanh}
    start = toy_task(["Abs", "Relu", "Exp"], "Relu(Abs(x)) => Neg(x)\nExp(Neg(x)) => Tanh(x)", costs).initial
    search = Search(start)
    reached = _through_valley(Position(search, start), start_by_analytic_cost(search))
    assert (reached and reached[0].objective) == objective
    assert reached is None or reached[1].state.hash == reached[0].state.hash


def test_the_gain_after_a_loss_must_be_one_that_the_loss_makes_possible():
    """The third rule gains anywhere, but it was possible before; the descent takes it alone."""
    costs = {"Abs": 1000, "Relu": 1000, "Exp": 1000, "Neg": 2005, "Tanh": 900}
    rules = "Relu(Abs(x)) => Neg(x)\nExp(Tanh(x)) => Tanh(x)"
    result = descend(toy_task(["Abs", "Relu", "Tanh", "Exp"], rules, costs).initial)
    assert (result.actions, result.state.cost.runtime_ps) == ([(1, 0)], 2900)


def test_a_descent_stops_after_its_maximum_of_steps():
    start = tiny_task("tiny_resnet18").initial
    result = descend(start, 3)
    assert (result.stop, result.actions) == ("steps", descend(start).actions[:3])


@pytest.mark.parametrize("name", MODELS)
def test_a_descent_first_times_only_operators_on_the_path_of_the_analytic_descent(name):
    task = timed_task(name)
    start, wanted = task.initial, greedy(tiny_task(name).initial, 1000)
    states = states_along(tiny_task(name), wanted.actions)
    on_the_way = TimedCost()
    for state in states:
        for node in state.graph.nodes.values():
            on_the_way.node_cost(state.graph, node)
    enough = timed_task(name, len(on_the_way.timed))
    result = descend(enough.initial)
    assert result.actions == wanted.actions and result.stop == "seconds"
    assert enough.cost.timed.keys() == on_the_way.timed.keys()
    assert descend(start).actions == wanted.actions and len(task.cost.timed) > len(on_the_way.timed)


@pytest.mark.parametrize("name", MODELS)
def test_steepest_descent_finds_nothing_in_the_time_that_suffices_for_the_descent(name):
    needed = timed_task(name)
    descend(needed.initial)
    few = len(needed.cost.timed) - 1
    assert greedy(timed_task(name, few).initial, 1000).actions == []
    assert descend(timed_task(name, few).initial).state.cost.runtime_ps < needed.initial.cost.runtime_ps


def test_a_descent_takes_at_most_twice_the_interactions_of_steepest_descent():
    start = tiny_task().initial
    steepest = greedy(start, 1000).interactions
    assert steepest < descend(start).interactions < 2 * steepest


@pytest.mark.parametrize("off, first", [(1, 0), (3, 1)])
def test_a_gain_within_its_uncertainty_comes_after_all_others(off, first):
    """Relu → Abs gains 4 with an uncertainty of √2 · off, and it prevents Relu → Neg → Tanh, which gains 39."""
    costs = {"Relu": 40, "Abs": 36, "Neg": 20, "Tanh": 1}
    rules = "Relu(x) => Abs(x)\nRelu(x) => Neg(x)\nNeg(x) => Tanh(x)"
    task = toy_task(["Relu", "Relu"], rules, costs, off={"Relu": off, "Abs": off})
    result = descend(task.initial)
    assert result.actions[0][0] == first and result.stop == "local optimum"
    assert result.state.cost.runtime_ps == (2 * 36 if first == 0 else 2 * 1)
    alone = toy_task(["Relu"], "Relu(x) => Abs(x)", costs, off={"Relu": off, "Abs": off})
    assert descend(alone.initial).state.cost.runtime_ps == 36  # A gain within its uncertainty still counts.


@pytest.mark.parametrize("equal, steps", [("Abs", [0, 1]), ("com.microsoft.QuickGelu", [])])
def test_an_equal_cost_is_accepted_for_a_lower_analytic_cost_and_a_standard_operator(equal, steps):
    """One launch replaces two at the same cost, and only then the next rule applies."""
    costs = {"Relu": 10, "Neg": 10, "Abs": 20, "QuickGelu": 20, "Tanh": 1}
    task = toy_task(["Relu", "Neg"], f"Neg(Relu(x)) => {equal}(x)\n{equal}(x) => Tanh(x)", costs)
    assert [rule for rule, _ in descend(task.initial).actions] == steps
    turning = toy_task(["Relu", "Relu"], "Relu(x) => Neg(x)\nNeg(x) => Relu(x)", costs)
    assert descend(turning.initial).actions == []  # Neither graph has fewer launches.


@pytest.mark.parametrize("moves", [SINGLE, BATCHED])
def test_the_start_with_the_analytic_cost_shares_the_match_table_of_the_start(moves):
    start = start_of(tiny_task("tiny_squeezenet1_1"), moves)
    twin = start_by_analytic_cost(Search(start))
    single, other = (state.single if moves == BATCHED else state for state in (start, twin.state))
    assert other.table is single.table and other.task.cost is not single.task.cost
    assert twin.objective == graph_cost(AnalyticCost(), start.graph).runtime_ps
