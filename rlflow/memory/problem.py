"""The ordering problem: nodes make and read buffers, and an order of the nodes has a peak of memory in use.

A buffer exists from its maker to its last reader; outputs stay to the end; a node may write its result over an input.
`Problem.of_nodes` is the special case of Gagrani et al. 2022 (equations 2, 3 and 15), in which each node makes one
buffer. All sizes are whole numbers, so that sums are the same in any order and on any machine.

The functions at the end give orders that need no search: depth first, breadth first, by priorities, at random.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rlflow.common.errors import RLFlowError

MAX_ELEMENTS = 1 << 22  # elements of one array while orders are evaluated (32 MB)


class Rows(NamedTuple):
    """Lists of numbers for n items: the list of item k is values[starts[k] : starts[k + 1]]."""

    starts: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, owners: np.ndarray, values: np.ndarray, n: int) -> "Rows":
        """Return the lists that collect each value under its owner, in the given order.

        Args:
          owners: int [m], the item that each value belongs to.
          values: [m].
          n: the number of items.
        """
        order = np.argsort(owners, kind="stable")
        starts = np.zeros(n + 1, np.int64)
        np.cumsum(np.bincount(owners, minlength=n), out=starts[1:])
        return cls(starts, np.asarray(values)[order])

    @property
    def counts(self) -> np.ndarray:
        """Length of each list, int64 [n]."""
        return np.diff(self.starts)

    def __getitem__(self, k: int) -> np.ndarray:
        return self.values[self.starts[k] : self.starts[k + 1]]

    def expand(self, things: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of all values of several items, one item after another.

        Args:
          things: int [k], the items; an item may occur more than once.

        Returns:
          (position in `things`, index into `values`), one entry per value.
        """
        counts = self.counts[things]
        of = np.repeat(np.arange(len(things)), counts)
        first = self.starts[things] - (np.cumsum(counts) - counts)
        return of, np.repeat(first, counts) + np.arange(len(of))


