"""Test that the deferred creation of matches does not change what a state shows. A match waits until some state has all
of its nodes."""

from types import SimpleNamespace

import numpy as np
import pytest

from rlflow.collect.edits import first_edit
from tests.toys.systems import random_episodes
from tests.toys.tiny import tiny_task
from worldmodel.edits.dream_states import DreamStates, rewrite
from worldmodel.edits.grounding import Grounding, GroundMatch
from worldmodel.edits.grounding_index import GroundingIndex, GrowingArray
from worldmodel.edits.learned_rules import MatchClasses
from worldmodel.edits.logged_episodes import EpisodeFollower
from worldmodel.edits.rule_learning import TrainingSet


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
    """Return the matches of a state under names that do not depend on the order in which matches were met; symmetric
    ones once."""
    grounding, result = states.index.grounding, {}
    for number in np.flatnonzero(states.open[row] == 0).tolist():
        xfer_id = grounding.rules.patterns[grounding.matches[number].pattern].pattern.xfer_id
        result[repr((xfer_id, states.index.order_of(number)[1]))] = number
    return result


def test_waiting_matches_do_not_change_which_matches_are_present(rules_and_task):
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


def test_restarted_dreams_show_only_the_first_matches_and_keep_the_order_of_all(rules_and_task):
    """Walk until the arrays have grown, then restore the start from a copy whose arrays have not grown."""
    rules, task = rules_and_task
    random, n = np.random.default_rng(1), 6
    states = states_of(rules, task, True, n)
    start = states.taken(np.zeros(1, np.int64))
    begun = there(start, 0)
    for _ in range(25):
        matches = [list(there(states, row).values()) for row in range(n)]
        states.index.effects(np.concatenate(matches))
        known = states.index.effect_row.values
        chosen = [random.choice([match for match in of_row if known[match] >= 0]) for of_row in matches]
        rewrite(states, np.arange(n), np.array(chosen))
    assert states.open.shape[1] > states.n_matches > start.n_matches
    states.copy_rows(np.arange(n), start)
    assert all(there(states, row).keys() == begun.keys() for row in range(n))
    for xfer_id in np.unique(states.index.rule.values).tolist():
        numbers = states.index.matches_of_rule(xfer_id).tolist()
        orders = [states.index.order_of(number) for number in numbers]
        assert orders == sorted(orders) and len(set(numbers)) == len(numbers)


def test_a_match_takes_its_canonical_place_when_its_symmetric_match_appears():
    index = GroundingIndex.__new__(GroundingIndex)
    index._sorted, index.match_class = {}, GrowingArray(np.int32)
    index.match_class.reserve(7)
    index.grounding = SimpleNamespace(symmetric_match={}, order_of=lambda nodes, operands: (nodes, operands))
    index.grounding.matches = [GroundMatch(0, (node,), (node,), ()) for node in (10, 20, 20, 20, 50, 60, 5)]
    for match in range(6):
        index._sort(0, match)
    index.grounding.symmetric_match = {2: 6, 6: 2}
    index._sort(0, 6)
    assert index.matches_of_rule(0).tolist() == [2, 0, 1, 3, 4, 5]
