"""The cases of a rule: what its names may stand for, and both sides as tensors of an algebra.

A case fixes what is discrete (ranks, axes, permutations, flags, how many inputs `*xs` has) by `world.pick`; sizes,
strides, pads and numbers are the world's symbols. The same text so makes the case of a proof (all sizes at once)
and that of a counterexample (numbers).
"""

import ast
import itertools
from functools import cache
from math import prod
from typing import Any, NamedTuple
from unittest.mock import patch

import onnx

from rlflow.prover.semantics import OPERATORS, Attributes, Tensor, outputs_of
from rlflow.rules import expressions
from rlflow.rules.expressions import Unknown, compile_expression
from rlflow.rules.language import Bind, Literal, Op, Output, Rule, Star, Var
from rlflow.rules.match import AXIS_OF_INPUT

MAX_RANK = 4
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
SAME_RANK = ("Conv", "MaxPool", "AveragePool")  # whose `**a` holds a number per axis
VARIADIC = ("Concat", "Sum", "Max", "Min")
ANY = tuple(range(MAX_RANK + 1))
SPATIAL = (3, 4)
RANKS: dict[tuple[str, int], tuple[int, ...]] = {
    ("Conv", 0): SPATIAL, ("Conv", 1): SPATIAL, ("Conv", 2): (1,), ("MaxPool", 0): SPATIAL,
    ("AveragePool", 0): SPATIAL, ("GlobalAveragePool", 0): SPATIAL, ("GlobalMaxPool", 0): SPATIAL,
    ("BatchNormalization", 0): (1, 2, 3, 4), **{("BatchNormalization", k): (1,) for k in range(1, 5)},
    ("MatMul", 0): ANY[1:], ("MatMul", 1): ANY[1:], ("Gemm", 0): (2,), ("Gemm", 1): (2,), ("Gemm", 2): (0, 1, 2),
    ("Concat", 0): ANY[1:], ("Split", 0): ANY[1:], ("Softmax", 0): ANY[1:], ("LogSoftmax", 0): ANY[1:],
    ("LayerNormalization", 0): ANY[1:], ("Squeeze", 0): ANY[1:], ("Unsqueeze", 0): ANY[:-1],
    ("Clip", 1): (0,), ("Clip", 2): (0,), ("Flatten", 0): ANY[1:],
}  # fmt: skip
# Inputs that are lists of integers, and what they list.
LISTS: dict[tuple[str, int], str] = {
    ("Reshape", 1): "shape", ("Expand", 1): "shape", ("Split", 1): "parts", ("Pad", 1): "pads",
    ("Squeeze", 1): "axes", ("Unsqueeze", 1): "new axes", ("Slice", 1): "bounds", ("Slice", 2): "bounds",
    ("Slice", 3): "axes", ("Slice", 4): "steps",
    **{(op, 1): "axes" for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")},
}  # fmt: skip
# Attributes that `**a` may hold: default, and how values are drawn.
REST: dict[str, dict[str, tuple]] = {
    "Conv": {"group": ("size", 1), "strides": ("sizes", 1), "dilations": ("sizes", 1), "pads": ("pads", 0),
             "auto_pad": ("pick", (b"NOTSET", b"SAME_UPPER", b"SAME_LOWER", b"VALID"))},
    "MaxPool": {"kernel_shape": ("sizes", None), "strides": ("sizes", 1), "dilations": ("sizes", 1),
                "pads": ("pads", 0), "ceil_mode": ("pick", (0, 1)),
                "auto_pad": ("pick", (b"NOTSET", b"SAME_UPPER", b"SAME_LOWER", b"VALID"))},
    "AveragePool": {"kernel_shape": ("sizes", None), "strides": ("sizes", 1), "dilations": ("sizes", 1),
                    "pads": ("pads", 0), "ceil_mode": ("pick", (0, 1)), "count_include_pad": ("pick", (0, 1)),
                    "auto_pad": ("pick", (b"NOTSET", b"SAME_UPPER", b"SAME_LOWER", b"VALID"))},
    "Gemm": {"alpha": ("real", 1.0), "beta": ("real", 1.0), "transA": ("pick", (0, 1)), "transB": ("pick", (0, 1))},
    "BatchNormalization": {"epsilon": ("real", 1e-5)},
    "LayerNormalization": {"axis": ("axis", -1), "epsilon": ("real", 1e-5)},
    "Gelu": {"approximate": ("pick", (b"none", b"tanh"))},
    "Softmax": {"axis": ("axis", -1)},
    "LogSoftmax": {"axis": ("axis", -1)},
    "LeakyRelu": {"alpha": ("real", 0.01)},
    "HardSigmoid": {"alpha": ("real", 0.2), "beta": ("real", 0.5)},
    "Concat": {"axis": ("axis", None)},
    "Split": {"axis": ("axis", 0)},
    "Flatten": {"axis": ("axis", 1)},
    "Transpose": {"perm": ("perm", None)},
    "Pad": {"mode": ("pick", (b"constant",))},
    **{op: {"keepdims": ("pick", (1, 0))} for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")},
}  # fmt: skip


class NotHere(Exception):
    """The rule does not match or refuses in this case."""


class Undefined(Exception):
    """An operator has no definition in rlflow.prover.semantics."""


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

    def __init__(self, case: "Case", name: str, tensor: Tensor):
        self.case, self.id, self.tensor, self.graph, self.constants = case, name, tensor, self, self
        self.consumers, self.outputs = {name: (0,)}, ()
        self.type = _Kind(tensor.shape, FLOAT if tensor.floats else INT64)

    def is_constant(self, name: str) -> bool:
        return self.case.constness(name)

    def get(self, name: str):
        return _Held(self.tensor.content) if self.tensor.content is not None and self.is_constant(name) else None


def _full(number, like: View, *sizes) -> Tensor:
    world = like.case.world
    return Tensor(tuple(sizes), lambda i: world.number(number), like.tensor.floats)


def _scalar(view: View):
    if not view.is_constant(view.id) or not all(size == 1 for size in view.tensor.shape):
        raise Unknown("a number is not known in advance")
    return view.tensor.at((0,) * view.tensor.rank)


@cache
def _compiled(text: str):
    with patch.dict(expressions.FUNCTIONS, {"full": _full, "scalar": _scalar}):
        return compile_expression(ast.parse(text, mode="eval").body, text)


def _literal(text: str, scope: dict):
    return _compiled(text)(scope)


class Rest:
    """What `**a` holds: pairs for the rule language, values for the semantics."""

    def __init__(self, case: "Case", name: str, op: str, rank: int, named: set[str]):
        self.case, self.name, self.op, self.rank = case, name, op, rank
        self.spec = {key: value for key, value in REST.get(op, {}).items() if key not in named}

    def __contains__(self, key: str) -> bool:
        return key in self.spec

    def __getitem__(self, key: str):
        kind, default = self.spec[key]
        if kind in ("sizes", "pads", "size", "real", "axis") and default is not None:
            if self.case.world.picked(f"{self.name}.{key} given") is False or self._clash(key):
                return self._default(kind, default)
        return self.case.draw(f"{self.name}.{key}", kind, default, self.rank)

    def _clash(self, key: str) -> bool:
        return key == "pads" and "auto_pad" in self.spec and self["auto_pad"] != b"NOTSET"

    def _default(self, kind: str, default):
        count = {"sizes": self.rank - 2, "pads": 2 * (self.rank - 2)}.get(kind)
        return default if count is None else (default,) * count

    def keys(self) -> list[str]:
        return [key for key in self.spec if self._given(key)]

    def _given(self, key: str) -> bool:
        kind, default = self.spec[key]
        if kind == "pick":
            return self[key] != default[0]
        if default is None:
            return True
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
    """One case of a rule in a world (rlflow.prover.prove); `source`, then `fires`, then `target`."""

    def __init__(self, rule: Rule, world, floats: bool):
        self.rule, self.world, self.floats = rule, world, floats
        self.tensors: dict[str, Tensor | list[Tensor]] = {}
        self.attributes: dict[str, Any] = {}
        self.made: dict[int, list[Tensor]] = {}
        self.scope: dict[str, Any] = {}
        self.uses, self.clauses = _uses(rule), _clauses(rule)
        self.constants: dict[str, bool] = {}
        self.asked: list[str] = []

    # -- left side --

    def source(self) -> list[Tensor]:
        found = []
        for _, output in self.rule.source:
            outputs = self.operator(output.op, self.left)
            found += outputs if output.slot is None else [self.slot(outputs, output.slot)]
        return found

    def slot(self, outputs: list[Tensor], slot: int) -> Tensor:
        if slot >= len(outputs):
            raise NotHere
        return outputs[slot]

    def left(self, pattern, op: Op, slot: int, before: list[Tensor]) -> list[Tensor]:
        match pattern:
            case Var(name):
                if name not in self.tensors:
                    self.tensors[name] = self.variable(name, name, op, slot, before)
                return [self.tensors[name]]
            case Star(name):
                if name not in self.tensors:
                    counts = tuple(range(max_count(self.rule) + 1)) if op.op in VARIADIC else (0, 1)
                    count = self.world.pick(f"how many {name}", counts)
                    self.tensors[name] = [self.variable(name, f"{name}{k}", op, slot, before) for k in range(count)]
                return self.tensors[name]
            case Output(inner, number):
                outputs = self.operator(inner, self.left)
                return outputs if number is None else [self.slot(outputs, number)]
            case Literal(compute=compute):
                return [self.met(compute({}), f"rank of {pattern.text} in {op.key}")]
        raise TypeError(pattern)

    def met(self, value, key: str) -> Tensor:
        """A constant that a literal of the left side meets: of one element, whatever its rank."""
        if isinstance(value, tuple):
            return Tensor((len(value),), lambda i: None, False, tuple(value))
        rank = self.world.pick(key, (0, 1, 2))
        return Tensor((1,) * rank, lambda i: self.world.number(value), self.floats)

    def variable(self, pattern: str, name: str, op: Op, slot: int, before: list[Tensor]) -> Tensor:
        kind = LISTS.get((op.op, slot))
        if kind is not None:
            content = self.list_of(name, kind, before[0], op)
            return Tensor((len(content),), lambda i: self.world.element(name, i), False, content)
        if op.op == "Conv" and slot == 1:
            ranks = (before[0].rank,)
        else:
            ranks = tuple(r for r in ANY if all(r in RANKS.get(use, ANY) for use in self.uses[pattern]))
            ranks = tuple(r for r in ranks if r <= max_rank(self.rule)) or ranks
        if op.op == "Concat" and before:
            ranks = (before[0].rank,)
        rank = self.world.pick(f"rank of {name}", ranks)
        shape = tuple(self.world.symbol(f"{name}.{k}") for k in range(rank))
        return Tensor(shape, lambda i: self.world.element(name, i), self.floats)

    def list_of(self, name: str, kind: str, x: Tensor, op: Op) -> tuple:
        rank = x.rank
        if kind == "shape":
            count = self.world.pick(f"length of {name}", (0, 1, 2, 3, 4))
            return tuple(self.world.symbol(f"{name}.{k}", -1) for k in range(count))
        if kind == "parts":
            count = self.world.pick(f"length of {name}", self.part_counts(op))
            return tuple(self.world.symbol(f"{name}.{k}") for k in range(count))
        if kind == "pads":
            return tuple(self.world.symbol(f"{name}.{k}", 0) for k in range(2 * rank))
        if kind == "bounds":
            count = self.world.pick(f"length of {name}", (1, 2))
            return tuple(self.world.symbol(f"{name}.{k}", None) for k in range(count))
        if kind == "steps":
            return (1,) * self.world.pick(f"length of {name}", (1, 2))
        return self.world.pick(name, _axes(rank, kind == "new axes"))

    def part_counts(self, op: Op) -> tuple[int, ...]:
        slots = [o.slot for _, o in self.rule.source if o.op.key == op.key]
        slots += [i.slot for other in self.rule.ops for i in other.inputs if isinstance(i, Output) and i.op.key == op.key]
        return (1, 2, 3) if None in slots else (1 + max(slots), 2 + max(slots))

    # -- operators --

    def operator(self, op: Op, read) -> list[Tensor]:
        if op.key not in self.made:
            if op.op not in OPERATORS:
                raise Undefined(f"{op.op} has no definition")
            inputs: list[Tensor] = []
            for pattern in op.inputs:
                inputs += read(pattern, op, len(inputs), inputs)
            if not inputs:
                raise NotHere
            self.world.operator = op.op
            attributes = self.attributes_of(op, inputs)
            self.made[op.key] = outputs_of(self.world, op.op, attributes, inputs)
        return self.made[op.key]

    def attributes_of(self, op: Op, inputs: list[Tensor]) -> Attributes:
        rank = inputs[0].rank
        named = {}
        for name, value in op.attributes:
            if isinstance(value, Bind):
                if value.name not in self.scope and value.name not in self.attributes:
                    kind, default = REST.get(op.op, {}).get(name, ("unknown", None))
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
        if self.attributes[op.rest].rank != rank and op.op in SAME_RANK:
            raise NotHere
        return Attributes(named, self.attributes[op.rest])

    def draw(self, name: str, kind: str, default, rank: int):
        world = self.world
        match kind:
            case "size":
                return world.symbol(name)
            case "sizes":
                return tuple(world.symbol(f"{name}.{k}") for k in range(rank - 2))
            case "pads":
                return tuple(world.symbol(f"{name}.{k}", 0) for k in range(2 * (rank - 2)))
            case "real":
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
        self.scope = dict(self.attributes)
        for name, tensor in self.tensors.items():
            if isinstance(tensor, list):
                self.scope[name] = tuple(View(self, f"{name}{k}", t) for k, t in enumerate(tensor))
            else:
                self.scope[name] = View(self, name, tensor)
        return any(self.holds_with(constants) for constants in self.constant_sets())

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
        try:
            for name, text in self.clauses[0]:
                self.scope[name] = _literal(text, self.scope)
            return all(bool(_literal(text, self.scope)) for text in self.clauses[1])
        except (Unknown, IndexError, ZeroDivisionError):
            return False

    # -- right side --

    def target(self) -> list[Tensor]:
        self.made = {}
        found = []
        for _, pattern in self.rule.target:
            if isinstance(pattern, Output) and pattern.slot is not None:
                outputs = self.operator(pattern.op, self.right)
                if len(outputs) != self.rule.n_outputs[pattern.op.key] or pattern.slot >= len(outputs):
                    raise NotHere
                found.append(outputs[pattern.slot])
            else:
                found += self.right(pattern, None, 0, [])
        return found

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
        raise TypeError(pattern)

    def constant(self, value, before: list[Tensor]) -> Tensor:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, tuple):
            return Tensor((len(value),), lambda i: None, False, value)
        return Tensor((), lambda i: self.world.number(value), before[0].floats if before else self.floats)


@cache
def max_rank(rule: Rule) -> int:
    """The largest rank in the cases: one less where many tensors may have any rank."""
    uses = _uses(rule)
    free = [name for name, found in uses.items() if all(use not in RANKS and use not in LISTS for use in found)]
    fixed = {r for found in uses.values() for use in found for r in RANKS.get(use, ANY)}
    return max(fixed & set(ANY), default=MAX_RANK) - (len(free) > 2)


def max_count(rule: Rule) -> int:
    """How many inputs `*xs` stands for at most: 2, or 1 where there are several such."""
    return 2 if sum(isinstance(i, Star) for op in rule.ops for i in op.inputs) < 2 else 1


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


def _uses(rule: Rule) -> dict[str, list[tuple[str, int]]]:
    """Where the left side reads each variable: (operator, slot)."""
    found: dict[str, list] = {}
    for op in rule.ops:
        for slot, pattern in enumerate(op.inputs):
            if isinstance(pattern, Var | Star):
                found.setdefault(pattern.name, []).append((op.op, 0 if op.op == "Concat" else slot))
    return found


def _axes(rank: int, new: bool) -> tuple[tuple[int, ...], ...]:
    """Lists of axes: every set counted from 0, and one axis counted from either end."""
    found = []
    for count in range(1, (2 if new else rank) + 1):
        total = rank + count if new else rank
        for chosen in itertools.combinations(range(total), count):
            signs = itertools.product((0, total), repeat=count) if count < 2 else [(0,) * count]
            found += [tuple(k - sign for k, sign in zip(chosen, some, strict=True)) for some in signs]
    return tuple(found)


def of_integers_too(rule: Rule) -> bool:
    """Whether every operator of both sides exists for int64 tensors, and one of them has another meaning there."""
    ops = {op.op for op in (*rule.ops, *rule.target_ops)}
    return bool(ops & {"Div", "Pow", "ReduceMean"}) and all(_takes_integers(op.op, op.domain) for op in (*rule.ops, *rule.target_ops))


def _takes_integers(op: str, domain: str) -> bool:
    if domain:
        return False
    schema = onnx.defs.get_schema(op, 22, domain)
    kinds = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    first = schema.inputs[0].type_str
    return "tensor(int64)" in kinds.get(first, (first,))
