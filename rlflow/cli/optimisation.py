"""Searches and, where wanted, the stages of learning under one time budget; stopped, it writes the best so far."""

import time
from pathlib import Path

from controllers.config import controller_config
from rlflow.cli.ending import ending
from rlflow.cli.outcome import copy_fault_report, following, write_up
from rlflow.cli.wiring import check_apart, check_rewriting
from rlflow.common.progress import say
from rlflow.deliver import anytime, best_so_far
from rlflow.deliver.budget import Budget, stoppable
from rlflow.graph.onnx_copy import copy_model


def optimise(run, out: Path, started: float | None = None) -> dict:
    """Optimises the model of a run folder and writes the best file to `out`, when stopped too.

    Args:
      started: the clock (time.monotonic) when the budget `optimise.seconds` began to run; None for now.

    Returns:
      the results of the stages that were run, by name.
    """
    started = time.monotonic() if started is None else started
    check_rewriting(run, "optimise")
    check_apart(run.source, out)
    config, options, results, go_on = run.config, run.config.optimise, {}, None
    if options.learn:
        controller_config(config)  # what is wrong with it is said now
    budget = Budget.of(options.seconds, options.learn, started)
    best = best_so_far.BestSoFar(run.task, run.path / best_so_far.FILE)

    def search() -> dict:
        return anytime.search_all(best, config.search, budget.searches, config.seed, budget.end)

    try:
        with stoppable(budget.looking):
            results["search"] = run.stage("search", search)
            if options.learn:
                results |= _learn(run, best)
            else:
                seconds = max(budget.left / 2, anytime.SHORT_MEASUREMENT)
                results["eval"] = _choose(run, best, seconds, anytime.until_faster(budget))
            _copy_out(results["eval"], out)
    except KeyboardInterrupt as stop:
        reason = f"stopped ({str(stop) or 'interrupted'})"
        go_on = ("optimise", config.model, "--out", out, "--run", run.path)
        if not run.task.cost_is_known:
            return _return_original(run, out, reason, go_on)
        say(f"{reason}: {best}; it is checked and measured in short. Ctrl-C again leaves at once, with no file")
        results["eval"] = _choose(run, best, anytime.SHORT_MEASUREMENT, anytime.first_equal)
        _copy_out(results["eval"], out)
    lines = write_up(run, results["eval"])  # after the file: pages are made of what is delivered already
    ending(lines | {"model": out}, *(go_on or following(run, results["eval"], out)))
    return results


def _learn(run, best) -> dict:
    from rlflow.cli.stages import learn  # only now: searches alone need nothing that learns

    return learn(run, best)


def _choose(run, best, measure_seconds: float, go_on) -> dict:
    """The stage `eval` without a controller. go_on: see `deliver`."""
    seconds = min(run.config.eval.measure_seconds, measure_seconds)

    def work() -> dict:
        folder, options = run.path / "eval", {"measure_seconds": seconds, "go_on": go_on}
        return run.spec.deliver(run.task, best.candidates(), folder, run.config, **options) | {"dreamt": []}

    return run.stage("eval", work)


def _copy_out(outcome: dict, out: Path) -> None:
    copy_model(Path(outcome["optimised"]), out, same=outcome["delivered"] == "original")
    copy_fault_report(outcome, out)


def _return_original(run, out: Path, stopped: str, go_on: tuple) -> dict:
    """Where not even the model's own cost is known."""
    reason = f"{stopped} before all operators of the model were timed; the original is returned"
    copy_model(run.source, out, same=True)
    ending({"result": f"No gain: {reason}.", "model": out}, *go_on)
    outcome = {"candidates": {}, "delivered": "original", "reason": reason, "optimised": str(run.source)}
    return {"eval": outcome}
