"""What agents that learn by PPO (Schulman et al. 2017) share: the step that they descend, and what they keep of it."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import sonnet as snt
import tensorflow as tf

from controllers.base import Learner, StopReason, same_shapes
from worldmodel.checkpoint import apply_clipped, with_slots
from worldmodel.trainer import Diverged, Trainer, check_finite


class ActorCritic(Learner):
    """Has two networks of one making: `learner`, which learns, and `actor`, the best so far, which acts; `optimizer`,
    the Adam of the first; `scale`, of rewards; `iterations`, `env_steps`, `best_return`."""

    network_name: ClassVar[str]  # under which TensorFlow names the networks' variables

    def begin(self, learning_rate: float | tf.Variable) -> None:
        """Makes the optimiser of `learner`, and the counters."""
        adam = snt.optimizers.Adam(learning_rate, epsilon=1e-5)
        self.optimizer = with_slots(adam, self.learner.trainable_variables)
        self.iterations, self.env_steps, self.best_return = 0, 0, -np.inf

    def improve(self, trainer: Trainer, update: Callable[[], dict]) -> dict:
        """Make the remaining updates, and return the results of `controllers.base.Controller.train`.

        update: makes the next update, calls `count` and returns what to log.
        """
        stop, detail = StopReason.BUDGET, f"{self.config.updates} updates"
        try:
            trainer.run(update, lambda: self.iterations, self.config.updates, at=lambda: self.env_steps)
        except Diverged:
            stop, detail = StopReason.DIVERGED, f"gradients not finite at update {self.iterations + 1}"
        return {
            "stop_reason": stop, "detail": detail, "best_return": self.best_return, "iterations": self.iterations,
            "env_steps": self.env_steps,
        }  # fmt: skip

    def count(self, scalars: dict[str, float]) -> None:
        """Count an update with these scalars. Raises Diverged if its gradients are not finite."""
        check_finite({"gradient_norm": scalars["gradient_norm"]}, self.iterations)
        self.iterations += 1

    def loss(self, parts: dict[str, tf.Tensor]) -> tf.Tensor:
        """Of what `clipped` gave."""
        config = self.config
        return (
            parts["policy_loss"] - config.entropy_weight * parts["entropy"] + config.value_weight * parts["value_loss"]
        )

    def descend(self, tape: tf.GradientTape, loss: tf.Tensor) -> dict[str, tf.Tensor]:
        """One gradient step. Returns what to log."""
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
        """{name: variable} of both networks and of the optimiser."""
        named = {"optimizer/step": self.optimizer.step}
        for i, variable in enumerate(self.learner.trainable_variables):
            name = variable.name.removeprefix(f"{self.network_name}/").removesuffix(":0")
            named[f"learner/{name}"] = variable
            named[f"actor/{name}"] = self.actor.trainable_variables[i]
            named[f"optimizer/m/{name}"], named[f"optimizer/v/{name}"] = self.optimizer.m[i], self.optimizer.v[i]
        return named


def standardised(advantages: tf.Tensor) -> tf.Tensor:
    return (advantages - tf.reduce_mean(advantages)) / (tf.math.reduce_std(advantages) + 1e-8)


def clipped(
    clip: float, log_probs: tf.Tensor, before: tf.Tensor, advantages: tf.Tensor, entropy: tf.Tensor,
    value_loss: tf.Tensor,
) -> dict[str, tf.Tensor]:  # fmt: skip
    """The parts of the loss of M transitions, and how far the policy has gone.

    log_probs, before: [M], of what was done, now and when it was done. advantages, entropy: [M]. value_loss: [].
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
    """Gives `target` the weights of `source`, a module of the same making."""
    for theirs, ours in zip(source.trainable_variables, target.trainable_variables, strict=True):
        ours.assign(theirs)
