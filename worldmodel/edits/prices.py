"""What nodes cost, learnt.

A cost that is a sum over single operators is told by the nodes alone. One of kernels that span several (the profiled cost) depends on
what is around a node: it is learnt for surroundings of every width, and told by the widest that are known.
"""

from collections.abc import Iterable

import numpy as np

from worldmodel.edits.schemas import Facts
from worldmodel.edits.tables import table

RIDGE = 0.1  # of the slopes of runtimes over sizes


class Means:
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
    def of(cls, arrays: dict[str, np.ndarray], name: str) -> "Means":
        result = cls.__new__(cls)
        result.keys = table(arrays, f"{name}/keys", np.uint32, None)
        result.mean, result.spread = (table(arrays, f"{name}/{part}", np.float64, len(result.keys)) for part in ("mean", "spread"))
        return result


class NodePrices:
    """Runtime (ps) of nodes: the mean of what was told of such a node; else estimated from others of its kind by their sizes.

    known: kind → facts → mean runtime. sizes: fact → elements of such a tensor.
    """

    def __init__(self, known: dict[int, dict[Facts, float]], sizes: dict[int, int]):
        self.known, self.sizes = known, sizes

    @classmethod
    def learn(cls, told: Iterable[tuple[int, Facts, int]], sizes: dict[int, int]) -> "NodePrices":
        """told: (kind, facts, runtime) as often as they were told."""
        sums: dict[int, dict[Facts, list]] = {}
        for kind, facts, runtime in told:
            sum_and_number = sums.setdefault(kind, {}).setdefault(facts, [0, 0])
            sum_and_number[0] += runtime
            sum_and_number[1] += 1
        return cls({kind: {facts: total / n for facts, (total, n) in of.items()} for kind, of in sums.items()}, sizes)

    def knows(self, kind: int, facts: Facts) -> bool:
        return facts in self.known.get(kind, ())

    def __call__(self, kind: int, facts: Facts) -> float:
        """0 for a kind that was never seen."""
        of = self.known.get(kind, {})
        if facts in of:
            return of[facts]
        others = [(known, runtime) for known, runtime in of.items() if runtime > 0 and len(known) == len(facts)]
        return self._by_size(facts, others) if others else 0.0

    def _by_size(self, facts: Facts, others: list[tuple[Facts, float]]) -> float:
        """Least squares in logarithms, drawn to the root of the product of the sizes: so a matrix product's work grows with its
        two operands and its result."""
        logs = np.log([[max(self.sizes.get(f, self.sizes.get(g, 1)), 1) for f, g in zip(known, facts, strict=True)] for known, _ in others])
        wanted = np.log([max(self.sizes.get(f, 1), 1) for f in facts])
        unknown = np.array([f not in self.sizes for f in facts])
        logs[:, unknown], wanted[unknown] = 0.0, 0.0
        runtimes = np.log([runtime for _, runtime in others])
        nearness = np.exp(-np.abs(logs - wanted).sum(axis=1))
        weights = (nearness + 1e-9) / (nearness + 1e-9).sum()
        base, level = weights @ logs, weights @ runtimes
        slopes = np.full(len(facts), 1.0 / max(2, (base > 0).sum() if np.ptp(base[base > 0]) < 1e-9 else 2) if (base > 0).any() else 0.0)
        inputs, left = logs - base, runtimes - level - (logs - base) @ slopes
        gram = (inputs * weights[:, None]).T @ inputs + RIDGE * np.eye(len(facts))
        slopes = slopes + np.linalg.solve(gram, (inputs * weights[:, None]).T @ left)
        return float(np.exp(level + (wanted - base) @ slopes))

    def to_json(self) -> dict:
        return {"sizes": sorted(self.sizes.items()), "known": [[kind, list(of.items())] for kind, of in self.known.items()]}

    @classmethod
    def from_json(cls, saved: dict) -> "NodePrices":
        """Raises TypeError or ValueError for what `to_json` did not give."""
        known = {int(kind): {tuple([int(f) for f in facts]): float(mean) for facts, mean in of} for kind, of in saved["known"]}
        sizes = {int(fact): int(size) for fact, size in saved["sizes"]}
        if not np.isfinite([mean for of in known.values() for mean in of.values()]).all() or max(sizes.values(), default=0) >= 2**63:
            raise ValueError("a price or a size is no number")
        return cls(known, sizes)


class Gains:
    """What edits gained of which little is known: by form, by rule, and how large the replaced tensor was."""

    def __init__(self, samples: np.ndarray):
        """samples: float64 [k, 4]: xfer_id, form, elements of the replaced tensor, gain (ps)."""
        self.samples = samples
        self._of: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, xfer_id: int, form: int | None, size: float | None) -> tuple[float, float]:
        """(expected gain, its spread) in ps: of the form's others, else the rule's, in proportion to the size where it is known."""
        others = self._others(1, form) if form is not None else ()
        others = others if len(others) else self._others(0, xfer_id)
        if not len(others):
            return 0.0, 0.0
        gains = others[:, 3] * (size / others[:, 2] if size else 1.0)
        return float(np.median(gains)), float(gains.std())

    def _others(self, column: int, number: int) -> np.ndarray:
        if (column, number) not in self._of:
            self._of[column, number] = self.samples[self.samples[:, column] == number]
        return self._of[column, number]


class Prices:
    """nodes: of single nodes. around: by the key of their surroundings, for each width from 1; [] where those do not matter.
    spread: what runtimes vary by where they do (ps). gains: of edits of which too little is known."""

    def __init__(self, nodes: NodePrices, around: list[Means], gains: Gains, spread: float):
        self.nodes, self.around, self.gains, self.spread = nodes, around, gains, spread

    def __call__(self, alone: np.ndarray, keys: np.ndarray, paid: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(runtime, its spread (ps), whether the widest surroundings are known) of nodes that cost `alone` by what they are.

        Where the widest surroundings that are known are still those of `before`, a node costs what was `paid`.
        """
        runtime, spread, stays = alone, np.full(len(alone), self.spread), np.zeros(len(alone), bool)
        for means, now, then in zip(self.around, keys, before, strict=True):
            mean, deviation, known = means(now)
            runtime, spread, stays = np.where(known, mean, runtime), np.where(known, deviation, spread), np.where(known, now == then, stays)
        return np.where(stays, paid, runtime), np.where(stays, 0.0, spread), known

    def arrays(self) -> dict[str, np.ndarray]:
        result = {"gains": self.gains.samples, "spread": np.float64(self.spread), "widths": np.int64(len(self.around))}
        for width, means in enumerate(self.around, 1):
            result |= means.arrays(f"around{width}")
        return result

    @classmethod
    def of(cls, nodes: NodePrices, arrays: dict[str, np.ndarray], widths: int) -> "Prices":
        """widths: how many there are where surroundings matter."""
        if table(arrays, "widths", np.int64) not in (0, widths):
            raise ValueError(f"it knows surroundings of {arrays['widths']} widths, not {widths}")
        around = [Means.of(arrays, f"around{width}") for width in range(1, arrays["widths"] + 1)]
        return cls(nodes, around, Gains(table(arrays, "gains", np.float64, None, 4)), float(table(arrays, "spread", np.float64)))


def mixed(values: Iterable[int]) -> int:
    """A 64-bit hash of integers, the same in every process (FNV-1a on words, with a finish that spreads low bits)."""
    result = 0xCBF29CE484222325
    for value in values:
        result = ((result ^ (value & 0xFFFFFFFFFFFFFFFF)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        result ^= result >> 29
    return result
