"""Test the choices of exploring episodes, and what is kept of the best episode."""

from collections import Counter

import numpy as np
import pytest

from rlflow.collect.edits import unpack
from rlflow.collect.exploration import RAREST, UNIFORM, play_novel
from tests.suite import at_night, slow
from tests.toys.systems import (
    REWARD,
    SIGNS_AND_PRODUCTS,
    fitted,
    onnx_model,
    played,
    random_episodes,
    signs_and_products,
    task_of,
)
from tests.toys.tiny import tiny_task

ONE, MANY = at_night(2000, 500), at_night(40, 10)  # episodes


class Knows:
    """An observer that has seen all matches rewritten except for some rules, with given counts of each rule."""

    def __init__(self, unknown=(), times=None, promising=None):
        self.unknown, self.counted, self.promising = set(unknown), times or {}, promising

    def begin(self, state):
        self.state = state

    def took(self, match, state):
        self.state = state

    def knows(self, match):
        return match.xfer_id not in self.unknown

    def times(self, xfer_id):
        return self.counted.get(xfer_id, 100)

    def expects(self, match):
        return float(match.xfer_id == self.promising)


@pytest.fixture(scope="module")
def task():
    return tiny_task("tiny_squeezenet1_1")


def first_rules(task, observer) -> Counter:
    """Return how often each rule is rewritten first, over episodes of one step."""
    return Counter(
        int(play_novel(task, REWARD, (), 1, np.random.default_rng(k), 0, observer).actions[0, 0]) for k in range(ONE)
    )


def test_an_episode_begins_with_its_prefix_and_every_action_is_valid(task):
    way = [tuple(action) for action in play_novel(task, REWARD, (), 5, np.random.default_rng(0)).actions.tolist()]
    for seed in range(5):
        episode = play_novel(task, REWARD, way, 7, np.random.default_rng(seed))
        assert [tuple(action) for action in episode.actions[:5].tolist()] == way and len(episode) == 12
        assert np.array_equal(played(task, [tuple(a) for a in episode.actions.tolist()]).costs[:13], episode.costs)


@pytest.mark.parametrize("share, observer", [
    (1 - UNIFORM - RAREST, lambda rule: Knows(unknown=[rule])),
    *slow((1 - UNIFORM - RAREST, lambda rule: Knows(unknown=range(1000), promising=rule))),
    *slow((RAREST, lambda rule: Knows(times={rule: 99}))),
])  # fmt: skip
def test_exploration_draws_each_kind_of_match_with_its_configured_share(task, share, observer):
    counts = task.initial.counts
    rule = int(np.flatnonzero(counts)[counts[counts > 0].argmin()])
    chance, seen = share + UNIFORM * counts[rule] / counts.sum(), first_rules(task, observer(rule))[rule] / ONE
    others = 1 - UNIFORM - share  # The remaining kind of steps, in which each match is about equally likely.
    near = at_night(0.04, 0.07)  # At most three standard deviations of a share among ONE episodes.
    assert chance - near < seen < chance + others * counts[rule] / counts.sum() + near < chance + 0.3


def test_drawing_the_rarest_rule_meets_more_rules_than_uniform_choice(task, monkeypatch):
    """Choosing the rarest rule meets more rules in few steps than uniform choice, which favours rules with many
    matches."""
    def rules(uniform: float) -> float:
        monkeypatch.setattr("rlflow.collect.exploration.UNIFORM", uniform)
        monkeypatch.setattr("rlflow.collect.exploration.RAREST", 1 - uniform)
        episodes = [play_novel(task, REWARD, (), 20, np.random.default_rng(k), 0, Knows()) for k in range(MANY)]
        return np.mean([len({*episode.actions[:, 0].tolist()}) for episode in episodes])

    assert rules(0.25) > 1.2 * rules(1.0)


def test_a_model_counts_how_often_each_rule_was_applied_in_its_data(task):
    episodes = random_episodes(task, 8, 10)
    observer = fitted(episodes, task).observer()
    observer.begin(task.initial)
    taken = Counter(x for episode in episodes for x in episode.actions[:, 0].tolist() if x < task.no_op)
    assert [observer.times(x) for x in range(task.no_op)] == [taken[x] for x in range(task.no_op)] and len(taken) > 3


def test_a_model_knows_the_matches_that_its_data_rewrite(task):
    """The model has seen one rewrite, and knows only this match and matches of the same pattern and signature."""
    episodes = random_episodes(task, 1, 1)
    observer, taken = fitted(episodes, task).observer(), task.initial.match(*episodes[0].actions[0].tolist())
    observer.begin(task.initial)
    known = [match for match in task.initial.matches if observer.knows(match)]
    assert taken in known and {match.xfer_id for match in known} == {taken.xfer_id}
    assert len(known) < len(task.initial.matches)


def test_a_model_expects_gains_from_patterns_that_gained():
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    observer = fitted(random_episodes(task, 60, 8), task).observer()
    observer.begin(task.initial)
    gains = {}
    for match in task.initial.matches:
        gains.setdefault(task.rules[match.xfer_id].name, set()).add(np.sign(observer.expects(match)))
    assert gains == {"common-factor": {1.0}, "neg-neg": {1.0}}


# -- what is kept of the best one ------------------------------------------------------------------


def test_a_dream_remembers_the_path_to_the_cheapest_state_of_the_data(task):
    episodes = random_episodes(task, 8, 15)
    model = fitted(episodes, task)
    state = model.searchable(task.initial, 0.25)
    for match in remembered(state):
        assert match in state.matches
        state = state.follow(match)
    best = min(episode.costs.min() for episode in episodes)
    assert state.objective / 1e9 == pytest.approx(best, abs=1e-9) and best < task.initial.runtime_ms


def remembered(start) -> list:
    """Return the remembered matches in order."""
    path, result = start.remembered(), []
    while path is not None:
        match, path = path
        result.append(match)
    return result[::-1]


def test_a_dream_remembers_no_path_if_no_episode_gained():
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    losing = [episode for episode in random_episodes(task, 60, 1) if episode.costs.min() == episode.costs[0]]
    model = fitted(losing, task)
    assert len(losing) > 3 and model.searchable(task.initial, 0.25).remembered() is None
    (kept,) = model.best_trajectories.values()
    assert len(unpack(kept)[0]) == 1


def test_a_remembered_path_is_not_used_for_another_graph_of_equal_runtime():
    one = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    other = task_of(onnx_model("a = Neg(x)\no = Neg(a)", {"x": (4, 8)}, "o"), SIGNS_AND_PRODUCTS)
    model = fitted(random_episodes(one, 30, 6), one)
    assert model.searchable(one.initial, 0.25).remembered() is not None
    model.best_trajectories[other.initial.cost.runtime_ps] = model.best_trajectories[one.initial.cost.runtime_ps]
    assert model.searchable(other.initial, 0.25).remembered() is None
