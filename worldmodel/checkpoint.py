"""Weights of TensorFlow modules: as named arrays, and one clipped gradient step."""

from collections.abc import Sequence

import numpy as np
import sonnet as snt
import tensorflow as tf

from rlflow.common.errors import RLFlowError


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
