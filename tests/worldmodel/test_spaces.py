import numpy as np
import pytest

from tests.worldmodel import toy
from worldmodel import spaces

COUNTS = np.array([[0, 2, 4], [1, 0, 0]], np.int32)
VALID = [{(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0)}, {(0, 0), (3, 0)}]  # pairs (xfer, location)


def test_valid_actions_are_those_below_the_counts_and_no_op():
    for xfer in range(4):
        for location in range(4):
            actions = np.tile([xfer, location], (2, 1))
            assert spaces.valid_actions(actions, COUNTS).tolist() == [(xfer, location) in pairs for pairs in VALID]


def test_flat_masks_join_the_xfers_and_the_union_of_locations():
    for counts, expected in zip(COUNTS, ([0, 1, 1, 1, 1, 1, 1, 1], [1, 0, 0, 1, 1, 0, 0, 0]), strict=True):
        flat = spaces.flat_action_masks(spaces.with_noop(counts), 4)
        np.testing.assert_array_equal(flat, expected)
        assert flat.dtype == bool


@pytest.mark.parametrize("counts", [COUNTS[0], COUNTS[1]])
def test_observations_fit_the_space(counts):
    space = spaces.observation_space(toy.SPEC, latent=2, hidden=3)
    seen = spaces.observation(np.zeros(2, np.float32), np.zeros(3, np.float32), counts, 0)
    assert seen in space
    seen["counts"][-1] = 0  # NO-OP is always there
    assert seen not in space


def test_an_observation_is_in_arrays_of_its_own():
    given = np.zeros((2, 1), np.float32), np.zeros((2, 0), np.float32), COUNTS.copy(), np.zeros(2, np.int32)
    for own, array in zip(spaces.observation(*given).values(), given, strict=True):
        assert not np.shares_memory(own, array)
