"""Test plans: all matches of one signature share a plan, so the signature must contain everything that a plan depends
on."""

from collections import Counter

import pytest

from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.apply import MAX_PLANS, Plans, Refused
from rlflow.rules.language import families, load_rules
from rlflow.rules.match import structural_matches
from tests.rules.cases import CASES
from tests.rules.instances import instantiate
from tests.rules.test_look_alikes import model
from tests.rules.test_properties import MODELS, walk
from tests.suite import at_night

RULES = load_rules(families())


def outcome(plans, graph, rule, nodes, bindings) -> tuple | str:
    """Return the content of a plan, or the reason of the refusal."""
    try:
        plan = plans.plan(graph, rule, nodes, bindings)
    except Refused as refused:
        return str(refused)
    constants = [(number, constant.digest, constant.type) for number, constant in plan.constants]
    return repr(plan.added), plan.types, constants, plan.rewired, plan.n_new


def test_a_plan_shared_with_another_match_equals_a_new_plan():
    shared: dict[int, Plans] = {}
    seen = Counter()
    names = {rule.name for rule in RULES[:: at_night(1, 32)]}
    cases = [case for case in CASES if case.rule in names]
    for case in cases:
        graph = load_graph(instantiate(case, RULES))
        plans = shared.setdefault(graph.opset(""), Plans())
        for node in graph.nodes.values():
            for rule in RULES:
                for match in structural_matches(graph, rule, node):
                    result = outcome(plans, graph, rule, *match)
                    assert result == outcome(Plans(), graph, rule, *match), (case, rule.name)
                    seen[type(result)] += 1
    assert min(seen[tuple], seen[str]) > len(cases) / 4


def test_a_plan_shared_with_another_match_equals_a_new_plan_along_a_walk():
    for name in at_night(list(MODELS), ["cnn", "transformer", "drawn 5"]):
        for graph, table in walk(MODELS[name], seed=2, n_steps=at_night(8, 4)):
            for match in (match for matches in table.locations for match in matches):
                rule = RULES[match.xfer_id]
                result = [outcome(plans, graph, rule, match.nodes, match.bindings) for plans in (table._plans, Plans())]
                assert result[0] == result[1]


def test_the_number_of_kept_plans_is_bounded(monkeypatch):
    monkeypatch.setattr("rlflow.rules.apply.MAX_PLANS", 3)
    graph, table = next(walk(MODELS["cnn"], seed=0))
    plans = Plans()
    matches = [match for result in table.locations for match in result]
    assert 3 < len(matches) < MAX_PLANS
    for match in matches:
        plans.plan(graph, RULES[match.xfer_id], match.nodes, match.bindings)
        assert len(plans._known) <= 3


UNSQUEEZED = (
    "(double[1,3] x) => (double[1,3] y) <int64[1] s = {{0}}, int64[1] t = {{{axis}}}> "
    "{{ a = Unsqueeze(x, s) y = Squeeze(a, t) }}"
)
ONE_DETAIL_APART = [
    # The contents of a small constant differ.
    ("squeeze-unsqueeze", UNSQUEEZED.format(axis=0), UNSQUEEZED.format(axis=1)),
]


@pytest.mark.parametrize("rule, one, other", ONE_DETAIL_APART)
def test_plans_differ_if_matches_differ_in_more_than_types(rule, one, other):
    shared, result = Plans(), []
    for text in (one, other):
        graph = load_graph(model(text))
        (match,) = [
            m for node in graph.nodes.values() for m in structural_matches(graph, RULES[RULES.index(rule)], node)
        ]
        result.append(outcome(shared, graph, RULES[RULES.index(rule)], *match))
        assert result[-1] == outcome(Plans(), graph, RULES[RULES.index(rule)], *match)
    assert result[0] != result[1]
