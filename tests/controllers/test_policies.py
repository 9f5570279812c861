"""The policy of kinds, against an enumeration of the places."""

import numpy as np
import pytest

from controllers.ppo import PPO, PPOConfig
from rlflow.common.errors import RLFlowError
from tests.toys.latent import latent_spaces

KINDS, WORTH = np.array([0, 0, 0, 1, 3, 3]), np.array([0.5, -1.0, 0.02, 0.0, 3.0, 0.4])
N, L, NO_OP = 4, 20, 4


def controller(worth=WORTH, **options) -> PPO:
    return PPO(PPOConfig(hidden=8, **options), *latent_spaces(2, N, L, match_classes=KINDS, mean_rewards=worth))


def observations(n: int = 300):
    rng = np.random.default_rng(0)
    class_counts = rng.integers(0, 3, (n, len(KINDS))) * rng.integers(0, 2, (n, len(KINDS)))
    counts = np.stack([np.append(np.bincount(KINDS, row, N), 1) for row in class_counts])
    return {"z": rng.standard_normal((n, 2)), "h": rng.standard_normal((n, 3)), "counts": counts, "class_counts": class_counts}


def first_place(row: np.ndarray, kind: int) -> tuple[int, int]:
    """(xfer, location) of the kind's first place, where a rule's places are listed kind by kind."""
    listed = [k for k in np.repeat(np.arange(len(row)), row) if KINDS[k] == KINDS[kind]]
    return int(KINDS[kind]), listed.index(kind)


@pytest.mark.parametrize("worth", [WORTH, -WORTH, 1e4 * WORTH, np.zeros(6)])
def test_untrained_it_is_descent_by_worth(worth):
    seen, ends = observations(), 0
    actions = controller(worth).act(seen)
    for row, action in zip(seen["class_counts"], actions.tolist(), strict=True):
        there = [kind for kind in np.flatnonzero(row) if worth[kind] > 0]
        best = max(there, key=lambda kind: worth[kind], default=None)
        if best is not None:
            assert tuple(action) == first_place(row, best)
        else:
            ends += 1
            assert worth.any() or action == [NO_OP, 0] or tuple(action) in [first_place(row, k) for k in np.flatnonzero(row)]
            if not any(worth[kind] == 0 for kind in np.flatnonzero(row)):
                assert action == [NO_OP, 0]
    assert ends > 10


def test_it_explores_the_first_places_of_all_kinds_that_are_there_and_nothing_else():
    seen, ppo, rng = observations(8), controller(greedy_prior=1.0), np.random.default_rng(1)
    drawn = [set() for _ in range(8)]
    for _ in range(1000):
        for result, action in zip(drawn, ppo.act(seen, greedy=False, rng=rng).tolist(), strict=True):
            result.add(tuple(action))
    for row, result in zip(seen["class_counts"], drawn, strict=True):
        assert result == {(NO_OP, 0), *(first_place(row, kind) for kind in np.flatnonzero(row))}


def test_what_is_worth_more_is_tried_more_often_whatever_the_unit():
    seen = {key: value[:1] for key, value in observations().items()} | {"class_counts": np.ones((1, 6), int), "counts": np.array([[3, 1, 0, 2, 1]])}
    for unit in (1.0, 1e-5):
        seen_often = np.zeros(N + 1)
        many = {key: np.repeat(value, 4000, axis=0) for key, value in seen.items()}
        for xfer_id, _ in controller(unit * WORTH, greedy_prior=1.0).act(many, greedy=False, rng=np.random.default_rng(0)):
            seen_often[xfer_id] += 1
        assert seen_often[3] > seen_often[0] > seen_often[1] > 0 and 0 < seen_often[NO_OP] < seen_often[0]


def test_an_unknown_policy_is_refused():
    with pytest.raises(RLFlowError, match="'policy' is one of match-classes, two-stage, not 'three-stage'"):
        PPOConfig(policy="three-stage")
