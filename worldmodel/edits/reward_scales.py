"""How runtimes are rewarded, learnt from logged rewards: what "edits" predicts of a reward, and which rewards it cannot
predict.

It predicts runtimes and nothing else of a cost, so a reward must be a multiple of what a step took off the runtime, or
of what all steps so far took off it together. Which of the two, and the reward of a picosecond, is what the episodes
say; where they say neither, there is nothing that a dream could pay.

Then the training ends at once with an error (as where bytes or launches count too, or where latencies are measured): a
dream that pays something else than reality is worse than none. The usual reward of a match class is of what its own
steps gained in both cases, so the greedy prior stays greedy.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from rlflow.collect.episodes import Episode
from worldmodel.base import UnpredictableRewardError

TOLERANCE = 1e-6  # of the largest reward of a graph; episodes keep float32


class RewardScale(NamedTuple):
    """per_ps: reward of a ps gained. level: what is rewarded is all that was gained so far, not what the step
    gained."""

    per_ps: float
    level: bool

    def reward(self, gain: np.ndarray | float, before: np.ndarray | float) -> np.ndarray | float:
        """Of steps that took `gain` (ps) off the runtime, after others had taken `before` off it."""
        return self.per_ps * (gain + before if self.level else gain)


class RewardScales:
    """scales: initial runtime (ps) → reward of a ps, of the graphs that it learnt from. level: see `RewardScale`."""

    def __init__(self, scales: dict[int, float], level: bool):
        self.scales, self.level = scales, level

    @classmethod
    def learn(cls, episodes: Sequence[Episode], no_op: int) -> Self:
        """Raises UnpredictableRewardError if a logged reward is neither multiple, or a NO-OP was paid: it gains
        nothing."""
        logged: dict[int, list[np.ndarray]] = {}
        pays_no_op = False
        for episode in episodes:
            runtimes, moved = np.rint(1e9 * episode.costs), episode.actions[:, 0] != no_op
            steps = np.stack([-np.diff(runtimes), runtimes[0] - runtimes[1:], episode.rewards])
            logged.setdefault(int(runtimes[0]), []).append(steps[:, moved])
            pays_no_op |= bool(episode.rewards[~moved].any())
        of_graphs = {runtime: np.concatenate(steps, axis=1) for runtime, steps in logged.items()}
        for level in (False, True):
            scales = {runtime: _explained(steps[int(level)], steps[2]) for runtime, steps in of_graphs.items()}
            if None not in scales.values() and not pays_no_op:
                return cls(scales, level)
        raise UnpredictableRewardError(
            "its rewards are no multiple of the estimated runtime that a step, or all steps so far, gained, and "
            "world_model.name=edits predicts no others; world_model.name=mdn-rnn learns any"
        )

    def of(self, runtime: int) -> RewardScale:
        """For a graph of this initial runtime (ps); where it was not learnt, after the nearest in size, as if in
        percent of the whole."""
        nearest = min(self.scales, key=lambda known: (abs(known - runtime), known))
        return RewardScale(self.scales[nearest] * (nearest / runtime), self.level)


def _explained(gains: np.ndarray, rewards: np.ndarray) -> float | None:
    """The reward of a ps by least squares, float64 [k] each; None if the rewards are no multiple of the gains."""
    scale = float(gains @ rewards / max(gains @ gains, 1.0))
    error = np.abs(scale * gains - rewards).max(initial=0.0)
    return scale if error <= TOLERANCE * np.abs(rewards).max(initial=0.0) else None
