"""The prior of kernels: the latency of a kernel that was never timed here, predicted with its uncertainty.

The prior is two boosted ensembles of regression trees on the features of `rlflow.costs.kernel_features`. One predicts
the logarithm of the latency relative to the roofline, the other the logarithm of the error of the first. A factor from
cross-validation calibrates the error, so that 80 % of the kernels of sizes that no training saw lie within the 80 %
interval. `rlflow.costs.prior_training` makes a prior with LightGBM; reading it needs NumPy alone.

`Posterior` corrects predictions by what was timed: kernels of one kind and of similar size share a part of the error,
as in a Gaussian process (Rasmussen and Williams 2006, equations 2.25 and 2.26).
"""

import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.files import write_bytes
from rlflow.costs.kernel_features import NUMBERS, Description, baseline_ps, feature_names, features
from rlflow.costs.speeds import Speeds

FORMAT = 2  # version of the file, of the meaning of the features and of how kernels are timed
WITHIN_80 = (
    1.2816  # 90 % quantile of the normal distribution: the half-width of an 80 % interval in standard deviations
)


@dataclass(frozen=True, eq=False)
class Trees:
    """An ensemble of regression trees; the prediction is the sum of one leaf of each tree.

    Attributes:
      feature: int16 [T, N], the feature that a node compares with its threshold.
      threshold: float64 [T, N]; values up to the threshold go left.
      left, right: int16 [T, N], the next node; a node that is its own successor is a leaf.
      value: float64 [T, N], the value of a leaf.
      depth: the largest number of comparisons on the way to a leaf.
    """

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray
    depth: int

    def predict(self, x: np.ndarray) -> float:
        """Return the prediction for the features float64 [F] of one kernel."""
        feature, threshold, follows, value, roots = self._flat
        node = roots
        for _ in range(self.depth):
            goes_left = x.take(feature.take(node)) <= threshold.take(node)
            node = follows.take(2 * node + goes_left)
        return float(value.take(node).sum())

    @cached_property
    def _flat(self) -> tuple[np.ndarray, ...]:
        """Feature, threshold, (right, left) successor and value of the nodes of all trees in a row, and the roots."""
        roots = np.arange(len(self.feature), dtype=np.int64) * self.feature.shape[1]
        follows = np.stack([self.right + roots[:, None], self.left + roots[:, None]], axis=-1)
        return self.feature.ravel(), self.threshold.ravel(), follows.ravel(), self.value.ravel(), roots


TREE_FIELDS = tuple(field.name for field in fields(Trees))


MOST_BYTES = 1 << 28  # of the content of a file, which is compressed
# Correlation of the errors of kernels with equal descriptions. Most such kernels are one kernel that ONNX Runtime makes
# of different operators. If one of them is timed, the predictions of the others become nearly this timing, so that no
# search prefers one of them because of prediction errors.
ALIKE = 0.97


class Correlation(NamedTuple):
    """The model of the correlation of two predictions' errors: the shares of the error variance that kernels share.

    Attributes:
      everywhere: share that all kernels have in common.
      kind: further share that kernels of one kind have in common.
      near: further share that kernels of one kind and of equal size have in common. It decreases with the distance of
        the sizes.
      length: the distance in octaves at which the share `near` is multiplied by exp(-1/2).
    """

    everywhere: float
    kind: float
    near: float
    length: float

    def between(self, a: "Points", b: "Points") -> np.ndarray:
        """Return float64 [n, m], the correlation of the errors of n and of m kernels; ALIKE for equal descriptions."""
        same = a.kinds[:, None] == b.kinds[None]
        squares = (a.sizes**2).sum(1)[:, None] + (b.sizes**2).sum(1)[None] - 2 * a.sizes @ b.sizes.T
        near = np.exp(-np.maximum(squares, 0.0) / (2 * self.length**2))
        shared = self.everywhere + same * (self.kind + self.near * near)
        return np.where(a.keys[:, None] == b.keys[None], ALIKE, shared)


SIZES = [NUMBERS.index(name) for name in ("flops", "bytes", "weights", "written", "window", "run", "rows", "inner")]


class Points(NamedTuple):
    """Kernels as the correlation sees them.

    Attributes:
      kinds: [n] texts.
      sizes: float64 [n, S], in octaves.
      keys: int64 [n], equal for equal descriptions.
    """

    kinds: np.ndarray
    sizes: np.ndarray
    keys: np.ndarray

    @classmethod
    def of(cls, what: Sequence[Description]) -> "Points":
        sizes = [[one.numbers[NUMBERS[k]] for k in SIZES] for one in what]
        keys = [_key((one.kind, one.flops, one.moved, *map(one.numbers.__getitem__, NUMBERS))) for one in what]
        kinds = np.array([one.kind for one in what])
        return cls(kinds, np.array(sizes, np.float64).reshape(-1, len(SIZES)), np.array(keys, np.int64))


