"""Many graphs that share most of their rows of features, as those of an episode do, at a fraction of the room."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlflow.tasks.base import GraphArrays


class Tables(NamedTuple):
    """Every row that occurs, once. nodes: float32 [N, F].  edges: float32 [E, Fe]."""

    nodes: np.ndarray
    edges: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class KeptGraph:
    """Read as a `GraphArrays` (rlflow/tasks/base.py); its `nodes` and `edges` are made when they are asked for.

    ops, senders, receivers, globals: those of GraphArrays.  node_rows: int32 [n], edge_rows: int32 [e], in the tables.
    """

    ops: np.ndarray
    node_rows: np.ndarray
    edge_rows: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    globals: np.ndarray
    tables: Tables

    @property
    def nodes(self) -> np.ndarray:
        return self.tables.nodes[self.node_rows]

    @property
    def edges(self) -> np.ndarray:
        return self.tables.edges[self.edge_rows]

    def __iter__(self) -> Iterator[np.ndarray]:
        """The fields of GraphArrays, in its order."""
        return (getattr(self, name) for name in GraphArrays._fields)


def kept(graphs: Sequence[GraphArrays | KeptGraph]) -> list[KeptGraph]:
    """The same graphs, with tables of their own."""
    node_rows, nodes = _once(graph.nodes for graph in graphs)
    edge_rows, edges = _once(graph.edges for graph in graphs)
    tables = Tables(nodes, edges)
    return [
        KeptGraph(graph.ops, *rows, graph.senders, graph.receivers, graph.globals, tables)
        for graph, *rows in zip(graphs, node_rows, edge_rows, strict=True)
    ]


def _once(arrays: Iterable[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """(of each array the rows that it has in the table, int32; the table of all different rows, in the order met)."""
    numbers: dict[bytes, int] = {}
    rows, width = [], 0
    for array in arrays:
        width = array.shape[1]
        rows.append(np.array([numbers.setdefault(row, len(numbers)) for row in _bytes(array)], np.int32))
    return rows, np.frombuffer(b"".join(numbers), np.float32).reshape(-1, width)


def _bytes(array: np.ndarray) -> Iterator[bytes]:
    data, size = np.ascontiguousarray(array, np.float32).tobytes(), 4 * array.shape[1]
    return (data[at : at + size] for at in range(0, len(data), size))
