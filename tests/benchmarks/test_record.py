"""Test records of results: they state what made them, never mix two states of the code, and fill the pages."""

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks import record
from benchmarks.record import Identity, Record, RecordError, Table, filled_pages, header, index, refill, table_of

IDENTITY = Identity("1.2.3", "a" * 40, "", "a processor with AVX2, 2 cores", {"python": "3.11.0"})


@pytest.fixture
def here(monkeypatch, tmp_path):
    """Set up a checkout in `tmp_path`; return its identity as a list of one element, which a test may replace."""
    identity = [IDENTITY]
    monkeypatch.setattr(record, "current_identity", lambda: identity[0])
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "README.md").write_text("# R\n")
    monkeypatch.setattr("sys.argv", ["toy", "--draft", "--model", "one"])
    return identity


def opened(tmp_path, *arguments: str, **options) -> Record:
    parsed = record.parser("A toy.", seeds=2).parse_args(arguments)
    return Record("toy", argparse.Namespace(**vars(parsed), **options), tmp_path / "runs", tmp_path / "docs")


def double(number: int) -> dict:
    if number < 0:
        raise ValueError("below zero")
    return {"double": 2 * number}


def process(number: int) -> dict:
    return {"process": os.getpid()}


def table(*rows) -> dict:
    return {"main": Table(["model", "ms"], rows or [["one", "2"]])}


def test_a_finished_part_is_not_made_again(here, tmp_path, monkeypatch):
    assert opened(tmp_path).part("one", double, 1, isolated=False) == {"double": 2}
    monkeypatch.setattr(Record, "_make", None)
    assert opened(tmp_path).part("one", double, 1, isolated=False) == {"double": 2}
    assert opened(tmp_path, "--only-finished").part("other", double, 1, isolated=False) is None


def test_a_part_that_was_made_with_other_arguments_is_made_again(here, tmp_path):
    assert opened(tmp_path).part("one", double, 1, isolated=False) == {"double": 2}
    assert opened(tmp_path, "--only-finished").part("one", double, 2, isolated=False) is None
    assert opened(tmp_path).part("one", double, 2, isolated=False) == {"double": 4}


def test_a_part_during_which_the_code_changes_is_not_kept(here, tmp_path):
    def work() -> dict:
        here[0] = replace(IDENTITY, commit="b" * 40)
        return {}

    with pytest.raises(RecordError, match="changed while"):
        opened(tmp_path).part("one", work, isolated=False)
    assert not list((tmp_path / "runs").rglob("*.json"))


def test_a_part_runs_in_its_own_process_and_returns_its_result(here, tmp_path):
    assert opened(tmp_path).part("one", double, 3) == {"double": 6}
    assert opened(tmp_path).part("other", process, 3)["process"] != os.getpid()


def test_the_module_of_a_part_is_found_although_the_main_module_is_replaced(monkeypatch):
    asked = []

    class Process(ThreadPoolExecutor):
        def submit(self, call, *arguments):
            asked.append(arguments)
            return super().submit(dict)

    monkeypatch.setattr(record, "fresh_processes", Process)
    monkeypatch.setattr(record, "MAIN", SimpleNamespace(__spec__=SimpleNamespace(name="benchmarks.toy")))
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.setattr(double, "__module__", "__main__")
    assert record._in_own_process(double, 3) == {} and asked == [("benchmarks.toy", "double", 3)]


def test_a_failed_part_sets_the_status_is_named_in_the_record_and_is_tried_again(here, tmp_path, capsys):
    run = opened(tmp_path)
    assert run.part("good", double, 1, isolated=False) and run.part("bad", double, -1, isolated=False) is None
    assert run.status == 1 and "bad failed: ValueError: below zero" in capsys.readouterr().err
    published = json.loads(run.publish(table(), "A note.").read_text())
    assert published["note"] == "A note. 1 of 2 parts are missing: bad."
    assert opened(tmp_path).part("bad", double, 2, isolated=False) == {"double": 4}


@pytest.mark.parametrize("change", [
    {"commit": "b" * 40}, {"machine": "another processor"}, {"version": "2"}, {"packages": {"python": "3.12.0"}},
])  # fmt: skip
def test_other_code_or_another_machine_begins_a_new_record(here, tmp_path, change):
    old = opened(tmp_path)
    here[0] = replace(IDENTITY, **change)
    assert opened(tmp_path).folder != old.folder
    with pytest.raises(RecordError, match="changed while"):
        old.part("one", double, 1, isolated=False)


