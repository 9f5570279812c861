"""Test the pages in a headless browser: the first screen shows the main parts, and nothing is cut off.

The check itself is tested, too: it sees elements that are cut off.
"""

from pathlib import Path

import pytest

from rlflow.common.errors import RLFlowError
from rlflow.reports.html import write_html
from rlflow.reports.markup import Safe, page, tag
from rlflow.reports.run_comparison import read_runs, write_comparison
from rlflow.search.descents import greedy
from tests.reports.screens import PARTS, SCREENS, browser, look, on_screen, small
from tests.reports.test_html import MEASURED, results_of, walk
from tests.reports.test_run_comparison import candidate, make_run
from tests.suite import at_night, slow
from tests.toys.tiny import tiny_task
from worldmodel.boards import read_curves


@pytest.fixture(scope="module")
def opened():
    try:
        with browser() as one:
            yield one
    except RLFlowError as error:
        at_night(pytest.fail, pytest.skip)(str(error))


def report(folder: Path, model: str) -> Path:
    """Write the report of a measured run of a tiny model, where some early steps raise the cost; return its path."""
    task = tiny_task(model)
    searched = [tuple(map(int, action)) for action in greedy(task.initial, 100, 60.0).actions]
    results = results_of(task, {"controller": walk(task, 20, 3), "greedy": searched}, model=model)
    for one in results["eval"]["candidates"].values():
        one["measured"] = MEASURED
    return write_html(folder, results, task)


@pytest.mark.parametrize("model", ["tiny_bert_base", *slow("tiny_resnet50", "tiny_inception_v3")])
def test_the_first_screen_of_a_report_shows_all_main_parts_and_nothing_is_cut_off(opened, tmp_path, model):
    for result in look(opened, report(tmp_path, model)).values():
        assert result["page_width"] <= result["width"] and result["cut_off"] == []
        assert result["shown"] == dict.fromkeys(PARTS, True)


def test_the_report_of_a_run_is_not_cut_off(opened, optimised):
    for result in look(opened, optimised / "run" / "eval" / "report.html").values():
        assert result["page_width"] <= result["width"] and result["cut_off"] == []
        assert result["shown"]["the answer"] and result["shown"]["the rewrites"]


def test_a_comparison_page_is_not_cut_off(opened, tmp_path):
    candidates = {"controller": candidate(3.0, 0.95, {"a-rule": 3}), "greedy": candidate(30.0, 0.7, {"a-rule": 31})}
    runs = [make_run(tmp_path / f"run-{k}", f"{'long' * 30}-{k % 4}.onnx", k, candidates) for k in range(8)]
    write_comparison(tmp_path / "out", read_runs(runs, read_curves))
    for result in look(opened, tmp_path / "out" / "report.html").values():
        assert result["page_width"] <= result["width"] and result["cut_off"] == []


ALL_PARTS = (
    tag("p", "answer", id="answer"), tag("p", "rewrites", id="rewrites"), tag("p", "drawing", class_="telling")
)  # fmt: skip
WRONG = {
    "too wide": Safe('<table style="width:2000px; max-width:none"><tr><td>x</td></tr></table>'),
    "must be scrolled": Safe('<div style="overflow-x:auto; width:300px"><div style="width:350px">x</div></div>'),
    "hidden": Safe('<div style="overflow:hidden; width:300px"><div style="width:350px">x</div></div>'),
    "folded": Safe('<details><summary>s</summary><div style="width:2000px">x</div></details>'),
    "a label": Safe('<svg viewBox="0 0 100 20" width="100"><text x="80" y="10">a label that is cut off</text></svg>'),
}


def seen(opened, folder: Path, *content) -> dict[str, dict]:
    path = folder / "page.html"
    path.write_text(page("a page", *content))
    return look(opened, path)


def test_a_page_without_cut_off_parts_is_not_blamed(opened, tmp_path):
    for result in seen(opened, tmp_path, *ALL_PARTS).values():
        assert result["cut_off"] == [] and all(result["shown"].values())


@pytest.mark.parametrize("wrong", WRONG)
def test_content_that_is_too_wide_or_cut_off_is_detected(opened, tmp_path, wrong):
    for result in seen(opened, tmp_path, *ALL_PARTS, WRONG[wrong]).values():
        assert result["cut_off"], wrong
        assert (result["page_width"] > result["width"]) == (wrong in ("too wide", "folded"))


def test_parts_that_are_missing_or_below_the_first_screen_are_detected(opened, tmp_path):
    answer, rewrites, drawing = ALL_PARTS
    low = Safe(f'<div style="margin-top:2000px">{drawing}</div>')
    for result in seen(opened, tmp_path, answer, low).values():
        assert result["shown"] == {"the answer": True, "the rewrites": False, "a drawing": False}


def test_a_box_partly_beyond_an_edge_is_not_on_the_screen():
    box = {"left": 0, "top": 0, "right": 10, "bottom": 10}
    assert on_screen(box, 10, 10) and not on_screen(None, 10, 10)
    for edge, value in (("left", -1), ("top", -1), ("right", 11), ("bottom", 11), ("right", 0)):
        assert not on_screen(box | {edge: value}, 10, 10)


def test_a_screenshot_is_compressed_and_has_the_size_of_the_screen(opened, tmp_path):
    import io

    from PIL import Image

    picture = look(opened, report(tmp_path, "tiny_resnet50"))["wide"]["picture"]
    made = small(picture)
    assert Image.open(io.BytesIO(made)).size == SCREENS["wide"] and len(made) < min(len(picture), 150_000)
