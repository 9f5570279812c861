"""Signatures of nodes with their neighbourhoods, equal where these are alike.

That at distance 0 is the operator signature, and how many read each output. That at distance i + 1 joins the node's own
at distance i with those of the nodes that it reads from, slot by slot, and of the nodes that read each of its outputs,
in any order (Weisfeiler and Lehman). So two nodes have one signature at distance k if nothing within k edges of them
sets them apart.

They are hashes, which are compared within one process and mean nothing besides.
"""

from collections.abc import Iterable

from rlflow.costs import neighbourhood
from rlflow.graph.model import Graph, Node
from rlflow.rules.apply import content_of_constant


class Neighbourhoods:
    """The signatures of all nodes of one graph.

    levels: node id → int, for the distances 0 … k.
    """

    def __init__(self, graph: Graph, levels: list[dict[int, int]]):
        self.graph, self.levels = graph, levels

    @classmethod
    def of(cls, graph: Graph, distance: int) -> "Neighbourhoods":
        """Those of a graph that nothing is known of."""
        result = cls(graph, [{} for _ in range(distance + 1)])
        result._count(graph.nodes)
        return result

    def after(self, graph: Graph, touched: Iterable[int]) -> "Neighbourhoods":
        """Those of a graph that rewrites made of this one, which touched these nodes."""
        result = Neighbourhoods(graph, [level.copy() for level in self.levels])
        result._count(touched)
        return result

    def __getitem__(self, node_id: int) -> int:
        """At the greatest distance."""
        return self.levels[-1][node_id]

    def _count(self, node_ids: Iterable[int]) -> None:
        """Anew for these nodes, which may be gone, and all that see them."""
        for distance, level in enumerate(self.levels):
            node_ids = neighbourhood(self.graph, node_ids, min(distance, 1))
            for node_id in node_ids:
                if node_id not in self.graph.nodes:
                    level.pop(node_id, None)
                elif distance:
                    level[node_id] = self._joined(self.graph.nodes[node_id], self.levels[distance - 1])
                else:
                    level[node_id] = _signature(self.graph, self.graph.nodes[node_id])

    def _joined(self, node: Node, nearer: dict[int, int]) -> int:
        graph = self.graph
        read = [nearer.get(graph.producers.get(tensor, -1), -1) for tensor in node.reads()]
        readers = [sorted(nearer[reader] for reader in graph.consumers.get(t, ())) for t in node.outputs]
        return hash((nearer[node.id], *read, *map(tuple, readers)))


def _signature(graph: Graph, node: Node) -> int:
    """Of operator, attributes, and the types of inputs and outputs; of small constants the content."""
    read = []
    for tensor in node.reads():
        constant = graph.constants.get(tensor)
        content = graph.is_constant(tensor) if constant is None else content_of_constant(constant)
        read.append((graph.types.get(tensor), content))
    made = [(graph.types.get(t), t in graph.outputs, len(graph.consumers.get(t, ()))) for t in node.outputs]
    return hash((node.key(), node.constant, *read, *made))
