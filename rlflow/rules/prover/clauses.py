"""A rule's conditions and numbers, as texts that each algebra reads in its own way."""

import ast
from functools import cache

import onnx

from rlflow.rules.expressions import names_in
from rlflow.rules.rule import Rule


@cache
def clauses_of(rule: Rule) -> tuple[list[tuple[str, str]], list[str]]:
    """The (name, text) of numbers that are defined, and the conditions' texts, for another reading of them."""
    lets, conditions, numbers = [], [], {name for name, _ in rule.lets}
    for clause in rule.text.split("\n  ")[2:]:
        keyword, _, body = clause.partition(" ")
        if keyword == "let" and body.partition("=")[0].strip() in numbers:
            name, _, text = body.partition("=")
            lets.append((name.strip(), text.strip()))
        elif keyword == "if":
            conditions.append(body.rpartition(" else \"")[0] or body)
    return lets, conditions


@cache
def early_conditions(rule: Rule) -> list[tuple[set[str], str]]:
    """(names, text) of what must hold in any case, whether tensors are constant or not."""
    result = []
    for text in clauses_of(rule)[1]:
        node = ast.parse(text, mode="eval").body
        parts = node.values if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) else [node]
        for part in parts:
            called = {call.func.id for call in ast.walk(part) if isinstance(call, ast.Call)}
            if not called & {"constant", "unshared"}:
                result.append((names_in(part), ast.unparse(part)))
    return result


def of_integers_too(rule: Rule) -> bool:
    """Whether every operator of both sides exists for int64 tensors, and one of them has another meaning there."""
    ops = {op.op for op in (*rule.ops, *rule.target_ops)}
    return bool(ops & {"Div", "Pow", "ReduceMean"}) and all(
        _takes_integers(op.op, op.domain) for op in (*rule.ops, *rule.target_ops)
    )


def _takes_integers(op: str, domain: str) -> bool:
    if domain:
        return False
    schema = onnx.defs.get_schema(op, domain)
    kinds = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    first = schema.inputs[0].type_str
    return "tensor(int64)" in kinds.get(first, (first,))
