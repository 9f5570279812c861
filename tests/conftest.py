"""Fixtures for several test files: shared runs and models, each made once for all processes of pytest-xdist."""

import gc
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import settings

import worldmodel  # noqa: F401 - first: it sets how TensorFlow rounds, which must not depend on the order of tests
from rlflow.common.system import locked
from rlflow.reports import charts
from tests.commands import TINY, in_its_own, redirected
from tests.suite import at_night, eager, few_dreams, keep_kernels
from tests.toys import letters
from worldmodel.boards import StageWriter
from worldmodel.train_and_load import load, train
from worldmodel.world_model_options import MDNRNNConfig

# Several tests run at the same time, so ONNX Runtime has one thread by default, also in processes that tests start.
os.environ["ORT_INTRA_OP_NUM_THREADS"] = "1"
os.environ["LANGUAGE"] = "C"  # argparse otherwise looks for translations in the file system, hundreds of times a parser

gc.disable()  # until all tests are collected, since it would visit all imported modules again and again

# Number of examples of each property; no deadline, because the result of a test must not depend on its speed. By day
# the examples are always the same, so that a change fails only by what it changes; each night draws others.
settings.register_profile("rlflow", max_examples=at_night(300, 12), deadline=None, derandomize=at_night(False, True))
settings.load_profile("rlflow")


def pytest_collection_finish():
    """Collect garbage less often, never visit the objects of imported modules and tests, and `keep_kernels`."""
    if "tensorflow" in sys.modules:
        keep_kernels()
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 20)


BLANK = {"png": b"\x89PNG\r\n\x1a\n", "svg": b'<svg viewBox="0 0 100 100"/>'}  # format → an image without content


@pytest.fixture(scope="module", autouse=True)
def blank_charts(request):
    """Leave charts blank in `make test`, except in the tests of reports.

    Drawing the three charts of a page takes as long as all searches for a tiny model.
    """
    with pytest.MonkeyPatch.context() as patch:
        if at_night(False, "reports" not in request.path.parts):
            patch.setattr(charts, "rendered", lambda figure, format, **_: BLANK[format])
        yield


@pytest.fixture(scope="module", autouse=True)
def short_dreams(request):
    """Let trainings dream little (`few_dreams`), except in the tests of the classes that appear in these dreams."""
    with nullcontext() if request.path.name == "test_dreamt_classes.py" else few_dreams():
        yield


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory) -> Path:
    """Return a folder that all processes of this test session share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def once(folder: Path, name: str, make) -> Path:
    """Return the folder `folder / name`; the first call in any process creates it and calls `make` with its path."""
    path = folder / name
    with locked(folder / f"{name}.lock"):
        if not (path / "done").exists():
            path.mkdir(exist_ok=True)
            make(path)
            (path / "done").write_text("")
    return path


@pytest.fixture(name="eager", scope="module")
def run_eagerly():
    """Run TensorFlow's functions eagerly in `make test` (tests/suite.py)."""
    with eager():
        yield


def optimise(path: Path) -> None:
    done = at_night(in_its_own, redirected)(
        "optimise", "tiny_resnet18", "--out", path / "faster.onnx", "--run", path / "run",
        "--json", path / "results.json", "--seed", "7", *TINY, *at_night((), ("eval.samples=1",)),
    )  # fmt: skip
    (path / "stdout.txt").write_text(done.out)
    (path / "stderr.txt").write_text(done.err)
    assert done.code == 0, done.err
    json.loads((path / "results.json").read_text())


@pytest.fixture(scope="session")
def optimised(shared_folder) -> Path:
    """Return a folder with faster.onnx, run/, results.json, stdout.txt and stderr.txt of one `optimise` with PPO.

    By day the command runs in this process, which has imported TensorFlow already.

    Tests that change the files must copy the folder first.
    """
    return once(shared_folder, "optimised", optimise)


LEARNER = MDNRNNConfig(
    latent=8, encoder_hidden=16, message_passing_steps=2, hidden=64, gaussians=3, encoder_steps=at_night(300, 3),
    steps=at_night(600, 3), learning_rate=5e-3, batch_graphs=32, max_sequence=64,
)


def learn_letters(path: Path) -> None:
    from worldmodel.mdn_rnn import training

    episodes = letters.episodes(at_night(300, 24))
    with (
        eager(),
        pytest.MonkeyPatch.context() as patch,
        StageWriter(path / "tensorboard", "train-wm") as writer,
    ):
        patch.setattr(training, "LOG_EVERY", min(training.LOG_EVERY, LEARNER.steps))
        results = train(LEARNER, letters.SPEC, episodes, path / "model", seed=0, log=writer.scalars)
    (path / "results.json").write_text(json.dumps(results))


@pytest.fixture(scope="session")
def trained(shared_folder):
    """Return (an MDN-RNN trained on the toy task `letters`, results of its training); by day it learns little."""
    path = once(shared_folder, "trained", learn_letters)
    return load(path / "model", letters.SPEC), json.loads((path / "results.json").read_text())


@pytest.fixture
def start(trained):
    """Return (the model of `trained`, the initial state of the toy task `letters`)."""
    return trained[0], letters.ToyState(letters.START)
