"""The corrected cost: an estimate whose operators are scaled, each kind by a factor learned from measured graphs.

    latency ≈ Σ factor[kind of operator] · estimate(node) + overhead · launches

A sum over nodes again, local and updated by difference, so that it can stand in for the estimate in the environment.
The factors are fitted to end-to-end latencies of a few dozen graphs by ridge regression of the *relative* error: every
factor is drawn to a common one, the common one to 1, the overhead to 0, so that a type never seen is scaled as the
others are. What is not a sum over operators (layouts that the whole graph shares) it cannot correct.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_json
from rlflow.costs import EXACT, FREE, CostModel, NodeCost, Spread, node_spread
from rlflow.costs.database import default_path
from rlflow.costs.profiled import ProfiledCost
from rlflow.graph import contrib
from rlflow.graph.ir import Graph, Node
from rlflow.graph.onnx_runtime import machine

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # of the ridge; leave-one-model-out chooses
LEAST, MOST = 0.2, 5.0  # a factor beyond is a mistake of the fit
FORMAT = 1


class Measurement(NamedTuple):
    """One graph: which model it is or comes from, its estimate by kind of operator, launches, measured latency."""

    model: str
    parts_ps: Mapping[str, int]
    launches: int
    measured_ms: float


def kind_of(graph: Graph, node: Node) -> str:
    """The operator, and of a convolution what kernels differ by: pointwise, grouped, depthwise or spatial.

    A fused operator is of the kind of the plain one, which ONNX Runtime often fuses by itself.
    """
    known = node.domain in ("", contrib.DOMAIN)
    name = node.op.removeprefix("Fused") if known else f"{node.domain}.{node.op}"
    weight = graph.types.get(node.inputs[1]) if known and name == "Conv" else None
    if weight is None or weight.shape is None:
        return name
    group, (_, per_group, *window) = node.attribute("group", 1), weight.shape
    if group > 1:
        return f"{name} {'depthwise' if per_group == 1 else 'grouped'}"
    return f"{name} {'pointwise' if set(window) == {1} else 'spatial'}"


def parts(model: CostModel, graph: Graph) -> tuple[dict[str, int], int]:
    """The estimate of a graph by kind of operator (picoseconds, kinds in alphabetical order), and its launches."""
    sums, launches = defaultdict(int), 0
    for node in graph.nodes.values():
        cost = model.node_cost(graph, node)
        launches += cost.launches
        if cost.runtime_ps:
            sums[kind_of(graph, node)] += cost.runtime_ps
    return dict(sorted(sums.items())), launches


@dataclass(frozen=True)
class Correction:
    """What scales an estimate.

    Attributes:
      common: factor of kinds that no measured graph had.  factors: of the others.  overhead_ps: for each launch.
      strength: of the ridge.  models, graphs: how many it was learned from.
      error: mean and greatest |corrected / measured − 1| on models that were left out of the fit; None of a single
        model.
      threads, machine, onnxruntime: where it holds.
    """

    common: float
    factors: dict[str, float]
    overhead_ps: float
    strength: float = 0.0
    models: int = 0
    graphs: int = 0
    error: dict[str, float] | None = None
    threads: int = 1
    machine: str = field(default_factory=machine)
    onnxruntime: str = onnxruntime.__version__

    def factor(self, kind: str) -> float:
        return self.factors.get(kind, self.common)

    def node_ps(self, kind: str, estimate_ps: int, launches: int) -> int:
        return round(self.factor(kind) * estimate_ps + self.overhead_ps * launches)

    def milliseconds(self, parts_ps: Mapping[str, int], launches: int) -> float:
        """The corrected latency of a whole graph, see `parts`."""
        scaled = sum(self.factor(kind) * estimate for kind, estimate in parts_ps.items())
        return (scaled + self.overhead_ps * launches) / 1e9

    def error_on(self, measurements: Sequence[Measurement]) -> np.ndarray:
        """float64 [n]: corrected / measured − 1."""
        return np.array([self.milliseconds(m.parts_ps, m.launches) / m.measured_ms - 1 for m in measurements])

    def save(self, path: Path | str) -> None:
        write_json(path, {"format": FORMAT, **asdict(self)})

    @classmethod
    def load(cls, path: Path | str) -> "Correction":
        """Raises RLFlowError if the file is missing or holds something else."""
        stored = read_json(path)
        try:
            if stored.pop("format") != FORMAT:
                raise ValueError("another format")
            made = cls(**stored)
            numbers = [made.common, made.overhead_ps, *made.factors.values()]
            if not all(isinstance(number, float) and 0 <= number < np.inf for number in numbers):
                raise ValueError("a factor is not a number ≥ 0")
            return made
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RLFlowError(f"{path} holds no correction of costs: {error}") from error


class OnAnEstimate:
    """A cost model made of another one's estimates."""

    def __init__(self, estimate: CostModel):
        self.estimate, self.reach, self.passes = estimate, estimate.reach, estimate.passes

    @property
    def deadline(self) -> float:
        return self.estimate.deadline

    @deadline.setter
    def deadline(self, clock: float) -> None:
        self.estimate.deadline = clock

    def time_again(self, timing: str) -> None:
        self.estimate.time_again(timing)


