"""Test the order of locations in `edits`: a symmetric match is one location, with the environment's location index."""

from itertools import count, islice

import numpy as np
import pytest

from benchmarks.random_models.random_model import random_model
from rlflow.collect.edits import first_edit
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules
from tests.suite import at_night
from tests.toys.systems import fitted, random_episodes, said
from worldmodel.edits.dream_states import DreamStates, first_of
from worldmodel.edits.grounding import Grounding
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.learned_rules import LearnedRules, MatchClasses
from worldmodel.edits.logged_episodes import EpisodeFollower


def grounded(state) -> tuple[DreamStates, EpisodeFollower]:
    first = first_edit(state)
    index = GroundingIndex(Grounding(LearnedRules(), first), MatchClasses(LearnedRules(), len(state.task.rules)))
    follower = EpisodeFollower(index.grounding, first)
    return DreamStates(index, [np.array(list(follower.nodes.values()))], len(state.task.rules)), follower


@pytest.mark.parametrize("seed", range(at_night(10, 3)))
def test_dream_states_order_nodes_as_the_graph_does(seed):
    """Compare which of two random nodes comes first, by `first_of` and by `Graph.rank`, along a random walk."""
    task, rng = Task(load_graph(random_model(seed)), load_rules(), AnalyticCost()), np.random.default_rng(seed)
    state = task.initial
    for _ in range(6):
        states, follower = grounded(state)
        reached = list(state.graph.order)
        for _ in range(20):
            one, other = (int(node) for node in rng.choice(reached, 2))
            first = min(one, other, key=state.graph.rank.__getitem__)
            assert first_of(states, 0, follower.nodes[one], follower.nodes[other]) == follower.nodes[first]
        valid = state.valid_actions()[:-1]
        if len(valid):
            state = state.apply(*valid[rng.integers(len(valid))].tolist())


def test_a_match_and_its_mirror_image_are_one_location():
    """Check that a rule counts as symmetric only if it is, that mirrored matches pair up, and that replays are
    exact."""
    compared, rules = 0, load_rules()
    anywhere = (Task(load_graph(random_model(seed)), rules, AnalyticCost()) for seed in count())
    alike = (task for task in anywhere if any(rules[k].symmetric for k in np.flatnonzero(task.initial.counts)))
    for seed, task in enumerate(islice(alike, at_night(5, 2))):
        episodes = random_episodes(task, 15, 10, seed)
        model = fitted(episodes, task)
        symmetric = model.groundings.rules.symmetric
        assert symmetric <= {k for k, rule in enumerate(task.rules) if rule.symmetric}
        taken = [e for e in episodes if set(e.actions[:, 0].tolist()) & symmetric]
        compared += len(taken)
        assert not taken or said(model, taken).exact == 1
        for index in model.groundings.known.values():
            for one, other in index.grounding.symmetric_match.items():
                assert index.grounding.symmetric_match[other] == one
                assert frozenset(index.grounding.matches[one].nodes) == frozenset(index.grounding.matches[other].nodes)
                assert (one in index.matches_of_rule(int(index.rule.values[one]))) == (one < other)
    assert compared > at_night(10, 2)
