"""Helpers: graphs that an observation must or need not distinguish, and nodes with equal neighbourhoods."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from rlflow.common.errors import RLFlowError
from rlflow.common.task import GraphArrays
from rlflow.costs import FREE, NodeCost
from rlflow.env.features import is_large
from rlflow.env.observation import SIZE_SLOTS, TOTALS
from rlflow.env.state import RewriteState, Task
from rlflow.graph.ir import ABSENT, Constant, Graph, Node, TensorType
from rlflow.rules.language import RuleSet
from rlflow.rules.match import REDUNDANT, attributes_of


class Free:
    """A cost model with cost 0. Masks do not depend on costs, and the comparison of observations must not either."""

    reach, passes = 0, None

    def node_cost(self, graph: Graph, node: Node) -> NodeCost:
        return FREE


def state_of(graph: Graph, rules: RuleSet, sizes: dict[str, int] | None = None) -> RewriteState:
    return Task(graph, rules, Free(), sizes=(sizes or {},)).initial


# -- what is seen ----------------------------------------------------------------------------------


def equal(one: GraphArrays, other: GraphArrays) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def matches_by_row(state: RewriteState) -> dict[int, Counter]:
    """Return row of a node in the arrays → number of matches of each rule (by xfer_id) with it as their first root."""
    result: dict[int, Counter] = {}
    position = {node: row for row, node in enumerate(state.graph.order, start=len(state.graph.inputs))}
    for match in state.table.all_matches():
        result.setdefault(position[match.nodes[0]], Counter())[match.xfer_id] += 1
    return result


def refined(arrays: GraphArrays, distance: int) -> list[int]:
    """Return a number for each node. Two nodes have equal numbers if nothing within `distance` edges distinguishes
    them.

    The number at distance i + 1 joins the numbers at distance i of the node and of all neighbours, and the features of
    the edges to them. The numbers are hashes, which are comparable within one process.
    """
    opsets = arrays.globals[TOTALS + SIZE_SLOTS :].tobytes()
    colours = [hash((int(op), row.tobytes(), opsets)) for op, row in zip(arrays.ops, arrays.nodes, strict=True)]
    edges = [hash(row.tobytes()) for row in arrays.edges]
    ends = list(zip(edges, arrays.senders.tolist(), arrays.receivers.tolist(), strict=True))
    for _ in range(distance):
        read: list[list] = [[] for _ in colours]
        given: list[list] = [[] for _ in colours]
        for edge, sender, receiver in ends:
            read[receiver].append((edge, colours[sender] if sender != receiver else 0))
            if sender != receiver:
                given[sender].append((edge, colours[receiver]))
        colours = [hash((c, tuple(r), tuple(sorted(g)))) for c, r, g in zip(colours, read, given, strict=True)]
    return colours


# -- graphs that rules cannot tell apart -------------------------------------------------------------


def disguised(graph: Graph, rng: np.random.Generator) -> Graph:
    """Return the same graph with other ids, other large weights (equal ones stay equal) and unshared literals."""
    old = sorted({*graph.nodes, *graph.types, *graph.producers, *graph.inputs})
    new = dict(zip(old, rng.permutation(len(old)).tolist(), strict=True))
    new[ABSENT], types, constants, nodes, n = ABSENT, {}, {}, [], len(old)
    for node in graph.nodes.values():
        inputs = []
        for tensor in node.inputs:
            weight, number = graph.constants.get(tensor), new[tensor]
            if weight is not None:
                number, n = n, n + 1
                types[number], constants[number] = graph.types[tensor], _other(weight) if is_large(weight) else weight
            inputs.append(number)
        nodes.append(
            replace(
                node, id=new[node.id], inputs=tuple(inputs), outputs=tuple([new[t] for t in node.outputs]),
                captured=tuple([(name, new[t]) for name, t in node.captured]),
            )
        )  # fmt: skip
    types |= {new[tensor]: kind for tensor, kind in graph.types.items()}
    constants |= {new[tensor]: weight for tensor, weight in graph.constants.items()}
    inputs, outputs = ([new[tensor] for tensor in end] for end in (graph.inputs, graph.outputs))
    return Graph.build(graph.interface, nodes, types, constants, inputs, outputs)


def _other(weight: Constant) -> Constant:
    return Constant(f"other than {weight.digest}", weight.type, weight.load)


# -- graphs that differ in one thing that a condition may ask ------------------------------------------


class Change(NamedTuple):
    """A named change: its description, the graph before it, and the parts that differ after it (see `_with`)."""

    what: str
    before: Graph
    parts: dict

    @property
    def graph(self) -> Graph:
        return _with(self.before, **self.parts)


def changes(graph: Graph, rng: np.random.Generator) -> Iterator[Change]:
    """Yield graphs with one attribute, literal, size, data type, wire or output changed, valid or not."""
    for node in graph.nodes.values():
        for name, value in attributes_of(graph, node)[0].items():
            other = _changed(value, rng)
            if other is not None and (node.op, name) not in REDUNDANT:
                attributes = tuple(sorted((dict(node.attributes) | {name: other}).items()))
                yield Change(f"attribute {name}", graph, {"nodes": [replace(node, attributes=attributes)]})
        yield from _rewired(graph, node)
    for tensor, weight in graph.constants.items():
        yield from _other_weights(graph, tensor, weight, rng)
    for tensor, kind in graph.types.items():
        yield from _other_types(graph, tensor, kind, rng)
    for tensor in graph.producers.keys() - set(graph.outputs):
        yield Change("output", graph, {"outputs": (*graph.outputs, tensor)})


def _changed(value, rng: np.random.Generator):
    """Return another value of the same type, or None for a type without a variation."""
    if isinstance(value, bytes):
        return value + b"_"
    if isinstance(value, int | float):
        return value + type(value)(1)
    if isinstance(value, tuple) and value and isinstance(value[0], int):
        at = int(rng.integers(len(value)))
        if sorted(value) == list(range(len(value))) and len(value) > 1:  # A permutation must stay one.
            return (*value[:at], *value[at + 1 :], value[at]) if at < len(value) - 1 else value[::-1]
        return (*value[:at], value[at] + 1, *value[at + 1 :])
    return None


def _rewired(graph: Graph, node: Node) -> Iterator[Change]:
    """Yield graphs with inputs exchanged, with one input replaced, or with a shared input read from a copy."""
    inputs = node.inputs
    if len(inputs) > 1 and ABSENT not in inputs[:2] and inputs[0] != inputs[1]:
        for what, first in (("inputs exchanged", inputs[1::-1]), ("one input twice", inputs[:1] * 2)):
            yield Change(what, graph, {"nodes": [replace(node, inputs=(*first, *inputs[2:]))]})
    for slot, tensor in enumerate(inputs):
        maker = graph.nodes.get(graph.producers.get(tensor))
        if maker is not None and len(graph.consumers[tensor]) > 1:
            new = graph.next_id
            outputs = tuple(range(new + 1, new + 1 + len(maker.outputs)))
            copy = replace(maker, id=new, outputs=outputs)
            types = {b: graph.types[a] for a, b in zip(maker.outputs, outputs, strict=True) if a in graph.types}
            own = replace(node, inputs=(*inputs[:slot], outputs[maker.outputs.index(tensor)], *inputs[slot + 1 :]))
            yield Change("a copy of an operator", graph, {"nodes": [copy, own], "types": types})


def _other_weights(graph: Graph, tensor: int, weight: Constant, rng: np.random.Generator) -> Iterator[Change]:
    if is_large(weight):
        alike = [t for t, other in graph.constants.items() if t != tensor and other.type == weight.type]
        if alike:
            other = graph.constants[alike[int(rng.integers(len(alike)))]]
            made = _other(weight) if other.digest == weight.digest else other
            yield Change("which weights are equal", graph, {"constants": {tensor: made}})
    elif weight.type.size and weight.type.dtype in (TensorProto.INT64, TensorProto.FLOAT):
        array = weight.load().copy()
        at = int(rng.integers(array.size))
        array.reshape(-1)[at] = 1 if array.reshape(-1)[at] == 0 else array.reshape(-1)[at] // 2
        yield Change("literal", graph, {"constants": {tensor: Constant.of(array)}})
    if not any(graph.nodes[reader].constant for reader in graph.consumers.get(tensor, ())):
        yield Change("an input for a weight", graph, {"without": tensor})


def _other_types(graph: Graph, tensor: int, kind: TensorType, rng: np.random.Generator) -> Iterator[Change]:
    others = [("shape not known", kind._replace(shape=None))]
    others.append(("data type", kind._replace(dtype=TensorProto.DOUBLE)))
    if kind.shape:
        at = int(rng.integers(len(kind.shape)))
        for what, size in (("size + 1", kind.shape[at] + 1), ("size × 2", kind.shape[at] * 2)):
            others.append((what, kind._replace(shape=(*kind.shape[:at], size, *kind.shape[at + 1 :]))))
    if kind.shape is not None:
        others.append(("rank", kind._replace(shape=(*kind.shape, 1))))
    for what, other in others:
        if other != kind and tensor not in graph.constants:
            yield Change(what, graph, {"types": {tensor: other}})


def _with(
    graph: Graph, nodes: Iterable[Node] = (), types: dict | None = None, constants: dict | None = None,
    outputs: tuple[int, ...] | None = None, without: int | None = None,
) -> Graph:  # fmt: skip
    """Return the graph with these nodes, types, constants and outputs; `without` a constant, which becomes an input."""
    weights = graph.constants | (constants or {})
    weights.pop(without, None)
    inputs = graph.inputs if without is None else (*graph.inputs, without)
    every = graph.nodes | {node.id: node for node in nodes}
    return Graph.build(
        graph.interface, every.values(), graph.types | (types or {}), weights, inputs,
        graph.outputs if outputs is None else outputs,
    )  # fmt: skip


def seen(change: Change, rules: RuleSet, sizes: dict[str, int] | None = None) -> RewriteState | None:
    """Return the state of the changed graph, fully computed, or None if the engine refuses the graph."""
    try:
        state = state_of(change.graph, rules, sizes)
        _ = state.counts, state.arrays()
    except (RLFlowError, TypeError, ValueError, IndexError, KeyError, AttributeError, RecursionError):
        return None
    return state
