"""Export of one file of the corpus; equal seeds and equal versions of the exporter give equal files.

    python -m benchmarks.exports.make NAME FILE [--source FILE] [--seed N]

Exporters are large packages, and RLFlow does not depend on them. Install them with `pip install '.[exports]'` in a
separate Python environment. Each function imports the exporter that it uses.
"""

import argparse
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

import numpy as np

from benchmarks.exports.corpus import CORPUS, EXPORTERS, MADE_FROM, Export, draw

CALIBRATION_INPUTS = 8  # number of inputs from which static quantisation determines the ranges of activations


def make(name: str, path: Path, source: Path | None, seed: int) -> None:
    """Write a file of the corpus.

    Args:
        name: key of CORPUS.
        path: the file to write.
        source: the exported file that the exporters float16 and qdq convert; None for other exporters.
        seed: seed of the random weights.
    """
    export = CORPUS[name]
    MAKERS[export.exporter](export, path, seed, *([source] if export.exporter in MADE_FROM else []))


# -- PyTorch -----------------------------------------------------------------------------------------


def by_torch(export: Export, path: Path, seed: int) -> None:
    import torch

    network, is_dynamo = torch_network(export.network, seed), export.exporter == "dynamo"
    options = {"external_data": False, "verbose": False} if is_dynamo else {}
    arrays = tuple(map(torch.from_numpy, draw(export.inputs, seed).values()))
    with torch.no_grad():
        torch.onnx.export(
            network, arrays, str(path), input_names=list(export.inputs), output_names=list(export.outputs) or None,
            opset_version=export.opset, dynamo=is_dynamo, **options,
        )  # fmt: skip


def torch_network(network: str, seed: int):
    """Return a PyTorch network with random weights in inference mode.

    Initialisation sets all elements of a bias, a scale or a normalisation statistic to one constant. Noise is added to
    such tensors, because an optimiser could exploit zeros and ones.

    Args:
        network: LIBRARY.NAME, see `Export.network`.
        seed: seed of the weights.
    """
    import torch

    torch.manual_seed(seed)
    made = named_network(network).eval()
    with torch.no_grad():
        for tensor in [*made.parameters(), *made.buffers()]:
            if tensor.is_floating_point() and tensor.numel() > 1 and tensor.min() == tensor.max():
                tensor.add_(0.1 * torch.randn_like(tensor))
    return made


def named_network(network: str):
    """Return a PyTorch network with the weights of its default initialisation.

    Args:
        network: LIBRARY.NAME, see `Export.network`; the library is torchvision, timm or a module of this package.
    """
    library, name = network.split(".")
    if library == "torchvision":
        import torchvision

        return torchvision.models.get_model(name, weights=None)
    if library == "timm":
        import timm

        return timm.create_model(name, pretrained=False)
    return getattr(import_module(f"benchmarks.exports.{library}"), name)()


# -- Keras -------------------------------------------------------------------------------------------


def by_keras(export: Export, path: Path, seed: int) -> None:
    import keras

    given = [keras.InputSpec(shape=given.shape, dtype="float32", name=name) for name, given in export.inputs.items()]
    keras_network(export, seed).export(
        str(path), format="onnx", input_signature=given, opset_version=export.opset, verbose=False
    )


def by_tf2onnx(export: Export, path: Path, seed: int) -> None:
    """Export a Keras network by tf2onnx. The network reads images with channels last, and the file with channels first.

    Args:
        export: the declaration of the file.
        path: the file to write.
        seed: seed of the weights.
    """
    import keras
    import tensorflow as tf
    import tf2onnx
    from keras.src.export.tf2onnx_lib import patch_tf2onnx

    patch_tf2onnx()  # tf2onnx alone does not run with NumPy 2
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
    """Return a Keras network with random weights, biases and normalisation parameters.

    Keras initialises biases and normalisation parameters with 0 and 1, which an optimiser could exploit.

    Args:
        export: the declaration of the file.
        seed: seed of the weights.
    """
    import keras

    keras.utils.set_random_seed(seed)
    model = getattr(keras.applications, export.network.removeprefix("keras."))(weights=None)
    rng = np.random.default_rng(seed)
    for layer in model.layers:
        for weight in layer.weights:
            if weight.name in ("beta", "bias", "moving_mean", "mean"):
                weight.assign(rng.normal(0, 0.1, weight.shape))
            elif weight.name in ("gamma", "moving_variance", "variance"):
                weight.assign(rng.uniform(0.5, 1.5, weight.shape))
        if hasattr(layer, "finalize_state"):  # a Normalization reads its mean and variance there
            layer.finalize_state()
    return model


# -- ONNX Runtime ------------------------------------------------------------------------------------


def in_float16(export: Export, path: Path, seed: int, source: Path) -> None:
    """Convert the file `source` to float16 and write it to `path`; inputs and outputs stay float32.

    `export` and `seed` are not used.
    """
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), path)


def quantised(export: Export, path: Path, seed: int, source: Path) -> None:
    """Quantise the file `source` statically and write it to `path`, with the types that ONNX Runtime advises for x86.

    Weights are int8 with a scale per channel, and activations are uint8.

    Args:
        export: the declaration of the file, with the inputs of the calibration.
        path: the file to write.
        seed: seed of the inputs of the calibration.
        source: the file to quantise.
    """
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
    """The inputs of the calibration in the interface of ONNX Runtime's CalibrationDataReader."""

    def __init__(self, export: Export, seed: int) -> None:
        self.inputs = iter([draw(export.inputs, seed + number) for number in range(CALIBRATION_INPUTS)])

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        return next(self.inputs, None)


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
