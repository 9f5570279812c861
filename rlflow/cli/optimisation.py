"""Searches and, where wanted, the stages of learning under one time budget; stopped, it writes the best so far."""

import time
from pathlib import Path

from controllers.controller_options import controller_config
from rlflow.cli.command import ending
from rlflow.cli.outcome import copy_delivery, following, write_up
from rlflow.cli.wiring import check_apart, check_rewriting
from rlflow.common.files import read_json
from rlflow.common.messages import say
from rlflow.costs import timing_until
from rlflow.costs.database import TimingDatabase
from rlflow.costs.measurements import Measurements
from rlflow.costs.target import target_of
from rlflow.optimisation import anytime
from rlflow.optimisation import anytime as best_so_far
from rlflow.optimisation.ablation import measured_families
from rlflow.optimisation.budget import Budget, stoppable
from rlflow.optimisation.candidates import Candidate
from rlflow.optimisation.contest import (
    Contender,
    Contest,
    compete,
    contenders,
    different,
    keep_contest,
    tidied,
    without_what_does_not_pay,
)
from rlflow.optimisation.delivery import sizes_to_measure
from rlflow.optimisation.receipt import carried_over, rewrites_of

ACTING = 1 / 4  # of the seconds of the searches, for a controller that was trained elsewhere
PRUNING = 1 / 5  # of the seconds that the searches leave: a tenth of all where they take all that is theirs
TIDYING = 3.0  # seconds
CHECKED = 4  # candidates, at most: the best ones
CONTEST = 5 / 8  # of what is left then: a quarter


def optimise(run, out: Path, started: float) -> dict:
    """The command: optimises the model of a run folder, writes the best file to `out`, then the pages about it.

    Returns:
      the results of the stages that were run, by name.
    """
    results, go_on = search_and_deliver(run, out, started)
    lines = pages(run, results["eval"])  # after the file: they are made of what is delivered already
    ending(lines | {"model": out}, *(go_on or following(run, results["eval"], out)))
    return results


def search_and_deliver(run, out: Path | None, started: float) -> tuple[dict, tuple]:
    """Optimises the model of a run folder and writes the best file to `out`, when stopped too.

    Args:
      out: None leaves it in the run folder.
      started: the clock (time.monotonic) when the budget `optimise.seconds` began to run.

    Returns:
      (the results of the stages that were run, by name; the words of the command that goes on, empty if nothing was
      stopped).
    """
    check_rewriting(run, "optimise")
    if out is not None:
        check_apart(run.source, out)
    config, options, results, go_on = run.config, run.config.optimise, {}, ()
    if options.learn:
        controller_config(config)  # what is wrong with it is said now
    budget = Budget.of(options.seconds, options.learn, started)
    best = best_so_far.BestSoFar(run.task, run.path / best_so_far.BEST_SO_FAR_FILE)

    rewrites = rewrites_of(read_json(options.receipt)) if options.receipt else None

    def search() -> dict:
        began = time.monotonic()
        if rewrites is not None:
            _carry_out(run, best, rewrites, budget)
        if options.controller:
            _act(run, best, ACTING * budget.searches)
        spent = time.monotonic() - began
        return anytime.search_all(best, config.search, budget.searches, config.seed, budget.end, spent)

    try:
        with stoppable(budget.looking):
            results["search"] = run.stage("search", search)
            if options.learn:
                results |= _learn(run, best)
            else:
                results["eval"] = run.stage("eval", lambda: _choose(run, best, budget))
            _copy_out(results["eval"], out)
    except KeyboardInterrupt as stop:
        reason = f"stopped ({str(stop) or 'interrupted'})"
        go_on = ("optimise", config.model, "--out", out or run.path / "optimised.onnx", "--run", run.path)
        if run.task.cost_is_known:
            say(f"{reason}: {best}; it is checked and measured in short. Ctrl-C again leaves at once, with no file")
            short = {"measure_seconds": anytime.SHORT_MEASUREMENT, "go_on": anytime.first_equal}
            candidates = best.candidates() or [Candidate("start", run.task.initial, [], 0, 0.0)]
            results["eval"] = run.stage("eval", lambda: _deliver(run, candidates, **short))
        else:
            results = {"eval": _original(run, f"{reason} before all operators of the model were timed")}
        _copy_out(results["eval"], out)
    return results, go_on


