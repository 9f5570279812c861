"""Orders that need no search: depth first, breadth first, by priorities, at random."""

import itertools
from collections import deque

import numpy as np

from rlflow.costs.memory.problem import Problem


def depth_first(problem: Problem) -> np.ndarray:
    """int64 [n]: always on with what has just become ready, from left to right; else back to what was ready before."""
    return _walk(problem, lambda ready: ready.popleft(), lambda ready, new: ready.extendleft(reversed(new)))


def breadth_first(problem: Problem) -> np.ndarray:
    """int64 [n]: always on with what has been ready for longest."""
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
    """int64 [B, n]: of all that is ready, what has the highest priority runs next; of equal ones, the first.

    priorities: float [B, n].
    """
    return _decode(problem, len(priorities), lambda ready: np.where(ready, priorities, -np.inf).argmax(axis=1))


def random_orders(problem: Problem, count: int, seed: int) -> np.ndarray:
    """int64 [count, n]: anything that is ready may run next, each as likely as the others."""
    rng = np.random.default_rng(seed)
    return _decode(problem, count, lambda ready: (ready * (1.0 + rng.random(ready.shape))).argmax(axis=1))


def random_depth_first(problem: Problem, count: int, seed: int) -> np.ndarray:
    """int64 [count, n]: always on with what has just become ready, in any order; else back to what was ready before."""
    rng, steps = np.random.default_rng(seed), itertools.count()
    since = np.full((count, problem.n), -1.0)  # the step at which a node became ready, and a fraction by chance

    def choose(ready: np.ndarray) -> np.ndarray:
        new = ready & (since < 0)
        since[new] = next(steps) + rng.random(int(new.sum()))
        return np.where(ready, since, -1.0).argmax(axis=1)

    return _decode(problem, count, choose)


def _decode(problem: Problem, count: int, choose) -> np.ndarray:
    """`choose` says, of bool [B, n], which nodes are ready, the next of each: int64 [B]."""
    lanes, n = np.arange(count), problem.n
    waiting = np.tile(problem.before.counts.astype(np.int32), (count, 1))
    orders = np.empty((count, n), np.int64)
    for step in range(n):
        orders[:, step] = chosen = choose(waiting == 0)
        waiting[lanes, chosen] = -1
        of, index = problem.after.expand(chosen)
        waiting[of, problem.after.values[index]] -= 1
    return orders
