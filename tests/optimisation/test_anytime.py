"""Test the best candidate so far: it is on disk as soon as it is known, and a stop at any time delivers it."""

import itertools
import json
import math
import signal
import sys
import time
from contextlib import contextmanager
from ctypes import ArgumentError
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import onnx
import pytest

from controllers.stages import learn as stages
from rlflow.cli.command import open_run
from rlflow.cli.main import make_parser
from rlflow.cli.optimise import chosen_options
from rlflow.common.errors import RLFlowError
from rlflow.common.system import ALARM, WINDOWS
from rlflow.costs import measured as measuring
from rlflow.costs import profiled
from rlflow.costs.analytic import RooflineCost
from rlflow.costs.timing import Timing
from rlflow.env.batched import start_of
from rlflow.graph.onnx_writer import save_model
from rlflow.optimisation import anytime, delivery, pipeline
from rlflow.optimisation.anytime import (
    BEST_SO_FAR_FILE,
    METHODS,
    BestSoFar,
    first_equal,
    methods,
    search_all,
    until_faster,
)
from rlflow.optimisation.budget import Budget, Stop, stoppable
from rlflow.optimisation.candidates import Candidate, follow
from rlflow.optimisation.contest import Contest
from rlflow.optimisation.delivery import DeliveryOptions, deliver
from rlflow.optimisation.validate import Comparison, validate
from rlflow.runs.config import asks_to_learn, load_config
from rlflow.search.base import Search, run_search
from rlflow.search.descents import greedy
from rlflow.zoo import load
from tests.commands import EDITS, in_its_own, in_process
from tests.suite import at_night, slow
from tests.toys.timed import timed_task
from tests.toys.tiny import tiny_task

LITTLE = ("beam.width=2", "beam.depth=2", "annealing.restarts=1", "annealing.steps=10", "grasp.patience=3")
SEARCH = load_config([], [f"search.{key}" for key in LITTLE]).search
FAST = (
    "cost.name=analytic",
    "eval.measure_seconds=0",
    *(f"search.{key}" for key in (*LITTLE, "interactions=300")),
)


ANALYTIC = METHODS[1:]  # without the first method, which the analytic cost does not need


@pytest.fixture(scope="module", params=[*slow("analytic"), "timed"])
def task(request):
    return tiny_task() if request.param == "analytic" else timed_task()


@pytest.fixture(scope="module")
def descent(task):
    return greedy(task.initial, 1000)


def candidate(task, descent, steps: int, name: str = "x") -> Candidate:
    actions = descent.actions[:steps]
    return Candidate(name, follow(task, actions), actions, steps, 1.0)


def timeless(value):
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in ("seconds", "own_seconds", "spent")}
    return [timeless(item) for item in value] if isinstance(value, list) else value


class Killed(BaseException):
    """An exception that no handler catches, like the signal SIGKILL."""


@contextmanager
def dying(monkeypatch, error: type[BaseException], interactions: int):
    """Raise `error` in every search as soon as its count of interactions reaches `interactions`."""
    check = Search.check

    def dies(search):
        if search.interactions >= interactions:
            raise error
        check(search)

    with monkeypatch.context() as patch:
        patch.setattr(Search, "check", dies)
        yield


# -- what was found --------------------------------------------------------------------------------


def test_an_offered_candidate_is_on_disk_at_once_and_never_replaces_a_better_one(task, descent, tmp_path):
    result = BestSoFar(task, tmp_path / BEST_SO_FAR_FILE)
    assert result.candidates() == [] and str(result) == "no gain so far"
    for steps, kept in ((3, 3), (1, 3), (5, 5)):
        result.offer(candidate(task, descent, steps))
        for known in (result, BestSoFar(task, tmp_path / BEST_SO_FAR_FILE)):
            (best,) = known.candidates()
            assert (
                list(best.actions) == descent.actions[:kept]
                and best.state.graph.hash == follow(task, descent.actions[:kept]).graph.hash
            )
    result.offer(candidate(task, descent, 9, "y"))
    assert [c.name for c in BestSoFar(task, tmp_path / BEST_SO_FAR_FILE).candidates()] == ["y", "x"] and "(y)" in str(
        result
    )
    gain = 100 * (1 - follow(task, descent.actions[:9]).runtime_ms / task.initial.runtime_ms)
    assert result.records["y"]["estimated_improvement_percent"] == pytest.approx(gain) and f"{gain:.2f} % lower" in str(
        result
    )


RECORD = {"actions": [], "interactions": 1, "seconds": 1.0, "stop": None, "asked": {}}


