"""Carrying out a match: the graph after the substitution."""

from typing import NamedTuple

import numpy as np
from onnx import TensorProto, helper

from rlflow.errors import RLFlowError
from rlflow.graph.model import ABSENT, Constant, Graph, Node, TensorType
from rlflow.graph.onnx_reader import is_constant_node
from rlflow.graph.opsets import supported
from rlflow.graph.shapes import infer_types, shape_value
from rlflow.rules.expressions import Unknown
from rlflow.rules.language import Bind, Literal, Op, Output, Rule, Star, Var
from rlflow.rules.match import Match, scope_of


class Refused(Exception):
    """The replacement does not fit here; the message says why."""


class Replacement(NamedTuple):
    """What `Graph.rewrite` needs."""

    removed: tuple[int, ...]
    added: tuple[Node, ...]
    types: dict[int, TensorType]
    constants: dict[int, Constant]
    rewired: dict[int, int]


def apply(graph: Graph, rule: Rule, match: Match) -> Graph:
    """The graph with the match replaced. The match must be one of this graph's."""
    try:
        edit = replacement(graph, rule, match)
    except (Refused, Unknown) as refused:
        raise RLFlowError(f"rule {rule.name} does not apply here: {refused}") from refused
    return graph.rewrite(*edit, relies_on_shapes=rule.relies_on_shapes)


def replacement(graph: Graph, rule: Rule, match: Match) -> Replacement:
    """Builds the right side with fresh ids. Raises Refused or Unknown where it does not fit."""
    return _Builder(graph, rule, match).build()


class _Builder:
    def __init__(self, graph: Graph, rule: Rule, match: Match):
        self.graph, self.rule, self.bindings = graph, rule, match.bindings
        self.scope = scope_of(graph, rule, match.bindings)
        self.matched = {op.key: graph.nodes[n] for op, n in zip(rule.ops, match.nodes, strict=True)}
        self.next_id = graph.next_id
        self.added: list[Node] = []
        self.types: dict[int, TensorType] = {}
        self.constants: dict[int, Constant] = {}
        self.built: dict[int, Node] = {}  # key of a pattern operator → new node
        self.old_ids: dict[tuple[int, int], int] = {}  # (operator key, slot) → id that it takes over

    def build(self) -> Replacement:
        removed = {self.matched[root.key].id for root in self.rule.roots}
        replaced, rewired = [], {}
        for (_, source), (_, target) in zip(self.rule.source, self.rule.target, strict=True):
            old = self.matched[source.op.key].outputs[source.slot]
            replaced.append((old, target))
            if isinstance(target, Output) and (target.op.key, target.slot) not in self.old_ids:
                self.old_ids[target.op.key, target.slot] = old
        self._check_unused_outputs(removed, {old for old, _ in replaced})
        for old, target in replaced:
            new = self.tensor(target)
            if new != old:
                rewired[old] = new
            self._check_type(old, self.types.get(new, self.graph.types.get(new)))
        return Replacement(tuple(sorted(removed)), tuple(self.added), self.types, self.constants, rewired)

    def _check_unused_outputs(self, removed: set[int], replaced: set[int]) -> None:
        for node_id in removed:
            for tensor in self.graph.nodes[node_id].outputs:
                readers = set(self.graph.consumers.get(tensor, ())) - removed
                if tensor not in replaced and (readers or tensor in self.graph.outputs):
                    raise Refused("another output of the operator is used")

    def _check_type(self, old: int, new: TensorType | None) -> None:
        known = self.graph.types.get(old)
        if known is None or known.shape is None:
            raise Refused("the shape of a tensor is not known")
        if known != new:
            raise Refused(f"the result would be {new}, not {known}")

    def fresh(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def tensor(self, pattern, operands: list[int] | None = None) -> int:
        """The id of what a pattern stands for; `operands` are those to the left of it in its operator."""
        match pattern:
            case Var(name):
                return self.bindings[name]
            case Output(op, slot):
                return self.node(op).outputs[slot]
            case Literal(compute=compute):
                return self.literal(compute(self.scope), operands)
        raise TypeError(pattern)

    def literal(self, value, operands: list[int] | None) -> int:
        """A new constant. Numbers are int64, but a float takes the data type of the first operand."""
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
        if array is not value:
            dtype = TensorProto.INT64
            if array.dtype.kind == "f" and operands:
                dtype = (self.types.get(operands[0]) or self.graph.types[operands[0]]).dtype
            array = array.astype(helper.tensor_dtype_to_np_dtype(dtype))
        tensor = self.fresh()
        self.constants[tensor] = Constant.of(array)
        self.types[tensor] = self.constants[tensor].type
        return tensor

    def node(self, op: Op) -> Node:
        if op.key not in self.built:
            self.built[op.key] = self.make_node(op)
        return self.built[op.key]

    def make_node(self, op: Op) -> Node:
        graph = self.graph
        if not supported(op.op, op.domain, graph.opset(op.domain)):
            raise Refused(f"{op.op} needs a newer opset than the model's")
        inputs: list[int] = []
        for pattern in op.inputs:
            inputs += self.bindings[pattern.name] if isinstance(pattern, Star) else (self.tensor(pattern, inputs),)
        attributes = self.attributes(op)
        slots = [o.slot for o in self._outputs_of(op)]
        kinds = self.infer(op, attributes, inputs, 1 + max(slots))
        outputs = tuple(self.old_ids.get((op.key, slot), ABSENT) for slot in range(1 + max(slots)))
        outputs = tuple(self.fresh() if tensor == ABSENT else tensor for tensor in outputs)
        for tensor, kind in zip(outputs, kinds, strict=True):
            if tensor in graph.types:
                self._check_type(tensor, kind)
            else:
                self.types[tensor] = kind
        known = [t in self.constants or self._is_constant(t) for t in inputs]
        node = Node(
            self.fresh(), op.op, op.domain, tuple(inputs), outputs, attributes,
            constant=is_constant_node(op.op, op.domain, False, known), made_by_rule=True,
        )  # fmt: skip
        self.added.append(node)
        return node

    def _is_constant(self, tensor: int) -> bool:
        return self.graph.is_constant(tensor) or any(tensor in n.outputs and n.constant for n in self.added)

    def _outputs_of(self, op: Op) -> list[Output]:
        """Every way in which the right side uses an output of the operator."""
        found = [output for _, output in self.rule.target if isinstance(output, Output) and output.op.key == op.key]
        for other in self.rule.target_ops:
            found += [i for i in other.inputs if isinstance(i, Output) and i.op.key == op.key]
        return found

    def attributes(self, op: Op) -> tuple:
        pairs = dict(self.bindings[op.rest]) if op.rest is not None else {}
        for name, value in op.attributes:
            pairs[name] = self.scope[value.name] if isinstance(value, Bind) else value.compute(self.scope)
        return tuple(sorted(pairs.items()))

    def infer(self, op: Op, attributes: tuple, inputs: list[int], n_outputs: int) -> tuple[TensorType, ...]:
        kinds = [self.types.get(t) or self.graph.types.get(t) for t in inputs]
        if any(kind is None or kind.shape is None for kind in kinds):
            raise Refused("the shape of a tensor is not known")
        values = [shape_value(self.constants if t in self.constants else self.graph, t) for t in inputs]
        try:
            return infer_types(op.op, op.domain, self.graph.opset(op.domain), attributes, kinds, values, n_outputs)
        except RLFlowError as error:
            raise Refused(str(error)) from error


