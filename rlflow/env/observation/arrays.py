"""Graphs as arrays for graph networks: the entries of all nodes laid end to end. See the package's docstring."""

from collections.abc import Mapping, Sequence
from math import log1p

import numpy as np

from rlflow.costs import GraphCost
from rlflow.env.observation.entries import (
    EDGE_FEATURES,
    N_COSTS,
    N_SLOTS,
    NO_NODE,
    NODE_FEATURES,
    Entries,
    outputs,
)
from rlflow.env.observation.equalities import EQUALITY_FEATURES
from rlflow.env.observation.operators import ATTRIBUTE_FEATURES, INPUT_OP, N_COUNTS, N_OPS, OUTPUT_OP
from rlflow.graph import contrib
from rlflow.graph.model import Graph
from rlflow.tasks.base import EncodingSpec, GraphArrays

VERSION = 2  # raised with every change of what the numbers mean

COSTS = slice(0, N_COSTS)  # columns of `nodes`
COUNTS = slice(COSTS.stop, COSTS.stop + N_COUNTS)
ATTRIBUTES = slice(COUNTS.stop, COUNTS.stop + ATTRIBUTE_FEATURES)
SLOTS = slice(0, N_SLOTS)  # columns of `edges`
EQUALITIES = slice(SLOTS.stop, SLOTS.stop + EQUALITY_FEATURES)
TENSOR = slice(EQUALITIES.stop, EDGE_FEATURES)

SIZE_SLOTS = 4  # symbols whose typical sizes are shown: the first ones by name; models as people publish them have 1–3
TOTALS = 5
DOMAINS = ("", contrib.DOMAIN)  # whose opsets say which operators a rule may write
GLOBAL_FEATURES = TOTALS + SIZE_SLOTS + len(DOMAINS)


def encoding_spec(n_rules: int, max_locations: int) -> EncodingSpec:
    return EncodingSpec(N_OPS, NODE_FEATURES, EDGE_FEATURES, GLOBAL_FEATURES, n_rules, max_locations, version=VERSION)


def totals(cost: GraphCost, entries: Entries) -> np.ndarray:
    """float64 [TOTALS]: runtime (ps), FLOPs, bytes, launches, nodes that are not constant."""
    running = sum(not entry.constant for entry in entries.nodes.values())
    return np.array([*cost.total, running], np.float64)


def size_features(sizes: Sequence[Mapping[str, int]]) -> np.ndarray:
    """float32 [SIZE_SLOTS]: the log(1 + x) of the typical size of each symbol, by name, in the mean over all typical
    sizes; 0 where there is no symbol."""
    result = np.zeros(SIZE_SLOTS, np.float32)
    for slot, name in enumerate(sorted(sizes[0])[:SIZE_SLOTS]):
        result[slot] = np.mean([log1p(at_these[name]) for at_these in sizes])
    return result


def arrays(
    entries: Entries, graph: Graph, view: Graph, cost: GraphCost, initial: np.ndarray, of_sizes: np.ndarray
) -> GraphArrays:
    """The whole graph: its inputs, its operators in canonical order, its outputs.

    view: the graph at the typical sizes.  initial: the `totals` of the initial graph.  of_sizes: the `size_features`.
    """
    n_inputs, order = len(graph.inputs), graph.order
    position = dict(zip(order, range(n_inputs, n_inputs + len(order)), strict=True))
    of_nodes = [entries.nodes[node_id] for node_id in order]
    senders = [position[s] if s >= 0 else ~s for entry in of_nodes for s in entry.senders]
    degrees = [len(entry.senders) for entry in of_nodes]
    edges = [entry.edges for entry in of_nodes]
    for row, (sender, edge) in enumerate(outputs(graph, view, entries.readers), start=n_inputs + len(order)):
        senders.append(row if sender is None else position[sender] if sender >= 0 else ~sender)
        edges.append(edge)
    ops = [INPUT_OP] * n_inputs + [entry.op for entry in of_nodes] + [OUTPUT_OP] * len(graph.outputs)
    rows = [NO_NODE * n_inputs, *[entry.row for entry in of_nodes], NO_NODE * len(graph.outputs)]
    receivers = np.repeat(np.arange(n_inputs, len(ops), dtype=np.int32), degrees + [1] * len(graph.outputs))
    opsets = [float(graph.opset(domain)) for domain in DOMAINS]
    return GraphArrays(
        np.array(ops, np.int32),
        np.frombuffer(b"".join(rows), np.float32).reshape(-1, NODE_FEATURES),
        np.frombuffer(b"".join(edges), np.float32).reshape(-1, EDGE_FEATURES),
        np.array(senders, np.int32),
        receivers,
        np.concatenate([totals(cost, entries) / np.maximum(initial, 1.0), of_sizes, opsets]).astype(np.float32),
    )
