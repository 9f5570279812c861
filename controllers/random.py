"""The paper's random agent (section 3.3.2): every valid action is equally probable.

An action is a pair (xfer_id, location), so a rule with many locations is drawn more often; NO-OP is one action.
"""

import numpy as np

from controllers.base import Controller, StopReason, derive_seed
from controllers.config import RandomConfig
from controllers.evaluation import play


def uniform_actions(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """int64 [B, 2], uniform over the valid pairs of counts int32 [B, N + 1]."""
    ends = np.cumsum(counts, axis=1, dtype=np.int64)
    pick = rng.integers(ends[:, -1])  # the number of the pair, in the order of rule, then location
    xfer_id = np.sum(ends <= pick[:, None], axis=1)
    row = np.arange(len(xfer_id))
    return np.stack([xfer_id, pick - (ends[row, xfer_id] - counts[row, xfer_id])], axis=1)


class RandomController(Controller):
    name = "random"
    Config = RandomConfig

    def act(self, observation, greedy=True, rng=None):
        """int64 [B, 2], uniform over all valid pairs; `greedy` changes nothing."""
        *_, counts = self.batch(observation)
        return uniform_actions(counts, rng or self.rng)

    def train(self, make_env, seed, folder, log=None, progress=None):
        """Learns nothing; measures the mean return that the other controllers have to beat."""
        self.resume(folder, seed)
        env = self.open(make_env, self.config.dreams)
        rng = np.random.default_rng(seed)
        try:
            returns, lengths = play(
                env, lambda observation: self.act(observation, rng=rng), derive_seed(seed), self.config.max_steps
            )
        finally:
            env.close()
        if log:
            mean = returns.mean()
            log(int(lengths.sum()), {"return": mean, "best_return": mean, "episode_length": lengths.mean()})
        if progress:
            progress(1, 1)
        self.save(folder)
        return {
            "stop_reason": StopReason.NOTHING_TO_TRAIN,
            "detail": f"mean return of {len(returns)} random episodes",
            "best_return": float(returns.mean()),
            "iterations": 0,
            "env_steps": int(lengths.sum()),
        }

    def arrays(self):
        return {}

    def restore(self, arrays):
        pass
