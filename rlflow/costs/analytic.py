"""The analytic cost: a roofline over FLOPs, bytes and launches.

    runtime = max(FLOPs / peak, bytes / bandwidth) + launches × overhead

A multiplication and an addition count 2 FLOPs. An element-wise operator counts 1 FLOP per element of its output, a
reduction 1 FLOP per element of its input; `flops` and PER_INPUT list the exceptions. Bytes are the sizes of all inputs
and outputs, weights included. An operator that selects elements (PICKS) reads at most as many bytes of its first input
as it writes. An operator that moves no data (VIEWS) costs nothing.

`AnalyticCost` (`cost.name=analytic`) has fixed constants and is the same on every machine. `RooflineCost`
(`cost.name=roofline`) has the constants of this machine. `calibrate` measures these constants within seconds and stores
them in the timing database. It times three small models in ONNX Runtime: a matrix product, a sum of tensors larger than
most caches, and a chain of operators on one number.
"""

from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rlflow.common.spending import KERNELS, spent_on
from rlflow.costs import FREE, NodeCost
from rlflow.costs.database import TimingDatabase
from rlflow.costs.kernel_models import Timed, empty_model, float_model
from rlflow.costs.signatures import signature
from rlflow.costs.target import Target
from rlflow.costs.timing import Timing, time_model
from rlflow.graph.ir import ABSENT, Graph, Node, TensorType


class Machine(NamedTuple):
    """The constants of the roofline: picoseconds per FLOP, per byte and per kernel launch.

    The default values describe a small server: two AVX-512 cores that reach 100 GFLOP/s and 20 GB/s in ONNX Runtime,
    which takes 1 µs to start an operator. They are integers, so that the analytic cost is exact.
    """

    flop: float = 10
    byte: float = 50
    launch: int = 1_000_000


SMALL_SERVER = Machine()
LEAST = 1e-3  # picoseconds per FLOP or byte that a measurement of less stands for: 1 PFLOP/s or 1 PB/s

VIEWS = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"))  # they move no data
PICKS = frozenset(("Gather", "GatherElements", "GatherND", "Slice", "Shape", "Size", "ConstantOfShape"))
MOVES = PICKS | frozenset((
    "Concat", "Split", "Transpose", "Pad", "Tile", "Expand", "Cast", "Constant", "DepthToSpace", "SpaceToDepth",
    "ScatterElements", "ScatterND", "Range", "EyeLike",
))  # fmt: skip

# Operator → FLOPs per element of its first input. The operators whose names begin with Reduce also count 1.
PER_INPUT = {
    "Softmax": 5, "LogSoftmax": 5, "LayerNormalization": 8, "InstanceNormalization": 8, "GroupNormalization": 8,
    "RMSNormalization": 5, "SkipLayerNormalization": 9, "MeanVarianceNormalization": 8, "BatchNormalization": 2,
    "LpNormalization": 3, "LRN": 6,
    "GlobalAveragePool": 1, "GlobalMaxPool": 1, "GlobalLpPool": 2, "ArgMax": 1, "ArgMin": 1, "TopK": 1, "CumSum": 1,
}  # fmt: skip


class AnalyticCost:
    """A roofline with given constants, which needs no measurement and covers every operator.

    If a tensor of an operator has an unknown shape, the operator costs only its launch.
    """

    reach, passes = 0, None

    def __init__(self, machine: Machine = SMALL_SERVER):
        self.machine = machine
        self._memo: dict[tuple, NodeCost] = {}

    @classmethod
    def open(cls, threads: int = 1, database=None) -> "AnalyticCost":
        """Return the cost model with its default constants; both arguments are ignored."""
        return cls()

    def node_cost(self, graph: Graph, node: Node) -> NodeCost:
        if node.constant:
            return FREE
        key = signature(graph, node)
        cost = self._memo.get(key)
        if cost is None:
            cost = self._memo[key] = self._roofline(graph, node)
        return cost

    def _roofline(self, graph: Graph, node: Node) -> NodeCost:
        if node.domain == "" and node.op in VIEWS:
            return FREE
        inputs = [graph.types.get(t) if t != ABSENT else TensorType(0, (0,)) for t in node.inputs]
        outputs = [graph.types.get(t) for t in node.outputs if t != ABSENT]
        captured = [graph.types.get(t) for _, t in node.captured]
        if any(kind is None or kind.shape is None for kind in (*inputs, *outputs, *captured)):
            return NodeCost(self.machine.launch, 0, 0, 1)
        work = flops(node, inputs, outputs)
        written = sum(kind.nbytes for kind in outputs)
        read = sum(kind.nbytes for kind in (*inputs, *captured))
        if node.op in PICKS:
            read = min(inputs[0].nbytes, written) + sum(kind.nbytes for kind in (*inputs[1:], *captured))
        moved = read + written
        runtime = round(max(work * self.machine.flop, moved * self.machine.byte)) + self.machine.launch
        return NodeCost(runtime, work, moved, 1)


