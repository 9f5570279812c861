"""Test `run.py costs`: its subcommands show, export, delete and learn from stored timings."""

import csv
import json

import onnxruntime
import pytest

from rlflow.costs import prior_training
from rlflow.costs.database import TimingDatabase
from rlflow.costs.predicted import prior_path
from rlflow.costs.prior import Prior
from rlflow.costs.timing import Timing
from rlflow.graph.onnx_runtime import machine
from tests.commands import in_process
from tests.costs.priors import timing_of, with_speeds


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
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.out.splitlines()[2:] if line[:1] == "|"]
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


def test_clear_deletes_the_chosen_timings_and_deletes_all_only_with_yes(capsys, database):
    assert in_process(capsys, "costs", "clear", "--database", database).code == 1
    assert len(TimingDatabase(database).rows()) == 3
    assert in_process(capsys, "costs", "clear", "--database", database, "--threads", "2").code == 0
    assert [row["threads"] for row in TimingDatabase(database).rows()] == [1, 1]
    assert in_process(capsys, "costs", "clear", "--database", database, "--yes").code == 0
    assert TimingDatabase(database).rows() == []


def test_train_makes_a_prior_beside_the_database_from_several_machines(capsys, tmp_path, monkeypatch):
    pytest.importorskip("lightgbm")
    monkeypatch.setattr(prior_training, "ROUNDS", 5)
    monkeypatch.setattr(prior_training, "ERROR_ROUNDS", 2)
    databases = [with_speeds(tmp_path / name) for name in ("here.sqlite", "there.sqlite")]
    for database in databases:
        for size in range(20, 60):
            kind = f"(1,({size},{size}))"
            name = f"((('','Exp',17,(),(({kind},False,None)),({kind}))),())"
            database.store(name, 1, timing_of(1e5 * size * size))
    words = ("costs", "train", "--database", databases[0].path, "--also", databases[1].path)
    done = in_process(capsys, *words, "--json", tmp_path / "facts.json")
    assert done.code == 0 and "learned from 80 kernels of 1 machine" in done.out and "80 % intervals" in done.out
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["kernels"] == 80 and facts["threads"] == [1]
    assert Prior.load(prior_path(databases[0].path)).facts == facts
    done = in_process(capsys, "costs", "train", "--database", tmp_path / "empty.sqlite")
    assert done.code == 1 and "0 timed kernels are too few" in done.error


def test_a_database_without_machine_speeds_trains_no_prior(capsys, database):
    done = in_process(capsys, "costs", "train", "--database", database)
    assert done.code == 1 and "costs calibrate --threads 1" in done.error
