"""Small problems of every kind, their peaks counted without the code under test, and all their orders."""

from itertools import permutations

import numpy as np

from rlflow.memory.problem import Problem, decode


def small(seed: int, n: int = 6) -> Problem:
    """Return a random problem with unread, kept and initial buffers, and with nodes that write in place."""
    rng = np.random.default_rng(seed)
    maker = np.concatenate([rng.integers(n, size=n + 2), [-1, -1]])
    size = rng.integers(1, 9, len(maker))
    reads = {
        (int(node), buffer)
        for buffer, first in enumerate(maker)
        for node in range(n)
        if node > first and rng.random() < 0.35
    }
    edges = {(a, b) for a in range(n) for b in range(a + 1, n) if rng.random() < 0.1}
    inplace = [pair for pair in sorted(reads) if rng.random() < 0.4]
    return Problem(
        rng.integers(0, 4, n), np.array(sorted(edges), np.int64).reshape(-1, 2), size, maker,
        rng.random(len(maker)) < 0.15, np.array(sorted(reads), np.int64).reshape(-1, 2),
        np.array(inplace, np.int64).reshape(-1, 2),
    )  # fmt: skip


def counted(problem: Problem, order) -> int:
    """Return the peak of an order by the definition in the docstring of `Problem`, buffer by buffer."""
    buffers, done, most = range(len(problem.size)), set(), 0
    readers = [set(problem.readers[b].tolist()) for b in buffers]
    there = {b for b in buffers if problem.maker[b] < 0 and (readers[b] or problem.kept[b])}
    for node in order:
        there |= {b for b in buffers if problem.maker[b] == node}
        over = {b for n, b in problem.inplace.tolist() if n == node}
        ends = {b for b in over if not problem.kept[b] and readers[b] - done <= {node}}
        saved = max((problem.size[b] for b in ends), default=0)
        most = max(most, sum(problem.size[b] for b in there) + problem.work[node] - saved)
        done.add(node)
        there -= {b for b in there if not problem.kept[b] and readers[b] <= done and _used(problem, b, node)}
    return int(most)


def _used(problem: Problem, buffer: int, node: int) -> bool:
    """Return True if a node makes or reads the buffer; only such a node can end the life of the buffer."""
    return problem.maker[buffer] == node or node in problem.readers[buffer]


def all_orders(problem: Problem) -> np.ndarray:
    """Return all valid orders, int64 [number of orders, n]."""
    return np.array([order for order in permutations(range(problem.n)) if problem.is_order(np.array(order))])


def random_orders(problem: Problem, count: int, seed: int) -> np.ndarray:
    """Return random orders, int64 [count, n]; each ready node is the next one with equal probability.

    Args:
      problem: the ordering problem.
      count: the number of orders.
      seed: the seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    return decode(problem, count, lambda ready: (ready * (1.0 + rng.random(ready.shape))).argmax(axis=1))
