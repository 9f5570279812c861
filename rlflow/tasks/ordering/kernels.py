"""Which of ONNX Runtime's kernels on the CPU give a view of their input, or may write over it.

Facts about ONNX Runtime, as its kernels are registered; the benchmark compares what follows from them with sessions.
"""

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
