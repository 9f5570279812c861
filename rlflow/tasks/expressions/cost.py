"""The cost of an expression, as Knossos counts it, in units of 1e-4.

Every vector is assumed to have VECTOR elements. An operator on vectors costs its price for each element, and 2 for the
memory of the result. Where a function is defined, only its `let` costs something (LET). A call costs the body of the
function plus 2. The constants below are in units of 1e-4.
"""

from rlflow.tasks.expressions.expr import ARITHMETIC, Expr, elements, is_function
from rlflow.tasks.expressions.syntax import UNITS

VECTOR = 16  # assumed number of elements of a vector
MEMORY = 2 * UNITS  # cost of the memory of a new vector
CALL = 2 * UNITS  # cost of a call, besides the body of the function
LET = UNITS // 10  # cost of a let, and of each part of a tuple
CHEAPER_ARM = 10_000  # an if costs its costlier arm, and its cheaper arm divided by this number (rounded down)
PRICES = {
    "constant": 0, "get": 0, "assert": UNITS, "add": UNITS, "sub": UNITS, "mul": 2 * UNITS, "div": 2 * UNITS,
    "exp": 4 * UNITS, "log": 4 * UNITS, "eq": UNITS, "gt": UNITS, "gte": UNITS, "to_float": UNITS, "index": UNITS,
    "size": UNITS, "sum": (VECTOR - 1) * UNITS, "deltaVec": MEMORY, "constVec": MEMORY, "apply": CALL, "if": UNITS,
}  # fmt: skip


def cost_of(expr: Expr, functions: tuple | None = None) -> int:
    """Return the cost of an expression in units of 1e-4.

    Args:
      expr: the expression.
      functions: the costs of the bound functions as a linked list (cost, rest), one entry for each binder around the
        expression, the innermost first; the cost of a binder that binds no function is 0. None for no binder.
    """
    if expr.cost is not None:
        return expr.cost
    result = _cost(expr, functions)
    if not expr.calls:
        expr.cost = result
    return result


def _cost(expr: Expr, functions: tuple | None) -> int:
    op, args = expr.op, expr.args
    if op == "variable":
        if not is_function(expr.type):
            return 0
        for _ in range(expr.value):
            functions = functions[1]
        return functions[0]
    if op == "external":
        return expr.value.cost
    if op == "lam":
        return cost_of(args[0], (0, functions))
    first = cost_of(args[0], functions) if args else 0
    if op == "let":
        if args[0].op == "lam":
            return LET + cost_of(args[1], (first, functions))
        return LET + first + cost_of(args[1], (0, functions))
    if op in ("build", "sumbuild"):
        body = VECTOR * cost_of(args[1], (0, functions))
        extra = MEMORY if op == "build" else (VECTOR - 1) * elements(args[1].type, VECTOR) * UNITS
        return first + body + extra
    rest = [cost_of(arg, functions) for arg in args[1:]]
    if op == "if":
        return UNITS + first + max(rest) + min(rest) // CHEAPER_ARM
    if op == "tuple":
        return LET * len(args) + first + sum(rest)
    price = PRICES[op]
    if op in ARITHMETIC:
        largest = max(elements(arg.type, VECTOR) for arg in args)
        price = price * largest + (MEMORY if largest > 1 else 0)
    return price + first + sum(rest)
