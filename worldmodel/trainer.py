"""The training loop of all neural world models and controllers.

A training repeats one update until it has made all its steps. `Trainer` does everything else: it restores the last
checkpoint, writes new ones, logs curves, reports progress and stops early. This module does not import TensorFlow,
because some controllers do not need it.

An interrupted and resumed training gives the same result as an uninterrupted one. Every update must keep these rules:

- All randomness of an update is a function of the seed and of the step number.
- The update increments the step number as its last act. A checkpoint therefore never holds half a step.
- Everything that an update reads is part of the checkpoint, or is recomputed from the data.

    trainer = Trainer(ArrayCheckpoint(path, description, state.arrays, state.restore), seconds=30, log=log)
    metrics = trainer.run(update, position=lambda: state.step, total=1000)
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_arrays, write_arrays

LOG_EVERY = 10  # steps between two points of a world model's curves
STATE = "state/"  # prefix of the training's own arrays in a checkpoint

Metrics = Mapping[str, float]
Log = Callable[[int, Metrics], None]  # (x-axis value, {name of a curve: value})
Arrays = dict[str, np.ndarray]


class Diverged(RLFlowError):
    """Raised when a number of a training is no longer finite."""

    def __init__(self, step: int, name: str, value: float):
        super().__init__(f"training step {step}: {name} is {value}; a lower learning_rate may help")


def check_finite(metrics: Metrics, step: int) -> None:
    """Raise Diverged for the first metric that is not finite. Call it before the step is counted."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise Diverged(step, name, float(value))


class Checkpoint(Protocol):
    """Storage for the state of a training and the trainer's record, a dictionary of plain JSON values."""

    def read(self) -> dict:
        """Restore the state, and return the record that was written with the state; {} if there is no checkpoint.

        Raises:
          RLFlowError: the checkpoint is damaged, or belongs to a training with other data or options.
        """

    def write(self, record: dict) -> None:
        """Write the state and the record, whole or not at all. Equal states give equal bytes."""


class ArrayCheckpoint:
    """An .npz file with the description of the training, the trainer's record and the arrays of the state.

    Args:
      path: the file.
      description: everything that the steps depend on, by name; a file with another description is refused.
      arrays: returns the state, {name: array}.
      restore: sets such a state; raises RLFlowError if names or shapes differ.
    """

    def __init__(self, path: Path, description: dict, arrays: Callable[[], Arrays], restore: Callable[[Arrays], None]):
        self.path, self.description = path, json.loads(json.dumps(description))   # tuples become lists, as in the file
        self._arrays, self._restore = arrays, restore

    def read(self) -> dict:
        if not self.path.exists():
            return {}
        arrays = read_arrays(self.path)
        saved = json.loads(str(arrays.get("description", "{}")))
        for name, value in self.description.items():
            if saved.get(name) != value:
                raise RLFlowError(
                    f"{self.path} was written by a training with another {name}; use another folder, or delete it"
                )
        self._restore({name.removeprefix(STATE): array for name, array in arrays.items() if name.startswith(STATE)})
        return json.loads(str(arrays.get("record", "{}")))

    def write(self, record: dict) -> None:
        texts = {"description": np.array(json.dumps(self.description)), "record": np.array(json.dumps(record))}
        write_arrays(self.path, texts | {STATE + name: array for name, array in self._arrays().items()})


class EarlyStop:
    """Early stopping: keep the state with the lowest held-out measure, and stop when that measure no longer improves.

    Args:
      every: steps between two evaluations; the last step is also evaluated.
      patience: evaluations without improvement before the training stops; 0 disables early stopping.
      keep: stores the current state as the best one.
    """

    def __init__(self, every: int, patience: int, keep: Callable[[], None]):
        self.every, self.patience, self.keep = every, patience, keep
        self.best, self.stale = math.inf, 0

    @property
    def is_stale(self) -> bool:
        return 0 < self.patience <= self.stale

    def look(self, value: float) -> None:
        if value < self.best:
            self.keep()
            self.best, self.stale = value, 0
        else:
            self.stale += 1


