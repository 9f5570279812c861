"""The latent observation and action spaces, shared by the dream and the real environment (docs/ARCHITECTURE.md).

A latent observation holds the number of locations per rule. The location mask of a rule is always a prefix, so one
number represents it. Controllers build the mask of the chosen rule from its count. Dense masks exist only in the real
environment and in `action_masks()`, which other agents call. The step number lets a controller follow a plan without
a memory.
"""

import numpy as np
from gymnasium import spaces

from rlflow.common.task import EncodingSpec
from worldmodel.base import WorldModel

Z_BOUND = 10.0  # z is standardised, then clipped to ±Z_BOUND


class MatchClassCounts(spaces.Box):
    """The space of the number of locations per match class, int32 [K], with a description of the classes.

    Attributes:
      match_classes: int32 [K], the rule of each match class, ascending.
      usual_rewards: float32 [K], the median class rewards in the data.
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

    z: float32 [Z].
    h: float32 [H], the recurrent state.
    counts: int32 [N + 1], locations per rule; the last entry is 1, for NO-OP.
    class_counts: int32 [K], locations per match class.
    step: int32 [].

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
    """Return the space of (xfer_id, location); xfer_id N is NO-OP."""
    return spaces.MultiDiscrete([spec.n_rules + 1, spec.max_locations])


def observation(
    z: np.ndarray, h: np.ndarray, counts: np.ndarray, class_counts: np.ndarray, step: np.ndarray | int,
    stop: bool = True,
) -> dict[str, np.ndarray]:
    """Return the observation of a controller, as new arrays.

    Args:
      z: float32 [.., Z].
      h: float32 [.., H].
      counts: int32 [.., N], locations per rule.
      class_counts: int32 [.., K], locations per match class.
      step: int [..], steps since the start.
      stop: whether the task has a NO-OP.

    Returns:
      {name: array} for `observation_space`.
    """
    return {
        "z": z.copy(),
        "h": h.copy(),
        "counts": with_stop(counts, stop),
        "class_counts": class_counts.copy(),
        "step": np.array(step, np.int32),
    }


def within(class_counts: np.ndarray, match_classes: np.ndarray, limit: np.ndarray | int) -> np.ndarray:
    """Return how many locations of each match class, int32 [.., K], lie below a limit on the locations of its rule.

    Args:
      class_counts: int [.., K].
      match_classes: int [K], the rule of each match class, ascending.
      limit: int or int [.., N], the number of allowed locations per rule.
    """
    limit = np.broadcast_to(limit, (*class_counts.shape[:-1], match_classes[-1] + 1))[..., match_classes]
    ends = np.cumsum(class_counts, axis=-1)
    before = ends - class_counts
    before = before - before[..., np.searchsorted(match_classes, match_classes)]  # of the same rule
    return np.clip(limit - before, 0, class_counts).astype(np.int32)


def flat_action_masks(counts: np.ndarray, max_locations: int) -> np.ndarray:
    """Return the mask that sb3-contrib expects, bool [N + 1 + L]: the rules, then the union of their locations.

    Args:
      counts: int [N + 1], with the entry of NO-OP.
      max_locations: L.
    """
    return np.concatenate([counts > 0, np.arange(max_locations) < counts.max()])


def valid_actions(actions: np.ndarray, counts: np.ndarray, stop: bool = True) -> np.ndarray:
    """Return which actions are valid, bool [..].

    Args:
      actions: int [.., 2], (xfer_id, location).
      counts: int [.., N], locations per rule.
      stop: whether the task has a NO-OP.
    """
    limit = np.take_along_axis(with_stop(counts, stop), actions[..., :1], axis=-1)[..., 0]
    return actions[..., 1] < limit


def with_stop(counts: np.ndarray, stop: bool = True) -> np.ndarray:
    """Append the single location of NO-OP (0 locations if the task has no NO-OP): [.., N] to [.., N + 1]."""
    return np.concatenate([counts, np.full((*counts.shape[:-1], 1), int(stop), counts.dtype)], axis=-1)
