"""Zoo models in half precision."""

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from rlflow.zoo import load


def halved(name: str) -> onnx.ModelProto:
    """Return a zoo model with float16 instead of float32."""
    model = onnx.ModelProto()
    model.CopyFrom(load(name))
    constants = [a.t for node in model.graph.node for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
    for tensor in (*model.graph.initializer, *constants):
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    onnx.checker.check_model(model, full_check=True)
    return model
