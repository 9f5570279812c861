"""Arrays that grow by rows: of single values, and of lists of varying length."""

from collections.abc import Iterable
from itertools import chain

import numpy as np


class GrowingArray:
    """An array whose first axis grows."""

    def __init__(self, dtype, *shape: int):
        self.data, self.size = np.zeros((64, *shape), dtype), 0

    def append(self, value) -> None:
        if self.size == len(self.data):
            self.data = np.concatenate([self.data, np.zeros_like(self.data)])
        self.data[self.size] = value
        self.size += 1

    @property
    def values(self) -> np.ndarray:
        return self.data[: self.size]


class RaggedLists:
    """Lists of numbers of varying length, by number. Lists that have changed since the arrays were built are read one
    by one."""

    def __init__(self):
        self.lists: list[list[int]] = []
        self._flat, self._offsets = np.zeros(0, np.int32), np.zeros(1, np.int64)
        self._changed = GrowingArray(bool)
        self._changes = 0

    def append(self, values: Iterable[int]) -> None:
        self.lists.append(list(values))
        self._changed.append(True)
        self._changes += 1

    def add(self, row: int, value: int) -> None:
        """Appends to a list that is there already."""
        self.lists[row].append(value)
        self._changed.data[row] = True
        self._changes += 1

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(which of `rows`, value) of every value of theirs."""
        if self._changes > (len(self._offsets) + len(self._flat)) // 4:
            self._build()
        changed = self._changed.values[rows]
        if not changed.any():
            return self._built(np.arange(len(rows)), rows)
        which, values = self._built(np.flatnonzero(~changed), rows[~changed])
        new = [(k, value) for k in np.flatnonzero(changed).tolist() for value in self.lists[rows[k]]]
        more = np.array(new, np.int64).reshape(-1, 2)
        which, values = np.concatenate([which, more[:, 0]]), np.concatenate([values, more[:, 1].astype(np.int32)])
        order = np.argsort(which, kind="stable")
        return which[order], values[order]

    def _built(self, which: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        starts, counts = self._offsets[rows], self._offsets[rows + 1] - self._offsets[rows]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(which, counts), self._flat[np.repeat(starts, counts) + within]

    def _build(self) -> None:
        self._flat = np.fromiter(chain.from_iterable(self.lists), np.int32)
        self._offsets = np.cumsum([0, *map(len, self.lists)])
        self._changed.values[:] = False
        self._changes = 0
