"""Test properties that hold for any walk of rewrites over any graph."""

import copy

import numpy as np
import pytest
from onnx import helper, numpy_helper

from rlflow.graph import ir as graph_model
from rlflow.graph import order as graph_order
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.rules.apply import apply
from rlflow.rules.language import families, load_rules
from rlflow.rules.locations import MatchTable, explain
from tests.rules.cases import CASES
from tests.rules.instances import assert_same, instantiate
from tests.rules.models import (
    Builder,
    drawn,
    in_float32,
    tiny_cnn,
    tiny_cuts,
    tiny_mobile,
    tiny_products,
    tiny_transformer,
)
from tests.suite import at_night, check_each, each_of, slow

RULES = load_rules(families())
N_STEPS = 20
SINGLE = {"cnn, float32": in_float32(tiny_cnn()), "transformer, float32": in_float32(tiny_transformer())}
MODELS = {
    "cnn": tiny_cnn(),
    "transformer": tiny_transformer(),
    "cuts": tiny_cuts(),
    "mobile": tiny_mobile(),
    "products": tiny_products(),
}
MODELS |= SINGLE | {f"drawn {seed}": drawn(seed) for seed in range(8)}


def walk(model, seed: int, n_steps: int = N_STEPS):
    """Yield the graphs and match tables of a random walk, from the start on."""
    random = np.random.default_rng(seed)
    graph = load_graph(model)
    table = MatchTable(RULES, graph)
    yield graph, table
    for _ in range(n_steps):
        rules = [xfer_id for xfer_id, matches in enumerate(table.locations) if matches]
        if not rules:
            return
        xfer_id = random.choice(rules)
        matches = table.locations[xfer_id]
        graph = apply(graph, RULES[xfer_id], matches[random.integers(len(matches))])
        table = MatchTable(RULES, graph, table)
        yield graph, table


SHORTEST = 15  # In steps; some models have no match left before the walk ends.


@pytest.mark.parametrize("seed", range(at_night(2, 1)))
@pytest.mark.parametrize("name", [*list(MODELS)[::8], *slow(*(name for k, name in enumerate(MODELS) if k % 8))])
def test_a_walk_keeps_the_outputs_and_the_matches(name, seed):
    model = MODELS[name]
    for step, (graph, table) in enumerate(walk(model, seed)):
        if step % at_night(1, 4):
            continue  # A wrong match stays in the table, so that a later comparison finds it.
        assert table.locations == MatchTable(RULES, graph).locations
        assert table.counts.tolist() == [len(matches) for matches in table.locations]
        assert_consistent(graph)
        assert graph.order == rebuilt(graph).order
        if step % at_night(5, 8) == 0:
            assert_same(model, to_model(graph), seed=step, tolerance=1e-4 if name in SINGLE else 1e-8)
    assert step >= SHORTEST


def test_a_match_ends_with_its_second_root_even_without_a_path_to_the_first():
    two = Builder(0)
    first, second = (two.op("Add", two.op("MatMul", "x", two.weight(8, 6)), two.weight(6)) for _ in range(2))
    model = two.model({"x": (4, 8)}, [first, two.op("Mul", second, two.weight(6))])
    graph = load_graph(model)
    table = MatchTable(RULES, graph)
    assert table.counts[RULES.index("matmul-add-merge")] == 1
    (distributes,) = table.locations[RULES.index("mul-distributes")]
    after = apply(graph, RULES[distributes.xfer_id], distributes)
    assert MatchTable(RULES, after, table).locations == MatchTable(RULES, after).locations


@pytest.mark.parametrize("spacing", (2, 5, 1 << 64))
def test_the_order_of_nodes_is_kept_with_any_spacing_of_its_numbers(spacing, monkeypatch):
    monkeypatch.setattr(graph_order, "SPACING", spacing)
    outcome = []
    kept = graph_order.after
    monkeypatch.setattr(graph_model, "after", lambda edit: outcome.append(kept(edit)) or outcome[-1])
    for name in ("cnn", "transformer", "drawn 3"):
        for graph, _ in walk(MODELS[name], seed=4):
            assert graph.order == rebuilt(graph).order
    assert any(result is None for result in outcome)
    assert spacing < 1 << 64 or sum(result is not None for result in outcome) > 0.7 * len(outcome)


