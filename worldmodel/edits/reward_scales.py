"""Conversion of saved runtime to rewards, learned from the rewards in episodes.

The world model "edits" predicts only runtimes. The reward of a step must therefore be proportional to the runtime saved
by this step or by all steps so far. The rewards in the episodes determine which of the two holds, and the reward per
picosecond of each graph.

Any other reward, such as a function of memory, kernel launches or measured latency, stops the training of "edits" with
an error. A dream with other rewards than the real environment would mislead controllers. "graph-mdn" predicts such
rewards (worldmodel/graph_mdn/reward_kinds.py). The median reward of a match class is always computed from the runtime
saved by a single step, so that it measures the class alone.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from rlflow.collect.episodes import Episode
from worldmodel.base import UnpredictableRewardError

TOLERANCE = 1e-6  # largest error of a proportional reward, relative to the graph's largest reward (rounded to float32)


class RewardScale(NamedTuple):
    """The reward of a step as a function of saved runtime, for the episodes of one initial graph.

    Attributes:
      per_ps: reward per saved picosecond.
      level: True if a step is rewarded for the runtime saved by all steps so far, False if for its own saving.
      pays: False if the reward is no function of saved runtime. `reward` then returns 0, and `per_ps` serves only to
        compare the gains of match classes.
    """

    per_ps: float
    level: bool
    pays: bool = True

    def reward(self, gain: np.ndarray | float, before: np.ndarray | float) -> np.ndarray | float:
        """Return the reward of one step, or of k steps for arrays float64 [k].

        Args:
          gain: runtime saved by the step (ps).
          before: runtime saved by all earlier steps of the episode (ps).
        """
        return self.per_ps * self.pays * (gain + before if self.level else gain)


class RewardScales:
    """The conversion of saved runtime to rewards for each training graph.

    Attributes:
      scales: {runtime of the initial graph in ps: reward per saved picosecond}.
      level, pays: see `RewardScale`.
      of_runtime: False if "graph-mdn" learned another quantity than runtime as the cost of nodes. Gains and `scales`
        are then in units of that quantity.
    """

    def __init__(self, scales: dict[int, float], level: bool, pays: bool = True, of_runtime: bool = True):
        self.scales, self.level, self.pays, self.of_runtime = scales, level, pays, of_runtime

    @classmethod
    def learn(cls, episodes: Sequence[Episode], no_op: int) -> Self:
        """Learn the reward scales from episodes.

        Args:
          episodes: the episodes, with estimated runtimes and rewards.
          no_op: the xfer_id of NO-OP.

        Raises:
          UnpredictableRewardError: rewards are proportional neither to the saving of a step nor to all savings so far,
            or a NO-OP has a reward.
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
            "the world model edits predicts no other rewards. Use world_model.name=mdn-rnn or graph-mdn"
        )

    def of(self, runtime: int) -> RewardScale:
        """Return the reward scale for the episodes of one initial graph.

        For an unknown graph, the training graph with the nearest runtime is used: its reward per ps × its runtime /
        `runtime`. Equal percentages of saved runtime thus have equal rewards. If `of_runtime` is False, the reward
        scale of that graph is used unchanged.

        Args:
          runtime: the runtime of the initial graph (ps).
        """
        nearest = min(self.scales, key=lambda known: (abs(known - runtime), known))
        relative = nearest / runtime if self.of_runtime else 1.0
        return RewardScale(self.scales[nearest] * relative, self.level, self.pays)


def _explained(gains: np.ndarray, rewards: np.ndarray) -> float | None:
    """Return the reward per saved picosecond by least squares, or None if rewards are not proportional to gains.

    Args:
      gains: float64 [k], the saved runtime of k steps (ps).
      rewards: float64 [k], the rewards of the same steps.
    """
    scale = float(gains @ rewards / max(gains @ gains, 1.0))
    error = np.abs(scale * gains - rewards).max(initial=0.0)
    return scale if error <= TOLERANCE * np.abs(rewards).max(initial=0.0) else None