@pytest.mark.parametrize(
    "content",
    [
        [], {"x": 3}, {"x": RECORD | {"actions": [[9999, 0]]}}, {"x": RECORD | {"actions": [1]}},
        {"x": RECORD | {"interactions": float("inf")}}, {"x": RECORD | {"stop": "end", "asked": {"seconds": 1.0}}},
        {"x": RECORD | {"stop": "end", "asked": {"seconds": [], "own_seconds": 1.0}}},
    ],
)  # fmt: skip
def test_a_damaged_record_is_named(task, tmp_path, content):
    (tmp_path / BEST_SO_FAR_FILE).write_text(json.dumps(content))
    with pytest.raises(RLFlowError, match="best-so-far.json is damaged"):
        BestSoFar(task, tmp_path / BEST_SO_FAR_FILE)


@pytest.mark.parametrize(
    "stop, before, now, ended",
    [
        (None, {"seconds": 9, "width": 1}, {"seconds": 9, "width": 1}, False),
        ("interrupted", {"seconds": 9, "width": 1}, {"seconds": 9, "width": 1}, False),
        ("iterations", {"seconds": 9, "width": 1}, {"seconds": 99, "width": 1}, True),
        ("iterations", {"seconds": 9, "width": 1}, {"seconds": 9, "width": 2}, False),
        ("seconds", {"seconds": 9, "width": 1}, {"seconds": 9, "width": 1}, True),
        ("seconds", {"seconds": 9, "width": 1}, {"seconds": 10, "width": 1}, False),
        ("seconds", {"own_seconds": 2, "width": 1}, {"own_seconds": 3, "width": 1}, True),
        ("seconds", {"own_seconds": 2, "width": 1}, {"own_seconds": 3.2, "width": 1}, False),
        ("iterations", {"own_seconds": 2, "width": 1}, {"own_seconds": 9, "width": 1}, True),
    ],
)  # fmt: skip
def test_a_search_is_repeated_only_if_it_could_find_more(task, descent, tmp_path, stop, before, now, ended):
    result = BestSoFar(task, tmp_path / BEST_SO_FAR_FILE)
    before, now = ({"seconds": 9, "own_seconds": 2} | asked for asked in (before, now))
    assert not result.ended("x", now)
    result.offer(candidate(task, descent, 2), stop, before)
    assert BestSoFar(task, tmp_path / BEST_SO_FAR_FILE).ended("x", now) is ended


# -- the searches ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(task, tmp_path_factory):
    """Return the records of searches that ran undisturbed."""
    result = BestSoFar(task, tmp_path_factory.mktemp("whole") / BEST_SO_FAR_FILE)
    search_all(result, SEARCH, 600.0, 0)
    return result.records


def test_every_search_leaves_its_best_and_why_it_stopped(task, whole, descent):
    assert tuple(whole) == methods(task.cost) and not {"seconds", "interrupted", None} & {
        record["stop"] for record in whole.values()
    }
    assert (
        [tuple(a) for a in whole["greedy"]["actions"]]
        == [tuple(a) for a in whole.get("descent", whole["greedy"])["actions"]]
        == descent.actions
    )
    assert all(follow(task, record["actions"]).runtime_ms == record["estimated_ms"] for record in whole.values())


