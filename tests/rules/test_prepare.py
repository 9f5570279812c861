"""Test the initial graph of an environment: the same model without the size arithmetic whose result is known."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.rules.apply import apply
from rlflow.rules.language import load_rules, parse
from rlflow.rules.locations import PREPARING_FAMILY, MatchTable, explain, prepared
from rlflow.rules.rule import RuleSet

RULES = load_rules()


def two_blocks() -> onnx.ModelProto:
    """Return a model that splits and joins heads, with new size computations in each block, as exporters write it."""
    nodes, weights = [], {"last": np.int64(4), "heads": np.int64([2]), "free": np.int64([-1]), "axis": np.int64([0])}

    def op(kind, *inputs, **attributes):
        nodes.append(helper.make_node(kind, inputs, [f"t{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    x = "x"
    for block in range(2):
        weights |= {f"first{block}": np.int64(0), f"second{block}": np.int64(1)}
        sizes = [op("Gather", op("Shape", x), f"{part}{block}", axis=0) for part in ("first", "second")]
        sizes = [op("Unsqueeze", size, "axis") for size in sizes]
        apart = op("Reshape", x, op("Concat", *sizes, "heads", "free", axis=0))
        turned = op("Transpose", op("Tanh", op("Transpose", apart, perm=[0, 2, 1, 3])), perm=[0, 2, 1, 3])
        x = op("Add", x, op("Reshape", turned, op("Concat", *sizes, "free", axis=0)))
    values = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["batch", "seq", 4]) for name in ("x", x)]
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "blocks", values[:1], values[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("shapes", [{}, {"batch": 2}, {"batch": 2, "seq": 5}])
def test_a_prepared_graph_computes_no_known_value(shapes):
    graph, _ = prepared(load_graph(two_blocks(), shapes), RULES)
    assert sorted(graph.nodes[n].op for n in graph.order) == [
        *["Add"] * 2, *["Reshape"] * 4, *["Tanh"] * 2, *["Transpose"] * 4
    ]  # fmt: skip
    counts = MatchTable(RULES, graph).counts
    assert not any(counts[xfer_id] for xfer_id, rule in enumerate(RULES) if rule.family == PREPARING_FAMILY)


def test_the_actions_of_a_preparation_lead_to_the_prepared_graph_again():
    start = load_graph(two_blocks())
    graph, actions = prepared(start, RULES)
    assert actions and prepared(load_graph(two_blocks()), RULES)[1] == actions
    for xfer_id, location in actions:
        start = apply(start, RULES[xfer_id], MatchTable(RULES, start).location(xfer_id, location))
    assert start.hash == graph.hash


@pytest.mark.parametrize("batch, seq", [(1, 1), (2, 5), (3, 1), (1, 7)])
def test_a_prepared_model_computes_the_same_at_every_size(batch, seq):
    model = two_blocks()
    after = to_model(prepared(load_graph(model), RULES)[0])
    assert list(after.graph.input) == list(model.graph.input)
    x = np.random.default_rng(0).standard_normal((batch, seq, 4))
    wanted, result = (ReferenceEvaluator(m).run(None, {"x": x})[0] for m in (model, after))
    np.testing.assert_array_equal(result, wanted)


def test_a_rule_knows_whether_it_is_proved_for_all_shapes():
    proved = {rule.name: rule.for_all_shapes for rule in RULES}
    assert proved["relu-relu"] and not proved["maxpool-maxpool"]
    (own,) = parse("relu-relu: somebody else's\n  Relu(Relu(x)) => x\n", "own")
    assert not own.for_all_shapes


@pytest.mark.parametrize("size, proved, fires", [(3, False, 1), ("n", False, 0), ("n", True, 1)])
def test_a_rule_proved_for_bounded_shapes_applies_only_to_known_sizes(size, proved, fires):
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in "xy"]
    graph = load_graph(helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:]), ir_version=8))
    (rule,) = parse("twice: a second clamp changes nothing\n  Relu(Relu(x)) => Relu(x)\n", "own")
    matches, refusals = explain(graph, RuleSet((replace(rule, for_all_shapes=proved),)), "twice")
    assert len(matches) == fires
    assert [refusal.reason for refusal in refusals] == ["proved for bounded shapes only"] * (1 - fires)


def test_a_constant_of_a_replaced_operator_stays_if_other_operators_then_read_it():
    """The condition always chooses y. The consumers of the choice then read the literal y, which no other node read
    before."""
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[1] x) => (float[3] z)
        <float[3] y = {2.0, 3.0, 4.0}, bool[1] never = {0}> { w = Where(never, x, y) z = Add(w, x) }"""
    graph = load_graph(onnx.parser.parse_model(text))
    xfer_id = RULES.index("where-none")
    rewritten = apply(graph, RULES[xfer_id], MatchTable(RULES, graph).location(xfer_id, 0))
    onnx.checker.check_model(to_model(rewritten))
    assert [constant.load().tolist() for constant in rewritten.constants.values()] == [[2.0, 3.0, 4.0]]


@pytest.mark.parametrize("steps", [
    "twice = Mul(sides, two)",
    "real = Cast<to=1>(sides) product = Mul(real, factor) floor = Floor(product) twice = Cast<to=7>(floor)",
])  # fmt: skip
def test_computed_sizes_of_a_resize_become_scales_and_the_small_image_is_convolved(steps):
    text = f"""<ir_version: 9, opset_import: ["": 18]> g (float[n, 2, h, w] x) => (float[n, 3, p, q] y)
        <int64[1] zero = {{0}}, int64[1] end = {{4}}, int64[1] middle = {{2}}, int64[2] two = {{2, 2}},
         float factor = {{2.0}}> {{
            sizes = Shape(x) sides = Slice(sizes, middle, end) others = Slice(sizes, zero, middle)
            {steps} wanted = Concat<axis=0>(others, twice)
            large = Resize<mode="nearest", coordinate_transformation_mode="half_pixel">(x, , , wanted)
            y = Conv<pads=[1, 1, 1, 1]>(large, k)
        }}"""
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    model.graph.initializer.append(numpy_helper.from_array(random.standard_normal((3, 2, 3, 3), np.float32), "k"))
    graph, _ = prepared(load_graph(model), RULES)
    assert [graph.nodes[n].op for n in graph.order] == ["Resize", "Conv"]
    (match,), _ = explain(graph, RULES, "conv-of-repeated")
    rewritten = to_model(apply(graph, RULES[match.xfer_id], match))
    for sizes in ((1, 2, 3, 4), (2, 2, 1, 1)):
        x = random.standard_normal(sizes, np.float32)
        wanted, result = (ReferenceEvaluator(m).run(None, {"x": x})[0] for m in (model, rewritten))
        np.testing.assert_allclose(result, wanted, atol=1e-5)
