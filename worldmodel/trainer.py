"""The training loop of all neural world models and controllers.

A training defines an update function, which makes one step. `Trainer` calls this function until all steps are made.
`Trainer` also restores the last checkpoint, writes new checkpoints, logs curves, reports progress and stops early. This
module does not import TensorFlow, because some controllers do not need it.

A resumed training gives the same result as an uninterrupted training, if the update function keeps these rules:

- The random numbers of a step depend only on the seed and on the step number.
- The update increments the step number last, so a checkpoint never contains an incomplete step.
- Everything that the update reads is part of the checkpoint or is computed from the data.

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

from rlflow.common.errors import DIVERGED, RLFlowError
from rlflow.common.files import read_arrays, write_arrays

LOG_EVERY = 10  # training steps between two points of a world model's curves
STATE = "state/"  # prefix of the names of the arrays of the training's state in a checkpoint

Metrics = Mapping[str, float]
Log = Callable[[int, Metrics], None]  # called with (x-axis value, {name of a curve: value})
Arrays = dict[str, np.ndarray]


class Diverged(RLFlowError):
    """Raised if a metric of a training step is infinite or NaN."""

    def __init__(self, step: int, name: str, value: float):
        super().__init__(f"{DIVERGED} {step}: {name} is {value}; a lower learning_rate may help")
        self.step = step


def check_finite(metrics: Metrics, step: int) -> None:
    """Raise Diverged for the first metric that is infinite or NaN. Call this before the step number is incremented.

    Args:
      metrics: {name: value} of one training step.
      step: the step number, for the message.
    """
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise Diverged(step, name, float(value))


class Checkpoint(Protocol):
    """A store for the state of a training together with the record of its `Trainer`, a dictionary of JSON values."""

    def read(self) -> dict:
        """Restore the stored state of the training and return the record stored with it.

        Without a checkpoint, return {} and leave the state unchanged.

        Raises:
          RLFlowError: the checkpoint is damaged, or belongs to a training with different data or options.
        """

    def write(self, record: dict) -> None:
        """Write the training's state and the record atomically; equal states and records give equal bytes."""


class ArrayCheckpoint:
    """A `Checkpoint` in an .npz file, with the arrays of the state, the record and the description of the training.

    Args:
      path: the file.
      description: {name: JSON value} of everything that determines the steps of the training. `read` raises RLFlowError
        if the file contains a different value.
      arrays: a function that returns the training's state as {name: array}.
      restore: a function that sets the training's state from {name: array}; it raises RLFlowError if names or shapes
        differ.
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
    """Early stopping on a held-out loss. It stores the state with the lowest loss and detects a lack of progress.

    Args:
      every: number of steps between two evaluations of the held-out loss; the last step is also evaluated.
      patience: number of evaluations without a lower loss after which the training stops; 0 disables early stopping.
      keep: a function that stores the current state of the training as the best state.
    """

    def __init__(self, every: int, patience: int, keep: Callable[[], None]):
        self.every, self.patience, self.keep = every, patience, keep
        self.best, self.stale = math.inf, 0

    @property
    def is_stale(self) -> bool:
        """True if the last `patience` evaluations brought no lower loss, so that the training should stop."""
        return 0 < self.patience <= self.stale

    def look(self, value: float) -> None:
        """Record a held-out loss, and call `keep` if it is the lowest so far."""
        if value < self.best:
            self.keep()
            self.best, self.stale = value, 0
        else:
            self.stale += 1


class Trainer:
    """A loop that calls an update function until a training is complete.

    Args:
      checkpoint: the checkpoint. It is read at once, and written when it is due and at the end of each `run`.
      every: number of steps after which a checkpoint is due; 0 disables this condition.
      seconds: age of the last checkpoint, in seconds, at which a new checkpoint is due.
      log: called with the metrics of every `log_every`-th step, of the last step, and with each held-out loss.
      log_every: number of steps between two calls of `log`.
      progress: called after every update with the number of steps made and the metrics of the update.
      early_stop: early stopping for calls of `run` with `held_out`.

    Attributes:
      metrics: the last value of every metric; after a restart it begins with the values in the checkpoint.
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
          update: a function that makes one step and returns {name of a metric: value}. It increments the step number
            last, after `check_finite`.
          position: a function that returns the number of steps made so far. One update may count as several steps.
          total: the number of steps at which the training is complete.
          at: a function that returns the x-axis value of the curves; by default the number of steps.
          held_out: a function that returns the held-out loss for early stopping.
          first: the number of steps at which this phase of the training began; the evaluations of the held-out loss
            are counted from there.

        Raises:
          Diverged: raised by `update`; the last checkpoint is left unchanged.
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
        """Write the checkpoint, whether it is due or not."""
        best, stale = self.early_stop.best, self.early_stop.stale
        self.checkpoint.write({"metrics": self.metrics, "best": best, "stale": stale})
        self._written = time.monotonic()

    def _is_due(self, before: int, now: int) -> bool:
        passed = self.every > 0 and before // self.every < now // self.every
        return passed or time.monotonic() - self._written >= self.seconds


def _passes(before: int, now: int, every: int, total: int) -> bool:
    """Return True if an update from `before` to `now` steps reaches a multiple of `every` or reaches `total`."""
    return before // every < now // every or now >= total


def shown_on(bar, first: int = 0) -> Callable[[int, Metrics], None] | None:
    """Return a `progress` callback for `Trainer` that advances a tqdm-like bar and shows the losses on it.

    Args:
      bar: the progress bar; None gives None.
      first: number of steps that were restored from a checkpoint; the bar advances by them at once.
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