class CorrectedCost(OnAnEstimate):
    """Another cost model's estimates, corrected."""

    def __init__(self, estimate: CostModel, correction: Correction):
        super().__init__(estimate)
        self.correction = correction

    @classmethod
    def open(cls, threads: int = 1, database: Path | str | None = None) -> "CorrectedCost":
        """The profiled cost with the correction that lies beside its database.

        Raises RLFlowError if there is none, or if it was made on another machine or for another ONNX Runtime.
        """
        path = correction_path(threads, database)
        if not path.exists():
            raise RLFlowError(
                f"there is no correction of costs for threads={threads} ({path}); fit one, or use cost.name=profiled"
            )
        correction = Correction.load(path)
        if (correction.threads, correction.machine, correction.onnxruntime) != (
            threads,
            machine(),
            onnxruntime.__version__,
        ):
            raise RLFlowError(
                f"{path} was made on another machine, for other threads or another ONNX Runtime; make it anew"
            )
        return cls(ProfiledCost.open(threads, database), correction)

    def node_cost(self, graph: Graph, node: Node) -> NodeCost:
        cost = self.estimate.node_cost(graph, node)
        if cost == FREE:
            return FREE
        return cost._replace(runtime_ps=self.correction.node_ps(kind_of(graph, node), cost.runtime_ps, cost.launches))

    def spread(self, graph: Graph, node: Node) -> Spread:
        """By how much `node_cost` may be off."""
        spread = node_spread(self.estimate, graph, node)
        return EXACT.plus(spread, self.correction.factor(kind_of(graph, node))) if spread else EXACT


def correction_path(threads: int, database: Path | str | None = None) -> Path:
    """Where the correction lies that belongs to a database of timings."""
    return Path(database or default_path()).with_suffix(f".correction-{threads}.json")


def read_measurements(path: Path | str) -> tuple[list[Measurement], int]:
    """The measurements in what `python -m benchmarks.cost_trust --json FILE` wrote, and their threads.

    Raises RLFlowError if they are not there, or are of another machine or another ONNX Runtime.
    """
    result = read_json(path)
    try:
        measurements = [
            Measurement(name, one["parts_ps"], one["launches"], one["measured_ms"])
            for name, model in result["figures"]["models"].items() for one in model["graphs"]
        ]  # fmt: skip
        where = result["machine"], result["versions"]["onnxruntime"]
        threads = result["figures"]["threads"]
    except (KeyError, TypeError, AttributeError) as error:
        raise RLFlowError(f"{path} is no result of benchmarks.cost_trust: {error!r}") from error
    if where != (machine(), onnxruntime.__version__):
        raise RLFlowError(f"{path} was measured on another machine or with another ONNX Runtime")
    return measurements, threads


# -- learning --------------------------------------------------------------------------------------


def fit(measurements: Sequence[Measurement], threads: int = 1) -> Correction:
    """The correction that is learned from all of them; its ridge is the one that errs least on models left out.

    Raises RLFlowError without a measurement.
    """
    if not measurements:
        raise RLFlowError("a correction of costs is learned from measured graphs; there is none")
    strength, errors = _choose(measurements)
    result = _solve(measurements, strength)
    return Correction(
        **result, strength=strength, models=len({m.model for m in measurements}), graphs=len(measurements),
        threads=threads,
        error=None if errors is None else {
            "mean": float(np.mean(np.abs(errors))), "greatest": float(np.max(np.abs(errors))),
        },
    )  # fmt: skip


def _choose(measurements: Sequence[Measurement]) -> tuple[float, np.ndarray | None]:
    """The strength that errs least on models left out, every model counting the same, and its errors there."""
    models = list(dict.fromkeys(m.model for m in measurements))
    if len(models) == 1:
        return STRENGTHS[len(STRENGTHS) // 2], None
    best = None
    for strength in STRENGTHS:
        errors = []
        for model in models:
            correction = Correction(**_solve([m for m in measurements if m.model != model], strength))
            errors.append(correction.error_on([m for m in measurements if m.model == model]))
        loss = np.mean([np.mean(np.square(result)) for result in errors])
        if best is None or loss < best[0]:
            best = loss, strength, np.concatenate(errors)
    return best[1:]


def _solve(measurements: Sequence[Measurement], strength: float) -> dict:
    """common, factors and overhead_ps with the least mean squared relative error plus ridge; models count equally."""
    kinds = sorted({kind for m in measurements for kind in m.parts_ps})
    counts = Counter(m.model for m in measurements)
    rows = np.array([[m.parts_ps.get(kind, 0) for kind in kinds] + [m.launches] for m in measurements], float)
    rows /= np.array([[1e9 * m.measured_ms] for m in measurements])  # now shares of what was measured
    unit = max(float(rows[:, -1].mean()), 1e-30)
    rows[:, -1] /= unit  # so that the ridge sees an overhead of the size of the other shares
    weights = np.sqrt([1 / (counts[m.model] * len(counts)) for m in measurements])[:, None]
    # Unknowns: common, the factors, the overhead. Of the ridge: common → 1, each factor → common, overhead → 0.
    ridge = np.eye(len(kinds) + 2)
    ridge[1:-1, 0] = -1
    aims = np.zeros(len(ridge))
    aims[0] = 1
    equations = np.vstack([np.hstack([0 * weights, weights * rows]), strength**0.5 * ridge])
    result = _bounded(equations, np.concatenate([weights[:, 0], strength**0.5 * aims]))
    factors = dict(zip(kinds, result[1:-1].tolist(), strict=True))
    return {"common": float(result[0]), "factors": factors, "overhead_ps": float(result[-1] / unit)}


def _bounded(equations: np.ndarray, aims: np.ndarray) -> np.ndarray:
    """Least squares with every unknown in [LEAST, MOST] and the last one ≥ 0: what leaves its bounds stays there."""
    low, high = np.full(equations.shape[1], LEAST), np.full(equations.shape[1], MOST)
    low[-1], high[-1] = 0, np.inf
    free, result = np.ones(len(low), bool), np.zeros(len(low))
    while True:
        rest = aims - equations[:, ~free] @ result[~free]
        result[free] = np.linalg.lstsq(equations[:, free], rest, rcond=None)[0]
        outside = (result < low) | (result > high)
        if not outside.any():
            return result
        result = np.clip(result, low, high)
        free &= ~outside
