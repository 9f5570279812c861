"""Test `collect` with measured rewards: killed and resumed, it leaves the files of an undisturbed run."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from rlflow.cli.main import main
from rlflow.collect.episodes import read_episodes
from rlflow.costs.database import TimingDatabase
from tests.commands import EDITS, ROOT, in_process

WAIT = 120.0  # longest wait in seconds


def options(folder: Path, *more: str) -> tuple[str, ...]:
    return (
        "--model", "tiny_resnet18", *EDITS, "collect.episodes=8", "env.reward=measured", "env.measure_every=2",
        "env.measure_seconds=0.02", f"cost.database={folder / 'costs.sqlite'}", "cost.threads=1", *more,
    )  # fmt: skip


def shards(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.glob("episodes/shard-*.npz"))}


@pytest.fixture(scope="module")
def collected(tmp_path_factory) -> Path:
    """Return a folder with a database and a run whose episodes are collected."""
    folder = tmp_path_factory.mktemp("collected")
    assert main(["collect", "--run", str(folder / "run"), *options(folder), "collect.episodes=4"]) == 0
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> tuple[Path, dict[str, bytes]]:
    """Kill a run after its first shard; return its folder with the database, and the shards on disk."""
    folder = tmp_path_factory.mktemp("measured")
    command = [sys.executable, str(ROOT / "run.py"), "collect", "--run", str(folder / "run"), *options(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + WAIT
    while not shards(folder / "run") and time.monotonic() < deadline:
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL  # the command was still running
    psutil.wait_procs(workers, WAIT)
    assert not any(worker.is_running() for worker in workers)  # the measuring processes ended with the command
    before = shards(folder / "run")
    assert before
    return folder, before


@pytest.mark.nightly
def test_a_killed_collection_keeps_its_shards_and_resumes_to_the_same_result(killed, capsys):
    folder, before = killed
    results = []
    for name, workers in (("run", 2), ("undisturbed", 1)):
        done = in_process(capsys, "collect", "--run", folder / name, *options(folder, f"workers={workers}"))
        assert done.code == 0, done.err
        assert "s of measurement" in done.ending["result"]
        results.append(json.loads((folder / name / "collect.json").read_text()))
    assert before.items() <= shards(folder / "run").items()
    assert shards(folder / "run") == shards(folder / "undisturbed")
    assert results[0]["measurement_seconds"] == results[1]["measurement_seconds"] > 0


def test_the_measured_seconds_of_episodes_equal_the_latencies_in_the_database(collected):
    episodes = read_episodes(collected / "run" / "episodes", 4)
    with TimingDatabase(collected / "costs.sqlite").connected() as connection:
        stored = dict(connection.execute("SELECT graph, seconds FROM graph_latencies").fetchall())
    measured = {graph: seconds for episode in episodes for graph, seconds in episode.measurements.items()}
    assert measured == stored
    assert any(np.any(episode.rewards) for episode in episodes)


def test_a_world_model_of_estimates_refuses_measured_rewards(collected, capsys):
    error = in_process(capsys, "train-wm", "--run", collected / "run").error
    assert "env.reward=measured" in error and "world_model.name=mdn-rnn" in error
