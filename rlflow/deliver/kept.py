"""What was measured of candidates is kept for `costs learn`, with what a learned latency sees of them."""

from collections.abc import Mapping

from rlflow.costs.measurements import Measurements
from rlflow.deliver.candidates import follow
from rlflow.deliver.contest import Contest
from rlflow.env.state import Task


def keep_contest(measurements: Measurements, task: Task, contest: Contest) -> None:
    for candidate, ratio in contest.measured:
        measurements.keep(task.original, candidate.state.graph, task.sizes, ratio)


def keep_delivery(measurements: Measurements, task: Task, outcome: Mapping) -> None:
    """outcome: see `rlflow.deliver.delivery.deliver`."""
    for name, one in outcome["candidates"].items():
        measured = one["measured"]
        if measured is not None and one["same_as"] is None:
            graph, ratio = follow(task, outcome["actions"][name]).graph, (measured["ratio"], *measured["interval"])
            measurements.keep(task.original, graph, task.sizes, ratio, measured["original_ms"])
