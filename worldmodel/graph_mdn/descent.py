"""Gradient descent on a network, in a way that a kill cannot harm: every batch is a function of the step."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import sonnet as snt
import tensorflow as tf

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_arrays, write_arrays
from worldmodel.checkpoint import module_arrays, restore_arrays

METRICS = "metrics/"  # before their names in a checkpoint
GRADIENT_CLIP = 1.0  # largest global norm
LOG_EVERY = 10  # steps


class Adam(snt.optimizers.Adam):
    """The same, one operation a variable in place of fifteen: half of a step of a small network was these."""

    def apply(self, updates: Sequence[tf.Tensor], parameters: Sequence[tf.Variable]) -> None:
        self._initialize(parameters)
        self.step.assign_add(1)
        beta1, beta2, step = tf.constant(self.beta1), tf.constant(self.beta2), tf.cast(self.step, tf.float32)
        for update, parameter, m, v in zip(updates, parameters, self.m, self.v, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=parameter.handle, m=m.handle, v=v.handle, beta1_power=beta1**step, beta2_power=beta2**step,
                lr=self.learning_rate, beta1=beta1, beta2=beta2, epsilon=self.epsilon, grad=update,
            )  # fmt: skip


class Descent(snt.Module):
    """A network, its optimiser, the step, and the metrics of the last one: all that a checkpoint holds."""

    def __init__(self, network: snt.Module, checkpoint: Path, description: str, every_seconds: float):
        """checkpoint: a file; read if it is there. description: of all that the steps depend on; one written with
        another is refused."""
        super().__init__(name="descent")
        self.network = network
        self.optimiser = Adam(tf.Variable(0.0, trainable=False, name="learning_rate"))
        variables = network.trainable_variables
        self.optimiser.apply([tf.zeros_like(variable) for variable in variables], variables)
        self.optimiser.step.assign(0)
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self._path, self._description, self._every = checkpoint, description, every_seconds
        self._written = time.monotonic()
        self._last = self._restore() if checkpoint.exists() else {}

    def run(
        self, loss: Callable, signature: Sequence, batch_of: Callable[[int], tuple], steps: int, rate: float,
        log: Callable[[int, dict], None] | None = None, progress=None,
    ) -> dict[str, float]:  # fmt: skip
        """The steps that are left; the metrics of the last one.

        Args:
          loss: of a batch's tensors → {"loss": what is descended, …}; it is traced once, with this signature.
          batch_of: step → such arrays.
          rate: the learning rate at first; it falls to nothing along a cosine.
          progress: like tqdm.
        """
        descend = tf.function(partial(self._descend, loss), [tf.TensorSpec([]), *signature], autograph=False)
        metrics = dict(self._last)
        for step in range(int(self.step), steps):
            now = rate * 0.5 * (1 + math.cos(math.pi * step / steps))
            metrics = {name: float(value) for name, value in descend(np.float32(now), *batch_of(step)).items()}
            if not math.isfinite(metrics["loss"]):
                raise RLFlowError(
                    f"training step {step}: the loss is {metrics['loss']}; a lower learning_rate may help"
                )
            self.step.assign_add(1)
            if time.monotonic() - self._written >= self._every:
                self.write_checkpoint(metrics)
            if log is not None and step % LOG_EVERY == 0:
                log(step, metrics)
            if progress is not None:
                progress.set_postfix({"loss": f"{metrics['loss']:.3g}"}, refresh=False)
                progress.update(1)
        self.write_checkpoint(metrics)
        return metrics

    def _descend(self, loss: Callable, rate: tf.Tensor, *batch) -> dict[str, tf.Tensor]:
        variables = self.network.trainable_variables
        with tf.GradientTape() as tape:
            metrics = loss(*batch)
        gradients = tape.gradient(metrics["loss"], variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradients, _ = tf.clip_by_global_norm(gradients, GRADIENT_CLIP)
        self.optimiser.learning_rate.assign(rate)
        self.optimiser.apply(gradients, variables)
        return metrics

    def write_checkpoint(self, metrics: dict[str, float]) -> None:
        arrays = {"description": np.array(self._description)} | module_arrays(self, "descent/")
        write_arrays(self._path, arrays | {METRICS + name: np.float64(value) for name, value in metrics.items()})
        self._written = time.monotonic()

    def _restore(self) -> dict[str, float]:
        """Returns the metrics."""
        arrays = read_arrays(self._path)
        if str(arrays.pop("description", "")) != self._description:
            raise RLFlowError(
                f"{self._path} was written by a training on other data or with other options; use another folder, or "
                "delete it"
            )
        restore_arrays(self, arrays, str(self._path), "descent/")
        return {name.removeprefix(METRICS): float(of) for name, of in arrays.items() if name.startswith(METRICS)}
