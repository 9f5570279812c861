import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest

from rlflow.collect import CollectOptions, executors, rollouts
from rlflow.collect.episodes import read_episodes, read_shard
from rlflow.collect.executors import EXECUTORS
from rlflow.collect.rollouts import SHARD_EPISODES, best_random, collect, online_batches, play_random, shard_path
from rlflow.common.errors import RLFlowError
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.env.rewards import make_reward
from tests import workers as broken
from tests.suite import at_night, slow
from tests.toys.tiny import tiny_spec, tiny_task

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, str(ROOT / "run.py")]


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("shard-*.npz"))}


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """Return (spec, folder, results) of 6 episodes by one worker with seed 3; tests do not write to the folder."""
    folder = tmp_path_factory.mktemp("collected")
    spec = tiny_spec(folder, max_steps=10)
    return spec, folder / "episodes", collect(spec, folder / "episodes", 6, 1, seed=3)


def copied(collected, folder: Path) -> Path:
    return Path(shutil.copytree(collected[1], folder / "episodes"))


# -- what an episode is ----------------------------------------------------------------------------


def test_an_episode_records_states_actions_and_rewards():
    task, reward = tiny_task(), make_reward("incremental", 0, 0)
    for seed in range(5):
        episode = play_random(task, reward, 6, np.random.default_rng(seed), index=seed)
        state, steps = task.initial, len(episode)
        assert 1 <= steps <= 6 and episode.index == seed
        assert len(episode.graphs) == len(episode.costs) == len(episode.counts) == steps + 1
        for t, (xfer_id, location) in enumerate(episode.actions):
            assert np.array_equal(episode.counts[t], state.counts)
            assert np.array_equal(episode.graphs[t].ops, state.arrays().ops)
            assert episode.costs[t] == state.runtime_ms
            if xfer_id == task.no_op:
                assert t == steps - 1 and episode.terminated[t] and episode.rewards[t] == 0
                assert episode.costs[-1] == episode.costs[-2]
            else:
                before, state = state, state.apply(int(xfer_id), int(location))
                assert episode.rewards[t] == np.float32(before.runtime_ms - state.runtime_ms)
        ends = episode.terminated | episode.truncated
        assert ends[-1] and not ends[:-1].any() and not (episode.terminated & episode.truncated).any()
        assert episode.truncated[-1] == (steps == 6 and episode.actions[-1, 0] != task.no_op)


@pytest.mark.parametrize("by_rule", [0.5, *slow(0, 1)])
def test_random_play_is_uniform_over_valid_actions_or_over_rules(by_rule):
    """Test the first action of many episodes by Pearson's χ² at its 99.9 % quantile. Either all actions are equally
    probable, or NO-OP keeps this probability and the rest is shared equally by rules, then by their locations."""
    task = tiny_task("tiny_squeezenet1_1")
    valid = [tuple(action) for action in task.initial.valid_actions().tolist()]
    locations = Counter(xfer_id for xfer_id, _ in valid)
    n, rng = at_night(1000, 500), np.random.default_rng(0)
    seen = Counter(tuple(play_random(task, lambda *_: 0.0, 1, rng, 0, by_rule).actions[0].tolist()) for _ in range(n))
    assert set(seen) == set(valid) and (task.no_op, 0) in seen and max(locations.values()) > 5
    expected, freedom = dict.fromkeys(valid, n / len(valid)), len(valid) - 1
    for xfer_id, location in set(valid) - {(task.no_op, 0)}:
        of_rule = n * (1 - 1 / len(valid)) / (len(locations) - 1) / locations[xfer_id]
        expected[xfer_id, location] += by_rule * (of_rule - n / len(valid))
    chi_square = sum((seen[action] - expected[action]) ** 2 / expected[action] for action in valid)
    # The approximation of Wilson and Hilferty.
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert chi_square < quantile


# -- collecting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, *slow(2)])  # Another test below also runs two workers, and one of them dies.
def test_the_same_seed_gives_the_same_bytes_whatever_the_number_of_workers(collected, tmp_path, workers):
    spec, folder, results = collected
    again = collect(spec, tmp_path, 6, workers, seed=3)
    assert again == results and shards(tmp_path) == shards(folder) and len(shards(folder)) == 2
    collect(spec, tmp_path / "other", 6, 1, seed=4)
    assert shards(tmp_path / "other") != shards(folder)


