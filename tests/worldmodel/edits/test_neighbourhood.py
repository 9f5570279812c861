"""Test neighbourhood keys of nodes, and costs that depend on the neighbourhood."""

from collections import defaultdict

import numpy as np
import pytest

from rlflow.costs import FREE
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from tests.suite import at_night, slow
from tests.toys.systems import (
    SIGNS_AND_PRODUCTS,
    fitted,
    onnx_model,
    random_episodes,
    said,
    signs_and_products,
    task_of,
)
from tests.toys.tiny import tiny_task
from worldmodel.edits.cost_model import REACH, CostModel, KeyedMeans, NodeCosts, RewriteGains, learn_match_gains
from worldmodel.edits.dream_states import DreamStates, rewrite
from worldmodel.edits.logged_episodes import by_grounding, ground_episode, logged_edits
from worldmodel.edits.neighbourhood import changed_neighbourhoods, match_keys, neighbourhoods
from worldmodel.edits.searchable_dream import SearchableDream
from worldmodel.edits.simulator import UNKNOWN_EFFECT


class Fused(AnalyticCost):
    """A cost model with fusion: a product that only one sum reads is free, and a sign that reads a sum costs three
    times as much."""

    reach = 1

    def node_cost(self, graph, node):
        cost = super().node_cost(graph, node)
        readers = [graph.nodes[n].op for n in graph.consumers.get(node.outputs[0], ())]
        if node.op == "Mul" and readers == ["Add"]:
            return FREE
        makers = [graph.nodes[graph.producers[t]].op for t in node.inputs if t in graph.producers]
        return cost._replace(runtime_ps=3 * cost.runtime_ps) if node.op == "Neg" and "Add" in makers else cost


def with_cost(task: Task, cost) -> Task:
    return Task(task.graph, task.rules, cost, task.max_locations)


def keys_of_all(states: DreamStates) -> dict[tuple[int, int], tuple]:
    """Return (state, node) → the node's keys, one for each width."""
    rows, tensors = np.nonzero(states.producer >= 0)
    result = neighbourhoods(states, rows, states.producer[rows, tensors].astype(np.int64))
    assert len(result.nodes) == len(rows)
    return {
        (r, n): tuple(k)
        for r, n, k in zip(result.rows.tolist(), result.nodes.tolist(), result.keys.T.tolist(), strict=True)
    }


@pytest.mark.parametrize("name", ["tiny_squeezenet1_1", *slow("tiny_bert_base")])
def test_a_rewrite_changes_only_the_neighbourhood_keys_that_it_returns(name):
    task = tiny_task(name)
    episodes = random_episodes(task, 6, 12)
    model = fitted(episodes, task)
    edits, near, all_of_them = logged_edits(episodes), 0, 0
    for index, numbers in by_grounding(model.groundings, edits).items():
        grounded = [ground_episode(index, edits[k]) for k in numbers]
        states = DreamStates(index, [result.nodes[0] for result in grounded], len(task.rules) + 1)
        for t in range(8):
            matches = np.array([int(result.matches[t]) if t < len(result.matches) else -1 for result in grounded])
            rows, before = np.flatnonzero(matches >= 0), keys_of_all(states)
            changes = changed_neighbourhoods(rewrite(states, rows, matches[rows]))
            now = keys_of_all(states)
            changed = {cell for cell, keys in now.items() if before.get(cell) != keys}
            assert changed <= {*zip(changes.rows.tolist(), changes.nodes.tolist(), strict=True)}
            assert all(
                now[r, n] == tuple(k)
                for r, n, k in zip(changes.rows.tolist(), changes.nodes.tolist(), changes.keys.T.tolist(), strict=True)
            )
            near, all_of_them = near + len(changes.nodes), all_of_them + len(now)
    assert 0 < near < all_of_them / 2


def test_keys_of_a_width_differ_exactly_if_neighbourhoods_differ_within_the_width():
    """In a chain of signs, two nodes differ only in their distances to the two ends."""
    lines = "\n".join(f"t{k + 1} = Neg(t{k})" for k in range(20))
    task = task_of(onnx_model(lines, {"t0": (4,)}, "t20"), SIGNS_AND_PRODUCTS)
    index = next(
        iter(
            by_grounding(
                fitted(random_episodes(task, 3, 3), task).groundings, edits := logged_edits(random_episodes(task, 1, 1))
            )
        )
    )
    chain = ground_episode(index, edits[0]).nodes[0]
    states = DreamStates(index, [chain], len(task.rules) + 1)
    keys = keys_of_all(states)
    signs = [n for n in chain.tolist() if not index.is_output.values[n]]
    for width in range(1, REACH + 1):
        of_width = [keys[0, node][width - 1] for node in signs]
        for i, one in enumerate(of_width):
            for j, other in enumerate(of_width):
                ends = [
                    (min(k, width), min(len(signs) - k, width + 1)) for k in (i, j)
                ]  # The position behind the last sign is the output of the graph.
                assert (one == other) == (ends[0] == ends[1])


