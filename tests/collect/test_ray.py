"""Test collection on a Ray cluster of two nodes, both on this machine."""

import shutil
import tempfile
import time
from contextlib import contextmanager
from itertools import islice

import numpy as np
import pytest

from controllers.stages import learn as stages
from rlflow.collect import executors, rollouts
from rlflow.collect.episodes import read_episodes
from rlflow.collect.executors import Job, Workers
from rlflow.collect.rollouts import SHARD_EPISODES, collect, online_batches
from rlflow.common.errors import RLFlowError
from rlflow.env.graph_rewrite import EnvSpec
from tests import workers
from tests.collect.test_rollouts import equal, shards
from tests.commands import in_process
from tests.toys.tiny import tiny_spec

pytestmark = pytest.mark.nightly
ray = pytest.importorskip("ray", reason="Ray is not installed (pip install '.[distributed]')")
EPISODES = 4 * SHARD_EPISODES
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster():
    """Yield a cluster of two nodes, to which RAY_ADDRESS leads; its own files keep it apart from any other cluster."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="r")  # pytest's folders have names that are too long for a socket.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # The argument `temp_dir` does not move Ray's address file, whose default folder need not exist.
        patch.setenv("RAY_TMPDIR", folder)
        made = Cluster(initialize_head=True, head_node_args=NODE)
        made.add_node(**NODE)
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        made.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def connected(cluster):
    """Yield the cluster while this process stays connected, which is quicker. Tests that connect themselves run
    first."""
    ray.init(log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """Return (spec, shards, results) of a collection in this process alone."""
    folder = tmp_path_factory.mktemp("alone")
    spec = tiny_spec(folder, max_steps=8)
    results = collect(spec, folder / "episodes", EPISODES, 1, seed=3)
    return spec, shards(folder / "episodes"), results


def test_jobs_run_on_both_nodes(cluster):
    with Workers("ray", 2) as pool:
        result = set(pool.results([Job("a job", workers.slow_node, (0.3,))] * 4, ahead=4))
        assert result == {each["NodeID"] for each in ray.nodes()} and len(result) == 2
    assert not ray.is_initialized()


def test_the_collect_command_on_ray_writes_the_same_shards_as_locally(cluster, tmp_path, capsys, monkeypatch):
    class Writer:
        def scalars(self, step, values):
            assert np.isfinite(list(values.values())).all()

    @contextmanager
    def events(*_, **__):  # The real function would import TensorFlow.
        yield Writer()

    jobs, run_job = [], executors.RayExecutor.run
    monkeypatch.setattr(stages, "events", events)
    monkeypatch.setattr(executors.RayExecutor, "run", lambda *arguments: jobs.append(arguments) or run_job(*arguments))
    options = ["cost.name=analytic", "env.max_steps=8", f"collect.episodes={EPISODES}", "--seed", "3"]
    command = ["collect", "--model", "tiny_resnet18", *options, "--run"]
    assert in_process(capsys, *command, tmp_path / "ray", "--executor", "ray").code == 0 and len(jobs) == 4
    assert in_process(capsys, *command, tmp_path / "local", "workers=1").code == 0 and len(jobs) == 4
    assert shards(tmp_path / "ray" / "episodes") == shards(tmp_path / "local" / "episodes")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")  # Nothing listens at this address.
    failed = in_process(capsys, *command, tmp_path / "nowhere", "--executor", "ray")
    assert failed.error.startswith("cannot reach the Ray cluster 127.0.0.1:9: ")


def test_closing_the_pool_does_not_wait_for_unneeded_jobs(connected):
    started = time.monotonic()
    with Workers("ray", 2) as pool:
        jobs = [Job("a job", workers.slow_node, (seconds,)) for seconds in (0, 300, 300, 300)]
        next(pool.results(jobs, ahead=4))
    assert time.monotonic() - started < 300


def test_a_ray_cluster_gives_the_same_bytes_as_one_process(connected, single, tmp_path, monkeypatch):
    spec, expected, results = single
    monkeypatch.chdir(tmp_path)  # No node looks in this folder.
    assert collect(spec, "episodes", EPISODES, 2, seed=3, executor="ray") == results
    assert shards(tmp_path / "episodes") == expected
    batches = islice(online_batches(spec, 3, 2, seed=3, executor="ray"), 2)
    offline = read_episodes("episodes", 6)
    assert all(map(equal, offline, [episode for batch in batches for episode in batch]))


def test_a_shard_whose_worker_dies_is_played_again(connected, single, tmp_path, monkeypatch, capfd):
    spec, expected, results = single
    monkeypatch.setattr(rollouts, "_play_shard", workers.dies_first)
    assert collect(spec, tmp_path, EPISODES, 2, seed=3, executor="ray") == results and shards(tmp_path) == expected
    printed = capfd.readouterr().err
    assert [printed.count(f"the worker of shard {number} died") for number in range(4)] == [1] * 4


def test_a_shard_that_always_kills_its_worker_is_named(connected, single, tmp_path, monkeypatch):
    folder = tmp_path / "episodes"
    monkeypatch.setattr(rollouts, "_play_shard", workers.dies_of_shard_1)
    with pytest.raises(RLFlowError, match="^shard 1 killed its worker 3 times"):
        collect(single[0], folder, 2 * SHARD_EPISODES, 2, seed=3, executor="ray")
    assert (tmp_path / "tries").read_text() == "xxx"
    assert shards(folder).items() <= single[1].items() and len(shards(folder)) == 1


def test_a_workers_traceback_is_shown(connected, single, tmp_path, monkeypatch):
    monkeypatch.setattr(rollouts, "_play_shard", workers.fails)
    with pytest.raises(
        RLFlowError, match=r"^a worker failed:\nTraceback(.|\n)*in fails\n(.|\n)*ZeroDivisionError: in shard-00000"
    ):
        collect(single[0], tmp_path, EPISODES, 2, seed=3, executor="ray")
    monkeypatch.undo()
    gone = EnvSpec(str(tmp_path / "missing.onnx"))
    with pytest.raises(RLFlowError, match="^no such file: .*missing.onnx$"):
        collect(gone, tmp_path, EPISODES, 2, seed=3, executor="ray")


def test_a_lost_ray_node_loses_no_episodes(connected, single, tmp_path, monkeypatch):
    # This test comes last, because Ray still counts on the lost node for a while.
    spec, expected, results = single
    doomed = connected.add_node(**NODE)
    (tmp_path / "doomed").write_text(doomed.node_id)
    monkeypatch.setattr(rollouts, "_play_shard", workers.takes_its_node_down)
    assert collect(spec, tmp_path / "episodes", EPISODES, 3, seed=3, executor="ray") == results
    assert shards(tmp_path / "episodes") == expected
    assert (tmp_path / "doomed.tried").exists()
    connected.remove_node(doomed, allow_graceful=False)
