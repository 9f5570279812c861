"""Test the selection of the best sampled episode, which PPO imitates."""

import numpy as np
import pytest

from controllers.best_episode import BestEpisode
from controllers.ppo import PPO, PPOConfig
from rlflow.common.errors import RLFlowError
from tests.suite import eager
from tests.toys.latent import Toy, make, vector

NO_OP = 9


def best_of(*episodes: list[float], before: BestEpisode | None = None) -> BestEpisode:
    """Return the best episode among episodes given by their rewards; the choice of step t of episode k is 10 k + t."""
    best = before or BestEpisode(("choice", "z"), {"choice": np.array(NO_OP)})
    best.start(1)
    for k, rewards in enumerate(episodes):
        for t, reward in enumerate(rewards):
            step = {"choice": np.array([10 * k + t]), "z": np.full((1, 2), t), "other": np.zeros(1)}
            best.add(step, np.array([reward]), np.array([t == len(rewards) - 1]))
    return best


def test_an_episode_is_cut_where_its_sum_is_highest_and_stops_there():
    best = best_of([0.0, 2.0, -1.0, 0.5], [1.0, 0.5])
    assert best.returned == 2.0 and best.steps["choice"].tolist() == [0, 1, NO_OP]
    assert best.steps["z"][:, 0].tolist() == [0, 1, 2] and set(best.steps) == {"choice", "z"}
    best = best_of([0.0, 2.0, -1.0, 0.5], [1.0, 1.5])
    # The return is highest at the end, so no NO-OP follows.
    assert best.returned == 2.5 and best.steps["choice"].tolist() == [10, 11]


def test_only_finished_episodes_that_gain_more_replace_the_best_one():
    best = best_of([1.0], [0.0, -1.0, 1.0], [2.0], [0.5])
    assert best.returned == 2.0 and best.steps["choice"].tolist() == [20]
    best_of([2.0], before=best)
    assert best.steps["choice"].tolist() == [20]
    best.add({"choice": np.array([7]), "z": np.zeros((1, 2))}, np.array([9.0]), np.array([False]))
    best_of([3.0], before=best)
    assert best.returned == 3.0
    assert not best_of([-1.0], [0.0]).steps


def test_environments_do_not_mix():
    best = BestEpisode(("choice",), {})
    best.start(2)
    for t, (rewards, ended) in enumerate([((1, 2), (0, 1)), ((1, 1), (0, 0)), ((1, 1.5), (1, 1))]):
        best.add({"choice": np.array([t, 10 + t])}, np.array(rewards, float), np.array(ended, bool))
    assert best.returned == 3.0 and best.steps["choice"].tolist() == [0, 1, 2]


def test_a_checkpoint_holds_the_episode():
    best, other = best_of([1.0, 1.0]), best_of()
    rest = other.restore(best.arrays() | {"more": np.zeros(1)})
    assert list(rest) == ["more"] and other.returned == 2.0
    assert {name: of.tolist() for name, of in other.steps.items()} == {
        name: of.tolist() for name, of in best.steps.items()
    }
    assert other.restore(best_of().arrays()) == {} and not other.steps
    for name in best.arrays():
        for damaged in ({}, {name: np.zeros(1)} if "return" not in name else {}):
            arrays = best.arrays()
            del arrays[name]
            with pytest.raises(RLFlowError, match="damaged"):
                other.restore(arrays | damaged)


class Valley(Toy):
    """An environment whose best path loses first. Rule 0 pays 0.1 and ends; rule 1 costs 0.2; after rule 1 three times,
    rule 2 pays 3 and ends."""

    Z, N, L, STEPS = 4, 3, 1, 8

    def begin(self):
        self.depth = 0

    def counts(self):
        return np.array([self.depth < 3, self.depth < 3, self.depth == 3], int)

    def latent(self):
        return np.eye(4)[self.depth]

    def play(self, xfer_id, location):
        if xfer_id == 1:
            self.depth += 1
            return -0.2, False
        return (0.1 if xfer_id == 0 else 3.0), True


@eager()
def test_an_episode_found_once_is_imitated(tmp_path):
    """Random play reaches the end of the valley once in 54 episodes. The first update imitates that episode."""
    returns = []
    for imitate in (0, 12):
        config = PPOConfig(
            policy="two-stage", updates=1, envs=64, steps=6, hidden=16, embedding=4, evaluate_every=1,
            evaluation_dreams=1, imitate=imitate, learning_rate=0.05, epochs=1, minibatches=1,
        )  # fmt: skip
        returns.append(make(PPO, config, Valley).train(vector(Valley), 0, tmp_path / str(imitate))["best_return"])
    assert returns == pytest.approx([0.1, 2.4])


@eager()
@pytest.mark.parametrize("policy", ["two-stage", "match-classes"])
def test_a_given_episode_is_imitated_from_the_first_update_on(tmp_path, policy):
    """The policy samples no episode through the valley in this training, and learns the way from the given one."""
    config = PPOConfig(
        policy=policy, updates=1, envs=2, steps=6, hidden=16, embedding=4, evaluate_every=1, evaluation_dreams=1,
        imitate=12, learning_rate=0.05, epochs=1, minibatches=1,
    )  # fmt: skip
    ppo, env = make(PPO, config, Valley), Valley()
    actions = np.array([(1, 0), (1, 0), (1, 0), (2, 0)])
    shown = [env.reset()[0], *(env.step(action)[0] for action in actions[:-1])]
    ppo.imitate_first({name: np.stack([one[name] for one in shown]) for name in shown[0]}, actions, 2.4)
    assert ppo.train(vector(Valley), 0, tmp_path)["best_return"] == pytest.approx(2.4)
    ppo.imitate_first({name: np.stack([one[name] for one in shown]) for name in shown[0]}, actions[::-1], 2.3)
    assert len(ppo.best_episode.steps["z"]) == 4 and ppo.best_episode.returned == pytest.approx(2.4)


class Endless(Valley):
    """The same environment, but an episode goes on after any rule, for 100 steps."""

    STEPS = 100

    def play(self, xfer_id, location):
        reward, _ = super().play(xfer_id, location)
        return reward, False


@eager()
def test_an_episode_that_goes_on_at_the_end_of_the_updates_before_an_evaluation_counts(tmp_path):
    """All episodes begin anew after each evaluation, so this is the end of longer ones."""
    config = PPOConfig(
        policy="match-classes", updates=2, envs=4, steps=3, hidden=8, evaluate_every=2, evaluation_dreams=1, epochs=1,
        minibatches=1,
    )  # fmt: skip
    ppo, kept = make(PPO, config, Endless), []
    add = ppo.best_episode.add
    ppo.best_episode.add = lambda step, rewards, ended: kept.append(ended.copy()) or add(step, rewards, ended)
    ppo.train(vector(Endless), 0, tmp_path)
    assert np.all(kept, axis=1).tolist() == [False] * 5 + [True]
