"""Test both templates of docs/EXTENDING.md in all their stages, by the commands of that page."""

import shutil

import numpy as np
import pytest

from controllers.controller_options import LinearScoresConfig
from controllers.linear_scores import LinearScores
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.tasks import TASKS
from tests.commands import SHORT_EPISODES, TINY, in_process
from tests.conftest import once
from tests.events import always, tags_of
from tests.suite import slow
from tests.toys.template import register

pytestmark = pytest.mark.usefixtures("eager")

WORD = ("--model", "abbacabba", *TINY, "task.name=word")
JOBS = ("--model", "9-2-7-3-8-1-6-4-5", "task.name=jobs", "controller.name=linear-scores")


@pytest.fixture(autouse=True)
def templates(tmp_path, monkeypatch):
    register(tmp_path, monkeypatch)


def stages(capsys, folder, names, options) -> dict:
    """Run the stages and return the result file of the last one."""
    for name in names:
        done = in_process(capsys, name, "--run", folder, *options)
        assert done.code == 0, (name, done.err)
    return read_json(folder / f"{names[-1]}.json")


@pytest.fixture
def learnt_word(tmp_path, capsys, shared_folder):
    """Return a copy of the run folder of the task `word` after train-wm."""
    path = once(shared_folder, "word", lambda path: stages(capsys, path / "run", ("collect", "train-wm"), WORD))
    return shutil.copytree(path / "run", tmp_path / "run")


@pytest.mark.parametrize("controller", ["random", *slow("planner", "ppo")])
def test_the_word_task_runs_through_all_stages(learnt_word, capsys, controller):
    folder = learnt_word
    options = (*WORD, f"controller.name={controller}", *SHORT_EPISODES)
    outcome = stages(capsys, folder, ("train-controller", "eval"), options)
    untrained = {"untrained", *(["no-prior"] if controller == "ppo" else [])}
    assert set(outcome["candidates"]) == {"controller", "greedy", "random"} | untrained
    assert all(one["equal"] for one in outcome["candidates"].values())
    best = min(one["objective"] for one in outcome["candidates"].values())
    assert outcome["delivered"] != "original" and best < outcome["original"]["objective"] == 24
    receipt = read_json(folder / "eval" / "receipt.json")
    state = TASKS.get("word")(str(folder / "problem.txt"), 9).make_task().initial
    for sort, index in receipt["actions"]:
        state = state.apply(sort, index)
    assert state.objective == receipt["objective"]["result"] == best and state.hash == receipt["result_hash"]


@pytest.mark.nightly
def test_a_world_model_of_words_learns_in_iterations(tmp_path, capsys):
    folder, options = tmp_path / "run", (*WORD, "iterations.interactions=200")
    stages(capsys, folder, ("collect",), options)
    trained = stages(capsys, folder, ("train-wm",), ("--iterations", "2", *options))
    assert [one["iteration"] for one in trained["iterations"]] == [1, 2]


def test_the_edits_world_model_refuses_episodes_without_edits(tmp_path, capsys):
    options = (*WORD, "world_model.name=edits")
    stages(capsys, tmp_path / "run", ("collect",), options)
    error = in_process(capsys, "train-wm", "--run", tmp_path / "run", *options).error
    assert "these episodes hold no edits" in error and "say world_model.name=mdn-rnn" in error


def test_a_controller_learns_the_jobs_task_and_a_decision_is_delivered(tmp_path, capsys):
    outcome = stages(capsys, tmp_path / "run", ("train-controller", "eval"), JOBS)
    control, learnt = (outcome["candidates"][name]["objective"] for name in ("control", "controller"))
    assert outcome["lower_bound"] <= learnt < control == outcome["original"]["objective"]
    assert outcome["delivered"] in ("controller", "random") and (tmp_path / "run" / "eval" / "receipt.json").exists()
    assert tags_of(tmp_path / "run" / "tensorboard") == always("train-controller")


def test_a_killed_and_resumed_training_equals_an_uninterrupted_one(tmp_path):
    kind = TASKS.get("jobs")
    instance = kind(str(kind.fetch("9-2-7-3-8-1-6-4-5", 0, tmp_path)), 9).make_task().initial

    class Killed(Exception):
        pass

    def kill(done, total):
        if done == 3:
            raise Killed

    def build():
        return LinearScores(LinearScoresConfig(generations=6, popsize=6), instance, 0)

    whole = build().train(instance, 0, tmp_path / "whole")
    with pytest.raises(Killed):
        build().train(instance, 0, tmp_path / "killed", progress=kill)
    resumed = build()
    assert resumed.train(instance, 0, tmp_path / "killed") == whole
    again = build()
    again.load(tmp_path / "whole")
    assert np.array_equal(again.weights, resumed.weights)
    assert np.array_equal(again.act(instance), resumed.act(instance))


@pytest.mark.parametrize("stage, options, reason", [
    ("collect", JOBS, "one-shot: it has no stage 'collect'"),
    ("train-wm", JOBS, "one-shot: it has no stage 'train-wm'"),
    ("train-controller", (*JOBS, "controller.name=ppo"), "'ppo' observes latent"),
    ("collect", (*WORD, "--model", "abx"), "not 'abx'"),
    ("collect", ("--model", "abba", "task.name=words"), "did you mean 'word'"),
])  # fmt: skip
def test_conflicting_options_are_refused(tmp_path, capsys, stage, options, reason):
    assert reason in in_process(capsys, stage, "--run", tmp_path / "run", *options).error


def test_commands_that_deliver_onnx_files_refuse_other_tasks(tmp_path, capsys):
    for command in (("optimise", "abba"), ("search", "--method", "beam", "--model", "abba")):
        done = in_process(capsys, *command, "--out", tmp_path / "x.onnx", *TINY, "task.name=word")
        assert "task.name=rewriting, not word" in done.error and not (tmp_path / "x.onnx").exists()


def test_a_controller_of_graphs_is_refused_where_states_are_latent(learnt_word, capsys):
    error = in_process(capsys, "train-controller", "--run", learnt_word, *WORD, "controller.name=linear-scores").error
    assert "'linear-scores' observes graph" in error


def test_a_checkpoint_of_another_instance_is_refused(tmp_path):
    kind = TASKS.get("jobs")
    instance = kind(str(kind.fetch("9-2-7", 0, tmp_path)), 9).make_task().initial
    learner = LinearScores(LinearScoresConfig(), instance, 0)
    learner.save(tmp_path / "saved")
    learner.sizes = {"node_features": 7, "options": 2}
    with pytest.raises(RLFlowError, match="of another shape"):
        learner.load(tmp_path / "saved")
