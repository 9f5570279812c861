"""After its deadline, no loop of `optimise` takes more than one further step."""

import math
import time

import pytest

from benchmarks.shapes import MODELS
from rlflow.costs import TimeIsUp
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.batched import start_of
from rlflow.env.state import RewriteState, Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.optimisation.ablation import Rewrites, pruned, shares
from rlflow.optimisation.candidates import Candidate
from rlflow.optimisation.contest import compete, contenders
from rlflow.optimisation.delivery import _runtimes_along
from rlflow.optimisation.repair import repaired
from rlflow.optimisation.validate.findings import Finding, Findings
from rlflow.reports.regions import trace
from rlflow.rules.language import load_rules
from rlflow.search.base import Limits, run_search

LONG_AGO = 0.0  # a time of time.monotonic() that has passed


@pytest.fixture(scope="module")
def found() -> tuple[Task, Candidate]:
    task = Task(load_graph(MODELS["chain"](100)), load_rules(), AnalyticCost())
    result = run_search("greedy", start_of(task, "batched"), max_steps=50)
    assert len(result.actions) >= 20
    return task, Candidate("greedy", result.state, result.actions, 1, 0.0)


@pytest.fixture
def steps(monkeypatch) -> list[int]:
    """Return a list to which the rule of every further rewrite is appended."""
    made, follow = [], RewriteState.follow

    def counted(state, match):
        made.append(match.xfer_id)
        return follow(state, match)

    monkeypatch.setattr(RewriteState, "follow", counted)
    return made


def test_a_batched_move_is_followed_only_up_to_the_deadline(found):
    task, whole = found
    now = 0

    def clock() -> float:
        return now

    class Bar:
        def update(self, n: int) -> None:
            nonlocal now
            now = 100

        def set_postfix_str(self, *_, **__) -> None:
            pass

    result = run_search(
        "greedy", start_of(task, "batched"), Limits(seconds=50), progress=Bar(), clock=clock, max_steps=50
    )
    assert result.stop == "seconds" and len(result.actions) <= 1

    ticks = iter(range(10_000))
    result = run_search("greedy", start_of(task, "batched"), Limits(400), clock=lambda: next(ticks), max_steps=50)
    state = task.initial
    for action in result.actions:
        state = state.apply(*action)
    assert state.hash == result.state.hash and len(result.actions) <= len(whole.actions)


def test_pruning_and_gains_by_group_do_nothing_after_the_deadline(found, steps):
    task, candidate = found
    assert pruned(task, candidate, -1.0) is candidate
    assert shares(task, candidate, -1.0) == []
    assert not steps
    rewrites = Rewrites(task, candidate.actions)
    rewrites.end = LONG_AGO
    steps.clear()
    with pytest.raises(TimeIsUp):
        rewrites.without(())
    assert not steps


def test_no_contender_is_made_or_measured_after_the_deadline(found, steps, tmp_path):
    task, candidate = found
    entered = contenders(task, [candidate], [candidate], {}, LONG_AGO)
    assert [one.candidate for one in entered] == [candidate] and not steps
    assert compete(tmp_path / "missing.onnx", entered * 2, {}, 1, 0, LONG_AGO, None).ranked == [candidate] * 2


def test_the_search_for_a_fault_makes_only_one_comparison_after_the_deadline(found):
    task, candidate = found
    wrong, compared = Findings([Finding("numerics", False, "wrong")]), []

    def compare(state):
        compared.append(state)
        return wrong

    result = repaired(task, candidate.actions, compare, LONG_AGO)
    assert len(compared) == 1 and not result.findings.ok
    compared.clear()
    repaired(task, candidate.actions, compare, math.inf)
    assert len(compared) > 1


def test_reports_show_only_the_start_of_a_path_after_the_deadline(found, steps):
    task, candidate = found
    assert trace(task, candidate.actions, LONG_AGO) == (task.initial, [])
    assert len(list(_runtimes_along(task, candidate, LONG_AGO))) == 2 and not steps
    whole = list(_runtimes_along(task, candidate, time.monotonic() + 1000))
    assert len(whole) == len(candidate.actions) + 1 and whole[-1] == candidate.state.runtime_ms
