"""The cases of a rule: what its names may stand for, and both sides as tensors of an algebra.

A case fixes what is discrete (ranks, axes, permutations, flags, how many inputs `*xs` has) by `world.pick`; sizes,
strides, pads and numbers are the world's symbols. The same text so makes the case of a proof (all sizes at once)
and that of a counterexample (numbers).
"""

import ast
import itertools
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any, NamedTuple
from unittest.mock import patch

import onnx

from rlflow.rules import expressions
from rlflow.rules.expressions import Unknown, compile_expression
from rlflow.rules.language import Absent, Bind, Literal, Op, Output, Rule, Star, Var
from rlflow.rules.match import AXIS_OF_INPUT
from rlflow.rules.prover import choices, draws
from rlflow.rules.prover.draws import FLOAT, INT64
from rlflow.rules.prover.integers import UNKNOWN, Int, plain
from rlflow.rules.prover.layout import axis_of
from rlflow.rules.prover.semantics import is_defined, outputs_of
from rlflow.rules.prover.symbolic import Symbols
from rlflow.rules.prover.tensors import Attributes, Tensor, listed


class NotHere(Exception):
    """The rule does not match or refuses in this case."""


class Undefined(Exception):
    """An operator has no definition in rlflow.rules.prover.semantics."""


# -- what expressions see --------------------------------------------------------------------------


class _Kind(NamedTuple):
    shape: tuple
    dtype: int

    @property
    def size(self):
        return prod(self.shape)


class _Held(NamedTuple):
    """A list of integers in the place of a NumPy array."""

    content: tuple

    class dtype:
        kind = "i"

    class _Small(NamedTuple):
        size: int = 1

    type = _Small()

    def load(self):
        return self

    def reshape(self, *shape):
        return self

    def tolist(self):
        return list(self.content)


class View:
    """A tensor as the rule language sees it (in the place of rlflow.rules.expressions.Tensor)."""

    def __init__(self, case: "Case", name: str, tensor: Tensor | None):
        self.case, self.id, self.tensor, self.graph, self.constants = case, name, tensor, self, self
        self.consumers, self.outputs = {name: (0,)}, ()

    @property
    def type(self) -> _Kind:
        if self.tensor is None:
            raise Unknown("the shape of a tensor is not known")
        return _Kind(self.tensor.shape, self.tensor.dtype)

    def is_constant(self, name: str) -> bool:
        return self.case.constness(name)

    def get(self, name: str):
        known = self.tensor is not None and self.tensor.content is not None
        return _Held(self.tensor.content) if known and self.is_constant(name) else None


def _full(number, like: View, *sizes) -> Tensor:
    world = like.case.world
    return Tensor(tuple(sizes), lambda i: world.number(number), like.type.dtype)


def _scalar(view: View):
    if not view.is_constant(view.id) or not all(size == 1 for size in view.type.shape):
        raise Unknown("a number is not known in advance")
    return view.tensor.at((0,) * view.tensor.rank)


def _attributes(pairs, name: bytes, default=None):
    """One attribute of what `**a` holds, without asking for the others."""
    if isinstance(pairs, Rest):
        key = name.decode()
        return pairs[key] if key in pairs and pairs.is_given(key) else default
    return expressions.attributes(pairs, name, default)


def _scalar_is(view: View, value, text: str) -> bool:
    """Whether the one element of a constant is that number; in symbols it is replaced by it then."""
    world, result = view.case.world, _scalar(view)
    if not isinstance(world, Symbols):
        return result == value
    if world.pick(text, (True, False)):
        view.case.values[view.id] = world.number(value)
        return True
    return False


class _ScalarEquality(ast.NodeTransformer):
    """`scalar(c) == n` as a question of its own: symbols cannot assume that an element is a number."""

    def visit_Compare(self, node: ast.Compare):
        match node:
            case ast.Compare(ast.Call(ast.Name("scalar"), [ast.Name() as name]), [ast.Eq()], [value]):
                return ast.Call(ast.Name("scalar_is"), [name, value, ast.Constant(ast.unparse(node))], [])
        return self.generic_visit(node)


