"""One small world model, trained on the toy once for all tests that need a trained one."""

import pytest

from tests.toys import letters as toy
from worldmodel.config import MDNRNNConfig
from worldmodel.training import load, train

LEARNER = MDNRNNConfig(
    latent=8, encoder_hidden=16, message_passing_steps=2, hidden=64, gaussians=3, encoder_steps=300, steps=600,
    learning_rate=5e-3, batch_graphs=32, max_sequence=64,
)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """(world model, results of its training)."""
    folder = tmp_path_factory.mktemp("trained")
    results = train(LEARNER, toy.SPEC, toy.episodes(300), folder, seed=0)
    return load(folder, toy.SPEC), results


@pytest.fixture
def start(trained):
    """(the trained model, the start of the toy)."""
    return trained[0], toy.ToyState(toy.START)
