"""Test the comparison of several runs: means and intervals, the tables in every format, and what is not comparable."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_json, write_text
from rlflow.reports.run_comparison import (
    FIGURES,
    candidate_rows,
    interval_text,
    mean_interval,
    read_runs,
    rule_counts,
    summary,
    write_comparison,
)
from tests.commands import in_process
from tests.reports.test_html import Page
from worldmodel.boards import StageWriter, training_curves

EVIL = "<script>alert(1)|x"


def candidate(gain: float, ratio: float | None, rules: dict) -> dict:
    measured = ratio and {
        "ratio": ratio,
        "interval": [ratio - 0.01, ratio + 0.01],
        "verdict": "faster" if ratio < 0.98 else "no difference shown",
    }
    return {
        "estimated_ms": 10 - gain / 10, "estimated_improvement_percent": gain, "measured": measured, "equal": True,
        "substitutions": sum(rules.values()),
        "interactions": 1000, "seconds": 2.0, "rules": rules,
    }  # fmt: skip


TASK = {"task": "rewriting", "shapes": {}, "fix": False, "env": {"max_steps": 60}, "cost": {"name": "analytic"}}


def make_run(
    folder: Path, model: str, seed: int, candidates: dict, controller: str = "ppo", delivered: str = "greedy"
) -> Path:
    """Write the files of a run folder that a comparison reads, and return the folder."""
    write_json(folder / "eval.json", {"candidates": candidates, "delivered": delivered, "seconds": 5.0 + seed})
    write_json(folder / "collect.json", {"seconds": 3.0})
    write_json(
        folder / "model.json",
        {"source": "model.onnx", "sha256": "0", "task": TASK | {"seed": seed}},
    )
    config = {"model": model, "seed": seed, "controller": {"name": controller}, "shapes": {}, "fix": False}
    write_text(folder / "config.yaml", json.dumps(config))
    with StageWriter(folder / "tensorboard" / f"{controller}-1", "train-controller") as writer:
        for step in range(3):
            writer.scalars(step, {"return": seed + step, "value_loss": 0.5})
    return folder


@pytest.fixture
def folders(tmp_path) -> list[Path]:
    made = [
        make_run(tmp_path / f"a{seed}", "somewhere/a.onnx", seed, {
            "controller": candidate(gain, 1 - gain / 200, {"merge": 2 * seed, "fuse": 1}),
            "greedy": candidate(7.0, None, {"fuse": 9}),
        })
        for seed, gain in enumerate([10.0, 12.0, 14.0])
    ]  # fmt: skip
    return [*made, make_run(tmp_path / "b", EVIL, 0, {"greedy": candidate(3.0, 0.99, {"fuse": 4})})]


def test_the_mean_and_its_interval_are_right_for_known_numbers():
    """The mean of 10, 12 and 14 is 12 ± 4.30 · 2/√3 by Student's t with two degrees of freedom."""
    result = mean_interval([10.0, None, 14.0, 12.0])
    assert result["n"] == 3 and result["mean"] == 12.0
    assert result["low"] == pytest.approx(12 - 4.30 * 2 / 3**0.5) and result["high"] == pytest.approx(
        12 + 4.30 * 2 / 3**0.5
    )
    assert mean_interval([5.0]) == {"n": 1, "mean": 5.0, "low": None, "high": None}
    assert mean_interval([None]) == {"n": 0, "mean": None, "low": None, "high": None}
    many = mean_interval([0.0, 2.0] * 50)
    assert many["high"] - many["mean"] == pytest.approx(2.23 * (100 / 99) ** 0.5 / 10)
    assert [interval_text(mean_interval(v), 1) for v in ([], [5.0], [10.0, 14.0])] == [
        "–",
        "5.0",
        "12.0 (-13.4 – 37.4)",
    ]


def test_runs_are_summarised_by_model_and_controller_with_estimates_kept_separate(folders):
    runs = read_runs(folders, training_curves)
    result = {
        (e["model"], e["controller"], e["candidate"]): e
        for e in summary([row for run in runs for row in candidate_rows(run)])
    }
    assert sorted(result) == [(EVIL, "none", "greedy"), ("a.onnx", "ppo", "controller"), ("a.onnx", "ppo", "greedy")]
    learned, greedy = result["a.onnx", "ppo", "controller"], result["a.onnx", "ppo", "greedy"]
    assert learned["runs"] == 3 and learned["estimated_percent"] == mean_interval([10.0, 12.0, 14.0])
    assert learned["measured_percent"]["mean"] == pytest.approx(6.0) and learned["verdicts"] == {"faster": 3}
    assert greedy["measured_percent"]["n"] == 0 and greedy["verdicts"] == {}


