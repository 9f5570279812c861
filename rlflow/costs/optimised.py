"""What ONNX Runtime makes of a small model when it loads it."""

from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import onnxruntime

from rlflow.common.errors import first_line
from rlflow.graph.onnx_runtime import PROVIDERS


class NoTimingOfItsOwn(Exception):
    """Why operators have no timing of their own."""


def optimised(model: onnx.ModelProto) -> onnx.ModelProto:
    """What ONNX Runtime makes of a model when it loads it. Raises NoTimingOfItsOwn if it refuses."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    with TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "model.onnx")
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=PROVIDERS)
        except Exception as error:  # ONNX Runtime raises its own, undocumented classes
            raise NoTimingOfItsOwn(first_line(error)) from error
        return onnx.load(options.optimized_model_filepath)
