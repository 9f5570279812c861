"""Several environments as one, for an agent that is to act on graphs that it never saw: each episode is of one of them.

`reset(options={"model": k})` begins an episode of number k modulo their number, of 0 if nothing is said. So an agent
decides which one is next, and a training that is killed and resumed plays what one plays that is not.
"""

from collections.abc import Sequence

import gymnasium


class InTurn(gymnasium.Env):
    """Of environments whose observations are of one kind; the spaces are those of the first.

    Attributes:
      models: how many there are.
    """

    def __init__(self, envs: Sequence[gymnasium.Env]):
        self.envs, self.models = list(envs), len(envs)
        self._current = self.envs[0]
        self.action_space, self.observation_space = self._current.action_space, self._current.observation_space

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self._current = self.envs[(options or {}).get("model", 0) % self.models]
        return self._current.reset(seed=seed)

    def step(self, action) -> tuple[dict, float, bool, bool, dict]:
        return self._current.step(action)
