"""Matching: the ways in which the left side of one rule occurs at one node."""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from rlflow.graph.model import ABSENT, Graph, Node
from rlflow.graph.opsets import schema_version, supported
from rlflow.graph.shapes import SHAPE_VALUE_LIMIT, attribute_defaults
from rlflow.rules.expressions import FLOATS, Tensor
from rlflow.rules.language import Bind, Literal, Op, Output, Rule, Star, Var

COMMUTATIVE = frozenset(("Add", "Mul", "And", "Or", "Xor", "Equal"))
WINDOWED = frozenset(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"))
# Operators whose `axis` counts the axes of the first input, so that a negative one has a positive name.
AXIS_OF_INPUT = frozenset(("Concat", "Split", "Softmax", "LogSoftmax", "Gather", "LayerNormalization", "Flatten"))
# What the weights say already, and what matters in training alone.
REDUNDANT = frozenset((("Conv", "kernel_shape"), ("BatchNormalization", "momentum")))


class Match(NamedTuple):
    """One way in which a rule's left side occurs in a graph.

    nodes: node ids in the order of `rule.ops`.  bindings: name → tensor id, tuple of ids, or attribute value.
    """

    xfer_id: int
    nodes: tuple[int, ...]
    bindings: dict[str, Any]


class _State(NamedTuple):
    bindings: dict[str, Any]
    nodes: dict[int, int]  # key of a pattern operator → node id

    def bind(self, name: str, value) -> "_State | None":
        if name in self.bindings:
            return self if self.bindings[name] == value else None
        return _State({**self.bindings, name: value}, self.nodes)


# -- attributes ------------------------------------------------------------------------------------


def attribute_value(graph: Graph, node: Node, name: str):
    """The attribute's value with the operator's default where the node does not say; axes counted from 0."""
    value = node.attribute(name)
    if value is None:
        value = _default(graph, node, name)
    if name == "axis" and isinstance(value, int) and value < 0 and node.op in AXIS_OF_INPUT:
        kind = graph.types.get(node.inputs[0])
        return value + len(kind.shape) if kind is not None and kind.shape is not None else value
    return value


def _default(graph: Graph, node: Node, name: str):
    kind = graph.types.get(node.inputs[0]) if node.inputs else None
    rank = len(kind.shape) if kind is not None and kind.shape is not None else None
    if rank is None and (node.op == "Transpose" or node.op in WINDOWED):
        return None  # the default depends on the rank
    if node.op == "Transpose" and name == "perm":
        return tuple(reversed(range(rank)))
    if node.op in WINDOWED and name in ("strides", "dilations", "pads"):
        return {"strides": (1,), "dilations": (1,), "pads": (0, 0)}[name] * (rank - 2)
    if node.op == "Conv" and name == "kernel_shape":
        return graph.types[node.inputs[1]].shape[2:]
    version = schema_version(node.op, node.domain, graph.opset(node.domain))
    return attribute_defaults(node.op, node.domain, version).get(name)


def other_attributes(graph: Graph, node: Node, named: frozenset[str]) -> tuple:
    """What `**rest` captures: the attributes that are neither named nor at their default."""
    found = []
    for name, _ in node.attributes:
        if name not in named and (node.op, name) not in REDUNDANT:
            value = attribute_value(graph, node, name)
            if value != _default(graph, node, name):
                found.append((name, value))
    return tuple(found)


# -- one pattern -----------------------------------------------------------------------------------


def _match_tensor(graph: Graph, pattern, tensor: int, state: _State) -> Iterator[_State]:
    match pattern:
        case Var(name):
            if tensor != ABSENT:
                bound = state.bind(name, tensor)
                if bound is None and _same_constant(graph, state.bindings[name], tensor):
                    bound = state
                if bound is not None:
                    yield bound
        case Literal():
            if tensor != ABSENT and _holds_literal(graph, tensor, pattern):
                yield state
        case Output(op, slot):
            producer = graph.producers.get(tensor)
            if producer is not None and slot is not None:
                node = graph.nodes[producer]
                if slot < len(node.outputs) and node.outputs[slot] == tensor:
                    yield from _match_op(graph, op, node, state)


def _same_constant(graph: Graph, first: int, second: int) -> bool:
    """Whether two tensors are weights or literals of equal content (exporters write axes anew for each node)."""
    constants = graph.constants
    return first in constants and second in constants and constants[first].digest == constants[second].digest


def _holds_literal(graph: Graph, tensor: int, literal: Literal) -> bool:
    """Whether the tensor is one number (or list) that equals the literal, as its data type rounds it."""
    constant = graph.constants.get(tensor)
    if constant is None or constant.type.size > SHAPE_VALUE_LIMIT:
        return False
    wanted, found = np.asarray(literal.compute({})), constant.load()
    if found.size != wanted.size or found.dtype.kind in "OSU":
        return False
    if constant.type.dtype in FLOATS:
        wanted = wanted.astype(found.dtype)
    return np.array_equal(found.reshape(-1).astype(np.float64), wanted.reshape(-1).astype(np.float64))


def _match_op(graph: Graph, op: Op, node: Node, state: _State) -> Iterator[_State]:
    if node.op != op.op or node.domain != op.domain or node.captured:
        return
    if op.key in state.nodes:
        if state.nodes[op.key] == node.id:
            yield state
        return
    if node.id in state.nodes.values() or not supported(op.op, op.domain, graph.opset(op.domain)):
        return
    if op.op == "BatchNormalization" and any(tensor != ABSENT for tensor in node.outputs[1:]):
        return  # before opset 14 this is what says that it trains
    state = _match_attributes(graph, op, node, _State(state.bindings, {**state.nodes, op.key: node.id}))
    if state is None:
        return
    inputs = list(node.inputs)
    while inputs and inputs[-1] == ABSENT:
        inputs.pop()
    yield from _match_inputs(graph, op.inputs, tuple(inputs), state)
    if op.op in COMMUTATIVE and len(op.inputs) == len(inputs) == 2 and inputs[0] != inputs[1]:
        yield from _match_inputs(graph, op.inputs, (inputs[1], inputs[0]), state)


def _match_attributes(graph: Graph, op: Op, node: Node, state: _State | None) -> _State | None:
    for name, pattern in op.attributes:
        value = attribute_value(graph, node, name)
        if isinstance(pattern, Bind):
            state = state.bind(pattern.name, value) if value is not None else None
        elif not _same_attribute(pattern.compute({}), value):
            state = None
        if state is None:
            return None
    others = other_attributes(graph, node, frozenset(name for name, _ in op.attributes))
    if op.rest is not None:
        return state.bind(op.rest, others)
    return state if not others else None


def _same_attribute(wanted, found) -> bool:
    if isinstance(wanted, float) and isinstance(found, float):
        return abs(wanted - found) <= 1e-6 * abs(wanted)  # attributes are stored in float32
    return wanted == found


def _match_inputs(graph: Graph, patterns: tuple, tensors: tuple[int, ...], state: _State) -> Iterator[_State]:
    if not patterns:
        if not tensors:
            yield state
        return
    first, rest = patterns[0], patterns[1:]
    if isinstance(first, Star):
        for count in range(len(tensors) + 1):
            bound = state.bind(first.name, tensors[:count])
            if bound is not None:
                yield from _match_inputs(graph, rest, tensors[count:], bound)
    elif isinstance(first, Output) and first.slot is None:
        producer = graph.producers.get(tensors[0]) if tensors else None
        if producer is not None:
            outputs = graph.nodes[producer].outputs
            if tensors[: len(outputs)] == outputs:
                for inner in _match_op(graph, first.op, graph.nodes[producer], state):
                    yield from _match_inputs(graph, rest, tensors[len(outputs) :], inner)
    elif tensors:
        for inner in _match_tensor(graph, first, tensors[0], state):
            yield from _match_inputs(graph, rest, tensors[1:], inner)


# -- one rule --------------------------------------------------------------------------------------


@cache
def _path_to_variable(pattern: Op, bound: frozenset[str]) -> tuple[str, tuple[str, ...]] | None:
    """(bound variable, operators from the one that reads it up to `pattern`), the shortest such path."""
    best = None
    for child in pattern.inputs:
        if isinstance(child, Var) and child.name in bound:
            return child.name, (pattern.op,)
        if isinstance(child, Output):
            inner = _path_to_variable(child.op, bound)
            if inner is not None and (best is None or len(inner[1]) + 1 < len(best[1])):
                best = inner[0], (*inner[1], pattern.op)
    return best


def _sibling_roots(graph: Graph, root: Op, state: _State) -> Iterator[Node]:
    """Nodes that may be `root`, reached from a tensor that the match already holds."""
    varying = frozenset(
        name for name, value in state.bindings.items()
        if isinstance(value, int) and value in graph.types and not graph.is_constant(value)
    )  # fmt: skip
    path = _path_to_variable(root, varying)
    if path is None:
        return
    frontier = {state.bindings[path[0]]}
    for op in path[1]:
        nodes = {n for tensor in frontier for n in graph.consumers.get(tensor, ()) if graph.nodes[n].op == op}
        frontier = {tensor for n in nodes for tensor in graph.nodes[n].outputs}
    yield from (graph.nodes[n] for n in sorted(nodes))


def structural_matches(graph: Graph, xfer_id: int, rule: Rule, node: Node) -> Iterator[Match]:
    """Matches whose first root is `node`, of the operators alone: conditions are not asked."""
    states = _match_op(graph, rule.roots[0], node, _State({}, {}))
    for root in rule.roots[1:]:
        states = (
            inner
            for state in states
            for sibling in _sibling_roots(graph, root, state)
            if not graph.nodes[sibling.id].constant
            for inner in _match_op(graph, root, sibling, state)
        )
    for state in states:
        yield Match(xfer_id, tuple(state.nodes[op.key] for op in rule.ops), state.bindings)


def scope_of(graph: Graph, rule: Rule, bindings: dict[str, Any]) -> dict[str, Any]:
    """The names that expressions see: tensors as `Tensor`, attributes as they are, then the lets.

    Raises Unknown where a let asks for something that is not known.
    """
    tensors = rule_tensor_names(rule)
    scope = {}
    for name, value in bindings.items():
        if name not in tensors:
            scope[name] = value
        elif isinstance(value, tuple):
            scope[name] = tuple(Tensor(graph, tensor) for tensor in value)
        else:
            scope[name] = Tensor(graph, value)
    for name, expression in rule.lets:
        scope[name] = expression(scope)
    return scope


@cache
def _tensor_names(patterns: tuple) -> frozenset[str]:
    names: set[str] = set()
    for pattern in patterns:
        for child in pattern.inputs:
            if isinstance(child, Var | Star):
                names.add(child.name)
    return frozenset(names)


def rule_tensor_names(rule: Rule) -> frozenset[str]:
    return _tensor_names(rule.ops)
