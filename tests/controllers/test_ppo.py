import numpy as np
import pytest
import tensorflow as tf

from controllers.ppo import PPO, PPOConfig, RewardScale, gae
from rlflow.common.errors import RLFlowError
from tests.suite import at_night, eager
from tests.toys.latent import Identity, Sacrifice, Toy, make, vector

SMALL = {
    "envs": 32, "steps": 16, "hidden": 32, "embedding": 8, "evaluate_every": 10, "evaluation_dreams": 32,
    "greedy_prior": 3.0, "gamma": 0.99, "entropy_weight": 0.01,
}  # fmt: skip


def test_ppo_learns_the_identity_task(tmp_path):
    """PPO gets more than 6 of at most 8, and random actions get 1. All episodes start differently, so none is
    imitated."""
    config = PPOConfig(
        policy="two-stage", updates=at_night(20, 10), learning_rate=1e-2, minibatches=8, imitate=0, **SMALL
    )  # fmt: skip
    results = make(PPO, config, Identity).train(vector(Identity), 0, tmp_path)
    assert results["best_return"] > 6


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["match-classes", "two-stage"])
def test_ppo_learns_to_lose_first(tmp_path, policy):
    config = PPOConfig(policy=policy, updates=20, learning_rate=3e-3, **SMALL)
    logged = []
    results = make(PPO, config, Sacrifice).train(
        vector(Sacrifice), 0, tmp_path, log=lambda step, scalars: logged.append(scalars)
    )
    assert results["best_return"] == 2.0
    assert results["stop_reason"] == "budget"
    assert logged[-1]["explained_variance"] > 0.9
    assert {"approx_kl", "clipfrac", "entropy", "sampled_return", "policy_loss", "value_loss"} <= set(logged[-1])


def test_gae_by_hand():
    """Compare with a calculation by hand: γ = ½, λ = ½, V = 1 everywhere. Column 0 is terminated at t = 1; column 1 is
    truncated there with V(final) = 5.

    t = 2: δ = 3 + ½·1 - 1 = 2.5, and nothing follows.
    t = 1: δ = 2 + 0 - 1 = 1 (terminated) or 2 + ½·5 - 1 = 3.5 (truncated); neither takes anything from t = 2.
    t = 0: δ = 1 + ½·1 - 1 = 0.5, and γλ = ¼ of the advantage at t = 1: 0.75 or 1.375.
    """
    two = np.ones((3, 2))
    rewards, next_values = two * [[1.0], [2.0], [3.0]], two.copy()
    next_values[1] = 5.0
    terminated, truncated = np.zeros((3, 2), bool), np.zeros((3, 2), bool)
    terminated[1, 0] = truncated[1, 1] = True
    advantages = gae(rewards, two, next_values, terminated, truncated, 0.5, 0.5)
    np.testing.assert_allclose(advantages, [[0.75, 1.375], [1.0, 3.5], [2.5, 2.5]])


class Counter(Toy):
    """An environment whose z counts the steps of an episode, which is truncated after three."""

    Z, N, L, STEPS = 1, 1, 1, 3

    def begin(self):
        pass

    def counts(self):
        return np.array([1])

    def latent(self):
        return np.array([self.t])

    def play(self, xfer_id, location):
        return 1.0, False


@eager()
def test_a_truncated_step_is_followed_by_its_final_state_and_not_by_the_next_episode():
    ppo = make(PPO, PPOConfig(updates=10, envs=16, steps=8), Counter)
    env = vector(Counter)(16)
    ppo.start(env, 0)
    batch, _ = ppo.collect(env, np.random.default_rng(0))
    assert batch["truncated"].any()
    assert batch["terminated"].any()
    values = ppo.learner.value(np.arange(4, dtype=np.float32)[:, None], np.zeros((4, 3), np.float32)).numpy()
    going_on = ~batch["terminated"]
    led_to = (batch["z"][..., 0] + 1).astype(int)  # The count after each step.
    np.testing.assert_allclose(batch["next_values"][going_on], values[led_to[going_on]], rtol=1e-5)


@eager()
@pytest.mark.filterwarnings("error")
def test_a_rollout_in_which_no_episode_ends_has_no_mean_return():
    ppo = make(PPO, PPOConfig(updates=10, envs=4, steps=1), Sacrifice)
    env = vector(Sacrifice)(4)
    ppo.start(env, 0)
    ppo.learner.sample = lambda *x, act=ppo.learner.sample: (tf.constant([[1, 0]] * 4), act(*x)[1])
    assert ppo.collect(env, np.random.default_rng(0))[1] == {}


