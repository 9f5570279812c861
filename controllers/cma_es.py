"""CMA-ES in the dream: evolution of the weights of a small policy. The fitness is the mean return of its dreams.

The policy scores match classes and NO-OP, and takes a match of the class with the highest score among the classes that
have a match. With `priorities` the scores are constants, with `linear` they are W [z, h] + b (Ha & Schmidhuber 2018;
RLFlow paper, section 3.4), and `mlp` adds a narrow hidden layer. Only match classes that occurred in the exploration
before the first generation (`explore`) have a score. Where the policy would choose NO-OP, it takes a class without a
score if that class has a match and a positive median reward.

The search begins at a greedy prior: the policy that takes the class of the highest median reward in the data, and NO-OP
if no class with a positive median reward has a match. Median rewards enter as ranks, so their unit does not matter. The
first generations search the biases alone, the later ones all weights. The policy that is kept has at least the return
of the greedy prior in the same dreams.

The last output u of the policy selects the location. Among the `count` matches of the chosen class, the policy takes
the match nearest to σ(u) · (count - 1). A checkpoint holds all fitness values. Replaying them rebuilds the search bit
for bit.
"""

import numpy as np
import tensorflow as tf

from controllers.base import Controller, StopReason, derive_seed, same_shapes
from controllers.controller_options import CMAESConfig
from controllers.evaluation import play
from controllers.evolution import Widened
from controllers.masked import TwoStage, count_of
from controllers.random import uniform_actions
from rlflow.common.errors import RLFlowError

# The initial scores of match classes without gain lie at least this far below the score of NO-OP. Three times the
# default sigma0, so that a mutated policy chooses few of these classes.
RELUCTANCE = 0.3


