"""A wrapper of the real environment that replaces its observations by the latent observations of a world model.

The wrapper's actions use the model's location numbers. `info["action"]` of a step contains the same action in the
environment's location numbers, because the delivered graph is rebuilt from these actions.
"""

import gymnasium
import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.task import CompoundState
from worldmodel import spaces
from worldmodel.base import WorldModel


class LatentEnv(gymnasium.Wrapper):
    """A wrapper that gives a real environment the observation and action spaces of a dream.

    The model's observer computes z, h and the location counts from the real states. An invalid action changes neither
    the state nor h. If the environment's action mask has fewer locations of a rule than the observer counts (near the
    padding limit), the observation has the smaller number.

    Args:
      env: a `rlflow.env.step.StepEnv`. Its unwrapped `state` must be a new `State` after each valid action. `reset`
        raises RLFlowError if one action of `env` stands for several rewrites (`env.moves=batched`).
      model: the world model.
    """

    def __init__(self, env: gymnasium.Env, model: WorldModel):
        super().__init__(env)
        self.model = model
        self.observation_space = spaces.observation_space(model)
        self.action_space = spaces.action_space(model.spec)
        self._observer = model.observer()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        observation, info = self.env.reset(seed=seed, options=options)
        if isinstance(self.env.unwrapped.state, CompoundState):
            raise RLFlowError("controllers with a world model choose single rewrites. Set env.moves=single")
        self._observer.begin(self.env.unwrapped.state)
        self._steps = 0
        self._see(observation)
        return self._observe(), info

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        before, real = self.env.unwrapped.state, action
        if action[0] < self.model.spec.n_rules and spaces.valid_actions(np.asarray(action), self._counts):
            real = np.array(self._observer.real_action(action))
        observation, reward, terminated, truncated, info = self.env.step(real)
        info = {**info, "action": (int(real[0]), int(real[1]))}
        self._steps += 1
        if self.env.unwrapped.state is not before:
            self._observer.follow(action, self.env.unwrapped.state)
            self._see(observation)
        return self._observe(), float(reward), terminated, truncated, info

    def action_masks(self) -> np.ndarray:
        """Return the action mask for sb3-contrib's MultiDiscrete actions, bool [N + 1 + L]; see spaces.py."""
        return spaces.flat_action_masks(self._observe()["counts"], self.model.spec.max_locations)

    def _see(self, observation: dict) -> None:
        allowed = observation["location_masks"][:-1].sum(axis=-1, dtype=np.int32)
        self._counts = np.minimum(self._observer.counts, allowed)
        self._class_counts = spaces.within(self._observer.class_counts, self.model.match_classes, self._counts)

    def _observe(self) -> dict[str, np.ndarray]:
        seen = self._observer
        return spaces.observation(seen.z, seen.h, self._counts, self._class_counts, self._steps, self.model.spec.stop)