@pytest.mark.nightly
@pytest.mark.parametrize("interactions", [150, *slow(1, 60, 400)])
def test_a_killed_search_leaves_its_best_on_disk_and_resumes_to_the_same_result(
    task, whole, tmp_path, monkeypatch, interactions
):
    monkeypatch.setattr(anytime, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(anytime, "SPARE", 0.0)
    saw, seen = Search.saw, []

    def watched(search, state, path):
        if better := saw(search, state, path):
            seen.append(state.cost.runtime_ps)
        return better

    monkeypatch.setattr(Search, "saw", watched)
    result = BestSoFar(task, tmp_path / BEST_SO_FAR_FILE)
    with dying(monkeypatch, Killed, interactions), pytest.raises(Killed):
        search_all(result, SEARCH, 600.0, 0)
    again = BestSoFar(task, tmp_path / BEST_SO_FAR_FILE)
    known = min((c.state.cost.runtime_ps for c in again.candidates()), default=task.initial.cost.runtime_ps)
    # the last better state may not have been written before the kill
    assert known <= min(seen[:-1], default=task.initial.cost.runtime_ps)
    search_all(again, SEARCH, 600.0, 0)
    assert timeless(again.records) == timeless(whole)


def test_an_interrupted_search_records_its_best_and_resumes_to_the_same_result(task, whole, tmp_path, monkeypatch):
    result = BestSoFar(task, tmp_path / BEST_SO_FAR_FILE)
    with dying(monkeypatch, KeyboardInterrupt, 130), pytest.raises(Stop):
        search_all(result, SEARCH, 600.0, 0)
    stops = {name: record["stop"] for name, record in result.records.items()}
    assert stops == (
        {"descent": "interrupted"} if "descent" in whole else {"greedy": "local optimum", "grasp": "interrupted"}
    )
    assert result.gain(result.candidates()[0]) > 0
    search_all(BestSoFar(task, tmp_path / BEST_SO_FAR_FILE), SEARCH, 600.0, 0)
    assert timeless(json.loads((tmp_path / BEST_SO_FAR_FILE).read_text())) == timeless(whole)


def test_a_finished_search_is_repeated_only_if_its_options_change(task, whole, tmp_path, monkeypatch):
    (tmp_path / BEST_SO_FAR_FILE).write_text(json.dumps(whole))
    with dying(monkeypatch, Killed, 0):
        search_all(BestSoFar(task, tmp_path / BEST_SO_FAR_FILE), SEARCH, 1200.0, 0)
        with pytest.raises(Killed):
            search_all(BestSoFar(task, tmp_path / BEST_SO_FAR_FILE), {**SEARCH, "interactions": 7}, 600.0, 0)


def test_time_spent_before_the_searches_reduces_their_budget_but_repeats_no_search(task, tmp_path, monkeypatch):
    limits = []

    def ends_at_once(result, name, asked, options, given, *_) -> str:
        limits.append(given.seconds)
        result.offer(Candidate(name, result.task.initial, [], 0, 0.0), "seconds", asked)
        return "seconds"

    monkeypatch.setattr(anytime, "_search", ends_at_once)
    monkeypatch.setattr(anytime, "time", SimpleNamespace(monotonic=lambda: 1000.0))  # no time passes
    # The second run of the command spent less time before the searches, so more time is left for them.
    for spent in (1.0, 0.5):
        search_all(BestSoFar(task, tmp_path / BEST_SO_FAR_FILE), SEARCH, 600.0, 0, spent=spent)
    assert len(limits) == len(methods(task.cost)) and limits[-1] == 599


def test_the_searches_share_the_time(task, tmp_path, monkeypatch):
    """Check the shares of the searches with a clock that advances by one second at each reading."""
    ticks = itertools.count()

    def clock() -> float:
        return float(next(ticks))

    monkeypatch.setattr(anytime, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(anytime, "run_search", partial(run_search, clock=clock))
    result = BestSoFar(task, tmp_path / BEST_SO_FAR_FILE)
    search_all(result, load_config().search, 3000.0, 0)
    assert 2900 <= clock() < 3020
    stops = {name: record["stop"] for name, record in result.records.items()}
    assert stops == {
        name: "local optimum" if name in ("descent", "greedy") else "seconds" for name in methods(task.cost)
    }
    beam, annealing = (result.records[name]["seconds"] for name in ("beam", "annealing"))
    assert beam == pytest.approx(annealing, abs=20) and beam > 3000 / 4


def test_the_descent_may_use_all_the_time_and_the_later_searches_share_the_rest(task, tmp_path, monkeypatch):
    shares = {}

    def ends_at_once(result, name, asked, options, limits, *_) -> str:
        shares[name] = limits.seconds
        result.offer(Candidate(name, result.task.initial, [], 0, 0.0), "iterations", asked)
        return "iterations"

    monkeypatch.setattr(anytime, "_search", ends_at_once)
    search_all(BestSoFar(task, tmp_path / BEST_SO_FAR_FILE), SEARCH, 600.0, 0)
    wanted = {"descent": 600, "greedy": 150, "grasp": 200, "beam": 300, "annealing": 600}
    assert shares == {name: pytest.approx(wanted[name], abs=5) for name in methods(task.cost)}


def test_the_analytic_cost_needs_no_descent_before_greedy(tmp_path):
    assert methods(tiny_task().cost) == methods(RooflineCost()) == ("greedy", "grasp", "beam", "annealing")
    assert methods(timed_task().cost) == ("descent", "greedy", "grasp", "beam", "annealing")


@pytest.mark.parametrize("name", ["tiny_squeezenet1_1", *slow("tiny_resnet18", "tiny_inception_v3")])
def test_the_descent_finds_the_best_candidate_if_few_operators_can_be_timed(tmp_path, name):
    """Check the descent with time for the operators on the path of the analytic descent and for no others."""
    wanted, on_the_way = greedy(start_of(tiny_task(name), SEARCH.moves), 1000), timed_task(name)
    follow(on_the_way, wanted.actions)
    task = timed_task(name, limit=len(on_the_way.cost.timed))
    result = BestSoFar(task, tmp_path / BEST_SO_FAR_FILE)
    search_all(result, SEARCH, 600.0, 0)
    assert {record["stop"] for record in result.records.values()} == {"seconds"}
    assert [tuple(action) for action in result.records["descent"]["actions"]] == wanted.actions
    assert all(result.records[other]["actions"] == [] for other in ANALYTIC if other != "grasp")
    assert result.candidates()[0].name == "descent"


def test_no_operator_is_timed_after_the_deadline_of_its_search(tmp_path):
    task, deadlines = timed_task(), []
    node_cost = task.cost.node_cost

    def watched(graph, node):
        deadlines.append(task.cost.deadline - time.monotonic())
        return node_cost(graph, node)

    task.cost.node_cost = watched
    search_all(BestSoFar(task, tmp_path / BEST_SO_FAR_FILE), SEARCH, 600.0, 0, time.monotonic() + 900)
    assert 600 < max(deadlines) <= 900 and min(deadlines) > 0 and task.cost.deadline == math.inf
    first_search = next(seconds for seconds in deadlines if seconds <= 600)
    assert first_search > 500


def test_the_searches_stop_if_the_cost_of_the_original_is_not_known_in_time(tmp_path):
    result = BestSoFar(timed_task(limit=3), tmp_path / BEST_SO_FAR_FILE)
    with pytest.raises(Stop, match="time is up"):
        search_all(result, SEARCH, 600.0, 0)
    assert not result.task.cost_is_known and result.records == {}


# -- signals and time ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_stoppable_block_and_its_handler_is_restored(number):
    before = signal.getsignal(number)
    with pytest.raises(Stop, match="interrupted"), stoppable():
        signal.raise_signal(number)
        time.sleep(5)
    assert signal.getsignal(number) is before


@pytest.mark.skipif(WINDOWS, reason="the clock of Windows rings once")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stop_that_a_destructor_swallows_is_raised_again():
    class Slow:
        def __del__(self):
            time.sleep(60)

    with pytest.raises(Stop, match="time is up"), stoppable(0.1):
        Slow()  # Python ignores the exception in its destructor
        time.sleep(60)
        pytest.fail("the block goes on")


@pytest.mark.parametrize("error", [SystemError, ArgumentError])
@pytest.mark.parametrize("late", [True, False])
def test_an_exception_of_c_code_that_swallowed_a_stop_becomes_a_stop(late, error):
    """An exception that code in C raises after it swallowed a Stop becomes a Stop; without a Stop it stays as it is."""
    with pytest.raises(Stop if late else error, match="interrupted" if late else "bad argument"), stoppable():
        if late:
            with pytest.raises(Stop):
                signal.raise_signal(signal.SIGINT)
        raise error("bad argument to internal function")


def test_the_time_budget_covers_the_whole_command():
    now = time.monotonic()
    budget = Budget.of(30.0, False, now - 10)
    assert budget[:3] == (15.0, None, now + 16) and budget.grace == pytest.approx(now + 23)
    # a short command spends much of its time on its memory and its report
    assert Budget.of(5.0, False, now).end == now + 3
    assert Budget.of(30.0, False, now - 40).left == 0
    assert Budget.of(None, False, now).end == now + 116 and Budget.of(None, True, now).end == now + 896
    searches, looking, end = Budget.of(60.0, True, now)[:3]
    assert searches < looking < end - now


def judged(task, descent, tmp_path, monkeypatch, verdicts, go_on):
    """Deliver candidates with faked verdicts, the cheapest candidate first, to a user who accepts equal latency.

    Return (names of the checked candidates, name of the delivered one). The verdict None stands for unequal outputs.
    """

    def check(task, checked, *_):
        verdict = verdicts[int(checked.name)]
        result = {
            "equal": verdict is not None,
            "max_relative_error": 0.0,
            "findings": [],
            "measured": {"verdict": verdict, "interval": [1.1 if verdict == "slower" else 0.9, 1.2]},
            "file_bytes": 1,
            "left_out": [],
        }
        return checked, result

    monkeypatch.setattr(delivery, "_check", check)
    monkeypatch.setattr(delivery, "Comparison", lambda *_, **__: None)
    candidates = [candidate(task, descent, len(descent.actions) - 2 * k, str(k)) for k in range(len(verdicts))]
    options = DeliveryOptions([0], 1e-4, 0.0, 2, 1, 0, accept="equal")
    save_model(load("tiny_resnet18"), tmp_path / "m.onnx")
    outcome = deliver(task, tmp_path / "m.onnx", candidates, tmp_path, options, {}, [], go_on)
    return "".join(outcome["candidates"]), outcome["delivered"]


SAME = "no difference shown"


@pytest.mark.parametrize(
    "verdicts, checked, delivered",
    [
        (["faster", "faster"], "0", "0"), ([SAME, "faster", SAME], "01", "1"), (["slower", SAME, "slower"], "012", "1"),
        ([None, "slower", SAME], "012", "2"), (["slower", "slower"], "01", "original"),
    ],
)  # fmt: skip
def test_the_first_candidate_measured_faster_ends_the_checks_if_time_is_left(
    task, descent, tmp_path, monkeypatch, verdicts, checked, delivered
):
    go_on = until_faster(Budget.of(60.0, False, time.monotonic()))
    assert judged(task, descent, tmp_path, monkeypatch, verdicts, go_on) == (checked, delivered)


@pytest.mark.parametrize("verdicts, checked, delivered", [
    ([SAME, "faster"], "0", "0"), ([None, SAME, "faster"], "01", "1"),
    (["slower", "faster"], "0", "original")])  # fmt: skip
def test_checks_after_an_interrupted_search_end_at_the_first_equal_candidate(
    task, descent, tmp_path, monkeypatch, verdicts, checked, delivered
):
    assert judged(task, descent, tmp_path, monkeypatch, verdicts, first_equal) == (checked, delivered)


@pytest.mark.parametrize("verdicts, delivered", [
    ([SAME, "faster"], "0"), ([None, SAME, "faster"], "original"), (["slower", "faster"], "original")])  # fmt: skip
def test_only_one_candidate_is_checked_if_no_time_is_left(task, descent, tmp_path, monkeypatch, verdicts, delivered):
    go_on = until_faster(Budget(0.0, None, 0.0, 0.0))
    assert judged(task, descent, tmp_path, monkeypatch, verdicts, go_on) == ("0", delivered)


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    save_model(load("tiny_resnet18"), path)
    return path


def optimise(capsys, model, *more):
    out, results = model.parent / "out" / "faster.onnx", model.parent / "results.json"
    done = in_process(capsys, "optimise", model, "--out", out, "--json", results, *more)
    return done, out, json.loads(results.read_text()) if results.exists() else None


def test_optimise_returns_a_model_without_nodes(capsys, model):
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] x) {}'
    onnx.save(onnx.parser.parse_model(text), model)
    done, out, results = optimise(capsys, model, *FAST)
    assert done.code == 0 and "the original is returned" in done.ending["result"], done.err
    assert out.read_bytes() == model.read_bytes() and results["eval"]["delivered"] == "original"


