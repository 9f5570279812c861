"""Test the e-graph: hash-consing, congruence and matching of patterns through e-classes."""

from dataclasses import replace

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.graph.ir import ABSENT, TensorType
from rlflow.rules.match import structural_matches
from rlflow.rules.segments import Segment
from rlflow.search.saturation.egraph import EGraph
from rlflow.search.saturation.explore import Explorer, matches
from rlflow.search.saturation.lower_bound import graph_of
from tests.suite import slow
from tests.toys.saturated import task, toy
from tests.toys.systems import rule_set
from tests.toys.tiny import tiny_task

CHAINS = "(float[8] x) => (y, z) { a = Neg(x) b = Abs(x) c = Relu(a) d = Relu(b) y = Exp(c) z = Exp(d) }"


def egraph_of(text: str, rules: str = "none: why\n  Relu(Relu(x)) => Relu(x)", **weights):
    made = task(text, weights, rule_set(rules))
    return EGraph(made.graph), made


def saturate(egraph: EGraph, made) -> str:
    explorer = Explorer(egraph, made.rules)
    return next(filter(None, (explorer.iterate(100, 10) for _ in range(9))))


def made_by(egraph: EGraph, op: str) -> list[int]:
    """Return the e-classes that operators of one type give."""
    return sorted({c for node in egraph.nodes.values() if node.op == op for c in node.outputs})


def test_equal_operators_of_equal_inputs_are_one():
    egraph, _ = egraph_of("(float[8] x) => (y, z) { a = Neg(x) b = Neg(x) y = Relu(a) z = Relu(b) }")
    assert len(egraph.nodes) == 2 and len(set(egraph.outputs)) == 1


def test_uniting_two_classes_unites_all_results_computed_from_them():
    egraph, _ = egraph_of(CHAINS)
    assert len(egraph.nodes) == 6 and len(set(egraph.outputs)) == 2
    egraph.unite(*made_by(egraph, "Neg"), *made_by(egraph, "Abs"))
    egraph.rebuild()
    assert len(egraph.nodes) == 4  # Neg and Abs of one class, one Relu and one Exp.
    assert len(set(egraph.outputs)) == 1
    for node in egraph.nodes.values():
        assert all(egraph.find(c) == c and node.id in egraph.consumers[c] for c in node.inputs)
        assert all(egraph.find(c) == c and node.id in egraph.makers[c] for c in node.outputs)


def test_a_pattern_matches_through_every_operator_of_a_class():
    rule = "two: why\n  Relu(Neg(x)) => Relu(x)\n\nother: why\n  Relu(Abs(x)) => Abs(x)"
    egraph, made = egraph_of(CHAINS, rule)
    egraph.unite(*made_by(egraph, "Neg"), *made_by(egraph, "Abs"))
    egraph.rebuild()
    (relu,) = [node for node in egraph.nodes.values() if node.op == "Relu"]
    for rule in made.rules:
        (result,) = matches(egraph, rule, relu)
        assert result[1] == {"x": egraph.inputs[0]}


def test_another_type_or_a_constant_is_never_equal():
    egraph, _ = egraph_of("(float[8] x) => (y) { y = Add(x, w) }", w=(8,))
    (weight,) = egraph.constants
    with pytest.raises(RLFlowError, match="known in advance"):
        egraph.unite(weight, egraph.inputs[0])
    (node,) = egraph.nodes.values()
    (other,) = egraph.add(replace(node, op="Mul"), node.inputs, [None], [TensorType(1, (8, 8))])
    with pytest.raises(RLFlowError, match="another type"):
        egraph.unite(egraph.outputs[0], other)


def test_the_result_of_a_search_is_united_with_the_original_output():
    start = toy("a clamp moves to where a convolution takes it in").initial
    egraph = EGraph(start.graph)
    before = len(egraph.nodes)
    (match,) = (match for matches in start.table.locations for match in matches)
    egraph.put(start.follow(match).graph)
    assert len(egraph.makers[egraph.outputs[0]]) == 2  # A Relu of a pool, and a pool of a Relu.
    assert len(egraph.nodes) == before + 2


def test_operators_unchanged_by_a_search_are_not_added_again():
    made = task(
        "(float[8] x) => (y) { a = Neg(x) b = Neg(a) y = Tanh(b) }", {}, rule_set("back: why\n  Neg(Neg(x)) => Abs(x)")
    )
    egraph = EGraph(made.graph)
    (match,) = (match for matches in made.initial.table.locations for match in matches)
    egraph.put(made.initial.follow(match).graph)
    assert len(egraph.nodes) == 4 and len(made_by(egraph, "Tanh")) == 1


