"""The speeds of a machine in ONNX Runtime, measured within two seconds: the features of the machine in predictions.

`rlflow.costs.analytic.calibrate` measures a product, a sum of tensors that most caches cannot hold, and the launch of
an operator. `speeds_here` adds a convolution and sums of tensors that fit into the near cache (0.1 MB in all) and into
the far cache (3 MB in all). All constants are stored with the timings, so exported timings include the speeds of their
machine.
"""

import math
import re
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rlflow.common.spending import KERNELS, spent_on
from rlflow.costs.analytic import BUDGET_MS, LEAST, additions, calibrate, calibrated
from rlflow.costs.database import TimingDatabase
from rlflow.costs.kernel_models import Timed, empty_model, float_model
from rlflow.costs.timing import Timing, time_model

SETS = (3 * 4 * 2**13, 3 * 4 * 2**18, 3 * 4 * 2**22)  # bytes of three tensors in the near cache, far cache and memory
ADDITIONS = {"near": (64, 2**13), "cached": (4, 2**18)}  # name → additions in a model, elements of each tensor
CHANNELS, SIDE = 64, 28  # channels, and height and width, of the 3×3 convolution
# Beginning of the name of a vector extension in the name of a machine → bits of a vector; 128 for other names.
VECTOR_BITS = {"AMX": 512, "AVX-512": 512, "AVX": 256}


class Speeds(NamedTuple):
    """The constants of a machine with a number of threads.

    Attributes:
      product, convolution: picoseconds per FLOP of a product of 512×512 matrices and of a convolution.
      near, cached, far: picoseconds per byte if the SETS lie in the near cache, in the far cache, or in memory.
      launch: picoseconds to launch an operator.
      vector_bits: width of the vectors of the processor.
    """

    product: float
    convolution: float
    near: float
    cached: float
    far: float
    launch: float
    vector_bits: int

    def byte(self, working_set: float) -> float:
        """Return picoseconds per byte for an operator that reads and writes this number of bytes in all."""
        known = np.log((self.near, self.cached, self.far))
        return math.exp(float(np.interp(math.log(max(working_set, 1.0)), np.log(SETS), known)))


STORED = ("flop", "convolution", *ADDITIONS, "byte", "launch")  # names in the database, in the order of `Speeds`


def speeds_here(database: TimingDatabase, threads: int) -> Speeds:
    """Return the stored speeds of this machine; measure and store them first if they are missing.

    Args:
      database: the database of timings.
      threads: threads of ONNX Runtime.

    Raises:
      RLFlowError: speeds are missing, and the database belongs to another machine.
    """
    known = stored_speeds(database, threads)
    return measure_speeds(database, threads) if known is None else known


def measure_speeds(database: TimingDatabase, threads: int) -> Speeds:
    """Measure and store the speeds of this machine, and replace stored ones; see `speeds_here`."""
    calibrate(database, threads)
    _measure(database, threads)
    return stored_speeds(database, threads)


def stored_speeds(database: TimingDatabase, threads: int) -> Speeds | None:
    """Return the speeds that the database holds for a number of threads; None if one of them is missing."""
    timings = [database.look_up(f"roofline: {name}", threads) for name in STORED]
    if not all(timings):
        return None
    return Speeds(*(max(1000 * timing.median, LEAST) for timing in timings), vector_bits(database.machine))


def vector_bits(machine: str) -> int:
    """Return the bits of a vector from the text of a machine: 512 for "EPYC (AVX-512 VNNI), 2 cores"."""
    (name,) = re.findall(r"\((A[VM]X[^)]*)\)", machine)[:1] or [""]
    return next((bits for start, bits in VECTOR_BITS.items() if name.startswith(start)), 128)


def _measure(database: TimingDatabase, threads: int) -> None:
    with spent_on(KERNELS), database.lock():
        start = time_model(Timed(empty_model()), threads, BUDGET_MS).median
        launch = calibrated(database, threads).launch / 1e3  # in ns
        flops = 2 * 9 * CHANNELS**2 * SIDE**2
        database.replace(
            "roofline: convolution", threads, _per(time_model(Timed(_convolution()), threads, BUDGET_MS), start, flops)
        )
        for name, (count, elements) in ADDITIONS.items():
            timing = time_model(Timed(additions(count, elements), optimise=False), threads, BUDGET_MS)
            database.replace(
                f"roofline: {name}", threads, _per(timing, start + count * launch, count * 3 * 4 * elements)
            )


def _per(timing: Timing, start: float, units: int) -> Timing:
    """Return the timing of a model per unit of its work, in nanoseconds, without the nanoseconds `start`."""
    return Timing(*[max(ns - start, 0.1 * ns) / units for ns in timing[:3]], timing.repeats)


def _convolution() -> onnx.ModelProto:
    weight = np.random.default_rng(0).random((CHANNELS, CHANNELS, 3, 3), np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    image = [1, CHANNELS, SIDE, SIDE]
    return float_model([node], {"x": image}, {"y": image}, [numpy_helper.from_array(weight, "w")])
