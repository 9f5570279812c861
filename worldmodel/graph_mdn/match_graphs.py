"""Matches as graphs for the match network: their nodes and tensors, how these hang together, and what is equal in them.

Which nodes there are and how they hang together is the pattern; what they look like are features by signature. Most
conditions of rules are equalities of sizes, so every two tensors of a match are joined by an edge that says which of
their sizes agree, and which agree with what a literal says. Nothing says where in a graph the match lies.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from rlflow.graph.ir import ABSENT
from worldmodel.edits.match_patterns import MatchPattern, Signature
from worldmodel.graph_mdn.signature_table import NUMBERS, SignatureTable

ROLES = 24  # places in a match that are told apart: a node's or an operand's number; those behind share the last
SLOTS = 8  # inputs or outputs that are told apart
READS, MAKES, PAIR = range(3)  # sorts of edges
PAIR_BITS = 1 + NUMBERS**2  # equal signatures; which numbers are equal
SAME = 1e-5  # numbers on a logarithmic scale that differ by less are equal
EDGE_COLUMNS = 3 + SLOTS + PAIR_BITS

Asked = tuple[MatchPattern, Signature]


class MatchBatch(NamedTuple):
    """M matches as one graph without edges between them; v vertices in all, which are nodes, then tensors.

    rules: int32 [M].  owners: int32 [v], the match.  operators, tensors: int32 [v], rows of the table, 0 for the other
    sort.  roles: int32 [v].  edges: float32 [e, EDGE_COLUMNS].  senders, receivers: int32 [e].  n_vertices, n_edges:
    int32 [M].
    """

    rules: np.ndarray
    owners: np.ndarray
    operators: np.ndarray
    tensors: np.ndarray
    roles: np.ndarray
    edges: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    n_vertices: np.ndarray
    n_edges: np.ndarray


class _Wiring(NamedTuple):
    """What a pattern says of its edges. pairs: int [p, 2] of tensors; the numbers are vertices."""

    roles: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    edges: np.ndarray
    pairs: np.ndarray


def match_batch(asked: Sequence[Asked], table: SignatureTable) -> MatchBatch:
    """The matches of these patterns with these signatures."""
    parts, first = [], 0
    for number, (pattern, signature) in enumerate(asked):
        wiring, n_nodes = _wiring(pattern), len(pattern.nodes)
        operators, tensors = table.operator_rows(signature[:n_nodes]), table.tensor_rows(signature[n_nodes:])
        n, none = len(signature), [0] * n_nodes
        parts.append((
            np.full(n, number), operators + [0] * len(tensors), none + tensors, wiring.roles, wiring.edges,
            wiring.senders + first, wiring.receivers + first, wiring.pairs + first,
        ))  # fmt: skip
        first += n
    owners, operators, tensors, roles, edges, senders, receivers, pairs = map(np.concatenate, zip(*parts, strict=True))
    n_edges = [len(part[5]) + len(part[7]) for part in parts]
    # By match, as graph networks want them: the edges of its wiring, then its pairs.
    order = np.argsort(np.concatenate([owners[senders], owners[pairs[:, 0]]]), kind="stable")
    return MatchBatch(
        np.array([pattern.xfer_id for pattern, _ in asked], np.int32),
        owners.astype(np.int32), operators.astype(np.int32), tensors.astype(np.int32), roles.astype(np.int32),
        np.concatenate([edges, _pair_edges(table, tensors[pairs])])[order],
        np.concatenate([senders, pairs[:, 0]])[order].astype(np.int32),
        np.concatenate([receivers, pairs[:, 1]])[order].astype(np.int32),
        np.array([len(signature) for _, signature in asked], np.int32), np.array(n_edges, np.int32),
    )  # fmt: skip


def _pair_edges(table: SignatureTable, rows: np.ndarray) -> np.ndarray:
    """Edges between tensors in these rows, int [p, 2]: which of their sizes and contents are equal, where there are
    such."""
    result = np.zeros((len(rows), EDGE_COLUMNS), np.float32)
    result[:, PAIR] = 1.0
    one, other = table.numbers[rows[:, 0], :, None], table.numbers[rows[:, 1], None, :]
    equal = (np.abs(one - other) < SAME) & (one != 0)
    result[:, 3 + SLOTS] = (rows[:, 0] == rows[:, 1]) & (rows[:, 0] > 0)
    result[:, 4 + SLOTS :] = equal.reshape(len(rows), -1)
    return result


@lru_cache(maxsize=65536)
def _wiring(pattern: MatchPattern) -> _Wiring:
    n_nodes, n_tensors = len(pattern.nodes), len(pattern.rank_signatures)
    senders, receivers, edges = [], [], []
    for node, (_, inputs, outputs) in enumerate(pattern.nodes):
        for sort, tensors in ((READS, inputs), (MAKES, outputs)):
            for slot, tensor in enumerate(tensors):
                if tensor != ABSENT:
                    ends = (n_nodes + tensor, node) if sort == READS else (node, n_nodes + tensor)
                    senders.append(ends[0])
                    receivers.append(ends[1])
                    edges.append(_edge(sort, slot))
    tensors = np.arange(n_nodes, n_nodes + n_tensors)
    pairs = np.stack(np.triu_indices(n_tensors, 1), axis=1) + n_nodes
    operands = {tensor: k for k, tensor in reversed(list(enumerate(pattern.operands)))}
    roles = [*range(n_nodes), *[operands.get(tensor - n_nodes, ROLES) for tensor in tensors.tolist()]]
    return _Wiring(
        np.minimum(roles, ROLES - 1), np.array(senders, np.int64), np.array(receivers, np.int64),
        np.array(edges, np.float32).reshape(-1, EDGE_COLUMNS), pairs,
    )  # fmt: skip


def _edge(sort: int, slot: int) -> np.ndarray:
    result = np.zeros(EDGE_COLUMNS, np.float32)
    result[sort] = result[3 + min(slot, SLOTS - 1)] = 1.0
    return result
