"""Inputs that two models are compared on: ordinary draws, and special values that show what those hide.

Zeros leave only biases; ones sum up a weight; negative ones meet what a ReLU cuts off; tiny ones meet epsilons; large
ones meet clamps; mixed ones are all of that next to each other, with subnormal numbers. Integers that may be indices
stay among those that were drawn: none, one, the largest. NaN and infinity are not given: proofs are about real
numbers, and a sound rewrite may spread NaN otherwise (0 · ∞ where a product was dropped), as ONNX Runtime's own do.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import onnx

from rlflow.graph.onnx_runtime import random_inputs
from rlflow.graph.typical import sizes_text

SHIFTS = (0, 1, -1)  # an average over noise of mean zero washes out a wrong weight
TINY, LARGE = 1e-3, 100.0
LAST_DIGITS = 2  # units in the last place


class InputSet(NamedTuple):
    """Values of all inputs, under a name for people.

    Attributes:
      sizes: symbol → size, of the symbols of the model.
    """

    name: str
    arrays: dict[str, np.ndarray]
    sizes: Mapping[str, int] = MappingProxyType({})

    def at(self, sizes: Mapping[str, int]) -> "InputSet":
        """The same set, known to be of these sizes."""
        return self._replace(name=f"{sizes_text(sizes)}: {self.name}" if sizes else self.name, sizes=dict(sizes))


def ordinary_inputs(model: onnx.ModelProto, seeds: Sequence[int], shapes: Mapping[str, object]) -> list[InputSet]:
    """`random_inputs` of every seed, the floats shifted by 0, 1 and −1 in turn."""
    drawn = [random_inputs(model, seed, shapes) for seed in seeds]  # np.asarray below: sums of scalars are no arrays
    return [
        InputSet(
            f"seed {seed}",
            {name: np.asarray(_shifted(array, SHIFTS[position % len(SHIFTS)])) for name, array in arrays.items()},
        )
        for position, (seed, arrays) in enumerate(zip(seeds, drawn, strict=True))
    ]


def special_inputs(model: onnx.ModelProto, seed: int, shapes: Mapping[str, object]) -> list[InputSet]:
    """One set for every special value, those that say the same left out."""
    rng, drawn, sets = np.random.default_rng(seed), random_inputs(model, seed, shapes), []
    for name, of in SPECIAL.items():
        arrays = {key: np.asarray(of(array, rng)) for key, array in drawn.items()}
        known = [drawn, *(other.arrays for other in sets)]
        if not any(all(np.array_equal(arrays[key], other[key]) for key in arrays) for other in known):
            sets.append(InputSet(name, arrays))
    return sets


def nudged(arrays: Mapping[str, np.ndarray], sign: int) -> dict[str, np.ndarray]:
    """The inputs with their floats moved in the last digits, by the same for either sign but the other way."""
    rng, moved = np.random.default_rng(0), dict(arrays)
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            steps = LAST_DIGITS * np.finfo(array.dtype).eps * np.maximum(np.abs(array), 1)
            moved[name] = np.asarray(array + sign * steps * rng.uniform(-1, 1, array.shape), array.dtype)
    return moved


def _shifted(array: np.ndarray, shift: int) -> np.ndarray:
    return array + array.dtype.type(shift) if array.dtype.kind == "f" else array


def _zeros(array: np.ndarray, rng) -> np.ndarray:
    return np.zeros_like(array)


def _ones(array: np.ndarray, rng) -> np.ndarray:
    return np.full_like(array, 1 if array.dtype.kind == "f" else np.minimum(1, array.max(initial=0)))


def _negative(array: np.ndarray, rng) -> np.ndarray:
    return -np.abs(array) if array.dtype.kind == "f" else array


def _tiny(array: np.ndarray, rng) -> np.ndarray:
    return array * array.dtype.type(TINY) if array.dtype.kind == "f" else array


def _large(array: np.ndarray, rng) -> np.ndarray:
    return array * array.dtype.type(LARGE) if array.dtype.kind == "f" else np.full_like(array, array.max(initial=0))


def _mixed(array: np.ndarray, rng) -> np.ndarray:
    if array.dtype.kind != "f":
        return array
    values = [0.0, 1.0, -1.0, 8 * float(np.finfo(array.dtype).smallest_subnormal), TINY, LARGE, -LARGE]
    chosen = rng.integers(0, 2 * len(values), array.shape)  # about half stay as they were drawn
    return np.where(chosen < len(values), np.array(values, array.dtype)[chosen % len(values)], array)


SPECIAL = {"zeros": _zeros, "ones": _ones, "negative": _negative, "tiny": _tiny, "large": _large, "mixed": _mixed}
