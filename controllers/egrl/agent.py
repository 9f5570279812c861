"""The controller EGRL: generations of rollouts, gradient steps and evolution on one instance of the task placement.

The random numbers of a generation depend on (seed, generation) alone, and a checkpoint holds the population, the
learner and the replay buffer. A resumed training therefore gives the same result, bit for bit, as an uninterrupted one.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

from controllers.base import Learner, StopReason, same_shapes
from controllers.controller_options import EGRLConfig
from controllers.egrl.evolution import Population, first_population, next_population
from controllers.egrl.gradients import Sac
from controllers.egrl.networks import SEEN, Critic, Policy, Seen, initial, observe
from rlflow.common.errors import RLFlowError
from rlflow.reports.charts import save
from rlflow.tasks.placement.delivery import embedding
from rlflow.tasks.placement.searches import all_slowest
from rlflow.tasks.placement.task import Placements
from worldmodel.trainer import check_finite
from worldmodel.weights import module_arrays, restore_arrays

CHECKPOINT_EVERY = 10  # generations
EMBEDDED = 4000  # largest number of evaluations, the last ones, that embedding.png shows
BOTH, ONLY_EVOLUTION, ONLY_GRADIENTS = "egrl", "ea", "pg"  # values of the option `variant`


class EGRL(Learner):
    name = "egrl"
    Config = EGRLConfig
    BUDGET = ("evaluations",)

    def __init__(self, config: EGRLConfig, instance: Placements, seed: int = 0):
        """Create the learner and its first population. Raise RLFlowError if `instance` places no tensors."""
        if not isinstance(instance, Placements):
            raise RLFlowError("the controller 'egrl' places tensors in memories: task.name=placement")
        features, self.memories = instance.spec.node_features, instance.memories
        sizes = {
            "node_features": features, "memories": self.memories, "hidden": config.hidden, "output": config.output,
            "depth": config.depth, "heads": config.heads, "critic_width": config.critic_width,
        }  # fmt: skip
        super().__init__(config, sizes, seed)
        rng = np.random.default_rng(seed)
        self.policy = Policy(
            features, self.memories, config.hidden, config.output, config.depth, config.heads, config.pool,
            config.slowest,
        )  # fmt: skip
        self.sac = Sac(self.policy, Critic(features, self.memories, config.critic_width), config, rng)
        # (flat vectors [G, P], graph) → float32 [G, n, 2, M]
        self.forward = tf.function(
            lambda vectors, seen: tf.map_fn(lambda one: self.policy.logits(one, seen), vectors),
            [tf.TensorSpec([None, None]), SEEN], autograph=False,
        )  # fmt: skip
        individuals = 0 if config.variant == ONLY_GRADIENTS else config.population
        chromosomes = round(individuals * config.boltzmann)
        networks = [initial(self.policy.shapes, rng) for _ in range(individuals - chromosomes)]
        length = self.sac.actor.shape[0]
        self.population = first_population(
            np.array(networks, np.float32).reshape(-1, length), chromosomes,
            (instance.workload.n, 2, self.memories), config.slowest, rng,
        )  # fmt: skip
        self.generation = self.evaluations = 0
        self.actions = np.zeros((0, instance.workload.n, 2), np.uint8)  # the replay buffer, oldest first
        self.rewards = np.zeros(0, np.float32)
        self.best = np.zeros(0, np.int64)  # the best valid decision so far; empty before the training
        self.best_objective, self.best_return = np.iinfo(np.int64).max, 0.0
        # The network of the population with the highest fitness so far; without a population, the gradient policy.
        self.champion = self.sac.actor.numpy()
        self.champion_fitness = -np.inf
        self.trained_on = np.zeros(32, np.uint8)  # the hash of the instance

    def act(self, instance: Placements, samples: int = 0, rng: np.random.Generator | None = None) -> np.ndarray:
        """Return decisions for an instance of any size, without training on it.

        Args:
          instance: the instance with n operators. Its device has as many memories as the device of the training.
          samples: the number of decisions drawn from the best network's policy.
          rng: the generator to sample with, by default the controller's own.

        Returns:
          int64 [1 + samples, n], the most probable decision of the best network, then the drawn decisions. For the
          instance of the training, the result has one more row in front: the best decision of the training.

        Raises:
          RLFlowError: the instance has another number of memories.
        """
        if instance.memories != self.memories:
            raise RLFlowError(f"this agent places in {self.memories} memories; the device has {instance.memories}")
        rng = rng or self.rng
        logits = self.forward(self.champion[None], observe(instance.arrays())).numpy()[0]
        noise = rng.gumbel(size=(samples, *logits.shape))
        decisions = self.joined(np.concatenate([logits[None], logits + noise]).argmax(axis=-1))
        if len(self.best) and np.array_equal(self.trained_on, _digest(instance)):
            decisions = np.concatenate([self.best[None], decisions])
        return decisions

    def joined(self, maps: np.ndarray) -> np.ndarray:
        """Encode placements as decisions, int64 [.., n]: memory of the weights · M + memory of the activation.

        maps: int [.., n, 2], the memories of the weights and of the activation of each operator.
        """
        return self.memories * maps[..., 0].astype(np.int64) + maps[..., 1]

    def train(self, instance: Placements, seed: int, folder, log=None, progress=None) -> dict:
        """Train on one instance; resume if the folder holds a checkpoint.

        `Controller.train` describes the arguments and results. Here an instance replaces the argument `make_env`.
        "best_return" is the reduction of the latency relative to the instance's control, in percent.
        """
        budget, seen = self.config.evaluations, observe(instance.arrays())
        trainer = self.trainer(folder, seed, budget, log, progress, CHECKPOINT_EVERY * self.per_generation)
        control = int(instance.evaluate(instance.control()[None]).objectives[0])
        self.trained_on = _digest(instance)
        if not len(self.best):
            self.record(instance, all_slowest(instance)[None], control)

        def update() -> dict[str, float]:
            scalars = self.one_generation(instance, seen, control, np.random.default_rng([seed, self.generation]))
            check_finite(scalars, self.generation)
            self.generation += 1
            return scalars

        trainer.run(update, lambda: self.evaluations, budget)
        save(embedding(self.actions[-EMBEDDED:], self.rewards[-EMBEDDED:]), Path(folder) / "embedding.png")
        detail = f"{self.evaluations} evaluations"
        return {
            "stop_reason": StopReason.BUDGET, "detail": detail, "best_return": self.best_return,
            "iterations": self.generation, "env_steps": self.evaluations,
        }  # fmt: skip

    @property
    def per_generation(self) -> int:
        """The number of evaluations of a generation."""
        return self.population.size + (0 if self.config.variant == ONLY_EVOLUTION else self.config.rollouts)

    def one_generation(self, instance: Placements, seen: Seen, control: int, rng: np.random.Generator) -> dict:
        """Evaluate the population and the actor's rollouts, learn from them, and breed the next population.

        Args:
          instance: the instance.
          seen: its observation.
          control: the objective of its control.
          rng: the random generator of the generation.

        Returns:
          The scalars to log.
        """
        config, population = self.config, self.population
        networks = len(population.networks)
        learns = config.variant != ONLY_EVOLUTION
        vectors = np.concatenate([population.networks, self.sac.actor.numpy()[None]])[: networks + learns]
        logits = self.forward(vectors, seen).numpy()
        maps = [logits[:networks].argmax(axis=-1), population.sampled(rng)]
        if learns:
            noise = rng.normal(0.0, config.exploration, (config.rollouts, *logits[-1].shape))
            maps.append((logits[-1] + noise).argmax(axis=-1))
        decisions = self.joined(np.concatenate(maps))[: config.evaluations - self.evaluations]
        rewards, scalars = self.record(instance, decisions, control)
        fitness = np.concatenate([rewards, np.full(population.size, -np.inf)])[: population.size]
        if networks and fitness[:networks].max() > self.champion_fitness:
            self.champion = population.networks[fitness[:networks].argmax()].copy()
            self.champion_fitness = float(fitness[:networks].max())
        if learns:
            scalars |= self.learn(seen, len(decisions), rng)
            if not networks:
                self.champion = self.sac.actor.numpy()
        if population.size and len(rewards) >= population.size:  # a budget can end amid a generation
            actor = self.sac.actor.numpy() if config.variant == BOTH else None
            self.population = next_population(population, fitness, logits[:networks], actor, config, rng)
        return scalars

    def record(self, instance: Placements, decisions: np.ndarray, control: int) -> tuple[np.ndarray, dict[str, float]]:
        """Evaluate decisions, put them into the replay buffer, and update the best decision of the training.

        With `invalid=rectified` the buffer contains the repaired decisions.

        Args:
          instance: the instance.
          decisions: int64 [B, n].
          control: the objective of the instance's control.

        Returns:
          (rewards float64 [B], the scalars to log).
        """
        config = self.config
        result, moved = instance.evaluate_moved(decisions)
        valid, earned = result.repaired == 0, (control / result.objectives) ** 2
        if config.invalid == "rectified":
            rewards, counted, decisions = earned, np.ones(len(decisions), bool), result.decisions
        else:
            rewards, counted = np.where(valid, earned, -moved if config.invalid == "ratio" else -1.0), valid
        maps = np.stack(np.divmod(decisions, self.memories), axis=-1).astype(np.uint8)
        self.actions = np.concatenate([self.actions, maps])[-config.buffer :]
        self.rewards = np.concatenate([self.rewards, rewards.astype(np.float32)])[-config.buffer :]
        self.evaluations += len(decisions)
        scalars = {"population_return": float(rewards.mean()), "valid": float(valid.mean())}
        if counted.any():
            objectives = np.where(counted, result.objectives, np.iinfo(np.int64).max)
            first = int(objectives.argmin())
            scalars["return"] = 100 * (1 - float(objectives[first]) / control)
            if objectives[first] < self.best_objective:
                self.best, self.best_objective = result.decisions[first], int(objectives[first])
                self.best_return = scalars["return"]
        return rewards, scalars | {"best_return": self.best_return}

    def learn(self, seen: Seen, evaluations: int, rng: np.random.Generator) -> dict[str, float]:
        """Make `config.gradient_steps` gradient steps for each new evaluation, on batches from the replay buffer.

        Args:
          seen: the observation of the instance.
          evaluations: the number of new evaluations.
          rng: the random generator of the generation.

        Returns:
          The scalars of the last step to log; {} while the buffer holds fewer placements than a batch.
        """
        scalars: dict[str, float] = {}
        if len(self.rewards) < self.config.batch:
            return scalars
        for _ in range(evaluations * self.config.gradient_steps):
            rows = rng.integers(len(self.rewards), size=self.config.batch)
            scalars = self.sac.step(seen, self.actions[rows], self.rewards[rows], rng)
        return scalars

    def arrays(self):
        counters = [self.generation, self.evaluations, self.best_objective]
        return module_arrays(self.sac, "sac/") | {
            **{f"population/{name}": array for name, array in self.population._asdict().items()},
            "actions": self.actions, "rewards": self.rewards, "best": self.best, "champion": self.champion,
            "counters": np.array(counters), "scores": np.array([self.best_return, self.champion_fitness]),
            "trained_on": self.trained_on,
        }  # fmt: skip

    def restore(self, arrays):
        # The replay buffer grows, and chromosomes and decisions have the size of the training's instance.
        free = ("actions", "rewards", "best", "population/priors", "population/temperatures")
        own = self.arrays()
        same_shapes(arrays, {name: (arrays if name in free else own).get(name, own[name]).shape for name in own})
        restore_arrays(self.sac, arrays, "the checkpoint", "sac/")
        self.population = Population(*(arrays[f"population/{name}"] for name in Population._fields))
        self.actions, self.rewards, self.best = arrays["actions"], arrays["rewards"], arrays["best"]
        self.champion, self.trained_on = arrays["champion"], arrays["trained_on"]
        self.generation, self.evaluations, self.best_objective = (int(count) for count in arrays["counters"])
        self.best_return, self.champion_fitness = (float(score) for score in arrays["scores"])


def _digest(instance: Placements) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(instance.hash), np.uint8).copy()
