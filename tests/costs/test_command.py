"""`run.py costs`: the timings that are kept, shown, written as a table, deleted, learned from."""

import csv
import json

import onnxruntime
import pytest

from rlflow.costs.corrected import Correction, correction_path
from rlflow.costs.database import TimingDatabase
from rlflow.costs.timing import Timing
from rlflow.graph.onnx_runtime import machine
from tests.commands import in_process


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "costs.sqlite"
    kept = TimingDatabase(path)
    for name, threads in (
        ("('','Conv',17,())", 1),
        ("('','Conv',17,()) + ('','Relu',17,())", 1),
        ("('','Conv',17,())", 2),
    ):
        kept.store(name, threads, Timing(3000.0 * threads, 2000.0, 9000.0, 5))
    return path


def test_show_counts_the_timings_of_each_operator(capsys, database):
    done = in_process(capsys, "costs", "show", "--database", database, "--threads", "1")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.out.splitlines()[2:]]
    assert [(row[0], row[1], row[4], row[5]) for row in rows] == [
        ("Conv", "1", "1", "3.0"),
        ("Conv + Relu", "1", "1", "3.0"),
    ]


def test_export_writes_every_timing(capsys, database, tmp_path):
    for name in ("timings.csv", "timings.json"):
        assert in_process(capsys, "costs", "export", "--database", database, tmp_path / name).code == 0
    rows = list(csv.DictReader((tmp_path / "timings.csv").open()))
    written = json.loads((tmp_path / "timings.json").read_text())
    assert [float(row["median_ns"]) for row in rows] == [row["median_ns"] for row in written["timings"]]
    assert (written["machine"], written["onnxruntime"]) == (machine(), onnxruntime.__version__)
    assert len(rows) == 3
    done = in_process(capsys, "costs", "export", "--database", database, tmp_path / "timings.txt")
    assert "must end in .json (for `costs import`) or .csv" in done.error


def test_clear_deletes_what_is_chosen_and_all_only_when_asked(capsys, database):
    assert in_process(capsys, "costs", "clear", "--database", database).code == 1
    assert len(TimingDatabase(database).rows()) == 3
    assert in_process(capsys, "costs", "clear", "--database", database, "--threads", "2").code == 0
    assert [row["threads"] for row in TimingDatabase(database).rows()] == [1, 1]
    assert in_process(capsys, "costs", "clear", "--database", database, "--yes").code == 0
    assert TimingDatabase(database).rows() == []


def test_fit_learns_the_factor_of_a_kind(capsys, tmp_path):
    graphs = {
        name: {
            "graphs": [
                {"parts_ps": {"Conv": 10**9 * (k + size)}, "launches": 3, "measured_ms": 1.5 * (k + size)}
                for k in range(3)
            ]
        }
        for name, size in (("one", 1), ("two", 4))
    }
    measured = tmp_path / "cost_trust.json"
    written = {
        "figures": {"models": graphs, "threads": 1},
        "machine": machine(),
        "versions": {"onnxruntime": onnxruntime.__version__},
    }
    measured.write_text(json.dumps(written))
    done = in_process(capsys, "costs", "fit", measured, "--database", tmp_path / "costs.sqlite")
    assert done.code == 0 and "6 graphs of 2 models" in done.ending["result"]
    result = Correction.load(correction_path(1, tmp_path / "costs.sqlite"))
    assert result.factors["Conv"] == pytest.approx(1.5, rel=0.01)
