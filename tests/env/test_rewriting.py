import warnings

import gymnasium as gym
import numpy as np
import onnx
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlflow.common.errors import RLFlowError
from rlflow.common.task import location_masks
from rlflow.costs import GraphCost
from rlflow.costs.analytic import AnalyticCost
from rlflow.env import observation as observed
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.observation import arrays as arrays_of
from rlflow.env.rewards import INVALID_REWARD, make_reward
from rlflow.env.state import RewriteState, Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.graph.shapes import SHAPE_VALUE_LIMIT
from rlflow.optimisation.validate import validate
from rlflow.rules.language import RuleSet, families, load_rules, parse
from rlflow.tasks.rewriting import RewritingSpec
from rlflow.zoo import load
from tests.suite import at_night, slow
from tests.toys.tiny import tiny_task

MODELS = ["tiny_squeezenet1_1", "tiny_resnet50", "tiny_bert_base", "tiny_inception_v3"]


def same(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(
        left[k].dtype == right[k].dtype and np.array_equal(left[k], right[k]) for k in left
    )


def random_walk(env: GraphRewriteEnv, steps: int, seed: int) -> list[tuple[int, int]]:
    """Play random rewrites without NO-OP and return them."""
    rng, played = np.random.default_rng(seed), []
    for _ in range(steps):
        masks = env._observation()["location_masks"][:-1]
        actions = np.argwhere(masks)
        if not len(actions):
            break
        action = tuple(int(a) for a in actions[rng.integers(len(actions))])
        env.step(action)
        played.append(action)
    return played


# -- the contract of Gymnasium ---------------------------------------------------------------------


@pytest.fixture
def registered():
    """Yield a function that registers an environment of a task for gym.make and returns its name, for one test."""

    def register(task: Task) -> str:
        gym.register("RLFlowTest-v0", entry_point=lambda **kwargs: GraphRewriteEnv(task, **kwargs))
        return "RLFlowTest-v0"

    yield register
    gym.registry.pop("RLFlowTest-v0", None)


@pytest.mark.parametrize("name", ["tiny_squeezenet1_1", "tiny_bert_base_fused"])
def test_gymnasiums_checker_accepts_the_environment_without_warnings(name, registered):
    env = gym.make(registered(tiny_task(name, 20)), max_steps=10, disable_env_checker=True).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=False)


def test_gymnasium_makes_vectors_of_the_environment(registered):
    task = tiny_task("tiny_squeezenet1_1", 10)
    vector = SyncVectorEnv([lambda: GraphRewriteEnv(task, max_steps=3)] * 2)
    observation, infos = vector.reset(seed=1)
    assert observation["location_masks"].shape == (2, len(task.rules) + 1, 10)
    assert infos["cost"].tolist() == [task.initial.runtime_ms] * 2
    no_op = np.array([[task.no_op, 0]] * 2)
    _, rewards, terminated, truncated, _ = vector.step(no_op)
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([0, 0], [True, True], [False, False])
    made = gym.make_vec(registered(task), num_envs=2, vectorization_mode="sync", max_steps=3)
    assert made.reset(seed=1)[0]["ops"].shape[0] == 2


def test_render_names_the_gain_and_the_rules():
    env = GraphRewriteEnv(tiny_task(), render_mode="ansi")
    env.reset()
    assert (
        env.render().startswith("step 0:") and env.task.rules[int(env.state.valid_actions()[0][0])].name in env.render()
    )
    assert GraphRewriteEnv(tiny_task()).render() is None


# -- actions and masks -----------------------------------------------------------------------------


@pytest.mark.parametrize("walk", [3, *slow(0)])
@pytest.mark.parametrize("name", ["tiny_squeezenet1_1", *slow("tiny_resnet18")])
def test_masks_allow_exactly_the_actions_that_step_accepts(name, walk):
    env = GraphRewriteEnv(tiny_task(name, 8), max_steps=100)
    env.reset()
    random_walk(env, walk, seed=walk)
    saved, before = env.save_state(), env._observation()
    n, limit = env.action_space.nvec
    for xfer_id in range(n):
        for location in range(limit):
            allowed = before["location_masks"][xfer_id, location]
            observation, reward, terminated, truncated, info = env.step((xfer_id, location))
            assert info["valid"] == bool(allowed), (xfer_id, location)
            assert terminated == (allowed and xfer_id == n - 1) and not truncated
            if not allowed:
                assert reward == INVALID_REWARD == -100.0 and info["rule"] == ""
                assert same(observation, before)
                assert env.state.graph.hash == saved[0].graph.hash and info["cost"] == saved[0].runtime_ms
            elif xfer_id < n - 1:
                assert info["rule"] == env.task.rules[xfer_id].name
                assert env.state.graph.hash != saved[0].graph.hash
            else:
                assert reward == 0.0 and same(observation, before)
            env.restore_state(saved)
    assert np.array_equal(before["xfer_mask"], before["location_masks"].any(axis=1))


