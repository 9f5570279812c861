"""Models of low precision: what their outputs are measured from, and how far ONNX Runtime itself is from that.

1e-4 is a tolerance for float32. Half precision has three digits: so the original is run in float32 too, and a candidate
may be as far from that as ONNX Runtime's own sessions of the original are, as it is written or as it optimises it,
times `OWN_MARGIN`. A model that cannot be made float32 keeps 1e-4.

A quantised model is measured from itself as it is written, in floats. ONNX Runtime runs it in integers, and where that
rounds a sum to the other side, an output is off by a step, 0.008 of the largest; so may a candidate be.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from rlflow.common.errors import RLFlowError

HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# two roundings of one result are equally good; of few elements the larger error was seen to be twice the other
OWN_MARGIN = 4.0
LARGEST = 2**30  # bytes of weights that are made float32; protobuf ends at 2 GB

# Attributes that name the data type of a result.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "stash_type")


def is_low(model: onnx.ModelProto) -> bool:
    """Whether 1e-4 asks too much of the model: see above."""
    return is_half(model) or is_quantised(model)


def is_half(model: onnx.ModelProto) -> bool:
    """Whether a weight, an input, an output or a constant of the model is in half precision."""
    values = (*model.graph.input, *model.graph.output)
    return any(tensor.data_type in HALVES for graph in _graphs(model) for tensor in _tensors(graph)) or any(
        value.type.tensor_type.elem_type in HALVES for value in values
    )


def is_quantised(model: onnx.ModelProto) -> bool:
    """Whether a number of the model becomes an integer on its way."""
    return any(node.op_type == "QuantizeLinear" for graph in _graphs(model) for node in graph.node)


def widened(model: onnx.ModelProto, folder: Path | None) -> onnx.ModelProto:
    """The model with float32 wherever it has half precision, interface included.

    Args:
      folder: where its external weights lie.

    Raises:
      RLFlowError: its weights are too large for that.
    """
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    size = 0
    for graph in _graphs(wide):
        for tensor in _tensors(graph):
            if tensor.data_type in HALVES:
                array = numpy_helper.to_array(tensor, str(folder or "")).astype(np.float32)
                size += array.nbytes
                if size > LARGEST:
                    raise RLFlowError("the model is too large to be run in float32")
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        for value in (*graph.input, *graph.output, *graph.value_info) if isinstance(graph, onnx.GraphProto) else ():
            if value.type.tensor_type.elem_type in HALVES:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        for attribute in _attributes(graph):
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i in HALVES:
                attribute.i = TensorProto.FLOAT
    return wide


def widened_arrays(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs of the model as the widened one takes them."""
    halves = {value.name for value in model.graph.input if value.type.tensor_type.elem_type in HALVES}
    return {name: array.astype(np.float32) if name in halves else array for name, array in arrays.items()}


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto | onnx.FunctionProto]:
    """The graph, its functions, and the graphs inside their nodes."""
    waiting, result = [model.graph, *model.functions], []
    while waiting:
        graph = waiting.pop()
        result.append(graph)
        for attribute in _attributes(graph):
            if attribute.type == onnx.AttributeProto.GRAPH:
                waiting.append(attribute.g)
            waiting.extend(attribute.graphs)
    return result


def _attributes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.AttributeProto]:
    return (attribute for node in graph.node for attribute in node.attribute)


def _tensors(graph: onnx.GraphProto | onnx.FunctionProto) -> list[TensorProto]:
    """Weights and constants."""
    result = list(graph.initializer) if isinstance(graph, onnx.GraphProto) else []
    for attribute in _attributes(graph):
        if attribute.type == onnx.AttributeProto.TENSOR:
            result.append(attribute.t)
        result.extend(attribute.tensors)
    return result
