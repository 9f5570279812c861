"""Test the recurrent state of "graph-mdn": its memory, its samples at a temperature, and its equality in dream and
reality."""

import numpy as np
import pytest
import tensorflow as tf

from rlflow.collect.rollouts import play_random
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.rewards import make_reward
from tests.suite import at_night, eager
from tests.toys.systems import SIGNS_AND_PRODUCTS, said, signs_and_products, task_of
from worldmodel.base import UnpredictableRewardError
from worldmodel.dream import DreamVectorEnv
from worldmodel.edits.rule_learning import TrainingSet
from worldmodel.graph_mdn.episode_network import (
    SCALARS,
    EpisodeNetwork,
    EpisodeState,
    SequenceBatches,
    Sequences,
    episode_loss,
    fit_rests,
    inputs_of,
    sequence_signature,
)
from worldmodel.graph_mdn.reward_kinds import learn_rewards
from worldmodel.graph_mdn.training import train
from worldmodel.latent_env import LatentEnv
from worldmodel.train_and_load import load
from worldmodel.weights import Descent
from worldmodel.world_model_options import GraphMDNConfig

TASK = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
SMALL = GraphMDNConfig(
    width=8, latent=4, match_steps=2, node_steps=2, latent_steps=3, hidden=6, episode_steps=3, holdout=0.0
)
N_RULES, LATENT, HIDDEN, T = 3, 2, 32, 6


def by_size(before, after, initial) -> float:
    """Return a reward that is no sum over nodes: the gain of a step in percent of the runtime before it."""
    return 100.0 * (1.0 - after.runtime_ms / before.runtime_ms)


REWARDS = {"relative": make_reward("relative", 0, 0), "combined": make_reward("combined", 0.5, 0.5), "by size": by_size}


