"""The text format of rules: parsing and printing.

A rule reads as its equation:

    conv-batchnorm: two kernels become one
      BatchNormalization(Conv(x, w, **a), s, b, m, v, epsilon=e)
        => Conv(x, Mul(w, Reshape(k, [-1, 1, 1, 1])), Sub(b, Mul(m, k)), **a)
      let k = Div(s, Sqrt(Add(v, full(e, v))))
      if constant(w, s, b, m, v) else "a weight or statistic is not constant"

Positional arguments are tensors, keyword arguments attributes. On the left side a name binds what it
meets (and must meet the same again), a literal must be met, `*xs` takes any number of inputs, `**a` all
attributes that are not named. An operator of another domain than ONNX's has it before its name
(`com.microsoft.FusedMatMul(x, w)`); `None` is an optional input that is left out. Several lines with
`y1 = …` match several outputs at once; a name that is used again on its own side is an inner tensor. On
the right side arguments that are no operator (`[-1, 1]`, `full(…)`) are literals. `<=>` gives a second
rule, `<name>-inverse`; lines that begin with `forward` or `backward` before `let` or `if` belong to one
direction alone. A line `for Op in Relu, Tanh` stands for one rule per operator: `Op` is replaced in the
equation, and in the rule's name.
"""

import ast
import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rlflow.common.errors import RLFlowError
from rlflow.graph import contrib
from rlflow.rules.expressions import SHAPE_FUNCTIONS, Expression, compile_expression, names_in

RULES_FOLDER = Path(__file__).parent


class Var(NamedTuple):
    """A tensor variable."""

    name: str


class Star(NamedTuple):
    """Any number of inputs."""

    name: str


class Absent(NamedTuple):
    """An optional input that is left out, before others that are given."""


class Literal(NamedTuple):
    """On the left a number that a constant must hold, on the right an expression for a new constant."""

    compute: Expression
    text: str


class Op(NamedTuple):
    """One operator of a side. `key` tells instances apart, so that two outputs can be of one node."""

    key: int
    op: str
    domain: str
    inputs: tuple
    attributes: tuple[tuple[str, Any], ...]  # (name, Bind | Expression)
    rest: str | None


class Bind(NamedTuple):
    """An attribute that binds a name, or must equal what the name is bound to."""

    name: str


class Output(NamedTuple):
    """Output number `slot` of an operator; slot None stands for all outputs of a `*ys = Op(…)`."""

    op: Op
    slot: int | None


class Condition(NamedTuple):
    holds: Expression
    reason: str


@dataclass(frozen=True)
class Rule:
    """One direction of a substitution.

    Attributes:
      name, family, why: as the file says.
      source, target: (output name, Output or Var) pairs; the outputs correspond by name and order.
      lets: (name, expression) for numbers; tensor-valued lets are substituted into `target`.
      conditions: what must hold, each with the reason that a refusal gives.
      relies_on_shapes: whether a condition or target depends on sizes of tensors that are not constant.
      counts_readers: whether a condition asks who else reads a tensor.
      symmetric: whether two roots are alike and merged into one, so that swapping them gives no new match.
      text: the canonical text, which the rule set's hash is made of.
    """

    name: str
    family: str
    why: str
    source: tuple[tuple[str, Output], ...]
    target: tuple[tuple[str, Any], ...]
    lets: tuple[tuple[str, Expression], ...]
    conditions: tuple[Condition, ...]
    relies_on_shapes: bool
    counts_readers: bool
    symmetric: bool
    text: str

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """Distinct operators of the source, roots first."""
        return tuple(_ops_of(self.source).values())

    @cached_property
    def target_ops(self) -> tuple[Op, ...]:
        return tuple(_ops_of(self.target).values())

    @cached_property
    def roots(self) -> tuple[Op, ...]:
        """The operators that give the outputs, each once."""
        return tuple({output.op.key: output.op for _, output in self.source}.values())

    @cached_property
    def root_positions(self) -> tuple[int, ...]:
        """Where the roots stand in `ops`."""
        return tuple(self.ops.index(root) for root in self.roots)

    @cached_property
    def replaced(self) -> tuple[tuple[int, int], ...]:
        """(place in `ops`, output slot) of every output that the target replaces."""
        positions = {op.key: position for position, op in enumerate(self.ops)}
        return tuple((positions[output.op.key], output.slot) for _, output in self.source)

    @cached_property
    def tensor_names(self) -> tuple[str, ...]:
        """The tensor variables of the source, sorted."""
        result = {pattern.name for _, output in self.source for pattern in _walk(output) if isinstance(pattern, Var | Star)}
        return tuple(sorted(result))

    @cached_property
    def attribute_names(self) -> tuple[str, ...]:
        """The names that attributes of the source bind, sorted."""
        return tuple(sorted(_variables(self.source) - set(self.tensor_names)))

    @cached_property
    def n_outputs(self) -> dict[int, int]:
        """Key of a target operator → how many outputs it has."""
        used = [output for _, output in self.target if isinstance(output, Output)]
        used += [child for op in self.target_ops for child in op.inputs if isinstance(child, Output)]
        return {op.key: 1 + max(o.slot for o in used if o.op.key == op.key) for op in self.target_ops}

    @cached_property
    def depth(self) -> int:
        """Operators on the longest path down from a root."""
        return max(_depth(output.op) for _, output in self.source)

    @cached_property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """For every operator of the source: the operators from it up to its root."""
        return tuple(dict.fromkeys(path for root in self.roots for path in _paths(root)))

    @cached_property
    def children(self) -> frozenset[str]:
        """Operators that must be among the producers of every root's inputs."""
        return frozenset.intersection(*[frozenset(c.op.op for c in root.inputs if isinstance(c, Output)) for root in self.roots])


