"""The searches under a time budget, each of which keeps its best so far; which candidates are then checked.

Greedy, beam and annealing reach the proved optimum within seconds on nearly all models, so they get the default budget,
each an equal share of what the ones before it left, and learning is one option away. On first use all of it would go
into timing, as each knows all neighbours before its first step. So a first-improvement descent comes before them that
tries matches in the order in which the analytic cost, which times nothing, promises gains, and takes the first that
gains by the configured one: as long as the promises hold it times only what lies on the way of the analytic descent,
and a match that loses is left out. It may take all the time: where it does not end, no other one would come to its
first step. GRASP draws descents by the analytic cost alone and times only what lies on the way to the best of them, so
that it ends within seconds, and finds what opens only by rewrites that gain nothing at first.

A cost that times has a deadline, so that a budget holds while operators are timed, too: at most the timing that has
begun is finished. Each search begins at the original, as annealing from an optimum mostly gains less. What is known
stands in best-so-far.json as soon as it is known; a search that ended is not repeated, one that was cut is repeated
from its start, so a kill changes nothing.

What they came to is pruned and competes (`rlflow.deliver.contenders`, `rlflow.deliver.contest`). Candidates are checked
as they are ranked then; the first that is measured to be faster is delivered.
A signal is an exception in the block that looks; what follows measures in short, and where that shows nothing the
original is delivered, too: what was found stays on disk for a longer look. Options of learning imply it, so none does
nothing.
"""

import math
import time
from collections.abc import Callable, Mapping

from rlflow.common.progress import progress_bar, say
from rlflow.costs import CostModel, TimeIsUp, timing_until
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.at_sizes import AtSizes
from rlflow.deliver.best_so_far import BestSoFar
from rlflow.deliver.budget import Budget, Stop
from rlflow.deliver.candidates import Candidate
from rlflow.deliver.choice import is_faster
from rlflow.env.alike import start_of
from rlflow.env.state import Task
from rlflow.search import SEARCHES
from rlflow.search.search import Limits, Search, numbered, run_search

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
    """`go_on` of `rlflow.deliver.delivery.deliver`, where the cheapest candidates come first.

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
