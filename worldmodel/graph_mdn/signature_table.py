"""How operators and tensors are observed, by signature: what the networks see of what the grounding names."""

from collections.abc import Iterable
from typing import Self

import numpy as np

from rlflow.collect.edits import OPERATOR_COLUMNS, SignatureFeatures
from rlflow.env.features import (
    AXES,
    CONTENT,
    ELEMENTS,
    INTEGER_ATTRIBUTES,
    LENGTH,
    LIST_ATTRIBUTES,
    SIZE,
    SIZES,
    TENSOR_FEATURES,
)
from worldmodel.edits.saved_arrays import checked_array

NUMBERS = AXES + ELEMENTS
WAVES = 6  # frequencies
ATTRIBUTES = sum(LIST_ATTRIBUTES.values()) + len(
    INTEGER_ATTRIBUTES
)  # those of an operator that are integers; they come first


class SignatureTable:
    """Rows of features by signature; row 0, of zeros, is of what was never observed.

    operators: float32 [O, OPERATOR_COLUMNS]. tensors: float32 [S, TENSOR_FEATURES]. numbers: float32 [S, NUMBERS], the
    sizes of a tensor and its content, if it is small, all as log(1 + n), 0 for none. attributes: float32 [O,
    ATTRIBUTES], an operator's integers, likewise. kinds: int [S], equal for tensors that differ in their content alone.
    operator_waves: float32 [O, 2 · WAVES · (OPERATOR_COLUMNS − 1)], tensor_waves: float32 [S, 2 · WAVES ·
    TENSOR_FEATURES]: sines and cosines of rising frequency, in which sizes that are close on a logarithmic scale lie
    apart (Tancik et al. 2020). It grows with what is observed; a row once given stays. shown: all of it as networks
    take it, when they last did (`network.Table`).
    """

    def __init__(self):
        self._rows: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.operators = np.zeros((1, OPERATOR_COLUMNS), np.float32)
        self.tensors = np.zeros((1, TENSOR_FEATURES), np.float32)
        self.numbers = np.zeros((1, NUMBERS), np.float32)
        self.attributes = np.zeros((1, ATTRIBUTES), np.float32)
        self.kinds = np.zeros(1, np.int64)
        self.operator_waves, self.tensor_waves = _waves(self.operators[:, 1:]), _waves(self.tensors)
        self.shown = None

    def learn(self, observed: SignatureFeatures) -> None:
        operators, tensors = self._rows
        self.operators = _appended(operators, self.operators, observed.operators, observed.operator_features)
        self.tensors = _appended(tensors, self.tensors, observed.tensors, observed.tensor_features)
        if len(self.tensors) > len(self.numbers):
            new = self.tensors[len(self.numbers) :]
            self.numbers = np.concatenate([self.numbers, _numbers(new)])
            self.tensor_waves = np.concatenate([self.tensor_waves, _waves(new)])
            self.kinds = np.unique(self.tensors[:, :LENGTH], axis=0, return_inverse=True)[1].reshape(-1)
        if len(self.operators) > len(self.attributes):
            new = self.operators[len(self.attributes) :, 1:]
            self.attributes = np.concatenate([self.attributes, _unshown(new[:, :ATTRIBUTES])])
            self.operator_waves = np.concatenate([self.operator_waves, _waves(new)])

    def operator_rows(self, signatures: Iterable[int]) -> list[int]:
        return [self._rows[0].get(signature, 0) for signature in signatures]

    def tensor_rows(self, signatures: Iterable[int]) -> list[int]:
        return [self._rows[1].get(signature, 0) for signature in signatures]

    def elements(self, signatures: Iterable[int]) -> np.ndarray:
        """float64 [k], how many tensors of these signatures have; 0 where they were never observed."""
        return np.rint(np.expm1(self.tensors[self.tensor_rows(signatures), SIZE].astype(np.float64)))

    def observed(self) -> SignatureFeatures:
        """All of it, to be saved."""
        (operators, of_operators), (tensors, of_tensors) = (_ascending(rows) for rows in self._rows)
        return SignatureFeatures(operators, self.operators[of_operators], tensors, self.tensors[of_tensors])

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> Self:
        """The table that `observed` gave these arrays. Raises KeyError or ValueError if they are damaged."""
        result, saved = cls(), []
        for name, width in (("operators", OPERATOR_COLUMNS), ("tensors", TENSOR_FEATURES)):
            signatures = checked_array(arrays, name, np.int64, None)
            saved += [signatures, checked_array(arrays, f"{name[:-1]}_features", np.float32, len(signatures), width)]
        result.learn(SignatureFeatures(*saved))
        return result


def _numbers(tensors: np.ndarray) -> np.ndarray:
    return np.concatenate([tensors[:, SIZES], _unshown(tensors[:, CONTENT])], axis=1)


def _unshown(numbers: np.ndarray) -> np.ndarray:
    """1 + log(1 + n) with the sign of n, and 0 for none, as log(1 + n) with the sign of n."""
    return np.sign(numbers) * np.maximum(np.abs(numbers) - 1, 0)


def _waves(features: np.ndarray) -> np.ndarray:
    """[n, F] to float32 [n, 2 · WAVES · F]."""
    angles = features[..., None] * (np.pi / 4 * 2.0 ** np.arange(WAVES)).astype(np.float32)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(features), -1)


def _appended(rows: dict[int, int], table: np.ndarray, signatures: np.ndarray, features: np.ndarray) -> np.ndarray:
    new = []
    for k, signature in enumerate(signatures.tolist()):
        if signature not in rows:
            rows[signature] = len(rows) + 1
            new.append(k)
    return np.concatenate([table, features[new]]) if new else table


def _ascending(rows: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    signatures = np.array(sorted(rows), np.int64)
    return signatures, np.array([rows[signature] for signature in signatures.tolist()], np.int64)
