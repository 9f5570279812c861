"""What an edit gains, learnt: the costs of the nodes that come and go, and what their neighbours add to that.

A cost that is a sum over single operators is told by the nodes alone. One of kernels that span several (the profiled cost) depends on
what is around: the difference is learnt for the surroundings of each place, and where those are new for the place's form and facts.
"""

from collections.abc import Iterable

import numpy as np

LEVELS = 2  # of surroundings: all that is next to the operands; the place alone


class Means:
    """Mean, spread and number of values by 64-bit keys."""

    def __init__(self, keys: np.ndarray, values: np.ndarray):
        """keys: uint64 [k]; values: float64 [k]; keys may repeat."""
        self.keys, inverse, self.number = np.unique(keys, return_inverse=True, return_counts=True)
        self.mean = np.bincount(inverse, values, len(self.keys)) / self.number
        self.spread = np.sqrt(np.bincount(inverse, (values - self.mean[inverse]) ** 2, len(self.keys)) / self.number)

    def __call__(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(mean, spread, whether the key is known); 0 where it is not."""
        if not len(self.keys):
            return np.zeros(len(keys)), np.zeros(len(keys)), np.zeros(len(keys), bool)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = self.keys[at] == keys
        return np.where(known, self.mean[at], 0.0), np.where(known, self.spread[at], 0.0), known

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        return {f"{name}/{part}": getattr(self, part) for part in ("keys", "mean", "spread", "number")}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], name: str) -> "Means":
        found = cls.__new__(cls)
        for part in ("keys", "mean", "spread", "number"):
            setattr(found, part, arrays[f"{name}/{part}"])
        return found


class Prices:
    """nodes: runtime (ps) by what a node is. surroundings: per level, what an edit gains beyond its nodes (ps)."""

    def __init__(self, nodes: Means, surroundings: list[Means], spread: float):
        self.nodes, self.surroundings, self.spread = nodes, surroundings, spread

    @classmethod
    def learn(cls, nodes: Means, keys: list[np.ndarray], extra: np.ndarray) -> "Prices":
        """keys: per level, uint64 [k]; extra: float64 [k], what the k edits gained beyond their nodes (ps)."""
        surroundings = [Means(level, extra) for level in keys]
        return cls(nodes, surroundings, float(extra.std()) if len(extra) else 0.0)

    def __call__(self, keys: list[np.ndarray], gained: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(gain, its spread (ps), whether the surroundings are known) of edits whose nodes alone gain `gained` (ps)."""
        extra, spread = np.zeros(len(gained)), np.full(len(gained), self.spread)
        found = None
        for means, level in reversed(list(zip(self.surroundings, keys, strict=True))):
            mean, deviation, found = means(level)
            extra, spread = np.where(found, mean, extra), np.where(found, deviation, spread)
        return gained + extra, spread, found

    def arrays(self) -> dict[str, np.ndarray]:
        found = self.nodes.arrays("nodes") | {"spread": np.float64(self.spread)}
        for level, means in enumerate(self.surroundings):
            found |= means.arrays(f"surroundings{level}")
        return found

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> "Prices":
        surroundings = [Means.of(arrays, f"surroundings{level}") for level in range(LEVELS)]
        return cls(Means.of(arrays, "nodes"), surroundings, float(arrays["spread"]))


def mixed(values: Iterable[int]) -> int:
    """A 64-bit hash of integers, the same in every process (FNV-1a on words, with a finish that spreads low bits)."""
    found = 0xCBF29CE484222325
    for value in values:
        found = ((found ^ (value & 0xFFFFFFFFFFFFFFFF)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        found ^= found >> 29
    return found
