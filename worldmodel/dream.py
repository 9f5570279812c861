"""The dream: Gymnasium environments in which a world model replaces the real environment.

A dream starts at a real state. The world model predicts all later states, rewards, valid actions and ends of episodes.
An invalid action has the same penalty as in the real environment and leaves the state unchanged. NO-OP ends the
episode. Its reward is 0, unless the model predicts it (`worldmodel.base.Imagined.stops`).

A controller learns to exploit the model's errors. An uncertain step can therefore end the dream
(`dream.uncertainty_limit`, the halt state of MOReL, Kidambi et al. 2020) or have a smaller reward
(`dream.uncertainty_penalty`). The environments apply both rules, so the rules are the same for every world model.
Prediction errors accumulate, so dreams in an inaccurate world model must be short (`dream.max_steps`).
"""

from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlflow.common.task import State
from rlflow.env.rewards import INVALID_REWARD
from worldmodel import spaces
from worldmodel.base import DreamtState, Searchable, WorldModel
from worldmodel.world_model_options import DreamOptions

SEED_RANGE = 2**31 - 1


class DreamBatch:
    """A batch of n dreams, on which the single and the vector environment are built.

    The batch adds to the model's predictions what the environment defines: the penalty of invalid actions, the rules
    for uncertain steps, and the ends by NO-OP, without a valid action and at the step limit. See `DreamVectorEnv` for
    the arguments.

    Attributes:
      imagined: the imagined rollouts of the model.
      steps: int64 [n], the number of steps of each dream since its start.
    """

    def __init__(
        self, model: WorldModel, start: State, n: int, max_steps: int, temperature: float,
        uncertainty_limit: float | None, uncertainty_penalty: float,
    ):
        self.spec, self.max_steps, self.temperature = model.spec, max_steps, temperature
        self.uncertainty_limit = np.inf if uncertainty_limit is None else uncertainty_limit
        self.uncertainty_penalty = uncertainty_penalty
        self.imagined = model.imagine(start, n)
        self.steps = np.zeros(n, np.int64)

    def restart(self, rows: np.ndarray | None = None) -> None:
        """Restart the dreams selected by `rows`, bool [n]; None restarts all dreams."""
        rows = np.ones(len(self.steps), bool) if rows is None else rows
        self.imagined.restart(rows)
        self.steps = np.where(rows, 0, self.steps)

    def advance(self, actions: np.ndarray, seed: tuple[int, int]) -> tuple[np.ndarray, ...]:
        """Take one step in every dream, without restarting the dreams that end.

        Args:
          actions: int [n, 2], one (xfer_id, location) per dream; invalid actions are allowed.
          seed: two integers that seed the random numbers of the step.

        Returns:
          (rewards float64 [n], the same without noise float64 [n], terminated bool [n], truncated bool [n]).
        """
        valid = spaces.valid_actions(actions, self.imagined.counts, self.spec.stop)
        noop = valid & (actions[:, 0] == self.spec.n_rules)
        moves = valid & ~noop
        predicted = self.imagined.advance(actions, moves, self.temperature, seed)
        self.steps = self.steps + 1
        uncertainty = np.where(moves, predicted.uncertainty, 0.0)
        halted = uncertainty > self.uncertainty_limit

        def paid(predicted_rewards: np.ndarray, stops: np.ndarray | float) -> np.ndarray:
            gained = np.where(halted, np.minimum(predicted_rewards, 0.0), predicted_rewards)
            moved = gained - self.uncertainty_penalty * uncertainty
            return np.where(moves, moved, np.where(noop, stops, INVALID_REWARD))

        stops = (0.0, 0.0) if predicted.stops is None else predicted.stops
        rewards = expected = paid(predicted.rewards, stops[0])
        if predicted.expected is not None:
            expected = paid(predicted.expected, stops[1])
        dead_end = ~spaces.with_stop(self.imagined.counts, self.spec.stop).any(axis=-1)
        terminated = noop | halted | dead_end | (moves & predicted.terminated)
        return rewards, expected, terminated, ~terminated & (self.steps >= self.max_steps)

    def observe(self) -> dict[str, np.ndarray]:
        """Return the observations of all dreams as new arrays with a leading axis of size n; see spaces.py."""
        now = self.imagined
        return spaces.observation(now.z, now.h, now.counts, now.class_counts, self.steps, self.spec.stop)


