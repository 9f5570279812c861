import numpy as np
import pytest

from benchmarks.equal_seconds import (
    FIRST,
    METHODS,
    Measured,
    bars_of,
    cheapest,
    everything_measured,
    proposed,
    spent_table,
    table,
    together,
)
from controllers.real_env import LimitReached
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.measured import Latency, LostMeasurement
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.optimisation.candidates import follow
from rlflow.rules.language import load_rules
from rlflow.zoo import load


@pytest.fixture(scope="module")
def task() -> Task:
    return Task(load_graph(load("light_squeezenet")), load_rules(), AnalyticCost())


def run(ratio: float, half: float = 0.005) -> dict:
    return {"ratio": ratio, "interval": [ratio - half, ratio + half], "probed": 3, "seconds": 70.0}


def figures(*ratios: float) -> dict:
    """Models on which an agent was so much of the first method's latency, with two seeds."""
    return {f"m{k}": {FIRST: [run(0.9)] * 2, "xrlflow": [run(ratio)] * 2} for k, ratio in enumerate(ratios)}


@pytest.mark.parametrize("ratio, holds", [(0.97, True), (0.985, False)])
def test_two_percent_are_wanted_on_three_models(ratio, holds):
    faster, slower = bars_of(figures(ratio, ratio, ratio))
    assert faster["holds"] == holds and slower["holds"]


def test_what_is_faster_by_chance_does_not_count():
    wide = {FIRST: [run(0.9)], "dream": [run(0.97, half=0.05)]}
    faster, _ = bars_of(dict.fromkeys(("a", "b", "c"), wide))
    assert faster["value"] == 0


def test_one_model_that_is_clearly_slower_is_too_many():
    _, slower = bars_of(figures(0.9, 0.9, 0.9, 1.02))
    assert slower["value"] == 1 and not slower["holds"]


def test_seeds_are_a_geometric_mean():
    assert together([run(0.5, 0.0), run(2.0, 0.0)]) == pytest.approx((1.0, 1.0, 1.0))


def test_tables_say_what_each_is_beside():
    heads, _, row = table(figures(0.97)).splitlines()
    assert f"{FIRST} / original" in heads and f"xrlflow / {FIRST}" in heads
    assert "0.970 [0.965, 0.975]" in row
    assert "3, 70 s" in spent_table(figures(0.97))


def test_the_methods_are_those_of_the_page():
    import benchmarks.equal_seconds as module

    assert all(f"*{method}*" in module.__doc__ for method in METHODS)


def test_proposals_are_valid_and_the_seed_says_which(task):
    after, actions = proposed(task.initial, np.random.default_rng(3))
    assert actions and follow(task, actions).hash == after.hash
    assert proposed(task.initial, np.random.default_rng(3))[1] == actions


def test_of_an_episode_the_cheapest_state_counts(task):
    gains = sorted(task.initial.matches, key=lambda match: task.initial.follow(match).objective)
    state, actions = task.initial, []
    for match in (gains[0], gains[-1]):
        valid = [tuple(map(int, action)) for action in state.valid_actions()[:-1] if action[0] == match.xfer_id]
        actions.append(valid[0])
        state = state.apply(*valid[0])
    objectives = [task.initial.objective, *(follow(task, actions[: k + 1]).objective for k in range(2))]
    taken = cheapest(task, np.array([*actions, (len(task.rules), 0)]))
    assert taken == actions[: int(np.argmin(objectives))]


def test_an_agents_measurements_are_all_kept_and_limited(tmp_path):
    measurements = everything_measured(tmp_path / "measurements.json", 10.0)
    measurements.met(0.9, [[1, 2]])
    measurements.met(float("nan"), [[1, 3]])
    measurements.met(1.1, [[1, 4]])
    assert measurements.all == [(0.9, [(1, 2)]), (1.1, [(1, 4)])]
    with pytest.raises(LimitReached):
        measurements.charge({"a": 8.0, "b": 8.0})
    again = everything_measured(tmp_path / "measurements.json", 10.0)
    assert again.all[0][0] == 0.9, "after a kill the best is still known"


def test_a_lost_measurement_costs_its_seconds_and_says_nothing(task, monkeypatch):
    def lost(*_):
        raise LostMeasurement("killed")

    measured = Measured(task, 0.1)
    monkeypatch.setattr(measured, "_probe", lost)
    assert measured(task.graph).lost and measured.count == 1 and measured.seconds > 0


def test_a_measurement_counts_with_its_sessions(task, monkeypatch):
    measured = Measured(task, 0.1)
    monkeypatch.setattr(measured, "_probe", lambda *_: Latency(0.9, 0.8, 1.0, 5.0, 10, 0.0))
    assert measured(task.graph).ratio == 0.9 and measured.seconds > 0
