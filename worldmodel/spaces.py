"""The latent spaces: what a controller sees and does, dreaming or awake (docs/ARCHITECTURE.md)."""

import numpy as np
from gymnasium import spaces

from rlflow.graph.features import EncodingSpec

Z_BOUND = 10.0  # z is standardised, then clipped to ±Z_BOUND


def observation_space(spec: EncodingSpec, latent: int, hidden: int) -> spaces.Dict:
    """z float32 [Z], h float32 [H] (the LSTM's output), xfer_mask int8 [N + 1], location_masks int8 [N + 1, L]."""
    n_actions = spec.n_xfers + 1
    return spaces.Dict({
        "z": spaces.Box(-Z_BOUND, Z_BOUND, (latent,), np.float32),
        "h": spaces.Box(-1, 1, (hidden,), np.float32),
        "xfer_mask": spaces.Box(0, 1, (n_actions,), np.int8),
        "location_masks": spaces.Box(0, 1, (n_actions, spec.max_locations), np.int8),
    })


def action_space(spec: EncodingSpec) -> spaces.MultiDiscrete:
    """(xfer_id, location); xfer_id N is NO-OP."""
    return spaces.MultiDiscrete([spec.n_xfers + 1, spec.max_locations])


def masks_from_counts(counts: np.ndarray, max_locations: int) -> tuple[np.ndarray, np.ndarray]:
    """Locations per rule, int [.., N], to (xfer_mask int8 [.., N + 1], location_masks int8 [.., N + 1, L]).

    NO-OP is always valid, with the single location 0.
    """
    counts = with_noop(counts)
    location_masks = np.arange(max_locations) < counts[..., None]
    return (counts > 0).view(np.int8), location_masks.view(np.int8)


def flat_action_masks(xfer_mask: np.ndarray, location_masks: np.ndarray) -> np.ndarray:
    """bool [N + 1 + L], as sb3-contrib wants it: the xfers, then the union of all xfers' locations."""
    return np.concatenate([xfer_mask, location_masks.any(axis=-2)], axis=-1).astype(bool)


def valid_actions(actions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Which actions, int [.., 2], the counts, int [.., N], allow: bool [..]."""
    limit = np.take_along_axis(with_noop(counts), actions[..., :1], axis=-1)[..., 0]
    return actions[..., 1] < limit


def with_noop(counts: np.ndarray) -> np.ndarray:
    """Appends NO-OP's single location: [.., N] to [.., N + 1]."""
    return np.concatenate([counts, np.ones((*counts.shape[:-1], 1), counts.dtype)], axis=-1)
