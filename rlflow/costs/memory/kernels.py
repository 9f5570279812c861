"""Which of ONNX Runtime's kernels on the CPU give a view of their input, or may write over it.

Facts about ONNX Runtime, as its kernels are registered; the benchmark compares what follows from them with sessions.
"""

from rlflow.costs.groups import Groups
from rlflow.costs.layout import Layout, varying
from rlflow.graph.model import ABSENT, Graph, Node
from rlflow.graph.types import itemsize

VIEWS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))

OVERWRITES = frozenset(
    ("Cast", "Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign",
     "Tanh", "ThresholdedRelu")
)  # fmt: skip
"""They may write their first output over their first input; sums and products, which could, are not registered so."""

BLOCKED = "com.microsoft.nchwc"  # the domain of what runs on channels in blocks, as wide as suits the processor
ADD_TO = frozenset((("com.microsoft", "FusedConv"), (BLOCKED, "Conv")))
"""They add to their fourth input, where there is one, and may write their output over it."""

Kernel = tuple[Node, ...]  # the operators that run as one


def kernels_of(graph: Graph) -> list[Kernel]:
    """What a session runs of a graph that it has not optimised yet, each in turn, in the canonical order."""
    groups = Groups(graph, Layout(graph))
    running = (graph.nodes[node] for node in graph.order if not graph.nodes[node].constant)
    return [kernel for node in running if (kernel := groups.of(node))]


def view_of(node: Node, output: int) -> int | None:
    """The tensor that an output (its number) of the node is a view of; None if of none."""
    if node.op in VIEWS and not node.domain and output == 0 and node.inputs[0] != ABSENT:
        return node.inputs[0]
    return None


def overwritten(graph: Graph, node: Node, output: int) -> int | None:
    """The tensor that the node may write that output into; None if there is none."""
    slot = _overwrites(node)
    if slot is None or output != 0 or slot >= len(node.inputs) or node.inputs[slot] == ABSENT:
        return None
    return node.inputs[slot] if alike(graph, node.inputs[slot], node.outputs[output]) else None


def overwritten_by(graph: Graph, kernel: Kernel) -> int | None:
    """The tensor that a kernel may write its first output into; None if there is none.

    A convolution with a sum adds to the other summand.
    """
    if len(kernel) == 1:
        return overwritten(graph, kernel[0], 0)
    if not any(node.op == "Conv" for node in kernel):
        return None
    made = {tensor for node in kernel for tensor in node.outputs}
    sums = [node for node in kernel if node.op in ("Add", "Sum") and len(varying(graph, node)) == 2]
    others = [tensor for node in sums for tensor in node.inputs if tensor not in made]
    return others[0] if others and alike(graph, others[0], kernel[-1].outputs[0]) else None


def _overwrites(node: Node) -> int | None:
    """The number of the input that the operator may write its first output over."""
    if (node.domain, node.op) in ADD_TO:
        return 3
    return 0 if node.op in OVERWRITES and not node.domain else None


def alike(graph: Graph, one: int, other: int) -> bool:
    """Whether ONNX Runtime knows two tensors to need the same memory: shapes are compared, not numbers of elements."""
    first, second = graph.types.get(one), graph.types.get(other)
    if first is None or second is None or first.shape is None:
        return False
    return first.shape == second.shape and itemsize(first.dtype) == itemsize(second.dtype)
