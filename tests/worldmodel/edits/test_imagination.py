"""Test that imagined rollouts equal real episodes wherever the model is certain."""

import numpy as np
import pytest

from benchmarks.random_models.random_model import random_model
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules
from tests.suite import at_night, slow
from tests.toys.systems import (
    SIGNS_AND_PRODUCTS,
    fitted,
    onnx_model,
    played,
    random_episodes,
    real_env,
    signs_and_products,
    task_of,
)
from tests.toys.tiny import tiny_task
from tests.worldmodel.edits.test_neighbourhood import Fused, with_cost
from worldmodel.dream import DreamEnv, DreamVectorEnv
from worldmodel.latent_env import LatentEnv


def toy_task() -> Task:
    return task_of(signs_and_products(), SIGNS_AND_PRODUCTS)


@pytest.fixture(scope="module")
def toy():
    """Return (model, task) of the toy with signs and products; the model knows all of its rewrites."""
    task = toy_task()
    return fitted(random_episodes(task, 80, 10), task), task


def random_task(seed: int) -> Task:
    return Task(load_graph(random_model(seed)), load_rules(), AnalyticCost())


def choose(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
    """Return a random valid action for one observation; NO-OP only where no rule matches."""
    valid = [(xfer_id, location) for xfer_id, count in enumerate(counts[:-1]) for location in range(count)]
    return np.array(valid[rng.integers(len(valid))] if valid else (len(counts) - 1, 0))


# -- dream and reality -----------------------------------------------------------------------------


def compare(model, task: Task, dreams: int, steps: int, seed: int = 0) -> int:
    """Play the same random actions in dreams and in real environments, and return the number of compared steps."""
    dream = DreamVectorEnv(model, task.initial, dreams, max_steps=steps + 1, temperature=0.0, uncertainty_limit=None)
    real = [LatentEnv(real_env(task, steps + 1), model) for _ in range(dreams)]
    rng, compared, alive = np.random.default_rng(seed), 0, np.ones(dreams, bool)
    seen, shown = dream.reset(seed=0)[0], [env.reset(seed=0)[0] for env in real]
    for _ in range(steps):
        for i in np.flatnonzero(alive):
            assert np.allclose(seen["z"][i], shown[i]["z"], atol=1e-4) and seen["h"][i].shape == shown[i][
                "h"
            ].shape == (0,)
            assert np.array_equal(seen["counts"][i], shown[i]["counts"])
        actions = np.stack([choose(rng, seen["counts"][i]) for i in range(dreams)])
        moves = alive & (actions[:, 0] < model.spec.n_rules)
        predicted = dream._dreams.imagined.advance(actions, moves, 0.0, (0, 0))
        seen, alive = dream._dreams.observe(), moves & (predicted.uncertainty == 0)
        for i in np.flatnonzero(moves):
            shown[i], reward, terminated, truncated, _ = real[i].step(actions[i])
            assert not terminated and not truncated and reward > -100
            if alive[i]:
                compared += 1
                assert abs(reward - predicted.rewards[i]) < 1e-5
    return compared


def test_dream_and_reality_show_the_same_on_the_toy(toy):
    assert compare(*toy, dreams=16, steps=12) > 150


@pytest.mark.parametrize("name", slow("tiny_squeezenet1_1", "tiny_bert_base"))
def test_dream_and_reality_show_the_same_on_models_of_the_zoo(name):
    task = tiny_task(name)
    assert compare(fitted(random_episodes(task, 30, 12), task), task, dreams=6, steps=10) >= 30


@pytest.mark.parametrize("seed", range(at_night(8, 1)))
def test_dream_and_reality_show_the_same_in_the_episodes_of_random_models(seed):
    """Replay the training episodes with all rules; the dream numbers locations in its own order."""
    task = random_task(seed)
    episodes = random_episodes(task, 10, 8, seed)
    model = fitted(episodes, task)
    for episode in episodes:
        dream, real = model.imagine(task.initial, 1), LatentEnv(real_env(task, 11), model)
        shown = real.reset(seed=0)[0]
        for (xfer_id, location), reward in zip(episode.actions.tolist(), episode.rewards, strict=True):
            assert np.array_equal(dream.counts[0], shown["counts"][:-1])
            assert np.allclose(dream.z[0], shown["z"], atol=1e-4)
            if xfer_id == task.no_op:
                break
            numbers = [
                k
                for k in range(dream.counts[0, xfer_id])
                if real._observer.real_action((xfer_id, k)) == (xfer_id, location)
            ]
            assert len(numbers) == 1  # Exactly one of the dream's locations is the recorded one.
            predicted = dream.advance(np.array([[xfer_id, numbers[0]]]), np.ones(1, bool), 0.0, (0, 0))
            shown, real_reward, *_ = real.step(np.array([xfer_id, numbers[0]]))
            assert abs(predicted.rewards[0] - reward) < 1e-5 * max(1, abs(reward)) and abs(
                real_reward - reward
            ) < 1e-5 * max(1, abs(reward))
            assert predicted.uncertainty[0] == 0


def test_the_environment_of_a_dream_ends_as_the_real_one(toy):
    model, task = toy
    dream, real = (
        DreamEnv(model, task.initial, max_steps=3, uncertainty_limit=None),
        LatentEnv(real_env(task, 3), model),
    )
    for last in (np.array([1, 0]), np.array([task.no_op, 0])):
        for env in (dream, real):
            env.reset(seed=0)
        for action in (np.array([1, 0]), np.array([0, 99]), last):
            (_, one, *ends), (_, other, *real_ends) = dream.step(action), real.step(action)
            assert one == pytest.approx(other, abs=1e-5) and ends[:2] == real_ends[:2]
        assert any(ends[:2])


# -- dreams side by side ---------------------------------------------------------------------------


def dreamt(model, task: Task, n: int, row: int, actions, temperature: float, seed=(3, 1)) -> list:
    """Return what dream `row` of n predicts for the actions, while the other dreams take random actions."""
    imagined, rng, result = model.imagine(task.initial, n), np.random.default_rng(7), []
    for action in actions:
        taken = np.tile(np.array([task.no_op, 0]), (n, 1))
        for i in range(n):
            count = imagined.counts[i, 1]
            taken[i] = (1, rng.integers(count)) if count else (task.no_op, 0)
        taken[row] = action
        predicted = imagined.advance(taken, taken[:, 0] < task.no_op, temperature, seed)
        result.append(
            (
                predicted.rewards[row],
                predicted.uncertainty[row],
                imagined.z[row].tolist(),
                imagined.counts[row].tolist(),
            )
        )
    return result


def valid_walk(task: Task, model, steps: int) -> list:
    imagined, rng, result = model.imagine(task.initial, 1), np.random.default_rng(1), []
    for _ in range(steps):
        counts = imagined.counts[0]
        xfer_id = int(rng.choice(np.flatnonzero(counts)))
        result.append((xfer_id, int(rng.integers(counts[xfer_id]))))
        imagined.advance(np.array([result[-1]]), np.ones(1, bool), 0.0, (0, 0))
    return result


def test_a_dream_does_not_depend_on_other_dreams_in_the_batch(toy):
    model, task = toy
    walk = valid_walk(task, model, 6)
    single = dreamt(model, task, 1, 0, walk, 0.0)
    assert len({str(counts) for *_, counts in single}) > 2
    assert dreamt(model, task, 9, 4, walk, 0.0) == single
    again = fitted(random_episodes(task, 80, 10), task)  # This model has imagined nothing else before.
    assert dreamt(again, task, 1, 0, walk, 0.0) == single


def test_a_seed_repeats_a_dream_and_its_noise_has_the_learnt_spread():
    task = with_cost(task_of(signs_and_products(), SIGNS_AND_PRODUCTS), Fused())
    model = fitted(random_episodes(task, at_night(80, 30), 10), task)
    for means in model.costs.neighbourhoods:
        means.spread = np.full_like(means.mean, 1e6)  # ps
    walk = valid_walk(task, model, 5)
    one = dreamt(model, task, 4, 2, walk, 1.0, (3, 1))
    assert dreamt(model, task, 4, 2, walk, 1.0, (3, 1)) == one
    other, calm = dreamt(model, task, 4, 2, walk, 1.0, (4, 1)), dreamt(model, task, 4, 2, walk, 0.0, (4, 1))
    half = dreamt(model, task, 4, 2, walk, 0.5, (4, 1))
    for k in range(len(walk)):
        assert one[k][0] != other[k][0] and one[k][1:] == other[k][1:]
        assert half[k][0] - calm[k][0] == pytest.approx((other[k][0] - calm[k][0]) / 2)
    n = at_night(4000, 1500)
    imagined = model.imagine(task.initial, n)
    predicted = imagined.advance(np.tile([[1, 0]], (n, 1)), np.ones(n, bool), 1.0, (0, 0))
    nodes = (predicted.rewards.std() / (1e6 * model.rewards.of(task.initial.cost.runtime_ps).per_ps)) ** 2
    # The predicted reward has the summed variance of this many nodes.
    assert nodes == pytest.approx(round(nodes), rel=0.1) and 1 <= round(nodes) <= 12


def test_a_restart_resets_only_the_chosen_dreams(toy):
    model, task = toy
    imagined = model.imagine(task.initial, 3)
    first = imagined.z.copy(), imagined.counts.copy()
    for _ in range(3):
        actions = np.array([(1, 0) if row[1] else (0, 0) for row in imagined.counts])
        imagined.advance(actions, np.array([True, True, False]), 0.0, (0, 0))
    z, counts = imagined.z.copy(), imagined.counts.copy()
    assert (counts[:2] != first[1][:2]).any(axis=1).all() and np.array_equal(counts[2], first[1][2])
    imagined.restart(np.array([True, False, False]))
    assert np.array_equal(imagined.z[0], first[0][0]) and np.array_equal(imagined.counts[0], first[1][0])
    assert np.array_equal(imagined.z[1:], z[1:]) and np.array_equal(imagined.counts[1:], counts[1:])
    fresh, action = model.imagine(task.initial, 3), np.array([[2, 0], [task.no_op, 0], [2, 0]])
    one, other = (dream.advance(action, np.array([True, False, True]), 0.0, (0, 0)) for dream in (imagined, fresh))
    assert np.array_equal(one.rewards[[0, 2]], other.rewards[[0, 2]])
    assert np.array_equal(imagined.counts[[0, 2]], fresh.counts[[0, 2]]) and np.allclose(
        imagined.z[[0, 2]], fresh.z[[0, 2]]
    )


def test_a_dream_does_not_touch_its_start(toy):
    model, task = toy
    a, b = model.imagine(task.initial, 2), model.imagine(task.initial, 2)
    before = b.counts.copy(), b.z.copy()
    a.advance(np.array([[1, 0], [1, 1]]), np.ones(2, bool), 0.0, (0, 0))
    assert np.array_equal(b.counts, before[0]) and np.array_equal(b.z, before[1])


# -- uncertainty -----------------------------------------------------------------------------------------

TWO_SIZES = "a = Neg(x)\nb = Neg(a)\nc = Neg(y)\nd = Neg(c)\ne = Abs(z)\nf = Abs(e)"
UNUSED = """
neg-neg: signs cancel
  Neg(Neg(x)) => x

abs-abs: the second changes nothing
  Abs(Abs(x)) => Abs(x)
"""


@pytest.fixture(scope="module")
def uncertain():
    """Return (model, task, locations). The model saw one of three rewrites, and the rule of the second at another size.

    locations: in the model's numbering, of Neg(Neg(x)), which the model saw, and of Neg(Neg(y)).
    """
    task = task_of(onnx_model(TWO_SIZES, {"x": (2, 8), "y": (4, 32), "z": (2, 8)}, "b d f"), UNUSED)
    table, types = task.initial.table, task.initial.graph.types
    real = [types[table.location(0, k).bindings["x"]].shape for k in range(2)]
    model = fitted([played(task, [(0, real.index((2, 8)))])] * 2, task)
    observer = model.observer()
    observer.begin(task.initial)
    shown = [real[observer.real_action((0, k))[1]] for k in range(2)]
    return model, task, (shown.index((2, 8)), shown.index((4, 32)))


def test_uncertainty_is_lowest_for_seen_and_highest_for_unknown_rewrites(uncertain):
    model, task, (seen, other) = uncertain
    for action, uncertainty in (((0, seen), 0.0), ((0, other), 0.25), ((1, 0), 1.0)):
        predicted = model.imagine(task.initial, 1).advance(np.array([action]), np.ones(1, bool), 0.0, (0, 0))
        assert predicted.uncertainty[0] == uncertainty


def test_an_unknown_rewrite_changes_nothing_and_ends_the_dream_at_the_limit(uncertain):
    model, task, _ = uncertain
    dream = DreamVectorEnv(
        model, task.initial, 1, max_steps=9, temperature=0.0, uncertainty_limit=0.7, uncertainty_penalty=2.0
    )
    counts = [dream.reset(seed=0)[0]["counts"][0, :-1].tolist()]
    for _ in range(2):
        seen, _, terminated, truncated, _ = dream.step(np.array([[0, 0]]))
        counts.append(seen["counts"][0, :-1].tolist())
        assert not terminated[0] and not truncated[0]
    _, rewards, terminated, truncated, infos = dream.step(np.array([[1, 0]]))
    counts.append(infos["final_obs"][0]["counts"][:-1].tolist())
    assert terminated[0] and not truncated[0] and counts == [[2, 1], [1, 1], [0, 1], [0, 1]]
    promised = model.imagine(task.initial, 1).advance(np.array([[1, 0]]), np.ones(1, bool), 0.0, (0, 0)).rewards[0]
    assert rewards[0] == min(promised, 0.0) - 2.0


def test_a_rewrite_at_another_size_is_predicted_by_analogy(uncertain):
    model, task, (_, other) = uncertain
    dream = DreamEnv(model, task.initial, max_steps=9, temperature=0.0, uncertainty_limit=None)
    real = LatentEnv(real_env(task, 9), model)
    for env in (dream, real):
        env.reset(seed=0)
    (seen, reward, *_), (shown, real_reward, *_) = (env.step(np.array([0, other])) for env in (dream, real))
    assert np.array_equal(seen["counts"], shown["counts"]) and np.allclose(seen["z"], shown["z"], atol=1e-4)
    assert reward == pytest.approx(real_reward, rel=1e-6) and reward != 0
