"""Declarations of the exported models: exporter, network, inputs and half of the corpus.

The *development* half is for work on rules, searches and defaults: its files may be inspected, and RLFlow may be tuned
for them. The *judgement* half shows the gain on other files. Its files are only run for the published table, and their
results must not cause a change of a rule. The split was made before any file was optimised, and a file never changes
its half. The halves have no family of architectures in common, except the families in APART.

Thirteen kinds of architectures joined the corpus in version 0.3.0, and were split before any of them was optimised.
Four of them have a largest latency ratio that was set beforehand: both U-Nets, the vocoder and the VAE decoder. They
stand in the judgement half, as does ALBERT in float16, the fifth file with such a bar. The detector and the depth
network join them. Development has networks of other designs with the same operators. Super-resolution and a GAN's
generator enlarge images and convolve them. The separation of speakers and the Conformer convolve sound. A video network
convolves volumes. Segmentation and the reader of text, with its LSTM, are kinds of their own.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

HALVES = DEVELOPMENT, JUDGEMENT = "development", "judgement"

# PyTorch's newer exporter (dynamo) and its older exporter (torchscript); Keras's exporter; tf2onnx. "float16" and "qdq"
# convert an exported file by ONNX Runtime's conversion to float16 and by its static quantisation.
EXPORTERS = ("dynamo", "torchscript", "keras", "tf2onnx", "float16", "qdq")
MADE_FROM = ("float16", "qdq")  # the exporters that convert another file of the corpus

APART = {  # family with files in both halves → the difference between these files
    "llama": "development has the older exporter's graph without a cache, judgement the newer one's with it",
    "resnet": "development has ResNet-18 inside the detector by torch's newer exporter, judgement ResNet-50 by others",
    "unet": "development has the denoising U-Net (GroupNorm, attention, features of time) by the newer exporter, "
            "judgement the U-Nets for segmentation by the older one",
}  # fmt: skip
TOKENS = 30_000  # random token ids are below this number, which is less than every vocabulary size of the corpus


class Given(NamedTuple):
    """Declaration of a model input.

    Attributes:
        kind: "tokens" (int64 token ids), "mask" (int64, 0 or 1) or "floats" (float32).
        shape: shape of the input.
    """

    kind: str
    shape: tuple[int, ...]


class Export(NamedTuple):
    """Declaration of a file of the corpus.

    Attributes:
        half: one of HALVES.
        family: family of architectures, for instance "bert".
        exporter: one of EXPORTERS.
        opset: opset of the exported file; None for the exporters in MADE_FROM.
        network: LIBRARY.NAME, where the library is torchvision, timm, keras (keras.applications) or a module of
            `benchmarks.exports` (networks, image_networks, sound_networks). For the exporters in MADE_FROM, the key in
            CORPUS of the file to convert.
        inputs: name of each input → kind and shape, in the order of the network's arguments.
        outputs: names of the outputs; () for the names that the exporter chooses.
    """

    half: str
    family: str
    exporter: str
    opset: int | None
    network: str
    inputs: Mapping[str, Given]
    outputs: tuple[str, ...] = ()


def draw(inputs: Mapping[str, Given], seed: int) -> dict[str, np.ndarray]:
    """Return random inputs: name → array.

    A mask is 1 except for the last quarter of its last row, which is 0.

    Args:
        inputs: name → kind and shape.
        seed: seed of the values.
    """
    random, drawn = np.random.default_rng(seed), {}
    for name, (kind, shape) in inputs.items():
        if kind == "tokens":
            drawn[name] = random.integers(0, TOKENS, shape)
        elif kind == "mask":
            drawn[name] = np.ones(shape, np.int64)
            drawn[name][-1, shape[-1] - shape[-1] // 4 :] = 0
        else:
            drawn[name] = random.standard_normal(shape, np.float32)
    return drawn


def image(pixels: int, channels_first: bool = True, name: str = "images") -> dict[str, Given]:
    """Return the declaration of one input, a float32 batch with one square RGB image.

    Args:
        pixels: height and width.
        channels_first: True for the shape [1, 3, height, width], False for [1, height, width, 3].
        name: name of the input.
    """
    return {name: Given("floats", (1, 3, pixels, pixels) if channels_first else (1, pixels, pixels, 3))}


def tokens(length: int) -> dict[str, Given]:
    """Return the declarations of token ids and attention mask, each int64 [1, length]."""
    return {"input_ids": Given("tokens", (1, length)), "attention_mask": Given("mask", (1, length))}


def with_cache(new: int, past: int, layers: int, heads: int) -> dict[str, Given]:
    """Return the declarations of the inputs of a decoder with a key-value cache.

    The inputs are token ids, attention mask, and one key and one value tensor per layer, float32 [1, heads, past, 64].

    Args:
        new: number of new tokens.
        past: number of tokens in the cache.
        layers: number of layers.
        heads: number of heads of each key and value.
    """
    given = {"input_ids": Given("tokens", (1, new)), "attention_mask": Given("mask", (1, past + new))}
    for layer in range(layers):
        for part in ("key", "value"):
            given[f"past_key_values.{layer}.{part}"] = Given("floats", (1, heads, past, 64))
    return given


GPT2_OUTPUTS = ("last_hidden_state", *(f"present.{layer}.{part}" for layer in range(12) for part in ("key", "value")))
BART_OUTPUTS = ("last_hidden_state", "encoder_last_hidden_state")
LATENT = {"sample": Given("floats", (1, 4, 128, 128)), "timestep": Given("floats", (1,))}
LLAMA_INPUTS, GPT2_INPUTS = with_cache(1, 127, layers=6, heads=4), with_cache(16, 112, layers=12, heads=12)
TRANSLATION = tokens(128) | {"decoder_input_ids": Given("tokens", (1, 32))}  # inputs of an encoder-decoder
HIDDEN = ("last_hidden_state",)

# Name of a file → the fields of `Export` after `half`.
DEVELOPMENT_FILES = {
    "bert_base-dynamo": ("bert", "dynamo", 18, "networks.bert_base", tokens(128), HIDDEN),
    "roberta_base-torchscript": ("bert", "torchscript", 17, "networks.roberta_base", tokens(128), HIDDEN),
    "distilbert_float16-dynamo": ("bert", "dynamo", 18, "networks.distilbert_float16", tokens(128)),
    "vit_base-dynamo": ("vit", "dynamo", 18, "networks.vit_base", image(224, name="pixel_values"), ("logits",)),
    "vit_base-torchscript": (
        "vit", "torchscript", 17, "networks.vit_base", image(224, name="pixel_values"), ("logits",)
    ),
    "gpt2-dynamo": ("gpt2", "dynamo", 18, "networks.gpt2_prompt", tokens(128)),
    "gpt2_cache-torchscript": ("gpt2", "torchscript", 17, "networks.gpt2", GPT2_INPUTS, GPT2_OUTPUTS),
    "bart-torchscript": ("bart", "torchscript", 17, "networks.bart", TRANSLATION, BART_OUTPUTS),
    "llama-torchscript": ("llama", "torchscript", 17, "networks.llama", tokens(128)),
    "unet-dynamo": ("unet", "dynamo", 18, "networks.unet", LATENT, ("noise",)),
    "detector-dynamo": ("resnet", "dynamo", 18, "networks.detector", image(224), ("boxes", "scores")),
    "densenet121-dynamo": ("densenet", "dynamo", 18, "torchvision.densenet121", image(224)),
    "densenet121-keras": ("densenet", "keras", 15, "keras.DenseNet121", image(224, False)),
    "shufflenet_v2-dynamo": ("shufflenet", "dynamo", 20, "torchvision.shufflenet_v2_x1_0", image(224)),
    "nasnet_mobile-keras": ("nasnet", "keras", 15, "keras.NASNetMobile", image(224, False)),
    "efficientnet_b0-dynamo": ("efficientnet", "dynamo", 20, "torchvision.efficientnet_b0", image(224)),
    "efficientnet_b0-tf2onnx": ("efficientnet", "tf2onnx", 17, "keras.EfficientNetB0", image(224)),
    "super_resolution-torchscript": ("rrdb", "torchscript", 17, "image_networks.super_resolution", image(48)),
    "generator-dynamo": ("progan", "dynamo", 18, "image_networks.generator", {"latents": Given("floats", (1, 512))}),
    "segformer_b0-dynamo": ("segformer", "dynamo", 20, "image_networks.segformer_b0", image(256)),
    "text_reader-torchscript": (
        "crnn", "torchscript", 17, "image_networks.text_reader", {"lines": Given("floats", (1, 1, 32, 256))}
    ),
    "video-dynamo": ("r3d", "dynamo", 18, "torchvision.r3d_18", {"videos": Given("floats", (1, 3, 8, 112, 112))}),
    "conformer-dynamo": (
        "conformer", "dynamo", 18, "sound_networks.conformer", {"spectra": Given("floats", (1, 1600, 80))}
    ),
    "separation-torchscript": (
        "convtasnet", "torchscript", 17, "sound_networks.separation", {"sounds": Given("floats", (1, 16_000))}
    ),
}  # fmt: skip
JUDGEMENT_FILES = {
    "albert_base-dynamo": ("albert", "dynamo", 20, "networks.albert_base", tokens(128)),
    "llama_cache-dynamo": ("llama", "dynamo", 20, "networks.llama_cache", LLAMA_INPUTS),
    "t5_small-torchscript": ("t5", "torchscript", 17, "networks.t5_small", TRANSLATION),
    "whisper_tiny-dynamo": (
        "whisper", "dynamo", 20, "networks.whisper_tiny", {"input_features": Given("floats", (1, 80, 3000))}
    ),
    "wav2vec2_base-torchscript": (
        "wav2vec2", "torchscript", 17, "networks.wav2vec2_base", {"input_values": Given("floats", (1, 16_000))}
    ),
    "swin_tiny-dynamo": ("swin", "dynamo", 18, "timm.swin_tiny_patch4_window7_224", image(224)),
    "mobilevit_s-dynamo": ("mobilevit", "dynamo", 20, "timm.mobilevit_s", image(256)),
    "convnext_tiny-torchscript": ("convnext", "torchscript", 17, "timm.convnext_tiny", image(224)),
    "mobilenet_v2-torchscript": ("mobilenet", "torchscript", 17, "torchvision.mobilenet_v2", image(224)),
    "mobilenet_v3-dynamo": ("mobilenet", "dynamo", 18, "torchvision.mobilenet_v3_large", image(224)),
    "mobilenet_v3-keras": ("mobilenet", "keras", 15, "keras.MobileNetV3Large", image(224, False)),
    "inception_v3-dynamo": ("inception", "dynamo", 18, "torchvision.inception_v3", image(299)),
    "inception_v3-tf2onnx": ("inception", "tf2onnx", 17, "keras.InceptionV3", image(299)),
    "xception-keras": ("xception", "keras", 15, "keras.Xception", image(299, False)),
    "resnet50-torchscript": ("resnet", "torchscript", 17, "torchvision.resnet50", image(224)),
    "resnet50_v2-tf2onnx": ("resnet", "tf2onnx", 17, "keras.ResNet50V2", image(224)),
    "vocoder-torchscript": (
        "hifigan", "torchscript", 17, "sound_networks.vocoder", {"spectra": Given("floats", (1, 32, 80))}
    ),
    "unet_2d-torchscript": ("unet", "torchscript", 17, "image_networks.unet_2d", image(256)),
    "unet_3d-torchscript": (
        "unet", "torchscript", 17, "image_networks.unet_3d", {"volumes": Given("floats", (1, 1, 16, 64, 64))}
    ),
    "vae_decoder-dynamo": (
        "vae", "dynamo", 18, "image_networks.vae_decoder", {"latents": Given("floats", (1, 4, 16, 16))}
    ),
    "depth-torchscript": ("mobilenet", "torchscript", 17, "image_networks.depth", image(224)),
    "yolo-dynamo": ("yolo", "dynamo", 20, "image_networks.yolo", image(320)),
}  # fmt: skip
CORPUS: dict[str, Export] = {name: Export(DEVELOPMENT, *rest) for name, rest in DEVELOPMENT_FILES.items()}
CORPUS |= {name: Export(JUDGEMENT, *rest) for name, rest in JUDGEMENT_FILES.items()}
for source, exporter in (
    ("shufflenet_v2-dynamo", "qdq"), ("albert_base-dynamo", "float16"), ("mobilenet_v2-torchscript", "qdq")
):  # fmt: skip
    CORPUS[f"{source}-{exporter}"] = CORPUS[source]._replace(exporter=exporter, opset=None, network=source)


def of_half(half: str) -> list[str]:
    """Return the names of the files in one half of the corpus ("development" or "judgement")."""
    return [name for name, export in CORPUS.items() if export.half == half]
