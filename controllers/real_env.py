"""Learning on the real environment itself: the model-free baseline, under a budget of interactions.

The world model only shows it (z, h, match classes); every step of every copy is a rewrite of the real graph and is
counted, those of evaluations and of copies that play on included. At the limit the last checkpoint is what was learnt;
steps since a checkpoint are played again after a kill, and count once. An agent that learns in the dream needs none of
them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from controllers.base import Controller, StopReason
from rlflow.common.errors import RLFlowError


class LimitReached(Exception):
    """The next step would exceed the limit of interactions."""


@dataclass
class Interactions:
    """Steps of real environments, all copies together: at most `limit`, of which some are used."""

    limit: int
    used: int = 0

    def use(self, steps: int) -> None:
        """Raises LimitReached, and then counts nothing."""
        if self.used + steps > self.limit:
            raise LimitReached
        self.used += steps


class CountedVectorEnv(SyncVectorEnv):
    """n copies side by side, AutoresetMode.SAME_STEP as in the dream; a step of all of them is n interactions."""

    def __init__(self, make: Callable[[], gymnasium.Env], n: int, interactions: Interactions):
        super().__init__([make] * n, autoreset_mode=AutoresetMode.SAME_STEP)
        self._interactions = interactions

    def step(self, actions: np.ndarray) -> tuple[dict, np.ndarray, np.ndarray, np.ndarray, dict]:
        self._interactions.use(self.num_envs)
        return super().step(actions)


def train_for_real(
    controller: Controller, make: Callable[[], gymnasium.Env], limit: int, seed: int, folder: Path, log=None,
    progress=None,
) -> dict:
    """Trains on copies of a real environment with the latent spaces, until the training ends or the limit is reached.

    What the controller knew at its last checkpoint then counts; a training that is killed and resumed ends the same,
    since steps since a checkpoint are played again and counted once. The results are those of `Controller.train`.

    Raises RLFlowError: the limit does not last until the first checkpoint.
    """
    controller.resume(folder, seed)
    interactions = Interactions(limit, getattr(controller, "env_steps", 0))
    try:
        results = controller.train(lambda n: CountedVectorEnv(make, n, interactions), seed, folder, log, progress)
        return results | {"env_steps": interactions.used}
    except LimitReached:
        if not (Path(folder) / "controller.json").exists():
            raise RLFlowError(
                f"{limit} interactions do not last until the first checkpoint of {controller.name}; "
                "raise controller.interactions"
            ) from None
        controller.load(folder)
        return {
            "stop_reason": StopReason.BUDGET, "detail": f"{limit} interactions", "best_return": controller.best_return,
            "iterations": controller.iterations, "env_steps": interactions.used,
        }  # fmt: skip
