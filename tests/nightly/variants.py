"""Variants of shipped rules: rules with one change that mostly makes them wrong.

A condition is dropped or weakened; operands or outputs are exchanged; an operator, an attribute or a factor is left
out; an axis, a permutation, a list, a number or the order of a concatenation is changed. Some variants are still
correct rules.
"""

import ast
import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from rlflow.rules.expressions import compile_expression
from rlflow.rules.match import COMMUTATIVE
from rlflow.rules.patterns import Bind, Literal, Op, Output, Var, print_rule
from rlflow.rules.rule import Condition, Rule

ARITHMETIC = ("Add", "Sub", "Mul", "Div")


class Variant(NamedTuple):
    """A changed rule.

    Attributes:
        rule: the changed rule; it has the name of the shipped rule.
        kind: kind of the change, a key of KINDS.
        change: the change in words.
    """

    rule: Rule
    kind: str
    change: str


def spread(rules: Iterable[Rule], count: int | None = None) -> list[Variant]:
    """Return variants of the rules: first one variant of each rule, then a second one of each, and so on.

    Args:
        rules: the rules.
        count: largest number of variants; None for all variants.
    """
    each = [variants(rule, first) for first, rule in enumerate(rules)]
    return list(itertools.islice(in_turn(each), count))


def variants(rule: Rule, first: int = 0) -> Iterator[Variant]:
    """Yield the variants of a rule without repetitions; the kinds of KINDS alternate.

    Args:
        rule: the rule.
        first: index of the first kind, modulo the number of kinds.
    """
    names, known = list(KINDS), {rule.text}
    names = names[first % len(names) :] + names[: first % len(names)]
    for kind, change, variant in in_turn([_of_kind(rule, name) for name in names]):
        if variant.text not in known:
            known.add(variant.text)
            yield Variant(variant, kind, change)


def _of_kind(rule: Rule, kind: str) -> Iterator[tuple[str, str, Rule]]:
    return ((kind, change, variant) for change, variant in KINDS[kind](rule))


def in_turn(iterators: list[Iterator]) -> Iterator:
    """Yield the first item of each iterator, then the second item of each, and so on."""
    nothing = object()
    for row in itertools.zip_longest(*iterators, fillvalue=nothing):
        yield from (item for item in row if item is not nothing)


# -- clauses ---------------------------------------------------------------------------------------


def clauses_of(rule: Rule) -> list[str]:
    return rule.text.split("\n  ")[2:]


def with_clause(rule: Rule, position: int, clause: str | None) -> str:
    """Return the text of the rule with one clause replaced or removed.

    Args:
        rule: the rule.
        position: index of the clause in `clauses_of(rule)`.
        clause: the new clause; None to remove the clause.
    """
    lines = rule.text.split("\n  ")
    lines[position + 2 : position + 3] = [] if clause is None else [clause]
    return "\n  ".join(lines)


def conditions_of(rule: Rule) -> Iterator[tuple[int, int, str, str]]:
    """Yield (number, position, expression, reason) of each condition of a rule.

    `position` is the index of the condition in `clauses_of(rule)`, and `reason` is its end, ` else "…"` or "".
    """
    positions = [position for position, clause in enumerate(clauses_of(rule)) if clause.startswith("if ")]
    for number, position in enumerate(positions):
        body = clauses_of(rule)[position].removeprefix("if ")
        text = body.rpartition(' else "')[0] or body
        yield number, position, text, body.removeprefix(text)


def dropped_conditions(rule: Rule) -> Iterator[tuple[str, Rule]]:
    for number, position, text, _ in conditions_of(rule):
        rest = rule.conditions[:number] + rule.conditions[number + 1 :]
        yield f"no longer: {text}", made(rule, conditions=rest, text=with_clause(rule, position, None))


def weakened_conditions(rule: Rule) -> Iterator[tuple[str, Rule]]:
    for number, position, text, reason in conditions_of(rule):
        for tree in changed(text, weaker):
            weak = Condition(compile_expression(tree, rule.name), rule.conditions[number].reason)
            conditions = (*rule.conditions[:number], weak, *rule.conditions[number + 1 :])
            clause = f"if {ast.unparse(tree)}{reason}"
            yield (
                f"{text} → {ast.unparse(tree)}",
                made(rule, conditions=conditions, text=with_clause(rule, position, clause)),
            )


