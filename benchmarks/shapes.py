"""Models of simple shapes and any number of nodes, to see how time grows with the graph.

- *chain*: nodes one after the other, of which some cancel (two Transposes, a Mul by one).
- *fan-concat*, *fan-sum*: many alike branches from one input into one Concat or Sum.
- *grid*: rows of nodes in which each node reads two nodes of the row before.
- *tower*: residual blocks of convolutions, one after the other.

    shapes.MODELS["chain"](1000)
"""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 8  # of the convolutions of a tower
ROW = 16  # nodes in a row of a grid


class _Builder:
    """Nodes and weights of a model with the input x and the output y.

    Args:
      shape: shape of x and y.
    """

    def __init__(self, *shape: int):
        self.shape, self.nodes, self.weights = shape, [], []
        self.rng = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        return self.constant(np.abs(self.rng.standard_normal(shape)).astype(np.float32) * 0.1 + 0.1)

    def constant(self, value) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def node(self, op: str, *inputs: str, **attributes) -> str:
        self.nodes.append(helper.make_node(op, inputs, [f"t{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def model(self, last: str) -> onnx.ModelProto:
        self.nodes.append(helper.make_node("Identity", [last], ["y"]))
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shape) for name in ("x", "y")]
        graph = helper.make_graph(self.nodes, "shape", ends[:1], ends[1:], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def chain(nodes: int) -> onnx.ModelProto:
    """Return a chain of about `nodes` nodes. Of five nodes, three can be removed."""
    made, x = _Builder(8, 8), "x"
    bit, one = made.constant(np.float32(0.001)), made.constant(np.float32(1))
    for _ in range(nodes // 5):
        x = made.node("Transpose", made.node("Mul", made.node("Add", x, bit), one), perm=[1, 0])
        x = made.node("Transpose", made.node("Relu", x), perm=[1, 0])
    return made.model(x)


def fan(nodes: int, join: str) -> onnx.ModelProto:
    """Return a model with about `nodes` nodes in alike branches of two nodes into one node.

    Args:
      nodes: number of nodes.
      join: operator of this node, "Concat" or "Sum".
    """
    made = _Builder(8, 8)
    branches = [
        made.node("Relu", made.node("Mul", "x", made.constant(np.float32(k % 7 / 7)))) for k in range(nodes // 2)
    ]
    whole = made.node(join, *branches, **({"axis": 0} if join == "Concat" else {}))
    mean = made.node("ReduceMean", whole, axes=[0], keepdims=1)
    return made.model(made.node("Add", "x", mean))


def grid(nodes: int) -> onnx.ModelProto:
    """Return a model with rows of ROW nodes, in which each node reads two neighbours of the row before.

    Every fourth row multiplies by one.
    """
    made = _Builder(8, 8)
    one = made.constant(np.float32(1))
    row = [made.node("Mul", "x", made.constant(np.float32(k / ROW))) for k in range(ROW)]
    for number in range(nodes // ROW - 2):
        if number % 4 == 3:
            row = [made.node("Mul", x, one) for x in row]
        else:
            row = [made.node("Add" if number % 2 else "Max", row[k], row[(k + 1) % ROW]) for k in range(ROW)]
    for k in range(1, ROW):
        row[0] = made.node("Add", row[0], row[k])
    return made.model(row[0])


def tower(nodes: int) -> onnx.ModelProto:
    """Return a chain of residual blocks of eight nodes: three convolutions, a normalisation, two ReLUs, two sums."""
    made, x = _Builder(1, CHANNELS, 4, 4), "x"

    def convolution(y: str) -> str:
        return made.node("Conv", y, made.weight(CHANNELS, CHANNELS, 1, 1))

    for _ in range(nodes // 8):
        scales = [made.weight(CHANNELS) for _ in range(4)]
        hidden = made.node("Relu", made.node("BatchNormalization", convolution(x), *scales))
        both = made.node("Add", convolution(hidden), convolution(hidden))
        x = made.node("Relu", made.node("Add", both, x))
    return made.model(x)


MODELS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "chain": chain,
    "fan-concat": lambda nodes: fan(nodes, "Concat"),
    "fan-sum": lambda nodes: fan(nodes, "Sum"),
    "grid": grid,
    "tower": tower,
}
