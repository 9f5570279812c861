import numpy as np
import pytest

from controllers.evaluation import PATIENCE, best_of, play, rollout
from controllers.random import RandomConfig, RandomController
from rlflow.common.errors import RLFlowError
from tests.toys.latent import Identity, Sacrifice, Toy, make, vector


class Fixed:
    """A controller that plays a list of actions for each episode and records whether its actions were to be greedy."""

    def __init__(self, *episodes):
        self.episodes, self.greedy = [list(episode) for episode in episodes], []

    acting_steps = 0

    def act(self, observation, greedy=True, rng=None):
        assert observation["z"].shape == (1, 2)
        while not self.episodes[0]:
            self.episodes.pop(0)
        self.greedy.append(greedy)
        return np.array([self.episodes[0].pop(0)])


WIN, LOSE, QUIT = [(1, 0), (2, 3)], [(1, 2), (3, 0)], [(3, 0)]


def test_a_rollout_keeps_actions_rewards_and_every_info():
    trajectory = rollout(Fixed(WIN), Sacrifice(), greedy=True, seed=0)
    assert trajectory.actions == WIN
    assert trajectory.rewards == [-1.0, 3.0]
    assert trajectory.costs == [10.0, 11.0, 8.0]
    assert trajectory.terminated


def test_the_best_of_several_is_the_cheapest_state_ever_visited():
    best = best_of([controller := Fixed(LOSE, QUIT, WIN, WIN)], Sacrifice(), samples=3, seed=0)
    # The earlier of two equal results wins.
    assert (best.index, best.prefix, best.cost, best.actions) == (2, 2, 8.0, WIN)
    assert [len(t.actions) for t in best.trajectories] == [2, 1, 2, 2]
    assert controller.greedy == [True, True, False, False, False, False, False]


def test_several_players_take_turns_and_each_plays_greedily_first():
    players = first, second = Fixed(LOSE, QUIT, QUIT), Fixed(QUIT, WIN)
    best = best_of(players, Sacrifice(), samples=3, seed=0)
    assert [t.actions for t in best.trajectories] == [LOSE, QUIT, QUIT, WIN, QUIT] and best.index == 3
    assert first.greedy == [True, True, False, False] and second.greedy == [True, False, False]


def test_the_initial_state_is_best_when_nothing_gains():
    best = best_of([Fixed(LOSE, QUIT)], Sacrifice(), samples=1, seed=0)
    assert (best.prefix, best.cost, best.actions) == (0, 10.0, [])


def test_the_same_seed_repeats_all_trajectories():
    runs = [best_of([make(RandomController, RandomConfig(), Identity)], Identity(), 3, seed=4) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len({str(t.actions) for t in runs[0].trajectories}) == 4


def test_sampled_episodes_of_adjacent_seeds_draw_from_other_streams():
    class Drawing(Fixed):
        def act(self, observation, greedy=True, rng=None):
            drawn.append(rng.random())
            return super().act(observation, greedy, rng)

    drawn = []
    for seed in (4, 5):
        best_of([Drawing(*[QUIT] * 5)], Sacrifice(), samples=4, seed=seed)
    assert len(set(drawn)) == len(drawn) == 10


class Longer(Toy):
    """An environment in which location k of rule 0 pays k − 2; the episode ends after 100 steps."""

    Z, N, L, STEPS = 2, 1, 6, 100

    def begin(self):
        pass

    def latent(self):
        return np.zeros(2)

    def counts(self):
        return np.array([6])

    def play(self, xfer_id, location):
        return float(location - 2), False


def test_an_episode_ends_some_steps_after_its_highest_cumulative_reward():
    rewards = [3, -2, 1, 0, -1, 2, *[0] * 70]  # the sum is highest after step 1; it only reaches the same sum again
    actions = [(0, reward + 2) for reward in rewards]
    assert len(rollout(Fixed(actions), Longer(), greedy=True, seed=0).actions) == 1 + PATIENCE
    actions[PATIENCE] = (0, 5)  # the last step that is played gains
    assert len(rollout(Fixed(actions), Longer(), greedy=False, seed=0).actions) == 1 + 2 * PATIENCE
    for least in (0, 1, 5, 2 * PATIENCE):
        played = rollout(Fixed(actions[:PATIENCE] + [(0, 1)] * 4 * PATIENCE), Longer(), True, 0, least).actions
        assert len(played) == max(1, least) + PATIENCE


def test_play_counts_each_environment_copy_until_its_first_end_only():
    """Copy 0 ends at once and plays on in a second episode, which does not count; copy 2 ends one step later."""
    script = iter([[(3, 0), (0, 0), (1, 0)], [(1, 0), (3, 0), (2, 0)], [(2, 0), (0, 0), (0, 0)]])
    returns, lengths = play(vector(Sacrifice)(3), lambda observation: np.array(next(script)), 0)
    np.testing.assert_allclose(returns, [0.0, 0.2, 2.0])
    np.testing.assert_array_equal(lengths, [1, 1, 2])


def test_play_cuts_endless_episodes_and_refuses_rewards_that_are_not_finite():
    act = make(RandomController, RandomConfig(), Identity).act
    _, lengths = play(vector(Identity)(4), act, 0, max_steps=2)
    assert lengths.max() == 2

    class Broken(Sacrifice):
        def play(self, xfer_id, location):
            return np.nan, True

    with pytest.raises(RLFlowError, match="not finite"):
        play(vector(Broken)(1), lambda observation: np.array([(0, 0)]), 0)
