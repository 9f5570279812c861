"""The observation of an ONNX graph: the arrays that every world model gets, and that determine the action mask.

One graph is one `GraphArrays` of n nodes and e edges. The numbers of features depend neither on the graph nor on the
model.

**Nodes**, in this order: graph inputs (operator id `INPUT_OP`), operators in canonical order, constant operators
included, and graph outputs (`OUTPUT_OP`). Inputs and outputs have zeros for features.

`nodes`, float32 [n, NODE_FEATURES]:
  COSTS       the estimated cost: log(1 + x) for x = runtime in ns, FLOPs and bytes; launches. No mask depends on COSTS.
  COUNTS      1 for a constant operator; numbers of inputs: all, given, constant; numbers of outputs: all, given,
              unread, graph outputs; number of captured tensors.
  ATTRIBUTES  attributes that rules name, with defaults filled in, on the logarithmic scale of `shown`.
  FINGERPRINT numbers that depend on values without columns: other attributes that differ from their default, longer
              lists, and the types of unread outputs.

**Edges**: one edge for each given input of an operator, in input order, from the producer of the tensor; and one edge
into each graph output. The edge of a weight or literal leads from its reader to the reader itself. Thus the arrays do
not depend on whether a file shares equal literals, and no literal connects distant operators.

`edges`, float32 [e, EDGE_FEATURES]:
  SLOTS       input slot of the receiver, output slot of the sender; 1 if a subgraph reads the tensor;
              log(1 + readers); 1 if the tensor is a graph output.
  EQUALITIES  which nearby tensors are identical, and which shapes and axes are equal (`equalities`). Message passing
              alone cannot tell two readers of one tensor from readers of two similar tensors.
  TENSOR      data type, rank, sizes, degrees of symbolic sizes, small contents; FINGERPRINT numbers that depend on
              values without columns.

`globals`, float32 [GLOBAL_FEATURES]: runtime, FLOPs, bytes, launches and number of non-constant operators, each
relative to the initial graph; the typical sizes of the model's symbols; the model's opsets.

A symbolic size is shown as its value at the (first) typical size and its degree as a polynomial in the symbols.

*Completeness.* Two graphs with equal arrays have equal action masks, except for rules with `Rule.content_names`, whose
conditions read the elements of large weights. Every other property of a graph that a condition of a rule can test has a
column or is part of a fingerprint. All other conditions compare large weights only for equality. A weight that several
operators read therefore has the fingerprint of its content on each of its edges.

*Updates.* The entry of a node (its row and the edges into it) is reused in the next state. After a rewrite, the
entries of three kinds of nodes are computed again: the nodes in `GraphCost.recounted`, the readers of these nodes, and
the nodes that read a large weight whose set of readers changed. Entries are computed on first access.

VERSION identifies this format. It is part of the `EncodingSpec` of every checkpoint and of every shard of episodes.
Files of another version are refused.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import log1p
from typing import NamedTuple

import numpy as np

from rlflow.common.layers import layered
from rlflow.common.task import EncodingSpec, GraphArrays
from rlflow.costs import GraphCost, NodeCost
from rlflow.env.features import (
    ATTRIBUTE_FEATURES,
    INPUT_OP,
    N_COUNTS,
    N_OPS,
    OPERATOR_FEATURES,
    OUTPUT_OP,
    TENSOR_FEATURES,
    is_large,
    operator_features,
    operator_id,
    tensor_features,
)
from rlflow.graph import contrib
from rlflow.graph.ir import ABSENT, Graph, Node

COMPARED_INPUTS = 4  # number of a node's first inputs with which each of its inputs is compared
COMPARED_AXES = 4  # number of leading axes that are compared between two shapes
FAMILY = 3  # size of a family: a tensor and the first two inputs of its producer
EQUALITY_FEATURES = COMPARED_INPUTS + FAMILY**2 - 1 + 2 * (1 + COMPARED_AXES**2)


def equalities(graph: Graph, node: Node) -> list[bytes]:
    """Return the equality features of each input of a node, numbers 0 or 1, as bytes of float32 [EQUALITY_FEATURES].

    The features of an input are, in this order:

    - for each k from 0 to 3: 1 if the input is the same tensor as input k of the node; 0 for the input itself;
    - for each member of the input's family and each member of the partner's family: 1 if they are the same tensor. The
      family of a tensor is the tensor and the first two inputs of its producer. The partner is input 0 of the node, or
      input 1 for input 0. If the node has one input, these features are 0. The pair (input, partner) is omitted;
    - 1 if input and partner have equal shapes; for each pair of their first four axes, 1 if the sizes are equal;
    - the same shape features for the input and the node's first output.

    Weights of equal content count as the same tensor.

    Args:
      graph: the graph.
      node: a node of the graph.
    """
    families = [_family(graph, tensor) for tensor in node.inputs]
    shapes = [_shape(graph, tensor) for tensor in node.inputs]
    result, output = [], _shape(graph, node.outputs[0])
    for slot, mine in enumerate(families):
        other = 0 if slot else 1
        theirs, shape = (families[other], shapes[other]) if len(families) > 1 else (UNEQUAL_FAMILY, None)
        row = [k != slot and mine[0] == family[0] for k, family in enumerate(families[:COMPARED_INPUTS])]
        row += [False] * (COMPARED_INPUTS - len(row))
        row += [a == b for a in mine for b in theirs][1:]
        result.append(_packed_bits(tuple(row)) + _equal_axes(shapes[slot], shape) + _equal_axes(shapes[slot], output))
    return result


def _family(graph: Graph, tensor: int) -> tuple:
    """Return FAMILY values for a tensor and the first two inputs of its producer; equal values mean the same tensor."""
    producer = graph.producers.get(tensor)
    if producer is None:
        return _identity(graph, tensor), UNEQUAL, UNEQUAL
    first = [_identity(graph, t) for t in graph.nodes[producer].inputs[: FAMILY - 1]]
    return (_identity(graph, tensor), *first, *[UNEQUAL] * (FAMILY - 1 - len(first)))


def _identity(graph: Graph, tensor: int) -> int | str | float:
    weight = graph.constants.get(tensor)
    if weight is not None:
        return weight.digest
    return UNEQUAL if tensor == ABSENT else tensor


UNEQUAL = float("nan")  # stands for an absent tensor, because it equals no value, not even itself
UNEQUAL_FAMILY = (UNEQUAL,) * FAMILY


@lru_cache(maxsize=4096)
def _packed_bits(row: tuple[bool, ...]) -> bytes:
    return struct.pack(f"{len(row)}f", *row)


def _shape(graph: Graph, tensor: int) -> tuple | None:
    kind = graph.types.get(tensor)
    return kind.shape if kind is not None else None


@lru_cache(maxsize=65536)
def _equal_axes(a: tuple | None, b: tuple | None) -> bytes:
    """Return the equality features of two shapes (see `equalities`) as bytes; zeros if a shape is unknown.

    Two symbolic sizes are equal if they are equal for all values of the symbols.
    """
    if a is None or b is None:
        return bytes(4 * (1 + COMPARED_AXES**2))
    row = [float(a == b)]
    for i in range(COMPARED_AXES):
        row += [float(i < len(a) and j < len(b) and a[i] == b[j]) for j in range(COMPARED_AXES)]
    return struct.pack(f"{len(row)}f", *row)


NO_EQUALITIES = bytes(4 * EQUALITY_FEATURES)  # zeros, for edges without equality features


N_COSTS, N_SLOTS = 4, 5
NODE_FEATURES = N_COSTS + OPERATOR_FEATURES
EDGE_FEATURES = N_SLOTS + EQUALITY_FEATURES + TENSOR_FEATURES
NO_NODE = bytes(4 * NODE_FEATURES)  # zeros, the features of graph inputs and graph outputs


class NodeEntry(NamedTuple):
    """The contribution of one operator to the arrays of an observation: its row and the edges into it.

    Attributes:
      op: operator id.
      row: float32 [NODE_FEATURES] as bytes.
      degree: number of edges into the operator.
      senders: int64 [degree] as bytes: for each edge, the id of the producer of the input; the id of the operator
        itself for a weight; ~k for graph input k.
      edges: float32 [degree, EDGE_FEATURES] as bytes.
      weights: digests of the large weights that the operator reads.
    """

    op: int
    row: bytes
    degree: int
    senders: bytes
    edges: bytes
    weights: frozenset[str]


class Entries(NamedTuple):
    """The entries of all nodes of one graph, and the readers of its large weights.

    Attributes:
      nodes: node id → entry.
      readers: digest of a large weight → ids of the nodes that read a weight of this content.
    """

    nodes: dict[int, NodeEntry]
    readers: dict[str, frozenset[int]]


NO_ENTRIES = Entries({}, {})


def update_entries(
    known: Entries, changed: Iterable[int], graph: Graph, cost: GraphCost, sizes: Mapping[str, int]
) -> Entries:
    """Return the entries of a graph; reuse the entries of an earlier graph for all nodes that did not change.

    Args:
      known: the entries of the earlier graph.
      changed: ids of all nodes that were changed, added or removed since the earlier graph.
      graph: the graph.
      cost: the cost of the graph.
      sizes: symbol → typical size.
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
    return Entries(layered(nodes), readers)


