"""A world model of the toy that is wrong to a given degree."""

import numpy as np

from tests.toys import letters as toy
from worldmodel.base import Replay


class Oracle:
    """A model that repeats the recorded episodes with errors: rewards times a factor, counts after some steps too high
    by 1."""

    spec, config, latent, hidden = toy.SPEC, None, 1, 1

    def __init__(self, factor: float = 1.0, wrong_after: int = 10**9):
        self.factor, self.wrong_after = factor, wrong_after

    def replay(self, episodes, rows, starts, horizon) -> Replay:
        result = [self._stretch(episodes[row], start, horizon) for row, start in zip(rows, starts, strict=True)]
        return Replay(*(np.stack(parts) for parts in zip(*result, strict=True)))

    def calibration(self, episodes) -> dict[str, float]:
        return {"coverage_50": 0.5, "coverage_90": 0.9}

    def _stretch(self, episode, start, horizon):
        """Return rewards, ends, counts and uncertainties; all values after the end of the episode are meaningless."""
        rewards, ends = np.full(horizon, np.nan), np.zeros(horizon, bool)
        counts, uncertainty = np.full((horizon, self.spec.n_rules), -1, np.int32), np.zeros(horizon, np.float32)
        n = min(horizon, len(episode) - start)
        rewards[:n] = self.factor * episode.rewards[start : start + n]
        counts[:n] = episode.counts[start + 1 : start + n + 1]
        counts[self.wrong_after : n] += 1
        uncertainty[self.wrong_after : n] = 1.0
        return rewards, ends, counts, uncertainty