def test_no_op_ends_at_any_time_and_its_only_location_is_0():
    env = GraphRewriteEnv(tiny_task(), max_steps=1)
    env.reset()
    assert env._observation()["location_masks"][-1].sum() == env._observation()["location_masks"][-1, 0] == 1
    assert env.step((env.task.no_op, 0))[1:4] == (0.0, True, False)
    env.reset()
    assert env.step((env.task.no_op, 1))[1:4] == (-100.0, False, True)


def test_out_of_range_actions_are_invalid():
    env = GraphRewriteEnv(tiny_task())
    env.reset()
    for action in ((-1, 0), (0, -1), (env.task.no_op + 1, 0), (0, 10**6)):
        assert env.step(action)[1] == -100.0


def test_an_episode_is_truncated_after_max_steps_including_invalid_ones():
    env = GraphRewriteEnv(tiny_task(), max_steps=3)
    env.reset()
    ends = [env.step((0, 10**6))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    env.reset()
    assert env.step((0, 10**6))[2:4] == (False, False)


def test_action_masks_are_the_rules_then_the_union_of_their_locations():
    env = GraphRewriteEnv(tiny_task("tiny_resnet18", 12))
    env.reset()
    masks, observation = env.action_masks(), env._observation()
    n = len(env.task.rules)
    assert masks.dtype == bool and masks.shape == (n + 1 + 12,) == (env.action_space.nvec.sum(),)
    assert np.array_equal(masks[: n + 1], observation["xfer_mask"])
    assert masks[n]
    longest = env.state.counts.max()
    assert np.array_equal(masks[n + 1 :], np.arange(12) < max(longest, 1))


@pytest.mark.parametrize("moves", ["single", "batched"])
def test_a_graph_without_nodes_offers_only_to_stop(moves):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] x) {}')
    env = GraphRewriteEnv(Task(load_graph(model), load_rules(), AnalyticCost(), moves=moves))
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation) and info["cost"] == 0
    assert observation["n_node"] == len(env.state.arrays().ops) and not env.state.graph.nodes
    assert not env.candidates() and observation["xfer_mask"].nonzero()[0].tolist() == [len(env.task.rules)]
    assert env.step((0, 0))[1] == INVALID_REWARD
    observation, reward, terminated, *_ = env.step((len(env.task.rules), 0))
    assert env.observation_space.contains(observation) and terminated and reward == 0


@pytest.mark.parametrize("limits", [{}, {"max_nodes": 400, "max_edges": 900}])
def test_an_observation_holds_the_graph_of_the_state_and_then_zeros(limits):
    env = GraphRewriteEnv(tiny_task("tiny_resnet18"), **limits)
    env.reset()
    random_walk(env, 3, seed=0)
    observation, arrays = env._observation(), env.state.arrays()
    assert observation["n_node"] == len(arrays.ops) and observation["n_edge"] == len(arrays.senders)
    for name, values in arrays._asdict().items():
        size = len(values)
        assert np.array_equal(observation[name][:size], values) and not observation[name][size:].any()
        assert name == "globals" or len(observation[name]) > size


def test_no_rule_shows_more_locations_than_the_limit():
    all_counts = np.array([len(result) for result in tiny_task("tiny_inception_v3").initial.table.locations])
    assert all_counts.max() > 3
    env = GraphRewriteEnv(tiny_task("tiny_inception_v3", 3))
    observation, _ = env.reset()
    assert env.action_space.nvec[1] == 3
    assert np.array_equal(observation["location_masks"][:-1].sum(axis=1), np.minimum(all_counts, 3))
    xfer_id = int(all_counts.argmax())
    assert env.step((xfer_id, 3))[1] == -100.0
    assert env.step((xfer_id, 2))[4]["valid"]


def growing_rules() -> RuleSet:
    """Return one rule that can enlarge a graph without end."""
    rules = parse("grow: for a test\n  Relu(x) => Relu(Relu(x))\n", "growth")
    return RuleSet(tuple(rules), "growth")