def _key(values: tuple[str | float, ...]) -> int:
    """Return a hash of a text and numbers, of 63 bits. Unlike Python's `hash`, it is the same in every process."""
    kind, *numbers = values
    text = repr((kind, *map(float, numbers)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class Prediction(NamedTuple):
    """A predicted latency.

    Attributes:
      log_ps: natural logarithm of the latency in picoseconds.
      deviation: standard deviation of `log_ps`.
    """

    log_ps: float
    deviation: float

    @property
    def ps(self) -> int:
        """The median latency in picoseconds."""
        return round(float(np.exp(self.log_ps)))


class Prior(NamedTuple):
    """A trained predictor of kernels.

    Attributes:
      kinds: the kinds of kernels that it distinguishes.
      mean, error: the ensembles for the logarithm of latency / roofline, and of the absolute error of this logarithm.
      factor: the standard deviation is exp(error) times this factor.
      correlation: the correlation of errors.
      facts: what it was trained on, and its errors on sizes left out; JSON-able.
    """

    kinds: tuple[str, ...]
    mean: Trees
    error: Trees
    factor: float
    correlation: Correlation
    facts: Mapping[str, object]

    def predict(self, what: Description, speeds: Speeds, threads: int) -> Prediction:
        """Return the predicted latency of a kernel.

        Args:
          what: the kernel.
          speeds: the constants of the machine.
          threads: threads of ONNX Runtime.
        """
        x = features(what, speeds, threads, self.kinds)
        log_ps = self.mean.predict(x) + math.log(baseline_ps(what, speeds))
        return Prediction(log_ps, self.factor * math.exp(self.error.predict(x)))

    def save(self, path: Path | str) -> None:
        """Write the prior to a file, NAME.npz without pickled objects; equal priors give equal bytes."""
        arrays = {f"{name}/{field}": np.asarray(value) for name, trees in (("mean", self.mean), ("error", self.error))
                  for field, value in vars(trees).items() if field in TREE_FIELDS}  # fmt: skip
        described = {
            "format": FORMAT, "features": feature_names(self.kinds), "kinds": self.kinds, "factor": self.factor,
            "correlation": self.correlation._asdict(), "facts": self.facts,
        }  # fmt: skip
        arrays["about"] = np.frombuffer(json.dumps(described, sort_keys=True).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path | str) -> "Prior":
        """Read the file that `save` wrote.

        Raises:
          RLFlowError: the file is missing or damaged, or was made by another version.
        """
        try:
            with np.load(path, allow_pickle=False) as archive:
                if sum(member.file_size for member in archive.zip.infolist()) > MOST_BYTES:
                    raise ValueError("its content is too large")
                arrays = {name: archive[name] for name in archive.files}
            about = json.loads(arrays["about"].tobytes())
            kinds = tuple(about["kinds"])
            if about["format"] != FORMAT or about["features"] != feature_names(kinds):
                raise ValueError("it was made by another version")
            ensembles = [_trees(arrays, name, len(about["features"])) for name in ("mean", "error")]
            correlation = Correlation(**about["correlation"])
            if min(correlation) < 0 or sum(correlation[:3]) >= ALIKE or not correlation.length:
                raise ValueError("its correlation is none")
            return cls(kinds, *ensembles, float(about["factor"]), correlation, about["facts"])
        except Exception as error:  # Damaged files raise errors of zipfile, zlib and NumPy, among others.
            raise RLFlowError(f"{path} holds no prior of kernels ({error}). Make one: costs train") from error


def _trees(arrays: Mapping[str, np.ndarray], name: str, count: int) -> Trees:
    """Return an ensemble of a file after a check that every index lies inside its array."""
    *written, depth = [arrays[f"{name}/{field}"] for field in TREE_FIELDS]
    trees, shape = Trees(*written, int(depth)), written[0].shape
    if len(shape) != 2 or any(one.shape != shape for one in written) or not 0 <= trees.depth <= shape[1]:
        raise ValueError("its trees have different sizes")
    for indices, most in ((trees.feature, count), (trees.left, shape[1]), (trees.right, shape[1])):
        if indices.dtype != np.int16 or (indices < 0).any() or (indices >= most).any():
            raise ValueError("a tree points outside itself")
    if not np.isfinite(trees.value).all():
        raise ValueError("a leaf is not a number")
    return trees


class Posterior:
    """Predictions corrected by timings.

    The error of the prior at a kernel is normal with the prior's deviation, and errors correlate. After timings, the
    error at another kernel has the conditional mean and deviation of this Gaussian process.

    Args:
      correlation: the correlation of errors.
      what: the n timed kernels.
      predicted: their predictions by the prior.
      log_ps: float64 [n], logarithms of their timings in picoseconds.
      noise: float64 [n], standard deviations of these logarithms.
    """

    def __init__(
        self, correlation: Correlation, what: Sequence[Description], predicted: Sequence[Prediction],
        log_ps: Sequence[float], noise: Sequence[float],
    ):  # fmt: skip
        from scipy.linalg import cho_factor, cho_solve

        self._correlation, self._points = correlation, Points.of(what)
        self._deviations = np.array([one.deviation for one in predicted], np.float64)
        errors = np.asarray(log_ps, np.float64) - np.array([one.log_ps for one in predicted], np.float64)
        self._factored = self._weights = None
        if len(what):
            shared = correlation.between(self._points, self._points)
            np.fill_diagonal(shared, 1.0)
            noise = np.maximum(np.asarray(noise, np.float64) / self._deviations, 1e-3)
            self._factored = cho_factor(shared + np.diag(noise**2), lower=True)
            self._weights = cho_solve(self._factored, errors / self._deviations)

    def corrected(self, what: Description, predicted: Prediction) -> Prediction:
        """Return the prediction of a kernel that was not timed, corrected by the timed ones."""
        if self._weights is None:
            return predicted
        from scipy.linalg import solve_triangular

        shared = self._correlation.between(Points.of([what]), self._points)[0]
        known = solve_triangular(self._factored[0], shared, lower=True, check_finite=False)
        left = max(1.0 - float(known @ known), 1e-6)
        return Prediction(
            predicted.log_ps + predicted.deviation * float(shared @ self._weights), predicted.deviation * left**0.5
        )
