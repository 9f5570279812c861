"""Training on the real environment: the model-free baseline, with limits on interactions and on measurement time.

A world model, if there is one, only encodes the observations (z, h, match classes). Every step of every copy rewrites
the real graph and counts as one interaction, also in evaluations. At a limit the training ends with its last
checkpoint. A killed training continues from its last checkpoint, and steps that are played again count once.

The measurement of a graph also counts once, even if the graph is visited again. The file of `Measurements` holds the
seconds of each measured graph, so a killed training reaches the limit at the same step as an uninterrupted one. The
file also holds the fastest measured graph, which is a result even if the agent never returns to it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from controllers.base import Learner, StopReason
from rlflow.common import files
from rlflow.common.errors import RLFlowError
from rlflow.common.task import Observes


class LimitReached(Exception):
    """Raised when a limit of a training on the real environment is reached.

    Attributes:
      limit: the limit in words, such as "10000 interactions".
      option: the name of the option that sets the limit.
    """

    def __init__(self, limit: str, option: str):
        super().__init__(limit)
        self.limit, self.option = limit, option


@dataclass
class Interactions:
    """A counter of the steps of all copies of a real environment: `used` steps so far, at most `limit`."""

    limit: int
    used: int = 0

    def use(self, steps: int) -> None:
        """Add steps to `used`. If the sum would exceed the limit, leave `used` unchanged and raise LimitReached."""
        if self.used + steps > self.limit:
            raise LimitReached(f"{self.limit} interactions", "controller.interactions")
        self.used += steps


class Measurements:
    """The seconds that a training has spent on measurements, with one entry per graph, kept in a file.

    Args:
      path: the file; it is written at every change, and read if it exists.
      limit: the largest sum of seconds, or None for no limit; the measurement that exceeds the limit is the last one.

    Attributes:
      best: the fastest graph: {"latency": its latency relative to the initial graph, "actions": the [xfer_id, location]
        pairs that lead to it}. None before the first measurement.
    """

    def __init__(self, path: Path, limit: float | None):
        self.path, self.limit = path, limit
        kept = files.read_json(path) if path.exists() else {"until": {}, "best": None}
        self._until: dict[str, float] = kept["until"]  # hash of a graph → total seconds after its measurement
        self.best: dict | None = kept["best"]

    @property
    def seconds(self) -> float:
        """The sum of the measurement seconds of all graphs that have an entry."""
        return max(self._until.values(), default=0.0)

    def met(self, latency: float, actions: Sequence[list[int]]) -> None:
        """Store a state as `best` if its latency is the lowest so far.

        Args:
          latency: the latency of the state relative to the initial state; NaN if it was not measured.
          actions: the [xfer_id, location] pairs that lead to the state.
        """
        if latency < (self.best["latency"] if self.best else math.inf):
            self.best = {"latency": latency, "actions": list(actions)}
            self._write()

    def charge(self, measured: Mapping[str, float]) -> None:
        """Add the measurement seconds of graphs that have no entry yet.

        Args:
          measured: hash of a graph → seconds that its measurement took.

        Raises:
          LimitReached: the sum of seconds after the measurement of one of these graphs exceeds the limit.
        """
        new = [key for key in measured if key not in self._until]
        for key in new:
            self._until[key] = self.seconds + measured[key]
        if new:
            self._write()
        if self.limit is not None and any(self._until[key] > self.limit for key in measured):
            raise LimitReached(f"{self.limit:g} seconds of measurement", "controller.measurement_seconds")

    def _write(self) -> None:
        files.write_json(self.path, {"until": self._until, "best": self.best})


class ChargedEnv(gymnasium.Wrapper):
    """A wrapper of `rlflow.env.step.StepEnv` that adds the seconds of its measurements to a `Measurements`.

    Args:
      env: the environment.
      measurements: receives the seconds of measurements.
      own: True to store the fastest graph in `measurements`, too. False for further models of a training.
    """

    def __init__(self, env: gymnasium.Env, measurements: Measurements, own: bool = True):
        super().__init__(env)
        self._measurements, self._own = measurements, own

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self._actions: list[list[int]] = []
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        before = self.env.unwrapped.state
        result = self.env.step(action)
        if self.env.unwrapped.state is not before:
            self._actions.append([int(action[0]), int(action[1])])
        if self._own:
            self._measurements.met(result[-1].get("latency", math.nan), self._actions)
        *_, earnings = self.env.unwrapped.save_state()
        self._measurements.charge(earnings.measurements)
        return result


class CountedEnv(gymnasium.Wrapper):
    """A wrapper of an environment that counts every step as one interaction."""

    def __init__(self, env: gymnasium.Env, interactions: Interactions):
        super().__init__(env)
        self._interactions = interactions

    def step(self, action):
        self._interactions.use(1)
        return self.env.step(action)

    def spend(self, steps: int) -> None:
        """Count rewrites that a search tried on the real graph, such as beam search for imitation, as interactions."""
        self._interactions.use(steps)


class CountedVectorEnv(SyncVectorEnv):
    """A vector environment of n copies in AutoresetMode.SAME_STEP, as in dreams; each step counts as n interactions.

    `metadata["deterministic"]` is True: episodes with equal actions are equal.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], n: int, interactions: Interactions):
        super().__init__([make] * n, autoreset_mode=AutoresetMode.SAME_STEP)
        self.metadata, self._interactions = self.metadata | {"deterministic": True}, interactions

    def step(self, actions: np.ndarray) -> tuple[dict, np.ndarray, np.ndarray, np.ndarray, dict]:
        self._interactions.use(self.num_envs)
        return super().step(actions)


