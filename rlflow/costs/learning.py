"""Learning a latency from measured graphs: one linear model with a Gaussian belief, in closed form.

Two things are observed. A measurement says what one graph takes of what another one takes; what both have in common
cancels, and it is as sure as its interval. And every original took so many milliseconds, of which an estimate is off by
some percent for reasons that are the model's own (LEVEL). Both are sums of logarithms of

    estimate · (1 + w·φ)        (`rlflow.costs.learned`)

which are linear in w where w is known nearly: they are made so at what w was thought to be, a few times over.

Kernels are off for reasons of their own, too, which no feature says: by a share that is the same wherever a kernel is,
so that the variants of a model are off together. Were they taken for independent, what one model's kernels are off by
would be learned as a law.

w is small before anything is observed. How small for each group of features, and by how much kernels are off, is what
predicts each original best from all the others: it is models never measured that are to be predicted. So little is
learned from little, and an observation that says nothing changes nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.costs.database import MeasuredPair
from rlflow.costs.graph_network import FEATURES, GraphNetwork
from rlflow.costs.learned import COMMON, RATIO_NOISE, LatencyModel, Pooled
from rlflow.costs.measurements import Known, off
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
