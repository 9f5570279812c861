"""Optimising under a time budget: the best so far is on disk as soon as it is known, and can be asked for at any moment."""

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_json
from rlflow.common.progress import progress_bar, say
from rlflow.costs import CostModel, TimeIsUp, timing_until
from rlflow.costs.analytic import AnalyticCost
from rlflow.deliver.delivery import Candidate, follow, improvement
from rlflow.env.state import Task
from rlflow.search import SEARCHES
from rlflow.search.search import Limits, Search, numbered, run_search

METHODS = ("descent", "greedy", "beam", "annealing")  # in the order in which they find most a second
SHORT_MEASUREMENT = 3.0  # seconds, where somebody waits
LOOK_EVERY = 1.0  # seconds between two looks at what a search has found, at least,
SPARE = 20.0  # and so many times what a look takes: a path is followed again to number its substitutions


class Budget(NamedTuple):
    """What the seconds of one command are for; checks that have begun are finished.

    Attributes:
      searches: until the searches end.  looking: until nothing is looked for any more, None where searches are all there is.
      end: the clock (time.monotonic) when all is over.
    """

    searches: float
    looking: float | None
    end: float

    @classmethod
    def of(cls, seconds: float | None, learn: bool, started: float) -> "Budget":
        """seconds: None for the default.  learn: whether a controller learns after the searches.  started: when the clock was so."""
        seconds = seconds or (900.0 if learn else 120.0)
        end = started + seconds
        return cls(seconds / 30, 0.9 * seconds, end) if learn else cls(seconds * 2 / 3, None, end)

    @property
    def left(self) -> float:
        return max(self.end - time.monotonic(), 0.0)


class Stop(KeyboardInterrupt):
    """Somebody asks for what there is, or the time is up."""


@contextmanager
def stoppable(seconds: float | None = None) -> Iterator[None]:
    """In the block Ctrl-C, SIGTERM and the end of so many seconds (None: no end) raise Stop."""

    def stop(number, _):
        raise Stop("the time is up" if number == signal.SIGALRM else "interrupted")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds or 0.0)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)


class BestSoFar:
    """What was found so far, for each of those who found something; FILE holds it at any moment.

    A search that had ended, with these options and within no more seconds, is not repeated. What one that was stopped or
    killed had found stays until it finds something better.
    """

    def __init__(self, task: Task, file: Path):
        """Raises RLFlowError if the file is there and is damaged, or of another task."""
        self.task, self.file = task, file
        self.records: dict[str, dict] = read_json(file) if file.exists() else {}
        try:
            self._candidates = {name: self._read(name, record) for name, record in self.records.items()}
        except (KeyError, TypeError, ValueError, AttributeError, RLFlowError) as error:
            raise RLFlowError(f"{file} is damaged ({error}); delete it, and what it held is searched again") from error

    def _read(self, name: str, record: dict) -> Candidate:
        actions = [(int(xfer_id), int(location)) for xfer_id, location in record["actions"]]
        return Candidate(name, follow(self.task, actions), actions, int(record["interactions"]), float(record["seconds"]))

    def offer(self, candidate: Candidate, stop: str | None = None, asked: Mapping | None = None) -> None:
        """Keeps a candidate unless the same one had found something better.

        Args:
          stop: why its search ended; None while it goes on.  asked: its options, and the `seconds` that it was given.
        """
        before = self._candidates.get(candidate.name)
        if before is None or candidate.state.cost.runtime_ps <= before.state.cost.runtime_ps:
            self._candidates[candidate.name] = before = candidate
        self.records[candidate.name] = {
            "actions": [list(action) for action in before.actions], "estimated_ms": before.state.runtime_ms,
            "estimated_improvement_percent": self.gain(before), "interactions": candidate.interactions,
            "seconds": candidate.seconds, "stop": stop, "asked": dict(asked or {}),
        }  # fmt: skip
        write_json(self.file, self.records)

    def ended(self, name: str, asked: Mapping) -> bool:
        """Whether this search would find no more than it has."""
        record = self.records.get(name, {})
        stop, before = record.get("stop"), record.get("asked", {})
        same = {key: value for key, value in asked.items() if key != "seconds"} == {k: v for k, v in before.items() if k != "seconds"}
        return stop not in (None, "interrupted") and same and (stop != "seconds" or before["seconds"] >= asked["seconds"])

    def candidates(self) -> list[Candidate]:
        """The cheapest first."""
        return sorted(self._candidates.values(), key=lambda candidate: candidate.state.cost.runtime_ps)

    def gain(self, candidate: Candidate) -> float:
        """Percent by which its estimate is below the original's."""
        return improvement(self.task.initial.runtime_ms, candidate.state.runtime_ms)

    def __str__(self) -> str:
        best = next(iter(self.candidates()), None)
        return f"estimated {self.gain(best):.2f} % lower so far ({best.name})" if best and self.gain(best) > 0 else "nothing found so far"


