"""Test `--inputs` and `rlflow.optimise(inputs=…)`: given inputs are used first in comparisons and measurements."""

import json

import numpy as np
import onnx
import pytest

import rlflow
from rlflow.runs.folder import RunFolder
from tests.commands import in_process
from tests.field.inputs_that_fit import EIGHT, SHIFTED, factors

QUICK = ("cost.name=analytic", "eval.measure_seconds=0")
IDS = np.full((2, 3), 1004)


@pytest.fixture
def files(tmp_path):
    for name, made in (("factors", factors()), ("shifted", SHIFTED())):
        onnx.save(made, tmp_path / f"{name}.onnx")
    np.savez(tmp_path / "eight.npz", **EIGHT)
    np.savez(tmp_path / "ids.npz", ids=IDS)
    return tmp_path


def test_only_given_inputs_are_compared_if_drawn_inputs_do_not_run(files, capsys):
    model, out, given = files / "factors.onnx", files / "out.onnx", ("--inputs", files / "eight.npz")
    done = in_process(capsys, "search", "--method", "greedy", "--model", model, "--out", out, *given, *QUICK)
    assert done.code == 0 and "only 1 given input set compared" in done.ending["sure"]
    assert f"--inputs {files / 'eight.npz'}" in done.ending["next"]
    done = in_process(capsys, "validate", model, out, *given, "--json", files / "v.json")
    assert done.code == 0 and "only 1 given input set compared" in done.ending["sure"]
    messages = [finding["message"] for finding in json.loads((files / "v.json").read_text())["findings"]]
    assert any(message.startswith("inputs eight.npz: output 'y'") for message in messages)
    done = in_process(capsys, "measure", model, out, *given, "--seconds", "0.1", "--sessions", "1")
    assert done.code == 0 and "compared on 1 input set" in done.ending["sure"]
    for command in (("validate", model, out), ("measure", model, out), ("memory", model, "--out", out)):
        assert "--inputs DATA.npz" in in_process(capsys, *command).error


@pytest.mark.nightly
def test_memory_runs_on_given_inputs_alone(files, capsys):
    given = ("--inputs", files / "eight.npz", "--seconds", "0.2")
    assert in_process(capsys, "memory", files / "factors.onnx", "--out", files / "small.onnx", *given).code == 0


def test_a_candidate_that_differs_only_on_given_inputs_is_found(files, capsys):
    # reads row 0 for a negative index; drawn inputs have no negative index, because ids are below 1000
    changed = SHIFTED()
    gather = next(node for node in changed.graph.node if node.op_type == "Gather")
    gather.input[1] = "raised"
    changed.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(0), "least"))
    changed.graph.node.insert(1, onnx.helper.make_node("Max", ["i", "least"], ["raised"]))
    onnx.save(changed, files / "changed.onnx")
    np.savez(files / "negative.npz", ids=np.array([[995, 1004]]))
    pair = ("validate", files / "shifted.onnx", files / "changed.onnx")
    assert in_process(capsys, *pair).code == 0
    done = in_process(capsys, *pair, "--inputs", files / "negative.npz")
    assert done.code == 1 and "FAILED  b = 1, s = 2: inputs negative.npz: output 'y'" in done.out


def test_typical_sizes_come_from_the_first_input_set_and_survive_a_resumed_run(files):
    settings = (f"inputs=[{files / 'ids.npz'}]", *QUICK)
    opened = RunFolder.open(files / "run", str(files / "shifted.onnx"), (), settings)
    assert opened.task.sizes == ({"b": 2, "s": 3},)
    with opened.working(True):
        pass
    again = RunFolder.open(files / "run")
    assert again.spec.feeds.given[0].arrays["ids"].tolist() == IDS.tolist() and again.task.sizes == opened.task.sizes
    named = RunFolder.open(files / "other", str(files / "shifted.onnx"), (), settings, {"s": 7})
    assert named.task.sizes == ({"b": 2, "s": 7},)


def test_the_library_accepts_inputs_as_arrays_and_as_paths(files):
    few = {"search.beam.width": 1, "search.interactions": 100, "search.grasp.patience": 3}
    options = few | {"cost.name": "analytic", "eval.measure_seconds": 0}
    given = [{"ids": IDS}, files / "ids.npz"]
    result = rlflow.optimise(SHIFTED(), seconds=1, inputs=given, options=options, quiet=True, run=files / "run")
    findings = result.outcome["candidates"][result.delivered]["findings"]
    names = {finding["message"].split(": ")[1] for finding in findings if "inputs" in finding["message"]}
    assert {name.removesuffix(", optimised") for name in names} == {"inputs given-0.npz", "inputs ids.npz"}
    with pytest.raises(rlflow.RLFlowError, match="dictionaries of arrays"):
        rlflow.optimise(SHIFTED(), inputs=[IDS], quiet=True)


DEFAULT = """<ir_version: 8, opset_import: ["": 17]>
scaled (float[n,4] x, float s) => (float[n,4] y) <float s = {2}> {
  a = Neg(x)
  b = Neg(a)
  y = Mul(b, s)
}"""


@pytest.mark.parametrize("fault", ["an input with a default", "negative sizes"])
def test_models_that_onnx_runtime_runs_are_rewritten_and_checked(fault, tmp_path, capsys):
    model, out = onnx.parser.parse_model(DEFAULT), tmp_path / "out.onnx"
    if fault == "negative sizes":
        del model.graph.input[1]
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(model, tmp_path / "model.onnx")
    words = "--method", "greedy", "cost.name=analytic"
    assert in_process(capsys, "search", "--model", tmp_path / "model.onnx", "--out", out, *words).code == 0
    assert [node.op_type for node in onnx.load(out).graph.node] == ["Mul"]
    assert [value.name for value in onnx.load(out).graph.input] == [value.name for value in model.graph.input]
    assert in_process(capsys, "validate", tmp_path / "model.onnx", out).code == 0
