"""A wrapper of the real environment that replaces its observations by the latent observations of a world model.

An acting policy can go in circles: where the dream was wrong about a rewrite, it applies the rewrite and its inverse in
turn up to the step limit. With `leaves_circles`, an episode that comes to a state which looks like an earlier one, in
objective and location counts, does not show the rules any more whose steps in between gained nothing.

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
      leaves_circles: True for acting policies; the observed counts then depend on the earlier steps of the episode.
    """

    def __init__(self, env: gymnasium.Env, model: WorldModel, leaves_circles: bool = False):
        super().__init__(env)
        self._leaves_circles = leaves_circles
        self.model = model
        self.observation_space = spaces.observation_space(model)
        self.action_space = spaces.action_space(model.spec)
        self._observer = model.observer()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        observation, info = self.env.reset(seed=seed, options=options)
        if isinstance(self.env.unwrapped.state, CompoundState):
            raise RLFlowError("controllers with a world model choose single rewrites. Set env.moves=single")
        self._observer.begin(self.env.unwrapped.state)
        self._steps, self._gains, self._visited = 0, [], {}
        self._barred = np.zeros(self.model.spec.n_rules, bool)
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
            if self._leaves_circles:
                self._gains.append((action[0], before.objective - self.env.unwrapped.state.objective))
            self._see(observation)
        return self._observe(), float(reward), terminated, truncated, info

    def model_action(self, action: tuple[int, int]) -> np.ndarray:
        """Return an action of the real environment with the model's location number, which `step` takes.

        Args:
          action: (xfer_id, location), valid in the present state. The result for NO-OP is NO-OP.
        """
        return np.array(action if action[0] == self.model.spec.n_rules else self._observer.model_action(action))

    def action_masks(self) -> np.ndarray:
        """Return the action mask for sb3-contrib's MultiDiscrete actions, bool [N + 1 + L]; see spaces.py."""
        return spaces.flat_action_masks(self._observe()["counts"], self.model.spec.max_locations)

    def _see(self, observation: dict) -> None:
        allowed = observation["location_masks"][:-1].sum(axis=-1, dtype=np.int32)
        self._counts = np.minimum(self._observer.counts, allowed)
        self._class_counts = spaces.within(self._observer.class_counts, self.model.match_classes, self._counts)
        if self._leaves_circles:
            looks = self.env.unwrapped.state.objective, self._class_counts.tobytes()
            for rule, gain in self._gains[self._visited.get(looks, len(self._gains)) :]:
                self._barred[rule] |= gain <= 0
            self._visited[looks] = len(self._gains)

    def _observe(self) -> dict[str, np.ndarray]:
        seen, steps, stop = self._observer, self._steps, self.model.spec.stop
        barred = self._barred
        if not stop and not self._counts[~barred].any():  # without NO-OP, an action must remain
            barred = np.zeros_like(barred)
        counts = np.where(barred, 0, self._counts).astype(np.int32)
        class_counts = np.where(barred[self.model.match_classes], 0, self._class_counts).astype(np.int32)
        return spaces.observation(seen.z, seen.h, counts, class_counts, steps, stop)
