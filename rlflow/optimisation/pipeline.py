"""The pipeline of `optimise`: search under a time budget, compare candidates, check, measure and write a file.

`search_and_deliver` works on a run folder (`Run`) and does not depend on the command line. Learning needs packages
above this one, so the caller passes two functions: `act` plays a controller that was trained elsewhere, and `learn`
runs the four stages of learning (both in controllers/stages).

The searches get a share of the seconds (`rlflow.optimisation.budget`). Then rewrites that gain nothing are taken back
(`ablation`), the candidates are measured against each other (`contest`), and the best ones are checked and measured
(`delivery`). Ctrl-C, SIGTERM and (with learning) the end of the time stop this work early; the best candidate so far is
then checked, measured briefly and written. If a candidate has been found equal to the original by then, the finished
checks and measurements decide, and no candidate is measured again.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from rlflow.common import spending
from rlflow.common.errors import RLFlowError, first_line
from rlflow.common.files import read_json
from rlflow.common.messages import progress_bar, say
from rlflow.common.spending import Account, keeping, spent_on, spent_so_far, spent_text
from rlflow.common.task import TaskSpec
from rlflow.costs import COSTS, timing_until
from rlflow.costs.database import TimingDatabase
from rlflow.costs.predicted import predicting
from rlflow.costs.target import target_of
from rlflow.env.batched import start_of
from rlflow.env.state import Task
from rlflow.graph.onnx_writer import check_apart
from rlflow.optimisation import anytime
from rlflow.optimisation.ablation import measured_families
from rlflow.optimisation.anytime import BEST_SO_FAR_FILE, BestSoFar
from rlflow.optimisation.budget import Budget, stoppable
from rlflow.optimisation.candidates import Candidate
from rlflow.optimisation.contest import (
    compete,
    contenders,
    different,
    pruned_candidates,
    pruned_winner,
)
from rlflow.optimisation.deciding import search_in_rounds
from rlflow.optimisation.delivery import Checked, check_is_of_time, copy_delivery, copy_with_receipt, sizes_to_measure
from rlflow.optimisation.receipt import carried_over, rewrites_of
from rlflow.optimisation.session_options import best_session, put_session
from rlflow.search.base import Limits, SearchResult, run_search

ACTING = 1 / 4  # share of the searches' seconds for acting with a controller that was trained elsewhere
PRUNING = 1 / 5  # share for pruning of the seconds left after the searches (a tenth of all if half of all is left)
TIDYING = 3.0  # seconds for pruning the winner of the contest
MAX_CHECKED = 4  # largest number of candidates that are checked, best first
CONTEST = 5 / 8  # share for the contest of the seconds left after pruning (a quarter of all if 40 % of all is left)
SHORTEST = 2 / 5  # shortest measurement of the verdict, relative to the seconds of the searches (a fifth of all)


class Run(Protocol):
    """The attributes and methods of a run folder (`rlflow.runs.folder.RunFolder`) that the pipeline needs.

    Attributes:
      path: the path of the folder.
      config: all options of the run, resolved.
      source: the file of the original model.
      spec: the specification of the task.
      task: the task that the specification describes, loaded.
    """

    path: Path
    config: Mapping
    source: Path
    spec: TaskSpec
    task: Task

    def stage(self, name: str, work: Callable[[], dict]) -> dict:
        """Run one stage, store the results of `work` in the folder under the name of the stage, and return them."""


Act = Callable[[Run, str, float], Candidate]  # (run, folder of the controller, seconds)
Learn = Callable[[Run, BestSoFar], dict]  # (run, results of the searches) -> results of the stages by name


def search_and_deliver(run: Run, out: Path | None, started: float, act: Act, learn: Learn) -> tuple[dict, bool]:
    """Optimise the model of a run folder and write the best file, even if the search is stopped.

    Args:
      run: the run folder.
      out: the path of the delivered file; None leaves the file in the run folder.
      started: the value of time.monotonic() at which the budget `optimise.seconds` began.
      act: a function that plays the trained controller `optimise.controller` on the run's model, and returns its best
        candidate.
      learn: a function that runs the stages of learning if `optimise.learn` is True, and returns their results.

    Returns:
      (stage name → results of the completed stages, True if the search was stopped early). The entry `spent` of the
      stage `eval` says where the seconds went (`rlflow.common.spending`).

    Raises:
      RLFlowError: the task or the cost does not suit `optimise`, or a stage fails.
    """
    with keeping(Account(began=started)) as account:
        result = _search_and_deliver(run, out, started, act, learn)
        say(spent_text(account.spent()))
    return result


def _search_and_deliver(run: Run, out: Path | None, started: float, act: Act, learn: Learn) -> tuple[dict, bool]:
    """Do the work of `search_and_deliver`, which keeps the account of its seconds."""
    check_rewriting(run, "optimise")
    if out is not None:
        check_apart(run.source, out)
    config, options, results, stopped = run.config, run.config.optimise, {}, False
    budget = Budget.of(options.seconds, options.learn, started, options.session and not options.learn)
    checked: dict[str, Checked] = {}  # finished checks, which a stop of the command does not repeat
    with spent_on(spending.LOAD):
        best = BestSoFar(run.task, run.path / BEST_SO_FAR_FILE)

    rewrites = rewrites_of(read_json(options.receipt)) if options.receipt else None

    @spent_on(spending.SEARCH)
    def search() -> dict:
        began = time.monotonic()
        if rewrites is not None:
            _apply_receipt(run, best, rewrites, budget)
        if options.controller:
            candidate = act(run, options.controller, ACTING * budget.search_seconds)
            best.offer(candidate, "episodes")
            say(f"{candidate.name} acted: {best}")
        spent = time.monotonic() - began
        search_all = search_in_rounds if predicting(run.task.cost) else anytime.search_all
        return search_all(best, config.search, budget.search_seconds, config.seed, budget.end, spent)

    try:
        with stoppable(budget.stop_seconds):
            results["search"] = run.stage("search", search)
            learns = options.learn and run.task.initial.counts.any()
            if options.learn and not learns:
                say("nothing to learn: no rewrite applies to the model, so no controller is trained")
            if learns:
                with spent_on(spending.LEARNING):
                    results |= learn(run, best)
            else:
                results["eval"] = run.stage("eval", lambda: _compare_and_deliver(run, best, budget, checked))
            _copy_out(results["eval"], out)
    except KeyboardInterrupt as stop:
        reason, stopped = f"stopped ({str(stop) or 'interrupted'})", True
        if run.task.cost_is_known or best.candidates():
            short = {"measure_seconds": anytime.SHORT_MEASUREMENT, "known": checked}
            if any(one.results["equal"] for one in checked.values()):
                what, candidates = "the finished measurements decide", [one.given for one in checked.values()]
            else:
                what, short["go_on"] = f"{best}; it is checked and measured briefly", anytime.first_equal
                candidates = best.candidates() or [Candidate("start", run.task.initial, [], 0, 0.0)]
            say(f"{reason}: {what}. Ctrl-C again ends without a file")
            results["eval"] = run.stage("eval", lambda: _deliver(run, candidates, **short))
        else:
            results = {"eval": _original(run, f"{reason} before the cost of the original was known")}
        _copy_out(results["eval"], out)
    return results, stopped


def search_once(run: Run, method: str, out: Path, measure: bool) -> tuple[SearchResult, dict]:
    """Run one search and write the checked result to `out`, with its receipt and fault report.

    Args:
      run: the run folder.
      method: the name of the search.
      out: the path of the delivered file.
      measure: True to measure the result against the original for `eval.measure_seconds`; `eval.accept` then decides
        whether the result or the original is delivered.

    Returns:
      The result of the search, and the result of `rlflow.optimisation.delivery.deliver`.
    """
    check_rewriting(run, "search")
    check_apart(run.source, out)
    config, options = run.config, run.config.search
    limits = Limits(options.seconds, options.interactions, options.memory_mb * 2**20)
    with progress_bar(None, method, " rewrites") as bar:
        answer = run_search(method, start_of(run.task, options.moves), limits, config.seed, bar, **options[method])
    candidate = Candidate(method, answer.state, answer.actions, answer.interactions, answer.seconds)
    seconds = config.eval.measure_seconds if measure else 0.0
    outcome = run.spec.deliver(run.task, [candidate], run.path, config, measure_seconds=seconds)
    copy_with_receipt(outcome, out)
    put_session(outcome, out)
    return answer, outcome


def _copy_out(outcome: dict, out: Path | None) -> None:
    if out is not None:
        copy_delivery(outcome, out)
        put_session(outcome, out)


def _apply_receipt(run: Run, best, rewrites: list[tuple[str, int]], budget: Budget) -> None:
    """Apply the rewrites of an earlier receipt to the run's model and offer the result to `best` as a candidate."""
    anytime.count_cost(run.task, budget.end)
    began = time.monotonic()
    with timing_until(run.task.cost, began + budget.search_seconds):
        result = carried_over(run.task, rewrites)
    best.offer(result.candidate(time.monotonic() - began), "seconds" if result.interrupted else "carried out")
    say(f"receipt: {result.carried_out} rewrites applied, {result.left_out} have no match here: {best}")


