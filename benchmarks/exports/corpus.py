"""The corpus: models as people export them, what each takes, and the half that it belongs to. No exporter is needed.

The development half is for whoever works on rules, searches and defaults: every file of it may be looked at, taken
apart and tuned for. It has what they know anyway: the seven networks of `benchmarks.exports.dynamic`, and all networks
that have a bar of their own. The judgement half says what that work is worth on files that nobody has looked at: it is
only run for the published table, and what it shows is no reason to change a rule. The split was made before anything
was optimised, and a file never changes its half.

So the halves share no family of architectures, but for those in APART, where the other half's exporter writes another
graph. What stays alike is what any exporter writes (attention, GELU, separable convolutions): that is what is asked.
"""

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.exports.dynamic import DYNAMIC, Given, at

HALVES = DEVELOPMENT, JUDGEMENT = "development", "judgement"

# torch's newer exporter and its older one, Keras's own and tf2onnx; and what makes a file of one that was exported:
# ONNX Runtime's conversion to float16, and its static quantisation.
EXPORTERS = ("dynamo", "torchscript", "keras", "tf2onnx", "float16", "qdq")
MADE_FROM = ("float16", "qdq")

# Families that are in both halves, by different exporters, and why.
APART = {
    "llama": "development has the older exporter's graph without a cache, judgement the newer one's with it",
    "resnet": "development has ResNet-18 inside the detector by torch's newer exporter, judgement ResNet-50 by others",
}


class Export(NamedTuple):
    """A file of the corpus.

    Attributes:
      half: one of HALVES.
      family: of architectures.
      exporter: one of EXPORTERS; opset: what it writes, None for MADE_FROM.
      network: LIBRARY.NAME: networks (`benchmarks.exports.networks`), torchvision, timm or keras (keras.applications).
        For MADE_FROM the name of another file of the corpus.
      inputs: name → what the file takes; all sizes are numbers.
      outputs: names, where the exporter is told.
    """

    half: str
    family: str
    exporter: str
    opset: int | None
    network: str
    inputs: Mapping[str, Given]
    outputs: tuple[str, ...] = ()


def image(pixels: int, channels_first: bool = True) -> dict[str, Given]:
    """One square image, float32."""
    return {"images": Given("floats", (1, 3, pixels, pixels) if channels_first else (1, pixels, pixels, 3))}


def tokens(length: int) -> dict[str, Given]:
    """One text with its mask."""
    return {"input_ids": Given("tokens", (1, length)), "attention_mask": Given("mask", (1, length))}


def translation(source: int, target: int) -> dict[str, Given]:
    """A text with its mask, and the beginning of what is made of it."""
    return tokens(source) | {"decoder_input_ids": Given("tokens", (1, target))}


def llama_cache(layers: int, past: int) -> dict[str, Given]:
    """One token after `past` others: keys and values of every layer, of 4 heads that serve 12."""
    given = {"input_ids": Given("tokens", (1, 1)), "attention_mask": Given("mask", (1, past + 1))}
    for layer in range(layers):
        for part in ("key", "value"):
            given[f"past_key_values.{layer}.{part}"] = Given("floats", (1, 4, past, 64))
    return given


def at_typical_sizes(name: str, family: str, exporter: str, opset: int) -> Export:
    """A model of `benchmarks.exports.dynamic` with all sizes typical; all of them are known to who works on rules."""
    model = DYNAMIC[name]
    inputs = {key: Given(given.kind, at(given.shape, model.typical)) for key, given in model.inputs.items()}
    return Export(DEVELOPMENT, family, exporter, opset, f"networks.{name}", inputs, tuple(model.outputs))


def development(family: str, exporter: str, opset: int, network: str, inputs: Mapping[str, Given]) -> Export:
    return Export(DEVELOPMENT, family, exporter, opset, network, inputs)


def judgement(family: str, exporter: str, opset: int, network: str, inputs: Mapping[str, Given]) -> Export:
    return Export(JUDGEMENT, family, exporter, opset, network, inputs)


