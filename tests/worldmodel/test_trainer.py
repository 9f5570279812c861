"""Test the training loop: a killed run ends with the same result, and logs and checkpoints come at the requested
steps."""

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from worldmodel.trainer import ArrayCheckpoint, Diverged, EarlyStop, Trainer, check_finite

TOTAL = 25


class Counter:
    """A training whose state is a step counter and a sum that depends on the order of all steps."""

    def __init__(self, jump: int = 1, diverges_at: int | None = None):
        self.step, self.sum, self.jump, self.diverges_at = 0, 0.0, jump, diverges_at

    def update(self) -> dict:
        loss = 1.0 / (self.step + 1)
        check_finite({"loss": np.nan if self.step == self.diverges_at else loss}, self.step)
        self.sum = 0.9 * self.sum + loss
        self.step += self.jump
        return {"loss": loss}

    def arrays(self) -> dict:
        return {"step": np.array(self.step), "sum": np.array(self.sum)}

    def restore(self, arrays: dict) -> None:
        self.step, self.sum = int(arrays["step"]), float(arrays["sum"])


def checkpoint(counter: Counter, path, **description) -> ArrayCheckpoint:
    return ArrayCheckpoint(path, {"seed": 0, **description}, counter.arrays, counter.restore)


def run(path, counter=None, total=TOTAL, **options) -> tuple[Counter, dict]:
    counter = counter or Counter()
    trainer = Trainer(checkpoint(counter, path), every=4, **options)
    return counter, trainer.run(counter.update, lambda: counter.step, total)


@pytest.mark.parametrize("place", ["log", "progress", "update"])
def test_a_training_killed_anywhere_and_resumed_equals_an_uninterrupted_one(tmp_path, place):
    whole, metrics = run(tmp_path / "whole.npz")

    def killed(at, *_):
        if at == 14:
            raise KeyboardInterrupt

    counter = Counter()
    if place == "update":
        update = counter.update
        counter.update = lambda: (killed(counter.step), update())[1]
    options = {place: killed} if place != "update" else {}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut.npz", counter, **options)
    again, metrics_again = run(tmp_path / "cut.npz")
    assert (again.step, again.sum, metrics_again) == (whole.step, whole.sum, metrics)
    assert (tmp_path / "cut.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_every_tenth_step_and_the_last_are_logged(tmp_path):
    logged = []
    run(tmp_path / "c.npz", log=lambda step, metrics: logged.append(step), log_every=10)
    assert logged == [10, 20, TOTAL]


def test_a_step_that_jumps_over_a_multiple_of_log_every_is_logged(tmp_path):
    logged = []
    run(tmp_path / "c.npz", Counter(jump=3), 24, log=lambda step, metrics: logged.append(step), log_every=10)
    assert logged == [12, 21, 24]


def test_a_stale_training_stops_and_makes_no_further_step_after_a_restart(tmp_path):
    values, kept = iter([3.0, 3.5, 2.0, 2.5, 2.5, 1.0]), []

    def trained(counter: Counter) -> EarlyStop:
        stop = EarlyStop(every=2, patience=2, keep=lambda: kept.append(counter.step))
        trainer = Trainer(checkpoint(counter, tmp_path / "c.npz"), early_stop=stop)
        trainer.run(counter.update, lambda: counter.step, TOTAL, held_out=lambda: next(values))
        return stop

    counter = Counter()
    stop = trained(counter)
    assert counter.step == 10 and kept == [2, 6] and (stop.best, stop.stale) == (2.0, 2)
    again = Counter()
    assert trained(again).is_stale and again.step == 10


def test_early_stopping_also_evaluates_the_last_step(tmp_path):
    looked, counter = [], Counter()
    stop = EarlyStop(every=10, patience=9, keep=lambda: None)
    trainer = Trainer(checkpoint(counter, tmp_path / "c.npz"), early_stop=stop)
    trainer.run(counter.update, lambda: counter.step, TOTAL, held_out=lambda: looked.append(counter.step) or 1.0)
    assert looked == [10, 20, TOTAL]


def test_a_divergence_names_step_and_metric_and_leaves_the_last_checkpoint(tmp_path):
    with pytest.raises(Diverged, match="training step 10: loss is nan"):
        run(tmp_path / "c.npz", Counter(diverges_at=10))
    restored = Counter()
    checkpoint(restored, tmp_path / "c.npz").read()
    assert restored.step == 8  # The last multiple of `every` before the divergence.


def test_a_checkpoint_of_another_training_is_refused_by_the_key_that_differs(tmp_path):
    run(tmp_path / "c.npz")
    with pytest.raises(RLFlowError, match="another seed"):
        checkpoint(Counter(), tmp_path / "c.npz", seed=1).read()
