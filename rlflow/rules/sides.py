"""Parsing one side of a rule's equation into patterns."""

import ast
from typing import Any

from rlflow.common.errors import RLFlowError
from rlflow.graph import contrib
from rlflow.rules.expressions import compile_expression, names_in
from rlflow.rules.patterns import Absent, Bind, Literal, Op, Output, Star, Var


def is_operator(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and (
        (isinstance(node.func, ast.Name) and node.func.id[0].isupper()) or isinstance(node.func, ast.Attribute)
    )


class Side:
    """Parses one side of an equation into its outputs."""

    counter = 0

    def __init__(self, text: str, rule: str, tensors: dict | None = None):
        self.where, self.names = f"rule {rule}", dict(tensors or {})
        used: set[str] = set()
        assigned: list[tuple[str, Any]] = []
        try:
            statements = ast.parse(text.strip()).body
        except SyntaxError as error:
            raise RLFlowError(f"{self.where}: cannot read '{text.strip()}'") from error
        for statement in statements:
            match statement:
                case ast.Expr(value=value):
                    assigned.append(("result", self.tensor(value)))
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.names[name] = self.tensor(value)
                    assigned.append((name, self.names[name]))
                case ast.Assign(targets=[ast.Tuple() | ast.Starred() as target], value=value):
                    op, targets = self.operator(value), getattr(target, "elts", [target])
                    for slot, target in enumerate(targets):
                        star = isinstance(target, ast.Starred)
                        name = target.value.id if star else target.id
                        self.names[name] = Output(op, None if star else slot)
                        assigned.append((name, self.names[name]))
                case _:
                    raise RLFlowError(f"{self.where}: '{ast.unparse(statement)}' is no equation")
            used |= names_in(statement.value)
        self.outputs = tuple((name, output) for name, output in assigned if name not in used)

    def tensor(self, node: ast.expr):
        match node:
            case ast.Name(id=name):
                return self.names.get(name, Var(name))
            case ast.Starred(value=ast.Name(id=name)):
                return self.names.get(name, Star(name))
            case ast.Constant(value=None):
                return Absent()
            case _ if is_operator(node):
                return Output(self.operator(node), 0)
        return self.literal(node)

    def literal(self, node: ast.expr) -> Literal:
        return Literal(compile_expression(node, self.where), ast.unparse(node))

    def operator(self, node: ast.expr) -> Op:
        if not is_operator(node):
            raise RLFlowError(f"{self.where}: '{ast.unparse(node)}' is no operator")
        domain, dot, name = ast.unparse(node.func).rpartition(".")
        if dot and (domain != contrib.DOMAIN or name not in contrib.OPERATORS):
            raise RLFlowError(f"{self.where}: '{domain}.{name}' is no operator that rules know")
        attributes, rest = [], None
        for keyword in node.keywords:
            if keyword.arg is None:
                rest = keyword.value.id
            elif isinstance(keyword.value, ast.Name):
                attributes.append((keyword.arg, Bind(keyword.value.id)))
            else:
                attributes.append((keyword.arg, self.literal(keyword.value)))
        Side.counter += 1
        return Op(Side.counter, name, domain, tuple(self.tensor(a) for a in node.args), tuple(attributes), rest)