@cache
def _compiled(text: str):
    own = {"full": _full, "scalar": _scalar, "scalar_is": _scalar_is, "attributes": _attributes}
    with patch.dict(expressions.FUNCTIONS, {**choices.FUNCTIONS, **own}):
        return compile_expression(_ScalarEquality().visit(ast.parse(text, mode="eval")).body, text)


def _literal(text: str, scope: dict):
    return _compiled(text)(scope)


def _position_below(world, name: str, index: tuple, below):
    """An element of a list of places along an axis: it may count from either end."""
    if not isinstance(world, Symbols):
        return world.symbol(f"{name}{list(index)}", 0) % below
    index = tuple(k if isinstance(k, int) else k.term for k in index)
    made = UNKNOWN[f"place in {name}", len(index)](*index)
    world.lemma(made >= -plain(below), made < plain(below))
    return Int(world, made)


class Rest:
    """What `**a` holds: pairs for the rule language, values for the semantics."""

    def __init__(self, case: "Case", name: str, op: str, rank: int, named: set[str]):
        self.case, self.name, self.op, self.rank = case, name, op, rank
        self.spec = {key: value for key, value in draws.REST.get(op, {}).items() if key not in named}

    def __contains__(self, key: str) -> bool:
        if key in self.spec and self.spec[key][0].startswith("maybe "):
            return self.case.world.pick(f"{self.name}.{key} given", (False, True))
        return key in self.spec

    def __getitem__(self, key: str):
        kind, default = self.spec[key]
        if kind in ("sizes", "pads", "more", "size", "real", "axis") and default is not None:
            if self.case.world.picked(f"{self.name}.{key} given") is False or self._clash(key):
                return self._default(kind, default)
        return self.case.draw(f"{self.name}.{key}", kind, default, self.rank)

    def _clash(self, key: str) -> bool:
        return key == "pads" and "auto_pad" in self.spec and self["auto_pad"] != b"NOTSET"

    def _default(self, kind: str, default):
        count = {"sizes": self.rank - 2, "more": self.rank - 2, "pads": 2 * (self.rank - 2)}.get(kind)
        return default if count is None else (default,) * count

    def keys(self) -> list[str]:
        return [key for key in self.spec if self.is_given(key)]

    def is_given(self, key: str) -> bool:
        kind, default = self.spec[key]
        if kind == "pick":
            return self[key] != default[0]
        if default is None:
            return key in self
        if self._clash(key) or not self.case.world.pick(f"{self.name}.{key} given", (False, True)):
            return False
        if kind != "real":
            usual = self._default(kind, default)
            same = self[key] == usual
            if same:
                raise NotHere
        return True


# -- a case ----------------------------------------------------------------------------------------


