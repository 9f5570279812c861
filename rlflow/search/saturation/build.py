"""The graph that a choice of operators of an e-graph stands for."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from rlflow.graph.model import ABSENT, Graph, Node
from rlflow.search.saturation.egraph import EGraph


def graph_of(egraph: EGraph, chosen: Sequence[int], original: Graph) -> Graph:
    """The graph of the chosen operators, in an order in which they can be computed, and the constants they read.

    Tensors of the original keep their ids, and so their names.
    """
    tensors, fresh = egraph.tensors(), count(original.next_id)
    made: set[int] = set()
    nodes: list[Node] = []

    def tensor(c: int) -> int:
        if c == ABSENT:
            return ABSENT
        if c not in tensors:
            tensors[c] = next(fresh)
        return tensors[c]

    def add(node: Node) -> None:
        for c in node.reads():
            if egraph.is_constant(c) and c not in egraph.constants and c not in made:
                add(egraph.nodes[next(iter(egraph.makers[c]))])
        again = {c for c in node.outputs if c in made}  # another operator gives it already
        outputs = tuple(next(fresh) if c in again else tensor(c) for c in node.outputs)
        made.update(node.outputs)
        captured = tuple((name, tensor(c)) for name, c in node.captured)
        nodes.append(
            replace(node, id=next(fresh), inputs=tuple(map(tensor, node.inputs)), outputs=outputs, captured=captured)
        )

    for node_id in chosen:
        add(egraph.nodes[node_id])
    outputs = [tensor(c) for c in egraph.outputs]
    constants = {tensor(c): constant for c, constant in egraph.constants.items() if c in tensors}
    types = {t: egraph.types[c] for c, t in tensors.items() if egraph.types[c] is not None}
    return Graph.build(original.interface, nodes, types, constants, original.inputs, outputs)
