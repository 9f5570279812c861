"""Split a rule into cases and build both sides as tensors of an algebra.

A case fixes all discrete choices with `world.pick`: ranks, axes, permutations, flags and the number of inputs of `*xs`.
`world.symbol` gives sizes, strides and pads: unknowns in a proof, plain integers in a counterexample. The same code
builds both. `clauses_of` gives a rule's conditions as texts, because each algebra evaluates them in its own way.
"""

import ast
import itertools
import re
from dataclasses import replace
from functools import cache
from typing import Any

import onnx

from rlflow.proving import draws
from rlflow.proving.decisions import NotApplicable, Undefined
from rlflow.proving.draws import FLOAT, INT64
from rlflow.proving.layout import axis_of
from rlflow.proving.semantics import is_defined, outputs_of
from rlflow.proving.symbolic import Symbols
from rlflow.proving.tensors import Attributes, Tensor, listed
from rlflow.proving.unknowns import UNKNOWN, Int, plain
from rlflow.proving.views import Rest, View, value_of
from rlflow.rules.expressions import Unknown, names_in
from rlflow.rules.match import AXIS_OF_INPUT
from rlflow.rules.patterns import Absent, Bind, Literal, Op, Output, Star, Var
from rlflow.rules.rule import Rule


@cache
def clauses_of(rule: Rule) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the (name, expression) pairs of a rule's `let` numbers, and the texts of the rule's conditions."""
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
    """Return (names, text) for each part of a rule's conditions that does not call `constant` or `unshared`.

    A conjunction is divided into its operands. Such a part can be checked as soon as the tensors of its names are read.
    """
    result = []
    for text in clauses_of(rule)[1]:
        node = ast.parse(text, mode="eval").body
        parts = node.values if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) else [node]
        for part in parts:
            called = {call.func.id for call in ast.walk(part) if isinstance(call, ast.Call)}
            if not called & {"constant", "unshared"}:
                result.append((names_in(part), ast.unparse(part)))
    return result


@cache
def stated_sizes(rule: Rule, name: str) -> dict[int, int]:
    """Return axis → size for the sizes of a tensor that conditions state as numbers above 1, such as `dim(w, 2) == 3`.

    Args:
      rule: the rule.
      name: the variable of the tensor.
    """
    parts = "\n".join(text for _, text in early_conditions(rule))
    found = re.findall(rf"^dim\({name}, (\d+)\) == (\d+)$", parts, re.MULTILINE)
    return {int(axis): int(size) for axis, size in found if int(size) > 1}


def needs_integer_proof(rule: Rule) -> bool:
    """Return True if a rule needs a second proof for int64, besides the proof for floats.

    This is so if all operators of the rule accept int64 and one of them (Div, Pow, ReduceMean) rounds integers.
    """
    ops = {op.op for op in (*rule.ops, *rule.target_ops)}
    return bool(ops & {"Div", "Pow", "ReduceMean"}) and all(
        _takes_integers(op.op, op.domain) for op in (*rule.ops, *rule.target_ops)
    )


def _takes_integers(op: str, domain: str) -> bool:
    """Return True if ONNX allows int64 as the type of the operator's first input."""
    if domain:
        return False
    schema = onnx.defs.get_schema(op, domain)
    kinds = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    first = schema.inputs[0].type_str
    return "tensor(int64)" in kinds.get(first, (first,))


def _index_below(world, name: str, index: tuple, below):
    """Return the unknown element of an index tensor at a position.

    Args:
      world: the algebra.
      name: the name of the index tensor.
      index: the position of the element in the index tensor.
      below: the size of the indexed axis. The element is between -below and below - 1 in the symbolic algebra, and
        between 0 and below - 1 in the other algebras.
    """
    if not isinstance(world, Symbols):
        return world.symbol(f"{name}{list(index)}", 0) % below
    index = tuple(k if isinstance(k, int) else k.term for k in index)
    made = UNKNOWN[f"place in {name}", len(index)](*index)
    world.lemma(made >= -plain(below), made < plain(below))
    return Int(world, made)


