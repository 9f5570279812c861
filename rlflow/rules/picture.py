"""A rule as a picture: both sides as a Mermaid diagram, which Markdown pages show."""

import ast
import re

from rlflow.rules.patterns import Bind, Literal, Op, Output, Star, Var
from rlflow.rules.rule import Rule

LONGEST = 32  # characters of what stands below an operator's name


def picture(rule: Rule) -> str:
    """Mermaid's text of both sides. What is constant has slanted sides; what is computed from constants is one box."""
    sides = [_Side(letter, side, constants_of(rule)).lines for letter, side in (("l", rule.source), ("r", rule.target))]
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


class _Side:
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
                return self.box(op.key, f'[/"made of {", ".join(sorted(_variables(op)))}"/]')
            case Output(op=op) if op.key in self.names:
                return self.names[op.key]
            case Output(op=op):
                box = self.box(op.key, f'["{_label(op)}"]')
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
                return bool(_variables(op)) and all(self.is_constant(operand) for operand in op.inputs)
        return True


def _variables(op: Op) -> set[str]:
    result = {operand.name for operand in op.inputs if isinstance(operand, Var | Star)}
    return result.union(*(_variables(operand.op) for operand in op.inputs if isinstance(operand, Output)))


def _label(op: Op) -> str:
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
