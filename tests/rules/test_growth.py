"""Test that the work of loading, of the first match and of a step grows at most in proportion to the graph or the
change.

Work is counted in calls of Python and C functions, so the result does not depend on a clock.
"""

import sys

import numpy as np
import pytest

from benchmarks.shapes import MODELS
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules import locations, match
from rlflow.rules.language import load_rules
from rlflow.rules.locations import MatchTable, prepared
from tests.rules.test_look_alikes import model
from tests.suite import slow

RULES = load_rules()
NODES = 300


def calls(work) -> int:
    """Return the number of function calls of `work`."""
    count = 0

    def look(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def first_state(model):
    graph, _ = prepared(load_graph(model), RULES)
    state = Task(graph, RULES, AnalyticCost()).initial
    assert state.counts.any()
    return state


@pytest.mark.parametrize("shape", ["chain", "fan-sum", *slow(*sorted(MODELS.keys() - {"chain", "fan-sum"}))])
def test_loading_and_matching_twice_the_nodes_needs_about_twice_the_calls(shape):
    models = [MODELS[shape](nodes) for nodes in (NODES, NODES, 2 * NODES)]  # The first run fills caches.
    _, one, two = [calls(lambda one=one: first_state(one)) for one in models]
    assert two < 2.2 * one


@pytest.mark.parametrize("shape, limit", [("chain", 1.2), ("grid", 1.2), ("fan-concat", 2.2), *slow(("tower", 1.2))])
def test_the_calls_of_a_step_depend_on_the_size_of_the_change_alone(shape, limit):
    def steps(model):
        state = first_state(model)
        rules = np.flatnonzero(state.counts).tolist()

        def work():
            for rule in rules:
                assert state.apply(rule, int(state.counts[rule]) // 2).counts is not None

        work()  # The first run fills caches.
        return calls(work)

    assert steps(MODELS[shape](2 * NODES)) < limit * steps(MODELS[shape](NODES))


def test_matches_of_a_rule_at_one_node_are_limited_and_later_matches_move_up(monkeypatch):
    xfer_id = RULES.index("relu-concat")
    graph = load_graph(MODELS["fan-concat"](40))
    every = MatchTable(RULES, graph).counts[xfer_id]
    monkeypatch.setattr(locations, "MAX_MATCHES_AT", 5)
    table, steps = MatchTable(RULES, graph), 0
    while table.counts[xfer_id]:
        assert table.counts[xfer_id] == min(every - steps, 5)
        graph = locations.apply(graph, RULES[xfer_id], table.location(xfer_id, 0))
        table, steps = MatchTable(RULES, graph, table), steps + 1
    assert steps == every == 19


PRODUCTS = "a = MatMul(x, w) b = MatMul(x, v)"
GAINS_A_READER = f"{{ {PRODUCTS} c = Concat<axis = 0>(x, z) d = Relu(c) }}", "concat-relu"
LOSES_A_READER = f"{{ {PRODUCTS} e = Relu(x) f = Relu(x) c = Concat<axis = 0>(e, f) d = Neg(z) }}", "relu-concat"


@pytest.mark.parametrize("body, rule", [GAINS_A_READER, LOSES_A_READER])
def test_rules_with_several_roots_skip_tensors_with_many_consumers_after_rewrites_too(body, rule, monkeypatch):
    for module in (match, locations):
        monkeypatch.setattr(module, "MAX_READERS", 3)
    text = "(double[2,2] x, double[2,2] z) => (double[2,2] a, double[2,2] b, double[4,2] c, double[n,2] d)"
    weights = " <double[2,2] w = {1, 2, 3, 4}, double[2,2] v = {5, 6, 7, 8}> "
    graph, merge, other = load_graph(model(text + weights + body)), RULES.index("matmul-merge"), RULES.index(rule)
    table = MatchTable(RULES, graph)
    after = locations.apply(graph, RULES[other], table.location(other, 0))
    updated = MatchTable(RULES, after, table)
    assert sorted((table.counts[merge], updated.counts[merge])) == [0, 1]
    assert (updated.counts == MatchTable(RULES, after).counts).all()
