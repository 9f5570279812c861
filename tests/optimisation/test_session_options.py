"""Test session options: options measured to be faster are chosen, written and opened; unknown files are refused."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest

import rlflow
from rlflow.common.errors import RLFlowError
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.feeds import Feeds
from rlflow.graph.onnx_runtime import Setup
from rlflow.graph.session_file import session_file, write_setup
from rlflow.optimisation import pipeline, session_options
from rlflow.optimisation.budget import Budget
from rlflow.optimisation.delivery import receipt_beside
from rlflow.optimisation.session_options import best_session, contenders
from rlflow.reports.sentences import session_code, session_text
from rlflow.zoo import load

MEASURED = {
    "ratio": 0.8, "interval": [0.75, 0.85], "verdict": "faster", "threads": 2, "machine": "m", "onnxruntime": "1",
    "original_ms": 2.0, "candidate_ms": 1.6, "side_by_side": True,
}  # fmt: skip
CHOSEN = Setup(threads=2, pattern=False, spinning=False, parallel=True, level="basic", without=("SkipLayerNormFusion",))


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(load("tiny_resnet18"), path)
    return path


def chosen(model, monkeypatch, ratios, verdict="faster"):
    """Return the result of `best_session` for planted latency ratios of options; options without a ratio have 1."""

    def in_turns(original, candidates, inputs, threads, seconds, first, setups):
        return [float(np.prod([ratios.get((k, str(v)), 1.0) for k, v in one.changes().items()])) for one in setups]

    monkeypatch.setattr(session_options, "ratios_in_turns", in_turns)
    monkeypatch.setattr(session_options, "measure", lambda *_, **__: MEASURED | {"verdict": verdict})
    monkeypatch.setattr(session_options, "affordable_contenders", lambda *_: 99)
    return best_session(model, Feeds.of(model), {"": {}}, 2, 0, 1e-4, 60.0)


def test_options_that_gain_alone_are_combined(model, monkeypatch):
    ratios = {("spinning", "False"): 0.9, ("level", "basic"): 0.95, ("pattern", "False"): 1.2}
    result = chosen(model, monkeypatch, ratios)
    assert result["setup"] == {"threads": 2, "spinning": False, "level": "basic"}
    assert result["tried"] == len(contenders(2, False))
    assert "spinning off, level basic" in session_text({"session": result})


@pytest.mark.parametrize(("ratios", "verdict"), [({}, "faster"), ({("arena", "False"): 0.9}, "no difference shown")])
def test_options_without_a_shown_gain_are_not_chosen(model, monkeypatch, ratios, verdict):
    result = chosen(model, monkeypatch, ratios, verdict)
    assert result["setup"] == {} and "no session option gains" in session_text({"session": result})
    assert session_code({"session": result}) is None


def test_options_that_onnx_runtime_refuses_are_left_out(model, monkeypatch):
    """One refused set of options ends a measurement of all; the others are then measured without it."""
    usual = session_options.session

    def opened(path, threads, setup=Setup()):
        if setup.parallel:
            raise RLFlowError("ONNX Runtime rejects the model")
        return usual(path, threads, setup=setup)

    def in_turns(original, candidates, inputs, threads, seconds, first, setups):
        for setup in setups:
            opened(original, threads, setup)
        return [0.9 if setup.spinning is False else 1.0 for setup in setups]

    monkeypatch.setattr(session_options, "session", opened)
    monkeypatch.setattr(session_options, "ratios_in_turns", in_turns)
    monkeypatch.setattr(session_options, "measure", lambda *_, **__: MEASURED)
    monkeypatch.setattr(session_options, "affordable_contenders", lambda *_: 99)
    result = best_session(model, Feeds.of(model), {"": {}}, 2, 0, 1e-4, 60.0)
    assert result["setup"] == {"threads": 2, "spinning": False} and result["tried"] == len(contenders(2, False)) - 1


def test_thread_options_need_several_threads_and_low_precision_keeps_its_optimisations():
    assert all(not one.threads and one.spinning and not one.parallel for one in contenders(1, False))
    assert {one.threads for one in contenders(8, False)} == {0, 1, 4}
    assert all(one.level == "all" and not one.without for one in contenders(2, True))


def test_real_sessions_are_measured(model, monkeypatch):
    monkeypatch.setattr(session_options, "affordable_contenders", lambda *_: 2)
    result = best_session(model, Feeds.of(model), {"": {}}, 1, 0, 1e-4, 1.0)
    assert result["tried"] == 2 and set(result["setup"]) <= {"threads", "without"}


def test_options_that_change_outputs_are_not_chosen(model, monkeypatch):
    monkeypatch.setattr(session_options, "_is_equal", lambda path, setup, *_: setup.level == "all")
    ratios = {("spinning", "False"): 0.9, ("level", "basic"): 0.5}
    assert chosen(model, monkeypatch, ratios)["setup"] == {"threads": 2, "spinning": False}


def test_a_session_uses_the_options_stored_beside_its_model(model):
    inputs = random_inputs(load("tiny_resnet18"), 0)
    plain = rlflow.session(model)
    write_setup(model, CHOSEN, MEASURED)
    running = rlflow.session(str(model))
    options = running.get_session_options()
    assert (options.intra_op_num_threads, options.enable_mem_pattern) == (2, False)
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert json.loads(session_file(model).read_text())["measured"]["ratio"] == 0.8
    for one, other in zip(plain.run(None, inputs), running.run(None, inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_the_code_of_a_report_opens_the_same_session(model, monkeypatch):
    monkeypatch.chdir(model.parent)
    outcome = {"session": {"setup": CHOSEN.changes(), "measured": MEASURED, "tried": 9}, "optimised": str(model)}
    names = {"onnxruntime": onnxruntime}
    exec(session_code(outcome), names)
    options = names["session"].get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads, options.enable_mem_pattern) == (2, 2, False)
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC


@pytest.mark.parametrize(
    "text",
    [
        "[" * 60_000, " " * 70_000, "{}", "[]", '{"format": 2, "setup": {}}', '{"format": 1, "setup": []}',
        '{"format": 1, "setup": {"threads": true}}', '{"format": 1, "setup": {"threads": 1000000}}',
        '{"format": 1, "setup": {"as_written": true}}', '{"format": 1, "setup": {"level": ["all"]}}',
        '{"format": 1, "setup": {"optimized_model_filepath": "/tmp/x"}}', '{"format": 1, "setup": {"without": "abc"}}',
        '{"format": 1, "setup": {"without": ["a/b"]}}', '{"format": 1, "setup": {"arena": 0}}',
    ],
)  # fmt: skip
def test_a_malformed_session_file_is_refused(model, text):
    session_file(model).write_text(text)
    with pytest.raises(RLFlowError, match="session.json"):
        rlflow.session(model)


def test_saving_a_result_writes_its_session_options_and_removes_old_ones(model, tmp_path, monkeypatch):
    found = {"setup": CHOSEN.changes(), "measured": MEASURED, "tried": 9}
    monkeypatch.setattr("rlflow.optimisation.pipeline.best_session", lambda *_: found)
    options = {"cost.name": "roofline", "search.interactions": 100, "search.grasp.patience": 3}
    result = rlflow.optimise(model, seconds=3, threads=1, session=True, quiet=True, options=options)
    out = tmp_path / "out.onnx"
    result.save(out)
    assert result.session == found and session_file(out).exists()
    assert "Session options" in result.report.read_text()
    result.outcome["session"] = found | {"setup": {}}
    result.save(out)
    assert not session_file(out).exists()


def test_a_model_is_delivered_without_session_options_if_onnx_runtime_refuses_some(model, monkeypatch, capsys):
    def refuse(*_):
        raise RLFlowError("ONNX Runtime refuses the model\nin two lines")

    monkeypatch.setattr(pipeline, "best_session", refuse)
    options = {"cost.name": "roofline", "search.interactions": 100, "search.grasp.patience": 3}
    result = rlflow.optimise(model, seconds=3, threads=1, session=True, options=options)
    reason = "no session options are chosen, because ONNX Runtime refuses some: ONNX Runtime refuses the model\n"
    assert reason in capsys.readouterr().err
    assert result.session is None and "spent" in result.outcome and result.report.exists()
    result.save(model.parent / "out.onnx")
    assert (model.parent / "out.onnx").exists() and not session_file(model.parent / "out.onnx").exists()


def test_a_delivery_removes_what_belongs_to_the_earlier_file_of_this_name(model, tmp_path):
    out = tmp_path / "out.onnx"
    for beside in (session_file(out), receipt_beside(out)):
        beside.write_text("{}")
    pipeline._copy_out({"optimised": str(model), "delivered": "original", "fault_report": None}, out)
    assert out.read_bytes() == model.read_bytes()
    assert not session_file(out).exists() and not receipt_beside(out).exists()


def test_a_part_of_the_seconds_is_kept_for_session_options():
    plain, kept = Budget.of(60, False, 0.0), Budget.of(60, False, 0.0, session=True)
    assert (kept.session_seconds, kept.end, kept.search_seconds) == (10, plain.end - 10, 25)


def test_a_report_says_if_there_was_no_time_for_session_options():
    assert "no time" in session_text({"session": {"setup": {}, "measured": None, "tried": 0}})
    assert session_text({}) is None


def test_options_that_cannot_be_combined_are_not_measured_together(model, monkeypatch):
    measured, is_equal = [], session_options._is_equal

    def in_turns(original, candidates, inputs, threads, seconds, first, setups):
        measured.extend(setups)
        return [0.9 if one.changes().keys() & {"spinning", "level"} else 1.0 for one in setups]

    def refused_together(path, setup, *arguments):
        return len(setup.changes()) < 2 and is_equal(path, setup, *arguments)

    monkeypatch.setattr(session_options, "ratios_in_turns", in_turns)
    monkeypatch.setattr(session_options, "_is_equal", refused_together)
    monkeypatch.setattr(session_options, "measure", lambda *_, **__: MEASURED)
    monkeypatch.setattr(session_options, "affordable_contenders", lambda *_: 99)
    result = best_session(model, Feeds.of(model), {"": {}}, 2, 0, 1e-4, 60.0)
    assert len(result["setup"].keys() - {"threads"}) == 1
    assert measured and all(len(one.changes().keys() & {"spinning", "level"}) < 2 for one in measured)
