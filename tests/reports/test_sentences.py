"""Test the sentences about a delivery: they separate measurements from estimates and claim no more than was shown."""

import copy
import re

import pytest

from rlflow.optimisation.repair import write_fault_report
from rlflow.reports.sentences import certainty_line, measured_text, summary_line
from tests.commands import LAST_LINES, last_lines_hold

MEASURED = {
    "ratio": 0.847, "interval": [0.8456, 0.8484], "verdict": "faster", "original_ms": 2.0, "candidate_ms": 1.694,
    "side_by_side": True, "pairs": 60, "sessions": 6, "threads": 2,
}  # fmt: skip
CANDIDATE = {
    "estimated_ms": 7.5, "estimated_improvement_percent": 25.0, "equal": True, "max_relative_error": 3.2e-7,
    "findings": [{"ok": True}] * 20, "same_as": None, "measured": MEASURED,
}  # fmt: skip


def outcome(delivered: str = "beam", **changes) -> dict:
    candidate = copy.deepcopy(CANDIDATE)
    candidate["measured"] |= changes
    return {"candidates": {"beam": candidate}, "delivered": delivered, "reason": "no gain was found"}


def test_the_measured_gain_is_stated_with_its_interval_and_apart_from_the_estimate():
    assert summary_line(outcome()) == (
        "Measured 15.3 % faster (0.847 of the original's latency, 95 % interval 0.846 to 0.848; 2.000 → 1.694 ms); "
        "estimated 25.0 % faster, found by beam."
    )
    assert certainty_line(outcome()) == (
        "20 checks of equality passed, largest relative error of an output 3.2e-07; 60 pairs of runs in 6 sessions "
        "with 2 threads."
    )


def test_uncompared_outputs_and_fixed_sizes_are_stated():
    result = outcome()
    checked = [{"ok": True, "compared": True, "fixed": ["batch = 1"]}] * 2 + [{"ok": True, "compared": False}]
    result["candidates"]["beam"] |= {"findings": checked, "max_relative_error": None}
    assert certainty_line(result) == (
        "2 checks of equality passed, 1 could not be compared; accepts only batch = 1; 60 pairs of runs in 6 sessions "
        "with 2 threads."
    )
    result["candidates"]["beam"] |= {"findings": [], "max_relative_error": 0.0, "same_as": "original"}
    assert certainty_line(result) == "It is the original: nothing to compare."


@pytest.mark.parametrize(
    "verdict, ratio, said",
    [("slower", 1.2, "measured 20.0 % slower (1.200"), ("faster", 0.9, "measured 10.0 % faster (0.900")],
)
def test_a_slowdown_is_worded_like_a_speed_up(verdict, ratio, said):
    assert measured_text(MEASURED | {"verdict": verdict, "ratio": ratio}).startswith(said)


def test_no_percentage_is_claimed_if_no_difference_is_shown():
    said = summary_line(outcome(verdict="no difference shown", ratio=0.98))
    assert said.startswith("Measured, no difference shown (0.980 of the original's latency, 95 % interval")
    assert "2.0 %" not in said


def test_a_delivery_without_a_gain_states_its_reason():
    said = summary_line(outcome(verdict="no difference shown", ratio=0.998) | {"reason": "it is smaller"})
    assert said.endswith(" Delivered for this reason: it is smaller.")
    assert "reason" not in summary_line(outcome())


def test_a_loss_within_the_margin_is_not_called_no_difference():
    loss = {"verdict": "no difference shown", "ratio": 1.013, "interval": [1.002, 1.020]}
    assert measured_text(MEASURED | loss).startswith("measured, if anything slower (1.013")
    assert "no difference" in measured_text(MEASURED | loss | {"interval": [0.998, 1.020]})


def test_an_unmeasured_result_is_called_an_estimate():
    result = outcome()
    result["candidates"]["beam"]["measured"] = None
    assert summary_line(result) == "Estimated 25.0 % faster, found by beam; not measured."
    assert certainty_line(result).endswith("; no measurement.")


def test_the_summary_says_why_the_original_is_returned():
    result = outcome("original", verdict="slower", ratio=1.1)
    assert summary_line(result) == "No gain: no gain was found; the original is returned."
    # the reason why the candidate was not delivered
    assert certainty_line(result).startswith("beam: measured 10.0 % slower (1.100")
    assert certainty_line(result | {"candidates": {}}) == "The file is the original, unchanged."


def table_of_faults(message: str, path) -> str:
    left_out = {"step": 0, "rule": "r", "location": 0, "blame": "rule", "message": message}
    write_fault_report(path, "model", "machine", {}, {"beam": {"left_out": [left_out]}}, [])
    return path.read_text()


def test_a_hostile_name_stays_in_one_table_cell_without_links(tmp_path):
    name = "a|b\\|c\r\nd ![](http://x/y.png) <img src=http://x>"
    plain, hostile = (table_of_faults(f"output '{text}' parts", tmp_path / "report.md") for text in ("y", name))
    active = re.compile(r"(?<!\\)(?:\\\\)*[|<\[!]")  # an active character without an escape
    assert len(hostile.splitlines()) == len(plain.splitlines())
    assert [active.findall(line) for line in hostile.splitlines()] == [
        active.findall(line) for line in plain.splitlines()
    ]


def test_the_demo_check_requires_every_one_of_the_last_lines():
    lines = [
        "a search has ended", f"result:  {summary_line(outcome())}", f"sure:    {certainty_line(outcome())}",
        "model:   runs/demo/faster.onnx", "report:  runs/demo/eval/report.html",
        "next:    .venv/bin/python run.py validate light_densenet121 runs/demo/faster.onnx",
    ]  # fmt: skip
    assert last_lines_hold(lines)
    for missing in range(1, LAST_LINES + 1):
        assert not last_lines_hold(lines[:missing] + lines[missing + 1 :])
