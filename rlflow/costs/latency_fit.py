"""Fit the learned latency to measurements, and judge it on models that were left out.

The fit is a linear model with a Gaussian prior, in closed form. There are two kinds of observations. A measurement
gives the ratio of two latencies, as certain as its interval. Each original took some milliseconds, and an estimate of a
model is off by some percent for reasons of its own (LEVEL). Both are sums of logarithms of estimate · (1 + w·φ)
(`rlflow.costs.learned`), which are linearised at the last w, a few times over.

Kernels are also off for reasons that no feature shows, by the same share wherever a kernel occurs, so that variants of
a model are off together. Treated as independent, these errors would be learned as a law. The prior variances and this
noise are chosen to predict each original best from all others.

`leave_out` judges the learned cost beside the profiled and the corrected one. Graphs that measurements connect are one
family, and each family is predicted from all other families.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.costs import corrected
from rlflow.costs.corrected import Correction, Measurement
from rlflow.costs.database import MeasuredPair
from rlflow.costs.learned import COMMON, FEATURES, RATIO_NOISE, GraphNetwork, LatencyModel, Pooled
from rlflow.costs.measurements import KernelGraph, Known, off
from rlflow.graph.onnx_runtime import machine

LEVEL = 0.05  # by how much, in the mean, an estimate is off for reasons that are a model's own
SEED = 0  # of the network's weights
# Standard deviations of w: of what all operators have in common, of kinds, of features of the network all together; and
# of what a kernel is off by itself. Each is chosen among these, in turns, from the middle ones.
CHOICES = {
    "common": (0.03, 0.1, 0.3, 1.0), "kinds": (0.003, 0.01, 0.03, 0.1, 0.3),
    "network": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0), "noise": (0.003, 0.01, 0.03, 0.06, 0.1, 0.2),
}  # fmt: skip
TURNS = 2


class Observations(NamedTuple):
    """Those of one original, which are off together where the same kernels are.

    rows: float64 [n, D].  aims: float64 [n]: what w · row is.  variances: float64 [n]: of what each is off by itself.
    kernels: float64 [n, n]: times the variance of kernels, the covariance of what they are off by together.
    """

    rows: np.ndarray
    aims: np.ndarray
    variances: np.ndarray
    kernels: np.ndarray


def learn(known: Known, threads: int) -> LatencyModel:
    """From all that is known.

    Raises RLFlowError if nothing is known that says anything.
    """
    empty = unlearned(known, threads)
    return fitted(empty, known, {key: empty.pooled(views) for key, views in known.graphs.items()})


def unlearned(known: Known, threads: int) -> LatencyModel:
    """The model of this machine that makes features of the graphs that are known, and leaves estimates as they are.

    Raises RLFlowError as `learn` does.
    """
    if not known.original_ms():
        raise RLFlowError("a latency is learned from measured graphs whose kernels are timed; there is none")
    views = [view for views in known.graphs.values() for view in views]
    network = GraphNetwork.drawn(np.concatenate([view.numbers for view in views]), SEED)
    kinds = tuple(sorted({kind for view in views for kind in view.kinds}))
    size = COMMON + len(kinds) + FEATURES
    return LatencyModel(network, kinds, np.zeros(size), np.zeros((size, size)), 0.0, 0, 0, threads, machine())


def fitted(empty: LatencyModel, known: Known, pooled: Mapping[tuple[str, str], Pooled]) -> LatencyModel:
    """What the pairs that are known say of w. empty: whose features they are.  pooled: of their graphs at least."""
    model = replace(empty, measurements=len(known.pairs), originals=len(known.original_ms()))
    chosen = {name: values[len(values) // 2] for name, values in CHOICES.items()}
    for _ in range(TURNS):
        observed = _observations(known, pooled, model)
        for name, values in CHOICES.items():
            tried = [chosen, *(chosen | {name: value} for value in values)]  # of equal ones the first
            chosen = max(tried, key=lambda one: _predicted(observed, len(empty.kinds), one))
        weights, spread = _solve(observed, len(empty.kinds), chosen)
        model = replace(model, weights=weights, spread=spread, kernel_noise=chosen["noise"])
    return model


def _observations(known: Known, pooled: Mapping[tuple[str, str], Pooled], model: LatencyModel) -> list[Observations]:
    """model: whose w it is at which they are made linear."""
    beside: dict[tuple[str, str], list[MeasuredPair]] = {}
    for measured in known.pairs:
        if math.isfinite(off(measured)):
            beside.setdefault((measured.pair.original, measured.pair.sizes), []).append(measured)
    levels = known.original_ms()
    return [_beside(pooled, key, taken, levels.get(key), model) for key, taken in beside.items()]


def _beside(pooled, key: tuple[str, str], taken: list[MeasuredPair], level: float | None, model) -> Observations:
    """key: of the original.  level: its milliseconds, where they are known."""
    original = pooled[key]
    predicted, slope = model.log_latency(original)
    rows, values, variances, shares = [], [], [], []
    if level is not None:
        rows.append(slope)
        values.append(math.log(level) - predicted)
        variances.append(LEVEL**2)
        shares.append(original.shares)
    for measured in taken:
        graph = pooled[measured.pair.graph, measured.pair.sizes]
        one, other_slope = model.log_latency(graph)
        rows.append(other_slope - slope)
        values.append(math.log(measured.ratio) - one + predicted)
        variances.append(off(measured) ** 2 + RATIO_NOISE**2)
        shares.append(graph.beside(original))
    rows = np.array(rows)
    return Observations(rows, np.array(values) + rows @ model.weights, np.array(variances), _products(shares))


def _products(shares: list[dict[tuple, float]]) -> np.ndarray:
    """float64 [n, n]: of each two of them the sum over kernels of the products of their shares."""
    kernels = dict.fromkeys(kernel for one in shares for kernel in one)  # no set: sums have the bits of their order
    columns = {kernel: number for number, kernel in enumerate(kernels)}
    matrix = np.zeros((len(shares), len(columns)))
    for row, one in zip(matrix, shares, strict=True):
        for kernel, share in one.items():
            row[columns[kernel]] = share
    return matrix @ matrix.T


class _Whitened(NamedTuple):
    """Observations of one original, in units of what they are off by, and of what is expected of w.

    log_unit: logarithm of the determinant of the former.
    """

    rows: np.ndarray
    aims: np.ndarray
    log_unit: float


def _whitened(observed: list[Observations], prior: np.ndarray, noise: float) -> list[_Whitened]:
    result = []
    for one in observed:
        root = np.linalg.cholesky(np.diag(one.variances) + noise**2 * one.kernels)
        rows, aims = np.linalg.solve(root, one.rows * prior), np.linalg.solve(root, one.aims)
        result.append(_Whitened(rows, aims, float(np.log(np.diag(root)).sum())))
    return result


def _prior(kinds: int, chosen: Mapping[str, float]) -> np.ndarray:
    """float64 [D]: what w is expected to be, give or take."""
    return np.concatenate([
        np.full(COMMON, chosen["common"]), np.full(kinds, chosen["kinds"]),
        np.full(FEATURES, chosen["network"] / FEATURES**0.5),
    ])  # fmt: skip


def _predicted(observed: list[Observations], kinds: int, chosen: Mapping[str, float]) -> float:
    """Logarithm of how probable the observations of each original are to who was shown the others'."""
    whitened, result = _whitened(observed, _prior(kinds, chosen), chosen["noise"]), 0.0
    products, onto = [one.rows.T @ one.rows for one in whitened], [one.rows.T @ one.aims for one in whitened]
    all_products, all_onto = np.eye(len(onto[0])) + sum(products), sum(onto)
    for one, own_product, own in zip(whitened, products, onto, strict=True):
        rest = one.aims - one.rows @ np.linalg.solve(all_products - own_product, all_onto - own)
        result -= rest @ rest / 2 + one.log_unit
    return float(result)


