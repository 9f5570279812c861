"""The predicted cost: kernels that were timed on this machine cost their timing, all others a prediction.

A prediction takes microseconds, a timing tens of milliseconds, so searches run at the speed of the analytic cost from
the first second. A predicted kernel is a timing with a wide interval: `spread` states it, and `time_again` replaces the
prediction by a timing. What decides between candidates is therefore timed by the code that repeats uncertain timings
(`rlflow.optimisation.ablation`, `rlflow.optimisation.deciding`).

`correct` applies to all predictions what the timings so far say about the prior's errors. It changes costs, so the
caller then recomputes the costs of all states. Between two corrections only a timing changes the cost of a kernel.
"""

import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np

from rlflow.common.spending import PREDICT, spent_on
from rlflow.costs import CostModel, Spread
from rlflow.costs.at_sizes import AtSizes
from rlflow.costs.database import TimingDatabase, default_path
from rlflow.costs.kernel_features import Description, described
from rlflow.costs.kernel_layout import NoTimingOfItsOwn
from rlflow.costs.kernel_models import Timed, empty_model
from rlflow.costs.prior import Posterior, Prediction, Prior
from rlflow.costs.profiled import FLOOR_PS, OVERHEAD, ProfiledCost
from rlflow.costs.speeds import speeds_here
from rlflow.costs.timing import Timing, Z

SHIPPED = Path(__file__).parent / "kernels.prior.npz"  # the prior of the package; docs/MODEL_CARD.md describes it
MOST_TIMED = 600  # largest number of timings, the newest ones, that correct predictions; the time grows with its cube
# Expected seconds to time a kernel: its sessions, the making of each byte of weights and inputs, and a number of runs.
SESSIONS_SECONDS, BYTE_SECONDS, RUNS = 0.04, 5e-9, 10


def prior_path(database: Path | str | None = None) -> Path:
    """Return the path of the prior that `costs train` writes beside a database of timings.

    Args:
      database: path of the database; None for the user's default database.
    """
    return Path(database or default_path()).with_suffix(".prior.npz")


def prior_of(database: Path | str | None = None) -> Prior:
    """Return the prior in the file `prior_path`, or the prior of the package if this file does not exist.

    Args:
      database: path of the database; None for the user's default database.

    Raises:
      RLFlowError: the file beside the database is damaged, or was made by another version.
    """
    path = prior_path(database)
    return Prior.load(path if path.exists() else SHIPPED)


def predicting(cost: CostModel) -> "PredictedCost | None":
    """Return the model that predicts the kernels of a cost; None if the cost predicts none."""
    model = cost.model if isinstance(cost, AtSizes) else cost
    return model if isinstance(model, PredictedCost) else None


class PredictedCost(ProfiledCost):
    """The profiled cost, but a kernel without a timing costs a prediction.

    Args:
      path: SQLite file; None for the user's default database.
      threads: threads of ONNX Runtime.
      prior: the predictor of kernels.
      budget_ms: see `ProfiledCost`.
    """

    def __init__(self, path: Path | str | None, threads: int, prior: Prior, budget_ms: float = 20.0):
        super().__init__(path, threads, budget_ms)
        self.prior = prior
        self._speeds = speeds_here(self.database, threads)
        self._stored = self.database.timings(threads)
        self._timing(OVERHEAD, lambda: Timed(empty_model()))
        self._equal = self.database.equal_kernels(threads)
        self._described: dict[str, Description | None] = {}  # signature → kernel; None for one without description
        self._priors: dict[str, Prediction] = {}  # signature → prediction by the prior alone
        self._posterior = self._from_timings()

    @classmethod
    def open(cls, threads: int = 1, database: Path | str | None = None) -> ProfiledCost:
        """Return the cost model with the prior of the database (`prior_of`).

        For a database of another machine, return a `ProfiledCost`: its kernels cannot be timed here, so predictions
        would never be replaced by timings.

        Args:
          threads: threads of ONNX Runtime.
          database: path of the timing database; None for the user's default database.

        Raises:
          RLFlowError: the prior beside the database is damaged, or was made by another version.
        """
        if TimingDatabase(database).is_foreign:
            return ProfiledCost(database, threads)
        return cls(database, threads, prior_of(database))

    @property
    def timed_kernels(self) -> int:
        """The number of timings that this object knows, including the overhead of a run and the machine's constants."""
        return len(self._stored)

    def is_predicted(self, timing: str) -> bool:
        """Return True if a name in a `Spread` of this model stands for a prediction, not for a timing."""
        return timing in self._priors and self._timed_name(timing) is None

    def seconds_to_time(self, timing: str) -> float:
        """Return the expected seconds of timing a predicted kernel."""
        made = BYTE_SECONDS * self._what(timing).moved
        return SESSIONS_SECONDS + self.budget_ms / 1e3 + made + RUNS * self._predicted(timing).ps / 1e12

    def keep_predictions(self) -> None:
        """Drop all pending requests of `time_again`, so that these kernels keep their predictions."""
        self._again.clear()

    def correct(self) -> None:
        """Correct all predictions by the timings so far; the caller must then recompute the costs of all states."""
        self._posterior = self._from_timings()
        self._memo.clear()

    def _runtime(self, name: str, build: Callable[[], Timed]) -> tuple[int, Spread]:
        if self._timed_name(name) is None and name not in self._again:
            with spent_on(PREDICT):
                predicted = self._predicted(name)
            if predicted is not None:
                ps = max(FLOOR_PS, predicted.ps)
                return ps, Spread({name: max(round(Z * predicted.deviation * ps), 1)})
        try:
            return super()._runtime(name, build)
        except NoTimingOfItsOwn:
            self._described[name] = None  # Without a description, no later stage requests the timing again.
            raise
        finally:
            self._again.discard(name)

    def _timing(self, name: str, build: Callable[[], Timed]) -> Timing:
        result = self._stored[name] = super()._timing(name, build)
        return result

    def _timed_name(self, name: str) -> str | None:
        """Return the signature under which the timing of a kernel is stored; None if no equal kernel was timed."""
        names = (name, self._names.get(name), self._equal.get(name))
        return next((one for one in names if one in self._stored), None)

    # -- predictions -------------------------------------------------------------------------------

    def _predicted(self, name: str) -> Prediction | None:
        """Return the corrected prediction of a kernel; None for a kernel that cannot be described."""
        what = self._what(name)
        return None if what is None else self._posterior.corrected(what, self._by_prior(name, what))

    def _by_prior(self, name: str, what: Description) -> Prediction:
        if name not in self._priors:
            self._priors[name] = self.prior.predict(what, self._speeds, self.threads)
        return self._priors[name]

    def _what(self, name: str) -> Description | None:
        if name not in self._described:
            self._described[name] = described(name)
        return self._described[name]

    def _from_timings(self) -> Posterior:
        """Return the correction by the newest MOST_TIMED timings."""
        overhead = self._stored[OVERHEAD]
        kernels = (name for name in reversed(self._stored) if self._what(name) is not None)
        names = list(islice(kernels, MOST_TIMED))
        what = [self._what(name) for name in names]
        predicted = [self._by_prior(name, one) for name, one in zip(names, what, strict=True)]
        ps = np.maximum(FLOOR_PS, [1000 * (self._stored[name].median - overhead.median) for name in names])
        off = np.array([1000 * math.hypot(self._stored[name].half_width, overhead.half_width) for name in names]) / Z
        return Posterior(self.prior.correlation, what, predicted, np.log(ps) if names else ps, off / ps)
