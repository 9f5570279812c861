"""The weights of TensorFlow modules: conversion to and from named arrays, and gradient updates.

Checkpoints and saved models consist of the arrays of `module_arrays`, and `restore_arrays` reads them. The name of a
variable is its path, such as "encoder/readout/_layers/0/w".
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import sonnet as snt
import tensorflow as tf

from rlflow.common.errors import RLFlowError
from worldmodel.trainer import check_finite


def module_arrays(module: tf.Module, prefix: str = "") -> dict[str, np.ndarray]:
    """Return every variable of the module by its path.

    Args:
      module: the module.
      prefix: put before every name.
    """
    return {name: variable.numpy() for name, variable in _variables(module, prefix).items()}


def restore_arrays(module: tf.Module, arrays: dict[str, np.ndarray], source: str, prefix: str = "") -> None:
    """Set every variable of the module.

    Args:
      module: the module.
      arrays: {path: array}; names without the prefix are ignored.
      source: the file, named in error messages.
      prefix: the prefix that `module_arrays` used.

    Raises:
      RLFlowError: names or shapes differ.
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
    """Create the optimiser's slots for these variables, so that a checkpoint can fill them. Change no variable."""
    optimiser.apply([tf.zeros_like(variable) for variable in variables], variables)
    optimiser.step.assign(0)
    return optimiser


def apply_clipped(
    gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable], optimiser: snt.Optimizer, limit: float
) -> tf.Tensor:
    """Apply gradients after clipping their global norm.

    Args:
      gradients: one per variable.
      variables: the variables to update.
      optimiser: the optimiser.
      limit: the largest global norm.

    Returns:
      The norm before clipping, float32 [].
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


GRADIENT_CLIP = 1.0  # largest global norm


class Adam(snt.optimizers.Adam):
    """Sonnet's Adam with one fused operation per variable instead of fifteen, which took half of a small network's
    step.
    """

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
    """A network, its optimiser and the step number: the whole state of a checkpoint."""

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
        """Return the update function for a `worldmodel.trainer.Trainer`.

        Args:
          loss: maps a batch's tensors to {"loss": the minimised value, …}; traced once with this signature.
          signature: the tensor specifications of a batch.
          batch_of: maps a step to the arrays of its batch.
          steps: the total number of steps.
          rate: the initial learning rate; it decays to 0 along a cosine.
        """
        descend = tf.function(partial(self._descend, loss), [tf.TensorSpec([]), *signature], autograph=False)

        def update() -> dict[str, float]:
            step = int(self.step)
            now = np.float32(rate * 0.5 * (1 + math.cos(math.pi * step / steps)))
            metrics = {name: float(value) for name, value in descend(now, *batch_of(step)).items()}
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
