"""Inputs of the networks: features of operators and tensors by signature, and matches as graphs.

The vertices of a match graph are the nodes and tensors of the match. Edges connect a node with the tensors that it
reads and makes. The pattern determines the vertices and these edges, and the signature determines the features of the
vertices. Most conditions of rules are equalities of sizes. An edge between every two tensors of a match therefore shows
which of their sizes and small contents are equal.

Sizes enter as logarithms. Sines and cosines of increasing frequency separate sizes that are close on this logarithmic
scale (Tancik et al. 2020). The position of a match in its graph is not an input.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np

from rlflow.collect.edits import OPERATOR_COLUMNS, SignatureFeatures
from rlflow.env.features import (
    AXES,
    CONTENT,
    ELEMENTS,
    INTEGER_ATTRIBUTES,
    LENGTH,
    LIST_ATTRIBUTES,
    SIZE,
    SIZES,
    TENSOR_FEATURES,
)
from rlflow.graph.ir import ABSENT
from worldmodel.edits.learned_rules import MatchPattern, Signature
from worldmodel.train_and_load import checked_array

NUMBERS = AXES + ELEMENTS  # numbers of a tensor: the sizes of its axes, and the elements of a small content
WAVES = 6  # number of frequencies of the sines and cosines
ATTRIBUTES = sum(LIST_ATTRIBUTES.values()) + len(
    INTEGER_ATTRIBUTES
)  # number of integers in the attributes of an operator; these are its first features


class SignatureTable:
    """The features of all O operators and S tensors that were observed, one row per signature.

    Row 0 is all zeros and stands for unknown signatures. The table grows with observations, and a row never changes.

    Attributes:
      operators: float32 [O, OPERATOR_COLUMNS], features of operators; column 0 is the operator id.
      tensors: float32 [S, TENSOR_FEATURES], features of tensors.
      numbers: float32 [S, NUMBERS], the sizes and small contents of tensors as ±log(1 + |n|); 0 for a missing number.
      attributes: float32 [O, ATTRIBUTES], the integer attributes of operators in the same form.
      kinds: int [S], equal for tensors that differ only in their content.
      operator_waves: float32 [O, 2 · WAVES · (OPERATOR_COLUMNS − 1)], sines and cosines of `operators`, but column 0.
      tensor_waves: float32 [S, 2 · WAVES · TENSOR_FEATURES], sines and cosines of `tensors`.
      shown: the arrays as TensorFlow tensors, which `network.Table.of` caches here; None before its first call.
    """

    def __init__(self):
        self._rows: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.operators = np.zeros((1, OPERATOR_COLUMNS), np.float32)
        self.tensors = np.zeros((1, TENSOR_FEATURES), np.float32)
        self.numbers = np.zeros((1, NUMBERS), np.float32)
        self.attributes = np.zeros((1, ATTRIBUTES), np.float32)
        self.kinds = np.zeros(1, np.int64)
        self.operator_waves, self.tensor_waves = _waves(self.operators[:, 1:]), _waves(self.tensors)
        self.shown = None

    def learn(self, observed: SignatureFeatures) -> None:
        """Add a row for each observed signature that the table does not contain."""
        operators, tensors = self._rows
        self.operators = _appended(operators, self.operators, observed.operators, observed.operator_features)
        self.tensors = _appended(tensors, self.tensors, observed.tensors, observed.tensor_features)
        if len(self.tensors) > len(self.numbers):
            new = self.tensors[len(self.numbers) :]
            self.numbers = np.concatenate([self.numbers, _numbers(new)])
            self.tensor_waves = np.concatenate([self.tensor_waves, _waves(new)])
            self.kinds = np.unique(self.tensors[:, :LENGTH], axis=0, return_inverse=True)[1].reshape(-1)
        if len(self.operators) > len(self.attributes):
            new = self.operators[len(self.attributes) :, 1:]
            self.attributes = np.concatenate([self.attributes, _unshown(new[:, :ATTRIBUTES])])
            self.operator_waves = np.concatenate([self.operator_waves, _waves(new)])

    def operator_rows(self, signatures: Iterable[int]) -> list[int]:
        return [self._rows[0].get(signature, 0) for signature in signatures]

    def tensor_rows(self, signatures: Iterable[int]) -> list[int]:
        return [self._rows[1].get(signature, 0) for signature in signatures]

    def elements(self, signatures: Iterable[int]) -> np.ndarray:
        """Return the number of elements of tensors with these signatures, float64 [k]; 0 if unknown."""
        return np.rint(np.expm1(self.tensors[self.tensor_rows(signatures), SIZE].astype(np.float64)))

    def observed(self) -> SignatureFeatures:
        """Return the signatures and features of all rows but row 0, in ascending order of the signatures."""
        (operators, of_operators), (tensors, of_tensors) = (_ascending(rows) for rows in self._rows)
        return SignatureFeatures(operators, self.operators[of_operators], tensors, self.tensors[of_tensors])

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> Self:
        """Restore the table from the arrays of `observed`.

        Raises:
          KeyError, ValueError: the arrays are damaged.
        """
        result, saved = cls(), []
        for name, width in (("operators", OPERATOR_COLUMNS), ("tensors", TENSOR_FEATURES)):
            signatures = checked_array(arrays, name, np.int64, None)
            saved += [signatures, checked_array(arrays, f"{name[:-1]}_features", np.float32, len(signatures), width)]
        result.learn(SignatureFeatures(*saved))
        return result


def _numbers(tensors: np.ndarray) -> np.ndarray:
    return np.concatenate([tensors[:, SIZES], _unshown(tensors[:, CONTENT])], axis=1)


def _unshown(numbers: np.ndarray) -> np.ndarray:
    """Convert the result of `rlflow.env.features.shown`, ±(1 + log(1 + |n|)), to ±log(1 + |n|); 0 stays 0."""
    return np.sign(numbers) * np.maximum(np.abs(numbers) - 1, 0)


def _waves(features: np.ndarray) -> np.ndarray:
    """Return sines and cosines of features [n, F] at WAVES frequencies, float32 [n, 2 · WAVES · F]."""
    angles = features[..., None] * (np.pi / 4 * 2.0 ** np.arange(WAVES)).astype(np.float32)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(features), -1)


def _appended(rows: dict[int, int], table: np.ndarray, signatures: np.ndarray, features: np.ndarray) -> np.ndarray:
    new = []
    for k, signature in enumerate(signatures.tolist()):
        if signature not in rows:
            rows[signature] = len(rows) + 1
            new.append(k)
    return np.concatenate([table, features[new]]) if new else table


def _ascending(rows: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    signatures = np.array(sorted(rows), np.int64)
    return signatures, np.array([rows[signature] for signature in signatures.tolist()], np.int64)


ROLES = 24  # number of embeddings for the position of a node or operand in a match; later positions share the last
SLOTS = 8  # number of features for the position of an input or output of a node; later positions share the last
READS, MAKES, PAIR = range(3)  # kinds of edges: from a tensor to its reader, from a node to its output, between tensors
PAIR_BITS = 1 + NUMBERS**2  # features of PAIR edges: whether the signatures are equal, and which numbers are equal
SAME = 1e-5  # difference of logarithms below which two numbers count as equal
EDGE_COLUMNS = 3 + SLOTS + PAIR_BITS  # features of an edge: its kind, its position and its PAIR_BITS

Asked = tuple[MatchPattern, Signature]  # a match as the networks see it: everything that a prediction depends on


class MatchBatch(NamedTuple):
    """M matches as one graph without edges between matches.

    The graph has v vertices: for each match in turn, the nodes of the match and then its tensors.

    Attributes:
      rules: int32 [M], the rule of each match.
      owners: int32 [v], the index of the match that each vertex belongs to.
      operators: int32 [v], the operator of a node as a row of the table; 0 for tensors.
      tensors: int32 [v], a tensor as a row of the table; 0 for nodes.
      roles: int32 [v], the position of a node in its match, or of a tensor among the operands; ROLES − 1 for others.
      edges: float32 [e, EDGE_COLUMNS], the features of edges.
      senders, receivers: int32 [e], vertices.
      n_vertices, n_edges: int32 [M], the numbers of vertices and edges of each match.
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
    """The vertices and edges of a pattern, as in `MatchBatch`; `pairs`, int [p, 2], are all pairs of its tensors.

    `senders`, `receivers` and `edges` describe the edges between a node and a tensor, and no other edges.
    """

    roles: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    edges: np.ndarray
    pairs: np.ndarray


