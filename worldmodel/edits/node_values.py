"""What every node of a grounding adds to a sum: its runtime, its latent; kept up with the grounding."""

from collections.abc import Callable

import numpy as np

from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.latents import Latents
from worldmodel.edits.node_costs import NodeCosts
from worldmodel.edits.ragged import GrowingArray


class NodeValues:
    """Values [A, …] of nodes, by number; asked for once a node."""

    def __init__(self, of_nodes: Callable[[range], np.ndarray], width: tuple[int, ...] = ()):
        self.of_nodes, self._known = of_nodes, GrowingArray(np.float64, *width)

    def __call__(self, nodes: np.ndarray) -> np.ndarray:
        known, needed = self._known.size, int(nodes.max(initial=-1)) + 1
        if known < needed:
            self._known.reserve(needed - known)
            self._known.data[known:needed] = self.of_nodes(range(known, needed))
        return self._known.values[nodes]


def single_node_costs(index: GroundingIndex, costs: NodeCosts) -> NodeValues:
    """Runtime in ps, float64."""

    def of_nodes(nodes: range) -> np.ndarray:
        return np.array([costs(*index.grounding.operator_signature(node)) for node in nodes], np.float64)

    return NodeValues(of_nodes)


def costs_unknown(index: GroundingIndex, costs: NodeCosts) -> NodeValues:
    """1 where such a node's runtime was never logged, else 0; float64."""

    def of_nodes(nodes: range) -> np.ndarray:
        return np.array([not costs.knows(*index.grounding.operator_signature(node)) for node in nodes], np.float64)

    return NodeValues(of_nodes)


def node_latents(index: GroundingIndex, latents: Latents) -> NodeValues:
    """What nodes add to z, float64 [Z]."""

    def of_nodes(nodes: range) -> np.ndarray:
        return latents.of_nodes(index.signature_hash.values[nodes.start : nodes.stop])

    return NodeValues(of_nodes, (latents.rows.shape[1],))
