"""Results know which rules and code they were made with, and the pages about them say what the JSON files say."""

import argparse
import json
import re
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import bars, harness, judged, pages
from benchmarks.harness import bar, command_of, each, finish, parser, rule_set
from rlflow.common.files import read_json
from rlflow.rules.language import RuleSet, load_rules

BARS = [bar("speed", 1234.5, "ms", "≤ 900", False), bar("right", True, "", "true", True)]
MODULE = '''"""A toy: {docstring}."""

JUDGES = {judges}


def table(figures):
    return "{table}"


def main():
    """Measures."""
    return {answer}
'''


@pytest.fixture
def other_rules(monkeypatch):
    """From the call on, the benchmarks have one rule fewer."""
    rules = load_rules()
    return lambda: monkeypatch.setattr(harness, "load_rules", lambda *names: RuleSet(tuple(rules)[1:], "0" * 64))


def result(**fields) -> dict:
    """Of benchmarks.replay, current."""
    return {
        "benchmark": "replay",
        "command": "python -m benchmarks.replay",
        "made": "2026-11-22",
        "rules": rule_set(),
        "judged": judged.judged("replay"),
        "figures": {"steps": {"toy": 1000}},
        "bars": BARS,
    } | fields


# -- what the repository holds -------------------------------------------------------------------------


def test_the_pages_of_the_repository_are_up_to_date():
    assert pages.main(["--check"]) == 0, "python -m benchmarks.pages"


@pytest.mark.parametrize("path", sorted((pages.DOCS / "results").glob("*.json")), ids=lambda path: path.stem)
def test_every_result_has_a_page_with_its_bars_and_is_linked_with_it(path):
    stored = read_json(path)
    page = (pages.DOCS / "results" / f"{stored['benchmark']}.md").read_text()
    assert all(f"| {bar['name']} | {bars.with_unit(bar)} | {bar['limit']} |" in page for bar in stored["bars"])
    assert f"| [{path.stem}](results/{stored['benchmark']}.md): " in (pages.DOCS / "RESULTS.md").read_text()
    assert not re.search(r"(^|[ =])/", stored["command"]), "a path of one machine"


def test_every_page_of_a_benchmark_has_a_result():
    benchmarks = {read_json(path)["benchmark"] for path in (pages.DOCS / "results").glob("*.json")}
    assert {path.stem for path in (pages.DOCS / "results").glob("*.md")} == benchmarks


BENCHMARKS = [
    path.stem
    for path in sorted(Path(pages.__file__).parent.glob("*.py"))
    if "def main" in path.read_text() and "finish(" in path.read_text()
]


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_what_a_benchmark_judges_is_there(benchmark):
    judges = import_module(f"benchmarks.{benchmark}").JUDGES
    assert set(judged.judged(benchmark)) == {f"benchmarks/{benchmark}.py", *judges}


# -- what makes a result stale -------------------------------------------------------------------------


@pytest.mark.parametrize(("changed", "why"), [
    ({}, ""),
    ({"rules": {"hash": "b" * 64, "count": 6}}, "the rules have changed"),
    ({"rules": None}, ""),
    ({"judged": judged.judged("replay") | {"benchmarks/replay.py": "0"}}, "changed: `benchmarks/replay.py`"),
    ({"judged": judged.judged("replay") | {"gone.py": "0"}}, "no longer judged: `gone.py`"),
    ({"versions": {"onnxruntime": "1.0", "git_commit": "0"}}, "ONNX Runtime was 1.0"),
    ({"judged": dict(list(judged.judged("replay").items())[:-1])}, "not stated: `rlflow/costs/analytic.py`"),
])  # fmt: skip
def test_a_result_is_stale_unless_rules_and_judged_code_are_those_of_today(changed, why):
    made = result(**changed)
    assert "; ".join(pages.aged(made)) == why
    assert (f"**STALE**: {why}" if why else "- current") in pages.origin("toy", made)
    assert ("2026-11-22 **STALE** |" in pages.overview({"toy": made})) == bool(why)


