"""One small world model, trained on the toy once for all tests that look at a trained one."""

import pytest

from tests.worldmodel import toy
from worldmodel.config import WorldModelConfig
from worldmodel.training import train
from worldmodel.world_model import WorldModel

LEARNER = WorldModelConfig(
    latent=8, encoder_hidden=16, message_passing_steps=2, hidden=64, gaussians=3, encoder_steps=300, steps=600,
    learning_rate=5e-3,
)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """(world model, results of its training)."""
    folder = tmp_path_factory.mktemp("trained")
    results = train(LEARNER, toy.SPEC, toy.episodes(300), folder, seed=0)
    return WorldModel.load(folder, toy.SPEC), results


@pytest.fixture
def start(trained):
    """The start of the toy in the trained model's eyes: (model, z [Z], counts [N])."""
    model, _ = trained
    return model, model.encode([toy.graph(toy.START)])[0], toy.counts(toy.START)
