"""A reference optimum for arithmetic expressions, with which the results of searches are compared.

Equality saturation fills an e-graph (egglog) with the expressions that the rules of the set `simplify` reach. An
integer program (HiGHS) then selects the cheapest expression of the e-graph. In this expression equal subexpressions may
share one `let`. Extraction class by class, without regard to sharing, is the greedy control. A rule is applied in both
directions if its right side is not a single argument and has all arguments of the left side. `mul_one` is also applied
in reverse.

Without a bound saturation never ends: x is 1·x, and (x/x)·x, and so on. A rule is therefore applied only where the
whole expression, with every `let` inlined, costs at most a limit afterwards (`LimitedEGraph`). If the e-graph is
complete up to the limit, the result is proved the cheapest up to this limit. `cheapest` begins with the cost of the
given expression as the limit, and then raises the limit.

Numbers are fractions. Two numbers are combined only if the numerator and the denominator of the result are at most
LARGEST. Without this rule, factors such as 2/3 and 3/2 would make new numbers without end, at no cost.

Published e-graphs have no binders, so every `let` is inlined first, and other binders are refused.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from rlflow.common.errors import RLFlowError
from rlflow.search.saturation.limited import LimitedEGraph, total
from rlflow.search.saturation.sharing import Term, cheapest_shared, cheapest_trees
from rlflow.tasks.expressions.cost import LET, PRICES, cost_of
from rlflow.tasks.expressions.expr import ARITHMETIC, FLOAT, Expr, constant, make
from rlflow.tasks.expressions.rules import Pattern, all_rules
from rlflow.tasks.expressions.syntax import UNITS

# Name of an operator in egglog → (its number of arguments, its cost in units of 1e-4).
OPERATORS = {f"{op}_": (2 if op in ARITHMETIC else 1, PRICES[op]) for op in (*ARITHMETIC, "exp", "log")}
FOLDED = {"add": "+", "sub": "-", "mul": "*", "div": "/"}  # operators on numbers that egglog computes
LARGEST = 8  # largest numerator or denominator of a number that the e-graph computes
STEP = 2 * UNITS  # increase of the limit, in units of 1e-4


@dataclass(frozen=True)
class Yardstick:
    """The result of `cheapest`.

    Attributes:
      expr: the cheapest expression found.
      greedy: the expression of greedy extraction.
      inlined: cost of the given expression with every `let` inlined, in units of 1e-4.
      limit: `expr` is proved the cheapest of all expressions that the rules reach through expressions that cost at most
        this much with every `let` inlined, in units of 1e-4; None if nothing is proved.
      nodes, classes: the size of the largest e-graph that was read.
      seconds: duration.
    """

    expr: Expr
    greedy: Expr
    inlined: int
    limit: int | None
    nodes: int
    classes: int
    seconds: float


def cheapest(expr: Expr, most_steps: int = 3, most_nodes: int = 10_000, seconds: float = 60.0) -> Yardstick:
    """Return the cheapest expression that is equal by the rules, as far as the e-graphs hold it.

    Args:
      expr: an expression of Float arithmetic; its `let`s are inlined.
      most_steps: how often the limit is raised by STEP.
      most_nodes: number of nodes above which an e-graph grows no further.
      seconds: time limit of each saturation, and again of each integer program.

    Raises:
      RLFlowError: the expression has other operators, the packages are missing, or the rules prove 0 = 1.
    """
    began = time.monotonic()
    flat = without_lets(expr)
    inlined = cost_of(flat)
    externals = {node.value.name: node for node in flat.nodes() if node.op == "external"}
    best = greedy = flat
    proved, sizes, growing = None, (0, 0), LimitedEGraph(OPERATORS, egglog_rules(), _program(flat))
    for limit in range(inlined, inlined + most_steps * STEP + 1, STEP):
        complete = growing.grow(limit, most_nodes, seconds)
        classes, root = growing.read()
        sizes = max(sizes, (sum(map(len, classes.values())), len(classes)))
        greedy = min(greedy, _expression(cheapest_trees(classes)[1], root, externals), key=cost_of)
        best = min(best, greedy, key=cost_of)
        bound, choice = cheapest_shared(classes, root, LET, cost_of(best), seconds)
        if choice:
            best = min(best, _expression(choice, root, externals), key=cost_of)
        if not complete or bound < cost_of(best):
            break
        proved = limit
    return Yardstick(best, greedy, inlined, proved, *sizes, time.monotonic() - began)


def without_lets(expr: Expr, values: tuple[Expr, ...] = ()) -> Expr:
    """Return an expression in which every `let` is inlined.

    Args:
      expr: an expression whose only binders are `let`s.
      values: the values of the `let`s around it, the innermost first.
    """
    if expr.op in ("lam", "build", "sumbuild"):
        raise RLFlowError("a bound is for arithmetic on numbers only")
    if expr.op == "variable":
        return values[expr.value]
    if expr.op == "let":
        return without_lets(expr.args[1], (without_lets(expr.args[0], values), *values))
    return expr.with_args(tuple(without_lets(arg, values) for arg in expr.args)) if expr.args else expr


# -- saturation ------------------------------------------------------------------------------------


def egglog_rules() -> Iterator[str]:
    """Yield the rules of the set `simplify` as egglog rules that respect the limit, in the directions of the module.

    The rules about `let`s are left out, because the expression has none.
    """
    for rule in all_rules().values():
        if rule.group != "arithmetic":
            continue
        yield _within_limit(rule.left, rule.right)
        if rule.right.op != "argument" and _arguments(rule.left) <= _arguments(rule.right):
            yield _within_limit(rule.right, rule.left)
    yield f"(rewrite (div_ a a) {_number(1)} :ruleset rewrite)"
    yield (
        f"(rule ((= o (around e)) (= c (cost e)) (<= (+ o (+ c {PRICES['mul']})) (limit)))"
        f" ((union e (mul_ {_number(1)} e))) :ruleset rewrite)"
    )
    for op, symbol in FOLDED.items():
        small = f"(<= (numer (abs n)) (bigint {LARGEST})) (<= (denom n) (bigint {LARGEST}))"
        defined = " (!= b (bigrat (bigint 0) (bigint 1)))" if op == "div" else ""
        facts = f"(= e ({op}_ (Num a) (Num b))){defined} (= n ({symbol} a b)) {small}"
        yield f"(rule ({facts}) ((union e (Num n))) :ruleset rewrite)"


def _within_limit(left: Pattern, right: Pattern) -> str:
    cost = total(["(around e)", _price(right), *(f"(cost {name})" for name, _ in right.scopes())])
    return f"(rule ((= e {_egglog(left)}) (<= {cost} (limit))) ((union e {_egglog(right)})) :ruleset rewrite)"


def _price(pattern: Pattern) -> int:
    return PRICES.get(pattern.op, 0) + sum(map(_price, pattern.args))


def _arguments(pattern: Pattern) -> set:
    return {name for name, _ in pattern.scopes()}


def _number(value: float) -> str:
    exact = Fraction(repr(value))
    return f"(Num (bigrat (bigint {exact.numerator}) (bigint {exact.denominator})))"


def _egglog(pattern: Pattern) -> str:
    if pattern.op == "argument":
        return str(pattern.value)
    if pattern.op == "constant":
        return _number(pattern.value)
    return f"({pattern.op}_ {' '.join(map(_egglog, pattern.args))})"


def _program(expr: Expr) -> str:
    if expr.op == "constant" and expr.type == FLOAT:
        return _number(expr.value)
    if expr.op == "external" and expr.type == FLOAT:
        return f'(Var "{expr.value.name}")'
    if f"{expr.op}_" not in OPERATORS or expr.type != FLOAT:
        raise RLFlowError(f"the e-graph holds arithmetic on numbers only, not '{expr.op}'")
    return f"({expr.op}_ {' '.join(map(_program, expr.args))})"


def _expression(choice: Mapping[str, Term], root: str, externals: Mapping[str, Expr]) -> Expr:
    """Return the expression that results from the choice of one operator for each class of the e-graph.

    A class with children that is used more than once becomes a `let`.

    Args:
      choice: name of a class → the chosen operator (label, cost, children).
      root: the class of the whole expression.
      externals: name of a free variable → its node.
    """
    order: list[str] = []
    uses: dict[str, int] = {}

    def visit(name: str) -> None:
        uses[name] = uses.get(name, 0) + 1
        if uses[name] == 1:
            for child in choice[name].children:
                visit(child)
            order.append(name)

    visit(root)
    lets = [name for name in order if uses[name] > 1 and choice[name].children and name != root]
    place = {name: number for number, name in enumerate(lets)}

    def build(name: str, depth: int, at_let: bool = False) -> Expr:
        if not at_let and name in place and place[name] < depth:
            return Expr.variable(depth - 1 - place[name], FLOAT)
        label, _, children = choice[name]
        if isinstance(label, Fraction):
            return constant(float(label))
        if isinstance(label, tuple):
            return externals[label[1]]
        return make(label.removesuffix("_"), *(build(child, depth) for child in children))

    result = build(root, len(lets))
    for number in range(len(lets) - 1, -1, -1):
        result = make("let", build(lets[number], number, at_let=True), result)
    return result
