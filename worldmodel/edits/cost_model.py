"""What nodes cost among others, and what rewrites gain, learnt.

A gain is the difference of what nodes cost in their neighbourhoods. A cost that is a sum over single operators (the
analytic one) is known from the nodes that go and come. One of kernels that span several (the profiled one) depends on a
node's neighbourhood: it is learnt for neighbourhoods of every width up to five edges (neighbourhood.py), and predicted
by the widest that is known: a layer normalisation costs one kernel until any of its nine operators is another. After a
step the costs of all nodes within five edges are looked up anew; a node keeps its cost while the widest neighbourhood
that is known of it has not changed.
"""

from typing import NamedTuple

import numpy as np

from worldmodel.edits.node_costs import NodeCosts
from worldmodel.edits.saved_arrays import checked_array


class KeyedMeans:
    """Mean and spread of values by 32-bit keys."""

    def __init__(self, keys: np.ndarray, values: np.ndarray):
        """keys: uint32 [k]; values: float64 [k]; keys may repeat."""
        self.keys, inverse, number = np.unique(keys, return_inverse=True, return_counts=True)
        self.mean = np.bincount(inverse, values, len(self.keys)) / number
        self.spread = np.sqrt(np.bincount(inverse, (values - self.mean[inverse]) ** 2, len(self.keys)) / number)

    def __call__(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(mean, spread, whether the key is known); 0 where it is not."""
        if not len(self.keys):
            return np.zeros(len(keys)), np.zeros(len(keys)), np.zeros(len(keys), bool)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = self.keys[at] == keys
        return np.where(known, self.mean[at], 0.0), np.where(known, self.spread[at], 0.0), known

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        return {f"{name}/{part}": getattr(self, part) for part in ("keys", "mean", "spread")}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], name: str) -> "KeyedMeans":
        result = cls.__new__(cls)
        result.keys = checked_array(arrays, f"{name}/keys", np.uint32, None)
        result.mean = checked_array(arrays, f"{name}/mean", np.float64, len(result.keys))
        result.spread = checked_array(arrays, f"{name}/spread", np.float64, len(result.keys))
        return result


class GainBounds(NamedTuple):
    """Of each rule, float64 [N]: the least and the most that it gained (ps), 0 if it was never carried out, and how
    many elements the largest tensor had that it replaced."""

    least: np.ndarray
    most: np.ndarray
    largest: np.ndarray

    def of(self, xfer_ids: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(the least, the most) of rewrites that replace tensors of so many elements, float64 [k] in ps: where these
        are larger than any that was replaced, in proportion."""
        larger = np.maximum(sizes / self.largest[xfer_ids], 1.0)
        return self.least[xfer_ids] * larger, self.most[xfer_ids] * larger


class RewriteGains:
    """What rewrites gained of which little is known: by pattern, by rule, and how large the replaced tensor was."""

    def __init__(self, samples: np.ndarray):
        """samples: float64 [k, 4]: xfer_id, pattern, elements of the replaced tensor, gain (ps)."""
        self.samples = samples
        self._of: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, xfer_id: int, pattern: int | None, size: float | None) -> tuple[float, float]:
        """(expected gain, its spread) in ps: of the pattern's others, else the rule's, in proportion to the size where
        it is known."""
        others = self._others(1, pattern) if pattern is not None else ()
        others = others if len(others) else self._others(0, xfer_id)
        if not len(others):
            return 0.0, 0.0
        gains = others[:, 3] * (size / others[:, 2] if size else 1.0)
        return float(np.median(gains)), float(gains.std())

    def bounds(self, n_rules: int) -> GainBounds:
        """What each rule ever gained."""
        least, most, largest = np.full(n_rules, np.inf), np.full(n_rules, -np.inf), np.full(n_rules, np.inf)
        rules = self.samples[:, 0].astype(np.int64)
        np.minimum.at(least, rules, self.samples[:, 3])
        np.maximum.at(most, rules, self.samples[:, 3])
        largest[rules] = 0.0
        np.maximum.at(largest, rules, self.samples[:, 2])
        never = most < least
        return GainBounds(np.where(never, 0.0, least), np.where(never, 0.0, most), largest)

    def _others(self, column: int, number: int) -> np.ndarray:
        if (column, number) not in self._of:
            self._of[column, number] = self.samples[self.samples[:, column] == number]
        return self._of[column, number]


class CostModel:
    """nodes: of single nodes, by typical sizes (see `rlflow.collect.edits.Edit`). neighbourhoods: by the key of a
    node's neighbourhood, for each width from 1; [] where those do not matter. spread: what runtimes vary by where
    they do (ps). gains: of rewrites of which too little is known."""

    def __init__(
        self, nodes: dict[int, NodeCosts], neighbourhoods: list[KeyedMeans], gains: RewriteGains, spread: float
    ):
        self.nodes, self.neighbourhoods, self.gains, self.spread = nodes, neighbourhoods, gains, spread

    @property
    def reach(self) -> int:
        """How far a cost looks, in edges."""
        return len(self.neighbourhoods)

    def __call__(
        self, single: np.ndarray, keys: np.ndarray, paid: np.ndarray, before: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(runtime, its spread (ps), whether the widest neighbourhoods are known) of nodes, float64 [k] each and bool
        [k].

        single: float64 [k], what they cost by their operator signatures. keys: uint32 [W, k]. Where the widest
        neighbourhood that is known is still that of `before`, uint32 [W, k], a node costs what was `paid`, float64 [k].
        """
        runtime, spread, stays = single, np.full(len(single), self.spread), np.zeros(len(single), bool)
        for means, now, then in zip(self.neighbourhoods, keys, before, strict=True):
            mean, deviation, known = means(now)
            runtime, spread = np.where(known, mean, runtime), np.where(known, deviation, spread)
            stays = np.where(known, now == then, stays)
        return np.where(stays, paid, runtime), np.where(stays, 0.0, spread), known

    def arrays(self) -> dict[str, np.ndarray]:
        widths = len(self.neighbourhoods)
        result = {"gains": self.gains.samples, "spread": np.float64(self.spread), "widths": np.int64(widths)}
        for width, means in enumerate(self.neighbourhoods, 1):
            result |= means.arrays(f"neighbourhood{width}")
        return result

    @classmethod
    def of(cls, nodes: dict[int, NodeCosts], arrays: dict[str, np.ndarray], widths: int) -> "CostModel":
        """widths: how many there are where neighbourhoods matter."""
        if checked_array(arrays, "widths", np.int64) not in (0, widths):
            raise ValueError(f"it knows neighbourhoods of {arrays['widths']} widths, not {widths}")
        neighbourhoods = [KeyedMeans.of(arrays, f"neighbourhood{width}") for width in range(1, arrays["widths"] + 1)]
        gains = RewriteGains(checked_array(arrays, "gains", np.float64, None, 4))
        return cls(nodes, neighbourhoods, gains, float(checked_array(arrays, "spread", np.float64)))
