"""Test `run.py search`: it reads a model and writes a checked model with its receipt."""

import json

import onnx
import pytest

from rlflow.graph.onnx_writer import save_model
from rlflow.optimisation.validate import validate
from rlflow.search import SEARCHES
from rlflow.search.base import Search
from rlflow.zoo import load
from tests.commands import in_process
from tests.suite import slow


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    save_model(load("tiny_squeezenet1_1"), path)
    return path


def search(capsys, model, out, *more, method="greedy"):
    return in_process(capsys, "search", "--method", method, "--model", model, "--out", out, "cost.name=analytic", *more)


@pytest.mark.parametrize("method", ["beam", *slow(*sorted(set(SEARCHES) - {"beam"}))])
def test_the_written_model_is_equal_cheaper_and_replayable(capsys, tmp_path, model, method):
    out, again, outcome = (tmp_path / "out" / name for name in ("faster.onnx", "again.onnx", "found.json"))
    done = search(capsys, model, out, "--json", outcome, "--seconds", "20", "search.interactions=200", method=method)
    assert done.code == 0 and f"{method} stopped by" in done.err and "% faster, found by" in done.ending["result"]
    result = json.loads(outcome.read_text())
    candidate = result["candidates"][method]
    assert candidate["equal"] and candidate["estimated_improvement_percent"] > 0 and result["optimised"] == str(out)
    assert candidate["interactions"] <= 400 and result["trace"][-1]["best_ps"] == round(1e9 * candidate["estimated_ms"])
    assert validate(model, out).ok
    assert in_process(capsys, "replay", out.with_suffix(".receipt.json"), "--model", model, "--out", again).code == 0
    assert again.read_bytes() == out.read_bytes()
    assert {path.name for path in out.parent.iterdir()} == {
        "faster.onnx", "faster.receipt.json", "again.onnx", "found.json",
    }  # fmt: skip


def test_the_search_command_takes_a_zoo_name_and_options(capsys, tmp_path):
    out = tmp_path / "faster.onnx"
    done = search(
        capsys, "tiny_resnet18", out, "search.greedy.max_steps=2", "--json", tmp_path / "found.json", "--seed", "3"
    )
    result = json.loads((tmp_path / "found.json").read_text())
    assert done.code == 0 and result["stop"] == "steps" and result["candidates"]["greedy"]["substitutions"] == 2
    onnx.checker.check_model(str(out), full_check=True)


def test_the_option_measure_reports_the_latency_ratio_to_the_original(capsys, tmp_path, model):
    result = tmp_path / "found.json"
    done = search(
        capsys, model, tmp_path / "out.onnx", "--measure", "eval.measure_seconds=0.2", "eval.sessions=2", "--json",
        result,
    )  # fmt: skip
    assert done.code == 0 and "of the original's latency" in done.out
    assert json.loads(result.read_text())["candidates"]["greedy"]["measured"]["ratio"] > 0


def test_a_search_without_gain_returns_the_original(capsys, tmp_path, model):
    done = search(
        capsys, model, tmp_path / "out.onnx", "search.random.max_steps=1", "search.interactions=1",
        "env.rules=[padding]", method="random",
    )  # fmt: skip
    assert done.code == 0 and "the original is returned" in done.ending["result"]
    assert (tmp_path / "out.onnx").read_bytes() == model.read_bytes() and not (tmp_path / "out.receipt.json").exists()


def test_control_c_gives_the_best_so_far(capsys, tmp_path, model, monkeypatch):
    follow = Search.follow

    def interrupted(search, state, match):
        if search.interactions >= 200:  # A move has several interactions.
            raise KeyboardInterrupt
        return follow(search, state, match)

    monkeypatch.setattr(Search, "follow", interrupted)
    done = search(capsys, model, tmp_path / "out.onnx", method="beam")
    assert done.code == 0 and "beam stopped by 'interrupted'" in done.err and validate(model, tmp_path / "out.onnx").ok


def test_mistakes_are_one_line(capsys, tmp_path, model):
    out = tmp_path / "out.onnx"
    assert "did you mean 'annealing'" in search(capsys, model, out, method="anealing").error
    assert "search.beam.widht" in search(capsys, model, out, "search.beam.widht=3").error
    assert "never overwritten" in search(capsys, model, model).error
    assert "no such file" in search(capsys, tmp_path / "none.onnx", out).error
    assert "must be above 0" in search(capsys, model, out, "--seconds", "0").error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]


def test_help_teaches_every_method(capsys):
    done = in_process(capsys, "search", "--help")
    assert done.code == 0 and all(f"\n  {name} " in done.out for name in SEARCHES) and "KEY=VALUE" in done.out
