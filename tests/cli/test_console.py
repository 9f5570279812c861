"""Test the output of commands: a few lines, with an end that states the gain, the files and the next step."""

import json
import os
import shlex
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

import rlflow
from rlflow.cli.bound import percent_up
from rlflow.cli.command import model_words
from rlflow.cli.main import parse
from rlflow.common.messages import ROOT
from tests.commands import MOST_LINES, Done, in_process, lines_without_progress
from tests.suite import slow


def test_optimise_with_learning_prints_few_lines_and_ends_with_a_five_line_summary(optimised):
    """The command line of `make demo`, on a tiny model."""
    done = Done(0, *((optimised / f"{name}.txt").read_text() for name in ("stdout", "stderr")))
    lines, result = (
        lines_without_progress(done.err + done.out),
        json.loads((optimised / "results.json").read_text())["eval"],
    )
    assert len(lines) <= MOST_LINES and not any(line.startswith("|") for line in lines), done.err
    gain = result["candidates"][result["delivered"]]["estimated_improvement_percent"]
    ending = done.ending
    assert list(ending) == ["result", "sure", "model", "report", "next"]
    assert f"Estimated {gain:.1f} % faster" in ending["result"] and "not measured" in ending["result"]
    assert "checks of equality passed" in ending["sure"]
    assert ending["model"] == str(optimised / "faster.onnx")
    assert ending["report"] == str(optimised / "run" / "eval" / "report.html")
    assert f" validate {optimised / 'run' / 'model.onnx'} " in ending["next"]  # seed 1; the name stands for seed 0


def test_a_command_whose_reader_has_ended_says_nothing():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, ROOT / "run.py", "zoo"]
    with open(writer, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "")


def test_tables_are_written_to_files(optimised):
    table = (optimised / "run" / "train-wm.md").read_text().splitlines()
    assert table[0].startswith("| start | steps | predictor |") and len(table) > 5


COMMANDS = [
    "zoo", "rules list", "rules explain tiny_resnet18", "rules explain tiny_resnet18 --all",
    "rules picture conv-batchnorm", "rules docs --out {tmp}/rules.md", "rules prove relu-relu --workers 1",
    "costs show --database {tmp}/t.sqlite", "costs export --database {tmp}/t.sqlite {tmp}/t.csv",
    "costs clear --yes --database {tmp}/t.sqlite", "bound --model tiny_squeezenet1_1 --iterations 1 --seconds 20",
    "search --method greedy --model tiny_squeezenet1_1 --out {tmp}/out.onnx cost.name=analytic",
    "validate {run}/model.onnx {run}/eval/optimised.onnx", "validate {run}/model.onnx tiny_squeezenet1_1",
    *slow("measure {run}/model.onnx {run}/eval/optimised.onnx --seconds 0.1 --sessions 2"),
    "replay {run}/eval/receipt.json --model {run}/model.onnx --out {tmp}/again.onnx",
    "report {run} --out {tmp}/comparison", "rules enumerate --operators 2 --seconds 0 --workers 1",
]  # fmt: skip; the stages are in tests/cli/test_run.py, which runs them anyway


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_ends_with_its_result_its_files_and_the_next_command(
    optimised, tmp_path, capsys, monkeypatch, words
):
    monkeypatch.setattr("rlflow.rules.proofs.store_proofs", lambda *_: None)  # the shipped proofs stay unchanged
    done = in_process(capsys, *shlex.split(words.format(run=optimised / "run", tmp=tmp_path)))
    ending = done.ending
    assert done.code == ("tiny_squeezenet1_1" in words and "validate" in words), done.err
    assert len(lines_without_progress(done.err)) <= 6
    is_page = words in ("rules picture conv-batchnorm",)
    assert ("result:" in done.err) is is_page and ("result:" in done.out) is not is_page
    for name, text in ending.items():
        if name not in ("result", "sure", "next"):
            assert (tmp_path / text).exists(), (name, text)


def test_optimise_has_an_american_spelling():
    british, american = (parse([name, "x.onnx", "--out", "y.onnx"]) for name in ("optimise", "optimize"))
    assert british == american and rlflow.optimize is rlflow.optimise


@pytest.mark.parametrize("resumes, words", [
    *((True, f"{stage} --run x") for stage in ("collect", "train-wm", "train-controller", "eval")),
    (True, "optimise tiny_resnet18 --out x.onnx"), (True, "sweep x.yaml --run x"), (True, "costs record tiny_resnet18"),
    (True, "rules enumerate --folder x"), (False, "rules enumerate"), (False, "rules explain tiny_resnet18"),
    (False, "rules prove"), (False, "search --method beam --model tiny_resnet18 --out x.onnx"),
    (False, "memory x.onnx --out y.onnx"), (False, "validate x.onnx y.onnx"), (False, "measure x.onnx y.onnx"),
    (False, "bound --model x.onnx"), (False, "replay x.json --model x.onnx --out y.onnx"), (False, "costs calibrate"),
])  # fmt: skip
def test_an_interrupted_command_promises_to_resume_only_if_it_can(resumes, words, tmp_path, capsys, monkeypatch):
    def stopped(parsed):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    parsed = parse(words.split())
    parsed.function = stopped
    monkeypatch.setattr("rlflow.cli.main.parse", lambda arguments: parsed)
    done = in_process(capsys)
    assert done.code == 130 and ("goes on from here" in done.err) is resumes and done.err.startswith("stopped")


def test_the_suggested_next_command_contains_the_model_and_the_chosen_options(optimised, tmp_path, capsys):
    def following(*words) -> str:
        return in_process(capsys, *words).ending["next"]

    run = optimised / "run"
    assert following("report", run, "--out", tmp_path / "c").endswith(f" bound --model {run / 'model.onnx'}")
    wanted = ("--operators", "1", "--workers", "1", "--folder", tmp_path / "f")
    text = following("rules", "enumerate", *wanted, "--seconds", "0", "--out", tmp_path / "r")
    assert all(f" {word}" in text for word in ("--workers 1", f"--folder {tmp_path / 'f'}", f"--out {tmp_path / 'r'}"))


def test_the_suggested_next_command_names_the_model_with_the_weights_of_the_run(tmp_path, capsys):
    """A name of the zoo stands for the weights of seed 0; other weights are in the run's file."""
    for seed, wanted in ((0, "tiny_resnet18"), (3, tmp_path / "model.onnx")):
        config = OmegaConf.create({"model": "tiny_resnet18", "seed": seed, "shapes": {}, "fix": False})
        assert model_words(config, tmp_path / "model.onnx") == [wanted]
    for seed, wanted in ((0, " validate tiny_resnet18 "), (3, " optimise tiny_resnet18 --seed 3 ")):
        out = tmp_path / f"{seed}.onnx"
        words = "--model", "tiny_resnet18", "--method", "greedy", "--seed", seed, "--out", out
        done = in_process(capsys, "search", *words)
        assert wanted in done.ending["next"]


def test_an_upper_bound_is_rounded_up():
    assert [percent_up(share, 1) for share in (0.0, 0.1201, 0.12, 0.9999)] == ["0.0", "12.1", "12.0", "100.0"]
