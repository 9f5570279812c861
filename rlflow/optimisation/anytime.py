"""The searches of `optimise` under a time budget, and the best candidate of each search so far, kept on disk.

Greedy search, beam search and annealing reach the proved optimum of nearly all models within seconds. They need the
gain of every match before the first step, so the first run on a model times many operators. Two more searches need
fewer timings. `descent` tries matches by decreasing gain in the analytic cost and applies the first one that gains.
`grasp` draws descents by the analytic cost and times only the path to the best result.

If kernels are predicted, `descent` and `greedy` time the kernels on which a step depends before they take it. Their
timings then correct the predictions for the searches after them.

If the cost times operators, no timing begins after the deadline. `BestSoFar` writes best-so-far.json for every better
candidate, so the same command continues after it was stopped or killed. A finished search is repeated only with other
options, or with more seconds if its time limit ended it. An interrupted search is repeated from the original.
`until_faster` and `first_equal` decide how many candidates are checked.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_json
from rlflow.common.messages import progress_bar, say
from rlflow.costs import CostModel, TimeIsUp, runtime_ms, timing_until
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.at_sizes import AtSizes
from rlflow.costs.predicted import predicting
from rlflow.env.batched import start_of
from rlflow.env.state import Task
from rlflow.optimisation.budget import Budget, Stop
from rlflow.optimisation.candidates import Candidate, follow, improvement, measurement_seconds
from rlflow.optimisation.choice import is_faster
from rlflow.search import SEARCHES
from rlflow.search.base import Limits, Search, run_search

BEST_SO_FAR_FILE = "best-so-far.json"  # the name of the file of `BestSoFar` in a run folder


class BestSoFar:
    """The best candidate of each search or controller so far; the file always holds the current candidates.

    The best candidate of an interrupted search stays until the repeated search finds a better one.

    Attributes:
      task: the rewriting task.
      file: the JSON file.
      records: name of the search → actions, figures, options and the reason of the end, as the file holds them.
    """

    def __init__(self, task: Task, file: Path):
        """Read the candidates of the file if it exists.

        Args:
          task: the rewriting task.
          file: the JSON file.

        Raises:
          RLFlowError: the file is damaged or belongs to another task.
        """
        self.task, self.file = task, file
        self.records: dict[str, dict] = read_json(file) if file.exists() else {}
        try:
            self._candidates = {name: self._read(name, record) for name, record in self.records.items()}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RLFlowError) as error:
            raise RLFlowError(f"{file} is damaged ({error}). Delete it to repeat its searches") from error

    def recount(self) -> None:
        """Compute the costs of all states with the current timings."""
        self._candidates = {
            name: replace(one, state=one.state.with_current_cost()) for name, one in self._candidates.items()
        }

    def correct_predictions(self) -> None:
        """Correct all predictions of kernels by the timings so far, and compute all costs again."""
        predicting(self.task.cost).keep_predictions()
        self.task.cost.correct()
        self.task.forget_costs()
        self.recount()

    def _read(self, name: str, record: dict) -> Candidate:
        actions = [(int(xfer_id), int(location)) for xfer_id, location in record["actions"]]
        if record["stop"] is not None and record["asked"]:  # a receipt or a controller was asked nothing
            _ = [float(record["asked"][limit]) for limit in ("seconds", "own_seconds")]  # read by `ended`
        return Candidate(
            name, follow(self.task, actions), actions, int(record["interactions"]), float(record["seconds"]),
            measurement_seconds(record),
        )  # fmt: skip

    def offer(self, candidate: Candidate, stop: str | None = None, asked: Mapping | None = None) -> None:
        """Record the progress of a search; replace its best candidate unless the new candidate is worse.

        Args:
          candidate: the new candidate, with the name of the search.
          stop: the reason why the search ended; None while the search runs.
          asked: the options of the search, `seconds`, the time limit of all searches together, and `own_seconds`, the
            time limit of this search.
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
        """Return True if a repetition of a search with these options would find nothing new.

        This holds if the search ended by itself with the same options, or at time limits that were not shorter. The own
        time limit may have been a little shorter (LONGER), because it depends on the time that other searches took.

        Args:
          name: the name of the search.
          asked: see `offer`.
        """
        record = self.records.get(name, {})
        stop, before = record.get("stop"), record.get("asked", {})
        limits = {"seconds": 0, "own_seconds": 0}
        if stop in (None, "interrupted") or {**asked, **limits} != {**before, **limits}:
            return False
        is_longer = asked["own_seconds"] > LONGER * before["own_seconds"]
        return stop != "seconds" or (before["seconds"] >= asked["seconds"] and not is_longer)

    def candidates(self) -> list[Candidate]:
        """Return the best candidate of each search, lowest objective first."""
        return sorted(self._candidates.values(), key=lambda candidate: candidate.state.objective)

    def gain(self, candidate: Candidate) -> float:
        """Return by how many percent the candidate's estimated runtime is below the original's."""
        return improvement(runtime_ms(self.task.original_cost), candidate.state.runtime_ms)

    def __str__(self) -> str:
        best = next(iter(self.candidates()), None)
        if best is None or self.gain(best) <= 0:
            return "no gain so far"
        return f"estimated {self.gain(best):.2f} % lower so far ({best.name})"


