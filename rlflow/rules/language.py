"""Parse the text format of rules.

A rule reads as its equation:

    conv-batchnorm: two kernels become one
      BatchNormalization(Conv(x, w, **a), s, b, m, v, epsilon=e)
        => Conv(x, Mul(w, Reshape(k, [-1, 1, 1, 1])), Sub(b, Mul(m, k)), **a)
      let k = Div(s, Sqrt(Add(v, full(e, v))))
      if constant(w, s, b, m, v) else "a weight or statistic is not constant"

Positional arguments are tensors, keyword arguments are attributes.

Left side: a name binds a tensor or an attribute, and a second use of the name must match the same value. A constant
must equal a literal. `*xs` takes any number of inputs; `**a` takes all attributes that are not named. `None` is an
optional input that is left out. Several lines with `y1 = …` match several outputs at once; a name that is used again on
its own side is an inner tensor.

Right side: arguments that are not operators (`[-1, 1]`, `full(…)`) are literals. `computed(h, w)` is the list `[h, w]`
that new operators compute if a size is a symbol (size_operands.py). The rule's canonical text contains `[h, w]`.

`<=>` defines a second rule, `<name>-inverse`. `forward` or `backward` before `let` or `if` restricts the clause to one
direction. `for Op in Relu, Tanh` defines one rule per operator: `Op` is replaced in the equation and in the rule's
name. An operator of another domain than ONNX's is written with its domain (`com.microsoft.FusedMatMul(x, w)`). Comments
begin with `#` and are not part of a rule's canonical text, hash or proof.
"""

import ast
import copyreg
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rlflow.common.errors import RLFlowError
from rlflow.graph import contrib
from rlflow.rules.expressions import CONTENT_FUNCTIONS, compile_expression, names_in
from rlflow.rules.patterns import (
    Absent,
    Bind,
    Literal,
    Op,
    Output,
    Star,
    Var,
    ops_of,
    print_rule,
    skeleton,
    substituted,
    variables_of,
    walk,
)
from rlflow.rules.proofs import load_proofs, proof_of
from rlflow.rules.rule import Condition, Rule, RuleSet


def is_operator(node: ast.expr) -> bool:
    """Return True if a syntax tree is a call whose function is a capitalised name or a name with a domain."""
    return isinstance(node, ast.Call) and (
        (isinstance(node.func, ast.Name) and node.func.id[0].isupper()) or isinstance(node.func, ast.Attribute)
    )


class Side:
    """A parser for one side of an equation.

    Args:
      text: the text of the side.
      rule: the rule's name, for error messages.
      tensors: name → pattern that the name stands for.

    Attributes:
      outputs: (output name, pattern) pairs of the side, in the order of the text.
    """

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
                    raise RLFlowError(f"{self.where}: '{ast.unparse(statement)}' is not an equation")
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
        computed = is_computed(node)
        node = ast.List(node.args, ast.Load()) if computed else node
        return Literal(compile_expression(node, self.where), ast.unparse(node), computed)

    def operator(self, node: ast.expr) -> Op:
        if not is_operator(node):
            raise RLFlowError(f"{self.where}: '{ast.unparse(node)}' is not an operator")
        domain, dot, name = ast.unparse(node.func).rpartition(".")
        if dot and (domain != contrib.DOMAIN or name not in contrib.OPERATORS):
            raise RLFlowError(f"{self.where}: '{domain}.{name}' is not an operator that rules can use")
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


RULES_FOLDER = Path(__file__).parent
ONLY_BY_NAME = frozenset(("memory",))  # families that save memory at the cost of latency; loaded only on request


def families() -> list[str]:
    """Return the names of the shipped rule families, sorted."""
    return sorted(path.stem for path in RULES_FOLDER.glob("*.rules"))


def load_rules(names: list[str] | None = None, folder: Path = RULES_FOLDER) -> RuleSet:
    """Return the rules of some families, in alphabetical order of the families.

    Args:
      names: the families; None or empty for all except `ONLY_BY_NAME`.
      folder: folder of the *.rules files.

    Raises:
      RLFlowError: if a family is unknown or two rules have the same name.
    """
    known = sorted(path.stem for path in folder.glob("*.rules"))
    for name in names or ():
        if name not in known:
            raise RLFlowError(f"unknown rule family '{name}'; known: {', '.join(known)}")
    chosen = [name for name in known if (name in names if names else name not in ONLY_BY_NAME)]
    rules = [rule for name in chosen for rule in _parsed((folder / f"{name}.rules").read_text(encoding="utf-8"), name)]
    twice = sorted(name for name, count in Counter(rule.name for rule in rules).items() if count > 1)
    if twice:
        raise RLFlowError(f"two rules are named '{twice[0]}'")
    digest = hashlib.sha256("\n".join(rule.text for rule in rules).encode()).hexdigest()
    return RuleSet(tuple(rules), digest)


