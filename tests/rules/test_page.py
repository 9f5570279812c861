"""Test docs/RULES.md: it agrees with the rules, and its pictures show both sides."""

import re
from pathlib import Path

from rlflow.cli.main import main
from rlflow.rules.language import families, load_rules, parse
from rlflow.rules.page import about, constants_of, page, picture
from tests.suite import check_each

RULES = load_rules(families())
PAGE = Path(__file__).parent.parent.parent / "docs" / "RULES.md"


def test_the_page_is_up_to_date(tmp_path, capsys):
    assert main(["rules", "docs", "--out", str(tmp_path / "RULES.md")]) == 0
    assert (tmp_path / "RULES.md").read_text() == PAGE.read_text(), "python run.py rules docs --out docs/RULES.md"


def is_on_the_page(family: str) -> None:
    text, typical = about(family)
    rules = load_rules([family])
    chosen = rules[rules.index(typical)] if typical else rules[0]
    assert text and f"## {family}\n\n{text}\n" in PAGE.read_text()
    assert f"```mermaid\n{picture(chosen)}\n```" in PAGE.read_text()


def test_every_family_is_described_and_has_its_picture_on_the_page():
    check_each(is_on_the_page, families())


BOX, ARROW = r'(\w+)(\(\["[^"]+"\]\)|\[/"[^"]+"/\]|\["[^"]+"\]|\(\("[^"]+"\)\))', r"(\w+) -->(?:\|[\w ]+\|)? (\w+)"


def shows_both_sides(rule) -> None:
    lines = [line.strip() for line in picture(rule).splitlines()]
    boxes = dict(result.groups() for line in lines if (result := re.fullmatch(BOX, line)))
    arrows = [result.groups() for line in lines if (result := re.fullmatch(ARROW, line))]
    frame = ["flowchart LR", *["direction TB", "end"] * 2, "subgraph before", "subgraph after", "before ==> after"]
    assert len(boxes) + len(arrows) + len(frame) == len(lines)
    assert {name for arrow in arrows for name in arrow} == boxes.keys()  # Each box has an arrow.
    for letter, ops, side in (("l", rule.ops, rule.source), ("r", rule.target_ops, rule.target)):
        shapes = [shape for name, shape in boxes.items() if name[0] == letter]
        drawn = sorted(re.match(r'\["(\w+)', shape)[1] for shape in shapes if shape.startswith('["'))
        wanted = sorted(op.op for op in ops)
        assert not [op for op in drawn if op not in wanted] and (letter == "r" or drawn == wanted)
        assert sum(shape.startswith("((") for shape in shapes) == len(side)


def test_a_picture_holds_the_operators_and_outputs_of_both_sides():
    check_each(shows_both_sides, RULES, name=lambda rule: rule.name)


def test_values_computed_from_constants_are_drawn_as_one_box():
    (rule,) = parse(
        'a: b\n  Mul(MatMul(x, w), k) => MatMul(x, Mul(w, k))\n  if constant(w, k) and not constant(x) else "c"\n', "f"
    )
    assert constants_of(rule) == {"w", "k"}
    before, after = picture(rule).split("subgraph after")
    # The boxes are x and MatMul.
    assert before.count('[/"') == 2 and '[/"made of k, w"/]' in after and after.count('["') == 2


def test_a_proof_is_listed_and_a_rule_without_one_is_not_proved():
    rules = load_rules(["elementwise"])
    text = page(rules, {rules[0].name: {"proof": "bounded", "bound": "ranks to 3"}})
    assert (
        f"| `{rules[0].name}` | {rules[0].why} | exact | bounded: ranks to 3 |" in text
        and text.count("| not proved |") == len(rules) - 1
    )