def rebuilt(graph):
    """Return the same graph, built anew without a history."""
    return type(graph).build(
        graph.interface, graph.nodes.values(), graph.types, graph.constants, graph.inputs, graph.outputs
    )


def assert_consistent(graph):
    """Check that the parts of a graph agree with each other and that no part is left that no output needs."""
    built = rebuilt(graph)
    assert built.nodes.keys() == graph.nodes.keys()
    assert built.constants.keys() == graph.constants.keys()
    assert built.producers == graph.producers
    assert built.consumers == graph.consumers
    for node in graph.nodes.values():
        assert node.constant == all(graph.is_constant(tensor) for tensor in node.reads())
    read = {tensor for node in graph.nodes.values() for tensor in node.reads()}
    assert set(graph.types) <= {*read, *graph.outputs, *graph.inputs, *graph.producers}


@pytest.mark.nightly
def test_the_walks_use_many_rules():
    tables = [table for model in MODELS.values() for seed in range(2) for _, table in walk(model, seed)]
    used = {rule.name for table in tables for rule, result in zip(RULES, table.locations, strict=True) if result}
    known = {rule.name for rule in RULES if rule.family != "shape_arithmetic"}  # These models have no shape arithmetic.
    assert len(used & known) > 0.6 * len(known), sorted(known - used)


# -- order and hash --------------------------------------------------------------------------------


def shuffled(model, seed: int):
    """Return the same model under other names, with its nodes in another topological order and its weights in another
    order."""
    random = np.random.default_rng(seed)
    model = copy.deepcopy(model)
    graph = model.graph
    kept = {v.name for v in (*graph.input, *graph.output)}
    names = {n for node in graph.node for n in node.output} | {t.name for t in graph.initializer}
    own = sorted(names - kept)
    renamed = {name: f"z{k}" for k, name in zip(random.permutation(len(own)), own, strict=True)}
    for tensor in graph.initializer:
        tensor.name = renamed[tensor.name]
    for node in graph.node:
        node.name = f"node{random.integers(10**9)}"
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    rest, nodes = list(graph.node), []
    known = kept | {t.name for t in graph.initializer} - {v.name for v in graph.output}
    known -= {v.name for v in graph.output}
    while rest:
        ready = [k for k, node in enumerate(rest) if all(name in known for name in node.input if name)]
        nodes.append(rest.pop(ready[random.integers(len(ready))]))
        known.update(nodes[-1].output)
    weights = [graph.initializer[k] for k in random.permutation(len(graph.initializer))]
    for field, values in ((graph.node, nodes), (graph.initializer, weights)):
        values = [copy.deepcopy(value) for value in values]
        del field[:]
        field.extend(values)
    return model


def anatomy(graph) -> list:
    return [graph.nodes[n].key() for n in graph.order]


def positions(table) -> list:
    position = {node_id: position for position, node_id in enumerate(table.graph.order)}
    return [[tuple(position[n] for n in match.nodes) for match in matches] for matches in table.locations]


@each_of(list(MODELS)[:: at_night(1, 2)])
def test_order_hash_and_locations_depend_on_the_structure_only(name):
    graph, other = load_graph(MODELS[name]), load_graph(shuffled(MODELS[name], seed=3))
    assert graph.hash == other.hash
    assert anatomy(graph) == anatomy(other)
    assert positions(MatchTable(RULES, graph)) == positions(MatchTable(RULES, other))


@each_of(MODELS)
def test_order_is_topological(name):
    graph = load_graph(MODELS[name])
    for node_id in graph.order:
        for tensor in graph.nodes[node_id].reads():
            producer = graph.producers.get(tensor)
            assert producer is None or graph.rank[producer] < graph.rank[node_id]


