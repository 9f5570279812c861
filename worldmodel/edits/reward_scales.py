"""Conversion of predicted runtimes to rewards, learned from logged rewards.

"edits" predicts runtimes only. A reward must therefore be proportional to the runtime saved by a step, or to the
runtime saved by all steps so far. The logged rewards determine which of the two holds, and the reward per picosecond.

Any other reward, such as one with bytes, launches or measured latencies, stops the training with an error. A dream with
other rewards than the real environment would mislead controllers. The median class reward always refers to the gain of
a class's own steps, so the greedy prior stays greedy.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from rlflow.collect.episodes import Episode
from worldmodel.base import UnpredictableRewardError

TOLERANCE = 1e-6  # relative to the largest reward of a graph; episodes store float32


class RewardScale(NamedTuple):
    """The reward of one graph as a function of saved runtime.

    Attributes:
      per_ps: reward per saved picosecond.
      level: reward all savings so far instead of the saving of the step.
    """

    per_ps: float
    level: bool

    def reward(self, gain: np.ndarray | float, before: np.ndarray | float) -> np.ndarray | float:
        """Return the reward of steps.

        Args:
          gain: runtime saved by the step (ps).
          before: runtime saved by all earlier steps (ps).
        """
        return self.per_ps * (gain + before if self.level else gain)


class RewardScales:
    """The reward scales of the training graphs.

    Attributes:
      scales: initial runtime (ps) → reward per ps.
      level: see `RewardScale`.
    """

    def __init__(self, scales: dict[int, float], level: bool):
        self.scales, self.level = scales, level

    @classmethod
    def learn(cls, episodes: Sequence[Episode], no_op: int) -> Self:
        """Learn the scales from logged rewards; no_op is the xfer_id of NO-OP.

        Raises:
          UnpredictableRewardError: the rewards are proportional to neither saving, or a NO-OP has a reward.
        """
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
            "the rewards are not proportional to the estimated runtime saved by a step or by all steps so far, and "
            "the world models edits and graph-mdn predict no other rewards. Use world_model.name=mdn-rnn"
        )

    def of(self, runtime: int) -> RewardScale:
        """Return the scale for a graph of this initial runtime (ps).

        An unknown graph uses the scale of the graph with the nearest runtime, converted as a percentage of the initial
        runtime.
        """
        nearest = min(self.scales, key=lambda known: (abs(known - runtime), known))
        return RewardScale(self.scales[nearest] * (nearest / runtime), self.level)


def _explained(gains: np.ndarray, rewards: np.ndarray) -> float | None:
    """Return the reward per ps by least squares, or None if the rewards are not proportional to the gains; float64 [k]
    each.
    """
    scale = float(gains @ rewards / max(gains @ gains, 1.0))
    error = np.abs(scale * gains - rewards).max(initial=0.0)
    return scale if error <= TOLERANCE * np.abs(rewards).max(initial=0.0) else None
