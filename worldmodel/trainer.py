"""The loop under every training of a neural world model or a controller.

A training repeats one update until it has made all its steps. `Trainer` does all that surrounds the update: it restores
the last checkpoint, writes new ones, writes curves, reports progress and stops early. This module imports no
TensorFlow, since not every controller needs it. `worldmodel.weights` clips gradients and turns variables into
arrays.

A kill at any moment changes no result. The rules for an update that keep this true:

- All randomness of an update is a function of the seed and of the number of the step.
- The update counts its step itself, as its last act. A checkpoint therefore never holds half a step.
- Whatever an update reads must be part of the checkpoint, or be computed again from the data.

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
STATE = "state/"  # before the names of a training's own arrays in a checkpoint

Metrics = Mapping[str, float]
Log = Callable[[int, Metrics], None]  # (where on the horizontal axis, values by name of the curve)
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
    """The place where a training keeps its state. A record is what the trainer itself keeps: plain JSON values."""

    def read(self) -> dict:
        """Restore the state, and return the record that was written with it; {} if there is no checkpoint.

        Raises:
          RLFlowError: the checkpoint is damaged, or belongs to a training with other data or options.
        """

    def write(self, record: dict) -> None:
        """Write the state and the record, whole or not at all. Equal states give equal bytes."""


class ArrayCheckpoint:
    """One .npz file with the description of the training, the trainer's record and the arrays of the state.

    Args:
      path: the file.
      description: all that the steps depend on, by name; a file with another one is refused.
      arrays: returns the state, {name: array}.
      restore: takes over such a state; raises RLFlowError if names or shapes differ.
    """

    def __init__(self, path: Path, description: dict, arrays: Callable[[], Arrays], restore: Callable[[Arrays], None]):
        self.path, self.description = path, json.loads(json.dumps(description))  # lists, as they are written
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
    """Looks at a held-out measure now and then, keeps the best state, and ends a training that gets no better.

    Args:
      every: steps between two looks; the last step is looked at as well.
      patience: looks without a better value after which the training ends; 0: there are no looks.
      keep: stores the state as the best one so far.
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
    """Repeats an update until a training is complete.

    Args:
      checkpoint: is read at once, and written when it is due and at the end of each run.
      every, seconds: the checkpoint is due when the position passes a multiple of `every` (0: never), and when the last
        one is older than `seconds`.
      log: is called with the metrics of every `log_every`-th step, and of the last one.
      progress: is called after every step with the position and the metrics of the step.
      early_stop: judges those runs that are given a held-out measure.

    Attributes:
      metrics: the last value of every metric so far, those before a restart included.
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
        """Make the remaining steps, and return the last value of every metric.

        Args:
          update: makes one step and returns its metrics; it counts the step last, after `check_finite`.
          position: how many steps were made. One update may count as several.
          total: the position at which the training is complete.
          at: the horizontal axis of the curves; by default the position.
          held_out: the measure of the early stop.
          first: the position where this run began, from which the looks at the held-out measure are counted.

        Raises:
          Diverged: by the update; the last checkpoint is left as it is.
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
    """Return a `progress` that moves a tqdm-like bar and shows the losses; None for no bar.

    first: steps that are restored from a checkpoint, which the bar shows at once.
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
