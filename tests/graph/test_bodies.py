"""Test rewrites inside the bodies of If, Loop and Scan, and inside functions."""

from collections import Counter

import numpy as np
import onnx
import pytest

from rlflow.costs import graph_cost
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.bodies import can_be_read
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import to_model
from rlflow.graph.typical import load_at
from rlflow.optimisation.receipt import bodies_of, check_result, make_receipt, replay
from rlflow.optimisation.validate import validate
from rlflow.rules.apply import apply
from rlflow.rules.language import load_rules
from rlflow.rules.locations import MatchTable, explain
from rlflow.search.descents import greedy
from tests.commands import in_process
from tests.suite import at_night, check_each
from tests.toys.bodies import MODELS, parsed
from tests.toys.systems import rule_set

RULES = load_rules()
SIZES = {"lstm of any size": {"steps": 3, "batch": 2}, "growing": {"N": 2}, "learned": {"N": 2}}
# Model → paths of bodies in which the greedy search must find a rewrite.
FOUND = {
    "lstm": {"scan_0/body"}, "lstm of any size": {"scan_0/body"}, "mamba": {"loop_2/body"},
    "branches": {"if_1/then_branch", "if_1/else_branch"},
    "nested": {"if_1/then_branch/loop_0/body/if_5/then_branch", "if_1/then_branch/loop_0/body/if_5/else_branch"},
    "growing": {"loop_0/body"}, "function": {"", "if_3/then_branch"}, "learned": {"", "if_5/then_branch"},
}  # fmt: skip


def walk(model: onnx.ModelProto, seed: int, steps: int):
    """Yield (graph, table of matches, action that led to the graph) along a random walk, including its start."""
    random, graph = np.random.default_rng(seed), load_graph(model)
    table = MatchTable(RULES, graph)
    yield graph, table, None
    for _ in range(steps):
        choices = [(x, k) for x, n in enumerate(table.counts) for k in range(n)]
        if not choices:
            return
        action = choices[random.integers(len(choices))]
        graph = apply(graph, RULES[action[0]], table.location(*action))
        table = MatchTable(RULES, graph, table)
        yield graph, table, action


def test_rewrites_are_found_in_each_body_and_named_in_the_receipt_and_replayed_byte_for_byte():
    def check(name):
        model = MODELS[name]()
        graph, sizes = load_at(model, SIZES.get(name))
        task = Task(graph, RULES, AnalyticCost(), sizes=sizes)
        found = greedy(task.initial, max_steps=100, seconds=60)
        assert FOUND[name] <= set(bodies_of(graph, RULES, found.actions)), bodies_of(graph, RULES, found.actions)
        receipt = make_receipt(graph, RULES, [], found.actions, found.state.graph, {})
        assert {action.get("body", "") for action in receipt["actions"]} >= FOUND[name]
        after = to_model(replay(receipt, model))
        check_result(receipt, found.state.graph)
        onnx.checker.check_model(after, full_check=True)
        result = validate(model, after, [0, 1], 1e-4, SIZES.get(name, {}))
        assert result.ok and result.compared, result

    check_each(check, MODELS)


def test_random_rewrites_in_bodies_keep_the_outputs_and_the_match_table():
    applied = Counter()

    def check(case):
        name, seed = case
        model = MODELS[name]()
        for graph, table, action in walk(model, seed, at_night(30, 8)):
            if action:
                applied[name] += 1
            fresh = MatchTable(RULES, graph)
            assert [table.location(x, k) for x, n in enumerate(table.counts) for k in range(n)] == [
                fresh.location(x, k) for x, n in enumerate(fresh.counts) for k in range(n)
            ]
        after = to_model(graph)
        onnx.checker.check_model(after)
        again = load_graph(after)
        assert load_graph(to_model(again)).hash == again.hash
        result = validate(model, after, [0], 1e-4, SIZES.get(name, {}))
        assert result.ok and result.compared, result

    check_each(check, [(name, seed) for name in MODELS for seed in range(at_night(12, 1))], "{0[0]} {0[1]}".format)
    assert min(applied.values()) >= 2


