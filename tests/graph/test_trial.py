"""Test the trial run: a model that ONNX Runtime does not run is refused before any work, and no file is left."""

import numpy as np
import pytest

import rlflow
from rlflow.common.errors import RLFlowError
from rlflow.graph import trial
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.runs.folder import RunFolder
from tests.field import symbols
from tests.field.random_draws import N

UNKNOWN = symbols.chain((4, 16), (4, 16), [N("Nope", ["x"], ["x1"], domain="no.where")])
FINE = symbols.chain((4, 16), (4, 16))
UNKNOWN.opset_import.append(FINE.opset_import[0])
UNKNOWN.opset_import[-1].domain = "no.where"
# ONNX Runtime loads this product but cannot run it: its sizes depend on the content of an input.
FAILS = symbols.chain((4, 16), None, [N("NonZero", ["x"], ["n"]), N("Cast", ["n"], ["x1"], to=1)])


def refusing(*modes: bool):
    """Return a replacement of `session` that refuses models with (True) or without (False) optimisations."""

    def session(model, threads, optimise=True):
        if optimise in modes:
            raise RLFlowError("it fails")
        return real(model, threads, optimise)

    real = trial.session
    return session


def check(model) -> None:
    trial.check_runs(model, random_inputs(model, 0), 1)


def test_a_model_must_run_with_and_without_optimisations(monkeypatch):
    check(FINE)
    for mode, works, fails in ((True, "without", "with"), (False, "with", "without")):
        with monkeypatch.context() as patched:
            patched.setattr(trial, "session", refusing(mode))
            with pytest.raises(RLFlowError, match=f"runs only {works} ONNX.*must run {fails} them too: it fails"):
                check(FINE)
    with monkeypatch.context() as patched, pytest.raises(RLFlowError, match="^it fails$"):
        patched.setattr(trial, "session", refusing(True, False))
        check(FINE)


def test_a_refusal_says_what_to_do():
    with pytest.raises(RLFlowError, match="Nope of the domain 'no.where'.*--custom-ops LIB.so"):
        check(UNKNOWN)
    with pytest.raises(RLFlowError, match=r"fails on drawn inputs \(x \[4, 16\]\).*--inputs DATA.npz.*--shape"):
        check(FAILS)


def test_a_slow_trial_is_stated_and_a_very_slow_one_runs_once(monkeypatch, capsys):
    monkeypatch.setattr(trial, "SLOW", -1.0)
    check(FINE)
    assert "trial run of the model in ONNX Runtime" in capsys.readouterr().err
    monkeypatch.setattr(trial, "ONCE", -1.0)
    monkeypatch.setattr(trial, "session", refusing(False))
    check(FINE)  # `check` leaves out the run without optimisations, which would fail


def test_a_refused_model_leaves_no_folder(tmp_path):
    source = tmp_path / "m.onnx"
    source.write_bytes(UNKNOWN.SerializeToString())
    with pytest.raises(RLFlowError, match="Nope of the domain"):
        RunFolder.open(tmp_path / "run", str(source), overrides=["cost.name=analytic"])
    assert not (tmp_path / "run").exists()
    for model in (source, UNKNOWN):
        with pytest.raises(RLFlowError, match="Nope of the domain"):
            rlflow.load_task(model, cost="analytic")
    assert np.isfinite(rlflow.load_task(FINE, cost="analytic").initial.runtime_ms)