@dataclass(frozen=True, eq=False)
class RuleSet:
    """Rules in the order of their xfer_ids."""

    rules: tuple[Rule, ...]
    hash: str = field(default="")

    def __len__(self) -> int:
        return len(self.rules)

    def __iter__(self):
        return iter(self.rules)

    def __getitem__(self, xfer_id: int) -> Rule:
        return self.rules[xfer_id]

    def index(self, name: str) -> int:
        for xfer_id, rule in enumerate(self.rules):
            if rule.name == name:
                return xfer_id
        raise RLFlowError(f"no rule is named '{name}'")


def families() -> list[str]:
    return sorted(path.stem for path in RULES_FOLDER.glob("*.rules"))


def load_rules(names: list[str] | None = None, folder: Path = RULES_FOLDER) -> RuleSet:
    """The shipped rules of the given families (None or empty: all), in alphabetical order of family."""
    known = sorted(path.stem for path in folder.glob("*.rules"))
    for name in names or ():
        if name not in known:
            raise RLFlowError(f"unknown rule family '{name}'; known: {', '.join(known)}")
    chosen = [name for name in known if not names or name in names]
    rules = [rule for name in chosen for rule in parse((folder / f"{name}.rules").read_text(), name)]
    twice = {rule.name for rule in rules if sum(other.name == rule.name for other in rules) > 1}
    if twice:
        raise RLFlowError(f"two rules are named '{sorted(twice)[0]}'")
    digest = hashlib.sha256("\n".join(rule.text for rule in rules).encode()).hexdigest()
    return RuleSet(tuple(rules), digest)


def only_standard(rules: RuleSet) -> RuleSet:
    """Those that introduce no operator of another domain than ONNX's. The hash stays: a receipt replays with all rules."""
    return RuleSet(tuple(rule for rule in rules if not any(op.domain for op in rule.target_ops)), rules.hash)


def parse(text: str, family: str) -> list[Rule]:
    """The rules of one file. Raises RLFlowError with the rule's name and what is wrong."""
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
    """The block once for every operator that its `for` line names."""
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
    sides = [_Side(left, name).outputs, _Side(right, name).outputs]
    directions = [(name, sides[0], sides[1], "forward ")]
    if arrow == "<=>":
        directions.append((f"{name}-inverse", sides[1], sides[0], "backward "))
    rules = []
    for rule_name, source, target, direction in directions:
        other = {"forward ": "backward ", "backward ": "forward "}[direction]
        clauses = [extra.removeprefix(direction) for extra in extras if not extra.startswith(other)]
        rules.append(_make_rule(rule_name, family, why.strip(), source, target, clauses))
    return rules


