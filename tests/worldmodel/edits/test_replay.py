"""Test that `edits` is exact where the data determine the dynamics completely."""

import numpy as np
import pytest

from benchmarks.random_models.random_model import random_model
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import RuleSet, load_rules
from tests.suite import at_night, slow
from tests.toys.systems import (
    SIGNS_AND_PRODUCTS,
    fitted,
    onnx_model,
    random_episodes,
    rule_set,
    said,
    signs_and_products,
    task_of,
)
from tests.toys.tiny import tiny_task
from worldmodel.edits.dream_states import DreamStates, as_named_by_environment, rewrite
from worldmodel.edits.logged_episodes import by_grounding, ground_episode, logged_edits

ROUNDING = 1e-6  # Relative to the largest reward; episodes store float32.


def is_exact(predicted) -> bool:
    scale = np.abs(predicted.real_rewards).max()
    return (
        predicted.exact == 1
        and predicted.reward_error <= ROUNDING * scale
        and np.array_equal(predicted.terminated, predicted.real_terminated)
    )


def test_three_rules_are_learnt_exactly():
    """Every count, reward and end of held-out episodes is predicted from every step to the end, without uncertainty."""
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    model = fitted(random_episodes(task, 150, 8), task)
    predicted = said(model, random_episodes(task, 40, 8, seed=1))
    assert (
        len(predicted.uncertainty) > 500
        and (predicted.real_counts.max(axis=0) > 1).all()
        and (np.abs(predicted.real_rewards) > 0).mean() > 0.5
    )
    assert is_exact(predicted) and predicted.uncertainty.max() == 0


@pytest.mark.parametrize("name", ["tiny_squeezenet1_1", *slow("tiny_bert_base", "tiny_resnet50")])
def test_training_episodes_are_replayed_exactly_from_every_start(name):
    task = tiny_task(name)
    episodes = random_episodes(task, 12, 15)
    predicted = said(fitted(episodes, task), episodes)
    assert len(predicted.uncertainty) > 200 and is_exact(predicted) and predicted.uncertainty.max() == 0


def test_equal_nodes_are_never_merged():
    """A match that is rewritten again makes new tensors, because other nodes still read the tensors of its first
    rewrite."""
    for task, n, steps in (
        *((tiny_task(name), 20, 30) for name in at_night(("tiny_resnet50",), ())),
        (task_of(signs_and_products(), SIGNS_AND_PRODUCTS), 60, 12),
    ):
        episodes = random_episodes(task, n, steps)
        model = fitted(episodes, task)
        edits, again = logged_edits(episodes), 0
        for index, numbers in by_grounding(model.groundings, edits).items():
            for k in numbers:
                for nodes in ground_episode(index, edits[k]).nodes:
                    assert len(set(nodes.tolist())) == len(nodes)
            again += sum(key[-1] > 0 for key in index.grounding.tensor_numbers if key[0] != "initial")
        assert again > 0 and is_exact(said(model, episodes, 8))


def test_a_model_of_two_graphs_predicts_each_as_well_as_a_separate_model():
    other = onnx_model(
        "a = Add(x, y)\nb = Mul(z, a)\nc = Neg(b)\nd = Neg(c)\nk = Neg(d)\no = Neg(k)", {n: (2, 8) for n in "xyz"}, "o"
    )
    tasks = [task_of(signs_and_products(), SIGNS_AND_PRODUCTS), task_of(other, SIGNS_AND_PRODUCTS)]
    episodes = [random_episodes(task, at_night(100, 60), 8) for task in tasks]
    held_out = [random_episodes(task, at_night(25, 8), 8, seed=1) for task in tasks]
    mixed = fitted(episodes[0] + episodes[1], tasks[0])
    for task, own, held in zip(tasks, episodes, held_out, strict=True):
        apart, together = said(fitted(own, task), held), said(mixed, held)
        assert is_exact(together) and together.uncertainty.max() == apart.uncertainty.max() == 0
        assert np.allclose(together.rewards, apart.rewards, rtol=1e-6, atol=1e-6)
    both = said(mixed, held_out[0][:5] + held_out[1][:5])  # Episodes of both models in one call.
    assert is_exact(both)


@pytest.mark.parametrize("seed", range(at_night(12, 1)))
def test_learned_effects_lead_to_the_logged_nodes_on_random_models(seed):
    """Check with all rules that the learned effect of each training step leads to the logged node numbers."""
    task = Task(load_graph(random_model(seed)), load_rules(), AnalyticCost())
    episodes = random_episodes(task, 12, 10, seed)
    model, edits, compared = fitted(episodes, task), logged_edits(episodes), 0
    for index, numbers in by_grounding(model.groundings, edits).items():
        for k in numbers:
            grounded = ground_episode(index, edits[k])
            moves = np.flatnonzero(grounded.xfer_ids >= 0)
            if not len(moves):
                continue
            states = DreamStates(index, [grounded.nodes[t] for t in moves], len(task.rules))
            assert np.array_equal(states.counts, episodes[k].counts[moves])
            matches = np.array([index.representative(match) for match in grounded.matches[moves].tolist()], np.int64)
            assert np.array_equal(
                as_named_by_environment(states, np.arange(len(moves)), matches), grounded.matches[moves]
            )
            rewrite(states, np.arange(len(moves)), grounded.matches[moves])
            for producer, t in zip(states.producer, moves, strict=True):
                assert sorted(producer[producer >= 0]) == sorted(grounded.nodes[t + 1])
            assert np.array_equal(states.counts, episodes[k].counts[moves + 1])
            compared += len(moves)
    assert compared > len(episodes)


def test_a_graph_without_matches_can_be_learnt():
    task = task_of(onnx_model("a = Abs(x)", {"x": (2,)}, "a"), SIGNS_AND_PRODUCTS)
    episodes = random_episodes(task, 3, 5)
    predicted = said(fitted(episodes, task), episodes)
    assert (
        len(predicted.uncertainty) == 3
        and predicted.terminated.all()
        and not predicted.counts.any()
        and not predicted.rewards.any()
        and not predicted.uncertainty.any()
    )


FLIPS = """
flip-sum: operands of a sum change places
  Add(x, y) => Add(y, x)

flip-product: operands of a product change places
  Mul(x, y) => Mul(y, x)
"""


def test_a_consumer_of_two_rewired_tensors_reads_both_new_ones():
    """Split(Concat(x, z)) is replaced by x and z, which the sum then reads."""
    lines = "c = Concat(x, z)\na, b = Split(c)\nd = Add(a, b)\ne = Add(a, d)\no = Mul(e, b)"
    model = onnx_model(lines, {"x": (2, 8), "z": (2, 8)}, "o", c={"axis": 0}, a={"axis": 0})
    parted = [rule for rule in load_rules() if rule.name == "split-of-concat"]
    rules = RuleSet((*parted, *rule_set(FLIPS)), "toy")
    task = task_of(model, rules)
    episodes = random_episodes(task, 40, 6)
    predicted = said(fitted(episodes, task), episodes)
    assert len(predicted.uncertainty) > 50 and is_exact(predicted) and predicted.uncertainty.max() == 0