def test_rewards_that_depend_on_neighbourhoods_are_learnt_exactly():
    task = with_cost(task_of(signs_and_products(), SIGNS_AND_PRODUCTS), Fused())
    model = fitted(random_episodes(task, at_night(300, 150), 6), task)
    held_out = random_episodes(task, at_night(40, 20), 6, seed=1)
    predicted = said(model, held_out, 1)
    sure = predicted.uncertainty == 0
    scale = np.abs(predicted.real_rewards).max()
    assert sure.mean() > 0.8 and np.abs(predicted.rewards - predicted.real_rewards)[sure].max() < 1e-6 * scale
    model.costs.neighbourhoods = []
    assert said(model, held_out, 1).reward_error > 0.1 * scale


def test_a_graph_costs_the_same_on_every_path_that_reaches_it():
    """Check that a graph has the same cost on every path, also where its nodes were removed and made again."""
    task = with_cost(task_of(signs_and_products(), SIGNS_AND_PRODUCTS), Fused())
    state = SearchableDream(fitted(random_episodes(task, 40, 6), task), task.initial, UNKNOWN_EFFECT).start
    random, objectives = np.random.default_rng(0), {}
    for _ in range(200):
        objectives.setdefault(state.hash, []).append(state.objective)
        matches = sorted(state.matches, key=lambda match: match.number)
        state = state.follow(matches[random.integers(len(matches))])
    again = [of_graph for of_graph in objectives.values() if len(of_graph) > 1]
    # Each step rounds to whole picoseconds.
    assert len(again) > 10 and all(max(of_graph) - min(of_graph) <= len(of_graph) for of_graph in again)


def test_no_neighbourhood_costs_are_learnt_if_neighbourhoods_do_not_matter():
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    assert fitted(random_episodes(task, 20, 6), task).costs.neighbourhoods == []


def test_the_widest_known_neighbourhood_decides_the_cost_of_a_node():
    around = [
        KeyedMeans(np.array([1, 2], np.uint32), np.array([10.0, 20.0])),
        KeyedMeans(np.array([5, 5], np.uint32), np.array([28.0, 32.0])),
    ]
    costs = CostModel(NodeCosts({}, {}), around, RewriteGains(np.zeros((0, 4))), 7.0)
    now, before = (
        np.array([[1, 1, 1, 2, 3, 3], [5, 5, 6, 6, 6, 6]], np.uint32),
        np.array([[1, 1, 1, 1, 4, 0], [5, 6, 6, 6, 6, 0]], np.uint32),
    )
    runtime, spread, known = costs(np.full(6, 99.0), now, np.arange(40.0, 46.0), before)
    assert runtime.tolist() == [40, 30, 42, 20, 44, 99] and spread.tolist() == [2, 2, 0, 0, 7, 7]  # 99: new
    assert known.tolist() == [True, True, False, False, False, False]


def test_few_wider_neighbourhoods_take_part_of_their_spread_from_all_keys():
    keys, wider = np.array([1, 1, 1, 2], np.uint32), np.array([11, 11, 12, 21], np.uint32)
    means = KeyedMeans(keys, np.array([8.0, 12.0, 20.0, 40.0]), wider)
    # Relative variance of the neighbourhood means 10 and 20 around 15; key 2 has one neighbourhood.
    shared = (5**2 + 5**2) / 15**2
    expected = [(50 + shared * 15**2) / 2 * 1.5, shared * 40**2 * 2]
    assert np.allclose(means.spread**2, expected)
    assert KeyedMeans(keys, np.array([9.0, 9.0, 9.0, 40.0]), wider).spread.max() == 0


def test_a_dream_starts_from_the_runtimes_that_the_real_state_shows():
    task = with_cost(task_of(signs_and_products(), SIGNS_AND_PRODUCTS), Fused())
    model, episodes = fitted(random_episodes(task, 10, 6), task), random_episodes(task, 1, 6, seed=1)
    (log,) = logged_edits(episodes)
    index = next(iter(by_grounding(model.groundings, [log])))
    episode = ground_episode(index, log)
    for t, nodes in enumerate(episode.nodes):
        states = model.simulator(index, [nodes], [episode.costs(t)]).states
        paid = states.paid[0, index.primary_output.values[nodes]]
        assert (paid == episode.costs(t)).all() and paid.sum() == pytest.approx(1e9 * episodes[0].costs[t])  # ms


