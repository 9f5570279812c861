"""The ordering problem: nodes make and read buffers; find the order of the nodes with the lowest peak of memory in use.

A buffer exists from the run of its maker to the run of its last reader, and outputs exist to the end. A node may write
its result over a buffer that it reads. `Problem.of_nodes` is the special case of Gagrani et al. 2022 (equations 2, 3
and 15), in which each node makes one buffer. All sizes are integers, so sums do not depend on the order of the summands
or on the machine.

The functions at the end give orders that need no search: depth first, breadth first, by priorities.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rlflow.common.errors import RLFlowError

MAX_ELEMENTS = 1 << 22  # largest number of elements of one int64 array while `peaks` evaluates orders (32 MB)


class Rows(NamedTuple):
    """One list of numbers for each of n items; the list of item k is values[starts[k] : starts[k + 1]].

    Attributes:
      starts: int64 [n + 1].
      values: the numbers of all lists, one list after another.
    """

    starts: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, owners: np.ndarray, values: np.ndarray, n: int) -> "Rows":
        """Return the lists of n items from m (item, value) pairs; the values of an item keep their order.

        Args:
          owners: int [m], the item of each pair, from 0 to n - 1.
          values: [m], the value of each pair.
          n: the number of items.
        """
        order = np.argsort(owners, kind="stable")
        starts = np.zeros(n + 1, np.int64)
        np.cumsum(np.bincount(owners, minlength=n), out=starts[1:])
        return cls(starts, np.asarray(values)[order])

    @property
    def counts(self) -> np.ndarray:
        """The length of each list, int64 [n]."""
        return np.diff(self.starts)

    def __getitem__(self, k: int) -> np.ndarray:
        return self.values[self.starts[k] : self.starts[k + 1]]

    def expand(self, things: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where the values of several items are, one item after another.

        Args:
          things: int [k], the items; an item may occur more than once.

        Returns:
          Two int64 arrays with one entry per value: the position of its item in `things`, and the index of the value in
          `values`.
        """
        counts = self.counts[things]
        of = np.repeat(np.arange(len(things)), counts)
        first = self.starts[things] - (np.cumsum(counts) - counts)
        return of, np.repeat(first, counts) + np.arange(len(of))


