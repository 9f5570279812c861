"""What the bars of orders and rewrites ask: each one fails if, and only if, its own condition is broken."""

from copy import deepcopy

import pytest

from benchmarks.irregular import NETWORKS
from benchmarks.memory_rewrites import BARE, DEFAULTS, IRREGULAR, USUAL, bars, order_table, rewrites_table

MB = 1_000_000
PEAK, PREDICTION, LATENCY, BITS, FURTHER, FAILED = range(6)


def result(usual: float, peak: float) -> dict:
    """MB."""
    usual, peak = round(usual * MB), round(peak * MB)
    return {
        "written": peak < usual, "usual": usual, "peak": peak, "bound": peak, "rules": None, "setup": DEFAULTS,
        "resident": {DEFAULTS: [2 * usual, 2 * peak], BARE: [usual, peak]}, "latency": 1.01 if peak < usual else None,
    }  # fmt: skip


@pytest.fixture
def figures() -> dict:
    names = (*IRREGULAR, "unet")
    rewritten = {name: result(10, 6.2 if name in IRREGULAR[:3] else 7) for name in names}
    return {"ordered": {name: result(10, 7) for name in names}, "rewritten": rewritten}


def broken(figures: dict) -> list[int]:
    """Which bars do not hold."""
    return [k for k, one in enumerate(bars(figures)) if not one["holds"]]


def of(figures: dict, name: str = IRREGULAR[0], part: str = "ordered") -> dict:
    return figures[part][name]


def test_all_hold_where_all_is_as_wanted(figures):
    assert broken(figures) == []
    assert [one["value"] for one in bars(figures)] == [pytest.approx(0.7), 7, 1.01, 7, 3, 0]


def worse_peaks(figures):
    figures["ordered"] |= {name: result(10, 8.1) for name in IRREGULAR}


def one_bad_peak(figures):
    figures["ordered"][IRREGULAR[0]] = result(10, 10)  # nothing to gain, which others make up for


def more_than_predicted_before(figures):
    of(figures)["resident"][BARE][0] *= 1.11


def less_than_predicted_after(figures):
    of(figures)["resident"][BARE][1] *= 0.89


def not_measured(figures):
    of(figures)["resident"][BARE] = [None, None]


def slower(figures):
    of(figures)["latency"] = 1.021


def faster(figures):
    of(figures)["latency"] = 0.979


def a_gain_that_was_not_written(figures):
    of(figures)["written"] = False


def less_by_rewriting(figures):
    figures["rewritten"][IRREGULAR[0]]["peak"] = round(6.4 * MB)


def failed_in_order(figures):
    figures["ordered"]["hrnet"] = {"error": 1}


def failed_rewritten(figures):
    figures["rewritten"]["unet"] = {"error": 1}


def another_networks_order(figures):
    figures["ordered"]["unet"] = result(10, 10) | {"resident": {BARE: [MB, MB], DEFAULTS: [MB, MB]}, "latency": 2}


@pytest.mark.parametrize("change, fail", [
    (worse_peaks, [PEAK]), (one_bad_peak, []), (more_than_predicted_before, [PREDICTION]),
    (less_than_predicted_after, [PREDICTION]), (not_measured, [PREDICTION]), (slower, [LATENCY]), (faster, [LATENCY]),
    (a_gain_that_was_not_written, [BITS]), (less_by_rewriting, [FURTHER]),
    (failed_in_order, [PEAK, PREDICTION, LATENCY, BITS, FAILED]), (failed_rewritten, [FAILED]),
    (another_networks_order, []),
])  # fmt: skip
def test_each_bar_fails_for_its_own_reason(figures, change, fail):
    before = deepcopy(figures)
    change(figures)
    assert figures != before
    if change is one_bad_peak or change is worse_peaks:
        figures["rewritten"] = before["rewritten"] | {name: result(10, 5) for name in IRREGULAR}
    assert broken(figures) == fail


def test_bars_of_irregular_networks_ask_for_all_of_them(figures):
    del figures["ordered"]["training"]
    assert broken(figures) == [PEAK, PREDICTION, LATENCY, BITS]
    assert broken({"ordered": {}, "rewritten": {}}) == [PEAK, PREDICTION, LATENCY, BITS, FURTHER]


def test_all_that_is_judged_is_run():
    assert set(IRREGULAR) < set(NETWORKS) and not set(USUAL) & set(NETWORKS)


def test_tables_show_what_is_left_with_the_defaults_and_what_failed(figures):
    figures["ordered"]["hrnet"] = {"error": 1}
    rows = order_table(figures).splitlines()
    assert "| 20.000 → 14.000 |" in rows[2] and "| 10.000 → 7.000 | 0.0, 0.0 |" in rows[2]
    for table in (order_table, rewrites_table):
        counts = {line.count("|") for line in table(figures).splitlines()}
        assert len(counts) == 1
        assert any(line.startswith("| hrnet | –") for line in table(figures).splitlines())
