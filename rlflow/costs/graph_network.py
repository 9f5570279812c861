"""The graph network of a learned latency: from an operator and what lies around it to features of it.

    h₀ = tanh([kind, numbers] A₀ + a₀)
    hₖ = tanh(hₖ₋₁ Oₖ + mean of those it reads Fₖ + mean of those that read it Tₖ + aₖ)

Its weights are drawn, not trained: features of an operator are then certain, and what is learned on top of them
(`rlflow.costs.learned`) has one best answer with a known spread, for which a few hundred measurements of a dozen models
are enough, which is what a machine has. Networks of this kind are as good at graphs as trained ones where examples are
few (Gallicchio and Micheli 2020). A kind is a vector that follows from its name, so that there is no vocabulary.

Operators that are alike, with alike ones around them, are one *colour*, and asked once (Weisfeiler and Leman 1968).
What is summed over neighbours is rounded so that no order in which they come changes the sum.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Self

import numpy as np

from rlflow.costs.kernel_graph import NUMBERS, KernelGraph

WIDTH = 32
STEPS = 2  # edges that it looks around an operator
KIND = 32  # signs that stand for the name of a kind
GRID = 2.0**24  # features are multiples of 1 / GRID, so that sums of them are exact
CLIP = 4.0  # standard deviations
LARGEST = 200_000  # colours that are remembered


class GraphNetwork:
    """Features of colours, which are numbered in the order in which they are first asked for.

    Attributes:
      arrays: mean and scale, float64 [NUMBERS], of log(1 + number) in what it was made for; the weights.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        """Raises ValueError if an array is missing or has another shape."""
        for name, shape in shapes().items():
            if arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
                raise ValueError(f"'{name}' is no array of {shape} numbers")
        self.arrays = {name: arrays[name] for name in shapes()}
        self.forget()

    @classmethod
    def drawn(cls, numbers: np.ndarray, seed: int) -> Self:
        """numbers: float64 [n, NUMBERS], of the operators that it is made for."""
        rng, logs = np.random.default_rng(seed), np.log1p(numbers)
        arrays = {"mean": logs.mean(axis=0), "scale": np.maximum(logs.std(axis=0), 1e-3)}
        for name, shape in shapes().items():
            if name not in arrays:
                fan_in = shape[0] if len(shape) > 1 else 1
                arrays[name] = rng.standard_normal(shape) / fan_in**0.5
        return cls(arrays)

    def forget(self) -> None:
        """Drops all colours."""
        self._numbers: list[dict[tuple, int]] = [{} for _ in range(STEPS + 1)]  # what a colour is → its number
        self._features: list[list[np.ndarray]] = [[] for _ in range(STEPS + 1)]  # of each colour, all steps so far

    @property
    def is_full(self) -> bool:
        return len(self._features[STEPS]) > LARGEST

    def first(self, kind: str, numbers: tuple[float, ...]) -> int:
        """The colour of an operator by itself. numbers: a row of `KernelGraph.numbers`."""
        return self._colour(0, (kind, numbers), self._by_itself)

    def next(self, step: int, own: int, makers: Sequence[int], readers: Sequence[int]) -> int:
        """The colour with what lies `step` edges around it, from colours of the step before."""
        key = own, tuple(sorted(makers)), tuple(sorted(readers))
        return self._colour(step, key, self._among_others)

    def features(self, colour: int) -> np.ndarray:
        """float64 [FEATURES] of a colour of the last step."""
        return self._features[STEPS][colour]

    def colours(self, graph: KernelGraph) -> list[int]:
        """Of the last step, one an operator."""
        makers, readers = [[] for _ in graph.kinds], [[] for _ in graph.kinds]
        for sender, receiver in zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True):
            makers[receiver].append(sender)
            readers[sender].append(receiver)
        rows = zip(graph.kinds, graph.numbers.tolist(), strict=True)
        result = [self.first(kind, tuple(numbers)) for kind, numbers in rows]
        for step in range(1, STEPS + 1):
            before = result
            result = [
                self.next(step, own, [before[k] for k in makers[row]], [before[k] for k in readers[row]])
                for row, own in enumerate(before)
            ]
        return result

    def _colour(self, step: int, key: tuple, describe) -> int:
        number = self._numbers[step].get(key)
        if number is None:
            number = self._numbers[step][key] = len(self._features[step])
            self._features[step].append(describe(step, *key))
        return number

    def _by_itself(self, step: int, kind: str, numbers: tuple[float, ...]) -> np.ndarray:
        logs = (np.log1p(numbers) - self.arrays["mean"]) / self.arrays["scale"]
        seen = np.concatenate([signs(kind), np.clip(logs, -CLIP, CLIP)])
        return _rounded(seen @ self.arrays["own0"] + self.arrays["offset0"])

    def _among_others(self, step: int, own: int, makers: tuple[int, ...], readers: tuple[int, ...]) -> np.ndarray:
        before, arrays = self._features[step - 1], self.arrays
        inner = before[own][-WIDTH:] @ arrays[f"own{step}"] + arrays[f"offset{step}"]
        for others, name in ((makers, "from"), (readers, "to")):
            if others:
                mean = sum(before[other][-WIDTH:] for other in others) / len(others)
                inner = inner + mean @ arrays[f"{name}{step}"]
        return np.concatenate([before[own], _rounded(inner)])


FEATURES = (STEPS + 1) * WIDTH


def shapes() -> dict[str, tuple[int, ...]]:
    """Of its arrays."""
    result = {"mean": (NUMBERS,), "scale": (NUMBERS,), "own0": (KIND + NUMBERS, WIDTH), "offset0": (WIDTH,)}
    for step in range(1, STEPS + 1):
        result |= {f"{name}{step}": (WIDTH, WIDTH) for name in ("own", "from", "to")}
        result[f"offset{step}"] = (WIDTH,)
    return result


@cache
def signs(kind: str) -> np.ndarray:
    """float64 [KIND]: of 1 and −1, which follow from the name and of two names are mostly unlike."""
    bits = np.unpackbits(np.frombuffer(hashlib.sha256(kind.encode()).digest(), np.uint8))
    return 2.0 * bits[:KIND] - 1.0


def _rounded(inner: np.ndarray) -> np.ndarray:
    return np.round(np.tanh(inner) * GRID) / GRID
