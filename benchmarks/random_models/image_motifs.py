"""Motifs of convolutional networks: convolutions, pools and normalisations of images [N, C, …], 1 to 3 spatial axes."""

from math import prod

import numpy as np

from benchmarks.random_models.join_motifs import concat
from benchmarks.random_models.motifs import commuted, one, reshape
from benchmarks.random_models.sketch import Misfit, Sketch, Tensor


def image(s: Sketch) -> Tensor:
    """Return an existing tensor [N, C, …] with C > 1 and one to three spatial axes, or a new input of this kind."""
    rank = s.pick([3, 4, 4, 4, 4, 5])
    return s.find(
        lambda t: t.dtype == s.float and 3 <= len(t.shape) <= 5 and prod(t.shape) > 0 and t.shape[1] > 1,
        lambda: s.input([s.pick([1, 1, 2]), s.pick([2, 3, 4, 4, 6]), *(s.pick([3, 4, 5, 6]) for _ in range(rank - 2))]),
    )


def window(s: Sketch, x: Tensor, kernel: list[int], dilated: bool, widest: int = 0) -> dict:
    """Return random attributes strides, pads, auto_pad and dilations of a convolution or pool.

    Attributes with default values are mostly left out.

    Args:
        s: the sketch.
        x: the image.
        kernel: size of the kernel along each spatial axis.
        dilated: True if dilations are allowed.
        widest: each padding is less than the size of the kernel plus this number.

    Raises:
        Misfit: the window is larger than the padded image.
    """
    drawn = {}
    if s.chance(0.25):
        drawn["strides"] = [s.pick([1, 2, 2]) for _ in kernel]
    if s.chance(0.1) and all(stride <= k for stride, k in zip(drawn.get("strides", kernel), kernel, strict=True)):
        return drawn | {"auto_pad": s.pick(["SAME_UPPER", "SAME_LOWER"])}
    if s.chance(0.45):
        same = [k // 2 for k in kernel] * 2
        drawn["pads"] = same if s.chance(0.6) else [int(s.rng.integers(0, k + widest)) for k in kernel * 2]
    elif s.chance(0.1):
        drawn["auto_pad"] = s.pick(["VALID", "NOTSET"])
    if dilated and s.chance(0.12):
        drawn["dilations"] = [s.pick([1, 2]) for _ in kernel]
    if min(spans(x, kernel, drawn)) < 0:
        raise Misfit  # ONNX would infer one element, but the window fits nowhere
    return drawn


def spans(x: Tensor, kernel: list[int], window: dict) -> np.ndarray:
    """Return the largest shift of a window inside the padded image, for each spatial axis.

    A negative number means that the window is larger than the padded image.

    Args:
        x: the image.
        kernel: size of the kernel along each spatial axis.
        window: attributes `pads` and `dilations`, if they are present.
    """
    pads = np.reshape(window.get("pads", [0, 0] * len(kernel)), (2, -1)).sum(axis=0)
    return np.array(x.shape[2:]) + pads - 1 - (np.array(kernel) - 1) * window.get("dilations", 1)


def conv(s: Sketch, x: Tensor, kernel: list[int], bias: bool, attributes: dict, channels: int = 0) -> Tensor:
    """Draw a convolution and return its tensor.

    Args:
        s: the sketch.
        x: the image.
        kernel: size of the kernel along each spatial axis.
        bias: True for a convolution with a bias.
        attributes: attributes of the convolution, see `conv_attributes`.
        channels: number of output channels; 0 for a random number.
    """
    group = attributes.get("group", 1)
    inner = x.shape[1] // group
    channels = channels or (
        x.shape[-1] if x.shape[-1] % group == 0 and s.chance(0.15) else group * s.pick([1, 2, 3, 4])
    )
    fan_in = inner * prod(kernel)
    w = s.weight((channels, inner, *kernel), fan_in)
    inputs = [x, w] + ([s.weight((channels,))] if bias else [])
    written = {"kernel_shape": kernel} if s.chance(0.5) else {}
    return s.op("Conv", *inputs, bound=fan_in * x.bound * w.bound + 2 * bias, **written, **attributes)


def conv_attributes(s: Sketch, x: Tensor, kernel: list[int], grouped: float = 0.2) -> dict:
    attributes = window(s, x, kernel, dilated=True, widest=1)
    groups = [n for n in (2, 3, x.shape[1]) if x.shape[1] % n == 0]
    return attributes | ({"group": s.pick(groups)} if s.chance(grouped) else {})


def kernel_for(s: Sketch, x: Tensor) -> list[int]:
    return [s.pick([1, 2, 3, 3])] * (len(x.shape) - 2) if s.chance(0.85) else [s.pick([1, 2, 3]) for _ in x.shape[2:]]


def batch_norm(s: Sketch, x: Tensor, epsilon: float | None = None) -> Tensor:
    channels = (x.shape[1],)
    statistics = [s.weight(channels), s.weight(channels), s.weight(channels), s.weight(channels, positive=True)]
    attributes = {"epsilon": epsilon or s.pick([1e-5, 1e-3, 0.5])} | ({"momentum": 0.8} if s.chance(0.3) else {})
    return s.op("BatchNormalization", x, *statistics, bound=3 * (x.bound + 2) + 2, **attributes)


def per_channel(s: Sketch, x: Tensor, kind: str) -> Tensor:
    """Draw x times or plus a weight, mostly with one element per channel.

    Args:
        s: the sketch.
        x: the image.
        kind: "Mul" or "Add".
    """
    ones = [1] * (len(x.shape) - 2)
    others = [(), (1,), x.shape[-1:], x.shape[-1:], x.shape[1:]]
    shape = s.pick([(x.shape[1], *ones)] * 4 + [(1, x.shape[1], *ones)] * 2 + others)
    return commuted(s, kind, x, s.weight(shape))


def image_tail(s: Sketch, y: Tensor) -> Tensor:
    return s.pick([
        lambda: batch_norm(s, y), lambda: batch_norm(s, y), lambda: per_channel(s, y, "Mul"),
        lambda: per_channel(s, y, "Add"), lambda: s.op("Relu", y), lambda: one(s, "Clip", y),
    ])()  # fmt: skip


def conv_block(s: Sketch) -> None:
    x = image(s)
    if s.chance(0.12):
        pads = [0, 0, *s.rng.integers(0, 2, len(x.shape) - 2)] * 2
        x = s.op("Pad", x, late={"pads": np.array(pads, np.int64)})
    kernel = kernel_for(s, x)
    y = conv(s, x, kernel, s.chance(0.5), conv_attributes(s, x, kernel))
    for _ in range(s.pick([0, 1, 1, 2, 3])):
        y = image_tail(s, y)


def conv_siblings(s: Sketch) -> None:
    """Draw two or three convolutions of one image with equal kernel sizes, then perhaps a Concat of their results."""
    x = image(s)
    kernel, bias = kernel_for(s, x), s.chance(0.5)
    attributes = conv_attributes(s, x, kernel, grouped=0.1)
    ys = []
    for _ in range(s.pick([2, 2, 3])):
        also, own = bias if s.chance(0.95) else not bias, conv_attributes(s, x, kernel) if s.chance(0.1) else attributes
        y = conv(s, x, kernel, also, own)
        ys.append(s.op("Relu", y) if s.chance(0.1) else y)
    if s.chance(0.5):
        concat(s, 1, *([x, *ys] if s.chance(0.15) else ys))


def conv_enlarged(s: Sketch) -> None:
    """Draw a 1×1 convolution and a 3×3 convolution of one image, then perhaps a Concat of both."""
    x = s.real(rank=4) if s.chance(0.4) else s.input([1, s.pick([2, 3, 4]), s.pick([3, 4, 5]), 5])
    bias, pads = s.chance(0.5), [s.pick([0, 0, 0, 1])] * 4
    attributes = {"strides": [2, 2]} if s.chance(0.2) else {}
    larger = [pad + s.pick([1, 1, 1, 1, 1, 2]) for pad in pads] if s.chance(0.3) else [pad + 1 for pad in pads]
    convs = [(1, pads if pads[0] or s.chance(0.5) else None), (3, larger)]
    ys = [
        conv(s, x, [size] * 2, bias, attributes | ({"pads": pads} if pads else {}))
        for size, pads in (convs if s.chance(0.5) else convs[::-1])
    ]
    if s.chance(0.5):
        concat(s, 1, *ys)


def pool(s: Sketch, kind: str, x: Tensor, attributes: dict) -> Tensor:
    """Draw a pool and return its tensor.

    A MaxPool of an exact tensor sometimes has the indices of the maxima as its second output. Rounding could change the
    indices for other tensors.

    Args:
        s: the sketch.
        kind: "MaxPool" or "AveragePool".
        x: the image.
        attributes: attributes of the pool, see `pool_attributes`.
    """
    if kind == "MaxPool" and x.exact and s.chance(0.1):
        return s.op(kind, x, outputs=2, bound=max(x.bound, prod(x.shape)), **attributes)[0]
    return s.op(kind, x, **attributes)


def pool_attributes(s: Sketch, kind: str, x: Tensor) -> dict:
    kernel = [s.pick([1, 2, 2, 3])] * (len(x.shape) - 2) if s.chance(0.85) else [s.pick([1, 2, 3]) for _ in x.shape[2:]]
    attributes = window(s, x, kernel, dilated=s.opset >= (10 if kind == "MaxPool" else 19)) | {"kernel_shape": kernel}
    if s.opset >= 10 and s.chance(0.15):
        attributes["ceil_mode"] = 1
        strides = np.array(attributes.get("strides", 1))
        ends = attributes.get("pads", [0, 0] * len(kernel))[len(kernel) :]
        last = -(-spans(x, kernel, attributes) // strides) * strides
        if np.any(last >= spans(x, [1] * len(kernel), attributes) + 1 - ends):
            raise Misfit  # a window begins in the end padding: ONNX counts this window, ONNX Runtime does not
    if kind == "AveragePool" and s.chance(0.25):
        attributes["count_include_pad"] = 1
    return attributes


def relu_pool(s: Sketch) -> None:
    x, kind = image(s), s.pick(["MaxPool", "MaxPool", "AveragePool"])
    attributes = pool_attributes(s, kind, x)
    if s.chance(0.5):
        pool(s, kind, s.op("Relu", x), attributes)
    else:
        y = pool(s, kind, x, attributes)
        if s.chance(0.8):
            s.op("Relu", y)


def conv_pool(s: Sketch) -> None:
    """Draw a 1×1 convolution before or after an AveragePool or a GlobalAveragePool."""
    x = image(s)
    kernel = [1] * (len(x.shape) - 2)
    attributes = {"group": 2} if x.shape[1] % 2 == 0 and s.chance(0.15) else {}
    attributes |= window(s, x, kernel, dilated=True, widest=1) if s.chance(0.3) else {}
    pooled = pool_attributes(s, "AveragePool", x)

    def average(y: Tensor) -> Tensor:
        return s.op("GlobalAveragePool", y) if everywhere else pool(s, "AveragePool", y, pooled)

    everywhere, bias = s.chance(0.3), s.chance(0.6)
    if s.chance(0.5):
        average(conv(s, x, kernel, bias, attributes))
    else:
        conv(s, average(x), kernel, bias, attributes)


def joined_pools(s: Sketch) -> None:
    x, kind = image(s), s.pick(["MaxPool", "AveragePool"])
    y = s.like(x) if s.chance(0.6) else s.input([x.shape[0], s.pick([1, 2, 3]), *x.shape[2:]])
    attributes = pool_attributes(s, kind, x)
    axis = s.pick([1, 1, 1, 1, 0])
    if s.chance(0.5):
        other = attributes if s.chance(0.9) else pool_attributes(s, kind, x)
        concat(s, axis, pool(s, kind, x, attributes), pool(s, kind, y, other))
    else:
        pool(s, kind, concat(s, axis, x, y), attributes)


def normalised(s: Sketch) -> None:
    """Draw BatchNormalization of an image or of a tensor of rank 2 to 5, then up to two factors or summands."""
    x = image(s) if s.chance(0.7) else s.real(low=2, high=5)
    y = batch_norm(s, x)
    for _ in range(s.pick([0, 1, 2])):
        y = per_channel(s, y, s.pick(["Mul", "Add"]))


def joined_norms(s: Sketch) -> None:
    x = image(s)
    epsilon = s.pick([1e-5, 0.5])
    y = s.like(x) if s.chance(0.6) else s.input([x.shape[0], s.pick([1, 2, 3]), *x.shape[2:]])
    other = epsilon if s.chance(0.85) else 0.125
    concat(s, s.pick([1, 1, 1, 1, 0]), batch_norm(s, x, epsilon), batch_norm(s, y, other))


def mul_add(s: Sketch) -> None:
    """Draw an image times one factor per channel, plus one summand per channel."""
    per_channel(s, per_channel(s, image(s), "Mul"), "Add")


def channel_shuffle(s: Sketch) -> None:
    x = s.real(rank=4)
    n, c, h, w = x.shape
    groups = s.pick([g for g in (1, 2, 3, 4) if c % g == 0])
    y = s.op("Transpose", reshape(s, x, [n, groups, c // groups, h, w]), perm=[0, 2, 1, 3, 4])
    reshape(s, y, [n, -1, h, w] if s.chance(0.5) else x.shape)


def image_unary(s: Sketch) -> None:
    """Draw an operator on images that no rule rewrites, for instance LRN or ConvTranspose."""
    x = image(s)
    plain = ["GlobalMaxPool", "LeakyRelu", "Elu", "HardSigmoid"]
    match s.pick([*plain, "InstanceNormalization", "LRN", "PRelu", "ConvTranspose"]):
        case "InstanceNormalization":
            scale, offset = s.weight((x.shape[1],)), s.weight((x.shape[1],))
            s.op("InstanceNormalization", x, scale, offset, epsilon=0.5, bound=2 * prod(x.shape[2:]) ** 0.5 + 2)
        case "LRN":
            s.op("LRN", x, size=3) if len(x.shape) == 4 else None
        case "PRelu":
            s.op("PRelu", x, s.weight((x.shape[1], *[1] * (len(x.shape) - 2))), bound=2 * x.bound)
        case "ConvTranspose":
            w = s.weight((x.shape[1], 2, *[2] * (len(x.shape) - 2)), x.shape[1])
            s.op("ConvTranspose", x, w, bound=prod(w.shape) * x.bound * w.bound / 2)
        case kind:
            s.op(kind, x, bound=max(1.0, x.bound))


IMAGE_MOTIFS = {  # motif → relative frequency
    conv_block: 7, conv_siblings: 4, conv_enlarged: 2, relu_pool: 4, conv_pool: 4, joined_pools: 3,
    normalised: 3, joined_norms: 2, mul_add: 2, channel_shuffle: 1.5, image_unary: 1.5,
}  # fmt: skip
