"""Motifs on the channels of images: padded, sliced, gathered, scaled, concatenated, reduced or normalised."""

import numpy as np

from benchmarks.random_models.image_motifs import (
    batch_norm,
    conv,
    conv_attributes,
    image,
    kernel_for,
    per_channel,
    pool,
    pool_attributes,
)
from benchmarks.random_models.join_motifs import concat, split
from benchmarks.random_models.motifs import calm, commuted, one, reduced, scalar
from benchmarks.random_models.norm_motifs import EPSILONS, deviation
from benchmarks.random_models.sketch import Misfit, Sketch, Tensor
from benchmarks.random_models.window_motifs import chosen


def depthwise(s: Sketch, x: Tensor) -> Tensor:
    """Draw a depthwise convolution of x and return its tensor; seldom each group has two channels instead of one."""
    kernel = kernel_for(s, x)
    group = x.shape[1] if s.chance(0.9) or x.shape[1] % 2 else x.shape[1] // 2
    attributes = conv_attributes(s, x, kernel, grouped=0) | {"group": group}
    return conv(s, x, kernel, s.chance(0.5), attributes, x.shape[1])


def separable(s: Sketch) -> None:
    """Draw a convolution, mostly with Relu, followed by a depthwise convolution, a MaxPool or a Pad of channels."""
    x = image(s)
    kernel = kernel_for(s, x)
    y = conv(s, x, kernel, s.chance(0.9), conv_attributes(s, x, kernel, grouped=0.1))
    y = s.op("Relu", y) if s.chance(0.75) else y
    match s.pick(["depthwise", "depthwise", "pool", "Pad"]):
        case "depthwise":
            depthwise(s, y)
        case "pool":
            pool(s, "MaxPool", y, pool_attributes(s, "MaxPool", y))
        case "Pad":
            before, after = [0] * len(y.shape), [0] * len(y.shape)
            after[1] = s.pick([1, 2])
            before[s.pick([1, 2])] = 0 if s.chance(0.85) else 1
            s.op("Pad", y, late={"pads": np.array(before + after)})


def cut_channels(s: Sketch) -> None:
    """Draw a Slice that removes the last channel, or look-alikes, beside an operator that treats each channel alone.

    The operator is a depthwise convolution after the Slice, or a pool before or after it. The look-alikes also remove
    the first channel or slice another axis.
    """
    x = s.input((1, s.pick([3, 4, 6]), 4, s.pick([3, 4])))  # an input, so that its number of channels is no symbol
    ends = {"starts": np.array([0 if s.chance(0.8) else 1]), "ends": np.array([x.shape[1] - 1])}
    axis = 1 if s.chance(0.9) else 2
    kind = s.pick(["depthwise", "depthwise", "MaxPool", "AveragePool"])
    if kind == "depthwise":
        y = s.op("Slice", x, late=ends | {"axes": np.array([axis])})
        depthwise(s, s.op("Relu", y) if s.chance(0.7) else y)
    elif s.chance(0.5):
        y = s.op("Slice", x, late=ends | {"axes": np.array([axis])})
        pool(s, kind, y, pool_attributes(s, kind, y))
    else:
        s.op("Slice", pool(s, kind, x, pool_attributes(s, kind, x)), late=ends | {"axes": np.array([axis])})


def chosen_channels(s: Sketch) -> None:
    """Draw a Gather of channels before a depthwise convolution or a Split."""
    y = chosen(s, image(s))
    depthwise(s, y) if s.chance(0.5) else split(s, y, 1 if s.chance(0.9) else 0, 2)


def scaled_join(s: Sketch) -> None:
    """Draw a Concat of two images, mostly along channels, then a factor or a summand for each channel."""
    x = image(s)
    joined = concat(s, 1 if s.chance(0.9) else 2, x, s.like(x))
    per_channel(s, joined, s.pick(["Mul", "Add"]))


def sampled(s: Sketch) -> None:
    """Draw an AveragePool with strides, mostly with windows of one element, then a convolution, mostly 1×1."""
    x = image(s)
    positions = len(x.shape) - 2
    window = {"kernel_shape": [1 if s.chance(0.9) else 2] * positions, "strides": [s.pick([1, 2, 2])] * positions}
    y = pool(s, "AveragePool", x, window)
    kernel = [1 if s.chance(0.9) else 2] * positions
    conv(s, y, kernel, s.chance(0.5), {} if s.chance(0.8) else {"pads": [1] * 2 * positions})


def mean_of_positions(s: Sketch) -> None:
    """Draw ReduceMean over all spatial axes, or seldom over channels, mostly with keepdims=0."""
    x = image(s)
    axes = [*range(2, len(x.shape))] if s.chance(0.85) else [1]
    s.op("ReduceMean", x, late={"axes": np.array(axes)}, keepdims=0 if s.chance(0.8) else 1)


def gated(s: Sketch) -> None:
    """Draw an image times one factor per channel, mostly the image's GlobalAveragePool, else an input of the graph."""
    x = image(s)
    gate = s.op("GlobalAveragePool", x) if s.chance(0.8) else s.input((1, *x.shape[1:2], *[1] * (len(x.shape) - 2)))
    commuted(s, "Mul", x, gate)


