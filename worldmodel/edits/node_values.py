"""Additive values of nodes: the contribution of every node of a grounding to the runtime and to the latent state z.

The latent state z of a graph is an offset plus the sum of the latent vectors of its nodes. A node's latent vector
depends on its *operator signature*: its operator and the signatures of its tensors. The latent vectors come from
reduced-rank regression (Izenman 1975), which finds the linear map of rank Z that best predicts a state's location
counts and runtime from its number of nodes per operator signature. Because the map is linear, an edit adds the latent
vectors of its added nodes to z and subtracts the vectors of its removed nodes.
"""

from collections.abc import Callable

import numpy as np

from worldmodel.edits.cost_model import NodeCosts
from worldmodel.edits.grounding_index import GroundingIndex, GrowingArray
from worldmodel.train_and_load import checked_array

LATENT_RIDGE = 1e-3  # ridge penalty, relative to the mean diagonal entry of the inputs' Gram matrix
MAX_LATENT_STATES = 4000  # largest number of states in the regression


class Latents:
    """The latent vectors of C operator signatures.

    Attributes:
      keys: uint64 [C], hashes of the operator signatures, ascending.
      rows: float64 [C, Z], the latent vector of each signature, which each node with this signature adds to z.
      offset: float64 [Z], the latent state z of a graph without nodes.
    """

    def __init__(self, keys: np.ndarray, rows: np.ndarray, offset: np.ndarray):
        self.keys, self.rows, self.offset = keys, rows, offset

    @classmethod
    def learn(cls, keys: np.ndarray, occurrences: np.ndarray, targets: np.ndarray, latent: int) -> "Latents":
        """Fit the latent vectors to S training states by reduced-rank regression.

        Args:
          keys: uint64 [C], hashes of the operator signatures, ascending.
          occurrences: float64 [S, C], the number of nodes with each signature in each state.
          targets: float64 [S, M], the values to predict. The last column has as much weight as all others together.
          latent: Z, the size of the latent vectors.
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
        directions = directions * np.sign(directions.sum(axis=1, keepdims=True) + 1e-12)  # SVD leaves the sign open
        rows = weights @ directions.T
        scale = (inputs @ rows).std(axis=0)
        rows = np.where(scale > 1e-9, rows / np.maximum(scale, 1e-9), 0.0)
        rows = np.pad(rows, ((0, 0), (0, latent - rows.shape[1])))
        return cls(keys, rows, -means @ rows)

    def of_nodes(self, keys: np.ndarray) -> np.ndarray:
        """Return float64 [k, Z], the latent vectors of k nodes, which are 0 for unknown signatures.

        Args:
          keys: uint64 [k], the hash of the operator signature of each node.
        """
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
    """A cached function from node numbers of a grounding to a value of each node.

    Calling the object with node numbers, int [k], returns float64 [k, *width].

    Args:
      of_nodes: a function from a range of n node numbers to their values, float64 [n, *width].
      width: the shape of the value of one node; () for a number.
    """

    def __init__(self, of_nodes: Callable[[range], np.ndarray], width: tuple[int, ...] = ()):
        self.of_nodes, self._known = of_nodes, GrowingArray(np.float64, *width)

    def __call__(self, nodes: np.ndarray) -> np.ndarray:
        known, needed = self._known.size, int(nodes.max(initial=-1)) + 1
        if known < needed:
            self._known.reserve(needed - known)
            self._known.data[known:needed] = self.of_nodes(range(known, needed))
        return self._known.values[nodes]


def single_node_costs(index: GroundingIndex, costs: NodeCosts, estimates: bool = True) -> NodeValues:
    """Return a function from node numbers, int [k], to the runtimes of these nodes by operator signature, float64 [k].

    Args:
      index: the grounding of the nodes.
      costs: the runtimes of operator signatures, in ps.
      estimates: False to return 0 instead of an estimate where no runtime was logged.
    """

    def of_node(node: int) -> float:
        named = index.grounding.operator_signature(node)
        return costs(*named) if estimates or costs.knows(*named) else 0.0

    def of_nodes(nodes: range) -> np.ndarray:
        return np.array([of_node(node) for node in nodes], np.float64)

    return NodeValues(of_nodes)


def costs_unknown(index: GroundingIndex, costs: NodeCosts) -> NodeValues:
    """Return a function from node numbers, int [k], to float64 [k]: 1 if the runtime was never logged, otherwise 0.

    Args:
      index: the grounding of the nodes.
      costs: the runtimes of operator signatures.
    """

    def of_nodes(nodes: range) -> np.ndarray:
        return np.array([not costs.knows(*index.grounding.operator_signature(node)) for node in nodes], np.float64)

    return NodeValues(of_nodes)


def node_latents(index: GroundingIndex, latents: Latents) -> NodeValues:
    """Return a function from node numbers, int [k], to the latent vectors of these nodes, float64 [k, Z].

    Args:
      index: the grounding of the nodes.
      latents: the latent vectors of operator signatures.
    """

    def of_nodes(nodes: range) -> np.ndarray:
        return latents.of_nodes(index.signature_hash.values[nodes.start : nodes.stop])

    return NodeValues(of_nodes, (latents.rows.shape[1],))
