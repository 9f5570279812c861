import warnings

import numpy as np
import tensorflow as tf
from gymnasium.utils.env_checker import check_env

from tests.worldmodel import toy
from worldmodel.batching import Steps, pack_episodes
from worldmodel.dream import DreamEnv
from worldmodel.latent_env import LatentEnv


def test_awake_and_dreaming_wear_the_same_spaces(start):
    model, z, counts = start
    awake, dream = LatentEnv(toy.ToyEnv(), model), DreamEnv(model, z, counts)
    assert awake.observation_space == dream.observation_space and awake.action_space == dream.action_space
    seen, dreamt = awake.reset(seed=0)[0], dream.reset(seed=0)[0]
    for name in seen:
        np.testing.assert_array_equal(seen[name], dreamt[name])
    np.testing.assert_array_equal(awake.action_masks(), dream.action_masks())


def test_the_latent_environment_passes_gymnasiums_checker(start):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version")  # it is a wrapper
        check_env(LatentEnv(toy.ToyEnv(), start[0]), skip_render_check=True)


def test_h_awake_is_the_h_that_the_model_was_trained_with(start):
    model, _, _ = start
    episode = toy.episode(2)
    env = LatentEnv(toy.ToyEnv(), model)
    env.reset()
    for action, reward in zip(episode.actions, episode.rewards, strict=True):
        observation, seen, *_ = env.step(action)
        assert seen == reward
    steps = Steps(*map(tf.constant, pack_episodes([episode], model.encode(episode.graphs))))
    h = model.dynamics.warm(steps).hidden[0]
    np.testing.assert_allclose(observation["h"], h, atol=1e-5)


def test_an_invalid_action_does_not_advance_h(start):
    model, _, counts = start
    env = LatentEnv(toy.ToyEnv(), model)
    before, _ = env.reset()
    after, reward, *_ = env.step(np.array([0, counts[0]]))
    assert reward == -100
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
