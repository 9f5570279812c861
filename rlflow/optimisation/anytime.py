"""The searches of `optimise` under a time budget, and the best candidate of each search so far, kept on disk.

Greedy search, beam search and annealing reach the proved optimum of nearly all models within seconds, so each gets
an equal share of the time that the searches before it left. Each of them must know the gain of every match before
its first step, so on first use all time would go into timing. Two searches therefore run before them: `descent`
tries matches in the order of the gains that the analytic cost promises and applies the first one that gains, and
`grasp` draws descents by the analytic cost and times only what lies on the way to the best of them.

A cost that times operators has a deadline: at most the timing that has begun is finished. `BestSoFar` writes
best-so-far.json as soon as a better candidate is known, so the same command continues after it was stopped or
killed. A search that ended is not repeated unless its options changed or it is given more seconds; a search that was
cut is repeated from the original. `until_faster` and `first_equal` decide how many candidates are checked.
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_json
from rlflow.common.messages import progress_bar, say
from rlflow.costs import CostModel, TimeIsUp, runtime_ms, timing_until
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.at_sizes import AtSizes
from rlflow.env.batched import start_of
from rlflow.env.state import Task
from rlflow.optimisation.budget import Budget, Stop
from rlflow.optimisation.candidates import Candidate, follow, improvement, measurement_seconds
from rlflow.optimisation.choice import is_faster
from rlflow.search import SEARCHES
from rlflow.search.base import Limits, Search, numbered, run_search

BEST_SO_FAR_FILE = "best-so-far.json"  # its name in the folder of a run


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


METHODS = ("descent", "greedy", "grasp", "beam", "annealing")  # in the order in which they find most a second
SHORT_MEASUREMENT = 3.0  # seconds, where somebody waits
LOOK_EVERY = 1.0  # seconds between two looks at a running search, at least,
SPARE = 20.0  # and so many times what a look takes: a path is followed again to number its rewrites


class Watch:
    """Looks at a running search now and then: shows and keeps its best so far.

    Every rewrite is reported to it, as to tqdm.
    """

    def __init__(self, best: BestSoFar, name: str, bar, left: Callable[[], float]):
        """left: seconds that the searches still have."""
        self.best, self.name, self.bar, self.left = best, name, bar, left
        self.search, self.kept, self.next_look = None, best.task.initial.objective, 0.0

    def update(self, n: int) -> None:
        self.bar.update(n)
        if self.search is None or self.search.seconds < self.next_look:
            return
        began = self.search.seconds
        if self.search.best.objective < self.kept:
            self.kept = self.search.best.objective
            state, actions = numbered(self.search.start, self.search.best_path)
            self.best.offer(Candidate(self.name, state, actions, self.search.interactions, began))
        self.bar.set_postfix_str(f"{self.best}, {max(self.left(), 0):.0f} s left", refresh=False)
        self.next_look = self.search.seconds + max(LOOK_EVERY, SPARE * (self.search.seconds - began))

    def set_postfix_str(self, *_, **__) -> None:
        """What a search says of itself is part of `update`'s line."""


def methods(cost: CostModel) -> tuple[str, ...]:
    """Those of METHODS that add something: by the analytic cost, or with other constants of it, the descent is greedy's
    own."""
    model = cost.model if isinstance(cost, AtSizes) else cost
    return METHODS[1:] if isinstance(model, AnalyticCost) else METHODS


def search_all(
    best: BestSoFar, options: Mapping, seconds: float, seed: int, deadline: float = math.inf, spent: float = 0.0
) -> dict:
    """METHODS on the real graph, each with its share of what time the ones before it left.

    The descent may take all of it: where that does not end, no other one comes to its first step, as these know all
    neighbours before it.

    Args:
      best: gets their best candidates as they come to them.
      options: the group `search` of configs/default.yaml.
      seconds: for all of them, the timing of what the original needs included.  spent: of these, by what came before.
        The same command asks for the same seconds whatever that took, so that a search that ended is not repeated.
      deadline: the clock (time.monotonic()) after which no more of that is timed.

    Returns: {"methods": for each method its record, without the actions}.
    Raises Stop as soon as one was interrupted, or if the original's cost was not known by the deadline.
    """
    end, names = time.monotonic() + seconds - spent, methods(best.task.cost)
    limits = {"interactions": options["interactions"], "memory_mb": options["memory_mb"]}
    with progress_bar(None, "optimise", " rewrites") as bar:
        count_cost(best.task, deadline)
        for k, name in enumerate(names):
            asked = {"seconds": seconds, **limits, "moves": options["moves"], **options[name]}
            if not best.ended(name, asked):
                left = end - time.monotonic()
                share = left if name == "descent" else left / (len(names) - k)
                watch = Watch(best, name, bar, lambda: end - time.monotonic())
                within = Limits(share, limits["interactions"], limits["memory_mb"] * 2**20)
                stop = _search(best, name, asked, options[name], within, seed, watch)
                say(f"{name} stopped by '{stop}': {best}")
                if stop == "interrupted":
                    raise Stop(stop)
    records = {}
    for name in names:
        records[name] = {key: value for key, value in best.records[name].items() if key != "actions"}
    return {"methods": records}


def count_cost(task: Task, deadline: float) -> None:
    """Times what the original needs. Raises Stop if that takes longer than to the deadline (time.monotonic())."""
    try:
        with timing_until(task.cost, deadline):
            _ = task.initial
    except TimeIsUp as up:
        raise Stop("the time is up") from up


def _search(
    best: BestSoFar, name: str, asked: Mapping, options: Mapping, limits: Limits, seed: int, watch: Watch
) -> str:
    """Searches, keeps what came out, and says why it ended."""

    def watched(search: Search) -> str:
        watch.search = search
        return SEARCHES.get(name)(search, **options)

    with timing_until(best.task.cost, time.monotonic() + limits.seconds):
        result = run_search(watched, start_of(best.task, asked["moves"]), limits, seed, watch)
    candidate = Candidate(name, result.state, result.actions, result.interactions, result.seconds)
    best.offer(candidate, result.stop, asked)
    return result.stop


def until_faster(budget: Budget) -> Callable[[dict], bool]:
    """`go_on` of `rlflow.optimisation.delivery.deliver`, where the cheapest candidates come first.

    The first that is measured to be faster is the one to deliver. Without one the next is checked if the time allows.
    """
    began = time.monotonic()

    def go_on(result: dict) -> bool:
        if not any(one["equal"] for one in result.values()):
            return True
        checks = sum(one["same_as"] is None for one in result.values())
        one_check = (time.monotonic() - began) / max(checks, 1)
        faster = any(one["measured"] is not None and is_faster(one["measured"]) for one in result.values())
        return one_check <= budget.left and not faster

    return go_on


def first_equal(result: dict) -> bool:
    """`go_on` where somebody waits: the cheapest that is equal is enough."""
    return not any(one["equal"] for one in result.values())
