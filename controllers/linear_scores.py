"""The simplest controller of one-shot tasks: each node gets the option that a linear score of what it is prefers.

A node is described by its own features and by the mean of its neighbours', standardised over the graph. The weights are
evolved (CMA-ES, as for small policies in the dream) towards the lowest objective; every individual is one evaluation of
the instance.
"""

from dataclasses import dataclass

import numpy as np

from controllers.base import Learner, StopReason, same_shapes
from controllers.controller_options import LinearScoresConfig
from controllers.evolution import Evolution
from rlflow.common.task import GraphArrays, Instance

FULL_COVARIANCE = 100  # weights up to which all covariances are learnt; of more, the variances alone


@dataclass(frozen=True)
class GraphShapes:
    """The sizes that the weights depend on."""

    node_features: int
    options: int


class LinearScores(Learner):
    name = "linear-scores"
    Config = LinearScoresConfig
    BUDGET = ("generations",)

    def __init__(self, config, instance: Instance, seed: int = 0):
        super().__init__(config, GraphShapes(instance.spec.node_features, instance.spec.n_rules), seed)
        self.weights = np.zeros((2 * self.shapes.node_features + 1, self.shapes.options))  # the best so far
        self.best = np.iinfo(np.int64).max  # its objective
        self.history = np.zeros(0)  # fitness of all individuals so far

    def act(self, instance: Instance, samples: int = 0, rng: np.random.Generator | None = None) -> np.ndarray:
        """Decisions, int64 [1 + samples, n]: the one of the highest scores, then some drawn from their softmax."""
        scores, rng = features(instance.arrays()) @ self.weights, rng or self.rng
        noise = rng.gumbel(size=(samples, *scores.shape))
        return np.concatenate([scores[None], scores + noise]).argmax(axis=2)

    def train(self, instance: Instance, seed: int, folder, log=None, progress=None) -> dict:
        """Evolves the weights on one instance, and goes on where the folder holds a checkpoint.

        Returns what `Controller.train` does. best_return: percent by which the best objective is below that of the
        instance's control.
        """
        config = self.config
        trainer = self.trainer(folder, seed, config.generations, log, progress)
        seen = features(instance.arrays())
        control = int(instance.evaluate(instance.control()[None]).objectives[0])
        start = np.zeros(self.weights.size)
        search = Evolution(start, config.sigma0, config.popsize, FULL_COVARIANCE, config.patience, seed)
        generation, known = 0, 0
        while known < len(self.history) and generation < config.generations:
            size = len(search.ask())
            search.tell(self.history[known : known + size])
            generation, known = generation + 1, known + size
        self.history = self.history[:known]

        def update() -> dict:
            nonlocal generation
            individuals = search.ask()
            fitness = self._fitness(instance, seen, individuals, control)
            search.tell(fitness)
            self.history, generation = np.append(self.history, fitness), generation + 1
            returns = {"return": 1.0 + fitness.mean(), "best_return": 1.0 - self.best / control}
            return {name: 100.0 * value for name, value in returns.items()}

        trainer.run(update, lambda: generation, config.generations, at=lambda: len(self.history))
        return {
            "stop_reason": StopReason.BUDGET,
            "detail": f"{config.generations} generations",
            "best_return": 100.0 * (1.0 - self.best / control),
            "iterations": config.generations,
            "env_steps": len(self.history),
        }

    def _fitness(self, instance: Instance, seen: np.ndarray, individuals: np.ndarray, control: int) -> np.ndarray:
        """float64 [P]: minus the objectives, as multiples of the control's. Keeps the best weights."""
        weights = individuals.reshape(len(individuals), *self.weights.shape)
        objectives = instance.evaluate((seen @ weights).argmax(axis=2)).objectives
        first = int(objectives.argmin())
        if objectives[first] < self.best:
            self.best, self.weights = int(objectives[first]), weights[first]
        return -objectives / control

    def arrays(self):
        return {"weights": self.weights, "best": np.int64(self.best), "history": self.history}

    def restore(self, arrays):
        length = len(arrays.get("history", ()))
        same_shapes(arrays, {"weights": self.weights.shape, "best": (), "history": (length,)})
        self.weights, self.best, self.history = arrays["weights"], int(arrays["best"]), arrays["history"]


def features(graph: GraphArrays) -> np.ndarray:
    """float64 [n, 2 F + 1]: a node's features, the mean of its neighbours', and 1."""
    nodes = graph.nodes.astype(np.float64)
    nodes = (nodes - nodes.mean(axis=0)) / np.maximum(nodes.std(axis=0), 1e-9)
    ends = np.concatenate([graph.senders, graph.receivers]), np.concatenate([graph.receivers, graph.senders])
    sums, degrees = np.zeros_like(nodes), np.bincount(ends[0], minlength=len(nodes))
    np.add.at(sums, ends[0], nodes[ends[1]])
    return np.concatenate([nodes, sums / np.maximum(degrees, 1)[:, None], np.ones((len(nodes), 1))], axis=1)
