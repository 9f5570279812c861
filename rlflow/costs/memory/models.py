"""Problems from models: what ONNX Runtime allocates, as nodes and buffers.

A view has no buffer of its own, a result may be written over an input, outputs stay to the end; inputs and weights are
the caller's. What depends on the order beyond that (freed buffers that are taken over as they are, where each is put)
is `rlflow.tasks.ordering.runtime`'s.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlflow.costs.memory.kernels import Kernel, overwritten_by, view_of
from rlflow.costs.memory.problem import Problem
from rlflow.graph.model import ABSENT, Graph


class Model(NamedTuple):
    """problem: in bytes.  nodes: the graph's id of each of its nodes, in the order of the file."""

    problem: Problem
    nodes: list[int]


def problem_of(graph: Graph) -> Model:
    """The problem of a graph that a session runs. All sizes must be numbers (`Graph.at`); unknown ones are 0."""
    nodes = sorted(graph.nodes)
    return Model(problem_of_kernels(graph, [(graph.nodes[node],) for node in nodes]), nodes)


def problem_of_kernels(graph: Graph, kernels: Sequence[Kernel]) -> Problem:
    """The problem whose node k is kernel k. What stays inside a kernel needs nothing; as `problem_of` otherwise."""
    number = {node.id: k for k, kernel in enumerate(kernels) for node in kernel}
    buffers, reads, inplace, edges = _Buffers(graph, number), set(), set(), set()
    for mine, kernel in enumerate(kernels):
        read = [tensor for node in kernel for tensor in node.reads() if number.get(graph.producers.get(tensor)) != mine]
        edges |= {(number[graph.producers[tensor]], mine) for tensor in read if graph.producers.get(tensor) in number}
        reads |= {(mine, buffers.of[tensor]) for tensor in read if tensor in buffers.of}
        given = buffers.may_overwrite(kernel, read)
        if given is not None:
            inplace.add((mine, given))
    return Problem(
        np.zeros(len(kernels), np.int64), _pairs(edges), np.array(buffers.size, np.int64),
        np.array([number[node] for node in buffers.maker], np.int64), np.array(buffers.kept, bool), _pairs(reads),
        _pairs(inplace),
    )  # fmt: skip


class _Buffers:
    """The buffers of a graph's results. of: tensor → the buffer that it is in.

    number: node id → its kernel, of those that run.
    """

    def __init__(self, graph: Graph, number: dict[int, int]):
        self.graph, self.number, self.of = graph, number, {}
        self.size: list[int] = []
        self.maker: list[int] = []
        self.kept: list[bool] = []
        for node_id in graph.order:
            if node_id in number:
                node = graph.nodes[node_id]
                for slot, tensor in enumerate(node.outputs):
                    if tensor != ABSENT and not self.is_inside(node_id, tensor):
                        self.add(tensor, node_id, view_of(node, slot))

    def is_inside(self, node_id: int, tensor: int) -> bool:
        """Whether a tensor never leaves the kernel that makes it."""
        readers = self.graph.consumers.get(tensor, ())
        mine = all(self.number.get(reader) == self.number[node_id] for reader in readers)
        return bool(readers) and mine and tensor not in self.graph.outputs

    def add(self, tensor: int, maker: int, source: int | None) -> None:
        """source: of what the tensor is a view; None if of nothing."""
        kept = tensor in self.graph.outputs
        if source is not None and not kept:
            if source in self.of:  # else it is a view of what is the caller's
                self.of[tensor] = self.of[source]
            return
        kind = self.graph.types.get(tensor)
        self.of[tensor] = len(self.size)
        self.size.append(kind.nbytes if kind is not None else 0)
        self.maker.append(maker)
        self.kept.append(kept)

    def may_overwrite(self, kernel: Kernel, read: Sequence[int]) -> int | None:
        """The buffer that a kernel may write what it makes into, if it is the last reader.

        read: the tensors from outside, each as often as it is read.
        """
        source = overwritten_by(self.graph, kernel)
        if source not in self.of or kernel[-1].outputs[0] in self.graph.outputs or read.count(source) > 1:
            return None
        return self.of[source]


def _pairs(pairs: set[tuple[int, int]]) -> np.ndarray:
    return np.array(sorted(pairs), np.int64).reshape(-1, 2)
