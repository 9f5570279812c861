"""A controller's episodes on the real environment, as world models take them."""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import gymnasium
import numpy as np

from controllers.base import derive_seed
from controllers.evaluation import rollout
from rlflow.env import GraphRewriteEnv
from rlflow.episodes import Episode, read_shard, write_shard
from rlflow.errors import RLFlowError
from rlflow.rollouts import SHARD_EPISODES, play_novel, record, shard_path
from worldmodel.base import WorldModel
from worldmodel.latent_env import LatentEnv

EXCURSION = 30  # steps of exploring in an episode, at least
SAMPLED = 4  # every so many episodes of a round are the controller's own


class Recorder(gymnasium.Wrapper):
    """Worn below LatentEnv, where locations have the environment's own numbers. Keeps the valid steps of the episode.

    Attributes: actions, and states: the RewriteStates that they lead from and to.
    """

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        found = self.env.reset(seed=seed, options=options)
        self.actions, self.states = [], [self.env.unwrapped.state]
        return found

    def step(self, action):
        found = self.env.step(action)
        if found[-1]["valid"]:
            self.actions.append((int(action[0]), int(action[1])))
            self.states.append(self.env.unwrapped.state)
        return found


class Player:
    """Plays episode k, greedily if k is 0, and sampled with the given seed if it is not."""

    def __init__(self, controller, env: GraphRewriteEnv, model: WorldModel):
        self.controller, self.env, self._model = controller, env, model
        self._recorder = Recorder(env)
        self._latent = LatentEnv(self._recorder, model)

    def episode(self, k: int, seed: int) -> Episode:
        rollout(self.controller, self._latent, greedy=k == 0, seed=seed)
        return record(self.env.task, self.env.reward, self._recorder.states, self._recorder.actions, k)

    def turn(self, k: int, seed: int, before: Sequence[Episode]) -> Episode:
        """Episode k of a round: greedy; then mostly ones that leave the greedy one at some step, for what the model does not know."""
        if k % SAMPLED == 0:
            return self.episode(k, seed)
        rng, moves = np.random.default_rng(seed), [action for action in before[0].actions.tolist() if action[0] < self.env.task.no_op]
        prefix = moves[: int(rng.integers(len(moves) + 1))]
        steps = min(max(EXCURSION, len(prefix)), self.env.max_steps - len(prefix))  # the way there was paid for
        observer = self._model.observer()
        return play_novel(self.env.task, self.env.reward, prefix, steps, rng, k, observer if hasattr(observer, "knows") else None)


def recorded(controller, env: GraphRewriteEnv, model: WorldModel, seed: int) -> Iterator[Episode]:
    """Episodes without end: the greedy one first, then sampled ones. Episode k depends on (seed, k) alone."""
    player = Player(controller, env, model)
    return (player.episode(k, seed + k) for k in count())


def collect(player: Player, folder: Path | str, interactions: int, most: int, seed: tuple[int, ...], progress=None) -> list[Episode]:
    """Episodes of the controller, as shards in the folder; those that are there already are not played again.

    The first is greedy; see `Player.turn` for the others: what a world model is asked next lies around what the controller does best.

    Args:
      interactions: real steps that are not exceeded: no episode begins that might be longer than what is left.
      most: episodes at most, for a controller that gives up at once.
      seed: episode k depends on (*seed, k) alone.
      progress: a tqdm-like object that counts interactions.
    """
    episodes: list[Episode] = []

    def more() -> bool:
        return len(episodes) < most and sum(map(len, episodes)) + player.env.max_steps <= interactions

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
            progress.update(sum(map(len, episodes[first:])))


def _stored(path: Path, first: int) -> list[Episode]:
    """The shard's episodes; none if it is not there, damaged, or does not begin with the episode of this index."""
    try:
        found = read_shard(path)
    except RLFlowError:
        return []
    return found if [episode.index for episode in found] == list(range(first, first + len(found))) else []
