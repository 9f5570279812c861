"""Test measured rewards: an episode earns what its latencies say, whether they are measured, lost or already known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rlflow.collect.episodes import read_shard, write_shard
from rlflow.collect.rollouts import play_random, record
from rlflow.common.errors import RLFlowError
from rlflow.costs.database import TimingDatabase
from rlflow.costs.measurements import MOST_LOST, Latencies
from rlflow.env.graph_rewrite import GraphRewriteEnv, make_env, make_vector_env
from rlflow.env.rewards import MeasuredReward
from tests.toys.latencies import SECONDS, PlantedProbe, planted_reward
from tests.toys.tiny import tiny_spec, tiny_task

EVERY = (1, 2, 5, None)


def walked(env, steps, seed=0, stop=False):
    """Return (rewards, infos, hashes of the states) of an episode of random valid steps; with `stop` it ends by
    NO-OP."""
    rng, rewards, infos = np.random.default_rng(seed), [], [env.reset()[1]]
    hashes, ended = [env.state.hash], False
    while not ended:
        valid = env.state.valid_actions()[:-1]
        last = stop and len(rewards) == steps
        action = (env.task.no_op, 0) if last else valid[rng.integers(len(valid))]
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        infos.append(info)
        hashes.append(env.state.hash)
        ended = terminated or truncated
    return rewards, infos, hashes


def ratio(state) -> float:
    return PlantedProbe.ratio(state.graph)


# -- what an episode earns -------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("steps", [1, 5, 7])
@pytest.mark.parametrize("every", EVERY)
def test_measured_rewards_sum_to_the_relative_decrease_of_the_latency(tmp_path, every, steps, stop):
    reward, _ = planted_reward(tmp_path, every)
    env = GraphRewriteEnv(tiny_task(), reward, max_steps=steps + stop)
    rewards, *_ = walked(env, steps, seed=steps, stop=stop)
    first, last = ratio(env.task.initial), ratio(env.state)
    assert len(rewards) == steps + stop and env.state.hash != env.task.initial.hash
    assert sum(rewards) == pytest.approx(100 * (first - last) / first, abs=1e-9)


@pytest.mark.parametrize("unmeasured", [0.0, 0.1])
@pytest.mark.parametrize("every", EVERY)
def test_unmeasured_steps_earn_the_configured_reward_and_measured_ones_their_gain(tmp_path, every, unmeasured):
    reward, _ = planted_reward(tmp_path, every, unmeasured)
    env = GraphRewriteEnv(tiny_task(), reward, max_steps=7)
    rewards, infos, _ = walked(env, 7)
    measured = [step for step in range(1, 8) if step == 7 or (every and step % every == 0)]
    assert [step for step in range(1, 8) if infos[step]["measured"]] == measured and not infos[0]["measured"]
    baseline = first = ratio(env.task.initial)
    for step, (paid, info) in enumerate(zip(rewards, infos[1:], strict=True), 1):
        if step not in measured:
            assert paid == unmeasured and math.isnan(info["latency"])
            continue
        assert paid == pytest.approx(100 * (baseline - info["latency"]) / first, abs=1e-9)
        assert info["latency_low"] < info["latency"] < info["latency_high"]
        baseline = info["latency"]


def test_no_op_earns_the_unpaid_gain_and_nothing_after_a_measured_step(tmp_path):
    for steps, paid in ((2, False), (3, True)):
        reward, _ = planted_reward(tmp_path, every=2)
        env = GraphRewriteEnv(tiny_task(), reward, max_steps=10)
        rewards, infos, _ = walked(env, steps, stop=True)
        assert infos[-1]["measured"] and (rewards[-1] != 0) == paid


def test_an_invalid_action_does_not_count_as_a_step_of_the_measured_reward(tmp_path):
    reward, probe = planted_reward(tmp_path, every=2)
    env = GraphRewriteEnv(tiny_task(), reward, max_steps=10)
    env.reset()
    assert env.step((0, 10**6))[1] == -100.0
    env.step(env.state.valid_actions()[0])
    assert not probe.asked  # Only one of the two steps was valid.


@pytest.mark.parametrize("every", EVERY)
def test_an_episode_that_an_invalid_action_ends_is_paid_for_its_last_graph(tmp_path, every):
    reward, _ = planted_reward(tmp_path, every)
    env = GraphRewriteEnv(tiny_task(), reward, max_steps=4)
    rewards = [env.reset() and 0.0]
    rewards += [env.step(env.state.valid_actions()[0])[1] for _ in range(3)]
    _, last, terminated, truncated, _ = env.step((0, 10**6))
    first, reached = ratio(env.task.initial), ratio(env.state)
    assert (terminated, truncated) == (False, True) and env.state.hash != env.task.initial.hash
    assert sum(rewards) + last == pytest.approx(-100 + 100 * (first - reached) / first, abs=1e-9)


def test_a_restored_state_and_a_fork_earn_the_reward_of_the_original(tmp_path):
    reward, _ = planted_reward(tmp_path, every=3)
    env = GraphRewriteEnv(tiny_task(), reward, max_steps=4)
    env.reset()
    for _ in range(3):
        env.step(env.state.valid_actions()[0])
    saved, forked, action = env.save_state(), env.fork(), env.state.valid_actions()[0]
    result = env.step(action)[1]
    assert result != 0 and forked.step(action)[1] == result
    env.reset()
    env.restore_state(saved)
    assert env.step(action)[1] == result


# -- what is measured ------------------------------------------------------------------------------


def test_a_graph_is_measured_once_and_its_seconds_count_once_in_each_run(tmp_path):
    seconds = []
    for again in (False, True):
        reward, probe = planted_reward(tmp_path, every=1)
        env = GraphRewriteEnv(tiny_task(), reward, max_steps=4)
        for _ in range(2):
            _, infos, hashes = walked(env, 4)
            seconds.append(infos[-1]["measurement_seconds"])
        assert sorted(probe.asked) == ([] if again else sorted(set(hashes)))
    assert seconds == [SECONDS * len(set(hashes))] * 4


def test_the_key_of_a_latency_holds_graphs_conditions_and_threads(tmp_path):
    reward, probe = planted_reward(tmp_path)
    graph, latencies = tiny_task().graph, reward.latencies
    other = tiny_task("tiny_squeezenet1_1").graph
    for asked in ((graph, graph, ({},)), (other, graph, ({},)), (graph, graph, ({"n": 2},)), (graph, other, ({},))):
        before = len(probe.asked)
        latencies.of(*asked)
        assert len(probe.asked) == before + 1
        latencies.of(*asked)
        assert len(probe.asked) == before + 1
    key = (graph.hash, graph.hash, probe.conditions(({},)))
    assert latencies.database.latency(*key, 1).ratio == PlantedProbe.ratio(graph)
    assert latencies.database.latency(*key, 2) is None
    assert TimingDatabase(tmp_path / "costs.sqlite").latency(*key, 1) == latencies.database.latency(*key, 1)
    with latencies.database.connected() as connection:  # a table of earlier versions, whose rows lack the conditions
        connection.execute("CREATE TABLE latencies AS SELECT graph, original, '[[]]' AS sizes FROM graph_latencies")
    other_inputs = PlantedProbe(how="other inputs")
    Latencies(TimingDatabase(tmp_path / "costs.sqlite"), 1, other_inputs).of(graph, graph, ({},))
    assert other_inputs.asked == [graph.hash]
    latencies.database.clear(threads=1)
    assert latencies.database.latency(*key, 1) is None


def test_a_step_with_a_lost_measurement_earns_zero_and_the_next_step_earns_both_gains(tmp_path):
    task = tiny_task()
    reward, _ = planted_reward(tmp_path / "whole", every=1)
    whole, _, hashes = walked(GraphRewriteEnv(task, reward, max_steps=4), 4)
    reward, probe = planted_reward(tmp_path / "lost", every=1, lost=[hashes[2]])
    rewards, infos, _ = walked(GraphRewriteEnv(task, reward, max_steps=4), 4)
    assert rewards[1] == 0.0 and infos[2]["measured"] and math.isnan(infos[2]["latency"])
    assert rewards[2] == pytest.approx(whole[1] + whole[2]) and rewards[0] == whole[0] and rewards[3] == whole[3]
    again, *_ = walked(GraphRewriteEnv(task, reward, max_steps=4), 4)
    assert again == rewards and probe.asked.count(hashes[2]) == 1  # The reward of a step does not change within a run.


def test_a_lost_measurement_of_the_initial_graph_counts_as_ratio_one(tmp_path):
    task = tiny_task()
    reward, _ = planted_reward(tmp_path, every=1, lost=[task.initial.hash])
    env = GraphRewriteEnv(task, reward, max_steps=3)
    assert sum(walked(env, 3)[0]) == pytest.approx(100 * (1 - ratio(env.state)))


def test_a_run_whose_measurements_are_all_lost_ends(tmp_path):
    task = tiny_task()
    reward, _ = planted_reward(tmp_path / "whole", every=1)
    hashes = walked(GraphRewriteEnv(task, reward, max_steps=8), 8)[2]
    assert len(set(hashes)) > MOST_LOST
    reward, _ = planted_reward(tmp_path / "lost", every=1, lost=hashes)
    with pytest.raises(RLFlowError, match=f"{MOST_LOST} measurements in a row were lost .planted."):
        walked(GraphRewriteEnv(task, reward, max_steps=8), 8)


# -- episodes --------------------------------------------------------------------------------------


def test_episodes_depend_only_on_seed_and_latencies_and_store_their_measurements(tmp_path):
    task, episodes = tiny_task(), []
    for name in ("one", "other"):
        reward, probe = planted_reward(tmp_path / name, every=2, unmeasured=0.1)
        played = [play_random(task, reward, 6, np.random.default_rng(k), k) for k in range(4)]
        assert {graph for one in played for graph in one.measurements} == set(probe.asked)
        assert {seconds for one in played for seconds in one.measurements.values()} == {SECONDS}
        write_shard(tmp_path / f"{name}.npz", played)
        episodes.append((tmp_path / f"{name}.npz").read_bytes())
    assert episodes[0] == episodes[1]
    back = read_shard(tmp_path / "one.npz")
    assert [one.measurements for one in back] == [one.measurements for one in played]
    with np.load(tmp_path / "one.npz") as archive:
        older = {name: archive[name] for name in archive if "measurements" not in name}
    np.savez(tmp_path / "older.npz", **older)
    assert [one.measurements for one in read_shard(tmp_path / "older.npz")] == [{}] * 4


@pytest.mark.parametrize("stop", [False, True])
def test_the_record_of_an_episode_has_the_rewards_of_the_environment(tmp_path, stop):
    """The record and the environment agree, whichever of them asks first, and in every episode of an environment."""
    reward, _ = planted_reward(tmp_path, every=2, unmeasured=0.1)
    env = GraphRewriteEnv(tiny_task(), reward, max_steps=3 + stop)
    for seed in range(2):
        states, actions, rewards = [env.task.initial], [], []
        env.reset()
        for step in range(3 + stop):
            valid = env.state.valid_actions()
            actions.append(tuple(valid[-1 if step == 3 else seed].tolist()))
            rewards.append(env.step(actions[-1])[1])
            states.append(env.state)
        episode = record(env.task, reward, states, actions)
        assert episode.rewards == pytest.approx(rewards, abs=1e-4) and episode.terminated[-1] == stop
        assert episode.rewards[0] == pytest.approx(0.1) and episode.rewards[-1] != 0
        assert set(episode.measurements) == {states[0].hash, states[2].hash, states[3].hash}


def test_a_spec_makes_the_measured_reward_and_copies_share_its_latencies(tmp_path):
    spec = tiny_spec(
        tmp_path, reward="measured", measure_every=3, unmeasured_reward=0.1, database=str(tmp_path / "costs.sqlite")
    )
    reward = make_env(spec).reward
    assert isinstance(reward, MeasuredReward) and (reward.every, reward.unmeasured) == (3, 0.1)
    env = make_vector_env(spec, 2)
    one, other = env.envs  # Both environments run in this process.
    assert one.unwrapped.reward.latencies is other.unwrapped.reward.latencies
    env.close()


def test_a_batched_move_counts_as_one_step_of_the_measured_reward(tmp_path):
    task = replace(tiny_task(), moves="batched")
    reward, _ = planted_reward(tmp_path, every=2)
    env = GraphRewriteEnv(task, reward, max_steps=3)
    rewards, infos, _ = walked(env, 3)
    assert [info["measured"] for info in infos] == [False, False, True, True]
    assert sum(rewards) == pytest.approx(100 * (1 - ratio(env.state) / ratio(task.initial)))
