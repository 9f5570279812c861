"""SAC for discrete actions (Haarnoja et al. 2018, with the changes of Khadka et al. 2021, appendix D).

    L_critic = mean (y − Q_j(s, a + clip(ε, −c, c)))² for both critics j,  ε ~ N(0, σ²)
    y = r, or with bootstrapping y = r + γ (min_j Q'_j(s, a' + clip(ε')) + α H(π)),  a' ~ π
    L_actor = −mean min_j Q_j(s, a' + clip(ε')) − α H(π)

The actions a are one-hot placements, and r is the reward times `reward_scale`. H is the mean entropy of all decisions,
and the sampled action a' passes gradients straight through to π (Jang et al. 2017). Q' are target networks.
"""

import numpy as np
import sonnet as snt
import tensorflow as tf

from controllers.controller_options import EGRLConfig
from controllers.egrl.networks import SEEN, Critic, Policy, Seen, initial
from worldmodel.weights import Adam, with_slots

GRADIENT_CLIP = 10.0  # largest global norm of a gradient


class Sac(snt.Module):
    """The actor, the twin critics, their targets and both optimisers; all parameters are flat vectors."""

    def __init__(self, policy: Policy, critic: Critic, config: EGRLConfig, rng: np.random.Generator):
        super().__init__("sac")
        self.policy, self.critic_sizes, self.config = policy, critic, config
        self.actor = tf.Variable(initial(policy.shapes, rng))
        self.critics = tf.Variable(np.stack([initial(critic.shapes, rng) for _ in range(2)]))
        self.targets = tf.Variable(self.critics)
        self.actor_optimiser = with_slots(Adam(config.learning_rate), [self.actor])
        self.critic_optimiser = with_slots(Adam(config.critic_learning_rate), [self.critics])
        batch = tf.TensorSpec([None, None, 2, policy.memories])
        signature = [SEEN, batch, tf.TensorSpec([None]), batch, batch, batch]
        self.compiled = tf.function(self._step, signature, autograph=False)

    def step(self, seen: Seen, actions: np.ndarray, rewards: np.ndarray, rng: np.random.Generator) -> dict[str, float]:
        """Make one gradient step of the critics, then of the actor.

        Args:
          seen: the graph of n operators.
          actions: int [B, n, 2], the memories of weights and activations.
          rewards: float [B].
          rng: the random generator.

        Returns:
          The scalars to log: "value_loss", "policy_loss" and "entropy" (nats of a decision).
        """
        hot = np.eye(self.policy.memories, dtype=np.float32)[actions]
        noise = (rng.standard_normal((2, *hot.shape)) * self.config.noise).clip(-self.config.clip, self.config.clip)
        drawn = rng.gumbel(size=hot.shape)
        scaled = (self.config.reward_scale * rewards).astype(np.float32)
        scalars = self.compiled(seen, hot, scaled, *noise.astype(np.float32), drawn.astype(np.float32))
        return {name: float(value) for name, value in scalars.items()}

    def _step(self, seen, hot, rewards, noise, noise_drawn, gumbel):
        config = self.config
        action, entropy = self._drawn(seen, gumbel)
        targets = rewards
        if config.bootstrap:
            after = self._lowest(self.targets, seen, action + noise_drawn)
            targets += config.gamma * tf.stop_gradient(after + config.alpha * entropy)
        with tf.GradientTape() as tape:
            value_loss = tf.add_n([
                tf.reduce_mean((targets - self._values(self.critics[j], seen, hot + noise)) ** 2) for j in range(2)
            ])  # fmt: skip
        _apply(tape, value_loss, self.critics, self.critic_optimiser)
        with tf.GradientTape() as tape:
            action, entropy = self._drawn(seen, gumbel)
            value = tf.reduce_mean(self._lowest(self.critics, seen, action + noise_drawn))
            policy_loss = -value - config.alpha * entropy
        _apply(tape, policy_loss, self.actor, self.actor_optimiser)
        self.targets.assign_add(config.tau * (self.critics - self.targets))
        return {"value_loss": value_loss, "policy_loss": policy_loss, "entropy": entropy}

    def _drawn(self, seen, gumbel):
        """Return actions drawn from the policy, float32 [B, n, 2, M], one-hot with gradients, and the mean entropy."""
        logits = self.policy.logits(self.actor, seen)
        soft = tf.nn.softmax(logits + gumbel)
        hard = tf.one_hot(tf.argmax(soft, axis=-1), self.policy.memories)
        entropy = -tf.reduce_mean(tf.reduce_sum(tf.nn.softmax(logits) * tf.nn.log_softmax(logits), axis=-1))
        return soft + tf.stop_gradient(hard - soft), entropy

    def _values(self, vector, seen, actions):
        flat = tf.reshape(actions, [tf.shape(actions)[0], tf.shape(actions)[1], 2 * self.policy.memories])
        return self.critic_sizes.values(vector, seen, flat)

    def _lowest(self, vectors, seen, actions):
        return tf.minimum(self._values(vectors[0], seen, actions), self._values(vectors[1], seen, actions))


def _apply(tape: tf.GradientTape, loss: tf.Tensor, variable: tf.Variable, optimiser: Adam) -> None:
    (gradient,) = tape.gradient(loss, [variable])
    optimiser.apply([tf.clip_by_norm(tf.convert_to_tensor(gradient), GRADIENT_CLIP)], [variable])
