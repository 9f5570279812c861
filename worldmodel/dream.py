"""The dream: environments made of a world model alone.

A dream starts at a real state and asks the real environment for nothing after that: the next state, the reward, the end
and which actions are valid are all predicted. An invalid action is rewarded as in reality and changes nothing. NO-OP's
reward is 0 and it ends the episode, as in reality. A step of which the model is uncertain can be paid less, or end the
dream.

A controller goes wherever a dream promises too much, so uncertainty ends the dream unpaid (`dream.uncertainty_limit`,
as MOReL's halt state does, Kidambi et al. 2020): without that CMA-ES dreamt a gain of 48 % on BERT-Base. NO-OP, invalid
actions, ends and this limit belong to the dream around a model, so they are the same for every world model. Dreams are
short (`dream.max_steps`), since errors add up.
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
    """n dreams side by side, each with the ends and the punishments of the real environment.

    Both environments below are made of it.

    Attributes: imagined, the model's side; steps, int64 [n], how many each dream has had.
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
        """Starts the dreams in rows, bool [n], or all of them, again."""
        rows = np.ones(len(self.steps), bool) if rows is None else rows
        self.imagined.restart(rows)
        self.steps = np.where(rows, 0, self.steps)

    def advance(self, actions: np.ndarray, seed: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Takes actions int [n, 2]; gives rewards float64 [n], terminated and truncated bool [n]."""
        valid = spaces.valid_actions(actions, self.imagined.counts, self.spec.stop)
        noop = valid & (actions[:, 0] == self.spec.n_rules)
        moves = valid & ~noop
        predicted = self.imagined.advance(actions, moves, self.temperature, seed)
        self.steps = self.steps + 1
        uncertainty = np.where(moves, predicted.uncertainty, 0.0)
        halted = uncertainty > self.uncertainty_limit
        paid = np.where(halted, np.minimum(predicted.rewards, 0.0), predicted.rewards)
        gained = paid - self.uncertainty_penalty * uncertainty
        rewards = np.where(moves, gained, np.where(noop, 0.0, INVALID_REWARD))
        dead_end = ~spaces.with_stop(self.imagined.counts, self.spec.stop).any(axis=-1)
        terminated = noop | halted | dead_end | (moves & predicted.terminated)
        return rewards, terminated, ~terminated & (self.steps >= self.max_steps)

    def observe(self) -> dict[str, np.ndarray]:
        """The batched observation, in arrays of its own."""
        now = self.imagined
        return spaces.observation(now.z, now.h, now.counts, now.class_counts, self.steps, self.spec.stop)


class DreamVectorEnv(VectorEnv):
    """`num_envs` dreams from one start, all advanced by one call of the model; AutoresetMode.SAME_STEP.

    Args:
      model: the world model.
      start: the real state that every dream starts at.
      num_envs: how many dreams.
      max_steps: a dream is truncated after so many steps.
      temperature: τ of the model (RLFlow, section 3.3.2); 0 is deterministic.
      uncertainty_limit: a step of which the model is more uncertain than this ends the dream, and what it promises is
        not paid (MOReL's halt state, Kidambi et al. 2020); None: never.
      uncertainty_penalty: what a unit of uncertainty takes off the reward of its step.
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
        """The start as a state that `rlflow.search` can walk; None if the model is not `worldmodel.base.Searchable`."""
        if not isinstance(self._model, Searchable):
            return None
        return self._model.searchable(self._start, uncertainty_limit)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self._seed, self._draws = int(self.np_random.integers(SEED_RANGE)), 0
        self._dreams.restart()
        return self._dreams.observe(), {}

    def step(self, actions: np.ndarray) -> tuple[dict, np.ndarray, np.ndarray, np.ndarray, dict]:
        rewards, terminated, truncated = self._dreams.advance(np.asarray(actions), (self._seed, self._draws))
        self._draws += 1
        observation, ended, infos = self._dreams.observe(), terminated | truncated, {}
        if ended.any():
            final = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(ended):
                final[i] = {name: values[i] for name, values in observation.items()}
            infos = {"final_obs": final, "_final_obs": ended, "final_info": {}, "_final_info": ended.copy()}
            self._dreams.restart(ended)
            observation = self._dreams.observe()
        return observation, rewards, terminated, truncated, infos


class DreamEnv(gymnasium.Env):
    """One dream; the arguments are those of DreamVectorEnv."""

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
        rewards, terminated, truncated = self._dreams.advance(np.asarray(action)[None], seed)
        return self._observe(), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def action_masks(self) -> np.ndarray:
        """bool [N + 1 + L]: the valid rules, then the union of their locations (sb3-contrib, MultiDiscrete)."""
        return spaces.flat_action_masks(self._observe()["counts"], self._dreams.spec.max_locations)

    def _observe(self) -> dict[str, np.ndarray]:
        return {name: values[0] for name, values in self._dreams.observe().items()}
