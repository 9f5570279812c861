"""Where buffers lie, once an order has said when each of them lives: one block of memory, as small as possible.

No block is smaller than the most that lives at once. A greedy placement mostly comes near; then a search asks whether
the block can be as small as that. It places buffers from the bottom up, each as low as it can lie, in the order of
their offsets, as every best placement can be rebuilt (Moffitt 2023, MiniMalloc), and turns back where

- at some time what lies there, and what is still to lie above it, is more than there is room for, or
- another buffer would fit below the one that is placed: it may as well come first.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rlflow.tasks.ordering.runtime import Lifetime


class Placement(NamedTuple):
    """offsets: of each buffer.  size: of the block.  bound: no block is smaller."""

    offsets: list[int]
    size: int
    bound: int


def pack(buffers: Sequence[Lifetime], seconds: float) -> Placement:
    """The smallest block that is found in so many seconds."""
    if not buffers:
        return Placement([], 0, 0)
    spans = _Spans(buffers)
    bound = int(spans.load.max())
    offsets = min((lowest_fit(buffers, order) for order in _orders(buffers)), key=lambda each: _top(buffers, each))
    deadline, size = time.monotonic() + seconds, _top(buffers, offsets)
    while bound < size:
        search = _Search(spans, bound, deadline)
        result, done = search.run()
        if result is not None:
            offsets, size = result, _top(buffers, result)
        elif done:
            bound = min(size, search.beyond)
        else:
            break
    return Placement(offsets, size, bound)


def _orders(buffers: Sequence[Lifetime]) -> list[list[int]]:
    """In which order a greedy placement may take them: as they are made, and the largest first in several senses."""
    senses: list[Callable[[Lifetime], int]] = [
        lambda one: 0,
        lambda one: -one.size,
        lambda one: one.first - one.last,
        lambda one: one.size * (one.first - one.last - 1),
    ]
    return [sorted(range(len(buffers)), key=lambda k, sense=sense: sense(buffers[k])) for sense in senses]


def lowest_fit(buffers: Sequence[Lifetime], order: Sequence[int]) -> list[int]:
    """The offset of each, if one after another they are put where they fit lowest."""
    offsets, placed = [0] * len(buffers), []
    for k in order:
        one, offset = buffers[k], 0
        for start, end, first, last in placed:  # by offset
            if first <= one.last and one.first <= last:
                if start - offset >= one.size:
                    break
                offset = max(offset, end)
        offsets[k] = offset
        placed = sorted([*placed, (offset, offset + one.size, one.first, one.last)])
    return offsets


def _top(buffers: Sequence[Lifetime], offsets: Sequence[int]) -> int:
    return max(offset + one.size for one, offset in zip(buffers, offsets, strict=True))


class _Spans:
    """Lifetimes in sections: the stretches of time in which nothing begins or ends.

    first, end: int64 [n], the sections of a buffer.  size: int64 [n].  load: int64 [s], of all that lives in a section.
    """

    def __init__(self, buffers: Sequence[Lifetime]):
        times = np.unique([(one.first, one.last + 1) for one in buffers])
        self.first = np.searchsorted(times, [one.first for one in buffers])
        self.end = np.searchsorted(times, [one.last + 1 for one in buffers])
        self.size = np.array([one.size for one in buffers], np.int64)
        self.load = np.zeros(len(times) - 1, np.int64)
        for first, end, size in zip(self.first, self.end, self.size, strict=True):
            self.load[first:end] += size
        self.area = self.size * (self.end - self.first)


class _Search:
    """Depth first, for a block of a given size. beyond: if there is none, no block is smaller than that."""

    def __init__(self, spans: _Spans, room: int, deadline: float):
        self.spans, self.room, self.deadline = spans, room, deadline
        self.beyond = np.iinfo(np.int64).max
        self.floor = np.zeros(len(spans.load), np.int64)  # where the next buffer of a section can lie
        self.above = spans.load.copy()  # what of a section is still to be placed
        self.left = np.ones(len(spans.size), bool)
        self.offsets = np.zeros(len(spans.size), np.int64)

    def run(self) -> tuple[list[int] | None, bool]:
        """(offsets, or None if there are none or time was up; whether all was tried)."""
        stack = [self.choices(0)]
        undo = []
        while stack:
            if time.monotonic() > self.deadline:
                return None, False
            if not self.left.any():
                return self.offsets.tolist(), True
            if not stack[-1]:
                stack.pop()
                if undo:
                    self.take_back(*undo.pop())
                continue
            buffer, offset = stack[-1].pop()
            undo.append(self.put(buffer, offset))
            if self.fits(offset):
                stack.append(self.choices(offset))
            else:
                self.take_back(*undo.pop())
        return None, True

    def choices(self, lowest: int) -> list[tuple[int, int]]:
        """(buffer, offset) of what may come next, the best last. lowest: the last offset; none may lie below it."""
        spans, left = self.spans, np.flatnonzero(self.left)
        if not len(left):
            return []
        bounds = np.stack([spans.first[left], spans.end[left]], axis=1).ravel()
        floors = np.append(self.floor, 0)
        offsets = np.maximum(np.maximum.reduceat(floors, bounds)[::2], lowest)
        below = (offsets + spans.size[left]).min()
        may = np.flatnonzero((offsets < below) | (spans.size[left] == 0))
        order = np.lexsort((spans.area[left[may]], -offsets[may]))
        return [(int(left[may[k]]), int(offsets[may[k]])) for k in order]

    def put(self, buffer: int, offset: int) -> tuple[int, np.ndarray]:
        first, end, size = self.spans.first[buffer], self.spans.end[buffer], self.spans.size[buffer]
        before = self.floor[first:end].copy()
        self.floor[first:end] = offset + size
        self.above[first:end] -= size
        self.left[buffer], self.offsets[buffer] = False, offset
        return buffer, before

    def take_back(self, buffer: int, before: np.ndarray) -> None:
        first, end = self.spans.first[buffer], self.spans.end[buffer]
        self.floor[first:end] = before
        self.above[first:end] += self.spans.size[buffer]
        self.left[buffer] = True

    def fits(self, lowest: int) -> bool:
        """Whether no section needs more than there is room for; what is still to come lies at `lowest` or above."""
        floor = np.where(self.above > 0, np.maximum(self.floor, lowest), self.floor)
        needed = int((floor + self.above).max())
        if needed > self.room:
            self.beyond = min(self.beyond, needed)
        return needed <= self.room
