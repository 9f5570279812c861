"""The model zoo: well-known networks with random weights that need no download, for optimisation, training and tests.

`light_*` are the nine graphs of the ONNX model zoo inside the onnx package. The other models are built node by node as
exporters write them. Weights are drawn from a seed, at scales that keep activations neither tiny nor huge.

    model = rlflow.zoo.load("resnet18", seed=0)  # an onnx.ModelProto
"""

import onnx

from rlflow.common.registry import Registry

ZOO = Registry(
    "model",
    {
        "light_squeezenet": "rlflow.zoo.light:light_squeezenet",
        "light_resnet50": "rlflow.zoo.light:light_resnet50",
        "light_inception_v1": "rlflow.zoo.light:light_inception_v1",
        "light_inception_v2": "rlflow.zoo.light:light_inception_v2",
        "light_densenet121": "rlflow.zoo.light:light_densenet121",
        "light_shufflenet": "rlflow.zoo.light:light_shufflenet",
        "light_vgg19": "rlflow.zoo.light:light_vgg19",
        "light_bvlc_alexnet": "rlflow.zoo.light:light_bvlc_alexnet",
        "light_zfnet512": "rlflow.zoo.light:light_zfnet512",
        "inception_v3": "rlflow.zoo.convolutional:inception_v3",
        "resnet18": "rlflow.zoo.convolutional:resnet18",
        "resnet50": "rlflow.zoo.convolutional:resnet50",
        "resnet101": "rlflow.zoo.convolutional:resnet101",
        "squeezenet1_1": "rlflow.zoo.convolutional:squeezenet1_1",
        "shufflenet_v2": "rlflow.zoo.convolutional:shufflenet_v2",
        "shufflenet_v2_folded": "rlflow.zoo.convolutional:shufflenet_v2_folded",
        "mobilenet_v2": "rlflow.zoo.convolutional:mobilenet_v2",
        "bert_base": "rlflow.zoo.transformers:bert_base",
        "bert_base_fused": "rlflow.zoo.transformers:bert_base_fused",
        "vit_base": "rlflow.zoo.transformers:vit_base",
        "vit_base_fused": "rlflow.zoo.transformers:vit_base_fused",
        "tiny_inception_v3": "rlflow.zoo.convolutional:tiny_inception_v3",
        "tiny_resnet18": "rlflow.zoo.convolutional:tiny_resnet18",
        "tiny_resnet50": "rlflow.zoo.convolutional:tiny_resnet50",
        "tiny_squeezenet1_1": "rlflow.zoo.convolutional:tiny_squeezenet1_1",
        "tiny_shufflenet_v2": "rlflow.zoo.convolutional:tiny_shufflenet_v2",
        "tiny_mobilenet_v2": "rlflow.zoo.convolutional:tiny_mobilenet_v2",
        "tiny_bert_base": "rlflow.zoo.transformers:tiny_bert_base",
        "tiny_bert_base_fused": "rlflow.zoo.transformers:tiny_bert_base_fused",
        "tiny_vit_base": "rlflow.zoo.transformers:tiny_vit_base",
        "tiny_vit_base_fused": "rlflow.zoo.transformers:tiny_vit_base_fused",
    },
)


def load(name: str, seed: int = 0) -> onnx.ModelProto:
    """Build a model of the zoo.

    Args:
      name: a name in ZOO.
      seed: seed of the weights; the same name and seed give the same bytes.

    Raises:
      RLFlowError: the name is unknown.
    """
    return ZOO.get(name)(seed)


def zoo_or_path(name: str):
    """Return the model of the zoo with this name, or the name itself, as a path, if the zoo has no such model."""
    return load(name) if name in ZOO else name
