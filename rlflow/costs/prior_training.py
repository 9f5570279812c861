"""Train the prior of kernels (`rlflow.costs.prior`) on the timings of a database, with LightGBM.

The kernels are split into folds by their size: all kernels of equal kind and equal result are in one fold. Every fold
is predicted by trees that never saw its sizes. These errors train the second ensemble, calibrate the intervals (as in
split conformal prediction with normalised errors; Lei et al. 2018, doi 10.1080/01621459.2017.1307116) and choose the
correlation of errors. The prior itself is trained on all kernels.
"""

import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.costs.database import TimingDatabase
from rlflow.costs.kernel_features import Description, baseline_ps, described, features
from rlflow.costs.prior import WITHIN_80, Correlation, Points, Prior, Trees
from rlflow.costs.profiled import FLOOR_PS, OVERHEAD
from rlflow.costs.speeds import Speeds, stored_speeds
from rlflow.costs.timing import Z

FOLDS = 5
LEAST_KERNELS = 20  # fewest kernels to train on
LEAST_OF_KIND = 8  # kinds with fewer kernels have no feature of their own
# Relative error of every timing in addition to its interval, so that the most precise timings do not dominate.
NOISE = 0.05
# A timing of this relative error or more trains the first ensemble with a small weight. It is not used to judge
# predictions.
UNSURE = 0.2
# Smaller errors of predictions count as this error, because their logarithms would dominate the second ensemble.
LEAST_ERROR = 0.01
PARAMETERS = {
    "objective": "huber", "alpha": 0.3, "learning_rate": 0.08, "num_leaves": 48, "max_depth": 10, "min_data_in_leaf": 4,
    "lambda_l2": 1.0, "feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1, "verbosity": -1,
    "extra_trees": True, "num_threads": 1, "deterministic": True, "force_row_wise": True, "seed": 0,
}  # fmt: skip
ROUNDS, ERROR_ROUNDS = 1000, 120  # trees of the two ensembles
ERROR_LEAF = 20  # fewest kernels of a leaf of the second ensemble, because single errors say little
# Shares of the variance (everywhere, kind, near) and lengths in octaves among which the likelihood chooses.
SHARES = [(a, b, c) for a in (0.0, 0.1, 0.3) for b in (0.1, 0.3) for c in (0.1, 0.3, 0.5) if a + b + c < 1]
LENGTHS = (0.5, 1.0, 2.0, 4.0)
MOST_COMPARED = 800  # largest number of kernels on which the likelihood of a correlation is computed


class Sample(NamedTuple):
    """A timed kernel.

    Attributes:
      what: the kernel.
      log_ps: logarithm of its latency in picoseconds, without the overhead of a run.
      noise: standard deviation of `log_ps`.
      speeds: the constants of the machine that timed it.
      threads: threads of ONNX Runtime.
    """

    what: Description
    log_ps: float
    noise: float
    speeds: Speeds
    threads: int


def samples_of(databases: Sequence[TimingDatabase]) -> tuple[list[Sample], dict]:
    """Return the timed kernels of several databases, and the facts that a prior states about them.

    Args:
      databases: the databases; they hold the speeds of their machines (`costs calibrate`).

    Raises:
      RLFlowError: speeds are missing.
    """
    data, threads = [], sorted({count for database in databases for count in database.threads()})
    for database in databases:
        for count in database.threads():
            data += samples(database, count).values()
    return data, {"machines": sorted({database.machine for database in databases}), "threads": threads}