class Case:
    """One case of a rule in a world (rlflow.rules.prover.prove); `source`, then `fires`, then `target`."""

    def __init__(self, rule: Rule, world, floats: bool):
        self.rule, self.world, self.dtype = rule, world, FLOAT if floats else INT64
        self.tensors: dict[str, Tensor | list[Tensor | None]] = {}
        self.attributes: dict[str, Any] = {}
        self.made: dict[int, list[Tensor]] = {}
        self.scope: dict[str, Any] = {}
        self.clauses = _clauses(rule)
        self.early = list(_early(rule))
        self.constants: dict[str, bool] = {}
        self.values: dict[str, Any] = {}  # numbers that conditions make of constants
        self.asked: list[str] = []

    # -- left side --

    def source(self) -> list[Tensor]:
        result = []
        for _, output in self.rule.source:
            outputs = self.operator(output.op, self.left)
            result += outputs if output.slot is None else [self.slot(outputs, output.slot)]
        return result

    def slot(self, outputs: list[Tensor], slot: int) -> Tensor:
        if slot >= len(outputs):
            raise NotHere
        return outputs[slot]

    def left(self, pattern, op: Op, slot: int, before: list[Tensor | None]) -> list[Tensor | None]:
        match pattern:
            case Var(name):
                if name not in self.tensors:
                    uses = draws.uses_of(self.rule)[name]
                    self.tensors[name] = self.variable(name, draws.ranks_of(self.rule, uses), op, slot, before)
                return [self.tensors[name]]
            case Star(name):
                if name not in self.tensors:
                    self.tensors[name] = self.variables(name, op, slot, before)
                return self.tensors[name]
            case Output(inner, number):
                outputs = self.operator(inner, self.left)
                return outputs if number is None else [self.slot(outputs, number)]
            case Literal(compute=compute):
                return [self.met(compute({}), f"rank of {pattern.text} in {op.key}")]
            case Absent():
                return [None]
        raise TypeError(pattern)

    def met(self, value, key: str) -> Tensor:
        """A constant that a literal of the left side meets: of one element, whatever its rank."""
        if isinstance(value, tuple):
            return listed(self.world, tuple(value))
        rank = self.world.pick(key, (0, 1, 2))
        return Tensor((1,) * rank, lambda i: self.world.number(value), self.dtype)

    def variables(self, pattern: str, op: Op, slot: int, before: list[Tensor | None]) -> list[Tensor | None]:
        """What `*xs` stands for."""
        result: list[Tensor | None] = []
        count = self.world.pick(f"how many {pattern}", draws.counts_of(self.rule, op))
        for k in range(count):
            name, position = f"{pattern}{k}", slot + k
            if k < count - 1 and draws.may_be_absent(op, position) and self.world.pick(f"{name} is absent", (False, True)):
                result.append(None)
            else:
                ranks = draws.ranks_of(self.rule, [(op.op, 0 if op.op == "Concat" else position)])
                result.append(self.variable(name, ranks, op, position, [*before, *result]))
        return result

    def variable(self, name: str, ranks: tuple[int, ...], op: Op, slot: int, before: list[Tensor | None]) -> Tensor:
        kind = draws.LISTS.get((op.op, slot))
        if kind == "indices":
            return self.indices(name, ranks, op, before[0])
        if kind is not None:
            return listed(self.world, self.list_of(name, kind, op, before))
        if (op.op in draws.SAME_RANK and slot in (1, 3)) or (op.op == "Concat" and before):
            ranks = (before[0].rank,)
        rank = self.world.pick(f"rank of {name}", ranks)
        shape = tuple(self.world.symbol(f"{name}.{k}") for k in range(rank))
        if f"scalar({name})" in self.rule.text:  # which a tensor of more elements is not
            shape = (1,) * rank
        element = lambda i: self.values[name] if name in self.values else self.world.element(name, i)  # noqa: E731
        return Tensor(shape, element, self.type_of(name))

    def type_of(self, name: str) -> int:
        casts = any(op.op == "Cast" for op in self.rule.ops)
        return self.world.pick(f"type of {name}", draws.TYPES) if casts else self.dtype

    def list_of(self, name: str, kind: str, op: Op, before: list[Tensor | None]) -> tuple:
        rank, world = before[0].rank, self.world
        length = lambda *counts: world.pick(f"length of {name}", counts)  # noqa: E731
        symbols = lambda count, least: tuple(world.symbol(f"{name}.{k}", least) for k in range(count))  # noqa: E731
        match kind:
            case "shape":
                least = 1 if draws.settled(self.rule, name) else -1
                return symbols(length(*draws.ANY, *draws.demanded(self.rule)), least)
            case "sizes":
                return symbols(length(*draws.ANY), 1)
            case "repeats":
                return symbols(rank, 1)
            case "parts":
                return symbols(length(*draws.part_counts(self.rule, op)), 1)
            case "pads":
                chosen = len(op.inputs) > 3 or any(isinstance(i, Star) for i in op.inputs)  # there may be axes
                return symbols(2 * (length(*range(rank + 1)) if chosen else rank), None)
            case "starts":
                return symbols(length(*range(draws.MAX_SLICED + 1)), None)
            case "ends":
                return symbols(len(before[1].content), None)
            case "cut axes":
                return world.pick(name, draws.cut_axes(rank, len(before[1].content)))
            case "padded axes":
                return world.pick(name, draws.cut_axes(rank, len(before[1].content) // 2))
            case "steps":
                return symbols(len(before[1].content), None)
            case "axes":
                return world.pick(name, draws.sets_of_axes(rank))
            case "new axes":
                return world.pick(name, draws.new_axes(rank))
        raise TypeError(kind)

    def indices(self, name: str, ranks: tuple[int, ...], op: Op, x: Tensor) -> Tensor:
        """Places along an axis of x: a list of at most three if the rule reads them, else any tensor of such."""
        below = x.shape[axis_of(self.world, self.attributes_of(op, [x])("axis", 0), x.rank)]
        rank = self.world.pick(f"rank of {name}", ranks)
        if rank < 2 and draws.reads_values(self.rule, name):
            count = self.world.pick(f"length of {name}", (1, 2, 3)) if rank else 1
            held = listed(self.world, tuple(self.world.symbol(f"{name}.{k}", None) for k in range(count)))
            return held if rank else replace(held, shape=(), at=lambda i: held.content[0])
        shape = tuple(self.world.symbol(f"{name}.{k}") for k in range(rank))
        return Tensor(shape, lambda i: _position_below(self.world, name, i, below), INT64, below=below)

    # -- operators --

    def operator(self, op: Op, read) -> list[Tensor]:
        if op.key not in self.made:
            if not is_defined(op.op, op.domain):
                raise Undefined(f"{op.op} has no definition")
            inputs: list[Tensor] = []
            for pattern in op.inputs:
                inputs += read(pattern, op, len(inputs), inputs)
            if not inputs:
                raise NotHere
            self.world.operator = op.op
            attributes = self.attributes_of(op, inputs)
            self.narrow()
            self.made[op.key] = outputs_of(self.world, op.op, attributes, inputs)
        return self.made[op.key]

    def attributes_of(self, op: Op, inputs: list[Tensor]) -> Attributes:
        rank = inputs[0].rank
        named = {}
        for name, value in op.attributes:
            if isinstance(value, Bind):
                if value.name not in self.scope and value.name not in self.attributes:
                    kind, default = draws.REST.get(op.op, {}).get(name, ("unknown", None))
                    self.attributes[value.name] = self.draw(value.name, kind, default, rank)
                named[name] = self.scope.get(value.name, self.attributes.get(value.name))
            else:
                named[name] = _literal(value.text, self.scope)
            if name == "axis" and op.op in AXIS_OF_INPUT and isinstance(named[name], int):
                self.world.require(-rank <= named[name] < rank)
            if name == "perm":
                self.world.require(len(named[name]) == rank)
        if op.rest is None:
            return Attributes(named)
        if op.rest not in self.attributes:
            self.attributes[op.rest] = Rest(self, op.rest, op.op, rank, set(named))
        if self.attributes[op.rest].rank != rank and op.op in draws.SAME_RANK:
            raise NotHere
        return Attributes(named, self.attributes[op.rest])

    def draw(self, name: str, kind: str, default, rank: int):
        world = self.world
        match kind:
            case "size":
                return world.symbol(name)
            case "sizes" | "maybe sizes":
                return tuple(world.symbol(f"{name}.{k}") for k in range(rank - 2))
            case "pads":
                return tuple(world.symbol(f"{name}.{k}", 0) for k in range(2 * (rank - 2)))
            case "more":
                return tuple(world.symbol(f"{name}.{k}", 0) for k in range(rank - 2))
            case "real" | "maybe real":
                return world.element(name, ())
            case "pick":
                return world.pick(name, default)
            case "axis":
                return world.pick(name, tuple(range(rank)))
            case "perm":
                return world.pick(name, tuple(itertools.permutations(range(rank))))
        raise Undefined(f"attribute {name} has no definition")

    # -- conditions --

    def fires(self) -> bool:
        """Whether the conditions hold; fills the names that the right side sees."""
        self.scope = self.known()
        return any(self.holds_with(constants) for constants in self.constant_sets())

    def known(self) -> dict[str, Any]:
        """What the names stand for that have been read."""
        scope = dict(self.attributes)
        for name, tensor in self.tensors.items():
            if isinstance(tensor, list):
                scope[name] = tuple(View(self, f"{name}{k}", t) for k, t in enumerate(tensor))
            else:
                scope[name] = View(self, name, tensor)
        return scope

    def narrow(self) -> None:
        """Leaves the case as soon as a condition fails whose names are all read, before there are more to choose."""
        if not any(names <= self.tensors.keys() | self.attributes.keys() for names, _ in self.early):
            return
        scope = self.known()
        for names, text in list(self.early):
            if names <= scope.keys():
                self.early.remove((names, text))
                try:
                    holds = _literal(text, scope)
                except (Unknown, IndexError, ZeroDivisionError, ValueError):
                    holds = False
                if not holds:
                    raise NotHere

    def constant_sets(self):
        """What may be constant, as far as the conditions ask; what the operators give does not depend on it."""
        waiting: list[dict[str, bool]] = [{}]
        while waiting:
            self.constants = waiting.pop()
            yield self.constants
            asked = [name for name in self.asked if name not in self.constants]
            self.asked = []
            if asked:
                waiting += [{**self.constants, asked[0]: answer} for answer in (False, True)]

    def constness(self, name: str) -> bool:
        if name not in self.constants:
            self.asked.append(name)
        return self.constants.get(name, True)

    def holds_with(self, constants: dict[str, bool]) -> bool:
        self.values = {}
        try:
            for name, text in self.clauses[0]:
                self.scope[name] = _literal(text, self.scope)
            return all(bool(_literal(text, self.scope)) for text in self.clauses[1])
        except (Unknown, IndexError, ZeroDivisionError, ValueError):
            return False

    # -- right side --

    def target(self) -> list[Tensor]:
        self.made = {}
        result = []
        for _, pattern in self.rule.target:
            if isinstance(pattern, Output) and pattern.slot is not None:
                outputs = self.operator(pattern.op, self.right)
                if len(outputs) != self.rule.n_outputs[pattern.op.key] or pattern.slot >= len(outputs):
                    raise NotHere
                result.append(outputs[pattern.slot])
            else:
                result += self.right(pattern, None, 0, [])
        return result

    def right(self, pattern, op: Op | None, slot: int, before: list[Tensor]) -> list[Tensor]:
        match pattern:
            case Var(name):
                return [self.tensors[name]]
            case Star(name):
                return self.tensors[name]
            case Output(inner, number):
                return [self.operator(inner, self.right)[number]]
            case Literal(text=text):
                return [self.constant(_literal(text, self.scope), before)]
            case Absent():
                return [None]
        raise TypeError(pattern)

    def constant(self, value, before: list[Tensor]) -> Tensor:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, tuple):
            return listed(self.world, value)
        number = Tensor((), lambda i: self.world.number(value), before[0].dtype if before else self.dtype)
        is_integer = not isinstance(value, float) and not hasattr(value, "terms")
        return replace(number, dtype=INT64, content=(value,)) if is_integer else number


@cache
def _clauses(rule: Rule) -> tuple[list[tuple[str, str]], list[str]]:
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
def _early(rule: Rule) -> list[tuple[set[str], str]]:
    """(names, text) of what must hold in any case, whether tensors are constant or not."""
    result = []
    for text in _clauses(rule)[1]:
        node = ast.parse(text, mode="eval").body
        parts = node.values if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) else [node]
        for part in parts:
            called = {call.func.id for call in ast.walk(part) if isinstance(call, ast.Call)}
            if not called & {"constant", "unshared"}:
                result.append((expressions.names_in(part), ast.unparse(part)))
    return result


def of_integers_too(rule: Rule) -> bool:
    """Whether every operator of both sides exists for int64 tensors, and one of them has another meaning there."""
    ops = {op.op for op in (*rule.ops, *rule.target_ops)}
    return bool(ops & {"Div", "Pow", "ReduceMean"}) and all(_takes_integers(op.op, op.domain) for op in (*rule.ops, *rule.target_ops))


def _takes_integers(op: str, domain: str) -> bool:
    if domain:
        return False
    schema = onnx.defs.get_schema(op, domain)
    kinds = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    first = schema.inputs[0].type_str
    return "tensor(int64)" in kinds.get(first, (first,))