@dataclass(frozen=True, eq=False)
class Problem:
    """An ordering problem of n nodes and b buffers. All sizes have one unit, bytes for a model.

    A buffer exists from its maker until all its readers have run. A buffer without readers exists only while its maker
    runs.

    Attributes:
      work: int64 [n], additional memory that a node needs only while it runs.
      edges: int64 [e, 2], unique (node, later node) pairs. A maker and a reader of one buffer need no edge.
      size: int64 [b].
      maker: int64 [b], -1 for a buffer that exists from the beginning.
      kept: bool [b], True for a buffer that exists to the end.
      reads: int64 [r, 2], unique (node, buffer) pairs.
      inplace: int64 [k, 2], (node, buffer that the node reads): if the node is the last reader, it writes its result
        into
        the buffer and needs that much less while it runs. Of several such buffers the largest counts.
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
        """Return the problem of Gagrani et al. (equations 2, 15): each node makes one buffer, read along its edges.

        Args:
          memory: size of each node's buffer.
          work: additional memory of each node while it runs.
          edges: (node, reader) pairs; duplicates count once.
        """
        memory = np.asarray(memory, np.int64)
        pairs = np.array(sorted(set(edges)), np.int64).reshape(-1, 2)
        return cls(
            np.asarray(work, np.int64), pairs, memory, np.arange(len(memory)), np.zeros(len(memory), bool),
            pairs[:, ::-1].copy(), np.zeros((0, 2), np.int64),
        )  # fmt: skip

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.work)

    @property
    def content(self) -> bytes:
        """All arrays as bytes; equal for problems that are equal node by node."""
        arrays = (self.work, self.edges, self.size, self.maker, self.kept, self.reads, self.inplace)
        return b"|".join(part for array in arrays for part in (str(array.shape).encode(), array.tobytes()))

    @cached_property
    def precedence(self) -> np.ndarray:
        """int64 [p, 2]: unique (node, node that must run later) pairs, by edges or by buffers."""
        made = self.maker[self.reads[:, 1]]
        pairs = np.concatenate([self.edges, np.stack([made, self.reads[:, 0]], axis=1)[made >= 0]])
        return np.unique(pairs, axis=0).reshape(-1, 2)

    @cached_property
    def after(self) -> Rows:
        """Nodes that must run after each node."""
        return Rows.of(self.precedence[:, 0], self.precedence[:, 1], self.n)

    @cached_property
    def before(self) -> Rows:
        """Nodes that must run before each node."""
        return Rows.of(self.precedence[:, 1], self.precedence[:, 0], self.n)

    @cached_property
    def read(self) -> Rows:
        """Buffers that each node reads."""
        return Rows.of(self.reads[:, 0], self.reads[:, 1], self.n)

    @cached_property
    def readers(self) -> Rows:
        """Nodes that read each buffer."""
        return Rows.of(self.reads[:, 1], self.reads[:, 0], len(self.size))

    @cached_property
    def made(self) -> np.ndarray:
        """int64 [n]: size of all buffers that a node makes."""
        return self._by_maker(self.maker >= 0)

    @cached_property
    def stays(self) -> np.ndarray:
        """int64 [n]: size of the buffers that a node makes and that outlive the node's run."""
        return self._by_maker((self.maker >= 0) & self.lasts)

    @cached_property
    def lasts(self) -> np.ndarray:
        """bool [b]: True for a buffer that exists beyond the run of its maker."""
        return self.kept | (self.readers.counts > 0)

    def _by_maker(self, chosen: np.ndarray) -> np.ndarray:
        return np.bincount(self.maker[chosen], self.size[chosen], self.n).astype(np.int64)

    @cached_property
    def given(self) -> int:
        """Size of all buffers that exist from the beginning."""
        return int(self.size[(self.maker < 0) & self.lasts].sum())

    def is_order(self, order: np.ndarray) -> bool:
        """Return whether an order, int [n], holds every node once and none before a node that must come first."""
        return order.shape == (self.n,) and bool(self.are_orders(order[None])[0])

    def are_orders(self, orders: np.ndarray) -> np.ndarray:
        """Return bool [B]: whether each row of int64 [B, n] is a valid order."""
        whole = (np.sort(orders, axis=1) == np.arange(self.n)).all(axis=1)
        at, pairs = np.argsort(orders, axis=1), self.precedence
        return whole & (at[:, pairs[:, 0]] < at[:, pairs[:, 1]]).all(axis=1)

    def peaks(self, orders: np.ndarray) -> np.ndarray:
        """Return int64 [B]: the peak of each order in int64 [B, n]. The orders must be valid; this is not checked."""
        orders, step = np.atleast_2d(orders), max(1, MAX_ELEMENTS // (self.n + len(self.size) + len(self.reads) + 1))
        parts = [self.usage(orders[first : first + step]).max(axis=1) for first in range(0, len(orders), step)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def peak(self, order: np.ndarray) -> int:
        """Return the peak of one order. Raise RLFlowError if the order is not valid."""
        if not self.is_order(np.asarray(order)):
            raise RLFlowError("not a valid order: each node must come once, after all nodes that it depends on")
        return int(self.peaks(order)[0])

    def usage(self, orders: np.ndarray) -> np.ndarray:
        """Return int64 [B, n]: the memory in use while each node of each order runs (M_t in the paper)."""
        lanes, n = np.arange(len(orders))[:, None], self.n
        at = np.empty_like(orders)
        at[lanes, orders] = np.arange(n)
        last = self.last_use(at)
        slots, sizes = (lanes * (n + 2) + last + 1).ravel(), np.tile(self.size, len(orders))
        freed = np.bincount(slots, sizes, len(orders) * (n + 2)).reshape(-1, n + 2)[:, :n]
        freed = freed.astype(np.int64)  # exact: sums of whole numbers below 2⁵³
        return self.given + np.cumsum(self.made[orders] - freed, axis=1) + self.needs(orders, at, last)

    def needs(self, orders: np.ndarray, at: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return int64 [B, n]: the work of each node in order, minus the bytes that the node saves by writing in place.

        Args:
          orders: int64 [B, n].
          at: int64 [B, n], the position of each node.
          last: int64 [B, b], as `last_use` returns it.
        """
        saved = np.zeros(at.shape, np.int64)
        for pairs in self.inplace_by_rank:
            node, buffer = pairs[:, 0], pairs[:, 1]
            ends = np.where(last[:, buffer] == at[:, node], self.size[buffer], 0)
            saved[:, node] = np.maximum(saved[:, node], ends)
        return self.work[orders] - np.take_along_axis(saved, orders, axis=1)

    @cached_property
    def inplace_by_rank(self) -> list[np.ndarray]:
        """`inplace` in parts, each with a node at most once."""
        ranks = [(self.inplace[:k, 0] == node).sum() for k, (node, _) in enumerate(self.inplace)]
        return [self.inplace[np.array(ranks) == rank] for rank in sorted(set(ranks))]

    def last_use(self, at: np.ndarray) -> np.ndarray:
        """Return int64 [B, b]: the position of each buffer's last reader.

        Without readers it is the position of the maker. A buffer that exists to the end has the position n.

        Args:
          at: int64 [B, n], the position of each node.
        """
        last = np.where(self.maker < 0, -1, at[:, self.maker])
        some = self.readers.counts > 0
        if some.any():
            positions = at[:, self.readers.values]
            last[:, some] = np.maximum.reduceat(positions, self.readers.starts[:-1][some], axis=1)
        last[:, self.kept | (self.maker < 0) & ~some] = self.n
        return last


def depth_first(problem: Problem) -> np.ndarray:
    """Return an order, int64 [n], that continues with the nodes that became ready last, from left to right."""
    return _walk(problem, lambda ready: ready.popleft(), lambda ready, new: ready.extendleft(reversed(new)))


def breadth_first(problem: Problem) -> np.ndarray:
    """Return an order, int64 [n], that continues with the node that has been ready for longest."""
    return _walk(problem, lambda ready: ready.popleft(), lambda ready, new: ready.extend(new))


def _walk(problem: Problem, take, put) -> np.ndarray:
    waiting, order = problem.before.counts.tolist(), []
    ready = deque(node for node in range(problem.n) if not waiting[node])
    while ready:
        node = take(ready)
        order.append(node)
        new = []
        for other in problem.after[node].tolist():
            waiting[other] -= 1
            if not waiting[other]:
                new.append(other)
        put(ready, new)
    return np.array(order)


def by_priority(problem: Problem, priorities: np.ndarray) -> np.ndarray:
    """Return int64 [B, n]: orders that always run the ready node of highest priority, the first of equal nodes.

    Args:
      problem: the problem.
      priorities: float [B, n].
    """
    return _decode(problem, len(priorities), lambda ready: np.where(ready, priorities, -np.inf).argmax(axis=1))


def random_orders(problem: Problem, count: int, seed: int) -> np.ndarray:
    """Return int64 [count, n]: random orders that choose among the ready nodes with equal probability.

    Args:
      problem: the problem.
      count: number of orders.
      seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    return _decode(problem, count, lambda ready: (ready * (1.0 + rng.random(ready.shape))).argmax(axis=1))


def random_depth_first(problem: Problem, count: int, seed: int) -> np.ndarray:
    """Return int64 [count, n]: random orders that continue with the nodes that became ready last, in random order.

    Args:
      problem: the problem.
      count: number of orders.
      seed: of the random numbers.
    """
    rng, steps = np.random.default_rng(seed), itertools.count()
    since = np.full((count, problem.n), -1.0)  # step at which a node became ready, plus a random fraction

    def choose(ready: np.ndarray) -> np.ndarray:
        new = ready & (since < 0)
        since[new] = next(steps) + rng.random(int(new.sum()))
        return np.where(ready, since, -1.0).argmax(axis=1)

    return _decode(problem, count, choose)


def _decode(problem: Problem, count: int, choose) -> np.ndarray:
    """Return int64 [count, n]: the orders made by `choose`, a function from ready nodes, bool [B, n], to nodes, int64
    [B].
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
