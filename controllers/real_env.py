"""Learning on the real environment itself: the model-free baseline, under a budget of interactions, and of measurement.

A world model, if there is one, only shows it (z, h, match classes); every step of every copy is a rewrite of the real
graph and is counted, those of evaluations and of copies that play on included. At the limit the last checkpoint is what
was learnt; steps since a checkpoint are played again after a kill, and count once. An agent that learns in the dream
needs none of them.

Measurement seconds count once for each graph, too. So which graphs were measured is kept in a file of its own, whatever
the last checkpoint is: a training that is killed meets the limit at the same step as one that is not. The fastest of
them is kept there as well, since what was measured is a result, whether the agent goes there again or not.
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
    """A budget is used up. limit: which, in words.  option: that says how much it is."""

    def __init__(self, limit: str, option: str):
        super().__init__(limit)
        self.limit, self.option = limit, option


@dataclass
class Interactions:
    """Steps of real environments, all copies together: at most `limit`, of which some are used."""

    limit: int
    used: int = 0

    def use(self, steps: int) -> None:
        """Raises LimitReached, and then counts nothing."""
        if self.used + steps > self.limit:
            raise LimitReached(f"{self.limit} interactions", "controller.interactions")
        self.used += steps


class Measurements:
    """What the measurements of a training took, each graph once, in a file that outlives a kill.

    limit: seconds; the measurement that exceeds them is the last one. None: there is no limit.

    Attributes:
      best: {"latency": the least that was measured, "actions": the [xfer_id, location] pairs that lead there}; None
        before any was.
    """

    def __init__(self, path: Path, limit: float | None):
        self.path, self.limit = path, limit
        kept = files.read_json(path) if path.exists() else {"until": {}, "best": None}
        self._until: dict[str, float] = kept["until"]  # hash of a graph → seconds when its measurement had ended
        self.best: dict | None = kept["best"]

    @property
    def seconds(self) -> float:
        return max(self._until.values(), default=0.0)

    def met(self, latency: float, actions: Sequence[list[int]]) -> None:
        """latency: of a state, as a share of the initial one's; NaN where it was not measured, or lost."""
        if latency < (self.best["latency"] if self.best else math.inf):
            self.best = {"latency": latency, "actions": list(actions)}
            self._write()

    def charge(self, measured: Mapping[str, float]) -> None:
        """measured: hash → seconds, of graphs some of which were charged before.

        Raises LimitReached if one of them is beyond the limit, now or when it was charged.
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
    """A `rlflow.env.step.StepEnv` whose measurements are charged. own: whether it is of the run's model, so that the
    fastest graph of it is kept."""

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
    """A step of it is an interaction."""

    def __init__(self, env: gymnasium.Env, interactions: Interactions):
        super().__init__(env)
        self._interactions = interactions

    def step(self, action):
        self._interactions.use(1)
        return self.env.step(action)

    def spend(self, steps: int) -> None:
        """Counts steps that a search took on the agent's behalf."""
        self._interactions.use(steps)


class CountedVectorEnv(SyncVectorEnv):
    """n copies side by side, AutoresetMode.SAME_STEP as in the dream; a step of all of them is n interactions."""

    def __init__(self, make: Callable[[], gymnasium.Env], n: int, interactions: Interactions):
        super().__init__([make] * n, autoreset_mode=AutoresetMode.SAME_STEP)
        self._interactions = interactions

    def step(self, actions: np.ndarray) -> tuple[dict, np.ndarray, np.ndarray, np.ndarray, dict]:
        self._interactions.use(self.num_envs)
        return super().step(actions)


def train_for_real(
    controller: Learner, make: Callable[[], gymnasium.Env], limit: int, seed: int, folder: Path, log=None,
    progress=None,
) -> dict:
    """Trains on copies of a real environment as the controller sees it, until the training ends or a limit is reached.

    What the controller knew at its last checkpoint then counts; a training that is killed and resumed ends the same,
    since steps since a checkpoint are played again and counted once. The results are those of `Controller.train`.

    make: with the latent spaces, or a `rlflow.env.candidates.CandidateEnv` for one that sees candidates; its steps may
      raise LimitReached.  limit: of interactions.

    Raises RLFlowError: a limit does not last until the first checkpoint of something learnt; of interactions, before
    any is played.
    """
    controller.resume(folder, seed)
    interactions = Interactions(limit, getattr(controller, "env_steps", 0))

    def copies(n: int) -> CountedVectorEnv:
        return CountedVectorEnv(make, n, interactions)

    def single() -> CountedEnv:
        return CountedEnv(make(), interactions)

    try:
        if not _learnt(controller, folder):
            Interactions(limit).use(controller.first_checkpoint())
        make_env = single if controller.config.observes == Observes.CANDIDATES else copies
        results = controller.train(make_env, seed, folder, log, progress)
        return results | {"env_steps": interactions.used}
    except LimitReached as reached:
        if (Path(folder) / "controller.json").exists():
            controller.load(folder)
        if not _learnt(controller, folder):
            needed = controller.first_checkpoint()
            raise RLFlowError(
                f"{reached.limit} do not last until the first checkpoint of {controller.name}; raise {reached.option}"
                + (f" (it takes {needed} interactions, and those of evaluations)" if needed else "")
            ) from None
        return {
            "stop_reason": StopReason.BUDGET, "detail": reached.limit, "best_return": controller.best_return,
            "iterations": controller.iterations, "env_steps": interactions.used,
        }  # fmt: skip


def _learnt(controller: Learner, folder: Path) -> bool:
    """Whether the folder holds a checkpoint, which the controller has loaded, and not only of what it began as."""
    if not (Path(folder) / "controller.json").exists():
        return False
    return controller.first_checkpoint() == 0 or controller.iterations > 0
