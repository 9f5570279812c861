"""How often `time_model` runs a kernel, on a clock that only the runs move."""

from types import SimpleNamespace

import pytest

from rlflow.costs import timing
from rlflow.costs.timing import MIN_REPEATS, SESSIONS, WARM_UPS, empty_model, time_model


@pytest.fixture
def runs(monkeypatch):
    """Return a function from milliseconds of a run to the number of runs of each session, for a budget of 20 ms."""
    nanoseconds, made = 0, []

    def bound(*_):
        session = len(made)
        made.append(0)

        def run():
            nonlocal nanoseconds
            made[session] += 1
            nanoseconds += round(1e6 * milliseconds)

        return run

    milliseconds = 0.0
    clock = SimpleNamespace(
        perf_counter=lambda: nanoseconds / 1e9, perf_counter_ns=lambda: nanoseconds, thread_time_ns=lambda: nanoseconds
    )
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(timing, "_bound", bound)

    def of(each: float) -> list[int]:
        nonlocal milliseconds
        made.clear()
        milliseconds = each
        assert time_model(empty_model(), 1, 20.0).median == each * 1e6
        return list(made)

    return of


def test_a_kernel_slower_than_its_budget_runs_once_and_is_then_timed(runs):
    assert runs(150) == [1 + MIN_REPEATS]


def test_a_kernel_gets_no_more_sessions_than_runs_in_its_budget(runs):
    assert len(runs(6)) == 3
    assert min(runs(6)) > WARM_UPS


def test_a_fast_kernel_is_warmed_up_and_timed_in_all_sessions(runs):
    made = runs(0.1)
    assert len(made) == SESSIONS
    assert sum(made) * 0.1 >= 20 + SESSIONS * WARM_UPS * 0.1
