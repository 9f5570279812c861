"""Test match classes that appear in imagined rollouts and not in the data, and the rewards predicted for them."""

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_json
from tests.suite import at_night
from tests.toys.systems import fitted, random_episodes
from tests.toys.tiny import tiny_task
from worldmodel.edits.model import EditsWorldModel
from worldmodel.edits.rule_learning import TrainingSet


@pytest.fixture(scope="module")
def task():
    return tiny_task("tiny_inception_v3")


@pytest.fixture(scope="module")
def episodes(task):
    return random_episodes(task, 8, 5)


@pytest.fixture(scope="module")
def model(task, episodes):
    return fitted(episodes, task)


def greedy_way(model, task):
    """Yield (class, predicted reward) of each step of the dream that always rewrites the class of highest median
    reward."""
    imagined, per_ps = model.imagine(task.initial, 1), model.rewards.of(task.initial.objective).per_ps
    simulator = imagined._simulator
    while True:
        states, index = simulator.states, simulator.index
        states.grow()
        usual = np.where(states.class_counts[0] > 0, model.usual_rewards, -np.inf)
        if usual.max() <= 0:
            return
        best = int(usual.argmax())
        match = np.flatnonzero((states.open[0, : index.rule.size] == 0) & (index.match_class.values == best))[:1]
        step = simulator.step(np.zeros(1, int), match)
        yield best, float(step.gain[0] * per_ps)
        if step.uncertainty[0] >= 1:
            return


def test_every_match_of_the_greedy_dream_has_a_class_of_its_own(model, task):
    known = {key for learned in model.groundings.rules.patterns for key in learned.effects}
    met = [signature for _, signature in model.groundings.rules.dreamt if signature not in known]
    assert met  # The data was too short to contain these signatures.
    classes = model.groundings.match_classes
    way = list(greedy_way(model, task))
    assert len(way) > 6 and not classes.is_last(np.array([of_class for of_class, _ in way])).any()


def test_the_predicted_reward_of_a_dreamt_class_lies_within_its_gains(model, task):
    """Compare the reward of each dreamt class with the gains of its matches in random imagined rollouts."""
    rules, table = model.groundings.rules, model.groundings.match_classes.table
    known = {key for learned in rules.patterns for key in learned.effects}
    dreamt = {k for k, (_, *key) in enumerate(table) if tuple(key) in rules.dreamt and key[1] not in known}
    random, per_ps, gains = np.random.default_rng(0), model.rewards.of(task.initial.objective).per_ps, {}
    for _ in range(at_night(40, 15)):
        simulator = model.imagine(task.initial, 1)._simulator
        for _ in range(20):
            states, index = simulator.states, simulator.index
            states.grow()
            there = np.flatnonzero(states.open[0, : index.rule.size] == 0)
            wanted = there[np.isin(index.match_class.values[there], list(dreamt - set(gains)))]
            match = random.choice(wanted if len(wanted) else there, 1)
            gain = simulator.step(np.zeros(1, int), match).gain[0]
            gains.setdefault(int(index.match_class.values[match[0]]), []).append(float(gain * per_ps))
    compared = [k for k in dreamt if k in gains]
    within = [min(gains[k]) - 1e-4 <= model.usual_rewards[k] <= max(gains[k]) + 1e-4 for k in compared]
    assert len(compared) > at_night(20, 8) and np.mean(within) > 0.9
    assert len(np.unique(model.usual_rewards[compared].round(5))) > 2


def test_added_classes_do_not_change_the_usual_rewards_of_existing_ones(model, tmp_path):
    table, before = model.groundings.match_classes.table, dict.fromkeys([])
    for of_class, usual in zip(table, model.usual_rewards.tolist(), strict=True):
        before[of_class] = usual
    pattern = next(k for k, of in enumerate(model.groundings.rules.patterns) if of.effects)
    signature = (-1,) * len(next(iter(model.groundings.rules.patterns[pattern].effects)))
    model.save(tmp_path)
    other = EditsWorldModel.load(tmp_path)
    other.add_classes({(pattern, signature): 7.0})
    after = dict(zip(other.groundings.match_classes.table, other.usual_rewards.tolist(), strict=True))
    (added,) = set(after) - set(before)
    assert added[1:] == (pattern, signature) and after.pop(added) == 7.0 and after == before
    assert len(other.match_classes) == len(after) + 1


def test_dreamt_classes_are_saved_and_loaded(model, tmp_path):
    model.save(tmp_path)
    loaded = EditsWorldModel.load(tmp_path)
    assert loaded.groundings.match_classes.table == model.groundings.match_classes.table
    np.testing.assert_array_equal(loaded.usual_rewards, model.usual_rewards)
    saved = read_json(tmp_path / "learnt.json")
    number, signature = saved["rules"]["dreamt"][0]
    for wrong in ([-1, signature], [10**6, signature], [number, signature[:-1]], [number, ["x"]]):
        write_json(tmp_path / "learnt.json", saved | {"rules": saved["rules"] | {"dreamt": [wrong]}})
        with pytest.raises(RLFlowError, match="holds no whole world model"):
            EditsWorldModel.load(tmp_path)


@pytest.mark.nightly
def test_the_same_episodes_give_the_same_classes(model, task, episodes):
    again = fitted(episodes, task)
    assert list(again.groundings.rules.dreamt) == list(model.groundings.rules.dreamt)
    assert TrainingSet.of(episodes, task.encoding_spec.n_rules).groundings.rules.dreamt == {}
