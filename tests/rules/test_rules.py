"""Test every rule: it fires, it refuses look-alikes with the right reason, and both sides give equal outputs."""

from collections import Counter, defaultdict

import numpy as np
import onnx
import pytest
from onnx import helper

from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.rules.apply import Plans, apply
from rlflow.rules.contents import digest_of
from rlflow.rules.language import families, load_rules
from rlflow.rules.locations import MatchTable, matches_at
from tests.rules.cases import CASES
from tests.rules.instances import check, watched
from tests.suite import at_night, check_each

RULES = load_rules(families())
FIRES = [case for case in CASES if case.reason is None]
FIRST = list({case.rule: case for case in reversed(FIRES)}.values())  # The first of these cases of each rule.
REFUSES = [case for case in CASES if case.reason is not None]


def check_family(family: str, cases: list, every: int = 1) -> None:
    """Check every `every`-th case of the rules of one family."""
    names = {rule.name for rule in RULES if rule.family == family}
    check_each(lambda case: check(case, RULES), [case for case in cases if case.rule in names][::every])


@pytest.mark.parametrize("family", families())
def test_both_sides_of_a_rule_are_equal(family):
    check_family(family, at_night(FIRES, FIRST))


@pytest.mark.parametrize("family", families())
def test_both_sides_of_a_rule_are_equal_if_inner_tensors_are_outputs(family):
    check_family(family, [watched(case) for case in FIRES], at_night(1, 12))


@pytest.mark.parametrize("family", families())
def test_a_look_alike_is_refused(family):
    check_family(family, REFUSES)


def test_every_rule_and_every_condition_has_a_case():
    fires = Counter(case.rule for case in FIRES)
    reasons = defaultdict(list)
    for case in REFUSES:
        reasons[case.rule].append(case.reason)
    assert not [rule.name for rule in RULES if fires[rule.name] < 2]
    assert not [
        (rule.name, condition.reason)
        for rule in RULES
        for condition in rule.conditions
        if not condition.reason.startswith(tuple(reasons[rule.name]))
    ]


def test_every_case_belongs_to_a_rule_and_is_unique():
    assert {case.rule for case in CASES} == {rule.name for rule in RULES}
    assert len({str(case) for case in CASES}) == len(CASES)


def test_a_size_that_the_target_states_fixes_the_inputs():
    """A Reshape to [2, 5, ..] holds for N = 2 alone, so the written model must not accept another N."""
    batch = helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, ["N", 5, 8])
    node = helper.make_node("MultiHeadAttention", ["a"] * 3, ["y"], domain="com.microsoft", num_heads=2, scale=0.5)
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 5, 8])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [batch], [result]), opset_imports=opsets, ir_version=8)
    graph = load_graph(model, {"N": 2})
    xfer_id = RULES.index("attention-apart")
    (match,) = matches_at(graph, xfer_id, RULES[xfer_id], next(iter(graph.nodes.values())), Plans())
    written = to_model(apply(graph, RULES[xfer_id], match))
    assert [size.dim_value for size in written.graph.input[0].type.tensor_type.shape.dim] == [2, 5, 8]


def test_a_rule_that_would_compute_an_attribute_is_refused():
    """Before opset 10, the ends of a Slice are an attribute, which Winograd's form computes from symbolic sizes."""
    weight = helper.make_tensor("w", onnx.TensorProto.FLOAT, [64, 64, 3, 3], np.ones(64 * 64 * 9, np.float32))
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 64, "H", "W"]) for name in "xy"]
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    for opset, possible in ((9, False), (13, True)):
        graph = helper.make_graph([node], "g", ports[:1], ports[1:], [weight])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        loaded, xfer_id = load_graph(model), RULES.index("conv-as-winograd-4")
        found = matches_at(loaded, xfer_id, RULES[xfer_id], next(iter(loaded.nodes.values())), Plans())
        assert bool(found) == possible
        for match in found:
            to_model(apply(loaded, RULES[xfer_id], match))


def test_a_rewrite_that_holds_at_the_fixed_size_alone_fixes_the_inputs():
    """A Slice of the first four rows does nothing at N = 4 alone, although the rule states no size."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,8] x) => (float[M,8] y) <int64[1] s = {0}, int64[1] e = {4}, int64[1] a = {0}> {
          t = Slice (x, s, e, a)
          y = Relu (t)
        }"""
    )
    graph, xfer_id = load_graph(model, {"N": 4}), RULES.index("slice-nothing")
    slices = next(node for node in graph.nodes.values() if node.op == "Slice")
    (match,) = matches_at(graph, xfer_id, RULES[xfer_id], slices, Plans())
    written = to_model(apply(graph, RULES[xfer_id], match))
    assert [size.dim_value for size in written.graph.input[0].type.tensor_type.shape.dim] == [4, 8]


def test_an_operand_of_unknown_type_is_refused_without_an_error():
    x = helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3])
    nodes = [helper.make_node("Strange", ["a"], ["x"], domain="other"), helper.make_node("Identity", ["x"], ["y"])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("other", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets, ir_version=8)
    assert not MatchTable(load_rules(families()), load_graph(model)).counts.any()


@pytest.mark.parametrize("kind", ["float", "double"])
def test_axes_that_a_node_computes_do_not_become_an_attribute(kind):
    """ReduceSum takes its axes as an input since opset 13, ReduceMean since opset 18."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g ({kind}[N, 4] x) => ({kind}[N, 1] y) <int32[1] r0 = {{1}}, {kind} n = {{4}}>
        {{ r = Cast<to = 7>(r0)  s = ReduceSum<keepdims = 1>(x, r)  y = Div(s, n) }}""")
    graph, rules = load_graph(model), load_rules(families())
    table = MatchTable(rules, graph)
    assert table.counts[rules.index("sum-as-mean")] == 0
    for rule, count in enumerate(table.counts):
        for location in range(count):
            onnx.checker.check_model(to_model(apply(graph, rules[rule], table.location(rule, location))))


def test_an_equation_with_an_unknown_label_matches_no_rule():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] a, float[3, 4] b) => (float[M, N] y) { y = Einsum<equation = "ij,jk->iz">(a, b) }""")
    assert not MatchTable(load_rules(families()), load_graph(model)).counts.any()


def test_the_digest_of_a_computed_constant_takes_time_in_proportion_to_its_nodes():
    """Each node reads its predecessor twice: 2^200 paths lead to the first constant."""
    chain = "  ".join(f"c{k + 1} = Add(c{k}, c{k})" for k in range(200))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 2] x) => (float[2, 2] y) <float[2, 2] c0 = {{1, 2, 3, 4}}> {{ {chain}  y = MatMul(x, c200) }}""")
    graph = load_graph(model)
    last = graph.nodes[graph.producers[graph.outputs[0]]].inputs[1]
    other = graph.nodes[graph.producers[last]].inputs[0]
    assert digest_of(graph, last) != digest_of(graph, other) and digest_of(graph, graph.inputs[0]) is None
