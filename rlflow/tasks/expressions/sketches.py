"""The guides of `rlflow.search.macros.macro_search` for this task: a sketch of the goal, and learnt macros.

A sketch measures the distance of a state from a desired form. A macro is a short sequence of rules that the search
applies as one move. Both let the search accept rewrites that raise the cost at first.
"""

from collections.abc import Sequence
from pathlib import Path

from rlflow.search.macros import Macro, read_macros
from rlflow.tasks.expressions.expr import SCALARS
from rlflow.tasks.expressions.state import ExpressionState


def inlined(state: ExpressionState) -> tuple[int, int, int, int]:
    """Return the distance of a program from the form in which all calls are inlined and every `let` binds a number.

    In this form the rules can reduce each `build` from which one element is read to the expression of this element.
    Therefore no vector or tuple is computed if only parts of it are used.

    Returns:
      Four counts, compared in this order:
      calls: calls of functions that the program defines.
      functions: functions of the program besides the last one.
      inner: `let`s inside an expression whose result is neither a Float nor an Integer.
      outer: `let`s at the beginning of a function's body that bind a value that is neither a Float nor an Integer.
    """
    calls = functions = inner = outer = 0
    stack = [(state.expr, True)]  # an expression, and whether it is at the beginning of a function's body
    while stack:
        node, begins = stack.pop()
        if node.op == "apply" and node.args[0].op == "variable":
            calls += 1
        if node.op == "let" and node.args[0].op == "lam":
            functions += 1
            stack += [(node.args[0], True), (node.args[1], True)]
        elif node.op == "let":
            if not begins:
                inner += node.type not in SCALARS
            else:
                outer += node.args[0].type not in SCALARS
            stack += [(node.args[0], False), (node.args[1], begins)]
        else:
            stack += [(arg, node.op == "lam") for arg in node.args]
    return calls, max(functions - 1, 0), inner, outer


def learnt_macros(rules: Sequence[str]) -> list[Macro]:
    """Return the macros of macros.txt whose rules are all among the given names of rules."""
    return read_macros(Path(__file__).with_name("macros.txt").read_text(encoding="utf-8"), rules)
