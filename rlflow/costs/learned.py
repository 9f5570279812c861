"""The learned cost: an estimate whose operators are scaled by what was learned from measured graphs.

    latency ≈ Σ estimate(node) · (1 + w · φ(node))

φ describes an operator and its neighbourhood; w is a Gaussian that `rlflow.costs.latency_fit` learns from all
measurements of this machine. Its mean scales the estimate and its covariance gives the uncertainty. The cost is a sum
over operators again, and what two graphs have in common cancels in a comparison. Without measurements w is 0.

A graph network makes the features:

    h₀ = tanh([kind, numbers] A₀ + a₀)
    hₖ = tanh(hₖ₋₁ Oₖ + mean over producers Fₖ + mean over consumers Tₖ + aₖ)

Its weights are drawn and not trained, so that the model is linear in w and a few hundred measurements are enough
(Gallicchio and Micheli 2020). A kind is a vector derived from its name. Operators that are alike, with alike
neighbourhoods, are one *colour* and computed once (Weisfeiler and Leman 1968). Sums are rounded so that they do not
depend on the order of neighbours.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import onnxruntime

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_arrays, write_arrays
from rlflow.costs import EXACT, CostModel, NodeCost, Spread, node_spread
from rlflow.costs.analytic import MOVES
from rlflow.costs.corrected import LEAST, MOST, OnAnEstimate, kind_of
from rlflow.costs.database import default_path
from rlflow.costs.measurements import ESTIMATE, NUMBERS, KernelGraph, makers, numbers_of, readers
from rlflow.costs.profiled import GRAPHS, ProfiledCost
from rlflow.graph.ir import Graph, Node
from rlflow.graph.onnx_runtime import machine

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


CACHE = 4e6  # bytes that a kernel timed by itself may have at hand, and fetches from memory in a graph
UNITS_PS = np.array([1e6, 50.0, 50.0, 50.0])  # of a launch, of a byte that is read, written, read of weights
RATIO_NOISE = 0.002  # by how much ratios of graphs with the same kernels differ, beside their intervals
SORTS = {"Conv": 1, "MatMul": 2, "Gemm": 2, **dict.fromkeys(MOVES, 3)}  # of operators; all others are 0
COMMON = 1 + 4 * len(UNITS_PS)  # features: of all operators alike
FORMAT = 1


class Pooled(NamedTuple):
    """A whole graph. estimate_ps: geometric mean over its sizes.  features: float64 [D]: φ of its operators, each as
    much as its estimate is of the whole; the mean over sizes.  shares: kind and numbers of operators that are alike →
    what they all take of the estimate, at all sizes together."""

    estimate_ps: float
    features: np.ndarray
    shares: dict[tuple, float]

    def beside(self, other: "Pooled") -> dict[tuple, float]:
        """By how much shares differ from the other's; never 0."""
        keys = dict.fromkeys((*self.shares, *other.shares))  # no set: sums have the bits of their order
        apart = {key: self.shares.get(key, 0.0) - other.shares.get(key, 0.0) for key in keys}
        return {key: share for key, share in apart.items() if share}

    def unlike(self, other: "Pooled") -> float:
        """The root of the sum of their squares."""
        return math.sqrt(sum(share * share for share in self.beside(other).values()))