def test_nodes_without_known_neighbourhoods_keep_their_runtime_or_take_their_signatures():
    """Check that a new node does not inherit a runtime, even if it makes the tensor of a removed node."""
    task = with_cost(task_of(signs_and_products(), SIGNS_AND_PRODUCTS), Fused())
    model, episodes = fitted(random_episodes(task, 20, 6), task), random_episodes(task, 4, 6)
    nothing = KeyedMeans(np.zeros(0, np.uint32), np.zeros(0))
    model.costs.neighbourhoods = [nothing] * REACH
    logs, took_over = logged_edits(episodes), 0
    index = next(iter(by_grounding(model.groundings, logs)))
    for episode in (ground_episode(index, log) for log in logs):
        for t in np.flatnonzero(episode.matches >= 0).tolist():
            simulator, outputs = model.simulator(index, [episode.nodes[t]], [episode.costs(t)]), index.primary_output
            simulator.step(np.zeros(1, np.int64), np.array([index.representative(int(episode.matches[t]))]))
            kept = np.intersect1d(episode.nodes[t], episode.nodes[t + 1])
            new = np.setdiff1d(episode.nodes[t + 1], kept)
            paid = simulator.states.paid[0, outputs.values]
            before = dict(zip(episode.nodes[t].tolist(), episode.costs(t).tolist(), strict=True))
            assert paid[kept].tolist() == [before[node] for node in kept.tolist()]
            assert (paid[new] == simulator.single_cost(new)).all()
            took_over += np.isin(outputs.values[new], outputs.values[episode.nodes[t]]).any()
    assert took_over


def test_match_keys_are_equal_exactly_if_rule_pattern_signature_and_neighbourhood_are():
    task = tiny_task("tiny_squeezenet1_1")
    model, logs = fitted(random_episodes(task, 6, 8), task), logged_edits(random_episodes(task, 2, 8))
    index = next(iter(by_grounding(model.groundings, logs)))
    grounding, known = index.grounding, defaultdict(list)
    for nodes in (nodes for log in logs for nodes in ground_episode(index, log).nodes):
        states = DreamStates(index, [nodes], len(task.rules) + 1, REACH)
        near = neighbourhoods(states, *states.cells())
        states.keys[near.rows, index.primary_output.values[near.nodes]] = near.keys.T
        of_node = dict(zip(near.nodes.tolist(), near.keys.T.tolist(), strict=True))
        matches = np.flatnonzero(states.open[0] == 0)
        keys = match_keys(states, np.zeros(len(matches), np.int64), matches)
        for match, of_match in zip(matches.tolist(), keys.T.tolist(), strict=True):
            pattern, of = grounding.matches[match].pattern, grounding.matches[match].nodes
            parts = [int(index.rule.values[match])], [pattern], [index.signature_hash.values[n].item() for n in of]
            parts += tuple([of_node[n][width] for n in of] for width in range(len(of_match) - 3))
            for level, key in enumerate(of_match):
                known[level].append((str(parts[1:2] * (level > 0) + parts[level : level + 1]), key))
    for pairs in known.values():
        assert len(set(pairs)) == len({key for _, key in pairs}) == len({part for part, _ in pairs})


def test_the_last_known_key_gives_the_gain_and_its_contexts_the_uncertainty():
    keys = np.array([[1, 1, 1, 1, 2], [5, 5, 5, 6, 7]], np.uint32)
    tables = learn_match_gains(keys, np.array([4.0, 4.0, 4.0, 10.0, 3.0]))
    costs = CostModel({}, [], RewriteGains(np.zeros((0, 4))), 0.0, match_gains=tables)
    gain, spread = costs.gain_of(np.array([[1, 1, 1, 2, 3], [5, 6, 8, 7, 5]], np.uint32))
    assert gain.tolist() == [4.0, 10.0, 5.5, 3.0, 4.0]
    variance = np.var([4, 4, 4, 10, 3])
    of_rule = (3**2 + 3**2 + variance) / 2 * 1.5  # The contexts 5 and 6 have the means 4 and 10.
    alone = variance * 2  # Rule 2 has one context.
    assert np.allclose(spread[:4] ** 2, [of_rule / 3 * (1 + 1 / 3), of_rule * 2, of_rule, alone * 2])
    nothing = costs.gain_of(np.array([[9], [9]], np.uint32))
    assert nothing[0] == 0 and np.isinf(nothing[1])
