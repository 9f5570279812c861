"""Random models for fuzzing: small and valid, with bounded values and many structures that rules match or almost match.

A graph consists of motifs. A motif is a substructure that rules match, with random rank, shape, attributes and data
type. It reads inputs and results that the graph already has.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from benchmarks.random_models.activation_motifs import ACTIVATION_MOTIFS
from benchmarks.random_models.algebra_motifs import ALGEBRA_IMAGE_MOTIFS, ALGEBRA_MOTIFS
from benchmarks.random_models.attention_motifs import ATTENTION_MOTIFS
from benchmarks.random_models.channel_motifs import CHANNEL_MOTIFS
from benchmarks.random_models.dimension_motifs import DIMENSION_MOTIFS
from benchmarks.random_models.image_motifs import IMAGE_MOTIFS
from benchmarks.random_models.join_motifs import JOIN_MOTIFS
from benchmarks.random_models.matrix_motifs import MATRIX_MOTIFS
from benchmarks.random_models.motifs import MOTIFS
from benchmarks.random_models.norm_motifs import NORM_MOTIFS
from benchmarks.random_models.resize_motifs import RESIZE_MOTIFS
from benchmarks.random_models.shape_motifs import SHAPE_MOTIFS
from benchmarks.random_models.sketch import INPUT_BOUND, Sketch
from benchmarks.random_models.slice_motifs import SLICE_MOTIFS
from benchmarks.random_models.window_motifs import WINDOW_MOTIFS

# The following mappings are motif → relative frequency.
PLAIN = (
    MOTIFS | JOIN_MOTIFS | MATRIX_MOTIFS | ACTIVATION_MOTIFS | NORM_MOTIFS | ATTENTION_MOTIFS | SLICE_MOTIFS
    | ALGEBRA_MOTIFS
)  # fmt: skip
WITH_SYMBOLS = IMAGE_MOTIFS | WINDOW_MOTIFS | DIMENSION_MOTIFS | ALGEBRA_IMAGE_MOTIFS
ON_IMAGES = WITH_SYMBOLS | CHANNEL_MOTIFS | RESIZE_MOTIFS  # not with symbols: these motifs need numbers as sizes
OF_SHAPES = 1.0  # in models with symbols: number of motifs of shape arithmetic per other motif


def random_model(seed: int) -> onnx.ModelProto:
    """Return a valid model without symbols, with 3 to 25 nodes besides Constant nodes; equal seeds give equal bytes."""
    return drawn(Sketch(seed))


def drawn(sketch: Sketch) -> onnx.ModelProto:
    """Add random motifs to a sketch until it has a random number of nodes (3 to 18), and return its model."""
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
    """Return random inputs of a model: name → array.

    Floating-point elements are multiples of 1/16 and integers are whole numbers, all from -2 to 2. Sums and products of
    such numbers are exact.

    Args:
        model: the model.
        seed: seed of the values.
        sizes: symbol → size, for a model with symbols.

    Raises:
        ValueError: `sizes` lacks a symbol of the model.
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
