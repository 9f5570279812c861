"""Test operators that draw random numbers: no rewrite moves, merges, copies, folds or removes a draw."""

from collections import Counter

import numpy as np
import onnx

from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.graph.random_numbers import RANDOM_OPS, Draws
from rlflow.graph.repairs import all_nodes
from rlflow.rules.language import RuleSet, load_rules, parse
from rlflow.rules.locations import explain
from rlflow.search.descents import greedy
from rlflow.search.saturation.egraph import EGraph
from rlflow.search.saturation.lower_bound import lower_bound
from tests.field import random_draws, training_mode
from tests.field.random_draws import N, body_of_if, body_of_loop, model, noise_function, two
from tests.suite import check_each

RULES = load_rules()
FOUND = {  # name of a model → (its draws, its outputs that depend on them)
    "a": ({"RandomNormalLike": 2}, ["y"]),
    "b": ({"RandomUniform": 2}, ["y"]),
    "c": ({"Bernoulli": 1, "Multinomial": 1}, ["y", "pick"]),
    "d": ({"RandomNormalLike": 1}, ["y"]),
    "beside-a-draw": ({"RandomNormalLike": 2}, ["y"]),
    "dropout": ({"Dropout": 1}, ["y", "mask"]),
    "in-a-branch": ({"RandomNormalLike": 1}, ["y"]),
    "in-a-loop": ({"RandomUniformLike": 1}, ["y"]),
    "in-a-function": ({"RandomNormalLike": 1}, ["y"]),
    "an-unread-draw": ({"RandomNormalLike": 1}, ["y"]),
}
TRAINING = {  # name of a model → True if its Dropout draws
    "a": False, "b": False, "c": True, "d": False, "mode-false": False, "mode-absent": False, "ratio-absent": True,
    "mode-is-an-input": True, "without-mask": True, "opset-22": True,
}  # fmt: skip


def drawn(model: onnx.ModelProto) -> list[tuple]:
    """Return (operator, results, attributes) of all draws of the main graph and its bodies.

    Inputs are left out, because rewrites may rename them.
    """
    made = (node for node in all_nodes(model.graph.node) if node.op_type in (*RANDOM_OPS, "Dropout"))
    return sorted((node.op_type, tuple(node.output), str(sorted(map(str, node.attribute)))) for node in made)


def test_random_draws_are_found_by_operator_also_in_bodies_and_functions():
    def check(name: str) -> None:
        draws = Draws(random_draws.CASES[name].make())
        assert (draws.counts, draws.outputs) == (Counter(FOUND[name][0]), FOUND[name][1])

    check_each(check, list(FOUND))
    assert Draws(random_draws.CASES["beside-a-draw"].make()).others == ["z"]
    called_twice = [N("Noisy", ["q"], ["z"], domain="noise"), N("Noisy", ["z"], ["y"], domain="noise")]
    assert Draws(model(called_twice, functions=[noise_function()])).counts == {"RandomNormalLike": 2}


def test_a_dropout_draws_only_in_training_mode_with_a_positive_ratio():
    def check(name: str) -> None:
        made = training_mode.CASES[name].make()
        assert bool(Draws(made).counts) == TRAINING[name] == bool(load_graph(made).draws)

    check_each(check, list(TRAINING))


def test_every_rewrite_keeps_every_random_draw():
    def check(name: str) -> None:
        made = random_draws.CASES[name].make()
        task = Task(load_graph(made), RULES, AnalyticCost())
        read, rng, state = to_model(task.graph), np.random.default_rng(0), task.initial
        before = drawn(read)
        assert before and Draws(read).counts == Draws(made).counts
        for _ in range(12):
            if not state.matches:
                break
            state = state.follow(state.matches[rng.integers(len(state.matches))])
            after = to_model(state.graph)
            onnx.checker.check_model(after)
            assert drawn(after) == before
            assert set(state.graph.order) == set(state.graph.nodes)
        best = greedy(task.initial, max_steps=20).state.graph
        assert best.hash != task.graph.hash, "no rule fires, so nothing is tested"
        assert drawn(to_model(best)) == before

    check_each(check, [name for name, case in random_draws.CASES.items() if not case.status])


def test_an_unread_random_draw_is_kept():
    graph = load_graph(random_draws.CASES["an-unread-draw"].make())
    best = greedy(Task(graph, RULES, AnalyticCost()).initial, max_steps=20).state.graph
    unread = [node for node in best.nodes.values() if node.draw and not best.is_used(node.outputs[0])]
    assert len(unread) == 1 and "Concat" not in {node.op for node in best.nodes.values()}


def test_no_pattern_matches_a_random_draw():
    rules = RuleSet(tuple(parse("quiet: a draw is its operand\n  RandomNormalLike(x) => x\n", "fusion")))
    graph = load_graph(random_draws.CASES["a"].make())
    assert explain(graph, rules, "quiet")[0] == []


def test_equal_random_draws_stay_apart_in_an_egraph_and_in_its_cheapest_graph():
    for nodes in (two("RandomNormalLike", ["q"]), two("RandomUniform", [], shape=[4, 32], seed=7.0)):
        graph = load_graph(model(nodes))
        egraph = EGraph(graph)
        assert len({egraph.find(node.outputs[0]) for node in egraph.nodes.values() if node.draw}) == 2
        best = lower_bound(Task(graph, RULES, AnalyticCost()), 20.0, max_iterations=2).best
        assert best.hash != graph.hash and len(drawn(to_model(best))) == 2
    unread = load_graph(random_draws.CASES["an-unread-draw"].make())
    best = lower_bound(Task(unread, RULES, AnalyticCost()), 20.0, max_iterations=2).best
    assert len(best.draws) == 1


def test_a_random_draw_is_not_constant_and_not_folded():
    noise = [N("RandomUniform", [], ["e"], shape=[4, 32], seed=7.0), N("Add", ["e", "nil"], ["f"])]
    graph = load_graph(model([*noise, N("Add", ["q", "f"], ["y"])]))
    assert not any(node.constant for node in graph.nodes.values())
    assert [node.op_type for node in to_model(graph).graph.node].count("RandomUniform") == 1


def test_an_operator_whose_body_draws_counts_as_a_draw():
    for nodes in (body_of_if(), body_of_loop()):
        graph = load_graph(model(nodes, weights=random_draws.YES))
        assert nodes[0].op_type in {graph.nodes[node_id].op for node_id in graph.draws} & {"If", "Loop"}
        kept = load_graph(model(nodes, weights=random_draws.YES), bodies=False)
        assert [kept.nodes[node_id].op for node_id in kept.draws] == [nodes[0].op_type]
    assert not load_graph(model([N("Relu", ["q"], ["y"])])).draws
