import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from tests.toys import letters as toy
from worldmodel.base import Imagined
from worldmodel.dream import DreamEnv, DreamVectorEnv

NOOP = np.array([toy.SPEC.n_rules, 0])


def random_valid_actions(observation: dict, random: np.random.Generator) -> np.ndarray:
    """Return one uniformly drawn valid (xfer_id, location) for each dream."""
    actions = []
    for counts in observation["counts"]:
        pairs = [(xfer_id, location) for xfer_id, count in enumerate(counts) for location in range(count)]
        actions.append(random.choice(pairs))
    return np.stack(actions)


def play(env: DreamVectorEnv, seed: int, steps: int = 15) -> list:
    random, history = np.random.default_rng(0), []
    observation, _ = env.reset(seed=seed)
    for _ in range(steps):
        observation, rewards, terminated, truncated, infos = env.step(random_valid_actions(observation, random))
        history.append((observation, rewards, terminated, truncated, infos))
    return history


def test_the_dream_passes_gymnasiums_checker(start):
    check_env(DreamEnv(*start), skip_render_check=True)


def test_the_same_seed_gives_the_same_dream(start):
    env = DreamVectorEnv(*start, num_envs=4, temperature=1.0)
    first, again, other = play(env, 1), play(env, 1), play(env, 2)
    for (a, reward_a, *_), (b, reward_b, *_) in zip(first, again, strict=True):
        np.testing.assert_array_equal(reward_a, reward_b)
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
    assert any((a["z"] != b["z"]).any() for (a, *_), (b, *_) in zip(first, other, strict=True))


def test_temperature_zero_is_deterministic(start):
    env = DreamVectorEnv(*start, num_envs=3, temperature=0.0)
    for (a, *_), (b, *_) in zip(play(env, 1), play(env, 2), strict=True):
        np.testing.assert_array_equal(a["z"], b["z"])


def test_the_dreams_of_a_batch_differ_and_do_not_touch_each_other(start):
    model, state = start
    env = DreamVectorEnv(model, state, num_envs=3, temperature=1.0)
    env.reset(seed=0)
    action = np.array([0, 0])
    observation, *_ = env.step(np.tile(action, (3, 1)))
    assert (observation["z"][0] != observation["z"][1]).any()
    env.reset(seed=0)
    changed, *_ = env.step(np.stack([action, NOOP, action]))
    np.testing.assert_array_equal(observation["z"][[0, 2]], changed["z"][[0, 2]])


def test_an_invalid_action_costs_and_changes_nothing(start):
    model, state = start
    env = DreamEnv(model, state, max_steps=2)
    before, _ = env.reset(seed=0)
    after, reward, terminated, truncated, _ = env.step(np.array([0, state.counts[0]]))
    assert (reward, terminated, truncated) == (-100.0, False, False)
    assert (before.pop("step"), after.pop("step")) == (0, 1)
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
    *_, truncated, _ = env.step(np.array([0, state.counts[0]]))
    assert truncated


def test_noop_ends_the_dream(start):
    env = DreamEnv(*start)
    env.reset(seed=0)
    _, reward, terminated, truncated, _ = env.step(NOOP)
    assert terminated and not truncated
    assert reward == 0


def test_action_masks_agree_with_the_observation(start):
    env = DreamEnv(*start)
    observation, _ = env.reset()
    masks = env.action_masks()
    assert masks.dtype == bool and masks.shape == (toy.SPEC.n_rules + 1 + toy.SPEC.max_locations,)
    np.testing.assert_array_equal(masks[: toy.SPEC.n_rules + 1], observation["counts"] > 0)
    below = np.arange(toy.SPEC.max_locations) < observation["counts"].max()
    np.testing.assert_array_equal(masks[toy.SPEC.n_rules + 1 :], below)


