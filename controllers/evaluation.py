"""Episodes of a controller: batches for a mean return, single episodes for the cheapest visited state.

This module imports no TensorFlow. It relies on the latent spaces of the environment alone. `best_of` also needs
`info["cost"]` (ms) from reset and from every step.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from rlflow.common.errors import RLFlowError


def play(env: VectorEnv, act: Callable, seed: int, max_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Play one episode in each copy of a vector environment.

    Args:
      env: n copies.
      act: observation -> actions int [n, 2].
      seed: the seed of the reset.
      max_steps: the largest number of steps.

    Returns:
      The undiscounted returns float64 [n] and the episode lengths int64 [n].

    Raises:
      RLFlowError: a return is not finite.
    """
    observation, _ = env.reset(seed=seed)
    returns, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
    playing = np.ones(env.num_envs, bool)
    for _ in range(max_steps):
        observation, rewards, terminated, truncated, _ = env.step(act(observation))
        returns += np.where(playing, rewards, 0.0)
        lengths += playing
        playing &= ~(terminated | truncated)
        if not playing.any():
            break
    if not np.isfinite(returns).all():
        raise RLFlowError("the environment gave a reward that is not finite; a world model may have diverged")
    return returns, lengths


@dataclass
class Trajectory:
    """One episode of T steps. `infos` has T + 1 entries; the first comes from reset."""

    actions: list[tuple[int, int]] = field(default_factory=list)  # (xfer_id, location), numbered as in the environment
    rewards: list[float] = field(default_factory=list)
    infos: list[dict] = field(default_factory=list)
    terminated: bool = False  # ended by the task (NO-OP), not truncated
    seconds: float = field(default=0.0, compare=False)  # wall-clock time, environment steps included

    @property
    def costs(self) -> list[float]:
        """The costs (ms) of the T + 1 visited states."""
        return [float(info["cost"]) for info in self.infos]


def rollout(controller, env: gym.Env, greedy: bool, seed: int) -> Trajectory:
    """Play one episode in a single environment; the controller receives a batch of one.

    Args:
      controller: anything with `act` as in `controllers.base.Controller`.
      env: an environment whose observations the controller accepts.
      greedy: take the most probable actions; otherwise sample.
      seed: the seed of the reset and of sampling.
    """
    rng, started = np.random.default_rng(seed), time.perf_counter()
    observation, info = env.reset(seed=seed)
    trajectory, ended = Trajectory(infos=[info]), False
    while not ended:
        batched = {key: np.asarray(value)[None] for key, value in observation.items()}
        action = controller.act(batched, greedy=greedy, rng=rng)[0]
        observation, reward, terminated, truncated, info = env.step(action)
        trajectory.actions.append(info.get("action", (int(action[0]), int(action[1]))))
        trajectory.rewards.append(float(reward))
        trajectory.infos.append(info)
        trajectory.terminated, ended = bool(terminated), bool(terminated or truncated)
    trajectory.seconds = time.perf_counter() - started
    return trajectory


@dataclass
class BestOf:
    """Several trajectories and the cheapest state that any of them visited."""

    trajectories: list[Trajectory]  # one greedy trajectory per player, then sampled ones
    index: int  # index of the trajectory with the cheapest state
    prefix: int  # number of actions to that state; 0 is the initial state
    cost: float  # ms

    @property
    def actions(self) -> list[tuple[int, int]]:
        """The actions from the initial state to the cheapest one."""
        return self.trajectories[self.index].actions[: self.prefix]


def best_of(players: Sequence, env: gym.Env, samples: int, seed: int, deadline: float = math.inf) -> BestOf:
    """Play a greedy episode of each player, then sampled episodes, and find the cheapest state.

    Between equal costs the earlier trajectory wins, then the shorter prefix.

    Args:
      players: controllers with equal observations, see `Learner.players`. They take turns in sampled episodes.
      env: an environment with `info["cost"]` (ms).
      samples: the number of sampled episodes.
      seed: the seed of the greedy episodes; sampled episode k has seed + k.
      deadline: the value of time.monotonic() after which no episode begins; the first one is always played.
    """
    trajectories, n = [], len(players)
    while len(trajectories) < n + samples and (not trajectories or time.monotonic() < deadline):
        number = len(trajectories)
        sampled = max(number - n + 1, 0)  # number of the sampled episode; 0 for a greedy one
        trajectories.append(rollout(players[number % n], env, greedy=not sampled, seed=seed + sampled))
    cost, index, prefix = min(
        (cost, index, prefix)
        for index, trajectory in enumerate(trajectories)
        for prefix, cost in enumerate(trajectory.costs)
    )
    return BestOf(trajectories, index, prefix, cost)
