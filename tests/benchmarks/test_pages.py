"""Results know the rules that they were made with, and the pages about them say what the JSON files say."""

import argparse
import json

import pytest

from benchmarks import harness, pages
from benchmarks.harness import bar, each, finish, parser, rule_set
from rlflow.common.files import read_json
from rlflow.rules.language import RuleSet, load_rules

TODAY = {"hash": "a" * 64, "count": 7}
OTHER = {"hash": "b" * 64, "count": 6}
BARS = [bar("speed", 1234.5, "ms", "≤ 900", False), bar("right", True, "", "true", True)]


@pytest.fixture
def other_rules(monkeypatch):
    """From the call on, the benchmarks have one rule fewer."""
    rules = load_rules()
    return lambda: monkeypatch.setattr(harness, "load_rules", lambda: RuleSet(tuple(rules)[1:], "0" * 64))


def result(**fields) -> dict:
    return {
        "benchmark": "replay",
        "command": "python -m benchmarks.replay",
        "figures": {"steps": {"toy": 1000}},
        "bars": BARS,
    } | fields


def row(page: str, name: str) -> str:
    (result,) = [line for line in page.splitlines() if line.startswith(f"| [{name}]")]
    return result


def test_the_pages_of_the_repository_are_up_to_date():
    assert pages.main(["--check"]) == 0, "python -m benchmarks.pages"


@pytest.mark.parametrize(("stated", "stale", "words"), [
    ({"rules": TODAY}, False, "aaaaaaaa (7)"),
    ({"rules": OTHER}, True, "bbbbbbbb (6)"),
    ({}, True, "not stated"),
    ({"rules": None}, False, "–"),
])  # fmt: skip
def test_a_result_is_stale_unless_it_was_made_with_the_rules_of_today(stated, stale, words):
    made = result(**stated)
    line = row(pages.index({"toy": made}, TODAY), "toy")
    assert (("**STALE**" in line), ("current" in line)) == (stale, not stale)
    assert f"| {words} |" in line and "| 1 of 2 |" in line
    assert ("**stale**" in pages.block("toy", made, TODAY)) == (stale and words != "–")


def test_the_list_of_proofs_states_its_rules_too():
    proofs = {"hash": "a" * 64, "rules": [{"name": "relu-relu"}] * 7}
    assert not pages.is_stale(proofs, TODAY) and pages.is_stale(proofs, OTHER)


def test_bars_that_do_not_hold_are_listed_with_their_values():
    assert "| toy | speed | 1,234 ms | ≤ 900 |" in pages.index({"toy": result()}, TODAY)
    assert "| toy | right |" not in pages.index({"toy": result()}, TODAY)
    assert "| right | true | true | yes |" in pages.block("toy", result(), TODAY)
    many = result(bars=[BARS[1]] * pages.LONGEST + [BARS[0]])
    assert pages.block("toy", many, TODAY).count(
        "| yes |"
    ) == 0 and "| speed | 1,234 ms | ≤ 900 | **no** |" in pages.block("toy", many, TODAY)


def test_a_block_is_written_from_the_json_and_nothing_else_is_touched():
    text = (
        "before 1\n<!-- begin: toy table -->\nby hand\n<!-- end -->\n"
        "between 2\n<!-- begin: toy -->\n<!-- end -->\nafter 3\n"
    )
    filled = pages.refilled(text, {"toy": result(rules=OTHER)}, TODAY)
    assert "by hand" not in filled and "| toy | 1,000 |" in filled and "bbbbbbbb (6): **stale**" in filled
    assert [line for line in filled.splitlines() if line[:3] in ("bef", "bet", "aft")] == [
        "before 1",
        "between 2",
        "after 3",
    ]
    assert pages.refilled(filled, {"toy": result(rules=OTHER)}, TODAY) == filled
    assert "| toy | 2 |" in pages.refilled(filled, {"toy": result(figures={"steps": {"toy": 2}})}, TODAY)


@pytest.mark.parametrize(
    "text", ["<!-- begin: toy -->\n", "<!-- end -->\n", "<!-- begin: toy -->\n<!-- begin: toy -->\n<!-- end -->\n"]
)
def test_a_block_without_an_end_or_a_beginning_is_refused(text):
    with pytest.raises(ValueError, match="no end, or no beginning"):
        pages.refilled(text, {"toy": result()}, TODAY)


def test_a_changed_json_is_noticed_and_the_pages_written_anew(tmp_path, capsys):
    (tmp_path / "results").mkdir()
    stored = tmp_path / "results" / "toy.json"
    stored.write_text(json.dumps(result(rules=rule_set())))
    (tmp_path / "RESULTS.md").write_text("<!-- begin: toy -->\n<!-- end -->\n")
    assert pages.main(["--check"], tmp_path) == 1
    assert pages.main([], tmp_path) == 0 and pages.main(["--check"], tmp_path) == 0
    assert ": current. Bars that hold: 1 of 2." in (tmp_path / "RESULTS.md").read_text()
    stored.write_text(json.dumps(result(rules=OTHER)))
    capsys.readouterr()
    assert pages.main(["--check"], tmp_path) == 1
    assert {"README.md", "RESULTS.md"} == {
        line.split(" ")[0].rsplit("/", 1)[-1] for line in capsys.readouterr().err.splitlines()
    }
    assert ": current." in (tmp_path / "RESULTS.md").read_text()  # --check has written nothing


# -- what a benchmark leaves ---------------------------------------------------------------------------


def test_a_result_names_its_rule_set(tmp_path, capsys):
    arguments = argparse.Namespace(seed=3, json=str(tmp_path / "toy.json"))
    finish("toy", arguments, {"a": 1}, BARS)
    made = read_json(tmp_path / "toy.json")
    assert made["rules"] == {"hash": load_rules().hash, "count": len(load_rules())}
    assert not pages.is_stale(made, rule_set())
    finish("toy", arguments, {"a": 1}, BARS, by_rules=False)
    assert read_json(tmp_path / "toy.json")["rules"] is None
    capsys.readouterr()


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


def test_every_benchmark_that_goes_on_keeps_rule_sets_apart():
    apart = {"families"}  # by families of rules, of which a try depends on few
    independent = {"measured_trust"}
    for path in sorted(pages.DOCS.parent.glob("benchmarks/*.py")):
        text = path.read_text()
        if "each(" in text and path.stem not in {"harness", *apart, *independent}:
            assert f'parser(__doc__, "runs/{path.stem}")' in text and '"--folder"' not in text, path.stem
    assert "by_rules=False" in (pages.DOCS.parent / "benchmarks" / "measured_trust.py").read_text()