def test_a_result_that_states_neither_is_stale():
    made = result()
    del made["rules"], made["judged"]
    assert [words.split(":")[0] for words in pages.aged(made)] == ["its rules are not stated", "not stated"]
    assert "rules: not stated" in pages.origin("toy", made)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Writes a checkout of one benchmark and what it judges; its digests. Every call is another checkout."""

    def write(
        docstring="it measures", table="| a |", answer=1, judges="()", code="def f(x):\n    return x\n", make="all:\n"
    ):
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        (root / "benchmarks").mkdir(parents=True)
        (root / "code" / "deep").mkdir(parents=True)
        text = MODULE.format(docstring=docstring, table=table, answer=answer, judges=judges)
        (root / "benchmarks" / "toy.py").write_text(text)
        (root / "code" / "deep" / "f.py").write_text(code)
        (root / "code" / "notes.txt").write_text(str(root))
        (root / "Makefile").write_text(make)
        return judged.judged("toy", root)

    module = argparse.Namespace(JUDGES=("code", "Makefile", "nowhere.py"))
    monkeypatch.setattr(judged, "import_module", lambda name: module)
    return write


@pytest.mark.parametrize(("change", "older"), [
    ({}, set()),
    ({"docstring": "in other words"}, set()),
    ({"table": "| b |"}, set()),
    ({"judges": "('code',)"}, set()),
    ({"answer": 2}, {"benchmarks/toy.py"}),
    ({"code": 'def f(x):\n    """What f is."""\n    return (\n        x  # and why\n    )\n'}, set()),
    ({"code": "def f(x):\n    return x + 1\n"}, {"code"}),
    ({"code": "def f(x):\n    return 'x'\n"}, {"code"}),
    ({"make": "all: demo\n"}, {"Makefile"}),
])  # fmt: skip
def test_code_ages_a_result_and_its_words_do_not(checkout, change, older):
    before, after = checkout(), checkout(**change)
    assert set(before) == {"benchmarks/toy.py", "code", "Makefile"}
    assert {path for path in before if before[path] != after[path]} == older


# -- bars in words -------------------------------------------------------------------------------------


def test_bars_of_several_subjects_are_one_with_the_worst_value():
    of_models = [bar(f"{name}: time", value, "s", "≤ 9", value <= 9) for name, value in (("a", 3), ("b", 10), ("c", 7))]
    assert "| time | 10 s | ≤ 9 | **2 of 3** |" in bars.groups_table(of_models)
    assert "| time | 7 s | ≤ 9 | 2 of 2 |" in bars.groups_table([of_models[0], of_models[2]])
    at_least = [bar(f"{name}: share", value, "", "≥ 0.5", True) for name, value in (("a", 0.9), ("b", 0.6))]
    assert "| share | 0.6 | ≥ 0.5 | 2 of 2 |" in bars.groups_table(at_least)
    failed = [bar("a: tests", 3, "s", "pass, ≤ 9", False), bar("b: tests", 8, "s", "pass, ≤ 9", True)]
    assert "| tests | 3 s | pass, ≤ 9 | **1 of 2** |" in bars.groups_table(failed)
    named = [bar(f"{name}: measured", name, "", "true", True) for name in ("a", "b")]
    assert "| measured | – | true | 2 of 2 |" in bars.groups_table(named)
    text = pages.bars_of(result(bars=of_models))
    assert "All 3 bars</summary>" in text and "| b: time | 10 s | ≤ 9 | **no** |" in text
    assert pages.bars_of(result()) == bars.bars_table(BARS)


def test_the_overview_shows_all_that_does_not_hold_and_counts_the_rest():
    many = [bar(f"bar {number}", number, "", f"≥ {min(number, 7)}", number < 7) for number in range(10)]
    page = pages.overview({"toy": result(bars=many)})
    assert [row.split(" | ")[:4] for row in page.splitlines()[2:]] == [
        ["| [toy](results/replay.md): bar 0", "0", "≥ 0", "yes"],
        ["| [toy](results/replay.md): bar 1", "1", "≥ 1", "yes"],
        ["| [toy](results/replay.md): bar 7 · bar 8 · bar 9", "7", "≥ 7", "**0 of 3**"],
        ["| [toy](results/replay.md): also bar 2 · bar 3 · bar 4 · bar 5 · bar 6", "", "", "5 of 5"],
    ]
    assert page.count("`python -m benchmarks.replay`") == 1
    assert "1 results, 0 of them stale; bars that hold: **7 of 10**." == pages.summary({"toy": result(bars=many)})


# -- pages ---------------------------------------------------------------------------------------------


def test_a_block_is_written_from_the_json_and_nothing_else_is_touched():
    text = (
        "before 1\n<!-- begin: toy table -->\nby hand\n<!-- end -->\n"
        "between 2\n<!-- begin: toy -->\n<!-- end -->\nafter 3\n"
    )
    filled = pages.filled_page(text, {"toy": result()})
    assert "by hand" not in filled and "| toy | 1,000 |" in filled and "| speed | 1,234 ms | ≤ 900 | **no** |" in filled
    kept = [line for line in filled.splitlines() if line[:3] in ("bef", "bet", "aft")]
    assert kept == ["before 1", "between 2", "after 3"]
    assert pages.filled_page(filled, {"toy": result()}) == filled
    assert "| toy | 2 |" in pages.filled_page(filled, {"toy": result(figures={"steps": {"toy": 2}})})


@pytest.mark.parametrize(("text", "error", "words"), [
    ("<!-- begin: toy -->\n", ValueError, "no end, or no beginning"),
    ("<!-- end -->\n", ValueError, "no end, or no beginning"),
    ("<!-- begin: toy -->\n<!-- begin: toy -->\n<!-- end -->\n", ValueError, "no end, or no beginning"),
    ("<!-- begin: toy table -->\n<!-- end -->\n", ValueError, "toy.json is not on its page"),
    ("<!-- begin: toy -->\n<!-- end -->\n<!-- begin: gone -->\n<!-- end -->\n", KeyError, "gone"),
])  # fmt: skip
def test_a_page_with_a_broken_block_or_without_a_result_is_refused(text, error, words):
    with pytest.raises(error, match=words):
        pages.filled_page(text, {"toy": result()})


@pytest.fixture
def docs(tmp_path):
    """A folder like docs/ with one result, toy, that has no page yet; a README beside it shows the result."""
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    (docs / "results" / "toy.json").write_text(json.dumps(result()))
    (docs / "RESULTS.md").write_text("<!-- begin: bars -->\n<!-- end -->\n")
    (tmp_path / "README.md").write_text("by hand\n<!-- begin: toy table -->\n<!-- end -->\n")
    return docs


def test_a_new_result_gets_a_page_and_a_changed_one_is_noticed(docs, capsys):
    assert pages.main(["--check"], docs) == 1
    assert pages.main([], docs) == 0 and pages.main(["--check"], docs) == 0
    page = (docs / "results" / "replay.md").read_text()
    assert page.startswith("# Replays in another process: ") and "| toy | 1,000 |" in page and "- current" in page
    (docs / "results" / "toy.json").write_text(json.dumps(result(rules={"hash": "b" * 64, "count": 6})))
    capsys.readouterr()
    assert pages.main(["--check"], docs) == 1
    changed = {Path(line.split(" ")[0]).name for line in lines_of(capsys)}
    assert changed == {"replay.md", "RESULTS.md", "README.md"}
    assert (docs / "results" / "replay.md").read_text() == page  # --check has written nothing


def test_a_stale_result_fails_the_command_with_what_renews_it_and_not_the_check(docs, capsys):
    stale = result(judged={}, seconds=600)
    (docs / "results" / "toy.json").write_text(json.dumps(stale))
    assert pages.main([], docs) == 1
    assert lines_of(capsys) == [
        "1 of 1 results are stale:",
        "python -m benchmarks.replay --json docs/results/toy.json    (10 min)",
    ]
    assert pages.main(["--check"], docs) == 0


def test_the_readme_shows_figures_with_their_day_and_says_that_they_are_stale(docs):
    for then, state in ((result()["judged"], "2026-11-01)"), ({}, "2026-11-01, **STALE**)")):
        (docs / "results" / "toy.json").write_text(json.dumps(result(judged=then, made="2026-11-01")))
        pages.main([], docs)
        text = (docs.parent / "README.md").read_text()
        assert text.startswith("by hand\n") and "| toy | 1,000 |" in text
        assert f"([toy](docs/results/replay.md), {state}" in text


def lines_of(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


# -- what a benchmark leaves ---------------------------------------------------------------------------


def test_a_result_names_its_rules_its_code_and_its_day(tmp_path, capsys):
    arguments = argparse.Namespace(seed=3, json=str(tmp_path / "replay.json"))
    finish("replay", arguments, {"a": 1}, BARS)
    made = read_json(tmp_path / "replay.json")
    assert made["rules"] == {"hash": load_rules().hash, "count": len(load_rules())}
    assert made["judged"] == judged.judged("replay") and re.fullmatch(r"20\d\d-\d\d-\d\d", made["made"])
    assert made["seconds"] >= 0 and pages.aged(made) == []
    finish("replay", arguments, {"a": 1}, BARS, by_rules=False)
    assert read_json(tmp_path / "replay.json")["rules"] is None
    capsys.readouterr()


@pytest.mark.parametrize(("given", "stated"), [
    (["--json", "a.json", "--seed", "3"], "--seed 3"),
    (["--json=a.json", "resnet50"], "resnet50"),
    (["--folder", "/some/where/toy", "--out=/some/where/x", "runs/y"], "--folder toy --out=x runs/y"),
])  # fmt: skip
def test_the_command_of_a_result_names_no_folder_of_a_machine(given, stated):
    assert command_of("toy", given) == f"python -m benchmarks.toy {stated}"


def test_what_another_rule_set_has_left_is_not_gone_on_with(tmp_path, other_rules):
    made, arguments = parser("", "runs/toy"), ["--folder", str(tmp_path)]

    def parts(answer: int) -> dict:
        return each(["part"], made.parse_args(arguments).folder, lambda name: {"answer": answer})

    (tmp_path / "part.json").write_text('{"answer": 0}')  # from before folders were apart
    assert parts(1) == {"part": {"answer": 1}}
    assert parts(2) == {"part": {"answer": 1}}  # gone on with
    before = made.parse_args([]).folder
    other_rules()
    assert parts(3) == {"part": {"answer": 3}}
    assert made.parse_args([]).folder.parent == before.parent and made.parse_args([]).folder != before
