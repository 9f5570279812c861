"""Which rules change nothing at all in floating point, and which may change the last digits.

A rule is exact if on both sides every element is rounded at most once: by one Add, Sub, Mul or Div, before or after
which elements are only moved, copied, selected or negated. IEEE 754 rounds such an operator's real result, and rounding
keeps
order and sign, so it may be exchanged with what moves and selects: both sides are the rounding of one real number,
since the rule's proof says that these are equal. Everything else counts as rounding: sums of several terms (kernels may
add in another order), functions that kernels approximate, operators in a row that are regrouped. That is cautious: a
rule that is marked so may still be exact.

All of it is about finite numbers, and -0 and 0 are one number: a clamp, or a zero that is added, may take its sign.
"""

import ast
import hashlib
import re

import numpy as np

from rlflow.rules.patterns import Literal, Op, Output, Var, print_pattern
from rlflow.rules.rule import Rule, RuleSet

# Operators whose results are elements of their operands, or negated ones.
MOVES = frozenset((
    "Identity", "Dropout", "Relu", "Neg", "Abs", "Max", "Min", "Clip", "Transpose", "Reshape", "Flatten", "Squeeze",
    "Unsqueeze", "Expand", "Tile", "Concat", "Split", "Slice", "Pad", "Gather", "MaxPool", "GlobalMaxPool", "ReduceMax",
    "ReduceMin", "SpaceToDepth", "DepthToSpace", "Where", "And",
))  # fmt: skip
ROUND_ONCE = frozenset(("Add", "Sub", "Mul", "Div", "Cast"))


def exactness(rule: Rule) -> str:
    """`exact` or `rounding`."""
    targets, rounded = dict(rule.target), _rounded_names(rule)
    pairs = [(output, targets[name]) for name, output in rule.source]
    changed = [pair for pair in pairs if print_pattern(pair[0]) != print_pattern(pair[1])]
    return "exact" if all(_roundings(side, rounded) <= 1 for pair in changed for side in pair) else "rounding"


def only_exact(rules: RuleSet) -> RuleSet:
    """The exact ones of a rule set, in the same order."""
    chosen = tuple(rule for rule in rules if exactness(rule) == "exact")
    return RuleSet(chosen, hashlib.sha256(f"exact {rules.hash}".encode()).hexdigest())


def _roundings(pattern, rounded: set[str]) -> float:
    """How often an element is rounded on its way through a pattern, at most."""
    if isinstance(pattern, Literal):
        return _is_rounded(pattern.text, rounded)
    if not isinstance(pattern, Output):
        return 0
    op = pattern.op
    if op.op == "Shape":  # whatever the elements are
        return 0
    below = max((_roundings(operand, rounded) for operand in op.inputs), default=0)
    if op.op in MOVES and not op.domain:
        return below
    return below + 1 if _single_rounding(op) else float("inf")


def _single_rounding(op: Op) -> bool:
    pair = op.op == "Sum" and len(op.inputs) <= 2 and all(isinstance(operand, Var | Literal) for operand in op.inputs)
    return not op.domain and (op.op in ROUND_ONCE or pair)


def _is_rounded(text: str, rounded: set[str]) -> bool:
    """Whether a number that is computed so may have more digits than a data type holds."""
    nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    floats = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, float)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return (
        any(isinstance(node, ast.Div) for node in nodes)
        or any(float(np.float16(n)) != n for n in floats)
        or bool(names & rounded)
    )


def _rounded_names(rule: Rule) -> set[str]:
    """The rule's `let` names that stand for such numbers."""
    result: set[str] = set()
    for name, text in re.findall(r"^\s*let (\w+) = (.*)$", rule.text, re.MULTILINE):
        if _is_rounded(text, result):
            result.add(name)
    return result
