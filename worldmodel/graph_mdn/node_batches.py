"""Nodes of dreamt states, and what is around them, as the node network takes them."""

from collections.abc import Sequence

import numpy as np

from rlflow.graph.ir import ABSENT
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.graph_mdn.network import NODE_INPUTS, NODE_OUTPUTS, NodeBatch
from worldmodel.graph_mdn.signature_table import SignatureTable


class NodeRows:
    """Of every node of a grounding, its rows in the table; kept up with the grounding.

    operators: int32 [A]. tensors, slots: of every node, those that it reads and makes, and as what.
    """

    def __init__(self, index: GroundingIndex, table: SignatureTable):
        self.index, self.table = index, table
        self.operators: list[int] = []
        self.tensors: list[list[int]] = []
        self.slots: list[list[int]] = []

    def batch(self, nodes: np.ndarray, senders: np.ndarray, receivers: np.ndarray, makes: np.ndarray) -> NodeBatch:
        """Of these nodes, int [n], and the edges between them, int and bool [e], by number among them."""
        self._grow()
        known = nodes.tolist()
        sizes = [len(self.tensors[node]) for node in known]
        return NodeBatch(
            np.array([self.operators[node] for node in known], np.int32), _flat(self.tensors, known),
            _flat(self.slots, known), np.repeat(np.arange(len(known)), sizes).astype(np.int32),
            senders.astype(np.int32), receivers.astype(np.int32), makes.astype(np.float32),
        )  # fmt: skip

    def _grow(self) -> None:
        grounding = self.index.grounding
        for node in range(len(self.operators), len(grounding.nodes)):
            operator, inputs, outputs = grounding.nodes[node]
            tensors, slots = [], []
            for of, first, last in ((inputs, 0, NODE_INPUTS - 1), (outputs, NODE_INPUTS, NODE_OUTPUTS - 1)):
                for slot, tensor in enumerate(of):
                    if tensor != ABSENT:
                        tensors.append(grounding.signatures[tensor])
                        slots.append(first + min(slot, last))
            self.operators += self.table.operator_rows([operator])
            self.tensors.append(self.table.tensor_rows(tensors))
            self.slots.append(slots)


def _flat(lists: Sequence[Sequence[int]], chosen: Sequence[int]) -> np.ndarray:
    return np.array([value for node in chosen for value in lists[node]], np.int32)


def joined(batches: Sequence[NodeBatch]) -> NodeBatch:
    """Side by side."""
    first, parts = 0, []
    for batch in batches:
        shifted = {name: getattr(batch, name) + first for name in ("tensor_owners", "senders", "receivers")}
        parts.append(batch._replace(**shifted))
        first += len(batch.operators)
    return NodeBatch(*[np.concatenate(field) for field in zip(*parts, strict=True)])
