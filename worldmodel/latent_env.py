"""The real environment as a controller sees it: through a world model.

What a controller did is always reported in the environment's own numbering (`info["action"]`), since what is delivered
is made anew from it.
"""

import gymnasium
import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.task import CompoundState
from worldmodel import spaces
from worldmodel.base import WorldModel


class LatentEnv(gymnasium.Wrapper):
    """Wears the dream's spaces over a real environment (docs/ARCHITECTURE.md), in the model's numbering of locations.

    z, h and the counts are what the model's observer makes of the real states. An invalid action changes nothing, h
    included. `info["action"]` of a step is the action in the environment's own numbering.
    Of locations that the environment's masks leave out (near its padding), as many are left out here.

    Args:
      env: a `rlflow.env.step.StepEnv`, whose unwrapped `state` is another `State` after a valid action. One whose
        actions are several choices is refused with an RLFlowError.
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
            raise RLFlowError("dreams and controllers choose single rewrites: env.moves=single")
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
        """bool [N + 1 + L], as sb3-contrib wants it."""
        return spaces.flat_action_masks(self._observe()["counts"], self.model.spec.max_locations)

    def _see(self, observation: dict) -> None:
        allowed = observation["location_masks"][:-1].sum(axis=-1, dtype=np.int32)
        self._counts = np.minimum(self._observer.counts, allowed)
        self._class_counts = spaces.within(self._observer.class_counts, self.model.match_classes, self._counts)

    def _observe(self) -> dict[str, np.ndarray]:
        seen = self._observer
        return spaces.observation(seen.z, seen.h, self._counts, self._class_counts, self._steps, self.model.spec.stop)
