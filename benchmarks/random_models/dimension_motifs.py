"""Motifs of convolutions over one axis and over three axes, and of a Squeeze before an operator on elements."""

import numpy as np

from benchmarks.random_models.image_motifs import batch_norm, conv, conv_attributes, pool, pool_attributes
from benchmarks.random_models.join_motifs import concat, split
from benchmarks.random_models.motifs import commuted, one
from benchmarks.random_models.sketch import Misfit, Sketch, Tensor


def rows(s: Sketch) -> None:
    """Draw a convolution over one axis, an activation or a pool, and mostly a second convolution and a sum."""
    x = s.real(rank=3) if s.chance(0.3) else s.input([s.pick([1, 2]), s.pick([2, 4]), s.pick([5, 6, 8])])
    kernel = [s.pick([1, 2, 3])]
    y = conv(s, x, kernel, s.chance(0.6), conv_attributes(s, x, kernel))
    match s.pick(["pool", "wider", "active", "active"]):
        case "pool":
            kind = s.pick(["MaxPool", "AveragePool"])
            y = pool(s, kind, y, pool_attributes(s, kind, y))
        case "wider":
            y = wider(s, y)
        case "active":
            y = active(s, y)
    if s.chance(0.6):
        z = conv(s, y, [3], s.chance(0.5), {"pads": [1, 1]}, y.shape[1])
        commuted(s, "Add", y, z)


def wider(s: Sketch, x: Tensor) -> Tensor:
    """Draw a transposed convolution over one axis, mostly with a bias, and return its tensor."""
    stride, channels = s.pick([1, 2, 2, 3]), s.pick([1, 2])
    w = s.weight((x.shape[1], channels, s.pick([2, 3, 4])), 4 * x.shape[1])
    bias = [s.weight((channels,))] if s.chance(0.8) else []
    attributes = {"strides": [stride]} | ({"pads": [s.pick([0, 1]), s.pick([0, 1])]} if s.chance(0.6) else {})
    bound = 4 * x.shape[1] * x.bound * w.bound + 2
    return s.op("ConvTranspose", x, w, *bias, bound=bound, **attributes)


def volume(s: Sketch) -> None:
    """Draw one or two convolutions over three axes: of three depths, of one depth, or over the depths alone."""
    x = s.input([s.pick([1, 2]), s.pick([2, 3]), s.pick([3, 4]), 3, s.pick([3, 4])])
    for _ in range(s.pick([1, 2])):
        kernel = s.pick([[3, 3, 3], [3, 2, 1], [1, 3, 3], [1, 2, 3], [3, 1, 1], [2, 1, 1]])
        attributes = {"pads": [k // 2 for k in kernel] * 2} if s.chance(0.8) else {}
        if s.chance(0.2):
            attributes["strides"] = [s.pick([1, 2]) for _ in kernel]
        x = conv(s, x, kernel, s.chance(0.5), attributes, s.pick([1, 2, 3]))
        x = s.op("Relu", x) if s.chance(0.5) else x


def squeezed(s: Sketch) -> None:
    """Draw a Squeeze, an operator on its result, and mostly an Unsqueeze of the same axis."""
    axis = s.pick([2, 2, 2, 1, 0])
    sizes = [s.pick([2, 3]), s.pick([2, 4]), s.pick([3, 4])]
    sizes.insert(axis, 1)
    axes = {"axes": np.array([axis - 4 if s.opset >= 11 and s.chance(0.2) else axis])}
    x = s.op("Squeeze", s.input(sizes), late=axes)
    match s.pick([*["active"] * 6, "two", "number", "number", "normalised", "Concat", "Slice", "Split"]):
        case "active":
            y = active(s, x)
        case "two":
            other = s.op("Squeeze", s.input(sizes), late=axes) if s.chance(0.5) else s.like(x)
            y = commuted(s, s.pick(["Add", "Mul"]), x, other) if s.chance(0.7) else s.op("Sub", x, other)
        case "number":
            kind = s.pick(["Add", "Mul", "Div", "Pow"])
            number = s.constant(np.full(() if kind == "Pow" or s.chance(0.7) else (1,), 2.0, x.dtype))
            y = s.op(kind, x, number, bound=x.bound**2 + 2)
        case "normalised":
            y = batch_norm(s, x)
        case "Concat":
            y = concat(s, s.pick([0, 1, 2]), x, s.op("Squeeze", s.input(sizes), late=axes))
        case "Slice":
            cut = s.pick([1, 2, -1] if s.opset >= 10 else [1, 2])
            late = {"starts": np.array([s.pick([0, 1])]), "ends": np.array([2]), "axes": np.array([cut])}
            y = s.op("Slice", x, late=late)
        case _:
            y = s.pick(split(s, x, s.pick([0, 1]), 2))
    if s.chance(0.7):
        s.op("Unsqueeze", y, late=axes)


def active(s: Sketch, x: Tensor) -> Tensor:
    kinds = ["Relu", "Relu", "LeakyRelu", "Elu", "Sigmoid", "Tanh", "Erf", "Sin"]
    kind = s.pick(kinds + ["Gelu"] * 4 if s.opset >= 20 else kinds)
    if x.dtype != np.float32 and kind in ("Sin", "Gelu", "Elu"):
        raise Misfit  # ONNX Runtime has no kernel for each type
    attributes = {"alpha": 0.25} if kind in ("LeakyRelu", "Elu") and s.chance(0.7) else {}
    if attributes or kind in ("Elu", "Erf", "Gelu", "Sin"):
        return s.op(kind, x, bound=max(x.bound, 1), **attributes)
    return one(s, kind, x)


DIMENSION_MOTIFS = {rows: 1.5, volume: 1, squeezed: 2}  # motif → relative frequency