@cache
def _parsed(text: str, family: str) -> tuple[Rule, ...]:
    """Return the rules in the text of a family's file, with `for_all_shapes` set from the shipped proofs.

    The result is cached, since parsing all families takes 0.2 s and one command loads them several times.
    """
    return tuple(map(with_proof, parse(text, family)))


def with_proof(rule: Rule) -> Rule:
    """Return the rule with `for_all_shapes` set: True if proofs.json proves its current text for all shapes."""
    record = proof_of(rule, _proofs())
    return replace(rule, for_all_shapes=record is not None and record["proof"] == "all-shapes")


_proofs = cache(load_proofs)


@cache
def defined_rule(definition: str, family: str, name: str, for_all_shapes: bool) -> Rule:
    """Parse the definition of a rule again and return the rule; pickle restores rules by this function.

    The result is cached, so that all states that a process unpickles share one object for each rule.

    Args:
      definition: `Rule.definition`; the lines may define the inverse, too.
      family, name, for_all_shapes: the attributes of the rule to return.
    """
    (rule,) = [rule for rule in _parse_block(definition.split("\n"), family) if rule.name == name]
    return replace(rule, for_all_shapes=for_all_shapes)


# A rule is pickled as its definition, because the functions of its expressions cannot be pickled.
copyreg.pickle(Rule, lambda rule: (defined_rule, (rule.definition, rule.family, rule.name, rule.for_all_shapes)))


def only_standard(rules: RuleSet) -> RuleSet:
    """Return the rules that add only operators of ONNX's own domain.

    The result has the hash of `rules`, because a receipt is replayed with the whole set and compares the hash.
    """
    return RuleSet(tuple(rule for rule in rules if not any(op.domain for op in rule.target_ops)), rules.hash)


def chosen(rules: RuleSet, only: Sequence[str], skip: Sequence[str]) -> RuleSet:
    """Return the rules named in `only` (all rules if it is empty) that are not named in `skip`, in their order.

    The result has the hash of `rules`, because a receipt is replayed with the whole set and compares the hash.

    Args:
      rules: the rule set.
      only, skip: names of shipped rules.

    Raises:
      RLFlowError: a name is not the name of a shipped rule, or no rule is left.
    """
    if not only and not skip:
        return rules
    shipped = load_rules(families())
    for name in (*only, *skip):
        shipped.index(name)  # raises if there is no such rule
    kept = tuple([rule for rule in rules if (not only or rule.name in only) and rule.name not in skip])
    if not kept:
        words = f" of {', '.join(only)}" if only else ""
        raise RLFlowError(
            f"no rule{words} is left: the other options (--skip-rule, --exact, --standard-operators-only, env.rules) "
            "leave them out. Name another rule"
        )
    return RuleSet(kept, rules.hash)


def parse(text: str, family: str) -> list[Rule]:
    """Return the rules of one file.

    Args:
      text: the content of the file.
      family: the family's name, for the rules and for error messages.

    Raises:
      RLFlowError: if the text has a mistake; the message names the rule and the mistake.
    """
    blocks: list[list[str]] = []
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        if not line:
            continue
        if not line[0].isspace():
            blocks.append([])
        elif not blocks:
            raise RLFlowError(f"{family}.rules: an indented line before the first rule")
        blocks[-1].append(line)
    return [rule for block in blocks for lines in _instances(block) for rule in _parse_block(lines, family)]


def _instances(lines: list[str]) -> list[list[str]]:
    """Return the lines of each rule that a block of lines defines: one rule for each operator in its `for` line.

    A block without a `for` line defines one rule.
    """
    each = [match for line in lines if (match := re.fullmatch(r"\s+for (\w+) in (.*)", line))]
    if not each:
        return [lines]
    placeholder, ops = rf"\b{each[0][1]}\b", each[0][2].split(", ")
    name, *rest = [line for line in lines if line != each[0][0]]
    return [[re.sub(placeholder, op.lower(), name), *(re.sub(placeholder, op, line) for line in rest)] for op in ops]