class Trainer:
    """A loop that repeats an update until a training is complete.

    Args:
      checkpoint: read at once; written when due and at the end of each run.
      every: a checkpoint is due when the position passes a multiple of `every`; 0: never.
      seconds: a checkpoint is also due when the last one is older than this.
      log: called with the metrics of every `log_every`-th step and of the last step.
      log_every: steps between two calls of `log`.
      progress: called after every step with the position and the metrics of the step.
      early_stop: used in runs with a held-out measure.

    Attributes:
      metrics: the last value of every metric, from before a restart if there is no newer one.
    """

    def __init__(
        self, checkpoint: Checkpoint, *, every: int = 0, seconds: float = math.inf, log: Log | None = None,
        log_every: int = 1, progress: Callable[[int, Metrics], None] | None = None, early_stop: EarlyStop | None = None,
    ):  # fmt: skip
        self.checkpoint, self.every, self.seconds = checkpoint, every, seconds
        self.log, self.log_every, self.progress = log, log_every, progress
        self.early_stop = early_stop or EarlyStop(1, 0, lambda: None)
        record = checkpoint.read()
        self.metrics: dict[str, float] = record.get("metrics", {})
        self.early_stop.best, self.early_stop.stale = record.get("best", math.inf), record.get("stale", 0)
        self._written = time.monotonic()

    def run(
        self, update: Callable[[], Metrics], position: Callable[[], int], total: int,
        at: Callable[[], int] | None = None, held_out: Callable[[], float] | None = None, first: int = 0,
    ) -> dict[str, float]:  # fmt: skip
        """Run the remaining training steps and return the last value of every metric.

        Args:
          update: makes one step and returns its metrics; increments the step number last, after `check_finite`.
          position: returns the number of steps made. One update may count as several.
          total: the position at which the training is complete.
          at: returns the x-axis value of the curves; the position by default.
          held_out: returns the measure for early stopping.
          first: the position at which this run began; evaluations of the held-out measure are counted from there.

        Raises:
          Diverged: raised by the update; the last checkpoint is left unchanged.
        """
        at, is_saved = at or position, True
        while (before := position()) < total and not self.early_stop.is_stale:
            metrics = {name: float(value) for name, value in update().items()}
            self.metrics |= metrics
            now, shown = position(), {}
            if _passes(before, now, self.log_every, total):
                shown = dict(metrics)
            stop = self.early_stop
            if held_out and stop.patience and _passes(before - first, now - first, stop.every, total - first):
                shown["held_out_loss"] = held_out()
                stop.look(shown["held_out_loss"])
            is_saved = self._is_due(before, now)
            if is_saved:
                self.write()
            if self.log is not None and shown:
                self.log(at(), shown)
            if self.progress is not None:
                self.progress(now, metrics)
        if not is_saved:
            self.write()
        return self.metrics

    def write(self) -> None:
        """Write a checkpoint now."""
        best, stale = self.early_stop.best, self.early_stop.stale
        self.checkpoint.write({"metrics": self.metrics, "best": best, "stale": stale})
        self._written = time.monotonic()

    def _is_due(self, before: int, now: int) -> bool:
        passed = self.every > 0 and before // self.every < now // self.every
        return passed or time.monotonic() - self._written >= self.seconds


def _passes(before: int, now: int, every: int, total: int) -> bool:
    """Return whether a step from `before` to `now` passes a multiple of `every`, or is the last one."""
    return before // every < now // every or now >= total


def shown_on(bar, first: int = 0) -> Callable[[int, Metrics], None] | None:
    """Return a `progress` callback that moves a tqdm-like bar and shows the losses; None if there is no bar.

    Args:
      bar: the bar, or None.
      first: steps restored from a checkpoint; the bar shows them at once.
    """
    if bar is None:
        return None
    done = first
    bar.update(first)

    def show(position: int, metrics: Metrics) -> None:
        nonlocal done
        losses = {name: f"{value:.3g}" for name, value in metrics.items() if name.rpartition("/")[2] == "loss"}
        bar.set_postfix(losses, refresh=False)
        done, more = position, position - done
        bar.update(more)

    return show
