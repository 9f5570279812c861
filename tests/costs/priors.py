"""Hand-made priors, and databases with the speeds of their machine, so that no test measures them."""

import math
from pathlib import Path

import numpy as np

from rlflow.costs.database import TimingDatabase
from rlflow.costs.predicted import PredictedCost
from rlflow.costs.prior import Correlation, Prior, Trees
from rlflow.costs.profiled import OVERHEAD
from rlflow.costs.timing import Timing

# ns for each unit, and for each launch
SPEEDS = {"flop": 0.01, "byte": 0.05, "launch": 1000.0, "convolution": 0.02, "near": 0.01, "cached": 0.02}
OVERHEAD_NS = 5000.0


def leaf(value: float) -> Trees:
    """Return an ensemble that always predicts `value`."""
    none = np.zeros((1, 1), np.int16)
    return Trees(none, np.zeros((1, 1)), none, none, np.full((1, 1), value), 0)


def roofline_prior(log_factor: float = 0.0, deviation: float = 0.3, kinds: tuple[str, ...] = ()) -> Prior:
    """Return a prior that predicts a multiple of the roofline, with an uncertainty that is the same for all kernels."""
    return Prior(kinds, leaf(log_factor), leaf(0.0), deviation, Correlation(0.1, 0.2, 0.5, 1.0), {})


def with_speeds(path: Path, threads: int = 1) -> TimingDatabase:
    """Return a database that holds speeds and the overhead of a run."""
    database = TimingDatabase(path)
    for name, ns in SPEEDS.items():
        database.replace(f"roofline: {name}", threads, Timing(ns, ns, ns, 1))
    database.replace(OVERHEAD, threads, Timing(OVERHEAD_NS, OVERHEAD_NS, OVERHEAD_NS, 1))
    return database


def predicted(folder: Path, prior: Prior | None = None) -> PredictedCost:
    """Return the predicted cost with the database of a folder; the database is made if it is missing."""
    path = folder / "costs.sqlite"
    if not path.exists():
        with_speeds(path)
    return PredictedCost(path, 1, prior or roofline_prior(), budget_ms=1)


def timing_of(ps: float) -> Timing:
    """Return the timing of a kernel that takes `ps` picoseconds, with an interval of 1 %."""
    ns = ps / 1000 + OVERHEAD_NS
    return Timing(ns, 0.99 * ns, 1.01 * ns, 100)


def nearly(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