def test_results_count_the_stored_episodes(collected):
    _, folder, results = collected
    episodes = read_episodes(folder, 6)
    assert [episode.index for episode in episodes] == list(range(6))
    steps = sum(map(len, episodes))
    assert results == {
        "episodes": 6, "interactions": steps, "new_interactions": steps, "measurement_seconds": 0.0
    }  # fmt: skip


def test_stored_episodes_are_not_played_again(collected, tmp_path, monkeypatch):
    spec, folder = collected[0], copied(collected, tmp_path)

    def refuse(*_):
        raise AssertionError("played again")

    monkeypatch.setattr(rollouts, "play_random", refuse)
    seen = []
    progress = type("Progress", (), {"update": lambda self, n: seen.append(n)})()
    results = collect(spec, folder, 6, 1, seed=3, progress=progress)
    assert results == {**collected[2], "new_interactions": 0} and seen == [6]
    fewer = collect(spec, folder, 5, 1, seed=3)  # A smaller budget later on loses nothing.
    assert fewer["interactions"] == sum(map(len, read_episodes(folder, 5))) and shards(folder) == shards(collected[1])


@pytest.mark.parametrize("kept", [(), (0,), (1,), (0, 1)])
def test_each_stored_episode_is_logged_once_at_its_index_after_any_kill(collected, tmp_path, kept):
    def points(folder) -> list[tuple[int, dict]]:
        logged = []
        collect(collected[0], folder, 6, 1, seed=3, log=lambda step, scalars: logged.append((step, scalars)))
        return logged

    folder = copied(collected, tmp_path)
    for number in {0, 1} - set(kept):
        shard_path(folder, number).unlink()
    result, whole = points(folder), points(tmp_path / "whole")
    assert result == whole and [step for step, _ in result] == [1, 2, 3, 4, 5, 6]
    assert result[-1][1]["interactions"] == collected[2]["interactions"]


def test_more_episodes_are_added_to_the_stored_ones(collected, tmp_path):
    spec, folder = collected[0], copied(collected, tmp_path)
    collect(spec, folder, 9, 1, seed=3)
    collect(spec, tmp_path / "at once", 9, 1, seed=3)
    assert shards(folder) == shards(tmp_path / "at once")


@pytest.mark.parametrize("damage", ["half", "empty", "garbage", "bit", "other file", "missing"])
def test_a_damaged_shard_is_not_read_but_played_again(collected, tmp_path, damage):
    spec, folder = collected[0], copied(collected, tmp_path)
    path = shard_path(folder, 1)
    whole = path.read_bytes()
    other = shard_path(folder, 0).read_bytes()
    middle = len(whole) // 2
    path.write_bytes({
        "half": whole[:middle], "empty": b"", "garbage": b"x" * 1000, "other file": other, "missing": b"",
        "bit": whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
    }[damage])  # fmt: skip
    if damage == "missing":
        path.unlink()
    with pytest.raises(RLFlowError, match="run `collect` again"):
        read_episodes(folder, 6)
    results = collect(spec, folder, 6, 1, seed=3)
    assert shards(folder) == shards(collected[1])
    assert results["interactions"] == collected[2]["interactions"]
    assert 0 < results["new_interactions"] < results["interactions"]


def test_a_shard_with_an_array_cut_short_is_refused(collected, tmp_path):
    with np.load(shard_path(collected[1], 0)) as archive:
        arrays = dict(archive)
    names = ("actions", "counts", "nodes", "edges", "node_rows", "edge_rows", "senders", "globals", "costs", "rewards")
    for name in (*names, "version"):
        np.savez(tmp_path / "s.npz", **{**arrays, name: arrays[name][:-1]})
        with pytest.raises(RLFlowError, match="s.npz is not an episode shard"):
            read_shard(tmp_path / "s.npz")
        np.savez(tmp_path / "s.npz", **{key: value for key, value in arrays.items() if key != name})
        with pytest.raises(RLFlowError, match="s.npz is not an episode shard"):
            read_shard(tmp_path / "s.npz")