def _solve(observed: list[Observations], kinds: int, chosen: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """(weights, spread): see `LatencyModel`."""
    prior = _prior(kinds, chosen)
    whitened = _whitened(observed, prior, chosen["noise"])
    root = np.linalg.cholesky(np.eye(len(prior)) + sum(one.rows.T @ one.rows for one in whitened))
    spread = prior[:, None] * np.linalg.inv(root).T
    return spread @ np.linalg.solve(root, sum(one.rows.T @ one.aims for one in whitened)), spread


COSTS = ("learned", "profiled", "corrected")  # that are judged
LEAST_RANKED = 3  # graphs, below which no rank correlation is said


class LeftOut(NamedTuple):
    """One family, as the others predict it.

    original: the hash of the graph that most others were measured beside.  model: what the others say.
    graphs: n of them, the original first.  measured_ms: float64 [n].  uncertain: float64 [n]: standard deviation of the
    logarithm of the measured ratio to the original.  costs: name → float64 [n], in ms.
    """

    original: str
    model: LatencyModel
    graphs: list[Pooled]
    measured_ms: np.ndarray
    uncertain: np.ndarray
    costs: dict[str, np.ndarray]

    @property
    def deviations(self) -> np.ndarray:
        """float64 [n − 1]: by how many standard deviations, those of the measurements included, the learned ratios to
        the original are off."""
        result = []
        for graph, measured_ms, uncertain in zip(self.graphs, self.measured_ms, self.uncertain, strict=True):
            mean, spread = self.model.log_ratio(graph, self.graphs[0])
            result.append((mean - np.log(measured_ms / self.measured_ms[0])) / np.hypot(spread, uncertain))
        return np.array(result[1:])

    def error(self, cost: str) -> float:
        """Mean of |estimated / measured − 1|."""
        return float(np.mean(np.abs(self.costs[cost] / self.measured_ms - 1)))

    def rank_correlation(self, cost: str) -> float | None:
        """Over the graphs but the original; None of too few."""
        if len(self.measured_ms) <= LEAST_RANKED:
            return None
        return spearman(self.costs[cost][1:], self.measured_ms[1:])


def leave_out(known: Known, threads: int) -> list[LeftOut]:
    """Of every family whose latency is known; none of a single one."""
    parts = families(known)
    if len(parts) < 2:
        return []
    empty = unlearned(known, threads)
    pooled = {key: empty.pooled(views) for key, views in known.graphs.items()}
    corrections = [list(_for_correction(known._replace(pairs=part), str(k))) for k, part in enumerate(parts)]
    result = []
    for number, part in enumerate(parts):
        others = [measured for other in parts if other is not part for measured in other]
        shown = known._replace(pairs=others)
        if shown.original_ms() and known._replace(pairs=part).original_ms():
            model = fitted(empty, shown, pooled)
            correction = corrected.fit([m for k, one in enumerate(corrections) if k != number for m in one], threads)
            result.append(_left_out(known._replace(pairs=part), model, correction, pooled))
    return result


def families(known: Known) -> list[list[MeasuredPair]]:
    """The measurements, apart for graphs that none of them connects."""
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


def _left_out(family: Known, model: LatencyModel, correction: Correction, pooled: dict) -> LeftOut:
    """pooled: (hash, sizes) → the graph."""
    original, milliseconds, ratios = _measured(family)
    keys = [original, *ratios]
    measured = np.array([(1.0, 0.0), *ratios.values()])
    costs = {
        "learned": [model.milliseconds(pooled[key]) for key in keys],
        "profiled": [pooled[key].estimate_ps / 1e9 for key in keys],
        "corrected": [correction.milliseconds(*_parts(family.graphs[key], pooled[key].estimate_ps)) for key in keys],
    }
    return LeftOut(
        original[0], model, [pooled[key] for key in keys], milliseconds * measured[:, 0], measured[:, 1],
        {name: np.array(costs[name]) for name in COSTS},
    )  # fmt: skip


def _measured(family: Known) -> tuple[tuple[str, str], float, dict[tuple[str, str], tuple[float, float]]]:
    """The original that most were measured beside, its ms; of each graph beside it the ratio, by all its measurements,
    and the standard deviation of its logarithm."""
    levels = family.original_ms()
    beside: dict[tuple[str, str], dict[tuple[str, str], list[MeasuredPair]]] = {original: {} for original in levels}
    for measured in family.pairs:
        graph, original, sizes = measured.pair
        if graph != original and np.isfinite(off(measured)) and (original, sizes) in levels:
            beside[original, sizes].setdefault((graph, sizes), []).append(measured)
    original = max(beside, key=lambda key: len(beside[key]))
    ratios = {}
    for key, taken in beside[original].items():
        certain = np.array([1.0 / max(off(measured), 1e-6) ** 2 for measured in taken])
        logs = np.log([measured.ratio for measured in taken])
        ratios[key] = float(np.exp(certain @ logs / certain.sum())), float(certain.sum() ** -0.5)
    return original, levels[original], ratios


def _for_correction(family: Known, name: str) -> Iterator[Measurement]:
    """What `rlflow.costs.corrected.fit` learns from."""
    if family.original_ms():
        original, milliseconds, ratios = _measured(family)
        for key, ratio in [(original, 1.0), *((key, ratio) for key, (ratio, _) in ratios.items())]:
            views = family.graphs[key]
            estimate_ps = float(np.exp(np.mean([np.log(sum(view.parts_ps.values())) for view in views])))
            yield Measurement(name, *_parts(views, estimate_ps), milliseconds * ratio)


def _parts(views: list[KernelGraph], estimate_ps: float) -> tuple[dict[str, float], float]:
    """See `rlflow.costs.corrected.parts`; over several sizes the mean of the shares of the estimate."""
    result, launches = {}, 0.0
    for view in views:
        share = estimate_ps / max(sum(view.parts_ps.values()), 1) / len(views)
        launches += share * view.launches
        for kind, ps in view.parts_ps.items():
            result[kind] = result.get(kind, 0.0) + share * ps
    return result, launches


def summary(judged: list[LeftOut]) -> dict:
    """JSON-able: of each cost its error and its rank correlation, in the mean of the families; of the learned one also
    the share of ratios that lie within two of its standard deviations."""
    result: dict[str, dict] = {}
    for cost in COSTS:
        ranks = [rank for rank in (one.rank_correlation(cost) for one in judged) if rank is not None]
        error = float(np.mean([one.error(cost) for one in judged]))
        result[cost] = {"error": error, "rank_correlation": float(np.mean(ranks)) if ranks else None}
    deviations = np.concatenate([one.deviations for one in judged])
    result["learned"]["within"] = float(np.mean(np.abs(deviations) < 2)) if len(deviations) else None
    return result


def summary_table(judged: list[LeftOut]) -> str:
    """Markdown: of every family its latency, and of each cost error and rank correlation."""
    lines = [f"| original | ms | graphs | {' | '.join(f'{cost}: error, rank correlation' for cost in COSTS)} |"]
    lines.append("| --- | ---: | ---: |" + " --- |" * len(COSTS))
    for one in judged:
        cells = [one.original[:8], f"{one.measured_ms[0]:.2f}", str(len(one.measured_ms) - 1)]
        for cost in COSTS:
            rank = one.rank_correlation(cost)
            cells.append(f"{100 * one.error(cost):.1f} %, {'–' if rank is None else f'{rank:.2f}'}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation; of equal values each has the mean rank. 0 if one side is constant."""
    ranks = [
        (np.searchsorted(s, x, "left") + np.searchsorted(s, x, "right")) / 2.0
        for x, s in ((a, np.sort(a)), (b, np.sort(b)))
    ]
    return float(np.corrcoef(*ranks)[0, 1]) if all(r.std() for r in ranks) else 0.0