class Watch:
    """Looks at a running search now and then: tells and keeps its best so far. It is told of every substitution, as tqdm is."""

    def __init__(self, result: BestSoFar, name: str, bar, left: Callable[[], float]):
        """left: seconds that the searches still have."""
        self.result, self.name, self.bar, self.left = result, name, bar, left
        self.search, self.kept, self.next_look = None, result.task.initial.cost.runtime_ps, 0.0

    def update(self, n: int) -> None:
        self.bar.update(n)
        if self.search is None or self.search.seconds < self.next_look:
            return
        began = self.search.seconds
        if self.search.best.cost.runtime_ps < self.kept:
            self.kept = self.search.best.cost.runtime_ps
            state, actions = numbered(self.search.start, self.search.best_path)
            self.result.offer(Candidate(self.name, state, actions, self.search.interactions, began))
        self.bar.set_postfix_str(f"{self.result}, {max(self.left(), 0):.0f} s left", refresh=False)
        self.next_look = self.search.seconds + max(LOOK_EVERY, SPARE * (self.search.seconds - began))

    def set_postfix_str(self, *_, **__) -> None:
        """What a search tells of itself is part of `update`'s line."""


def methods(cost: CostModel) -> tuple[str, ...]:
    """Those of METHODS that are worth while: by the analytic cost, or with other constants of it, the descent is greedy's own."""
    return METHODS[1:] if isinstance(cost, AnalyticCost) else METHODS


def search_all(result: BestSoFar, options: Mapping, seconds: float, seed: int, deadline: float = math.inf) -> dict:
    """METHODS on the real graph, each with its share of what time the ones before it left.

    The descent may take all of it: where that does not end, no other one comes to its first step, as these know all
    neighbours before it.

    Args:
      found: gets what they find, as they find it.
      options: the group `search` of configs/default.yaml.
      seconds: for all of them, the timing of what the original needs included.
      deadline: the clock (time.monotonic()) after which no more of that is timed.

    Returns: {"found": for each method its record, without the substitutions}.
    Raises Stop as soon as one was interrupted, or if the original could not be priced by the deadline.
    """
    end, names = time.monotonic() + seconds, methods(result.task.cost)
    limits = {"interactions": options["interactions"], "memory_mb": options["memory_mb"]}
    with progress_bar(None, "optimise", " substitutions") as bar:
        _count_cost(result.task, deadline)
        for k, name in enumerate(names):
            asked = {"seconds": seconds, **limits, **options[name]}
            if not result.ended(name, asked):
                left = end - time.monotonic()
                share = left if name == "descent" else left / (len(names) - k)
                watch = Watch(result, name, bar, lambda: end - time.monotonic())
                stop = _search(result, name, asked, options[name], Limits(share, limits["interactions"], limits["memory_mb"] * 2**20), seed, watch)
                say(f"{name} stopped by '{stop}': {result}")
                if stop == "interrupted":
                    raise Stop(stop)
    return {"found": {name: {key: value for key, value in result.records[name].items() if key != "actions"} for name in names}}


def _count_cost(task: Task, deadline: float) -> None:
    try:
        with timing_until(task.cost, deadline):
            _ = task.initial
    except TimeIsUp as up:
        raise Stop("the time is up") from up


def _search(outcome: BestSoFar, name: str, asked: Mapping, options: Mapping, limits: Limits, seed: int, watch: Watch) -> str:
    """Searches, keeps what came out, and says why it ended."""

    def watched(search: Search) -> str:
        watch.search = search
        return SEARCHES.get(name)(search, **options)

    with timing_until(outcome.task.cost, time.monotonic() + limits.seconds):
        result = run_search(watched, outcome.task.initial, limits, seed, watch)
    outcome.offer(Candidate(name, result.state, result.actions, result.interactions, result.seconds), result.stop, asked)
    return result.stop


def until_faster(budget: Budget) -> Callable[[dict], bool]:
    """`go_on` of `rlflow.deliver.delivery.deliver`, where the cheapest candidates come first.

    The first that is measured to be faster is the one to deliver. Without one the next is checked if the time allows.
    """
    began = time.monotonic()

    def go_on(result: dict) -> bool:
        if not any(one["equal"] for one in result.values()):
            return True
        checks = sum(one["same_as"] is None for one in result.values())
        one_check = (time.monotonic() - began) / max(checks, 1)
        return one_check <= budget.left and not any((one["measured"] or {}).get("verdict") == "faster" for one in result.values())

    return go_on


def first_equal(result: dict) -> bool:
    """`go_on` where somebody waits: the cheapest that is equal is enough."""
    return not any(one["equal"] for one in result.values())
