"""Write the rules for people: docs/RULES.md, and one rule as a Mermaid diagram.

`page` builds the whole page from the rules and the records of their proofs. `picture` draws both sides of one rule.
"""

import ast
import re
from collections.abc import Mapping

from rlflow.rules.exactness import exactness
from rlflow.rules.language import RULES_FOLDER
from rlflow.rules.patterns import Bind, Literal, Op, Output, Star, Var
from rlflow.rules.rule import Rule, RuleSet

MAX_LABEL_PART = 32  # characters of one attribute or literal in a box


def picture(rule: Rule) -> str:
    """Return a Mermaid flowchart with both sides of a rule. Slanted boxes are constants or computed from constants."""
    written = (("l", rule.source), ("r", rule.target))
    sides = [_DiagramSide(letter, side, constants_of(rule)).lines for letter, side in written]
    lines = ["flowchart LR"]
    for title, body in zip(("before", "after"), sides, strict=True):
        lines += [f"  subgraph {title}", "    direction TB", *(f"    {line}" for line in body), "  end"]
    return "\n".join([*lines, "  before ==> after"])


def constants_of(rule: Rule) -> set[str]:
    """Return the names of the tensors that the rule's conditions require to be constant."""
    result = set()
    for clause in re.findall(r"^\s*if (.*)$", rule.text, re.MULTILINE):
        for match in re.finditer(r"(not )?\bconstant\(([\w, ]*)\)", clause):
            result |= set(match[2].split(", ")) if not match[1] else set()
    return result


class _DiagramSide:
    """The boxes and arrows of one side of a rule in a Mermaid flowchart.

    Args:
      letter: first letter of all box names, different for the two sides.
      outputs: (output name, pattern) pairs of the side.
      constants: names of the tensors that must be constant.

    Attributes:
      lines: the lines of the flowchart.
    """

    def __init__(self, letter: str, outputs: tuple, constants: set[str]):
        self.letter, self.constants = letter, constants
        self.names: dict = {}  # pattern or operator key → name of its box
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
        """Return True if the value of a pattern depends on constants only and is computed when the model is written."""
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
    """Return the operator's name with its literals and attributes below, shortened to fit the box."""
    parts = [operand.text for operand in op.inputs if isinstance(operand, Literal)]
    parts += [f"{name}={value.name if isinstance(value, Bind) else value.text}" for name, value in op.attributes]
    below = ", ".join(part if len(part) <= MAX_LABEL_PART else _shortened(part) for part in parts)
    below = below if len(below) <= 2 * MAX_LABEL_PART else "…"
    below = below.replace('"', "#quot;").replace("<", "#lt;").replace("'", "#39;")
    return f"{op.op}<br/>{below}" if below else op.op


def _shortened(text: str) -> str:
    name, equals, value = text.partition("=")
    tree = ast.parse((value if equals else text).strip(), mode="eval").body
    shown = "[…]" if isinstance(tree, ast.List | ast.Tuple | ast.ListComp) else "…"
    return f"{name}={shown}" if equals else shown


INTRODUCTION = """\
# The rules

`python run.py rules docs --out docs/RULES.md` writes this page. The description of each family stands at the top of the
family's file in `rlflow/rules/`.

A rule is an equation between two small computation graphs:

```
matmul-associates: two weights become one
  MatMul(MatMul(x, w), u) => MatMul(x, MatMul(w, u))
  if constant(w, u) and not constant(x) else "a weight is not constant"
  if rank(w) == 2 and rank(u) == 2 else "the weights are not matrices"
```

Where the left side occurs in a model and the conditions hold, the right side may replace it. `python run.py rules
explain MODEL.onnx` shows where each rule applies in a model, and why other rules narrowly do not. No rule is applied
unconditionally: controllers and searches choose among all matches of all rules, and the result is measured before it is
delivered. Therefore the set may contain a rule together with its inverse, and rules that pay only in combination.

**Proof.** `python run.py rules prove` proves each rule. *All shapes*: for each combination of ranks, axes and
attributes both sides have the same normal form. Sizes, strides and pads are symbols, so the proof covers all of them.
*Bounded*: both sides give equal results for every combination of shapes up to the stated bound. The proof takes the
conditions into account. A proof counts only for the text of the rule that it was made for.

**Floating point.** A rule is *exact* if both sides round alike: elements are moved, copied, selected or negated, and
rounded at most once. The results are then equal bit for bit, for finite numbers and with −0 equal to 0. All other rules
may change the last digits (*rounding*). `python run.py optimise --exact` uses exact rules only and compares bit for
bit, with ONNX Runtime's own optimisations off. With these optimisations on, ONNX Runtime chooses kernels and fusions by
the graph, so that two equal graphs may round differently. Splitting a convolution's output channels and merging matrix
products count as rounding: each element is the same sum, but a kernel may add the terms in another order.

**Pictures.** Each family shows one rule before and after. Slanted boxes are constant; an expression of constants is
computed once, when the model is written. `python run.py rules picture NAME` draws any other rule.
"""


def page(rules: RuleSet, proofs: Mapping[str, dict]) -> str:
    """Return docs/RULES.md: the description, the pictures and the tables of all rule families.

    Args:
      rules: the rule set.
      proofs: rule name → record of the proof, without the rules whose present text is not proved; the page shows these
        rules as not proved.
    """
    of_family: dict[str, list[Rule]] = {}
    for rule in rules:
        of_family.setdefault(rule.family, []).append(rule)
    parts = [INTRODUCTION, _summary(of_family, proofs)]
    parts += [_section(family, result, proofs) for family, result in of_family.items()]
    return "\n".join(parts)


def about(family: str) -> tuple[str, str | None]:
    """Return the description of a family from the head of its file.

    Returns:
      (the description in Markdown, the name of the rule to draw or None).
    """
    lines, typical = [], None
    for line in (RULES_FOLDER / f"{family}.rules").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if line.startswith("# Typical: "):
            typical = line.removeprefix("# Typical: ")
        elif line.startswith("#   "):
            lines.append(f"- {line.removeprefix('#').strip()}")
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


def _section(family: str, result: list[Rule], proofs: Mapping[str, dict]) -> str:
    text, name = about(family)
    typical = next((rule for rule in result if rule.name == name), result[0])
    rows = [
        f"| `{rule.name}` | {_escaped(rule.why)} | {exactness(rule)} | {_proof(proofs.get(rule.name))} |"
        for rule in result
    ]
    return "\n".join([
        f"## {family}", "", text, "", f"`{typical.name}`: {typical.why}", "",
        "```mermaid", picture(typical), "```", "",
        "| rule | why | floating point | proof |", "| --- | --- | --- | --- |", *rows, "",
    ])  # fmt: skip


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def _proof(record: dict | None) -> str:
    if record is None:
        return "not proved"
    return "all shapes" if record["proof"] == "all-shapes" else f"bounded: {_escaped(record['bound'])}"
