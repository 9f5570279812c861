"""What ONNX Runtime does with a model on the CPU: which order it runs the nodes in, and where it puts their results.

The graph is the one that a session runs: of a file that is loaded without optimisation, or of the file that an
optimising session saved (`optimized_model_filepath`). Node ids ascend in the order of the file.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rlflow.costs.memory.kernels import alike, overwritten, view_of
from rlflow.graph.model import ABSENT, Graph, Node
from rlflow.graph.types import TensorType

ALIGNMENT = 256  # bytes: every buffer is a multiple of it
FIRST = ("Shape", "Size")  # operators that an order by priority prefers


class Lifetime(NamedTuple):
    """A buffer: from which step of an order to which (that one included), how many bytes."""

    first: int
    last: int
    size: int


class Plan(NamedTuple):
    """Where results are put.

    buffers: by when they are made.  offsets: of each, in bytes.
    peak: bytes of the one block that holds them.  outputs: bytes of the model's outputs, which are put elsewhere.
    """

    buffers: list[Lifetime]
    offsets: list[int]
    peak: int
    outputs: int


def default_order(graph: Graph) -> list[int]:
    """The ids of all nodes as ExecutionOrder.DEFAULT runs them: depth first, backwards from those that nobody reads.

    The order of the file breaks ties: what is last in it is looked at first.
    """
    seen, order = set(), []
    stack = [(node, False) for node in sorted(graph.nodes) if not _successors(graph, node)]
    while stack:
        node, left = stack.pop()
        if left:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(source, False) for source in sorted(_sources(graph, node)) if source not in seen]
    return order


def priority_order(graph: Graph) -> list[int]:
    """The ids of all nodes as ExecutionOrder.PRIORITY_BASED runs them: of what is ready, the first in the file."""

    def rank(node: int) -> tuple[bool, int]:
        return graph.nodes[node].op not in FIRST, node

    waiting = {node: len(_sources(graph, node)) for node in graph.nodes}
    ready = [rank(node) for node, count in waiting.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for other in _successors(graph, node):
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, rank(other))
    return order


def _sources(graph: Graph, node: int) -> set[int]:
    return {graph.producers[tensor] for tensor in graph.nodes[node].reads() if tensor in graph.producers}


def _successors(graph: Graph, node: int) -> set[int]:
    return {other for tensor in graph.nodes[node].outputs for other in graph.consumers.get(tensor, ())}


def plan(graph: Graph, order: Sequence[int]) -> Plan:
    """What a session with its defaults plans for an order of all nodes. A tensor of unknown shape counts as 0 bytes."""
    return _Planner(graph).run([graph.nodes[node] for node in order])


class _Planner:
    """Every result gets a buffer: that of an input, if it is a view of it or may overwrite it; one that was freed, if
    it held a tensor of the same shape and element size, the last freed first; or a new one.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.buffer: dict[int, int] = {}  # tensor → the tensor that its buffer was made for
        self.free: list[int] = []  # by when they became free, the last one first
        self.uses = Counter([*graph.inputs, *graph.constants, *graph.outputs])
        for node in graph.nodes.values():
            self.uses.update([*node.reads(), *(tensor for tensor in node.outputs if tensor != ABSENT)])

    def run(self, nodes: list[Node]) -> Plan:
        graph, outputs, first, last = self.graph, set(self.graph.outputs), {}, {}
        for step, node in enumerate(nodes):
            for slot, tensor in enumerate(node.outputs):
                if tensor != ABSENT and tensor not in outputs and not self.reuse(node, slot, tensor):
                    first[tensor] = last[tensor] = step
            for tensor in node.reads():
                origin = self.origin(tensor)
                if origin in last:
                    last[origin] = step
            for tensor in (*node.reads(), *(tensor for tensor in node.outputs if tensor != ABSENT)):
                self.release(self.origin(tensor))
        buffers = [Lifetime(step, last[tensor], aligned(graph.types.get(tensor))) for tensor, step in first.items()]
        offsets, peak = best_fit(buffers)
        kept = sum(aligned(graph.types.get(tensor)) for tensor in outputs - {*graph.inputs})
        return Plan(buffers, offsets, peak, kept)

    def origin(self, tensor: int) -> int:
        return self.buffer.get(tensor, tensor)

    def reuse(self, node: Node, slot: int, tensor: int) -> bool:
        """Whether the result takes a buffer that is there already; then it has it."""
        given = view_of(node, slot)
        if given is None and (source := overwritten(self.graph, node, slot)) is not None:
            given = source if self.uses[self.origin(source)] == 1 else None
        if given is None and (kind := self.graph.types.get(tensor)) is not None and kind.shape:
            given = next((other for other in self.free if alike(self.graph, other, tensor)), None)
            if given is not None:
                self.free.remove(given)
        if given is None:
            return False
        self.buffer[tensor] = self.origin(given)
        self.uses[self.buffer[tensor]] += self.uses[tensor]
        return True

    def release(self, origin: int) -> None:
        self.uses[origin] -= 1
        if not self.uses[origin]:
            self.free.insert(0, origin)


def aligned(kind: TensorType | None) -> int:
    """The bytes that a tensor takes."""
    return -(-kind.nbytes // ALIGNMENT) * ALIGNMENT if kind is not None else 0


def best_fit(buffers: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Offsets, and the bytes of it all: one buffer after another is put into the narrowest gap that is wide enough.

    buffers: by when they are made. Those of a step are freed after it.
    """
    offsets, there, peak = [], [], 0  # there: (offset, end, last) of the buffers that live, by offset
    for buffer in buffers:
        there = [one for one in there if one[2] >= buffer.first]
        if not buffer.size:
            offsets.append(0)
            continue
        offset, waste, current = max((end for _, end, _ in there), default=0), None, 0
        for start, end, _ in [*there, (peak, peak, 0)]:  # what is left at the end of the block is a gap as well
            if start - current >= buffer.size and (waste is None or start - current - buffer.size < waste):
                offset, waste = current, start - current - buffer.size
            current = end
        offsets.append(offset)
        peak = max(peak, offset + buffer.size)
        there = sorted([*there, (offset, offset + buffer.size, buffer.last)])
    return offsets, peak