@pytest.mark.parametrize("room", [0, 1, 3])
def test_masks_keep_the_graph_within_the_padding(room):
    task = tiny_task("tiny_resnet18")
    task = Task(task.graph, growing_rules(), task.cost, 20)
    nodes = len(task.initial.arrays().ops)
    env = GraphRewriteEnv(task, max_steps=1000, max_nodes=nodes + room)
    observation, _ = env.reset()
    for played in range(room + 1):
        assert env.observation_space.contains(observation)
        masks = observation["location_masks"]
        counts = masks.sum(axis=1)
        assert np.array_equal(masks, np.arange(masks.shape[1]) < counts[:, None])  # As docs/ARCHITECTURE.md says.
        if played == room:
            assert not masks[:-1].any() and masks[-1, 0] and not env.candidates()
            assert env.state.counts.sum() > 0 and env.step((0, 0))[1] == -100.0
            break
        observation, reward, *_ = env.step((0, 0))
        assert reward != -100.0
        assert observation["n_node"][0] == nodes + played + 1


def test_masks_keep_the_graph_within_the_padding_if_an_action_makes_many_rewrites():
    lines = "\n".join(f"y{k} = Relu (x{k})" for k in range(8))
    names = [", ".join(f"float[4] {name}{k}" for k in range(8)) for name in "xy"]
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({names[0]}) => ({names[1]}) {{\n{lines}\n}}'
    )
    rules = parse("grow: for a test\n  Relu(x) => Relu(Relu(Relu(Relu(x))))\n", "growth")
    task = Task(load_graph(model), RuleSet(tuple(rules), "growth"), AnalyticCost(), 20, moves="batched")
    for room in (20, 24, 30):  # a move adds three operators to each of eight
        env = GraphRewriteEnv(task, max_nodes=len(task.initial.arrays().ops) + room)
        env.reset()
        assert env.state.counts.tolist() == [1] and env.action_masks()[0] == (room >= 24)
        valid = env.step((0, 0))[-1]["valid"]
        assert valid == (room >= 24)


def test_all_normalisations_can_be_folded_within_the_usual_padding():
    env = GraphRewriteEnv(tiny_task("resnet18"), max_steps=1000)
    fold = [rule.name for rule in env.task.rules].index("conv-batchnorm")
    env.reset()
    for _ in range(int(env.state.counts[fold])):
        assert env.step((fold, 0))[-1]["valid"]
    observation, limit = env.step((fold, 0))[0], env.encoding_spec.max_locations  # An invalid action changes nothing.
    assert env.state.counts[fold] == 0 and len(env.state.arrays().ops) > 2 * len(env.initial.arrays().ops)
    assert np.array_equal(observation["location_masks"][:-1].sum(axis=1), np.minimum(env.state.counts, limit))


def test_without_the_graph_no_action_is_masked_for_its_size():
    task = tiny_task("tiny_resnet18")
    task = Task(task.graph, growing_rules(), task.cost, 20)
    environments = [
        GraphRewriteEnv(task, max_steps=300, with_graph=False),
        RewritingSpec("tiny_resnet18").make_env(task, 300),  # the environment of controllers
    ]
    limit = GraphRewriteEnv(task).max_nodes  # The padding of observations with the graph.
    for env in environments:
        env.reset()
        while len(env.state.arrays().ops) <= limit:
            observation, _, _, truncated, info = env.step((0, 0))
            assert info["valid"] and not truncated
            assert observation.keys() == {"xfer_mask", "location_masks"} and env.observation_space.contains(observation)
            np.testing.assert_array_equal(
                observation["location_masks"], location_masks(env.state.counts, env.encoding_spec)
            )


def test_without_rules_only_no_op_is_valid():
    task = tiny_task("tiny_resnet18")
    env = GraphRewriteEnv(Task(task.graph, RuleSet(()), task.cost, 20))
    observation, _ = env.reset()
    assert observation["xfer_mask"].tolist() == [1] and env.step((0, 0))[2]


def test_a_graph_that_does_not_fit_is_refused():
    with pytest.raises(RLFlowError, match="raise max_nodes and max_edges"):
        GraphRewriteEnv(tiny_task(), max_nodes=3)


# -- rewards ---------------------------------------------------------------------------------------


def walk_infos(reward, name="tiny_resnet18", steps=8, seed=0):
    env = GraphRewriteEnv(tiny_task(name), reward, max_steps=100)
    infos, rewards = [env.reset()[1]], []
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        valid = env.state.valid_actions()[:-1]
        _, value, *_, info = env.step(valid[rng.integers(len(valid))])
        infos.append(info)
        rewards.append(value)
    return infos, rewards


def test_the_incremental_reward_is_the_decrease_of_the_runtime():
    infos, rewards = walk_infos(make_reward("incremental", 0.8, 0.2))
    expected = [a["cost"] - b["cost"] for a, b in zip(infos, infos[1:], strict=False)]
    assert rewards == pytest.approx(expected, abs=1e-12) and any(rewards)
    assert sum(rewards) == pytest.approx(infos[0]["cost"] - infos[-1]["cost"], abs=1e-12)


