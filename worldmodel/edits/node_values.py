"""Additive values of nodes: the contribution of every node of a grounding to the runtime and to the latent state.

The latent state z of a graph is a sum over nodes. Reduced-rank regression (Izenman 1975) finds it: of all linear maps
of rank Z from the number of nodes per operator signature, it is the best predictor of the location counts and the
runtime of the training states. The map is linear, so an edit changes z by the values of its nodes.
"""

from collections.abc import Callable

import numpy as np

from worldmodel.edits.cost_model import NodeCosts
from worldmodel.edits.grounding_index import GroundingIndex, GrowingArray
from worldmodel.train_and_load import checked_array

LATENT_RIDGE = 1e-3  # relative to the variance of the inputs
MAX_LATENT_STATES = 4000  # states in the fit, at most


class Latents:
    """The latent vectors of operator signatures.

    Attributes:
      keys: uint64 [C], hashes of the signatures, ascending.
      rows: float64 [C, Z], the contribution of a node.
      offset: float64 [Z].
    """

    def __init__(self, keys: np.ndarray, rows: np.ndarray, offset: np.ndarray):
        self.keys, self.rows, self.offset = keys, rows, offset

    @classmethod
    def learn(cls, keys: np.ndarray, occurrences: np.ndarray, targets: np.ndarray, latent: int) -> "Latents":
        """Fit the latent vectors to S training states.

        Args:
          keys: uint64 [C], ascending.
          occurrences: float64 [S, C], nodes per signature.
          targets: float64 [S, N], the values to predict; the last one has the weight of all others together.
          latent: Z.
        """
        inputs, means = occurrences - occurrences.mean(axis=0), occurrences.mean(axis=0)
        spread = targets.std(axis=0)
        importance = np.append(np.ones(len(spread) - 1), np.sqrt((spread > 0).sum()))
        wanted = (importance * (targets - targets.mean(axis=0)))[:, spread > 0] / spread[spread > 0]
        gram = inputs.T @ inputs
        gram += LATENT_RIDGE * max(np.trace(gram) / max(len(gram), 1), 1e-9) * np.eye(len(gram))
        weights = np.linalg.solve(gram, inputs.T @ wanted)
        _, _, directions = np.linalg.svd(inputs @ weights, full_matrices=False)
        directions = directions[:latent]
        directions = directions * np.sign(directions.sum(axis=1, keepdims=True) + 1e-12)  # fixes the sign
        rows = weights @ directions.T
        scale = (inputs @ rows).std(axis=0)
        rows = np.where(scale > 1e-9, rows / np.maximum(scale, 1e-9), 0.0)
        rows = np.pad(rows, ((0, 0), (0, latent - rows.shape[1])))
        return cls(keys, rows, -means @ rows)

    def of_nodes(self, keys: np.ndarray) -> np.ndarray:
        """Return the contributions to z of nodes with these keys, uint64 [k]: float64 [k, Z], 0 for unknown keys."""
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where((self.keys[at] == keys)[:, None], self.rows[at], 0.0)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"latents/keys": self.keys, "latents/rows": self.rows, "latents/offset": self.offset}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> "Latents":
        keys = checked_array(arrays, "latents/keys", np.uint64, None)
        offset = checked_array(arrays, "latents/offset", np.float64, None)
        return cls(keys, checked_array(arrays, "latents/rows", np.float64, len(keys), len(offset)), offset)


class NodeValues:
    """Values [A, …] of nodes by number, computed once per node."""

    def __init__(self, of_nodes: Callable[[range], np.ndarray], width: tuple[int, ...] = ()):
        self.of_nodes, self._known = of_nodes, GrowingArray(np.float64, *width)

    def __call__(self, nodes: np.ndarray) -> np.ndarray:
        known, needed = self._known.size, int(nodes.max(initial=-1)) + 1
        if known < needed:
            self._known.reserve(needed - known)
            self._known.data[known:needed] = self.of_nodes(range(known, needed))
        return self._known.values[nodes]


def single_node_costs(index: GroundingIndex, costs: NodeCosts) -> NodeValues:
    """Return the runtimes of single nodes, in ps, float64."""

    def of_nodes(nodes: range) -> np.ndarray:
        return np.array([costs(*index.grounding.operator_signature(node)) for node in nodes], np.float64)

    return NodeValues(of_nodes)


def costs_unknown(index: GroundingIndex, costs: NodeCosts) -> NodeValues:
    """Return 1 for nodes whose runtime was never logged and 0 for other nodes, float64."""

    def of_nodes(nodes: range) -> np.ndarray:
        return np.array([not costs.knows(*index.grounding.operator_signature(node)) for node in nodes], np.float64)

    return NodeValues(of_nodes)


def node_latents(index: GroundingIndex, latents: Latents) -> NodeValues:
    """Return the contributions of nodes to z, float64 [Z] each."""

    def of_nodes(nodes: range) -> np.ndarray:
        return latents.of_nodes(index.signature_hash.values[nodes.start : nodes.stop])

    return NodeValues(of_nodes, (latents.rows.shape[1],))
