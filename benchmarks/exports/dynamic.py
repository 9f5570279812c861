"""Models with symbolic sizes, as both torch exporters write them, and their static twins: what they take, at which
sizes they are measured, and the file of each.

A size is a number or an expression in the model's symbols ("seq", "past + seq", "8*height"). The registry needs no
torch; `export` imports it, and so does

    python -m benchmarks.exports.dynamic NAME EXPORTER FILE [--static] [--seed N]
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.exports import torch_exporters
from rlflow.graph import dims

Shape = tuple[int | str, ...]
Sizes = Mapping[str, int]  # symbol -> its size

EXPORTERS = {"torchscript": 17, "dynamo": 18}  # torch's two exporters, each with the opset it is used with
TOKENS = 30_000  # token ids are drawn below: every vocabulary here is larger


class Given(NamedTuple):
    """An input: "tokens" (int64), "mask" (int64, 0 or 1) or "floats" (float32), and its shape."""

    kind: str
    shape: Shape


class Dynamic(NamedTuple):
    """A model with symbolic sizes; its network is the function of `benchmarks.exports.networks` of the same name."""

    inputs: Mapping[str, Given]
    outputs: Mapping[str, Shape]
    sizes: tuple[Sizes, ...]  # eight, the typical one first: 1, a prime, a large one and batch > 1 are among them

    @property
    def typical(self) -> Sizes:
        """The size of the static twin."""
        return self.sizes[0]


def at(shape: Shape, sizes: Sizes) -> tuple[int, ...]:
    """The shape in numbers; KeyError where a symbol has no size."""
    read = [size if isinstance(size, int) else dims.parse(size, dims.symbol) for size in shape]
    return tuple([dims.at(size, sizes) for size in read])


def draw(inputs: Mapping[str, Given], sizes: Sizes, seed: int) -> dict[str, np.ndarray]:
    """Inputs at the sizes; the last quarter of the last row of a mask is padding."""
    random = np.random.default_rng(seed)
    drawn = {}
    for name, given in inputs.items():
        shape = at(given.shape, sizes)
        if given.kind == "tokens":
            drawn[name] = random.integers(0, TOKENS, shape)
        elif given.kind == "mask":
            drawn[name] = np.ones(shape, np.int64)
            drawn[name][-1, shape[-1] - shape[-1] // 4 :] = 0
        else:
            drawn[name] = random.standard_normal(shape, np.float32)
    return drawn


def sizes_of(symbols: str, *rows: tuple[int, ...]) -> tuple[Sizes, ...]:
    """A row for each combination of the symbols' sizes."""
    return tuple(dict(zip(symbols.split(), row, strict=True)) for row in rows)


ENCODER = Dynamic(
    inputs={"input_ids": Given("tokens", ("batch", "seq")), "attention_mask": Given("mask", ("batch", "seq"))},
    outputs={"last_hidden_state": ("batch", "seq", 768)},
    sizes=sizes_of("batch seq", (1, 128), (1, 1), (1, 16), (1, 31), (1, 512), (2, 128), (3, 37), (8, 64)),
)


def decoder_with_cache(layers: int) -> Dynamic:
    """GPT-2: `layers` pairs of keys and values go in with the past and come out with the new tokens appended."""
    inputs = {"input_ids": Given("tokens", ("batch", "seq")), "attention_mask": Given("mask", ("batch", "past + seq"))}
    outputs = {"last_hidden_state": ("batch", "seq", 768)}
    for layer in range(layers):
        for part in ("key", "value"):
            inputs[f"past_key_values.{layer}.{part}"] = Given("floats", ("batch", 12, "past", 64))
            outputs[f"present.{layer}.{part}"] = ("batch", 12, "past + seq", 64)
    sizes = sizes_of(
        "batch seq past",
        (1, 16, 112),
        (1, 1, 0),
        (1, 1, 127),
        (1, 128, 0),
        (1, 7, 13),
        (2, 16, 112),
        (3, 5, 31),
        (1, 256, 256),
    )
    return Dynamic(inputs, outputs, sizes)


