"""The best candidate so far of every search, on disk as soon as it is known: the same command goes on from there."""

from collections.abc import Mapping
from pathlib import Path

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_json
from rlflow.costs import runtime_ms
from rlflow.deliver.candidates import Candidate, follow, improvement, measurement_seconds
from rlflow.env.state import Task

FILE = "best-so-far.json"  # its name in the folder of a run


class BestSoFar:
    """The best candidate of each search (or controller) so far; a file holds them at any moment.

    A search that had ended, with these options and within no more seconds, is not repeated. The best of one that was
    stopped or killed stays until it comes to something better.
    """

    def __init__(self, task: Task, file: Path):
        """Raises RLFlowError if the file is there and is damaged, or of another task."""
        self.task, self.file = task, file
        self.records: dict[str, dict] = read_json(file) if file.exists() else {}
        try:
            self.recount()
        except (KeyError, TypeError, ValueError, AttributeError, RLFlowError) as error:
            raise RLFlowError(f"{file} is damaged ({error}); delete it, and what it held is searched again") from error

    def recount(self) -> None:
        """Follows all of them again, since the task's costs are others than they were."""
        self._candidates = {name: self._read(name, record) for name, record in self.records.items()}

    def _read(self, name: str, record: dict) -> Candidate:
        actions = [(int(xfer_id), int(location)) for xfer_id, location in record["actions"]]
        return Candidate(
            name, follow(self.task, actions), actions, int(record["interactions"]), float(record["seconds"]),
            measurement_seconds(record),
        )  # fmt: skip

    def offer(self, candidate: Candidate, stop: str | None = None, asked: Mapping | None = None) -> None:
        """Keeps a candidate unless its search had a better one already.

        Args:
          stop: why its search ended; None while it goes on.  asked: its options, and the `seconds` that it was given.
        """
        before = self._candidates.get(candidate.name)
        if before is None or candidate.state.objective <= before.state.objective:
            self._candidates[candidate.name] = before = candidate
        self.records[candidate.name] = {
            "actions": [list(action) for action in before.actions], "estimated_ms": before.state.runtime_ms,
            "estimated_improvement_percent": self.gain(before), "interactions": candidate.interactions,
            "seconds": candidate.seconds, "measurement_seconds": candidate.measurement_seconds, "stop": stop,
            "asked": dict(asked or {}),
        }  # fmt: skip
        write_json(self.file, self.records)

    def ended(self, name: str, asked: Mapping) -> bool:
        """Whether this search, run again, would come to no more than it has."""
        record = self.records.get(name, {})
        stop, before = record.get("stop"), record.get("asked", {})
        if stop in (None, "interrupted") or _but_seconds(asked) != _but_seconds(before):
            return False
        return stop != "seconds" or before["seconds"] >= asked["seconds"]

    def candidates(self) -> list[Candidate]:
        """The cheapest first."""
        return sorted(self._candidates.values(), key=lambda candidate: candidate.state.objective)

    def gain(self, candidate: Candidate) -> float:
        """Percent by which its estimate is below the original's."""
        return improvement(runtime_ms(self.task.original_cost), candidate.state.runtime_ms)

    def __str__(self) -> str:
        best = next(iter(self.candidates()), None)
        if best is None or self.gain(best) <= 0:
            return "no gain so far"
        return f"estimated {self.gain(best):.2f} % lower so far ({best.name})"


def _but_seconds(options: Mapping) -> dict:
    return {key: value for key, value in options.items() if key != "seconds"}
