"""What nodes cost at typical sizes that no episode was played at.

What rewriting does is the same at every size; what it gains is not. What the nodes of the initial graph cost is seen
before any dream, at any size. A node that is not among them costs what it cost at other sizes, and more as it has more
elements: per element as much more as the initial graph's nodes of that operator cost, else as all of them do. That is
the law of a launch and a stream of data; it is an estimate, so steps that need it are not certain (simulator.py).
"""

from collections.abc import Iterable, Mapping

from rlflow.collect.edits import Edit
from worldmodel.edits.logged_edits import sizes_of
from worldmodel.edits.match_patterns import Signature, node_signature
from worldmodel.edits.node_costs import NodeCosts

Growth = tuple[int, int, float]  # of a node: elements there and here, by how much more it costs here (ps)


def node_costs_at(first: Edit, learnt: Mapping[int, NodeCosts]) -> NodeCosts:
    """What single nodes cost in a graph that consists of this at first. learnt: by typical sizes."""
    if first.sizes in learnt:
        return learnt[first.sizes]
    signatures = {tensor.id: tensor.signature for tensor in first.tensors}
    logged = []
    for node in first.nodes:
        signature = node_signature(node.inputs, node.outputs, signatures.__getitem__)
        logged.append((node.operator, signature, node.runtime_ps))
    here = NodeCosts.learn(logged, sizes_of(first))
    # of several sizes those at which most of this graph was met
    return GrownCosts(here, max(learnt.values(), key=lambda there: sum(there.knows(*node[:2]) for node in logged)))


class GrownCosts(NodeCosts):
    """known, sizes: of the initial graph, at its typical sizes. there: what was learnt at others."""

    def __init__(self, here: NodeCosts, there: NodeCosts):
        super().__init__(here.known, here.sizes)
        self.there = there
        symbolic = [tensor for tensor in here.sizes if tensor & 1 and tensor in there.sizes]
        elements_there = sum(there.sizes[tensor] for tensor in symbolic)
        self._ratio = sum(here.sizes[tensor] for tensor in symbolic) / elements_there if elements_there else 1.0
        self._of_operator = {operator: _per_element(self._growths(operator)) for operator in here.known}
        self._of_all = _per_element([growth for operator in here.known for growth in self._growths(operator)])

    def __call__(self, operator: int, signature: Signature) -> float:
        if self.knows(operator, signature):
            return super().__call__(operator, signature)
        runtime, (elements_there, elements_here) = self.there(operator, signature), self._elements(signature)
        per_element = self._of_operator.get(operator)
        per_element = self._of_all if per_element is None else per_element
        return max(runtime + (per_element or 0.0) * (elements_here - elements_there), 0.0)

    def _growths(self, operator: int) -> list[Growth]:
        """Of the initial graph's nodes of an operator that were met there."""
        result = []
        for signature, runtime in self.known[operator].items():
            if self.there.knows(operator, signature):
                result.append((*self._elements(signature), runtime - self.there(operator, signature)))
        return result

    def _elements(self, signature: Signature) -> tuple[float, float]:
        """(there, here), of all tensors of a node. One that no node of the initial graph has is as much larger here as
        those are on average, if it is symbolic."""
        there = here = 0.0
        for tensor in signature:
            size = self.there.sizes.get(tensor, 0)
            there += size
            here += self.sizes.get(tensor, size * self._ratio if tensor & 1 else size)
        return there, here


def _per_element(growths: Iterable[Growth]) -> float | None:
    """ps per element, by least squares; None where nothing grew."""
    products = squares = 0.0
    for there, here, more in growths:
        products += (here - there) * more
        squares += (here - there) ** 2
    return products / squares if squares else None
