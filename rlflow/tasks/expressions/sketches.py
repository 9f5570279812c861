"""What guides `rlflow.search.macros.macro_search` over valleys of the cost: a sketch of the goal, and learnt macros."""

from collections.abc import Sequence
from pathlib import Path

from rlflow.search.macros import Macro, read_macros
from rlflow.tasks.expressions.expr import SCALARS
from rlflow.tasks.expressions.state import ExpressionState


def inlined(state: ExpressionState) -> tuple[int, int, int, int]:
    """Return how far a program is from one without calls, in which every `let` binds a number.

    Such a program makes no vector or tuple of which it uses only parts: where an element of a `build` is used, the
    rules reduce the `build` to this element.

    Returns:
      The numbers of calls of functions of the program, of its functions besides the last one, of `let`s around a vector
      or tuple inside an expression, and of `let`s of a vector or tuple at the beginning of the function's body.
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
