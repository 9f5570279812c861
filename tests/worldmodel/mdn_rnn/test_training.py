import dataclasses
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest
import tensorflow as tf

from rlflow.common.errors import RLFlowError
from tests.suite import at_night, eager, slow
from tests.toys import letters as toy
from worldmodel.mdn_rnn import training
from worldmodel.mdn_rnn.batching import batch_graphs, compiled, graph_signature
from worldmodel.mdn_rnn.training import learning_rate
from worldmodel.train_and_load import split_episodes, train
from worldmodel.world_model_options import MDNRNNConfig

TINY = MDNRNNConfig(
    latent=4, encoder_hidden=8, message_passing_steps=1, hidden=8, gaussians=2, encoder_steps=at_night(6, 2),
    steps=at_night(8, 2), batch_graphs=8, batch_episodes=4, max_sequence=4, holdout=0.0, checkpoint_seconds=1e-9,
)


class Killed(Exception):
    pass


class Progress:
    """A progress bar like tqdm that kills the training after `kill_at` steps."""

    def __init__(self, kill_at: int | None = None):
        self.n, self.kill_at = 0, kill_at

    def update(self, n: int) -> None:
        self.n += n
        if self.kill_at is not None and self.n >= self.kill_at:
            raise Killed

    def set_description(self, text: str) -> None:
        pass

    def set_postfix(self, values: dict, refresh: bool = True) -> None:
        pass


def weights(folder) -> bytes:
    return (folder / "weights.npz").read_bytes()


def stream(batch: int, first: int):
    """Yield the online mini-batches, starting with number `first`."""
    while True:
        yield [toy.episode(batch * first + i) for i in range(batch)]
        first += 1


def source(config: MDNRNNConfig):
    return toy.episodes(12) if config.mode == "offline" else stream


class Watched(training.Updates):
    """A trainer that is remembered, so that a test can read how often its functions were traced."""

    made: ClassVar[list["Watched"]] = []

    def __init__(self, model):
        super().__init__(model)
        self.made.append(self)


class Run(NamedTuple):
    """An uninterrupted run that several tests share."""

    config: MDNRNNConfig
    folder: Path
    progress: Progress
    trainer: Watched


@pytest.fixture(scope="module", params=["offline", *slow("online")])
def run(request, tmp_path_factory) -> Run:
    config = dataclasses.replace(TINY, mode=request.param)
    folder, progress = tmp_path_factory.mktemp("run"), Progress()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "Updates", Watched)
        with eager():
            train(config, toy.SPEC, source(config), folder, seed=3, progress=progress)
    return Run(config, folder, progress, Watched.made.pop())


def test_the_progress_counts_every_step(run):
    assert run.progress.n == run.config.total_steps


@eager()
def test_the_same_seed_gives_the_same_bytes_in_a_run_that_is_killed_and_resumed(run, tmp_path):
    config, steps = run.config, run.config.total_steps
    # At night, also kill the first phase, which trains the encoder.
    for kill_at in at_night((2, steps - 1), (steps - 1,)):
        with pytest.raises(Killed):
            train(config, toy.SPEC, source(config), tmp_path / "killed", seed=3, progress=Progress(kill_at))
    progress = Progress()
    results = train(config, toy.SPEC, source(config), tmp_path / "killed", seed=3, progress=progress)
    assert results["resumed_from"] == steps - 1
    assert progress.n == steps
    assert weights(tmp_path / "killed") == weights(run.folder)


@eager()
def test_another_seed_gives_other_weights(run, tmp_path):
    train(run.config, toy.SPEC, source(run.config), tmp_path, seed=4)
    assert weights(tmp_path) != weights(run.folder)


@pytest.mark.parametrize("run", ["offline"], indirect=True)
def test_another_run_is_not_resumed(run):
    others = [
        (TINY, toy.episodes(13), 3, "set of episodes"), (TINY, toy.episodes(12), 4, "seed"),
        (dataclasses.replace(TINY, steps=TINY.steps + 1), toy.episodes(12), 3, "configuration"),
    ]
    for other, episodes, seed, named in others[: at_night(3, 1)]:
        with pytest.raises(RLFlowError, match=f"by a training with another {named}"):
            train(other, toy.SPEC, episodes, run.folder, seed=seed)


def test_a_function_of_graphs_is_traced_once_for_all_sizes():
    sums = compiled(lambda batch: tf.reduce_sum(batch.nodes), graph_signature(toy.SPEC))
    for episode in toy.episodes(3):
        sums(batch_graphs(episode.graphs))
    assert sums.experimental_get_tracing_count() == 1


@pytest.mark.nightly
def test_sizes_that_vary_are_traced_once(run):
    assert run.trainer.update_encoder.experimental_get_tracing_count() == 1
    assert run.trainer.update_members[0].experimental_get_tracing_count() == 1


def test_episodes_of_another_version_of_the_observation_are_refused_in_one_line(tmp_path):
    episodes = toy.episodes(6)
    episodes[4] = dataclasses.replace(episodes[4], version=2)
    with pytest.raises(RLFlowError, match="^the episodes hold observations of version 2, not 1; collect them in a new"):
        train(TINY, toy.SPEC, episodes, tmp_path, seed=0)


@eager()
def test_a_loss_that_is_not_finite_stops_the_training(tmp_path):
    episodes = toy.episodes(12)
    for episode in episodes:
        episode.rewards[0] = float("nan")
    with pytest.raises(RLFlowError, match=r"training step 0: dynamics/loss is nan"):
        train(dataclasses.replace(TINY, encoder="untrained"), toy.SPEC, episodes, tmp_path, seed=0)


@eager()
def test_the_log_holds_every_loss_with_its_parts(tmp_path, monkeypatch):
    """The log holds every loss and its parts, the learning rate and the gradient norm of the encoder and the
    dynamics."""
    logged, every = {}, at_night(10, 2)
    monkeypatch.setattr(training, "LOG_EVERY", every)
    config = dataclasses.replace(TINY, holdout=0.2, encoder_steps=every, steps=every)
    results = training.train(config, toy.SPEC, toy.episodes(12), tmp_path, seed=0, log=logged.__setitem__).results
    assert list(logged) == [every, 2 * every]
    parts = {
        "encoder": ("encoder/loss", "costs", "counts", "operators"),
        "dynamics": ("loss", "z", "reward", "termination", "counts", "xfer_mask"),
    }
    for values, (phase, (loss, *names)) in zip(logged.values(), parts.items(), strict=True):
        assert values.keys() == {loss, *(f"{phase}/{name}" for name in (*names, "learning_rate", "gradient_norm"))}
        assert values[loss] == pytest.approx(sum(values[f"{phase}/{name}"] for name in names), rel=1e-4)
    assert results["interactions"] == sum(map(len, toy.episodes(12)))
    assert results["holdout"].keys() >= {"encoder/loss", "dynamics/loss"}


def test_the_learning_rate_decays_with_the_second_power():
    config = dataclasses.replace(TINY, learning_rate=1.0, final_learning_rate=0.2)
    assert learning_rate(config, 0, 10) == 1.0
    assert learning_rate(config, 5, 10) == pytest.approx(0.2 + 0.8 / 4)
    assert learning_rate(config, 10, 10) == pytest.approx(0.2)


def test_held_out_episodes_are_not_trained_on():
    episodes = toy.episodes(20)
    training, held_out = split_episodes(episodes, 0.25, seed=1)
    assert len(held_out) == 5
    assert sorted(e.index for e in training + held_out) == list(range(20))
    assert split_episodes(episodes, 0.0, seed=1) == (episodes, [])
