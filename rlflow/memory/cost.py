"""The cost `memory`: bytes of activations at the peak, in the best order that a quick search finds.

The cost counts the results of ONNX Runtime's kernels (`allocation.py`). Tensors inside a fused kernel and views need no
memory of their own. A convolution that is fused with a sum writes its result over the other summand. Weights, inputs,
the workspace of kernels and the waste of the allocator are not counted.

The order comes from `quick`, which depends on the graph alone, so a graph has the same cost whichever rewrites led to
it. An order consists of segments, and a rewrite changes few of them. The orders of segments are cached, so a search can
evaluate thousands of peaks.

A cost is an integer in units of 1 / FRACTIONS bytes. Its whole bytes are the peak. The fraction is a sum over all steps
that grows with the third power of the memory in use. Of two graphs with the same peak, the graph that is near the peak
at fewer steps is therefore cheaper. So a search sees progress when it removes one of two equal peaks.
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

WIDTH = 8  # width of the beam that orders one segment
MAX_SEGMENTS = 20_000  # number of segments at which the cache is emptied
FRACTIONS = 1 << 28  # units of cost per byte
LEVELS = 64  # the fraction of a byte uses memory in use in multiples of peak / LEVELS


class MemoryCost:
    """A cost model in units of 1 / FRACTIONS bytes instead of picoseconds.

    The cost of a node is the size of its results, and the cost of a graph is its peak memory.
    """

    reach, passes = 0, None  # a node's cost depends on this node alone
    unit: ClassVar[str] = "MB"
    per_unit: ClassVar[float] = 1e6 * FRACTIONS

    def __init__(self) -> None:
        self._analytic = AnalyticCost()
        self._segment_orders: dict[bytes, np.ndarray] = {}

    @classmethod
    def open(cls, threads: int = 1, database: Path | None = None) -> "MemoryCost":
        """Return the cost model. The arguments have no effect; all cost models accept them."""
        return cls()

    def node_cost(self, graph: Graph, node: Node) -> NodeCost:
        """Return the analytic cost of a node in which `runtime_ps` is the size of its results in 1 / FRACTIONS bytes.

        Args:
          graph: the graph that holds the node.
          node: the node.
        """
        made = (graph.types.get(tensor) for tensor in node.outputs if not node.constant)
        size = sum(kind.nbytes for kind in made if kind is not None and kind.shape is not None)
        return self._analytic.node_cost(graph, node)._replace(runtime_ps=size * FRACTIONS)

    def whole(self, graph: Graph) -> int:
        """Return the peak memory of a graph without symbolic sizes, in units of 1 / FRACTIONS bytes.

        The fraction of a byte ranks graphs with equal peaks (see the docstring of the module).
        """
        problem = problem_of_kernels(graph, kernels_of(graph))
        usage = problem.usage(self._order(problem)[None])[0]
        peak = int(usage.max(initial=0))
        near = int(((LEVELS * usage // max(peak, 1)) ** 3).sum())
        return peak * FRACTIONS + min(near, FRACTIONS - 1)

    def strain(self, graph: Graph) -> dict[int, int]:
        """Return node id → the largest number of bytes in use at any step at which a buffer of the node exists.

        Buffers of a node are the buffers that it makes or reads. Nodes of one kernel have the same value.
        """
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
        """Return the order of a problem's nodes that `quick` finds segment by segment, int64 [n]."""
        ordered = [np.zeros(0, np.int64)]
        for part in segments(problem):
            key = part.problem.content
            if key not in self._segment_orders:
                if len(self._segment_orders) == MAX_SEGMENTS:
                    self._segment_orders.clear()
                self._segment_orders[key] = quick(part.problem, WIDTH).order
            ordered.append(part.nodes[self._segment_orders[key]])
        return np.concatenate(ordered)
