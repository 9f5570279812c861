"""PPO (Schulman et al. 2017) in the dream or on the real graph. Its networks are in policies.py.

After each update the policy also imitates the best episode that was sampled so far (best_episode.py).

`ActorCritic` is the part of the algorithm that PPO and X-RLflow share.

The random numbers of update k depend on (seed, k) alone. Checkpoints are written at evaluations, and the environments
are reset after each of them. A resumed training therefore produces the same weights, bit for bit, as an uninterrupted
one.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
import sonnet as snt
import tensorflow as tf

from controllers.base import Controller, Learner, StopReason, derive_seed, same_shapes
from controllers.best_episode import BestEpisode
from controllers.controller_options import PPOConfig
from controllers.evaluation import play
from controllers.policies import MatchClassPolicy, TwoStagePolicy
from worldmodel.trainer import Diverged, Trainer, check_finite
from worldmodel.weights import apply_clipped, with_slots


class ActorCritic(Learner):
    """The part of an actor-critic algorithm that PPO and X-RLflow share.

    Attributes:
      learner: the network that is trained.
      actor: a copy of the best network so far; `act` uses it.
      optimizer: the Adam optimiser of `learner`.
      scale: the `RewardScale` that divides rewards before learning.
      iterations, env_steps: the number of updates, and of environment steps, so far.
      best_return: the highest mean return of an evaluation so far.
    """

    network_name: ClassVar[str]  # the prefix of TensorFlow's variable names, which checkpoints leave out

    def begin(self, learning_rate: float | tf.Variable) -> None:
        """Create the optimiser of `learner` and reset the counters."""
        adam = snt.optimizers.Adam(learning_rate, epsilon=1e-5)
        self.optimizer = with_slots(adam, self.learner.trainable_variables)
        self.iterations, self.env_steps, self.best_return = 0, 0, -np.inf

    def improve(self, trainer: Trainer, update: Callable[[], dict]) -> dict:
        """Run the remaining updates of a training.

        Args:
          trainer: the trainer that logs and writes checkpoints.
          update: makes the next update, calls `count` and returns the scalars to log.

        Returns:
          The results of `controllers.base.Controller.train`.
        """
        stop, detail = StopReason.BUDGET, f"{self.config.updates} updates"
        try:
            trainer.run(update, lambda: self.iterations, self.config.updates, at=lambda: self.env_steps)
        except Diverged:
            stop, detail = StopReason.DIVERGED, f"gradients not finite at update {self.iterations + 1}"
        return self.results(stop, detail)

    def keep_best(self, mean_return: float) -> dict[str, float]:
        """Copy the learner to the actor if the learner's mean return is the highest of all evaluations so far.

        Returns:
          The scalars to log: "return" and "best_return".
        """
        if mean_return > self.best_return:
            self.best_return = float(mean_return)
            copy(self.learner, self.actor)
        return {"return": mean_return, "best_return": self.best_return}

    def count(self, scalars: dict[str, float]) -> None:
        """Increment the number of updates. Raise Diverged instead if the entry "gradient_norm" is not finite."""
        check_finite({"gradient_norm": scalars["gradient_norm"]}, self.iterations)
        self.iterations += 1

    def loss(self, parts: dict[str, tf.Tensor]) -> tf.Tensor:
        """Return policy_loss − entropy_weight · entropy + value_weight · value_loss, float32 [].

        parts: the terms of the loss by name, as `clipped` returns them.
        """
        config = self.config
        return (
            parts["policy_loss"] - config.entropy_weight * parts["entropy"] + config.value_weight * parts["value_loss"]
        )

    def scalars(self, statistics: list[dict], advantages: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """Return the scalars to log of an update.

        Args:
          statistics: the scalars of each gradient step; the result contains the mean of each scalar.
          advantages: float32 [T], the advantages of the T transitions.
          targets: float32 [T], the targets of the values.
        """
        variance = targets.var()
        return {
            **{key: np.mean([step[key].numpy() for step in statistics]) for key in statistics[0]},
            "explained_variance": 1.0 - advantages.var() / variance if variance > 0 else 0.0,
            "reward_scale": np.sqrt(self.scale.moments[1]),
        }

    def descend(self, tape: tf.GradientTape, loss: tf.Tensor) -> dict[str, tf.Tensor]:
        """Make one gradient step of the learner on a loss.

        Args:
          tape: the tape that recorded the loss.
          loss: float32 [].

        Returns:
          {"gradient_norm": the global norm of the gradient before clipping, float32 []}.
        """
        variables = self.learner.trainable_variables
        gradients = tape.gradient(loss, variables)
        return {"gradient_norm": apply_clipped(gradients, variables, self.optimizer, self.config.max_gradient_norm)}

    def arrays(self):
        return {key: value.numpy() for key, value in self.variables().items()} | {
            "reward_moments": self.scale.moments,
            "counters": np.array([self.iterations, self.env_steps]),
            "best_return": np.float64(self.best_return),
        }

    def restore(self, arrays):
        variables = self.variables()
        expected = {key: tuple(variable.shape) for key, variable in variables.items()}
        same_shapes(arrays, expected | {"reward_moments": (3,), "counters": (2,), "best_return": ()})
        for key, variable in variables.items():
            variable.assign(arrays[key])
        self.scale.moments = arrays["reward_moments"]
        self.iterations, self.env_steps = (int(count) for count in arrays["counters"])
        self.best_return = float(arrays["best_return"])

    def variables(self):
        """Return the variables of the learner, the actor and the optimiser, by their names in checkpoints."""
        named = {"optimizer/step": self.optimizer.step}
        for i, variable in enumerate(self.learner.trainable_variables):
            name = variable.name.removeprefix(f"{self.network_name}/").removesuffix(":0")
            named[f"learner/{name}"] = variable
            named[f"actor/{name}"] = self.actor.trainable_variables[i]
            named[f"optimizer/m/{name}"], named[f"optimizer/v/{name}"] = self.optimizer.m[i], self.optimizer.v[i]
        return named


def standardised(advantages: tf.Tensor) -> tf.Tensor:
    """Return the advantages of a minibatch, float32 [M], shifted and scaled to mean 0 and standard deviation 1."""
    return (advantages - tf.reduce_mean(advantages)) / (tf.math.reduce_std(advantages) + 1e-8)


def clipped(
    clip: float, log_probs: tf.Tensor, before: tf.Tensor, advantages: tf.Tensor, entropy: tf.Tensor,
    value_loss: tf.Tensor,
) -> dict[str, tf.Tensor]:  # fmt: skip
    """Return the terms of the clipped PPO loss over M transitions, and two measures of the policy's change.

    Args:
      clip: the deviation of the probability ratio from 1 beyond which the objective is constant.
      log_probs: float32 [M], log-probabilities of the actions under the present policy.
      before: float32 [M], log-probabilities of the actions under the policy that took them.
      advantages: float32 [M].
      entropy: float32 [M], entropies of the present policy in nats.
      value_loss: float32 [], returned unchanged.

    Returns:
      "policy_loss", "value_loss", "entropy" (mean), "approx_kl" (estimated KL divergence between the two policies, in
      nats) and "clipfrac" (share of the transitions with a clipped ratio), float32 [] each.
    """
    log_ratio = log_probs - before
    ratio = tf.exp(log_ratio)
    bounded = tf.clip_by_value(ratio, 1.0 - clip, 1.0 + clip)
    return {
        "policy_loss": -tf.reduce_mean(tf.minimum(advantages * ratio, advantages * bounded)),
        "value_loss": value_loss,
        "entropy": tf.reduce_mean(entropy),
        "approx_kl": tf.reduce_mean(ratio - 1.0 - log_ratio),  # Schulman's estimator k3
        "clipfrac": tf.reduce_mean(tf.cast(tf.abs(ratio - 1.0) > clip, tf.float32)),
    }


def copy(source: snt.Module, target: snt.Module) -> None:
    """Copy the weights of `source` to `target`, a module of the same architecture."""
    for theirs, ours in zip(source.trainable_variables, target.trainable_variables, strict=True):
        ours.assign(theirs)


class RewardScale:
    """A normaliser that divides rewards by the running standard deviation of the discounted return.

    Rewards are in ms or in percent of the initial cost, and their scale differs between models by orders of magnitude.
    """

    def __init__(self, gamma: float):
        self.gamma = gamma
        self.moments = np.array([0.0, 1.0, 1e-4])  # mean, variance, count of the discounted returns

    def start(self, envs: int) -> None:
        """Begin new episodes in `envs` environments. The moments of all earlier returns are kept."""
        self.returns = np.zeros(envs)

    def __call__(self, rewards: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Update the running moments and return the scaled rewards, clipped to ±10.

        Args:
          rewards: float [envs], the rewards of one step of all environments.
          ended: bool [envs], True where the episode ended with this step.

        Returns:
          float [envs].
        """
        self.returns = self.gamma * self.returns + rewards
        mean, variance, count = self.moments
        delta, n = self.returns.mean() - mean, len(rewards)  # Chan et al.'s parallel update
        total = count + n
        squares = variance * count + self.returns.var() * n + delta**2 * count * n / total
        self.moments = np.array([mean + delta * n / total, squares / total, total])
        self.returns = np.where(ended, 0.0, self.returns)
        return np.clip(rewards / np.sqrt(self.moments[1] + 1e-8), -10.0, 10.0)


