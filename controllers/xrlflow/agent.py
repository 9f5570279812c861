"""The agent of X-RLflow: PPO (Schulman et al. 2017) over candidates, on the real graph.

Before it learns from rewards, the agent can imitate beam search (behavioural cloning: Pomerleau 1991). Beam search
tries thousands of rewrites for each rewrite of its result. Imitation raises the probability of the rewrites in the
results on the training models, and the policy then applies to graphs that were never searched.

The random numbers of update k depend on (seed, k) alone, and every update begins with new episodes. A resumed training
therefore produces the same weights, bit for bit, as an uninterrupted one. With several models
(`rlflow.env.step.MultiModelEnv`) sampled episodes take the models in turn, and the greedy return is the mean over all.
"""

from dataclasses import asdict
from typing import NamedTuple

import gymnasium
import numpy as np
import tensorflow as tf

from controllers.controller_options import XRLflowConfig
from controllers.ppo import ActorCritic, RewardScale, clipped, gae, standardised
from controllers.xrlflow.network import FEATURES, SPEC, Network, joined
from rlflow.common.messages import progress_bar
from rlflow.env.features import N_OPS
from rlflow.search import BeamOptions
from rlflow.search.base import Limits, run_search, uninterrupted

SEARCH_INTERACTIONS = 10_000  # rewrites that beam search may try on each model


class Demonstration(NamedTuple):
    """An observation of `rlflow.env.candidates.CandidateEnv`, and the candidate that beam search chose (0 is NO-OP)."""

    observation: dict[str, np.ndarray]
    choice: int


def demonstrations(env: gymnasium.Env, seed: int) -> tuple[list[Demonstration], int]:
    """Run beam search on each model of an environment, and return the steps of its results as demonstrations.

    If NO-OP is valid in the last state of a result, a demonstration that chooses NO-OP there is added.

    Args:
      env: a `CandidateEnv`, or a `MultiModelEnv` of several.
      seed: the seed of every search.

    Returns:
      (the demonstrations, the number of rewrites that the searches tried).
    """
    result, interactions = [], 0
    for one in env.get_wrapper_attr("envs") if env.has_wrapper_attr("envs") else [env]:
        start, limits = one.unwrapped.task.initial, Limits(interactions=SEARCH_INTERACTIONS)
        search = uninterrupted(run_search("beam", start, limits, seed, **asdict(BeamOptions())))
        interactions += search.interactions
        shown = [Demonstration(*seen) for seen in one.get_wrapper_attr("replayed")(search.actions)]
        result += shown if may_stop(shown[-1].observation) else shown[:-1]
    return result, interactions


def may_stop(observation: dict[str, np.ndarray]) -> bool:
    """Return True if NO-OP is valid: no candidate has a positive estimated gain, or gains are not observed."""
    return not (observation.get("gains", np.zeros(1)) > 0).any()


class Step(NamedTuple):
    """One step of an episode.

    `choice` is the index of the chosen candidate. `log_prob` is its log-probability and `value` the value of the state,
    both by the network that chose.
    """

    observation: dict[str, np.ndarray]
    choice: int
    log_prob: float
    value: float
    reward: float
    terminated: bool


