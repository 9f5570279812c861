"""Test the task `expressions` in all stages, by the commands that every task has."""

import pytest

from rlflow.common.files import read_json
from rlflow.tasks import TASKS
from rlflow.tasks.expressions.evaluate import TOLERANCE, largest_difference
from tests.commands import SHORT_EPISODES, TINY, in_process
from tests.suite import slow

pytestmark = pytest.mark.usefixtures("eager")
MODEL = "(mul (div x x) (add (mul x y) (mul x x)))"


@pytest.mark.parametrize("controller", ["random", *slow("ppo", "cma-es", "planner")])
def test_an_expression_goes_through_all_stages(tmp_path, capsys, controller):
    options = ("--model", MODEL, *TINY, "task.name=expressions", "task.rules=simplify", f"controller.name={controller}",
               *SHORT_EPISODES)  # fmt: skip
    for stage in ("collect", "train-wm", "train-controller", "eval"):
        done = in_process(capsys, stage, "--run", tmp_path / "run", *options)
        assert done.code == 0, (stage, done.err)
    outcome = read_json(tmp_path / "run" / "eval.json")
    assert {"controller", "greedy", "random"} <= set(outcome["candidates"])
    assert all(one["equal"] for one in outcome["candidates"].values())
    assert outcome["delivered"] != "original" and outcome["original"]["objective"] == 90_000
    receipt = read_json(tmp_path / "run" / "eval" / "receipt.json")
    task = TASKS.get("expressions")(str(tmp_path / "run" / "problem.ks"), 6, "simplify", 20).make_task()
    state = task.initial
    for sort, index in receipt["actions"]:
        state = state.apply(sort, index)
    assert state.objective == receipt["objective"]["result"] and state.hash == receipt["result_hash"]
    assert largest_difference(task.initial.expr, state.expr) < TOLERANCE


@pytest.mark.parametrize("options, reason", [
    (("--model", "(mul x", "task.name=expressions"), "parentheses open"),
    (("--model", "blas_test/gemmm", "task.name=expressions"), "did you mean 'gemm'"),
    (("--model", "(mul x y)", "task.name=expressions", "task.rules=all"), "is one of simplify"),
    (("--model", "(mul x y)", "task.name=expressions", "--inputs", "x.npz"), "runs no model"),
])  # fmt: skip
def test_wrong_options_are_refused(tmp_path, capsys, options, reason):
    assert reason in in_process(capsys, "collect", "--run", tmp_path / "run", *options).error
