"""The cost `memory`: bytes of activations at the peak, in the best order that a quick search finds.

*Counted* are the results that ONNX Runtime's kernels leave for one another (`allocation.py`): tensors inside a fused
kernel and views need no memory of their own, and a convolution with a sum adds to the other summand. Weights and inputs
belong to the caller. The workspace of kernels and the waste of the allocator are not counted.

The order comes from `optimum` without the search for a proof. It depends on the graph alone, so a graph has the same
cost whichever rewrites led to it. An order consists of segments, and a rewrite changes few of them; results are
remembered by the content of a segment, so that a search can ask for thousands of peaks.

A cost counts FRACTIONS of a byte. Its whole bytes are the peak; the rest grows with the third power of the memory in
use at each step. Of two graphs with the same peak, the graph that is near the peak at fewer steps is cheaper. Otherwise
a search would not see that one of two equal peaks is gone.
"""

from pathlib import Path
from typing import ClassVar

import numpy as np

from rlflow.costs import NodeCost
from rlflow.costs.analytic import AnalyticCost
from rlflow.graph.ir import Graph, Node
from rlflow.memory.allocation import kernels_of, problem_of_kernels
from rlflow.memory.order_search import quick, segments
from rlflow.memory.problem import Problem

WIDTH = 8  # of the search of a segment
REMEMBERED = 20_000  # segments
FRACTIONS = 1 << 28  # of a byte
LEVELS = 64  # of what is in use, as a share of the peak


class MemoryCost:
    """Fractions of bytes in the place of picoseconds: of a node, what its results take; of a graph, its peak."""

    reach, passes = 0, None
    unit: ClassVar[str] = "MB"
    per_unit: ClassVar[float] = 1e6 * FRACTIONS

    def __init__(self) -> None:
        self._analytic = AnalyticCost()
        self._known: dict[bytes, np.ndarray] = {}

    @classmethod
    def open(cls, threads: int = 1, database: Path | None = None) -> "MemoryCost":
        """Both arguments are for other cost models."""
        return cls()

    def node_cost(self, graph: Graph, node: Node) -> NodeCost:
        made = (graph.types.get(tensor) for tensor in node.outputs if not node.constant)
        size = sum(kind.nbytes for kind in made if kind is not None and kind.shape is not None)
        return self._analytic.node_cost(graph, node)._replace(runtime_ps=size * FRACTIONS)

    def whole(self, graph: Graph) -> int:
        """Fractions of bytes: the peak, and what tells graphs of one peak apart. All sizes must be numbers."""
        problem = problem_of_kernels(graph, kernels_of(graph))
        usage = problem.usage(self._order(problem)[None])[0]
        peak = int(usage.max(initial=0))
        near = int(((LEVELS * usage // max(peak, 1)) ** 3).sum())
        return peak * FRACTIONS + min(near, FRACTIONS - 1)

    def strain(self, graph: Graph) -> dict[int, int]:
        """Of each node that runs the most bytes that are in use while something is there that it makes or reads."""
        kernels = kernels_of(graph)
        problem = problem_of_kernels(graph, kernels)
        order = self._order(problem)
        usage, at = problem.usage(order[None])[0], np.argsort(order)
        strain = usage[at]
        first = np.where(problem.maker < 0, 0, at[problem.maker])
        last = np.minimum(problem.last_use(at[None])[0], problem.n - 1)
        waited = [usage[one : other + 1].max() for one, other in zip(first, last, strict=True)]
        for buffer, most in enumerate(waited):
            touching = [*problem.readers[buffer], *problem.maker[buffer : buffer + 1]]
            strain[touching] = np.maximum(strain[touching], most)
        return {node.id: int(strain[k]) for k, kernel in enumerate(kernels) for node in kernel}

    def _order(self, problem: Problem) -> np.ndarray:
        """int64 [n]: the order that the quick search finds."""
        parts = segments(problem)
        return np.concatenate([np.zeros(0, np.int64), *(part.nodes[self._best(part.problem)] for part in parts)])

    def _best(self, part: Problem) -> np.ndarray:
        """int64 [n]: the order of a segment."""
        key = part.content
        order = self._known.get(key)
        if order is None:
            if len(self._known) == REMEMBERED:
                self._known.clear()
            order = self._known[key] = quick(part, WIDTH).order
        return order