def test_optimise_searches_and_learns_nothing_by_default(model, tmp_path, capsys, monkeypatch):
    out = tmp_path / "faster.onnx"
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # makes the import of tensorflow fail
    in_a_process = at_night(partial(in_its_own, without="tensorflow"), partial(in_process, capsys))
    done = in_a_process("optimise", model, "--out", out, *FAST)
    assert done.code == 0 and "% lower so far" in done.err and done.ending["model"] == str(out), done.err
    assert validate(model, out).ok and out.read_bytes() != model.read_bytes()
    assert not list(tmp_path.glob("faster.run/episodes")) and list(
        json.loads((tmp_path / "faster.run" / BEST_SO_FAR_FILE).read_text())
    ) == list(ANALYTIC)
    assert "dream and reality" not in (tmp_path / "faster.run" / "eval" / "report.html").read_text()


@pytest.mark.parametrize(
    "said",
    [["--learn"], ["--iterations", "1"], ["controller.name=ppo"], ["collect.episodes=3"], ["--config", "dream.yaml"]],
)
def test_any_option_about_learning_turns_learning_on(tmp_path, said):
    (tmp_path / "dream.yaml").write_text("dream:\n  max_steps: 3\n")
    said = [str(tmp_path / text) if text == "dream.yaml" else text for text in said]
    for arguments, learns in ((said, True), ([], False)):
        parsed, rest = make_parser().parse_known_args(["optimise", "tiny_resnet18", "--out", "x.onnx", *arguments])
        parsed.overrides = [*rest, "cost.name=analytic"]
        with open_run(parsed, tmp_path / str(learns), chosen_options(parsed)) as run:
            assert run.config.optimise.learn is learns
    assert not asks_to_learn([], ["search.beam.width=1", "seed=3"])


