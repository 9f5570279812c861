"""Test each option of the model "mdn-rnn"."""

import dataclasses
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_arrays
from tests.suite import at_night
from tests.toys import letters as toy
from worldmodel.boards import StageWriter
from worldmodel.mdn_rnn import training
from worldmodel.mdn_rnn.batching import Steps
from worldmodel.mdn_rnn.dynamics import Outcome
from worldmodel.mdn_rnn.model import MDNRNNWorldModel, disagreement
from worldmodel.mdn_rnn.training import train  # leaves out the fidelity on held-out episodes, which has own tests
from worldmodel.train_and_load import load, prepare_tensorflow
from worldmodel.world_model_options import MDNRNNConfig

pytestmark = pytest.mark.usefixtures("eager")

TINY = MDNRNNConfig(  # An untrained encoder saves the time to trace its training.
    latent=4, encoder_hidden=8, message_passing_steps=1, hidden=8, gaussians=2, encoder="untrained",
    encoder_steps=2, steps=at_night(4, 2), batch_graphs=8, batch_episodes=4, max_sequence=4, holdout=0.0,
)


@cache
def made(**options) -> MDNRNNWorldModel:
    """Return an untrained model with the weights of seed 0, fitted to the statistics of some episodes with random
    latents.

    All tests that ask for the same options share one model; no test trains it.
    """
    prepare_tensorflow(0)
    model = MDNRNNWorldModel(toy.SPEC, dataclasses.replace(TINY, **options))
    steps = model.pack(toy.episodes(8))
    z = np.random.default_rng(0).normal(size=steps.z.shape).astype(np.float32)
    for member in model.members:
        member.fit(steps._replace(z=z))
    return model


class Learnt(NamedTuple):
    """A finished training, with the folder of its weights."""

    model: MDNRNNWorldModel
    results: dict
    trainer: training.Updates
    folder: Path


def learnt(folder, episodes=None, **options) -> Learnt:
    made = []

    class Watched(training.Updates):
        def __init__(self, model):
            super().__init__(model)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "Updates", Watched)
        patch.setattr(training, "LOG_EVERY", 1)
        # The writer refuses curves that are not declared.
        with StageWriter(folder / "tensorboard", "train-wm") as writer:
            results = train(
                dataclasses.replace(TINY, **options), toy.SPEC, episodes or toy.episodes(12), folder, seed=0,
                log=writer.scalars,
            ).results  # fmt: skip
    return Learnt(load(folder), results, made[0], folder)


# The trainings below are shared by several tests.


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> Learnt:
    """Return a training with a trained encoder and three ensemble members (two by day)."""
    return learnt(tmp_path_factory.mktemp("three"), members=at_night(3, 2), encoder="trained")


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Learnt:
    """Return a training with an untrained encoder, without mask heads."""
    return learnt(tmp_path_factory.mktemp("bare"), mask_heads=False, holdout=0.2)


def first_steps(model: MDNRNNWorldModel, temperature: float, n: int = 64):
    """Return z after a swap in each of n dreams."""
    dreams = model.imagine(toy.ToyState(toy.START), n)
    dreams.advance(np.tile([2, 0], (n, 1)), np.ones(n, bool), temperature, (0, 0))
    return dreams.z


# -- what is predicted, and by what ----------------------------------------------------------------


def test_sigma_temperature_widens_the_samples_of_a_hot_dream():
    scaled, bare = made(), made(sigma_temperature=False)
    for temperature in (0.0, 1.0):
        np.testing.assert_allclose(first_steps(scaled, temperature), first_steps(bare, temperature), atol=1e-5)
    hot, warm = first_steps(scaled, 9.0), first_steps(bare, 9.0)
    assert hot.std(0).mean() > 1.2 * warm.std(0).mean()


@pytest.mark.parametrize("separate", [False, True])
def test_a_separate_reward_network_gives_the_lstm_no_reward_gradient(separate):
    model = made(reward_network=True) if separate else made()
    steps = Steps(*map(tf.constant, model.pack(toy.episodes(4))))
    with tf.GradientTape() as tape:
        _, parts = model.dynamics.loss(steps, model.dynamics.initial_state(4))
    gradients = tape.gradient(parts["reward"], model.dynamics.cell.trainable_variables)
    assert all(gradient is None for gradient in gradients) == separate
    assert not separate or len(model.dynamics.reward_head.trainable_variables) == 6


def test_without_mask_heads_a_dream_goes_on_with_the_masks_of_its_start(bare):
    model, results, *_ = bare
    assert results["holdout"].keys() & {"dynamics/counts", "dynamics/xfer_mask"} == set()
    dreams = model.imagine(toy.ToyState(toy.START), 1)
    start, counts = dreams.z, dreams.counts
    for _ in range(3):
        dreams.advance(np.array([[2, 0]]), np.array([True]), 1.0, (0, 0))
        np.testing.assert_array_equal(dreams.counts, counts)
    assert (dreams.z != start).any()


# -- the encoder -----------------------------------------------------------------------------------


def encoder_weights(model: MDNRNNWorldModel) -> list[np.ndarray]:
    return [variable.numpy() for variable in model.encoder.trainable_variables]


def same(one: list, other: list) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_an_encoder_without_training_keeps_its_initial_weights(three, bare):
    fresh = encoder_weights(made())
    model, results, *_ = bare
    assert same(fresh, encoder_weights(model)) and results["encoder_steps"] == 0
    assert not same(fresh, encoder_weights(three.model))
    z = model.encode([graph for episode in toy.episodes(12) for graph in episode.graphs])
    assert 0.5 < z.std() < 1.5, "its z is standardised all the same"


# -- early stopping --------------------------------------------------------------------------------