METHODS = ("descent", "greedy", "grasp", "beam", "annealing")  # by decreasing gain per second
DESCENTS = METHODS[:2]  # searches that time the predicted kernels of a step before they take the step
PREDICTED_DESCENT = 1 / 2  # share of the remaining time for each search of DESCENTS if kernels are predicted
SHORT_MEASUREMENT = 3.0  # seconds of the end-to-end measurement after the user has stopped the search
LONGER = 1.5  # a search that its time limit ended is repeated only if the new limit is more than this many times longer
LOOK_EVERY = 1.0  # smallest number of seconds after which `Watch` looks at a running search again
SPARE = 20.0  # smallest time between two looks, divided by the duration of a look (which repeats the whole best path)


class Watch:
    """A progress bar for a running search that also stores the best candidate so far.

    The search calls `update` after every rewrite, as it would with a bar of tqdm. `search` must be set to the running
    `Search`.
    """

    def __init__(self, best: BestSoFar, name: str, bar, left: Callable[[], float]):
        """Prepare to watch one search.

        Args:
          best: the store that receives better candidates.
          name: the name of the search.
          bar: the tqdm bar that shows the progress.
          left: a function that returns the seconds that are left for all searches.
        """
        self.best, self.name, self.bar, self.left = best, name, bar, left
        self.search, self.kept, self.next_look = None, best.task.initial.objective, 0.0

    def update(self, n: int) -> None:
        """Count `n` further rewrites, and from time to time store a better candidate and show it beside the bar."""
        self.bar.update(n)
        if self.search is None or self.search.seconds < self.next_look:
            return
        began = self.search.seconds
        if self.search.best.objective < self.kept:
            self.kept = self.search.best.objective
            state, actions = self.search.numbered()
            self.best.offer(Candidate(self.name, state, actions, self.search.interactions, began))
        self.bar.set_postfix_str(f"{self.best}, {max(self.left(), 0):.0f} s left", refresh=False)
        self.next_look = self.search.seconds + max(LOOK_EVERY, SPARE * (self.search.seconds - began))

    def set_postfix_str(self, *_, **__) -> None:
        """Ignore the text that the search wants to show; `update` shows another text."""


def methods(cost: CostModel) -> tuple[str, ...]:
    """Return the names of the searches to run with a cost model, in the order of METHODS.

    `descent` is left out with the analytic cost or the roofline, because there it equals `greedy`.
    """
    model = cost.model if isinstance(cost, AtSizes) else cost
    return METHODS[1:] if isinstance(model, AnalyticCost) else METHODS


