"""The latent spaces: what a controller sees and does, dreaming or awake (docs/ARCHITECTURE.md).

A latent observation counts locations. The location mask of a rule is always a prefix, so one number says all of it,
where dense masks would be 73 kB a dream: making and handing them over was about half of a PPO update's time with 256
dreams. Controllers make the one row that they need, of the chosen xfer, from its count. Dense masks are left to the
real environment and to `action_masks()`, which agents of other makes ask for. The number of the step is there so that a
plan can be followed without a memory.
"""

import numpy as np
from gymnasium import spaces

from rlflow.common.task import EncodingSpec
from worldmodel.base import WorldModel

Z_BOUND = 10.0  # z is standardised, then clipped to ±Z_BOUND


class MatchClassCounts(spaces.Box):
    """How many locations of each match class there are, int32 [K]; and what it is that they count.

    match_classes: int32 [K], the rule of each match class, ascending.  usual_rewards: float32 [K], of each in the data.
    """

    def __init__(self, match_classes: np.ndarray, usual_rewards: np.ndarray, most: int):
        super().__init__(0, most, match_classes.shape, np.int32)
        self.match_classes, self.usual_rewards = match_classes, usual_rewards

    def __eq__(self, other) -> bool:
        return super().__eq__(other) and isinstance(other, MatchClassCounts) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("match_classes", "usual_rewards")
        )


def observation_space(model: WorldModel) -> spaces.Dict:
    """The space of what `observation` gives.

    z: float32 [Z].  h: float32 [H], the recurrent state.  counts: int32 [N + 1], locations per rule; of NO-OP, the last
    entry, 1.  class_counts: int32 [K], the same by match class.  step: int32 [].

    The valid locations of a rule are those below its count; a rule without any is not valid itself. They are ordered by
    match class.
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
    """(xfer_id, location); xfer_id N is NO-OP."""
    return spaces.MultiDiscrete([spec.n_rules + 1, spec.max_locations])


def observation(
    z: np.ndarray, h: np.ndarray, counts: np.ndarray, class_counts: np.ndarray, step: np.ndarray | int,
    stop: bool = True,
) -> dict[str, np.ndarray]:
    """What a controller is shown, in arrays of its own.

    Of z [.., Z], h [.., H], counts int32 [.., N], class_counts int32 [.., K] and step [..].
    """
    return {
        "z": z.copy(),
        "h": h.copy(),
        "counts": with_stop(counts, stop),
        "class_counts": class_counts.copy(),
        "step": np.array(step, np.int32),
    }


def within(class_counts: np.ndarray, match_classes: np.ndarray, limit: np.ndarray | int) -> np.ndarray:
    """How many of each match class, int [.., K], are among the first locations of its rule.

    limit: int or int [.., N], how many first locations of a rule there are.
    """
    limit = np.broadcast_to(limit, (*class_counts.shape[:-1], match_classes[-1] + 1))[..., match_classes]
    ends = np.cumsum(class_counts, axis=-1)
    before = ends - class_counts
    before = before - before[..., np.searchsorted(match_classes, match_classes)]  # of the same rule
    return np.clip(limit - before, 0, class_counts).astype(np.int32)


def flat_action_masks(counts: np.ndarray, max_locations: int) -> np.ndarray:
    """bool [N + 1 + L] of counts [N + 1], as sb3-contrib wants it: the rules, then all their locations."""
    return np.concatenate([counts > 0, np.arange(max_locations) < counts.max()])


def valid_actions(actions: np.ndarray, counts: np.ndarray, stop: bool = True) -> np.ndarray:
    """Which actions, int [.., 2], a model's counts, int [.., N], allow: bool [..]."""
    limit = np.take_along_axis(with_stop(counts, stop), actions[..., :1], axis=-1)[..., 0]
    return actions[..., 1] < limit


def with_stop(counts: np.ndarray, stop: bool = True) -> np.ndarray:
    """Appends NO-OP's single location, none where the task has no NO-OP: [.., N] to [.., N + 1]."""
    return np.concatenate([counts, np.full((*counts.shape[:-1], 1), int(stop), counts.dtype)], axis=-1)
