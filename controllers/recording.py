"""Recording of a controller's episodes on the real environment, as training data of world models.

The first episode of an iteration is the greedy one of the trained controller, and the second that of the controller
before its training, so that what is imitated later is no worse than either. All later ones start from the best path of
the iteration so far, the actions up to the highest cumulative reward of any of its episodes. There are three kinds, in
turn (KINDS):

- A *sample* is drawn from the controller's policy.
- A *detour* leaves the best path at a random step by an action of a rule that few episodes have used there. Each of the
  next steps is at a match that touches the change of the step before, again of a seldom used rule. After at most CHAIN
  such steps the episode ends, or follows the greedy policy if the steps have gained something. It shows what becomes
  possible after rewrites that gain nothing by themselves (after limited discrepancy search, Harvey and Ginsberg 1995).
- An *excursion* leaves the best path at a random step and then explores: it prefers rewrites that the world model has
  not seen (rlflow/collect/exploration.py). The next controller will query the world model near the best path, so the
  model needs data from there.

`Recorder` sits between `LatentEnv` and the real environment, so the recorded actions have the location numbers of the
real environment.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np

from controllers.base import Controller, derive_seed
from controllers.evaluation import rollout
from rlflow.collect.episodes import Episode, interactions_of, read_shard, write_shard
from rlflow.collect.exploration import ExplorationObserver, play_novel
from rlflow.collect.rollouts import SHARD_EPISODES, record, shard_path
from rlflow.common.errors import RLFlowError
from rlflow.common.task import LocalState, State, Task, valid_actions
from rlflow.env.step import Recalls, StepEnv
from worldmodel.base import WorldModel
from worldmodel.latent_env import LatentEnv

EXCURSION = 30  # exploring steps of an excursion; as many as the steps before them, if there are more than EXCURSION
CHAIN = 8  # largest number of unusual steps of a detour
KINDS = ("sample", "detour", "excursion", "detour")  # of episode k of an iteration: entry k modulo 4


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
      most: the number of other valid steps after which an episode is truncated.
    """

    known, most = NOWHERE, math.inf

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        result = self.env.reset(seed=seed, options=options)
        self.actions, self.states, self.copied = [], [self.env.unwrapped.state], 0
        self.states[0].arrays()
        return result

    def step(self, action):
        step, action = len(self.actions), (int(action[0]), int(action[1]))
        if self.copied == step and self.known.actions[step : step + 1] == [action]:
            result = self.env.recall(action, self.known.states[step + 1])
            self.copied += 1
        else:
            result = self.env.step(action)
            self.env.unwrapped.state.arrays()  # Encoding each state at once is incremental.
        if result[-1]["valid"]:
            self.actions.append(action)
            self.states.append(self.env.unwrapped.state)
        after, reward, terminated, truncated, info = result
        return after, reward, terminated, truncated or len(self.actions) - self.copied >= self.most, info


