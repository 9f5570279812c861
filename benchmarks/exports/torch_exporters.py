"""Torch's two exporters, and networks whose weights come from a seed."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np


def build(network: str, seed: int):
    """The network in inference mode, the same for the same seed. What initialisation leaves constant (biases, scales,
    statistics of normalisations) is drawn around that constant, so that nothing is 0 or 1 by chance.

    network: LIBRARY.NAME, as `benchmarks.exports.corpus` declares it.
    """
    import torch

    torch.manual_seed(seed)
    made = named(network).eval()
    with torch.no_grad():
        for tensor in [*made.parameters(), *made.buffers()]:
            if tensor.is_floating_point() and tensor.numel() > 1 and tensor.min() == tensor.max():
                tensor.add_(0.1 * torch.randn_like(tensor))
    return made


def named(network: str):
    """As its library makes it, with weights of its own initialisation."""
    library, name = network.split(".")
    if library == "torchvision":
        import torchvision

        return torchvision.models.get_model(name, weights=None)
    if library == "timm":
        import timm

        return timm.create_model(name, pretrained=False)
    from benchmarks.exports import networks

    return getattr(networks, name)()


def write(
    network, arrays: Iterable[np.ndarray], inputs: Sequence[str], outputs: Sequence[str], path: Path, exporter: str,
    opset: int, **options,
) -> None:  # fmt: skip
    """One file, weights included.

    Args:
      arrays: what the network is traced with, by position; inputs: their names.
      outputs: their names; none leaves naming to the exporter.
      exporter: dynamo or torchscript.
      options: of the exporter.
    """
    import torch

    if exporter == "dynamo":
        options |= {"external_data": False, "verbose": False}
    with torch.no_grad():
        torch.onnx.export(
            network, tuple(map(torch.from_numpy, arrays)), str(path), input_names=list(inputs),
            output_names=list(outputs) or None, opset_version=opset, dynamo=exporter == "dynamo", **options,
        )  # fmt: skip
