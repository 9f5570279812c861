"""Test match classes: a match has the same class in a dream and in reality, and its class has the median reward of the
data."""

from collections import defaultdict
from copy import copy

import numpy as np
import pytest

from benchmarks.random_models.random_model import random_model
from rlflow.collect.edits import match_record
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules
from tests.suite import at_night, slow
from tests.toys.systems import (
    SIGNS_AND_PRODUCTS,
    fitted,
    random_episodes,
    real_env,
    signs_and_products,
    task_of,
)
from tests.toys.tiny import tiny_task
from worldmodel.edits import class_rewards
from worldmodel.edits import learned_rules as module
from worldmodel.edits.class_rewards import with_predicted_rewards
from worldmodel.edits.learned_rules import MatchClasses
from worldmodel.edits.logged_episodes import ground_episode
from worldmodel.edits.rule_learning import TrainingSet
from worldmodel.latent_env import LatentEnv


def random_task(seed: int) -> Task:
    return Task(load_graph(random_model(seed)), load_rules(), AnalyticCost())


def tasks():
    yield from (tiny_task(name) for name in ("tiny_squeezenet1_1", "tiny_bert_base"))
    yield from map(random_task, range(6))


def class_of(model, observer, match) -> int:
    """Return the class of a match by definition, from its pattern and signature; the lower number of two mirrored
    matches."""
    follower, record = observer.follower, match_record(observer.state, match)
    symmetric = record.xfer_id in model.groundings.rules.symmetric
    alike = [
        m
        for m in follower.matches
        if m == record or (symmetric and m.xfer_id == record.xfer_id and set(m.nodes) == set(record.nodes))
    ]
    result = []
    for each in alike:
        number = follower.match(each)
        known = None if number is None else follower.grounding.matches[number]
        signature = known and follower.grounding.match_signature(known)
        result.append(model.groundings.match_classes.of(record.xfer_id, known and known.pattern, signature))
    return min(result)


@pytest.mark.parametrize("number", [0, *slow(1, 2, 3, 4, 5, 6, 7)])
def test_dream_and_reality_show_the_same_match_classes_and_sort_locations_by_class(number):
    task = list(tasks())[number]
    episodes = random_episodes(
        task, at_night(160, 80), 8, number
    )  # These episodes suffice to meet every match of the walks; a match that no episode met is missing in the dream.
    model, compared = fitted(episodes, task), 0
    for walk in range(6):
        dream, real, rng = (
            model.imagine(task.initial, 1),
            LatentEnv(real_env(task, 11), model),
            np.random.default_rng([number, walk]),
        )
        shown = real.reset(seed=0)[0]
        for _ in range(8):
            assert np.array_equal(dream.class_counts[0], shown["class_counts"])
            counts = shown["counts"][:-1]
            assert np.array_equal(np.bincount(model.match_classes, shown["class_counts"], len(counts)), counts)
            if not counts.any():
                break
            xfer_id = int(rng.choice(np.flatnonzero(counts)))
            of_rule = model.match_classes == xfer_id
            expected = np.repeat(np.flatnonzero(of_rule), shown["class_counts"][of_rule])
            observer = real._observer
            matches = [
                observer.state.table.location(*observer.real_action((xfer_id, k))) for k in range(counts[xfer_id])
            ]
            assert [class_of(model, observer, match) for match in matches] == expected.tolist()
            action = np.array([xfer_id, rng.integers(counts[xfer_id])])
            predicted = dream.advance(action[None], np.ones(1, bool), 0.0, (0, 0))
            shown = real.step(action)[0]
            compared += 1
            if predicted.uncertainty[0]:
                break
    assert compared > 8


def toy_task() -> Task:
    return task_of(signs_and_products(), SIGNS_AND_PRODUCTS)


def test_the_usual_reward_of_a_class_is_the_median_of_the_data():
    """Compare the median class rewards of the toy with medians taken while following the training episodes again."""
    task = toy_task()
    episodes = random_episodes(task, 20, 8)
    model, rewards = fitted(episodes, task), {}
    for episode in episodes:
        observer, state = model.observer(), task.initial
        observer.begin(state)
        for (xfer_id, location), reward in zip(episode.actions.tolist(), episode.rewards.tolist(), strict=True):
            if xfer_id == task.no_op:
                break
            rewards.setdefault(class_of(model, observer, state.table.location(xfer_id, location)), []).append(reward)
            number = [k for k in range(state.counts[xfer_id]) if observer.real_action((xfer_id, k))[1] == location]
            state = state.apply(xfer_id, location)
            observer.follow((xfer_id, number[0]), state)
    rewritten = sorted(rewards)
    expected = np.array([np.median(rewards[number]) for number in rewritten])
    np.testing.assert_allclose(model.usual_rewards[rewritten], expected, atol=1e-6)
    assert model.usual_rewards.dtype == np.float32 and len(np.unique(expected)) == 4


