"""The dream: environments made of the world model alone.

A dream starts at the latent state and the location counts of a real graph, and asks the real environment for nothing
after that: the next state, the reward, the end and which actions are valid are all predicted. An invalid action is
rewarded as in reality and changes nothing. NO-OP ends the episode, as it does in reality.
"""

from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from worldmodel import spaces
from worldmodel.world_model import State, WorldModel

SEED_RANGE = 2**31 - 1


class Dreams:
    """n dreams side by side: their state and one compiled transition for all. What both environments are made of."""

    def __init__(
        self, model: WorldModel, z: np.ndarray, counts: np.ndarray, n: int, max_steps: int, temperature: float,
        invalid_reward: float,
    ):
        self.model, self.temperature = model, temperature
        self.max_steps, self.invalid_reward = max_steps, invalid_reward
        self.start_z = np.tile(np.asarray(z, np.float32), (n, 1))
        self.start_counts = np.tile(np.asarray(counts, np.int32), (n, 1))
        self.restart()

    def restart(self) -> None:
        n = len(self.start_z)
        self.z, self.counts, self.shown_counts = self.start_z, self.start_counts, self.start_counts
        self.state, self.steps = self.model.initial_state(n), np.zeros(n, np.int64)

    def restart_where(self, ended: np.ndarray) -> None:
        """Starts the dreams in `ended` bool [n] again."""
        self.z = _where(ended, self.start_z, self.z)
        self.counts = _where(ended, self.start_counts, self.counts)
        self.shown_counts = _where(ended, self.start_counts, self.shown_counts)
        self.state = State(*(_where(ended, np.zeros_like(part), part) for part in self.state))
        self.steps = np.where(ended, 0, self.steps)

    def advance(self, actions: np.ndarray, seed: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Takes actions int [n, 2]; gives rewards float64 [n], terminated and truncated bool [n]."""
        valid = spaces.valid_actions(actions, self.shown_counts)
        step = self.model.step(self.z, self.counts, actions, self.state, self.temperature, seed)
        self.z = _where(valid, step.z, self.z)
        self.counts = _where(valid, step.counts, self.counts)
        self.shown_counts = _where(valid, step.shown_counts, self.shown_counts)
        self.state = State(*(_where(valid, new, old) for new, old in zip(step.state, self.state, strict=True)))
        self.steps = self.steps + 1
        noop = actions[:, 0] == self.model.spec.n_xfers
        terminated = valid & (noop | (step.terminated > 0.5))
        rewards = np.where(valid, step.reward, self.invalid_reward).astype(np.float64)
        return rewards, terminated, ~terminated & (self.steps >= self.max_steps)

    def observe(self) -> dict[str, np.ndarray]:
        """The batched observation, in arrays of its own."""
        xfer_mask, location_masks = spaces.masks_from_counts(self.shown_counts, self.model.spec.max_locations)
        return {
            "z": self.z.copy(), "h": self.state.h.copy(), "xfer_mask": xfer_mask, "location_masks": location_masks,
        }


class DreamVectorEnv(VectorEnv):
    """`num_envs` dreams from one start, in one compiled TensorFlow program per step; AutoresetMode.SAME_STEP.

    Args:
      model: the world model.
      z, counts: the start: the latent state [Z] and the locations per rule [N] of a real graph.
      num_envs: how many dreams.
      max_steps: a dream is truncated after so many steps.
      temperature: τ of the mixtures (RLFlow, section 3.3.2); 0 is deterministic.
      invalid_reward: for an invalid action.
    """

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self, model: WorldModel, z: np.ndarray, counts: np.ndarray, num_envs: int, max_steps: int = 50,
        temperature: float = 1.0, invalid_reward: float = -100.0,
    ):
        self.num_envs = num_envs
        self.single_observation_space = spaces.observation_space(model.spec, model.config.latent, model.config.hidden)
        self.single_action_space = spaces.action_space(model.spec)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._dreams = Dreams(model, z, counts, num_envs, max_steps, temperature, invalid_reward)
        self._seed, self._draws = 0, 0

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
                final[i] = {name: values[i].copy() for name, values in observation.items()}
            infos = {"final_obs": final, "_final_obs": ended, "final_info": {}, "_final_info": ended.copy()}
            self._dreams.restart_where(ended)
            observation = self._dreams.observe()
        return observation, rewards, terminated, truncated, infos


class DreamEnv(gymnasium.Env):
    """One dream; the arguments are those of DreamVectorEnv."""

    metadata: ClassVar = {"render_modes": []}

    def __init__(
        self, model: WorldModel, z: np.ndarray, counts: np.ndarray, max_steps: int = 50, temperature: float = 1.0,
        invalid_reward: float = -100.0,
    ):
        self.observation_space = spaces.observation_space(model.spec, model.config.latent, model.config.hidden)
        self.action_space = spaces.action_space(model.spec)
        self._dreams = Dreams(model, z, counts, 1, max_steps, temperature, invalid_reward)
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
        """bool [N + 1 + L]: the valid xfers, then the union of their locations (sb3-contrib, MultiDiscrete)."""
        observation = self._observe()
        return spaces.flat_action_masks(observation["xfer_mask"], observation["location_masks"])

    def _observe(self) -> dict[str, np.ndarray]:
        return {name: values[0] for name, values in self._dreams.observe().items()}


def _where(rows: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return np.where(rows[:, None], new, old)
