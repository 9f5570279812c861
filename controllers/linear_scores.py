"""The simplest controller of one-shot tasks: each node takes the option with the highest linear score.

The inputs of the score are the features of the node, standardised over the graph, and their mean over its neighbours.
CMA-ES (evolution.py) evolves the weights towards the lowest objective. Each individual costs one evaluation of the
instance.
"""

import numpy as np

from controllers.base import Learner, StopReason, same_shapes
from controllers.controller_options import LinearScoresConfig
from controllers.evolution import Evolution
from rlflow.common.task import GraphArrays, Instance

FULL_COVARIANCE = 100  # largest number of weights with all covariances; above it only variances are learned


class LinearScores(Learner):
    name = "linear-scores"
    Config = LinearScoresConfig
    BUDGET = ("generations",)

    def __init__(self, config, instance: Instance, seed: int = 0):
        inputs, options = instance.spec.node_features, instance.spec.n_rules
        super().__init__(config, {"node_features": inputs, "options": options}, seed)
        self.weights = np.zeros((2 * inputs + 1, options))  # the best so far
        self.best = np.iinfo(np.int64).max  # the objective of the greedy decision with `weights`
        self.history = np.zeros(0)  # fitness of all individuals so far

    def act(self, instance: Instance, samples: int = 0, rng: np.random.Generator | None = None) -> np.ndarray:
        """Return decisions for an instance: one option for each node.

        Args:
          instance: the instance with n nodes.
          samples: the number of decisions drawn from the softmax of the scores.
          rng: the generator to sample with, by default the controller's own.

        Returns:
          int64 [1 + samples, n]. The first decision takes the option with the highest score at every node; the others
          are sampled.
        """
        scores, rng = features(instance.arrays()) @ self.weights, rng or self.rng
        noise = rng.gumbel(size=(samples, *scores.shape))
        return np.concatenate([scores[None], scores + noise]).argmax(axis=2)

    def train(self, instance: Instance, seed: int, folder, log=None, progress=None) -> dict:
        """Evolve the weights on one instance; resume if the folder holds a checkpoint.

        `Controller.train` describes the arguments and results. Here an instance replaces the argument `make_env`.
        "best_return" is the reduction of the objective relative to the instance's control, in percent.
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
        """Return −objective / control of each individual, float64 [P]; store the weights with the lowest objective.

        Args:
          instance: the instance.
          seen: the result of `features`.
          individuals: float64 [P, size], weights.
          control: the objective of the control.
        """
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
    """Return the inputs of the scores, float64 [n, 2 F + 1].

    A row holds the standardised features of a node, their mean over the node's neighbours, and 1.
    """
    nodes = graph.nodes.astype(np.float64)
    nodes = (nodes - nodes.mean(axis=0)) / np.maximum(nodes.std(axis=0), 1e-9)
    ends = np.concatenate([graph.senders, graph.receivers]), np.concatenate([graph.receivers, graph.senders])
    sums, degrees = np.zeros_like(nodes), np.bincount(ends[0], minlength=len(nodes))
    np.add.at(sums, ends[0], nodes[ends[1]])
    return np.concatenate([nodes, sums / np.maximum(degrees, 1)[:, None], np.ones((len(nodes), 1))], axis=1)
