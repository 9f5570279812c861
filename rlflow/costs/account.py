"""Where the time of a model goes: its kernels, their measured times, and the bound of each kernel.

    rows = account(ProfiledCost.open(threads=1), graph, speeds_here(database, 1))

The bound is the roofline of this machine (Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785): a kernel
cannot be faster than its FLOPs at the speed of the best product or convolution, nor than its bytes at the bandwidth of
the cache that holds them. The bound ignores that functions such as Exp take several operations for each element.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rlflow.common.messages import markdown_table
from rlflow.costs import FREE, NodeCost
from rlflow.costs.profiled import ProfiledCost
from rlflow.costs.speeds import Speeds
from rlflow.graph.ir import Graph


class Row(NamedTuple):
    """Equal kernels of a graph.

    Attributes:
      operators: the operators that the kernel runs, such as "Conv + Relu".
      shape: the shape of the kernel's last output; None if it is unknown.
      first: the name of the first node of the first of these kernels; "" for a reorder.
      count: the number of kernels.
      cost: the sum of their costs.
      bound_ps: the sum of their bounds in picoseconds.
    """

    operators: str
    shape: tuple[int, ...] | None
    first: str
    count: int
    cost: NodeCost
    bound_ps: float

    @property
    def excess_ps(self) -> float:
        """The time above the bound in picoseconds."""
        return self.cost.runtime_ps - self.bound_ps


def account(cost: ProfiledCost, graph: Graph, speeds: Speeds) -> list[Row]:
    """Return the kernels of a graph, equal kernels together, the longest time above the bound first.

    Args:
      cost: the cost model, which times the kernels that have no timing.
      graph: the graph, without symbolic sizes.
      speeds: the speeds of this machine with the threads of `cost`.
    """
    counts, facts = Counter(), {}
    for operators, shape, first, kernel, runs in cost.kernels(graph):
        key = operators, shape, kernel.cost
        facts.setdefault(key, first)
        counts[key] += runs
    rows = []
    for (operators, shape, one), count in counts.items():
        bound = min(bound_ps(one, speeds), one.runtime_ps)
        total = NodeCost(*[count * part for part in one])
        rows.append(Row(operators, shape, facts[operators, shape, one], count, total, count * bound))
    return sorted(rows, key=lambda row: -row.excess_ps)


def bound_ps(cost: NodeCost, speeds: Speeds) -> float:
    """Return the roofline of a kernel in picoseconds: the larger of its FLOPs and its bytes at the best speeds."""
    return max(cost.flops * min(speeds.product, speeds.convolution), cost.bytes * speeds.byte(cost.bytes))


def account_table(rows: Sequence[Row], most: int) -> str:
    """Return a Markdown table of the first rows and of the sum of all rows.

    Args:
      rows: the result of `account`.
      most: the largest number of rows that are shown.
    """
    whole = max(sum(row.cost.runtime_ps for row in rows), 1)
    head = ("kernel", "output", "first node", "count", "ms", "share", "bound, ms", "time / bound", "GFLOP", "MB")
    cells = []
    for row in rows[:most]:
        shape = "?" if row.shape is None else "×".join(map(str, row.shape)) or "one number"
        name = row.first.replace("|", "\\|")
        cells.append([row.operators, shape, name, str(row.count), *_figures(row.cost, row.bound_ps, whole)])
    total = NodeCost(*map(sum, zip(*(row.cost for row in rows), strict=True))) if rows else FREE
    count, bound = str(sum(row.count for row in rows)), sum(row.bound_ps for row in rows)
    cells.append(["all kernels", "", "", count, *_figures(total, bound, whole)])
    return markdown_table(head, cells, range(3, len(head)))


def _figures(cost: NodeCost, bound: float, whole: int) -> list[str]:
    """Return the cells from "ms" to "MB"; `whole` is the runtime of all kernels in picoseconds."""
    ratio = f"{cost.runtime_ps / bound:.1f}" if bound else "–"
    time, share = f"{cost.runtime_ps / 1e9:.3f}", f"{cost.runtime_ps / whole:.1%}"
    return [time, share, f"{bound / 1e9:.3f}", ratio, f"{cost.flops / 1e9:.3f}", f"{cost.bytes / 1e6:.1f}"]
