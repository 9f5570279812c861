"""Real computation graphs without a download: the models that RLFlow optimises, trains on and tests with.

`light_*` are the nine model-zoo graphs inside the onnx package; the others are built as exporters write
them. Weights are random, drawn from the seed, at a scale that keeps activations sensible.
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
    """The zoo's model `name`; the same name and seed give the same bytes. An unknown name is an RLFlowError."""
    return ZOO.get(name)(seed)
