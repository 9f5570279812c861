"""Graphs as arrays for graph networks."""

from dataclasses import asdict, dataclass
from math import log1p
from typing import NamedTuple

import numpy as np
import onnx

from rlflow.costs import GraphCost, NodeCost
from rlflow.graph.model import ABSENT, Graph, Node


class GraphArrays(NamedTuple):
    """One graph of n nodes and e edges, unpadded.

    ops: int32 [n], operator id (1 …; 0 is padding).  nodes: float32 [n, F].  edges: float32 [e, Fe].
    senders, receivers: int32 [e], node indices in canonical order.  globals: float32 [G].
    """

    ops: np.ndarray
    nodes: np.ndarray
    edges: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    globals: np.ndarray


@dataclass(frozen=True)
class EncodingSpec:
    """The sizes that a world model and its checkpoints are built for."""

    n_ops: int
    node_features: int
    edge_features: int
    global_features: int
    n_xfers: int
    max_locations: int

    def to_dict(self) -> dict:
        return asdict(self)


def _vocabulary() -> tuple[str, ...]:
    """ONNX's operators up to opset 21, so that a newer onnx package does not renumber them."""
    schemas = onnx.defs.get_all_schemas_with_history()
    return tuple(sorted({s.name for s in schemas if s.domain == "" and s.since_version <= 21}))


OPS = {name: number for number, name in enumerate(_vocabulary(), start=1)}
OTHER_OP = len(OPS) + 1
N_OPS = OTHER_OP + 1  # with 0 for padding

NODE_FEATURES = 18
EDGE_FEATURES = 3
GLOBAL_FEATURES = 5


def encoding_spec(n_xfers: int, max_locations: int) -> EncodingSpec:
    return EncodingSpec(N_OPS, NODE_FEATURES, EDGE_FEATURES, GLOBAL_FEATURES, n_xfers, max_locations)


def node_features(graph: Graph, node: Node, cost: NodeCost) -> tuple[float, ...]:
    """What a graph network is told of one operator (NODE_FEATURES numbers, sizes as log(1 + x)).

    Cost (runtime in ns, FLOPs, bytes, launches), number of inputs, of constant inputs, of outputs and of
    readers, rank and size of the first output and its last four dimensions, window height and width,
    stride, and groups.
    """
    kind = graph.types.get(node.outputs[0]) if node.outputs[0] != ABSENT else None
    shape = kind.shape if kind is not None and kind.shape is not None else ()
    dims = (0, 0, 0, 0, *shape)[-4:]
    kernel = _window(graph, node)
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
    )


def _window(graph: Graph, node: Node) -> tuple[int, int]:
    shape = node.attribute("kernel_shape")
    if shape is None and node.op == "Conv" and node.inputs[1] in graph.types:
        shape = (graph.types[node.inputs[1]].shape or ())[2:]
    shape = tuple(shape or ())
    return (*shape, 0, 0)[:2] if len(shape) != 1 else (shape[0], 1)


class Featuriser:
    """Builds GraphArrays; what a node says of itself is kept until the node or its cost changes."""

    def __init__(self, graph: Graph, cost: GraphCost):
        self._initial = self._totals(graph, cost)
        self._rows: dict[int, tuple[Node, NodeCost, tuple, tuple]] = {}

    @staticmethod
    def _totals(graph: Graph, cost: GraphCost) -> np.ndarray:
        nodes = sum(not node.constant for node in graph.nodes.values())
        return np.array([*cost.total, nodes], np.float64)

    def arrays(self, graph: Graph, cost: GraphCost) -> GraphArrays:
        """The graph without its constant nodes (they cost nothing), in canonical order.

        Edge features: input slot, log(1 + bytes) of the tensor, whether the sender has other readers.
        Globals: runtime, FLOPs, bytes, launches and nodes, as multiples of the initial graph's.
        """
        order = [n for n in graph.order if not graph.nodes[n].constant]
        place = {node_id: k for k, node_id in enumerate(order)}
        ops, rows, edges, senders, receivers = [], [], [], [], []
        for receiver, node_id in enumerate(order):
            node = graph.nodes[node_id]
            ops.append(OPS.get(node.op, OTHER_OP) if node.domain == "" else OTHER_OP)
            rows.append(self._row(graph, node, cost.nodes[node_id]))
            for slot, tensor in enumerate(node.reads()):
                sender = place.get(graph.producers.get(tensor))
                if sender is not None:
                    kind = graph.types.get(tensor)
                    shared = len(graph.consumers[tensor]) > 1
                    edges.append((float(slot), log1p(kind.nbytes if kind is not None else 0), float(shared)))
                    senders.append(sender)
                    receivers.append(receiver)
        totals = self._totals(graph, cost) / np.maximum(self._initial, 1.0)
        return GraphArrays(
            np.array(ops, np.int32),
            np.array(rows, np.float32).reshape(-1, NODE_FEATURES),
            np.array(edges, np.float32).reshape(-1, EDGE_FEATURES),
            np.array(senders, np.int32),
            np.array(receivers, np.int32),
            totals.astype(np.float32),
        )

    def _row(self, graph: Graph, node: Node, cost: NodeCost) -> tuple[float, ...]:
        readers = graph.consumers.get(node.outputs[0], ())
        known = self._rows.get(node.id)
        if known is None or known[0] is not node or known[1] != cost or known[2] != readers:
            known = self._rows[node.id] = node, cost, readers, node_features(graph, node, cost)
        return known[3]
