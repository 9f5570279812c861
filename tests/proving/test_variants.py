"""Check that wrong variants of the shipped rules are made, refuted and not proved (all: tests/nightly/mutations.py)."""

import pytest

from rlflow.rules.language import families, load_rules, parse
from rlflow.rules.proofs import Proof
from tests.nightly import mutations
from tests.nightly.mutations import examined, group, judge, judged, prove
from tests.nightly.variants import KINDS, spread, variants

RULES = load_rules(families())
SAMPLE = ("transpose-transpose", "transpose-of-matmul", "softmax-of-transpose", "split-of-concat", "relu-split")


def shipped(*names: str):
    """Return the shipped rules with these names."""
    return [RULES[RULES.index(name)] for name in names]


def group_of(variant) -> str:
    return group(examined(variant, judge(variant), prove(variant)))


def test_every_variant_is_another_rule_and_all_kinds_occur():
    result = spread(RULES, 4 * len(RULES))
    texts = {rule.text for rule in RULES} | {variant.rule.text for variant in result}
    assert len(texts) == len(RULES) + len(result)
    assert {variant.kind for variant in result} == set(KINDS)
    assert max(sum(v.rule.name == rule.name for v in result) for rule in RULES) < 8


def test_a_variant_changes_the_text_and_the_conditions_of_a_rule_alike():
    (rule,) = shipped("conv-bias-mul")
    changes = {v.change: v.rule for v in variants(rule) if v.kind == "condition dropped"}
    assert len(changes) == len(rule.conditions) == 2
    for changed in changes.values():
        assert len(changed.conditions) == 1 and changed.text.count("\n  if ") == 1
        assert changed.conditions[0].reason in changed.text


@pytest.mark.nightly
@pytest.mark.parametrize("rule", shipped(*SAMPLE), ids=lambda rule: rule.name)
def test_a_shipped_rule_is_not_refuted(rule):
    equal, difference = judged(rule)
    assert equal > 0 and difference is None


@pytest.mark.nightly
@pytest.mark.parametrize(
    "text",
    [
        "Transpose(Transpose(x, perm=p), perm=q) => Transpose(x, perm=compose(q, p))",
        "Conv(x, w, b, **a) => Conv(x, w, **a)",
        "MatMul(x, y) => MatMul(y, x)",
        "Add(Mul(x, y), z) => Mul(x, y)",
        "Gather(Conv(x, w, **a), i, axis=1) => Conv(x, Gather(w, i, axis=1), **a)",  # does not run
    ],
)
def test_a_wrong_rule_is_refuted(text):
    (rule,) = parse(f"false: wrong\n  {text}\n", "changed")
    assert judged(rule)[1] is not None


@pytest.mark.nightly
def test_wrong_variants_are_not_proved():
    groups = [group_of(variant) for variant in spread(shipped(*SAMPLE), 15)]
    assert "wrong and proved" not in groups and groups.count("wrong") >= 9, groups


@pytest.mark.nightly
def test_a_prover_that_believes_anything_is_caught(monkeypatch):
    monkeypatch.setattr(mutations, "prove_rule", lambda rule: Proof(rule.name, "all-shapes", "", 0.0, "because"))
    assert "wrong and proved" in [group_of(variant) for variant in spread(shipped("mul-factored"), 3)]
