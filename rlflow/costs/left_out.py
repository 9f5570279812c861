"""How well a latency is learned: judged on models of which nothing was shown, beside the estimate and its correction.

Graphs that measurements connect are one family, as a model and all that was rewritten from it are. Each family is
predicted by what all others say.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rlflow.costs import corrected
from rlflow.costs.corrected import Correction, Measurement
from rlflow.costs.database import MeasuredPair
from rlflow.costs.kernel_graph import KernelGraph
from rlflow.costs.learned import LatencyModel, Pooled
from rlflow.costs.learning import fitted, unlearned
from rlflow.costs.measurements import Known, off

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
