"""Test incremental matching: remembered matches equal those found by a search of every rule at every node."""

from collections import Counter

import numpy as np
import pytest

from rlflow.graph.onnx_reader import load_graph
from rlflow.rules import locations
from rlflow.rules.apply import Plans, apply
from rlflow.rules.language import families, load_rules, parse
from rlflow.rules.locations import LocalRules, MatchTable, is_local, matches_at, neighbourhood
from rlflow.rules.rule import RuleSet
from tests.rules.cases import CASES
from tests.rules.instances import instantiate
from tests.rules.test_look_alikes import LOOK_ALIKES, model
from tests.rules.test_properties import MODELS
from tests.suite import at_night, slow

# Rules with features that no shipped rule has: conditions on consumers, a literal list, an absent input. The two sides
# of these rules need not be equal.
OWN = """
summands: asks for readers
  Add(x, y) => Add(y, x)
  if unshared(x)
twice: asks for readers
  Relu(x) => Relu(Relu(x))
  if unshared(x)
listed: a list
  Sub(x, [1, 2]) => Relu(x)
bounded: an input that is left out
  Clip(x, None, h) => Min(x, h)
forgets: one of two inputs
  Pow(x, y) => Exp(x)
"""
RULES = RuleSet((*load_rules(families()), *parse(OWN, "own")))


def searched(graph, node, plans, rules=range(len(RULES))) -> dict:
    """Return xfer_id → matches of the rules whose first root is the node; the search reuses nothing but plans."""
    fitting = [xfer_id for xfer_id in rules if RULES[xfer_id].roots[0].op == node.op and not node.constant]
    result = {xfer_id: matches_at(graph, xfer_id, RULES[xfer_id], node, plans) for xfer_id in fitting}
    return {xfer_id: matches for xfer_id, matches in result.items() if matches}


def with_plans(result: dict) -> dict:
    return {xfer_id: [(match, id(match.plan)) for match in matches] for xfer_id, matches in result.items()}


# -- one node --------------------------------------------------------------------------------------


RELUS = "(double[2] x) => (double[2] y) {{ a = Relu(x) b = Relu(x) y = Add({}) }}"
ABOVE = "(double[2] x) => (double[2] y) <double l = {{{}}}, double h = {{6}}> {{ y = Clip(x, l, h) }}"
SCALED = (
    "(double[2,2] x) => (double[2,2] y) <double[2,2] w = {{1, 2, 3, 4}}, double[2,2] v = {{{}}}> "
    "{{ a = MatMul(x, w) b = MatMul(x, v) y = Add(a, b) }}"
)
TIMES = (
    "(double[2] x, double[2] u) => (double[2] y) <double[2] v = {{1, 2}}, double[2] w = {{3, 4}}> "
    "{{ k = Neg({}) a = Mul(x, k) y = Mul(a, w) }}"
)
POOLED = "(double[1,1,3] x) => (double[1,1,2] y{}) {{ a = Relu(x) y, i = MaxPool <kernel_shape = [2]> (a) }}"
LESS = "(double[2] x) => (double[2] y) <double[2] c = {{1, {}}}> {{ y = Sub(x, c) }}"
ONE_THING_APART = [
    *[RELUS.format(summands) for summands in ("a, b", "a, a")],
    *[ABOVE.format(bound) for bound in ("0", "-6")],
    *[SCALED.format(weight) for weight in ("1, 2, 3, 4", "1, 2, 3, 5")],
    *[TIMES.format(factor) for factor in ("u", "v")],
    *[POOLED.format(more) for more in ("", ", int64[1,1,2] i")],
    *[LESS.format(number) for number in ("2", "3")],
]
BELOW = "(double[2] x, double l) => (double[2] y) <double h = {6}> { y = Clip(x, l, h) }"


