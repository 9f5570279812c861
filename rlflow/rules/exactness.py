"""Classify rules by floating-point behaviour: exact (equal bits), or rounding (the last digits may change).

A rule is exact if on both sides every element is rounded at most once, by one Add, Sub, Mul, Div or Cast. Before and
after this operator elements may only be moved, copied, selected or negated. IEEE 754 rounds the operator's real result,
and rounding keeps order and sign. Rounding therefore commutes with moving and selecting, and both sides are the
rounding of one real number: the rule's proof says that the real numbers are equal.

Everything else counts as rounding: sums of several terms (kernels may add in another order), functions that kernels
approximate, and regrouped chains of operators. The classification is conservative: a rule marked as rounding may still
be exact. It covers finite numbers and treats -0 and 0 as equal, because a clamp or an added zero may change the sign of
zero.
"""

import ast
import hashlib
import re

import numpy as np

from rlflow.rules.patterns import Literal, Op, Output, Var, print_pattern
from rlflow.rules.rule import Rule, RuleSet

# The results of these operators are elements of their operands, possibly negated.
MOVES = frozenset((
    "Identity", "Dropout", "Relu", "Neg", "Abs", "Max", "Min", "Clip", "Transpose", "Reshape", "Flatten", "Squeeze",
    "Unsqueeze", "Expand", "Tile", "Concat", "Split", "Slice", "Pad", "Gather", "MaxPool", "GlobalMaxPool", "ReduceMax",
    "ReduceMin", "SpaceToDepth", "DepthToSpace", "Where", "And",
))  # fmt: skip
ROUND_ONCE = frozenset(("Add", "Sub", "Mul", "Div", "Cast"))


def exactness(rule: Rule) -> str:
    """Return "exact" if both sides of a rule are known to give equal bits, else "rounding"."""
    targets, rounded = dict(rule.target), _rounded_names(rule)
    pairs = [(output, targets[name]) for name, output in rule.source]
    changed = [pair for pair in pairs if print_pattern(pair[0]) != print_pattern(pair[1])]
    return "exact" if all(_roundings(side, rounded) <= 1 for pair in changed for side in pair) else "rounding"


def only_exact(rules: RuleSet) -> RuleSet:
    """Return a rule set of the exact rules, in the same order; its hash differs from the hash of `rules`."""
    chosen = tuple(rule for rule in rules if exactness(rule) == "exact")
    return RuleSet(chosen, hashlib.sha256(f"exact {rules.hash}".encode()).hexdigest())


def _roundings(pattern, rounded: set[str]) -> float:
    """Return an upper bound on the number of roundings of one element of a pattern's result.

    The bound is infinite if an operator adds many terms or approximates a function. `rounded` are the `let` names whose
    values may not be exact in float16.
    """
    if isinstance(pattern, Literal):
        return _needs_rounding(pattern.text, rounded)
    if not isinstance(pattern, Output):
        return 0
    op = pattern.op
    if op.op == "Shape":  # does not depend on the elements
        return 0
    below = max((_roundings(operand, rounded) for operand in op.inputs), default=0)
    if (op.op in MOVES and not op.domain) or _repeats(op):
        return below
    return below + 1 if _single_rounding(op) else float("inf")


def _repeats(op: Op) -> bool:
    """Return True for a Resize whose pattern requires the mode nearest: its result has elements of its input."""
    mode = dict(op.attributes).get("mode")
    return op.op == "Resize" and isinstance(mode, Literal) and mode.compute({}) == b"nearest"


def _single_rounding(op: Op) -> bool:
    pair = op.op == "Sum" and len(op.inputs) <= 2 and all(isinstance(operand, Var | Literal) for operand in op.inputs)
    return not op.domain and (op.op in ROUND_ONCE or pair)


def _needs_rounding(text: str, rounded: set[str]) -> bool:
    """Return True if the value of an expression may not be exact in float16.

    The reason is a division, a float literal that float16 rounds, or a name in `rounded`.

    Args:
      text: the expression.
      rounded: names whose values may not be exact in float16.
    """
    nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    floats = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, float)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return (
        any(isinstance(node, ast.Div) for node in nodes)
        or any(float(np.float16(n)) != n for n in floats)
        or bool(names & rounded)
    )


def _rounded_names(rule: Rule) -> set[str]:
    """Return the rule's `let` names whose values may not be exact in float16."""
    result: set[str] = set()
    for name, text in re.findall(r"^\s*let (\w+) = (.*)$", rule.text, re.MULTILINE):
        if _needs_rounding(text, result):
            result.add(name)
    return result
