"""Random models, as a fuzzer wants them: small, valid, numerically tame, and full of what rules almost match.

A graph is put together from motifs: substructures that the rules speak about, with random ranks, shapes, attributes
and data types, which read whatever tensors the graph has already.
"""

import numpy as np
import onnx
from onnx import helper

from benchmarks.random_models.activation_motifs import ACTIVATION_MOTIFS
from benchmarks.random_models.attention_motifs import ATTENTION_MOTIFS
from benchmarks.random_models.image_motifs import IMAGE_MOTIFS
from benchmarks.random_models.join_motifs import JOIN_MOTIFS
from benchmarks.random_models.matrix_motifs import MATRIX_MOTIFS
from benchmarks.random_models.motifs import MOTIFS
from benchmarks.random_models.norm_motifs import NORM_MOTIFS
from benchmarks.random_models.sketch import INPUT_BOUND, Sketch
from benchmarks.random_models.slice_motifs import SLICE_MOTIFS
from benchmarks.random_models.window_motifs import WINDOW_MOTIFS

# Motif → how often it is drawn, relative to the others.
PLAIN = MOTIFS | JOIN_MOTIFS | MATRIX_MOTIFS | ACTIVATION_MOTIFS | NORM_MOTIFS | ATTENTION_MOTIFS | SLICE_MOTIFS
ON_IMAGES = IMAGE_MOTIFS | WINDOW_MOTIFS


def random_model(seed: int) -> onnx.ModelProto:
    """A valid model of 3 to 25 operators; the same seed gives the same bytes."""
    sketch = Sketch(seed)
    # ONNX Runtime has no float64 kernels for images on the CPU.
    weights = PLAIN | (ON_IMAGES if sketch.float != np.float64 else {})
    motifs, shares = list(weights), np.cumsum(list(weights.values())) / sum(weights.values())
    wanted = int(sketch.rng.integers(3, 19))
    while len(sketch.nodes) < wanted:
        sketch.attempt(motifs[int(np.searchsorted(shares, sketch.rng.random(), side="right"))])
    return sketch.model()


def random_values(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Values for the inputs: sixteenths within ±2, integers within ±2, so that sums and products are exact."""
    rng = np.random.default_rng(seed)
    values = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape, dtype = [d.dim_value for d in tensor.shape.dim], helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        steps, limit = (16 if dtype.kind == "f" else 1), int(INPUT_BOUND)
        values[value.name] = np.asarray(rng.integers(-limit * steps, limit * steps + 1, shape) / steps).astype(dtype)
    return values
