"""Estimates for another machine: by timings that were recorded there (`rlflow.costs.portable`), in their own database.

Nothing is timed here for it, and nothing is measured here in its place. What was not recorded there costs so much that
no search goes there; of the model itself all must have been recorded.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rlflow.common.errors import RLFlowError
from rlflow.costs.database import TimingDatabase
from rlflow.costs.optimised import NoTimingOfItsOwn
from rlflow.costs.timing import Timed, Timing
from rlflow.graph.onnx_runtime import session

UNRECORDED = Timing(1e9, 1e9, 1e9, 1)  # a second


@dataclass
class Target:
    """The machine that a cost estimates for.

    Attributes:
      machine: its name.  threads: with so many.  database: the file of its timings.
      missing: signatures that were asked about and not recorded.
    """

    machine: str
    threads: int
    database: Path
    missing: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, database: TimingDatabase, threads: int) -> "Target | None":
        """None where the database is this machine's."""
        return cls(database.machine, threads, database.path) if database.is_foreign else None

    def unrecorded(self, name: str, build: Callable[[], Timed]) -> Timing:
        """Of a kernel that the database does not hold. Raises NoTimingOfItsOwn if it has none on any machine."""
        timed = build()
        try:
            session(timed.model, self.threads, timed.optimise)
        except RLFlowError as error:
            raise NoTimingOfItsOwn(str(error)) from error
        self.missing.add(name)
        return UNRECORDED


def target_of(cost) -> Target | None:
    """The other machine that a cost model estimates for; None where it is this one, or all."""
    return getattr(cost, "target", None)


def check_recorded(cost) -> None:
    """To be asked once a model's own cost is known. Raises RLFlowError if a timing of it was not recorded."""
    target = target_of(cost)
    if target is not None and target.missing:
        record = f"rlflow costs record MODEL --threads {target.threads}"
        raise RLFlowError(
            f"{target.database} lacks {len(target.missing)} timings of this model's kernels with threads="
            f"{target.threads}; on {target.machine}: {record}, then export and import again"
        )
