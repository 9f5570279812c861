"""Write the rules for people: docs/RULES.md, and one rule as a Mermaid diagram.

`page` builds the whole page from the rules, the records of their proofs and the gains that were measured for each
family. `picture` draws both sides of one rule.
"""

import ast
import re
from collections.abc import Mapping

from rlflow.rules.exactness import exactness
from rlflow.rules.language import RULES_FOLDER
from rlflow.rules.patterns import Bind, Literal, Op, Output, Star, Var
from rlflow.rules.rule import Rule, RuleSet

LONGEST = 32  # characters of what stands below an operator's name


def picture(rule: Rule) -> str:
    """Mermaid's text of both sides. What is constant has slanted sides; what is computed from constants is one box."""
    written = (("l", rule.source), ("r", rule.target))
    sides = [_DiagramSide(letter, side, constants_of(rule)).lines for letter, side in written]
    lines = ["flowchart LR"]
    for title, body in zip(("before", "after"), sides, strict=True):
        lines += [f"  subgraph {title}", "    direction TB", *(f"    {line}" for line in body), "  end"]
    return "\n".join([*lines, "  before ==> after"])


def constants_of(rule: Rule) -> set[str]:
    """The tensors that the rule's conditions require to be constant."""
    result = set()
    for clause in re.findall(r"^\s*if (.*)$", rule.text, re.MULTILINE):
        for match in re.finditer(r"(not )?\bconstant\(([\w, ]*)\)", clause):
            result |= set(match[2].split(", ")) if not match[1] else set()
    return result


class _DiagramSide:
    """The boxes and arrows of one side; `letter` keeps their names apart from the other side's."""

    def __init__(self, letter: str, outputs: tuple, constants: set[str]):
        self.letter, self.constants = letter, constants
        self.names: dict = {}  # what is drawn already → its name
        self.lines: list[str] = []
        for name, pattern in outputs:
            box = self.box(("output", name), f'(("{name}"))')
            self.arrow(pattern, box)

    def box(self, key, shape: str) -> str:
        if key not in self.names:
            self.names[key] = f"{self.letter}{len(self.names)}"
            self.lines.append(f"{self.names[key]}{shape}")
        return self.names[key]

    def arrow(self, pattern, reader: str) -> None:
        start = self.draw(pattern)
        slot = pattern.slot if isinstance(pattern, Output) and not self.is_constant(pattern) else 0
        number = "" if slot == 0 else "|all parts|" if slot is None else f"|part {slot + 1}|"
        self.lines.append(f"{start} -->{number} {reader}")

    def draw(self, pattern) -> str:
        match pattern:
            case Var(name) | Star(name):
                text = f"{name} …" if isinstance(pattern, Star) else name
                return self.box(pattern, f'[/"{text}"/]' if name in self.constants else f'(["{text}"])')
            case Output(op=op) if self.is_constant(pattern):
                return self.box(op.key, f'[/"made of {", ".join(sorted(_variables_of(op)))}"/]')
            case Output(op=op) if op.key in self.names:
                return self.names[op.key]
            case Output(op=op):
                box = self.box(op.key, f'["{_box_label(op)}"]')
                for operand in op.inputs:
                    if isinstance(operand, Var | Star | Output):
                        self.arrow(operand, box)
                return box
        return self.box(repr(pattern), '(["–"])')

    def is_constant(self, pattern) -> bool:
        """Whether it is computed once, before the model runs."""
        match pattern:
            case Var(name) | Star(name):
                return name in self.constants
            case Output(op=op):
                return bool(_variables_of(op)) and all(self.is_constant(operand) for operand in op.inputs)
        return True


def _variables_of(op: Op) -> set[str]:
    result = {operand.name for operand in op.inputs if isinstance(operand, Var | Star)}
    return result.union(*(_variables_of(operand.op) for operand in op.inputs if isinstance(operand, Output)))


def _box_label(op: Op) -> str:
    """The operator's name, below it its numbers and attributes as far as there is room."""
    parts = [operand.text for operand in op.inputs if isinstance(operand, Literal)]
    parts += [f"{name}={value.name if isinstance(value, Bind) else value.text}" for name, value in op.attributes]
    below = ", ".join(part if len(part) <= LONGEST else _shortened(part) for part in parts)
    below = below if len(below) <= 2 * LONGEST else "…"
    below = below.replace('"', "#quot;").replace("<", "#lt;").replace("'", "#39;")
    return f"{op.op}<br/>{below}" if below else op.op


def _shortened(text: str) -> str:
    name, equals, value = text.partition("=")
    tree = ast.parse((value if equals else text).strip(), mode="eval").body
    shown = "[…]" if isinstance(tree, ast.List | ast.Tuple | ast.ListComp) else "…"
    return f"{name}={shown}" if equals else shown


