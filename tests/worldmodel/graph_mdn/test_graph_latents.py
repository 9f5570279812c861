"""Test the latent state of "graph-mdn": its reach is the number of message-passing steps, and a step encodes only what
it changes."""


import numpy as np
import pytest
import tensorflow as tf

from rlflow.collect.edits import first_edit
from tests.suite import eager
from tests.toys.systems import SIGNS_AND_PRODUCTS, random_episodes, signs_and_products, task_of
from worldmodel.edits.logged_episodes import EpisodeFollower
from worldmodel.edits.rule_learning import TrainingSet
from worldmodel.graph_mdn.graph_latents import CHANGES, GRAPHS, GraphLatents, LatentBatches, LatentNetwork
from worldmodel.graph_mdn.network import NodeBatch, Table
from worldmodel.graph_mdn.neural_costs import NodeRows
from worldmodel.graph_mdn.training import observed

TASK, LATENT = task_of(signs_and_products(), SIGNS_AND_PRODUCTS), 3
COMMON_FACTOR = 1  # This rule matches both sums of products, each in two orders.


@pytest.fixture(scope="module")
def learnt():
    """Return (training set, signature table) of random episodes."""
    episodes = random_episodes(TASK, 6, 5)
    return TrainingSet.of(episodes, TASK.encoding_spec.n_rules), observed(episodes)


def latents(table, rounds: int) -> GraphLatents:
    """Return the latents of an untrained network."""
    tf.random.set_seed(0)
    network = LatentNetwork(8, rounds, LATENT, TASK.encoding_spec.n_rules + CHANGES)
    network.encoder.signatures.fit(table)
    one, none = np.ones(1, np.int32), np.zeros(0, np.int32)
    batch = NodeBatch(one, one, one, 0 * one, none, none, np.zeros(0, np.float32))
    network(*tf.nest.map_structure(tf.constant, (batch, Table.of(table))))
    return GraphLatents(network, table, rounds, LATENT)


def nodes_of(training, state) -> tuple:
    """Return (grounding, numbers of the nodes) of a real state."""
    index = training.groundings.of(first_edit(state))
    numbers = EpisodeFollower(index.grounding, first_edit(state)).numbers()
    index.update()
    return index, numbers


@eager()
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_latents_of_graphs_with_equal_nodes_differ_only_with_message_passing(learnt, rounds):
    """Rewrite one of two sums of products. The two results have equal operators and sizes, and differ in their
    neighbours."""
    training, table = learnt
    of, seen = latents(table, rounds), []
    for location in (0, 3):
        index, nodes = nodes_of(training, TASK.initial.apply(COMMON_FACTOR, location))
        seen.append(of.of_nodes(index, NodeRows(index, table), [nodes])[0])
    assert np.abs(seen[0]).max() > 0
    assert np.allclose(*seen, atol=1e-5) == (rounds == 0)


@eager()
def test_batched_graphs_do_not_mix_and_equal_neighbourhoods_are_encoded_once(learnt):
    training, table = learnt
    index, (episode, *_) = next(training.groups())
    of, rows = latents(table, 2), NodeRows(index, table)
    together = of.of_nodes(index, rows, episode.nodes)
    known = len(of.vectors)
    singly = np.concatenate([of.of_nodes(index, rows, [nodes]) for nodes in episode.nodes])
    np.testing.assert_allclose(together, singly, atol=1e-5)
    assert len(of.vectors) == known


@eager()
def test_a_batch_has_the_graphs_of_one_episode_set_and_their_changes(learnt):
    training, table = learnt
    batches, of = LatentBatches(training, table, 0), latents(table, 1)
    nodes, shown, owners, targets = batches(3)
    assert targets.shape == (GRAPHS, TASK.encoding_spec.n_rules + CHANGES) and not targets[0].any()
    assert set(owners.tolist()) == set(range(GRAPHS)) and len(owners) == len(nodes.operators)
    assert np.array_equal(owners[nodes.senders], owners[nodes.receivers])
    assert (batches.targets[:, -1] <= 0).all() and np.abs(batches.targets[:, -2]).max() > 0
    assert of.network(nodes, shown).shape == (len(owners), LATENT)
    episode = training.episodes[0]
    assert len(batches.sums(of.network)) > len(episode)
