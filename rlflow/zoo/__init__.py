"""The model zoo: well-known networks with random weights that need no download, for optimisation, training and tests.

`light_*` are the nine graphs of the ONNX model zoo inside the onnx package. The other models are built node by node as
exporters write them. Weights are drawn from a seed, at scales that keep activations neither tiny nor huge.

    model = rlflow.zoo.load("resnet18", seed=0)  # an onnx.ModelProto
"""

import onnx

from rlflow.common.registry import Registry

NAMES = (  # (module, the models that it builds)
    ("light", (
        "light_squeezenet", "light_resnet50", "light_inception_v1", "light_inception_v2", "light_densenet121",
        "light_shufflenet", "light_vgg19", "light_bvlc_alexnet", "light_zfnet512",
    )),
    ("convolutional", (
        "inception_v3", "resnet18", "resnet50", "resnet101", "squeezenet1_1", "shufflenet_v2",
        "shufflenet_v2_folded", "mobilenet_v2",
    )),
    ("transformers", ("bert_base", "bert_base_fused", "vit_base", "vit_base_fused")),
    ("convolutional", (
        "tiny_inception_v3", "tiny_resnet18", "tiny_resnet50", "tiny_squeezenet1_1", "tiny_shufflenet_v2",
        "tiny_mobilenet_v2",
    )),
    ("transformers", ("tiny_bert_base", "tiny_bert_base_fused", "tiny_vit_base", "tiny_vit_base_fused")),
)  # fmt: skip
ZOO = Registry("model", {name: f"rlflow.zoo.{module}:{name}" for module, names in NAMES for name in names})


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
