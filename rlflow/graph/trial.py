"""The trial run: answer at once whether ONNX Runtime runs a model, before any work is done for it.

Searches need only the graph. Without a trial, only the last check, after all searches, would notice that ONNX Runtime
refuses the model. If no rule matches, nothing would notice it.
"""

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import say
from rlflow.graph.onnx_runtime import run, session

SLOW = 2.0  # seconds of a trial after which its time is stated
ONCE = 10.0  # seconds; if the run with optimisations takes longer, the run without them is left to the last check


def check_runs(model: Path | str | onnx.ModelProto, inputs: Mapping[str, np.ndarray], threads: int) -> None:
    """Run a model once with all optimisations of ONNX Runtime and, if that takes less than ONCE seconds, once without.

    Args:
      model: path of an ONNX file, or a ModelProto.
      inputs: input name → array.
      threads: the number of threads of ONNX Runtime.

    Raises:
      RLFlowError: ONNX Runtime cannot load or run the model in at least one of these ways; the message says what to do.
    """
    began = time.monotonic()
    refused = _refusal(model, inputs, threads, optimise=True)
    both = time.monotonic() - began < ONCE
    plain = _refusal(model, inputs, threads, optimise=False) if both else refused
    seconds, name = time.monotonic() - began, "the model" if isinstance(model, onnx.ModelProto) else model
    if seconds > SLOW:
        say(f"trial run of {name} in ONNX Runtime: {seconds:.1f} s")
    if refused is None and plain is None:
        return
    if refused is not None and plain is not None:
        raise refused
    works, fails = ("without", "with") if plain is None else ("with", "without")
    raise RLFlowError(
        f"{name} runs only {works} ONNX Runtime's optimisations, and a result must run {fails} them too: "
        f"{refused or plain}. Export it again with another opset or exporter"
    )


def _refusal(model, inputs: Mapping[str, np.ndarray], threads: int, optimise: bool) -> RLFlowError | None:
    """Return the error of loading or running a model; None if it runs."""
    try:
        running = session(model, threads, optimise)
    except RLFlowError as error:
        return error
    try:
        run(running, inputs)
    except RLFlowError as error:
        name = "the model" if isinstance(model, onnx.ModelProto) else model
        shapes = (f"{key} {list(array.shape)}" for key, array in inputs.items() if isinstance(array, np.ndarray))
        return RLFlowError(
            f"{name} fails on drawn inputs ({', '.join(shapes)}): {error}. Pass values that it accepts with "
            "--inputs DATA.npz, or other sizes with --shape NAME=SIZE"
        )
    return None
