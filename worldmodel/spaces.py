"""The latent spaces: what a controller sees and does, dreaming or awake (docs/ARCHITECTURE.md)."""

import numpy as np
from gymnasium import spaces

from rlflow.graph.features import EncodingSpec

Z_BOUND = 10.0  # z is standardised, then clipped to ±Z_BOUND


def observation_space(spec: EncodingSpec, latent: int, hidden: int) -> spaces.Dict:
    """z float32 [Z], h float32 [H] (the LSTM's output), counts int32 [N + 1]: locations per xfer, of NO-OP always 1; step int32 [].

    The valid locations of an xfer are those below its count; an xfer without any is not valid itself.
    """
    least = with_noop(np.zeros(spec.n_xfers, np.int32))
    return spaces.Dict({
        "z": spaces.Box(-Z_BOUND, Z_BOUND, (latent,), np.float32),
        "h": spaces.Box(-1, 1, (hidden,), np.float32),
        "counts": spaces.Box(least, with_noop(np.full(spec.n_xfers, spec.max_locations, np.int32)), dtype=np.int32),
        "step": spaces.Box(0, np.iinfo(np.int32).max, (), np.int32),
    })


def action_space(spec: EncodingSpec) -> spaces.MultiDiscrete:
    """(xfer_id, location); xfer_id N is NO-OP."""
    return spaces.MultiDiscrete([spec.n_xfers + 1, spec.max_locations])


def observation(z: np.ndarray, h: np.ndarray, counts: np.ndarray, step: np.ndarray | int) -> dict[str, np.ndarray]:
    """What a controller is shown, in arrays of its own, of z [.., Z], h [.., H], a model's counts int32 [.., N], and steps [..]."""
    return {"z": z.copy(), "h": h.copy(), "counts": with_noop(counts), "step": np.array(step, np.int32)}


def flat_action_masks(counts: np.ndarray, max_locations: int) -> np.ndarray:
    """bool [N + 1 + L] of counts [N + 1], as sb3-contrib wants it: the xfers, then the union of all xfers' locations."""
    return np.concatenate([counts > 0, np.arange(max_locations) < counts.max()])


def valid_actions(actions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Which actions, int [.., 2], a model's counts, int [.., N], allow: bool [..]."""
    limit = np.take_along_axis(with_noop(counts), actions[..., :1], axis=-1)[..., 0]
    return actions[..., 1] < limit


def with_noop(counts: np.ndarray) -> np.ndarray:
    """Appends NO-OP's single location: [.., N] to [.., N + 1]."""
    return np.concatenate([counts, np.ones((*counts.shape[:-1], 1), counts.dtype)], axis=-1)
