"""Makes a file of the corpus: the same for the same seed and the same exporters.

    python -m benchmarks.exports.make NAME FILE [--source FILE] [--seed N]

Exporters are heavy and none of RLFlow's business: `pip install '.[exports]'`, in an environment of its own. Each is
imported where it is used.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.exports import torch_exporters
from benchmarks.exports.corpus import CORPUS, EXPORTERS, MADE_FROM, Export
from benchmarks.exports.dynamic import draw
from benchmarks.keras_models import draw_statistics

CALIBRATED = 8  # inputs that quantisation looks at


def make(name: str, path: Path, source: Path | None, seed: int) -> None:
    """source: the file that those of MADE_FROM are made from."""
    export = CORPUS[name]
    MAKERS[export.exporter](export, path, seed, *([source] if export.exporter in MADE_FROM else []))


def by_torch(export: Export, path: Path, seed: int) -> None:
    network, arrays = torch_exporters.build(export.network, seed), draw(export.inputs, {}, seed).values()
    torch_exporters.write(network, arrays, list(export.inputs), export.outputs, path, export.exporter, export.opset)


def by_keras(export: Export, path: Path, seed: int) -> None:
    import keras

    given = [keras.InputSpec(shape=given.shape, dtype="float32", name=name) for name, given in export.inputs.items()]
    keras_network(export, seed).export(
        str(path), format="onnx", input_signature=given, opset_version=export.opset, verbose=False
    )


def by_tf2onnx(export: Export, path: Path, seed: int) -> None:
    """From a function of TensorFlow, whose channels come last; the file takes them first, as tf2onnx offers."""
    import keras
    import tensorflow as tf
    import tf2onnx
    from keras.src.export.tf2onnx_lib import patch_tf2onnx

    patch_tf2onnx()  # NumPy 2
    model = keras_network(export, seed)
    for layer in model.layers:
        if isinstance(layer, keras.layers.Normalization):  # tensors that a function captures would become inputs
            layer.mean, layer.variance = layer.mean.numpy(), layer.variance.numpy()
    ((name, (_, (batch, channels, height, width))),) = export.inputs.items()
    tf2onnx.convert.from_function(
        tf.function(lambda images: model(images, training=False)),
        [tf.TensorSpec([batch, height, width, channels], tf.float32, name=name)], opset=export.opset,
        inputs_as_nchw=[f"{name}:0"], output_path=str(path),
    )  # fmt: skip


def keras_network(export: Export, seed: int):
    """With random weights and statistics."""
    import keras

    keras.utils.set_random_seed(seed)
    model = getattr(keras.applications, export.network.removeprefix("keras."))(weights=None)
    draw_statistics(model, np.random.default_rng(seed))
    return model


def in_float16(export: Export, path: Path, seed: int, source: Path) -> None:
    """Inputs and outputs stay in float32, as is ONNX Runtime's advice."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), path)


def quantised(export: Export, path: Path, seed: int, source: Path) -> None:
    """Weights int8 by channel, activations uint8, as ONNX Runtime advises for x86; after its own preparation."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = path.with_suffix(".prepared.onnx")
    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared), str(path), Calibration(export, seed), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    prepared.unlink()


class Calibration:
    """Inputs from which activations take their ranges; ONNX Runtime asks for one after the other."""

    def __init__(self, export: Export, seed: int) -> None:
        self.drawn = iter([draw(export.inputs, {}, seed + number) for number in range(CALIBRATED)])

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        return next(self.drawn, None)


MAKERS: dict[str, Callable[..., None]] = dict(
    zip(EXPORTERS, (by_torch, by_torch, by_keras, by_tf2onnx, in_float16, quantised), strict=True)
)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("name", choices=list(CORPUS))
    arguments.add_argument("path", metavar="FILE", type=Path)
    arguments.add_argument("--source", type=Path, metavar="FILE", help="the file that this one is made from")
    arguments.add_argument("--seed", type=int, default=0, help="of the weights")
    make(**vars(arguments.parse_args()))
