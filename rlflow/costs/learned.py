"""The learned cost: the profiled cost with one factor for each kind of operator, fitted to measured graphs.

    latency ≈ Σ factor[kind of operator] · estimate(operator) + overhead · launches

The cost is a sum over operators, so an environment updates it by difference. `learn` fits the factors to the
measurements in the timing database by ridge regression of the relative error. The ridge penalty draws each factor to a
common factor, the common factor to 1 and the overhead to 0. A kind of operator that was never measured is scaled by the
common factor. Effects that are no sum over operators, such as layouts that a whole graph shares, cannot be corrected.

A model and its rewritten variants form a family: the graphs that measurements connect. `learn` chooses the strength of
the ridge penalty by cross-validation that leaves out one family at a time. `leave_out` judges the cost in the same way.

    rlflow measure MODEL.onnx FASTER.onnx
    rlflow costs learn
    rlflow optimise MODEL.onnx --out FASTER.onnx cost.name=learned
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_json
from rlflow.common.messages import markdown_table
from rlflow.costs import EXACT, FREE, CostModel, NodeCost, Spread, node_spread
from rlflow.costs.database import MeasuredPair, default_path
from rlflow.costs.measurements import KernelGraph, Known, kind_of, log_ratio_deviation
from rlflow.costs.profiled import ProfiledCost
from rlflow.graph.ir import Graph, Node
from rlflow.graph.onnx_runtime import machine

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # strengths of the ridge penalty to choose from
MIN_FACTOR, MAX_FACTOR = 0.2, 5.0  # bounds of a factor; a factor outside would show that the fit is wrong
FORMAT = 1  # version of the file of a `Correction`
COSTS = ("learned", "profiled")  # cost models that `leave_out` compares
MIN_RANKED = 3  # a model with at most this many graphs, the original included, gets no rank correlation


class MeasuredGraph(NamedTuple):
    """A measured graph: its profiled cost by kind of operator, and its latency.

    Attributes:
      model: hash of the original from which the graph was rewritten.
      parts_ps: kind of operator → estimated picoseconds of all operators of this kind.
      launches: number of kernel launches; a weighted mean over several sizes.
      measured_ms: end-to-end latency.
    """

    model: str
    parts_ps: Mapping[str, float]
    launches: float
    measured_ms: float


@dataclass(frozen=True)
class Correction:
    """The factors that turn the profiled cost into the learned cost.

    Attributes:
      common: factor of each kind of operator that no measured graph had.
      factors: kind of operator → factor, for all kinds in the measured graphs.
      overhead_ps: picoseconds that are added for each kernel launch.
      strength: strength of the ridge penalty in the fit.
      models, graphs: number of models and graphs in the fit.
      error: "mean" and "greatest" |learned / measured − 1| on models left out of the fit; None for a single model.
      threads, machine, onnxruntime: number of threads, machine and version of ONNX Runtime of the measurements.
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

    def milliseconds(self, parts_ps: Mapping[str, float], launches: float) -> float:
        """Return the learned latency of a whole graph in milliseconds.

        Args:
          parts_ps: kind of operator → profiled picoseconds of all operators of this kind.
          launches: number of kernel launches.
        """
        scaled = sum(self.factor(kind) * estimate for kind, estimate in parts_ps.items())
        return (scaled + self.overhead_ps * launches) / 1e9

    def error_on(self, measurements: Sequence[MeasuredGraph]) -> np.ndarray:
        """Return learned latency / measured latency − 1 for each of n graphs, float64 [n]."""
        return np.array([self.milliseconds(m.parts_ps, m.launches) / m.measured_ms - 1 for m in measurements])

    def save(self, path: Path | str) -> None:
        write_json(path, {"format": FORMAT, **asdict(self)})

    @classmethod
    def load(cls, path: Path | str) -> "Correction":
        """Read a correction from a file that `save` wrote.

        Raises:
          RLFlowError: the file is missing or holds something else.
        """
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
            raise RLFlowError(f"{path} holds no learned cost ({error}). Learn it again: costs learn") from error


def correction_path(threads: int, database: Path | str | None = None) -> Path:
    """Return the path of the file with the correction, which lies beside the timing database.

    Args:
      threads: threads of ONNX Runtime.
      database: path of the database; None for the user's default database.
    """
    return Path(database or default_path()).with_suffix(f".correction-{threads}.json")


