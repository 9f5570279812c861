from dataclasses import replace

import numpy as np
import pytest

from controllers.base import Learner, StopReason
from controllers.cma_es import CMAES, CMAESConfig
from controllers.controller_options import ControllerOptions
from controllers.planner import Planner, PlannerConfig
from controllers.ppo import PPO, PPOConfig
from controllers.random import RandomConfig, RandomController
from controllers.real_env import ChargedEnv, Measurements, train_for_real
from rlflow.common import files
from rlflow.common.errors import RLFlowError
from rlflow.common.task import Observes
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.rewards import relative
from rlflow.optimisation.candidates import follow
from tests.controllers.test_recording import Backwards
from tests.suite import at_night, slow
from tests.toys.latencies import SECONDS, PlantedProbe, planted_reward
from tests.toys.latent import Identity, make
from tests.toys.tiny import tiny_task
from worldmodel.latent_env import LatentEnv

CONFIG = CMAESConfig(generations=at_night(8, 4), popsize=4, dreams=2, evaluate_every=2, sigma0=1.0)
UPDATES = PPOConfig(updates=4, envs=4, steps=8, minibatches=2, hidden=16, evaluate_every=2, evaluation_dreams=2)


class Counting(Identity):
    """The identity task, which counts the steps of all its copies."""

    steps = 0

    def step(self, action):
        type(self).steps += 1
        return super().step(action)


def trained(folder, limit, config=CONFIG, progress=None, kind=CMAES):
    """Return (the results of the training, the controller, the number of steps that were really played)."""
    Counting.steps, controller = 0, make(kind, config, Counting)
    return train_for_real(controller, Counting, limit, 0, folder, progress=progress), controller, Counting.steps


def test_every_step_of_every_copy_is_an_interaction(tmp_path):
    results, controller, steps = trained(tmp_path, 100_000)
    assert results["env_steps"] == controller.env_steps == steps > 0
    assert results["iterations"] == CONFIG.generations


def test_ppo_evaluates_one_greedy_episode_because_all_are_equal_on_a_real_graph(tmp_path):
    made = []

    def counted():
        made.append(Counting())
        return made[-1]

    results = train_for_real(make(PPO, UPDATES, Counting), counted, 100_000, 0, tmp_path)
    assert results["iterations"] == UPDATES.updates
    assert len(made) == UPDATES.envs + 1


def test_interactions_stay_within_the_limit_and_earlier_generations_count(tmp_path):
    whole, _, _ = trained(tmp_path / "whole", 100_000)
    limit = whole["env_steps"] - 1
    results, controller, steps = trained(tmp_path / "limited", limit)
    assert steps <= limit
    assert results["env_steps"] == steps
    assert (results["stop_reason"], results["detail"]) == (StopReason.BUDGET, f"{limit} interactions")
    assert 0 < results["iterations"] < CONFIG.generations
    shorter, before, _ = trained(tmp_path / "shorter", 100_000, replace(CONFIG, generations=results["iterations"]))
    np.testing.assert_array_equal(before.history, controller.history)
    assert trained(tmp_path / "limited", limit)[0] == results  # No budget is left.


@pytest.mark.nightly
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


@pytest.mark.parametrize("kind, config, needed", [(CMAES, CONFIG, 8 * 60), (PPO, UPDATES, 2 * 4 * 8)])
def test_a_limit_known_to_be_too_low_is_refused_before_any_step(kind, config, needed, tmp_path):
    with pytest.raises(RLFlowError, match=f"raise controller.interactions .it takes {needed} interactions"):
        trained(tmp_path, needed - 1, config, kind=kind)
    assert Counting.steps == 0 and not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_a_ppo_checkpoint_before_the_first_update_is_kept_but_is_no_result(tmp_path):
    """The evaluations come on top of the interactions of the updates."""
    for _ in range(2):  # The second run finds the first checkpoint.
        with pytest.raises(RLFlowError, match="64 interactions do not last until the first checkpoint of ppo"):
            trained(tmp_path, 64, UPDATES, kind=PPO)
        assert (tmp_path / "controller.json").exists()
    results, _, steps = trained(tmp_path, 100, UPDATES, kind=PPO)
    assert results["iterations"] == 2 and steps <= 100
    assert results == trained(tmp_path / "at once", 100, UPDATES, kind=PPO)[0]


def test_sampled_plans_are_kept_at_the_limit_and_a_kill_changes_nothing(tmp_path):
    """A batch of 64 samples takes 64 interactions a step, at most 512 in all."""
    config = PlannerConfig(steps=10_000)
    results, planner, steps = trained(tmp_path / "whole", 1800, config, kind=Planner)
    assert (results["stop_reason"], results["detail"]) == (StopReason.BUDGET, "1800 interactions")
    assert results["env_steps"] == steps <= 1800 and 1800 - 512 < planner.env_steps <= steps
    assert results["best_return"] == planner.plan.dreamt_return > 2
    assert results["iterations"] == len(planner.plan.actions)

    def kill(done, total):
        if done >= 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "killed", 1800, config, kill, Planner)
    again, _, rest = trained(tmp_path / "killed", 1800, config, kind=Planner)
    assert again == results and rest < steps
    one, other = ((tmp_path / folder / "controller.npz").read_bytes() for folder in ("whole", "killed"))
    assert one == other