def weaker(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            for k in range(len(values)):
                rest = values[:k] + values[k + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(ast.And(), rest)
            yield ast.BoolOp(ast.Or(), values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            loose = {ast.Eq: ast.LtE, ast.Lt: ast.LtE, ast.Gt: ast.GtE}
            for k, op in enumerate(ops):
                if type(op) in loose:
                    yield ast.Compare(left, [*ops[:k], loose[type(op)](), *ops[k + 1 :]], others)


# -- expressions -----------------------------------------------------------------------------------


def changed(text: str, change: Callable[[ast.expr], Iterable[ast.expr]]) -> Iterator[ast.expr]:
    """Yield the syntax trees of an expression in which one node is replaced, for every node and every replacement.

    Args:
        text: the expression.
        change: function from a node of the syntax tree to its replacements.
    """
    tree = ast.parse(text, mode="eval").body
    for position, node in enumerate(ast.walk(tree)):
        for other in change(node):
            whole = copy.deepcopy(tree)
            yield _Put(list(ast.walk(whole))[position], other).visit(whole)


class _Put(ast.NodeTransformer):
    """A transformer of syntax trees that replaces the node `old` by the node `new`."""

    def __init__(self, old: ast.AST, new: ast.AST):
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def another_number(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield ast.Constant(node.value + 1)


def lost_operand(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        yield from (node.left, node.right)


def another_order(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.List(elts=items) | ast.Tuple(elts=items) if len(items) > 1:
            yield type(node)(items[::-1], ast.Load())
        case ast.BinOp(left=left, op=ast.Add(), right=right) if any(isinstance(n, ast.List) for n in ast.walk(node)):
            yield ast.BinOp(right, ast.Add(), left)


def of_expressions(change: Callable[[ast.expr], Iterable[ast.expr]]) -> Callable[[Rule], Iterator[tuple[str, Rule]]]:
    """Return a function that yields (change in words, changed rule) for changes of expressions in a rule.

    The expressions are the literals on the right side of the rule and the definitions of its `let` clauses.

    Args:
        change: function from a node of an expression to its replacements.
    """

    def result(rule: Rule) -> Iterator[tuple[str, Rule]]:
        yield from of_operators(lambda op: _literals(op, change))(rule)
        names = [name for name, _ in rule.lets]
        for position, clause in enumerate(clauses_of(rule)):
            name, _, text = (part.strip() for part in clause.removeprefix("let ").partition("="))
            if clause.startswith("let ") and name in names:
                for tree in changed(text, change):
                    lets = tuple((n, compile_expression(tree, rule.name) if n == name else let) for n, let in rule.lets)
                    new = f"let {name} = {ast.unparse(tree)}"
                    yield (
                        f"{clause} → {ast.unparse(tree)}",
                        made(rule, lets=lets, text=with_clause(rule, position, new)),
                    )

    return result


def _literals(op: Op, change: Callable[[ast.expr], Iterable[ast.expr]]) -> Iterator[tuple[str, Op]]:
    for k, pattern in enumerate(op.inputs):
        if isinstance(pattern, Literal):
            for tree in changed(pattern.text, change):
                inputs = (*op.inputs[:k], literal(tree), *op.inputs[k + 1 :])
                yield f"{pattern.text} → {ast.unparse(tree)} in {op.op}", op._replace(inputs=inputs)
    for name, value in op.attributes:
        if isinstance(value, Literal):
            for tree in changed(value.text, change):
                yield f"{name}: {value.text} → {ast.unparse(tree)} in {op.op}", with_attribute(op, name, literal(tree))


def literal(tree: ast.expr) -> Literal:
    return Literal(compile_expression(tree, ast.unparse(tree)), ast.unparse(tree))


# -- operators -------------------------------------------------------------------------------------


def of_operators(change: Callable[[Op], Iterable[tuple[str, object]]]) -> Callable[[Rule], Iterator[tuple[str, Rule]]]:
    """Return a function that yields (change in words, changed rule) for changes of operators on the right side.

    Args:
        change: function from an operator to pairs (change in words, replacement). The replacement is an operator, or
            the pattern of a tensor that takes the place of the operator's result.
    """

    def result(rule: Rule) -> Iterator[tuple[str, Rule]]:
        for op in rule.target_ops:
            for what, other in change(op):
                yield what, with_target(rule, tuple((name, rewritten(p, op.key, other)) for name, p in rule.target))

    return result


def rewritten(pattern, key: int, other):
    """Return a pattern in which one operator is replaced.

    Args:
        pattern: the pattern.
        key: key of the operator.
        other: the new operator, or the pattern of a tensor.
    """
    if not isinstance(pattern, Output):
        return pattern
    if pattern.op.key == key:
        return Output(other, pattern.slot) if isinstance(other, Op) else other
    inputs = tuple(rewritten(i, key, other) for i in pattern.op.inputs)
    return pattern if inputs == pattern.op.inputs else Output(pattern.op._replace(inputs=inputs), pattern.slot)


def with_target(rule: Rule, target: tuple) -> Rule:
    return made(rule, target=target, text=print_rule(rule.name, rule.source, target, clauses_of(rule)))


def made(rule: Rule, **changes) -> Rule:
    return replace(rule, symmetric=False, **changes)  # after the change its two roots may differ


def with_attribute(op: Op, name: str, value: Literal) -> Op:
    return op._replace(attributes=tuple((n, value if n == name else old) for n, old in op.attributes))


def exchanged_outputs(rule: Rule) -> Iterator[tuple[str, Rule]]:
    names, patterns = zip(*rule.target, strict=True)
    for a, b in itertools.combinations(range(len(names)), 2):
        order = list(patterns)
        order[a], order[b] = order[b], order[a]
        yield f"{names[a]} and {names[b]} change places", with_target(rule, tuple(zip(names, order, strict=True)))


def exchanged_operands(op: Op) -> Iterator[tuple[str, Op]]:
    for a, b in itertools.combinations(range(len(op.inputs)), 2):
        if op.op not in COMMUTATIVE and op.op != "Concat":
            inputs = list(op.inputs)
            inputs[a], inputs[b] = inputs[b], inputs[a]
            yield f"inputs {a} and {b} of {op.op} change places", op._replace(inputs=tuple(inputs))


def reversed_concatenations(op: Op) -> Iterator[tuple[str, Op]]:
    if op.op == "Concat":
        yield "Concat in the other order", op._replace(inputs=op.inputs[::-1])


def lost_operators(op: Op) -> Iterator[tuple[str, object]]:
    if op.op not in ARITHMETIC:
        yield from _lost(op)


def lost_factors(rule: Rule) -> Iterator[tuple[str, Rule]]:
    yield from of_operators(lambda op: _lost(op) if op.op in ARITHMETIC else ())(rule)
    yield from of_expressions(lost_operand)(rule)


def _lost(op: Op) -> Iterator[tuple[str, object]]:
    for k, pattern in enumerate(op.inputs[:2]):
        if isinstance(pattern, Output | Var):
            yield f"{op.op} is lost, its input {k} stays", pattern


def lost_attributes(op: Op) -> Iterator[tuple[str, Op]]:
    for k, (name, _) in enumerate(op.attributes):
        yield f"{name} of {op.op} is lost", op._replace(attributes=op.attributes[:k] + op.attributes[k + 1 :])
    if op.rest is not None:
        yield f"**{op.rest} of {op.op} is lost", op._replace(rest=None)


def next_axes(op: Op) -> Iterator[tuple[str, Op]]:
    yield from _attributes(op, "axis", "({}) + 1")


def inverted_permutations(op: Op) -> Iterator[tuple[str, Op]]:
    yield from _attributes(op, "perm", "inverse({})")


def _attributes(op: Op, wanted: str, changed_to: str) -> Iterator[tuple[str, Op]]:
    for name, value in op.attributes:
        if name == wanted:
            text = changed_to.format(value.name if isinstance(value, Bind) else value.text)
            tree = ast.parse(text, mode="eval").body
            yield f"{name} of {op.op} is {ast.unparse(tree)}", with_attribute(op, name, literal(tree))


# Kind → function that yields (change in words, changed rule).
KINDS: dict[str, Callable[[Rule], Iterator[tuple[str, Rule]]]] = {
    "condition dropped": dropped_conditions,
    "operands exchanged": of_operators(exchanged_operands),
    "number changed": of_expressions(another_number),
    "condition weakened": weakened_conditions,
    "operator lost": of_operators(lost_operators),
    "list reversed": of_expressions(another_order),
    "outputs exchanged": exchanged_outputs,
    "factor or summand lost": lost_factors,
    "axis changed": of_operators(next_axes),
    "attribute lost": of_operators(lost_attributes),
    "concatenation reversed": of_operators(reversed_concatenations),
    "permutation inverted": of_operators(inverted_permutations),
}