def _parse_block(lines: list[str], family: str) -> list[Rule]:
    name, colon, why = lines[0].partition(":")
    if not colon or not re.fullmatch(r"[a-z0-9-]+", name):
        raise RLFlowError(f"{family}.rules: '{lines[0]}' does not begin a rule (name: why)")
    equation, extras = [], []
    for line in lines[1:]:
        if re.match(r"\s+(forward |backward )?(let|if) ", line):
            extras.append(line.strip())
        elif extras:
            extras[-1] += " " + line.strip()
        else:
            equation.append(line.strip())
    arrow = "<=>" if "<=>" in " ".join(equation) else "=>"
    left, result, right = "\n".join(equation).partition(arrow)
    if not result:
        raise RLFlowError(f"rule {name}: no '=>' in its equation")
    sides = [Side(left, name).outputs, Side(right, name).outputs]
    directions = [(name, sides[0], sides[1], "forward ")]
    if arrow == "<=>":
        directions.append((f"{name}-inverse", sides[1], sides[0], "backward "))
    rules = []
    for rule_name, source, target, direction in directions:
        other = {"forward ": "backward ", "backward ": "forward "}[direction]
        clauses = [extra.removeprefix(direction) for extra in extras if not extra.startswith(other)]
        rule = _make_rule(rule_name, family, why.strip(), source, target, clauses)
        rules.append(replace(rule, definition="\n".join(lines)))
    return rules


def _make_rule(name, family, why, source, target, clauses) -> Rule:
    where = f"rule {name}"
    lets, tensors, conditions, constants = [], {}, [], set()
    for clause in clauses:
        keyword, _, body = clause.partition(" ")
        try:
            if keyword == "let":
                target_name, _, expression = body.partition("=")
                tree = ast.parse(expression.strip(), mode="eval").body
                if is_operator(tree):
                    tensors[target_name.strip()] = Side(expression.strip(), name, tensors).outputs[0][1]
                else:
                    lets.append((target_name.strip(), tree))
            else:
                tree = ast.parse(f"({_condition_text(body)})", mode="eval").body
                reason = f"not ({body})"
                if isinstance(tree, ast.IfExp):
                    tree, reason = tree.test, ast.literal_eval(tree.orelse)
                constants |= _constants_required(tree)
                conditions.append((tree, reason))
        except SyntaxError as error:
            raise RLFlowError(f"{where}: cannot read '{clause}'") from error
    trees = [tree for _, tree in lets] + [tree for tree, _ in conditions]
    target = tuple((n, substituted(output, tensors)) for n, output in target)
    if {n for n, _ in source} != {n for n, _ in target}:
        raise RLFlowError(f"{where}: the two sides do not give the same outputs")
    target = tuple((n, dict(target)[n]) for n, _ in source)
    if any(not isinstance(output, Output) for _, output in source):
        raise RLFlowError(f"{where}: the side to match is a bare tensor; write '=>' instead of '<=>'")
    calls = [
        call for tree in trees + _literal_trees(target) for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    ]  # fmt: skip
    contents = {
        arg.id for call in calls if call.func.id in CONTENT_FUNCTIONS for arg in call.args if isinstance(arg, ast.Name)
    }
    rule = Rule(
        name, family, why, source, target,
        tuple((n, compile_expression(tree, where)) for n, tree in lets),
        tuple(Condition(compile_expression(tree, where), reason) for tree, reason in conditions),
        any("unshared" in _called(tree) for tree in trees), tuple(sorted(contents)),
        _is_symmetric(source, target, trees),
        print_rule(name, source, target, [_with_lists(clause) for clause in clauses]),
    )  # fmt: skip
    _check_names(rule, constants, {n for n, _ in lets})
    _check_expressions(rule, lets, [tree for tree, _ in conditions])
    return rule


def is_computed(node: ast.AST) -> bool:
    """Return True for `computed(…)`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "computed"


class _Lists(ast.NodeTransformer):
    """A transformer of syntax trees that replaces `computed(…)` by the list of its arguments."""

    def visit_Call(self, node: ast.Call):
        self.generic_visit(node)
        return ast.List(node.args, ast.Load()) if is_computed(node) else node


def _with_lists(clause: str) -> str:
    """Return a clause for a rule's canonical text, in which `computed(h, w)` reads `[h, w]`."""
    keyword, _, body = clause.partition(" ")
    if keyword != "let" or "computed(" not in body:
        return clause
    name, _, expression = body.partition("=")
    return f"let {name.strip()} = {ast.unparse(_Lists().visit(ast.parse(expression.strip(), mode='eval')))}"


def _condition_text(body: str) -> str:
    """Return `C else "reason"` as Python text: `True if (C) else "reason"`."""
    condition, _, reason = body.rpartition(" else ")
    return f"True if ({condition}) else {reason}" if ' else "' in body else body


