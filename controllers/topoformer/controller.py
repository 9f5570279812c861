"""The controller: it learns on new graphs in every epoch, and orders any instance without learning on it.

All randomness of an epoch is a function of (seed, epoch), and a checkpoint is written after each. So a training that is
killed and resumed gives the same weights, bit for bit, as one that is not.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from scipy.stats import ttest_rel

from controllers.base import Learner, StopReason, derive_seed, same_shapes
from controllers.controller_options import TopoformerConfig
from controllers.topoformer import SHIPPED
from controllers.topoformer.network import Sizes, greedy, sampled
from controllers.topoformer.observation import POSITIONS, observe
from controllers.topoformer.reinforce import Batch, Network, Reinforce
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_arrays
from rlflow.common.options import read
from rlflow.common.task import Sequencing
from worldmodel.weights import module_arrays, restore_arrays

TRAINING, EVALUATION = range(2)  # streams of random numbers
BEST = "modules/best/"  # of the names of a checkpoint
SIGNIFICANT = 0.05  # p, of a paired t-test


@dataclass(frozen=True)
class NetworkShapes:
    """What the weights depend on; see `TopoformerConfig`."""

    node_features: int
    width: int
    layers: int
    heads: int
    head_size: int
    attends: str


class Topoformer(Learner):
    name = "topoformer"
    Config = TopoformerConfig
    BUDGET = ("epochs",)
    Network = Network

    def __init__(self, config, instance: Sequencing, seed: int = 0):
        """Raises RLFlowError if a decision of the instance is no order."""
        if not isinstance(instance, Sequencing):
            raise RLFlowError("the controller 'topoformer' puts nodes into an order: task.name=ordering")
        sizes = config.width, config.layers, config.heads, config.head_size
        features = instance.spec.node_features
        super().__init__(config, NetworkShapes(features, *sizes, config.attends), seed)
        inputs = Sizes(features + POSITIONS, *sizes), config.attends
        self.networks = Reinforce(*(self.Network(*inputs, np.random.default_rng(seed)) for _ in range(2)))
        self.epoch, self.orders = 0, 0  # orders: evaluated so far
        self.costs = np.zeros(0)  # the best network's on the graphs of the evaluation, as multiples of their controls'

    @classmethod
    def trained(cls, folder: Path | str, instance: Sequencing) -> Self:
        """What a training knew in the end, whatever its options, to order with. Raises RLFlowError as `load` does."""
        saved = read_json(Path(folder) / "controller.json")
        controller = cls(cls.Config(**read(cls.Config, saved["config"])), instance)
        controller.begin_with(folder)
        return controller

    def priorities(self, instance: Sequencing) -> np.ndarray:
        """float64 [n], of the best network so far."""
        return self.networks.best.priorities(observe([instance.arrays()])).numpy()[0].astype(np.float64)

    def act(self, instance: Sequencing, samples: int = 0, rng: np.random.Generator | None = None) -> np.ndarray:
        """Decisions, int64 [1 + samples + 2, n]: the greedy one, some drawn, a beam's, and that one lowered."""
        seen, priorities = observe([instance.arrays()]), self.priorities(instance)
        drawn = sampled(seen, priorities[None], samples, rng or self.rng)[0]
        beam = instance.beam_search(priorities, self.config.beam)
        return np.concatenate([
            greedy(seen, priorities[None]), drawn, [beam, instance.beam_search(priorities, self.config.beam, beam)],
        ])  # fmt: skip

    def train(self, instance: Sequencing, seed: int, folder, log=None, progress=None) -> dict:
        """Learns on others of the instance's kind, and goes on where the folder holds a checkpoint.

        Returns what `Controller.train` does. best_return: percent by which the best network's greedy orders need less
        than the control's, on graphs that it did not learn on.
        """
        trainer = self.trainer(folder, seed, self.config.epochs, log, progress)
        evaluation = self.evaluation(instance, seed)
        if not len(self.costs):
            self.begin(evaluation)
            trainer.write()

        def update() -> dict[str, float]:
            scalars = self.learn(instance, seed) | self.compare(evaluation)
            self.epoch += 1
            return scalars

        trainer.run(update, lambda: self.epoch, self.config.epochs, at=lambda: self.orders)
        return {
            "stop_reason": StopReason.BUDGET,
            "detail": f"{self.epoch} epochs",
            "best_return": self.best_return,
            "iterations": self.epoch,
            "env_steps": self.orders,
        }

    @property
    def best_return(self) -> float:
        return 100 * (1 - float(self.costs.mean()))

    def begin(self, evaluation: list[Batch]) -> None:
        if self.config.start is not None:
            self.begin_with(SHIPPED if self.config.start == "shipped" else self.config.start)
        self.costs = self.relative(self.networks.best, evaluation)

    def begin_with(self, folder: Path | str) -> None:
        """Takes over the best network of another's folder. Raises RLFlowError if it is of another shape."""
        arrays = {name: array for name, array in self.saved(folder).items() if name.startswith(BEST)}
        restore_arrays(self.networks.modules["best"], arrays, str(folder), BEST)
        restore_arrays(self.networks.modules["learner"], module_arrays(self.networks.modules["best"]), "")

    def ship(self) -> None:
        """Makes what it knows the network that comes with RLFlow: the best one's weights, and how they were learnt."""
        self.save(SHIPPED)
        write_arrays(SHIPPED / "controller.npz", module_arrays(self.networks.modules["best"], BEST))

    def evaluation(self, instance: Sequencing, seed: int) -> list[Batch]:
        """The graphs on which networks are compared: the same ones every time."""
        count, batch = self.config.evaluation_graphs, self.config.batch
        seeds = [derive_seed(seed, EVALUATION, k) for k in range(count)]
        return [self.batch(instance, seeds[first : first + batch], first) for first in range(0, count, batch)]

    def batch(self, instance: Sequencing, seeds: list[int], first: int) -> Batch:
        """New graphs; the sizes are taken in turns, from one batch to the next.

        first: the number of the first graph, of all.
        """
        nodes = self.config.nodes
        return Batch([instance.random_instance(nodes[k % len(nodes)], seed) for k, seed in enumerate(seeds, first)])

    def learn(self, instance: Sequencing, seed: int) -> dict[str, float]:
        """An epoch; the means of what is to be logged."""
        config, steps = self.config, []
        rng, rate = np.random.default_rng([seed, self.epoch]), config.learning_rate * config.decay**self.epoch
        for step in range(config.steps):
            seeds = [derive_seed(seed, TRAINING, self.epoch, step, k) for k in range(config.batch)]
            batch = self.batch(instance, seeds, (self.epoch * config.steps + step) * config.batch)
            steps.append(self.networks.step(batch, config, rate, rng))
            self.orders += config.batch * (config.orders + (config.baseline == "greedy"))
        return {name: float(np.mean([one[name] for one in steps])) for name in steps[0]} | {"learning_rate": rate}

    def compare(self, evaluation: list[Batch]) -> dict[str, float]:
        """The learner is kept as the best network if it is better, and not by chance (Kool et al. 2019)."""
        costs = self.relative(self.networks.learner, evaluation)
        if costs.mean() < self.costs.mean() and ttest_rel(costs, self.costs, alternative="less").pvalue < SIGNIFICANT:
            self.networks.keep()
            self.costs = costs
        return {"return": 100 * (1 - float(costs.mean())), "best_return": self.best_return}

    def relative(self, network, evaluation: list[Batch]) -> np.ndarray:
        """float64 [graphs]: what greedy orders need, as multiples of what the controls need."""
        self.orders += self.config.evaluation_graphs
        return np.concatenate([network.greedy_costs(batch) / batch.controls for batch in evaluation])

    def arrays(self):
        counters = np.array([self.epoch, self.orders])
        return module_arrays(self.networks) | {"counters": counters, "costs": self.costs}

    def restore(self, arrays):
        expected = {name: array.shape for name, array in self.arrays().items()}
        same_shapes(arrays, expected | {"costs": arrays.get("costs", self.costs).shape})
        self.epoch, self.orders = (int(count) for count in arrays.pop("counters"))
        self.costs = arrays.pop("costs")
        restore_arrays(self.networks, arrays, "the checkpoint")
