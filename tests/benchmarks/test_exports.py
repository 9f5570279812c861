"""Test the corpus of exports: declarations are consistent, comparisons are fair, and failures of tools are counted.

No exporter and no other tool is needed, because the tests make the files themselves.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.exports import peers
from benchmarks.exports.__main__ import OPENVINO, OURS, figures_of, tables
from benchmarks.exports.corpus import APART, CORPUS, DEVELOPMENT, EXPORTERS, HALVES, JUDGEMENT, MADE_FROM, draw, of_half
from benchmarks.exports.peers import PEERS, attempted
from benchmarks.exports.together import ORIGINAL, Contestant, Together, together
from rlflow.common.errors import RLFlowError


def test_families_in_both_halves_are_listed_and_come_from_different_exporters():
    assert [len(of_half(half)) for half in HALVES] == [25, 24]
    families = {half: {CORPUS[name].family for name in of_half(half)} for half in HALVES}
    assert families[DEVELOPMENT] & families[JUDGEMENT] == set(APART)
    for family in APART:
        exporters = [
            {one.exporter for one in CORPUS.values() if (one.family, one.half) == (family, half)} for half in HALVES
        ]
        assert not exporters[0] & exporters[1]


def test_every_file_names_its_exporter_and_is_in_the_half_of_its_source():
    assert {one.exporter for one in CORPUS.values()} == set(EXPORTERS)
    for name, one in CORPUS.items():
        assert name.endswith(f"-{one.exporter}")
        if one.exporter in MADE_FROM:
            source = CORPUS[one.network]
            assert (one.half, one.family, one.inputs) == (source.half, source.family, source.inputs)
    assert set(peers.MODEL_TYPES) <= {one.family for one in CORPUS.values()}


def test_drawn_inputs_have_the_declared_shapes_and_mask_some_padding():
    for one in CORPUS.values():
        drawn = draw(one.inputs, seed=0)
        assert {key: array.shape for key, array in drawn.items()} == {k: given.shape for k, given in one.inputs.items()}
        if "attention_mask" in drawn:
            assert 0 < drawn["attention_mask"].mean() < 1


# -- planted tools and files -------------------------------------------------------------------------


def save(path: Path, factor: float, repeat: int = 1) -> Path:
    """Write a model y = x · factor^repeat, float32 [4, 4], and return its path."""
    given, made = (helper.make_tensor_value_info(t, TensorProto.FLOAT, [4, 4]) for t in ("x", f"t{repeat}"))
    names = ["x", *(f"t{number}" for number in range(1, repeat + 1))]
    nodes = [helper.make_node("Mul", [one, "factor"], [two]) for one, two in zip(names, names[1:], strict=False)]
    weights = [numpy_helper.from_array(np.array(factor, np.float32), "factor")]
    graph = helper.make_graph(nodes, "one", [given], [made], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_tool_that_fails_dies_or_writes_nothing_is_reported(tmp_path, monkeypatch):
    path = tmp_path / "made.onnx"
    for code, says in (
        ("import no_such_tool", "ModuleNotFoundError: No module named 'no_such_tool'"),
        ("raise ValueError('not this file')", "ValueError: not this file"),
        ("import os; os.kill(os.getpid(), 9)", "died of signal 9"),
        ("pass", "wrote nothing"),
    ):
        path.write_bytes(b"of an earlier attempt")
        assert attempted([sys.executable, "-c", code], path) == {"error": says}
    wrote = attempted([sys.executable, "-c", f"open({str(path)!r}, 'w')"], path)
    assert set(wrote) == {"seconds"} and path.exists()
    monkeypatch.setattr(peers, "LONGEST_SECONDS", 0.2)
    assert "0.2 s" in attempted([sys.executable, "-c", "import time; time.sleep(9)"], path)["error"]


def by_onnxruntime(path: Path) -> Contestant:
    return Contestant(path, "onnxruntime", sys.executable)


def test_files_are_run_in_turns_and_compared_with_the_original(tmp_path):
    inputs = {"x": np.ones((4, 4), np.float32)}
    contestants = {
        ORIGINAL: by_onnxruntime(save(tmp_path / "original.onnx", 2.0, repeat=2)),
        "equal": by_onnxruntime(save(tmp_path / "equal.onnx", 4.0)),
        "wrong": by_onnxruntime(save(tmp_path / "wrong.onnx", 5.0)),
        "unknown": Contestant(tmp_path / "original.onnx", "no_such_runtime", sys.executable),
    }
    made = together(contestants, inputs, threads=1, seconds=0.1, sessions=2, seed=0)
    assert made.errors == {ORIGINAL: 0.0, "equal": 0.0, "wrong": 0.25}
    assert made.failed == {"unknown": "KeyError: 'no_such_runtime'"}
    turns = [len(session) for session in made.seconds[ORIGINAL]]
    assert len(turns) == 2 and min(turns) >= 3
    assert all([len(session) for session in sessions] == turns for sessions in made.seconds.values())
    with pytest.raises(RLFlowError):
        together({ORIGINAL: by_onnxruntime(tmp_path / "gone.onnx")}, inputs, 1, 0.1, 2, 0)


# -- figures and tables ------------------------------------------------------------------------------


def figures() -> dict[str, dict]:
    turns = {ORIGINAL: [[1.0, 2.0], [4.0, 8.0]], OURS: [[0.5, 1.0], [2.0, 4.0]], "onnxsim": [[1.0, 2.0], [2.0, 4.0]]}
    result = Together(turns, dict.fromkeys(turns, 1e-6), {"onnxscript": "it"})
    return figures_of(result, same=["onnxslim"])


def test_figures_are_ratios_of_the_same_turns():
    found = figures()
    assert found[OURS]["ratio"] == pytest.approx(0.5) and found[OURS]["ms"] == pytest.approx(1500)
    assert found["onnxsim"]["ours"]["ratio"] == pytest.approx(0.5 / 0.5**0.5)
    assert found["onnxslim"]["ratio"] == 1 and found["onnxslim"]["ours"]["ratio"] == pytest.approx(0.5)
    assert found["onnxscript"] == {"failed": "it"}


def test_the_tables_name_the_best_tool_and_count_what_failed():
    one = figures()
    one["onnxsim"]["relative_error"] = 0.5  # an unequal file is compared with no other file
    kernels = [
        {"operators": "Conv", "shape": [1, 8], "count": 2, "ms": 3.0, "bound_ms": 1.0},
        {"operators": "Mul", "shape": None, "count": 1, "ms": 1.0, "bound_ms": 1.0},
    ]
    run = {"ours": {"equal": True, "seconds": 120.0, "kernels": kernels}, "contestants": one}
    made = tables({"one-dynamo": {"threads": {"1": run}, "megabytes": 12.0}})
    (row,) = made["files"].rows
    assert row[0] == "one-dynamo" and row[2].startswith("0.500 (") and row[4] == "onnxslim: 1.000" and row[6] == "yes"
    assert made["kernels"].rows == [["one-dynamo", "4.00", "2.00", "2.0", "2 Conv 1×8 50%; 1 Mul  0%"]]
    tools = {row[0]: row[1:] for row in made["tools"].rows}
    assert tools[OURS] == [1, "0.500", 1, 0] and tools["onnxslim"] == [1, "1.000", 0, 0]
    assert tools["onnxsim"] == [0, "1.000", 0, 1] and set(tools) == {OURS, *PEERS, OPENVINO}
