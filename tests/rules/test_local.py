"""What is remembered of other nodes and of earlier graphs is what a search of every rule at every node finds."""

from collections import Counter

import numpy as np
import pytest

from rlflow.graph.onnx_reader import load_graph
from rlflow.rules import local
from rlflow.rules.apply import Plans, apply
from rlflow.rules.language import RuleSet, load_rules, parse
from rlflow.rules.local import LocalRules, is_local, matches_at, neighbourhood
from rlflow.rules.locations import MatchTable
from tests.rules.cases import CASES
from tests.rules.instances import instantiate
from tests.rules.test_look_alikes import LOOK_ALIKES, model
from tests.rules.test_properties import MODELS

READERS = "summands: asks who else reads\n  Add(x, y) => Add(y, x)\n  if unshared(x)\n\nquiet: so does this one\n  Relu(x) => Relu(Relu(x))\n  if unshared(x)\n"
RULES = RuleSet((*load_rules(), *parse(READERS, "readers")))


def searched(graph, node, plans, rules=range(len(RULES))) -> dict:
    """By xfer_id the matches of the rules whose first root is the node; nothing is remembered but plans."""
    fitting = [xfer_id for xfer_id in rules if RULES[xfer_id].roots[0].op == node.op and not node.constant]
    found = {xfer_id: matches_at(graph, xfer_id, RULES[xfer_id], node, plans) for xfer_id in fitting}
    return {xfer_id: matches for xfer_id, matches in found.items() if matches}


def with_plans(found: dict) -> dict:
    return {xfer_id: [(match, id(match.plan)) for match in matches] for xfer_id, matches in found.items()}


# -- one node --------------------------------------------------------------------------------------


def graphs():
    """Graphs that differ in one thing, and graphs of many walks."""
    for text, opset in dict.fromkeys((text, opset) for _, _, text, opset in (*LOOK_ALIKES, *ONE_THING_APART)):
        yield load_graph(model(text, opset))
    for case in CASES:
        yield load_graph(instantiate(case, RULES))
    for seed, name in enumerate(MODELS):
        yield from (graph for graph, _ in walk(MODELS[name], seed, 8))


RELUS = "(double[2] x) => (double[2] y) {{ a = Relu(x) b = Relu(x) y = Add({}) }}"
CLIPPED = "(double[2] x) => (double[2] y) <double l = {{{}}}, double h = {{6}}> {{ y = Clip(x, l, h) }}"
SCALED = "(double[2,2] x) => (double[2,2] y) <double[2,2] w = {{1, 2, 3, 4}}, double[2,2] v = {{{}}}> {{ a = MatMul(x, w) b = MatMul(x, v) y = Add(a, b) }}"
HALVES = "(double[4] x) => (double[4] y{}) <int64[2] s = {{2, 2}}> {{ a, b = Split(x, s) y = Concat <axis = 0> (a, b) }}"
ONE_THING_APART = [
    (None, None, RELUS.format("a, b"), 20), (None, None, RELUS.format("a, a"), 20),
    (None, None, CLIPPED.format("0"), 20), (None, None, CLIPPED.format("-6"), 20),
    (None, None, SCALED.format("1, 2, 3, 4"), 20), (None, None, SCALED.format("1, 2, 3, 5"), 20),
    (None, None, HALVES.format(""), 20), (None, None, HALVES.format(", double[2] b"), 20),
]  # fmt: skip


def test_alike_nodes_match_alike():
    locals_only = [xfer_id for xfer_id, rule in enumerate(RULES) if is_local(rule)]
    assert len(RULES) / 2 < len(locals_only) < len(RULES)
    known: dict[tuple, tuple[LocalRules, Plans]] = {}
    seen = Counter()
    for graph in graphs():
        plans = Plans()
        rules, plans = known.setdefault(graph.opset(""), (LocalRules(RULES, plans), plans))
        for node in graph.nodes.values():
            seen["remembered"] += neighbourhood(graph, node)[0] in rules._known
            found = rules.matches_at(graph, node)
            assert with_plans(found) == with_plans(searched(graph, node, plans, locals_only))
            seen["nodes"] += 1
            seen["matches"] += sum(map(len, found.values()))
    assert seen["remembered"] > seen["nodes"] / 2 and seen["matches"] > seen["nodes"] / 2


def test_no_more_neighbourhoods_are_kept_than_allowed(monkeypatch):
    monkeypatch.setattr(local, "MAX_NEIGHBOURHOODS", 3)
    rules = LocalRules(RULES, Plans())
    graph = load_graph(MODELS["cnn"])
    for node in graph.nodes.values():
        rules.matches_at(graph, node)
        assert len(rules._known) <= 3
    assert len({neighbourhood(graph, node)[0] for node in graph.nodes.values()}) > 3


# -- whole graphs ----------------------------------------------------------------------------------


def walk(onnx_model, seed: int, n_steps: int = 25):
    """The graphs and match tables of a random walk in which every rule that matches is equally likely."""
    random = np.random.default_rng(seed)
    graph = load_graph(onnx_model)
    table = MatchTable(RULES, graph)
    yield graph, table
    for _ in range(n_steps):
        xfer_id = random.choice(np.flatnonzero(table.counts))
        match = table.location(xfer_id, random.integers(table.counts[xfer_id]))
        graph = apply(graph, RULES[xfer_id], match)
        table = MatchTable(RULES, graph, table)
        yield graph, table


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", MODELS)
def test_a_table_kept_through_rewrites_is_one_searched_for_anew(name, seed):
    for graph, table in walk(MODELS[name], seed):
        found: dict[int, dict[int, tuple]] = {}
        for match in table.all_matches():
            rule = RULES[match.xfer_id]
            at = found.setdefault(match.nodes[rule.root_places[0]], {})
            at[match.xfer_id] = (*at.get(match.xfer_id, ()), match)
        wanted = {node.id: searched(graph, node, table._plans) for node in graph.nodes.values()}
        assert {n: with_plans(f) for n, f in found.items()} == {n: with_plans(f) for n, f in wanted.items() if f}
        assert table._part_of.keys() | table._local_at.keys() <= graph.nodes.keys()