@dataclass(frozen=True, eq=False)
class Problem:
    """An ordering problem of n nodes and b buffers. All sizes have the same unit, which is bytes for a model.

    A buffer exists from the run of its maker until all its readers have run. A buffer without readers exists only while
    its maker runs.

    Attributes:
      work: int64 [n], the additional memory that a node needs only while it runs.
      edges: int64 [e, 2], unique (node, later node) pairs. The maker and a reader of a buffer need no edge.
      size: int64 [b], the size of each buffer.
      maker: int64 [b], the node that makes each buffer; -1 for a buffer that exists from the beginning.
      kept: bool [b], True for a buffer that exists to the end.
      reads: int64 [r, 2], unique (node, buffer that the node reads) pairs.
      inplace: int64 [k, 2], (node, buffer that the node reads) pairs. If the node is the last reader of the buffer, it
        writes its result over the buffer, and while it runs it needs less memory by the size of the buffer. Of several
        such buffers the largest counts.
    """

    work: np.ndarray
    edges: np.ndarray
    size: np.ndarray
    maker: np.ndarray
    kept: np.ndarray
    reads: np.ndarray
    inplace: np.ndarray

    @classmethod
    def of_nodes(cls, memory: Sequence[int], work: Sequence[int], edges: Iterable[tuple[int, int]]) -> "Problem":
        """Return the problem of Gagrani et al. (equations 2, 15), in which each node makes one buffer.

        Args:
          memory: the size of each node's buffer.
          work: the additional memory that each node needs only while it runs.
          edges: (node, node that reads its buffer) pairs; duplicates count once.
        """
        memory = np.asarray(memory, np.int64)
        pairs = np.array(sorted(set(edges)), np.int64).reshape(-1, 2)
        return cls(
            np.asarray(work, np.int64), pairs, memory, np.arange(len(memory)), np.zeros(len(memory), bool),
            pairs[:, ::-1].copy(), np.zeros((0, 2), np.int64),
        )  # fmt: skip

    @property
    def n(self) -> int:
        """The number of nodes."""
        return len(self.work)

    @property
    def content(self) -> bytes:
        """All arrays of the problem as bytes; equal exactly for problems with equal arrays."""
        arrays = (self.work, self.edges, self.size, self.maker, self.kept, self.reads, self.inplace)
        return b"|".join(part for array in arrays for part in (str(array.shape).encode(), array.tobytes()))

    @cached_property
    def precedence(self) -> np.ndarray:
        """Unique (node, node that must run later) pairs, int64 [p, 2]: `edges` and (maker, reader) of each buffer."""
        made = self.maker[self.reads[:, 1]]
        pairs = np.concatenate([self.edges, np.stack([made, self.reads[:, 0]], axis=1)[made >= 0]])
        return np.unique(pairs, axis=0).reshape(-1, 2)

    @cached_property
    def after(self) -> Rows:
        """The nodes that must run after each node, by the pairs of `precedence`."""
        return Rows.of(self.precedence[:, 0], self.precedence[:, 1], self.n)

    @cached_property
    def before(self) -> Rows:
        """The nodes that must run before each node, by the pairs of `precedence`."""
        return Rows.of(self.precedence[:, 1], self.precedence[:, 0], self.n)

    @cached_property
    def read(self) -> Rows:
        """The buffers that each node reads."""
        return Rows.of(self.reads[:, 0], self.reads[:, 1], self.n)

    @cached_property
    def readers(self) -> Rows:
        """The nodes that read each buffer."""
        return Rows.of(self.reads[:, 1], self.reads[:, 0], len(self.size))

    @cached_property
    def made(self) -> np.ndarray:
        """The total size of the buffers that each node makes, int64 [n]."""
        return self._by_maker(self.maker >= 0)

    @cached_property
    def stays(self) -> np.ndarray:
        """The total size of the buffers that each node makes and that exist after its run, int64 [n]."""
        return self._by_maker((self.maker >= 0) & self.lasts)

    @cached_property
    def lasts(self) -> np.ndarray:
        """True for each buffer that is kept or has a reader, bool [b]; others exist only while their maker runs."""
        return self.kept | (self.readers.counts > 0)

    def _by_maker(self, chosen: np.ndarray) -> np.ndarray:
        return np.bincount(self.maker[chosen], self.size[chosen], self.n).astype(np.int64)

    @cached_property
    def given(self) -> int:
        """The total size of the buffers that exist from the beginning and are kept or read."""
        return int(self.size[(self.maker < 0) & self.lasts].sum())

    def is_order(self, order: np.ndarray) -> bool:
        """Return whether an array, int [n], holds every node once, after all nodes that must run before it."""
        return order.shape == (self.n,) and bool(self.are_orders(order[None])[0])

    def are_orders(self, orders: np.ndarray) -> np.ndarray:
        """Return bool [B]: True for each row of `orders`, int64 [B, n], that `is_order` accepts."""
        whole = (np.sort(orders, axis=1) == np.arange(self.n)).all(axis=1)
        at, pairs = np.argsort(orders, axis=1), self.precedence
        return whole & (at[:, pairs[:, 0]] < at[:, pairs[:, 1]]).all(axis=1)

    def peaks(self, orders: np.ndarray) -> np.ndarray:
        """Return int64 [B]: the peak of each row of `orders`, int64 [B, n]. The orders must be valid (not checked)."""
        orders, step = np.atleast_2d(orders), max(1, MAX_ELEMENTS // (self.n + len(self.size) + len(self.reads) + 1))
        parts = [self.usage(orders[first : first + step]).max(axis=1) for first in range(0, len(orders), step)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def peak(self, order: np.ndarray) -> int:
        """Return the peak of one order, int [n], in the problem's unit. Raise RLFlowError if the order is not valid."""
        if not self.is_order(np.asarray(order)):
            raise RLFlowError("not a valid order: each node must come once, after all nodes that it depends on")
        return int(self.peaks(order)[0])

    def usage(self, orders: np.ndarray) -> np.ndarray:
        """Return int64 [B, n]: the memory in use at each step of each order (M_t in Gagrani et al.).

        Args:
          orders: int64 [B, n], valid orders.
        """
        lanes, n = np.arange(len(orders))[:, None], self.n
        at = np.empty_like(orders)
        at[lanes, orders] = np.arange(n)
        last = self.last_use(at)
        slots, sizes = (lanes * (n + 2) + last + 1).ravel(), np.tile(self.size, len(orders))
        freed = np.bincount(slots, sizes, len(orders) * (n + 2)).reshape(-1, n + 2)[:, :n]
        freed = freed.astype(np.int64)  # exact: sums of whole numbers below 2⁵³
        return self.given + np.cumsum(self.made[orders] - freed, axis=1) + self.needs(orders, at, last)

    def needs(self, orders: np.ndarray, at: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return int64 [B, n]: at each step the node's `work` minus the memory that it saves by writing over a buffer.

        Args:
          orders: int64 [B, n], valid orders.
          at: int64 [B, n], the position of each node in each order.
          last: int64 [B, b], the result of `last_use`.
        """
        saved = np.zeros(at.shape, np.int64)
        for pairs in self.inplace_by_rank:
            node, buffer = pairs[:, 0], pairs[:, 1]
            ends = np.where(last[:, buffer] == at[:, node], self.size[buffer], 0)
            saved[:, node] = np.maximum(saved[:, node], ends)
        return self.work[orders] - np.take_along_axis(saved, orders, axis=1)

    @cached_property
    def inplace_by_rank(self) -> list[np.ndarray]:
        """The pairs of `inplace`, divided into arrays int64 [k, 2] in which no node occurs twice."""
        ranks = [(self.inplace[:k, 0] == node).sum() for k, (node, _) in enumerate(self.inplace)]
        return [self.inplace[np.array(ranks) == rank] for rank in sorted(set(ranks))]

    def last_use(self, at: np.ndarray) -> np.ndarray:
        """Return int64 [B, b]: the last step at which each buffer is needed, in each order.

        This is the position of the last reader, or of the maker of a buffer without readers. It is n for a buffer that
        exists to the end, and for a buffer with neither maker nor reader.

        Args:
          at: int64 [B, n], the position of each node in each order.
        """
        last = np.where(self.maker < 0, -1, at[:, self.maker])
        some = self.readers.counts > 0
        if some.any():
            positions = at[:, self.readers.values]
            last[:, some] = np.maximum.reduceat(positions, self.readers.starts[:-1][some], axis=1)
        last[:, self.kept | (self.maker < 0) & ~some] = self.n
        return last


def depth_first(problem: Problem) -> np.ndarray:
    """Return the order, int64 [n], that always runs a node that became ready last; lower numbers come first."""
    return _walk(problem, lambda ready, new: ready.extendleft(reversed(new)))


def breadth_first(problem: Problem) -> np.ndarray:
    """Return the order, int64 [n], that always runs the node that has been ready for the longest time."""
    return _walk(problem, deque.extend)


def _walk(problem: Problem, put) -> np.ndarray:
    waiting, order = problem.before.counts.tolist(), []
    ready = deque(node for node in range(problem.n) if not waiting[node])
    while ready:
        node = ready.popleft()
        order.append(node)
        new = []
        for other in problem.after[node].tolist():
            waiting[other] -= 1
            if not waiting[other]:
                new.append(other)
        put(ready, new)
    return np.array(order)


def by_priority(problem: Problem, priorities: np.ndarray) -> np.ndarray:
    """Return orders, int64 [B, n], that always run the ready node with the highest priority.

    Args:
      problem: the ordering problem.
      priorities: float [B, n], the priority of each node for each order; of equal nodes the lowest number comes first.
    """
    return decode(problem, len(priorities), lambda ready: np.where(ready, priorities, -np.inf).argmax(axis=1))


def decode(problem: Problem, count: int, choose) -> np.ndarray:
    """Return the orders, int64 [count, n], that a function chooses node by node.

    Args:
      problem: the ordering problem.
      count: the number of orders.
      choose: a function that takes bool [count, n], True for the ready nodes of each order, and returns the next node
        of each order, int64 [count].
    """
    lanes, n = np.arange(count), problem.n
    waiting = np.tile(problem.before.counts.astype(np.int32), (count, 1))
    orders = np.empty((count, n), np.int64)
    for step in range(n):
        orders[:, step] = chosen = choose(waiting == 0)
        waiting[lanes, chosen] = -1
        of, index = problem.after.expand(chosen)
        waiting[of, problem.after.values[index]] -= 1
    return orders
