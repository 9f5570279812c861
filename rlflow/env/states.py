"""An environment that shows the state itself, for controllers that search the real states of any step-by-step task."""

import gymnasium
import numpy as np
from gymnasium import spaces

from rlflow.common.errors import RLFlowError
from rlflow.common.task import CompoundState, LocalState


class StateSpace(spaces.Space):
    """The space of all local states, as NumPy arrays of one object. It cannot be sampled."""

    def __init__(self):
        super().__init__((), object)

    def contains(self, x) -> bool:
        return isinstance(x, np.ndarray) and x.shape == () and isinstance(x.item(), LocalState)


class StateEnv(gymnasium.Wrapper):
    """A wrapper of `rlflow.env.step.StepEnv` whose observations are states.

    | key | shape, dtype | meaning |
    | --- | --- | --- |
    | state | object [] | the present state, a `rlflow.common.task.LocalState` |
    | step | int32 [] | number of steps since the reset |

    Args:
      env: the environment.

    Raises:
      RLFlowError: the states of the task are not local, or stand for several single choices.
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        if not isinstance(env.unwrapped.initial, LocalState):
            raise RLFlowError("a search needs a task with local states (rlflow.common.task.LocalState)")
        if isinstance(env.unwrapped.initial, CompoundState):
            raise RLFlowError("the actions are single choices; pass env.moves=single")
        steps = spaces.Box(0, np.iinfo(np.int32).max, (), np.int32)
        self.observation_space = spaces.Dict({"state": StateSpace(), "step": steps})
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        _, info = self.env.reset(seed=seed, options=options)
        self._steps = 0
        return self._observation(), info

    def step(self, action) -> tuple[dict, float, bool, bool, dict]:
        _, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        return self._observation(), float(reward), terminated, truncated, info

    def _observation(self) -> dict[str, np.ndarray]:
        state = np.empty((), object)
        state[()] = self.env.unwrapped.state
        return {"state": state, "step": np.array(self._steps, np.int32)}
