"""Collecting episodes of the random agent in the real environment, in parallel and resumably.

Episode k of a run depends on the run's seed and k alone, so that the number of workers, a kill or a
restart change nothing. Shards are written whole; what is on disk is never played again.
"""

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlflow.costs import COSTS
from rlflow.episodes import Episode, read_episodes, read_shard, write_shard
from rlflow.errors import RLFlowError
from rlflow.graph.onnx_reader import load_graph
from rlflow.rewards import Reward, make_reward
from rlflow.rules.language import load_rules
from rlflow.state import Task

SHARD_EPISODES = 4


@dataclass(frozen=True)
class EnvSpec:
    """Everything a process needs to make the real environment; plain values only.

    Attributes:
      model: path of the ONNX file.  shapes: sizes for symbolic dimensions (see `load_graph`).
      rules: families, empty for all.  cost, threads, database: see rlflow.costs.
      reward, alpha, beta: see rlflow.rewards.  max_locations, max_steps: of the environment.
    """

    model: str
    shapes: tuple = ()
    rules: tuple[str, ...] = ()
    cost: str = "analytic"
    threads: int = 1
    database: str | None = None
    reward: str = "relative"
    alpha: float = 0.8
    beta: float = 0.2
    max_locations: int = 200
    max_steps: int = 100

    def make_task(self) -> Task:
        cost = COSTS.get(self.cost).open(self.threads, Path(self.database) if self.database else None)
        return Task(load_graph(self.model, dict(self.shapes)), load_rules(list(self.rules)), cost, self.max_locations)

    def make_reward(self) -> Reward:
        return make_reward(self.reward, self.alpha, self.beta)


def play_random(task: Task, reward: Reward, max_steps: int, rng: np.random.Generator, index: int = 0) -> Episode:
    """One episode of the paper's random agent: every valid action, NO-OP included, is equally probable."""
    state = task.initial
    actions, rewards, costs = [], [], [state.runtime_ms]
    counts, graphs = [state.counts], [state.arrays()]
    terminated = False
    while not terminated and len(actions) < max_steps:
        valid = state.valid_actions()
        xfer_id, location = (int(part) for part in valid[rng.integers(len(valid))])
        terminated = xfer_id == task.no_op
        after = state if terminated else state.apply(xfer_id, location)
        actions.append((xfer_id, location))
        rewards.append(0.0 if terminated else reward(state.cost, after.cost, task.initial.cost))
        state = after
        costs.append(state.runtime_ms)
        counts.append(state.counts)
        graphs.append(state.arrays())
    ends = np.zeros(len(actions), bool)
    ends[-1] = True
    return Episode(
        np.array(actions, np.int32), np.array(rewards, np.float32), ends & terminated, ends & (not terminated),
        np.array(costs, np.float64), np.array(counts, np.int32), graphs, index,
    )  # fmt: skip


# -- workers ---------------------------------------------------------------------------------------

_worker: tuple[EnvSpec, Task, Reward] | None = None


def _start_worker(spec: EnvSpec) -> None:
    global _worker
    parent = multiprocessing.parent_process()
    if parent is not None:  # a killed parent must not leave its workers behind
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    _worker = spec, spec.make_task(), spec.make_reward()


def _play(seed: int, indices: list[int]) -> list[Episode]:
    spec, task, reward = _worker
    try:
        return [
            play_random(task, reward, spec.max_steps, np.random.default_rng([seed, index]), index)
            for index in indices
        ]
    except RLFlowError:
        raise
    except Exception as error:  # a worker's traceback would be lost with its process
        raise RLFlowError(f"a worker failed:\n{traceback.format_exc()}") from error


def _play_shard(seed: int, indices: list[int], path: str) -> int:
    episodes = _play(seed, indices)
    write_shard(path, episodes)
    return sum(len(episode) for episode in episodes)


class Workers:
    """A pool of environment processes; `workers=1` plays in this process."""

    def __init__(self, spec: EnvSpec, workers: int):
        self.pool = None
        if workers > 1:
            context = multiprocessing.get_context("spawn")  # a fork would inherit ONNX Runtime's threads
            self.pool = ProcessPoolExecutor(workers, context, _start_worker, (spec,))
        else:
            _start_worker(spec)

    def submit(self, function: Callable, *arguments) -> Future:
        if self.pool is not None:
            return self.pool.submit(function, *arguments)
        future: Future = Future()
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)
        return future

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)


