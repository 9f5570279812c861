"""The options of the cost."""

from dataclasses import dataclass

from rlflow.common.options import option


@dataclass(frozen=True)
class CostOptions:
    """What a graph costs."""

    name: str = option(
        "profiled",
        "analytic (a roofline, the same everywhere), roofline (of this machine: `costs calibrate`), profiled "
        "(operators timed on this machine) or corrected (that one, corrected by measurements: `costs fit`)",
    )
    threads: int = option(1, "ONNX Runtime's threads, for profiling and for measuring whole models")
    database: str | None = option(None, "SQLite file of the profiled cost; null for ~/.cache/rlflow/costs.sqlite")
