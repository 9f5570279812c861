from dataclasses import replace

import numpy as np
import pytest

from controllers.cma_es import CMAES, CMAESConfig, Scores, by_median_reward
from controllers.evolution import Evolution, Widened
from controllers.random import RandomConfig, RandomController
from rlflow.common import files
from rlflow.common.errors import RLFlowError
from rlflow.common.options import options_of
from tests.toys.latent import Identity, Sacrifice, Toy, latent_spaces, make, vector

POLICIES = options_of(CMAESConfig)["policy"].choices
CONFIG = CMAESConfig(generations=30, popsize=16, dreams=4, sigma0=1.5, evaluate_every=10, priorities_first=0)


def same_arrays(one, other):
    one, other = (files.read_arrays(folder / "controller.npz") for folder in (one, other))
    assert set(one) == set(other)
    for key in one:
        np.testing.assert_array_equal(one[key], other[key], key)


@pytest.mark.nightly
def test_cma_es_learns_the_identity_task(tmp_path):
    """The population improves, the result beats random play (return 1 of at most 8) by 2, and the kept result never
    gets worse."""
    logged, folder = [], tmp_path / "cma-es"
    results = make(CMAES, CONFIG, Identity).train(
        vector(Identity), 0, folder, log=lambda step, scalars: logged.append(scalars)
    )
    random = make(RandomController, RandomConfig(), Identity).train(vector(Identity), 0, tmp_path / "random")
    names = "population_return", "best_return"
    means, kept = ([scalars[name] for scalars in logged if name in scalars] for name in names)
    assert np.mean(means[-5:]) > np.mean(means[:5]) + 1
    assert results["best_return"] > random["best_return"] + 2
    assert kept == sorted(kept) and kept[-1] == results["best_return"]


def test_cma_es_learns_to_lose_first(tmp_path):
    controller = make(CMAES, replace(CONFIG, generations=10), Sacrifice)
    assert controller.train(vector(Sacrifice), 0, tmp_path)["best_return"] == 2.0


