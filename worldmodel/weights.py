"""The weights of TensorFlow modules: as named arrays and back, and changed by gradients.

`module_arrays` and `restore_arrays` are what checkpoints and saved models are made of. They name every variable by
its path, such as "encoder/readout/_layers/0/w".
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
    """Every variable of the module by its path, such as "encoder/readout/_layers/0/w"."""
    return {name: variable.numpy() for name, variable in _variables(module, prefix).items()}


def restore_arrays(module: tf.Module, arrays: dict[str, np.ndarray], source: str, prefix: str = "") -> None:
    """Sets every variable; `source` names the file in the error. Raises RLFlowError unless names and shapes agree."""
    variables = _variables(module, prefix)
    arrays = {name: array for name, array in arrays.items() if name.startswith(prefix)}
    if missing := sorted(variables.keys() - arrays.keys()):
        raise RLFlowError(f"{source} does not fit this world model: it lacks '{missing[0]}'")
    if unknown := sorted(arrays.keys() - variables.keys()):
        raise RLFlowError(f"{source} does not fit this world model: it has '{unknown[0]}', which the model has not")
    for name, variable in variables.items():
        if arrays[name].shape != tuple(variable.shape):
            raise RLFlowError(
                f"{source} does not fit this world model: '{name}' has shape {arrays[name].shape}, "
                f"the model's has {tuple(variable.shape)}"
            )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def with_slots(optimiser: snt.Optimizer, variables: Sequence[tf.Variable]) -> snt.Optimizer:
    """Create the optimiser's slots for these variables, so that a checkpoint can fill them. Changes no variable."""
    optimiser.apply([tf.zeros_like(variable) for variable in variables], variables)
    optimiser.step.assign(0)
    return optimiser


def apply_clipped(
    gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable], optimiser: snt.Optimizer, limit: float
) -> tf.Tensor:
    """Apply gradients whose global norm is cut to `limit`. Returns the norm before it was cut, float32 []."""
    gradients, norm = tf.clip_by_global_norm(gradients, limit)
    optimiser.apply(gradients, variables)
    return norm


def _variables(module: tf.Module, prefix: str) -> dict[str, tf.Variable]:
    def is_variable(value):
        return isinstance(value, tf.Variable)

    result = module._flatten(predicate=is_variable, with_path=True)  # tf.Module documents it for subclasses
    return {prefix + "/".join(map(str, path)): variable for path, variable in result}


GRADIENT_CLIP = 1.0  # largest global norm


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
    """A network, its optimiser and the step: all that a checkpoint holds."""

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
        """Return the update of a `worldmodel.trainer.Trainer`.

        Args:
          loss: of a batch's tensors → {"loss": what is descended, …}; it is traced once, with this signature.
          batch_of: step → such arrays.
          steps: how many there are in all.
          rate: the learning rate at first; it falls to nothing along a cosine.
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
