"""Motifs of upsampling: a Resize, mostly by whole factors, and operators that can run before it instead."""

import numpy as np

from benchmarks.random_models.image_motifs import batch_norm, conv, image
from benchmarks.random_models.join_motifs import concat
from benchmarks.random_models.motifs import commuted, one
from benchmarks.random_models.sketch import Misfit, Sketch, Tensor

REPEATING = [("asymmetric", "floor")] * 8 + [
    ("half_pixel", "round_prefer_ceil"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "floor"),
    ("pytorch_half_pixel", "round_prefer_floor"), ("asymmetric", "round_prefer_ceil"),
    ("align_corners", "round_prefer_floor"),
]  # fmt: skip


def attributes_for(s: Sketch, x: Tensor, linear: float) -> dict:
    """Return attributes of a Resize of the image x.

    Args:
        s: the sketch.
        x: the image.
        linear: the probability of the mode linear, for an image with two spatial axes.
    """
    if len(x.shape) == 4 and s.chance(linear):
        place = s.pick(["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
        return {"mode": "linear", "coordinate_transformation_mode": place}
    place, rounding = s.pick(REPEATING)
    return {"mode": "nearest", "coordinate_transformation_mode": place, "nearest_mode": rounding}


def small_image(s: Sketch) -> Tensor:
    """Return an image with one or two spatial axes, seldom three, whose enlargement is still small."""
    if s.chance(0.15):
        return s.input([s.pick([1, 1, 2]), *(s.pick([1, 2]) for _ in range(4))])
    sizes = [s.pick([1, 1, 2]), *(s.pick([2, 3, 4]) for _ in range(s.pick([2, 3, 3, 3])))]
    return s.find(
        lambda t: t.dtype == s.float and 3 <= len(t.shape) <= 4 and 0 < min(t.shape) <= max(t.shape) < 9,
        lambda: s.input(sizes),
    )


def factors_for(s: Sketch, x: Tensor) -> list[int]:
    spatial = len(x.shape) - 2
    return [1, 1, *([2] * spatial if s.chance(0.8) else [s.pick([1, 2, 3]) for _ in range(spatial)])]


def resized(s: Sketch, x: Tensor, attributes: dict, factors: list[int]) -> Tensor:
    """Draw a Resize, with scales or with sizes, and return its tensor.

    Args:
        s: the sketch.
        x: the image.
        attributes: the attributes of the Resize.
        factors: the factor of each axis.

    Raises:
        Misfit: ONNX Runtime has no such Resize, or rules do not know it in this opset.
    """
    if s.float != np.float32 or s.opset < 13:
        raise Misfit
    roi = s.constant(np.zeros(0, np.float32)) if s.chance(0.1) else None
    if s.chance(0.2):
        sizes = np.array(factors, np.int64) * x.shape
        return s.op("Resize", x, roi, None, s.constant(sizes), bound=x.bound, **attributes)
    return s.op("Resize", x, roi, s.constant(np.array(factors, np.float32)), bound=x.bound, **attributes)


def resized_conv(s: Sketch) -> None:
    """Draw a Resize of an image, perhaps a Concat with other images, and a convolution of the result."""
    x = small_image(s)
    spatial, size = len(x.shape) - 2, s.pick([1, 3])
    y = resized(s, x, attributes_for(s, x, 0.6 if size == 1 else 0.1), factors_for(s, x))
    if s.chance(0.4):
        others = [s.input([y.shape[0], s.pick([1, 2]), *y.shape[2:]]) for _ in range(s.pick([1, 1, 2]))]
        y = concat(s, 1, *([y, *others] if s.chance(0.5) else [*others, y]))
    attributes = {"pads": [size // 2] * 2 * spatial} if s.chance(0.9) else {"strides": [2] * spatial}
    conv(s, y, [size] * spatial, s.chance(0.5), attributes)


def repeated_conv(s: Sketch) -> None:
    """Draw a nearest Resize by 2 or 4, seldom a Concat with another image, and a convolution that keeps the size."""
    x = small_image(s)
    spatial, factor = len(x.shape) - 2, s.pick([2, 2, 4])
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    y = resized(s, x, attributes, [1, 1, *[factor] * spatial])
    if s.chance(0.3):
        y = concat(s, 1, y, s.input([y.shape[0], 1, *y.shape[2:]]))
    conv(s, y, [3] * spatial, s.chance(0.5), {"pads": [1] * 2 * spatial})


def resized_elements(s: Sketch) -> None:
    """Draw a Resize of an image and an activation or normalisation, or a sum or product of two of them."""
    x = small_image(s)
    attributes, factors = attributes_for(s, x, 0.1), factors_for(s, x)
    y = resized(s, x, attributes, factors)
    match s.pick(["Relu", "LeakyRelu", "Sigmoid", "Clip", "norm", "both", "both"]):
        case "norm":
            batch_norm(s, y)
        case "both":
            commuted(s, s.pick(["Add", "Mul"]), y, resized(s, s.like(x), attributes, factors))
        case "Relu" | "Clip" as kind:
            one(s, kind, y)
        case kind:
            s.op(kind, y, bound=max(1.0, y.bound))


def cut_positions(s: Sketch) -> None:
    """Draw a convolution, mostly 1×1, and a Slice of its result along one axis or two."""
    x = image(s)
    spatial = len(x.shape) - 2
    y = conv(s, x, [1 if s.chance(0.85) else 2] * spatial, s.chance(0.5), {})
    axes = [len(y.shape) - 1] if s.chance(0.85) else [1, len(y.shape) - 1]
    starts, ends = [s.pick([0, 0, 1]) for _ in axes], [s.pick([2, 2, 3, -1]) for _ in axes]
    s.op("Slice", y, late={k: np.array(v, np.int64) for k, v in (("starts", starts), ("ends", ends), ("axes", axes))})


# motif → relative frequency
RESIZE_MOTIFS = {repeated_conv: 0.8, resized_conv: 3, resized_elements: 1, cut_positions: 1}
