"""The Topoformer controller: it trains on new random graphs in every epoch and orders instances without training.

The random numbers of an epoch depend on (seed, epoch) alone, and a checkpoint is written after each epoch. A resumed
training therefore produces the same weights, bit for bit, as an uninterrupted one.
"""

from pathlib import Path
from typing import Self

import numpy as np
from scipy.stats import ttest_rel

from controllers.base import Learner, StopReason, derive_seed, same_shapes
from controllers.controller_options import TopoformerConfig
from controllers.topoformer.network import Sizes, greedy, sampled
from controllers.topoformer.observation import POSITIONS, observe
from controllers.topoformer.reinforce import Batch, Network, Reinforce
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.common.options import read
from rlflow.common.task import Sequencing
from worldmodel.weights import module_arrays, restore_arrays

TRAINING, EVALUATION = range(2)  # streams of random numbers
BEST = "modules/best/"  # prefix of the best network's arrays in a checkpoint
SIGNIFICANT = 0.05  # largest p-value of the paired t-test at which the learner replaces the best network


class Topoformer(Learner):
    name = "topoformer"
    Config = TopoformerConfig
    BUDGET = ("epochs",)

    def __init__(self, config, instance: Sequencing, seed: int = 0):
        """Create the learner and the best network. Raise RLFlowError if `instance` is not a `Sequencing`."""
        if not isinstance(instance, Sequencing):
            raise RLFlowError("the controller 'topoformer' puts nodes into an order: task.name=ordering")
        sizes = {
            "width": config.width, "layers": config.layers, "heads": config.heads, "head_size": config.head_size,
        }  # fmt: skip
        features = instance.spec.node_features
        super().__init__(config, {"node_features": features, **sizes, "attends": config.attends}, seed)
        inputs = Sizes(features + POSITIONS, **sizes), config.attends
        self.networks = Reinforce(*(Network(*inputs, np.random.default_rng(seed)) for _ in range(2)))
        self.iterations, self.env_steps = 0, 0  # numbers of epochs completed and of orders evaluated so far
        self.costs = np.zeros(0)  # the best network's costs on the evaluation graphs, relative to the controls

    @classmethod
    def trained(cls, folder: Path | str, instance: Sequencing) -> Self:
        """Return a controller with the options and the best network of an earlier training.

        Args:
          folder: the folder of the training.
          instance: an instance whose nodes the controller shall order.

        Raises:
          RLFlowError: the folder holds no controller of this name and shape.
        """
        saved = read_json(Path(folder) / "controller.json")
        controller = cls(cls.Config(**read(cls.Config, saved["config"])), instance)
        controller.begin_with(folder)
        return controller

    def priorities(self, instance: Sequencing) -> np.ndarray:
        """Return the priority that the best network so far gives to each node of an instance, float64 [n]."""
        return self.networks.best.priorities(observe([instance.arrays()])).numpy()[0].astype(np.float64)

    def act(self, instance: Sequencing, samples: int = 0, rng: np.random.Generator | None = None) -> np.ndarray:
        """Return orders of the nodes of an instance.

        Args:
          instance: the instance with n nodes.
          samples: the number of sampled orders.
          rng: the generator to sample with, by default the controller's own.

        Returns:
          int64 [1 + samples + 2, n]: the greedy order, sampled orders, the result of a beam search by priorities, and
          the result of a second beam search that improves the result of the first.
        """
        seen, priorities = observe([instance.arrays()]), self.priorities(instance)
        drawn = sampled(seen, priorities[None], samples, rng or self.rng)[0]
        beam = instance.beam_search(priorities, self.config.beam)
        return np.concatenate([
            greedy(seen, priorities[None]), drawn, [beam, instance.beam_search(priorities, self.config.beam, beam)],
        ])  # fmt: skip

    def train(self, instance: Sequencing, seed: int, folder, log=None, progress=None) -> dict:
        """Train on random instances of the same kind; resume if the folder holds a checkpoint.

        `Controller.train` describes the arguments and results. Here an instance replaces the argument `make_env`.
        "best_return" is 100 · (1 − mean of greedy cost / control cost), where the greedy orders of the best network are
        compared with the controls on random graphs that are not used for training.
        """
        trainer = self.trainer(folder, seed, self.config.epochs, log, progress)
        evaluation = self.evaluation(instance, seed)
        if not len(self.costs):
            self.begin(evaluation)
            trainer.write()

        def update() -> dict[str, float]:
            scalars = self.learn(instance, seed) | self.compare(evaluation)
            self.iterations += 1
            return scalars

        trainer.run(update, lambda: self.iterations, self.config.epochs, at=lambda: self.env_steps)
        return self.results(StopReason.BUDGET, f"{self.iterations} epochs")

    @property
    def best_return(self) -> float:
        return 100 * (1 - float(self.costs.mean()))

    def begin(self, evaluation: list[Batch]) -> None:
        """Load the network of `config.start`, if the option is set, and evaluate the best network before training."""
        if self.config.start is not None:
            self.begin_with(self.config.start)
        self.costs = self.relative(self.networks.best, evaluation)

    def begin_with(self, folder: Path | str) -> None:
        """Copy the best network of an earlier training to both networks. Raise RLFlowError if its shape differs."""
        arrays = {name: array for name, array in self.saved(folder).items() if name.startswith(BEST)}
        restore_arrays(self.networks.modules["best"], arrays, str(folder), BEST)
        restore_arrays(self.networks.modules["learner"], module_arrays(self.networks.modules["best"]), "")

    def evaluation(self, instance: Sequencing, seed: int) -> list[Batch]:
        """Return batches of random instances, of the kind of `instance`, on which networks are compared.

        The instances depend on the seed of the training and are the same in every epoch.
        """
        count, batch = self.config.evaluation_graphs, self.config.batch
        seeds = [derive_seed(seed, EVALUATION, k) for k in range(count)]
        return [self.batch(instance, seeds[first : first + batch], first) for first in range(0, count, batch)]

    def batch(self, instance: Sequencing, seeds: list[int], first: int) -> Batch:
        """Return a batch of random instances; graph k of the training has config.nodes[k % len(config.nodes)] nodes.

        Args:
          instance: an instance of the same kind.
          seeds: one seed per graph.
          first: the number k of the first graph.
        """
        nodes = self.config.nodes
        return Batch([instance.random_instance(nodes[k % len(nodes)], seed) for k, seed in enumerate(seeds, first)])

    def learn(self, instance: Sequencing, seed: int) -> dict[str, float]:
        """Train for one epoch and return the scalars to log, as means over the gradient steps.

        Args:
          instance: an instance of the kind to train on.
          seed: the seed of the training.
        """
        config, steps = self.config, []
        rng, rate = np.random.default_rng([seed, self.iterations]), config.learning_rate * config.decay**self.iterations
        for step in range(config.steps):
            seeds = [derive_seed(seed, TRAINING, self.iterations, step, k) for k in range(config.batch)]
            batch = self.batch(instance, seeds, (self.iterations * config.steps + step) * config.batch)
            steps.append(self.networks.step(batch, config, rate, rng))
            self.env_steps += config.batch * (config.orders + (config.baseline == "greedy"))
        return {name: float(np.mean([one[name] for one in steps])) for name in steps[0]} | {"learning_rate": rate}

    def compare(self, evaluation: list[Batch]) -> dict[str, float]:
        """Copy the learner to the best network if its greedy orders cost significantly less (Kool et al. 2019).

        Returns:
          The scalars to log: "return" (of the learner) and "best_return", in percent as in `train`.
        """
        costs = self.relative(self.networks.learner, evaluation)
        if costs.mean() < self.costs.mean() and ttest_rel(costs, self.costs, alternative="less").pvalue < SIGNIFICANT:
            self.networks.keep()
            self.costs = costs
        return {"return": 100 * (1 - float(costs.mean())), "best_return": self.best_return}

    def relative(self, network, evaluation: list[Batch]) -> np.ndarray:
        """Return cost of the network's greedy order / cost of the control for each graph, float64 [graphs]."""
        self.env_steps += self.config.evaluation_graphs
        return np.concatenate([network.greedy_costs(batch) / batch.controls for batch in evaluation])

    def arrays(self):
        counters = np.array([self.iterations, self.env_steps])
        return module_arrays(self.networks) | {"counters": counters, "costs": self.costs}

    def restore(self, arrays):
        expected = {name: array.shape for name, array in self.arrays().items()}
        same_shapes(arrays, expected | {"costs": arrays.get("costs", self.costs).shape})
        self.iterations, self.env_steps = (int(count) for count in arrays.pop("counters"))
        self.costs = arrays.pop("costs")
        restore_arrays(self.networks, arrays, "the checkpoint")
