"""Playing episodes: batched ones for a mean return, single ones on a (real) environment for their best state.

No TensorFlow here, and nothing of the environment is known but its latent spaces and, for `best_of`, that
`info["cost"]` (ms) is given at reset and at every step.
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
    """Every copy plays from reset to its first end, at most `max_steps` steps.

    `act(observation)` gives int [n, 2]. Returns the undiscounted returns float64 [n] and the lengths int64 [n].
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
    """One episode of T steps: `infos` has T + 1 entries, the first one from reset."""

    actions: list[tuple[int, int]] = field(default_factory=list)  # (xfer_id, location), as the environment numbers
    rewards: list[float] = field(default_factory=list)
    infos: list[dict] = field(default_factory=list)
    terminated: bool = False  # ended by the task (NO-OP); else it was truncated
    seconds: float = field(default=0.0, compare=False)  # that it took, the environment's steps included

    @property
    def costs(self) -> list[float]:
        """The cost (ms) of the T + 1 visited states."""
        return [float(info["cost"]) for info in self.infos]


def rollout(controller, env: gym.Env, greedy: bool, seed: int) -> Trajectory:
    """Plays one episode on a single environment with the latent spaces; the controller sees a batch of one."""
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
    """Several trajectories and the cheapest state among all that they visited."""

    trajectories: list[Trajectory]  # the greedy ones first, one a player, then sampled ones, of each in turn
    index: int  # the trajectory that visits the cheapest state
    prefix: int  # how many of its actions lead there; 0 is the initial state
    cost: float  # ms

    @property
    def actions(self) -> list[tuple[int, int]]:
        """The actions from the initial state to the cheapest one."""
        return self.trajectories[self.index].actions[: self.prefix]


def best_of(players: Sequence, env: gym.Env, samples: int, seed: int, deadline: float = math.inf) -> BestOf:
    """A greedy episode of each player, and `samples` sampled ones of all in turn. Of equal costs the earlier trajectory
    and the shorter prefix win.

    players: controllers that see the same, as `Learner.players` has them.
    deadline: of time.monotonic(), after which no further episode begins; the first is always played.
    """
    trajectories, n = [], len(players)
    while len(trajectories) < n + samples and (not trajectories or time.monotonic() < deadline):
        number = len(trajectories)
        sampled = max(number - n + 1, 0)  # which of them it is; 0: a greedy one
        trajectories.append(rollout(players[number % n], env, greedy=not sampled, seed=seed + sampled))
    cost, index, prefix = min(
        (cost, index, prefix)
        for index, trajectory in enumerate(trajectories)
        for prefix, cost in enumerate(trajectory.costs)
    )
    return BestOf(trajectories, index, prefix, cost)