def _readers(known: Entries, changed: set[int], graph: Graph) -> tuple[dict[str, frozenset[int]], set[int]]:
    """Return the readers of each large weight, and the nodes that read a weight with changed readers.

    Args:
      known: the entries of the earlier graph.
      changed: ids of all nodes that were changed, added or removed since the earlier graph.
      graph: the graph.

    Returns:
      digest of a weight → ids of the nodes that read a weight of this content; ids of the nodes in the graph that read
      a weight whose set of readers changed.
    """
    readers, stale = known.readers.copy(), set()
    lost: dict[str, set[int]] = {}
    gained: dict[str, set[int]] = {}
    for node_id in changed:
        before = known.nodes[node_id].weights if node_id in known.nodes else frozenset()
        now = _large_weights(graph, graph.nodes[node_id]) if node_id in graph.nodes else frozenset()
        for digest in before - now:
            lost.setdefault(digest, set()).add(node_id)
        for digest in now - before:
            gained.setdefault(digest, set()).add(node_id)
    for digest in lost.keys() | gained.keys():
        now = readers.pop(digest, frozenset()).difference(lost.get(digest, ())).union(gained.get(digest, ()))
        stale |= now
        if now:
            readers[digest] = now
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
    """Yield (sender, features) of the edge into each graph output.

    The sender is a node id, ~k for graph input k, or None if the output is a weight. The features are
    float32 [EDGE_FEATURES] as bytes.

    Args:
      graph: the graph.
      view: the graph at the typical sizes.
      readers: see `Entries`.
    """
    for tensor in graph.outputs:
        sender, (slots, rest) = _edge(graph, view, tensor, 0, False, readers)
        yield sender, slots + NO_EQUALITIES + rest


