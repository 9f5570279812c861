"""Test a world model whose data hold rewards and no costs: the costs of nodes are solved from the rewards."""

from dataclasses import replace

import numpy as np

from tests.toys.systems import SIGNS_AND_PRODUCTS, random_episodes, said, signs_and_products, task_of
from tests.toys.tiny import tiny_task
from worldmodel.edits.cost_training import solved_costs, with_solved_costs
from worldmodel.edits.rule_learning import TrainingSet
from worldmodel.edits.training import fit
from worldmodel.world_model_options import EditsConfig


def training_of(task, n, steps):
    return TrainingSet.of(random_episodes(task, n, steps), task.encoding_spec.n_rules)


def test_solved_costs_explain_every_reward_and_the_first_graph():
    training, explained = training_of(tiny_task("tiny_squeezenet1_1"), 12, 12), 0
    for index, episodes in with_solved_costs(training).groups():
        whole = training.initial_runtime(index)
        for episode in episodes:
            cost, totals = {}, []
            for (nodes, runtimes), there in zip(episode.runtimes, episode.nodes, strict=True):
                cost |= dict(zip(nodes.tolist(), runtimes.tolist(), strict=True))
                totals.append(sum(cost[node] for node in there.tolist()))
            np.testing.assert_allclose(totals[0], whole, rtol=1e-6)
            np.testing.assert_allclose(-np.diff(totals), episode.gains, atol=1e-6 * whole)
            explained += len(episode.gains)
    assert explained > 50


def test_solved_costs_do_not_read_logged_node_costs():
    training = training_of(task_of(signs_and_products(), SIGNS_AND_PRODUCTS), 20, 8)
    blind = {}
    for k, episode in training.grounded.items():
        blind[k] = episode._replace(runtimes=[(nodes, np.full(len(nodes), np.nan)) for nodes, _ in episode.runtimes])
    assert solved_costs(replace(training, grounded=blind)) == solved_costs(training)


def test_a_model_trained_on_rewards_alone_predicts_the_rewards():
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    model = fit(EditsConfig(latent=8, supervision="scalar"), task.encoding_spec, random_episodes(task, 60, 8))
    predicted = said(model, random_episodes(task, 20, 8, seed=1))
    assert len(predicted.rewards) > 200 and predicted.exact == 1
    assert predicted.reward_error <= 1e-4 * np.abs(predicted.real_rewards).max()
