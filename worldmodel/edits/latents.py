"""The latent state z of a graph: its nodes, summed up in few numbers from which its location counts and costs can be
read.

Reduced-rank regression (Izenman 1975): of all linear maps of rank Z from how often each operator signature occurs, the
one that predicts the location counts and the runtime of the training states best. It is linear, so an edit changes z by
what its nodes add.
"""

import numpy as np

from worldmodel.edits.saved_arrays import checked_array

RIDGE = 1e-3  # of the variance of the inputs
STATES = 4000  # that it is fitted to, at most


class Latents:
    """keys: uint64 [C], hashes of operator signatures; rows: float64 [C, Z], what a node adds; offset: float64 [Z]."""

    def __init__(self, keys: np.ndarray, rows: np.ndarray, offset: np.ndarray):
        self.keys, self.rows, self.offset = keys, rows, offset

    @classmethod
    def learn(cls, keys: np.ndarray, occurrences: np.ndarray, targets: np.ndarray, latent: int) -> "Latents":
        """keys: uint64 [C], ascending; occurrences: [S, C]; targets: [S, N]; of the training states.

        The last target weighs as much as all others."""
        inputs, means = occurrences - occurrences.mean(axis=0), occurrences.mean(axis=0)
        spread = targets.std(axis=0)
        importance = np.append(np.ones(len(spread) - 1), np.sqrt((spread > 0).sum()))
        wanted = (importance * (targets - targets.mean(axis=0)))[:, spread > 0] / spread[spread > 0]
        gram = inputs.T @ inputs
        gram += RIDGE * max(np.trace(gram) / max(len(gram), 1), 1e-9) * np.eye(len(gram))
        weights = np.linalg.solve(gram, inputs.T @ wanted)
        _, _, directions = np.linalg.svd(inputs @ weights, full_matrices=False)
        directions = directions[:latent]
        directions = directions * np.sign(directions.sum(axis=1, keepdims=True) + 1e-12)  # one of two signs
        rows = weights @ directions.T
        scale = (inputs @ rows).std(axis=0)
        rows = np.where(scale > 1e-9, rows / np.maximum(scale, 1e-9), 0.0)
        rows = np.pad(rows, ((0, 0), (0, latent - rows.shape[1])))
        return cls(keys, rows, -means @ rows)

    def of_nodes(self, keys: np.ndarray) -> np.ndarray:
        """What nodes of these keys, uint64 [k], add to z: [k, Z]; 0 where they were never seen."""
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where((self.keys[at] == keys)[:, None], self.rows[at], 0.0)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"latents/keys": self.keys, "latents/rows": self.rows, "latents/offset": self.offset}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> "Latents":
        keys = checked_array(arrays, "latents/keys", np.uint64, None)
        offset = checked_array(arrays, "latents/offset", np.float64, None)
        return cls(keys, checked_array(arrays, "latents/rows", np.float64, len(keys), len(offset)), offset)
