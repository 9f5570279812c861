import warnings
from dataclasses import replace
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
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


class Circular:
    """A model of the task whose rule 1 undoes rule 0 and gains 1, and whose rule 2 gains 1 as often as it is applied.
    """

    latent, hidden, match_classes = 1, 1, np.array([0, 0, 1, 2])
    usual_rewards, z, h = np.zeros(4, np.float32), np.zeros(1, np.float32), np.zeros(1, np.float32)

    def __init__(self, spec):
        self.spec = spec

    def observer(self):
        return self

    def begin(self, state):
        self.follow(None, state)

    def real_action(self, action):
        return action

    def follow(self, action, state):
        self.counts, self.class_counts = state.counts, np.array([1, state.counts[0] - 1, *state.counts[1:]])


class Circles(gymnasium.Env):
    """The real environment of `Circular`; its state does not count how often rule 2 was applied."""

    def __init__(self):
        self.n_rules, self.max_locations = 3, 2
        self.observation_space, self.action_space = gymnasium.spaces.Dict(), gymnasium.spaces.MultiDiscrete([4, 2])

    def reset(self, *, seed=None, options=None):
        self.state = SimpleNamespace(objective=9, counts=np.array([2, 0, 1], np.int32))
        return {"location_masks": np.ones((4, 2), np.int8)}, {}

    def step(self, action):
        there, (rule, _) = self.state.counts, action
        counts = {0: [1, 1, there[2]], 1: [2, 0, there[2]], 2: there}[int(rule)]
        objective = self.state.objective + {0: 1, 1: -1, 2: -1}[int(rule)]
        self.state = SimpleNamespace(objective=objective, counts=np.array(counts, np.int32))
        return {"location_masks": np.ones((4, 2), np.int8)}, 0.0, False, False, {}


@pytest.mark.parametrize("leaves", [True, False])
def test_a_rule_that_led_in_a_circle_is_not_shown_again_in_the_episode(leaves):
    env = LatentEnv(Circles(), Circular(replace(toy.SPEC, n_rules=3, max_locations=2)), leaves_circles=leaves)
    env.reset()

    def play(*rules):
        shown = [env.step(np.array([rule, 0]))[0] for rule in rules][-1]
        assert shown["counts"][-1] == 1
        return shown["counts"][:-1].tolist(), shown["class_counts"].tolist()

    assert play(2, 0) == ([1, 1, 1], [1, 0, 1, 1])
    assert play(1) == (([0, 0, 1], [0, 0, 0, 1]) if leaves else ([2, 0, 1], [1, 1, 0, 1]))
    # Rule 1 gained on the circle, so it is shown again. A rule that is not shown can still be applied.
    assert play(2, 0) == (([0, 1, 1], [0, 0, 1, 1]) if leaves else ([1, 1, 1], [1, 0, 1, 1]))
    assert env.reset()[0]["counts"].tolist() == [2, 0, 1, 1]


class Placing(Circles):
    """A task without NO-OP, whose only rule applies at two places until the end and never gains."""

    def reset(self, *, seed=None, options=None):
        self.state = SimpleNamespace(objective=9, counts=np.array([2, 0, 0], np.int32))
        return {"location_masks": np.ones((4, 2), np.int8)}, {}

    def step(self, action):
        return *self.reset()[:1], 0.0, False, False, {}


def test_without_no_op_a_rule_is_shown_if_no_other_is_left():
    model = Circular(replace(toy.SPEC, n_rules=3, max_locations=2, stop=False))
    env = LatentEnv(Placing(), model, leaves_circles=True)
    seen = [env.reset()[0], *[env.step(np.array([0, 0]))[0] for _ in range(3)]]
    assert all(one["counts"].tolist() == [2, 0, 0, 0] for one in seen)