def test_the_vector_dream_resets_as_gymnasiums_own_vector_environment_does(start):
    """Compare with Gymnasium's SyncVectorEnv of single dreams at temperature 0: observations, ends and infos are
    equal."""
    ours = DreamVectorEnv(*start, num_envs=3, max_steps=4, temperature=0.0)
    theirs = gymnasium.vector.SyncVectorEnv(
        [lambda: DreamEnv(*start, max_steps=4, temperature=0.0)] * 3, autoreset_mode=AutoresetMode.SAME_STEP
    )
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]
    random, ended = np.random.default_rng(1), 0
    observation, _ = ours.reset(seed=0)
    theirs.reset(seed=0)
    for _ in range(20):
        actions = random_valid_actions(observation, random)
        (observation, *outcome, infos), (expected, *expected_outcome, expected_infos) = (
            env.step(actions) for env in (ours, theirs)
        )
        assert observation in ours.observation_space
        for name in expected:
            np.testing.assert_allclose(observation[name], expected[name], atol=1e-4)
        for got, want in zip(outcome, expected_outcome, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-4)
        np.testing.assert_array_equal(infos.pop("expected_rewards"), outcome[0])  # no noise at this temperature
        assert infos.keys() == expected_infos.keys()
        if infos:
            ended += 1
            np.testing.assert_array_equal(infos["_final_obs"], expected_infos["_final_obs"])
            for got, want in zip(infos["final_obs"], expected_infos["final_obs"], strict=True):
                assert (got is None) == (want is None)
                for name in want or ():
                    np.testing.assert_allclose(got[name], want[name], atol=1e-4)
    assert ended


def test_dreams_are_stepped_by_one_trace(start):
    model, state = start
    for n in (1, 3, 8):
        play(DreamVectorEnv(model, state, num_envs=n), 0, steps=2)
    assert model._step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1.5])
def test_every_dreamt_observation_is_in_the_space(start, temperature):
    env = DreamVectorEnv(*start, num_envs=5, max_steps=6, temperature=temperature)
    for observation, *_ in play(env, 0):
        assert observation in env.observation_space


# -- uncertainty -----------------------------------------------------------------------------------


class Uncertain:
    """A world model whose uncertainty is 0 in the first step, 1 in the second and so on; each step's reward is 5."""

    spec, latent, hidden = toy.SPEC, 1, 1
    match_classes, usual_rewards = toy.MATCH_CLASSES, toy.USUAL_REWARDS

    def imagine(self, start, n):
        return self.Imagination(start.counts, n)

    class Imagination:
        def __init__(self, counts, n):
            self.z = self.h = np.zeros((n, 1), np.float32)
            self.counts = self.class_counts = np.tile(counts, (n, 1))
            self.taken = np.zeros(n, np.float32)

        def restart(self, rows):
            self.taken = np.where(rows, 0, self.taken)

        def advance(self, actions, rows, temperature, seed):
            uncertainty, self.taken = self.taken.copy(), self.taken + rows
            return Imagined(np.full(len(rows), 5.0), np.zeros(len(rows), bool), uncertainty)


def uncertain(**options) -> DreamVectorEnv:
    env = DreamVectorEnv(Uncertain(), toy.ToyState(toy.START), 2, **options)
    env.reset(seed=0)
    return env


def test_uncertainty_takes_its_penalty_off_the_reward():
    env = uncertain(uncertainty_limit=None, uncertainty_penalty=0.5)
    rewards = [env.step(np.array([[0, 0], NOOP]))[1].tolist() for _ in range(3)]
    assert rewards == [[5, 0], [4.5, 0], [4, 0]]


def test_a_dream_ends_unpaid_where_the_model_is_more_uncertain_than_the_limit():
    env = uncertain(uncertainty_limit=1.0)
    valid, invalid = [0, 0], [0, toy.SPEC.max_locations - 1]
    paid, ended = [], []
    for _ in range(4):
        _, rewards, terminated, cut, _ = env.step(np.array([valid, invalid]))
        assert not cut.any()
        paid.append(rewards.tolist())
        ended.append(terminated.tolist())
    assert paid == [[5, -100], [5, -100], [0, -100], [5, -100]]
    assert ended == [[False, False], [False, False], [True, False], [False, False]], "the fourth step begins anew"


def test_without_a_limit_no_uncertainty_ends_a_dream():
    env = uncertain(uncertainty_limit=None, max_steps=6)
    cuts = [bool(env.step(np.array([[0, 0], [0, 0]]))[3][0]) for _ in range(6)]
    assert cuts == [False] * 5 + [True]