def test_the_reward_of_a_never_rewritten_class_is_predicted_within_its_gains():
    """Treat every class as never rewritten. The predicted reward then lies within the gains of the class in the
    data."""
    task = toy_task()
    episodes = random_episodes(task, 60, 8)
    training = TrainingSet.of(episodes, task.encoding_spec.n_rules)
    model, gained = fitted(episodes, task), defaultdict(list)
    for index, grounded in training.groups():
        for episode in grounded:
            per_ps = model.rewards.of(training.initial_runtime(index)).per_ps
            for match, gain in zip(episode.matches, per_ps * episode.gains, strict=False):
                gained[int(index.match_class.values[match])].append(gain)
    blank = copy(model)
    blank.usual_rewards = np.zeros_like(model.usual_rewards)
    said, own = with_predicted_rewards(blank, training, np.zeros(len(model.match_classes), bool))
    assert len(gained) > 4
    for number, gains in gained.items():
        assert min(gains) - 1e-4 <= said[number] <= max(gains) + 1e-4 and said[number] != 0 and own[number]


def test_a_restart_brings_back_the_classes_of_the_start():
    task = toy_task()
    imagined = fitted(random_episodes(task, 20, 8), task).imagine(task.initial, 2)
    first = imagined.class_counts.copy()
    imagined.advance(np.array([[1, 0], [1, 0]]), np.ones(2, bool), 0.0, (0, 0))
    assert (imagined.class_counts != first).any(axis=1).all()
    imagined.restart(np.array([True, False]))
    assert np.array_equal(imagined.class_counts[0], first[0]) and (imagined.class_counts[1] != first[1]).any()


def test_the_least_rewritten_classes_are_the_first_to_be_merged(monkeypatch):
    task = toy_task()
    learnt = fitted(random_episodes(task, 20, 8), task).groundings.rules
    times = {}
    for pattern, known in enumerate(learnt.patterns):
        times |= {(pattern, signature): sum(seen.values()) for signature, seen in known.effects.items()}
    monkeypatch.setattr(module, "MAX_MATCH_CLASSES", len(times) // 2)
    few = MatchClasses(learnt, 3)
    assert len(few.xfer_ids) == len(times) // 2 + 3 and (np.diff(few.xfer_ids) >= 0).all()
    last = {xfer_id: np.flatnonzero(few.xfer_ids == xfer_id)[-1] for xfer_id in range(3)}
    merged = {key: few.of(learnt.patterns[key[0]].pattern.xfer_id, *key) in last.values() for key in times}
    assert sum(merged.values()) == len(times) - len(times) // 2
    assert max(times[key] for key in times if merged[key]) <= min(times[key] for key in times if not merged[key])
    assert few.of(1, None, ()) == last[1]


def test_rewards_of_classes_are_predicted_in_states_of_all_parts_of_episodes(monkeypatch):
    task = toy_task()
    episodes, sampled = random_episodes(task, 60, 8), []
    training, model = TrainingSet.of(episodes, task.encoding_spec.n_rules), fitted(episodes, task)
    gains_of_classes = class_rewards._gains_of_classes

    def noted(model, index, states, wanted):
        sampled.append((index, states))
        return gains_of_classes(model, index, states, wanted)

    monkeypatch.setattr(class_rewards, "_gains_of_classes", noted)
    with_predicted_rewards(model, training, np.zeros(len(model.match_classes), bool))
    ((index, states),), steps_to = sampled, {}
    for log in training.logs:
        for t, nodes in enumerate(ground_episode(index, log).nodes):
            steps_to.setdefault(frozenset(nodes.tolist()), t)
    steps = [steps_to[frozenset(state.tolist())] for state in states]
    assert len(steps) == class_rewards.STATES_A_GRAPH and steps.count(0) < 8 and set(range(6)) <= set(steps)