@pytest.mark.parametrize("number", [signal.SIGTERM, *slow(signal.SIGINT)])
def test_optimise_stopped_in_a_search_writes_the_best_so_far_and_can_resume(capsys, model, monkeypatch, number):
    check = Search.check

    def interrupted(search):
        if search.interactions >= 60:
            signal.raise_signal(number)
        check(search)

    with monkeypatch.context() as patch:
        patch.setattr(Search, "check", interrupted)
        patch.setattr(delivery, "measure", lambda *_, **__: measured(0.9, 0.89, 0.91, "faster"))
        done, out, results = optimise(capsys, model, *FAST, "eval.measure_seconds=1")
    assert done.code == 0 and "stopped (" in done.err and "search" not in results, done.err
    first = results["eval"]["candidates"]["greedy"]
    assert results["eval"]["delivered"] == "greedy" and first["estimated_improvement_percent"] > 0
    onnx.checker.check_model(str(out), full_check=True)
    assert validate(model, out).ok
    done, out, results = optimise(capsys, model, *FAST)
    assert done.code == 0 and results["eval"]["candidates"]["greedy"]["estimated_ms"] < first["estimated_ms"]


def test_optimise_stopped_before_any_result_writes_the_original(capsys, model, monkeypatch):
    with dying(monkeypatch, KeyboardInterrupt, 0):
        done, out, results = optimise(capsys, model, *FAST)
    assert done.code == 0 and out.read_bytes() == model.read_bytes() and "the original is returned" in done.out