def graphs():
    """Yield graphs that differ in one thing, and the graphs of many walks."""
    texts = [(text, opset) for _, _, text, opset in LOOK_ALIKES] + [(text, 20) for text in ONE_THING_APART]
    for text, opset in dict.fromkeys(texts):
        yield load_graph(model(text, opset))
    unknown, left_out = model(BELOW), model(BELOW)
    left_out.graph.node[0].input[1] = ""
    for graph in map(load_graph, (unknown, left_out)):
        graph.types.pop(graph.inputs[1], None)
        yield graph
    for case in CASES[:: at_night(2, 96)]:
        yield load_graph(instantiate(case, RULES))
    for seed, name in list(enumerate(MODELS))[:: at_night(1, 2)]:
        yield from (graph for graph, _ in walk(MODELS[name], seed, at_night(8, 1)))


def test_nodes_with_equal_neighbourhoods_have_equal_local_matches():
    locals_only = [xfer_id for xfer_id, rule in enumerate(RULES) if is_local(rule)]
    assert len(RULES) / 2 < len(locals_only) < len(RULES)
    known: dict[tuple, tuple[LocalRules, Plans]] = {}
    seen = Counter()
    for graph in graphs():
        plans = Plans()
        rules, plans = known.setdefault(graph.opset(""), (LocalRules(RULES, plans), plans))
        for node in graph.nodes.values():
            seen["remembered"] += neighbourhood(graph, node)[0] in rules._known
            result = rules.matches_at(graph, node)
            assert with_plans(result) == with_plans(searched(graph, node, plans, locals_only))
            seen["nodes"] += 1
            seen["matches"] += sum(map(len, result.values()))
    assert seen["remembered"] > seen["nodes"] / 3 and seen["matches"] > seen["nodes"] / 2


def test_no_more_neighbourhoods_are_kept_than_allowed(monkeypatch):
    monkeypatch.setattr(locations, "MAX_NEIGHBOURHOODS", 3)
    rules = LocalRules(RULES, Plans())
    graph = load_graph(MODELS["cnn"])
    for node in graph.nodes.values():
        rules.matches_at(graph, node)
        assert len(rules._known) <= 3
    assert len({neighbourhood(graph, node)[0] for node in graph.nodes.values()}) > 3


# -- whole graphs ----------------------------------------------------------------------------------


def walk(onnx_model, seed: int, n_steps: int = 25):
    """Yield the graphs and match tables of a random walk in which every matching rule is equally likely."""
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


@pytest.mark.parametrize("seed", range(at_night(2, 1)))
@pytest.mark.parametrize("name", [*list(MODELS)[::2], *slow(*list(MODELS)[1::2])])
def test_a_match_table_updated_through_rewrites_equals_a_new_search(name, seed):
    for step, (graph, table) in enumerate(walk(MODELS[name], seed, at_night(25, 10))):
        if step % at_night(1, 5):
            continue
        result: dict[int, dict[int, tuple]] = {}
        for match in table.all_matches():
            rule = RULES[match.xfer_id]
            at = result.setdefault(match.nodes[rule.root_positions[0]], {})
            at[match.xfer_id] = (*at.get(match.xfer_id, ()), match)
        wanted = {node.id: searched(graph, node, table._plans) for node in graph.nodes.values()}
        assert {n: with_plans(f) for n, f in result.items()} == {n: with_plans(f) for n, f in wanted.items() if f}
        assert table._part_of.keys() | table._local_at.keys() <= graph.nodes.keys()


def test_a_rule_applies_once_the_other_output_has_lost_its_last_consumer():
    text = """(double[1,1,3] x, double[1,1,2] u) => (double[1,1,2] y, double[1,1,2] z)
              { a = Relu(x) y, i = MaxPool <kernel_shape = [2]> (a) k = Cast <to = 11> (i) z = Pow(u, k) }"""
    graph, pooled, forgets = load_graph(model(text)), RULES.index("relu-maxpool"), RULES.index("forgets")
    before = MatchTable(RULES, graph)
    after = MatchTable(RULES, apply(graph, RULES[forgets], before.location(forgets, 0)), before)
    assert (before.counts[pooled], after.counts[pooled]) == (0, 1)