def _compare_and_deliver(run: Run, best, budget: Budget, checked: dict[str, Checked]) -> dict:
    """Run the stage `eval` of a run without learning: prune the candidates, hold a contest, deliver the best one.

    Every finished check is added to `checked` (argument `known` of `rlflow.optimisation.delivery.deliver`).
    """
    with spent_on(spending.SEARCH):
        candidates = pruned_candidates(best, PRUNING * budget.left)
    if run.config.eval.measure_seconds == 0 or target_of(run.task.cost) is not None:
        go_on = anytime.until_faster(budget)
        return _deliver(run, candidates, 0.0, go_on=go_on, end=budget.end, grace=budget.grace, known=checked)
    threads, database = run.config.cost.threads, TimingDatabase(run.config.cost.database)
    known = database.families(threads)
    end = time.monotonic() + CONTEST * budget.left
    sizes = sizes_to_measure(run.task, dict(run.spec.shapes))
    with spent_on(spending.CONTEST):
        entered = contenders(run.task, candidates, best.candidates(), known, end)
        contest = compete(run.source, entered, sizes, threads, run.config.seed, end, run.spec.feeds)
    winner, *others = contest.ranked or candidates
    tidying = min(TIDYING, budget.left)
    with spent_on(spending.SEARCH):
        pruned, named = pruned_winner(run.task, winner, tidying), {}
    for one in (pruned, *others, *candidates):
        named.setdefault(one.name, one)  # results are kept by name
    ranked = different(list(named.values()))[:MAX_CHECKED]
    shortest = min(anytime.SHORT_MEASUREMENT, SHORTEST * budget.search_seconds)
    seconds, go_on = max(budget.left * 3 / 4, shortest), anytime.until_faster(budget)
    outcome = _deliver(run, ranked, seconds, go_on=go_on, end=budget.end, grace=budget.grace, known=checked)
    for family, ratio in [*contest.families.items(), *measured_families(outcome["shares"])]:
        database.keep_family(family, threads, *ratio)
    used = {one.without: known[one.without] for one in entered if one.without in known}
    return outcome | {"contest": contest.table, "known_families": used} | _session(run, outcome, sizes, budget)