@pytest.mark.parametrize("name", ["tiny_resnet18", "tiny_squeezenet1_1", *slow("tiny_bert_base", "tiny_inception_v3")])
def test_an_e_graph_of_one_graph_has_exactly_the_matches_of_the_graph(name):
    """An e-graph without equalities has exactly the matches of its graph."""
    made = tiny_task(name)
    egraph = EGraph(made.graph)
    assert len(egraph.nodes) == len(made.graph.nodes)  # The graph has no two equal operators.
    class_of = {t: egraph.find(c) for t, c in egraph._class_of.items() if t != ABSENT} | {ABSENT: ABSENT}
    count = 0
    for rule in made.rules:
        wanted = [
            sorted((k, v) for k, v in renamed(rule, bindings, class_of).items())
            for node in made.graph.nodes.values() for _, bindings in structural_matches(made.graph, rule, node)
        ]  # fmt: skip
        result = [
            sorted((k, tuple(v) if isinstance(v, Segment) else v) for k, v in bindings.items())
            for node in egraph.nodes.values() for _, bindings in matches(egraph, rule, node)
        ]
        assert sorted(map(repr, result)) == sorted(map(repr, wanted)), rule.name
        count += len(result)
    assert count > 20


def renamed(rule, bindings: dict, class_of: dict) -> dict:
    """Return the bindings with e-classes instead of tensors."""
    return {
        name: value if name not in rule.tensor_names
        else tuple(class_of[t] for t in value) if isinstance(value, Segment) else class_of[value]
        for name, value in bindings.items()
    }  # fmt: skip


def test_one_operator_can_match_two_operators_of_a_pattern():
    """Two equal operators of a graph are one operator of the e-graph."""
    rule = "merge: why\n  Add(Relu(x), Relu(y)) => Relu(Add(x, y))"
    egraph, made = egraph_of("(float[8] x) => (y) { a = Relu(x) b = Relu(x) y = Add(a, b) }", rule)
    saturate(egraph, made)
    assert len(egraph.makers[egraph.outputs[0]]) == 2


def test_a_new_root_is_matched_together_with_an_older_one():
    """The first root of `pair` exists from the beginning, in another place than the second, which appears later."""
    pair = "pair: why\n  y1 = Exp(Neg(x))\n  y2 = Relu(x)\n    => y1 = Tanh(x)\n       y2 = Sqrt(x)"
    rules = f"new: why\n  Abs(x) => Relu(x)\n\n{pair}"
    egraph, made = egraph_of("(float[8] x) => (y, z) { a = Neg(x) y = Exp(a) z = Abs(x) }", rules)
    saturate(egraph, made)
    assert made_by(egraph, "Tanh") and made_by(egraph, "Sqrt")


def test_a_class_given_by_two_chosen_operators_has_one_producer():
    made = task(
        "(float[8] x) => (y) { a, b = Split<axis=0>(x, s) c = Neg(a) d = Neg(b) e = Abs(b) f = Abs(e) y = Add(c, d) }",
        {"s": np.array([4, 4])}, rule_set("none: why\n  Relu(Relu(x)) => Relu(x)"),
    )  # fmt: skip
    egraph = EGraph(made.graph)
    (split,) = [node for node in egraph.nodes.values() if node.op == "Split"]
    (abs_,) = egraph.add(
        replace(split, op="Abs", outputs=split.outputs[:1]), split.outputs[1:], [None], [egraph.types[split.outputs[0]]]
    )
    egraph.unite(split.outputs[0], abs_)
    egraph.rebuild()
    built = graph_of(egraph, [split.id, *(n for n in egraph.nodes if n != split.id)], made.graph)
    outputs = [t for node in built.nodes.values() for t in node.outputs]
    assert len(outputs) == len(set(outputs)) and {node.op for node in built.nodes.values()} == {"Split", "Neg", "Add"}


def test_saturation_ends_with_a_cycle_of_equalities():
    egraph, made = egraph_of("(float[8] x) => (y) { a = Neg(x) y = Neg(a) }", "back: why\n  Neg(Neg(x)) => x")
    assert saturate(egraph, made) == "saturated" and egraph.outputs == egraph.inputs


@pytest.mark.parametrize("merges", [True, False])
def test_operators_with_a_common_weight_are_not_merged(merges):
    text = "(float[1,4,6,6] x) => (y, z) { a = Conv(x, w) b = Conv<pads=[0,0,0,0]>(x, u) y = Relu(a) z = Abs(b) }"
    rule = """merge: why
  y1 = Conv(x, w)
  y2 = Conv(x, u)
    => y1, y2 = Split(Conv(x, Concat(w, u, axis=0)), [dim(w, 0), dim(u, 0)], axis=1)
  if constant(w, u)"""
    if merges:
        egraph, made = egraph_of(text, rule, w=(4, 4, 1, 1), u=(8, 4, 1, 1))
    else:
        egraph, made = egraph_of(text.replace("u)", "w)"), rule, w=(4, 4, 1, 1))
    assert saturate(egraph, made) == "saturated"
    assert bool(made_by(egraph, "Split")) == merges