EXPORTED: dict[str, Export] = {
    # -- development: transformers
    "bert_base-dynamo": at_typical_sizes("bert_base", "bert", "dynamo", 18),
    "roberta_base-torchscript": at_typical_sizes("roberta_base", "bert", "torchscript", 17),
    "distilbert_float16-dynamo": development("bert", "dynamo", 18, "networks.distilbert_float16", tokens(128)),
    "vit_base-dynamo": at_typical_sizes("vit_base", "vit", "dynamo", 18),
    "vit_base-torchscript": at_typical_sizes("vit_base", "vit", "torchscript", 17),
    "gpt2-dynamo": development("gpt2", "dynamo", 18, "networks.gpt2_prompt", tokens(128)),
    "gpt2_cache-torchscript": at_typical_sizes("gpt2", "gpt2", "torchscript", 17),
    "bart-torchscript": at_typical_sizes("bart", "bart", "torchscript", 17),
    "llama-torchscript": development("llama", "torchscript", 17, "networks.llama", tokens(128)),
    # -- development: images
    "unet-dynamo": at_typical_sizes("unet", "unet", "dynamo", 18),
    "detector-dynamo": at_typical_sizes("detector", "resnet", "dynamo", 18),
    "densenet121-dynamo": development("densenet", "dynamo", 18, "torchvision.densenet121", image(224)),
    "densenet121-keras": development("densenet", "keras", 15, "keras.DenseNet121", image(224, False)),
    "shufflenet_v2-dynamo": development("shufflenet", "dynamo", 20, "torchvision.shufflenet_v2_x1_0", image(224)),
    "nasnet_mobile-keras": development("nasnet", "keras", 15, "keras.NASNetMobile", image(224, False)),
    "efficientnet_b0-dynamo": development("efficientnet", "dynamo", 20, "torchvision.efficientnet_b0", image(224)),
    "efficientnet_b0-tf2onnx": development("efficientnet", "tf2onnx", 17, "keras.EfficientNetB0", image(224)),
    # -- judgement: transformers
    "albert_base-dynamo": judgement("albert", "dynamo", 20, "networks.albert_base", tokens(128)),
    "llama_cache-dynamo": judgement("llama", "dynamo", 20, "networks.llama_cache", llama_cache(6, 127)),
    "t5_small-torchscript": judgement("t5", "torchscript", 17, "networks.t5_small", translation(128, 32)),
    "whisper_tiny-dynamo": judgement(
        "whisper", "dynamo", 20, "networks.whisper_tiny", {"input_features": Given("floats", (1, 80, 3000))}
    ),
    "wav2vec2_base-torchscript": judgement(
        "wav2vec2", "torchscript", 17, "networks.wav2vec2_base", {"input_values": Given("floats", (1, 16_000))}
    ),
    "swin_tiny-dynamo": judgement("swin", "dynamo", 18, "timm.swin_tiny_patch4_window7_224", image(224)),
    "mobilevit_s-dynamo": judgement("mobilevit", "dynamo", 20, "timm.mobilevit_s", image(256)),
    # -- judgement: images
    "convnext_tiny-torchscript": judgement("convnext", "torchscript", 17, "timm.convnext_tiny", image(224)),
    "mobilenet_v2-torchscript": judgement("mobilenet", "torchscript", 17, "torchvision.mobilenet_v2", image(224)),
    "mobilenet_v3-dynamo": judgement("mobilenet", "dynamo", 18, "torchvision.mobilenet_v3_large", image(224)),
    "mobilenet_v3-keras": judgement("mobilenet", "keras", 15, "keras.MobileNetV3Large", image(224, False)),
    "inception_v3-dynamo": judgement("inception", "dynamo", 18, "torchvision.inception_v3", image(299)),
    "inception_v3-tf2onnx": judgement("inception", "tf2onnx", 17, "keras.InceptionV3", image(299)),
    "xception-keras": judgement("xception", "keras", 15, "keras.Xception", image(299, False)),
    "resnet50-torchscript": judgement("resnet", "torchscript", 17, "torchvision.resnet50", image(224)),
    "resnet50_v2-tf2onnx": judgement("resnet", "tf2onnx", 17, "keras.ResNet50V2", image(224)),
}  # fmt: skip


def made_from(name: str, exporter: str) -> dict[str, Export]:
    """A file made of that one, in its half."""
    return {f"{name}-{exporter}": EXPORTED[name]._replace(exporter=exporter, opset=None, network=name)}


CORPUS: dict[str, Export] = {
    **EXPORTED,
    **made_from("shufflenet_v2-dynamo", "qdq"),
    **made_from("albert_base-dynamo", "float16"),
    **made_from("mobilenet_v2-torchscript", "qdq"),
}


def of_half(half: str) -> list[str]:
    """The names of its files."""
    return [name for name, export in CORPUS.items() if export.half == half]


# What is optimised twice, to see whether both runs end alike: every third file of each half.
REPEATED = tuple(name for half in HALVES for name in of_half(half)[::3])

# Files that are not in float32 throughout.
LOW_PRECISION = ("distilbert_float16-dynamo", *(name for name, one in CORPUS.items() if one.exporter in MADE_FROM))