def test_the_hash_of_a_graph_does_not_depend_on_the_order_of_rewrites():
    """Remove two pairs of operators in either order; the hash equals the hash of a graph that never had them."""
    model, plain = (
        helper_model([("Relu", "x", "a")] + steps) for steps in (
            [("Relu", "a", "b"), ("Abs", "b", "c"), ("Neg", "c", "d"), ("Neg", "d", "e"), ("Neg", "e", "y")],
            [("Abs", "a", "c"), ("Neg", "c", "y")],
        )
    )  # fmt: skip
    result = set()
    for order in (("relu-relu", "neg-neg"), ("neg-neg", "relu-relu")):
        for pick in (0, -1):
            graph = load_graph(model)
            for name in order:
                graph = apply(graph, RULES[RULES.index(name)], explain(graph, RULES, name)[0][pick])
            result.add(graph.hash)
    assert result == {load_graph(plain).hash}


def helper_model(steps, opset: int = 20, weight=None):
    value = lambda name: helper.make_tensor_value_info(name, 11, [2])  # noqa: E731
    nodes = [helper.make_node(op, inputs.split(), [output]) for op, inputs, output in steps]
    weights = [numpy_helper.from_array(np.asarray(weight, np.float64), "w")] if weight is not None else []
    graph = helper.make_graph(nodes, "g", [value("x"), value("z")], [value("y")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_hash_tells_graphs_apart():
    """Graphs that differ in a weight, its shape, an attribute, an operator, an edge, the order of operands or the opset
    have different hashes."""
    different = [
        helper_model([("Sub", "x w", "y")], weight=[1.0, 2.0]),
        helper_model([("Sub", "x w", "y")], weight=[1.0, 3.0]),
        helper_model([("Sub", "x w", "y")], weight=[1.0]),
        helper_model([("Add", "x w", "y")], weight=[1.0, 2.0]),
        helper_model([("Sub", "x z", "y")]),
        helper_model([("Sub", "z x", "y")]),
        helper_model([("Sub", "x x", "y")]),
        helper_model([("Neg", "x", "a"), ("Neg", "x", "b"), ("Sub", "a b", "y")]),
        helper_model([("Neg", "x", "a"), ("Sub", "a a", "y")]),
        helper_model([("Sub", "x z", "y")], opset=19),
    ]
    for to in (1, 7):
        cast = helper_model([("Cast", "x", "a"), ("Cast", "a", "y")])
        for node, kind in zip(cast.graph.node, (to, 11), strict=True):
            node.attribute.append(helper.make_attribute("to", kind))
        different.append(cast)
    hashes = [load_graph(model).hash for model in different]
    assert len(set(hashes)) == len(hashes)


# -- inverses --------------------------------------------------------------------------------------

INVERSES = {rule.name for rule in RULES if rule.name.endswith("-inverse")}
THERE_AND_BACK = [
    c for c in CASES
    if c.reason is None and (f"{c.rule}-inverse" in INVERSES or c.rule in INVERSES)
    and None not in c.values.values()  # A default can come back as an explicit attribute.
]  # fmt: skip
ONE_WAY = {"matmul-add-as-gemm-inverse"}  # rules whose inverse refuses every result in CASES


def test_a_rule_and_its_inverse_give_the_same_graph():
    came_back = set()

    def check(case):
        graph = load_graph(instantiate(case, RULES))
        back = case.rule.removesuffix("-inverse") if case.rule in INVERSES else f"{case.rule}-inverse"
        there = apply(graph, RULES[RULES.index(case.rule)], explain(graph, RULES, case.rule)[0][0])
        assert there.hash != graph.hash
        matches, refusals = explain(there, RULES, back)
        if matches:
            assert graph.hash in {apply(there, RULES[match.xfer_id], match).hash for match in matches}
            came_back.add(case.rule)
        else:  # The inverse has more conditions.
            reasons = {refusal.reason for refusal in refusals}
            assert reasons and reasons <= {c.reason for c in RULES[RULES.index(back)].conditions}

    check_each(check, THERE_AND_BACK)
    assert {case.rule for case in THERE_AND_BACK} - came_back == ONE_WAY
