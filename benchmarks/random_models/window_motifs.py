"""Further motifs on images: convolutions and pools, combined with sums, Pad, Split, Gather, Slice and each other."""

from math import prod

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
    spans,
)
from benchmarks.random_models.join_motifs import concat, split
from benchmarks.random_models.motifs import commuted
from benchmarks.random_models.sketch import Misfit, Sketch, Tensor


def conv_sum(s: Sketch) -> None:
    """Draw the sum of two convolutions: of one tensor, of two tensors, or of two tensors with a common weight."""
    x = image(s)
    kernel, bias = kernel_for(s, x), s.chance(0.5)
    attributes = conv_attributes(s, x, kernel, grouped=0.1)
    group = attributes.get("group", 1)
    y = (
        x
        if s.chance(0.4)
        else s.like(x)
        if s.chance(0.7)
        else s.input([x.shape[0], group * s.pick([2, 3]), *x.shape[2:]])
    )
    channels = group * s.pick([1, 2, 3])
    if y.shape == x.shape and s.chance(0.35):
        w = s.weight((channels, x.shape[1] // group, *kernel), prod(kernel) * x.shape[1])
        bound = x.shape[1] * prod(kernel) * w.bound
        ys = [s.op("Conv", t, w, bound=bound * t.bound, **attributes) for t in (x, y)]
    else:
        ys = [conv(s, t, kernel, bias, attributes, channels) for t in (x, y)]
    commuted(s, "Add", *ys)


def conv_chain(s: Sketch) -> None:
    """Draw two convolutions in a row, at least one of them 1×1."""
    x = image(s)
    point, kernel, bias = [1] * (len(x.shape) - 2), kernel_for(s, x), s.chance(0.5)
    if s.chance(0.5):
        y = conv(s, x, kernel, bias, conv_attributes(s, x, kernel, grouped=0.1))
        conv(s, y, point, bias if s.chance(0.9) else not bias, {} if s.chance(0.9) else {"strides": [2] * len(point)})
    else:
        y = conv(s, x, point, s.chance(0.2), {})
        conv(s, y, kernel, bias, conv_attributes(s, y, kernel, grouped=0.1))


def conv_transposed(s: Sketch) -> None:
    """Draw ConvTranspose, then BatchNormalization, Mul or Add, which a rule can fold into it."""
    x = image(s)
    group = 2 if x.shape[1] % 2 == 0 and s.chance(0.15) else 1
    each, kernel = s.pick([1, 2, 3]), [s.pick([1, 2, 3])] * (len(x.shape) - 2)
    w = s.weight((x.shape[1], each, *kernel), x.shape[1])
    bias = [s.weight((each * group,))] if s.chance(0.4) else []
    attributes = ({"strides": [2] * len(kernel)} if s.chance(0.3) else {}) | ({"group": group} if group > 1 else {})
    bound = x.shape[1] * prod(kernel) * x.bound * w.bound + 2
    y = s.op("ConvTranspose", x, w, *bias, bound=bound, **attributes)
    kind = s.pick(["normalised", "normalised", "Mul", "Add"])
    batch_norm(s, y) if kind == "normalised" else per_channel(s, y, kind)


def conv_chosen(s: Sketch) -> None:
    """Draw a Gather of channels before or after a convolution: a permutation, or random channels with repetitions."""
    x = image(s)
    kernel = kernel_for(s, x)
    attributes = conv_attributes(s, x, kernel, grouped=0.1)
    if s.chance(0.5):
        conv(s, chosen(s, x), kernel, s.chance(0.5), attributes)
    else:
        chosen(s, conv(s, x, kernel, s.chance(0.6), attributes))


def chosen(s: Sketch, x: Tensor) -> Tensor:
    size = x.shape[1]
    channels = s.permutation(size) if s.chance(0.8) else s.rng.integers(0, size, size).tolist()
    return s.op("Gather", x, s.constant(np.array(channels)), axis=1, bound=x.bound)


def conv_cut(s: Sketch) -> None:
    """Draw a Slice, mostly of the first channels, and then a convolution, mostly depthwise."""
    x = s.find(lambda t: t.dtype == s.float and len(t.shape) == 4 and prod(t.shape) > 0 and t.shape[1] > 2,
               lambda: s.input((1, s.pick([3, 4, 6]), 4, s.pick([3, 4]))))  # fmt: skip
    size = x.shape[1]
    first, count = (0 if s.chance(0.9) else 1), int(s.rng.integers(1, size - 1)) + 1
    late = {"starts": np.array([first]), "ends": np.array([count]), "axes": np.array([1 if s.chance(0.9) else 2])}
    y = s.op("Slice", x, late=late)
    kernel = [s.pick([1, 2, 3])] * 2
    group = {"group": y.shape[1]} if s.chance(0.7) else {}
    conv(s, y, kernel, s.chance(0.5), {"pads": [1] * 4} | group, y.shape[1] if s.chance(0.85) else 2 * y.shape[1])


def padded(s: Sketch) -> None:
    """Draw one Pad or two, then a convolution or a pool, whose attribute `pads` could replace the Pad."""
    x = image(s)
    positions = len(x.shape) - 2
    x = s.op("Relu", x) if s.chance(0.6) else x
    for _ in range(s.pick([1, 1, 1, 2])):
        value = np.asarray(s.pick([0, 0, 0, 0.5]), x.dtype) if s.chance(0.4) else None
        pads = [0, 0, *s.rng.integers(0, 2, positions)] if s.chance(0.9) else [0, 1, *[1] * positions]
        x = s.op("Pad", x, late={"pads": np.array(pads * 2), "value": value}, bound=max(x.bound, 0.5))
    match s.pick(["conv", "conv", "MaxPool", "MaxPool", "AveragePool"]):
        case "conv":
            kernel = kernel_for(s, x)
            conv(s, x, kernel, s.chance(0.5), conv_attributes(s, x, kernel))
        case kind:
            attributes = (
                pool_attributes(s, kind, x) if s.chance(0.5) else {"kernel_shape": [s.pick([2, 3])] * positions}
            )
            if min(spans(x, attributes["kernel_shape"], attributes)) < 0:
                raise Misfit
            pool(s, kind, x, attributes)


def pooled_sum(s: Sketch) -> None:
    """Draw a pool of the sum of two images, or the sum of two pools."""
    x, kind = image(s), s.pick(["AveragePool", "AveragePool", "AveragePool", "MaxPool"])
    y, attributes = s.like(x), pool_attributes(s, kind, x)
    if s.chance(0.5):
        pool(s, kind, commuted(s, "Add", x, y), attributes)
    else:
        other = attributes if s.chance(0.9) else pool_attributes(s, kind, x)
        commuted(s, "Add", pool(s, kind, x, attributes), pool(s, kind, y, other))


def pooled_parts(s: Sketch) -> None:
    """Draw a Split of channels before or after a pool."""
    x, kind = image(s), s.pick(["AveragePool", "MaxPool"])
    axis = 1 if s.chance(0.9) else 2
    if s.chance(0.5):
        split(s, pool(s, kind, x, pool_attributes(s, kind, x)), axis, 2)
        return
    parts = split(s, x, axis, 2)
    attributes = pool_attributes(s, kind, parts[0])
    for each in parts:
        pool(s, kind, each, attributes)


def pools(s: Sketch) -> None:
    """Draw two MaxPools in a row, or one pool whose window covers all positions or, seldom, one position."""
    x = image(s)
    if s.chance(0.4):
        kind = s.pick(["MaxPool", "AveragePool"])
        pool(s, kind, x, {"kernel_shape": list(x.shape[2:]) if s.chance(0.85) else [1] * len(x.shape[2:])})
        return
    for _ in range(2):
        kernel = [s.pick([3, 3, 3, 2])] * (len(x.shape) - 2) if s.chance(0.8) else [s.pick([1, 3]) for _ in x.shape[2:]]
        pads = [k // 2 for k in kernel] * 2 if s.chance(0.85) else [0] * 2 * len(kernel)
        if min(spans(x, kernel, {"pads": pads})) < 0:
            raise Misfit
        x = s.op("MaxPool", x, kernel_shape=kernel, pads=pads)


def scaled_pool(s: Sketch) -> None:
    """Draw a factor or a summand per channel before or after MaxPool, AveragePool or GlobalAveragePool."""
    x, kind = image(s), s.pick(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalAveragePool"])
    change = s.pick(["Mul", "Add"])
    attributes = pool_attributes(s, kind, x) if kind != "GlobalAveragePool" else {}
    if s.chance(0.5):
        pool(s, kind, per_channel(s, x, change), attributes)
    else:
        per_channel(s, pool(s, kind, x, attributes), change)


def conv_changed(s: Sketch) -> None:
    """Draw a convolution with a change of its input, weight or result.

    The input gets a factor or a summand per channel, or the input, the weight or the result is multiplied by a number.
    """
    x = image(s)
    kernel = kernel_for(s, x)
    attributes = conv_attributes(s, x, kernel) if s.chance(0.5) else {}
    if min(spans(x, kernel, attributes)) < 0:
        raise Misfit

    def numbered(y: Tensor) -> Tensor:
        return commuted(s, "Mul", y, s.weight(s.pick([(), (), (1,), (1, 1, 1), y.shape[1:2]])))

    match s.pick(["channels", "channels", "input", "weight", "result"]):
        case "channels":
            conv(s, per_channel(s, x, s.pick(["Mul", "Add", "Add"])), kernel, s.chance(0.5), attributes)
        case "input":
            conv(s, numbered(x), kernel, s.chance(0.3), attributes)
        case "weight":
            w = numbered(s.input((s.pick([1, 2, 3]), x.shape[1], *kernel)))
            s.op("Conv", x, w, bound=x.shape[1] * prod(kernel) * x.bound * w.bound, **attributes | {"group": 1})
        case "result":
            numbered(conv(s, x, kernel, s.chance(0.3), attributes))


def joined_convs(s: Sketch) -> None:
    """Draw convolutions of two images with equal shapes and attributes, then Concat, mostly along channels."""
    x = image(s)
    kernel, bias = kernel_for(s, x), s.chance(0.5)
    attributes = conv_attributes(s, x, kernel, grouped=0.3)
    channels = attributes.get("group", 1) * s.pick([1, 2])
    ys = [conv(s, t, kernel, bias, attributes, channels) for t in (x, s.like(x))]
    concat(s, 1 if s.chance(0.9) else 0, *ys)


def fused_conv(s: Sketch) -> None:
    """Draw ONNX Runtime's FusedConv with an activation, mostly with a bias, seldom with a summand.

    Rules can separate only Relu from the convolution, and only if there is no summand.
    """
    x = image(s)
    kernel, channels = kernel_for(s, x), s.pick([1, 2, 3])
    w, bias = s.weight((channels, x.shape[1], *kernel), prod(kernel) * x.shape[1]), s.weight((channels,))
    if min(spans(x, kernel, {})) < 0:
        raise Misfit
    activation = s.pick([{"activation": "Relu"}] * 3 + [
        {"activation": "Clip", "activation_params": [0.0, 1.0]}, {"activation": "Sigmoid"}])  # fmt: skip
    more = [bias] if s.chance(0.7) else []
    if more and s.chance(0.15):
        more.append(s.input((x.shape[0], channels, *(np.array(x.shape[2:]) - kernel + 1).tolist())))
    bound = x.shape[1] * prod(kernel) * x.bound * w.bound + 4
    s.op("com.microsoft.FusedConv", x, w, *more, bound=bound, **activation)


WINDOW_MOTIFS = {  # motif → relative frequency
    conv_sum: 2, conv_chain: 2, conv_transposed: 2.5, conv_chosen: 1.5, conv_cut: 1.5, padded: 2, pooled_sum: 1.5,
    pooled_parts: 2, pools: 1.2, scaled_pool: 2, conv_changed: 1.5, joined_convs: 1, fused_conv: 0.7,
}  # fmt: skip