INTRODUCTION = """\
# The rules

This page is written by `python run.py rules docs --out docs/RULES.md`; what it says of a family stands at the top of
the family's file in `rlflow/rules/`.

A rule is an equation between two small computation graphs:

```
matmul-associates: two weights become one
  MatMul(MatMul(x, w), u) => MatMul(x, MatMul(w, u))
  if constant(w, u) and not constant(x) else "a weight is not constant"
  if rank(w) == 2 and rank(u) == 2 else "the weights are not matrices"
```

Where the left side occurs in a model and the conditions hold, the right side may replace it. `python run.py rules
explain MODEL.onnx` shows where each rule fires in a model, and why it does not where it nearly would. No rule is
applied because it seems good: the controllers and searches choose among all matches of all rules, and the result is
measured before it is delivered. So a rule and its inverse may both be there, and rules that pay only together with
others.

**Proof.** Each rule is proved by `python run.py rules prove`. *All shapes*: in every case of ranks, axes and
attributes both sides have the same normal form, while sizes, strides and pads are symbols, so that it holds for all
of them. *Bounded*: both sides give equal results for every combination of shapes up to the bound that is stated.
Conditions are part of what is proved. A proof counts for the text of the rule that it was made for.

**Floating point.** A rule is *exact* if both sides round alike: elements are moved, copied, selected or negated, and
rounded once at most, so that the results are equal bit for bit (for finite numbers, −0 and 0 being one). The others
may change the last digits (*rounding*). `python run.py optimise --exact` uses the exact ones only, and compares bit
for bit, with ONNX Runtime's own optimisations off: where they are on, ONNX Runtime chooses kernels and fusions by the
graph that it gets, and rounds as those do. A convolution whose output channels are taken apart, or products that are
merged, count as rounding: each element is the same sum, but a kernel may add it in another order.

**Pictures.** One rule of each family, before and after. Boxes with slanted sides are constant; what is made of
constants only is computed once, when the model is written. `python run.py rules picture NAME` draws any other.

**Measured** is the latency of the rewritten model relative to the original's, both in ONNX Runtime with all of its
own optimisations on, by the rules of that family only: the best of all tries of `python -m benchmarks.families`, then
measured once more.
"""


def page(rules: RuleSet, proofs: Mapping[str, dict], measured: Mapping[str, dict]) -> str:
    """The whole page in Markdown.

    Args:
      proofs: rule name → its proof's record, of the proved rules only (rlflow.proving.prove.proof_of).
      measured: family → what benchmarks.families measured; a family may be missing.
    """
    of_family: dict[str, list[Rule]] = {}
    for rule in rules:
        of_family.setdefault(rule.family, []).append(rule)
    parts = [INTRODUCTION, _summary(of_family, proofs)]
    parts += [_section(family, result, proofs, measured.get(family)) for family, result in of_family.items()]
    return "\n".join(parts)


def about(family: str) -> tuple[str, str | None]:
    """(what the head of a family's file says, the rule that it names as typical)."""
    lines, typical = [], None
    for line in (RULES_FOLDER / f"{family}.rules").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if line.startswith("# Typical: "):
            typical = line.removeprefix("# Typical: ")
        else:
            lines.append(line.removeprefix("#").strip())
    return "\n".join(lines), typical


def _summary(of_family: dict[str, list[Rule]], proofs: Mapping[str, dict]) -> str:
    lines = ["| family | rules | exact | proved for all shapes | bounded |", "| --- | ---: | ---: | ---: | ---: |"]
    every = [rule for result in of_family.values() for rule in result]
    for name, result in [*((f"[{family}](#{family})", result) for family, result in of_family.items()), ("all", every)]:
        kinds = [proofs.get(rule.name, {}).get("proof") for rule in result]
        exact = sum(exactness(rule) == "exact" for rule in result)
        lines.append(f"| {name} | {len(result)} | {exact} | {kinds.count('all-shapes')} | {kinds.count('bounded')} |")
    return "\n".join([*lines, ""])


def _section(family: str, result: list[Rule], proofs: Mapping[str, dict], measured: dict | None) -> str:
    text, name = about(family)
    typical = next((rule for rule in result if rule.name == name), result[0])
    rows = [
        f"| `{rule.name}` | {_cell(rule.why)} | {exactness(rule)} | {_proof(proofs.get(rule.name))} |"
        for rule in result
    ]
    return "\n".join([
        f"## {family}", "", text, "", f"*Measured:* {_measured(measured)}", "", f"`{typical.name}`: {typical.why}", "",
        "```mermaid", picture(typical), "```", "",
        "| rule | why | floating point | proof |", "| --- | --- | --- | --- |", *rows, "",
    ])  # fmt: skip


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def _proof(record: dict | None) -> str:
    if record is None:
        return "not proved"
    return "all shapes" if record["proof"] == "all-shapes" else f"bounded: {_cell(record['bound'])}"


def _measured(result: dict | None) -> str:
    if result is None:
        return "not yet."
    again = result.get("again")
    if again is None:
        return "none of its rules has a match in the models that were tried as they come; they are stepping stones."
    applied = ", ".join(f"`{name}` × {n}" for name, n in again["applied"].items())
    low, high = again["interval"]
    what = f"{again['ratio']:.3f} ({low:.3f} – {high:.3f}) on {again['model']}"
    what += f", {again['nodes_before']} → {again['nodes']} nodes, by {applied}"
    if again["verdict"] == "faster":
        return f"faster, {what}."
    return f"no gain on this machine ({again['verdict']}): at best {what}. Its rules may still be stepping stones."
