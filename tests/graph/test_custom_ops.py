"""Test models with custom operators: `--custom-ops LIB.so` reaches every session, in this process and in others."""

import numpy as np
import onnx
import pytest

import rlflow
from rlflow.common.errors import RLFlowError
from rlflow.common.system import peak_memory_during
from rlflow.costs.kernel_layout import optimised
from rlflow.costs.measured import run_memory
from rlflow.costs.probe import Probe
from rlflow.graph import custom_ops
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import Setup, run, session
from rlflow.memory.ordered_files import in_a_users_process
from rlflow.runs.folder import RunFolder
from tests.commands import in_process
from tests.suite import at_night
from tests.toys.custom import DOMAIN, LIBRARY, custom_model

QUICK = ("--seconds", "2", "cost.name=analytic", "eval.measure_seconds=0", "search.grasp.patience=3")
WITH = ("--custom-ops", LIBRARY)
INPUTS = {"x": np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)}


@pytest.fixture
def library():
    with custom_ops.restored():
        custom_ops.load([LIBRARY])
        yield


@pytest.fixture
def file(tmp_path):
    onnx.save(custom_model(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_a_session_without_the_library_names_the_operator_its_domain_and_the_option():
    with pytest.raises(RLFlowError, match=f"NegPos of the domain '{DOMAIN}'.*--custom-ops"):
        session(custom_model(), 1)
    with custom_ops.restored():
        custom_ops.load([LIBRARY, LIBRARY])
        assert custom_ops.loaded() == (LIBRARY,)
        (y,) = run(session(custom_model(), 1), INPUTS)
        assert y.shape == (4, 4) and len(optimised(custom_model()).graph.node)
        with pytest.raises(RLFlowError, match=f"Missing of the domain '{DOMAIN}'"):
            session(custom_model("Missing"), 1)
    with pytest.raises(RLFlowError, match="NegPos"):
        session(custom_model(), 1)


def test_worker_processes_have_the_libraries_of_their_parent(library, file):
    grown = run_memory(file, INPUTS)  # raises if the process lacks the library
    assert (grown is None) == (peak_memory_during(lambda: None) is None)
    graph = load_graph(file)
    assert Probe(1, 0.01, 60.0)(graph, graph, [{}]).ratio > 0
    if at_night(True, False):
        assert in_a_users_process(Setup(), custom_ops.loaded) == (LIBRARY,)


def test_custom_operators_stay_as_they_are_and_a_run_keeps_its_libraries(capsys, file, tmp_path):
    run_folder, out = tmp_path / "run", tmp_path / "out.onnx"
    result = rlflow.optimise(
        str(file), custom_ops=[LIBRARY], run=run_folder, quiet=True, seconds=60,
        options={
            "cost.name": "analytic", "eval.measure_seconds": 0, "search.interactions": 300, "search.grasp.patience": 3,
        },
    )  # fmt: skip
    assert not result.is_original and custom_ops.loaded() == ()
    ops = [node.op_type for node in result.model.graph.node]
    assert ops.count("NegPos") == 3 and "Transpose" not in ops  # the custom operators are neither folded nor merged
    named = [node.name for node in result.model.graph.node if node.op_type == "NegPos"]
    assert sorted(named) == ["first", "of_a_weight", "second"]

    with custom_ops.restored():
        custom_ops.load([LIBRARY])
        assert RunFolder.open(run_folder).task.initial
        old, new = (run(session(path, 1), INPUTS)[0] for path in (file, result.path))
    np.testing.assert_allclose(old, new, rtol=1e-6)
    assert "NegPos" in in_process(capsys, "validate", file, result.path).error
    done = in_process(capsys, "validate", file, result.path, *WITH)
    assert done.code == 0 and done.ending["next"].endswith(f"--custom-ops {LIBRARY}")
    receipt = result.path.with_name("receipt.json")
    assert in_process(capsys, "replay", receipt, "--model", file, "--out", out, *WITH).code == 0
    assert out.read_bytes() == result.path.read_bytes()
    assert in_process(capsys, "bound", "--model", file, "--seconds", "0.5", *WITH).code == 0


def test_a_missing_or_wrong_library_is_refused_before_anything_is_written(capsys, file, tmp_path):
    before = sorted(tmp_path.iterdir())
    for wrong, words in ((tmp_path / "none.so", "no such file"), (file, "is not a library of custom operators")):
        done = in_process(capsys, "optimise", file, "--out", tmp_path / "out.onnx", "--custom-ops", wrong, *QUICK)
        assert str(wrong) in done.error and words in done.error, done
    assert sorted(tmp_path.iterdir()) == before


def test_a_library_named_only_in_a_config_is_not_loaded(capsys, file, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(f"custom_ops: [{LIBRARY}]\n")
    before = sorted(tmp_path.iterdir())
    for options in ([f"custom_ops=[{LIBRARY}]"], ["--config", config]):
        done = in_process(capsys, "optimise", file, "--out", tmp_path / "out.onnx", *options, *QUICK)
        assert done.error.endswith(f"native code. If you trust it, pass it to each command: --custom-ops {LIBRARY}")
    assert sorted(tmp_path.iterdir()) == before and custom_ops.loaded() == ()
    run_folder = tmp_path / "run"
    first = in_process(capsys, "optimise", file, "--out", tmp_path / "out.onnx", "--run", run_folder, *WITH, *QUICK)
    assert first.code == 0
    again = ("optimise", file, "--out", tmp_path / "out.onnx", "--run", run_folder)
    assert "native code" in in_process(capsys, *again).error and in_process(capsys, *again, *WITH).code == 0
