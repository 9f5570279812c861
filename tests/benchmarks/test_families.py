"""How benchmarks.families comes to the graphs that it measures, and what it makes of the measurements."""

import pytest

from benchmarks import families
from benchmarks.families import FULLY, ONCE, Way, effect, pairs_of, rules_of
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.optimisation.validate import validate
from rlflow.rules.language import load_rules
from rlflow.zoo import load


def way(family: str, model: str, rule: str, how) -> Way:
    made = Way(rules_of(family), load_graph(load(model)))
    made.follow(made.rules.index(rule), how)
    assert validate(load(model), to_model(made.graph), (0,)).ok
    return made


def test_once_is_every_match_and_fully_is_until_there_is_none():
    """Three products of one input: one pair is merged, then the third joins."""
    once, fully = (way("matmul", "tiny_vit_base", "matmul-add-merge", how) for how in (ONCE, FULLY))
    assert fully.applied["matmul-add-merge"] == 2 * once.applied["matmul-add-merge"] > 0
    assert fully.table.counts[fully.rules.index("matmul-add-merge")] == 0


def test_what_a_rule_opens_is_followed_as_far_as_it_is_asked_to():
    short, far = (way("slices", "tiny_vit_base_fused", "gather-as-slice", steps) for steps in (3, 16))
    assert short.applied.total() == 4 and far.applied.total() == 17
    assert {"slice-of-layernorm", "slice-of-matmul-rows"} <= far.applied.keys()


@pytest.mark.parametrize("family, model, rule, undoing", [
    ("fusion", "tiny_vit_base", "layer-normalization", "layer-normalization-apart"),
    ("convolution", "tiny_squeezenet1_1", "conv-bias-out", "conv-add"),
    ("slices", "tiny_vit_base", "gather-as-slice", "slice-as-gather"),
])  # fmt: skip
def test_what_only_takes_a_rule_back_is_not_followed(family, model, rule, undoing):
    made = way(family, model, rule, 16)
    assert made.applied[rule] and made.rules.index(undoing) in made.closed and not made.applied[undoing]


def test_every_rule_that_has_a_match_is_tried():
    rules = load_rules()
    survey = {name: families.count(name, rules, 0) for name in ("tiny_resnet18", "tiny_vit_base", "tiny_mobilenet_v2")}
    fires = {rule for result in survey.values() for rule in result["by_rule"]}
    for every in (True, False):
        chosen = [pairs_of(rules, survey, family, every) for family in families.families()]
        pairs = [(model, rule) for result in chosen for model, names in result.items() for rule in names]
        assert {rule for _, rule in pairs} == fires
        assert all(survey[model]["by_rule"][rule] for model, rule in pairs)


def tried(rule: str, ratio: float, verdict: str, equal: bool = True) -> dict:
    result = {"steps": [[rule, ONCE]], "applied": {rule: 1}, "nodes": 9, "equal": equal, "max_relative_error": 0.0}
    return result | ({"ratio": ratio, "interval": [ratio, ratio], "verdict": verdict} if equal else {})


def test_the_best_try_is_one_that_was_shown_to_be_faster():
    tries = [
        tried("a", 0.7, "no difference shown"), tried("a", 0.95, "faster"), tried("b", 0.9, "slower"),
        tried("c", 0, "", equal=False),
    ]  # fmt: skip
    result = effect([{"model": "m", "nodes": 10, "rules": ["a", "b", "c"], "tries": tries}])
    assert (result["best"]["ratio"], result["tries"]) == (0.95, 4)
    assert {rule: one["ratio"] for rule, one in result["rules"].items()} == {"a": 0.95, "b": 0.9}
    (bar, on_a_graph) = families.bars_of({"f": result})
    assert not bar["holds"] and bar["value"] == 1 and on_a_graph["holds"]
    assert effect([])["best"] is None
