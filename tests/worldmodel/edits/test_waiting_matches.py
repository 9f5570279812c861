"""Matches whose nodes no state has had together wait, and nobody sees a difference."""

import numpy as np
import pytest

from rlflow.collect.edits import first_edit
from tests.toys.systems import random_episodes
from tests.toys.tiny import tiny_task
from worldmodel.edits.dream_states import DreamStates
from worldmodel.edits.episode_follower import EpisodeFollower
from worldmodel.edits.grounding import Grounding
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.match_classes import MatchClasses
from worldmodel.edits.state_change import rewrite
from worldmodel.edits.training_set import TrainingSet


@pytest.fixture(scope="module")
def rules_and_task():
    task = tiny_task("tiny_squeezenet1_1")
    return TrainingSet.of(random_episodes(task, 12, 12), len(task.rules)).groundings.rules, task


def states_of(rules, task, waits: bool, n: int) -> DreamStates:
    grounding = Grounding(rules, first_edit(task.initial), waits)
    index = GroundingIndex(grounding, MatchClasses(rules, len(task.rules)))
    nodes = np.array(list(EpisodeFollower(grounding, grounding.first).nodes.values()))
    return DreamStates(index, [nodes] * n, len(task.rules))


def there(states: DreamStates, row: int) -> dict[str, int]:
    """The matches of a state, symmetric ones once, by names that do not depend on what was met first."""
    grounding, result = states.index.grounding, {}
    for number in np.flatnonzero(states.open[row] == 0).tolist():
        xfer_id = grounding.rules.patterns[grounding.matches[number].pattern].pattern.xfer_id
        result[repr((xfer_id, states.index.order_of(number)[1]))] = number
    return result


def test_the_same_matches_are_there_as_if_none_waited(rules_and_task):
    rules, task = rules_and_task
    random, n = np.random.default_rng(0), 6
    both = [states_of(rules, task, waits, n) for waits in (True, False)]
    for _ in range(25):
        for states in both:
            states.grow()
        assert np.array_equal(both[0].counts, both[1].counts)
        rows, numbers = [], ([], [])
        for row in range(n):
            one, other = (there(states, row) for states in both)
            assert one.keys() == other.keys()
            for states, matches in zip(both, (one, other), strict=True):
                states.index.effects(np.array(list(matches.values())))
            effects = both[0].index.effect_row.values
            name = random.choice([name for name, match in one.items() if effects[match] >= 0])
            rows.append(row)
            numbers[0].append(one[name])
            numbers[1].append(other[name])
        for states, matches in zip(both, numbers, strict=True):
            rewrite(states, np.array(rows), np.array(matches))
    waiting, eager = (states.index.grounding for states in both)
    assert len(waiting.matches) < len(eager.matches) and len(waiting.waiting) > 0 and not eager.waiting
