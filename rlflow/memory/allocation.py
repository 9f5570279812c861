"""Compute the memory that ONNX Runtime allocates when it runs a model on the CPU.

Memory is counted in two ways. `problem_of` makes the ordering problem of a model; the peak of an order is the memory of
an ideal allocator, and best orders and proofs refer to this peak. `plan` simulates to the byte where a session with
ONNX Runtime's defaults places results. Such a session reuses a freed buffer only for a result of the same shape and
element size, and places each buffer in the narrowest gap that fits. The command `memory` reports both counts.

VIEWS lists the kernels that return a view of their input. OVERWRITES and ADD_TO list the kernels that may write over an
input, as ONNX Runtime registers them. `default_order` and `priority_order` give the orders in which sessions run the
nodes. These functions and `plan` need the graph that a session runs: the graph of a file that sessions load without
optimisation, or of the file that an optimising session saved. Node ids ascend in the order of the file.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlflow.costs.groups import Groups
from rlflow.costs.kernel_layout import Layout, varying
from rlflow.graph.ir import ABSENT, Graph, Node, TensorType, itemsize
from rlflow.memory.problem import Problem

VIEWS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))

# These operators may overwrite their first input with their first output. Sums and products are missing, because ONNX
# Runtime does not let them overwrite an input.
OVERWRITES = frozenset(
    ("Cast", "Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "ScatterElements", "Selu",
     "Shrink", "Sigmoid", "Softmax", "Softplus", "Softsign", "Tanh", "ThresholdedRelu", "Trilu")
)  # fmt: skip

BLOCKED = "com.microsoft.nchwc"  # domain of operators on blocked channels; the block width depends on the processor
# These operators add to their fourth input, if it is given, and may overwrite it with their output.
ADD_TO = frozenset((("com.microsoft", "FusedConv"), (BLOCKED, "Conv")))

Kernel = tuple[Node, ...]  # the nodes that ONNX Runtime runs as one kernel


def kernels_of(graph: Graph) -> list[Kernel]:
    """Return the kernels that a session with optimisations would make of a graph, in the canonical order."""
    groups = Groups(graph, Layout(graph))
    running = (graph.nodes[node] for node in graph.order if not graph.nodes[node].constant)
    return [kernel for node in running if (kernel := groups.of(node))]


def view_of(node: Node, output: int) -> int | None:
    """Return the input tensor whose memory an output of the node shares as a view; None if the output is not a view.

    Args:
      node: the node.
      output: the index of the output.
    """
    if node.op in VIEWS and not node.domain and output == 0 and node.inputs[0] != ABSENT:
        return node.inputs[0]
    return None


def overwritten(graph: Graph, node: Node, output: int) -> int | None:
    """Return the input tensor over which the node may write an output; None if the output needs memory of its own.

    Args:
      graph: the graph that holds the node.
      node: the node.
      output: the index of the output.
    """
    if (node.domain, node.op) in ADD_TO:
        slot = 3
    elif node.op in OVERWRITES and not node.domain:
        slot = 0
    else:
        return None
    if output != 0 or slot >= len(node.inputs) or node.inputs[slot] == ABSENT:
        return None
    return node.inputs[slot] if need_same_memory(graph, node.inputs[slot], node.outputs[output]) else None


def overwritten_by(graph: Graph, kernel: Kernel) -> int | None:
    """Return the tensor over which a kernel may write its first output, or None.

    A kernel of several nodes with a convolution and a sum writes over the summand that it does not compute itself.

    Args:
      graph: the graph that holds the kernel.
      kernel: the nodes of the kernel.
    """
    if len(kernel) == 1:
        return overwritten(graph, kernel[0], 0)
    if not any(node.op == "Conv" for node in kernel):
        return None
    made = {tensor for node in kernel for tensor in node.outputs}
    sums = [node for node in kernel if node.op in ("Add", "Sum") and len(varying(graph, node)) == 2]
    others = [tensor for node in sums for tensor in node.inputs if tensor not in made]
    return others[0] if others and need_same_memory(graph, others[0], kernel[-1].outputs[0]) else None


def need_same_memory(graph: Graph, one: int, other: int) -> bool:
    """Return whether ONNX Runtime can use the buffer of one tensor for the other: shapes and element sizes are equal.

    Tensors of unknown type or shape, and tensors with equal sizes in bytes but different shapes, give False.

    Args:
      graph: the graph that holds the tensors.
      one, other: ids of the tensors.
    """
    first, second = graph.types.get(one), graph.types.get(other)
    if first is None or second is None or first.shape is None:
        return False
    return first.shape == second.shape and itemsize(first.dtype) == itemsize(second.dtype)


def problem_of(graph: Graph) -> tuple[Problem, list[int]]:
    """Return the ordering problem of a graph, in which each node counts as one kernel.

    Args:
      graph: a graph without symbolic sizes (see `Graph.at`); tensors of unknown size count as 0 bytes.

    Returns:
      (the problem in bytes, the ids of all nodes in ascending order). Node k of the problem has the k-th of these ids.
    """
    nodes = sorted(graph.nodes)
    return problem_of_kernels(graph, [(graph.nodes[node],) for node in nodes]), nodes


def problem_of_kernels(graph: Graph, kernels: Sequence[Kernel]) -> Problem:
    """Return the ordering problem in bytes whose node k is kernel k. Tensors inside a kernel need no memory.

    Args:
      graph: a graph without symbolic sizes; tensors of unknown size count as 0 bytes.
      kernels: the nodes of each kernel.
    """
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
    """The buffers that hold the results of a graph's kernels.

    Attributes:
      number: id of a node → index of its kernel.
      of: id of a tensor → index of its buffer; views share the buffer of their source.
      size: the bytes of each buffer.
      maker: the id of the node that makes each buffer.
      kept: for each buffer True if it holds an output of the graph.
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
        """Return whether a tensor has readers, all in the kernel that makes it, and is not an output of the graph.

        Such a tensor needs no buffer. A tensor that no node reads is not inside.

        Args:
          node_id: the node that makes the tensor.
          tensor: the id of the tensor.
        """
        readers = self.graph.consumers.get(tensor, ())
        mine = all(self.number.get(reader) == self.number[node_id] for reader in readers)
        return bool(readers) and mine and tensor not in self.graph.outputs

    def add(self, tensor: int, maker: int, source: int | None) -> None:
        """Assign a tensor to the buffer of its source if it is a view, otherwise to a new buffer.

        Args:
          tensor: the id of the tensor.
          maker: the id of the node that makes the tensor.
          source: the source of the view, or None. An output of the graph always gets a buffer of its own.
        """
        kept = tensor in self.graph.outputs
        if source is not None and not kept:
            if source in self.of:  # Otherwise it is a view of the caller's memory.
                self.of[tensor] = self.of[source]
            return
        kind = self.graph.types.get(tensor)
        self.of[tensor] = len(self.size)
        self.size.append(kind.nbytes if kind is not None else 0)
        self.maker.append(maker)
        self.kept.append(kept)

    def may_overwrite(self, kernel: Kernel, read: Sequence[int]) -> int | None:
        """Return the index of the buffer over which a kernel may write its result, or None.

        The kernel may do so only in an order in which it is the last reader of the buffer. The order is not known here.

        Args:
          kernel: the nodes of the kernel.
          read: the tensors that the kernel reads and does not make itself; a tensor that is read twice occurs twice.
        """
        source = overwritten_by(self.graph, kernel)
        if source not in self.of or kernel[-1].outputs[0] in self.graph.outputs or read.count(source) > 1:
            return None
        return self.of[source]


