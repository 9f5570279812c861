"""Test `rlflow measure` with planted run times; tests/costs/test_measured.py has real measurements."""

import json

import pytest

from rlflow.costs import measured
from rlflow.graph.onnx_writer import save_model
from tests.commands import in_process
from tests.costs.graphs import model

SLOW = "slow (float[N,64] x, float[64,64] w) => (float[N,64] y) { h = Relu(x) y = Relu(h) }"
FAST = "fast (float[N,64] x, float[64,64] w) => (float[N,64] y) { y = Relu(x) }"
OTHER = "other (float[N,64] x, float[64,64] w) => (float[N,64] y) { y = Neg(x) }"
SECONDS = {"slow": 0.002}  # planted run time by graph name; 0.001 for other graphs
QUICK = ("--seconds", "0.1", "--sessions", "4", "--shape", "N=64")


@pytest.fixture(autouse=True)
def planted(monkeypatch):
    """Plant the run time and the memory of each graph, so that other programs cannot change the result."""
    run = measured.Run
    monkeypatch.setattr(
        measured, "_run", lambda running, *_: run(SECONDS.get(running.get_modelmeta().graph_name, 0.001), True)
    )
    monkeypatch.setattr(measured, "run_memory", lambda *_: 1_000_000)


@pytest.fixture
def files(tmp_path):
    bodies = {"slow": SLOW, "fast": FAST, "other": OTHER}
    bodies |= {"fixed": FAST.replace("N,", "64,"), "narrow": FAST.replace(",64]", ",8]")}
    for name, body in bodies.items():
        save_model(model(body), tmp_path / f"{name}.onnx")
    return tmp_path


def measure(capsys, files, first: str, second: str, *more):
    out = files / "measured.json"
    done = in_process(capsys, "measure", files / f"{first}.onnx", files / f"{second}.onnx", "--json", out, *more)
    return done, json.loads(out.read_text()) if out.exists() else None


@pytest.mark.parametrize("second", ["fast", "fixed"])
def test_a_model_with_less_work_is_measured_faster_and_the_summary_says_so(capsys, files, second):
    done, result = measure(capsys, files, "slow", second, "--threads", "1", *QUICK)
    ending = done.ending
    assert done.code == 0 and result["verdict"] == "faster" and result["ratio"] == pytest.approx(0.5)
    assert result["sessions"] == 4 and result["threads"] == 1 and list(result["at"]) == ["N = 64"]
    assert f"{second}.onnx measured" in ending["result"] and "% faster" in ending["result"]
    assert "1 thread" in ending["sure"] and "largest relative error 0.0e+00" in ending["sure"]
    assert " validate " in ending["next"] and "--shape N=64" in ending["next"]


def test_measure_reports_each_of_several_sizes(capsys, files):
    done, result = measure(capsys, files, "fast", "slow", *QUICK[:-1], "N=8,64")
    assert result["verdict"] == "slower" and list(result["at"]) == ["N = 8", "N = 64"]
    assert "slower at N = 8 and at N = 64" in done.ending["result"] and " optimise " in done.ending["next"]


def test_measure_reports_outputs_that_differ(capsys, files):
    done, result = measure(capsys, files, "fast", "other", *QUICK)
    assert done.code == 1 and result["ok"] is False and result["largest_relative_error"] >= 1
    assert "the two models do NOT compute the same" in done.ending["result"] and " validate " in done.ending["next"]


def test_measure_reports_differing_integers_in_valid_json(capsys, files):
    whole = "g (float[N,64] x) => (int64[N,64] y) { h = %s(x) y = Cast<to = 7>(h) }"
    for name, op in {"fast": "Ceil", "other": "Floor"}.items():
        save_model(model(whole % op), files / f"{name}.onnx")
    done, _ = measure(capsys, files, "fast", "other", *QUICK)
    result = json.loads((files / "measured.json").read_text(), parse_constant=pytest.fail)
    assert result["largest_relative_error"] == "inf" and "relative error inf" in done.ending["sure"]
    assert done.code == 1 and "do NOT compute the same" in done.ending["result"]


def test_measure_does_not_judge_small_differences_in_half_precision(capsys, files):
    near = FAST.replace("{ y = Relu(x) }", "<float c = {1.01}> { m = Cast<to = 10>(c) h = Relu(x) y = Mul(h, m) }")
    for name, body in {"fast": FAST, "near": near, "other": OTHER}.items():
        save_model(model(body.replace("float[", "float16[")), files / f"{name}.onnx")
    done, result = measure(capsys, files, "fast", "near", *QUICK)
    assert result["low_precision"] and 1e-3 < result["largest_relative_error"] < 0.1 and done.code == 0
    assert "run `validate` to judge it" in done.ending["sure"] and " validate " in done.ending["next"]
    done, result = measure(capsys, files, "fast", "other", *QUICK)
    assert result["largest_relative_error"] >= 1 and done.code == 1
    assert "do NOT compute the same" in done.ending["result"]


@pytest.mark.parametrize(
    "first, second, more, said",
    [
        ("fast", "narrow", (), "different interfaces: input 'x' was FLOAT[N, 64], is"),
        ("fast", "fixed", ("--shape", "N=8"), "input 'x' was FLOAT[N, 64], is FLOAT[64, 64]"),
        ("fixed", "fast", (), "input 'x' was FLOAT[64, 64], is FLOAT[N, 64]"),
        ("fast", "fast", ("--threads", "0"), "--threads is at least 1"),
        ("fast", "fast", ("--sessions", "0"), "--sessions of at least 1"),
        ("fast", "gone", (), "cannot read"),
    ],
)
def test_measure_refuses_bad_arguments_in_one_line(capsys, files, first, second, more, said):
    done, _ = measure(capsys, files, first, second, *more)
    assert said in done.error