@pytest.mark.parametrize("policy", POLICIES)
def test_each_individual_acts_by_its_own_weights_and_the_outputs_are_the_equation(policy):
    """Compare P individuals in one call with the same individuals one by one.

    σ(u) · (count - 1), rounded, is the index of a match of the chosen class.
    """
    rng = np.random.default_rng(0)
    individuals, dreams, z, h, locations = 3, 4, 5, 2, 20
    match_classes = np.array([0, 0, 1, 2, 2])
    controller = CMAES(CMAESConfig(policy=policy, hidden=3), *latent_spaces(z, 3, locations, h, match_classes))
    inputs = rng.standard_normal((individuals * dreams, z + h)).astype(np.float32)
    counts = rng.integers(0, 7, (individuals * dreams, len(match_classes)))
    weights = rng.standard_normal((individuals, controller.scores.size)).astype(np.float32)
    of_rules = [counts[:, match_classes == xfer_id].sum(axis=1) for xfer_id in range(3)]
    xfer_ids = np.array([*of_rules, np.ones(len(counts), int)]).T
    observation = {"z": inputs[:, :z], "h": inputs[:, z:], "counts": xfer_ids, "class_counts": counts}
    for row, (xfer_id, location) in enumerate(controller.actions(controller.mode, weights, observation)):
        x, w = inputs[row], weights[row // dreams]
        if policy == "mlp":
            first, w = w[: 8 * 3].reshape(8, 3), w[8 * 3 :]
            x = np.tanh(x @ first[:-1] / np.sqrt(7) + first[-1])
        w = w.reshape(-1, 7)
        outputs = w[-1] if policy == "priorities" else x @ w[:-1] / np.sqrt(len(x)) + w[-1]
        chosen = np.where(np.append(counts[row], 1) > 0, outputs[:-1], -np.inf).argmax()
        if chosen == len(match_classes):
            assert (xfer_id, location) == (3, 0)
        else:
            classes = np.repeat(np.arange(5), counts[row])
            listed = [k for k in classes if match_classes[k] == match_classes[chosen]]  # of the rule's matches
            position = np.rint((counts[row, chosen] - 1) / (1 + np.exp(-outputs[-1])))
            assert xfer_id == match_classes[chosen] and listed[location] == chosen
            assert location == listed.index(chosen) + position


def test_the_untrained_controller_is_greedy_by_usual_reward():
    """The untrained controller picks the class with a match and the highest median reward, whatever z; NO-OP if none is
    positive."""
    usual_rewards = np.array([0.0, 2e-5, -3.0, 1.0, 1e-6])
    rng = np.random.default_rng(1)
    for policy in POLICIES:
        controller = CMAES(CMAESConfig(policy=policy), *latent_spaces(4, 5, 9, 3, np.arange(5), usual_rewards))
        counts = rng.integers(0, 2, (64, 5))
        observation = {
            "z": rng.standard_normal((64, 4)),
            "h": rng.standard_normal((64, 3)),
            "counts": np.pad(counts, [(0, 0), (0, 1)], constant_values=1),
            "class_counts": counts,
        }
        gains = np.append(usual_rewards, 0.0)
        expected = [max([5, *np.flatnonzero(row)], key=lambda k: (gains[k], k == 5)) for row in counts]
        assert controller.act(observation)[:, 0].tolist() == expected


def test_scores_by_usual_reward_are_ranks_between_minus_one_and_one():
    usual_rewards = np.array([5.0, 0.1, 0.0, -0.1, -70.0, 0.1, 0.0])
    scores = by_median_reward(usual_rewards)
    np.testing.assert_allclose(scores, [1.0, 0.5, -0.3, -0.65, -1.0, 0.5, 0.0])
    np.testing.assert_array_equal(scores, by_median_reward(usual_rewards * 1e-9))
    assert by_median_reward(np.zeros(1)).tolist() == [0.0]


class Later(Identity):
    """The identity task, in which the last rule never applies."""

    def begin(self):
        super().begin()
        while self.xfer_id == self.N - 1:
            super().begin()
        self._counts[-1] = 0


def test_a_class_not_met_in_play_has_no_weights_and_is_never_chosen(tmp_path):
    config = CMAESConfig(generations=2, popsize=6, dreams=1)
    controller = make(CMAES, config, Later)
    controller.train(vector(Later), 0, tmp_path)
    assert controller.reachable.tolist() == [True, True, True, False, True]
    outputs = np.zeros(5)  # Outputs: 3 rules, NO-OP and u.
    assert controller.weights.shape == (Scores("linear", Later.Z + Later.H, 1, outputs).size,)
    loaded = make(CMAES, config, Later)
    loaded.load(tmp_path)
    loaded.weights[:] = 0.0
    loaded.weights[-2] = -1.0  # The bias of NO-OP.
    observation = vector(Identity)(64).reset(seed=0)[0]
    assert (observation["counts"][:, 3] > 0).any()
    for greedy in (True, False):
        assert 3 not in loaded.act(observation, greedy)[:, 0]


def test_a_gaining_class_not_met_in_play_is_chosen_before_no_op():
    usual_rewards = np.array([1.0, 0.5, 2.0, 0.0])
    controller = CMAES(CMAESConfig(), *latent_spaces(2, 4, 3, usual_rewards=usual_rewards))
    controller.know(np.array([True, False, False, False, True]))

    def chosen(*counts):
        counts = np.array([counts])
        seen = {"z": np.zeros((1, 2)), "h": np.zeros((1, 3)), "class_counts": counts}
        return controller.act(seen | {"counts": np.append(counts, [[1]], axis=1)})[0].tolist()

    assert chosen(1, 2, 2, 2)[0] == 0  # A class with a score comes first, whatever its median reward.
    assert chosen(0, 2, 2, 2) == [2, 0] and chosen(0, 2, 0, 2) == [1, 0]
    assert chosen(0, 0, 0, 2) == [4, 0]


class Far(Toy):
    """An environment in which only forty good steps in a row lead to the last rule; each bad rule ends the episode."""

    Z, N, L, STEPS = 1, 9, 1, 60
    USUAL_REWARDS = np.array([1.0, *[-1.0] * 7, 1.0])

    def __init__(self):
        super().__init__()
        self.observation_space, _ = latent_spaces(self.Z, self.N, self.L, self.H, usual_rewards=self.USUAL_REWARDS)

    def begin(self):
        self.good = 0

    def counts(self):
        return np.array([1] * 8 + [int(self.good >= 40)])

    def latent(self):
        return np.zeros(1)

    def play(self, xfer_id, location):
        self.good += 1
        return 1.0, xfer_id in range(1, 8)


def test_classes_on_the_greedy_priors_path_count_as_reachable(tmp_path):
    config = CMAESConfig(generations=1, popsize=6, dreams=1)
    env = Far()
    controller = CMAES(config, env.observation_space, env.action_space)
    controller.train(vector(Far), 0, tmp_path)
    assert controller.reachable.all()


def flat(dimension, full_covariance=100):
    return Evolution(np.zeros(dimension), 0.1, 8, full_covariance, 3, 0)


def test_a_converged_search_restarts_with_twice_the_population():
    search, sizes = flat(4), []
    for _ in range(14):
        assert search.size == len(individuals := search.ask())
        sizes.append(len(individuals))
        search.tell(np.zeros(len(individuals)))
    assert sizes == sorted(sizes) and set(sizes) >= {8, 16, 32}
    assert search.strategy.popsize == sizes[-1]


def test_the_last_weights_are_searched_first_and_then_all_from_the_mean_reached():
    start = np.arange(5.0)
    search = Widened(start, 2, 16, sigma0=0.1, popsize=8, full_covariance=100, patience=3, seed=0)
    for _ in range(2):
        individuals = search.ask()
        assert (individuals[:, :3] == start[:3]).all() and individuals[:, 3:].std(axis=0).min() > 0.01
        search.tell(individuals[:, 4])
    mean = search.mean
    assert mean[4] > start[4] + 0.05 and (mean[:3] == start[:3]).all()
    individuals = search.ask()
    assert individuals.std(axis=0).min() > 0.01 and abs(individuals.mean(axis=0) - mean).max() < 0.2
    at_once = Widened(start, 2, 0, sigma0=0.1, popsize=8, full_covariance=100, patience=3, seed=0)
    assert at_once.ask().std(axis=0).min() > 0.01


def test_the_first_generations_search_through_all_priorities_and_nothing_else():
    """In the first generations only the biases of all choices and of u vary."""
    controller = make(CMAES, CMAESConfig(policy="linear", popsize=8), Identity)
    spread = controller.replayed(0).ask().std(axis=0)
    biases = Identity.N + 2  # Rules, NO-OP and u.
    assert (spread[:-biases] == 0).all() and (spread[-biases:] > 0).all()


def test_priorities_first_changes_nothing_for_a_policy_of_priorities_alone(tmp_path):
    """The option `priorities_first` changes nothing if the policy consists of priorities alone."""
    for first in (0, 2):
        config = CMAESConfig(policy="priorities", generations=4, popsize=6, dreams=1, priorities_first=first)
        make(CMAES, config, Identity).train(vector(Identity), 0, tmp_path / str(first))
    same_arrays(tmp_path / "0", tmp_path / "2")


def test_covariances_are_learnt_up_to_the_limit():
    def correlated(search):
        for _ in range(60):
            x = search.ask()
            search.tell(-((30 * x.sum(axis=1)) ** 2) - (x**2).sum(axis=1))
        covariance = np.cov(np.concatenate([search.ask() for _ in range(50)]).T)
        return covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])

    assert correlated(flat(2, 2)) < -0.8
    assert abs(correlated(flat(2, 1))) < 0.3