def _pairs(pairs: set[tuple[int, int]]) -> np.ndarray:
    return np.array(sorted(pairs), np.int64).reshape(-1, 2)


ALIGNMENT = 256  # bytes; ONNX Runtime rounds the size of every buffer up to a multiple of it
RUN_FIRST = ("Shape", "Size")  # operators that `priority_order` runs as soon as they are ready


class Lifetime(NamedTuple):
    """The first and the last step (inclusive) at which a buffer exists, and its size in bytes."""

    first: int
    last: int
    size: int


def default_order(graph: Graph) -> list[int]:
    """Return all node ids in the order of ONNX Runtime's ExecutionOrder.DEFAULT, a depth-first post-order.

    The search starts at the nodes whose results no node reads, and goes from a node to the nodes whose results it
    reads. Of several nodes, the search visits the last one in the file first.
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
    """Return all node ids in the order of ONNX Runtime's ExecutionOrder.PRIORITY_BASED.

    Of the ready nodes, the first one in the file runs next; nodes of RUN_FIRST run before all others.
    """

    def rank(node: int) -> tuple[bool, int]:
        return graph.nodes[node].op not in RUN_FIRST, node

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


def plan(graph: Graph, order: Sequence[int]) -> tuple[int, int]:
    """Simulate the memory layout that a session with ONNX Runtime's defaults plans.

    Args:
      graph: the graph that the session runs; a tensor of unknown shape counts as 0 bytes.
      order: the ids of all nodes in the order in which they run.

    Returns:
      (the size of the one block that holds all buffers, the size of the model's outputs, which lie outside the block),
      in bytes.
    """
    return _Planner(graph).run([graph.nodes[node] for node in order])


class _Planner:
    """A simulation of ONNX Runtime's memory planner.

    A result takes the buffer of an input if the result is a view of the input. It also does so if its node may write
    over the input and no other use of the buffer remains. Otherwise a result that is not a scalar takes the buffer that
    was freed last, among the free buffers made for the same shape and element size. Without such a buffer, the result
    takes a new buffer.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.buffer: dict[int, int] = {}  # tensor → the tensor for which its buffer was made
        self.free: list[int] = []  # the buffer freed last comes first
        # Tensor for which a buffer was made → how often nodes will still make or read a result in this buffer. Inputs,
        # constants and outputs of the graph have one more use that never ends, so their buffers are never freed.
        self.uses = Counter([*graph.inputs, *graph.constants, *graph.outputs])
        for node in graph.nodes.values():
            self.uses.update([*node.reads(), *(tensor for tensor in node.outputs if tensor != ABSENT)])

    def run(self, nodes: list[Node]) -> tuple[int, int]:
        """Return the result of `plan` for the nodes in the order in which they run."""
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
        _, block = best_fit(buffers)
        return block, sum(aligned(graph.types.get(tensor)) for tensor in outputs - {*graph.inputs})

    def origin(self, tensor: int) -> int:
        """Return the id of the tensor for which the buffer of a tensor was made."""
        return self.buffer.get(tensor, tensor)

    def reuse(self, node: Node, slot: int, tensor: int) -> bool:
        """Assign a result to an existing buffer if possible, and return whether it was possible.

        Args:
          node: the node that makes the result.
          slot: the index of the result among the node's outputs.
          tensor: the id of the result.
        """
        given = view_of(node, slot)
        if given is None and (source := overwritten(self.graph, node, slot)) is not None:
            given = source if self.uses[self.origin(source)] == 1 else None
        if given is None and (kind := self.graph.types.get(tensor)) is not None and kind.shape:
            given = next((other for other in self.free if need_same_memory(self.graph, other, tensor)), None)
            if given is not None:
                self.free.remove(given)
        if given is None:
            return False
        self.buffer[tensor] = self.origin(given)
        self.uses[self.buffer[tensor]] += self.uses[tensor]
        return True

    def release(self, origin: int) -> None:
        """Reduce the number of open uses of a buffer by one, and free the buffer after its last use.

        Args:
          origin: the tensor for which the buffer was made.
        """
        self.uses[origin] -= 1
        if not self.uses[origin]:
            self.free.insert(0, origin)


def aligned(kind: TensorType | None) -> int:
    """Return the size of a tensor in bytes, rounded up to a multiple of ALIGNMENT; 0 for an unknown type."""
    return -(-kind.nbytes // ALIGNMENT) * ALIGNMENT if kind is not None else 0


def best_fit(buffers: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Place buffers in one block: each buffer goes into the narrowest gap that is wide enough, or to the end.

    Args:
      buffers: the buffers in the order in which they are made. A buffer is freed after its last step.

    Returns:
      (the offset of each buffer, the size of the block), in bytes.
    """
    offsets, there, peak = [], [], 0  # there: (offset, end, last step) of live buffers, sorted by offset
    for buffer in buffers:
        there = [one for one in there if one[2] >= buffer.first]
        if not buffer.size:
            offsets.append(0)
            continue
        offset, waste, current = max((end for _, end, _ in there), default=0), None, 0
        for start, end, _ in [*there, (peak, peak, 0)]:  # the end of the block counts as a gap, too
            if start - current >= buffer.size and (waste is None or start - current - buffer.size < waste):
                offset, waste = current, start - current - buffer.size
            current = end
        offsets.append(offset)
        peak = max(peak, offset + buffer.size)
        there = sorted([*there, (offset, offset + buffer.size, buffer.last)])
    return offsets, peak