DYNAMIC: dict[str, Dynamic] = {
    "bert_base": ENCODER,
    "roberta_base": ENCODER,
    "gpt2": decoder_with_cache(layers=12),
    "vit_base": Dynamic(
        inputs={"pixel_values": Given("floats", ("batch", 3, 224, 224))},
        outputs={"logits": ("batch", 1000)},
        sizes=sizes_of("batch", (1,), (2,), (3,), (4,), (5,), (7,), (8,), (16,)),
    ),
    "bart": Dynamic(
        inputs={
            "input_ids": Given("tokens", ("batch", "encoder_seq")),
            "attention_mask": Given("mask", ("batch", "encoder_seq")),
            "decoder_input_ids": Given("tokens", ("batch", "decoder_seq")),
        },
        outputs={
            "last_hidden_state": ("batch", "decoder_seq", 768),
            "encoder_last_hidden_state": ("batch", "encoder_seq", 768),
        },
        sizes=sizes_of(
            "batch encoder_seq decoder_seq",
            (1, 128, 32),
            (1, 1, 1),
            (1, 128, 1),
            (1, 31, 17),
            (1, 512, 64),
            (2, 128, 32),
            (3, 37, 53),
            (8, 64, 16),
        ),
    ),
    "unet": Dynamic(
        inputs={
            "sample": Given("floats", ("batch", 4, "8*height", "8*width")),
            "timestep": Given("floats", ("batch",)),
        },
        outputs={"noise": ("batch", 4, "8*height", "8*width")},
        sizes=sizes_of(
            "batch height width",
            (1, 16, 16),
            (1, 1, 1),
            (1, 8, 8),
            (1, 13, 7),
            (1, 32, 32),
            (2, 16, 16),
            (3, 5, 11),
            (1, 24, 40),
        ),
    ),
    "detector": Dynamic(
        inputs={"images": Given("floats", ("batch", 3, "height", "width"))},
        outputs={"boxes": ("batch", "cells", 4), "scores": ("batch", "cells", 80)},
        sizes=sizes_of(
            "batch height width",
            (1, 224, 224),
            (1, 1, 1),
            (1, 32, 32),
            (1, 416, 352),
            (1, 640, 640),
            (2, 224, 224),
            (3, 160, 96),
            (1, 227, 131),
        ),
    ),
}


def export(name: str, exporter: str, static: bool, path: Path, seed: int) -> None:
    """Write the model by one of EXPORTERS, with its sizes symbolic or, static, all at the typical size.

    The same for the same seed, but for the order in which the dynamo exporter lists ranges in the file's metadata.
    """
    model = DYNAMIC[name]
    sizes = model.typical if static else {**model.typical, "batch": 2}  # exporters take a traced 1 for a constant
    network, arrays = torch_exporters.build(f"networks.{name}", seed), draw(model.inputs, sizes, seed).values()
    options = {} if static else symbolic(model, exporter)
    torch_exporters.write(
        network, arrays, list(model.inputs), list(model.outputs), path, exporter, EXPORTERS[exporter], **options
    )


def symbolic(model: Dynamic, exporter: str) -> dict:
    """The exporter's option that names the symbolic sizes."""
    shapes = {name: given.shape for name, given in model.inputs.items()}
    if exporter == "dynamo":
        return {"dynamic_shapes": {"inputs": tuple(dimensions(shape) for shape in shapes.values())}}
    return {"dynamic_axes": {name: named(shape) for name, shape in {**shapes, **model.outputs}.items()}}


def named(shape: Shape) -> dict[int, str]:
    """Axis -> expression, of the symbolic sizes."""
    return {axis: size for axis, size in enumerate(shape) if isinstance(size, str)}


def dimensions(shape: Shape) -> dict:
    """The same for the dynamo exporter. It learns of multiples, so that it need not round; of sums it cannot:
    they are names, which it finds to be sums."""
    import torch

    dynamic = {}
    for axis, size in named(shape).items():
        factor, times, symbol = size.partition("*")
        dynamic[axis] = int(factor) * torch.export.Dim(symbol) if times else size
    return dynamic


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("name", choices=list(DYNAMIC))
    arguments.add_argument("exporter", choices=list(EXPORTERS))
    arguments.add_argument("path", metavar="FILE", type=Path)
    arguments.add_argument("--static", action="store_true", help="with all sizes typical")
    arguments.add_argument("--seed", type=int, default=0, help="of the weights")
    export(**vars(arguments.parse_args()))
