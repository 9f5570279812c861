"""Arrays that grow by rows: of single values, and of lists of varying length."""

from collections.abc import Iterable

import numpy as np


class GrowingArray:
    """An array whose first axis grows."""

    def __init__(self, dtype, *shape: int):
        self.data, self.size = np.zeros((64, *shape), dtype), 0

    def append(self, value) -> None:
        self.reserve(1)
        self.data[self.size - 1] = value

    def reserve(self, rows: int) -> int:
        """The first of so many new rows, all zeros."""
        self.size += rows
        while self.size > len(self.data):
            self.data = np.concatenate([self.data, np.zeros_like(self.data)])
        return self.size - rows

    def insert(self, at: int, value) -> None:
        self.reserve(1)
        self.data[at + 1 : self.size] = self.data[at : self.size - 1]
        self.data[at] = value

    def delete(self, at: int) -> None:
        self.data[at : self.size - 1] = self.data[at + 1 : self.size]
        self.size -= 1

    @property
    def values(self) -> np.ndarray:
        return self.data[: self.size]


class RaggedLists:
    """Lists of numbers of varying length, by number. Each is a piece of one array; one that outgrows its room moves to
    the end, to twice the room."""

    def __init__(self):
        self._flat = GrowingArray(np.int32)
        self._starts, self._counts, self._rooms = (GrowingArray(np.int64) for _ in range(3))

    def __len__(self) -> int:
        return self._starts.size

    def append(self, values: Iterable[int]) -> None:
        values = list(values)
        start = self._flat.reserve(len(values))
        self._flat.data[start : self._flat.size] = values
        self._starts.append(start)
        self._counts.append(len(values))
        self._rooms.append(len(values))

    def add(self, row: int, value: int) -> None:
        """Appends to a list that is there already."""
        count = self._counts.data[row]
        if count == self._rooms.data[row]:
            self._move(row)
        self._flat.data[self._starts.data[row] + count] = value
        self._counts.data[row] += 1

    def _move(self, row: int) -> None:
        start, count = self._starts.data[row], self._counts.data[row]
        room = max(2 * count, 4)
        to = self._flat.reserve(room)
        self._flat.data[to : to + count] = self._flat.data[start : start + count]
        self._starts.data[row], self._rooms.data[row] = to, room

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(which of `rows`, value) of every value of theirs."""
        counts = self._counts.data[rows]
        ends = np.cumsum(counts)
        at = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self._starts.data[rows] - ends + counts, counts)
        return np.repeat(np.arange(len(rows)), counts), self._flat.data[at]
