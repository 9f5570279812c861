"""Test the latent vector z: a linear map predicts costs and counts from z, and z depends on the graph alone."""

import numpy as np
import pytest

from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.zoo import load
from tests.suite import at_night, slow
from tests.toys.systems import SIGNS_AND_PRODUCTS, fitted, random_episodes, signs_and_products, task_of
from tests.toys.tiny import tiny_task
from worldmodel.edits.logged_episodes import by_grounding, ground_episode, logged_edits
from worldmodel.edits.node_values import node_latents


def z_along(model, task: Task, episode) -> np.ndarray:
    """Return z of every state of a real episode, [T + 1, Z]."""
    observer, state = model.observer(), task.initial
    observer.begin(state)
    result = [observer.z.copy()]
    for xfer_id, location in episode.actions.tolist():
        if xfer_id < task.no_op:
            number = next(
                k for k in range(state.counts[xfer_id]) if observer.real_action((xfer_id, k)) == (xfer_id, location)
            )
            state = state.apply(xfer_id, location)
            observer.follow((xfer_id, number), state)
        result.append(observer.z.copy())
    return np.stack(result)


def explained(inputs: np.ndarray, targets: np.ndarray, held_inputs: np.ndarray, held_targets: np.ndarray) -> float:
    """Return R² of a linear regression on held-out data; with several targets, the share of their total variance."""
    weights = np.linalg.lstsq(np.c_[inputs, np.ones(len(inputs))], targets, rcond=None)[0]
    left = held_targets - np.c_[held_inputs, np.ones(len(held_inputs))] @ weights
    return 1 - (left**2).sum() / ((held_targets - held_targets.mean(axis=0)) ** 2).sum()


def z_of(model, episodes) -> np.ndarray:
    """Return z of every state of the episodes, episode after episode, [S, Z]."""
    result, edits = [], logged_edits(episodes)
    for index, numbers in by_grounding(model.groundings, edits).items():
        rows = node_latents(index, model.latents)
        for k in numbers:
            result += [
                model.bounded(model.latents.offset + rows(nodes).sum(axis=0))
                for nodes in ground_episode(index, edits[k]).nodes
            ]
    return np.stack(result)


@pytest.mark.nightly
def test_cost_and_counts_can_be_read_from_z():
    task = tiny_task("tiny_squeezenet1_1")
    training, held_out = random_episodes(task, 120, 12), random_episodes(task, 30, 12, seed=1)
    model = fitted(training, task, latent=32)
    z, held_z = z_of(model, training), z_of(model, held_out)
    for what, bar in (("costs", 0.99), ("counts", 0.9)):
        seen, held = (
            np.concatenate([getattr(e, what) for e in episodes]).astype(float) for episodes in (training, held_out)
        )
        assert explained(z, seen, held_z, held) > bar


def renamed(model):
    """Return the same graph with other tensor names and its nodes in another topological order."""
    names = {}
    for node in model.graph.node:
        for names_of in (node.input, node.output):
            for k, name in enumerate(names_of):
                if name and name not in {v.name for v in (*model.graph.input, *model.graph.output)}:
                    names_of[k] = names.setdefault(name, f"t{997 * (len(names) + 1) % 1009}")
    for constant in model.graph.initializer:
        constant.name = names.get(constant.name, constant.name)
    del model.graph.value_info[:]
    given, left, order = (
        {v.name for v in (*model.graph.input, *model.graph.initializer)} | {""},
        list(model.graph.node),
        [],
    )
    while left:
        ready = [node for node in left if given.issuperset(node.input)]
        order.append(ready[-1])
        left.remove(ready[-1])
        given |= set(ready[-1].output)
    del model.graph.node[:]
    model.graph.node.extend(order)
    return model


@pytest.mark.parametrize("name", ["tiny_inception_v3", *slow("tiny_bert_base")])
def test_names_and_the_order_in_the_file_do_not_matter(name):
    task = tiny_task(name)
    other = Task(load_graph(renamed(load(name))), task.rules, task.cost)
    assert [n.op for n in task.graph.nodes.values()] != [n.op for n in other.graph.nodes.values()]
    model = fitted(random_episodes(task, at_night(10, 4), 6), task)
    one, same = model.imagine(task.initial, 1), model.imagine(other.initial, 1)
    assert np.allclose(one.z, same.z, atol=1e-5) and np.array_equal(one.counts, same.counts)
    for episode in random_episodes(task, at_night(2, 1), 6, seed=2):
        assert np.allclose(z_along(model, task, episode), z_along(model, other, episode), atol=1e-4)


def test_z_is_the_standardised_sum_of_node_latents():
    """Check that an unseen node adds 0, and that the offset centres z, so that its used entries have mean 0 and
    deviation 1."""
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    model = fitted(random_episodes(task, 40, 8), task)
    rows = model.latents.of_nodes(np.array([12345], np.uint64))
    assert not rows.any() and rows.shape == (1, model.latent)
    episodes = random_episodes(task, 40, 8)
    z = z_of(model, episodes)
    assert np.allclose(z[: len(episodes[0]) + 1], z_along(model, task, episodes[0]), atol=1e-5)
    used = z.std(axis=0) > 1e-6
    assert np.allclose(z[:, used].mean(axis=0), 0, atol=0.2) and np.allclose(z[:, used].std(axis=0), 1, atol=0.2)
