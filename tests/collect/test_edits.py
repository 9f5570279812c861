"""Test edits: they record an episode completely, and a damaged array of edits is refused or harmless."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.random_models.random_model import random_model
from rlflow.collect.edits import OUTPUT, Edit, first_edit, pack, unpack
from rlflow.collect.episodes import Episode, read_shard, write_shard
from rlflow.collect.rollouts import play_random, record
from rlflow.common.errors import RLFlowError
from rlflow.costs import GraphCost
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.rewards import make_reward
from rlflow.env.state import RewriteState, Task
from rlflow.graph.ir import ABSENT, Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules
from rlflow.rules.match import attributes_of
from tests.suite import at_night
from tests.toys.tiny import tiny_task

DAMAGED = "^the edits of an episode are damaged, or not of format 2; collect the episodes again$"
TINY = ("tiny_squeezenet1_1", "tiny_bert_base")


def random_task(seed: int) -> Task:
    return Task(load_graph(random_model(seed)), load_rules(), AnalyticCost())


def walk(task: Task, steps: int, seed: int) -> tuple[list[RewriteState], list[tuple[int, int]]]:
    """Return the states and actions of a random episode that ends by NO-OP when its steps are played or no rule
    matches."""
    states, actions, rng = [task.initial], [], np.random.default_rng(seed)
    while len(actions) < steps and len(valid := states[-1].valid_actions()[:-1]):
        actions.append(tuple(valid[rng.integers(len(valid))].tolist()))
        states.append(states[-1].apply(*actions[-1]))
    return states, [*actions, (task.no_op, 0)]


def recorded(states: list[RewriteState], actions: list[tuple[int, int]]) -> Episode:
    return record(states[0].task, make_reward("relative", 0, 0), [*states, states[-1]], actions)


def anew(task: Task, graph: Graph) -> RewriteState:
    """Return the state of a graph without anything cached from an earlier state."""
    return RewriteState(task, graph, GraphCost.of(task.cost, graph), None, ({}, frozenset(graph.nodes)))


@pytest.fixture(scope="module")
def walks() -> list[tuple]:
    random = [walk(random_task(seed), 8, seed) for seed in range(at_night(12, 4))]
    return [walk(tiny_task(name), 8, 0) for name in TINY] + random


# -- what they record --------------------------------------------------------------------------------


def follow(edits: list[Edit]):
    """Yield the nodes by id, the tensors by id and the matches after each edit."""
    nodes, tensors, matches = {}, {}, []
    for edit in edits:
        for node in edit.removed:
            del nodes[node]
        nodes |= {node.id: node for node in edit.nodes}
        tensors |= {tensor.id: tensor for tensor in edit.tensors}
        for match in edit.lost:
            matches.remove(match)
        matches += edit.appeared
        yield dict(nodes), dict(tensors), sorted(matches)


def test_following_the_edits_gives_every_node_and_match_of_every_state(walks):
    for states, actions in walks:
        edits, _ = unpack(recorded(states, actions).edits)
        assert len(edits) == len(actions) + 1
        for (nodes, tensors, matches), state in zip(follow(edits), [*states, states[-1]], strict=True):
            graph, real = state.graph, anew(state.task, state.graph)
            assert {n: (node.inputs, node.outputs) for n, node in graph.nodes.items()} == {
                n: (node.inputs, node.outputs) for n, node in nodes.items() if node.operator != OUTPUT}  # fmt: skip
            assert [nodes[-2 - k].inputs for k in range(len(graph.outputs))] == [(t,) for t in graph.outputs]
            assert sum(node.runtime_ps for node in nodes.values()) == real.cost.runtime_ps
            assert nodes == {node.id: node for node in first_edit(real).nodes}
            assert matches == sorted(first_edit(real).appeared)
            for tensor in first_edit(real).tensors:
                assert tensors[tensor.id] == tensor


def test_the_operator_of_a_node_is_its_type_and_attributes(walks):
    """An operator is the same whether a file states the default attributes or not."""
    operators: dict[int, set] = {}
    for states, _ in walks:
        for node in first_edit(states[0]).nodes:
            if node.operator != OUTPUT:
                real = states[0].graph.nodes[node.id]
                attributes = sorted(attributes_of(states[0].graph, real)[0].items())
                operators.setdefault(node.operator, set()).add(
                    (real.op, real.domain, repr(attributes), len(real.captured))
                )
    assert all(len(keys) == 1 for keys in operators.values())
    keys = [key for result in operators.values() for key in result]
    assert len(keys) == len(set(keys)) > 20


def test_an_episode_records_the_match_of_each_action(walks):
    for states, actions in walks:
        episode = recorded(states, actions)
        _, taken = unpack(episode.edits)
        assert taken[-1] is None
        for (xfer_id, location), state, result in zip(actions[:-1], states, taken, strict=False):
            match = state.table.location(xfer_id, location)
            assert (result.xfer_id, result.nodes) == (xfer_id, match.nodes)
            assert set(result.operands) <= {
                t for n in match.nodes for t in (*state.graph.nodes[n].inputs, *state.graph.nodes[n].outputs)
            }


def test_new_nodes_are_recorded_in_one_canonical_order(walks):
    """New nodes come in one order: each after the nodes that it reads, by id, and before old nodes with changed inputs.
    The record of a rewrite is therefore unique."""
    for states, actions in walks:
        edits, _ = unpack(recorded(states, actions).edits)
        for edit, before in zip(edits[1:], states, strict=False):
            new = [node.id not in before.graph.nodes for node in edit.nodes if node.operator != OUTPUT]
            assert new == sorted(new, reverse=True)
            ids = [node.id for node in edit.nodes[: sum(new)]]
            assert ids == sorted(ids)
            made = {t for node in edit.nodes[: sum(new)] for t in node.outputs} - before.graph.types.keys()
            for node in edit.nodes[: sum(new)]:
                assert not made.intersection(node.inputs)
                made.difference_update(node.outputs)


def test_rewired_tensors_lose_all_consumers_to_their_replacements(walks):
    rewired = 0
    for states, actions in walks:
        edits, _ = unpack(recorded(states, actions).edits)
        for edit, (before, after) in zip(edits[1:], pairwise(states), strict=False):
            for old, new in edit.rewired:
                rewired += 1
                assert (
                    old in before.graph.types and not after.graph.consumers.get(old) and old not in after.graph.outputs
                )
                readers = set(before.graph.consumers.get(old, ())) & after.graph.nodes.keys()
                assert all(new in after.graph.nodes[n].inputs for n in readers)
    assert rewired > 0


# -- as one array ----------------------------------------------------------------------------------


def test_packed_edits_are_unpacked_unchanged(walks):
    for states, actions in walks:
        packed = recorded(states, actions).edits
        assert packed.dtype == np.int64 and packed.ndim == 1
        edits, taken = unpack(packed)
        assert edits[0] == first_edit(states[0]) and np.array_equal(pack(edits, taken), packed)


def small() -> np.ndarray:
    states, actions = walk(random_task(3), 3, 3)
    assert len(actions) > 2
    return recorded(states, actions).edits


def test_a_cut_or_longer_array_is_refused():
    packed = small()
    assert packed[-3] == -1  # The match of NO-OP: no rule, no nodes, no operands.
    for cut in (*range(0, len(packed), 7), len(packed) - 1):
        with pytest.raises(RLFlowError, match=DAMAGED):
            unpack(packed[:cut])
    with pytest.raises(RLFlowError, match=DAMAGED):
        unpack(np.append(packed, 0))


def test_a_replaced_number_is_refused_or_read_as_consistent_edits():
    """Whatever number is written, reading raises nothing but RLFlowError, and edits refer only to nodes that appeared
    before."""
    packed, refused = small(), 0
    for position in range(len(packed)):
        for wrong in (-1, 0, 10**6, 2**62, -(2**63), int(packed[position]) + 1):
            damaged = packed.copy()
            damaged[position] = wrong
            try:
                edits, taken = unpack(damaged)
            except RLFlowError as error:
                refused += 1
                assert str(error).startswith("the edits of an episode are damaged, or not of format")
                continue
            assert len(taken) == len(edits) - 1 >= 0
            present = set()
            for (nodes, tensors, _), edit, match in zip(follow(edits), edits, [None, *taken], strict=True):
                assert match is None or (present.issuperset(match.nodes) and match.operands)
                present = set(nodes)
                named = {t for node in nodes.values() for t in (*node.inputs, *node.outputs)}
                assert named <= tensors.keys() | {ABSENT} and all(
                    set(node.outputs) - {ABSENT} for node in nodes.values()
                )
                assert all(present.issuperset(m.nodes) and m.operands and m.xfer_id >= 0 for m in edit.appeared)
                assert {t for pair in edit.rewired for t in pair} <= tensors.keys()
    assert refused > 3 * len(packed)


@pytest.mark.parametrize("wrong", [
    [], [0], [-1], [2**62], [1, 2**62], [1, 0, 2**62], [1, 0, 0, 2**62], [1, 0, 0, 0, 2**62], [1, 0, 0, 0, 0, 2**62],
    [1, 0, 0, 0, 0, 0, 2**62], [1, 0, 0, 1, 5, 5, 5, 2**62], [2, *[0] * 12, 0, 2**62],
])  # fmt: skip
def test_a_damaged_length_allocates_no_memory(wrong):
    tracemalloc.start()
    try:
        with pytest.raises(RLFlowError, match=DAMAGED):
            unpack(np.array(wrong, np.int64))
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("wrong", [np.ones(5), np.ones((3, 3), np.int64), np.array(["a"]), np.array(5)])
def test_an_array_of_another_kind_is_refused(wrong):
    with pytest.raises(RLFlowError, match=DAMAGED):
        unpack(wrong)


# -- on disk ---------------------------------------------------------------------------------------


def test_a_shard_keeps_the_edits(tmp_path):
    task, reward = tiny_task("tiny_squeezenet1_1"), make_reward("relative", 0, 0)
    episodes = [play_random(task, reward, 5, np.random.default_rng(k), k) for k in range(3)]
    without = [play_random(task, reward, 5, np.random.default_rng(k), k) for k in range(3)]
    for episode in without:
        episode.edits = None
    write_shard(tmp_path / "with.npz", episodes)
    for episode, back in zip(episodes, read_shard(tmp_path / "with.npz"), strict=True):
        assert np.array_equal(back.edits, episode.edits) and back.edits.dtype == np.int64
    write_shard(tmp_path / "without.npz", without)
    assert all(back.edits is None for back in read_shard(tmp_path / "without.npz"))


