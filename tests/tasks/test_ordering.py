"""Test the task `ordering`: the problems that it opens, and that its decisions are orders."""

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.memory.order_search import optimum
from rlflow.memory.problem import Problem
from rlflow.runs.config import load_config
from rlflow.tasks.ordering import OrderingSpec, features
from tests.commands import in_process
from tests.memory.small import counted, random_orders


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens the task of a problem name."""
    return lambda name, *said: OrderingSpec.of(
        load_config([], list(said)), OrderingSpec.fetch(name, 0, tmp_path)
    ).make_task()


def test_valid_orders_stay_and_others_become_the_nearest(opened):
    instance = opened("layered-30-1").initial
    orders = random_orders(instance.problem, 50, 0)
    kept = instance.evaluate(orders)
    assert not kept.repaired.any() and np.array_equal(kept.decisions, orders)
    backwards = instance.evaluate(orders[:, ::-1])
    assert backwards.repaired.all() and all(map(instance.problem.is_order, backwards.decisions))
    same = instance.evaluate(np.zeros((1, 30), np.int64)).decisions[0]
    assert instance.problem.is_order(same)


def test_a_model_is_ordered_in_bytes_from_the_default_order(opened):
    task = opened("tiny_inception_v3")
    instance, result = task.initial, optimum(task.initial.problem, 60)
    control = instance.evaluate(instance.control()[None])
    assert (task.unit, task.per_unit) == ("MB", 1e6)
    assert instance.lower_bound() <= result.bound == result.peak <= control.objectives[0] == 39200


def test_features_are_shares_of_the_largest():
    """The graph has the edges 0 → 1 → 2 → 3 and 0 → 3."""
    problem = Problem.of_nodes([4, 2, 1, 1], [0, 5, 0, 0], [(0, 1), (1, 2), (2, 3), (0, 3)])
    made, work, sources, readers, fewest, most, fewest_on, most_on = features(problem).T.tolist()
    assert (made, work) == ([1, 0.5, 0.25, 0.25], [0, 1, 0, 0])
    assert (sources, readers) == ([0, 0.5, 0.5, 1], [1, 0.5, 0.5, 0])
    assert (fewest, most_on) == ([0, 0.5, 1, 0.5], pytest.approx([1, 2 / 3, 1 / 3, 0]))
    assert (most, fewest_on) == (pytest.approx([0, 1 / 3, 2 / 3, 1]), [0.5, 1, 0.5, 0])


@pytest.mark.parametrize("name", ["layered", "layered-0-1", "layered-5", "bert"])
def test_an_unknown_problem_is_refused_in_one_line(opened, name):
    with pytest.raises(RLFlowError, match="such as layered-500-0"):
        opened(name)


def test_a_controller_learns_ordering_and_the_best_order_is_written(opened, tmp_path, capsys):
    options = ("--model", "layered-30-1", "task.name=ordering", "controller.name=linear-scores",
               "controller.linear-scores.generations=3")  # fmt: skip
    for stage in ("train-controller", "eval"):
        done = in_process(capsys, stage, "--run", tmp_path / "run", *options)
        assert done.code == 0, done.err
    outcome = read_json(tmp_path / "run" / "eval.json")
    assert all(one["equal"] for one in outcome["candidates"].values())
    peaks = {name: one["objective"] for name, one in outcome["candidates"].items()}
    assert peaks["controller"] < peaks["control"] == outcome["original"]["objective"]
    problem, receipt = opened("layered-30-1").initial.problem, read_json(tmp_path / "run" / "eval" / "receipt.json")
    assert problem.is_order(np.array(receipt["actions"]))
    peak = receipt["objective"]["result"]
    assert counted(problem, receipt["actions"]) == peak == min(peaks.values()) == peaks[outcome["delivered"]]
