"""Tests of the number of threads: its default, timings of kernels with several threads, and its effect on delivery.

A candidate is delivered only if it is faster with the chosen number of threads.
"""

import json
import pickle

import numpy as np
import pytest

from rlflow.cli.main import make_parser
from rlflow.costs import timing
from rlflow.costs.kernel_models import Timed, empty_model, roused
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import save_graph
from rlflow.optimisation import delivery
from rlflow.optimisation.candidates import Candidate
from rlflow.reports.html import answer
from rlflow.reports.sentences import certainty_line
from rlflow.runs.folder import RunFolder
from tests.toys.tiny import tiny_task

RATIOS = {"faster": (0.9, 0.88, 0.92), "slower": (1.1, 1.08, 1.12), "no difference shown": (1.0, 0.98, 1.02)}


@pytest.fixture
def cores(monkeypatch):
    """Return a function of N that sets the default number of threads to N."""
    return lambda count: monkeypatch.setenv("ORT_INTRA_OP_NUM_THREADS", str(count))


# -- by default ------------------------------------------------------------------------------------


def test_a_resumed_run_keeps_its_number_of_threads(cores, tmp_path):
    cores(3)
    begun = RunFolder.open(tmp_path, "tiny_resnet18", overrides=["cost.name=analytic"])
    begun.stage("search", dict)  # the options are stored when a command works in the folder
    cores(5)
    again = RunFolder.open(tmp_path)
    assert begun.config.cost.threads == begun.spec.threads == 3
    assert again.config.cost.threads == again.spec.threads == 3
    assert RunFolder.open(tmp_path / "other", "tiny_resnet18").spec.threads == 5


def test_another_process_makes_the_task_with_the_same_number_of_threads(cores):
    cores(3)
    sent = pickle.dumps(EnvSpec("tiny_resnet18"))
    cores(5)
    assert pickle.loads(sent).threads == 3 and EnvSpec("tiny_resnet18").threads == 5


@pytest.mark.parametrize("command", ["optimise m --out x", "measure a b", "validate a b", "costs record m"])
def test_all_commands_have_the_same_default_number_of_threads(command, capsys):
    words = command.split()
    assert make_parser().parse_args(words).threads is None
    with pytest.raises(SystemExit):
        make_parser().parse_args([*words, "--help"])
    assert "(default: one for each core that this process may use)" in " ".join(capsys.readouterr().out.split())


# -- kernels ---------------------------------------------------------------------------------------


def test_extra_work_wakes_the_threads_of_a_timed_kernel_if_there_are_several(monkeypatch):
    """The empty model, whose time is subtracted from the time of a kernel, is timed in the same way."""
    timed = []
    monkeypatch.setattr(timing, "session", lambda model, *a, **k: timed.append(model) or session(model, *a, **k))
    for threads in (1, 2):
        timed.clear()
        timing.time_model(Timed(empty_model()), threads, 1.0)
        awake = {"MatMul" in [node.op_type for node in model.graph.node] for model in timed}
        assert awake == {threads > 1}


def test_the_work_that_wakes_the_threads_does_not_change_the_timed_model():
    model = empty_model()
    beside = roused(model, 3)
    inputs = random_inputs(beside, 0)
    (expected,) = run(session(model, 3), {"x": inputs["x"]})
    assert np.array_equal(run(session(beside, 3), inputs, ["y"])[0], expected) and len(model.graph.node) == 1
    multiplications = np.prod([*inputs["rouse a"].shape, inputs["rouse b"].shape[1]])
    assert multiplications >= 3 * 65_536  # ONNX Runtime gives every thread a part of this work


# -- the delivered file ----------------------------------------------------------------------------


def measured(verdict: str, threads: int) -> dict:
    ratio, low, high = RATIOS[verdict]
    return {
        "ratio": ratio, "interval": [low, high], "verdict": verdict, "original_ms": 1.0, "candidate_ms": ratio,
        "pairs": 24, "sessions": 6, "side_by_side": True, "at": {}, "slower_at": [], "threads": threads,
        "original_memory_bytes": None, "candidate_memory_bytes": None,
    }  # fmt: skip


def delivered(monkeypatch, folder, threads: int, verdicts: dict[int, str]) -> tuple[dict, list[int]]:
    """Deliver a candidate with faked measurements.

    Args:
        monkeypatch: the fixture of pytest.
        folder: folder of all files.
        threads: the chosen number of threads.
        verdicts: number of threads → verdict of the faked measurement.

    Returns:
        (outcome of the delivery, the numbers of threads with which the candidate was measured).
    """
    asked = []

    def measure(source, path, threads, *_, **__) -> dict:
        asked.append(threads)
        return measured(verdicts[threads], threads)

    monkeypatch.setattr(delivery, "measure", measure)
    task, source = tiny_task(), folder / "model.onnx"
    save_graph(task.graph, source)
    actions = [(int(x), int(k)) for x, k in task.initial.valid_actions()[:-1]]
    action = min(actions, key=lambda one: task.initial.apply(*one).objective)
    candidate = Candidate("greedy", task.initial.apply(*action), [action], 1, 0.0)
    options = delivery.DeliveryOptions([0], 1e-4, measure_seconds=6.0, sessions=2, threads=threads, seed=0)
    return delivery.deliver(task, source, [candidate], folder, options, {}, []), asked


@pytest.mark.parametrize("verdict", RATIOS)
def test_the_choice_follows_the_threads_and_the_one_thread_result_is_reported(monkeypatch, tmp_path, verdict):
    outcome, asked = delivered(monkeypatch, tmp_path, 4, {4: "faster", 1: verdict})
    assert outcome["delivered"] == "greedy" and asked == [4, 1]
    assert outcome["candidates"]["greedy"]["measured"]["threads"] == 4
    assert outcome["measured_one_thread"] == measured(verdict, 1)
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    assert receipt["costs"]["threads"] == 4
    said, shown = certainty_line(outcome), str(answer("a model", outcome, "greedy"))
    assert "24 pairs of runs in 6 sessions with 4 threads; with one thread measured" in said
    assert said.endswith(": with one thread run the original.") == (verdict == "slower")
    assert ('<p class="bad">With one thread measured 10.0 % slower' in shown) == (verdict == "slower")


@pytest.mark.parametrize("verdict", ["slower", "no difference shown"])
def test_a_candidate_that_is_not_faster_with_the_threads_is_not_delivered(monkeypatch, tmp_path, verdict):
    outcome, asked = delivered(monkeypatch, tmp_path, 4, {4: verdict, 1: "faster"})
    assert outcome["delivered"] == "original" and asked == [4] and outcome["measured_one_thread"] is None


def test_one_thread_is_not_measured_twice(monkeypatch, tmp_path):
    outcome, asked = delivered(monkeypatch, tmp_path, 1, {1: "faster"})
    assert outcome["delivered"] == "greedy" and asked == [1] and outcome["measured_one_thread"] is None
    assert certainty_line(outcome).endswith("in 6 sessions with 1 thread.")
