"""Graphs as arrays for graph networks: the entries of all nodes laid end to end. See the package's docstring."""

import struct
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
CONSTANT = COSTS.stop  # whether the operator is
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


def totals(cost: GraphCost, running: int) -> np.ndarray:
    """float64 [TOTALS]: runtime (ps), FLOPs, bytes, launches, nodes that are not constant (`running`)."""
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
    n_inputs, n_outputs, order = len(graph.inputs), len(graph.outputs), graph.order
    of_nodes = [entries.nodes[node_id] for node_id in order]
    senders = [entry.senders for entry in of_nodes]
    edges = [entry.edges for entry in of_nodes]
    for number, (sender, edge) in enumerate(outputs(graph, view, entries.readers), start=graph.next_id):
        senders.append(struct.pack("q", number if sender is None else sender))
        edges.append(edge)
    row_of = np.zeros(graph.next_id + n_outputs + n_inputs, np.int32)  # by id; output k is next_id + k, input k is ~k
    receivers = np.arange(n_inputs, n_inputs + len(order) + n_outputs, dtype=np.int32)
    row_of[[*order, *range(graph.next_id, graph.next_id + n_outputs)]] = receivers
    row_of[[~k for k in range(n_inputs)]] = range(n_inputs)
    ops = [INPUT_OP] * n_inputs + [entry.op for entry in of_nodes] + [OUTPUT_OP] * n_outputs
    features = [NO_NODE * n_inputs, *[entry.row for entry in of_nodes], NO_NODE * n_outputs]
    nodes = np.frombuffer(b"".join(features), np.float32).reshape(-1, NODE_FEATURES)
    running = len(order) - int(nodes[:, CONSTANT].sum())
    opsets = [float(graph.opset(domain)) for domain in DOMAINS]
    return GraphArrays(
        np.array(ops, np.int32),
        nodes,
        np.frombuffer(b"".join(edges), np.float32).reshape(-1, EDGE_FEATURES),
        row_of[np.frombuffer(b"".join(senders), np.int64)],
        np.repeat(receivers, [entry.degree for entry in of_nodes] + [1] * n_outputs),
        np.concatenate([totals(cost, running) / np.maximum(initial, 1.0), of_sizes, opsets]).astype(np.float32),
    )
