"""Motifs of normalisations: as exporters decompose them, as ONNX operators and as operators of ONNX Runtime."""

import numpy as np

from benchmarks.random_models.image_motifs import batch_norm
from benchmarks.random_models.matrix_motifs import biased, columns, gemm, matmul
from benchmarks.random_models.motifs import calm, commuted, reduced, scalar, without_double
from benchmarks.random_models.sketch import Misfit, Sketch, Tensor

EPSILONS = [0.5, 0.125, 2**-10]  # values of ε; a normalisation enlarges its input at most by the factor 1/√ε


def deviation(s: Sketch, squared: Tensor, axis: int, epsilon: float) -> Tensor:
    """Draw √(mean of `squared` along the axis + ε) and return its tensor."""
    variance = reduced(s, "ReduceMean", squared, [axis], **{"keepdims": 1} if s.chance(0.5) else {})
    summand = s.constant(np.full(s.pick([(), (), (1,), squared.shape[-1:]]), epsilon, squared.dtype))
    return s.op("Sqrt", commuted(s, "Add", variance, summand))


def layer_norm(s: Sketch) -> None:
    """Draw a decomposed layer normalisation: (x − m) / σ · g + b, or TensorFlow's x (g / σ) + (b − m g / σ).

    m and σ are mean and standard deviation along an axis; g and b are weights.
    """
    x = calm(s, s.real(low=1), 8)  # its square must not be too large
    last, rank = x.shape[-1], len(x.shape)
    axis, epsilon = s.pick([-1, -1, -1, rank - 1, 0]), s.pick(EPSILONS)
    mean = reduced(s, "ReduceMean", x, [axis], keepdims=1)
    centred = s.op("Sub", x, mean)
    two = scalar(s, x, 2)
    square = s.op("Mul", centred, centred) if s.chance(0.6) else s.op("Pow", centred, two, bound=centred.bound**2)
    sigma = deviation(s, square, axis if s.chance(0.85) else s.pick([-1, 0]), epsilon)
    largest, sizes = epsilon**-0.5, [(last,)] * 5 + [(1,), x.shape]
    if s.chance(0.35):
        factor = commuted(s, "Mul", s.op("Reciprocal", sigma, bound=largest), s.weight(s.pick(sizes)))
        offset = s.op("Sub", s.weight(s.pick(sizes)), commuted(s, "Mul", mean, factor))
        commuted(s, "Add", commuted(s, "Mul", x, factor), offset)
        return
    if s.chance(0.45):
        y = commuted(s, "Mul", centred, s.op("Reciprocal", sigma, bound=largest))
    else:
        y = s.op("Div", centred, sigma, bound=centred.bound * largest)
    y = commuted(s, "Mul", y, s.weight(s.pick(sizes)))
    if s.chance(0.8):
        biased(s, y)


def rms_norm(s: Sketch) -> None:
    """Draw a decomposed RMS normalisation, x / √(mean of x² + ε) · g."""
    x = calm(s, s.real(low=1), 8)
    axis, epsilon = s.pick([-1, -1, -1, len(x.shape) - 1, 0]), s.pick(EPSILONS)
    square = s.op("Mul", x, x) if s.chance(0.15) else s.op("Pow", x, scalar(s, x, 2), bound=x.bound**2)
    sigma, largest = deviation(s, square, axis, epsilon), epsilon**-0.5
    match s.pick(["reciprocal", "reciprocal", "one", "one", "quotient"]):
        case "reciprocal":
            y = commuted(s, "Mul", x, s.op("Reciprocal", sigma, bound=largest))
        case "one":
            y = commuted(s, "Mul", x, s.op("Div", scalar(s, x, 1), sigma, bound=largest))
        case "quotient":
            y = s.op("Div", x, sigma, bound=x.bound * largest)
    commuted(s, "Mul", y, s.weight(s.pick([x.shape[-1:]] * 5 + [(1,), x.shape])))


def whole_norm(s: Sketch) -> None:
    """Draw the operator RMSNormalization, or the operator LayerNormalization of a tensor or of a sum of two tensors."""
    if s.opset < 17:
        raise Misfit
    x = s.real(rank=3) if s.chance(0.5) else s.real(low=1)
    axis = {"axis": s.pick([-1, len(x.shape) - 1, 0])} if s.chance(0.3) else {}
    scale = x.shape[axis.get("axis", -1) % len(x.shape) :]
    largest = max(x.bound, 10, 2 * np.prod(scale) ** 0.5 + 2)
    if s.opset >= 23 and s.chance(0.4):
        s.op("RMSNormalization", x, s.weight(scale), epsilon=s.pick([0.5, 0.125]), bound=largest, **axis)
        return
    x = commuted(s, "Add", x, s.like(x)) if s.chance(0.6) else x
    outputs = s.pick([1, 1, 1, 2, 3])
    s.op(
        "LayerNormalization", x, s.weight(scale), *([s.weight(scale)] if s.chance(0.8) else []), outputs=outputs,
        omitted=[1] if outputs == 3 and s.chance(0.5) else [], epsilon=s.pick([0.5, 0.125]),
        bound=max(x.bound, largest), **axis,
    )  # fmt: skip


def own_norm(s: Sketch) -> None:
    """Draw ONNX Runtime's SkipLayerNormalization of tensors of rank 3 or, less often, 2."""
    without_double(s)
    x = s.real(rank=s.pick([3, 3, 3, 2]))
    y, size = s.like(x), x.shape[-1:]
    x = commuted(s, "Add", x, s.weight(s.pick([size, size, size, x.shape]))) if s.chance(0.5) else x
    scales = [s.weight(size), *([s.weight(size)] if s.chance(0.85) else [])]
    offset = [s.weight(size)] if len(scales) == 2 and s.chance(0.4) else []
    bound = 2 * size[0] ** 0.5 + 2
    s.op("com.microsoft.SkipLayerNormalization", x, y, *scales, *offset, epsilon=s.pick([0.5, 0.125]), bound=bound)


def normalised_product(s: Sketch) -> None:
    """Draw BatchNormalization after a MatMul or a Gemm."""
    x = s.real(rank=2)
    if s.chance(0.5):
        y = matmul(s, x, columns(s, x))
    else:
        y = gemm(s, x, ({"transB": 1} if s.chance(0.5) else {}) | ({"alpha": 0.5} if s.chance(0.2) else {}))
    if len(y.shape) < 2:
        raise Misfit
    batch_norm(s, y)


NORM_MOTIFS = {  # motif → relative frequency
    layer_norm: 5.5, rms_norm: 4, whole_norm: 2.5, own_norm: 1.2, normalised_product: 1,
}  # fmt: skip