@dataclass(frozen=True)
class LatencyModel:
    """What scales an estimate.

    Attributes:
      network: that makes features of operators.  kinds: those with a feature of their own, in its order.
      weights: float64 [D]: the mean of w.  spread: float64 [D, D]: w is weights + spread · a standard Gaussian.
      kernel_noise: by how much the estimate of a kernel is off by itself, a share: what no feature says.
      measurements, originals: how many it was learned from.
      threads, machine, onnxruntime: where it holds.
    """

    network: GraphNetwork
    kinds: tuple[str, ...]
    weights: np.ndarray
    spread: np.ndarray
    kernel_noise: float
    measurements: int
    originals: int
    threads: int
    machine: str
    onnxruntime: str = onnxruntime.__version__

    def __post_init__(self):
        """Raises ValueError if arrays do not fit together."""
        size = COMMON + len(self.kinds) + FEATURES
        for name, array, shape in (("weights", self.weights, (size,)), ("spread", self.spread, (size, size))):
            if array.shape != shape or not np.isfinite(array).all():
                raise ValueError(f"'{name}' is no array of {shape} numbers")

    @cached_property
    def columns(self) -> dict[str, int]:
        return {kind: COMMON + number for number, kind in enumerate(self.kinds)}

    def features(self, kind: str, numbers: Sequence[float], colour: int) -> np.ndarray:
        """φ, float64 [D]: 1; for each sort launches and traffic, by the estimate; the kind, one-hot; the network's."""
        result = np.zeros(len(self.weights))
        estimate, _, moved, launches, written, weights = numbers
        traffic = [min(max(count, 0.0), CACHE) for count in (moved - written - weights, written, weights)]
        first = 1 + SORTS.get(kind.partition(" ")[0], 0) * len(UNITS_PS)
        result[0] = 1.0
        result[first : first + len(UNITS_PS)] = UNITS_PS * (launches, *traffic) / estimate
        if kind in self.columns:
            result[self.columns[kind]] = 1.0
        result[COMMON + len(self.kinds) :] = self.network.features(colour)
        return result

    def factor(self, features: np.ndarray) -> float:
        return min(max(1.0 + float(self.weights @ features), LEAST), MOST)

    def pooled(self, views: Sequence[KernelGraph]) -> Pooled:
        """Of a graph at each of its sizes."""
        logs, features, shares = [], [], {}
        for view in views:
            whole = max(view.numbers[:, ESTIMATE].sum(), 1.0)
            total = np.zeros(len(self.weights))
            rows = zip(view.kinds, view.numbers.tolist(), self.network.colours(view), strict=True)
            for kind, numbers, colour in rows:
                if numbers[ESTIMATE]:
                    share, alike = numbers[ESTIMATE] / whole, (kind, *numbers)
                    total += share * self.features(kind, numbers, colour)
                    shares[alike] = shares.get(alike, 0.0) + share / len(views)
            logs.append(math.log(whole))
            features.append(total)
        return Pooled(math.exp(np.mean(logs)), np.mean(features, axis=0), shares)

    def milliseconds(self, graph: Pooled) -> float:
        return graph.estimate_ps / 1e9 * self.factor(graph.features)

    def log_latency(self, graph: Pooled) -> tuple[float, np.ndarray]:
        """The logarithm of the milliseconds, and its derivative by w, float64 [D]."""
        return math.log(self.milliseconds(graph)), graph.features / self.factor(graph.features)

    def log_ratio(self, graph: Pooled, other: Pooled) -> tuple[float, float]:
        """The logarithm of what one graph takes, as a share of what another one takes: mean and standard deviation."""
        (one, slope), (two, other_slope) = self.log_latency(graph), self.log_latency(other)
        sure = np.linalg.norm((slope - other_slope) @ self.spread)
        return one - two, math.hypot(sure, self.kernel_noise * graph.unlike(other), RATIO_NOISE)

    def after(self, graph: Pooled, other: Pooled, ratio: float, uncertain: float) -> "LatencyModel":
        """The model that was also shown what one graph takes of what another one takes.

        uncertain: standard deviation of the logarithm of the ratio.
        """
        (one, slope), (two, other_slope) = self.log_latency(graph), self.log_latency(other)
        variance = uncertain**2 + (self.kernel_noise * graph.unlike(other)) ** 2 + RATIO_NOISE**2
        seen = self.spread.T @ (slope - other_slope)
        gain = self.spread @ seen / (seen @ seen + variance)
        share = 1.0 / (1.0 + (1.0 + seen @ seen / variance) ** -0.5)  # of a root of the covariance: Potter 1963
        weights = self.weights + gain * (math.log(ratio) - one + two)
        return replace(self, weights=weights, spread=self.spread - share * np.outer(gain, seen))

    # -- as a file ---------------------------------------------------------------------------------

    def save(self, path: Path | str) -> None:
        about = {"kernel_noise": self.kernel_noise, "measurements": self.measurements, "originals": self.originals}
        where = {"threads": self.threads, "machine": self.machine, "onnxruntime": self.onnxruntime}
        arrays = {"weights": self.weights, "spread": self.spread, "kinds": np.array(self.kinds, dtype=str)}
        values = {name: np.array(value) for name, value in {"format": FORMAT, **about, **where}.items()}
        write_arrays(path, {**values, **arrays, **{f"network/{k}": a for k, a in self.network.arrays.items()}})

    @classmethod
    def load(cls, path: Path | str) -> "LatencyModel":
        """Raises RLFlowError if the file is missing or holds something else."""
        stored = read_arrays(path)
        try:
            if stored["format"] != FORMAT:
                raise ValueError("another format")
            network = GraphNetwork(_part(stored, "network/"))
            values = [stored[name].item() for name in ("kernel_noise", "measurements", "originals", "threads")]
            where = [str(stored[name]) for name in ("machine", "onnxruntime")]
            kinds = tuple(map(str, stored["kinds"].tolist()))
            return cls(network, kinds, stored["weights"], stored["spread"], *values, *where)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RLFlowError(f"{path} holds no learned latency: {error}") from error