def test_a_model_with_bodies_is_read_and_written_without_change():
    def check(name):
        model = MODELS[name]()
        graph = load_graph(model)
        saved = to_model(graph)
        assert load_graph(saved).hash == graph.hash and to_model(load_graph(saved)) == saved
        assert graph.interface.bodies.keys() >= {node.body for node in graph.nodes.values()} - {0} != set()
        assert not load_graph(model, bodies=False).interface.bodies

    check_each(check, MODELS)


# -- what may not be matched -------------------------------------------------------------------------

LOOP = """g (float[2] x) => (float[2] y) <int64 n = {3}, bool go = {1}, float[2] one = {1, 1}> {
  a = Neg(x)
  y = Loop <body = b (int64 i, bool on, float[2] h) => (bool on2, float[2] h2) { on2 = Identity(on) BODY }>
    (n, go, FIRST) }"""


def loop(body: str, first: str = "x") -> onnx.ModelProto:
    return parsed(LOOP.replace("BODY", body).replace("FIRST", first))


def test_no_match_spans_two_bodies():
    rules = rule_set("neg-neg: nothing\n  Neg(Neg(x)) => x\n")
    inside, across = loop("p = Neg(h) h1 = Neg(p) h2 = Add(h1, a)"), loop("h1 = Neg(a) h2 = Add(h1, h)")
    assert [len(explain(load_graph(model), rules, "neg-neg")[0]) for model in (inside, across)] == [1, 0]
    shared = parsed("""g (bool c, float[2,2] x) => (float[2,2] y) <float[2,2] w = {1,2,3,4}, float[2,2] v = {5,6,7,8}> {
      m = MatMul(x, w)
      y = If (c) <then_branch = t () => (float[2,2] p) { p = MatMul(x, v) },
                  else_branch = e () => (float[2,2] q) { q = Add(m, x) }> }""")
    assert not explain(load_graph(shared), RULES, "matmul-merge")[0]


def test_a_value_carried_by_a_loop_is_not_constant_even_if_the_first_is_a_weight():
    graph = load_graph(loop("h2 = Mul(h, one)", first="one"))
    (body,) = graph.interface.bodies.values()
    assert not any(map(graph.is_constant, body.inputs))
    (product,) = [node for node in graph.nodes.values() if node.op == "Mul"]
    assert not product.constant and product.body


def test_a_new_weight_is_stored_in_the_body_whose_nodes_read_the_weight():
    model = loop("p = Mul(h, one) two = Constant <value = float[2] {2, 3}> () h2 = Mul(p, two)")
    rules = rule_set("mul-mul: one product\n  Mul(Mul(x, a), b) => Mul(x, Mul(a, b))\n  if constant(a, b)\n")
    graph = load_graph(model)
    after = to_model(apply(graph, rules[0], MatchTable(rules, graph).location(0, 0)))
    body = next(a.g for a in after.graph.node[-1].attribute if a.name == "body")
    assert len(body.initializer) == 1 and [node.op_type for node in body.node] == ["Identity", "Mul"]
    assert not {tensor.name for tensor in after.graph.initializer} & {"one"}
    assert validate(model, after, [0], 1e-6).ok


def test_an_output_of_a_body_that_became_a_weight_is_written_in_the_body():
    model = loop("z = Constant <value = int64[1] {0}> () s = Shape(h) h2 = Slice(one, z, s)")
    graph = load_graph(model)
    rule = RULES[RULES.index("slice-to-known")]
    after = to_model(apply(graph, rule, explain(graph, RULES, rule.name)[0][0]))
    onnx.checker.check_model(after, full_check=True)
    assert validate(model, after, [0], 0.0).ok


