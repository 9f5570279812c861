"""Test patches and gains of successor graphs: both are derived without a rewrite and compared with the real result."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.random_models.open_model import random_open_model
from benchmarks.random_models.random_model import random_model
from rlflow.common.errors import RLFlowError
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.batched import BatchedState
from rlflow.env.candidates import CandidateEnv, CandidateTable, Patch, node_row, patch_of
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.rewards import relative
from rlflow.env.state import RewriteState, Task
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules
from rlflow.zoo import load
from tests.env.look_alikes import state_of
from tests.suite import slow
from tests.toys.chains import WorstOperator, toy_task
from tests.toys.tiny import tiny_task

REACH = 3
TINY = ("tiny_resnet18", "tiny_inception_v3", "tiny_bert_base", "tiny_vit_base_fused", "tiny_shufflenet_v2")


def start(name: str | int) -> RewriteState:
    """Return the initial state of a zoo model, or of a random model by its seed; a negative seed gives symbolic
    sizes."""
    if isinstance(name, str):
        return tiny_task(name).initial
    if name < 0:
        model, sizes = random_open_model(-name)
        return Task(load_graph(model), load_rules(), AnalyticCost(), sizes=(sizes[0],)).initial
    return Task(load_graph(random_model(name)), load_rules(), AnalyticCost()).initial


def walk(state: RewriteState, steps: int, seed: int = 0) -> Iterator[RewriteState]:
    rng = np.random.default_rng(seed)
    yield state
    for _ in range(steps):
        if not state.matches:
            return
        state = state.follow(state.matches[rng.integers(len(state.matches))])
        yield state


def seen(state: RewriteState) -> dict[int, tuple]:
    """Return node id → (features of the node, ids of the nodes that it reads)."""
    types, graph = state.graph.at(state.task.sizes[0]).types, state.graph
    return {n: (node_row(node, node.reads(), types), graph.sources(node)) for n, node in graph.nodes.items()}


def patched(before: RewriteState, patch: Patch, plan, after: Graph) -> dict[int, tuple]:
    """Return the same features for the graph that the patch makes of the state."""
    new = [before.graph.next_id + node.id for node in plan.added]
    ids = [n for n in new if n in after.nodes] + [n for n in patch.rows.tolist() if n >= 0]
    read = {row: [] for row in range(len(ids))}
    for sender, receiver in zip(patch.senders.tolist(), patch.receivers.tolist(), strict=True):
        read[receiver].append(ids[~sender] if sender < 0 else sender)
    known, replaced = seen(before), set(patch.replaced.tolist())
    rows = [*map(tuple, patch.new.tolist()), *[known[n][0] for n in patch.rows.tolist() if n >= 0]]
    stays = {n: row for n, row in known.items() if n not in replaced}
    return stays | {n: (rows[k], tuple(read[k])) for k, n in enumerate(ids)}


def same(one: dict[int, tuple], other: dict[int, tuple]) -> bool:
    return one.keys() == other.keys() and all(
        one[n][1] == other[n][1] and np.allclose(one[n][0], other[n][0], atol=1e-6) for n in one
    )


def behind(before: Graph, after: Graph, reach: int) -> set[int]:
    """Return the old nodes that lie at most `reach` edges behind the changes of the rewrite."""
    old = {n: before.sources(node) for n, node in before.nodes.items()}
    changed = {n for n, node in after.nodes.items() if old.get(n) != after.sources(node)}
    for _ in range(reach - 1):
        changed |= {n for n, node in after.nodes.items() if changed & set(after.sources(node))}
    return changed & before.nodes.keys()


@pytest.mark.parametrize("name", [TINY[0], 0, 10, -1, *slow(*TINY[1:], 1, 2, -2)], ids=str)
def test_a_patch_turns_the_graph_into_the_rewritten_graph(name):
    """The patched graph has the operators, shapes and edges of the rewritten graph, and the patch has the stated
    reach."""
    compared = 0
    for state in walk(start(name), 3, seed=5):
        for match in state.matches[::4]:
            rule, after = state.task.rules[match.xfer_id], state.follow(match)
            patch = patch_of(state.graph, state.task.sizes[0], rule, match, REACH)
            assert same(patched(state, patch, match.plan, after.graph), seen(after)), rule.name
            copies = {n for n in patch.rows.tolist() if n >= 0}
            assert copies == behind(state.graph, after.graph, REACH), rule.name
            compared += len(patch.new) > 0 and len(copies) > 0
    assert compared


def test_a_patch_omits_new_nodes_without_consumers():
    """An example is a split into slices, one of them unused."""
    fewer = 0
    for match in (matches := start(66).matches):
        patch = patch_of(start(66).graph, {}, load_rules()[match.xfer_id], match, REACH)
        fewer += len(patch.new) < len(match.plan.added)
    assert 0 < fewer < len(matches)


@pytest.mark.parametrize("name", [TINY[2], 4, *slow(*TINY[:2], *TINY[3:], -4)], ids=str)
def test_kept_patches_equal_recomputed_patches(name):
    states = list(walk(start(name), 12, seed=1))
    table, kept = CandidateTable.of(states[0], REACH), 0
    for before, state in zip(states, states[1:], strict=False):
        table = table.after(state)
        anew, known = CandidateTable.of(state, REACH).arrays(state.matches), table.arrays(state.matches)
        for key in anew:
            np.testing.assert_array_equal(anew[key], known[key], key)
        kept += len(set(map(id, before.matches)) & set(map(id, state.matches)))
    assert kept


@pytest.mark.parametrize("name", [TINY[2], 4, *slow(*TINY[:2], *TINY[3:], -3)], ids=str)
def test_kept_gains_equal_recomputed_gains(name):
    """The stored gains equal the decrease of the objective."""
    states = list(walk(start(name), 12, seed=1))
    table, not_zero = CandidateTable.of(states[0], REACH), 0
    for state in states:
        if state is not states[0]:
            table = table.after(state)
        lowered = [state.objective - state.follow(match).objective for match in state.matches]
        percent = 100 * np.array([0, *lowered]) / max(state.task.initial.objective, 1)
        np.testing.assert_allclose(table.gains(state.matches), percent, rtol=1e-5)
        not_zero += np.count_nonzero(percent)
    assert len(states) > 1 and not_zero


def test_no_gain_is_kept_if_only_the_worst_operator_counts():
    """The cost is the cost of the worst operator. A distant rewrite removes the worst operator, and then another match
    gains."""
    costs = {"Relu": 10, "Exp": 20, "Abs": 2, "Neg": 3, "Ceil": 1}
    task = toy_task(["Relu", "Ceil", "Ceil", "Ceil", "Exp"], "Relu(x) => Abs(x)\nExp(x) => Neg(x)", costs)
    state = replace(task, cost=WorstOperator(costs)).initial
    table = CandidateTable.of(state, 1)
    assert table.gains(state.matches).tolist() == [0, 0, 50]
    after = state.follow(state.matches[1])
    assert table.after(after).gains(after.matches).tolist() == [0, 35]


def test_gains_are_shown_on_request_and_computed_once(monkeypatch):
    env = CandidateEnv(GraphRewriteEnv(tiny_task(), relative, 8), REACH, gains=True)
    observation, _ = env.reset()
    assert env.observation_space.contains(observation) and "gains" not in environment().reset()[0]
    best = int(np.argmax(observation["gains"]))
    _, reward, *_ = env.step(observation["actions"][best])
    assert reward == pytest.approx(observation["gains"][best], rel=1e-5)
    followed, follow = [], RewriteState.follow
    monkeypatch.setattr(RewriteState, "follow", lambda *state_and_match: followed.append(1) or follow(*state_and_match))
    env.table.gains(env.unwrapped.state.matches)
    assert not followed


def environment(reach: int | None = REACH, max_steps: int = 8, **options) -> CandidateEnv:
    return CandidateEnv(GraphRewriteEnv(tiny_task(), relative, max_steps, **options), reach)


def test_no_op_is_always_the_first_candidate_and_the_others_are_the_valid_actions():
    env, rng = environment(), np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    for _ in range(8):
        assert env.observation_space.contains(observation)
        valid = env.unwrapped.state.valid_actions()
        np.testing.assert_array_equal(observation["actions"], [valid[-1], *valid[:-1]])
        assert observation["actions"][0].tolist() == [len(env.unwrapped.task.rules), 0]
        assert (np.diff(observation["owners"]) >= 0).all() and observation["owners"][-1] < len(observation["actions"])
        action = observation["actions"][rng.integers(1, len(observation["actions"]))]
        observation, *_, info = env.step(action)
        assert info["valid"]
    observation, reward, terminated, *_ = env.step(env.reset()[0]["actions"][0])
    assert terminated and reward == 0


def test_a_replay_shows_the_same_observations_as_playing():
    env, rng = environment(max_steps=20), np.random.default_rng(2)
    observation, _ = env.reset()
    observations, choices = [observation], []
    for _ in range(5):
        choices.append(int(rng.integers(1, len(observation["actions"]))))
        observation, *_ = env.step(observation["actions"][choices[-1]])
        observations.append(observation)
    actions = [observations[k]["actions"][choice].tolist() for k, choice in enumerate(choices)]
    shown = list(environment(max_steps=1).replayed(actions))  # The replay ignores the step limit.
    assert [choice for _, choice in shown] == [*choices, 0]
    for (mine, _), theirs in zip(shown, observations, strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine:
            np.testing.assert_array_equal(mine[key], theirs[key], key)


def test_a_masked_action_is_no_candidate():
    env = environment(max_nodes=len(tiny_task().initial.arrays().ops))
    observation, _ = env.reset()
    allowed = env.env._observation()["location_masks"]
    assert 1 < len(observation["actions"]) == allowed.sum() < len(env.unwrapped.state.valid_actions())
    assert allowed[tuple(observation["actions"].T)].all()


def test_candidates_without_a_reach_are_whole_graphs():
    observation, _ = environment(None).reset()
    task = tiny_task()
    states = [task.initial, *map(task.initial.follow, task.initial.matches)]
    sizes = [len(state.graph.nodes) for state in states]
    np.testing.assert_array_equal(np.bincount(observation["owners"]), sizes)
    owners = observation["owners"]
    assert (owners[observation["senders"]] == owners[observation["receivers"]]).all()
    np.testing.assert_array_equal(np.bincount(observation["replacers"])[1:], sizes[0])


def test_batched_rewrites_are_refused():
    env = GraphRewriteEnv(tiny_task())
    env.initial = BatchedState(tiny_task().initial)
    with pytest.raises(RLFlowError, match="candidates are single rewrites"):
        CandidateEnv(env, REACH)


def test_symbolic_sizes_are_observed_at_their_typical_values():
    model = load("tiny_resnet18")
    model.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_value")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    seen_at = []
    for size in (2, 6):
        state = state_of(load_graph(model), load_rules(), {"n": size})
        seen_at.append(CandidateTable.of(state, REACH).arrays(state.matches)["nodes"])
    # The first node reads the image, whose size depends on n.
    assert seen_at[1][0, 1] - seen_at[0][0, 1] == pytest.approx(4 / 4096)
    assert (seen_at[1] >= seen_at[0]).all()
