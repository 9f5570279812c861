"""What an environment starts from where sizes are symbols: the same model, without the arithmetic that is known."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.rules.apply import apply
from rlflow.rules.language import load_rules, parse
from rlflow.rules.locations import MatchTable
from rlflow.rules.prepare import FAMILY, prepared

RULES = load_rules()


def two_blocks(batch="batch", seq="seq") -> onnx.ModelProto:
    """Heads that are taken apart and joined, with the sizes asked for anew each time, as exporters do."""
    nodes, weights = [], {"last": np.int64(4), "heads": np.int64([2]), "free": np.int64([-1]), "axis": np.int64([0])}

    def op(kind, *inputs, **attributes):
        nodes.append(helper.make_node(kind, inputs, [f"t{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    x = "x"
    for block in range(2):
        weights |= {f"first{block}": np.int64(0), f"second{block}": np.int64(1)}
        sizes = [op("Gather", op("Shape", x), f"{place}{block}", axis=0) for place in ("first", "second")]
        sizes = [op("Unsqueeze", size, "axis") for size in sizes]
        apart = op("Reshape", x, op("Concat", *sizes, "heads", "free", axis=0))
        turned = op("Transpose", op("Tanh", op("Transpose", apart, perm=[0, 2, 1, 3])), perm=[0, 2, 1, 3])
        x = op("Add", x, op("Reshape", turned, op("Concat", *sizes, "free", axis=0)))
    values = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [batch, seq, 4]) for name in ("x", x)]
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "blocks", values[:1], values[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_nothing_that_is_known_is_computed():
    graph, actions = prepared(load_graph(two_blocks()), RULES)
    assert sorted(graph.nodes[n].op for n in graph.order) == [
        *["Add"] * 2, *["Reshape"] * 4, *["Tanh"] * 2, *["Transpose"] * 4
    ]  # fmt: skip
    counts = MatchTable(RULES, graph).counts
    assert not any(counts[xfer_id] for xfer_id, rule in enumerate(RULES) if rule.family == FAMILY)


def test_the_actions_lead_there_once_more():
    start = load_graph(two_blocks())
    graph, actions = prepared(start, RULES)
    assert actions and prepared(load_graph(two_blocks()), RULES)[1] == actions
    for xfer_id, location in actions:
        start = apply(start, RULES[xfer_id], MatchTable(RULES, start).location(xfer_id, location))
    assert start.hash == graph.hash


@pytest.mark.parametrize("batch, seq", [(1, 1), (2, 5), (3, 1), (1, 7)])
def test_it_is_the_same_model_at_every_size(batch, seq):
    model = two_blocks()
    after = to_model(prepared(load_graph(model), RULES)[0])
    assert list(after.graph.input) == list(model.graph.input)
    x = np.random.default_rng(0).standard_normal((batch, seq, 4))
    wanted, result = (ReferenceEvaluator(m).run(None, {"x": x})[0] for m in (model, after))
    np.testing.assert_array_equal(result, wanted)


def test_a_graph_without_symbols_stays_as_it_is():
    graph = load_graph(two_blocks(2, 5))
    assert prepared(graph, RULES) == (graph, ())


def test_a_rule_knows_whether_it_is_proved_for_all_shapes():
    proved = {rule.name: rule.for_all_shapes for rule in RULES}
    assert proved["relu-relu"] and not proved["relu-maxpool"]
    (own,) = parse("relu-relu: somebody else's\n  Relu(Relu(x)) => x\n", "own")
    assert not own.for_all_shapes