class LearnedCost:
    """A cost model that scales the estimates of another cost model by a `Correction`."""

    def __init__(self, estimate: CostModel, correction: Correction):
        self.estimate, self.reach, self.passes = estimate, estimate.reach, estimate.passes
        self.correction = correction

    @classmethod
    def open(cls, threads: int = 1, database: Path | str | None = None) -> "LearnedCost":
        """Return the profiled cost with the correction in the file beside its database.

        Args:
          threads: threads of ONNX Runtime.
          database: path of the timing database; None for the user's default database.

        Raises:
          RLFlowError: there is no correction, or it holds for other threads, another machine or another ONNX Runtime.
        """
        path = correction_path(threads, database)
        if not path.exists():
            raise RLFlowError(
                f"no cost was learned for threads={threads} ({path} is missing). Measure graphs and run `costs learn`, "
                "or use cost.name=profiled"
            )
        correction = Correction.load(path)
        here = threads, machine(), onnxruntime.__version__
        if (correction.threads, correction.machine, correction.onnxruntime) != here:
            raise RLFlowError(
                f"{path} was learned on another machine, for other threads or another ONNX Runtime. "
                "Learn it again: costs learn"
            )
        return cls(ProfiledCost.open(threads, database), correction)

    @property
    def deadline(self) -> float:
        return self.estimate.deadline

    @deadline.setter
    def deadline(self, clock: float) -> None:
        self.estimate.deadline = clock

    def time_again(self, timing: str) -> None:
        self.estimate.time_again(timing)

    def node_cost(self, graph: Graph, node: Node) -> NodeCost:
        cost = self.estimate.node_cost(graph, node)
        if cost == FREE:
            return FREE
        learned_ps = self.correction.factor(kind_of(graph, node)) * cost.runtime_ps
        return cost._replace(runtime_ps=round(learned_ps + self.correction.overhead_ps * cost.launches))

    def spread(self, graph: Graph, node: Node) -> Spread:
        """Return the uncertainty of `node_cost`: the estimate's spread times the factor of the operator."""
        spread = node_spread(self.estimate, graph, node)
        return EXACT.plus(spread, self.correction.factor(kind_of(graph, node))) if spread else EXACT


# -- learning --------------------------------------------------------------------------------------


def learn(known: Known, threads: int) -> Correction:
    """Fit a correction to all measurements.

    Args:
      known: the measurements of a database.
      threads: number of threads with which the measurements were made.

    Raises:
      RLFlowError: there is no measured graph whose kernels are timed.
    """
    return fit([graph for graphs in measured_models(known).values() for graph in graphs], threads)


def measured_models(known: Known) -> dict[str, list[MeasuredGraph]]:
    """Return the measured graphs of each model whose latency is known.

    Returns:
      hash of the original → its measured graphs, the original first.
    """
    result = {}
    for family in families(known):
        part = known._replace(pairs=family)
        if part.original_ms():
            original, latencies = _latencies(part)
            result[original] = [
                MeasuredGraph(original, *_mean_parts(part.graphs[key]), latency) for key, latency in latencies.items()
            ]
    return result


def families(known: Known) -> list[list[MeasuredPair]]:
    """Split the measurements into one list for each family; no measurement connects graphs of two families."""
    leader: dict[str, str] = {}

    def find(graph: str) -> str:
        while leader.setdefault(graph, graph) != graph:
            graph = leader[graph]
        return graph

    for measured in known.pairs:
        leader[find(measured.pair.graph)] = find(measured.pair.original)
    result: dict[str, list[MeasuredPair]] = {}
    for measured in known.pairs:
        result.setdefault(find(measured.pair.graph), []).append(measured)
    return list(result.values())


