"""CMA-ES on the linear controller a = W [z, h] + b (Ha & Schmidhuber 2018; RLFlow paper, section 3.4).

The N + 2 outputs are one score for each xfer (NO-OP included) and one location coordinate u. Among the `count`
valid locations of the chosen xfer, numbered in their order, the one nearest to σ(u) · (count - 1) is best: the
location logits are minus the distance to it. Both stages go through the one masked distribution.

z and h enter as they are (the world model standardises z, and h lies in ±1): `sigma0` is the scale of the first
weights on them.

The search (package `cma`, with a diagonal covariance, as W has tens of thousands of entries) is a function of
its seed and of the fitness that it was told. A checkpoint is therefore the table of fitness values: replaying
it rebuilds the state of the search bit for bit, and the replayed mean is compared with the stored one.
"""

from dataclasses import dataclass

import cma
import numpy as np
import tensorflow as tf

from controllers.base import Controller, StopReason, derive_seed, same_shapes
from controllers.evaluation import play
from controllers.masked import TwoStage, count_of
from rlflow.errors import RLFlowError


@dataclass(frozen=True)
class CMAESConfig:
    generations: int = 50  # budget; a resumed training may raise it
    popsize: int = 32  # individuals in a generation
    dreams: int = 4  # episodes whose mean return is an individual's fitness
    sigma0: float = 0.1  # standard deviation of the first generation's weights
    evaluate_every: int = 5  # generations between evaluations of the mean, in popsize × dreams episodes
    max_steps: int = 200  # steps after which an unfinished episode is cut
    patience: int = 10  # generations in a row of equal fitness that are tolerated

    def __post_init__(self):
        if min(self.generations, self.dreams, self.evaluate_every, self.max_steps) < 1 or self.popsize < 4:
            raise RLFlowError("cma-es needs popsize ≥ 4, and generations, dreams, evaluate_every, max_steps ≥ 1")


def linear_policy(weights, z, h, counts, locations) -> TwoStage:
    """The distribution of P individuals on a batch of B rows, of which each individual owns B / P in a row.

    `weights` float32 [P, Z + H + 1, N + 2]; the last input is the constant 1, so its row is b. `counts` int32
    [B, N + 1]; `locations` is L.
    """
    inputs = tf.concat([z, h, tf.ones_like(z[:, :1])], axis=1)
    inputs = tf.reshape(inputs, [tf.shape(weights)[0], -1, inputs.shape[1]])
    outputs = tf.reshape(tf.einsum("pdi,pio->pdo", inputs, weights), [-1, weights.shape[2]])
    scores, coordinate = outputs[:, :-1], tf.sigmoid(outputs[:, -1:])

    def distances(xfer):
        count = count_of(counts, xfer)
        nearest = coordinate * tf.cast(count[:, None] - 1, tf.float32)
        return -tf.abs(tf.range(locations, dtype=tf.float32) - nearest), count

    return TwoStage(scores, counts > 0, distances)


class Search:
    """The ask-and-tell search, minimising minus the fitness."""

    def __init__(self, dimension: int, config: CMAESConfig, seed: int):
        rng = np.random.default_rng([seed, 0])
        options = {
            "popsize": config.popsize,
            "CMA_diagonal": True,
            "randn": lambda *shape: rng.standard_normal(shape),
            "seed": np.nan,  # leaves NumPy's global generator alone
            "tolflatfitness": config.patience,
            "tolfun": 0,  # returns are often equal for many different weights: that is no convergence
            "tolfunhist": 0,
            "verbose": -9,
            "verb_disp": 0,
            "verb_log": 0,
            "signals_filename": "",
        }
        self.strategy = cma.CMAEvolutionStrategy(np.zeros(dimension), config.sigma0, options)
        self.stop: list[str] = []  # the criteria of `cma` that are met

    def ask(self) -> list[np.ndarray]:
        """popsize × float64 [dimension]."""
        return self.strategy.ask()

    def tell(self, individuals: list[np.ndarray], fitness: np.ndarray) -> None:
        self.strategy.tell(individuals, (-fitness).tolist())
        self.stop = list(self.strategy.stop())  # counts flat generations, so it is asked once in each


