"""What a learned latency sees of a graph: the operators that a run carries out, what each is estimated to take, who
reads whom.

Nothing of it depends on names or ids, and it holds no weights, so that it is kept beside what the graph was measured to
take: whatever was measured once can be learned from later, without the graph.
"""

import io
from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np

from rlflow.costs import CostModel, NodeCost
from rlflow.costs.corrected import kind_of
from rlflow.graph.model import ABSENT, Graph, Node

FORMAT = 1  # of the bytes and of what the numbers mean
NUMBERS = 6  # estimated ps, FLOPs, bytes moved, launches, bytes written, bytes of weights read
ESTIMATE, LAUNCHES = 0, 3  # columns of the numbers
MOST_NODES = 50_000  # of all views of a graph: larger ones are not kept


class DamagedGraph(Exception):
    """Bytes that hold no kernel graph; the message is why."""


class KernelGraph(NamedTuple):
    """One graph at one size of its symbols; constants are not part of it.

    kinds: what each of n operators is (`kind_of`).  numbers: float64 [n, NUMBERS].
    senders, receivers: int32 [e]: the second reads the first, each pair once.
    """

    kinds: tuple[str, ...]
    numbers: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray

    @classmethod
    def of(cls, cost: CostModel, graph: Graph) -> Self:
        """graph: without symbols."""
        running = [graph.nodes[node_id] for node_id in graph.order if not graph.nodes[node_id].constant]
        row = {node.id: position for position, node in enumerate(running)}
        edges = [(row[sender], row[node.id]) for node in running for sender in makers(graph, node)]
        numbers = [numbers_of(graph, node, cost.node_cost(graph, node)) for node in running]
        senders, receivers = np.array(edges, np.int32).reshape(-1, 2).T
        kinds = tuple(kind_of(graph, node) for node in running)
        return cls(kinds, np.array(numbers, float).reshape(-1, NUMBERS), senders, receivers)

    @property
    def parts_ps(self) -> dict[str, int]:
        """The estimate by kind of operator, as `rlflow.costs.corrected.parts` has it."""
        result: dict[str, int] = {}
        for kind, ps in zip(self.kinds, self.numbers[:, ESTIMATE].tolist(), strict=True):
            if ps:
                result[kind] = result.get(kind, 0) + round(ps)
        return dict(sorted(result.items()))

    @property
    def launches(self) -> int:
        return round(self.numbers[:, LAUNCHES].sum())


def makers(graph: Graph, node: Node) -> list[int]:
    """Ids of the operators whose results the node reads, each once, ascending; none of constants."""
    ids = {graph.producers[tensor] for tensor in node.reads() if tensor in graph.producers}
    return sorted(node_id for node_id in ids if not graph.nodes[node_id].constant)


def readers(graph: Graph, node: Node) -> list[int]:
    """Ids of those that read what the node gives, each once, ascending."""
    return sorted({reader for tensor in node.outputs for reader in graph.consumers.get(tensor, ())})


def numbers_of(graph: Graph, node: Node, cost: NodeCost) -> tuple[int, ...]:
    """A row of `KernelGraph.numbers`."""
    written = _bytes(graph, (tensor for tensor in node.outputs if tensor != ABSENT))
    weights = _bytes(graph, (tensor for tensor in node.reads() if graph.is_constant(tensor)))
    return (*cost, written, weights)


def _bytes(graph: Graph, tensors: Iterator[int]) -> int:
    return sum(graph.types[tensor].nbytes for tensor in tensors if tensor in graph.types)


# -- as bytes --------------------------------------------------------------------------------------


def to_bytes(views: list[KernelGraph]) -> bytes | None:
    """A graph at every size; None if it is too large to be kept."""
    if sum(len(view.kinds) for view in views) > MOST_NODES:
        return None
    arrays = {"format": np.array(FORMAT), "views": np.array(len(views))}
    for number, view in enumerate(views):
        names, kinds = np.unique(np.array(view.kinds, dtype=str), return_inverse=True)
        arrays |= {f"{number}/names": names, f"{number}/kinds": kinds.astype(np.int32)}
        arrays |= {f"{number}/{part}": getattr(view, part) for part in ("numbers", "senders", "receivers")}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def from_bytes(data: bytes) -> list[KernelGraph]:
    """What `to_bytes` was given. Raises DamagedGraph."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        if arrays["format"] != FORMAT:
            raise ValueError("another format")
        return [_view(arrays, number) for number in range(int(arrays["views"]))]
    except Exception as error:  # zipfile, zlib, OSError, KeyError, ValueError: damaged bytes can fail anywhere
        raise DamagedGraph(str(error)) from error


def _view(arrays: dict[str, np.ndarray], number: int) -> KernelGraph:
    names, kinds, numbers, senders, receivers = (
        arrays[f"{number}/{part}"] for part in ("names", "kinds", "numbers", "senders", "receivers")
    )
    for ends in (senders, receivers):
        if ends.shape != senders.shape or ends.dtype != np.int32 or not _below(ends, len(kinds)):
            raise ValueError("edges lead nowhere")
    if numbers.shape != (len(kinds), NUMBERS) or not np.isfinite(numbers).all() or (numbers < 0).any():
        raise ValueError("numbers are missing")
    if not _below(kinds, len(names)):
        raise ValueError("kinds are missing")
    return KernelGraph(tuple(names[kinds].tolist()), numbers, senders, receivers)


def _below(rows: np.ndarray, count: int) -> bool:
    return rows.ndim == 1 and (not len(rows) or (rows.min() >= 0 and rows.max() < count))
