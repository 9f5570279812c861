"""Test the policy over match classes against an enumeration of the matches."""

import numpy as np
import pytest

from controllers.ppo import PPO, PPOConfig
from rlflow.common.errors import RLFlowError
from tests.toys.latent import latent_spaces

MATCH_CLASSES, USUAL_REWARDS = np.array([0, 0, 0, 1, 3, 3]), np.array([0.5, -1.0, 0.02, 0.0, 3.0, 0.4])
N, L, NO_OP, NO_OP_CLASS = 4, 20, 4, 6


def controller(usual_rewards=USUAL_REWARDS, **options) -> PPO:
    spaces = latent_spaces(2, N, L, match_classes=MATCH_CLASSES, usual_rewards=usual_rewards)
    return PPO(PPOConfig(hidden=8, **options), *spaces)


def observations(n: int = 300):
    rng = np.random.default_rng(0)
    class_counts = rng.integers(0, 3, (n, len(MATCH_CLASSES))) * rng.integers(0, 2, (n, len(MATCH_CLASSES)))
    counts = np.stack([np.append(np.bincount(MATCH_CLASSES, row, N), 1) for row in class_counts])
    z, h = rng.standard_normal((n, 2)), rng.standard_normal((n, 3))
    return {"z": z, "h": h, "counts": counts, "class_counts": class_counts}


def first_match(row: np.ndarray, match_class: int) -> tuple[int, int]:
    """Return (xfer_id, location) of the first match of a class, where a rule's matches are listed class by class."""
    listed = [k for k in np.repeat(np.arange(len(row)), row) if MATCH_CLASSES[k] == MATCH_CLASSES[match_class]]
    return int(MATCH_CLASSES[match_class]), listed.index(match_class)


@pytest.mark.parametrize("usual_rewards", [USUAL_REWARDS, -USUAL_REWARDS, 1e4 * USUAL_REWARDS, np.zeros(6)])
def test_an_untrained_policy_is_greedy_by_usual_reward(usual_rewards):
    """The untrained policy picks the class of highest median reward, and NO-OP where no class has a positive one."""
    seen, ends = observations(), 0
    actions = controller(usual_rewards).act(seen)
    for row, action in zip(seen["class_counts"], actions.tolist(), strict=True):
        gaining = [k for k in np.flatnonzero(row) if usual_rewards[k] > 0]
        best = max(gaining, key=lambda k: usual_rewards[k], default=None)
        if best is not None:
            assert tuple(action) == first_match(row, best)
        else:
            ends += 1
            assert action == [NO_OP, 0]
    assert ends > 10


def test_exploration_draws_only_no_op_and_the_first_match_of_each_class():
    seen, ppo, rng = observations(8), controller(greedy_prior=1.0), np.random.default_rng(1)
    often = {key: np.repeat(value, 1000, axis=0) for key, value in seen.items()}
    actions = ppo.act(often, greedy=False, rng=rng).reshape(8, 1000, 2).tolist()
    drawn = [set(map(tuple, of_one)) for of_one in actions]
    for row, result in zip(seen["class_counts"], drawn, strict=True):
        assert result == {(NO_OP, 0), *(first_match(row, k) for k in np.flatnonzero(row))}


def test_a_class_of_higher_usual_reward_is_tried_more_often_in_any_unit():
    seen = {key: value[:1] for key, value in observations().items()}
    seen |= {"class_counts": np.ones((1, 6), int), "counts": np.array([[3, 1, 0, 2, 1]])}
    for unit in (1.0, 1e-5):
        seen_often = np.zeros(N + 1)
        many = {key: np.repeat(value, 4000, axis=0) for key, value in seen.items()}
        ppo, rng = controller(unit * USUAL_REWARDS, greedy_prior=1.0), np.random.default_rng(0)
        for xfer_id, _ in ppo.act(many, greedy=False, rng=rng):
            seen_often[xfer_id] += 1
        assert seen_often[3] > seen_often[0] > seen_often[1] > 0 and 0 < seen_often[NO_OP] < seen_often[0]


def test_the_choice_of_an_action_is_the_match_class_of_its_location():
    seen, policy = observations(40), controller().learner
    counts = seen["class_counts"].astype(np.int32)
    for row, of_row in enumerate(counts):
        listed = [(rule, 0, NO_OP_CLASS) for rule in (NO_OP,)]
        for rule in range(N):
            classes = [k for k in np.repeat(np.arange(len(of_row)), of_row) if MATCH_CLASSES[k] == rule]
            listed += [(rule, location, k) for location, k in enumerate(classes)]
        rules, locations, classes = np.array(listed).T
        there = np.repeat(counts[row : row + 1], len(listed), axis=0)
        assert policy.choices(there, np.stack([rules, locations], axis=1)).tolist() == classes.tolist()
        first = policy.action(there, classes).numpy()
        same = (first == np.stack([rules, locations], axis=1)).all(axis=1)
        assert same.sum() == 1 + np.count_nonzero(of_row)  # of each class, its first match


def test_an_unknown_policy_is_refused():
    with pytest.raises(RLFlowError, match="'policy' is one of match-classes, two-stage, not 'three-stage'"):
        PPOConfig(policy="three-stage")