@eager()
@pytest.mark.parametrize("policy", ["match-classes", "two-stage"])
def test_stored_rollouts_give_the_log_probabilities_of_acting(policy):
    """The learner sees only the counts that the stored choice needs, and starts from a probability ratio of one."""
    ppo = make(PPO, PPOConfig(policy=policy, updates=10, envs=16, steps=4), Identity)
    env = vector(Identity)(16)
    ppo.start(env, 0)
    batch, _ = ppo.collect(env, np.random.default_rng(0))
    flat = {key: value.reshape(-1, *value.shape[2:]) for key, value in batch.items()}
    features = ppo.learner.features(flat["z"], flat["h"])
    distribution = ppo.learner.learning(features, flat)
    np.testing.assert_allclose(distribution.log_prob(flat["choice"]), flat["log_probs"], atol=1e-5)


@pytest.mark.nightly
def test_training_traces_each_function_once(tmp_path):
    ppo = make(PPO, PPOConfig(updates=4, envs=8, steps=4, hidden=16, evaluate_every=2, evaluation_dreams=3), Identity)
    ppo.train(vector(Identity), 0, tmp_path)
    ppo.act(vector(Identity)(2).reset(seed=0)[0])
    for function in (ppo.update, ppo.learner.sample, ppo.learner.value, ppo.learner.mode, ppo.actor.mode):
        assert function.experimental_get_tracing_count() == 1


def test_rewards_of_any_scale_are_scaled_alike():
    rng = np.random.default_rng(0)
    rewards = rng.standard_normal((200, 16))
    scaled = []
    for unit in (1.0, 1e4):
        scale = RewardScale(0.99)
        scale.start(16)
        scaled.append(np.array([scale(unit * r, np.zeros(16, bool)) for r in rewards])[100:])
    np.testing.assert_allclose(scaled[0], scaled[1], rtol=1e-3)


def test_the_running_moments_equal_the_moments_of_the_discounted_returns():
    rng = np.random.default_rng(0)
    scale, returns, seen = RewardScale(0.9), np.zeros(8), []
    scale.start(8)
    for _ in range(50):
        rewards, ended = rng.standard_normal(8), rng.random(8) < 0.2
        returns = 0.9 * returns + rewards
        seen.append(returns)
        scale(rewards, ended)
        returns = np.where(ended, 0.0, returns)
    np.testing.assert_allclose(scale.moments[:2], [np.mean(seen), np.var(seen)], rtol=1e-3)


class Explosive(Counter):
    """An environment whose rewards become NaN after some episodes, as with a diverged world model."""

    episodes = 0

    def begin(self):
        self.episodes += 1

    def play(self, xfer_id, location):
        return (1.0 if self.episodes < 12 else np.nan), False


def test_a_divergence_is_a_stop_reason_and_keeps_the_best_so_far(tmp_path):
    config = PPOConfig(updates=20, envs=8, steps=16, hidden=16, evaluate_every=10, evaluation_dreams=8)
    ppo = make(PPO, config, Explosive)
    results = ppo.train(vector(Explosive), 0, tmp_path)
    assert results["stop_reason"] == "diverged"
    assert np.isfinite(results["best_return"])
    assert all(np.isfinite(variable).all() for variable in ppo.actor.trainable_variables)
    kept = make(PPO, config, Explosive, seed=1)
    kept.load(tmp_path)
    assert kept.best_return == results["best_return"]


def test_imitation_that_diverges_stops_the_training_before_the_next_checkpoint(tmp_path, monkeypatch):
    ppo = make(PPO, PPOConfig(updates=2, envs=8, steps=16, hidden=16, evaluate_every=1, evaluation_dreams=2), Counter)
    monkeypatch.setattr(ppo, "imitate", lambda steps: (np.float32(0.5), np.float32(np.nan)))
    results = ppo.train(vector(Counter), 0, tmp_path)
    assert (results["stop_reason"], results["iterations"]) == ("diverged", 0)


def test_impossible_options_are_refused():
    with pytest.raises(RLFlowError, match="evaluate_every to divide updates"):
        PPOConfig(updates=7)