def test_runs_of_one_controller_with_other_options_are_not_averaged(folders):
    changed, held = folders[1] / "config.yaml", json.loads((folders[1] / "config.yaml").read_text())
    for path in folders[:2]:
        config = json.loads((path / "config.yaml").read_text())
        config["controller"] |= {"ppo": {"updates": 9}, "cma-es": {"population": 4}, "seed": config["seed"]}
        write_text(path / "config.yaml", json.dumps(config | {"dream": {"max_steps": 50}}))
    read_runs(folders[:2], training_curves)
    held = json.loads(changed.read_text())
    for change in ({"controller": held["controller"] | {"ppo": {"updates": 7}}}, {"dream": {"max_steps": 20}}):
        write_text(changed, json.dumps(held | change))
        with pytest.raises(RLFlowError, match="averaged: the option '(controller.ppo.updates|dream.max_steps)'"):
            read_runs(folders[:2], training_curves)
    tagged = {"controller": held["controller"] | {"ppo": {"updates": 7}, "tag": "short"}}
    write_text(changed, json.dumps(held | tagged))
    assert [run.controller for run in read_runs(folders[:2], training_curves)] == ["ppo", "ppo-short"]


def test_a_run_is_named_after_the_experiment_whose_result_it_shows(folders):
    """The stored config may be that of an experiment which was begun after the evaluation."""
    outcome = json.loads((folders[0] / "eval.json").read_text())
    rows = [{"experiment": "cma-es", "cost": 3.0}, {"experiment": "planner-quick", "cost": 2.0}]
    write_json(folders[0] / "eval.json", outcome | {"experiments": rows})
    (run,) = read_runs(folders[:1], training_curves)
    assert run.controller == "planner-quick" and run.options == {}


def test_the_heatmap_counts_the_rules_of_the_controller_or_of_the_delivered_candidate(folders):
    counts = rule_counts(read_runs(folders, training_curves))
    assert counts == {("fuse", "a.onnx"): 1.0, ("merge", "a.onnx"): 2.0, ("fuse", EVIL): 4.0}


def test_the_tables_are_the_same_after_a_round_trip_through_csv_and_json(tmp_path, folders):
    result = write_comparison(tmp_path / "out", read_runs(folders, training_curves))
    assert read_json(tmp_path / "out" / "comparison.json") == result
    for name in ("runs", "times", "rules"):
        with open(tmp_path / "out" / f"{name}.csv", encoding="utf-8", newline="") as file:
            back = list(csv.DictReader(file))
        assert (
            back == [{key: "" if value is None else str(value) for key, value in row.items()} for row in result[name]]
            and back
        )
        assert all(
            float(b[key]) == row[key]
            for b, row in zip(back, result[name], strict=True)
            for key in row
            if type(row[key]) is float
        )
    assert len(result["summary"]) == 3
    with open(tmp_path / "out" / "summary.csv", encoding="utf-8", newline="") as file:
        for back, entry in zip(csv.DictReader(file), result["summary"], strict=True):
            assert all(
                back[f"{f}.{part}"] == ("" if v is None else str(v)) for f in FIGURES for part, v in entry[f].items()
            )


def test_the_report_holds_every_figure_and_no_script(tmp_path, folders):
    result = write_comparison(tmp_path / "out", read_runs(folders, training_curves))
    page = (tmp_path / "out" / "report.html").read_text()
    for entry in result["summary"]:
        for text in (
            interval_text(entry["estimated_percent"]),
            interval_text(entry["measured_percent"]),
            interval_text(entry["seconds"], 1),
        ):
            assert text in page
    assert "12.00 (7.03 – 16.97)" in page and "6.00 (3.52 – 8.48)" in page and "3 faster" in page
    assert not Page(page).all("script") and Page(page).all("section")
    for plot in ("gains.png", "rules.png", "curve-0.png"):
        assert (tmp_path / "out" / plot).read_bytes().startswith(b"\x89PNG")
    assert len(Page(page).all("svg")) == 4 and "value_loss" not in page
    title = "return (reward) by environment steps, a.onnx"
    assert title in [text for _, text in Page(page).all("h3")]
    (chart,) = [text for attributes, text in Page(page).all("svg") if attributes["aria-label"] == title]
    assert "environment steps" in chart and "reward" in chart and "return" not in chart


