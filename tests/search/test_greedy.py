import itertools
from dataclasses import replace

import pytest

from rlflow.env.state import RewriteState
from rlflow.search.base import Limits, run_search
from rlflow.search.descents import greedy
from tests.suite import slow
from tests.toys.chains import WorstOperator, toy_task
from tests.toys.tiny import tiny_task

MODELS = ["tiny_squeezenet1_1", "tiny_resnet18", "tiny_bert_base_fused", "tiny_inception_v3"]


def replayed(state: RewriteState, actions) -> RewriteState:
    for xfer_id, location in actions:
        state = state.apply(xfer_id, location)
    return state


def steepest_descent(state: RewriteState) -> list[tuple[int, int]]:
    """Return the actions of steepest descent by brute force, which remembers nothing between two steps."""
    actions = []
    while True:
        tried = [(state.apply(x, k).cost.runtime_ps, int(x), int(k)) for x, k in state.valid_actions()[:-1]]
        best = min(tried, default=(state.cost.runtime_ps, 0, 0))
        if best[0] >= state.cost.runtime_ps:
            return actions
        actions.append(best[1:])
        state = state.apply(*best[1:])


@pytest.mark.parametrize("name", [*MODELS[:3], *slow(*MODELS[3:])])
def test_greedy_ends_in_a_local_optimum_below_the_start(name):
    start = tiny_task(name).initial
    result = greedy(start, 500)
    assert result.stop == "local optimum"
    assert result.state.cost.runtime_ps <= start.cost.runtime_ps
    assert bool(result.actions) == (result.state.cost.runtime_ps < start.cost.runtime_ps)
    for x, k in result.state.valid_actions()[:-1]:
        assert result.state.apply(x, k).cost.runtime_ps >= result.state.cost.runtime_ps, (x, k)


@pytest.mark.parametrize("method", ["greedy", "descent"])
def test_a_distant_rewrite_makes_another_gain_if_only_the_worst_operator_counts(method):
    costs = {"Relu": 10, "Exp": 20, "Abs": 2, "Neg": 3, "Ceil": 1}
    task = toy_task(["Relu", "Ceil", "Ceil", "Ceil", "Exp"], "Relu(x) => Abs(x)\nExp(x) => Neg(x)", costs)
    result = run_search(method, replace(task, cost=WorstOperator(costs)).initial, max_steps=100)
    assert (result.stop, result.state.objective) == ("local optimum", 3)


@pytest.mark.parametrize("name", MODELS[:3])
def test_the_actions_of_greedy_lead_to_the_result_and_each_action_gains(name):
    start = tiny_task(name).initial
    result = greedy(start, 500)
    assert replayed(start, result.actions).graph.hash == result.state.graph.hash
    costs = [replayed(start, result.actions[:k]).cost.runtime_ps for k in range(len(result.actions) + 1)]
    assert all(after < before for before, after in zip(costs, costs[1:], strict=False))
    assert result.interactions >= len(result.actions)


@pytest.mark.parametrize(
    "name", ["tiny_squeezenet1_1", "tiny_resnet18", *slow("tiny_resnet50", "tiny_bert_base_fused")]
)
def test_greedy_is_steepest_descent(name):
    start = tiny_task(name).initial
    assert greedy(start, 500).actions == steepest_descent(start)


def test_the_limit_on_locations_holds():
    start = tiny_task("tiny_inception_v3", 2).initial
    result = greedy(start, 500)
    assert result.actions and all(k < 2 for _, k in result.actions)
    assert replayed(start, result.actions).graph.hash == result.state.graph.hash


def test_greedy_stops_after_its_maximum_of_steps():
    start = tiny_task("tiny_resnet50").initial
    whole = greedy(start, 500)
    assert len(whole.actions) > 3
    result = greedy(start, 3)
    assert result.stop == "steps" and result.actions == whole.actions[:3]
    none = greedy(start, 0)
    assert (none.stop, none.actions, none.interactions) == ("steps", [], 0) and none.state is start


def test_greedy_stops_after_its_seconds_with_the_best_result_so_far():
    start = tiny_task("tiny_resnet50").initial
    whole = greedy(start, 500)
    ticks = itertools.count()  # The clock advances by a second at each look.
    budget = int(start.counts.sum()) + 20
    result = run_search("greedy", start, Limits(seconds=budget), clock=lambda: next(ticks), max_steps=500)
    assert result.stop == "seconds"
    assert result.actions == whole.actions[: len(result.actions)] and 0 < len(result.actions) < len(whole.actions)
    assert replayed(start, result.actions).graph.hash == result.state.graph.hash
