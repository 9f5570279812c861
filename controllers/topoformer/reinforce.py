"""A gradient step of REINFORCE: orders that cost less than a baseline become more probable.

The baseline is the greedy order of the best network so far, or the mean of all sampled orders of the same graph
(`controller.topoformer.baseline`). Costs are relative to the baseline, so graphs of all sizes and units weigh equally.
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

GRADIENT_CLIP = 1.0  # largest global norm of a gradient
SEEN = (tf.TensorSpec([None, None, None]), tf.TensorSpec([None, None, None], tf.uint8), tf.TensorSpec([None], tf.int32))
DRAWN = (
    tf.TensorSpec([None, None]), tf.TensorSpec([None, None, None], tf.int64),
    tf.TensorSpec([None, None, None], tf.bool), tf.TensorSpec([None], tf.int32),
)  # fmt: skip


class Batch:
    """A batch of instances and their observation."""

    def __init__(self, instances: Sequence[Sequencing]):
        self.instances, self.seen = instances, observe([instance.arrays() for instance in instances])

    def costs(self, orders: np.ndarray) -> np.ndarray:
        """Evaluate S orders of each instance, int64 [B, S, n], and return their objectives, float64 [B, S]."""
        rows = []
        for instance, size, own in zip(self.instances, self.seen.sizes, orders, strict=True):
            rows.append(instance.evaluate(own[:, :size]).objectives)
        return np.array(rows, np.float64)

    @cached_property
    def controls(self) -> np.ndarray:
        """The objective of the control (`Instance.control`) of each instance, float64 [B]."""
        return np.array([one.evaluate(one.control()[None]).objectives[0] for one in self.instances], np.float64)


class Network:
    """A network of priorities (`Priorities`) with functions that are compiled once, for graphs of any size."""

    def __init__(self, sizes: Sizes, attends: str, rng: np.random.Generator):
        self.module = Priorities(sizes, attends, rng)
        self.compiled = tf.function(self.module.__call__, SEEN, autograph=False)
        self.log_probabilities = tf.function(log_probabilities, DRAWN, autograph=False)

    def priorities(self, seen: Observation) -> tf.Tensor:
        """Return the priority of each node, float32 [B, n]; 0 for padding."""
        return self.compiled(seen.features, seen.relations, seen.sizes)

    def greedy(self, seen: Observation) -> np.ndarray:
        """Return the greedy order of each graph, int64 [B, n]."""
        return greedy(seen, self.priorities(seen).numpy())

    def greedy_costs(self, batch: Batch) -> np.ndarray:
        """Return the objective of the greedy order of each instance, float64 [B]."""
        return batch.costs(self.greedy(batch.seen)[:, None])[:, 0]

    def sampled(self, seen: Observation, samples: int, rng: np.random.Generator) -> tuple[np.ndarray, tf.Tensor]:
        """Sample orders of each graph.

        Args:
          seen: B graphs of n nodes.
          samples: the number of orders of each graph.
          rng: the random generator.

        Returns:
          (orders int64 [B, samples, n], their log-probabilities float32 [B, samples]).
        """
        priorities = self.priorities(seen)
        orders = sampled(seen, priorities.numpy(), samples, rng)
        return orders, self.log_probabilities(priorities, orders, seen.edges, seen.sizes)


class Reinforce(snt.Module):
    """The content of a checkpoint: the learner, the best network so far and the optimiser."""

    def __init__(self, learner: Network, best: Network):
        super().__init__("reinforce")
        self.learner, self.best = learner, best
        self.modules = {"learner": learner.module, "best": best.module}
        adam = snt.optimizers.Adam(tf.Variable(0.0, trainable=False))
        self.optimiser = with_slots(adam, learner.module.trainable_variables)
        self.apply = tf.function(self._apply, autograph=False)

    def step(self, batch: Batch, config: TopoformerConfig, rate: float, rng: np.random.Generator) -> dict[str, float]:
        """Sample orders of each graph and make a gradient step.

        Args:
          batch: the graphs.
          config: the options.
          rate: the learning rate.
          rng: the generator to sample with.

        Returns:
          The scalars to log: "policy_loss", "gradient_norm" (before clipping), and "spread", the standard deviation of
          cost / baseline in percent.
        """
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
        """Copy the learner's weights to the best network."""
        best, learner = (self.modules[name].trainable_variables for name in ("best", "learner"))
        for one, other in zip(best, learner, strict=True):
            one.assign(other)