def _latencies(family: Known) -> tuple[str, dict[tuple[str, str], float]]:
    """Return one original of a family and the latencies of the graphs that were measured beside this original.

    The original is the one with the most measured variants. Repeated measurements of a graph are averaged, weighted by
    the inverse of their variance.

    Args:
      family: the measurements of one family.

    Returns:
      hash of the original; (hash, sizes as text) of each graph → latency in ms, the original first.
    """
    levels = family.original_ms()
    beside: dict[tuple[str, str], dict[tuple[str, str], list[MeasuredPair]]] = {original: {} for original in levels}
    for measured in family.pairs:
        graph, original, sizes = measured.pair
        if graph != original and math.isfinite(log_ratio_deviation(measured)) and (original, sizes) in levels:
            beside[original, sizes].setdefault((graph, sizes), []).append(measured)
    original = max(beside, key=lambda key: len(beside[key]))
    latencies = {original: levels[original]}
    for key, taken in beside[original].items():
        weights = [1.0 / max(log_ratio_deviation(measured), 1e-6) ** 2 for measured in taken]
        log_ratio = np.average(np.log([measured.ratio for measured in taken]), weights=weights)
        latencies[key] = levels[original] * float(np.exp(log_ratio))
    return original[0], latencies


def _mean_parts(views: list[KernelGraph]) -> tuple[dict[str, float], float]:
    """Return the estimated picoseconds by kind of operator and the number of launches, averaged over several sizes.

    The total estimate is the geometric mean over the sizes. Each kind of operator gets its mean fraction of the total.

    Args:
      views: the kernel graph at each size.
    """
    wholes = [max(sum(view.parts_ps.values()), 1) for view in views]
    estimate_ps = math.exp(np.mean(np.log(wholes)))
    parts_ps, launches = {}, 0.0
    for view, whole in zip(views, wholes, strict=True):
        share = estimate_ps / whole / len(views)
        launches += share * view.launches
        for kind, ps in view.parts_ps.items():
            parts_ps[kind] = parts_ps.get(kind, 0.0) + share * ps
    return parts_ps, launches


def fit(measurements: Sequence[MeasuredGraph], threads: int = 1) -> Correction:
    """Fit a correction, with the strength of the ridge penalty that has the least error on models left out.

    Args:
      measurements: measured graphs of any number of models.
      threads: number of threads with which the graphs were measured.

    Raises:
      RLFlowError: there is no measured graph.
    """
    if not measurements:
        raise RLFlowError(
            "no measured graph whose kernels are timed is known, so there is nothing to learn from. Measure one: "
            "measure MODEL.onnx FASTER.onnx"
        )
    strength, errors = _choose(measurements)
    result = _solve(measurements, strength)
    return Correction(
        **result, strength=strength, models=len({m.model for m in measurements}), graphs=len(measurements),
        threads=threads,
        error=None if errors is None else {
            "mean": float(np.mean(np.abs(errors))), "greatest": float(np.max(np.abs(errors))),
        },
    )  # fmt: skip


def _choose(measurements: Sequence[MeasuredGraph]) -> tuple[float, np.ndarray | None]:
    """Choose the strength of the ridge penalty with the least mean squared error on models left out of the fit.

    All models have equal weight.

    Returns:
      the strength; learned / measured − 1 of each graph at this strength, or None for a single model.
    """
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


def _solve(measurements: Sequence[MeasuredGraph], strength: float) -> dict:
    """Minimise the mean squared relative error plus `strength` times the ridge penalty; all models have equal weight.

    The overhead is at least 0; common and the factors lie in [MIN_FACTOR, MAX_FACTOR].

    Returns:
      common, factors and overhead_ps of a `Correction`.
    """
    from scipy.optimize import lsq_linear

    kinds = sorted({kind for m in measurements for kind in m.parts_ps})
    counts = Counter(m.model for m in measurements)
    rows = np.array([[m.parts_ps.get(kind, 0) for kind in kinds] + [m.launches] for m in measurements], float)
    rows /= np.array([[1e9 * m.measured_ms] for m in measurements])  # now fractions of the measured latency
    unit = max(float(rows[:, -1].mean()), 1e-30)
    rows[:, -1] /= unit  # The ridge penalty then sees the overhead on the scale of the factors.
    weights = np.sqrt([1 / (counts[m.model] * len(counts)) for m in measurements])[:, None]
    # The unknowns are common, the factors and the overhead. The ridge penalty draws common to 1, each factor to common
    # and the overhead to 0.
    ridge = np.eye(len(kinds) + 2)
    ridge[1:-1, 0] = -1
    aims = np.zeros(len(ridge))
    aims[0] = 1
    equations = np.vstack([np.hstack([0 * weights, weights * rows]), strength**0.5 * ridge])
    low, high = np.full(len(ridge), MIN_FACTOR), np.full(len(ridge), MAX_FACTOR)
    low[-1], high[-1] = 0, np.inf
    wanted = np.concatenate([weights[:, 0], strength**0.5 * aims])
    result = lsq_linear(equations, wanted, (low, high), method="bvls").x
    factors = dict(zip(kinds, result[1:-1].tolist(), strict=True))
    return {"common": float(result[0]), "factors": factors, "overhead_ps": float(result[-1] / unit)}


