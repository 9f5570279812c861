"""Rewrite rules on expressions: patterns with binders, the rules that are functions, and the rewrites at each node.

Most rules are written as `(rule name (arguments) lhs rhs)` in rules.ks. A rewrite cannot capture variables. Each
argument of a rule has a *scope*, the variables bound by the pattern that the argument may mention. The expression that
an argument matches refers to the variables in its scope by its innermost de Bruijn indices. An expression that mentions
any other variable bound by the pattern does not match (`Pattern.fit`, `Pattern.build`).

A rewrite is identified by its rule and its *location*, a node. Its *redex* is the subtree that it replaces. For most
rules the location is the root of the redex. For `new_bind`, `lift_bind` and `lift_if` the redex is the parent of the
location. For `inline_let` and `inline_call` the redex is the `let` that binds the variable or function at the location.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from rlflow.common.errors import RLFlowError
from rlflow.tasks.expressions.expr import (
    ARITY,
    BINDERS,
    BOOL,
    FLOAT,
    INTEGER,
    SCALARS,
    Expr,
    constant,
    leaves,
    make,
    rename,
    shift,
)  # fmt: skip
from rlflow.tasks.expressions.syntax import read_lists, show

# Name of a rule set (option `task.rules`) → the groups of rules.ks in this set.
SETS = {
    "simplify": ("arithmetic", "constants", "lets"),
    "binding": ("binding", "lets"),
    "both": ("arithmetic", "constants", "lets", "binding"),
    "ml": ("arithmetic", "constants", "lets", "binding", "vectors", "conditions", "calls"),
    "ml-no-bind": ("arithmetic", "constants", "lets", "vectors", "conditions", "calls"),
}
# Name of a condition on an argument of a rule → whether a type satisfies the condition.
_CLASSES: dict[str, Callable] = {
    "Any": lambda kind: True, "Real": lambda kind: leaves(kind) <= {FLOAT},
    **{kind: lambda other, kind=kind: kind == other for kind in (FLOAT, INTEGER, BOOL)},
}  # fmt: skip


class Binding(NamedTuple):
    """The expression that an argument of a rule stands for.

    Attributes:
      expr: the expression; its innermost variables are the argument's `scope`, in this order.
      scope: the names of the pattern's variables that it may mention.
    """

    expr: Expr
    scope: tuple[str, ...]


class Pattern(NamedTuple):
    """A side of a rule.

    Attributes:
      op: an operator, or "argument" for an argument of the rule, or "bound" for a variable of the pattern.
      args: the patterns of the arguments.
      value: the name of an argument or of a variable, or the number of a constant.
      binder: the name of the variable that the operator binds, or None.
    """

    op: str
    args: tuple["Pattern", ...] = ()
    value: object = None
    binder: str | None = None

    def scopes(self, context: tuple[str, ...] = ()):
        """Yield (name, variables in scope, the innermost first) for each occurrence of an argument."""
        if self.op == "argument":
            yield self.value, context
        under = BINDERS.get(self.op)
        for position, arg in enumerate(self.args):
            yield from arg.scopes((self.binder, *context) if position == under else context)

    def fit(self, expr: Expr, rule: "Rule", found: dict, context: tuple[str, ...] = ()) -> bool:
        """Match an expression, and store what the arguments stand for.

        Args:
          expr: the expression.
          rule: the rule of the pattern.
          found: argument → `Binding`, and variable of the pattern → its name in the expression; it is extended.
          context: the pattern's variables around the expression, the innermost first.
        """
        if self.op == "argument":
            scope, depth = rule.scopes[self.value], len(context)
            if scope != context:
                if any(name not in scope and expr.mentions(index) for index, name in enumerate(context)):
                    return False
                expr = rename(expr, lambda k: scope.index(context[k]) if k < depth else k - depth + len(scope))
            known = found.get(self.value)
            if known is None:
                found[self.value] = Binding(expr, scope)
                return _CLASSES[rule.arguments[self.value]](expr.type)
            return known.expr.key == expr.key
        if self.op == "bound":
            return expr.op == "variable" and expr.value == context.index(self.value)
        if self.op != expr.op or len(self.args) != len(expr.args):
            return False
        if self.op == "constant":
            return expr.value == self.value and (expr.type == BOOL) == isinstance(self.value, bool)
        under = BINDERS.get(self.op)
        if under is None:
            return all(arg.fit(other, rule, found, context) for arg, other in zip(self.args, expr.args, strict=True))
        found[self.binder] = expr.hint
        inner = (self.binder, *context)
        for position, (arg, other) in enumerate(zip(self.args, expr.args, strict=True)):
            if not arg.fit(other, rule, found, inner if position == under else context):
                return False
        return True

    def build(self, found: Mapping, kind, context: tuple[str, ...] = ()) -> Expr:
        """Return the expression of the right side of a rule.

        Args:
          found: the result of `fit`.
          kind: type of a number.
          context: the pattern's variables around the result, the innermost first.
        """
        if self.op == "argument":
            expr, scope = found[self.value]
            if scope == context:
                return expr
            depth = len(scope)
            return rename(expr, lambda k: context.index(scope[k]) if k < depth else k - depth + len(context))
        if self.op == "bound":
            return Expr.variable(context.index(self.value), INTEGER)
        if self.op == "constant":
            return constant(self.value, BOOL if isinstance(self.value, bool) else kind)
        under = BINDERS.get(self.op)
        args = [
            arg.build(found, kind, (self.binder, *context) if position == under else context)
            for position, arg in enumerate(self.args)
        ]
        return make(self.op, *args, hint=found.get(self.binder))


class Rule(NamedTuple):
    """A rule.

    Attributes:
      name: its name.
      group: the group of rules.ks to which it belongs.
      arguments: argument → the name of its condition on types; {} of a native rule.
      left, right: the sides; None of a native rule.
      scopes: argument → the pattern's variables that it may mention.
    """

    name: str
    group: str
    arguments: Mapping[str, str]
    left: Pattern | None
    right: Pattern | None
    scopes: Mapping[str, tuple[str, ...]]

    def rewritten(self, expr: Expr) -> Expr | None:
        """Return the expression that replaces an expression by this rule, or None if the rule does not apply to it.

        The rule must be one whose location is its redex (`_by_operator`).
        """
        if self.left is None:
            return _NATIVE[self.name](expr)
        found: dict = {}
        if not self.left.fit(expr, self, found):
            return None
        if self.right.op == "constant" and not (expr.type in SCALARS or isinstance(self.right.value, bool)):
            return None  # a number cannot take the place of a vector
        return self.right.build(found, expr.type if expr.type in SCALARS else FLOAT)


@cache
def all_rules() -> dict[str, Rule]:
    """Return name → rule, in the order of rules.ks.

    Raises:
      RLFlowError: a rule has an error.
    """
    result, group = {}, ""
    for part in read_lists(Path(__file__).with_name("rules.ks").read_text(encoding="utf-8")):
        if part[0] == "group":
            group = part[1]
        elif part[0] == "native":
            result[part[1]] = Rule(part[1], group, {}, None, None, {})
        else:
            result[part[1]] = parse_rule(part, group)
    return result


def parse_rule(part: list, group: str = "") -> Rule:
    """Check a rule of the form (rule name (arguments) lhs rhs) and return it.

    Args:
      part: the rule as nested lists of strings (`syntax.read_lists`).
      group: name of the rule's group.

    Raises:
      RLFlowError: the rule has another form, a name is unknown, or the right side has an argument that the left side
        lacks.
    """
    if len(part) != 5 or part[0] != "rule":
        raise RLFlowError(f"{show(part)[:60]} is not (rule name (arguments) lhs rhs)")
    listed = [part[2]] if len(part[2]) == 3 and part[2][1] == ":" else part[2]
    arguments = {name: kind for name, _, kind in listed}
    if unknown := set(arguments.values()) - set(_CLASSES):
        raise RLFlowError(f"rule {part[1]}: no condition on types is named {min(unknown)}")
    left, right = (_pattern(side, arguments, ()) for side in part[3:])
    on_left, on_right = list(left.scopes()), list(right.scopes())
    if missing := {name for name, _ in on_right} - {name for name, _ in on_left}:
        raise RLFlowError(f"rule {part[1]}: only the right side has the argument {min(missing)}")
    scopes: dict[str, tuple] = {}
    for name, context in on_left + on_right:
        scopes[name] = tuple(each for each in scopes.get(name, context) if each in context)
    return Rule(part[1], group, arguments, left, right, scopes)


def _pattern(part, arguments: Mapping[str, str], bound: tuple[str, ...]) -> Pattern:
    if isinstance(part, str):
        if part in bound:
            return Pattern("bound", value=part)
        if part in arguments:
            return Pattern("argument", value=part)
        if part in ("true", "false"):
            return Pattern("constant", value=part == "true")
        try:
            return Pattern("constant", value=float(part))
        except ValueError:
            raise RLFlowError(f"a rule has no argument or variable '{part}'") from None
    head, *rest = part
    if head not in ARITY:
        raise RLFlowError(f"a rule has no operator '{head}'")
    if head == "let":
        (name, value), body = rest
        args = (_pattern(value, arguments, bound), _pattern(body, arguments, (name, *bound)))
        return Pattern(head, args, binder=name)
    if head in ("build", "sumbuild"):
        size, (_, (name, *_), body) = rest
        args = (_pattern(size, arguments, bound), _pattern(body, arguments, (name, *bound)))
        return Pattern(head, args, binder=name)
    return Pattern(head, tuple(_pattern(each, arguments, bound) for each in rest))


# -- rules that are functions of their redex -------------------------------------------------------

_FOLD: dict[str, Callable] = {
    "cprop_add": lambda a, b: a + b, "cprop_sub": lambda a, b: a - b, "cprop_mul": lambda a, b: a * b,
    "cprop_div": lambda a, b: a // b if isinstance(a, int) else a / b,
    "cprop_eq": lambda a, b: a == b, "cprop_gt": lambda a, b: a > b, "cprop_gteq": lambda a, b: a >= b,
}  # fmt: skip
_FOLDED = {
    "cprop_add": "add", "cprop_sub": "sub", "cprop_mul": "mul", "cprop_div": "div", "cprop_eq": "eq",
    "cprop_gt": "gt", "cprop_gteq": "gte",
}  # fmt: skip


def _fold(name: str, expr: Expr) -> Expr | None:
    """Return the value of an operator on two numbers; None for a division by 0 and for a result that is not finite."""
    if expr.op != _FOLDED[name] or any(arg.op != "constant" for arg in expr.args):
        return None
    left, right = (arg.value for arg in expr.args)
    if name == "cprop_div" and right == 0:
        return None
    value = _FOLD[name](left, right)
    return constant(value, expr.type) if abs(value) < float("inf") else None


def _div_by_self(expr: Expr) -> Expr | None:
    if expr.op != "div" or expr.args[0] != expr.args[1] or expr.type != FLOAT:
        return None
    return None if expr.args[0].op == "constant" and expr.args[0].value == 0 else constant(1.0)


def _cse_bind(expr: Expr) -> Expr | None:
    """(let (x a) (let (y a) b)) → (let (x a) b), where x replaces y in b."""
    inner = expr.args[1] if expr.op == "let" else expr
    if inner is expr or inner.op != "let" or inner.args[0].mentions(0) or shift(inner.args[0], -1) != expr.args[0]:
        return None
    return expr.with_args((expr.args[0], rename(inner.args[1], lambda index: max(index - 1, 0))))


def _select_of_tuple(expr: Expr) -> Expr | None:
    return expr.args[0].args[expr.value] if expr.op == "get" and expr.args[0].op == "tuple" else None


def _sumbuild_of_tuple(expr: Expr) -> Expr | None:
    if expr.op != "sumbuild" or expr.args[1].op != "tuple":
        return None
    return make("tuple", *(make("sumbuild", expr.args[0], part, hint=expr.hint) for part in expr.args[1].args))


def _add_tuples(expr: Expr) -> Expr | None:
    if expr.op != "add" or any(arg.op != "tuple" for arg in expr.args):
        return None
    return make("tuple", *(make("add", a, b) for a, b in zip(expr.args[0].args, expr.args[1].args, strict=True)))


def _mul_tuple_scalar(expr: Expr) -> Expr | None:
    if expr.op != "mul" or expr.args[0].op != "tuple" or expr.args[1].type not in SCALARS:
        return None
    return make("tuple", *(make("mul", part, expr.args[1]) for part in expr.args[0].args))


def _is_zero(expr: Expr) -> bool:
    if expr.op == "constVec":
        return _is_zero(expr.args[1])
    return expr.op == "constant" and expr.type != BOOL and expr.value == 0


def _sumbuild_of_zero_vec(expr: Expr) -> Expr | None:
    if expr.op != "sumbuild" or not _is_zero(expr.args[1]) or expr.args[1].mentions(0):
        return None
    return shift(expr.args[1], -1)


def _may_bind(parent: Expr, position: int) -> bool:
    child = parent.args[position]
    return parent.op not in ("lam", "let") and child.op != "let" and child.size > 1


def _new_bind(parent: Expr, position: int) -> Expr:
    """(f … a …) → (f … (let (x a) x) …)."""
    child = parent.args[position]
    bound = make("let", child, Expr.variable(0, child.type))
    return parent.with_args(parent.args[:position] + (bound,) + parent.args[position + 1 :])


def _may_lift(op: str, parent: Expr, position: int) -> bool:
    """Return whether an argument of `parent` has the operator `op`, and its own first argument may be computed earlier.

    The first argument of an arm of an `if`, or of the body of an `assert`, must be total. The condition may guard an
    expression that has no value otherwise, such as an element outside a vector.

    Args:
      op: "let" or "if".
      parent: the node around the argument.
      position: the position of the argument.
    """
    child = parent.args[position]
    if child.op != op or parent.op == "lam" or (parent.op == "let" and parent.args[0].op == "lam"):
        return False
    value = child.args[0]
    if parent.op in ("if", "assert") and position > 0 and not _is_total(value):
        return False
    return BINDERS.get(parent.op) != position or not value.mentions(0)


def _is_total(expr: Expr) -> bool:
    """Return whether an expression has a value for all values of its variables.

    The operators that can fail are `index`, `deltaVec`, `assert`, calls, divisions of integers, and the operators that
    make a vector of a given size, which must be at least 1. A constant is such a size, and so is the size of a vector.
    """
    for node in expr.nodes():
        if node.op in ("index", "deltaVec", "assert", "apply") or (node.op == "div" and node.type == INTEGER):
            return False
        if node.op in ("build", "sumbuild", "constVec"):
            size = node.args[0]
            if not (size.op == "size" or (size.op == "constant" and size.value >= 1)):
                return False
    return True


def _lift_bind(parent: Expr, position: int) -> Expr:
    """(f … (let (x a) b) …) → (let (x a) (f … b …))."""
    child = parent.args[position]
    value, body = child.args
    under = BINDERS.get(parent.op)
    if position == under:  # the two innermost variables of the body change places
        value, body = shift(value, -1), rename(body, lambda index: 1 - index if index < 2 else index)
    args = [shift(arg, 1, 1 if each == under else 0) for each, arg in enumerate(parent.args)]
    args[position] = body
    return make("let", value, parent.with_args(tuple(args)), hint=child.hint)


def _lift_if(parent: Expr, position: int) -> Expr:
    """(f … (if p a b) …) → (if p (f … a …) (f … b …))."""
    test, *arms = parent.args[position].args
    if BINDERS.get(parent.op) == position:
        test = shift(test, -1)
    both = [parent.with_args(parent.args[:position] + (arm,) + parent.args[position + 1 :]) for arm in arms]
    return make("if", test, *both)


_NATIVE: dict[str, Callable[[Expr], Expr | None]] = {
    **{name: lambda expr, name=name: _fold(name, expr) for name in _FOLD}, "div_by_self": _div_by_self,
    "cse_bind": _cse_bind, "select_of_tuple": _select_of_tuple, "sumbuild_of_tuple": _sumbuild_of_tuple,
    "add_tuples": _add_tuples, "mul_tuple_scalar": _mul_tuple_scalar, "sumbuild_of_zero_vec": _sumbuild_of_zero_vec,
}  # fmt: skip
NEW_BIND = "new_bind"  # a rule whose replacement depends on the location alone
# Rule → (predicate, function that returns the replacement of the parent). Both take the parent, which is the redex, and
# the position of the argument that is the location.
_OF_PARENT: dict[str, tuple[Callable[[Expr, int], bool], Callable[[Expr, int], Expr]]] = {
    NEW_BIND: (_may_bind, _new_bind),
    "lift_bind": (partial(_may_lift, "let"), _lift_bind),
    "lift_if": (partial(_may_lift, "if"), _lift_if),
}
_NATIVE_OPS = {
    **_FOLDED, "div_by_self": "div", "cse_bind": "let", "select_of_tuple": "get", "sumbuild_of_tuple": "sumbuild",
    "add_tuples": "add", "mul_tuple_scalar": "mul", "sumbuild_of_zero_vec": "sumbuild",
}  # fmt: skip
AT_VARIABLE, AT_CALL = "inline_let", "inline_call"  # their redex is the let around their location


@cache
def _by_operator() -> dict[str, list[Rule]]:
    """Return operator → the rules whose redex has this operator and is their location."""
    result: dict[str, list[Rule]] = {op: [] for op in ARITY}
    for rule in all_rules().values():
        if rule.left is not None:
            result[rule.left.op].append(rule)
        elif rule.name in _NATIVE_OPS:
            result[_NATIVE_OPS[rule.name]].append(rule)
    return result


def local_rewrites(expr: Expr) -> tuple[tuple[str, int], ...]:
    """Return the rewrites that replace an expression and depend on this expression alone.

    Returns:
      (rule, -1) if the location is the expression, or (rule, position) if it is the argument at this position.
    """
    if expr.local is None:
        found = [(rule.name, -1) for rule in _by_operator()[expr.op] if rule.rewritten(expr) is not None]
        for position, arg in enumerate(expr.args):
            if arg.size > 1:
                found += [(name, position) for name, (applies, _) in _OF_PARENT.items() if applies(expr, position)]
        expr.local = tuple(found)
    return expr.local


def rewrite_locally(expr: Expr, rule: str, position: int) -> Expr:
    """Return the expression after one of its `local_rewrites`.

    Args:
      expr: the expression.
      rule: the name of the rule.
      position: -1, or the position of the argument that is the location.
    """
    return all_rules()[rule].rewritten(expr) if position < 0 else _OF_PARENT[rule][1](expr, position)


def inline(let: Expr, path: list[int]) -> Expr:
    """Put the value of a `let` in the place of one of its variables, or the body of a function in the place of a call.

    Args:
      let: the `let`.
      path: the positions of arguments that lead from the `let` to the variable, or to the `apply` of the function.

    Returns:
      The `let` with another body; (apply f a) becomes (let (parameter a) body of f).
    """
    nodes, depth = [let], 0
    for position in path:
        depth += BINDERS.get(nodes[-1].op) == position
        nodes.append(nodes[-1].args[position])
    value, place = let.args[0], nodes.pop()
    if place.op == "apply":
        body = shift(value.args[0], depth, 1)
        result = make("let", place.args[1], body, hint=value.hint)
    else:
        result = shift(value, depth)
    for node, position in zip(reversed(nodes), reversed(path), strict=True):
        result = node.with_args(node.args[:position] + (result,) + node.args[position + 1 :])
    return result