def joined_parts(s: Sketch) -> None:
    """Draw a Concat of images, an optional normalisation, an optional activation or Pad, and a convolution."""
    x = image(s)
    y = concat(s, 1 if s.chance(0.9) else 2, x, *(s.like(x) for _ in range(s.pick([1, 1, 2, 3]))))
    if s.chance(0.25):
        y = batch_norm(s, y)
    match s.pick(["nothing", "Relu", "Relu", "Sigmoid", "Clip", "HardSwish", "Pad"]):
        case "nothing":
            pass
        case "Pad":
            sides = [0, 0, *(s.pick([0, 1]) for _ in y.shape[2:])]
            y = s.op("Pad", y, late={"pads": np.array(sides * 2)})
        case "Clip":
            y = one(s, "Clip", y)
        case kind:
            y = s.op(kind if kind != "HardSwish" or s.opset >= 14 else "Relu", y)
    if s.chance(0.25):
        depthwise(s, y)
    else:
        kernel = kernel_for(s, y)
        bias, attributes = s.chance(0.5), conv_attributes(s, y, kernel, grouped=0.1)
        conv(s, y, kernel, bias, attributes, s.pick([0, 8]) * attributes.get("group", 1))


def reduced_channels(s: Sketch) -> None:
    """Draw a reduction of an image, mostly over its channels, else over axes beside them."""
    x = calm(s, image(s) if s.chance(0.5) else s.input((s.pick([1, 2]), s.pick([5, 6, 8]), 3, 4)), 4)
    axes = s.pick([[1], [1], [1], [1], [-len(x.shape) + 1], [1, 2], [2, 3], [0, 1]])
    if max(axes) == len(x.shape):
        axes = [2]
    count, keep = np.prod([x.shape[axis] for axis in axes]), {} if s.chance(0.5) else {"keepdims": s.pick([0, 1])}
    match s.pick(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMax", "ReduceL2", "ReduceSumSquare"]):
        case "ReduceL2" | "ReduceSumSquare" as kind:
            bound = x.bound**2 * count
            s.op(kind, x, late={"axes": np.array(axes)}, bound=bound**0.5 if kind == "ReduceL2" else bound, **keep)
        case kind:
            reduced(s, kind, x, axes, **keep)


def channel_norm(s: Sketch) -> None:
    """Draw a decomposed layer normalisation of the channels, (x − m) / σ · g + b, or a look-alike with other axes."""
    x = calm(s, image(s), 8)
    epsilon = s.pick(EPSILONS)
    centred = s.op("Sub", x, reduced(s, "ReduceMean", x, [1 if s.chance(0.9) else 2], keepdims=1))
    if s.chance(0.75):
        square = s.op("Pow", centred, scalar(s, x, 2), bound=centred.bound**2)
    else:
        square = s.op("Mul", centred, centred)
    sigma = deviation(s, square, 1 if s.chance(0.9) else 2, epsilon)
    y = s.op("Div", centred, sigma, bound=centred.bound * epsilon**-0.5)
    per_channel(s, per_channel(s, y, "Mul"), "Add")


def grouped_norm(s: Sketch) -> None:
    """Draw the operator GroupNormalization."""
    x = image(s)
    if s.opset < 21:
        raise Misfit
    groups = s.pick([g for g in (1, 2, 3, 4) if x.shape[1] % g == 0])
    largest = 4 * (np.prod(x.shape[1:]) / groups) ** 0.5 + 2
    scale, offset, epsilon = s.weight(x.shape[1:2]), s.weight(x.shape[1:2]), s.pick([0.5, 0.125])
    s.op("GroupNormalization", x, scale, offset, num_groups=groups, epsilon=epsilon, bound=largest)


def wide(s: Sketch) -> None:
    """Draw a convolution of 64 or 128 channels, mostly a 3×3 or 1×3 convolution without strides, and an activation."""
    channels = s.pick([64, 64, 128])
    x = s.input([1, channels, s.pick([4, 5, 6] if channels == 64 else [4]), s.pick([4, 5] if channels == 64 else [4])])
    attributes = {"pads": [1, 1, 1, 1]} if s.chance(0.7) else {} if s.chance(0.5) else {"pads": [0, 1, 2, 1]}
    strides = {"strides": [2, 2]} if s.chance(0.1) else {}
    kernel = [3, 3] if s.chance(0.8) else [1, 3]
    attributes = attributes if kernel[0] == 3 or s.chance(0.2) else {"pads": [0, 1, 0, 1]}
    y = conv(s, x, kernel, s.chance(0.5), attributes | strides, 32)
    if s.chance(0.5):
        s.op(s.pick(["Relu", "Relu", "LeakyRelu"]), y)


def tiles(s: Sketch) -> None:
    """Draw tiles of outputs that become rows, a Slice that mostly cuts the last tile, and an activation."""
    x = s.input([1, s.pick([2, 4]), s.pick([1, 2]), s.pick([2, 3])])
    _, outputs, channels, count = x.shape
    y = s.op("Transpose", x, perm=[0, 2, 3, 1])
    y = s.op("Reshape", y, s.constant(np.array([1, channels, 1, outputs * count])), bound=x.bound)
    axis = 3 if s.chance(0.8) else 1
    cut = {"starts": [0], "ends": [max(y.shape[axis] - s.pick([0, 1]), 1)], "axes": [axis]}
    s.op(s.pick(["Relu", "LeakyRelu"]), s.op("Slice", y, late={k: np.array(v, np.int64) for k, v in cut.items()}))


CHANNEL_MOTIFS = {  # motif → relative frequency
    separable: 2, cut_channels: 2, chosen_channels: 1, scaled_join: 1, sampled: 1, mean_of_positions: 0.7,
    gated: 1, joined_parts: 2, reduced_channels: 1.5, channel_norm: 1, grouped_norm: 0.5, wide: 0.7, tiles: 0.3,
}  # fmt: skip