def test_a_lower_limit_keeps_the_earlier_return_of_random_play(tmp_path):
    config = RandomConfig(dreams=4)
    results, *_ = trained(tmp_path, 1000, config, kind=RandomController)
    lower, *_ = trained(tmp_path, 5, config, kind=RandomController)
    assert lower["best_return"] == results["best_return"] and lower["iterations"] == 0


def test_training_for_real_plays_the_real_graph(tmp_path):
    """Train random play through a world model that knows nothing, so that the rewards can only come from the real
    graph."""
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


# -- measurement seconds ---------------------------------------------------------------------------


class WandererConfig(RandomConfig):
    observes = Observes.CANDIDATES


class Wanderer(Learner):
    """A learner that plays `dreams` random episodes, with a checkpoint after every second one; its state is their
    number."""

    name, Config = "wanderer", WandererConfig

    def __init__(self):
        super().__init__(WandererConfig(dreams=8), {})
        self.iterations, self.env_steps, self.best_return = 0, 0, 0.0

    def train(self, make_env, seed, folder, log=None, progress=None):
        env = make_env()
        while self.iterations < self.config.dreams:
            (_, _), rng, ended = env.reset(), np.random.default_rng([seed, self.iterations]), False
            while not ended:
                actions = env.unwrapped.state.valid_actions()
                *_, terminated, truncated, _ = env.step(actions[rng.integers(len(actions))])
                ended, self.env_steps = terminated or truncated, self.env_steps + 1
            self.iterations += 1
            if self.iterations % 2 == 0:
                self.save(folder)
            if progress is not None:
                progress(self.iterations, self.config.dreams)
        return {"iterations": self.iterations}

    def arrays(self):
        return {"counters": np.array([self.iterations, self.env_steps])}

    def restore(self, arrays):
        self.iterations, self.env_steps = map(int, arrays["counters"])


def measured(folder, seconds, progress=None, database=None):
    """Return (results, measured graphs) of a training that is charged a quarter of a second for each measurement."""
    reward, probe = planted_reward(database or folder, every=2)
    measurements = Measurements(folder / "measurements.json", seconds)
    env = ChargedEnv(GraphRewriteEnv(tiny_task(), reward, 5), measurements)
    results = train_for_real(Wanderer(), lambda: env, 1000, 0, folder, progress=progress)
    return results | {"seconds": measurements.seconds, "best": measurements.best}, probe.asked


def test_an_agent_stops_at_its_measurement_seconds_even_if_all_are_in_the_database(tmp_path):
    results, asked = measured(tmp_path / "first", None)
    assert results["seconds"] == SECONDS * len(asked) > 0 and results["iterations"] == 8
    fastest = follow(tiny_task(), results["best"]["actions"])
    assert fastest.hash in asked and PlantedProbe.ratio(fastest.graph) == results["best"]["latency"]
    assert results["best"]["latency"] == min(map(PlantedProbe.ratio_of, asked))
    limit = results["seconds"] - 5 * SECONDS
    stopped, _ = measured(tmp_path / "second", limit)
    assert stopped["detail"] == f"{limit:g} seconds of measurement" and 0 < stopped["iterations"] < 8
    assert stopped["seconds"] == limit + SECONDS  # The measurement that exceeds the limit is the last one.
    again, asked = measured(tmp_path / "third", limit, database=tmp_path / "first")
    assert again == stopped and not asked  # All measurements come from the database.
    with pytest.raises(RLFlowError, match="do not last until the first checkpoint.*controller.measurement_seconds"):
        measured(tmp_path / "fourth", 0.1)


@pytest.mark.parametrize("last", [5, *slow(6)])
def test_a_kill_does_not_change_when_the_measurement_seconds_are_used_up(last, tmp_path):
    whole, _ = measured(tmp_path / "first", None)
    limit = whole["seconds"] - 5 * SECONDS
    expected, _ = measured(tmp_path / "second", limit)
    assert expected["iterations"] == 6

    def kill(done, total):
        if done == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path / "killed", limit, kill)
    assert measured(tmp_path / "killed", limit)[0] == expected
    assert measured(tmp_path / "killed", limit)[0] == expected  # No budget is left.


@pytest.mark.parametrize("kind, config", [(PPO, PPOConfig()), (CMAES, CMAESConfig())])
def test_the_default_number_of_interactions_reaches_a_first_checkpoint(kind, config):
    learner = make(kind, config, Identity)
    assert 2 * learner.first_checkpoint() < ControllerOptions.interactions
