"""Recording of a controller's episodes on the real environment, as training data of world models.

One episode of an iteration is greedy and some are sampled. Most episodes leave the greedy episode at a random step and
then explore: they prefer rewrites that the world model has not seen (rlflow/collect/exploration.py). The next
controller will query the world model near the greedy episode, so the model needs data from there. `Recorder` sits
between `LatentEnv` and the real environment, so the recorded actions have the location numbers of the real environment.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np

from controllers.base import derive_seed
from controllers.evaluation import rollout
from rlflow.collect.episodes import Episode, interactions_of, read_shard, write_shard
from rlflow.collect.exploration import ExplorationObserver, play_novel
from rlflow.collect.rollouts import SHARD_EPISODES, record, shard_path
from rlflow.common.errors import RLFlowError
from rlflow.common.task import State
from rlflow.env.step import Recalls, StepEnv
from rlflow.optimisation.candidates import states_along
from worldmodel.base import WorldModel
from worldmodel.latent_env import LatentEnv

EXCURSION = 30  # exploring steps of an episode; as many as the steps before them, if there are more than EXCURSION
SAMPLED = 4  # every SAMPLED-th episode of an iteration is sampled from the controller


class Way(NamedTuple):
    """A path of n actions, and the n + 1 states before, between and after them; [] and [] if there is no path."""

    actions: list[tuple[int, int]]
    states: list[State]


NOWHERE = Way([], [])


class Recorder(gymnasium.Wrapper):
    """A wrapper of the real environment, inside `LatentEnv`, that records the valid steps of an episode.

    Attributes:
      actions, states: the valid actions so far, and the states before, between and after them.
      known: a path that was played before. While an episode follows this path, its states are restored from the path
        instead of computed.
      copied: the number of restored steps.
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
    """A controller that plays on a real environment, whose episodes are recorded as data for world models."""

    def __init__(self, controller, env: StepEnv, model: WorldModel):
        self.controller, self.env, self._model = controller, env, model
        self._recorder = Recorder(env)
        self._latent = LatentEnv(self._recorder, model)
        self._trunk: Way | None = None

    def episode(self, k: int, seed: int) -> Episode:
        """Play one episode with the controller and return its record.

        Args:
          k: the index of the episode; episode 0 is greedy, all others are sampled.
          seed: the seed of the episode.
        """
        rollout(self.controller, self._latent, greedy=k == 0, seed=seed)
        recorder = self._recorder
        return record(self.env.task, self.env.reward, recorder.states, recorder.actions, k, recorder.copied)

    def turn(self, k: int, seed: int, before: Sequence[Episode]) -> Episode:
        """Play episode k of an iteration.

        Episode 0 is greedy. Every SAMPLED-th episode is sampled from the controller. All other episodes follow the
        greedy episode up to a random step and then explore. If the environment can restore states, steps of the greedy
        episode are not played again.

        Args:
          k: the index of the episode.
          seed: the seed of the episode.
          before: the earlier episodes of the iteration.
        """
        if k == 0:
            first = self.episode(k, seed)
            self._trunk = Way(self._rewrites(first), self._recorder.states)
            return first
        trunk, restores = self._greedy_path(before[0]), isinstance(self.env, Recalls)
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

    def _rewrites(self, episode: Episode) -> list[tuple[int, int]]:
        no_op = self.env.task.encoding_spec.n_rules
        return [(xfer_id, location) for xfer_id, location in episode.actions.tolist() if xfer_id < no_op]

    def _greedy_path(self, first: Episode) -> Way:
        """Return the path of the greedy episode `first`.

        After a restart, the states are computed again from the actions of the episode. This uses no interactions.
        """
        if self._trunk is None:
            moves = self._rewrites(first)
            self._trunk = Way(moves, states_along(self.env.task, moves))
        return self._trunk


def recorded(controller, env: StepEnv, model: WorldModel, seed: int) -> Iterator[Episode]:
    """Return an endless iterator of a controller's episodes: one greedy episode, then sampled episodes.

    Args:
      controller: the controller that acts.
      env: the real environment.
      model: the world model that encodes observations.
      seed: the first seed; episode k has seed + k.
    """
    player = Player(controller, env, model)
    return (player.episode(k, seed + k) for k in count())


def play_iteration(
    player: Player, folder: Path | str, interactions: int, most: int, seed: tuple[int, ...], progress=None
) -> list[Episode]:
    """Play the episodes of an iteration (see `Player.turn`) and store them as shards; read stored episodes again.

    Args:
      player: the player of the controller.
      folder: the folder of the shards.
      interactions: the largest number of real steps; no episode begins that might exceed it.
      most: the largest number of episodes; this limit ends an iteration whose episodes have hardly any steps.
      seed: the seed of episode k is derived from (*seed, k).
      progress: a tqdm-like object that counts interactions, or None.

    Returns:
      All episodes of the iteration in the order of their indices, read or played.
    """
    episodes: list[Episode] = []

    def more() -> bool:
        return len(episodes) < most and interactions_of(episodes) + player.env.max_steps <= interactions

    for shard in count():
        if not more():
            return episodes
        path, first = shard_path(folder, shard), len(episodes)
        episodes += _read_episodes(path, first)
        if len(episodes) == first:
            while more() and len(episodes) < first + SHARD_EPISODES:
                k = len(episodes)
                episodes.append(player.turn(k, derive_seed(*seed, k), episodes))
            write_shard(path, episodes[first:])
        if progress is not None:
            progress.update(interactions_of(episodes[first:]))


def _read_episodes(path: Path, first: int) -> list[Episode]:
    """Return the episodes of a shard; [] if the file is missing or damaged, or its indices do not begin at `first`."""
    try:
        result = read_shard(path)
    except RLFlowError:
        return []
    return result if [episode.index for episode in result] == list(range(first, first + len(result))) else []
