"""Orders by small changes: one node moves to another place between those that it depends on and those that need it."""

import numpy as np

from rlflow.costs.memory.problem import Problem

BATCH = 256  # changed orders that are evaluated at once


def local_search(problem: Problem, order: np.ndarray, steps: int, seed: int = 0) -> np.ndarray:
    """int64 [n]: an order that needs no more than the given one, which must be valid.

    In each step the best of BATCH random moves is made if it is better: if the peak is lower or, at an equal peak,
    less is in use on average, so that plateaus are left.
    """
    rng, best = np.random.default_rng(seed), np.asarray(order).copy()
    value = _value(problem, best[None])[0]
    for _ in range(steps):
        changed = np.stack([moved(problem, best, int(node), rng) for node in rng.integers(problem.n, size=BATCH)])
        values = _value(problem, changed)
        chosen = min(range(BATCH), key=lambda k: tuple(values[k]))
        if tuple(values[chosen]) < tuple(value):
            best, value = changed[chosen], values[chosen]
    return best


def _value(problem: Problem, orders: np.ndarray) -> np.ndarray:
    """int64 [B, 2]: the peak, and the sum of what is in use."""
    usage = problem.usage(orders)
    return np.stack([usage.max(axis=1), usage.sum(axis=1)], axis=1)


def moved(problem: Problem, order: np.ndarray, node: int, rng: np.random.Generator) -> np.ndarray:
    """The order with the node at a random one of the places where it may stand."""
    at = np.argsort(order)
    first = at[problem.before[node]].max(initial=-1) + 1
    last = at[problem.after[node]].min(initial=problem.n) - 1
    rest = np.delete(order, at[node])
    return np.insert(rest, rng.integers(first, last + 1), node)
