"""The options of the cost."""

from dataclasses import dataclass

from rlflow.common.options import option


@dataclass(frozen=True)
class CostOptions:
    """What a graph costs.

    One number of threads holds for all stages of a run: a controller learns from what costs promise, and what it comes
    to is delivered by what the same number of threads shows. Timings with several threads want the machine to
    themselves, which several workers of `collect` do not leave it: a search before it has timed most kernels (that is
    how `optimise --learn` goes), or `costs record`. The analytic cost is the same for any number.
    """

    name: str = option(
        "profiled",
        "analytic (a roofline, the same everywhere), roofline (of this machine: `costs calibrate`), profiled "
        "(operators timed on this machine), corrected (that one, a factor for each kind of operator: `costs fit`) or "
        "learned (that one, by what operators are and what lies around them, from all measurements: `costs learn`); "
        "memory (bytes at the peak, in the best order) is for searches and agents: `memory --rewrite` delivers by it",
    )
    threads: int | None = option(
        None,
        "ONNX Runtime's threads, in estimates and measurements; null: as many as it would take by itself, of the cores "
        "that this process may use; a run keeps the number",
    )
    database: str | None = option(None, "SQLite file of the profiled cost; null for ~/.cache/rlflow/costs.sqlite")
