"""Problems from models: what ONNX Runtime allocates, as nodes and buffers.

A view has no buffer of its own, a result may be written over an input, outputs stay to the end; inputs and weights are
the caller's. What depends on the order beyond that (freed buffers that are taken over as they are, where each is put)
is `runtime.py`'s.
"""

from typing import NamedTuple

import numpy as np

from rlflow.graph.model import ABSENT, Graph, Node
from rlflow.tasks.ordering.kernels import overwritten, view_of
from rlflow.tasks.ordering.problem import Problem


class Model(NamedTuple):
    """problem: in bytes.  nodes: the graph's id of each of its nodes, in the order of the file."""

    problem: Problem
    nodes: list[int]


def problem_of(graph: Graph) -> Model:
    """The problem of a graph that a session runs. All sizes must be numbers (`Graph.at`); unknown ones are 0."""
    nodes = sorted(graph.nodes)
    number = {node: k for k, node in enumerate(nodes)}
    buffers, reads, inplace, edges = _Buffers(graph), set(), set(), set()
    for node in map(graph.nodes.__getitem__, nodes):
        mine = number[node.id]
        edges |= {(number[graph.producers[tensor]], mine) for tensor in node.reads() if tensor in graph.producers}
        reads |= {(mine, buffers.of[tensor]) for tensor in node.reads() if tensor in buffers.of}
        given = buffers.may_overwrite(node)
        if given is not None:
            inplace.add((mine, given))
    return Model(
        Problem(
            np.zeros(len(nodes), np.int64), _pairs(edges), np.array(buffers.size, np.int64),
            np.array([number[node] for node in buffers.maker], np.int64), np.array(buffers.kept, bool), _pairs(reads),
            _pairs(inplace),
        ),
        nodes,
    )  # fmt: skip


class _Buffers:
    """The buffers of a graph's results. of: tensor → the buffer that it is in."""

    def __init__(self, graph: Graph):
        self.graph, self.of = graph, {}
        self.size: list[int] = []
        self.maker: list[int] = []
        self.kept: list[bool] = []
        for node in map(graph.nodes.__getitem__, graph.order):
            for slot, tensor in enumerate(node.outputs):
                if tensor != ABSENT:
                    self.add(node, slot, tensor)

    def add(self, node: Node, slot: int, tensor: int) -> None:
        kept, source = tensor in self.graph.outputs, view_of(node, slot)
        if source is not None and not kept:
            if source in self.of:  # else it is a view of what is the caller's
                self.of[tensor] = self.of[source]
            return
        kind = self.graph.types.get(tensor)
        self.of[tensor] = len(self.size)
        self.size.append(kind.nbytes if kind is not None else 0)
        self.maker.append(node.id)
        self.kept.append(kept)

    def may_overwrite(self, node: Node) -> int | None:
        """The buffer that a node may write what it makes into, if it is the last reader."""
        source = overwritten(self.graph, node, 0)
        if source not in self.of or node.outputs[0] in self.graph.outputs or list(node.reads()).count(source) > 1:
            return None
        return self.of[source]


def _pairs(pairs: set[tuple[int, int]]) -> np.ndarray:
    return np.array(sorted(pairs), np.int64).reshape(-1, 2)
