"""Playing of episodes with a controller.

`play` returns the returns of parallel episodes. `rollout` records a single episode, and `best_of` finds the cheapest
state that several single episodes visit. The costs of states are `info["cost"]`, the objective in the task's unit (such
as ms). This module imports no TensorFlow.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from controllers.base import derive_seed
from rlflow.common.errors import RLFlowError
from rlflow.common.task import EpisodeReward

PATIENCE = 30  # steps after the highest cumulative reward with which an episode ends


def play(
    env: VectorEnv, act: Callable, seed: int, expected: bool = False, max_steps: float = math.inf
) -> tuple[np.ndarray, np.ndarray]:
    """Play one episode in each copy of a vector environment.

    Args:
      env: a vector environment with n copies. A copy whose episode has ended plays on, without effect on the result.
      act: a function from a batched observation to actions, int [n, 2].
      seed: the seed of the reset.
      expected: True to add up the rewards of dreams without their noise, so that luck does not choose between policies.
      max_steps: the number of steps after which unfinished episodes are cut off.

    Returns:
      The undiscounted returns float64 [n] and the numbers of steps of the episodes int64 [n].

    Raises:
      RLFlowError: a return is not finite.
    """
    observation, _ = env.reset(seed=seed)
    returns, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
    playing = np.ones(env.num_envs, bool)
    while playing.any() and lengths.max() < max_steps:
        observation, rewards, terminated, truncated, infos = env.step(act(observation))
        returns += np.where(playing, infos.get("expected_rewards", rewards) if expected else rewards, 0.0)
        lengths += playing
        playing &= ~(terminated | truncated)
    if not np.isfinite(returns).all():
        raise RLFlowError("the environment gave a reward that is not finite; a world model may have diverged")
    return returns, lengths


@dataclass
class Trajectory:
    """The record of one episode of T steps."""

    actions: list[tuple[int, int]] = field(default_factory=list)  # T pairs (xfer_id, location) of the real environment
    rewards: list[float] = field(default_factory=list)  # T
    infos: list[dict] = field(default_factory=list)  # T + 1; the first one comes from reset
    terminated: bool = False  # ended by the task (NO-OP), not truncated
    seconds: float = field(default=0.0, compare=False)  # wall-clock time, environment steps included

    @property
    def costs(self) -> list[float]:
        """The costs of the T + 1 visited states, in the task's unit (such as ms)."""
        return [float(info["cost"]) for info in self.infos]


def rollout(controller, env: gym.Env, greedy: bool, seed: int, least: int = 0) -> Trajectory:
    """Play one episode in a single environment and return its record.

    The episode ends PATIENCE steps after its highest cumulative reward, or after `least` steps if this is later: the
    cheapest state counts, and a policy that knows no further gain seldom chooses NO-OP. This does not hold if rewards
    depend on whole episodes.

    Args:
      controller: an object with the method `act` of `controllers.base.Controller`; it receives batches of one
        observation.
      env: an environment whose observations the controller accepts.
      greedy: True to take the most probable actions, False to sample actions.
      seed: the seed of the reset and of sampling.
      least: the number of steps from which on PATIENCE counts.
    """
    rng, started = np.random.default_rng(seed), time.perf_counter()
    observation, info = env.reset(seed=seed)
    trajectory, ended, patient = Trajectory(infos=[info]), False, _is_paid_at_end(env)
    returned, highest, best = 0.0, 0.0, least  # `best`: `least`, or the steps before the highest cumulative reward
    while not ended and (patient or len(trajectory.actions) < best + PATIENCE):
        batched = {key: np.asarray(value)[None] for key, value in observation.items()}
        action = controller.act(batched, greedy=greedy, rng=rng)[0]
        observation, reward, terminated, truncated, info = env.step(action)
        trajectory.actions.append(info.get("action", (int(action[0]), int(action[1]))))
        trajectory.rewards.append(float(reward))
        returned += float(reward)
        if returned > highest:
            highest, best = returned, max(least, len(trajectory.rewards))
        trajectory.infos.append(info)
        trajectory.terminated, ended = bool(terminated), bool(terminated or truncated)
    trajectory.seconds = time.perf_counter() - started
    return trajectory


def _is_paid_at_end(env: gym.Env) -> bool:
    """Return True if rewards of a real environment depend on whole episodes; False for a dream."""
    return isinstance(getattr(env.unwrapped, "reward", None), EpisodeReward)


@dataclass
class BestOf:
    """Several trajectories and the cheapest state that any of them visited."""

    trajectories: list[Trajectory]  # one greedy trajectory per player, then sampled ones
    index: int  # index of the trajectory that visits the cheapest state
    prefix: int  # number of actions of that trajectory before the cheapest state; 0 if it is the initial state
    cost: float  # cost of the cheapest state, in the task's unit
    tried: int  # number of rewrites that the players tried besides the steps of the trajectories

    @property
    def actions(self) -> list[tuple[int, int]]:
        """The actions from the initial state to the cheapest state."""
        return self.trajectories[self.index].actions[: self.prefix]

    @property
    def interactions(self) -> int:
        """The number of rewrites on the real graph."""
        return self.tried + sum(len(trajectory.actions) for trajectory in self.trajectories)


def best_of(players: Sequence, env: gym.Env, samples: int, seed: int, deadline: float = math.inf) -> BestOf:
    """Play a greedy episode of each player, then sampled episodes, and find the cheapest state.

    If several states have the lowest cost, the earliest trajectory is chosen, and in this the earliest state.

    Args:
      players: controllers with equal observations (see `Learner.players`). They take turns in sampled episodes.
      env: an environment with `info["cost"]` from reset and from every step.
      samples: the number of sampled episodes.
      seed: the seed of the greedy episodes; the seed of sampled episode k = 1, 2, … is derived from (seed, k).
      deadline: the value of time.monotonic() after which no episode begins; the first episode is always played.
    """
    trajectories, n = [], len(players)
    before = sum(player.acting_steps for player in players)
    while len(trajectories) < n + samples and (not trajectories or time.monotonic() < deadline):
        number = len(trajectories)
        sampled = max(number - n + 1, 0)  # number of the sampled episode; 0 for a greedy one
        own = derive_seed(seed, sampled) if sampled else seed  # with seed + k, runs of adjacent seeds would draw alike
        trajectories.append(rollout(players[number % n], env, greedy=not sampled, seed=own))
    cost, index, prefix = min(
        (cost, index, prefix)
        for index, trajectory in enumerate(trajectories)
        for prefix, cost in enumerate(trajectory.costs)
    )
    return BestOf(trajectories, index, prefix, cost, sum(player.acting_steps for player in players) - before)