def samples(database: TimingDatabase, threads: int) -> dict[str, Sample]:
    """Return signature → sample, for the timed kernels of a database with a number of threads.

    Args:
      database: the database; it holds the speeds of its machine (`costs calibrate`).
      threads: threads of ONNX Runtime.

    Raises:
      RLFlowError: speeds are missing.
    """
    speeds, overhead = stored_speeds(database, threads), database.look_up(OVERHEAD, threads)
    if speeds is None or overhead is None:
        raise RLFlowError(
            f"{database.path} lacks the speeds of {database.machine} with threads={threads}. Measure them there: "
            f"costs calibrate --threads {threads}"
        )
    result = {}
    for signature, timing in database.timings(threads).items():
        what = described(signature)
        if what is not None:
            ps = max(FLOOR_PS, 1000 * (timing.median - overhead.median))
            off = 1000 * math.hypot(timing.half_width, overhead.half_width) / Z
            result[signature] = Sample(what, math.log(ps), min(off / ps, 1.0), speeds, threads)
    return result


def train(data: Sequence[Sample], facts: Mapping[str, object]) -> Prior:
    """Train a prior; equal samples in equal order give equal priors.

    Args:
      data: the timed kernels.
      facts: the facts about the data that the prior will hold. The number of kernels and the errors on sizes left out
        are added.

    Raises:
      RLFlowError: there are fewer than LEAST_KERNELS kernels, or LightGBM is not installed.
    """
    if len(data) < LEAST_KERNELS:
        raise RLFlowError(
            f"{len(data)} timed kernels are too few to learn from ({LEAST_KERNELS} at least). Time more: "
            "costs record MODEL"
        )
    counts = Counter(one.what.kind for one in data)
    kinds = tuple(sorted(kind for kind, count in counts.items() if count >= LEAST_OF_KIND))
    x = np.array([features(one.what, one.speeds, one.threads, kinds) for one in data])
    y = np.array([one.log_ps - math.log(baseline_ps(one.what, one.speeds)) for one in data])
    weights = 1 / (NOISE**2 + np.array([one.noise for one in data]) ** 2)
    folds = np.array([fold(one.what) for one in data])

    mean = _fit(x, y, weights, ROUNDS, {})
    off = y - _left_out(x, y, weights, folds, ROUNDS, {})

    sure = np.array([one.noise < UNSURE for one in data])
    if sure.sum() < LEAST_KERNELS:
        raise RLFlowError(
            f"{sure.sum()} of the timed kernels are slow enough for a precise timing, and {LEAST_KERNELS} are needed. "
            "Time more: costs record MODEL"
        )
    x, off, folds, judged = x[sure], off[sure], folds[sure], [one for one in data if one.noise < UNSURE]
    errors, even = np.log(np.maximum(np.abs(off), LEAST_ERROR)), np.ones(len(off))
    of_errors = {"objective": "regression", "min_data_in_leaf": ERROR_LEAF}
    error = _fit(x, errors, even, ERROR_ROUNDS, of_errors)
    expected = np.exp(_left_out(x, errors, even, folds, ERROR_ROUNDS, of_errors))
    factor = float(np.quantile(np.abs(off) / expected, 0.8)) / WITHIN_80
    deviations = factor * expected
    noise = np.array([max(one.noise, NOISE) for one in judged]) / deviations
    correlation = _correlation(judged, off / deviations, noise)
    truth = np.array([one.log_ps for one in judged])
    facts = dict(facts) | {"kernels": len(data), "left_out": errors_of(truth, truth - off, deviations)}
    return Prior(kinds, trees_of(mean), trees_of(error), factor, correlation, facts)


def size_of(what: Description) -> tuple:
    """Return the kind of a kernel and the size of its result; the latencies of kernels of equal size are alike."""
    return what.kind, *(what.numbers[name] for name in ("written", "rows", "columns", "axis", "outer"))


def fold(what: Description) -> int:
    """Return the fold of a kernel; kernels of equal size (`size_of`) are in one fold."""
    return zlib.crc32(repr(size_of(what)).encode()) % FOLDS