@pytest.mark.nightly
def test_restarts_stay_within_the_budget_and_a_killed_training_resumes_across_restarts(tmp_path):
    """Train on a task on which all individuals are soon equal, so that the search restarts."""
    config = CMAESConfig(generations=64, popsize=4, dreams=1, sigma0=0.5, evaluate_every=4, patience=1)
    starts, progressed = [], []
    results = make(CMAES, config, Sacrifice).train(
        vector(Sacrifice),
        0,
        tmp_path / "whole",
        lambda _, scalars: starts.append(scalars["starts"]),
        lambda *x: progressed.append(x),
    )
    assert starts[-1] > 2
    assert results["iterations"] <= 64 and progressed[-1] == (64, 64)

    def kill(done, total):
        if done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(CMAES, config, Sacrifice).train(vector(Sacrifice), 0, tmp_path / "killed", progress=kill)
    assert make(CMAES, config, Sacrifice).train(vector(Sacrifice), 0, tmp_path / "killed") == results
    same_arrays(tmp_path / "whole", tmp_path / "killed")


def test_a_budget_can_be_raised(tmp_path):
    options = {"popsize": 6, "dreams": 2, "evaluate_every": 2, "priorities_first": 1}
    short, long = (CMAESConfig(generations=g, **options) for g in (2, 4))
    make(CMAES, short, Identity).train(vector(Identity), 0, tmp_path / "raised")
    for folder in ("raised", "whole"):
        make(CMAES, long, Identity).train(vector(Identity), 0, tmp_path / folder)
    same_arrays(tmp_path / "raised", tmp_path / "whole")


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
    with pytest.raises(RLFlowError, match="'popsize' must be 4 or more, not 1"):
        CMAESConfig(popsize=1)
    with pytest.raises(RLFlowError, match="'policy' is one of priorities, linear, mlp, not 'quadratic'"):
        CMAESConfig(policy="quadratic")
