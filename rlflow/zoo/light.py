"""The nine model-zoo graphs that the onnx package ships without weights, given random ones.

In the files every weight is a ConstantOfShape (or a constant vector); all-equal values would hide any
error that permutes or drops channels, so each one is drawn anew, at a scale read from what it feeds.
"""

from collections import defaultdict
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from rlflow.common.errors import RLFlowError
from rlflow.zoo.builder import BRANCH_SCALE, Weights, add_initializer

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def light(name: str, seed: int, head_gain: float = 1.0) -> onnx.ModelProto:
    """light_{name}.onnx with seeded weights; `head_gain` scales the last one so that the logits' deviation is ~1."""
    try:
        model = onnx.load(FOLDER / f"light_{name}.onnx")
    except FileNotFoundError as error:
        raise RLFlowError(f"the installed onnx package lacks light_{name}.onnx ({FOLDER})") from error
    graph = model.graph
    roles, shapes, weights = weight_roles(graph), weight_shapes(graph), Weights(seed)
    head = [weight for weight, role in roles.items() if role in ("Conv.weight", "Gemm.weight")][-1]

    initialised = {tensor.name for tensor in graph.initializer}
    keep(graph.input, lambda value: value.name not in initialised)
    keep(graph.node, lambda node: node.op_type != "ConstantOfShape")
    read = {tensor for node in graph.node for tensor in node.input}
    keep(graph.initializer, lambda tensor: tensor.name in read and tensor.name not in roles)
    for weight, role in roles.items():
        values = draw(weights, role, shapes[weight])
        add_initializer(graph, weight, values * np.float32(head_gain) if weight == head else values)
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def keep(field, condition) -> None:
    """Removes the elements of a repeated protobuf field that do not satisfy the condition."""
    kept = [element for element in field if condition(element)]
    del field[:]
    field.extend(kept)


def weight_shapes(graph: onnx.GraphProto) -> dict[str, list[int]]:
    """The shape of every float constant: an initialiser, or a ConstantOfShape of an initialiser."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {name: list(t.dims) for name, t in constants.items() if t.data_type == onnx.TensorProto.FLOAT}
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = numpy_helper.to_array(constants[node.input[0]]).tolist()
    return shapes


def weight_roles(graph: onnx.GraphProto) -> dict[str, str]:
    """What each float constant is to the operator that reads it, in the order of reading.

    A constant that reaches its operator through Unsqueeze or Reshape has the role of what comes out. One that
    nothing reads has none.
    """
    shapes = weight_shapes(graph)
    readers = defaultdict(list)
    for node in graph.node:
        for slot, tensor in enumerate(node.input):
            readers[tensor].append((node, slot))

    def role(tensor: str) -> str:
        node, slot = readers[tensor][0]
        if node.op_type in ("Unsqueeze", "Reshape"):
            return role(node.output[0])
        if node.op_type == "BatchNormalization":
            branch = slot == 1 and any(reader.op_type == "Sum" for reader, _ in readers[node.output[0]])
            return "branch_scale" if branch else ("scale", "bias", "mean", "variance")[slot - 1]
        if node.op_type in ("Mul", "Add"):
            return {"Mul": "scale", "Add": "bias"}[node.op_type]
        return f"{node.op_type}.weight" if slot == 1 else "bias"

    read = dict.fromkeys(tensor for node in graph.node for tensor in node.input if tensor in shapes)
    return {tensor: role(tensor) for tensor in read}


def draw(weights: Weights, role: str, shape: list[int]) -> np.ndarray:
    """Random values of a sensible scale for a role of `weight_roles`."""
    match role:
        case "Conv.weight":  # [out, in / groups, height, width]
            return weights.scaled(shape, fan_in=prod(shape[1:]))
        case "Gemm.weight":  # [..., out, in]
            return weights.scaled(shape, fan_in=shape[-1])
        case "scale":
            return weights.scale(*shape)
        case "branch_scale":
            return weights.scale(*shape, mean=BRANCH_SCALE)
        case "variance":
            return weights.variance(*shape)
        case _:
            return weights.bias(*shape)


def light_squeezenet(seed: int) -> onnx.ModelProto:
    """SqueezeNet 1.1 (Caffe), 224×224."""
    return light("squeezenet", seed, head_gain=0.22)


def light_resnet50(seed: int) -> onnx.ModelProto:
    """ResNet-50 (Caffe2), 224×224."""
    return light("resnet50", seed, head_gain=2.7)


def light_inception_v1(seed: int) -> onnx.ModelProto:
    """GoogLeNet, Inception v1 (Caffe), 224×224."""
    return light("inception_v1", seed, head_gain=0.2)


def light_inception_v2(seed: int) -> onnx.ModelProto:
    """Inception v2, Caffe's BatchNorm and Scale as BatchNormalization, Mul and Add, 224×224."""
    return light("inception_v2", seed, head_gain=0.37)


def light_densenet121(seed: int) -> onnx.ModelProto:
    """DenseNet-121, Caffe's BatchNorm and Scale as BatchNormalization, Mul and Add, 224×224; no Softmax."""
    return light("densenet121", seed, head_gain=0.7)


def light_shufflenet(seed: int) -> onnx.ModelProto:
    """ShuffleNet v1 with four groups (Caffe2), 224×224."""
    return light("shufflenet", seed, head_gain=0.1)


def light_vgg19(seed: int) -> onnx.ModelProto:
    """VGG-19 (Caffe), 224×224."""
    return light("vgg19", seed, head_gain=0.23)


def light_bvlc_alexnet(seed: int) -> onnx.ModelProto:
    """AlexNet (Caffe), grouped convolutions, 224×224."""
    return light("bvlc_alexnet", seed, head_gain=0.19)


def light_zfnet512(seed: int) -> onnx.ModelProto:
    """ZFNet-512 (Caffe2), 224×224."""
    return light("zfnet512", seed, head_gain=0.5)