def test_optimise_stopped_before_the_first_search_writes_the_original_and_the_report(capsys, model, monkeypatch):
    def stops(*_):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(anytime, "start_of", stops)
    done, out, _ = optimise(capsys, model, *FAST)
    assert done.code == 0 and out.read_bytes() == model.read_bytes() and "no gain was found" in done.out, done.err
    assert (out.parent / "faster.run" / "eval" / "report.html").exists()


def test_the_duration_of_a_check_is_counted_from_the_start_of_the_checks(capsys, model, monkeypatch):
    """The duration of a check is counted from the start of the checks, not from the start of the contest."""
    order = []
    for module, name in ((pipeline, "compete"), (anytime, "until_faster")):
        monkeypatch.setattr(module, name, partial(noted, order, name, getattr(module, name)))
    monkeypatch.setattr(delivery, "measure", lambda *_, **__: measured(0.9, 0.89, 0.91, "faster"))
    done, *_ = optimise(capsys, model, *FAST, "eval.measure_seconds=1", "--seconds", "10")
    assert done.code == 0 and order == ["compete", "until_faster"], done.err


def noted(order: list[str], name: str, function, *arguments):
    order.append(name)
    return function(*arguments)


@pytest.mark.parametrize("why", ["no memory", *slow("refused")])
def test_optimise_survives_a_measurement_that_fails(capsys, model, monkeypatch, why):
    """A candidate whose memory cannot be measured is still judged by its latency.

    If ONNX Runtime refuses a candidate with its own optimisations, the next candidate is checked.
    """
    if why == "no memory":
        monkeypatch.setattr(measuring, "fresh_processes", dies)
    else:
        monkeypatch.setattr(delivery, "measure", dies)
    done, out, results = optimise(capsys, model, *FAST, "eval.measure_seconds=0.2", "--seconds", "20")
    checked = results["eval"]["candidates"].values()
    assert done.code == 0 and out.exists() and any(one["substitutions"] for one in checked), done.err
    for one in checked:
        if one["substitutions"]:
            assert one["equal"] is (why == "no memory") and (one["measured"] is None) is (why == "refused")
            assert one["measured"] is None or one["measured"]["candidate_memory_bytes"] is None


def dies(*_, **__):
    raise RLFlowError("out of memory?")


def measured(ratio: float, low: float, high: float, verdict: str, memory: int = 10**7) -> dict:
    return {
        "verdict": verdict, "slower_at": [], "ratio": ratio, "interval": [low, high], "original_ms": 1.0, "pairs": 24,
        "candidate_ms": ratio, "side_by_side": True, "sessions": 6, "at": {}, "original_memory_bytes": 10**7,
        "candidate_memory_bytes": memory, "threads": 1,
    }  # fmt: skip


NEITHER = "no difference in speed is shown in 24 pairs of runs (--accept equal would deliver greedy)"