def errors_of(truth: np.ndarray, predicted: np.ndarray, deviations: np.ndarray) -> dict[str, float]:
    """Return the errors of predicted logarithms of latencies, as fractions.

    Args:
      truth, predicted: float64 [n].
      deviations: float64 [n], the predicted standard deviations.

    Returns:
      median_relative_error; rank_correlation, 0 if one of the arrays is constant; within_80, the share of the truths in
      their 80 % intervals.
    """
    from scipy.stats import spearmanr

    is_constant = min(np.ptp(truth), np.ptp(predicted)) == 0  # then spearmanr warns and returns NaN
    return {
        "rank_correlation": 0.0 if is_constant else float(spearmanr(predicted, truth).statistic),
        "median_relative_error": float(np.median(np.abs(np.expm1(predicted - truth)))),
        "within_80": float(np.mean(np.abs(truth - predicted) <= WITHIN_80 * deviations)),
    }


def _left_out(x, y, weights, folds, rounds: int, others: Mapping) -> np.ndarray:
    """Return float64 [n], each prediction by trees that never saw the fold of its kernel.

    If all kernels are in one fold, the trees saw all of them.
    """
    result = np.empty(len(y))
    for one in np.unique(folds):
        held = folds == one
        seen = ~held if not held.all() else held
        result[held] = _fit(x[seen], y[seen], weights[seen], rounds, others).predict(x[held])
    return result


def _fit(x: np.ndarray, y: np.ndarray, weights: np.ndarray, rounds: int, others: Mapping):
    try:
        import lightgbm
    except ImportError as error:
        raise RLFlowError("training needs LightGBM. Install it: pip install 'rlflow[prior]'") from error
    return lightgbm.train(PARAMETERS | dict(others), lightgbm.Dataset(x, y, weight=weights), rounds)


def trees_of(model) -> Trees:
    """Return the ensemble of a LightGBM model whose features are numbers."""
    roots = [tree["tree_structure"] for tree in model.dump_model()["tree_info"]]
    written = [_nodes(root) for root in roots]
    size = max(len(nodes) for nodes, _ in written)
    arrays = [np.zeros((len(roots), size), kind) for kind in (np.int16, float, np.int16, np.int16, float)]
    for row, (nodes, _) in enumerate(written):
        for array, column in zip(arrays, zip(*nodes, strict=True), strict=True):
            array[row, : len(nodes)] = column
    return Trees(*arrays, max(depth for _, depth in written))


def _nodes(root: Mapping) -> tuple[list[tuple[int, float, int, int, float]], int]:
    """Return (feature, threshold, left, right, value) of each node of a tree, the root first, and the depth."""
    nodes: list[tuple[int, float, int, int, float]] = []

    def add(node: Mapping) -> tuple[int, int]:
        place = len(nodes)
        if "leaf_value" in node:
            nodes.append((0, 0.0, place, place, node["leaf_value"]))
            return place, 0
        nodes.append((node["split_feature"], node["threshold"], 0, 0, 0.0))
        (left, above), (right, below) = add(node["left_child"]), add(node["right_child"])
        nodes[place] = (*nodes[place][:2], left, right, 0.0)
        return place, 1 + max(above, below)

    _, depth = add(root)
    return nodes, depth


def _correlation(data: Sequence[Sample], errors: np.ndarray, noise: np.ndarray) -> Correlation:
    """Return the correlation that makes the standardised errors of predictions most likely.

    Args:
      data: the kernels.
      errors: float64 [n], the errors of sizes left out, divided by their deviations.
      noise: float64 [n], the errors of the timings, divided by the same deviations.
    """
    from scipy.linalg import cho_factor, cho_solve

    chosen = np.random.default_rng(0).permutation(len(data))[:MOST_COMPARED]
    points, errors = Points.of([data[k].what for k in chosen]), np.clip(errors[chosen], -4, 4)
    noise = np.diag(np.minimum(noise[chosen], 4) ** 2)
    best = None
    for shares in SHARES:
        for length in LENGTHS:
            shared = Correlation(*shares, length).between(points, points)
            np.fill_diagonal(shared, 1.0)
            factored = cho_factor(shared + noise, lower=True)
            likely = -0.5 * errors @ cho_solve(factored, errors) - np.log(np.diag(factored[0])).sum()
            if best is None or likely > best[0]:
                best = likely, Correlation(*shares, length)
    return best[1]
