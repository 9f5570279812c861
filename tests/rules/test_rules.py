"""Every rule by threes: it fires, it refuses look-alikes with the right reason, and both sides are equal."""

import pytest

from rlflow.rules.language import families, load_rules
from tests.rules.cases import CASES
from tests.rules.instances import check, watched

RULES = load_rules(families())
FIRES = [case for case in CASES if case.reason is None]
REFUSES = [case for case in CASES if case.reason is not None]


@pytest.mark.parametrize("case", FIRES, ids=str)
def test_both_sides_are_equal(case):
    check(case, RULES)


@pytest.mark.parametrize("case", FIRES, ids=str)
def test_both_sides_are_equal_where_inner_tensors_are_outputs(case):
    check(watched(case), RULES)


@pytest.mark.parametrize("case", REFUSES, ids=str)
def test_a_look_alike_is_refused(case):
    check(case, RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_and_every_condition_has_a_case(rule):
    assert sum(case.rule == rule.name for case in FIRES) >= 2
    reasons = [case.reason for case in REFUSES if case.rule == rule.name]
    for condition in rule.conditions:
        assert any(condition.reason.startswith(reason) for reason in reasons), condition.reason


def test_every_case_is_of_a_rule_and_there_once():
    assert {case.rule for case in CASES} == {rule.name for rule in RULES}
    assert len({str(case) for case in CASES}) == len(CASES)
