"""Test the repair of a candidate: rewrites after which it is no longer equal are left out."""

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import save_model, to_model
from rlflow.optimisation import repair
from rlflow.optimisation.candidates import Candidate, follow
from rlflow.optimisation.delivery import FAULT_REPORT, DeliveryOptions, deliver
from rlflow.optimisation.receipt import check_result, retrace
from rlflow.optimisation.repair import MAX_FAULTS_OF_RULE, SAME_RULE, repaired
from rlflow.optimisation.validate import Comparison, Finding, Findings
from rlflow.rules.language import RuleSet, load_rules, parse
from tests.suite import at_night, slow
from tests.toys.tiny import tiny_task

OPTIONS = DeliveryOptions(seeds=[0], tolerance=1e-4, measure_seconds=0.0, sessions=1, threads=1, seed=0)
# The rule `wrong` loses a factor; the rule `mul-neg` continues with the Neg that `wrong` makes.
CHAIN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,3] y) <float one = {1.0}, float two = {2.0}, float three = {3.0}> {
  a = Mul (x, one)
  b = Mul (a, two)
  c = Mul (b, three)
  d = Neg (c)
  e = Identity (d)
  y = Relu (e)
}"""
WRONG = """wrong: the factor is lost
  Mul(x, 2.0) => Neg(x)
"""
RIGHT = """no-identity: nothing is done
  Identity(x) => x

no-one: a factor of one
  Mul(x, 1.0) => x

mul-neg: after what is wrong
  Mul(Neg(x), k) => Neg(Mul(x, k))
"""
SHARED_PAD = """<ir_version: 8, opset_import: ["" : 15]>
g (float[1,8,10,10] x) => (float[1,8,5,5] y) <int64[8] p = {0, 0, 0, 0, 0, 0, 1, 1}> {
  n = Identity (x)
  t = Pad (n, p)
  m = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (t)
  a = AveragePool <kernel_shape = [3, 3], strides = [2, 2]> (t)
  y = Add (m, a)
}"""


def task_of(text: str, rules: RuleSet) -> Task:
    return Task(load_graph(onnx.parser.parse_model(text)), rules, AnalyticCost())


def steps(task: Task, *names: str) -> list[tuple[int, int]]:
    """Return rewrites by the named rules, one after the other, at their first locations."""
    return [(task.rules.index(name), 0) for name in names]


def compares(task: Task, seen: list | None = None):
    comparison = Comparison(to_model(task.graph), [0, 1, 2], 1e-4)

    def compare(state) -> Findings:
        if seen is not None:
            seen.append(state)
        return comparison.against(to_model(state.graph))

    return compare


def planted() -> tuple[Task, list[tuple[int, int]]]:
    task = task_of(CHAIN, RuleSet(tuple(parse(WRONG + RIGHT, "planted")), "planted"))
    return task, steps(task, "no-identity", "wrong", "mul-neg", "no-one")


def test_a_planted_fault_is_named_and_left_out_and_the_rest_is_kept():
    task, actions = planted()
    result = repaired(task, actions, compares(task))
    assert result.findings.ok
    assert [(each.step, each.rule, each.blame) for each in result.left_out] == [
        (1, "wrong", "rule"),
        (2, "mul-neg", "needed"),
    ]
    assert [task.rules[xfer_id].name for xfer_id, _ in result.actions] == ["no-identity", "no-one"]
    assert (
        result.state.hash
        == follow(task, result.actions).hash
        == follow(task, steps(task, "no-identity", "no-one")).hash
    )


def test_a_planted_fault_in_a_body_is_left_out_and_the_receipt_names_the_body(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,3] x, bool go) => (float[2,3] y) <float one = {1.0}, float two = {2.0}, int64 n = {2}> {
      y = Loop <body = b (int64 i, bool on, float[2,3] h) => (bool on2, float[2,3] h2) {
        on2 = Identity (on) a = Mul (h, two) b = Mul (a, one) h2 = Relu (b) }> (n, go, x) }"""
    task, source = task_of(text, RuleSet(tuple(parse(WRONG + RIGHT, "planted")), "planted")), tmp_path / "model.onnx"
    save_model(onnx.parser.parse_model(text), source)
    actions = steps(task, "no-one", "wrong")
    candidate = Candidate("search", follow(task, actions), actions, 0, 0.0)
    outcome = deliver(task, source, [candidate], tmp_path, OPTIONS, {}, [])
    assert [each["rule"] for each in outcome["candidates"]["search"]["left_out"]] == ["wrong"]
    (action,) = json.loads((tmp_path / "receipt.json").read_text())["actions"]
    assert (action["rule"], action["body"]) == ("no-one", "loop_0/body")


def test_a_repaired_candidate_is_delivered_with_a_receipt_and_a_fault_report(tmp_path):
    task, actions = planted()
    source = tmp_path / "model.onnx"
    save_model(onnx.parser.parse_model(CHAIN), source)
    candidate = Candidate("search", follow(task, actions), actions, 0, 0.0)
    outcome = deliver(task, source, [candidate], tmp_path, OPTIONS, {}, [])
    assert outcome["delivered"] == "search" and outcome["candidates"]["search"]["equal"]
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    assert [action["rule"] for action in receipt["actions"]] == ["no-identity", "no-one"]
    check_result(receipt, list(retrace(receipt, source, task.rules))[-1])
    report = (tmp_path / FAULT_REPORT).read_text()
    assert "| 1 | `wrong` | 0 | rule |" in report and "Mul(x, 2.0) =>" in report and "onnxruntime" in report
    assert str(tmp_path) not in report


