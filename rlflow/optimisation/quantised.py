"""Quantised models that are slower than the float32 computation which they approximate.

ONNX Runtime computes a quantised model in integers. On a processor without 8-bit dot products this can be slower than
float32. `offer` measures both. The outputs differ by the rounding of activations, so a model is dequantised only if the
user accepts it (`--accept dequantised`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from rlflow.common.errors import RLFlowError
from rlflow.costs.measured import ratios_in_turns
from rlflow.graph.dequantised import is_quantised
from rlflow.graph.half_precision import is_half
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import save_graph
from rlflow.optimisation.validate import relative_error
from rlflow.optimisation.validate.findings import json_number

SECONDS = 0.5  # seconds of runs at each size in each of the two measurements


def is_dequantisable(source: Path) -> bool:
    """Return whether a file holds a quantised model without half precision; False for a file that is no model."""
    try:
        model = onnx.load(source, load_external_data=False)
    except (OSError, DecodeError, UnicodeDecodeError):
        return False  # the model is refused elsewhere, with the reason
    return is_quantised(model) and not is_half(model)


def offer(source: Path, inputs: Sequence[Mapping[str, np.ndarray]], threads: int) -> dict | None:
    """Measure a quantised model against its float32 computation.

    Args:
      source: the file of the quantised model.
      inputs: for each size, the input arrays by name.
      threads: the number of threads of ONNX Runtime.

    Returns:
      A dictionary, or None if the model cannot be dequantised or run.
      `ratio`: the latency of the float32 computation, relative to the original; the geometric mean of two measurements.
      `error`: the largest difference of a float output between both, relative to its largest value in float32; None if
        a shape differs or a number is not finite.
    """
    with TemporaryDirectory() as folder:
        real = Path(folder, "float32.onnx")
        try:
            save_graph(load_graph(source, widen=True), real)
            ratios = [ratios_in_turns(source, [real], inputs, threads, SECONDS, first) for first in (0, 1)]
            ours, theirs = ([run(made, given) for given in inputs] for made in (session(real, 1), session(source, 1)))
        except RLFlowError:
            return None
    pairs = [pair for two in zip(ours, theirs, strict=True) for pair in zip(*two, strict=True)]
    errors = [relative_error(a, b) for a, b in pairs if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
    return {"ratio": float(np.sqrt(np.prod(ratios))), "error": json_number(max(errors, default=0.0))}