def _literal_trees(outputs) -> list[ast.expr]:
    """Return the syntax trees of all literals in (output name, pattern) pairs: operands and values of attributes."""
    parts = [part for op in ops_of(outputs).values() for part in (*op.inputs, *(value for _, value in op.attributes))]
    return [ast.parse(part.text, mode="eval").body for part in parts if isinstance(part, Literal)]


def _constants_required(tree: ast.expr) -> set[str]:
    """Return the names of the tensors that a condition requires to be constant."""
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    calls = [p for p in parts if isinstance(p, ast.Call) and isinstance(p.func, ast.Name) and p.func.id == "constant"]
    return {name for call in calls for arg in call.args for name in names_in(arg)}


def _check_names(rule: Rule, constants: set[str], lets: set[str]) -> None:
    bound = variables_of(rule.source)
    unbound = variables_of(rule.target) - bound - lets
    if unbound:
        raise RLFlowError(f"rule {rule.name}: '{sorted(unbound)[0]}' does not occur on the side that is matched")
    attributes = {p.name for _, side in rule.target for p in walk(side) if isinstance(p, Var | Star)} & set(
        rule.attribute_names
    )
    if attributes:
        raise RLFlowError(
            f"rule {rule.name}: '{sorted(attributes)[0]}' is an attribute; as a tensor write [*…] or full(…)"
        )
    if len(rule.roots) > 1:  # With this condition no rewrite elsewhere can make the replacement cyclic.
        tensors = [{v.name for v in walk(root) if isinstance(v, Var | Star)} - constants for root in rule.roots]
        if any(names != tensors[0] for names in tensors):
            raise RLFlowError(f"rule {rule.name}: every tensor that is not constant must occur under each output")


def _check_expressions(rule: Rule, lets: list[tuple[str, ast.expr]], conditions: list[ast.expr]) -> None:
    """Raise RLFlowError if an expression uses a name that is not defined where the expression is evaluated.

    Literals on the left side can use no names, `let` clauses the names of the left side and of earlier `let` clauses.
    Conditions and the right side can use all these names.
    """

    def check(tree: ast.expr, known: set[str]) -> None:
        unbound = names_in(tree) - known
        if unbound:
            raise RLFlowError(f"rule {rule.name}: '{sorted(unbound)[0]}' does not occur on the side that is matched")

    for side, known in ((rule.source, set()), (rule.target, variables_of(rule.source) | {name for name, _ in lets})):
        for tree in _literal_trees(side):
            check(tree, known)
    known = variables_of(rule.source)
    for name, tree in lets:
        check(tree, known)
        known |= {name}
    for tree in conditions:
        check(tree, known)


def _called(tree: ast.expr) -> set[str]:
    """Return the names of the functions that an expression calls."""
    return {call.func.id for call in ast.walk(tree) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}


def _is_symmetric(source, target, clauses: list[ast.expr]) -> bool:
    """Return True if the left side has two roots of equal structure that the right side merges into one operator.

    In addition, exchanging the variables of the two roots must leave the set of clauses unchanged.
    """
    roots = list({output.op.key: output.op for _, output in source}.values())
    merged = len({output.op.key for _, output in target if isinstance(output, Output)}) == 1
    if len(roots) != 2 or not merged or skeleton(roots[0]) != skeleton(roots[1]):
        return False
    exchanged = {}
    for one, other in zip(walk(roots[0]), walk(roots[1]), strict=True):
        if isinstance(one, Var | Star):
            exchanged |= {one.name: other.name, other.name: one.name}
    return {_meaning(clause, {}) for clause in clauses} == {_meaning(clause, exchanged) for clause in clauses}


def _meaning(tree: ast.AST, renamed: dict[str, str]) -> str:
    """Return a clause as text for comparison, with renamed variables and sorted operands of symmetric operations."""
    parts = [_meaning(child, renamed) for child in ast.iter_child_nodes(tree)]
    if isinstance(tree, ast.BoolOp) or (isinstance(tree, ast.Compare) and isinstance(tree.ops[0], ast.Eq)):
        parts.sort()
    if isinstance(tree, ast.Call) and _called(tree) & {"constant", "unshared"}:
        parts.sort()
    leaf = renamed.get(tree.id, tree.id) if isinstance(tree, ast.Name) else getattr(tree, "value", "")
    return f"{type(tree).__name__}:{'' if isinstance(leaf, ast.AST) else leaf}({','.join(parts)})"
