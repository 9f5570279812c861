"""Test the uncertainty of estimates: equal kernels err together, others independently, and shared kernels cancel."""

import math
from zlib import crc32

import pytest

from rlflow.costs import EXACT, graph_cost, graph_spread
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.at_sizes import AtSizes
from rlflow.costs.profiled import OVERHEAD, ProfiledCost
from rlflow.costs.timing import BETWEEN_SESSIONS, Timing
from tests.costs.graphs import graph
from tests.costs.test_at_sizes import SIZES, symbolic
from tests.toys.tiny import tiny_task


def planted(self, name: str, build, moved=None) -> Timing:
    """Return a timing that follows from the name, plus `moved[name]` nanoseconds; an empty run is short."""
    median = (1000 + crc32(name.encode()) % 100_000) if name != OVERHEAD else 500
    shift = (moved or {}).get(name, 0.0)
    return Timing(median + shift, 0.98 * median, 1.02 * median, 10)


@pytest.fixture
def profiled(tmp_path, monkeypatch) -> ProfiledCost:
    monkeypatch.setattr(ProfiledCost, "_timing", planted)
    return ProfiledCost(tmp_path / "costs.sqlite")


def test_equal_kernels_err_together_others_independently_and_shared_errors_cancel():
    one, other = EXACT.plus({"a": 3}, 1), EXACT.plus({"b": 4}, 1)
    twelve = EXACT.plus(one, 12)
    assert twelve.ps == 12 * one.ps == 36
    both = twelve.plus(other, 1)
    assert both - both == EXACT and (both - twelve).ps == 4 and (one - other).ps == 5


def test_the_uncertainty_of_a_timing_is_at_least_the_difference_between_sessions():
    assert Timing.of([1000] * 10_000).half_width == pytest.approx(1000 * BETWEEN_SESSIONS)
    assert Timing.of([900, 1000, 1100]).half_width == pytest.approx(math.hypot(100, 1000 * BETWEEN_SESSIONS))


def test_a_repeated_timing_is_more_certain_unless_the_two_differ():
    first = Timing(1000.0, 970.0, 1030.0, 10)
    alike = first.combined_with(Timing(1010.0, 980.0, 1040.0, 20))
    assert (alike.median, alike.repeats) == (pytest.approx(1005), 30) and alike.half_width == pytest.approx(30 / 2**0.5)
    assert first.combined_with(Timing(1200.0, 1170.0, 1230.0, 10)).half_width == pytest.approx(100)
    surer = first.combined_with(Timing(1030.0, 1029.0, 1031.0, 10))
    assert 1029 < surer.median < 1030


def test_the_uncertainty_of_a_kernel_combines_its_timing_and_the_empty_run(profiled):
    alike = graph_spread(profiled, graph("g (float[9] x) => (float[9] y) {a = Exp(x) b = Exp(a) y = Exp(b)}"))
    (name,) = alike.keys() - {OVERHEAD}
    assert alike[name] == pytest.approx(3000 * planted(None, name, None).half_width, abs=2)
    assert alike[OVERHEAD] == pytest.approx(-3000 * planted(None, OVERHEAD, None).half_width, abs=2)


@pytest.mark.parametrize("kind", ["profiled", "at sizes"])
def test_an_error_of_one_timing_moves_the_total_as_its_spread_predicts(profiled, kind, monkeypatch):
    g, cost = tiny_task("tiny_bert_base").graph, profiled
    if kind == "at sizes":
        g = symbolic()
        cost = AtSizes(profiled, SIZES, g)
    before, spread = graph_cost(cost, g).runtime_ps, graph_spread(cost, g)
    for name in sorted(spread)[:5]:
        off = {name: planted(None, name, None).half_width}
        monkeypatch.setattr(ProfiledCost, "_timing", lambda self, name, build: planted(None, name, None, off))
        profiled._memo.clear()
        moved = graph_cost(cost, g).runtime_ps - before
        assert moved == pytest.approx(spread[name], rel=0.01, abs=100), name


def test_a_cost_without_timings_has_no_uncertainty():
    assert graph_spread(AnalyticCost(), tiny_task().graph) == EXACT
