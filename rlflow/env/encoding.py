"""Graphs as arrays for graph networks.

Sizes are numbers: where a model has symbols, they are taken at its typical sizes, the first of them if there are
several. Beside them stands what is symbolic, which is the same at every size, so that graphs which differ in their
typical sizes alone differ in these numbers alone.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from math import log1p
from typing import NamedTuple

import numpy as np
import onnx

from rlflow.costs import GraphCost, NodeCost
from rlflow.graph import contrib
from rlflow.graph.dims import Dim
from rlflow.graph.model import ABSENT, Graph, Node
from rlflow.tasks.base import EncodingSpec, GraphArrays


def _vocabulary() -> list[tuple[str, str]]:
    """(domain, name) of ONNX's operators up to opset 23, so that a newer onnx package does not renumber them, and of
    those of ONNX Runtime's that rules know."""
    schemas = onnx.defs.get_all_schemas_with_history()
    standard = {("", s.name) for s in schemas if s.domain == "" and s.since_version <= 23}
    return sorted(standard | {(contrib.DOMAIN, name) for name in contrib.OPERATORS})


OPS = {operator: number for number, operator in enumerate(_vocabulary(), start=1)}
OTHER_OP = len(OPS) + 1
N_OPS = OTHER_OP + 1  # with 0 for padding

SIZE_SLOTS = 4  # symbols whose typical sizes are shown: the first ones by name; models as people publish them have 1–3
TOTALS = 5
NODE_FEATURES = 21
EDGE_FEATURES = 3
GLOBAL_FEATURES = TOTALS + SIZE_SLOTS


def encoding_spec(n_rules: int, max_locations: int) -> EncodingSpec:
    return EncodingSpec(N_OPS, NODE_FEATURES, EDGE_FEATURES, GLOBAL_FEATURES, n_rules, max_locations)


def node_features(graph: Graph, view: Graph, node: Node, cost: NodeCost) -> tuple[float, ...]:
    """What a graph network sees of one operator (NODE_FEATURES numbers, sizes as log(1 + x)).

    view: the graph at the typical sizes.

    Cost (runtime in ns, FLOPs, bytes, launches), number of inputs, of constant inputs, of outputs and of
    readers, rank and size of the first output and its last four dimensions, window height and width,
    stride, and groups; of the first output how many axes are symbolic, whether the leading one is, and the degree
    of its size in the symbols.
    """
    kind = view.types.get(node.outputs[0]) if node.outputs[0] != ABSENT else None
    shape = kind.shape if kind is not None and kind.shape is not None else ()
    dims = (0, 0, 0, 0, *shape)[-4:]
    kernel = _window(view, node)
    reads = list(node.reads())
    return (
        log1p(cost.runtime_ps / 1e3),
        log1p(cost.flops),
        log1p(cost.bytes),
        float(cost.launches),
        float(len(reads)),
        float(sum(graph.is_constant(t) for t in reads)),
        float(len(node.outputs)),
        float(len(graph.consumers.get(node.outputs[0], ()))),
        float(len(shape)),
        log1p(kind.size if kind is not None else 0),
        *(log1p(max(d, 0)) for d in dims),
        float(kernel[0]),
        float(kernel[1]),
        float(node.attribute("strides", (1,))[0]),
        log1p(node.attribute("group", 0)),
        *_symbolic(graph, node.outputs[0]),
    )


def _symbolic(graph: Graph, tensor: int) -> tuple[float, float, float]:
    """(axes that are symbolic, whether the leading one is, degree in the symbols of the number of elements)."""
    kind = graph.types.get(tensor)
    shape = kind.shape if kind is not None and kind.shape is not None else ()
    degrees = [max(len(factors) for factors, _ in size.terms) for size in shape if type(size) is Dim]
    return float(len(degrees)), float(bool(shape) and type(shape[0]) is Dim), float(sum(degrees))


