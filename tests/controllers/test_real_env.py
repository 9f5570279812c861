from dataclasses import replace

import numpy as np
import pytest

from controllers.base import StopReason
from controllers.cma_es import CMAES, CMAESConfig
from controllers.random import RandomConfig, RandomController
from controllers.real_env import train_for_real
from rlflow.common import files
from rlflow.common.errors import RLFlowError
from rlflow.env.rewards import relative
from rlflow.env.rewriting import GraphRewriteEnv
from tests.controllers.test_recording import Backwards
from tests.toys.latent import Identity, make
from tests.toys.tiny import tiny_task
from worldmodel.latent_env import LatentEnv

CONFIG = CMAESConfig(generations=8, popsize=4, dreams=2, evaluate_every=2, sigma0=1.0)


class Counting(Identity):
    """Counts what is really played, in all copies."""

    steps = 0

    def step(self, action):
        type(self).steps += 1
        return super().step(action)


def trained(folder, limit, config=CONFIG, progress=None):
    """(what the training reports, the controller, the steps that were really played)."""
    Counting.steps, controller = 0, make(CMAES, config, Counting)
    return train_for_real(controller, Counting, limit, 0, folder, progress=progress), controller, Counting.steps


def test_every_step_of_every_copy_is_an_interaction(tmp_path):
    results, controller, steps = trained(tmp_path, 100_000)
    assert results["env_steps"] == controller.env_steps == steps > 0
    assert results["iterations"] == 8


def test_the_limit_is_never_exceeded_and_what_was_learnt_before_counts(tmp_path):
    whole, _, _ = trained(tmp_path / "whole", 100_000)
    limit = whole["env_steps"] - 1
    results, controller, steps = trained(tmp_path / "limited", limit)
    assert steps <= limit
    assert results["env_steps"] == steps
    assert (results["stop_reason"], results["detail"]) == (StopReason.BUDGET, f"{limit} interactions")
    assert 0 < results["iterations"] < 8
    shorter, before, _ = trained(tmp_path / "shorter", 100_000, replace(CONFIG, generations=results["iterations"]))
    np.testing.assert_array_equal(before.history, controller.history)
    assert trained(tmp_path / "limited", limit)[0] == results  # nothing is left of the budget


def test_a_killed_training_ends_with_the_same_results_and_never_counts_twice(tmp_path):
    results, _, _ = trained(tmp_path / "whole", 1000)
    assert results["detail"] == "1000 interactions"

    def kill(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "killed", 1000, progress=kill)
    assert trained(tmp_path / "killed", 1000)[0] == results
    one, other = (files.read_arrays(tmp_path / folder / "controller.npz") for folder in ("whole", "killed"))
    for key in one:
        np.testing.assert_array_equal(one[key], other[key], key)


def test_a_limit_below_the_first_checkpoint_is_refused(tmp_path):
    reason = "20 interactions do not last until the first checkpoint of cma-es; raise controller.interactions"
    with pytest.raises(RLFlowError, match=reason):
        trained(tmp_path, 20)


def test_it_is_the_real_graph_that_is_played(tmp_path):
    """Random play through a world model that knows nothing: what is dreamt cannot be what is rewarded."""
    task, played = tiny_task(), []

    class Spied(GraphRewriteEnv):
        def step(self, action):
            result = super().step(action)
            played.append(result[-1]["valid"])
            return result

    env = LatentEnv(Spied(task, relative, 6), Backwards(task))
    controller = RandomController(RandomConfig(dreams=2), env.observation_space, env.action_space)
    results = train_for_real(controller, lambda: LatentEnv(Spied(task, relative, 6), Backwards(task)), 100, 0, tmp_path)
    assert all(played) and len(played) == results["env_steps"]
