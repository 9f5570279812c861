"""Random models for fuzzing: small, valid, numerically tame, and full of structures that rules almost match.

A graph consists of motifs: substructures that the rules are about, with random ranks, shapes, attributes and data
types, which read the tensors that the graph has already.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from benchmarks.random_models.activation_motifs import ACTIVATION_MOTIFS
from benchmarks.random_models.attention_motifs import ATTENTION_MOTIFS
from benchmarks.random_models.channel_motifs import CHANNEL_MOTIFS
from benchmarks.random_models.image_motifs import IMAGE_MOTIFS
from benchmarks.random_models.join_motifs import JOIN_MOTIFS
from benchmarks.random_models.matrix_motifs import MATRIX_MOTIFS
from benchmarks.random_models.motifs import MOTIFS
from benchmarks.random_models.norm_motifs import NORM_MOTIFS
from benchmarks.random_models.shape_motifs import SHAPE_MOTIFS
from benchmarks.random_models.sketch import INPUT_BOUND, Sketch
from benchmarks.random_models.slice_motifs import SLICE_MOTIFS
from benchmarks.random_models.window_motifs import WINDOW_MOTIFS

# Motif → how often it is drawn, relative to the others.
PLAIN = MOTIFS | JOIN_MOTIFS | MATRIX_MOTIFS | ACTIVATION_MOTIFS | NORM_MOTIFS | ATTENTION_MOTIFS | SLICE_MOTIFS
WITH_SYMBOLS = IMAGE_MOTIFS | WINDOW_MOTIFS
ON_IMAGES = WITH_SYMBOLS | CHANNEL_MOTIFS  # channels that are padded and cut are numbers
OF_SHAPES = 1.0  # motifs of shape arithmetic for every other one, where sizes are symbols


def random_model(seed: int) -> onnx.ModelProto:
    """Return a valid model of 3 to 25 operators; the same seed gives the same bytes."""
    return drawn(Sketch(seed))


def drawn(sketch: Sketch) -> onnx.ModelProto:
    """Draw motifs on a sketch and return its model."""
    # ONNX Runtime has no float64 kernels for images on the CPU.
    on_images = WITH_SYMBOLS if sketch.symbols else ON_IMAGES
    weights = PLAIN | (on_images if sketch.float != np.float64 else {})
    if sketch.symbols:
        share = OF_SHAPES * sum(weights.values()) / sum(SHAPE_MOTIFS.values())
        weights |= {motif: share * weight for motif, weight in SHAPE_MOTIFS.items()}
    motifs, shares = list(weights), np.cumsum(list(weights.values())) / sum(weights.values())
    wanted = int(sketch.rng.integers(3, 19))
    while len(sketch.nodes) < wanted:
        sketch.attempt(motifs[int(np.searchsorted(shares, sketch.rng.random(), side="right"))])
    return sketch.model()


def random_values(model: onnx.ModelProto, seed: int, sizes: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """Return random inputs: sixteenths and integers within ±2, so that sums and products are exact.

    Args:
        model: the model.
        seed: of the values.
        sizes: symbol → size.

    Raises:
        ValueError: a size is neither in the model nor in `sizes`.
    """
    rng = np.random.default_rng(seed)
    values = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [(sizes or {}).get(d.dim_param) if d.dim_param else d.dim_value for d in tensor.shape.dim]
        if None in shape:
            raise ValueError(f"a size of {value.name} is not known")
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        steps, limit = (16 if dtype.kind == "f" else 1), int(INPUT_BOUND)
        values[value.name] = np.asarray(rng.integers(-limit * steps, limit * steps + 1, shape) / steps).astype(dtype)
    return values