class DreamVectorEnv(VectorEnv):
    """A Gymnasium vector environment of dreams that start at the same state, with AutoresetMode.SAME_STEP.

    One call of the model advances all dreams. The infos of a step have "expected_rewards", float64 [n]: the rewards
    without the noise that the temperature scales.

    Args:
      model: the world model.
      start: the real state at which every dream starts.
      num_envs: the number of dreams.
      max_steps: number of steps after which a dream is truncated.
      temperature: τ of the imagined rollouts (RLFlow, section 3.3.2); 0 makes them deterministic.
      uncertainty_limit: a step with a higher uncertainty ends the dream, and its reward is at most 0 (MOReL's halt
        state, Kidambi et al. 2020). None disables the limit.
      uncertainty_penalty: reward that is subtracted per unit of the step's uncertainty.
    """

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self, model: WorldModel, start: State, num_envs: int, max_steps: int = DreamOptions.max_steps,
        temperature: float = DreamOptions.temperatures[0],
        uncertainty_limit: float | None = DreamOptions.uncertainty_limit,
        uncertainty_penalty: float = DreamOptions.uncertainty_penalty,
    ):
        self.num_envs = num_envs
        self.single_observation_space = spaces.observation_space(model)
        self.single_action_space = spaces.action_space(model.spec)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._dreams = DreamBatch(
            model, start, num_envs, max_steps, temperature, uncertainty_limit, uncertainty_penalty
        )
        self._seed, self._draws = 0, 0
        self._model, self._start = model, start

    def searchable(self, uncertainty_limit: float) -> DreamtState | None:
        """Return the start state of the dreams as a state that `rlflow.search` can explore.

        Args:
          uncertainty_limit: see `worldmodel.base.Searchable`.

        Returns:
          The state, or None if the model is not `Searchable`.
        """
        if not isinstance(self._model, Searchable):
            return None
        return self._model.searchable(self._start, uncertainty_limit)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self._seed, self._draws = int(self.np_random.integers(SEED_RANGE)), 0
        self._dreams.restart()
        return self._dreams.observe(), {}

    def step(self, actions: np.ndarray) -> tuple[dict, np.ndarray, np.ndarray, np.ndarray, dict]:
        rewards, expected, terminated, truncated = self._dreams.advance(np.asarray(actions), (self._seed, self._draws))
        self._draws += 1
        observation, ended, infos = self._dreams.observe(), terminated | truncated, {"expected_rewards": expected}
        if ended.any():
            final = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(ended):
                final[i] = {name: values[i] for name, values in observation.items()}
            infos |= {"final_obs": final, "_final_obs": ended, "final_info": {}, "_final_info": ended.copy()}
            self._dreams.restart(ended)
            observation = self._dreams.observe()
        return observation, rewards, terminated, truncated, infos


class DreamEnv(gymnasium.Env):
    """A Gymnasium environment of a single dream; see `DreamVectorEnv` for the arguments."""

    metadata: ClassVar = {"render_modes": []}

    def __init__(
        self, model: WorldModel, start: State, max_steps: int = DreamOptions.max_steps,
        temperature: float = DreamOptions.temperatures[0],
        uncertainty_limit: float | None = DreamOptions.uncertainty_limit,
        uncertainty_penalty: float = DreamOptions.uncertainty_penalty,
    ):
        self.observation_space = spaces.observation_space(model)
        self.action_space = spaces.action_space(model.spec)
        self._dreams = DreamBatch(model, start, 1, max_steps, temperature, uncertainty_limit, uncertainty_penalty)
        self._seed = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self._seed = int(self.np_random.integers(SEED_RANGE))
        self._dreams.restart()
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        seed = (self._seed, int(self._dreams.steps[0]))
        rewards, _, terminated, truncated = self._dreams.advance(np.asarray(action)[None], seed)
        return self._observe(), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def action_masks(self) -> np.ndarray:
        """Return the action mask for sb3-contrib's MultiDiscrete actions, bool [N + 1 + L]; see spaces.py."""
        return spaces.flat_action_masks(self._observe()["counts"], self._dreams.spec.max_locations)

    def _observe(self) -> dict[str, np.ndarray]:
        return {name: values[0] for name, values in self._dreams.observe().items()}