def test_a_carried_shape_is_known_only_if_the_body_keeps_it():
    graph = load_graph(MODELS["growing"]())
    (body,) = graph.interface.bodies.values()
    shapes = {graph.interface.names[t]: graph.types[t].shape for t in body.inputs}
    assert shapes["h"] is None and shapes["s"] == graph.types[graph.inputs[0]].shape
    assert explain(graph, RULES, "neg-neg")[0]


def test_the_cost_of_a_body_is_multiplied_by_its_number_of_runs():
    thrice = load_graph(loop("h2 = Neg(h)"))
    (body,) = thrice.interface.bodies.values()
    assert body.runs == 3
    inner = next(node for node in thrice.nodes.values() if node.op == "Neg" and node.body)
    outer = next(node for node in thrice.nodes.values() if node.op == "Loop")
    cost = AnalyticCost()
    single, whole = (cost.node_cost(thrice, node).runtime_ps for node in (inner, outer))
    assert graph_cost(cost, thrice).runtime_ps == 3 * single + whole


def test_tensors_of_one_name_in_two_branches_that_became_weights_stay_apart():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[4] x, bool b) => (float[4] y)
        <float[6] w = {1, 2, 3, 4, 5, 6}, float[6] v = {6, 5, 4, 3, 2, 1}, int64[1] z = {0}> {
          y = If (b) <
            then_branch = t () => (float[4] p) { s = Shape (x) e = Slice (w, z, s) p = Add (x, e) },
            else_branch = f () => (float[4] q) { s = Shape (x) e = Slice (v, z, s) q = Mul (x, e) }>
        }"""
    )
    state = Task(load_graph(model), RULES, AnalyticCost(), 20).initial
    for _ in range(2):
        state = state.follow(next(m for m in state.matches if RULES[m.xfer_id].name == "slice-to-known"))
        written = to_model(state.graph)
        onnx.checker.check_model(written)
        for branch in (True, False):
            inputs = {"x": np.full(4, 2, np.float32), "b": np.array(branch)}
            (left,), (right,) = (run(session(one, 1), inputs) for one in (model, written))
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("scanned, axes", [(-1, ()), (3, ()), (1, (0, 0))])
def test_a_scan_whose_counts_do_not_fit_stays_one_node(scanned, axes):
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["s", "e"], ["t"]), onnx.helper.make_node("Neg", ["t"], ["u"])], "b",
        [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in "se"],
        [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in "tu"],
    )  # fmt: skip
    given = {"scan_input_axes": axes} if axes else {}
    for count, fits in ((scanned, False), (1, not axes)):
        node = onnx.helper.make_node("Scan", ["x", "y"], ["z", "w"], body=body, num_scan_inputs=count, **given)
        assert can_be_read(node, "", 17, [set()]) == fits


def test_a_loop_of_a_negative_number_of_runs_does_not_run():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[4] x) => (float[4] y) <int64 n = {-5}, bool go = {1}> {
          y = Loop (n, go, x) <body = b (int64 k, bool c, float[4] s) => (bool d, float[4] t) {
            d = Identity (c)
            t = Exp (s)
          }>
        }"""
    )
    graph = load_graph(model)
    assert [body.runs for body in graph.interface.bodies.values()] == [0]
    assert graph_cost(AnalyticCost(), graph).runtime_ps > 0


def test_a_body_with_an_ambiguous_name_stays_in_its_attribute():
    model = loop("b = Neg(h) h2 = Neg(b)")
    # this node follows the Loop, which the checker allows
    model.graph.node.append(onnx.helper.make_node("Add", ["a", "y"], ["b"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [2]))
    onnx.checker.check_model(model)
    graph = load_graph(model)
    assert not graph.interface.bodies and validate(model, to_model(graph), [0], 0.0).ok


def test_the_bound_command_says_that_bodies_are_left_unchanged(capsys, tmp_path):
    onnx.save(loop("p = Neg(h) h2 = Neg(p)"), tmp_path / "model.onnx")
    done = in_process(capsys, "bound", "--model", tmp_path / "model.onnx", "--seconds", "5")
    assert done.code == 0 and "bodies of If, Loop and Scan" in done.ending["sure"]