def _make_rule(name, family, why, source, target, clauses) -> Rule:
    where = f"rule {name}"
    lets, tensors, conditions, shaped, constants = [], {}, [], False, set()
    for clause in clauses:
        keyword, _, body = clause.partition(" ")
        try:
            if keyword == "let":
                target_name, _, expression = body.partition("=")
                tree = ast.parse(expression.strip(), mode="eval").body
                if _is_operator(tree):
                    tensors[target_name.strip()] = _Side(expression.strip(), name, tensors).outputs[0][1]
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
    for tree in trees:
        shaped |= any(
            isinstance(call, ast.Call) and call.func.id in SHAPE_FUNCTIONS and not names_in(call) <= constants
            for call in ast.walk(tree)
            if not isinstance(call, ast.Call) or isinstance(call.func, ast.Name)
        )
    target = tuple((n, _substitute(output, tensors)) for n, output in target)
    if {n for n, _ in source} != {n for n, _ in target}:
        raise RLFlowError(f"{where}: the two sides do not give the same outputs")
    target = tuple((n, dict(target)[n]) for n, _ in source)
    if any(not isinstance(output, Output) for _, output in source):
        raise RLFlowError(f"{where}: the side to match is a bare tensor; write '=>' instead of '<=>'")
    rule = Rule(
        name, family, why, source, target,
        tuple((n, compile_expression(tree, where)) for n, tree in lets),
        tuple(Condition(compile_expression(tree, where), reason) for tree, reason in conditions),
        shaped, any("unshared" in _called(tree) for tree in trees), _is_symmetric(source, target, trees),
        print_rule(name, source, target, clauses),
    )  # fmt: skip
    _check_names(rule, constants, {n for n, _ in lets})
    _check_expressions(rule, lets, [tree for tree, _ in conditions])
    return rule


def _condition_text(body: str) -> str:
    """`C else "reason"` is read as Python's `True if C else "reason"`."""
    condition, _, reason = body.rpartition(" else ")
    return f"True if ({condition}) else {reason}" if ' else "' in body else body


def _constants_required(tree: ast.expr) -> set[str]:
    """Names that the condition requires to be constant."""
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    calls = [p for p in parts if isinstance(p, ast.Call) and isinstance(p.func, ast.Name) and p.func.id == "constant"]
    return {name for call in calls for arg in call.args for name in names_in(arg)}


def _check_names(rule: Rule, constants: set[str], lets: set[str]) -> None:
    bound = _variables(rule.source)
    unbound = _variables(rule.target) - bound - lets
    if unbound:
        raise RLFlowError(f"rule {rule.name}: '{sorted(unbound)[0]}' does not occur on the side that is matched")
    attributes = {p.name for _, side in rule.target for p in _walk(side) if isinstance(p, Var | Star)} & set(rule.attribute_names)
    if attributes:
        raise RLFlowError(f"rule {rule.name}: '{sorted(attributes)[0]}' is an attribute; as a tensor write [*…] or full(…)")
    if len(rule.roots) > 1:  # then no rewrite elsewhere can make the replacement cyclic
        tensors = [{v.name for v in _walk(root) if isinstance(v, Var | Star)} - constants for root in rule.roots]
        if any(names != tensors[0] for names in tensors):
            raise RLFlowError(f"rule {rule.name}: every tensor that is not constant must occur under each output")


def _check_expressions(rule: Rule, lets: list[tuple[str, ast.expr]], conditions: list[ast.expr]) -> None:
    """Every name in an expression is one that the left side or an earlier let gives."""

    def check(tree: ast.expr, known: set[str]) -> None:
        unbound = names_in(tree) - known
        if unbound:
            raise RLFlowError(f"rule {rule.name}: '{sorted(unbound)[0]}' does not occur on the side that is matched")

    for side, known in ((rule.source, set()), (rule.target, _variables(rule.source) | {name for name, _ in lets})):
        for op in _ops_of(side).values():
            for literal in (*op.inputs, *(value for _, value in op.attributes)):
                if isinstance(literal, Literal):
                    check(ast.parse(literal.text, mode="eval").body, known)
    known = _variables(rule.source)
    for name, tree in lets:
        check(tree, known)
        known |= {name}
    for tree in conditions:
        check(tree, known)