def test_the_combined_reward_weighs_the_decreases_of_runtime_and_bytes():
    infos, rewards = walk_infos(make_reward("combined", 0.7, 0.4))
    expected = [
        0.7 * (a["cost"] - b["cost"]) + 0.4 * (a["bytes"] - b["bytes"]) / 1e6
        for a, b in zip(infos, infos[1:], strict=False)
    ]
    assert rewards == pytest.approx(expected, abs=1e-12) and any(rewards)


def test_relative_reward_is_percent_of_the_initial_runtime():
    infos, rewards = walk_infos(make_reward("relative", 0.8, 0.2))
    expected = [100 * (a["cost"] - b["cost"]) / infos[0]["cost"] for a, b in zip(infos, infos[1:], strict=False)]
    assert rewards == pytest.approx(expected, abs=1e-9)


def test_a_custom_reward_receives_the_states_before_after_and_initial():
    seen = []

    def reward(before, after, initial):
        seen.append((before, after, initial))
        return after.cost.launches - 2 * before.cost.launches + 4 * initial.cost.flops

    infos, rewards = walk_infos(reward, steps=4)
    assert rewards == [
        b["launches"] - 2 * a["launches"] + 4 * infos[0]["flops"] for a, b in zip(infos, infos[1:], strict=False)
    ]
    assert len(seen) == 4 and all(isinstance(state, RewriteState) for states in seen for state in states)


# -- states ----------------------------------------------------------------------------------------


@settings(max_examples=at_night(8, 2), suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), name=st.sampled_from(["tiny_resnet18", "tiny_vit_base_fused", "tiny_squeezenet1_1"]))
def test_restored_and_replayed_states_give_the_same_bits(seed, name):
    env = GraphRewriteEnv(tiny_task(name), max_steps=50)
    env.reset()
    first = random_walk(env, 3, seed)
    saved, middle = env.save_state(), env._observation()
    second = random_walk(env, 3, seed + 1)
    end, graph_hash = env._observation(), env.state.graph.hash
    env.restore_state(saved)
    assert same(env._observation(), middle)
    for action in second:
        env.step(action)
    assert same(env._observation(), end) and env.state.graph.hash == graph_hash
    # A new task shares nothing, and its caches are empty.
    fresh_task = Task(load_graph(load(name)), load_rules(), env.task.cost)
    fresh = GraphRewriteEnv(fresh_task, max_steps=50)
    fresh.reset()
    for action in first + second:
        fresh.step(action)
    assert same(fresh._observation(), end) and fresh.state.graph.hash == graph_hash


def test_restoring_a_state_restores_the_step_counter():
    env = GraphRewriteEnv(tiny_task(), max_steps=2)
    env.reset()
    env.step((0, 10**6))
    saved = env.save_state()
    assert env.step((0, 10**6))[3]
    env.restore_state(saved)
    assert env.step((0, 10**6))[3]


