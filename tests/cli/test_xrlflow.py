"""Test X-RLflow from the command line in its published setup, with small budgets: no world model, measured rewards."""

import json

import pytest

from tests.commands import ROOT, TINY, in_process

pytestmark = pytest.mark.usefixtures("eager")

FAITHFUL = ("--config", ROOT / "configs" / "xrlflow.yaml")
SHORT = (
    "env.max_steps=3", "env.measure_every=2", "env.measure_seconds=0.02", "cost.threads=1", "controller.max_steps=3",
    "controller.xrlflow.updates=1", "controller.xrlflow.episodes=1", "controller.xrlflow.padding=20",
)  # fmt: skip


@pytest.mark.nightly
def test_xrlflow_learns_and_acts_on_the_real_graph_without_a_world_model(tmp_path, capsys):
    run, database = tmp_path / "run", f"cost.database={tmp_path / 'costs.sqlite'}"
    options = "--model", "tiny_squeezenet1_1", *TINY, *FAITHFUL, *SHORT, database
    done = in_process(capsys, "train-controller", "--run", run, *options)
    assert done.code == 0, done.err
    assert "on the real graph" in done.ending["result"] and "s of measurement" in done.ending["result"]
    (training,) = json.loads((run / "train-controller.json").read_text())["trainings"]
    measured = json.loads((run / "controller" / "xrlflow-real" / "measurements.json").read_text())
    assert training["measurement_seconds"] == max(measured["until"].values()) > 0
    assert training["measured"] == measured["best"] and measured["best"]["latency"] > 0
    assert 0 < training["env_steps"] <= 3 * 3  # two greedy episodes and a sampled one of at most three steps

    assert in_process(capsys, "eval", "--run", run, "eval.samples=1").code == 0
    outcome = json.loads((run / "eval.json").read_text())
    names = {"controller", "greedy", "random"} | ({"measured"} if measured["best"]["actions"] else set())
    assert outcome["candidates"].keys() == names
    assert [row["training"] for row in outcome["experiments"]] == ["xrlflow-real"]
    assert all(candidate["equal"] for candidate in outcome["candidates"].values())
    seconds = {name: candidate["measurement_seconds"] for name, candidate in outcome["candidates"].items()}
    # the evaluation measures again while the controller acts
    assert seconds["controller"] > training["measurement_seconds"] and seconds["greedy"] == 0
    assert f">{seconds['controller']:.1f}</td>" in (run / "eval" / "report.html").read_text()
    assert not (run / "episodes").exists() and not (run / "world-model").exists()


def test_xrlflow_does_not_learn_from_dreams(tmp_path, capsys):
    done = in_process(
        capsys, "train-controller", "--run", tmp_path, "--model", "tiny_bert_base", *TINY, "controller.name=xrlflow"
    )
    assert "'xrlflow' observes candidates, which only the real graph has: controller.train_on=real" in done.error


@pytest.mark.nightly
def test_a_controller_trained_on_several_models_acts_on_an_unseen_model(tmp_path, capsys):
    """Training plays equally many episodes on every model; on an unseen model the controller acts without learning."""
    trained = tmp_path / "trained"
    options = (*TINY, "controller.name=xrlflow", "controller.train_on=real", *SHORT, "env.reward=relative")
    models = "--model", "tiny_vit_base", "--models", "tiny_resnet18,tiny_squeezenet1_1"
    done = in_process(capsys, "train-controller", "--run", trained, *models, *options)
    assert done.code == 0, done.err
    (training,) = json.loads((trained / "train-controller.json").read_text())["trainings"]
    assert 3 < training["env_steps"] <= 7 * 3  # three greedy episodes before and after one sampled episode
    controller, out = trained / "controller" / "xrlflow-real", tmp_path / "faster.onnx"
    before = (controller / "controller.npz").read_bytes()
    done = in_process(
        capsys, "optimise", "tiny_bert_base", "--out", out, "--seconds", "30", "--controller", controller, *TINY,
        "controller.max_steps=3",
    )  # fmt: skip
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "faster.run" / "best-so-far.json").read_text())["transfer"]
    assert 0 < record["interactions"] <= 9 * 3 and out.exists()
    assert (controller / "controller.npz").read_bytes() == before


def test_a_controller_trained_on_one_model_acts_on_no_other(tmp_path, capsys):
    run = tmp_path / "run"
    chosen = "controller.name=random", "world_model.name=edits"
    for stage in ("collect", "train-wm", "train-controller"):
        assert in_process(capsys, stage, "--run", run, "--model", "tiny_squeezenet1_1", *TINY, *chosen).code == 0
    done = in_process(
        capsys, "optimise", "tiny_resnet18", "--out", tmp_path / "faster.onnx", *TINY,
        "--controller", run / "controller" / "random-1",
    )  # fmt: skip
    assert done.code != 0 and "which is of one model alone" in done.error
