"""Test the command line with the world model "edits", from end to end on tiny models."""

import json

import pytest

from tests.commands import EDITS, in_its_own, in_process
from tests.events import always, tags_of
from tests.suite import slow

STAGES = ("collect", "train-wm", "train-controller", "eval")


@pytest.mark.nightly
def test_optimise_with_the_random_controller_needs_no_tensorflow(tmp_path):
    done = in_its_own(
        "optimise", "tiny_squeezenet1_1", "--out", tmp_path / "faster.onnx", "--run", tmp_path / "run", "--json",
        tmp_path / "r.json",
        *EDITS, "controller.name=random", "search.interactions=50", without="tensorflow",
    )  # fmt: skip
    assert done.code == 0, done.err
    results = json.loads((tmp_path / "r.json").read_text())
    assert tuple(results) == ("search", *STAGES) and results["train-wm"]["name"] == "edits"
    assert results["train-controller"]["trainings"][0]["env_steps"] > 0
    assert tags_of(tmp_path / "run" / "tensorboard") >= always()


@pytest.mark.parametrize("kind", slow("cma-es", "ppo"))
def test_controllers_learn_in_the_dreams_of_edits_and_act_on_the_real_graph(tmp_path, capsys, kind):
    done = in_process(
        capsys, "optimise", "tiny_resnet18", "--out", tmp_path / "faster.onnx", "--run", tmp_path / "run", "--json",
        tmp_path / "r.json",
        *EDITS, f"controller.name={kind}",
    )  # fmt: skip
    assert done.code == 0, done.err
    outcome = json.loads((tmp_path / "r.json").read_text())["eval"]
    assert outcome["candidates"]["controller"]["equal"] and outcome["delivered"] != "original"
    assert tags_of(tmp_path / "run" / "tensorboard") >= always()
    judged = in_process(
        capsys, "eval", "--run", tmp_path / "run", "--what", "world-model", "--json", tmp_path / "w.json"
    )
    assert judged.code == 0 and list(json.loads((tmp_path / "w.json").read_text())) == ["held-out random", f"{kind}-1"]


def test_online_mode_is_refused_for_edits_before_anything_is_written(tmp_path, capsys):
    done = in_process(
        capsys, "train-wm", "--run", tmp_path / "run", "--model", "tiny_resnet18", *EDITS, "world_model.mode=online"
    )
    assert "'edits' learns from collected episodes" in done.error and not (tmp_path / "run").exists()