def _part(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def latency_path(threads: int, database: Path | str | None = None) -> Path:
    """Where the model lies that was learned from the measurements of a database."""
    return Path(database or default_path()).with_suffix(f".latency-{threads}.npz")


class LearnedCost(OnAnEstimate):
    """Another cost model's estimates, scaled operator by operator.

    What an operator costs depends on the estimates of those within `context` edges, and these on what `reach` says.
    """

    context = STEPS

    def __init__(self, estimate: CostModel, model: LatencyModel):
        super().__init__(estimate)
        self.model = model
        self._factors: dict[int, float] = {}  # of colours
        self._views: dict[Graph, _Colours] = {}  # of the last graphs asked about

    @classmethod
    def open(cls, threads: int = 1, database: Path | str | None = None) -> "LearnedCost":
        """The profiled cost with what lies beside its database.

        Raises RLFlowError if nothing was learned, or on another machine or for another ONNX Runtime.
        """
        path = latency_path(threads, database)
        if not path.exists():
            raise RLFlowError(
                f"no latency was learned for threads={threads} ({path}): `costs learn`, or use cost.name=profiled"
            )
        model = LatencyModel.load(path)
        if (model.threads, model.machine, model.onnxruntime) != (threads, machine(), onnxruntime.__version__):
            raise RLFlowError(
                f"{path} was learned on another machine, for other threads or another ONNX Runtime; learn it anew"
            )
        return cls(ProfiledCost.open(threads, database), model)

    def pooled(self, views: Sequence[Graph]) -> Pooled:
        """Of a graph at each of its sizes."""
        return self.model.pooled([KernelGraph.of(self.estimate, view) for view in views])

    def node_cost(self, graph: Graph, node: Node) -> NodeCost:
        cost = self.estimate.node_cost(graph, node)
        if not cost.runtime_ps:
            return cost
        return cost._replace(runtime_ps=round(cost.runtime_ps * self._factor(graph, node, cost)))

    def spread(self, graph: Graph, node: Node) -> Spread:
        """By how much `node_cost` may be off through its timings."""
        spread = node_spread(self.estimate, graph, node)
        return EXACT.plus(spread, self._factor(graph, node, self.estimate.node_cost(graph, node))) if spread else EXACT

    def time_again(self, timing: str) -> None:
        super().time_again(timing)
        self._views = {}  # their colours hold estimates by the timing of before

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_views": {}}  # a graph need not travel to other processes

    def _factor(self, graph: Graph, node: Node, cost: NodeCost) -> float:
        colour = self._colours_of(graph).of(STEPS, node.id)
        factor = self._factors.get(colour)
        if factor is None:
            numbers = numbers_of(graph, node, cost)
            features = self.model.features(kind_of(graph, node), numbers, colour)
            factor = self._factors[colour] = self.model.factor(features)
        return factor

    def _colours_of(self, graph: Graph) -> "_Colours":
        result = self._views.get(graph)
        if result is None:
            if self.model.network.is_full:
                self.model.network.forget()
                self._factors, self._views = {}, {}
            if len(self._views) == GRAPHS:
                del self._views[next(iter(self._views))]
            result = self._views[graph] = _Colours(self.estimate, self.model.network, graph)
        return result


class _Colours:
    """Of the operators of one graph, asked for one at a time."""

    def __init__(self, estimate: CostModel, network: GraphNetwork, graph: Graph):
        self.estimate, self.network, self.graph = estimate, network, graph
        self._known: list[dict[int, int]] = [{} for _ in range(STEPS + 1)]

    def of(self, step: int, node_id: int) -> int:
        colour = self._known[step].get(node_id)
        if colour is None:
            colour = self._known[step][node_id] = self._colour(step, node_id)
        return colour

    def _colour(self, step: int, node_id: int) -> int:
        node = self.graph.nodes[node_id]
        if step == 0:
            numbers = numbers_of(self.graph, node, self.estimate.node_cost(self.graph, node))
            return self.network.first(kind_of(self.graph, node), numbers)
        near = [[self.of(step - 1, other) for other in others(self.graph, node)] for others in (makers, readers)]
        return self.network.next(step, self.of(step - 1, node_id), *near)
