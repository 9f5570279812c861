"""How operators and tensors are observed, by signature: what the networks see of what the grounding names."""

from collections.abc import Iterable
from typing import Self

import numpy as np

from rlflow.collect.signatures import OPERATOR_COLUMNS, SignatureFeatures
from rlflow.env.observation.tensors import AXES, CONTENT, ELEMENTS, SIZES, TENSOR_FEATURES
from worldmodel.edits.saved_arrays import checked_array

NUMBERS = AXES + ELEMENTS


class SignatureTable:
    """Rows of features by signature; row 0, of zeros, is of what was never observed.

    operators: float32 [O, OPERATOR_COLUMNS]. tensors: float32 [S, TENSOR_FEATURES]. numbers: float32 [S, NUMBERS], the
    sizes of a tensor and its content, if it is small, all as log(1 + n), 0 for none. It grows with what is observed; a
    row once given stays.
    """

    def __init__(self):
        self._rows: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.operators = np.zeros((1, OPERATOR_COLUMNS), np.float32)
        self.tensors = np.zeros((1, TENSOR_FEATURES), np.float32)
        self.numbers = np.zeros((1, NUMBERS), np.float32)

    def learn(self, observed: SignatureFeatures) -> None:
        operators, tensors = self._rows
        self.operators = _appended(operators, self.operators, observed.operators, observed.operator_features)
        self.tensors = _appended(tensors, self.tensors, observed.tensors, observed.tensor_features)
        if len(self.tensors) > len(self.numbers):
            self.numbers = np.concatenate([self.numbers, _numbers(self.tensors[len(self.numbers) :])])

    def operator_rows(self, signatures: Iterable[int]) -> list[int]:
        return [self._rows[0].get(signature, 0) for signature in signatures]

    def tensor_rows(self, signatures: Iterable[int]) -> list[int]:
        return [self._rows[1].get(signature, 0) for signature in signatures]

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
    content = tensors[:, CONTENT]  # 1 + log(1 + n) with the sign of n, 0 for none
    return np.concatenate([tensors[:, SIZES], np.sign(content) * np.maximum(np.abs(content) - 1, 0)], axis=1)


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