class XRLflow(ActorCritic):
    name = "xrlflow"
    network_name = "network"
    Config = XRLflowConfig
    BUDGET = ("updates",)

    def __init__(self, config: XRLflowConfig, seed: int = 0):
        super().__init__(config, {"operators": N_OPS, "features": FEATURES}, seed)
        # The actor is the best network so far; `act` uses it.
        self.learner, self.actor = (Network(config, np.random.default_rng(seed)) for _ in range(2))
        self.begin(config.learning_rate)
        self.scale = RewardScale(config.gamma)
        number = tf.TensorSpec([None], tf.float32)
        self.update = tf.function(
            self._update,
            input_signature=[SPEC, tf.TensorSpec([None], tf.int32), number, number, number],
            autograph=False,
        )
        self.clone = tf.function(self._clone, input_signature=[SPEC, tf.TensorSpec([None], tf.int32)], autograph=False)

    # -- acting ------------------------------------------------------------------------------------

    def act(self, observation, greedy: bool = True, rng: np.random.Generator | None = None) -> np.ndarray:
        """Choose one candidate and return its action.

        Args:
          observation: a batch with one observation of `rlflow.env.candidates.CandidateEnv`. The sizes of observations
            differ, so there are no larger batches.
          greedy: True to take the most probable candidate, False to sample a candidate.
          rng: the generator to sample with, by default the controller's own.

        Returns:
          int64 [1, 2], (xfer_id, location).
        """
        single = {key: value[0] for key, value in observation.items()}
        choice, *_ = self._choose(self.actor, single, None if greedy else rng or self.rng)
        return single["actions"][choice][None]

    def players(self) -> list["XRLflow"]:
        """Return this agent, and if `gains` is set also an untrained agent, whose policy is near greedy descent.

        The untrained agent gives good results for models on which the trained policy fails (docs/results/transfer.md).
        """
        return [self, XRLflow(self.config, self.seed)] if self.config.gains else [self]

    @staticmethod
    def _choose(network: Network, observation: dict, rng: np.random.Generator | None) -> tuple[int, float, float]:
        """Choose a candidate: sample it with `rng`, or take the most probable candidate if there is no `rng`.

        Returns:
          (index of the candidate, its log-probability in nats, the value of the state).
        """
        log_probs, value = network.compiled(joined([observation]))
        log_probs = log_probs.numpy()[0]
        noise = 0.0 if rng is None else rng.gumbel(size=len(log_probs))
        choice = int(np.argmax(log_probs + noise))
        return choice, float(log_probs[choice]), float(value[0])

    # -- training ----------------------------------------------------------------------------------

    def train(self, make_env, seed: int, folder, log=None, progress=None) -> dict:
        """Train on a real environment; resume if the folder holds a checkpoint.

        Args:
          make_env: a function that returns a `rlflow.env.candidates.CandidateEnv`, or a `MultiModelEnv` of several.
            Their `reach` must be at least the number of layers, or None.
          seed, folder, log, progress: see `controllers.base.Controller.train`.

        Returns:
          The results of `controllers.base.Controller.train`.
        """
        config = self.config
        trainer, env = self.trainer(folder, seed, config.updates, log, progress), make_env()

        def update() -> dict:
            rng, first = np.random.default_rng([seed, self.iterations]), self.iterations * config.episodes
            scalars = self.learn([self.play(env, rng, first + k) for k in range(config.episodes)], rng)
            self.count(scalars)
            return scalars | self.evaluate(env)

        if self.best_return == -np.inf:
            if config.imitate:
                self.imitate(env, np.random.default_rng([seed, config.imitate]))
            self.evaluate(env)  # keeps the policy before PPO if no update improves it
            trainer.write()
        return self.improve(trainer, update)

    def play(self, env: gymnasium.Env, rng: np.random.Generator | None, number: int) -> tuple[list[Step], float]:
        """Play one episode with the learner.

        Args:
          env: the environment.
          rng: the generator to sample actions with, or None for greedy actions.
          number: the number of the episode. If `env` has M models, the episode is played on model `number` mod M.

        Returns:
          (the steps, the value of the last state or 0 if the episode terminated).
        """
        (observation, _), steps, ended = env.reset(options={"model": number}), [], False
        while not ended:
            chosen = self._choose(self.learner, observation, rng)
            after, reward, terminated, truncated, _ = env.step(observation["actions"][chosen[0]])
            steps.append(Step(observation, *chosen, reward, terminated))
            observation, ended = after, terminated or truncated
        self.env_steps += len(steps)
        return steps, 0.0 if terminated else self._choose(self.learner, observation, None)[2]

    def evaluate(self, env: gymnasium.Env) -> dict:
        """Play a greedy episode of the learner on each model; copy it to the actor if the mean return is the highest.

        Returns:
          The scalars to log: "return" and "best_return".
        """
        models = env.get_wrapper_attr("models") if env.has_wrapper_attr("models") else 1
        episodes = [self.play(env, None, number)[0] for number in range(models)]
        return self.keep_best(sum(step.reward for steps in episodes for step in steps) / models)

    def imitate(self, env: gymnasium.Env, rng: np.random.Generator) -> None:
        """Make `config.imitate` passes over the demonstrations of beam search, in minibatches of `config.batch`.

        Demonstrations with a choice that a flattened head cannot choose (index above `padding`) are left out.

        Args:
          env: the training environment. It counts the rewrites that beam search tries as interactions.
          rng: the generator that shuffles the demonstrations.
        """
        shown, interactions = demonstrations(env, self.seed)
        if env.has_wrapper_attr("spend"):
            env.get_wrapper_attr("spend")(interactions)
        self.env_steps += interactions
        if self.learner.padding is not None:
            shown = [one for one in shown if one.choice <= self.learner.padding]
        with progress_bar(self.config.imitate, "imitation", "pass") as bar:
            for _ in range(self.config.imitate):
                order, alike = rng.permutation(len(shown)), 0.0
                for first in range(0, len(order), self.config.batch):
                    batch = [shown[k] for k in order[first : first + self.config.batch]]
                    choices = np.array([one.choice for one in batch], np.int32)
                    alike += float(self.clone(joined([one.observation for one in batch]), choices))
                bar.set_postfix_str(f"{alike / max(len(order), 1):.0%} chosen alike", refresh=False)
                bar.update()

    def learn(self, episodes: list[tuple[list[Step], float]], rng: np.random.Generator) -> dict:
        """Make up to `config.epochs` passes over the transitions of episodes, in minibatches of `config.batch`.

        No further pass is made once the mean KL divergence of a pass exceeds `config.target_kl`.

        Args:
          episodes: pairs (steps, value of the last state), as `play` returns them.
          rng: the generator that shuffles the transitions.

        Returns:
          The scalars to log, as means over all gradient steps.
        """
        config, steps = self.config, [step for episode, _ in episodes for step in episode]
        values = np.array([step.value for step in steps], np.float32)
        advantages = np.concatenate([self._advantages(*episode) for episode in episodes]).astype(np.float32)
        targets = values + advantages
        log_probs = np.array([step.log_prob for step in steps], np.float32)
        choices = np.array([step.choice for step in steps], np.int32)

        statistics = []
        for _ in range(config.epochs):
            order = rng.permutation(len(steps))
            batches = [order[k : k + config.batch] for k in range(0, len(order), config.batch)]
            one_pass = []
            for index in batches:
                graph = joined([steps[k].observation for k in index])
                columns = (choices, log_probs, advantages, targets)
                one_pass.append(self.update(graph, *[column[index] for column in columns]))
            statistics += one_pass
            if np.mean([s["approx_kl"].numpy() for s in one_pass]) > config.target_kl:
                break
        scalars = self.scalars(statistics, advantages, targets)
        scalars["sampled_return"] = np.mean([sum(step.reward for step in episode) for episode, _ in episodes])
        scalars["episode_length"] = len(steps) / len(episodes)
        scalars["candidates"] = np.mean([len(step.observation["actions"]) - 1 for step in steps])
        return scalars

    def _advantages(self, steps: list[Step], last: float) -> np.ndarray:
        """Return the advantage of each of the T steps of an episode, float64 [T], from scaled rewards.

        Args:
          steps: the steps.
          last: the value of the state after the last step; 0 if the episode terminated.
        """
        self.scale.start(1)
        terminated = np.array([step.terminated for step in steps])
        truncated = np.append(np.zeros(len(steps) - 1, bool), not steps[-1].terminated)
        ended = zip(steps, terminated | truncated, strict=True)
        rewards = np.array([self.scale(np.array([step.reward]), np.array([end]))[0] for step, end in ended])
        values = np.array([step.value for step in steps])
        gamma, lam = self.config.gamma, self.config.gae_lambda
        return gae(rewards, values, np.append(values[1:], last), terminated, truncated, gamma, lam)

    def _update(self, graph, choices, log_probs_before, advantages, targets):
        """Make one gradient step on a minibatch of M transitions; return the scalars to log."""
        advantages = standardised(advantages)
        with tf.GradientTape() as tape:
            distribution, values = self.learner(graph)
            log_probs, entropy = distribution.log_prob_and_entropy(choices)
            value_loss = tf.reduce_mean((values - targets) ** 2)
            parts = clipped(self.config.clip, log_probs, log_probs_before, advantages, entropy, value_loss)
            loss = self.loss(parts)
        return self.descend(tape, loss) | parts

    def _clone(self, graph, choices):
        """Make one gradient step that raises the probability of choices, int32 [M].

        Returns:
          The number of choices that were the most probable candidates before the step, float32 [].
        """
        with tf.GradientTape() as tape:
            distribution, _ = self.learner(graph)
            log_probs, _ = distribution.log_prob_and_entropy(choices)
            loss = -tf.reduce_mean(log_probs)
        self.descend(tape, loss)
        alike = tf.argmax(distribution.log_probs, axis=1, output_type=tf.int32) == choices
        return tf.reduce_sum(tf.cast(alike, tf.float32))