def flops(node: Node, inputs: list[TensorType], outputs: list[TensorType]) -> int:
    """Return the floating-point operations of one run of an operator.

    Args:
      node: the operator.
      inputs: types of the operator's inputs; an absent input has shape (0,).
      outputs: types of the operator's outputs.
    """
    op, out = node.op, outputs[0].size if outputs else 0
    shapes = [kind.shape for kind in inputs]
    if node.domain not in ("", "com.microsoft"):  # Names of unknown domains say nothing about the work.
        return out
    if op in ("Conv", "FusedConv", "ConvInteger", "QLinearConv"):
        weight = 3 if op == "QLinearConv" else 1  # [M, C / group, *kernel]
        bias = {"Conv": 2, "FusedConv": 2, "QLinearConv": 8}.get(op, len(inputs))
        return 2 * out * prod(shapes[weight][1:]) + (out if _given(inputs, bias) else 0)
    if op == "ConvTranspose":  # weight [C, M / group, *kernel]
        return 2 * inputs[0].size * prod(shapes[1][1:]) + (out if _given(inputs, 2) else 0)
    if op in ("MatMul", "FusedMatMul", "MatMulInteger", "QLinearMatMul"):
        summed = shapes[0][-2] if node.attribute("transA", 0) and len(shapes[0]) > 1 else shapes[0][-1]
        return 2 * out * summed
    if op in ("Gemm", "FusedGemm"):
        return 2 * out * shapes[0][0 if node.attribute("transA", 0) else 1] + (out if _given(inputs, 2) else 0)
    if op in ("LSTM", "GRU", "RNN"):  # x [time, batch, in]; weights [directions, gates × hidden, in or hidden]
        return 2 * prod(shapes[0][:2]) * (inputs[1].size + inputs[2].size)
    if op in ("MultiHeadAttention", "Attention") and len(shapes) >= 3 and all(len(shape) == 3 for shape in shapes[:3]):
        heads = node.attribute("num_heads", 0) or node.attribute("q_num_heads", 1)
        (batch, length, width), (_, keys, _) = shapes[:2]
        return batch * length * keys * (2 * width + 5 * heads) + 2 * out * keys
    if op == "Einsum":
        return _einsum_flops(node.attribute("equation", b""), shapes, out)
    if op in ("MaxPool", "AveragePool", "LpPool"):
        return out * prod(node.attribute("kernel_shape", ()))
    if op.startswith("Reduce"):
        return inputs[0].size
    if op in PER_INPUT:
        return PER_INPUT[op] * inputs[0].size
    if op in ("Sum", "Mean", "Max", "Min"):
        return out * max(len(inputs) - 1, 1)
    return 0 if op in MOVES else out


def _given(inputs: list[TensorType], slot: int) -> bool:
    return slot < len(inputs) and inputs[slot].size > 0


def _einsum_flops(equation: bytes, shapes: list[tuple[int, ...]], out: int) -> int:
    """Return the FLOPs of an Einsum: 2 · the product of the sizes of all indices.

    If the equation contains `...`, the result is the size of the output.

    Args:
      equation: the attribute `equation`.
      shapes: shapes of the inputs.
      out: number of elements of the output.
    """
    terms = equation.decode().replace(" ", "").split("->")[0].split(",")
    if "..." in equation.decode() or len(terms) != len(shapes):
        return out
    labelled = zip("".join(terms), (size for shape in shapes for size in shape), strict=True)
    return 2 * prod(dict(labelled).values())