def _is_operator(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and (
        (isinstance(node.func, ast.Name) and node.func.id[0].isupper()) or isinstance(node.func, ast.Attribute)
    )


class _Side:
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
            case _ if _is_operator(node):
                return Output(self.operator(node), 0)
        return self.literal(node)

    def literal(self, node: ast.expr) -> Literal:
        return Literal(compile_expression(node, self.where), ast.unparse(node))

    def operator(self, node: ast.expr) -> Op:
        if not _is_operator(node):
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
        _Side.counter += 1
        return Op(_Side.counter, name, domain, tuple(self.tensor(a) for a in node.args), tuple(attributes), rest)


def _substitute(pattern, tensors: dict):
    """Replaces tensor-valued `let` names by what they stand for."""
    match pattern:
        case Var(name) if name in tensors:
            return tensors[name]
        case Output(op, slot):
            return Output(op._replace(inputs=tuple(_substitute(i, tensors) for i in op.inputs)), slot)
    return pattern


def _walk(pattern):
    """All patterns under one, itself included."""
    pattern = pattern.op if isinstance(pattern, Output) else pattern
    yield pattern
    if isinstance(pattern, Op):
        for child in pattern.inputs:
            yield from _walk(child)


def _ops_of(outputs) -> dict[int, Op]:
    result = {}
    for _, output in outputs:
        for pattern in _walk(output):
            if isinstance(pattern, Op):
                result.setdefault(pattern.key, pattern)
    return result


def _variables(outputs) -> set[str]:
    names = set()
    for _, output in outputs:
        for pattern in _walk(output):
            match pattern:
                case Var(name) | Star(name):
                    names.add(name)
                case Op(attributes=attributes, rest=rest):
                    names |= {bound.name for _, bound in attributes if isinstance(bound, Bind)}
                    names |= {rest} if rest else set()
    return names


def _depth(pattern) -> int:
    pattern = pattern.op if isinstance(pattern, Output) else pattern
    return 1 + max((_depth(i) for i in pattern.inputs), default=0) if isinstance(pattern, Op) else 0


def _paths(op: Op):
    yield (op.op,)
    for child in op.inputs:
        if isinstance(child, Output):
            for path in _paths(child.op):
                yield (*path, op.op)


def _called(tree: ast.expr) -> set[str]:
    """The functions that an expression calls."""
    return {call.func.id for call in ast.walk(tree) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}


def _is_symmetric(source, target, clauses: list[ast.expr]) -> bool:
    """Whether two alike roots are merged into one, and the clauses say the same of both."""
    roots = list({output.op.key: output.op for _, output in source}.values())
    merged = len({output.op.key for _, output in target if isinstance(output, Output)}) == 1
    if len(roots) != 2 or not merged or _skeleton(roots[0]) != _skeleton(roots[1]):
        return False
    twin = {}
    for one, other in zip(_walk(roots[0]), _walk(roots[1]), strict=True):
        if isinstance(one, Var | Star):
            twin |= {one.name: other.name, other.name: one.name}
    return {_meaning(clause, {}) for clause in clauses} == {_meaning(clause, twin) for clause in clauses}


def _meaning(tree: ast.AST, renamed: dict[str, str]) -> str:
    """A clause as text, its names renamed, whatever the order of operands that may change places."""
    parts = [_meaning(child, renamed) for child in ast.iter_child_nodes(tree)]
    if isinstance(tree, ast.BoolOp) or (isinstance(tree, ast.Compare) and isinstance(tree.ops[0], ast.Eq)):
        parts.sort()
    if isinstance(tree, ast.Call) and _called(tree) & {"constant", "unshared"}:
        parts.sort()
    leaf = renamed.get(tree.id, tree.id) if isinstance(tree, ast.Name) else getattr(tree, "value", "")
    return f"{type(tree).__name__}:{'' if isinstance(leaf, ast.AST) else leaf}({','.join(parts)})"


def _skeleton(pattern):
    if isinstance(pattern, Output):
        return pattern.slot, _skeleton(pattern.op)
    if not isinstance(pattern, Op):
        return type(pattern).__name__
    return pattern.domain, pattern.op, tuple(_skeleton(i) for i in pattern.inputs), tuple(n for n, _ in pattern.attributes)


# -- printing --------------------------------------------------------------------------------------


def print_rule(name: str, source, target, clauses=()) -> str:
    """The canonical text of one direction of a rule."""
    sides = [" ; ".join(f"{n} = {print_pattern(p)}" for n, p in side) for side in (source, target)]
    return "\n  ".join([f"{name}:", f"{sides[0]} => {sides[1]}", *clauses])


def print_pattern(pattern) -> str:
    match pattern:
        case Var(name):
            return name
        case Star(name):
            return f"*{name}"
        case Literal(text=text):
            return text
        case Absent():
            return "None"
        case Output(op, slot):
            return print_pattern(op) + ("" if slot == 0 else ".*" if slot is None else f".{slot}")
        case Op(op=op, domain=domain, inputs=inputs, attributes=attributes, rest=rest):
            parts = [print_pattern(i) for i in inputs]
            parts += [f"{n}={v.name if isinstance(v, Bind) else v.text}" for n, v in attributes]
            parts += [f"**{rest}"] if rest else []
            return f"{domain + '.' if domain else ''}{op}({', '.join(parts)})"
    raise TypeError(pattern)