IMPATIENT = {
    "patience": 2, "evaluate_every": 2, "steps": 60, "holdout": 0.3, "learning_rate": 2.0, "final_learning_rate": 2.0,
}  # fmt: skip


def watched(folder, **options) -> tuple[dict, dict]:
    """Return ({step: held-out loss}, results) of a training that gets worse."""
    evaluations = {}

    def log(step, values):
        evaluations.update({step: values["held_out_loss"]} if "held_out_loss" in values else {})

    config = dataclasses.replace(TINY, **(IMPATIENT | options))
    return evaluations, train(config, toy.SPEC, toy.episodes(20), folder, seed=0, log=log).results


def test_a_training_without_improvement_stops_and_keeps_the_best_weights(tmp_path):
    evaluations, results = watched(tmp_path)
    losses = list(evaluations.values())
    best = int(np.argmin(losses))
    assert results["steps"] < 60 and len(losses) == best + 1 + 2
    assert list(evaluations) == list(range(2, results["steps"] + 1, 2))
    assert results["holdout"]["dynamics/loss"] == pytest.approx(losses[best], rel=1e-5)
    assert results["holdout"]["dynamics/loss"] < losses[-1]


@pytest.mark.nightly
def test_a_patient_training_makes_all_its_steps(tmp_path):
    evaluations, results = watched(tmp_path, patience=1000, steps=12)
    assert results["steps"] == 12 and len(evaluations) == 6
    assert results["holdout"]["dynamics/loss"] == pytest.approx(min(evaluations.values()), rel=1e-5)


# -- the ensemble ----------------------------------------------------------------------------------


def test_disagreement_is_the_spread_of_rewards_and_the_share_of_masks():
    counts = np.array([[1, 0, 2], [1, 1, 1]], np.int32)
    differing = counts * [[1, 1, 0], [1, 1, 1]] + [[0, 0, 0], [3, 0, 0]]
    one, other = (
        Outcome(None, None, tf.constant(shown), tf.constant(reward), None)
        for shown, reward in ((counts, [1.0, 5.0]), (differing, [5.0, 5.0]))
    )
    np.testing.assert_allclose(disagreement([one, other]), [2 + 1 / 3, 0], rtol=1e-6)
    np.testing.assert_array_equal(disagreement([one]), [0, 0])


def test_ensemble_members_learn_separately_and_give_the_dream_an_uncertainty(three):
    model, results, *_ = three
    weights = [member.z_head.w.numpy() for member in model.members]
    assert all(not np.array_equal(a, b) for a, b in pairwise(weights))
    assert {"dynamics/loss", "dynamics-2/loss", f"dynamics-{len(weights)}/gradient_norm"} <= results["losses"].keys()
    dreams, rows = model.imagine(toy.ToyState(toy.START), 2), np.array([True, True])
    assert dreams.h.shape == (2, TINY.hidden)
    assert (dreams.advance(np.array([[2, 0], [0, 0]]), rows, 0.0, (0, 0)).uncertainty > 0).all()


def test_the_first_ensemble_member_dreams_as_a_single_model_does(tmp_path):
    single, together = made(), made(members=2)
    np.testing.assert_array_equal(single.dynamics.z_head.w, together.dynamics.z_head.w)
    one, other = (model.imagine(toy.ToyState(toy.START), 1) for model in (single, together))
    for action in ([2, 0], [2, 0], [0, 0]):
        predicted, expected = (d.advance(np.array([action]), np.array([True]), 1.0, (1, 2)) for d in (other, one))
        np.testing.assert_allclose(predicted.rewards, expected.rewards, atol=1e-5)
        for name in ("z", "h", "counts"):
            np.testing.assert_allclose(getattr(other, name), getattr(one, name), atol=1e-5)
    assert expected.uncertainty == 0


# -- together --------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_killed_and_resumed_run_equals_an_undisturbed_one(tmp_path):
    class Killed(Exception):
        pass

    class Progress:
        def __init__(self, kill_at):
            self.n, self.kill_at = 0, kill_at

        def update(self, n):
            self.n += n
            if self.n >= self.kill_at:
                raise Killed

        def set_description(self, text):
            pass

        def set_postfix(self, values, refresh=True):
            pass

    episodes, options = toy.episodes(12), IMPATIENT | {"members": 2, "mask_heads": False, "reward_network": True}
    undisturbed = learnt(tmp_path / "whole", episodes, **options)
    config = dataclasses.replace(TINY, **options, checkpoint_seconds=1e-9)
    with pytest.raises(Killed):
        train(config, toy.SPEC, episodes, tmp_path / "killed", seed=0, progress=Progress(3))
    train(config, toy.SPEC, episodes, tmp_path / "killed", seed=0, progress=Progress(10**9))
    whole, killed = (read_arrays(folder / "weights.npz") for folder in (undisturbed.folder, tmp_path / "killed"))
    assert whole.keys() == killed.keys()
    for name in whole:
        np.testing.assert_array_equal(whole[name], killed[name], err_msg=name)


@pytest.mark.nightly
def test_every_update_is_traced_once(three):
    updates = [three.trainer.update_encoder, *three.trainer.update_members]
    assert [update.experimental_get_tracing_count() for update in updates] == [1] * 4


@pytest.mark.parametrize("options, message", [
    ({"encoder": "trainde"}, "'encoder' is one of trained, untrained, not 'trainde'"),
    ({"patience": 1, "holdout": 0.0}, "patience needs"), ({"patience": 1, "mode": "online"}, "patience needs"),
])  # fmt: skip
def test_conflicting_options_are_refused(options, message):
    with pytest.raises(RLFlowError, match=message):
        MDNRNNConfig(**options)
