"""The nine ONNX model-zoo graphs that the onnx package contains without weights, with random weights.

In these files every weight is a ConstantOfShape or a constant vector. With equal elements, errors that permute or drop
channels would stay hidden. Each weight is therefore drawn at random, at a scale that suits the operator that reads the
weight.
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
    """Load light_{name}.onnx from the onnx package and replace its weights by random weights.

    Args:
      name: name of the file without "light_" and ".onnx".
      seed: seed of the weights.
      head_gain: factor of the weight of the last Conv or Gemm, chosen so that the logits have a standard deviation of
        about 1.

    Raises:
      RLFlowError: the installed onnx package lacks the file.
    """
    try:
        model = onnx.load(FOLDER / f"light_{name}.onnx")
    except FileNotFoundError as error:
        raise RLFlowError(
            f"the installed onnx package lacks light_{name}.onnx ({FOLDER}); install onnx with its test data"
        ) from error
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
    """Remove the elements of a repeated protobuf field that do not satisfy a condition."""
    kept = [element for element in field if condition(element)]
    del field[:]
    field.extend(kept)


def weight_shapes(graph: onnx.GraphProto) -> dict[str, list[int]]:
    """Return name → shape of every float constant: an initialiser, or a ConstantOfShape of an initialiser."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {name: list(t.dims) for name, t in constants.items() if t.data_type == onnx.TensorProto.FLOAT}
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = numpy_helper.to_array(constants[node.input[0]]).tolist()
    return shapes


def weight_roles(graph: onnx.GraphProto) -> dict[str, str]:
    """Return name → role of each float constant in the operator that reads it, such as "Conv.weight" or "bias".

    A constant that an Unsqueeze or Reshape reads has the role of its reshaped result. Constants without readers have no
    entry. The entries are in the order in which the nodes of the graph read the constants.
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
    """Draw a weight at the scale that suits its role.

    Args:
      weights: generator of random parameters.
      role: the role, such as "Conv.weight" or "bias" (see `weight_roles`).
      shape: shape of the weight.
    """
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
    """Build SqueezeNet 1.1 (Caffe) for 224×224 images."""
    return light("squeezenet", seed, head_gain=0.22)


def light_resnet50(seed: int) -> onnx.ModelProto:
    """Build ResNet-50 (Caffe2) for 224×224 images."""
    return light("resnet50", seed, head_gain=2.7)


def light_inception_v1(seed: int) -> onnx.ModelProto:
    """Build GoogLeNet, also known as Inception v1 (Caffe), for 224×224 images."""
    return light("inception_v1", seed, head_gain=0.2)


def light_inception_v2(seed: int) -> onnx.ModelProto:
    """Build Inception v2 (Caffe) for 224×224 images; normalisations are BatchNormalization, Mul and Add."""
    return light("inception_v2", seed, head_gain=0.37)


def light_densenet121(seed: int) -> onnx.ModelProto:
    """Build DenseNet-121 (Caffe) for 224×224 images, without Softmax.

    Normalisations are BatchNormalization, Mul and Add.
    """
    return light("densenet121", seed, head_gain=0.7)


def light_shufflenet(seed: int) -> onnx.ModelProto:
    """Build ShuffleNet v1 with four groups (Caffe2) for 224×224 images."""
    return light("shufflenet", seed, head_gain=0.1)


def light_vgg19(seed: int) -> onnx.ModelProto:
    """Build VGG-19 (Caffe) for 224×224 images."""
    return light("vgg19", seed, head_gain=0.23)


def light_bvlc_alexnet(seed: int) -> onnx.ModelProto:
    """Build AlexNet (Caffe) with grouped convolutions for 224×224 images."""
    return light("bvlc_alexnet", seed, head_gain=0.19)


def light_zfnet512(seed: int) -> onnx.ModelProto:
    """Build ZFNet-512 (Caffe2) for 224×224 images."""
    return light("zfnet512", seed, head_gain=0.5)