class Scores:
    """A function of I inputs with O outputs, evaluated for P weight vectors float32 [P, size] at once.

    Attributes:
      size: the length of a weight vector.
      start: float64 [size], the initial weight vector; its outputs equal `bias` for all inputs.
    """

    def __init__(self, policy: str, inputs: int, hidden: int, bias: np.ndarray):
        """Create the function.

        Args:
          policy: "priorities" (the outputs are constants), "linear" (one layer) or "mlp" (one hidden layer).
          inputs: the number of inputs I.
          hidden: the number of units in the hidden layer of "mlp".
          bias: float [O], the outputs at the initial weights.
        """
        self.policy, outputs = policy, len(bias)
        last = {"priorities": 0, "linear": inputs, "mlp": hidden}[policy]
        self.shapes = [(last + 1, outputs)]  # the last row of a layer is its bias
        self.start = np.concatenate([np.zeros(last * outputs), bias])
        if policy == "mlp":
            self.shapes.insert(0, (inputs + 1, hidden))
            # With zeros in both layers no small change of one layer would make the outputs depend on z.
            first = np.random.default_rng(0).standard_normal((inputs + 1, hidden))
            first[-1] = 0.0
            self.start = np.concatenate([first.ravel(), self.start])
        self.size = len(self.start)

    def __call__(self, weights: tf.Tensor, z: tf.Tensor, h: tf.Tensor) -> tf.Tensor:
        """Return the outputs, float32 [B, O]. Each of the P weight vectors applies to B / P successive rows.

        Args:
          weights: float32 [P, size].
          z: float32 [B, Z].
          h: float32 [B, H].
        """
        population, rows = tf.shape(weights)[0], tf.shape(z)[0]
        x = tf.concat([z, h], axis=1) if self.policy != "priorities" else z[:, :0]
        x = tf.reshape(x, [population, rows // population, x.shape[1]])
        layers = tf.split(weights, [n * m for n, m in self.shapes], axis=1)
        for number, (layer, shape) in enumerate(zip(layers, self.shapes, strict=True)):
            layer = tf.reshape(layer, [population, *shape])
            x = (tf.tanh(x) if number else x) / max(shape[0] - 1, 1) ** 0.5 @ layer[:, :-1] + layer[:, -1:]
        return tf.reshape(x, [rows, self.shapes[-1][1]])


def by_median_reward(usual_rewards: np.ndarray) -> np.ndarray:
    """Return the initial scores of C choices, float64 [C] within ±1, by the ranks of their median class rewards.

    A choice with a positive reward scores above 0, and any other choice scores −RELUCTANCE or less.

    Args:
      usual_rewards: float [C], the median class rewards. The last entry is for NO-OP, whose score is 0.
    """
    gains, losses = np.unique(usual_rewards[usual_rewards > 0]), np.unique(-usual_rewards[usual_rewards < 0])
    above = np.searchsorted(gains, usual_rewards, side="right") / max(len(gains), 1)
    below = np.searchsorted(losses, -usual_rewards, side="right") / max(len(losses), 1)
    scores = above - RELUCTANCE * (usual_rewards <= 0) - (1 - RELUCTANCE) * below
    scores[-1] = 0.0
    return scores


# In `explore`: the number of steps of random play, and the number of steps without a new match class after which the
# sampling from the greedy prior ends.
RANDOM_STEPS = 30


class CMAES(Controller):
    """The controller `cma-es`. It has K + 1 choices, the K match classes and NO-OP, and scores the reachable ones.

    Attributes:
      xfer_ids: int [K + 1], the rule of each choice; NO-OP is the last choice.
      reachable: bool [K + 1], True for the choices that have a score.
      others: float [K + 1], the median class rewards of the choices without a score; 0 for all other choices.
      weights: float32 [size], the best weight vector so far; `act` uses it.
      mean: float64 [size], the mean of the search distribution.
      history: float64 [individuals so far], the fitness of all individuals in the order of their evaluation.
    """

    name = "cma-es"
    Config = CMAESConfig
    BUDGET = ("generations",)

    def __init__(self, config, observation_space, action_space, seed=0):
        super().__init__(config, observation_space, action_space, seed)
        self.history = np.zeros(0)  # fitness of all individuals so far
        self.best_return, self.env_steps = -np.inf, 0
        # The rule of each choice; the choices are the match classes and NO-OP.
        self.xfer_ids = np.append(self.match_classes, self.shapes.n_xfer_ids - 1)
        self.know(np.ones(len(self.xfer_ids), bool))

    def without_prior(self):
        other = CMAES(self.config, *self.spaces, self.seed)
        scores = len(other.xfer_ids)  # one bias for each choice; the last bias is of the location
        other.weights[-scores - 1 : -1] = 0.0
        return other

    def know(self, reachable: np.ndarray) -> None:
        """Set the choices that the policy scores, compile the policy and reset its weights.

        reachable: bool [K + 1], True for each match class that has a score; the last entry is for NO-OP.
        """
        self.reachable, s = reachable, self.shapes
        self.others = np.where(reachable, 0.0, np.append(self.usual_rewards, 0.0))
        bias = np.append(by_median_reward(np.append(self.usual_rewards, 0.0)[reachable]), 0.0)
        self.scores = Scores(self.config.policy, s.z + s.h, self.config.hidden, bias)
        self.weights = self.scores.start.astype(np.float32)  # the best so far; `act` uses them
        self.mean = self.scores.start.copy()  # mean of the search after `history`

        def policy(weights, z, h, counts) -> TwoStage:
            """Return the distribution over (reachable choice, match) for B rows; `Scores` describes weights, z and h.

            counts: int32 [B, C], the number of matches of each reachable choice.
            """
            outputs = self.scores(weights, z, h)
            scores, coordinate = outputs[:, :-1] / self.config.sigma0, tf.sigmoid(outputs[:, -1:])

            def distances(choice):
                count = count_of(counts, choice)
                nearest = coordinate * tf.cast(count[:, None] - 1, tf.float32)
                return -tf.abs(tf.range(s.locations, dtype=tf.float32) - nearest), count

            return TwoStage(scores, counts > 0, distances)

        inputs = [
            tf.TensorSpec([None, self.scores.size], tf.float32),
            tf.TensorSpec([None, s.z], tf.float32),
            tf.TensorSpec([None, s.h], tf.float32),
            tf.TensorSpec([None, reachable.sum()], tf.int32),
        ]
        self.mode = tf.function(lambda *x: policy(*x).mode(), input_signature=inputs, autograph=False)
        self.sample = tf.function(
            lambda *x: policy(*x[:-1]).sample(x[-1]),
            input_signature=[*inputs, tf.TensorSpec([2, 2], tf.int64)],
            autograph=False,
        )

    def act(self, observation, greedy=True, rng=None):
        """Return actions, int64 [B, 2]; see `Controller.act`.

        Sampling draws a choice from the softmax of score / sigma0. It then draws the index of a match from the softmax
        of −|index − σ(u) · (count − 1)|.
        """
        if greedy:
            return self.actions(self.mode, self.weights[None], observation)
        seeds = (rng or self.rng).integers(2**31, size=(2, 2))
        return self.actions(self.sample, self.weights[None], observation, seeds)

    def choices(self, observation) -> np.ndarray:
        """Return the number of matches of each choice, int32 [B, K + 1]; NO-OP, the last, has 1, or 0 if invalid."""
        *_, counts = self.batch(observation, "class_counts")
        return np.concatenate([counts, np.full_like(counts[:, :1], self.shapes.stop)], axis=1)

    def actions(self, policy, weights, observation, *seeds) -> np.ndarray:
        """Return the actions that a policy chooses, int64 [B, 2].

        Args:
          policy: `self.mode` or `self.sample`.
          weights: float32 [P, size]; each weight vector acts on B / P successive rows.
          observation: a batch of B observations.
          *seeds: one array int [2, 2], the seeds of `self.sample`; nothing for `self.mode`.
        """
        z, h, _ = self.batch(observation)
        counts = self.choices(observation)
        chosen, position = policy(weights, z, h, counts[:, self.reachable], *seeds).numpy().T
        choice = np.flatnonzero(self.reachable)[chosen]
        others = np.where(counts > 0, self.others, 0.0)
        more = (choice == len(self.xfer_ids) - 1) & (others > 0).any(axis=1)  # rows where the policy would stop
        choice, position = np.where(more, others.argmax(axis=1), choice), np.where(more, 0, position)
        # The matches of a rule are ordered by match class.
        before, first = np.cumsum(counts, axis=1) - counts, np.searchsorted(self.xfer_ids, self.xfer_ids)[choice]
        row = np.arange(len(counts))
        location = before[row, choice] - before[row, first] + position
        return np.stack([self.xfer_ids[choice], location], axis=1).astype(np.int64)

    def first_checkpoint(self):
        """Return the least number of environment steps that `explore` makes, evaluations left out."""
        config = self.config
        return config.popsize * config.dreams * (RANDOM_STEPS + min(RANDOM_STEPS, config.max_steps))

    def train(self, make_env, seed, folder, log=None, progress=None):
        config = self.config
        trainer = self.trainer(folder, seed, config.generations, log, progress)
        env = self.open(make_env, config.popsize * config.dreams)
        try:
            if not len(self.history):
                self.explore(env, seed)
            search = self.replayed(seed)

            def position() -> int:
                """Return the generations so far, or the configured number if the next generation exceeds the budget."""
                is_last = len(self.history) + search.size > config.generations * config.popsize
                return config.generations if is_last else self.iterations

            def update() -> dict:
                individuals, before = search.ask(), self.iterations
                fitness = self.fitness(env, individuals, derive_seed(seed, 1, before))
                search.tell(fitness)
                self.history = np.concatenate([self.history, fitness])
                self.mean = search.mean
                scalars = {
                    "best_individual": fitness.max(),
                    "population_return": fitness.mean(),
                    "generation": self.iterations,
                    **search.scalars,
                }
                due = before // config.evaluate_every < self.iterations // config.evaluate_every
                if due or search.stop or position() == config.generations:
                    scalars |= self.keep(env, [self.mean, individuals[fitness.argmax()]], seed)
                return scalars

            trainer.run(update, position, config.generations, at=lambda: self.env_steps)
        finally:
            env.close()
        reason = StopReason.CONVERGED if search.stop else StopReason.BUDGET
        detail = ", ".join(search.stop) or f"{config.generations} generations"
        return self.results(reason, detail) | {"dreamt_steps": config.max_steps}

    @property
    def iterations(self) -> int:
        """The number of evaluated individuals divided by `config.popsize`, rounded down."""
        return len(self.history) // self.config.popsize

    def explore(self, env, seed) -> None:
        """Find the match classes that occur in dreams, and set `best_return` to the mean return of the greedy prior.

        RANDOM_STEPS steps of random play come first. Then actions are sampled from the greedy prior, which reaches
        states that random play does not. The sampling ends after RANDOM_STEPS steps without a new match class, or after
        `config.max_steps` steps.
        """
        rng = np.random.default_rng([seed, 2])
        reachable = np.zeros(len(self.xfer_ids), bool)

        def seen(observation):
            np.logical_or(reachable, (self.choices(observation) > 0).any(axis=0), out=reachable)
            return observation

        observation, _ = env.reset(seed=derive_seed(seed, 3))
        for _ in range(RANDOM_STEPS):
            observation, *_ = env.step(uniform_actions(seen(observation)["counts"], rng))
            self.env_steps += env.num_envs
        observation, _ = env.reset(seed=derive_seed(seed, 4))
        steps, known, last = 0, reachable.sum(), 0  # last: the step of the last new class
        while steps < self.config.max_steps and steps - last < RANDOM_STEPS:
            observation, *_ = env.step(self.act(seen(observation), greedy=False, rng=rng))
            self.env_steps, steps = self.env_steps + env.num_envs, steps + 1
            if reachable.sum() > known:
                known, last = reachable.sum(), steps
        first = self.evaluate(env, self.mean[None], derive_seed(seed, 2), expected=True, seen=seen)
        self.best_return = float(first.mean())
        self.know(reachable)

    def fitness(self, env, individuals, seed) -> np.ndarray:
        """Return the mean return of each individual over `config.dreams` dreams, float64 [P].

        Args:
          env: a vector environment with popsize · dreams copies; popsize individuals are evaluated at a time.
          individuals: float [P, size], weight vectors; P is a multiple of popsize.
          seed: the seed of the dreams.
        """
        returns = []
        for part in np.split(individuals, len(individuals) // self.config.popsize):
            returns.append(self.evaluate(env, part, seed, expected=False))
        return np.concatenate(returns).reshape(len(individuals), -1).mean(axis=1)

    def keep(self, env, candidates, seed) -> dict:
        """Evaluate weight vectors, and store the best one if its mean return is the highest so far.

        Args:
          env: a vector environment of dreams.
          candidates: weight vectors float [size]; the first is the mean of the search.
          seed: the seed of the training.

        Returns:
          The scalars to log: "return" (of the first weight vector) and "best_return".
        """
        # Equal dreams each time make the returns of candidates comparable.
        returns = [
            self.evaluate(env, weights[None], derive_seed(seed, 2), expected=True).mean() for weights in candidates
        ]
        if max(returns) > self.best_return:
            self.best_return, self.weights = float(max(returns)), candidates[int(np.argmax(returns))].astype(np.float32)
        return {"return": returns[0], "best_return": self.best_return}

    def evaluate(self, env, individuals, seed, expected, seen=lambda observation: observation) -> np.ndarray:
        """Play a greedy episode in every copy of a vector environment and return its returns, float64 [envs].

        Args:
          env: the vector environment.
          individuals: float [P, size], weight vectors; each plays in envs / P successive copies.
          seed: the seed of the dreams.
          expected: see `controllers.evaluation.play`.
          seen: a function that is called with every observation and returns it.
        """
        weights = tf.constant(individuals, tf.float32)
        returns, lengths = play(
            env,
            lambda observation: self.actions(self.mode, weights, seen(observation)),
            seed,
            expected,
            self.config.max_steps,
        )
        self.env_steps += int(lengths.max()) * env.num_envs  # copies that ended early play on
        return returns

    def replayed(self, seed) -> Widened:
        """Rebuild the search by reporting the fitness values in `history` to a new search with this seed.

        Raises:
          RLFlowError: the mean of the rebuilt search differs from the stored mean.
        """
        config, first = self.config, 0
        biases = self.reachable.sum() + 1  # the biases of all choices and of u
        search = Widened(
            self.scores.start, biases, config.priorities_first * config.popsize, sigma0=config.sigma0,
            popsize=config.popsize, full_covariance=config.full_covariance, patience=config.patience, seed=seed,
        )  # fmt: skip
        while first < len(self.history):
            size = len(search.ask())
            search.tell(self.history[first : first + size])
            first += size
        if not np.array_equal(search.mean, self.mean):
            raise RLFlowError(
                "the CMA-ES checkpoint was written with another version of cma or numpy, or of RLFlow, and cannot be "
                "continued; it can still act: train into an empty folder to start anew"
            )
        return search

    def arrays(self):
        return {
            "reachable": self.reachable,
            "weights": self.weights,
            "best_return": np.float64(self.best_return),
            "history": self.history,
            "mean": self.mean,
            "env_steps": np.int64(self.env_steps),
        }

    def restore(self, arrays):
        known = {"reachable": (len(self.xfer_ids),)}
        same_shapes({key: array for key, array in arrays.items() if key in known}, known)
        self.know(arrays["reachable"])
        size, played = (self.scores.size,), (len(arrays.get("history", ())),)
        expected = known | {"weights": size, "best_return": (), "history": played, "mean": size, "env_steps": ()}
        same_shapes(arrays, expected)
        self.weights, self.history, self.mean = arrays["weights"], arrays["history"], arrays["mean"]
        self.best_return, self.env_steps = float(arrays["best_return"]), int(arrays["env_steps"])
