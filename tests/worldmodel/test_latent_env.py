import warnings

import numpy as np
import tensorflow as tf
from gymnasium.utils.env_checker import check_env

from tests.toys import letters as toy
from worldmodel.dream import DreamEnv
from worldmodel.latent_env import LatentEnv
from worldmodel.mdn_rnn.batching import Steps, pack_episodes


def test_real_and_dream_environments_have_equal_spaces_and_first_observations(start):
    model, state = start
    awake, dream = LatentEnv(toy.ToyEnv(), model), DreamEnv(model, state)
    assert awake.observation_space == dream.observation_space and awake.action_space == dream.action_space
    seen, dreamt = awake.reset(seed=0)[0], dream.reset(seed=0)[0]
    for name in seen:
        np.testing.assert_array_equal(seen[name], dreamt[name])
    np.testing.assert_array_equal(awake.action_masks(), dream.action_masks())


def test_the_latent_environment_passes_gymnasiums_checker(start):
    with warnings.catch_warnings():
        # The environment is a wrapper, so this warning is expected.
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version")
        check_env(LatentEnv(toy.ToyEnv(), start[0]), skip_render_check=True)


def test_the_hidden_state_of_the_real_environment_equals_the_one_in_training(start):
    model, _ = start
    episode = toy.episode(2)
    env = LatentEnv(toy.ToyEnv(), model)
    env.reset()
    for action, reward in zip(episode.actions, episode.rewards, strict=True):
        observation, seen, *_ = env.step(action)
        assert seen == reward
    steps = Steps(*map(tf.constant, pack_episodes([episode], model.encode(episode.graphs))))
    # NO-OP ends the episode, so no observer follows it.
    moves = steps._replace(length=steps.length - int(episode.terminated[-1]))
    h = model.dynamics.warm(moves).hidden[0]
    np.testing.assert_allclose(observation["h"], h, atol=1e-5)


def test_an_invalid_action_does_not_advance_h(start):
    model, state = start
    env = LatentEnv(toy.ToyEnv(), model)
    before, _ = env.reset()
    after, reward, *_ = env.step(np.array([0, state.counts[0]]))
    assert reward == -100
    assert (before.pop("step"), after.pop("step")) == (0, 1)
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])


class Backwards:
    """A world model that numbers each rule's locations from the last to the first."""

    spec, latent, hidden = toy.SPEC, 1, 1
    match_classes, usual_rewards = toy.MATCH_CLASSES, toy.USUAL_REWARDS

    def observer(self):
        return self

    def begin(self, state):
        self.z, self.h, self.followed = np.zeros(1, np.float32), np.zeros(1, np.float32), []
        self.counts = self.class_counts = state.counts

    def real_action(self, action):
        return action[0], self.counts[action[0]] - 1 - action[1]

    def follow(self, action, state):
        self.counts = self.class_counts = state.counts
        self.followed.append(tuple(action))


def test_a_location_in_the_models_numbering_is_translated():
    model = Backwards()
    env = LatentEnv(toy.ToyEnv(), model)
    env.reset()
    last = int(toy.counts(toy.START)[2]) - 1
    assert last > 0 and toy.apply(toy.START, 2, last) != toy.apply(toy.START, 2, 0)
    env.step(np.array([2, 0]))
    assert env.unwrapped.state.chain == toy.apply(toy.START, 2, last)
    assert model.followed == [(2, 0)]


def test_the_observer_follows_neither_no_op_nor_invalid_actions():
    model = Backwards()
    env = LatentEnv(toy.ToyEnv(), model)
    env.reset()
    assert env.step(np.array([0, toy.SPEC.max_locations - 1]))[1] == -100
    *_, terminated, _, _ = env.step(np.array([toy.SPEC.n_rules, 0]))
    assert terminated and model.followed == []