def episodes_of(reward, n: int, seed: int = 0) -> list:
    return [play_random(TASK, reward, 6, np.random.default_rng([seed, k]), k) for k in range(n)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return (model, folder) of a training on the reward that weighs runtime and memory accesses."""
    folder = tmp_path_factory.mktemp("combined")
    with eager():
        episodes = episodes_of(REWARDS["combined"], 20)
        return train(SMALL, TASK.encoding_spec, episodes, folder, 0).model, folder


# -- kinds of rewards ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "of_runtime", "pays"), [
    ("relative", True, True), ("combined", False, True), ("by size", True, False),
])  # fmt: skip
def test_the_kind_of_a_reward_is_recognised(name, of_runtime, pays):
    episodes = episodes_of(REWARDS[name], 20)
    training = TrainingSet.of(episodes, TASK.encoding_spec.n_rules)
    rewards, changed = learn_rewards(episodes, training, TASK.encoding_spec.n_rules, True)
    assert (rewards.of_runtime, rewards.pays) == (of_runtime, pays)
    if name == "combined":  # Here the reward of a step is its gain.
        per_ps = rewards.of(changed.initial_runtime(next(iter(changed.by_grounding)))).per_ps
        for k, episode in changed.grounded.items():
            np.testing.assert_allclose(per_ps * episode.gains, episodes[k].rewards, rtol=1e-6)
    else:
        assert changed is training
    if not pays:
        with pytest.raises(UnpredictableRewardError, match="hidden above 0"):
            learn_rewards(episodes, training, TASK.encoding_spec.n_rules, False)


def test_a_reward_that_pays_no_op_is_no_sum_over_nodes():
    episodes = episodes_of(REWARDS["combined"], 20)
    stopped = next(episode for episode in episodes if episode.actions[-1, 0] == TASK.no_op)
    stopped.rewards[-1] = 1.0
    training = TrainingSet.of(episodes, TASK.encoding_spec.n_rules)
    rewards, _ = learn_rewards(episodes, training, TASK.encoding_spec.n_rules, True)
    assert not rewards.pays


@eager()
def test_the_combined_reward_is_predicted_on_held_out_episodes(trained):
    model, _ = trained
    predicted = said(model, episodes_of(REWARDS["combined"], at_night(6, 2), seed=1))
    assert predicted.exact == 1
    assert predicted.reward_error <= 1e-2 * np.abs(predicted.real_rewards).max()


# -- one state in the dream and in reality ---------------------------------------------------------


@eager()
def test_the_recurrent_state_is_the_same_in_the_dream_and_in_reality(trained):
    model, _ = trained
    dream = DreamVectorEnv(model, TASK.initial, 2, max_steps=5, temperature=0.0, uncertainty_limit=None)
    real = LatentEnv(GraphRewriteEnv(TASK, REWARDS["combined"], 5), model)
    (dreamt, _), (seen, _) = dream.reset(seed=0), real.reset(seed=0)
    assert dreamt["h"].shape == (2, 6) and not dreamt["h"].any() and not seen["h"].any()
    for step in range(4):
        action = np.array([int(np.flatnonzero(seen["counts"][:-1])[0]), 0])
        dreamt, paid, *_ = dream.step(np.tile(action, (2, 1)))
        seen, reward, *_ = real.step(action)
        np.testing.assert_allclose(dreamt["z"], np.tile(seen["z"], (2, 1)), atol=1e-4)
        np.testing.assert_allclose(dreamt["h"], np.tile(seen["h"], (2, 1)), atol=1e-4)
        assert seen["h"].any() and paid == pytest.approx([reward] * 2, rel=1e-3), step


@eager()
@pytest.mark.parametrize("pays", [False, True])
def test_a_stop_in_a_dream_pays_what_the_recurrent_state_predicts_unless_gains_explain_rewards(
    trained, monkeypatch, pays
):
    model, _ = trained
    monkeypatch.setattr(model.rewards, "pays", pays)
    state = model.episode_state

    def generous(*arguments):
        followed = state(*arguments)
        return followed._replace(rests=followed.rests + 1, expected=followed.expected + 1)

    monkeypatch.setattr(model, "episode_state", generous)
    dream = DreamVectorEnv(model, TASK.initial, 2, max_steps=5, temperature=0.0, uncertainty_limit=None)
    first, _ = dream.reset(seed=0)
    move, stop = [int(np.flatnonzero(first["counts"][0][:-1])[0]), 0], [model.spec.n_rules, 0]
    _, paid, terminated, *_ = dream.step(np.array([move, stop]))
    inputs = inputs_of(first["z"][1:], np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1))
    followed = state(inputs, np.array([model.spec.n_rules]), first["h"][1:], 0.0, (0, 0))
    assert terminated[1] and paid[1] == pytest.approx(0 if pays else followed.expected[0] + 1, rel=1e-4)


@eager()
def test_a_loaded_model_follows_episodes_in_the_same_way(trained):
    model, folder = trained
    episodes = episodes_of(REWARDS["combined"], 3, seed=2)
    back = load(folder, model.spec)
    for one, other in zip(said(model, episodes), said(back, episodes), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


# -- memory and temperature ------------------------------------------------------------------------


def sequences(n: int, seed: int) -> Sequences:
    """Return n episodes of the rules 0 and 1 that end by NO-OP, which pays 1 if rule 1 was the first rule, else −1."""
    random = np.random.default_rng(seed)
    rules = random.integers(2, size=(n, T)).astype(np.int32)
    rules[:, -1] = N_RULES
    zeros = np.zeros(n * T)
    steps = np.tile(np.arange(T), n)
    inputs = inputs_of(np.zeros((n * T, LATENT)), zeros, zeros, steps, zeros).reshape(n, T, LATENT + SCALARS)
    rests = np.zeros((n, T), np.float32)
    rests[:, -1] = np.where(rules[:, 0] == 1, 1.0, -1.0)
    blank = np.zeros((n, T), np.float32)
    return Sequences(inputs, rules, rests, blank, np.ones((n, T), np.float32))


@pytest.fixture(scope="module")
def remembers():
    """Return the step function of a network that has learnt the reward of NO-OP."""
    tf.random.set_seed(0)
    network, data, steps = EpisodeNetwork(N_RULES, LATENT, HIDDEN, 3), sequences(64, 0), at_night(300, 120)
    fit_rests(network, data)
    batches, descent = SequenceBatches(data, 0, 0), Descent(network)
    update = descent.update(episode_loss(network), sequence_signature(LATENT), batches, steps, 0.01)
    for _ in range(steps):
        update()
    return EpisodeState(network, LATENT, HIDDEN)


def stopped(state: EpisodeState, data: Sequences, temperature: float, seed: int = 0) -> np.ndarray:
    """Return what the NO-OP of each episode is predicted to pay."""
    h = np.zeros((len(data.rules), HIDDEN), np.float32)
    for t in range(T):
        followed = state(data.inputs[:, t], data.rules[:, t], h, temperature, (seed, t))
        h = followed.h
    np.testing.assert_allclose(state.states(data.inputs, data.rules)[:, -1], h, atol=1e-5)
    return followed.rests


def test_a_reward_that_depends_on_the_first_step_is_remembered(remembers):
    data = sequences(32, 1)
    assert np.abs(stopped(remembers, data, 0.0) - data.rests[:, -1]).max() < 0.2


def test_the_temperature_widens_the_samples_of_a_dream(remembers):
    data = sequences(32, 1)
    still = stopped(remembers, data, 0.0)
    assert np.array_equal(still, stopped(remembers, data, 0.0, seed=5))
    assert np.array_equal(stopped(remembers, data, 1.0), stopped(remembers, data, 1.0))
    errors = [np.abs(stopped(remembers, data, temperature) - still).mean() for temperature in (0.25, 1.0, 4.0)]
    assert 0 < errors[0] < errors[1] < errors[2]