@pytest.mark.parametrize(
    "name, damage",
    [
        ("actions", lambda a: np.array(0)),
        ("steps", lambda a: a.astype(float)),
        ("n_node", lambda a: a.astype(str)),
        ("n_node", lambda a: np.concatenate([a[:1] + a[1] + 1, [-1], a[2:]])),
        ("senders", lambda a: a - 1),
        ("receivers", lambda a: a + 10_000),
        ("measurements", lambda a: np.array(0)),
        ("n_edge", lambda a: a.astype(np.int64) + 2**62),  # their sum overflows
        ("measurements", lambda a: np.zeros(len(a), "S8")),
    ],
)
def test_a_shard_with_an_array_of_wrong_content_is_refused(collected, tmp_path, name, damage):
    with np.load(shard_path(collected[1], 0)) as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "s.npz", **{**arrays, name: damage(arrays[name])})
    with pytest.raises(RLFlowError, match="s.npz is not an episode shard"):
        read_shard(tmp_path / "s.npz")


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.nightly
def test_a_killed_collection_goes_on_and_ends_with_the_same_shards(tmp_path):
    """Kill `collect` by SIGKILL and run it again: the shards equal the shards of an uninterrupted run in one
    process."""
    count, folder = 6 * SHARD_EPISODES, tmp_path / "run"
    command = [
        *RUN, "collect", "--run", str(folder), "--model", "tiny_resnet50", "--seed", "5", "cost.name=analytic",
        "env.max_steps=8", "workers=2", f"collect.episodes={count}",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        while not list((folder / "episodes").glob("shard-*.npz")):
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.005)
        workers = psutil.Process(process.pid).children()
    finally:
        process.send_signal(signal.SIGKILL)
    process.wait()
    survivors = shards(folder / "episodes")
    assert 0 < len(survivors) < 6 and not (folder / "collect.json").exists()
    assert len(workers) >= 2
    psutil.wait_procs(workers, timeout=60)  # The workers end when they notice that their parent is gone.
    assert not any(map(alive, workers))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ended = shards(folder / "episodes")
    assert len(ended) == 6 and survivors.items() <= ended.items()
    spec = EnvSpec(str(folder / "model.onnx"), cost="analytic", max_steps=8)
    collect(spec, tmp_path / "uninterrupted", count, 1, seed=5, by_rule=CollectOptions.by_rule)
    assert shards(tmp_path / "uninterrupted") == ended


@pytest.mark.parametrize("workers", [1, *slow(2)])
def test_a_workers_traceback_is_shown_and_finished_shards_stay(tmp_path, workers):
    spec = tiny_spec(tmp_path, max_steps=3)
    with pytest.raises(RLFlowError, match=r"a worker failed:\nTraceback(.|\n)*default_rng") as caught:
        collect(spec, tmp_path / "episodes", 2, workers, seed=-1)  # NumPy refuses the seed inside the worker.
    assert "play_random" in str(caught.value)
    with pytest.raises(RLFlowError, match="a worker failed:\nTraceback"):
        next(online_batches(spec, 2, workers, seed=-1))


@pytest.mark.nightly
def test_a_shard_whose_worker_dies_is_played_again_and_counted_once(collected, tmp_path, monkeypatch, capfd):
    spec, folder, results = collected
    monkeypatch.setattr(rollouts, "_play_shard", broken.dies_first)
    finished, logged = [], []
    progress = type("Progress", (), {"update": lambda self, n: finished.append(n)})()
    log = lambda done, scalars: logged.append((done, scalars["interactions"]))  # noqa: E731
    assert collect(spec, tmp_path, 6, 2, seed=3, progress=progress, log=log) == results
    assert shards(tmp_path) == shards(folder)
    assert finished == [0, 4, 2] and [done for done, _ in logged] == [1, 2, 3, 4, 5, 6]
    assert logged[-1][1] == results["interactions"]
    printed = capfd.readouterr().err
    assert [printed.count(f"the worker of shard {number} died") for number in range(2)] == [1, 1]


def test_a_shard_that_always_kills_its_worker_is_named_and_the_others_stay(collected, tmp_path, monkeypatch):
    spec, folder = collected[0], tmp_path / "episodes"
    with monkeypatch.context() as patch:
        patch.setattr(rollouts, "_play_shard", broken.dies_of_shard_1)
        patch.setattr(executors, "TRIES", 2)
        with pytest.raises(RLFlowError, match="^shard 1 killed its worker 2 times .*run the command again"):
            collect(spec, folder, 6, 2, seed=3)
    assert (tmp_path / "tries").read_text() == "xx"
    survivors = shards(folder)
    assert list(survivors) == ["shard-00000.npz"]
    again = collect(spec, folder, 6, 1, seed=3)
    assert shards(folder) == shards(collected[1])
    assert again == {**collected[2], "new_interactions": sum(map(len, read_shard(shard_path(folder, 1))))}


def test_a_shard_that_does_not_arrive_is_an_error(collected, tmp_path, monkeypatch):
    monkeypatch.setattr(rollouts, "_play_shard", broken.writes_elsewhere)
    monkeypatch.setattr(rollouts, "ARRIVAL_SECONDS", 0.0)
    with pytest.raises(RLFlowError, match="shard-00000.npz, but it did not arrive here; all nodes must share"):
        collect(collected[0], tmp_path, 6, 1, seed=3)