def _window(graph: Graph, node: Node) -> tuple[int, int]:
    shape = node.attribute("kernel_shape")
    if shape is None and node.op in ("Conv", "FusedConv") and node.inputs[1] in graph.types:
        shape = (graph.types[node.inputs[1]].shape or ())[2:]
    shape = tuple(shape or ())
    return (*shape, 0, 0)[:2] if len(shape) != 1 else (shape[0], 1)


class NodeEntry(NamedTuple):
    """What one node adds to the arrays.

    op: operator id.  row: its NODE_FEATURES float32 as bytes.  senders: ids of the nodes it reads from.
    edges: EDGE_FEATURES float32 for each of them, as bytes.
    """

    op: int
    row: bytes
    senders: tuple[int, ...]
    edges: bytes


Entries = dict[int, NodeEntry]  # node id → entry, without the constant nodes


def update_entries(
    known: Entries, changed: Iterable[int], graph: Graph, cost: GraphCost, sizes: Mapping[str, int]
) -> Entries:
    """The entries of a graph from those of an earlier one and the ids of the nodes that differ.

    sizes: the typical size of each symbol.
    """
    entries, view = known.copy(), graph.at(sizes)
    for node_id in changed:
        node = graph.nodes.get(node_id)
        if node is None or node.constant:
            entries.pop(node_id, None)
        else:
            entries[node_id] = _entry(graph, view, node, cost.nodes[node_id])
    return entries


def _entry(graph: Graph, view: Graph, node: Node, cost: NodeCost) -> NodeEntry:
    senders, edges = [], []
    for slot, tensor in enumerate(node.reads()):
        sender = graph.producers.get(tensor)
        if sender is not None and not graph.nodes[sender].constant:
            kind = view.types.get(tensor)
            senders.append(sender)
            edges += (
                float(slot),
                log1p(kind.nbytes if kind is not None else 0),
                float(len(graph.consumers[tensor]) > 1),
            )
    op = OPS.get((node.domain, node.op), OTHER_OP)
    row = struct.pack(f"{NODE_FEATURES}f", *node_features(graph, view, node, cost))
    return NodeEntry(op, row, tuple(senders), struct.pack(f"{len(edges)}f", *edges))


def totals(cost: GraphCost, n_nodes: int) -> np.ndarray:
    """float64 [TOTALS]: runtime (ps), FLOPs, bytes, launches, nodes that are not constant."""
    return np.array([*cost.total, n_nodes], np.float64)


def size_features(sizes: Sequence[Mapping[str, int]]) -> np.ndarray:
    """float32 [SIZE_SLOTS]: the log(1 + x) of the typical size of each symbol, by name, in the mean over all typical
    sizes; 0 where there is no symbol."""
    result = np.zeros(SIZE_SLOTS, np.float32)
    for slot, name in enumerate(sorted(sizes[0])[:SIZE_SLOTS]):
        result[slot] = np.mean([log1p(at_these[name]) for at_these in sizes])
    return result


def arrays(
    entries: Entries, graph: Graph, cost: GraphCost, initial: np.ndarray, of_sizes: np.ndarray
) -> GraphArrays:
    """The graph without its constant nodes (they cost nothing), in canonical order.

    Edge features: input slot, log(1 + bytes) of the tensor, whether the sender has other readers.
    Globals: the totals, as multiples of the initial graph's, and `of_sizes`, the `size_features`.
    """
    order = [node_id for node_id in graph.order if node_id in entries]
    position = dict(zip(order, range(len(order)), strict=True))
    rows = [entries[node_id] for node_id in order]
    senders = [position[sender] for row in rows for sender in row.senders]
    degrees = [len(row.senders) for row in rows]
    return GraphArrays(
        np.array([row.op for row in rows], np.int32),
        np.frombuffer(b"".join([row.row for row in rows]), np.float32).reshape(-1, NODE_FEATURES),
        np.frombuffer(b"".join([row.edges for row in rows]), np.float32).reshape(-1, EDGE_FEATURES),
        np.array(senders, np.int32),
        np.repeat(np.arange(len(rows), dtype=np.int32), degrees),
        np.append(totals(cost, len(order)) / np.maximum(initial, 1.0), of_sizes).astype(np.float32),
    )