def _carry_out(run, best, rewrites: list[tuple[str, int]], budget: Budget) -> None:
    """Offers what the rewrites of an earlier receipt come to."""
    anytime.count_cost(run.task, budget.end)
    began = time.monotonic()
    with timing_until(run.task.cost, began + budget.searches):
        result = carried_over(run.task, rewrites)
    best.offer(result.candidate(time.monotonic() - began), "seconds" if result.interrupted else "carried out")
    say(f"receipt: {result.carried_out} rewrites carried out, {result.left_out} have no place here: {best}")


def _act(run, best, seconds: float) -> None:
    """Offers the best that a controller from elsewhere comes to.

    seconds: after which it begins no further episode.
    """
    from rlflow.cli.acting import acted  # only now: searches alone need nothing that learns

    candidate = acted(run, run.config.optimise.controller, seconds)
    best.offer(candidate, "episodes")
    say(f"{candidate.name} acted: {best}")


def pages(run, outcome: dict) -> dict[str, object]:
    """Writes the pages about a delivery; the lines of the ending."""
    if run.task.cost_is_known:
        return write_up(run, outcome)
    return {"result": f"No gain: {outcome['reason']}; the original is returned."}  # there is nothing to draw


def _learn(run, best) -> dict:
    from rlflow.cli.stages import learn  # only now: searches alone need nothing that learns

    return learn(run, best)


def _choose(run, best, budget: Budget) -> dict:
    """The stage `eval` without a controller: what pays of what was found competes, is checked and measured."""
    candidates = without_what_does_not_pay(best, PRUNING * budget.left)
    if run.config.eval.measure_seconds == 0 or target_of(run.task.cost) is not None:
        return _deliver(run, candidates, 0.0, go_on=anytime.until_faster(budget))
    threads, database = run.config.cost.threads, TimingDatabase(run.config.cost.database)
    known = database.families(threads)
    entered = contenders(run.task, candidates, best.candidates(), known)
    contest = _compete(run, entered, time.monotonic() + CONTEST * budget.left)
    keep_contest(Measurements(database, threads), run.task, contest)
    winner, *others = contest.ranked or candidates
    ranked = different([tidied(run.task, winner, TIDYING), *others, *candidates])[:CHECKED]
    seconds, go_on = max(budget.left * 3 / 4, anytime.SHORT_MEASUREMENT), anytime.until_faster(budget)
    outcome = _deliver(run, ranked, seconds, go_on=go_on, ablation_until=budget.end)
    for family, ratio in [*contest.families.items(), *measured_families(outcome["shares"])]:
        database.keep_family(family, threads, *ratio)
    used = {one.without: known[one.without] for one in entered if one.without in known}
    return outcome | {"contest": contest.table, "known_families": used}


def _compete(run, entered: list[Contender], end: float) -> Contest:
    sizes = sizes_to_measure(run.task, dict(run.spec.shapes))
    return compete(run.source, entered, sizes, run.config.cost.threads, run.config.seed, end)


def _deliver(run, candidates: list[Candidate], measure_seconds: float, **options) -> dict:
    """options: see `rlflow.optimisation.delivery.deliver`."""
    seconds = min(run.config.eval.measure_seconds, measure_seconds)
    outcome = run.spec.deliver(run.task, candidates, run.path / "eval", run.config, seconds, **options)
    return outcome | {"dreamt": []}


def _copy_out(outcome: dict, out: Path | None) -> None:
    if out is not None:
        copy_delivery(outcome, out)


def _original(run, reason: str) -> dict:
    """The outcome where not even the model's own cost is known."""
    return {
        "candidates": {}, "delivered": "original", "reason": reason, "optimised": str(run.source), "fault_report": None,
    }  # fmt: skip
