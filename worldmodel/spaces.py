"""The latent observation and action spaces of the dream and of the wrapped real environment (docs/ARCHITECTURE.md).

A latent observation contains the number of valid locations of each rule. The valid locations of a rule are 0, 1, …
below this number, and controllers build the rule's location mask from the number. Only the real environment and
`action_masks()`, for agents of other libraries, return dense masks. The observation contains the step number, so that a
controller without memory can follow a plan.

In this module N is the number of rules, L the largest number of locations of a rule, K the number of match classes.
"""

import numpy as np
from gymnasium import spaces

from rlflow.common.task import EncodingSpec
from worldmodel.base import WorldModel

Z_BOUND = 10.0  # z is standardised, then clipped to ±Z_BOUND


class MatchClassCounts(spaces.Box):
    """The space of the number of valid locations of each match class, int32 [K] from 0 to `most`.

    Attributes:
      match_classes: int32 [K], the xfer_id of the rule of each match class, ascending.
      usual_rewards: float32 [K], the median reward of each match class; see `worldmodel.base.WorldModel`.
    """

    def __init__(self, match_classes: np.ndarray, usual_rewards: np.ndarray, most: int):
        super().__init__(0, most, match_classes.shape, np.int32)
        self.match_classes, self.usual_rewards = match_classes, usual_rewards

    def __eq__(self, other) -> bool:
        return super().__eq__(other) and isinstance(other, MatchClassCounts) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("match_classes", "usual_rewards")
        )


def observation_space(model: WorldModel) -> spaces.Dict:
    """Return the space of the observations that `observation` builds.

    An observation has these entries:

    - z: float32 [Z], the latent state.
    - h: float32 [H], the recurrent state.
    - counts: int32 [N + 1], the number of valid locations of each rule; the last entry is NO-OP: 1 or, if the task has
      no NO-OP, 0.
    - class_counts: int32 [K], the number of valid locations of each match class.
    - step: int32 [], the number of steps since the start.

    The valid locations of a rule are the numbers below its count, ordered by match class. A rule with count 0 is
    invalid.
    """
    n_rules, most = model.spec.n_rules, model.spec.max_locations
    least = with_stop(np.zeros(n_rules, np.int32), model.spec.stop)
    return spaces.Dict({
        "z": spaces.Box(-Z_BOUND, Z_BOUND, (model.latent,), np.float32),
        "h": spaces.Box(-1, 1, (model.hidden,), np.float32),
        "counts": spaces.Box(least, with_stop(np.full(n_rules, most, np.int32), model.spec.stop), dtype=np.int32),
        "class_counts": MatchClassCounts(model.match_classes, model.usual_rewards, most),
        "step": spaces.Box(0, np.iinfo(np.int32).max, (), np.int32),
    })


def action_space(spec: EncodingSpec) -> spaces.MultiDiscrete:
    """Return the space of actions (xfer_id, location) with xfer_id in 0 … N and location in 0 … L − 1; N is NO-OP."""
    return spaces.MultiDiscrete([spec.n_rules + 1, spec.max_locations])


def observation(
    z: np.ndarray, h: np.ndarray, counts: np.ndarray, class_counts: np.ndarray, step: np.ndarray | int,
    stop: bool = True,
) -> dict[str, np.ndarray]:
    """Build one observation or a batch of observations from copies of the arrays.

    Args:
      z: float32 [.., Z], the latent state.
      h: float32 [.., H], the recurrent state.
      counts: int32 [.., N], the number of valid locations of each rule.
      class_counts: int32 [.., K], the number of valid locations of each match class.
      step: int [..], the number of steps since the start.
      stop: True if the task has a NO-OP.

    Returns:
      {name: array} with the entries of `observation_space`.
    """
    return {
        "z": z.copy(),
        "h": h.copy(),
        "counts": with_stop(counts, stop),
        "class_counts": class_counts.copy(),
        "step": np.array(step, np.int32),
    }


def within(class_counts: np.ndarray, match_classes: np.ndarray, limit: np.ndarray | int) -> np.ndarray:
    """Limit the number of locations of each rule, and return the remaining number of locations of each match class.

    The locations of a rule are ordered by match class, so the last classes of the rule lose locations first.

    Args:
      class_counts: int [.., K], the number of locations of each match class.
      match_classes: int [K], the xfer_id of the rule of each match class, ascending.
      limit: int or int [.., N], the largest number of locations of each rule.

    Returns:
      int32 [.., K].
    """
    limit = np.broadcast_to(limit, (*class_counts.shape[:-1], match_classes[-1] + 1))[..., match_classes]
    ends = np.cumsum(class_counts, axis=-1)
    before = ends - class_counts
    before = before - before[..., np.searchsorted(match_classes, match_classes)]  # within the same rule
    return np.clip(limit - before, 0, class_counts).astype(np.int32)


def flat_action_masks(counts: np.ndarray, max_locations: int) -> np.ndarray:
    """Return the action mask for sb3-contrib's MultiDiscrete actions, bool [N + 1 + L].

    The first N + 1 entries are True for the valid rules and NO-OP. The other entries are True for the locations that
    are valid for at least one rule. A MultiDiscrete mask cannot depend on the chosen rule.

    Args:
      counts: int [N + 1], the number of valid locations of each rule and of NO-OP.
      max_locations: L.
    """
    return np.concatenate([counts > 0, np.arange(max_locations) < counts.max()])


def valid_actions(actions: np.ndarray, counts: np.ndarray, stop: bool = True) -> np.ndarray:
    """Return bool [..], True for each valid action.

    Args:
      actions: int [.., 2], (xfer_id, location) pairs; xfer_id N is NO-OP.
      counts: int [.., N], the number of valid locations of each rule.
      stop: True if the task has a NO-OP.
    """
    limit = np.take_along_axis(with_stop(counts, stop), actions[..., :1], axis=-1)[..., 0]
    return actions[..., 1] < limit


def with_stop(counts: np.ndarray, stop: bool = True) -> np.ndarray:
    """Append the entry of NO-OP to location counts: [.., N] becomes [.., N + 1] with a last entry of 1.

    Args:
      counts: int [.., N], the number of valid locations of each rule.
      stop: True if the task has a NO-OP; otherwise the last entry is 0.
    """
    return np.concatenate([counts, np.full((*counts.shape[:-1], 1), int(stop), counts.dtype)], axis=-1)
