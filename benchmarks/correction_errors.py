"""Errors of corrected costs on graphs that the correction was not fitted to: other models, or other variants."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from rlflow.costs.corrected import Measurement, fit


def leave_one_model_out(measurements: Sequence[Measurement]) -> dict[str, np.ndarray]:
    """Model → corrected / measured − 1 of its graphs, float64 [n], by a correction that saw none of them (the ridge
    neither).

    A single model has no others, and no entry.
    """
    result = {}
    for model in dict.fromkeys(m.model for m in measurements):
        others = [m for m in measurements if m.model != model]
        if others:
            result[model] = fit(others).error_on([m for m in measurements if m.model == model])
    return result


def leave_variants_out(measurements: Sequence[Measurement], folds: int = 2) -> dict[str, np.ndarray]:
    """The same for graphs whose model was seen, but in other variants: every fold's from all others."""
    seen: dict[str, int] = defaultdict(int)  # variants of each model so far
    fold_of = []
    for m in measurements:
        fold_of.append(seen[m.model] % folds)
        seen[m.model] += 1
    errors: dict[str, list[float]] = defaultdict(list)
    for fold in range(folds):
        known = [m for m, f in zip(measurements, fold_of, strict=True) if f != fold]
        unseen = [m for m, f in zip(measurements, fold_of, strict=True) if f == fold]
        if known and unseen:
            for m, error in zip(unseen, fit(known).error_on(unseen), strict=True):
                errors[m.model].append(float(error))
    return {model: np.array(result) for model, result in errors.items()}
