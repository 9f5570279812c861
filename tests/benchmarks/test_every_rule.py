"""What is asked of every rule is asked of those, too, that are had by the name of their family alone."""

import sys
from collections import Counter

import pytest

from benchmarks import fuzz, mutations, rules_prove
from benchmarks.fuzzing import Fuzzed
from benchmarks.judged import UNSTATED_RULES, judged
from rlflow.rules.language import ONLY_BY_NAME, families
from tests.rules.cases import CASES


def fuzzed(monkeypatch) -> set[str]:
    """The families whose rules may fire."""
    monkeypatch.setattr(fuzz, "fuzz", lambda seed, rules, symbolic: Fuzzed([r.family for r in rules], None, Counter()))
    return set(fuzz.fuzz_seeds(False, 0, 1)["fired"])


def proved(monkeypatch) -> set[str]:
    asked = []
    monkeypatch.setattr(rules_prove, "prove", lambda rules, workers: asked.extend(rules) or [])
    monkeypatch.setattr(rules_prove, "finish", lambda *result: 0)
    monkeypatch.setattr(sys, "argv", ["rules_prove"])
    rules_prove.main()
    return {rule.family for rule in asked}


def varied(monkeypatch) -> set[str]:
    monkeypatch.setattr(mutations, "spread", lambda rules: [])
    return {rule.family for rule in mutations.chosen.__wrapped__(())[0]}


@pytest.mark.parametrize("asked", [fuzzed, proved, varied])
def test_every_family_is_asked(monkeypatch, asked):
    assert asked(monkeypatch) == set(families()) > ONLY_BY_NAME


def test_every_rule_has_a_model_in_which_its_variants_may_fire(monkeypatch):
    (case, *_) = [case for case in CASES if case.rule == "conv-of-two"]
    monkeypatch.setattr(mutations, "CASES", [case])
    monkeypatch.setattr(mutations, "LOOK_ALIKES", [])
    assert mutations.instances.__wrapped__()


@pytest.mark.parametrize("benchmark", ["fuzz", "mutations", "observation", "onnx_suite", "rules_prove"])
def test_their_texts_are_judged(benchmark):
    """The rule set that a result states is without them."""
    assert UNSTATED_RULES == ("rlflow/rules/memory.rules",) and judged(benchmark).keys() >= set(UNSTATED_RULES)
