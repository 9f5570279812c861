"""The yardstick for arithmetic: equality saturation, and the cheapest expression of an e-graph by an integer program.

An e-graph (egglog) holds the expressions that the rules of the set `simplify` reach, in both directions where a rule
has one: the right side must be more than one argument, and have all arguments of the left side. `mul_one` is reversed,
too. The cheapest expression, in which equal subexpressions may share one `let`, is the solution of an integer program
(HiGHS). If the e-graph saturates, no expression that is equal by these rules is cheaper: the result is a certificate.
Otherwise it is the cheapest of the expressions found. Extraction class by class, without regard to sharing, is the
greedy control.

Published e-graphs have no binders, so every `let` is inlined first, and other binders are refused.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from rlflow.common.errors import RLFlowError
from rlflow.tasks.expressions.cost import LET, PRICES, cost_of
from rlflow.tasks.expressions.expr import ARITHMETIC, FLOAT, Expr, constant, make
from rlflow.tasks.expressions.rules import Pattern, all_rules
from rlflow.tasks.expressions.syntax import UNITS

OPERATORS = (*ARITHMETIC, "exp", "log")
FOLDED = {"add": "+", "sub": "-", "mul": "*"}  # operators on numbers that egglog computes
MOST_USES = 64  # no subexpression of a result is used more often


@dataclass(frozen=True)
class Yardstick:
    """The result of `cheapest`.

    Attributes:
      expr: the cheapest expression found.
      greedy: the expression of greedy extraction.
      saturated: True if the rules reach no other expression.
      optimal: True if the integer program was solved to optimality. With `saturated`, `expr` is proved the cheapest.
      nodes, classes: the size of the e-graph.
      seconds: duration.
    """

    expr: Expr
    greedy: Expr
    saturated: bool
    optimal: bool
    nodes: int
    classes: int
    seconds: float


@dataclass(frozen=True)
class _Node:
    op: str
    value: object  # of a constant the number, of an external its name
    children: tuple[str, ...]  # classes

    @property
    def cost(self) -> int:
        return PRICES[self.op] if self.children else 0


def cheapest(expr: Expr, iterations: int = 12, most_nodes: int = 20_000, seconds: float = 60.0) -> Yardstick:
    """Return the cheapest expression that is equal by the rules, as far as the e-graph holds it.

    Args:
      expr: an expression of Float arithmetic; its `let`s are inlined.
      iterations: largest number of rewrites that depend on each other.
      most_nodes: number of nodes above which the e-graph grows no further.
      seconds: time limit of the saturation, and again of the integer program.

    Raises:
      RLFlowError: the expression has other operators, the packages are missing, or the rules prove 0 = 1.
    """
    began = time.monotonic()
    flat = without_lets(expr)
    graph, root, saturated = _saturated(flat, iterations, most_nodes, seconds)
    externals = {node.value.name: node for node in flat.nodes() if node.op == "external"}
    greedy = _greedy_choice(graph)
    choice, optimal = _optimal_choice(graph, root, greedy, seconds)
    results = [_expression(graph, one, root, externals) for one in (choice, greedy)]
    if cost_of(results[1]) < cost_of(results[0]):  # the time limit of the integer program can leave a worse solution
        results[0], optimal = results[1], False
    nodes = sum(map(len, graph.values()))
    return Yardstick(*results, saturated, optimal, nodes, len(graph), time.monotonic() - began)


def without_lets(expr: Expr, values: tuple[Expr, ...] = ()) -> Expr:
    """Return an expression with the value of every `let` in place of its variable.

    Args:
      expr: an expression whose only binders are `let`s.
      values: the values of the `let`s around it, the innermost first.
    """
    if expr.op == "variable":
        return values[expr.value]
    if expr.op == "let":
        return without_lets(expr.args[1], (without_lets(expr.args[0], values), *values))
    return expr.with_args(tuple(without_lets(arg, values) for arg in expr.args)) if expr.args else expr


# -- saturation ------------------------------------------------------------------------------------


def egglog_rules() -> list[str]:
    """Return the rules of the set `simplify` as egglog rewrites."""
    lines = []
    for rule in all_rules().values():
        if rule.group != "arithmetic":
            continue
        left, right = _egglog(rule.left), _egglog(rule.right)
        lines.append(f"(rewrite {left} {right})")
        if rule.right.op != "argument" and _arguments(rule.left) <= _arguments(rule.right):
            lines.append(f"(rewrite {right} {left})")
    lines.append("(rewrite (div_ a a) (Num 1.0))")
    for op, symbol in FOLDED.items():
        lines.append(f"(rewrite ({op}_ (Num a) (Num b)) (Num ({symbol} a b)))")
    lines.append("(rewrite (div_ (Num a) (Num b)) (Num (/ a b)) :when ((!= b 0.0)))")
    for op in OPERATORS:
        arguments = " ".join("ab"[: 2 if op in ARITHMETIC else 1])
        lines.append(f"(rule ((= e ({op}_ {arguments}))) ((union e (mul_ (Num 1.0) e))))")
    lines.append("(rule ((= e (Var a))) ((union e (mul_ (Num 1.0) e))))")
    return list(dict.fromkeys(lines))  # the reverse of a rule can be another rule


def _arguments(pattern: Pattern) -> set:
    return {name for name, _ in pattern.scopes()}


def _egglog(pattern: Pattern) -> str:
    if pattern.op == "argument":
        return str(pattern.value)
    if pattern.op == "constant":
        return f"(Num {pattern.value!r})"
    return f"({pattern.op}_ {' '.join(map(_egglog, pattern.args))})"


def _program(expr: Expr) -> str:
    if expr.op == "constant" and expr.type == FLOAT:
        return f"(Num {expr.value!r})"
    if expr.op == "external" and expr.type == FLOAT:
        return f'(Var "{expr.value.name}")'
    if expr.op not in OPERATORS or expr.type != FLOAT:
        raise RLFlowError(f"the e-graph holds arithmetic on numbers only, not '{expr.op}'")
    return f"({expr.op}_ {' '.join(map(_program, expr.args))})"


def _saturated(
    expr: Expr, iterations: int, most_nodes: int, seconds: float
) -> tuple[dict[str, list[_Node]], str, bool]:
    """Return class → its nodes, the class of the expression, and whether no rule adds anything."""
    try:
        from egglog.bindings import EGraph
    except ImportError:
        raise RLFlowError("the yardstick needs the package egglog: pip install '.[expressions]'") from None
    until = time.monotonic() + seconds
    graph = EGraph()
    kinds = " ".join(f"({op}_ {' '.join('E' * (2 if op in ARITHMETIC else 1))})" for op in OPERATORS)
    lines = [f"(datatype E (Num f64) (Var String) {kinds})", *egglog_rules(), f"(let $root {_program(expr)})"]
    graph.run_program(*graph.parse_program("\n".join(lines)))
    nodes, size = _nodes(graph), 0
    for _ in range(iterations):
        graph.run_program(*graph.parse_program("(run 1)"))
        nodes, before = _nodes(graph), nodes
        size = sum(map(len, nodes[0].values()))
        if size == sum(map(len, before[0].values())) and len(nodes[0]) == len(before[0]):
            return *nodes, True
        if size > most_nodes or time.monotonic() > until:
            break
    return *nodes, False


def _nodes(graph) -> tuple[dict[str, list[_Node]], str]:
    """Return class → its nodes, and the class of `root`.

    Raises:
      RLFlowError: a class holds two numbers, so that the rules divided by zero.
    """
    serialized = json.loads(graph.serialize([]).to_json())
    written = serialized["nodes"]
    root = next(name for name, data in serialized["class_data"].items() if data.get("let") == "$root")
    class_of = {name: node["eclass"] for name, node in written.items()}
    result: dict[str, list[_Node]] = {}
    for node in written.values():
        op = node["op"]
        if op in ("Num", "Var"):
            text = written[node["children"][0]]["op"]
            value = float(text) if op == "Num" else json.loads(text)
            result.setdefault(node["eclass"], []).append(_Node("constant" if op == "Num" else "external", value, ()))
        elif op.endswith("_"):
            children = tuple(class_of[child] for child in node["children"])
            result.setdefault(node["eclass"], []).append(_Node(op[:-1], None, children))
    for nodes in result.values():
        if len({node.value for node in nodes if node.op == "constant"}) > 1:
            raise RLFlowError("the rules prove that two numbers are equal: some denominator is 0")
    return result, root


# -- extraction ------------------------------------------------------------------------------------


def _greedy_choice(graph: Mapping[str, list[_Node]]) -> dict[str, _Node]:
    """Return class → the node of the smallest cost of the whole tree, without sharing."""
    best: dict[str, tuple[int, _Node]] = {}
    changed = True
    while changed:
        changed = False
        for name, nodes in graph.items():
            for node in nodes:
                if all(child in best for child in node.children):
                    total = node.cost + sum(best[child][0] for child in node.children)
                    if name not in best or total < best[name][0]:
                        best[name], changed = (total, node), True
    return {name: node for name, (_, node) in best.items()}


def _optimal_choice(
    graph: Mapping[str, list[_Node]], root: str, greedy: Mapping[str, _Node], seconds: float
) -> tuple[dict[str, _Node], bool]:
    """Return class → its node in the cheapest expression with shared subexpressions, and whether this is proved.

    Args:
      graph: class → nodes.
      root: the class of the expression.
      greedy: a choice to fall back on.
      seconds: time limit.
    """
    try:
        import highspy
    except ImportError:
        raise RLFlowError("the yardstick needs the package highspy: pip install '.[expressions]'") from None
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("time_limit", float(seconds))
    solver.setOptionValue("threads", 1)
    names, most = list(graph), len(graph)
    level = {name: solver.addVariable(lb=0, ub=most) for name in names}
    used = {name: solver.addBinary() for name in names}  # the class is part of the expression
    shared = {name: solver.addBinary(obj=LET / UNITS) for name in names}  # a let binds the class
    chosen = [(name, node, solver.addBinary(obj=node.cost / UNITS)) for name in names for node in graph[name]]
    in_class: dict[str, list] = {name: [] for name in names}
    uses: dict[str, list] = {name: [] for name in names}
    leaf: dict[str, list] = {name: [] for name in names}
    for name, node, column in chosen:
        in_class[name].append(column)
        if not node.children:
            leaf[name].append(column)
        for child in node.children:
            uses[child].append(column)
            solver.addConstr(column <= used[child])
            solver.addConstr(level[name] >= level[child] + 1 - (most + 1) * (1 - column))
    for name in names:
        solver.addConstr(sum(in_class[name]) == used[name])
        if len(uses[name]) > 1:
            solver.addConstr(sum(uses[name]) <= 1 + MOST_USES * (shared[name] + sum(leaf[name])))
    solver.addConstr(used[root] == 1)
    solver.minimize()
    optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    values = solver.getSolution().col_value
    if not values or not solver.getInfo().primal_solution_status:
        return dict(greedy), False
    choice = {name: node for name, node, column in chosen if values[column.index] > 0.5}
    return choice, optimal


def _expression(
    graph: Mapping[str, list[_Node]], choice: Mapping[str, _Node], root: str, externals: Mapping[str, Expr]
) -> Expr:
    """Return the expression of a choice, with a `let` for every class that several nodes use."""
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
        node = choice[name]
        if node.op == "constant":
            return constant(node.value)
        if node.op == "external":
            return externals[node.value]
        return make(node.op, *(build(child, depth) for child in node.children))

    result = build(root, len(lets))
    for number in range(len(lets) - 1, -1, -1):
        result = make("let", build(lets[number], number, at_let=True), result)
    return result
