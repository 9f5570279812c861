"""What each node adds to the arrays, kept from state to state."""

import struct
from collections.abc import Iterable, Iterator, Mapping
from math import log1p
from typing import NamedTuple

from rlflow.costs import GraphCost, NodeCost
from rlflow.env.observation.equalities import EQUALITY_FEATURES, NO_EQUALITIES, equalities
from rlflow.env.observation.operators import OPERATOR_FEATURES, operator_features, operator_id
from rlflow.env.observation.tensors import TENSOR_FEATURES, is_large, tensor_features
from rlflow.graph.model import ABSENT, Graph, Node

N_COSTS, N_SLOTS = 4, 5
NODE_FEATURES = N_COSTS + OPERATOR_FEATURES
EDGE_FEATURES = N_SLOTS + EQUALITY_FEATURES + TENSOR_FEATURES
NO_NODE = bytes(4 * NODE_FEATURES)  # the features of inputs and outputs of the graph


class NodeEntry(NamedTuple):
    """What one operator adds to the arrays.

    op: operator id.  row: its NODE_FEATURES float32 as bytes.
    degree: edges into it.  senders: of each, int64 as bytes: the id of the node that gives the tensor (itself for a
    weight), or ~k for input k of the graph.  edges: of each its EDGE_FEATURES float32 as bytes.
    weights: digests of the large weights that it reads.
    """

    op: int
    row: bytes
    degree: int
    senders: bytes
    edges: bytes
    weights: frozenset[str]


class Entries(NamedTuple):
    """Of one graph. nodes: node id → its entry.  readers: digest of a large weight → ids of the nodes that read it, or
    an equal one."""

    nodes: dict[int, NodeEntry]
    readers: dict[str, frozenset[int]]


NOTHING = Entries({}, {})


def update_entries(
    known: Entries, changed: Iterable[int], graph: Graph, cost: GraphCost, sizes: Mapping[str, int]
) -> Entries:
    """The entries of a graph from those of an earlier one and the ids of the nodes that differ.

    sizes: the typical size of each symbol.
    """
    changed = set(changed)
    readers, stale = _readers(known, changed, graph)
    for node_id in changed & graph.nodes.keys():
        stale.update(reader for tensor in graph.nodes[node_id].outputs for reader in graph.consumers.get(tensor, ()))
    nodes, view = known.nodes.copy(), graph.at(sizes)
    for node_id in changed | stale:
        if node_id in graph.nodes:
            nodes[node_id] = _entry(graph, view, graph.nodes[node_id], cost.nodes[node_id], readers)
        else:
            nodes.pop(node_id, None)
    return Entries(nodes, readers)


def _readers(known: Entries, changed: set[int], graph: Graph) -> tuple[dict[str, frozenset[int]], set[int]]:
    """Who reads which large weight now, and of which nodes one has become shared, or is no longer."""
    readers, stale = known.readers.copy(), set()
    for node_id in changed:
        before = known.nodes[node_id].weights if node_id in known.nodes else frozenset()
        now = _large_weights(graph, graph.nodes[node_id]) if node_id in graph.nodes else frozenset()
        for digest in before - now:
            readers[digest] -= {node_id}
        for digest in now - before:
            readers[digest] = readers.get(digest, frozenset()) | {node_id}
        for digest in before ^ now:
            stale |= readers[digest]
            if not readers[digest]:
                del readers[digest]
    return readers, stale & graph.nodes.keys()


def _large_weights(graph: Graph, node: Node) -> frozenset[str]:
    weights = [graph.constants[tensor] for tensor in node.inputs if tensor in graph.constants]
    return frozenset([weight.digest for weight in weights if is_large(weight)])


def _entry(graph: Graph, view: Graph, node: Node, cost: NodeCost, readers: dict[str, frozenset[int]]) -> NodeEntry:
    edges = [(slot, t, False) for slot, t in enumerate(node.inputs) if t != ABSENT]
    edges += [(slot, t, True) for slot, (_, t) in enumerate(node.captured)]
    senders, rows, same = [], [], equalities(graph, node)
    for slot, tensor, captured in edges:
        sender, row = _edge(graph, view, tensor, slot, captured, readers)
        senders.append(node.id if sender is None else sender)
        rows += (row[0], NO_EQUALITIES if captured else same[slot], row[1])
    costs = log1p(cost.runtime_ps / 1e3), log1p(cost.flops), log1p(cost.bytes), float(cost.launches)
    row = struct.pack(f"{N_COSTS}f", *costs) + operator_features(graph, node)
    weights = _large_weights(graph, node)
    return NodeEntry(
        operator_id(node), row, len(edges), struct.pack(f"{len(edges)}q", *senders), b"".join(rows), weights
    )


def outputs(graph: Graph, view: Graph, readers: dict[str, frozenset[int]]) -> Iterator[tuple[int | None, bytes]]:
    """Of each output of the graph: the sender (None: the output itself), and the features of the edge into it."""
    for tensor in graph.outputs:
        sender, (slots, rest) = _edge(graph, view, tensor, 0, False, readers)
        yield sender, slots + NO_EQUALITIES + rest


def _edge(
    graph: Graph, view: Graph, tensor: int, slot: int, captured: bool, readers: dict[str, frozenset[int]]
) -> tuple[int | None, tuple[bytes, bytes]]:
    """(sender, None for a weight; the features before the equalities and after them)."""
    producer, output = graph.producers.get(tensor), 0
    weight, count = graph.constants.get(tensor), 0
    if weight is None:
        count = len(graph.consumers.get(tensor, ()))
    if producer is not None:
        output = graph.nodes[producer].outputs.index(tensor)
    elif weight is None and tensor in graph.inputs:
        producer = ~graph.inputs.index(tensor)
    slots = struct.pack(
        f"{N_SLOTS}f", slot, output, float(captured), log1p(count), float(weight is None and tensor in graph.outputs)
    )
    shared = weight is not None and len(readers.get(weight.digest, ())) > 1
    return producer, (slots, tensor_features(graph, view, tensor, shared))
