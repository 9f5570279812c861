"""The searches of `optimise` under a time budget, and the best candidate of each search so far, kept on disk.

Greedy search, beam search and annealing reach the proved optimum of nearly all models within seconds. Each gets an
equal share of the time that the searches before it left. Each needs the gain of every match before its first step,
which costs much timing on first use. Two more searches need fewer timings. `descent` tries matches by decreasing gain
in the analytic cost and applies the first one that gains. `grasp` draws descents by the analytic cost and times only
the path to the best result.

If the cost times operators, its timings stop at the deadline. `BestSoFar` writes best-so-far.json for every better
candidate, so the same command continues after it was stopped or killed. A finished search is repeated only with other
options or more seconds. A search that was stopped is repeated from the original. `until_faster` and `first_equal`
decide how many candidates are checked.
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
    """The best candidate of each search (or controller) so far, kept in a file at any moment.

    A search that ended with the same options and at least as many seconds is not repeated. The best result of a stopped
    or killed search stays until a better one is found.
    """

    def __init__(self, task: Task, file: Path):
        """Read the file if it exists.

        Args:
          task: the opened task.
          file: the path of the file.

        Raises:
          RLFlowError: the file is damaged or belongs to another task.
        """
        self.task, self.file = task, file
        self.records: dict[str, dict] = read_json(file) if file.exists() else {}
        try:
            self.recount()
        except (KeyError, TypeError, ValueError, AttributeError, RLFlowError) as error:
            raise RLFlowError(f"{file} is damaged ({error}). Delete it to repeat its searches") from error

    def recount(self) -> None:
        """Repeat the actions of all records, after the costs of the task have changed."""
        self._candidates = {name: self._read(name, record) for name, record in self.records.items()}

    def _read(self, name: str, record: dict) -> Candidate:
        actions = [(int(xfer_id), int(location)) for xfer_id, location in record["actions"]]
        return Candidate(
            name, follow(self.task, actions), actions, int(record["interactions"]), float(record["seconds"]),
            measurement_seconds(record),
        )  # fmt: skip

    def offer(self, candidate: Candidate, stop: str | None = None, asked: Mapping | None = None) -> None:
        """Store a candidate unless its search already has a better one.

        Args:
          candidate: the new candidate.
          stop: the reason why its search ended; None while the search runs.
          asked: the options of the search, with `seconds`, its time limit.
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
        """Return whether a stored search needs no repetition with these options and seconds.

        Args:
          name: the name of the search.
          asked: the options of the search, with `seconds`, its time limit.
        """
        record = self.records.get(name, {})
        stop, before = record.get("stop"), record.get("asked", {})
        if stop in (None, "interrupted") or _without_seconds(asked) != _without_seconds(before):
            return False
        return stop != "seconds" or before["seconds"] >= asked["seconds"]

    def candidates(self) -> list[Candidate]:
        """Return all candidates, cheapest first."""
        return sorted(self._candidates.values(), key=lambda candidate: candidate.state.objective)

    def gain(self, candidate: Candidate) -> float:
        """Return by how many percent the candidate's estimate is below the original's."""
        return improvement(runtime_ms(self.task.original_cost), candidate.state.runtime_ms)

    def __str__(self) -> str:
        best = next(iter(self.candidates()), None)
        if best is None or self.gain(best) <= 0:
            return "no gain so far"
        return f"estimated {self.gain(best):.2f} % lower so far ({best.name})"


def _without_seconds(options: Mapping) -> dict:
    return {key: value for key, value in options.items() if key != "seconds"}


METHODS = ("descent", "greedy", "grasp", "beam", "annealing")  # by decreasing gain per second
SHORT_MEASUREMENT = 3.0  # seconds, after the user has stopped the search
LOOK_EVERY = 1.0  # smallest number of seconds between two looks at a running search
SPARE = 20.0  # the same, in durations of a look, because a look repeats a whole path to number its rewrites


class Watch:
    """A progress bar for a running search that also stores the best candidate so far.

    A search reports every rewrite through `update`, the interface of tqdm.
    """

    def __init__(self, best: BestSoFar, name: str, bar, left: Callable[[], float]):
        """Watch one search.

        Args:
          best: receives the candidates.
          name: the name of the search.
          bar: the progress bar.
          left: returns the seconds that the searches still have.
        """
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
        """Ignore the text of the search; `update` shows its own."""


def methods(cost: CostModel) -> tuple[str, ...]:
    """Return the METHODS that are useful with this cost.

    With the analytic cost, also with other constants, `descent` equals `greedy` and is left out.
    """
    model = cost.model if isinstance(cost, AtSizes) else cost
    return METHODS[1:] if isinstance(model, AnalyticCost) else METHODS


def search_all(
    best: BestSoFar, options: Mapping, seconds: float, seed: int, deadline: float = math.inf, spent: float = 0.0
) -> dict:
    """Run METHODS on the real graph; each gets an equal share of the time that the searches before it left.

    Only `descent` may use all the time. If it does not finish, no later search reaches its first step either, because
    those need the gains of all matches first.

    Args:
      best: receives the best candidates of the searches while they run.
      options: the group `search` of configs/default.yaml.
      seconds: for all searches and the timing of the original. A repeated command passes the same number, so that ended
        searches are recognised.
      seed: decides every random choice.
      deadline: the clock (time.monotonic()) after which the original is not timed any more.
      spent: how many of the seconds earlier work has used.

    Returns:
      {"methods": {name: the record of the search, without its actions}}.

    Raises:
      Stop: a search was interrupted, or the original's cost was not known by the deadline.
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
    """Time the kernels of the original. Raise Stop if that is not finished by the deadline (time.monotonic())."""
    try:
        with timing_until(task.cost, deadline):
            _ = task.initial
    except TimeIsUp as up:
        raise Stop("the time is up") from up


def _search(
    best: BestSoFar, name: str, asked: Mapping, options: Mapping, limits: Limits, seed: int, watch: Watch
) -> str:
    """Run one search, store its result and return the reason why it ended."""

    def watched(search: Search) -> str:
        watch.search = search
        return SEARCHES.get(name)(search, **options)

    with timing_until(best.task.cost, time.monotonic() + limits.seconds):
        result = run_search(watched, start_of(best.task, asked["moves"]), limits, seed, watch)
    candidate = Candidate(name, result.state, result.actions, result.interactions, result.seconds)
    best.offer(candidate, result.stop, asked)
    return result.stop


def until_faster(budget: Budget) -> Callable[[dict], bool]:
    """Return a `go_on` function for `rlflow.optimisation.delivery.deliver` that ends at the first faster candidate.

    Candidates are checked in order of their estimates, so the first one that is measured to be faster is delivered.
    Otherwise the next candidate is checked if the time allows.
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
    """Return whether no candidate is equal yet: the `go_on` function after the user has stopped the search."""
    return not any(one["equal"] for one in result.values())
