"""The weights of TensorFlow modules: conversion to and from named NumPy arrays, and gradient updates.

Checkpoints and saved models contain the arrays that `module_arrays` returns and `restore_arrays` reads. The name of an
array is the path of its variable in the module, such as "encoder/readout/_layers/0/w".
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import sonnet as snt
import tensorflow as tf

from rlflow.common.errors import RLFlowError
from worldmodel.trainer import check_finite


def module_arrays(module: tf.Module, prefix: str = "") -> dict[str, np.ndarray]:
    """Return the values of all variables of a module as {prefix + path of the variable: array}.

    Args:
      module: the module.
      prefix: a text that every name begins with, such as "model/".
    """
    return {name: variable.numpy() for name, variable in _variables(module, prefix).items()}


def restore_arrays(module: tf.Module, arrays: dict[str, np.ndarray], source: str, prefix: str = "") -> None:
    """Set all variables of a module from the arrays that `module_arrays` returned.

    Args:
      module: the module.
      arrays: {prefix + path of a variable: array}; names without the prefix are ignored.
      source: the file that the arrays come from, for error messages.
      prefix: the prefix that was passed to `module_arrays`.

    Raises:
      RLFlowError: names or shapes of arrays and variables differ.
    """
    variables = _variables(module, prefix)
    arrays = {name: array for name, array in arrays.items() if name.startswith(prefix)}
    if missing := sorted(variables.keys() - arrays.keys()):
        raise RLFlowError(f"{source} does not fit this world model: it lacks '{missing[0]}'")
    if unknown := sorted(arrays.keys() - variables.keys()):
        raise RLFlowError(f"{source} does not fit this world model: it has '{unknown[0]}', which the model lacks")
    for name, variable in variables.items():
        if arrays[name].shape != tuple(variable.shape):
            raise RLFlowError(
                f"{source} does not fit this world model: '{name}' has shape {arrays[name].shape}, "
                f"the model's has {tuple(variable.shape)}"
            )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def with_slots(optimiser: snt.Optimizer, variables: Sequence[tf.Variable]) -> snt.Optimizer:
    """Return the optimiser after creating its slots (such as Adam's moments), so that a checkpoint can restore them.

    Args:
      optimiser: the optimiser.
      variables: the variables that the optimiser will update; their values stay the same.
    """
    optimiser.apply([tf.zeros_like(variable) for variable in variables], variables)
    optimiser.step.assign(0)
    return optimiser


def apply_clipped(
    gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable], optimiser: snt.Optimizer, limit: float
) -> tf.Tensor:
    """Clip the global norm of gradients and apply them with an optimiser.

    Args:
      gradients: one gradient per variable; None for a variable without gradient.
      variables: the variables to update.
      optimiser: the optimiser.
      limit: the norm to which a larger global norm is scaled down.

    Returns:
      float32 [], the global norm before clipping.
    """
    # Embeddings have sparse gradients. Sonnet's own conversion, densify_gradients, is a tf.custom_gradient, which keeps
    # every program that it occurs in for the rest of the process: 60 MB for each training of an MDN-RNN.
    gradients = [gradient if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
    gradients, norm = tf.clip_by_global_norm(gradients, limit)
    optimiser.apply(gradients, variables)
    return norm


def _variables(module: tf.Module, prefix: str) -> dict[str, tf.Variable]:
    def is_variable(value):
        return isinstance(value, tf.Variable)

    result = module._flatten(predicate=is_variable, with_path=True)  # documented by tf.Module for subclasses
    return {prefix + "/".join(map(str, path)): variable for path, variable in result}


GRADIENT_CLIP = 1.0  # largest global norm of the gradients in `Descent`


class Adam(snt.optimizers.Adam):
    """Sonnet's Adam optimiser with one fused TensorFlow operation per variable instead of about fifteen operations.

    For a small network, these operations took half of the time of a training step.
    """

    def apply(self, updates: Sequence[tf.Tensor], parameters: Sequence[tf.Variable]) -> None:
        self._initialize(parameters)
        self.step.assign_add(1)
        beta1, beta2, step = tf.constant(self.beta1), tf.constant(self.beta2), tf.cast(self.step, tf.float32)
        power1, power2 = beta1**step, beta2**step
        for update, parameter, m, v in zip(updates, parameters, self.m, self.v, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=parameter.handle, m=m.handle, v=v.handle, beta1_power=power1, beta2_power=power2,
                lr=self.learning_rate, beta1=beta1, beta2=beta2, epsilon=self.epsilon, grad=update,
            )  # fmt: skip


class Descent(snt.Module):
    """The state of a gradient descent in one module: a network, its Adam optimiser and the number of steps made."""

    def __init__(self, network: snt.Module):
        super().__init__(name="descent")
        self.network = network
        self.optimiser = with_slots(
            Adam(tf.Variable(0.0, trainable=False, name="learning_rate")), network.trainable_variables
        )
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")

    def update(
        self, loss: Callable, signature: Sequence, batch_of: Callable[[int], tuple], steps: int, rate: float
    ) -> Callable[[], dict[str, float]]:
        """Return a function that makes one training step, for `worldmodel.trainer.Trainer.run`.

        A second thread makes the batch of the next step while TensorFlow computes the present one.

        Args:
          loss: a function from the tensors of a batch to {"loss": the value to minimise, …: further metrics}.
          signature: the `tf.TensorSpec` of each tensor of a batch; `loss` is traced once with this signature.
          batch_of: a function from a step number to the arrays of the step's batch.
          steps: the total number of training steps.
          rate: the initial learning rate; it decays along a cosine to 0 at the last step.
        """
        descend = tf.function(partial(self._descend, loss), [tf.TensorSpec([]), *signature], autograph=False)
        beside, coming = ThreadPoolExecutor(1), {}

        def update() -> dict[str, float]:
            step = int(self.step)
            batch = coming.pop(step).result() if step in coming else batch_of(step)
            if step + 1 < steps:
                coming[step + 1] = beside.submit(batch_of, step + 1)
            now = np.float32(rate * 0.5 * (1 + math.cos(math.pi * step / steps)))
            metrics = {name: float(value) for name, value in descend(now, *batch).items()}
            check_finite(metrics, step)
            self.step.assign_add(1)
            return metrics

        return update

    def _descend(self, loss: Callable, rate: tf.Tensor, *batch) -> dict[str, tf.Tensor]:
        variables = self.network.trainable_variables
        with tf.GradientTape() as tape:
            metrics = loss(*batch)
        gradients = tape.gradient(metrics["loss"], variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        self.optimiser.learning_rate.assign(rate)
        apply_clipped(gradients, variables, self.optimiser, GRADIENT_CLIP)
        return metrics
