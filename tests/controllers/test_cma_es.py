import numpy as np
import pytest

from controllers.cma_es import CMAES, CMAESConfig, linear_policy
from controllers.random import RandomConfig, RandomController
from rlflow import files
from rlflow.errors import RLFlowError
from tests.controllers.toy import Identity, Sacrifice, make, vector

CONFIG = CMAESConfig(generations=50, popsize=16, dreams=4, sigma0=0.5, evaluate_every=10)


def test_it_learns_the_identity_task(tmp_path):
    """Of at most 8, random actions get 1; the mean individual improves on the way."""
    means = []
    results = make(CMAES, CONFIG, Identity).train(
        vector(Identity), 0, tmp_path / "cma-es", log=lambda step, scalars: means.append(scalars["mean"])
    )
    random = make(RandomController, RandomConfig(), Identity).train(vector(Identity), 0, tmp_path / "random")
    assert np.mean(means[-5:]) > np.mean(means[:5]) + 3
    assert results["best_return"] > random["best_return"] + 5


def test_it_learns_to_lose_first_and_stops_when_all_individuals_are_equal(tmp_path):
    results = make(CMAES, CONFIG, Sacrifice).train(vector(Sacrifice), 0, tmp_path)
    assert results["best_return"] == 2.0
    assert (results["stop_reason"], results["detail"]) == ("converged", "tolflatfitness")
    assert make(CMAES, CONFIG, Sacrifice).train(vector(Sacrifice), 0, tmp_path) == results


def test_each_individual_acts_by_its_own_weights_and_the_outputs_are_the_equation():
    """P individuals in one call give the same scores as W [z, h] + b of each; σ(u) · (count - 1) rounds to a place."""
    rng = np.random.default_rng(0)
    individuals, dreams, z, h, n, locations = 3, 4, 5, 2, 3, 7
    weights = rng.standard_normal((individuals, z + h + 1, n + 2)).astype(np.float32)
    inputs = rng.standard_normal((individuals * dreams, z + h)).astype(np.float32)
    counts = rng.integers(1, locations + 1, (individuals * dreams, n + 1))
    counts[:, -1] = 1
    policy = linear_policy(weights, inputs[:, :z], inputs[:, z:], counts.astype(np.int32), locations)
    actions = policy.mode().numpy()
    for row, (xfer, location) in enumerate(actions):
        w = weights[row // dreams]
        outputs = w[:-1].T @ inputs[row] + w[-1]
        assert xfer == outputs[:-1].argmax()
        assert location == np.rint((counts[row, xfer] - 1) / (1 + np.exp(-outputs[-1])))


def test_a_budget_can_be_raised(tmp_path):
    short, long = (CMAESConfig(generations=g, popsize=6, dreams=2, evaluate_every=2) for g in (2, 4))
    make(CMAES, short, Identity).train(vector(Identity), 0, tmp_path / "raised")
    for folder in ("raised", "whole"):
        make(CMAES, long, Identity).train(vector(Identity), 0, tmp_path / folder)
    raised, whole = (files.read_arrays(tmp_path / folder / "controller.npz") for folder in ("raised", "whole"))
    for key in whole:
        np.testing.assert_array_equal(raised[key], whole[key])


def test_a_search_that_cannot_be_replayed_is_not_continued(tmp_path):
    config = CMAESConfig(generations=2, popsize=6, dreams=1)
    make(CMAES, config, Identity).train(vector(Identity), 0, tmp_path)
    arrays = files.read_arrays(tmp_path / "controller.npz")
    files.write_arrays(tmp_path / "controller.npz", {**arrays, "mean": arrays["mean"] + 1})
    with pytest.raises(RLFlowError, match="another version of cma or numpy"):
        make(CMAES, config, Identity).train(vector(Identity), 0, tmp_path)


def test_acting_is_traced_once_for_all_batch_and_population_sizes():
    controller = make(CMAES, CONFIG, Identity)
    for n in (1, 8, 64):
        controller.act(vector(Identity)(n).reset(seed=0)[0])
    assert controller.mode.experimental_get_tracing_count() == 1


def test_impossible_options_are_refused():
    with pytest.raises(RLFlowError, match="popsize ≥ 4"):
        CMAESConfig(popsize=1)