# -- judging ---------------------------------------------------------------------------------------


class LeftOut(NamedTuple):
    """The latencies of one model's n graphs, measured and estimated; the learned cost is fitted to all other models.

    Attributes:
      original: hash of the original.
      measured_ms: float64 [n], measured latencies, the original first.
      costs: name in COSTS → estimated latencies in ms, float64 [n].
    """

    original: str
    measured_ms: np.ndarray
    costs: dict[str, np.ndarray]

    def error(self, cost: str) -> float:
        """Return the mean of |estimated / measured − 1| over all graphs for a cost model in COSTS."""
        return float(np.mean(np.abs(self.costs[cost] / self.measured_ms - 1)))

    def rank_correlation(self, cost: str) -> float | None:
        """Return Spearman's correlation of estimated and measured latencies over all graphs except the original.

        The result is None for MIN_RANKED or fewer graphs.

        Args:
          cost: name in COSTS.
        """
        if len(self.measured_ms) <= MIN_RANKED:
            return None
        return spearman(self.costs[cost][1:], self.measured_ms[1:])


def leave_out(known: Known, threads: int) -> list[LeftOut]:
    """Judge the learned cost on each model after fitting it to all other models; empty for a single model.

    Args:
      known: the measurements of a database.
      threads: number of threads with which the measurements were made.
    """
    models, result = measured_models(known), []
    for original, graphs in models.items() if len(models) > 1 else ():
        correction = fit([m for other, taken in models.items() if other != original for m in taken], threads)
        learned = [correction.milliseconds(m.parts_ps, m.launches) for m in graphs]
        profiled = [sum(m.parts_ps.values()) / 1e9 for m in graphs]
        costs = {"learned": np.array(learned), "profiled": np.array(profiled)}
        result.append(LeftOut(original, np.array([m.measured_ms for m in graphs]), costs))
    return result


def left_out_summary(judged: list[LeftOut]) -> dict:
    """Return the error and the rank correlation of each cost model, averaged over the models left out.

    Args:
      judged: the result of `leave_out`; not empty.

    Returns:
      name in COSTS → {"error", "rank_correlation"} (None if no model has one); JSON-able.
    """
    result: dict[str, dict] = {}
    for cost in COSTS:
        ranks = [rank for rank in (one.rank_correlation(cost) for one in judged) if rank is not None]
        error = float(np.mean([one.error(cost) for one in judged]))
        result[cost] = {"error": error, "rank_correlation": float(np.mean(ranks)) if ranks else None}
    return result


def left_out_table(judged: list[LeftOut]) -> str:
    """Return the result of `leave_out` as a Markdown table: for each model, the latency of the original, the number of
    rewritten graphs, and the error and rank correlation of each cost model.
    """
    rows = []
    for one in judged:
        cells = [one.original[:8], f"{one.measured_ms[0]:.2f}", str(len(one.measured_ms) - 1)]
        for cost in COSTS:
            rank = one.rank_correlation(cost)
            cells.append(f"{100 * one.error(cost):.1f} %, {'–' if rank is None else f'{rank:.2f}'}")
        rows.append(cells)
    head = ("original", "ms", "graphs", *(f"{cost}: error, rank correlation" for cost in COSTS))
    return markdown_table(head, rows, numbers=(1, 2))


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's rank correlation of two float64 arrays [n]; 0 if one is constant. Ties get their mean rank."""
    from scipy.stats import rankdata

    ranks = rankdata(a), rankdata(b)
    return float(np.corrcoef(*ranks)[0, 1]) if all(r.std() for r in ranks) else 0.0
