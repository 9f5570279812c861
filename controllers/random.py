"""The random agent of the paper (section 3.3.2): every valid action is equally probable.

An action is a pair (xfer_id, location), so rules with many locations are drawn more often. NO-OP is one action.
"""

import numpy as np

from controllers.base import Controller, StopReason, derive_seed, same_shapes
from controllers.controller_options import RandomConfig
from controllers.evaluation import play


def uniform_actions(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw one valid action for each row, all with equal probability.

    Args:
      counts: int32 [B, N + 1], the number of valid locations of each rule; the last entry is for NO-OP.
      rng: the random generator.

    Returns:
      int64 [B, 2], (xfer_id, location).
    """
    ends = np.cumsum(counts, axis=1, dtype=np.int64)
    pick = rng.integers(ends[:, -1])  # index of the pair, ordered by rule, then location
    xfer_id = np.sum(ends <= pick[:, None], axis=1)
    row = np.arange(len(xfer_id))
    return np.stack([xfer_id, pick - (ends[row, xfer_id] - counts[row, xfer_id])], axis=1)


class RandomController(Controller):
    name = "random"
    Config = RandomConfig
    iterations = env_steps = 0  # This controller never learns, so its checkpoint contains no counters.

    def __init__(self, config, observation_space, action_space, seed=0):
        super().__init__(config, observation_space, action_space, seed)
        self.best_return = -np.inf

    def act(self, observation, greedy=True, rng=None):
        """Return actions, int64 [B, 2], drawn uniformly from all valid actions; `greedy` has no effect."""
        *_, counts = self.batch(observation)
        return uniform_actions(counts, rng or self.rng)

    def train(self, make_env, seed, folder, log=None, progress=None):
        """Measure the mean return of random play, a baseline for other controllers; nothing is trained."""
        self.resume(folder, seed)
        env = self.open(make_env, self.config.dreams)
        rng = np.random.default_rng(seed)
        try:
            returns, lengths = play(env, lambda observation: self.act(observation, rng=rng), derive_seed(seed))
        finally:
            env.close()
        self.best_return = float(returns.mean())
        steps = int(lengths.sum())
        if log:
            mean = self.best_return
            log(steps, {"return": mean, "best_return": mean, "episode_length": lengths.mean()})
        if progress:
            progress(1, 1)
        self.save(folder)
        detail = f"mean return of {len(returns)} random episodes"
        return self.results(StopReason.NOTHING_TO_TRAIN, detail) | {"env_steps": steps}

    def arrays(self):
        return {"best_return": np.float64(self.best_return)}

    def restore(self, arrays):
        same_shapes(arrays, {"best_return": ()})
        self.best_return = float(arrays["best_return"])
