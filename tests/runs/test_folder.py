"""Test run folders: a failed command leaves its folder as it was, and only one command works in a folder at a time."""

import subprocess
import sys

import onnx
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.graph.onnx_writer import save_model
from rlflow.runs.folder import LOCK, RunFolder
from rlflow.zoo import load
from tests.commands import ROOT, in_process

MODEL = "tiny_squeezenet1_1"


def refused() -> dict:
    raise RLFlowError("refused")


def test_refused_options_are_not_stored_and_accepted_ones_are(tmp_path):
    path = tmp_path / "run"
    RunFolder.open(path, MODEL, overrides=["cost.name=analytic"]).stage("search", dict)
    before = (path / "config.yaml").read_bytes()
    with pytest.raises(RLFlowError, match="refused"):
        RunFolder.open(path, overrides=["controller.name=planner"]).stage("eval", refused)
    assert (path / "config.yaml").read_bytes() == before and not (path / "eval.json").exists()
    RunFolder.open(path, overrides=["controller.name=planner"]).stage("eval", dict)
    assert RunFolder.open(path).config.controller.name == "planner"


def test_an_interrupted_command_keeps_its_options(tmp_path):
    def interrupted() -> dict:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RunFolder.open(tmp_path / "run", MODEL, overrides=["env.max_steps=7"]).stage("collect", interrupted)
    assert RunFolder.open(tmp_path / "run").config.env.max_steps == 7


@pytest.mark.parametrize("words", [
    ("train-wm", "--run", "{run}", "--model", MODEL), ("eval", "--run", "{run}", "--model", MODEL),
    ("train-controller", "--run", "{run}", "--model", MODEL), ("collect", "--run", "{run}", "--model", "no_such_model"),
    ("optimise", MODEL, "--out", "{out}", "--run", "{run}", "task.name=ordering"),
    ("optimise", MODEL, "--out", "{out}", "--run", "{run}", "--receipt", "{out}"),
])  # fmt: skip
def test_a_refused_first_command_leaves_no_folder(tmp_path, capsys, words):
    run, out = tmp_path / "run", tmp_path / "out.onnx"
    done = in_process(capsys, *(word.format(run=run, out=out) for word in words), "cost.name=analytic")
    assert done.error and list(tmp_path.iterdir()) == []


def test_results_of_a_new_run_outlive_an_error(tmp_path):
    def fails_later() -> dict:
        (tmp_path / "run" / "episodes").mkdir()
        return refused()

    with pytest.raises(RLFlowError):
        RunFolder.open(tmp_path / "run", MODEL, overrides=["env.max_steps=7"]).stage("collect", fails_later)
    assert (tmp_path / "run" / "episodes").exists() and RunFolder.open(tmp_path / "run").config.env.max_steps == 7


def test_a_second_command_in_a_folder_is_refused_until_the_first_has_ended(tmp_path):
    run = RunFolder.open(tmp_path / "run", MODEL)
    run.stage("search", dict)
    other = RunFolder.open(tmp_path / "run", overrides=["eval.accept=equal"])
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    program = "import sys; from rlflow.common.system import lock\n"
    program += "file = open(sys.argv[1], 'ab'); print(lock(file), flush=True); input()"
    words = [sys.executable, "-c", program, tmp_path / "run" / LOCK]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as first:
        assert first.stdout.readline() == "True\n"
        with pytest.raises(RLFlowError, match="another command works in"):
            other.stage("eval", dict)
        first.communicate("\n")
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before
    other.stage("eval", dict)


def test_a_stage_inside_a_command_needs_no_second_lock(tmp_path):
    run = RunFolder.open(tmp_path / "run", MODEL)
    with run.working():
        assert run.stage("search", lambda: {"n": 1})["n"] == 1


def test_a_new_run_loads_its_model_once(tmp_path, monkeypatch):
    made, make = [], EnvSpec.make_task
    monkeypatch.setattr(EnvSpec, "make_task", lambda spec: made.append(spec) or make(spec))
    run = RunFolder.open(tmp_path / "run", MODEL, overrides=["cost.name=analytic"])
    assert run.task.initial and len(made) == 1
    assert RunFolder.open(tmp_path / "run", MODEL, overrides=["cost.name=analytic"]).task.initial and len(made) == 2


def test_a_relative_path_names_the_model_of_the_working_directory(tmp_path, monkeypatch):
    for name, seed in (("a", 0), ("b", 1)):
        (tmp_path / name).mkdir()
        save_model(load(MODEL, seed), tmp_path / name / "model.onnx")
    (tmp_path / "link.onnx").symlink_to(tmp_path / "a" / "model.onnx")
    monkeypatch.chdir(tmp_path / "a")
    options = ["cost.name=analytic", "cost.database=t.sqlite"]
    with RunFolder.open(tmp_path / "run", "model.onnx", overrides=options).working():
        pass
    monkeypatch.chdir(tmp_path / "b")
    with pytest.raises(RLFlowError, match="belongs to the model 'model.onnx'"):
        RunFolder.open(tmp_path / "run", "model.onnx")
    monkeypatch.chdir(tmp_path)
    for same in ("a/model.onnx", "b/../a/model.onnx", "link.onnx", None):
        again = RunFolder.open(tmp_path / "run", same)
        assert again.source == tmp_path / "a" / "model.onnx" and again.config.model == "model.onnx"
        assert again.config.cost.database == str(tmp_path / "a" / "t.sqlite")


def test_a_model_behind_a_link_is_opened_again(tmp_path):
    (tmp_path / "blobs").mkdir()
    save_model(load(MODEL), tmp_path / "blobs" / "aaa")
    (tmp_path / "m.onnx").symlink_to(tmp_path / "blobs" / "aaa")
    words, options = (tmp_path / "run", str(tmp_path / "m.onnx")), ["task.name=ordering"]
    opened = [RunFolder.open(*words, overrides=options) for _ in range(2)]
    assert [run.source for run in opened] == [tmp_path / "m.onnx"] * 2


def test_an_ordering_cannot_be_opened_again_with_other_sizes(tmp_path):
    text = "g (float[batch, 4] x) => (float[batch, 4] y) { a = Relu(x)  y = Neg(a) }"
    save_model(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), tmp_path / "m.onnx")
    words = tmp_path / "run", str(tmp_path / "m.onnx")
    with RunFolder.open(*words, overrides=["task.name=ordering"], shapes={"batch": 2}).working():
        pass
    with pytest.raises(RLFlowError, match="'shapes' differs"):
        RunFolder.open(*words, shapes={"batch": 3})
