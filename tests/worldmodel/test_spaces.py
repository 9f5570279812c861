from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.vector.utils import batch_space

from tests.toys import letters as toy
from worldmodel import spaces

COUNTS = np.array([[0, 2, 4], [1, 0, 0]], np.int32)
VALID = [{(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0)}, {(0, 0), (3, 0)}]  # pairs (xfer_id, location)
MODEL = SimpleNamespace(
    spec=toy.SPEC, latent=2, hidden=3, match_classes=toy.MATCH_CLASSES, usual_rewards=toy.USUAL_REWARDS
)


def test_valid_actions_are_no_op_and_the_locations_below_the_counts():
    for xfer_id in range(4):
        for location in range(4):
            actions = np.tile([xfer_id, location], (2, 1))
            assert spaces.valid_actions(actions, COUNTS).tolist() == [(xfer_id, location) in pairs for pairs in VALID]


def test_flat_masks_join_the_rules_and_the_union_of_locations():
    for counts, expected in zip(COUNTS, ([0, 1, 1, 1, 1, 1, 1, 1], [1, 0, 0, 1, 1, 0, 0, 0]), strict=True):
        flat = spaces.flat_action_masks(spaces.with_stop(counts), 4)
        np.testing.assert_array_equal(flat, expected)
        assert flat.dtype == bool


@pytest.mark.parametrize("counts", [COUNTS[0], COUNTS[1]])
def test_observations_fit_the_space(counts):
    space = spaces.observation_space(MODEL)
    seen = spaces.observation(np.zeros(2, np.float32), np.zeros(3, np.float32), counts, counts, 0)
    assert seen in space
    seen["counts"][-1] = 0  # NO-OP is always valid.
    assert seen not in space


def test_an_observation_shares_no_memory_with_its_inputs():
    latents = np.zeros((2, 1), np.float32), np.zeros((2, 0), np.float32)
    given = *latents, COUNTS.copy(), COUNTS.copy(), np.zeros(2, np.int32)
    for own, array in zip(spaces.observation(*given).values(), given, strict=True):
        assert not np.shares_memory(own, array)


def test_spaces_with_other_match_classes_or_usual_rewards_are_unequal():
    match_classes, usual_rewards = np.array([0, 0, 2], np.int32), np.zeros(3, np.float32)
    space = spaces.MatchClassCounts(match_classes, usual_rewards, 4)
    assert space == spaces.MatchClassCounts(match_classes.copy(), usual_rewards.copy(), 4)
    others = (
        (np.array([0, 1, 2], np.int32), usual_rewards, 4),
        (match_classes, usual_rewards + 1, 4),
        (match_classes, usual_rewards, 5),
    )
    for other in others:
        assert space != spaces.MatchClassCounts(*other)
    assert batch_space(space, 2).shape == (2, 3)


def test_a_limit_leaves_the_first_locations_of_each_rule():
    """Compare with an enumeration that lists the match classes of each rule and keeps the first ones up to the
    limit."""
    match_classes, rng = np.array([0, 0, 0, 1, 3, 3], np.int32), np.random.default_rng(0)
    for _ in range(200):
        counts, limits = rng.integers(0, 4, (2, 6)), rng.integers(0, 7, (2, 4))
        result = spaces.within(counts, match_classes, limits)
        assert result.dtype == np.int32
        for row in range(2):
            listed = np.repeat(np.arange(6), counts[row])
            shown = [k for rule in range(4) for k in listed[match_classes[listed] == rule][: limits[row, rule]]]
            assert result[row].tolist() == np.bincount(shown, minlength=6).tolist()
