"""Networks whose branches wait for one another: a U-Net and a U-Net++, cells as NASNet's and DARTS's, dense blocks.

As exporters write them, seeded, with few channels: what matters is which results wait, not how large they are.
"""

from collections.abc import Callable

import onnx

from rlflow.zoo.builder import Builder

SIZE, OUTPUTS = 64, 10


def unet(seed: int = 0, width: int = 16, depth: int = 4) -> onnx.ModelProto:
    """Ronneberger et al. 2015: on every way up the image from the way down is joined."""
    b, skips = Builder("unet", seed), []
    x = b.input("x", [1, 3, SIZE, SIZE])
    for level in range(depth):
        with b.scope(f"down{level}"):
            x = _twice(b, x, width << level)
        if level < depth - 1:
            skips.append(x)
            x = b.max_pool(x, 2, 2)
    for level in reversed(range(depth - 1)):
        with b.scope(f"up{level}"):
            x = _twice(b, b.concat(skips[level], _larger(b, x, width << level)), width << level)
    b.output(b.conv(x, "head", OUTPUTS, 1, bias=True), "y", [1, OUTPUTS, SIZE, SIZE])
    return b.model()


def unetpp(seed: int = 0, width: int = 16, depth: int = 4) -> onnx.ModelProto:
    """Zhou et al. 2018: every node of a level reads all earlier ones of it, and one from below."""
    b, rows = Builder("unetpp", seed), []
    x = b.input("x", [1, 3, SIZE, SIZE])
    for level in range(depth):
        with b.scope(f"x{level}.0"):
            x = _twice(b, x, width << level)
        rows.append([x])
        x = b.max_pool(x, 2, 2)
    for column in range(1, depth):
        for level in range(depth - column):
            with b.scope(f"x{level}.{column}"):
                below = _larger(b, rows[level + 1][column - 1], width << level)
                rows[level].append(_twice(b, b.concat(*rows[level], below), width << level))
    b.output(b.conv(rows[0][-1], "head", OUTPUTS, 1, bias=True), "y", [1, OUTPUTS, SIZE, SIZE])
    return b.model()


def _twice(b: Builder, x: str, channels: int) -> str:
    for name in ("first", "second"):
        x = b.relu(b.conv(x, name, channels, 3, pad=1, bias=True))
    return x


def _larger(b: Builder, x: str, channels: int) -> str:
    """Twice as high and wide."""
    y = b.op("Resize", x, "", b.constant([1, 1, 2, 2]), mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric")  # fmt: skip
    return b.relu(b.conv(y, "up", channels, 1, bias=True))


def densenet(seed: int = 0, growth: int = 16, layers: tuple[int, ...] = (6, 8, 6)) -> onnx.ModelProto:
    """Huang et al. 2017: every layer reads the results of all before it in its block."""
    b = Builder("densenet", seed)
    x = b.relu(b.batch_norm(b.conv(b.input("x", [1, 3, SIZE, SIZE]), "stem", 2 * growth, 3, pad=1), "stem.norm"))
    for block, count in enumerate(layers):
        made = [x]
        for layer in range(count):
            with b.scope(f"block{block}.{layer}"):
                y = b.concat(*made) if layer else x
                y = b.conv(b.relu(b.batch_norm(y, "norm1")), "conv1", 4 * growth, 1)
                made.append(b.conv(b.relu(b.batch_norm(y, "norm2")), "conv2", growth, 3, pad=1))
        x = b.concat(*made)
        with b.scope(f"transition{block}"):
            x = b.conv(b.relu(b.batch_norm(x, "norm")), "conv", b.channels[x] // 2, 1)
            x = b.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    return _classified(b, b.relu(x))


def darts(seed: int = 0, width: int = 16, cells: int = 6) -> onnx.ModelProto:
    """The cell of DARTS (Liu et al. 2019, second order): four sums of two, joined; it reads the two cells before."""
    steps = [("sep3", 0, "sep3", 1), ("sep3", 0, "sep3", 1), ("sep3", 1, "skip", 0), ("skip", 0, "dil3", 2)]
    return _cells("darts", seed, width, cells, steps, joined=(2, 3, 4, 5))


def nasnet(seed: int = 0, width: int = 16, cells: int = 6) -> onnx.ModelProto:
    """The normal cell of NASNet-A (Zoph et al. 2018): five sums of two and an input, joined; it reads two cells."""
    steps = [("sep3", 1, "skip", 1), ("sep3", 0, "sep5", 1), ("avg", 1, "skip", 0), ("avg", 0, "avg", 0),
             ("sep5", 0, "sep3", 0)]  # fmt: skip
    return _cells("nasnet", seed, width, cells, steps, joined=(0, 2, 3, 4, 5, 6))


def _cells(name: str, seed: int, width: int, cells: int, steps: list[tuple], joined: tuple[int, ...]):
    """steps: (operation, what it reads, operation, what it reads); 0 and 1 are the cells before, 2 … the sums so far.
    joined: the results that make the cell's.
    """
    b = Builder(name, seed)
    before = last = b.batch_norm(b.conv(b.input("x", [1, 3, SIZE, SIZE]), "stem", 3 * width, 3, pad=1), "stem.norm")
    for cell in range(cells):
        with b.scope(f"cell{cell}"):
            made = []
            for side, x in (("before", before), ("last", last)):
                made.append(b.batch_norm(b.conv(b.relu(x), side, width, 1), f"{side}.norm"))
            for k, (one, first, other, second) in enumerate(steps):
                with b.scope(f"sum{k}"):
                    sides = _OPERATIONS[one](b, made[first], "a"), _OPERATIONS[other](b, made[second], "b")
                    made.append(b.op("Add", *sides))
            before, last = last, b.concat(*(made[k] for k in joined))
            b.channels[last] = width * len(joined)
    return _classified(b, b.relu(last))


def _separable(b: Builder, x: str, name: str, kernel: int) -> str:
    channels = b.channels[x]
    with b.scope(name):
        y = b.conv(b.relu(x), "depth", channels, kernel, pad=kernel // 2, groups=channels)
        return b.batch_norm(b.conv(y, "point", channels, 1), "norm")


_OPERATIONS: dict[str, Callable[[Builder, str, str], str]] = {
    "sep3": lambda b, x, name: _separable(b, x, name, 3),
    "sep5": lambda b, x, name: _separable(b, x, name, 5),
    "dil3": lambda b, x, name: _separable(b, x, name, 3),
    "avg": lambda b, x, name: b.op("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1]),
    "skip": lambda b, x, name: x,
}


def _classified(b: Builder, x: str) -> onnx.ModelProto:
    b.output(b.gemm(b.pooled_features(x), "classifier", b.channels[x], OUTPUTS), "y", [1, OUTPUTS])
    return b.model()


NETWORKS = {"unet": unet, "unetpp": unetpp, "densenet": densenet, "darts": darts, "nasnet": nasnet}
