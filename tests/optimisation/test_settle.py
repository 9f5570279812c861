"""Test repeated timings: timings that decide are repeated, so a chance difference vanishes and a real gain stays."""

from itertools import count
from types import SimpleNamespace

import pytest

from rlflow.costs import GraphCost, graph_spread, profiled
from rlflow.costs.profiled import ProfiledCost
from rlflow.costs.timing import Timing
from rlflow.env.state import Task
from rlflow.optimisation import ablation as module
from rlflow.optimisation.ablation import settle
from rlflow.search.base import run_search
from tests.toys.chains import toy_task

BLOCKS = 4


def promised(tmp_path, monkeypatch, timings: dict[str, list[float]]) -> tuple[Task, object]:
    """Return a task with planted timings, and the state that a greedy search reaches.

    The timings of an operator have the given medians in turn; its last median repeats.
    """
    asked = {op: count() for op in timings}

    def timing(timed_model, *_) -> Timing:
        (op,) = {node.op_type for node in timed_model.model.graph.node}
        medians = timings.get(op, [5e5])
        median = medians[min(next(asked[op]), len(medians) - 1)] if op in asked else 5e5
        return Timing.of([median] * 100)

    monkeypatch.setattr(profiled, "time_model", timing)
    toy = toy_task(["Relu", "Exp"] * BLOCKS, "Relu(x) => Abs(x)", {"Relu": 0, "Abs": 0, "Exp": 0})
    task = Task(toy.graph, toy.rules, ProfiledCost(tmp_path / "costs.sqlite"))
    return task, run_search("greedy", task.initial, max_steps=100).state


@pytest.fixture
def clock(monkeypatch):
    """Let the clock of the ablation advance by one second at each reading, and return the function that reads it."""
    seconds = count()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    return module.time.monotonic


def repeats(task: Task) -> dict[str, int]:
    return {row["signature"]: row["repeats"] for row in task.cost.database.rows()}


@pytest.mark.parametrize("later, gains", [(1.0e6, False), (0.96e6, True)])
def test_repeated_timings_remove_a_gain_by_chance_and_confirm_a_real_one(tmp_path, monkeypatch, clock, later, gains):
    task, state = promised(tmp_path, monkeypatch, {"Relu": [1e6], "Abs": [0.96e6, *[later] * 3]})
    assert state.objective < task.initial.objective  # the search replaces all Relus
    spread = graph_spread(task.cost, state.graph) - graph_spread(task.cost, task.graph)
    assert spread.ps > task.initial.objective - state.objective  # the estimated gain is below its uncertainty
    longer, off = settle(task.cost, state.graph, task.graph, 50)
    assert (longer > off) == gains
    assert (clock() < 50) == gains  # without a gain the timings are repeated until the deadline


def test_deciding_kernels_are_retimed_until_the_gain_is_settled_and_costs_are_recomputed(tmp_path, monkeypatch, clock):
    task, state = promised(tmp_path, monkeypatch, {"Relu": [1e6], "Abs": [0.97e6]})
    before, known = graph_spread(task.cost, task.graph), repeats(task)
    longer, off = settle(task.cost, state.graph, task.graph, 50)
    assert clock() < 50
    again = repeats(task)
    changed = [name for name in known if again[name] > known[name]]
    assert changed and all("Relu" in name or "Abs" in name for name in changed)
    assert off <= module.SETTLED_SHARE * longer and graph_spread(task.cost, task.graph).ps < before.ps
    task.forget_costs()
    assert task.initial.cost == GraphCost.of(task.cost, task.graph).total


@pytest.mark.parametrize("seconds, relu", [(0, 1e6), (60, 2e6)])
def test_kernels_are_not_retimed_without_time_or_if_the_gain_is_already_certain(
    tmp_path, monkeypatch, clock, seconds, relu
):
    task, state = promised(tmp_path, monkeypatch, {"Relu": [relu], "Abs": [0.97e6]})
    known = repeats(task)
    settle(task.cost, state.graph, task.graph, seconds)
    assert repeats(task) == known
