"""Random episodes of the real environment, collected in parallel and resumably.

Episode k of a run depends only on the run's seed and k. It is the same for any number of workers on any machines, and
after the death of a worker, a kill or a restart. Workers write whole shards; episodes on disk are never played again.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlflow.collect.edits import NO_EDIT, SignatureFeatures, edit_between, first_edit, match_record, pack
from rlflow.collect.episodes import Episode, read_episodes, read_shard, with_shared_tables, write_shard
from rlflow.collect.executors import Job, Workers
from rlflow.common.errors import RLFlowError
from rlflow.common.files import file_hash
from rlflow.common.task import CompoundState, Reward, State, Task, TaskSpec, valid_actions
from rlflow.env.batched import start_of
from rlflow.env.rewards import begin
from rlflow.env.state import RewriteState

SHARD_EPISODES = 4
ARRIVAL_SECONDS = 60.0  # time that a network file system may take to show a file that another node wrote


def play_random(
    task: Task, reward: Reward, max_steps: int, rng: np.random.Generator, index: int = 0, by_rule: float = 0.0
) -> Episode:
    """Play one random episode. With by_rule = 0, the actions are drawn as by the paper's random agent.

    With `env.moves=batched`, each drawn action is a batched rewrite, and the episode records its single rewrites.

    Args:
      task: the task.
      reward: the reward.
      max_steps: number of single rewrites after which the episode is truncated.
      rng: the random generator.
      index: index of the episode.
      by_rule: probability that a step draws a rule first and then a location, see `draw_action`.

    Raises:
      RLFlowError: the task has no valid action.
    """
    states, actions, spec, state = [task.initial], [], task.encoding_spec, start_of(task)
    while len(actions) < max_steps and (not actions or actions[-1][0] != spec.n_rules):
        valid = valid_actions(state.counts, spec.stop)
        if not len(valid):
            break
        xfer_id, location = draw_action(valid, spec.n_rules, rng, by_rule)
        steps = [((xfer_id, location), states[-1])]
        if xfer_id != spec.n_rules:
            state = state.apply(xfer_id, location)
            steps = state.steps() if isinstance(state, CompoundState) else [((xfer_id, location), state)]
        for action, after in islice(steps, max_steps - len(actions)):
            actions.append(action)
            states.append(after)
        state.arrays()  # Encoding each state at once is incremental; at the end, it would span all changes.
    if not actions:
        raise RLFlowError("no episode can be played, because no rule applies; choose another model or more rules")
    return record(task, reward, states, actions, index)


def draw_action(valid: np.ndarray, no_op: int, rng: np.random.Generator, by_rule: float = 0.0) -> tuple[int, int]:
    """Draw one of the valid actions at random.

    Every valid action, NO-OP included, is equally probable, as for the paper's random agent. If the drawn action is not
    NO-OP, it is replaced with probability `by_rule`: a rule with a valid action is drawn uniformly, then one of the
    rule's locations.

    Args:
      valid: int [k, 2], the valid actions (xfer_id, location).
      no_op: the xfer_id of NO-OP.
      rng: the random generator.
      by_rule: probability of the second draw.

    Returns:
      (xfer_id, location).
    """
    xfer_id, location = valid[rng.integers(len(valid))].tolist()
    if by_rule and xfer_id != no_op and rng.random() < by_rule:
        rules = valid[:, 0]
        of_rule = valid[rules == rng.choice(np.unique(rules[rules != no_op]))]
        xfer_id, location = of_rule[rng.integers(len(of_rule))].tolist()
    return xfer_id, location


def record(
    task: Task, reward: Reward, states: Sequence[State], actions: Sequence[tuple[int, int]], index: int = 0,
    copied: int = 0,
) -> Episode:  # fmt: skip
    """Compute the rewards of a sequence of states and actions, and return the sequence as an episode.

    Args:
      task: the task.
      reward: the reward.
      states: T + 1 states, from the initial state on.
      actions: T valid actions; action t leads from states[t] to states[t + 1]. Only the last one may be NO-OP.
      index: index of the episode.
      copied: number of first steps that were copied from another episode.
    """
    rewards, no_op, earnings = [], task.encoding_spec.n_rules, begin(reward, task.initial)
    for step, ((xfer_id, _), before, after) in enumerate(zip(actions, states, states[1:], strict=False), 1):
        if xfer_id == no_op:
            earnings = earnings.after_stop(before)
        else:
            earnings = earnings.after_step(before, after, step == len(actions))
        rewards.append(earnings.last)
    ends = np.zeros(len(actions), bool)
    ends[-1] = True
    dead_end = not task.encoding_spec.stop and not states[-1].counts.any()
    terminated = actions[-1][0] == no_op or dead_end
    edits, signatures = edits_of(states, actions) if isinstance(states[0], RewriteState) else (None, None)
    return Episode(
        np.array(actions, np.int32), np.array(rewards, np.float32), ends & terminated, ends & (not terminated),
        np.array([state.objective / task.per_unit for state in states], np.float64),
        np.array([state.counts for state in states], np.int32),
        with_shared_tables([state.arrays() for state in states]), index, edits, signatures, copied,
        task.encoding_spec.version, earnings.measurements,
    )  # fmt: skip


def edits_of(
    states: Sequence[RewriteState], actions: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, SignatureFeatures]:
    """Return the packed edits of an episode, and the features of the signatures in these edits.

    Args:
      states: T + 1 states.
      actions: T actions (xfer_id, location); action t leads from states[t] to states[t + 1].
    """
    edits, taken = [first_edit(states[0])], []
    for (xfer_id, location), before, after in zip(actions, states, states[1:], strict=False):
        if xfer_id == before.task.no_op:
            edits.append(NO_EDIT)
            taken.append(None)
            continue
        match = before.match(xfer_id, location)
        edits.append(edit_between(before, match, after))
        taken.append(match_record(before, match))
    return pack(edits, taken), SignatureFeatures.of(states, edits)


class Figures(NamedTuple):
    """The summary of one episode, which a worker sends instead of the episode.

    Attributes:
      steps: number of steps.
      gained: the return, which is the sum of the rewards.
      best_gain: decrease of the cost from the first to the cheapest state, in percent of the first cost.
      measurements: hash of each measured graph → seconds that the measurement took.
    """

    steps: int
    gained: float
    best_gain: float
    measurements: Mapping[str, float]


def figures(episode: Episode) -> Figures:
    first, best = episode.costs[0], episode.costs.min()
    best_gain = float(100 * (first - best) / first) if first else 0.0
    return Figures(len(episode), float(episode.rewards.sum()), best_gain, episode.measurements)


# -- in a worker -----------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _task_and_reward(spec: TaskSpec) -> tuple[Task, Reward]:
    return spec.make_task(), spec.make_reward()


def _play(spec: TaskSpec, seed: int, indices: list[int], by_rule: float) -> list[Episode]:
    task, reward = _task_and_reward(spec)
    return [play_random(task, reward, spec.max_steps, np.random.default_rng([seed, k]), k, by_rule) for k in indices]


def _play_shard(spec: TaskSpec, seed: int, indices: list[int], by_rule: float, path: str) -> tuple[list[Figures], str]:
    """Play the episodes of a shard and write them; return the summary of each episode and the SHA-256 of the file."""
    episodes = _play(spec, seed, indices, by_rule)
    write_shard(path, episodes)
    return list(map(figures, episodes)), file_hash(path)


# -- offline and online ----------------------------------------------------------------------------


def shard_path(folder: Path | str, shard: int) -> Path:
    return Path(folder) / f"shard-{shard:05d}.npz"


def collect(
    spec: TaskSpec, folder: Path | str, episodes: int, workers: int, seed: int, progress=None, log=None,
    executor: str = "local", by_rule: float = 0.0,
) -> dict:
    """Play random episodes and write them to shards. Episodes that are on disk already are not played again.

    Args:
      spec: the description of the task.
      folder: folder of the shards; if workers run on several machines, all of them must have this folder.
      episodes: number of episodes, including the episodes on disk.
      workers: number of workers.
      seed: seed of the run.
      progress: a tqdm-like object that is updated by the number of finished episodes.
      log: called with (index + 1, scalars) for every episode in the order of the index, also for those on disk. The
        scalars are "return" and "episode_length" of this episode, and of the episodes up to this one "best_gain" (the
        largest gain of any state, in percent of the initial cost) and "interactions" (the number of steps).
      executor: a name in `rlflow.collect.executors.EXECUTORS`.
      by_rule: see `draw_action`.

    Returns:
      A dict of "episodes", "interactions" (steps of all episodes), "new_interactions" (steps of the episodes that were
        not on disk before) and "measurement_seconds" (time that measured rewards took, counting each graph once).
    """
    folder, spec = Path(folder).absolute(), spec.absolute()
    _task_and_reward.cache_clear()  # the model file may have changed since an earlier call
    shards = [list(range(k, min(k + SHARD_EPISODES, episodes))) for k in range(0, episodes, SHARD_EPISODES)]
    on_disk = [_figures_on_disk(shard_path(folder, number), indices) for number, indices in enumerate(shards)]
    missing = {number: shards[number] for number, known in enumerate(on_disk) if known is None}
    if progress is not None:
        progress.update(sum(len(known) for known in on_disk if known is not None))
    interactions, new_interactions, measured, best_gain = 0, 0, {}, 0.0
    with closing(_play_missing(spec, folder, missing, workers, seed, executor, by_rule)) as new:
        for indices, known in zip(shards, on_disk, strict=True):
            played = next(new) if known is None else known
            if known is None:
                new_interactions += sum(one.steps for one in played)
                if progress is not None:
                    progress.update(len(played))
            for index, one in zip(indices, played, strict=True):
                interactions += one.steps
                measured |= one.measurements
                best_gain = max(best_gain, one.best_gain)
                if log is not None:
                    log(index + 1, {
                        "return": one.gained, "best_gain": best_gain, "episode_length": one.steps,
                        "interactions": interactions,
                    })  # fmt: skip
    return {
        "episodes": episodes,
        "interactions": interactions,
        "new_interactions": new_interactions,
        "measurement_seconds": math.fsum(measured.values()),
    }


def _play_missing(
    spec: TaskSpec, folder: Path, missing: Mapping[int, list[int]], workers: int, seed: int, executor: str,
    by_rule: float,
) -> Iterator[list[Figures]]:  # fmt: skip
    """Play and write shards; yield the summaries of the episodes of each shard, in the order of the shards.

    Args:
      spec, folder, workers, seed, executor, by_rule: see `collect`.
      missing: number of a shard → indices of its episodes.
    """
    jobs = []
    for number, indices in missing.items():
        path = str(shard_path(folder, number))
        jobs.append(Job(f"shard {number}", _play_shard, (spec, seed, indices, by_rule, path)))
    with Workers(executor, workers) as pool:
        for number, (played, written) in zip(missing, pool.results(jobs, ahead=2 * workers), strict=True):
            _await_file(shard_path(folder, number), written)
            yield played


def _figures_on_disk(path: Path, indices: list[int]) -> list[Figures] | None:
    """Return the summaries of the episodes in a shard, or None if the shard is missing, damaged or lacks an episode.

    Args:
      path: the shard.
      indices: indices of the episodes that the shard should contain.
    """
    try:
        result = read_shard(path)[: len(indices)]  # an earlier run may have played more episodes
    except RLFlowError:
        return None
    return list(map(figures, result)) if [episode.index for episode in result] == indices else None


def _await_file(path: Path, written: str) -> None:
    """Wait until a file that a worker wrote is visible on this machine.

    Args:
      path: the file.
      written: the SHA-256 of the file.

    Raises:
      RLFlowError: the file is not visible with this hash after ARRIVAL_SECONDS.
    """
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while not path.exists() or file_hash(path) != written:
        if time.monotonic() > deadline:
            raise RLFlowError(f"a worker wrote {path}, but it did not arrive here; all nodes must share {path.parent}")
        time.sleep(0.1)


def online_batches(
    spec: TaskSpec, batch: int, workers: int, seed: int, first_batch: int = 0, executor: str = "local",
    by_rule: float = 0.0,
) -> Iterator[list[Episode]]:
    """Yield batches of new random episodes without end (RLFlow paper, section 3.3.2).

    Batch b contains the episodes b · batch to (b + 1) · batch − 1, so a run can continue at any batch. Several workers
    play the episodes of up to two further batches while a batch is used.

    Args:
      spec: the description of the task.
      batch: number of episodes of a batch.
      workers: number of workers.
      seed: seed of the run.
      first_batch: number of the first batch to yield.
      executor: a name in `rlflow.collect.executors.EXECUTORS`.
      by_rule: see `draw_action`.
    """
    spec = spec.absolute()
    _task_and_reward.cache_clear()
    jobs = (Job(f"episode {k}", _play, (spec, seed, [k], by_rule)) for k in count(first_batch * batch))
    with Workers(executor, workers) as pool:
        episodes = pool.results(jobs, ahead=3 * batch)
        while True:
            yield [episode for played in islice(episodes, batch) for episode in played]


def best_random(
    task: Task, folder: Path | str, interactions: int, max_steps: int, seed: int, by_rule: float = 0.0
) -> tuple[list[tuple[int, int]], int]:
    """Find the cheapest graph of random play with a given number of interactions, a control for other results.

    The episodes on disk are used first; further episodes are played as needed.

    Args:
      task: the task.
      folder: folder of the shards with random episodes.
      interactions: number of steps of the real environment that random play may take.
      max_steps: number of steps after which a new episode is truncated.
      seed: seed of the run.
      by_rule: see `draw_action`.

    Returns:
      (the (xfer_id, location) pairs that lead to the cheapest graph, the number of steps of random play).
    """
    best_cost, best_actions, played, index = task.initial.objective / task.per_unit, [], 0, 0
    stored = iter(read_episodes(folder))
    while played < interactions:
        episode = next(stored, None)
        if episode is None:
            rng = np.random.default_rng([seed, index])
            episode = play_random(task, lambda *_: 0.0, max_steps, rng, index, by_rule)
        index = episode.index + 1
        steps = min(len(episode), interactions - played)
        played += steps
        cheapest = int(np.argmin(episode.costs[: steps + 1]))
        if episode.costs[cheapest] < best_cost:
            best_cost, best_actions = episode.costs[cheapest], episode.actions[:cheapest].tolist()
    return [(x, k) for x, k in best_actions], played