def test_a_shard_may_arrive_late_or_over_an_older_one(collected, tmp_path, monkeypatch):
    paths = [shard_path(tmp_path, number) for number in range(2)]
    paths[0].write_bytes(b"what a network file system still shows")
    arriving = iter(paths)

    def sleep(_):
        path = next(arriving)
        os.replace(f"{path}.elsewhere", path)

    monkeypatch.setattr(rollouts, "_play_shard", broken.writes_elsewhere)
    monkeypatch.setattr(rollouts.time, "sleep", sleep)
    readable = lambda done, _: read_episodes(tmp_path, done)  # noqa: E731 - the counted episodes are readable
    assert collect(collected[0], tmp_path, 6, 1, seed=3, log=readable) == collected[2]
    assert shards(tmp_path) == shards(collected[1])


def test_an_absolute_spec_resolves_paths_and_keeps_zoo_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert EnvSpec("m.onnx", database="c.sqlite").absolute() == EnvSpec(
        str(tmp_path / "m.onnx"), database=str(tmp_path / "c.sqlite")
    )
    assert EnvSpec("resnet18").absolute() == EnvSpec("resnet18")  # A name stays a name, wherever the file is.


def test_an_unknown_or_uninstalled_executor_is_refused(collected, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # Act as if Ray were not installed.
    with pytest.raises(RLFlowError, match=r"^the executor 'ray' needs Ray: pip install '\.\[distributed\]'$"):
        collect(collected[0], tmp_path, 6, 2, seed=3, executor="ray")
    with pytest.raises(RLFlowError, match="unknown executor 'rya'; did you mean 'ray'?"):
        collect(collected[0], tmp_path, 6, 1, seed=3, executor="rya")
    assert list(EXECUTORS) == ["local", "ray"] and not list(tmp_path.iterdir())


# -- online ----------------------------------------------------------------------------------------


def equal(left, right) -> bool:
    fields = ("actions", "rewards", "terminated", "truncated", "costs", "counts")
    return (
        left.index == right.index
        and all(np.array_equal(getattr(left, name), getattr(right, name)) for name in fields)
        and len(left.graphs) == len(right.graphs)
        and all(
            np.array_equal(a, b)
            for g, h in zip(left.graphs, right.graphs, strict=True)
            for a, b in zip(g, h, strict=True)
        )
    )


@pytest.mark.parametrize("workers", [1, *slow(2)])
def test_online_batches_are_the_offline_episodes_and_can_start_anywhere(collected, workers):
    spec, folder, _ = collected
    offline = read_episodes(folder, 6)
    batches = list(islice(online_batches(spec, 2, workers, seed=3), 3))
    assert [len(batch) for batch in batches] == [2, 2, 2]
    assert all(map(equal, offline, [episode for batch in batches for episode in batch]))
    later = next(online_batches(spec, 2, workers, seed=3, first_batch=2))
    assert all(map(equal, offline[4:], later)) and [episode.index for episode in later] == [4, 5]


# -- the random control ----------------------------------------------------------------------------


def test_best_random_is_the_cheapest_graph_that_was_met(collected):
    spec, folder, results = collected
    task = spec.make_task()
    episodes = read_episodes(folder, 6)
    actions, played = best_random(task, folder, results["interactions"], spec.max_steps, seed=3)
    assert played == results["interactions"]
    state = task.initial
    for xfer_id, location in actions:
        state = state.apply(xfer_id, location)
    assert state.runtime_ms == min(episode.costs.min() for episode in episodes)


def test_best_random_continues_after_the_stored_episodes_up_to_its_budget(collected, tmp_path):
    spec, folder, results = collected
    task = spec.make_task()
    from_disk = best_random(task, folder, results["interactions"] + 30, spec.max_steps, seed=3)
    played_anew = best_random(task, tmp_path / "nothing", results["interactions"] + 30, spec.max_steps, seed=3)
    assert from_disk == played_anew and from_disk[1] == results["interactions"] + 30
    assert best_random(task, folder, 0, spec.max_steps, seed=3) == ([], 0)
    first = read_episodes(folder, 1)[0]
    actions, played = best_random(task, folder, 2, spec.max_steps, seed=3)
    assert played == 2 and len(actions) <= 2
    assert actions == [tuple(a) for a in first.actions[: int(np.argmin(first.costs[:3]))].tolist()]
