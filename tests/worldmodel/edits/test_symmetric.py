"""Rules with two alike roots: one location, named as the environment names it."""

from itertools import count, islice

import numpy as np
import pytest

from benchmarks.random_models.random_model import random_model
from rlflow.collect.edits import first_edit
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules
from tests.toys.systems import fitted, random_episodes, said
from worldmodel.edits.dreaming import Index, States
from worldmodel.edits.kinds import Kinds
from worldmodel.edits.schemas import Schemas
from worldmodel.edits.world import Follower, World


def grounded(state) -> tuple[States, Follower]:
    first = first_edit(state)
    index = Index(World(Schemas()), Kinds(Schemas(), len(state.task.rules)))
    follower = Follower(index.world, first)
    return States(index, [np.array(list(follower.node.values()))], len(state.task.rules)), follower


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_nodes_is_the_graphs(seed):
    """Along a random walk: which of any two nodes comes first, as `Graph.rank` has it."""
    task, rng = Task(load_graph(random_model(seed)), load_rules(), AnalyticCost()), np.random.default_rng(seed)
    state = task.initial
    for _ in range(6):
        states, follower = grounded(state)
        reached = list(state.graph.order)
        for _ in range(20):
            one, other = (int(node) for node in rng.choice(reached, 2))
            first = min(one, other, key=state.graph.rank.__getitem__)
            assert states.first_of(0, follower.node[one], follower.node[other]) == follower.node[first]
        valid = state.valid_actions()[:-1]
        if len(valid):
            state = state.apply(*valid[rng.integers(len(valid))].tolist())


def test_two_alike_roots_are_one_location():
    """It knows which rules are symmetric, and shows half of the matches; whichever root is named first, it does what the environment does."""
    compared, rules = 0, load_rules()
    anywhere = (Task(load_graph(random_model(seed)), rules, AnalyticCost()) for seed in count())
    alike = (task for task in anywhere if any(rules[k].symmetric for k in np.flatnonzero(task.initial.counts)))
    for seed, task in enumerate(islice(alike, 5)):
        episodes = random_episodes(task, 15, 10, seed)
        model = fitted(episodes, task)
        symmetric = model.worlds.schemas.symmetric
        assert symmetric <= {k for k, rule in enumerate(task.rules) if rule.symmetric}
        taken = [e for e in episodes if set(e.actions[:, 0].tolist()) & symmetric]
        compared += len(taken)
        assert not taken or said(model, taken).exact == 1
        for index in model.worlds._known.values():
            for one, other in index.world.twin.items():
                assert index.world.twin[other] == one
                assert frozenset(index.world.places[one].nodes) == frozenset(index.world.places[other].nodes)
                assert (one in index.places_of(int(index.rule.values[one]))) == (one < other)
    assert compared > 10