def gae(rewards, values, next_values, terminated, truncated, gamma, lam):
    """Return generalised advantage estimates (Schulman et al. 2016, eq. 16) for T steps of B environments.

    Every array is [T, B]. No reward after the end of an episode enters its advantages. The return after the last step
    counts as 0 if the episode was terminated. If the episode was truncated, or goes on after the T steps, this return
    counts as the value of the last state.

    Args:
      rewards: float, the scaled rewards.
      values: float, the values of the states before the actions.
      next_values: float, the values of the states after the actions, before any autoreset.
      terminated: bool, True where the step terminated its episode.
      truncated: bool, True where the step limit ended the episode.
      gamma: the discount factor.
      lam: the parameter λ.
    """
    advantages, carry = np.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * next_values[t] * ~terminated[t] - values[t]
        carry = delta + gamma * lam * ~(terminated[t] | truncated[t]) * carry
        advantages[t] = carry
    return advantages


class PPO(ActorCritic, Controller):
    name = "ppo"
    network_name = "policy"
    Config = PPOConfig
    BUDGET = ("updates",)

    def __init__(self, config, observation_space, action_space, seed=0):
        super().__init__(config, observation_space, action_space, seed)
        self.learner, self.actor = (self.new_policy() for _ in range(2))  # the actor is the best policy so far
        self.learning_rate = tf.Variable(config.learning_rate, trainable=False)
        self.begin(self.learning_rate)
        self.scale = RewardScale(config.gamma)

        s = self.shapes
        step = {
            "z": tf.TensorSpec([None, s.z], tf.float32),
            "h": tf.TensorSpec([None, s.h], tf.float32),
            "choice": tf.TensorSpec([None] if config.policy == "match-classes" else [None, 2], tf.int32),
            **self.learner.memory,
        }
        estimates = {name: tf.TensorSpec([None], tf.float32) for name in ("log_probs", "values", "advantages")}
        self.update = tf.function(self._update, autograph=False, input_signature=[step | estimates])
        self.imitate = tf.function(self._imitate, autograph=False, input_signature=[step])
        self.best_episode = BestEpisode(tuple(step), self.learner.stopped if s.stop else {})

    def new_policy(self):
        """Return a new policy, whose initial weights depend on `seed` alone."""
        rng = np.random.default_rng(self.seed)
        if self.config.policy == "two-stage":
            return TwoStagePolicy(self.shapes, self.config, rng)
        return MatchClassPolicy(self.shapes, self.config, rng, self.match_classes, self.usual_rewards)

    def without_prior(self):
        if self.config.policy != "match-classes":
            return None
        return PPO(replace(self.config, greedy_prior=0.0), *self.spaces, self.seed)

    def seen(self, observation):
        """Return the inputs of the policy: z, h, and `counts` (two-stage) or `class_counts` (match-classes)."""
        return self.batch(observation, self.learner.observes_counts)

    def imitate_first(self, observations, actions, returned):
        z, h, counts = self.seen(observations)
        choice = self.learner.choices(counts, actions)
        memory = {name: np.asarray(value) for name, value in self.learner.remember(counts, choice).items()}
        self.best_episode.keep({"z": z, "h": h, "choice": choice, **memory}, returned)

    def act(self, observation, greedy=True, rng=None):
        batch = self.seen(observation)
        if greedy:
            return self.actor.mode(*batch).numpy().astype(np.int64)
        seeds = (rng or self.rng).integers(2**31, size=(2, 2))
        return self.actor.sample(*batch, seeds)[0].numpy().astype(np.int64)

    def arrays(self):
        return super().arrays() | self.best_episode.arrays()

    def restore(self, arrays):
        super().restore(self.best_episode.restore(arrays))

    def first_checkpoint(self):
        return self.config.evaluate_every * self.config.envs * self.config.steps

    def train(self, make_env, seed, folder, log=None, progress=None):
        config = self.config
        trainer = self.trainer(folder, seed, config.updates, log, progress, config.evaluate_every)
        env = self.open(make_env, config.envs)
        # All greedy episodes on a real graph are equal.
        episodes = 1 if env.metadata.get("deterministic") else config.evaluation_dreams
        evaluation_env = self.open(make_env, episodes)

        def update() -> dict:
            rng = np.random.default_rng([seed, self.iterations])
            if self.iterations % config.evaluate_every == 0:
                self.start(env, derive_seed(seed, 1, self.iterations))
            is_last = (self.iterations + 1) % config.evaluate_every == 0  # before all dreams begin anew
            batch, scalars = self.collect(env, rng, is_last)
            scalars |= self.learn(batch, rng) | self.imitate_best()
            self.count(scalars)
            if self.iterations % config.evaluate_every == 0:
                scalars |= self.evaluate(evaluation_env, seed)
            return scalars

        try:
            if self.best_return == -np.inf:
                self.evaluate(evaluation_env, seed)  # keeps the untrained policy if training never improves it
                trainer.write()
            return self.improve(trainer, update)
        finally:
            env.close()
            evaluation_env.close()

    def evaluate(self, env, seed):
        """Play greedy episodes of the learner; copy it to the actor if their mean return is the highest so far.

        Args:
          env: the vector environment of evaluations.
          seed: the seed of the training.

        Returns:
          The scalars to log: "return" and "best_return".
        """
        returns, lengths = play(
            env,
            lambda observation: self.learner.mode(*self.seen(observation)).numpy().astype(np.int64),
            derive_seed(seed, 2),  # equal episodes each time make the returns of policies comparable
            expected=True,
        )
        self.env_steps += int(lengths.max()) * env.num_envs  # copies that ended early play on
        return self.keep_best(returns.mean())

    def start(self, env, seed):
        """Reset all copies of the vector environment, and the sums of rewards of their episodes."""
        self.observation, _ = env.reset(seed=seed)
        self.scale.start(env.num_envs)
        self.best_episode.start(env.num_envs)
        self.episode_returns, self.episode_lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)

    def collect(self, env, rng, is_last=False):
        """Play `config.steps` sampled steps in every copy of the vector environment.

        Args:
          env: the vector environment.
          rng: the generator to sample with.
          is_last: True if all episodes end with these steps, because the next steps begin new ones.

        Returns:
          (batch, scalars to log). The batch maps names to arrays [steps, envs, …]: the tensors of `Policy.sample`,
          "rewards" (scaled), "terminated", "truncated" and "next_values".
        """
        steps, finished_returns, finished_lengths = [], [], []
        for left in reversed(range(self.config.steps)):
            actions, step = self.learner.sample(*self.seen(self.observation), rng.integers(2**31, size=(2, 2)))
            step = {key: value.numpy() for key, value in step.items()}
            self.observation, rewards, terminated, truncated, infos = env.step(actions.numpy().astype(np.int64))
            ended = terminated | truncated
            if self.config.imitate:
                expected = infos.get("expected_rewards", rewards)  # so that the best episode is not the luckiest one
                self.best_episode.add(step, expected, ended | (is_last and not left))
            step |= {"rewards": self.scale(rewards, ended), "terminated": terminated, "truncated": truncated}
            # With SAME_STEP autoreset, `observation` belongs to the next episode; the last state is in `final_obs`.
            z, h = (np.array(self.observation[key], np.float32) for key in ("z", "h"))
            for i in np.flatnonzero(truncated & ~terminated):
                z[i], h[i] = infos["final_obs"][i]["z"], infos["final_obs"][i]["h"]
            step["next_values"] = self.learner.value(z, h).numpy()
            steps.append(step)

            self.env_steps += env.num_envs
            self.episode_returns += rewards
            self.episode_lengths += 1
            finished_returns.extend(self.episode_returns[ended])
            finished_lengths.extend(self.episode_lengths[ended])
            self.episode_returns[ended], self.episode_lengths[ended] = 0.0, 0
        batch = {key: np.stack([step[key] for step in steps]) for key in steps[0]}
        if not finished_returns:
            return batch, {}
        return batch, {"sampled_return": np.mean(finished_returns), "episode_length": np.mean(finished_lengths)}

    def learn(self, batch, rng):
        """Make `config.epochs` passes of `config.minibatches` gradient steps each over a batch.

        Args:
          batch: the batch of `collect`; this method removes entries from the dictionary.
          rng: the generator that shuffles the transitions.

        Returns:
          The scalars to log, as means over all gradient steps.
        """
        config = self.config
        rewards = batch.pop("rewards").astype(np.float32)
        outcome = [batch.pop(key) for key in ("next_values", "terminated", "truncated")]
        batch["advantages"] = gae(rewards, batch["values"], *outcome, config.gamma, config.gae_lambda)
        flat = {key: np.concatenate(value) for key, value in batch.items()}
        targets = flat["values"] + flat["advantages"]
        fraction = self.iterations / config.updates if config.anneal else 0.0
        self.learning_rate.assign(config.learning_rate * (1.0 - fraction))

        statistics = []
        for _ in range(config.epochs):
            for index in np.split(rng.permutation(len(targets)), config.minibatches):
                statistics.append(self.update({key: value[index] for key, value in flat.items()}))
        return self.scalars(statistics, flat["advantages"], targets) | {"learning_rate": float(self.learning_rate)}

    def imitate_best(self) -> dict[str, float]:
        """Make `config.imitate` gradient steps that raise the probability of the choices of the best episode.

        Returns:
          The scalars to log; {} if no episode has gained anything yet.
        """
        if not self.config.imitate or not self.best_episode.steps:
            return {}
        for _ in range(self.config.imitate):
            loss, norm = self.imitate(self.best_episode.steps)
        check_finite({"gradient_norm": norm}, self.iterations)  # later norms are not finite either
        return {"imitation_loss": float(loss), "imitated_return": self.best_episode.returned}

    def _imitate(self, steps):
        """Make one gradient step on the steps of an episode.

        Returns:
          (the mean −log π(choice) before the step, the norm of the gradient), float32 [] each.
        """
        with tf.GradientTape() as tape:
            features = self.learner.features(steps["z"], steps["h"])
            loss = -tf.reduce_mean(self.learner.learning(features, steps).log_prob(steps["choice"]))
        return loss, self.descend(tape, loss)["gradient_norm"]

    def _update(self, batch):
        """Make one gradient step on a minibatch of M transitions; return the scalars to log."""
        targets, advantages = batch["values"] + batch["advantages"], standardised(batch["advantages"])
        with tf.GradientTape() as tape:
            features = self.learner.features(batch["z"], batch["h"])
            log_probs, entropy = self.learner.learning(features, batch).log_prob_and_entropy(batch["choice"])
            value_loss = 0.5 * tf.reduce_mean((self.learner.values(features) - targets) ** 2)
            parts = clipped(self.config.clip, log_probs, batch["log_probs"], advantages, entropy, value_loss)
            loss = self.loss(parts)
        return self.descend(tape, loss) | parts