def train_for_real(
    controller: Learner, make: Callable[[], gymnasium.Env], limit: int, seed: int, folder: Path, log=None,
    progress=None,
) -> dict:
    """Train on copies of a real environment until the training ends or a limit is reached.

    At a limit the controller returns to its last checkpoint. A resumed training ends like an uninterrupted one.

    Args:
      controller: the controller to train.
      make: a function that returns a new environment, with latent spaces or as a `rlflow.env.candidates.CandidateEnv`,
        as the controller needs. Its steps may raise LimitReached.
      limit: the largest number of interactions.
      seed, folder, log, progress: see `Controller.train`.

    Returns:
      The results of `Controller.train`; "env_steps" is the number of interactions.

    Raises:
      RLFlowError: a limit is reached before the first checkpoint with trained weights.
    """
    controller.resume(folder, seed)
    interactions = Interactions(limit, controller.env_steps)

    def copies(n: int) -> CountedVectorEnv:
        return CountedVectorEnv(make, n, interactions)

    def single() -> CountedEnv:
        return CountedEnv(make(), interactions)

    try:
        if not _has_learned_checkpoint(controller, folder):
            Interactions(limit).use(controller.first_checkpoint())
        make_env = copies if controller.config.observes == Observes.LATENT else single
        results = controller.train(make_env, seed, folder, log, progress)
        return results | {"env_steps": interactions.used}
    except LimitReached as reached:
        if controller.has_checkpoint(folder):
            controller.load(folder)
        if not _has_learned_checkpoint(controller, folder):
            needed = controller.first_checkpoint()
            raise RLFlowError(
                f"{reached.limit} do not last until the first checkpoint of {controller.name}; raise {reached.option}"
                + (f" (it takes {needed} interactions, and those of evaluations)" if needed else "")
            ) from None
        return controller.results(StopReason.BUDGET, reached.limit) | {"env_steps": interactions.used}


def _has_learned_checkpoint(controller: Learner, folder: Path) -> bool:
    """Return True if the folder holds a checkpoint with trained weights.

    Args:
      controller: the controller, which has loaded the checkpoint if there is one.
      folder: the folder of the checkpoint.
    """
    if not controller.has_checkpoint(folder):
        return False
    return controller.first_checkpoint() == 0 or controller.iterations > 0
