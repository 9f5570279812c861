"""A controller's episodes on the real environment, as world models take them.

Of the episodes of an iteration one is greedy, some are sampled, and most leave the greedy one at a random step to carry
out what the world model has not seen carried out (rlflow/collect/exploration.py): what the next dream is asked lies
around there. The recorder stands below `LatentEnv`, so that episodes are kept in the environment's own numbering.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np

from controllers.base import derive_seed
from controllers.evaluation import rollout
from rlflow.collect.episodes import Episode, read_shard, write_shard
from rlflow.collect.exploration import ExplorationObserver, play_novel
from rlflow.collect.rollouts import SHARD_EPISODES, record, shard_path
from rlflow.common.errors import RLFlowError
from rlflow.common.task import State
from rlflow.env.step import Recalls, StepEnv
from worldmodel.base import WorldModel
from worldmodel.latent_env import LatentEnv

EXCURSION = 30  # steps of exploring in an episode, at least; it explores as far as it came
SAMPLED = 4  # every so many episodes of an iteration are the controller's own


class Way(NamedTuple):
    """Rewrites, as actions, and the states that they lead from and to."""

    actions: list[tuple[int, int]]
    states: list[State]


NOWHERE = Way([], [])


class Recorder(gymnasium.Wrapper):
    """Worn below LatentEnv, where locations have the environment's own numbers. Keeps the valid steps of the episode.

    Attributes:
      actions, states: the valid actions so far, and the states that they lead from and to.
      known: a way that was gone before: as long as an episode follows it from the start, its steps are recalled, not
        played.
      copied: how many steps were recalled.
    """

    known = NOWHERE

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        result = self.env.reset(seed=seed, options=options)
        self.actions, self.states, self.copied = [], [self.env.unwrapped.state], 0
        return result

    def step(self, action):
        step, action = len(self.actions), (int(action[0]), int(action[1]))
        if self.copied == step and self.known.actions[step : step + 1] == [action]:
            result = self.env.recall(action, self.known.states[step + 1])
            self.copied += 1
        else:
            result = self.env.step(action)
        if result[-1]["valid"]:
            self.actions.append(action)
            self.states.append(self.env.unwrapped.state)
        return result


class Player:
    """Plays episode k, greedily if k is 0, and sampled with the given seed if it is not."""

    def __init__(self, controller, env: StepEnv, model: WorldModel):
        self.controller, self.env, self._model = controller, env, model
        self._recorder = Recorder(env)
        self._latent = LatentEnv(self._recorder, model)
        self._trunk: Way | None = None

    def episode(self, k: int, seed: int) -> Episode:
        rollout(self.controller, self._latent, greedy=k == 0, seed=seed)
        recorder = self._recorder
        return record(self.env.task, self.env.reward, recorder.states, recorder.actions, k, recorder.copied)

    def turn(self, k: int, seed: int, before: Sequence[Episode]) -> Episode:
        """Episode k of an iteration: greedy; then mostly ones that leave it for what the model does not know.

        Where the environment can restore a state, none of them plays again what the greedy one played.
        """
        if k == 0:
            first = self.episode(k, seed)
            self._trunk = Way(self._moves(first), self._recorder.states)
            return first
        trunk, restores = self._gone(before[0]), isinstance(self.env, Recalls)
        if k % SAMPLED == 0:
            self._recorder.known = trunk if restores else NOWHERE
            return self.episode(k, seed)
        rng = np.random.default_rng(seed)
        prefix = trunk.actions[: int(rng.integers(len(trunk.actions) + 1))]
        restored = trunk.states[: len(prefix) + 1] if restores else ()
        steps = min(max(EXCURSION, len(prefix)), self.env.max_steps - len(prefix))
        observer = self._model.observer()
        observer = observer if isinstance(observer, ExplorationObserver) else None
        return play_novel(self.env.task, self.env.reward, prefix, steps, rng, k, observer, restored)

    def _moves(self, episode: Episode) -> list[tuple[int, int]]:
        no_op = self.env.task.encoding_spec.n_rules
        return [(xfer_id, location) for xfer_id, location in episode.actions.tolist() if xfer_id < no_op]

    def _gone(self, first: Episode) -> Way:
        """Where the greedy episode went. If it was played before a restart, its steps were counted then."""
        if self._trunk is None:
            moves, states = self._moves(first), [self.env.task.initial]
            for xfer_id, location in moves:
                states.append(states[-1].apply(xfer_id, location))
            self._trunk = Way(moves, states)
        return self._trunk


def recorded(controller, env: StepEnv, model: WorldModel, seed: int) -> Iterator[Episode]:
    """Episodes without end: the greedy one first, then sampled ones. Episode k depends on (seed, k) alone."""
    player = Player(controller, env, model)
    return (player.episode(k, seed + k) for k in count())


def play_iteration(
    player: Player, folder: Path | str, interactions: int, most: int, seed: tuple[int, ...], progress=None
) -> list[Episode]:
    """Episodes of the controller, as shards in the folder; those that are there already are not played again.

    The first is greedy; see `Player.turn` for the others: what a world model is asked next lies around what the
    controller does best.

    Args:
      interactions: real steps that are not exceeded: no episode begins that might be longer than what is left.
      most: episodes at most, for a controller that gives up at once.
      seed: episode k depends on (*seed, k) alone.
      progress: a tqdm-like object that counts interactions.
    """
    episodes: list[Episode] = []

    def more() -> bool:
        return len(episodes) < most and _played(episodes) + player.env.max_steps <= interactions

    for shard in count():
        if not more():
            return episodes
        path, first = shard_path(folder, shard), len(episodes)
        episodes += _stored(path, first)
        if len(episodes) == first:
            while more() and len(episodes) < first + SHARD_EPISODES:
                k = len(episodes)
                episodes.append(player.turn(k, derive_seed(*seed, k), episodes))
            write_shard(path, episodes[first:])
        if progress is not None:
            progress.update(_played(episodes[first:]))


def _played(episodes: Sequence[Episode]) -> int:
    return sum(episode.interactions for episode in episodes)


def _stored(path: Path, first: int) -> list[Episode]:
    """The shard's episodes; none if it is not there, damaged, or does not begin with the episode of this index."""
    try:
        result = read_shard(path)
    except RLFlowError:
        return []
    return result if [episode.index for episode in result] == list(range(first, first + len(result))) else []
