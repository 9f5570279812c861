"""The controller of Knossos: it trains a value on the searches of several problems, and acts by searching again.

An epoch searches some problems, and then makes gradient steps on the gains that these searches found, and on the gains
along the best known paths of all problems. The curriculum prefers problems whose rate of success is neither low nor
high: a problem that every search solves, or none, teaches little. The random numbers of epoch k depend on (seed, k)
alone, so that a resumed training gives the same bytes as an uninterrupted one.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from controllers.astar.network import Choices, ValueNetwork, joined, joined_choices
from controllers.astar.search import (
    Example,
    Explored,
    Trial,
    Tried,
    astar,
    drawn,
    examples_along,
    expected_gains,
    mcts,
    qstar,
)
from controllers.base import Learner, StopReason, derive_seed, same_shapes
from controllers.controller_options import QSTAR, AStarConfig
from rlflow.common.task import EncodingSpec, GraphArrays, LocalState
from rlflow.optimisation.candidates import states_from
from rlflow.search.base import Limits, Search, SearchResult, run_search, uninterrupted
from worldmodel.trainer import Diverged, check_finite
from worldmodel.weights import Adam, apply_clipped, module_arrays, restore_arrays, with_slots

MOST_ROWS = 20_000  # largest number of nodes that the network sees at once, unless a single graph has more
LARGEST_GRADIENT = 5.0  # largest global norm of a gradient
LOWEST, SUCCESS, PATHS = "problems/lowest", "problems/success", "problems/paths"  # arrays with a row for each problem
NO_ACTION = -1  # fills the rows of `paths` behind their last action
MEMORY = 0.5  # weight of the former rate of success when a further search updates the rate (a moving average)


class AStar(Learner):
    """The controller `astar`.

    Attributes:
      network: the value network.
      scale: the gain per step that an output of 1 of the network means, in the unit of the objective: the mean of the
        positive targets of the first epoch. 0 before the training.
      iterations, env_steps: the number of epochs, and of rewrites that the searches of the training tried.
      lowest, success: int64 [problems] and float64 [problems], the lowest known objective of each problem of the
        training, and the rate of success: a moving average of the searches that reached this objective.
      paths: int64 [problems, horizon, 2], the actions that lead to the lowest known objective of each problem. The rows
        behind the last action hold NO_ACTION.
      acting_steps: number of rewrites that `act` has tried.
    """

    name = "astar"
    Config = AStarConfig
    BUDGET = ("epochs",)

    def __init__(self, config: AStarConfig, spec: EncodingSpec, seed: int = 0):
        super().__init__(config, spec.to_dict(), seed)
        self.spec, self.network = spec, ValueNetwork(config, spec, np.random.default_rng(seed))
        self.rate = tf.Variable(config.learning_rate, trainable=False)
        self.optimizer = with_slots(Adam(self.rate), self.network.trainable_variables)
        self.scale, self.best_return, self.iterations, self.env_steps, self.acting_steps = 0.0, 0.0, 0, 0, 0
        self.lowest, self.success = np.zeros(0, np.int64), np.zeros(0)
        self.paths = np.zeros((0, config.horizon, 2), np.int64)
        self._planned: dict[object, tuple[int, int] | None] = {}  # hash of a state → next action; None at the end
        targets = tf.TensorSpec([None, config.horizon])
        self.update = tf.function(
            self._update,
            input_signature=[self.network.signature, targets, targets, tf.TensorSpec([2, 2], tf.int32)],
            autograph=False,
        )

    # -- searching ---------------------------------------------------------------------------------

    def value(self, graphs: Sequence[GraphArrays]) -> np.ndarray:
        """Return the expected gains per step, float64 [B, horizon], in the unit of the objective (`search.Value`)."""
        if not self.scale:  # an untrained network gives 0
            return np.zeros((len(graphs), self.config.horizon))
        parts: list[list[GraphArrays]] = []
        rows = MOST_ROWS
        for graph in graphs:
            rows += len(graph.ops)
            if rows > MOST_ROWS:
                parts.append([])
                rows = len(graph.ops)
            parts[-1].append(graph)
        values = [self.network.values(joined(part)).numpy() for part in parts]
        return np.concatenate(values).astype(np.float64) * self.scale

    def choice_value(self, graph: GraphArrays, choices: Choices) -> np.ndarray:
        """Return the expected gains per step of K choices, float64 [K, horizon], in the unit of the objective.

        This function is a `search.ChoiceValue`.

        Args:
          graph: the encoding of a state.
          choices: K choices in this state.
        """
        if not self.scale or not len(choices.sorts):
            return np.zeros((len(choices.sorts), self.config.horizon))
        return self.network.values(joined([graph]), choices).numpy().astype(np.float64) * self.scale

    def searched(
        self, state: LocalState, evaluations: int, seed: int = 0, method: str | None = None, patience: float = np.inf,
        noise: float = 0.0,
    ) -> tuple[SearchResult, Explored | Tried]:  # fmt: skip
        """Search from a state.

        Args:
          state: the state.
          evaluations: largest number of rewrites.
          seed: seed of the random choices.
          method: "qstar", "astar" or "mcts"; by default the option `search`. A network of choices can run only "qstar",
            and a network of states only the other two.
          patience: see `search.astar`; "mcts" ignores it.
          noise: see `search.qstar`; the other methods ignore it.

        Returns:
          (the result, the explored states). The actions of the result are the shortest known path to its state.
        """
        explored, method, horizon = [], method or self.config.search, self.config.horizon

        def run(search) -> str:
            if method == QSTAR:
                explored.append(Tried(search, self.choice_value, horizon))
                return qstar(search, explored[0], patience, noise)
            explored.append(Explored(search, self.value, horizon))
            if method == "astar":
                return astar(search, explored[0], patience)
            return mcts(search, explored[0], self.unit(state), self.config.exploration, self.config.alpha)

        result = uninterrupted(run_search(run, state, Limits(interactions=evaluations), seed))
        return result._replace(actions=explored[0].actions_to(result.state)), explored[0]

    def unit(self, state: LocalState) -> float:
        """Return the unit of gains in equations 8 and 9: `scale`, or before the training 1 % of the objective."""
        return self.scale or max(state.objective, 1) / 100

    # -- acting ------------------------------------------------------------------------------------

    def act(self, observation, greedy: bool = True, rng: np.random.Generator | None = None) -> np.ndarray:
        """Choose the next action of a search from the present state.

        Args:
          observation: a batch with one observation of `rlflow.env.states.StateEnv`.
          greedy: True to follow the path that a search finds. False to draw each action with the probabilities of
            equation 9 (`search.drawn`) and to end the episode after `horizon` steps.
          rng: the generator to draw with, by default the controller's own.

        Returns:
          int64 [1, 2], (xfer_id, location).
        """
        state, step = observation["state"][0], int(observation["step"][0])
        action = self._on_plan(state) if greedy else self._drawn(state, step, rng or self.rng)
        return np.array([action or self._end(state)], np.int64)

    def _on_plan(self, state: LocalState) -> tuple[int, int] | None:
        """Return the next action of a plan that an earlier search found through this state, or of a new search.

        Without a cheaper state in the result of the search, return None.
        """
        if state.hash not in self._planned:
            result, _ = self.searched(state, self.config.evaluations, self.seed, patience=self.config.patience)
            self.acting_steps += result.interactions
            self._planned[state.hash], after = None, state
            for action in result.actions:
                self._planned[after.hash] = action
                after = after.apply(*action)
        return self._planned[state.hash]

    def _drawn(self, state: LocalState, step: int, rng: np.random.Generator) -> tuple[int, int] | None:
        """Draw an action by equation 9; return None after `horizon` steps, or if there is no action.

        Args:
          state: the present state.
          step: number of steps since the reset.
          rng: the generator.
        """
        left = self.config.horizon - step
        if left <= 0 or not state.matches:
            return None
        if self.config.search == QSTAR:
            trial = Trial(state, None, self.choice_value)
            matches, gains = trial.state.matches, left * trial.values[:, left - 1]
            actions = [(match.xfer_id, state.index_of(match)) for match in matches]
        else:
            explored = Explored(Search(state), self.value, self.config.horizon)
            children = explored.expand(explored.root)
            self.acting_steps += explored.search.interactions
            actions, gains = [action for action, _ in children], expected_gains(explored.root, children, left)
        return actions[drawn(gains, self.unit(state), self.config.alpha, rng)]

    def _end(self, state: LocalState) -> tuple[int, int]:
        """Return the action that ends an episode: NO-OP, or the first valid action in a task without NO-OP."""
        return (self.spec.n_rules, 0) if self.spec.stop else (int(np.argmax(state.counts > 0)), 0)

    # -- training ----------------------------------------------------------------------------------

    def first_checkpoint(self) -> int:
        """Return the largest number of rewrites that the searches of the first epoch can try; 0 without epochs.

        A search that ends early, for example by `patience`, tries fewer rewrites.
        """
        problems = min(self.config.problems, 1 + len(self.config.also))
        return problems * self.config.evaluations if self.config.epochs else 0

    def train(self, make_env, seed: int, folder, log=None, progress=None) -> dict:
        """Train on the problem of an environment, or on all problems of a `MultiModelEnv`; resume from a checkpoint.

        Args:
          make_env: a function that returns a `rlflow.env.states.StateEnv`, or a `MultiModelEnv` of several.
          seed, folder, log, progress: see `controllers.base.Controller.train`.

        Returns:
          The results of `controllers.base.Controller.train`; "best_return" is the mean of the largest known gains of
          the problems, in percent.
        """
        trainer, env = self.trainer(folder, seed, self.config.epochs, log, progress), make_env()
        envs = env.get_wrapper_attr("envs") if env.has_wrapper_attr("envs") else [env]
        states = [one.unwrapped.task.initial for one in envs]
        spend = env.get_wrapper_attr("spend") if env.has_wrapper_attr("spend") else lambda interactions: None
        if not self.has_checkpoint(folder):
            self.lowest = np.array([state.objective for state in states], np.int64)
            self.success = np.full(len(states), np.mean(self.config.band))
            self.paths = np.full((len(states), self.config.horizon, 2), NO_ACTION, np.int64)
            trainer.write()

        def update() -> dict:
            rng, gains, examples = np.random.default_rng([seed, self.iterations]), [], []
            for problem in self.chosen(rng):
                state, own = states[problem], derive_seed(seed, self.iterations, problem)
                noise = self.unit(state) / self.config.alpha if self.config.alpha else np.inf
                result, explored = self.searched(
                    state, self.config.evaluations, own, patience=self.config.patience, noise=noise
                )
                spend(result.interactions)
                self.env_steps += result.interactions
                self.record(problem, result)
                gains.append(_percent(result.state.objective, state))
                found = explored.examples()
                examples += [found[k] for k in rng.permutation(len(found))[: self.config.examples]]
            for state, path in zip(states, self.paths, strict=True):
                actions = [action for action in path.tolist() if action[0] >= 0]
                chosen = actions if self.config.search == QSTAR else None
                examples += examples_along(states_from(state, actions), chosen, self.config.horizon)
            if self.config.anneal:
                self.rate.assign(self.config.learning_rate * (1 - self.iterations / self.config.epochs))
            scalars = self.learn(examples, rng)
            check_finite(scalars, self.iterations)
            self.iterations += 1
            self.best_return = float(np.mean([_percent(*pair) for pair in zip(self.lowest, states, strict=True)]))
            return scalars | {
                "return": np.mean(gains), "best_return": self.best_return, "success": np.mean(self.success)
            }  # fmt: skip

        stop, detail = StopReason.BUDGET, f"{self.config.epochs} epochs"
        try:
            trainer.run(update, lambda: self.iterations, self.config.epochs, at=lambda: self.env_steps)
        except Diverged:
            stop, detail = StopReason.DIVERGED, f"loss not finite in epoch {self.iterations + 1}"
        return self.results(stop, detail)

    def chosen(self, rng: np.random.Generator) -> list[int]:
        """Return the indices of the problems that an epoch searches, at most `config.problems`.

        Problems whose rate of success lies within `config.band` come first. The order is otherwise random.
        """
        low, high = self.config.band
        order = rng.permutation(len(self.success))
        outside = (self.success[order] < low) | (self.success[order] > high)
        return order[np.argsort(outside, kind="stable")][: self.config.problems].tolist()

    def record(self, problem: int, result: SearchResult) -> None:
        """Update the lowest known objective of a problem, the path to it, and the rate of success, after a search.

        A new lowest objective puts the rate back to the middle of the band, since no earlier search found it.

        Args:
          problem: number of the problem.
          result: the result of the search.
        """
        objective = result.state.objective
        if objective < self.lowest[problem]:
            self.lowest[problem], self.success[problem] = objective, np.mean(self.config.band)
            self.paths[problem] = NO_ACTION
            self.paths[problem, : len(result.actions)] = result.actions
        else:
            solved = objective == self.lowest[problem]
            self.success[problem] = MEMORY * self.success[problem] + (1 - MEMORY) * solved

    def learn(self, examples: Sequence[Example], rng: np.random.Generator) -> dict[str, float]:
        """Make `config.passes` passes of gradient steps over examples.

        Args:
          examples: K examples with gains in the unit of the objective.
          rng: the generator that shuffles the examples and seeds dropout.

        Returns:
          The scalars to log, as means over all gradient steps.
        """
        if not self.scale:
            gains = np.concatenate([example.gains for example in examples])
            self.scale = float(np.mean(gains[gains > 0])) if (gains > 0).any() else 1.0
        steps = np.arange(1, self.config.horizon + 1)
        losses, norms = [], []
        for _ in range(self.config.passes):
            order = rng.permutation(len(examples))
            for first in range(0, len(order), self.config.batch):
                some = [examples[k] for k in order[first : first + self.config.batch]]
                targets = np.concatenate([example.gains for example in some]) / self.scale
                known = np.concatenate([np.tile(steps <= one.left, (len(one.gains), 1)) for one in some])
                seeds = rng.integers(2**31, size=(2, 2)).astype(np.int32)
                graphs = [example.graph for example in some]
                inputs = [joined(graphs)]
                if self.config.search == QSTAR:
                    inputs.append(joined_choices(graphs, [example.choices for example in some]))
                loss, norm = self.update(inputs, targets.astype(np.float32), known.astype(np.float32), seeds)
                losses.append(float(loss))
                norms.append(float(norm))
        self._planned.clear()
        return {"loss": np.mean(losses), "gradient_norm": np.mean(norms)}

    def _update(self, inputs, targets, known, seeds) -> tuple[tf.Tensor, tf.Tensor]:
        """Make one gradient step; return the loss and the norm of its gradient."""
        variables = self.network.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.network.loss(inputs, targets, known, seeds)
        gradients = tape.gradient(loss, variables)
        return loss, apply_clipped(gradients, variables, self.optimizer, LARGEST_GRADIENT)

    # -- checkpoints -------------------------------------------------------------------------------

    def arrays(self) -> dict[str, np.ndarray]:
        return module_arrays(self.network, "network/") | module_arrays(self.optimizer, "optimizer/") | {
            "counters": np.array([self.iterations, self.env_steps]), "best_return": np.float64(self.best_return),
            "scale": np.float64(self.scale), LOWEST: self.lowest, SUCCESS: self.success,
            PATHS: self.paths,
        }  # fmt: skip

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        expected = {name: array.shape for name, array in self.arrays().items()}
        same_shapes(
            arrays, expected | {name: arrays[name].shape for name in (LOWEST, SUCCESS, PATHS) if name in arrays}
        )
        restore_arrays(self.network, arrays, "the checkpoint", "network/")
        restore_arrays(self.optimizer, arrays, "the checkpoint", "optimizer/")
        self.iterations, self.env_steps = (int(count) for count in arrays["counters"])
        self.best_return, self.scale = float(arrays["best_return"]), float(arrays["scale"])
        self.lowest, self.success, self.paths = arrays[LOWEST], arrays[SUCCESS], arrays[PATHS]
        self._planned.clear()


def _percent(objective: int, state: LocalState) -> float:
    return 100.0 * (1 - float(objective) / max(state.objective, 1))
