import numpy as np
import pytest

from tests.worldmodel import toy
from worldmodel import spaces

COUNTS = np.array([[0, 2, 4], [1, 0, 0]], np.int32)


def test_masks_say_which_locations_exist():
    xfer_mask, location_masks = spaces.masks_from_counts(COUNTS, 4)
    np.testing.assert_array_equal(xfer_mask, [[0, 1, 1, 1], [1, 0, 0, 1]])
    np.testing.assert_array_equal(
        location_masks[0], [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    )
    assert xfer_mask.dtype == location_masks.dtype == np.int8


def test_valid_actions_are_those_that_the_masks_allow():
    _, masks = spaces.masks_from_counts(COUNTS, 4)
    for xfer in range(4):
        for location in range(4):
            actions = np.tile([xfer, location], (2, 1))
            np.testing.assert_array_equal(spaces.valid_actions(actions, COUNTS), masks[:, xfer, location])


def test_flat_masks_join_the_xfers_and_the_union_of_locations():
    flat = spaces.flat_action_masks(*spaces.masks_from_counts(COUNTS, 4))
    np.testing.assert_array_equal(flat, [[0, 1, 1, 1, 1, 1, 1, 1], [1, 0, 0, 1, 1, 0, 0, 0]])
    assert flat.dtype == bool


@pytest.mark.parametrize("counts", [COUNTS[0], COUNTS[1]])
def test_observations_fit_the_space(counts):
    space = spaces.observation_space(toy.SPEC, latent=2, hidden=3)
    xfer_mask, location_masks = spaces.masks_from_counts(counts, toy.SPEC.max_locations)
    z, h = np.zeros(2, np.float32), np.zeros(3, np.float32)
    assert {"z": z, "h": h, "xfer_mask": xfer_mask, "location_masks": location_masks} in space