def _session(run: Run, outcome: dict, sizes: Mapping[str, Mapping], budget: Budget) -> dict:
    """Return `session`, the result of `best_session` for the delivered file, and `spent`; {} if the user does not ask
    for it."""
    if not budget.session_seconds:
        return {}
    config, path = run.config, Path(outcome["optimised"])
    with spent_on(spending.VERDICT):
        try:
            best = best_session(
                path, run.spec.feeds, sizes, config.cost.threads, config.seed, config.eval.tolerance,
                budget.session_seconds,
            )  # fmt: skip
        except RLFlowError as error:
            say(f"no session options are chosen, because ONNX Runtime refuses some: {first_line(error)}")
            return {"spent": spent_so_far()}
    return {"session": best, "spent": spent_so_far()}


def _deliver(run: Run, candidates: list[Candidate], measure_seconds: float, **options) -> dict:
    """Deliver one of the candidates, measured for at most `measure_seconds` and `eval.measure_seconds`.

    `options` are further arguments of `rlflow.optimisation.delivery.deliver`.
    """
    seconds = min(run.config.eval.measure_seconds, measure_seconds)
    outcome = run.spec.deliver(run.task, candidates, run.path / "eval", run.config, seconds, **options)
    return outcome | {"experiments": []}


def _original(run: Run, reason: str) -> dict:
    """Return the results of the stage `eval` for a run that stopped before the cost of the original was known."""
    return {
        "candidates": {}, "delivered": "original", "reason": reason, "optimised": str(run.source), "fault_report": None,
        "spent": spent_so_far(),
    }  # fmt: skip


def check_rewriting(run: Run, command: str) -> None:
    """Raise RLFlowError unless the run's task is `rewriting` and its cost estimates time.

    Args:
      run: the run folder.
      command: the name of the command, for the message.
    """
    check_is_of_time(COSTS.get(run.config.cost.name))
    if run.config.task.name != "rewriting":
        raise RLFlowError(f"'{command}' rewrites ONNX models. Set task.name=rewriting, not {run.config.task.name}")