@pytest.mark.parametrize(
    "accept, figures, delivered, said",
    [
        ("faster", (0.9, 0.89, 0.91, "faster"), "greedy", "Measured 10.0 % faster"),
        *slow(
            ("faster", (0.99, 0.97, 1.01, SAME), "original", f"{NEITHER}; the original is returned"),
            ("faster", (1.2, 1.1, 1.3, "slower"), "original", "measured to be slower; the original is returned"),
            ("equal", (1.2, 1.1, 1.3, "slower"), "original", "measured to be slower; the original is returned"),
            ("equal", (1.013, 1.002, 1.020, SAME), "original", "measured, if anything slower (1.013 of the original's"),
            (
                "equal", (0.99, 0.97, 1.01, SAME), "greedy",
                "no difference in speed is shown, and --accept equal takes that",
            ),
            ("faster", (0.99, 0.97, 1.01, SAME, 5 * 10**6), "greedy", "less memory while it runs (10.0 → 5.0 MB)"),
        ),
    ],  # fmt: skip
)
def test_an_interrupted_optimise_decides_by_a_short_measurement(
    capsys, model, monkeypatch, accept, figures, delivered, said
):
    seconds = []
    monkeypatch.setattr(delivery, "measure", lambda *given, **_: seconds.append(given[3]) or measured(*figures))
    with dying(monkeypatch, KeyboardInterrupt, 130):
        done, out, results = optimise(capsys, model, *FAST, "eval.measure_seconds=10", "--accept", accept)
    assert done.code == 0 and seconds == [anytime.SHORT_MEASUREMENT] and results["eval"]["delivered"] == delivered
    assert (out.read_bytes() == model.read_bytes()) is (delivered == "original") and said in done.out


@pytest.fixture
def interruptible():
    """Make this process react to interrupts, which a process ignores if a shell started it in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_checks(monkeypatch, times: int) -> None:
    """Interrupt the first `times` comparisons of a candidate with the original."""
    calls = []

    class Interrupted(Comparison):
        def against(self, *arguments):
            calls.append(arguments)
            if len(calls) <= times:
                signal.raise_signal(signal.SIGINT)
            return super().against(*arguments)

    monkeypatch.setattr(delivery, "Comparison", Interrupted)


def test_one_stop_during_the_checks_still_writes_a_model_and_a_second_ends_the_command(
    capsys, model, monkeypatch, interruptible
):
    """The measurement after the first stop is short."""
    seconds = []
    faster = measured(0.9, 0.89, 0.91, "faster")
    monkeypatch.setattr(delivery, "measure", lambda *given, **_: seconds.append(given[3]) or faster)
    for stops in (1, 2):
        interrupt_checks(monkeypatch, stops)
        done, out, _ = optimise(capsys, model, *FAST, "eval.measure_seconds=10")
        assert (done.code, out.exists()) == ((0, True) if stops == 1 else (130, False)), done.err
        assert seconds == [anytime.SHORT_MEASUREMENT]
        assert not list((out.parent / "faster.run" / "eval").glob("candidate-*"))
        out.unlink(missing_ok=True)


@pytest.mark.parametrize("interrupted", ["choose", *slow("save_graph", "_receipt", "_shares")])
def test_a_stop_after_the_verdict_delivers_the_winner_without_another_measurement(
    capsys, model, monkeypatch, interrupted
):
    """The winner of the contest has a name of its own, so it differs from the results of the searches."""

    def won(_, entered, *__):
        return Contest([replace(entered[0].candidate, name="winner")], {}, [])

    seconds, stops = [], []
    faster, function = measured(0.9, 0.89, 0.91, "faster"), getattr(delivery, interrupted)

    def stopped_once(*arguments):
        if seconds and not stops:
            stops.append(arguments)
            signal.raise_signal(signal.SIGTERM)
        return function(*arguments)

    monkeypatch.setattr(pipeline, "compete", won)
    monkeypatch.setattr(delivery, "measure", lambda *given, **_: seconds.append(given[3]) or faster)
    monkeypatch.setattr(delivery, interrupted, stopped_once)
    done, out, results = optimise(capsys, model, *FAST, "eval.measure_seconds=10")
    assert done.code == 0 and len(stops) == 1 and "the finished measurements decide" in done.err, done.err
    assert seconds == [10] and list(results["eval"]["candidates"]) == [results["eval"]["delivered"]] == ["winner"]
    stored = json.loads((out.parent / "faster.run" / "eval.json").read_text())
    assert stored["candidates"]["winner"]["measured"] == faster
    assert validate(model, out).ok and out.read_bytes() != model.read_bytes()


@pytest.mark.parametrize("stage", ["collect", *slow("train_world_model")])
def test_optimise_stopped_while_learning_writes_the_best_of_the_searches(capsys, model, monkeypatch, stage):
    def stops(run):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(stages, stage, stops)
    done, out, results = optimise(capsys, model, *EDITS)
    assert (
        done.code == 0
        and "stopped (interrupted)" in done.err
        and tuple(results)[0] == "search"
        and validate(model, out).ok
    )
    assert results["eval"]["delivered"] in METHODS and out.read_bytes() != model.read_bytes()


@pytest.mark.nightly
def test_optimise_stopped_while_judging_the_controller_keeps_the_controllers_result(capsys, model, monkeypatch):
    interrupt_checks(monkeypatch, 1)
    done, out, results = optimise(capsys, model, *EDITS, "controller.name=random")
    assert done.code == 0 and "train-controller" not in results and validate(model, out).ok
    known = json.loads((out.parent / "faster.run" / BEST_SO_FAR_FILE).read_text())
    assert set(known) == {*ANALYTIC, "controller"}
    assert results["eval"]["candidates"][results["eval"]["delivered"]]["estimated_ms"] == min(
        record["estimated_ms"] for record in known.values()
    )


@pytest.mark.nightly
def test_learning_stops_when_the_time_is_up(capsys, model, monkeypatch):
    """Stop the command by its timer in the middle of `collect`, independently of the speed of the machine."""

    def collect_until_the_timer_goes_off(run):
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 600
        signal.raise_signal(ALARM)
        pytest.fail("the block goes on")

    monkeypatch.setattr(stages, "collect", collect_until_the_timer_goes_off)
    done, out, results = optimise(capsys, model, *EDITS, "--seconds", "600")
    assert done.code == 0 and "stopped (the time is up)" in done.err and results["eval"]["delivered"] in METHODS


@pytest.mark.nightly
def test_a_finished_run_gives_the_same_file_without_another_search(capsys, model, monkeypatch):
    _, out, first = optimise(capsys, model, *FAST)
    before = out.read_bytes()
    with dying(monkeypatch, Killed, 0):
        _, out, second = optimise(capsys, model, *FAST)
    assert out.read_bytes() == before and timeless(first["eval"]) == timeless(second["eval"])


class Clockwork:
    """A replacement of `time_model`: timings follow from the model's size, and call `stop_at` calls `then` first."""

    def __init__(self, stop_at: int, then):
        self.calls, self.stop_at, self.then = 0, stop_at, then

    def __call__(self, model, *_) -> Timing:
        self.calls += 1
        if self.calls == self.stop_at:
            self.then()
        nanoseconds = 1000.0 + model.ByteSize() + 500 * len(model.graph.node)
        return Timing(nanoseconds, nanoseconds, nanoseconds, 3)


