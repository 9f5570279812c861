"""The cost `memory`: bytes of activations at the peak, under the best order that a quick search finds.

**What is counted** is what ONNX Runtime's kernels leave for one another (`models.py`): what it fuses needs nothing in
between, a view has no memory of its own, a convolution with a sum adds to the other summand. Weights and inputs are the
caller's; what kernels take while they run, and what its allocator wastes, is not counted.

**Which order.** That of `optimum` without a search for a proof: it depends on the graph alone, so that a graph has the
same cost whichever way led to it. On real graphs it mostly is the optimum.

**Why a peak can be had a thousand times.** An order consists of segments in turn, and a peak is the highest of theirs.
A rewrite changes few of them; what a segment needs is remembered by its content.

**Why a fraction of a byte.** Of two graphs with one peak, the one that is near it at fewer steps comes first: else a
search would not see that one of two equal peaks is gone. A cost counts FRACTIONS of a byte; its whole bytes are the
peak, the rest grows with the third power of what is in use at each step.
"""

from pathlib import Path
from typing import ClassVar

import numpy as np

from rlflow.costs import NodeCost
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.memory.kernels import kernels_of
from rlflow.costs.memory.models import problem_of_kernels
from rlflow.costs.memory.optimum import quick, segments
from rlflow.costs.memory.problem import Problem
from rlflow.graph.model import Graph, Node

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
