"""Helpers: layered graphs as instances, and the same instances with renumbered nodes."""

import numpy as np

from controllers.controller_options import TopoformerConfig
from rlflow.memory.problem import Problem
from rlflow.tasks.ordering import Orders, layered

TINY = TopoformerConfig(
    epochs=3, steps=20, batch=8, nodes=(16,), learning_rate=0.003, evaluation_graphs=40, width=16, layers=2, heads=1,
    head_size=8, beam=4,
)  # fmt: skip


def instance(n: int, seed: int) -> Orders:
    return Orders(layered(n, seed), np.arange(n))


def renumbered(one: Orders, order: np.ndarray) -> Orders:
    """Return the instance in which node k is the former node order[k]."""
    problem, number = one.problem, np.argsort(order)
    edges = [(number[a], number[b]) for a, b in problem.edges.tolist()]
    other = Problem.of_nodes(problem.size[order], problem.work[order], edges)
    return Orders(other, number[one.usual])
