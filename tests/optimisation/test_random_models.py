"""Test models that draw random numbers: outputs that depend on no draw are compared, and no rule is blamed."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import save_graph
from rlflow.optimisation.repair import repaired
from rlflow.optimisation.validate import Comparison, validate
from rlflow.rules.language import load_rules
from rlflow.search.descents import greedy
from tests.commands import in_process
from tests.field.random_draws import CASES, N, model
from tests.suite import slow

NOTE = "y cannot be compared: the model draws random numbers"
BESIDE = CASES["beside-a-draw"].make  # y depends on two draws, z does not


def changed(op: str, by: str) -> onnx.ModelProto:
    """Return the model with another operator type at the last node of type `op`."""
    result = BESIDE()
    [*_, last] = [node for node in result.graph.node if node.op_type == op]
    last.op_type = by
    return result


def test_only_outputs_that_depend_on_a_draw_are_not_compared():
    same = validate(BESIDE(), BESIDE())
    assert same.ok and same.compared and {f.note for f in same.findings} - {""} == {NOTE}
    assert validate(BESIDE(), changed("Add", "Mul")).ok  # only y differs
    other = validate(BESIDE(), changed("Relu", "Neg"))
    assert not other.ok and all("'z'" in finding.message for finding in other.failures())


def test_a_candidate_must_draw_random_numbers_as_often_as_the_original():
    for op, by in (("RandomNormalLike", "Neg"), ("RandomNormalLike", "RandomUniformLike"), ("Sub", "RandomNormalLike")):
        candidate = changed(op, by)
        if op == "Sub":
            [node] = [node for node in candidate.graph.node if node.output[0] == "e"]
            del node.input[1:]
        [failure] = validate(BESIDE(), candidate).failures()
        assert failure.kind == "structure"
        assert "the original draws random numbers by 2 RandomNormalLike, the candidate" in failure.message


def test_models_are_still_run_if_every_output_depends_on_a_random_draw():
    noisy = CASES["a"].make()
    findings = validate(noisy, noisy)
    assert findings.ok and not findings.compared
    broken = CASES["a"].make()
    broken.graph.node[-1].CopyFrom(N("Reshape", ["q", "nil64"], ["y"]))
    broken.graph.initializer.append(numpy_helper.from_array(np.array([5, 5]), "nil64"))
    assert not validate(noisy, broken).ok


def test_no_rule_is_blamed_for_a_random_draw(tmp_path):
    for name in ("a", "b", "c", "d", "beside-a-draw", "dropout"):
        source = CASES[name].make()
        task = Task(load_graph(source), load_rules(), AnalyticCost())
        best, comparison = greedy(task.initial, max_steps=20), Comparison(source, (0, 1), 1e-4)

        def compare(state, comparison=comparison):
            save_graph(state.graph, tmp_path / "c.onnx")
            return comparison.against(tmp_path / "c.onnx")

        result = repaired(task, best.actions, compare)
        assert best.actions and result.findings.ok and not result.left_out


@pytest.mark.parametrize("command", [["validate"], *slow(["measure", "--seconds", "0.2"])])
def test_commands_name_the_outputs_that_cannot_be_compared(tmp_path, capsys, command):
    path = tmp_path / "m.onnx"
    onnx.save(model([*CASES["a"].make().graph.node[2:], N("Relu", ["q"], ["z"])], ("y", "z")), path)
    done = in_process(capsys, *command[:1], path, path, *command[1:])
    assert done.code == 0 and NOTE in done.ending["sure"]