def search_all(
    best: BestSoFar, options: Mapping, seconds: float, seed: int, deadline: float = math.inf, spent: float = 0.0
) -> dict:
    """Run the searches of `methods` one after another, on the real graph and with a common time limit.

    The remaining time is divided equally among the remaining searches, but `descent` may use all of it: if it does not
    finish, no later search would reach its first step, because the later searches need the gains of all matches first.
    If kernels are predicted, `descent` and `greedy` may each use the share PREDICTED_DESCENT of the remaining time.

    Args:
      best: the store that receives the best candidates while the searches run. It also tells which searches ended
        in an earlier call and need no repetition.
      options: the group `search` of configs/default.yaml.
      seconds: the time limit of all searches and of the timing of the original, in seconds. Pass the same number when a
        command is repeated, so that ended searches are recognised.
      seed: the seed of all random choices.
      deadline: the value of time.monotonic() after which nothing is searched and no operator of the original is timed.
      spent: the number of these seconds that earlier work has used.

    Returns:
      {"methods": {name: the record of the search, without its actions}}.

    Raises:
      Stop: a search was interrupted, or the original's cost was not known by the deadline.
    """
    end, names = min(time.monotonic() + seconds - spent, deadline), methods(best.task.cost)
    limits = {"interactions": options["interactions"], "memory_mb": options["memory_mb"]}
    with progress_bar(None, "optimise", " rewrites") as bar:
        count_cost(best.task, deadline)
        for k, name in enumerate(names):
            left, share, predicts = end - time.monotonic(), 1 / (len(names) - k), predicting(best.task.cost)
            if name in DESCENTS:
                share = PREDICTED_DESCENT if predicts else 1.0 if name == "descent" else share
            asked = {"seconds": seconds, "own_seconds": share * left, "moves": options["moves"], **limits}
            asked |= options[name]
            if predicts:
                asked["timed_kernels"] = predicts.timed_kernels  # timings change predictions
            if not best.ended(name, asked):
                watch = Watch(best, name, bar, lambda: end - time.monotonic())
                within = Limits(share * left, limits["interactions"], limits["memory_mb"] * 2**20)
                stop = _search(best, name, asked, options[name], within, seed, watch)
                say(f"{name} stopped by '{stop}': {best}")
                if stop == "interrupted":
                    raise Stop(stop)
    records = {}
    for name in names:
        records[name] = {key: value for key, value in best.records[name].items() if key != "actions"}
    return {"methods": records}


def count_cost(task: Task, deadline: float) -> None:
    """Compute the cost of the original, which may time its kernels. Raise Stop if that takes longer than a deadline.

    Args:
      task: the rewriting task.
      deadline: a value of time.monotonic().
    """
    try:
        with timing_until(task.cost, deadline):
            _ = task.initial
    except TimeIsUp as up:
        raise Stop("the time is up") from up


def _search(
    best: BestSoFar, name: str, asked: Mapping, options: Mapping, limits: Limits, seed: int, watch: Watch
) -> str:
    """Run one search, store its best candidate in `best`, and return the reason why the search ended."""

    def watched(search: Search) -> str:
        watch.search = search
        return SEARCHES.get(name)(search, **options)

    times = name in DESCENTS and predicting(best.task.cost) is not None
    with timing_until(best.task.cost, time.monotonic() + limits.seconds):
        result = run_search(watched, start_of(best.task, asked["moves"]), limits, seed, watch, times=times)
    state = result.state
    if times:
        best.correct_predictions()
        state = state.with_current_cost()
    candidate = Candidate(name, state, result.actions, result.interactions, result.seconds)
    best.offer(candidate, result.stop, asked)
    return result.stop


def until_faster(budget: Budget) -> Callable[[dict], bool]:
    """Return a `go_on` function for `rlflow.optimisation.delivery.deliver` that ends at the first faster candidate.

    The function returns True while time is left, until one candidate is equal to the original. Afterwards it returns
    True while no candidate is measured faster and the remaining time of the budget is at least the mean duration of a
    check.
    """
    began = time.monotonic()

    def go_on(result: dict) -> bool:
        if not any(one["equal"] for one in result.values()):
            return budget.left > 0
        checks = sum(one["same_as"] is None for one in result.values())
        one_check = (time.monotonic() - began) / max(checks, 1)
        faster = any(one["measured"] is not None and is_faster(one["measured"]) for one in result.values())
        return one_check <= budget.left and not faster

    return go_on


def first_equal(result: dict) -> bool:
    """Return True while no candidate is equal to the original; `go_on` of `deliver` after the user stopped the search.

    Args:
      result: the results of the candidates checked so far, by name.
    """
    return not any(one["equal"] for one in result.values())
