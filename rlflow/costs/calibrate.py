"""The calibrated roofline: the analytic cost with the constants of this machine, measured in seconds.

Three small models in ONNX Runtime say what a FLOP, a byte and a launch cost here: a product of matrices, a sum of
tensors that no cache holds, and a chain of operators on one number. The constants are kept with the timings.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rlflow.costs.analytic import AnalyticCost, Machine
from rlflow.costs.database import TimingDatabase
from rlflow.costs.target import Target
from rlflow.costs.timing import Timing, empty_model, time_model

SIDE = 512  # of the matrices: a product of 2 · 512³ FLOPs
ELEMENTS = 4 * 2**20  # of each tensor of the sum: three of 16 MB, and every session has its own result
CHAIN = 200  # operators
BUDGET_MS = 100.0


def calibrate(database: TimingDatabase, threads: int) -> Machine:
    """Measures the constants of this machine, keeps them instead of older ones, and returns them.

    Raises RLFlowError if the database is another machine's.
    """
    database.check_here()
    with database.lock():
        start = time_model(empty_model(), threads, BUDGET_MS).median
        product = time_model(_product(), threads, BUDGET_MS)
        total = time_model(_sum(), threads, BUDGET_MS)
        chain = time_model(_chain(), threads, BUDGET_MS, optimise=False)
    picoseconds = {
        "flop": _scaled(product, start, 2 * SIDE**3),
        "byte": _scaled(total, start, 3 * 4 * ELEMENTS),
        "launch": _scaled(chain, start, CHAIN),
    }
    for name, timing in picoseconds.items():
        database.replace(f"roofline: {name}", threads, timing)
    return _machine(picoseconds)


def calibrated(database: TimingDatabase, threads: int) -> Machine | None:
    """The constants of this machine, if they have been measured."""
    result = {name: database.look_up(f"roofline: {name}", threads) for name in Machine._fields}
    return _machine(result) if all(result.values()) else None


def _machine(timings: dict[str, Timing]) -> Machine:
    return Machine(**{name: max(1, round(1000 * timing.median)) for name, timing in timings.items()})


def _scaled(timing: Timing, start: float, units: int) -> Timing:
    """Nanoseconds of one unit."""
    return Timing(*[max(0.0, ns - start) / units for ns in timing[:3]], timing.repeats)


class RooflineCost(AnalyticCost):
    """The analytic cost with this machine's constants, which are measured where that has not been done."""

    @classmethod
    def open(cls, threads: int = 1, database: Path | str | None = None) -> "RooflineCost":
        timings = TimingDatabase(database)
        cost = cls(calibrated(timings, threads) or calibrate(timings, threads))
        cost.target = Target.of(timings, threads)
        return cost


# -- models ----------------------------------------------------------------------------------------


def _product() -> onnx.ModelProto:
    weight = np.random.default_rng(0).random((SIDE, SIDE), np.float32)
    return _model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [SIDE, SIDE]}, [SIDE, SIDE],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip


def _sum() -> onnx.ModelProto:
    return _model([helper.make_node("Add", ["x", "z"], ["y"])], {"x": [ELEMENTS], "z": [ELEMENTS]}, [ELEMENTS])


def _chain() -> onnx.ModelProto:
    names = ["x", *(f"t{k}" for k in range(CHAIN - 1)), "y"]
    nodes = [helper.make_node("Neg", [a], [b]) for a, b in zip(names, names[1:], strict=False)]
    return _model(nodes, {"x": [1]}, [1])


def _model(nodes, inputs: dict[str, list[int]], output: list[int], weights=()) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)]
    graph = helper.make_graph(nodes, "calibration", given, made, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