class MatchGraph(NamedTuple):
    """One match as a graph: the fields of `MatchBatch` that describe v vertices and e edges. `edges` are uint8."""

    rule: int
    operators: np.ndarray
    tensors: np.ndarray
    roles: np.ndarray
    edges: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray

    @classmethod
    def of(cls, asked: Asked, table: SignatureTable) -> Self:
        """Return a match as a graph.

        Args:
          asked: the pattern and signature of the match.
          table: the features of signatures.
        """
        pattern, signature = asked
        wiring, n_nodes = _wiring(pattern), len(pattern.nodes)
        operators, tensors = np.zeros((2, len(signature)), np.int32)
        operators[:n_nodes], tensors[n_nodes:] = (
            table.operator_rows(signature[:n_nodes]), table.tensor_rows(signature[n_nodes:])
        )  # fmt: skip
        senders, receivers = (
            np.concatenate([ends, wiring.pairs[:, k]]) for k, ends in enumerate((wiring.senders, wiring.receivers))
        )  # fmt: skip
        edges = np.concatenate([wiring.edges, _pair_edges(table, tensors[wiring.pairs])])
        return cls(pattern.xfer_id, operators, tensors, wiring.roles, edges, senders, receivers)


def match_batch(graphs: Sequence[MatchGraph]) -> MatchBatch:
    """Return the graphs of one or more matches as a batch."""
    n_vertices = np.array([len(graph.roles) for graph in graphs], np.int32)
    n_edges = np.array([len(graph.senders) for graph in graphs], np.int32)
    first = np.repeat(np.cumsum(n_vertices, dtype=np.int32) - n_vertices, n_edges)
    rules, operators, tensors, roles, edges, senders, receivers = zip(*graphs, strict=True)
    return MatchBatch(
        np.array(rules, np.int32), np.repeat(np.arange(len(graphs), dtype=np.int32), n_vertices),
        np.concatenate(operators), np.concatenate(tensors), np.concatenate(roles),
        np.concatenate(edges).astype(np.float32), np.concatenate(senders) + first, np.concatenate(receivers) + first,
        n_vertices, n_edges,
    )  # fmt: skip


def _pair_edges(table: SignatureTable, rows: np.ndarray) -> np.ndarray:
    """Return the features of edges between pairs of tensors, uint8 [p, EDGE_COLUMNS].

    They show which sizes and contents of the two tensors are equal.

    Args:
      table: the features of signatures.
      rows: int [p, 2], the two tensors of each pair as rows of the table.
    """
    result = np.zeros((len(rows), EDGE_COLUMNS), np.uint8)
    result[:, PAIR] = 1
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
        np.minimum(roles, ROLES - 1).astype(np.int32), np.array(senders, np.int32), np.array(receivers, np.int32),
        np.array(edges, np.uint8).reshape(-1, EDGE_COLUMNS), pairs.astype(np.int32),
    )  # fmt: skip


def _edge(sort: int, slot: int) -> np.ndarray:
    result = np.zeros(EDGE_COLUMNS, np.uint8)
    result[sort] = result[3 + min(slot, SLOTS - 1)] = 1
    return result