def test_a_changed_option_begins_a_new_record_and_more_seeds_continue_a_record(here, tmp_path):
    assert opened(tmp_path, model="one").folder != opened(tmp_path, model="two").folder
    assert opened(tmp_path, "--seeds", "1").folder == opened(tmp_path, "--seeds", "3").folder


def test_a_changed_file_that_an_option_names_begins_a_new_record(here, tmp_path):
    path, folders = tmp_path / "model.onnx", set()
    for content in "ab":
        path.write_text(content)
        folders |= {opened(tmp_path, model=[str(path)]).folder, opened(tmp_path, prior=path).folder}
    assert len(folders) == 4


def test_parts_of_other_code_are_refused(here, tmp_path):
    run = opened(tmp_path)
    run.part("one", double, 1, isolated=False)
    run.parts["one"]["identity"]["commit"] = "b" * 40
    with pytest.raises(RecordError, match="other code"):
        run.publish(table())
    with pytest.raises(RecordError, match="no part"):
        opened(tmp_path).publish(table())


def test_uncommitted_code_is_refused_and_a_draft_writes_no_page(here, tmp_path):
    here[0] = replace(IDENTITY, changes="12345678")
    with pytest.raises(RecordError, match="uncommitted"):
        opened(tmp_path)
    draft = opened(tmp_path, "--draft")
    draft.part("one", double, 1, isolated=False)
    assert draft.publish(table()).is_relative_to(draft.folder)
    assert "with uncommitted changes" in (draft.folder / "toy.md").read_text()
    assert not list((tmp_path / "docs" / "results").iterdir())


def test_a_record_states_its_command_its_version_and_its_machine(here, tmp_path):
    run = opened(tmp_path)
    run.part("one", double, 1, isolated=False)
    published = json.loads(run.publish(table(), "A note.").read_text())
    assert published["command"] == "python -m benchmarks.toy --model one"
    for part in ("RLFlow 1.2.3, commit aaaaaaaa", "AVX2", "seeds 0 to 1", "python 3.11.0", "- A note."):
        assert part in header(published)
    assert "duration not stated" in header(published | {"seconds": None})
    with pytest.raises(RecordError, match="no table 'other'; it has main"):
        table_of(published, "other")


def test_pages_are_filled_and_checked(here, tmp_path, capsys):
    docs = tmp_path / "docs"
    (tmp_path / "README.md").write_text("# R\n<!-- begin: toy main -->\nold\n<!-- end -->\n")
    (docs / "RESULTS.md").write_text("# R\n<!-- begin: index -->\n<!-- end -->\n")
    run = opened(tmp_path)
    run.part("one", double, 1, isolated=False)
    run.publish(table(["a | b", "2"]))
    row = "| a \\| b | 2 |"
    page = (docs / "results" / "toy.md").read_text()
    assert page.startswith("# Toy\n") and row in page and "aaaaaaaa" in page
    readme = (tmp_path / "README.md").read_text()
    assert row in readme and "([toy](docs/results/toy.md): RLFlow 1.2.3" in readme and "old" not in readme
    assert "[toy](results/toy.md)" in (docs / "RESULTS.md").read_text()
    assert record.main(["--check"], docs) == 0
    (tmp_path / "README.md").write_text(readme.replace(row, "| a | 3 |"))
    assert record.main(["--check"], docs) == 1 and "README.md is not up to date" in capsys.readouterr().err
    assert record.main([], docs) == 0 and (tmp_path / "README.md").read_text() == readme


def test_a_page_without_its_record_is_an_error(tmp_path):
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    (tmp_path / "README.md").write_text("<!-- begin: gone main -->\n<!-- end -->\n")
    with pytest.raises(RecordError, match="gone.json does not exist"):
        filled_pages(docs)
    with pytest.raises(RecordError, match="no end"):
        refill("<!-- begin: gone -->\n", lambda name, table: "")


def test_a_row_of_another_length_is_refused():
    with pytest.raises(RecordError, match="3 cells for 2 columns"):
        Table(["a", "b"], [["1", "2", "3"]])
    assert Table(["a", "b"], [["1", "2"]]).markdown() == "| a | b |\n| --- | ---: |\n| 1 | 2 |"
    assert index([]).count("\n") == 1


def test_the_pages_of_this_checkout_show_their_records():
    assert record.main(["--check"]) == 0


def test_a_missing_page_names_the_command_that_makes_the_page(tmp_path):
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "README.md").write_text("<!-- begin: speed steps -->\n<!-- end -->\n")
    (text,) = filled_pages(tmp_path / "docs").values()
    assert "`python -m benchmarks.speed` makes it" in text
    for name in record.PAGES:
        assert find_spec(f"benchmarks.{name}")