@pytest.mark.nightly
@pytest.mark.parametrize("why", ["interrupted", *slow("the time is up")])
def test_optimise_stopped_before_the_cost_is_known_writes_the_original_and_can_resume(
    capsys, model, tmp_path, monkeypatch, why
):
    def stop():
        if why == "interrupted":
            signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr(profiled, "time", SimpleNamespace(monotonic=lambda: 1e12))

    def optimised(name: str, clockwork: Clockwork):
        with monkeypatch.context() as patch:
            patch.setattr(profiled, "time_model", clockwork)
            options = (
                "eval.measure_seconds=0", "search.interactions=100", "--seconds", "300", "cost.name=profiled",
                f"cost.database={tmp_path / name}.sqlite",
            )  # fmt: skip
            return optimise(capsys, model, *options, "--run", tmp_path / name)

    first, again, whole = Clockwork(5, stop), Clockwork(0, None), Clockwork(0, None)
    done, out, results = optimised("run", first)
    assert done.code == 0 and f"stopped ({why})" in done.out and "the original is returned" in done.out, done.err
    assert out.read_bytes() == model.read_bytes() and results["eval"]["delivered"] == "original" and first.calls == 5
    monkeypatch.setattr(profiled, "time", time)
    done, out, results = optimised("run", again)
    assert done.code == 0 and tuple(results["search"]["methods"]) == METHODS and results["eval"]["delivered"] in METHODS
    optimised("fresh", whole)
    # At the deadline a timing that has begun is still finished; an interrupt discards it.
    assert whole.calls - again.calls == (4 if why == "interrupted" else 5)


def test_a_time_budget_of_zero_is_refused(capsys, model):
    done, *_ = optimise(capsys, model, "--seconds", "0")
    assert "'optimise.seconds' must be above 0" in done.error


def test_a_record_of_a_receipt_or_a_controller_is_read_again(task, tmp_path):
    for stop in ("carried out", "seconds", "episodes"):
        BestSoFar(task, tmp_path / BEST_SO_FAR_FILE).offer(Candidate("receipt", task.initial, [], 0, 0.0), stop)
        assert [one.name for one in BestSoFar(task, tmp_path / BEST_SO_FAR_FILE).candidates()] == ["receipt"]
