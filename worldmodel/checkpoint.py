"""Modules to named arrays and back."""

import numpy as np
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


def _variables(module: tf.Module, prefix: str) -> dict[str, tf.Variable]:
    def is_variable(value):
        return isinstance(value, tf.Variable)

    result = module._flatten(predicate=is_variable, with_path=True)  # tf.Module documents it for subclasses
    return {prefix + "/".join(map(str, path)): variable for path, variable in result}
