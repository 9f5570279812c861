"""Reductions and normalisations of the catalogue, each with the forms that compute the same (see form.py)."""

from functools import partial

import numpy as np

from benchmarks.slow_kernels.form import USUAL, Kernel, drawn, ones, slow, zeros


def _sum(f, x, shape: tuple[int, int], factor: float = 1.0):
    """Add the sum over axis 1 of an image, times a factor, as a product with a row of equal numbers.

    Args:
        f: the form.
        x: tensor [1, channels, size, size].
        shape: channels and size.
        factor: the factor.
    """
    channels, size = shape
    y = f("MatMul", np.full((1, 1, channels), factor, np.float32), f("Reshape", x, [1, channels, -1]))
    return f("Reshape", y, [1, 1, size, size])


def _maximum(f, x, channels: int):
    """Add the maximum over axis 1 as a tree of Slice and Max."""
    while channels > 1:
        half = -(-channels // 2)  # the two parts overlap if `channels` is odd
        x = f("Max", f("Slice", x, [0], [half], [1]), f("Slice", x, [channels - half], [channels], [1]))
        channels = half
    return x


def _behind(op, f, x, **attributes):
    """Add an operator over the channels of an image, with the channels behind."""
    return f("Transpose", f(op, f("Transpose", x, perm=[0, 2, 3, 1]), axis=-1, **attributes), perm=[0, 3, 1, 2])


@slow("ORT#5253", "ReduceMean over axis 1, {} × {}²", tiny=(5, 4), sizes=[(64, 256), (256, 64)])
def reduce_mean(channels: int, size: int) -> Kernel:
    forms = {
        USUAL: lambda f, x: f("ReduceMean", x, [1]),
        "product with ones": lambda f, x: _sum(f, x, (channels, size), 1 / channels),
        "1 × 1 convolution": lambda f, x: f("Conv", x, np.full((1, channels, 1, 1), 1 / channels, np.float32)),
    }
    return Kernel({"x": drawn(1, channels, size, size)}, forms)


@slow("ORT#5253", "ReduceMean over the tokens, {} × {}", tiny=(5, 4), sizes=[(197, 768)])
def tokens_mean(tokens: int, features: int) -> Kernel:
    factors = np.full((1, 1, tokens), 1 / tokens, np.float32)
    forms = {USUAL: lambda f, x: f("ReduceMean", x, [1]), "product with ones": lambda f, x: f("MatMul", factors, x)}
    return Kernel({"x": drawn(1, tokens, features)}, forms)


@slow("ORT#25946", "ReduceMax over axis 1, {} × {}²", tiny=(5, 4), sizes=[(64, 256), (21, 256)])
def reduce_max(channels: int, size: int) -> Kernel:
    forms = {
        USUAL: lambda f, x: f("ReduceMax", x, [1]),
        "tree of Slice and Max": lambda f, x: _maximum(f, x, channels),
        "Transpose, ReduceMax": lambda f, x: f(
            "Reshape", f("ReduceMax", f("Transpose", x, perm=[0, 2, 3, 1]), [3]), [1, 1, size, size]
        ),
    }
    return Kernel({"x": drawn(1, channels, size, size)}, forms)


def _softmax(log: bool, channels: int, size: int) -> Kernel:
    op, shape = "LogSoftmax" if log else "Softmax", (channels, size)

    def parts(by_tree, f, x):
        shifted = f("Sub", x, _maximum(f, x, channels) if by_tree else f("ReduceMax", x, [1]))
        exponential = f("Exp", shifted)
        total = _sum(f, exponential, shape)
        return f("Sub", shifted, f("Log", total)) if log else f("Div", exponential, total)

    forms = {USUAL: lambda f, x: f(op, x, axis=1), "in parts, sum as a product": partial(parts, False),
             "in parts, sum as a product, maximum as a tree": partial(parts, True),
             f"Transpose, {op}, Transpose": partial(_behind, op)}  # fmt: skip
    if log:
        forms["Log of Softmax"] = lambda f, x: f("Log", f("Softmax", x, axis=1))
    return Kernel({"x": drawn(1, channels, size, size)}, forms)


@slow("", "Softmax over axis 1, {} × {}²", tiny=(5, 4), sizes=[(21, 256)])
def softmax(channels: int, size: int) -> Kernel:
    return _softmax(False, channels, size)


@slow("ORT#27095", "LogSoftmax over axis 1, {} × {}²", tiny=(5, 4), sizes=[(21, 256)])
def log_softmax(channels: int, size: int) -> Kernel:
    return _softmax(True, channels, size)


@slow("", "ArgMax over axis 1, {} × {}²", tiny=(5, 4), sizes=[(21, 256)])
def arg_max(channels: int, size: int) -> Kernel:
    def last(f, x):
        y = f("ArgMax", f("Transpose", x, perm=[0, 2, 3, 1]), axis=3, keepdims=0)
        return f("Unsqueeze", y, [1])

    forms = {USUAL: lambda f, x: f("ArgMax", x, axis=1), "Transpose, ArgMax": last,
             "TopK": lambda f, x: f("TopK", x, [1], axis=1, outputs=2)[1]}  # fmt: skip
    return Kernel({"x": drawn(1, channels, size, size)}, forms)


@slow("", "LayerNorm over axis 1 in primitives, {} × {}²", tiny=(5, 4), sizes=[(256, 32), (96, 56)])
def layer_norm_channels(channels: int, size: int) -> Kernel:
    scale, bias = drawn(channels), drawn(channels)

    def usual(f, x):
        off = f("Sub", x, f("ReduceMean", x, [1]))
        deviation = f("Sqrt", f("Add", f("ReduceMean", f("Pow", off, 2.0), [1]), 1e-6))
        return f("Add", f("Mul", f("Div", off, deviation), scale[:, None, None]), bias[:, None, None])

    def last(f, x):
        y = f("LayerNormalization", f("Transpose", x, perm=[0, 2, 3, 1]), scale, bias, axis=-1, epsilon=1e-6)
        return f("Transpose", y, perm=[0, 3, 1, 2])

    return Kernel({"x": drawn(1, channels, size, size)}, {USUAL: usual, "Transpose, LayerNormalization": last})


@slow("", "PixelNorm, {} × {}²", tiny=(5, 4), sizes=[(128, 64)])
def pixel_norm(channels: int, size: int) -> Kernel:
    def normed(mean, f, x):
        return f("Div", x, f("Sqrt", f("Add", mean(f, f("Mul", x, x)), 1e-8)))

    forms = {USUAL: partial(normed, lambda f, y: f("ReduceMean", y, [1])),
             "mean as a product": partial(normed, lambda f, y: _sum(f, y, (channels, size), 1 / channels))}  # fmt: skip
    return Kernel({"x": drawn(1, channels, size, size)}, forms)


@slow("", "LpNormalization over axis 1, {} × {}²", tiny=(5, 4), sizes=[(128, 64)])
def lp_norm(channels: int, size: int) -> Kernel:
    forms = {USUAL: lambda f, x: f("LpNormalization", x, axis=1),
             "in parts": lambda f, x: f("Div", x, f("Sqrt", _sum(f, f("Mul", x, x), (channels, size))))}  # fmt: skip
    return Kernel({"x": drawn(1, channels, size, size)}, forms)


@slow("", "GroupNorm of {} groups, {} × {}²", tiny=(2, 4, 3), sizes=[(32, 320, 64), (32, 128, 128)])
def group_norm(groups: int, channels: int, size: int) -> Kernel:
    scale, bias, each = drawn(channels), drawn(channels), channels // groups * size**2
    return Kernel({"x": drawn(1, channels, size, size)}, _instance_norm(groups, scale, bias, each, size))


@slow("", "InstanceNormalization, {} × {}²", tiny=(4, 3), sizes=[(64, 128)])
def instance_norm(channels: int, size: int) -> Kernel:
    scale, bias = drawn(channels), drawn(channels)
    forms = _instance_norm(channels, scale, bias, size**2, size)
    return Kernel({"x": drawn(1, channels, size, size)}, forms | {
        USUAL: lambda f, x: f("InstanceNormalization", x, scale, bias)
    })  # fmt: skip


def _instance_norm(groups, scale, bias, each, size):
    def normed(norm, affine, f, x):
        y = norm(f, f("Reshape", x, [1, groups, each]))
        return affine(f, f("Reshape", y, [1, len(scale), size, size]))

    def by_instance(f, x):
        return f("InstanceNormalization", x, ones(groups), zeros(groups))

    def by_layer(f, x):
        return f("LayerNormalization", x, ones(each), axis=-1)

    def apart(f, x):
        return f("Add", f("Mul", x, scale[:, None, None]), bias[:, None, None])

    def at_once(f, x):
        return f("BatchNormalization", x, scale, bias, zeros(len(scale)), ones(len(scale)), epsilon=0.0)

    return {
        USUAL: partial(normed, by_instance, apart),
        "InstanceNormalization, BatchNormalization": partial(normed, by_instance, at_once),
        "LayerNormalization, BatchNormalization": partial(normed, by_layer, at_once),
    }


@slow("ORT#25599", "BatchNorm1d with stored statistics, {} × {} × {}", tiny=(2, 3, 4), sizes=[(8, 256, 1000)])
def batch_norm_1d(batch: int, channels: int, length: int) -> Kernel:
    scale, bias, mean = drawn(channels), drawn(channels), drawn(channels)
    variance = np.abs(drawn(channels)) + ones(channels)
    factor = scale / np.sqrt(variance + np.float32(1e-5))

    def normed(f, x):
        return f("BatchNormalization", x, scale, bias, mean, variance)

    forms = {
        USUAL: normed,
        "BatchNorm2d": lambda f, x: f("Squeeze", normed(f, f("Unsqueeze", x, [3])), [3]),
        "Mul, Add": lambda f, x: f("Add", f("Mul", x, factor[:, None]), (bias - mean * factor)[:, None]),
    }
    return Kernel({"x": drawn(batch, channels, length)}, forms)


@slow("", "LeakyRelu, {} × {}²", tiny=(3, 4), sizes=[(64, 128)])
def leaky_relu(channels: int, size: int) -> Kernel:
    forms = {USUAL: lambda f, x: f("LeakyRelu", x, alpha=0.1), "Max": lambda f, x: f("Max", x, f("Mul", x, 0.1))}
    return Kernel({"x": drawn(1, channels, size, size)}, forms)