class Player:
    """A controller that plays on a real environment, whose episodes are recorded as data for world models.

    Args:
      controller: the controller.
      env: the real environment.
      model: the world model that encodes observations.
      untrained: the same controller before its training, which plays the second episode of an iteration, or None.
    """

    def __init__(self, controller, env: StepEnv, model: WorldModel, untrained=None):
        self.controller, self.env, self._model, self._untrained = controller, env, model, untrained
        self._recorder = Recorder(env)
        self._latent = LatentEnv(self._recorder, model, leaves_circles=True)
        self._best: tuple[int, Way] | None = None  # the index of an episode, and its path to its cheapest state

    def episode(self, k: int, seed: int) -> Episode:
        """Play one episode with the controller and return its record.

        Args:
          k: the index of the episode; episode 0 is greedy, all others are sampled.
          seed: the seed of the episode.
        """
        return self._played(self.controller, k, seed, greedy=k == 0)

    def turn(self, k: int, seed: int, before: Sequence[Episode], most: float = math.inf) -> Episode:
        """Play episode k of an iteration; see the module docstring.

        If the environment can restore states, steps of the best path are not played again.

        Args:
          k: the index of the episode.
          seed: the seed of the episode.
          before: the earlier episodes of the iteration.
          most: the number of interactions after which the episode is truncated; a restored step is none.
        """
        self._recorder.known, self._recorder.most = NOWHERE, most
        kind = KINDS[k % len(KINDS)]
        if k == 0:
            return self.episode(k, seed)
        best, rng = self._best_path(before), np.random.default_rng(seed)
        restores = isinstance(self.env, Recalls)
        if restores:
            self._recorder.known = best
        if k == 1 and self._untrained is not None:
            return self._played(self._untrained, k, seed, greedy=True)
        if kind == "sample":
            return self.episode(k, seed)
        left = int(rng.integers((len(best.actions) if restores else min(len(best.actions), most)) + 1))
        if kind == "detour":
            used = Counter(rule for one in before for rule in one.actions[one.copied : one.copied + CHAIN, 0].tolist())
            detour = _Detour(self.controller, self._latent, best.actions, left, used)
            return self._played(detour, k, derive_seed(seed, 1), greedy=True, least=left)
        steps = min(max(EXCURSION, left), self.env.max_steps - left, most if restores else most - left)
        observer = self._model.observer()
        observer = observer if isinstance(observer, ExplorationObserver) else None
        restored = best.states[: left + 1] if restores else ()
        return play_novel(self.env.task, self.env.reward, best.actions[:left], steps, rng, k, observer, restored)

    def _played(self, controller, k: int, seed: int, greedy: bool, least: int = 0) -> Episode:
        rollout(controller, self._latent, greedy=greedy, seed=seed, least=least)
        recorder = self._recorder
        return record(self.env.task, self.env.reward, recorder.states, recorder.actions, k, recorder.copied)

    def _best_path(self, before: Sequence[Episode]) -> Way:
        """Return the best part of the best episode, of the earliest one if several have equal returns.

        The states are computed again from the actions of the episode. This uses no interactions.
        """
        best = max(range(len(before)), key=lambda k: best_part(before[k])[1])
        if self._best is None or self._best[0] != best:
            moves = _rewrites(before[best])
            self._best = best, Way(moves, encoded_along(self.env.task, moves))
        return self._best[1]


def encoded_along(task: Task, moves: Sequence[tuple[int, int]]) -> list[State]:
    """Return the initial state of a task and the state after each move, and encode each state before the next move.

    Encoding is incremental: a state that is encoded later repeats the work of all states before it.
    """
    states = [task.initial]
    for move in moves:
        states[-1].arrays()
        states.append(states[-1].apply(*move))
    return states


def best_part(episode: Episode) -> tuple[int, float]:
    """Return the number of steps before the highest cumulative reward of an episode, and this reward; (0, 0) for none.
    """
    returns = np.cumsum(episode.rewards, dtype=np.float64)
    steps = int(returns.argmax()) + 1
    return (steps, float(returns[steps - 1])) if returns[steps - 1] > 0 else (0, 0.0)


def _rewrites(episode: Episode) -> list[tuple[int, int]]:
    """Return the actions before the highest cumulative reward of an episode, without NO-OP."""
    actions = episode.actions[: best_part(episode)[0]].tolist()
    return [(xfer_id, location) for xfer_id, location in actions if xfer_id < episode.counts.shape[1]]