class Case:
    """The evaluation of a rule in one case. Call `source`, then `fires`, then `target`.

    Args:
      rule: the rule.
      world: the algebra, which also holds the decisions of the case.
      floats: True for float tensors, False for int64.
    """

    def __init__(self, rule: Rule, world, floats: bool):
        self.rule, self.world, self.dtype = rule, world, FLOAT if floats else INT64
        self.tensors: dict[str, Tensor | list[Tensor | None]] = {}
        self.attributes: dict[str, Any] = {}
        self.made: dict[int, list[Tensor]] = {}
        self.scope: dict[str, Any] = {}
        self.clauses = clauses_of(rule)
        self.early = list(early_conditions(rule))
        self.constants: dict[str, bool] = {}
        self.values: dict[str, Any] = {}  # constants whose element a condition has fixed
        self.zero_rows: dict[str, int] = {}  # constant → the axis along which a condition asks for rows of zeros
        self.asked: list[str] = []

    # -- left side --

    def source(self) -> list[Tensor]:
        """Return the output tensors of the rule's left side."""
        result = []
        for _, output in self.rule.source:
            outputs = self.operator(output.op, self.left)
            result += outputs if output.slot is None else [self.slot(outputs, output.slot)]
        return result

    def slot(self, outputs: list[Tensor], slot: int) -> Tensor:
        """Return `outputs[slot]`; raise NotApplicable if there are too few outputs."""
        if slot >= len(outputs):
            raise NotApplicable
        return outputs[slot]

    def left(self, pattern, op: Op, slot: int, before: list[Tensor | None]) -> list[Tensor | None]:
        """Return the tensors that an input pattern of the left side stands for; None for an absent input.

        Args:
          pattern: the input pattern.
          op: the operator that reads the pattern.
          slot: the position of the pattern's first tensor among the inputs of the operator.
          before: the tensors of the operator's earlier inputs.
        """
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
                return [self.literal(compute({}), f"rank of {pattern.text} in {op.key}")]
            case Absent():
                return [None]
        raise TypeError(pattern)

    def literal(self, value, key: str) -> Tensor:
        """Return the constant tensor that matches a literal of the left side.

        Args:
          value: a tuple of integers, which gives a list, or a number, which gives a tensor of rank 0, 1 or 2 with one
            element.
          key: the key of the decision about the rank.
        """
        if isinstance(value, tuple):
            return listed(self.world, tuple(value))
        rank = self.world.pick(key, (0, 1, 2))
        return Tensor((1,) * rank, lambda i: self.world.number(value), self.dtype)

    def variables(self, pattern: str, op: Op, slot: int, before: list[Tensor | None]) -> list[Tensor | None]:
        """Return the tensors that a pattern `*xs` stands for; None for an absent optional input.

        Args:
          pattern: the name of the pattern, such as `xs`.
          op: the operator that reads the pattern.
          slot: the position of the pattern's first tensor among the inputs of the operator.
          before: the tensors of the operator's earlier inputs.
        """
        result: list[Tensor | None] = []
        count = self.world.pick(f"how many {pattern}", draws.counts_of(self.rule, op))
        for k in range(count):
            name, position = f"{pattern}{k}", slot + k
            if (
                k < count - 1
                and draws.may_be_absent(op, position)
                and self.world.pick(f"{name} is absent", (False, True))
            ):
                result.append(None)
            else:
                ranks = draws.ranks_of(self.rule, [(op.op, 0 if op.op == "Concat" else position)])
                result.append(self.variable(name, ranks, op, position, [*before, *result]))
        return result

    def variable(self, name: str, ranks: tuple[int, ...], op: Op, slot: int, before: list[Tensor | None]) -> Tensor:
        """Return the tensor of a variable: a list of integers, an index tensor, or a tensor of unknown elements.

        Args:
          name: the name of the variable.
          ranks: the ranks that the tensor may have.
          op: the operator that reads the variable.
          slot: the position of the variable among the inputs of the operator.
          before: the tensors of the operator's earlier inputs.
        """
        kind = draws.LISTS.get((op.op, slot))
        if kind == "indices":
            return self.indices(name, ranks, op, before[0])
        if kind == "flags" and not draws.reads_values(self.rule, name):
            kind = None
        if kind == "count":
            count = self.world.symbol(name, 1)
            return Tensor((), lambda i: count, INT64, (count,))
        if kind is not None:
            return listed(self.world, self.list_of(name, kind, op, before))
        if (op.op in draws.SAME_RANK and slot in (1, 3)) or (op.op == "Concat" and before):
            ranks = (before[0].rank,)
        rank = self.world.pick(f"rank of {name}", ranks)
        stated = stated_sizes(self.rule, name)
        shape = tuple(stated[k] if k in stated else self.world.symbol(f"{name}.{k}") for k in range(rank))
        if f"scalar({name})" in self.rule.text:  # The condition holds only for tensors of one element.
            shape = (1,) * rank
        return Tensor(shape, lambda i: self.element(name, shape, i), self.type_of(name))

    def element(self, name: str, shape: tuple, i: tuple):
        """Return the element at index `i` of a variable: a value that the conditions fix, or an unknown number."""
        if name in self.values:
            return self.values[name]
        axis = self.zero_rows.get(name)
        if axis is not None and self.world.is_zero_row(name, axis, shape[axis], i[axis]):
            return self.world.number(0)
        return self.world.element(name, i)

    def rows(self, view: View, axis: int) -> list[Tensor]:
        """Return two index tensors: the positions of a tensor's rows of zeros along an axis, and of its other rows.

        Args:
          view: the tensor.
          axis: the axis; a rule may ask for the rows of a tensor along one axis only.
        """
        if not -view.tensor.rank <= axis < view.tensor.rank:
            raise Unknown(f"a tensor has no axis {axis}")
        axis = axis % view.tensor.rank
        if self.zero_rows.setdefault(view.id, axis) != axis:
            raise Undefined("rows along two axes have no definition")
        size = view.tensor.shape[axis]
        return [
            Tensor((count,), lambda i, row=row: row(i[0]), INT64, below=size)
            for count, row in self.world.rows(view.id, axis, size)
        ]

    def type_of(self, name: str) -> int:
        """Return the data type of a variable. In a rule with Cast, the type is a decision of the case."""
        casts = any(op.op == "Cast" for op in self.rule.ops)
        return self.world.pick(f"type of {name}", draws.TYPES) if casts else self.dtype

    def list_of(self, name: str, kind: str, op: Op, before: list[Tensor | None]) -> tuple:
        """Return the elements of an input that is a list of integers: symbols, or a decision of the case.

        Args:
          name: the name of the variable.
          kind: the kind of list, a value of rlflow.proving.draws.LISTS such as "pads".
          op: the operator that reads the list.
          before: the tensors of the operator's earlier inputs.
        """
        if kind == "flags":
            return self.world.pick(name, draws.FLAGS)
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
                chosen = len(op.inputs) > 3 or any(isinstance(i, Star) for i in op.inputs)  # axes follow
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
        """Return the index tensor of a Gather.

        If the rule reads the values of the indices, the tensor is a scalar or a list of one to three symbols. Otherwise
        it is a tensor of unknown indices with unknown sizes.

        Args:
          name: the name of the variable.
          ranks: the ranks that the index tensor may have.
          op: the Gather.
          x: the data tensor of the Gather.
        """
        below = x.shape[axis_of(self.world, self.attributes_of(op, [x])("axis", 0), x.rank)]
        rank = self.world.pick(f"rank of {name}", ranks)
        if rank < 2 and draws.reads_values(self.rule, name):
            count = self.world.pick(f"length of {name}", (1, 2, 3)) if rank else 1
            held = listed(self.world, tuple(self.world.symbol(f"{name}.{k}", None) for k in range(count)))
            return held if rank else replace(held, shape=(), at=lambda i: held.content[0])
        shape = tuple(self.world.symbol(f"{name}.{k}") for k in range(rank))
        return Tensor(shape, lambda i: _index_below(self.world, name, i, below), INT64, below=below)

    # -- operators --

    def operator(self, op: Op, read) -> list[Tensor]:
        """Return the output tensors of an operator, from a cache if the operator was computed before.

        Args:
          op: the operator of the pattern.
          read: the method that returns the tensors of an input pattern, `self.left` or `self.right`.
        """
        if op.key not in self.made:
            if not is_defined(op.op, op.domain):
                raise Undefined(f"{op.op} has no definition")
            inputs: list[Tensor] = []
            for pattern in op.inputs:
                inputs += read(pattern, op, len(inputs), inputs)
            if not inputs:
                raise NotApplicable
            self.world.operator = op.op
            attributes = self.attributes_of(op, inputs)
            self.check_early_conditions()
            self.made[op.key] = outputs_of(self.world, op.op, attributes, inputs)
        return self.made[op.key]

    def attributes_of(self, op: Op, inputs: list[Tensor]) -> Attributes:
        """Return the values of an operator's attributes. An attribute that the pattern names overrides `**a`."""
        rank = inputs[0].rank
        named = {}
        for name, value in op.attributes:
            if isinstance(value, Bind):
                if value.name not in self.scope and value.name not in self.attributes:
                    kind, default = draws.REST.get(op.op, {}).get(name, ("unknown", None))
                    self.attributes[value.name] = self.draw(value.name, kind, default, rank)
                named[name] = self.scope.get(value.name, self.attributes.get(value.name))
            else:
                named[name] = value_of(value.text, self.scope)
            if name == "axis" and op.op in AXIS_OF_INPUT and isinstance(named[name], int):
                self.world.require(-rank <= named[name] < rank)
            if name == "perm":
                self.world.require(len(named[name]) == rank)
        if op.rest is None:
            return Attributes(named)
        if op.rest not in self.attributes:
            self.attributes[op.rest] = Rest(self, op.rest, op.op, rank, set(named))
        if self.attributes[op.rest].rank != rank and op.op in draws.SAME_RANK:
            raise NotApplicable
        return Attributes(named, self.attributes[op.rest])

    def draw(self, name: str, kind: str, default, rank: int):
        """Return the value of an attribute: symbols, or a decision of the case.

        Args:
          name: the name of the symbol, or the key of the decision.
          kind: how the value is made, the first entry of a pair in rlflow.proving.draws.REST.
          default: the options if `kind` is "pick"; otherwise unused.
          rank: the rank of the operator's first input.
        """
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
            case "equation":
                return world.pick(name, tuple(e for e in draws.equations() if e.index(b",") == rank))
            case "axis":
                return world.pick(name, tuple(range(rank)))
            case "perm":
                return world.pick(name, tuple(itertools.permutations(range(rank))))
        raise Undefined(f"attribute {name} has no definition")

    # -- conditions --

    def fires(self) -> bool:
        """Return True if the rule's conditions hold for some choice of the constant tensors.

        Fill `scope` with the values that the right side uses for the first such choice.
        """
        self.scope = self.names_in_scope()
        return any(self.holds() for _ in self.constant_sets())

    def names_in_scope(self) -> dict[str, Any]:
        """Return the attributes and tensors (as Views) that the left side has read so far, by name."""
        scope = dict(self.attributes)
        for name, tensor in self.tensors.items():
            if isinstance(tensor, list):
                scope[name] = tuple(View(self, f"{name}{k}", t) for k, t in enumerate(tensor))
            else:
                scope[name] = View(self, name, tensor)
        return scope

    def check_early_conditions(self) -> None:
        """Evaluate each condition as soon as all its names are read, and raise NotApplicable if it fails.

        A case without a match is therefore not split by the decisions about later inputs.
        """
        if not any(names <= self.tensors.keys() | self.attributes.keys() for names, _ in self.early):
            return
        scope = self.names_in_scope()
        for names, text in list(self.early):
            if names <= scope.keys():
                self.early.remove((names, text))
                try:
                    holds = value_of(text, scope)
                except (Unknown, IndexError, ZeroDivisionError, ValueError):
                    holds = False
                if not holds:
                    raise NotApplicable

    def constant_sets(self):
        """Yield assignments from tensor names to True (the tensor is constant) or False.

        An assignment is extended by both answers whenever a condition asks about a tensor that it does not contain.
        """
        waiting: list[dict[str, bool]] = [{}]
        while waiting:
            self.constants = waiting.pop()
            yield self.constants
            asked = [name for name in self.asked if name not in self.constants]
            self.asked = []
            if asked:
                waiting += [{**self.constants, asked[0]: answer} for answer in (False, True)]

    def is_constant(self, name: str) -> bool:
        """Return True if the current assignment makes a tensor constant.

        A tensor that the assignment does not contain counts as constant, and its name is added to `asked`.
        """
        if name not in self.constants:
            self.asked.append(name)
        return self.constants.get(name, True)

    def holds(self) -> bool:
        """Evaluate the rule's `let` numbers into `scope`, and return True if all conditions hold.

        The tensors are constant as the current assignment `constants` states.
        """
        self.values = {}
        try:
            for name, text in self.clauses[0]:
                self.scope[name] = value_of(text, self.scope)
            return all(bool(value_of(text, self.scope)) for text in self.clauses[1])
        except (Unknown, IndexError, ZeroDivisionError, ValueError):
            return False

    # -- right side --

    def target(self) -> list[Tensor]:
        """Return the output tensors of the rule's right side."""
        self.made = {}
        result = []
        for _, pattern in self.rule.target:
            if isinstance(pattern, Output) and pattern.slot is not None:
                outputs = self.operator(pattern.op, self.right)
                if len(outputs) != self.rule.n_outputs[pattern.op.key] or pattern.slot >= len(outputs):
                    raise NotApplicable
                result.append(outputs[pattern.slot])
            else:
                result += self.right(pattern, None, 0, [])
        return result

    def right(self, pattern, op: Op | None, slot: int, before: list[Tensor]) -> list[Tensor]:
        """Return the tensors that a pattern of the right side stands for; None for an absent input.

        Args:
          pattern: the pattern.
          op: the operator that reads the pattern; None for an output of the rule.
          slot: the position of the pattern among the inputs of the operator.
          before: the tensors of the operator's earlier inputs.
        """
        match pattern:
            case Var(name):
                return [self.tensors[name]]
            case Star(name):
                return self.tensors[name]
            case Output(inner, number):
                return [self.operator(inner, self.right)[number]]
            case Literal(text=text):
                return [self.constant(value_of(text, self.scope), before)]
            case Absent():
                return [None]
        raise TypeError(pattern)

    def constant(self, value, before: list[Tensor]) -> Tensor:
        """Return a value of the rule language (a tensor, a list of integers or a number) as a tensor.

        Args:
          value: the value.
          before: the tensors of the operator's earlier inputs; a number gets the data type of the first one.
        """
        if isinstance(value, Tensor):
            return value
        if isinstance(value, tuple):
            return listed(self.world, value)
        number = Tensor((), lambda i: self.world.number(value), before[0].dtype if before else self.dtype)
        is_integer = not isinstance(value, float) and not hasattr(value, "terms")
        return replace(number, dtype=INT64, content=(value,)) if is_integer else number


class MemoizedCase(Case):
    """A case that computes each element once and then takes it from a cache."""

    def operator(self, op: Op, read) -> list[Tensor]:
        if op.key not in self.made:
            self.made[op.key] = [self.memoized(tensor) for tensor in super().operator(op, read)]
        return self.made[op.key]

    def memoized(self, tensor: Tensor) -> Tensor:
        """Return a copy of the tensor that computes each element once."""
        known: dict[tuple, tuple] = {}

        def at(index: tuple):
            key = self.key(index)
            if key not in known:
                known[key] = (index, tensor.at(index))  # the index is kept because z3 reuses the id of a freed term
            return known[key][1]

        return replace(tensor, at=at)

    def key(self, index: tuple) -> tuple:
        """Return the key under which the element at an index is cached."""
        return index
