"""Test the mark `exact`: exact rules change no bit, and rules that round have no mark."""

from dataclasses import replace

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import save_model, to_model
from rlflow.optimisation.candidates import Candidate
from rlflow.optimisation.delivery import DeliveryOptions, deliver
from rlflow.optimisation.receipt import make_receipt, replay
from rlflow.optimisation.validate import validate
from rlflow.rules.apply import apply
from rlflow.rules.exactness import exactness, only_exact
from rlflow.rules.language import families, load_rules, parse
from rlflow.rules.locations import explain
from rlflow.zoo import load
from tests.rules.cases import CASES
from tests.rules.instances import instantiate, random_feeds
from tests.suite import at_night, each_of, slow

RULES = load_rules(families())
EXACT = [rule for rule in RULES if exactness(rule) == "exact"]


def outputs(model, feeds):
    return run(session(model, threads=1, optimise=False), feeds)


def compared(case) -> bool:
    """Check that results are equal before and after the rule; return False if ONNX Runtime has no kernel for the
    case."""
    model = instantiate(case, RULES)
    graph = load_graph(model)
    feeds = random_feeds(model, seed=1)
    rewritten = [to_model(apply(graph, RULES[m.xfer_id], m)) for m in explain(graph, RULES, case.rule)[0]]
    try:
        wanted, *result = [outputs(each, feeds) for each in (model, *rewritten)]
    except RLFlowError:  # ONNX Runtime has no kernel for that data type or opset.
        return False
    for others in result:
        for a, b in zip(wanted, others, strict=True):
            np.testing.assert_array_equal(a, b, strict=True)
    return bool(result)


@each_of(EXACT[:: at_night(1, 6)], name=lambda rule: rule.name)
def test_a_rule_marked_exact_keeps_every_bit(rule):
    cases = [case for case in CASES if case.rule == rule.name and case.reason is None]
    singles = [replace(case, dtype="float32") for case in cases if case.dtype == "float64"]
    assert sum(compared(case) for case in cases + singles) > 0


@pytest.mark.parametrize("equation, mark", [
    ("Transpose(Relu(x), perm=p) => Relu(Transpose(x, perm=p))", "exact"),
    # Each element is one sum.
    ("Add(Transpose(x, perm=p), Transpose(y, perm=p)) => Transpose(Add(x, y), perm=p)", "exact"),
    ("Relu(Mul(x, y)) => Mul(x, y)", "exact"),  # Exact, if the equation holds.
    ("Sub(x, c) => Add(x, Neg(c))", "exact"),
    ("Sum(x, y) => Add(x, y)", "exact"),
    ("Mul(x, 1.0) => x", "exact"),
    ("Sum(x, *y) => Add(x, Sum(*y))", "rounding"),  # The number of summands is open.
    ("Sum(x, y, z) => Add(x, Sum(y, z))", "rounding"),
    ("Add(Add(x, c), d) => Add(x, Add(c, d))", "rounding"),  # regrouped
    ("Div(x, c) => Mul(x, Div(1.0, c))", "rounding"),  # the reciprocal is rounded, too
    ("Div(x, 2.0) => Mul(x, 0.5)", "exact"),
    ("Div(x, 3.0) => Mul(x, 0.3333333333)", "rounding"),  # No data type can represent the number.
    ("Div(x, 3.0) => Mul(x, full(1 / 3, x))", "rounding"),
    ("Div(x, 3.0) => Mul(x, full(k, x))\n  let k = 1 / 3", "rounding"),
    ("Mul(x, y) => com.microsoft.BiasGelu(x, y)", "rounding"),  # Nothing is known about this operator.
    ("Gather(Conv(x, w), i, axis=1) => Conv(x, Gather(w, i, axis=0))", "rounding"),  # A kernel may add in any order.
    # An approximation that may depend on the position.
    ("Tanh(Transpose(x, perm=p)) => Transpose(Tanh(x), perm=p)", "rounding"),
    # The same operator, computed once.
    ("y1 = Tanh(x)\n  y2 = Tanh(x)\n    => y3 = Tanh(x)\n       y1 = y3\n       y2 = y3", "exact"),
])  # fmt: skip
def test_the_exactness_of_a_rule_follows_from_how_often_an_element_is_rounded(equation, mark):
    (rule,) = parse(f"name: why\n  {equation}\n", "made-up")
    assert exactness(rule) == mark


def test_a_set_of_exact_rules_has_a_hash_of_its_own():
    chosen = only_exact(RULES)
    assert [rule.name for rule in chosen] == [rule.name for rule in EXACT]
    assert len(EXACT) < len(RULES) and chosen.hash != RULES.hash


# -- whole models ----------------------------------------------------------------------------------


def walked(name: str, exact: bool, steps: int = 15):
    """Return the task, the actions of a random walk and the state after them."""
    task, random = EnvSpec(name, cost="analytic", exact=exact).make_task(), np.random.default_rng(2)
    state, actions = task.initial, []
    for _ in range(steps):
        valid = state.valid_actions()[:-1]
        actions.append(tuple(valid[random.integers(len(valid))].tolist()))
        state = state.apply(*actions[-1])
    return task, actions, state


@pytest.mark.parametrize("name", ["tiny_vit_base", *slow("tiny_inception_v3")])
def test_a_walk_of_exact_rules_keeps_every_bit_and_a_walk_of_all_rules_does_not(name):
    for exact in (True, False):
        _, _, state = walked(name, exact)
        findings = validate(load(name), to_model(state.graph), tolerance=0.0, optimise=False)
        assert findings.ok == exact, findings.failures()


def test_a_rule_that_rounds_is_left_out_of_an_exact_delivery(tmp_path):
    save_model(load("tiny_vit_base"), tmp_path / "original.onnx")
    for exact_rules in (True, False):
        task, actions, state = walked("tiny_vit_base", exact_rules)
        for exact in (True, False):
            options = DeliveryOptions([0], 1e-4, measure_seconds=0, sessions=1, threads=1, seed=0, exact=exact)
            candidate = Candidate("greedy", state, actions, 0, 0.0)
            result = deliver(task, tmp_path / "original.onnx", [candidate], tmp_path, options, {}, [])["candidates"][
                "greedy"
            ]
            blamed = [each["rule"] for each in result["left_out"] if each["blame"] == "rule"]
            assert result["equal"] and bool(blamed) == (exact and not exact_rules)
            assert not {rule.name for rule in EXACT} & set(blamed)


def test_a_receipt_records_whether_only_exact_rules_were_allowed():
    task, actions, state = walked("tiny_inception_v3", exact=True)
    receipt = make_receipt(task.graph, task.rules, [], actions, state.graph, {}, exact=True)
    assert receipt["exact_rules_only"] and {action["exactness"] for action in receipt["actions"]} == {"exact"}
    assert replay(receipt, load("tiny_inception_v3")).hash == state.graph.hash
    with pytest.raises(RLFlowError, match="another rule set"):
        replay(receipt | {"exact_rules_only": False}, load("tiny_inception_v3"))