class _Detour:
    """A controller that plays a detour; see the module docstring.

    Args:
      controller: the controller that it follows after a gain.
      env: the latent environment in which this controller acts.
      path: the actions of the path, in the real environment's location numbers.
      left: the number of these actions that it follows; the first unusual action is another one than the next of them.
      used: how often earlier episodes used each rule after they had left their paths.
    """

    def __init__(self, controller, env: LatentEnv, path: Sequence[tuple[int, int]], left: int, used: Counter):
        self.controller, self.env, self.path, self.left, self.used = controller, env, path, left, used
        self._tried: dict[tuple, set[int]] = {}  # looks of a state of the chain → rules that were chosen there
        self._is_chain, self._objective = True, np.inf  # the objective before the chain

    def act(self, observation, greedy, rng):
        step, state = int(observation["step"][0]), self.env.unwrapped.state
        if step < self.left:
            return self.env.model_action(self.path[step])[None]
        if step == self.left:
            self._objective = state.objective
        if self._is_chain and (actions := self._unusual(step, state, rng)):
            return self.env.model_action(actions[rng.integers(len(actions))])[None]
        stop = self.env.model.spec.stop and step > self.left and state.objective >= self._objective
        if self._is_chain and stop:
            return np.array([[self.env.model.spec.n_rules, 0]])
        self._is_chain = False
        return self.controller.act(observation, greedy=greedy, rng=rng)

    def _unusual(self, step: int, state: State, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Return the possible next steps of the chain, all of one rule; [] at the end of the chain."""
        if step >= self.left + CHAIN:
            return []
        actions = list(map(tuple, valid_actions(state.counts, stop=False).tolist()))
        looks = state.objective, state.counts.tobytes()
        tried = self._tried.setdefault(looks, set())
        if step == self.left:
            actions = [action for action in actions if action not in self.path[step : step + 1]]
        elif isinstance(state, LocalState):
            near = [not state.touched.isdisjoint(match.nodes) for match in state.matches]
            actions = [action for action, touches in zip(actions, near, strict=True) if touches]
        actions = [action for action in actions if action[0] not in tried]
        if not actions:
            return []
        fewest = min(self.used[rule] for rule, _ in actions)
        rule = rng.choice(sorted({rule for rule, _ in actions if self.used[rule] == fewest}))
        self.used[rule] += 1
        tried.add(rule)
        return [action for action in actions if action[0] == rule]


def recorded(controller, env: StepEnv, model: WorldModel, seed: int) -> Iterator[Episode]:
    """Return an endless iterator of a controller's episodes: one greedy episode, then sampled episodes.

    Args:
      controller: the controller that acts.
      env: the real environment.
      model: the world model that encodes observations.
      seed: the seed; the seed of episode k is derived from (seed, k).
    """
    player = Player(controller, env, model)
    return (player.episode(k, derive_seed(seed, k)) for k in count())


def play_iteration(
    player: Player, folder: Path | str, interactions: int, most: int, seed: tuple[int, ...], progress=None
) -> list[Episode]:
    """Play the episodes of an iteration (see `Player.turn`) and store them as shards; read stored episodes again.

    Args:
      player: the player of the controller.
      folder: the folder of the shards.
      interactions: the largest number of real steps; the last episode is truncated when it reaches this number.
      most: the largest number of episodes; this limit ends an iteration whose episodes have hardly any steps.
      seed: the seed of episode k is derived from (*seed, k).
      progress: a tqdm-like object that counts interactions, or None.

    Returns:
      All episodes of the iteration in the order of their indices, read or played.
    """
    episodes: list[Episode] = []

    def left() -> int:
        return max(0, interactions - interactions_of(episodes)) if len(episodes) < most else 0

    for shard in count():
        if not left():
            return episodes
        path, first = shard_path(folder, shard), len(episodes)
        episodes += _read_episodes(path, first)
        if len(episodes) == first:
            while left() and len(episodes) < first + SHARD_EPISODES:
                k = len(episodes)
                episodes.append(player.turn(k, derive_seed(*seed, k), episodes, left()))
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


def demonstrate(controller: Controller, episodes: Sequence[Episode], env: StepEnv, model: WorldModel) -> None:
    """Let a controller imitate the best one of some real episodes in its coming training.

    The actions are replayed on the real graph. This uses no interactions, because all of them were played before. In a
    task without NO-OP, nothing is imitated.

    Args:
      controller: the controller.
      episodes: the episodes, of the environment's graph.
      env: the real environment.
      model: the world model that encodes observations.
    """
    if not model.spec.stop:
        return
    best = max(episodes, key=lambda episode: best_part(episode)[1])
    latent, actions = LatentEnv(env, model), []
    observations = [latent.reset()[0]]
    for move in _rewrites(best):
        actions.append(latent.model_action(move))
        observations.append(latent.step(actions[-1])[0])
    actions.append(np.array((model.spec.n_rules, 0)))
    if len(actions) > 1:
        stacked = {key: np.stack([one[key] for one in observations]) for key in observations[0]}
        controller.imitate_first(stacked, np.array(actions, np.int64), best_part(best)[1])