class CMAES(Controller):
    name = "cma-es"
    Config = CMAESConfig
    BUDGET = ("generations",)
    uses_tensorflow = True

    def __init__(self, config, observation_space, action_space, seed=0):
        super().__init__(config, observation_space, action_space, seed)
        s = self.shapes
        self.weight_shape = (s.z + s.h + 1, s.xfers + 1)
        self.weights = np.zeros(self.weight_shape, np.float32)  # the best mean so far; what `act` plays
        self.best_return = -np.inf
        self.history = np.zeros((0, config.popsize))  # fitness [generations so far, popsize]
        self.mean = np.zeros(self.weight_shape)  # of the search after `history`
        self.env_steps = 0

        inputs = [
            tf.TensorSpec([None, *self.weight_shape], tf.float32),
            tf.TensorSpec([None, s.z], tf.float32),
            tf.TensorSpec([None, s.h], tf.float32),
            tf.TensorSpec([None, s.xfers], tf.int32),
        ]
        self.mode = tf.function(lambda *x: linear_policy(*x, s.locations).mode(), input_signature=inputs)
        self.sample = tf.function(
            lambda *x: linear_policy(*x[:-1], s.locations).sample(x[-1]),
            input_signature=[*inputs, tf.TensorSpec([2, 2], tf.int64)],
        )

    def act(self, observation, greedy=True, rng=None):
        """int64 [B, 2]. The sampled actions are drawn from the softmax of the scores and of minus the distances."""
        batch = self.batch(observation)
        if greedy:
            return self.mode(self.weights[None], *batch).numpy().astype(np.int64)
        seeds = (rng or self.rng).integers(2**31, size=(2, 2))
        return self.sample(self.weights[None], *batch, seeds).numpy().astype(np.int64)

    def train(self, make_env, seed, folder, log=None, progress=None):
        self.resume(folder, seed)
        config = self.config
        search = self.replayed(seed)
        env = self.open(make_env, config.popsize * config.dreams)
        try:
            while len(self.history) < config.generations and not search.stop:
                generation = len(self.history)
                individuals = search.ask()
                # Each generation has its own dreams; within it, row i of the batch belongs to individual i // dreams.
                returns, lengths = self.evaluate(env, np.stack(individuals), derive_seed(seed, 1, generation))
                fitness = returns.reshape(config.popsize, config.dreams).mean(axis=1)
                search.tell(individuals, fitness)
                self.history = np.concatenate([self.history, fitness[None]])
                self.mean = search.strategy.mean.reshape(self.weight_shape).copy()
                self.env_steps += int(lengths.sum())

                scalars = {
                    "best": fitness.max(),
                    "mean": fitness.mean(),
                    "sigma": search.strategy.sigma,
                    "mean_length": lengths.mean(),
                    "generation": generation + 1,
                }
                last = len(self.history) == config.generations or search.stop
                if last or len(self.history) % config.evaluate_every == 0:
                    # The same dreams every time, so that the means are compared on equal terms.
                    returns, lengths = self.evaluate(env, self.mean[None], derive_seed(seed, 2))
                    self.env_steps += int(lengths.sum())
                    if returns.mean() > self.best_return:
                        self.best_return, self.weights = float(returns.mean()), self.mean.astype(np.float32)
                    scalars |= {"mean_individual": returns.mean(), "best_so_far": self.best_return}
                self.save(folder)
                if log:
                    log(self.env_steps, {key: float(value) for key, value in scalars.items()})
                if progress:
                    progress(len(self.history), config.generations)
        finally:
            env.close()
        return {
            "stop_reason": StopReason.CONVERGED if search.stop else StopReason.BUDGET,
            "detail": ", ".join(search.stop) or f"{config.generations} generations",
            "best_return": self.best_return,
            "iterations": len(self.history),
            "env_steps": self.env_steps,
        }

    def evaluate(self, env, individuals, seed):
        """Returns and lengths, each [envs], of weight vectors [P, …] that share the copies of `env` equally."""
        weights = tf.constant(individuals.reshape(-1, *self.weight_shape), tf.float32)
        return play(
            env,
            lambda observation: self.mode(weights, *self.batch(observation)).numpy().astype(np.int64),
            seed,
            self.config.max_steps,
        )

    def replayed(self, seed):
        """The search in the state that `history` brought it to."""
        search = Search(self.mean.size, self.config, seed)
        for fitness in self.history:
            search.tell(search.ask(), fitness)
        if not np.array_equal(search.strategy.mean, self.mean.ravel()):
            raise RLFlowError(
                "the CMA-ES checkpoint was written with another version of cma or numpy and cannot be continued; "
                "it can still act: train into an empty folder to start anew"
            )
        return search

    def arrays(self):
        return {
            "weights": self.weights,
            "best_return": np.float64(self.best_return),
            "history": self.history,
            "mean": self.mean,
            "env_steps": np.int64(self.env_steps),
        }

    def restore(self, arrays):
        history = arrays.get("history", np.zeros((0, 0)))
        expected = {"weights": self.weight_shape, "best_return": (), "mean": self.weight_shape, "env_steps": ()}
        same_shapes(arrays, expected | {"history": (len(history), self.config.popsize)})
        self.weights, self.history, self.mean = arrays["weights"], history, arrays["mean"]
        self.best_return, self.env_steps = float(arrays["best_return"]), int(arrays["env_steps"])