def _edge(
    graph: Graph, view: Graph, tensor: int, slot: int, captured: bool, readers: dict[str, frozenset[int]]
) -> tuple[int | None, tuple[bytes, bytes]]:
    """Return the sender of an edge and its features as bytes: (sender, (SLOTS, TENSOR)).

    The sender is a node id, ~k for graph input k, or None for a weight.

    Args:
      graph: the graph.
      view: the graph at the typical sizes.
      tensor: id of the tensor of the edge.
      slot: position of the tensor among the inputs (or captured tensors) of the receiver.
      captured: True if a subgraph of the receiver reads the tensor.
      readers: see `Entries`.
    """
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


VERSION = 2  # increased with every change of a feature's meaning

COSTS = slice(0, N_COSTS)  # columns of `nodes`
CONSTANT = COSTS.stop  # 1 for a constant operator
COUNTS = slice(COSTS.stop, COSTS.stop + N_COUNTS)
ATTRIBUTES = slice(COUNTS.stop, COUNTS.stop + ATTRIBUTE_FEATURES)
SLOTS = slice(0, N_SLOTS)  # columns of `edges`
EQUALITIES = slice(SLOTS.stop, SLOTS.stop + EQUALITY_FEATURES)
TENSOR = slice(EQUALITIES.stop, EDGE_FEATURES)

SIZE_SLOTS = 4  # number of symbols with a column, sorted by name; published models have 1 to 3 symbols
TOTALS = 5  # length of `totals`
DOMAINS = ("", contrib.DOMAIN)  # domains whose opset version limits which operators a rule may introduce
GLOBAL_FEATURES = TOTALS + SIZE_SLOTS + len(DOMAINS)


def encoding_spec(n_rules: int, max_locations: int) -> EncodingSpec:
    """Return the sizes of the arrays and of the action masks of a rewriting task.

    Args:
      n_rules: number of rules.
      max_locations: largest number of locations of one rule.
    """
    return EncodingSpec(N_OPS, NODE_FEATURES, EDGE_FEATURES, GLOBAL_FEATURES, n_rules, max_locations, version=VERSION)


def totals(cost: GraphCost, running: int) -> np.ndarray:
    """Return the totals of a graph, float64 [TOTALS]: runtime in ps, FLOPs, bytes, launches, non-constant nodes.

    Args:
      cost: the cost of the graph.
      running: number of non-constant nodes.
    """
    return np.array([*cost.total, running], np.float64)


def size_features(sizes: Sequence[Mapping[str, int]]) -> np.ndarray:
    """Return float32 [SIZE_SLOTS]: for each symbol, log(1 + size) averaged over all typical sizes.

    The symbols are sorted by name. Slots without a symbol are 0.

    Args:
      sizes: for each typical size, symbol → size.
    """
    result = np.zeros(SIZE_SLOTS, np.float32)
    for slot, name in enumerate(sorted(sizes[0])[:SIZE_SLOTS]):
        result[slot] = np.mean([log1p(at_these[name]) for at_these in sizes])
    return result


def arrays(
    entries: Entries, graph: Graph, view: Graph, cost: GraphCost, initial: np.ndarray, of_sizes: np.ndarray
) -> GraphArrays:
    """Return the arrays of a graph, with the nodes in the order: graph inputs, operators in canonical order, outputs.

    Args:
      entries: the entries of the graph.
      graph: the graph.
      view: the graph at the typical sizes.
      cost: the cost of the graph.
      initial: float64 [TOTALS], the `totals` of the initial graph.
      of_sizes: float32 [SIZE_SLOTS], the `size_features` of the model.
    """
    n_inputs, n_outputs, order = len(graph.inputs), len(graph.outputs), graph.order
    of_nodes = [entries.nodes[node_id] for node_id in order]
    senders = [entry.senders for entry in of_nodes]
    edges = [entry.edges for entry in of_nodes]
    for number, (sender, edge) in enumerate(outputs(graph, view, entries.readers), start=graph.next_id):
        senders.append(struct.pack("q", number if sender is None else sender))
        edges.append(edge)
    row_of = np.zeros(graph.next_id + n_outputs + n_inputs, np.int32)  # id → row; output k: next_id + k, input k: ~k
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