def _result(future: Future):
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise RLFlowError("a worker process died (out of memory?); the finished shards are kept, run again") from error


# -- offline and online ----------------------------------------------------------------------------


def shard_path(folder: Path | str, shard: int) -> Path:
    return Path(folder) / f"shard-{shard:05d}.npz"


def collect(
    spec: EnvSpec, folder: Path | str, episodes: int, workers: int, seed: int, progress=None, log=None
) -> dict:
    """Plays the episodes that are not on disk yet.

    Args:
      progress: a tqdm-like object that is told of every finished episode.
      log: called with (episodes on disk, scalars) after every shard.

    Returns: episodes, interactions (steps of the real environment), and how many of each are new.
    """
    shards = [list(range(k, min(k + SHARD_EPISODES, episodes))) for k in range(0, episodes, SHARD_EPISODES)]
    done, interactions, missing = 0, 0, []
    for number, indices in enumerate(shards):
        try:
            found = read_shard(shard_path(folder, number))
        except RLFlowError:
            found = []
        found = found[: len(indices)]  # an earlier run may have asked for more
        if [episode.index for episode in found] == indices:
            done += len(found)
            interactions += sum(len(episode) for episode in found)
        else:
            missing.append((number, indices))
    if progress is not None:
        progress.update(done)
    new_interactions = 0
    if missing:
        with Workers(spec, workers) as pool:
            waiting = iter(missing)
            running: list[tuple[list[int], Future]] = []

            def start_next() -> None:
                item = next(waiting, None)
                if item is not None:
                    running.append((item[1], pool.submit(_play_shard, seed, item[1], str(shard_path(folder, item[0])))))

            for _ in range(2 * workers):
                start_next()
            while running:
                indices, future = running.pop(0)
                steps = _result(future)
                start_next()
                new_interactions += steps
                done += len(indices)
                if progress is not None:
                    progress.update(len(indices))
                if log is not None:
                    log(done, {"collect/interactions": interactions + new_interactions})
    return {
        "episodes": episodes,
        "interactions": interactions + new_interactions,
        "new_interactions": new_interactions,
    }


def online_batches(
    spec: EnvSpec, batch: int, workers: int, seed: int, first_batch: int = 0
) -> Iterator[list[Episode]]:
    """Fresh mini-batches of random episodes, without end, two batches ahead (RLFlow, section 3.3.2).

    Batch b holds the episodes b·batch … (b+1)·batch − 1, so that a run can go on at any batch.
    """
    with Workers(spec, workers) as pool:
        futures: list[list[Future]] = []
        number = first_batch
        while True:
            while len(futures) < (3 if workers > 1 else 1):
                indices = range(number * batch, (number + 1) * batch)
                futures.append([pool.submit(_play, seed, [index]) for index in indices])
                number += 1
            yield [episode for future in futures.pop(0) for episode in _result(future)]


def best_random(
    task: Task, folder: Path | str, interactions: int, max_steps: int, seed: int
) -> tuple[list[tuple[int, int]], int]:
    """The control of every result: the cheapest graph that random play of so many interactions meets.

    The episodes on disk come first; what they lack is played anew. Returns the actions that lead to that
    graph, and the interactions.
    """
    best_cost, best_actions, played, index = task.initial.runtime_ms, [], 0, 0
    stored = iter(read_episodes(folder))
    while played < interactions:
        episode = next(stored, None)
        if episode is None:
            episode = play_random(task, lambda *_: 0.0, max_steps, np.random.default_rng([seed, index]), index)
        index = episode.index + 1
        steps = min(len(episode), interactions - played)
        played += steps
        cheapest = int(np.argmin(episode.costs[: steps + 1]))
        if episode.costs[cheapest] < best_cost:
            best_cost, best_actions = episode.costs[cheapest], episode.actions[:cheapest].tolist()
    return [(x, k) for x, k in best_actions], played