def test_candidates_are_the_graphs_that_each_valid_action_leads_to():
    env = GraphRewriteEnv(tiny_task("tiny_resnet18"), max_steps=50)
    _, info = env.reset(options={"candidates": True})
    valid = [tuple(action) for action in env.state.valid_actions()[:-1].tolist()]
    assert [(x, k) for x, k, _ in info["xfer_tuples"]] == valid and valid
    saved = env.save_state()
    for x, k, arrays in info["xfer_tuples"]:
        observation, *_, info = env.step((x, k))
        assert (
            np.array_equal(observation["ops"][: len(arrays.ops)], arrays.ops)
            and not observation["ops"][len(arrays.ops) :].any()
        )
        assert np.array_equal(observation["globals"], arrays.globals)
        assert "xfer_tuples" in info
        env.restore_state(saved)
    assert "xfer_tuples" not in env.reset()[1]


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the same model with other names for all nodes and inner tensors."""
    model, outer = onnx.ModelProto.FromString(model.SerializeToString()), set()
    outer = {v.name for v in (*model.graph.input, *model.graph.output)}
    name = lambda old: old if old in outer or not old else f"other.{old[::-1]}"  # noqa: E731
    for node in model.graph.node:
        node.name = f"node {node.name[::-1]}"
        node.input[:], node.output[:] = [name(n) for n in node.input], [name(n) for n in node.output]
    for tensor in model.graph.initializer:
        tensor.name = name(tensor.name)
    del model.graph.value_info[:]
    return model


@pytest.mark.parametrize("name", [MODELS[0], *slow(*MODELS[1:])])
def test_names_in_the_model_do_not_change_observations_or_hashes(name):
    model = load(name)
    envs = []
    for proto in (model, renamed(model)):
        task = Task(load_graph(proto), load_rules(), tiny_task(name).cost)
        envs.append(GraphRewriteEnv(task, max_steps=50))
    first, second = (env.reset()[0] for env in envs)
    assert same(first, second)
    for action in random_walk(envs[0], 4, seed=3):
        envs[1].step(action)
    assert same(envs[0]._observation(), envs[1]._observation())
    assert envs[0].state.graph.hash == envs[1].state.graph.hash


@pytest.mark.parametrize("name", [MODELS[0], *slow(*MODELS[1:])])
def test_random_play_keeps_the_model_valid_and_equal(name):
    model = load(name)
    for seed in range(2):
        env = GraphRewriteEnv(tiny_task(name), max_steps=100)
        env.reset()
        actions = random_walk(env, 12, seed)
        assert actions
        findings = validate(model, to_model(env.state.graph), seeds=(0, 1))
        assert findings.ok, (name, seed, actions, findings.failures())
        assert findings.max_error is not None


@pytest.mark.parametrize("name", MODELS)
def test_incremental_costs_and_features_equal_recomputed_ones(name):
    env = GraphRewriteEnv(tiny_task(name), max_steps=100)
    env.reset()
    rng = np.random.default_rng(5)
    for _ in range(10):
        valid = env.state.valid_actions()[:-1]
        env.step(valid[rng.integers(len(valid))])
        state, task = env.state, env.task
        anew = GraphCost.of(task.cost, state.graph)
        assert state.graph_cost.total == anew.total and state.graph_cost.nodes == anew.nodes
        entries = observed.update_entries(observed.NO_ENTRIES, state.graph.nodes, state.graph, anew, {})
        again = arrays_of(entries, state.graph, state.graph, anew, task.initial_totals, task.size_features)
        for left, right in zip(env._arrays, again, strict=True):
            assert np.array_equal(left, right)


@pytest.mark.parametrize("name", ["tiny_bert_base", *slow("tiny_resnet50", "tiny_inception_v3")])
def test_a_step_reads_no_weight(name):
    # The test spoils the task, so it does not use the shared one.
    task = Task(load_graph(load(name)), load_rules(), AnalyticCost())
    for constant in task.graph.constants.values():
        if constant.type.size > SHAPE_VALUE_LIMIT:
            constant.load = lambda: pytest.fail("a weight was read")
    env = GraphRewriteEnv(task)
    env.reset()
    weights = [c.type.size for c in task.graph.constants.values()]
    assert max(weights) > SHAPE_VALUE_LIMIT and random_walk(env, 30, seed=1)


def test_a_fork_is_independent_of_its_original():
    env = GraphRewriteEnv(tiny_task("tiny_inception_v3"))
    env.reset(seed=3)
    env.action_space.seed(3)
    random_walk(env, 5, seed=1)
    fork = env.fork()
    hash_, masks = env.state.graph.hash, env.action_masks()
    assert fork.state.graph.hash == hash_ and np.array_equal(fork.action_masks(), masks)
    random_walk(fork, 5, seed=2)
    assert fork.state.graph.hash != hash_
    assert env.state.graph.hash == hash_ and np.array_equal(env.action_masks(), masks)
    actions = [[some.action_space.sample().tolist() for _ in range(5)] for some in (env, fork)]
    assert actions[0] == actions[1]  # Each environment draws from a generator of its own.


def test_a_rule_that_adds_many_nodes_never_leaves_the_padding():
    """Winograd's form of a convolution adds more than 16 nodes."""
    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.normal(size=(128, 128, 3, 3)).astype(np.float32), "w")
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 128, 32, 32] x) => (float[1, 128, 32, 32] y)
        { y = Conv<pads = [1, 1, 1, 1]>(x, w) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(weight)
    task = Task(load_graph(model), load_rules(families()), AnalyticCost())
    large = task.rules.index("conv-as-winograd-4")
    added = len(task.initial.apply(large, 0).arrays().ops) - len(task.initial.arrays().ops)
    assert added > 16
    for room in (17, added - 1, added):
        env = GraphRewriteEnv(task, max_nodes=len(task.initial.arrays().ops) + room)
        observation, _ = env.reset(seed=0)
        assert observation["xfer_mask"][large] == (room == added)
        for xfer_id, location in np.argwhere(observation["location_masks"][:-1]).tolist():
            env.reset()
            env.step((xfer_id, location))