def test_a_long_model_name_hides_neither_candidates_nor_curves(tmp_path):
    long = "long" * 30 + ".onnx"
    candidates = {name: candidate(3.0, None, {}) for name in ("controller", "greedy")}
    run = make_run(tmp_path / "run", long, 0, candidates)
    write_comparison(tmp_path / "out", read_runs([run], training_curves))
    page = Page((tmp_path / "out" / "report.html").read_text())
    charts = {attributes["aria-label"]: text for attributes, text in page.all("svg")}
    names = charts["improvement of each candidate of each model"]
    assert "…: ppo" in names and "…: greedy (beside ppo)" in names
    assert f"return (reward) by environment steps, {long}" in charts


def test_a_config_does_not_show_the_environment(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SECRET_OF_THE_USER", "hunter2")
    run = make_run(tmp_path / "run", "${oc.env:SECRET_OF_THE_USER}", 0, {"greedy": candidate(3.0, None, {})})
    write_comparison(tmp_path / "out", read_runs([run], training_curves))
    assert all("hunter2" not in path.read_text(errors="replace") for path in (tmp_path / "out").glob("*.*"))
    (run / "config.yaml").write_text("model: [")
    with pytest.raises(RLFlowError, match="is damaged"):
        read_runs([run], training_curves)


def test_runs_that_cannot_be_compared_are_refused(folders, tmp_path, capsys):
    def refused(*runs) -> str:
        with pytest.raises(RLFlowError) as caught:
            read_runs(list(runs), training_curves)
        return str(caught.value)

    assert "named twice" in refused(folders[0], folders[0].parent / "." / folders[0].name)
    shutil.copytree(folders[0], tmp_path / "other")
    identity = read_json(tmp_path / "other" / "model.json")
    identity["task"]["cost"]["name"] = "profiled"
    write_json(tmp_path / "other" / "model.json", identity)
    assert "'cost' differs" in refused(folders[1], tmp_path / "other")
    outcome = read_json(folders[0] / "eval.json")
    rules = {name: one | {"rules": "relu-relu"} for name, one in outcome["candidates"].items()}
    for damaged in ({"candidates": {"greedy": {}}}, outcome | {"candidates": rules}, outcome | {"delivered": []}):
        write_json(tmp_path / "other" / "eval.json", damaged)
        assert "is damaged" in refused(tmp_path / "other")
    write_json(tmp_path / "other" / "eval.json", outcome)
    for folder, sha256 in ((folders[0], "1"), (tmp_path / "other", "2")):
        file = {"source": "/models/model.onnx", "sha256": sha256}
        write_json(folder / "model.json", read_json(folders[0] / "model.json") | file)
    assert "different models of the name" in refused(folders[0], tmp_path / "other")
    identity["task"]["task"] = "ordering"
    write_json(tmp_path / "other" / "model.json", identity)
    assert "a run of the task ordering" in refused(tmp_path / "other")
    done = in_process(capsys, "report", tmp_path / "none", "--out", tmp_path / "out")
    assert "has no finished 'eval'" in done.error


def test_the_report_command_writes_all_files_into_its_folder(folders, tmp_path, capsys):
    done = in_process(capsys, "report", *folders, "--out", tmp_path / "out", "--json", tmp_path / "r.json")
    assert done.code == 0 and "report.html" in done.out
    assert json.loads((tmp_path / "r.json").read_text()) == read_json(tmp_path / "out" / "comparison.json")
    assert in_process(capsys, "report", *folders, "--out", tmp_path / "out").code == 0  # the folder may already exist
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "comparison.json", "runs.csv", "summary.csv", "times.csv", "rules.csv", "report.html", "gains.png",
        "rules.png", "curve-0.png", "curve-1.png",
    }  # fmt: skip