def test_the_original_is_delivered_if_no_rewrite_is_left(tmp_path):
    task, _ = planted()
    actions, source = steps(task, "wrong"), tmp_path / "model.onnx"
    save_model(onnx.parser.parse_model(CHAIN), source)
    outcome = deliver(
        task, source, [Candidate("search", follow(task, actions), actions, 0, 0.0)], tmp_path, OPTIONS, {}, []
    )
    assert outcome["delivered"] == "original" and outcome["optimised"] == str(source)
    assert FAULT_REPORT in outcome["reason"] and (tmp_path / FAULT_REPORT).exists()


def test_a_rewrite_that_triggers_a_known_fault_is_left_out_without_a_run():
    task = task_of(SHARED_PAD, load_rules())
    actions, seen = steps(task, "pad-averagepool", "identity"), []
    result = repaired(task, actions, compares(task, seen))
    assert [(each.rule, each.blame) for each in result.left_out] == [("pad-averagepool", "onnxruntime")]
    assert "PadFusion" in result.left_out[0].message
    assert len(seen) == 1 and seen[0].hash == result.state.hash == follow(task, steps(task, "identity")).hash


def test_an_unknown_fault_of_onnxruntime_is_not_blamed_on_a_rule(monkeypatch):
    monkeypatch.setattr(repair, "known_faults", lambda graph, sizes: Counter())
    task = task_of(SHARED_PAD, load_rules())
    result = repaired(task, steps(task, "identity", "pad-averagepool"), compares(task))
    assert [(each.rule, each.blame) for each in result.left_out] == [("pad-averagepool", "onnxruntime")]
    assert result.findings.ok and [task.rules[x].name for x, _ in result.actions] == ["identity"]


def walk(task: Task, seed: int, length: int = 25) -> list[tuple[int, int]]:
    rng, state, actions = np.random.default_rng(seed), task.initial, []
    for _ in range(length):
        valid = state.valid_actions()[:-1]
        actions.append(tuple(int(part) for part in valid[rng.integers(len(valid))]))
        state = state.apply(*actions[-1])
    return actions


def judged(wrong) -> Findings:
    return Findings([Finding("numerics", not wrong, "as it was asked for")])


@pytest.mark.parametrize("name", ["tiny_bert_base", *slow("tiny_resnet18", "tiny_inception_v3")])
@pytest.mark.parametrize("seed", range(at_night(3, 1)))
def test_a_path_of_correct_rewrites_is_left_unchanged(name, seed):
    task = tiny_task(name)
    actions = walk(task, seed)
    result = repaired(task, actions, lambda state: judged(False))
    assert result.actions == actions and not result.left_out
    assert result.state.hash == follow(task, actions).hash


@pytest.mark.parametrize("name", ["tiny_resnet18", "tiny_bert_base", *slow("tiny_inception_v3")])
@pytest.mark.parametrize("seed", range(at_night(4, 1)))
def test_a_repaired_candidate_is_equal_and_replayable_whichever_operator_is_wrong(name, seed):
    """Whichever new operator is called wrong, the repaired candidate is equal and can be replayed.

    The comparison rejects graphs with one operator type that the walk made and that the model does not have.
    """
    task = tiny_task(name)
    actions = walk(task, seed)
    of_model = {node.op for node in task.graph.nodes.values()}
    made = sorted({node.op for node in follow(task, actions).graph.nodes.values()} - of_model)
    assert made, "the walk makes no operator that is new"

    def compare(state) -> Findings:
        return judged(any(node.op == made[-1] for node in state.graph.nodes.values()))

    result = repaired(task, actions, compare)
    assert result.findings.ok and result.state.hash == follow(task, result.actions).hash
    assert any(each.blame == "rule" for each in result.left_out)
    assert len(result.actions) + len(result.left_out) == len(actions)
    if not any("were to blame already" in each.message for each in result.left_out):
        assert {each.blame for each in result.left_out} <= {"rule", "needed"}


def test_a_rule_blamed_too_often_is_left_out_entirely():
    task = tiny_task("tiny_resnet18")
    rule = next(k for k, count in enumerate(task.initial.counts) if count > 2 * MAX_FAULTS_OF_RULE)
    actions, state = [], task.initial
    for _ in range(2 * MAX_FAULTS_OF_RULE):
        actions.append((rule, 0))
        state = state.apply(rule, 0)
    hashes = {task.initial.hash}
    runs = []

    def compare(state) -> Findings:
        runs.append(state)
        return judged(state.hash not in hashes)

    result = repaired(task, actions, compare)
    assert (
        result.actions == []
        and [each.message == SAME_RULE for each in result.left_out].count(True) == len(actions) - MAX_FAULTS_OF_RULE
    )
    assert len(runs) < 4 * len(actions)


def test_no_rule_is_blamed_if_reading_changes_the_original():
    task, actions = planted()
    result = repaired(task, actions, lambda state: judged(True))
    assert result.actions == [] and {each.blame for each in result.left_out} == {"needed"}
    assert "reading and writing the original" in result.left_out[0].message


def test_known_faults_are_found_by_halving():
    faulty, out, looks = {100, 201, 250}, [], []

    def chain():
        steps = [step for step in range(300) if step not in out]
        return SimpleNamespace(steps=steps, state=tuple(steps), state_after=lambda count: tuple(steps[:count]))

    def known_fault(state) -> str:
        looks.append(state)
        return ", ".join(map(str, faulty & set(state)))

    fake = SimpleNamespace(chain=chain, _known_fault=known_fault, _leave_out=lambda step, blame, what: out.append(step))
    assert repair._Repair.without_known_faults(fake).steps == sorted(set(range(300)) - faulty)
    assert sorted(out) == sorted(faulty) and len(looks) <= 11 * (len(faulty) + 1)
