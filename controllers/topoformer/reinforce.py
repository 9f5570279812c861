"""A gradient step: orders that need less than a baseline become more probable (REINFORCE).

What an order is compared with: the greedy order of the best network so far, or the mean of all that were drawn of the
same graph (`controller.topoformer.baseline`). Costs count as shares of it, so that graphs of any size and in any unit
teach alike.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import sonnet as snt
import tensorflow as tf

from controllers.controller_options import TopoformerConfig
from controllers.topoformer.network import Priorities, Sizes, greedy, log_probabilities, sampled
from controllers.topoformer.observation import Observation, observe
from rlflow.common.task import Sequencing
from worldmodel.weights import apply_clipped, with_slots

GRADIENT_CLIP = 1.0  # largest global norm
SEEN = (tf.TensorSpec([None, None, None]), tf.TensorSpec([None, None, None], tf.uint8), tf.TensorSpec([None], tf.int32))
DRAWN = (
    tf.TensorSpec([None, None]), tf.TensorSpec([None, None, None], tf.int64),
    tf.TensorSpec([None, None, None], tf.bool), tf.TensorSpec([None], tf.int32),
)  # fmt: skip


class Batch:
    """Some instances, and what is seen of them."""

    def __init__(self, instances: Sequence[Sequencing]):
        self.instances, self.seen = instances, observe([instance.arrays() for instance in instances])

    def costs(self, orders: np.ndarray) -> np.ndarray:
        """float64 [B, S]: the objectives of orders, int64 [B, S, n]."""
        rows = []
        for instance, size, own in zip(self.instances, self.seen.sizes, orders, strict=True):
            rows.append(instance.evaluate(own[:, :size]).objectives)
        return np.array(rows, np.float64)

    @cached_property
    def controls(self) -> np.ndarray:
        """float64 [B]: the objectives of the instances' controls."""
        return np.array([one.evaluate(one.control()[None]).objectives[0] for one in self.instances], np.float64)


class Network:
    """A network as it is used: compiled once for graphs of any size."""

    def __init__(self, sizes: Sizes, attends: str, rng: np.random.Generator):
        self.module = Priorities(sizes, attends, rng)
        self.compiled = tf.function(self.module.__call__, SEEN)
        self.log_probabilities = tf.function(log_probabilities, DRAWN)

    def priorities(self, seen: Observation) -> tf.Tensor:
        return self.compiled(seen.features, seen.relations, seen.sizes)

    def greedy(self, seen: Observation) -> np.ndarray:
        """int64 [B, n]."""
        return greedy(seen, self.priorities(seen).numpy())

    def greedy_costs(self, batch: Batch) -> np.ndarray:
        """float64 [B]."""
        return batch.costs(self.greedy(batch.seen)[:, None])[:, 0]

    def sampled(self, seen: Observation, samples: int, rng: np.random.Generator) -> tuple[np.ndarray, tf.Tensor]:
        """int64 [B, samples, n], orders by chance, and float32 [B, samples], the logarithms of their probabilities."""
        priorities = self.priorities(seen)
        orders = sampled(seen, priorities.numpy(), samples, rng)
        return orders, self.log_probabilities(priorities, orders, seen.edges, seen.sizes)


class Reinforce(snt.Module):
    """All that learns, which is what a checkpoint holds: the learner, the best that it has been, the optimiser."""

    def __init__(self, learner: Network, best: Network):
        super().__init__("reinforce")
        self.learner, self.best = learner, best
        self.modules = {"learner": learner.module, "best": best.module}
        adam = snt.optimizers.Adam(tf.Variable(0.0, trainable=False))
        self.optimiser = with_slots(adam, learner.module.trainable_variables)
        self.apply = tf.function(self._apply)

    def step(self, batch: Batch, config: TopoformerConfig, rate: float, rng: np.random.Generator) -> dict[str, float]:
        """Draws orders of each graph and learns from them. Returns what is to be logged."""
        seen = batch.seen
        with tf.GradientTape() as tape:
            orders, log_p = self.learner.sampled(seen, config.orders, rng)
            costs = batch.costs(orders)
            baseline = costs.mean(axis=1) if config.baseline == "mean" else self.best.greedy_costs(batch)
            more = costs / baseline[:, None] - 1
            loss = tf.reduce_mean(more.astype(np.float32) * log_p)
        gradients = tape.gradient(loss, self.modules["learner"].trainable_variables)
        self.optimiser.learning_rate.assign(rate)
        norm = self.apply(gradients)
        return {"policy_loss": float(loss), "spread": 100 * float(more.std()), "gradient_norm": float(norm)}

    def _apply(self, gradients: list[tf.Tensor]) -> tf.Tensor:
        variables = self.modules["learner"].trainable_variables
        return apply_clipped(gradients, variables, self.optimiser, GRADIENT_CLIP)

    def keep(self) -> None:
        """The learner is the best."""
        best, learner = (self.modules[name].trainable_variables for name in ("best", "learner"))
        for one, other in zip(best, learner, strict=True):
            one.assign(other)