SIDE = 512  # rows and columns of each matrix: a product has 2 · 512³ FLOPs
ELEMENTS = 4 * 2**20  # elements of each tensor of the sum: three tensors of 16 MB, more than most caches hold
CHAIN = 200  # number of operators in the chain
BUDGET_MS = 100.0  # time for the runs of each model


def calibrate(database: TimingDatabase, threads: int) -> Machine:
    """Measure the constants of the roofline on this machine and store them; replace stored constants.

    Args:
      database: database in which the constants are stored.
      threads: threads of ONNX Runtime.

    Raises:
      RLFlowError: the database belongs to another machine.
    """
    database.check_here()
    with spent_on(KERNELS), database.lock():
        start = time_model(Timed(empty_model()), threads, BUDGET_MS).median
        product = time_model(Timed(_product()), threads, BUDGET_MS)
        total = time_model(Timed(additions(1, ELEMENTS)), threads, BUDGET_MS)
        chain = time_model(Timed(_chain(), optimise=False), threads, BUDGET_MS)
    picoseconds = {
        "flop": _scaled(product, start, 2 * SIDE**3),
        "byte": _scaled(total, start, 3 * 4 * ELEMENTS),
        "launch": _scaled(chain, start, CHAIN),
    }
    for name, timing in picoseconds.items():
        database.replace(f"roofline: {name}", threads, timing)
    return _machine(picoseconds)


def calibrated(database: TimingDatabase, threads: int) -> Machine | None:
    """Return the constants that `calibrate` stored for a number of threads, or None if they are not stored."""
    result = {name: database.look_up(f"roofline: {name}", threads) for name in Machine._fields}
    return _machine(result) if all(result.values()) else None


def _machine(timings: dict[str, Timing]) -> Machine:
    flop, byte, launch = (1000 * timings[name].median for name in Machine._fields)
    return Machine(max(flop, LEAST), max(byte, LEAST), max(round(launch), 1))


def _scaled(timing: Timing, start: float, units: int) -> Timing:
    """Return the timing of a model per unit of its work, in nanoseconds.

    Args:
      timing: timing of the model.
      start: nanoseconds of a run of the empty model, which are subtracted.
      units: number of FLOPs, bytes or launches in a run.
    """
    return Timing(*[max(0.0, ns - start) / units for ns in timing[:3]], timing.repeats)


class RooflineCost(AnalyticCost):
    """The analytic cost with the constants of this machine."""

    @classmethod
    def open(cls, threads: int = 1, database: Path | str | None = None) -> "RooflineCost":
        """Return the cost model with the constants in a database; measure the constants first if they are missing.

        Args:
          threads: threads of ONNX Runtime.
          database: path of the timing database; None for the user's default database.
        """
        timings = TimingDatabase(database)
        cost = cls(calibrated(timings, threads) or calibrate(timings, threads))
        cost.target = Target.of(timings, threads)
        return cost


# -- models ----------------------------------------------------------------------------------------


def _product() -> onnx.ModelProto:
    weight = np.random.default_rng(0).random((SIDE, SIDE), np.float32)
    node, square = helper.make_node("MatMul", ["x", "w"], ["y"]), [SIDE, SIDE]
    return float_model([node], {"x": square}, {"y": square}, [numpy_helper.from_array(weight, "w")])


def additions(count: int, elements: int) -> onnx.ModelProto:
    """Return a model that adds one vector `count` times to another, both float32 [elements]."""
    names = ["x", *(f"t{k}" for k in range(count - 1)), "y"]
    nodes = [helper.make_node("Add", [a, "z"], [b]) for a, b in zip(names, names[1:], strict=False)]
    return float_model(nodes, {"x": [elements], "z": [elements]}, {"y": [elements]})


def _chain() -> onnx.ModelProto:
    names = ["x", *(f"t{k}" for k in range(CHAIN - 1)), "y"]
    nodes = [helper.make_node("Neg", [a], [b]) for a, b in zip(names, names[1:], strict=False)]
    return float_model(nodes, {"x": [1]}, {"y": [1]})
