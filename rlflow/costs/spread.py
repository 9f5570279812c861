"""By how much an estimate may be off, and what of it two graphs share.

Alike kernels have one timing, so that they are off together: twelve times the kernel is off twelve times as far, and
what two graphs have in common cancels. So a graph's spread says of each timing how far it moves the total. Timings are
taken independently of one another: those that two graphs do not share are added as squares.

A search lowers the estimate and heeds none of this: what it comes to is where chance promises most. So only when it has
ended the timings on which its promise hangs are taken again (`rlflow.deliver.settle`), and what gains less than it may
be off is taken back (`rlflow.deliver.prune`). Searches that were cautious from the start found half as much: kernels of
one graph differ by less than a timing is sure of, one at a time, and by much together.
"""

from collections.abc import Mapping

from rlflow.graph.model import Graph, Node


class Spread(dict[str, int]):
    """Timing → picoseconds by which the sum may be off through it, with the sign of its count; never 0. Not changed."""

    def plus(self, other: Mapping[str, int], times: float) -> "Spread":
        """With so many times the other one."""
        if not other:
            return self
        result = Spread(self)
        for timing, off in other.items():
            together = result.pop(timing, 0) + round(times * off)
            if together:
                result[timing] = together
        return result

    def __sub__(self, other: "Spread") -> "Spread":
        return self.plus(other, -1)

    @property
    def ps(self) -> int:
        """By how many picoseconds the sum may be off: in 19 of 20 cases by no more."""
        return round(sum(off * off for off in self.values()) ** 0.5)


EXACT = Spread()


def node_spread(cost, graph: Graph, node: Node) -> Spread:
    """By how much what an operator costs may be off by a cost model; EXACT where nothing of it is timed."""
    return cost.spread(graph, node) if hasattr(cost, "spread") else EXACT


def graph_spread(cost, graph: Graph) -> Spread:
    """The same of a whole graph."""
    result = EXACT
    for node in graph.nodes.values():
        result = result.plus(node_spread(cost, graph, node), 1)
    return result
