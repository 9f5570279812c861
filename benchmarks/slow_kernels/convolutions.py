"""Convolutions of the catalogue, each with the forms that compute the same (see form.py)."""

from functools import partial

import numpy as np

from benchmarks.slow_kernels.form import USUAL, Kernel, drawn, slow, weight, zeros


@slow("ORT#3418, #16047", "Conv1d {0} → {1}, k {2}, {3:,} places", sizes=[
    (256, 256, 3, 1000, 1, 1), (128, 128, 7, 8000, 1, 1), (32, 32, 11, 16000, 1, 1),
])  # fmt: skip
@slow("ORT#3418, #16047", "Conv1d {0} → {1}, k {2}, dilation {5}, {3:,} places", sizes=[(64, 64, 3, 16000, 1, 4)])
@slow("ORT#9192", "depthwise Conv1d {0}, k {2}, {3:,} places", tiny=(8, 8, 3, 20, 2, 2), sizes=[
    (256, 256, 31, 400, 256, 1),
])  # fmt: skip
def conv1d(inp: int, out: int, kernel: int, length: int, groups: int, dilation: int) -> Kernel:
    w, b, pad = weight(out, inp // groups, kernel), drawn(out), dilation * (kernel - 1) // 2

    def usual(f, x):
        return f("Conv", x, w, b, pads=[pad, pad], dilations=[dilation], group=groups)

    def image(f, x, axis):
        pads, dilations = [0, 0], [1, 1]
        pads[3 - axis], dilations[3 - axis] = pad, dilation
        y = f("Unsqueeze", x, [axis])
        y = f("Conv", y, np.expand_dims(w, axis), b, pads=pads * 2, dilations=dilations, group=groups)
        return f("Squeeze", y, [axis])

    forms = {USUAL: usual, "Conv2d of height 1": partial(image, axis=2), "Conv2d of width 1": partial(image, axis=3)}
    return Kernel({"x": drawn(1, inp, length)}, forms, 2 * w.size * length)


@slow("onnx/tensorflow-onnx#2303", "Conv3d {} → {}, 3³, {} × {}²", tiny=(3, 4, 3, 5), sizes=[
    (32, 32, 16, 64), (64, 64, 16, 32),
])  # fmt: skip
def conv3d(inp: int, out: int, depth: int, size: int) -> Kernel:
    w, b = weight(out, inp, 3, 3, 3), drawn(out)

    def shifted(f, x):
        layers = f("Squeeze", f("Transpose", x, perm=[0, 2, 1, 3, 4]), [0])  # depth is the batch
        layers = f("Pad", layers, [1, 0, 0, 0, 1, 0, 0, 0])
        return [f("Slice", layers, [k], [k + depth], [0]) for k in range(3)]

    def back(f, y):
        return f("Transpose", f("Unsqueeze", y, [0]), perm=[0, 2, 1, 3, 4])

    def summed(f, x):
        biases = b, None, None
        terms = [f("Conv", part, w[:, :, k], biases[k], pads=[1] * 4) for k, part in enumerate(shifted(f, x))]
        return back(f, f("Sum", *terms))

    def joined(f, x):
        kernel = np.concatenate([w[:, :, k] for k in range(3)], axis=1)
        return back(f, f("Conv", f("Concat", *shifted(f, x), axis=1), kernel, b, pads=[1] * 4))

    forms = {USUAL: lambda f, x: f("Conv", x, w, b, pads=[1] * 6), "three Conv2d of shifted depths, summed": summed,
             "one Conv2d of three joined depths": joined}  # fmt: skip
    return Kernel({"x": drawn(1, inp, depth, size, size)}, forms, 2 * w.size * depth * size**2)


@slow("ORT#9192", "Conv 3 × 3, {} channels, {}², {} groups", tiny=(12, 5, 3), sizes=[
    (128, 56, 32), (256, 28, 32), (48, 56, 6),
])  # fmt: skip
def grouped(channels: int, size: int, groups: int) -> Kernel:
    per, forms = channels // groups, {}
    w, b = weight(channels, per, 3, 3), drawn(channels)
    convolution = partial(_same_conv, w, b, groups)
    forms[USUAL] = convolution
    for merged in range(2, groups + 1):  # numbers of groups that become one group of whole blocks
        if groups % merged == 0 and (merged * per in (8, 16) or merged == groups):
            wide = zeros(channels, merged * per, 3, 3)
            for k in range(channels):
                first = k // per % merged * per
                wide[k, first : first + per] = w[k]
            name = f"groups of {merged * per} channels" if merged < groups else "one group"
            forms[name] = partial(_same_conv, wide, b, groups // merged)
    return Kernel({"x": drawn(1, channels, size, size)}, forms, 2 * w.size * size**2)


def _same_conv(w, b, groups, f, x):
    return f("Conv", x, w, b, pads=[w.shape[-1] // 2] * 4, group=groups)


def phases(w: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """Return the kernels [2, 2, outputs, inputs, 3, 3] that make the four phases of an output of twice the size.

    Args:
        w: weight [outputs, inputs, k, k] on the large grid.
        taps: [2, 3, k], phase × tap on the small grid × tap on the large grid.
    """
    return np.einsum("rak,sbl,oikl->rsoiab", taps, taps, w).astype(np.float32)


def _low_resolution(kernels, b, apart, f, x):
    """Add the convolutions of all phases, one by one with 2 × 2 kernels or as one with 3 × 3, and DepthToSpace."""
    if apart:
        parts = [
            f("Conv", x, kernels[r, s][:, :, r : r + 2, s : s + 2], b, pads=[1 - r, 1 - s, r, s])
            for r in (0, 1) for s in (0, 1)
        ]  # fmt: skip
        y = f("Concat", *parts, axis=1)
    else:
        y = f("Conv", x, kernels.reshape(-1, *kernels.shape[3:]), np.tile(b, 4), pads=[1] * 4)
    return f("DepthToSpace", y, blocksize=2)


@slow("", "Resize nearest × 2, Conv 3 × 3, {} → {}, {}²", tiny=(3, 2, 4), sizes=[(64, 64, 64), (256, 128, 32)])
def upsampled(inp: int, out: int, size: int) -> Kernel:
    w, b = weight(out, inp, 3, 3), drawn(out)
    kernels = phases(w, np.array([[[1, 0, 0], [0, 1, 1], [0, 0, 0]], [[0, 0, 0], [1, 1, 0], [0, 0, 1]]]))

    def usual(f, x):
        return _same_conv(w, b, 1, f, _nearest(f, x))

    forms = {USUAL: usual, "four 2 × 2 convolutions, DepthToSpace": partial(_low_resolution, kernels, b, True),
             "one 3 × 3 convolution, DepthToSpace": partial(_low_resolution, kernels, b, False)}  # fmt: skip
    return Kernel({"x": drawn(1, inp, size, size)}, forms, 8 * w.size * size**2)


def _nearest(f, x):
    return f("Resize", x, None, np.array([1, 1, 2, 2], np.float32), mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric")  # fmt: skip


@slow("ORT PR 32698", "ConvTranspose 4 × 4, stride 2, {} → {}, {}²", tiny=(3, 2, 4), sizes=[(64, 32, 32)])
def conv_transpose(inp: int, out: int, size: int) -> Kernel:
    w, b = weight(inp, out, 4, 4), drawn(out)
    taps = np.array([[[0, 0, 0, 1], [0, 1, 0, 0], [0] * 4], [[0] * 4, [0, 0, 1, 0], [1, 0, 0, 0]]])
    kernels = phases(w.swapaxes(0, 1), taps)
    forms = {
        USUAL: lambda f, x: f("ConvTranspose", x, w, b, strides=[2, 2], pads=[1] * 4),
        "four 2 × 2 convolutions, DepthToSpace": partial(_low_resolution, kernels, b, True),
        "one 3 × 3 convolution, DepthToSpace": partial(_low_resolution, kernels, b, False),
    }
    return Kernel({"x": drawn(1, inp, size, size)}, forms, 2 * w.size * size**2)


@slow("ORT PR 32698", "ConvTranspose 2 × 2, stride 2, {} → {}, {}²", tiny=(3, 2, 4), sizes=[(64, 32, 64)])
def conv_transpose_apart(inp: int, out: int, size: int) -> Kernel:
    w, b = weight(inp, out, 2, 2), drawn(out)
    point = w.transpose(2, 3, 1, 0).reshape(4 * out, inp, 1, 1)
    forms = {USUAL: lambda f, x: f("ConvTranspose", x, w, b, strides=[2, 2]),
             "1 × 1 convolution, DepthToSpace":
             lambda f, x: f("DepthToSpace", f("Conv", x, point, np.tile(b, 4)), blocksize=2)}  # fmt: skip
    return Kernel({"x": drawn(1, inp, size, size)}, forms, 2 * w.size * size**2)


@slow("openvino#12963", "ConvTranspose1d {} → {}, k {}, stride {}, {} places", tiny=(3, 2, 4, 2, 5), sizes=[
    (256, 128, 16, 8, 256),
])  # fmt: skip
def conv_transpose_1d(inp: int, out: int, kernel: int, stride: int, length: int) -> Kernel:
    w, b, pad = weight(inp, out, kernel), drawn(out), (kernel - stride) // 2

    def image(f, x):
        y = f("ConvTranspose", f("Unsqueeze", x, [2]), w[:, :, None], b, strides=[1, stride], pads=[0, pad] * 2)
        return f("Squeeze", y, [2])

    forms = {USUAL: lambda f, x: f("ConvTranspose", x, w, b, strides=[stride], pads=[pad] * 2),
             "ConvTranspose2d of height 1": image}  # fmt: skip
    return Kernel({"x": drawn(1, inp, length)}, forms, 2 * w.size * length)


WINOGRAD = {  # size of a tile of the output → transforms of input, weight and output (Lavin and Gray, 2016)
    2: ([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
        [[1, 0, 0], [1 / 2] * 3, [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]],
        [[1, 1, 1, 0], [0, 1, -1, -1]]),
    4: ([[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0],
         [0, 4, 0, -5, 0, 1]],
        [[1 / 4, 0, 0], [-1 / 6] * 3, [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6],
         [0, 0, 1]],
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]),
}  # fmt: skip


@slow("", "Conv 3 × 3, {} channels, {}²", tiny=(3, 7), sizes=[(512, 28), (256, 56), (64, 56)])
def winograd(channels: int, size: int) -> Kernel:
    w, b = weight(channels, channels, 3, 3), drawn(channels)

    def tiled(tile, f, x):
        given, of_weight, made = map(np.array, WINOGRAD[tile])
        n, tiles = len(given), -(-size // tile)
        into, out = zeros(n, tiles, size + 2 * tile), zeros(tiles * tile, n, tiles)
        for t in range(tiles):
            into[:, t, t * tile : t * tile + n] = given  # column 0 is the padding in front of the image
            out[t * tile : (t + 1) * tile, :, t] = made
        into, out = into[:, :, 1 : size + 1].reshape(n * tiles, size), out[:size].reshape(size, n * tiles)
        kernel = np.einsum("ak,bl,oikl->aboi", of_weight, of_weight, w).astype(np.float32)
        y = f("MatMul", f("MatMul", into, x), into.T)
        y = f("Transpose", f("Reshape", y, [channels, n, tiles, n, tiles]), perm=[1, 3, 0, 2, 4])
        y = f("MatMul", kernel.reshape(n * n, channels, channels), f("Reshape", y, [n * n, channels, -1]))
        y = f("Transpose", f("Reshape", y, [n, n, channels, tiles, tiles]), perm=[2, 0, 3, 1, 4])
        y = f("MatMul", f("MatMul", out, f("Reshape", y, [1, channels, n * tiles, n * tiles])), out.T)
        return f("Add", y, b[:, None, None])

    forms = {USUAL: partial(_same_conv, w, b, 1), "Winograd F(4×4, 3×3)": partial(tiled, 4),
             "Winograd F(2×2, 3×3)": partial(tiled, 2)}  # fmt: skip
    return Kernel({"x": drawn(1, channels, size, size)}, forms, 2 * w.size * size**2)


@slow("", "Conv 3 × 3, dilation {2}, {0} channels, {1}²", tiny=(3, 8, 2), sizes=[(64, 64, 2)])
def dilated(channels: int, size: int, dilation: int) -> Kernel:
    w, b, d, part = weight(channels, channels, 3, 3), drawn(channels), dilation, size // dilation

    def batches(f, x):
        y = f("Transpose", f("Reshape", x, [channels, part, d, part, d]), perm=[2, 4, 0, 1, 3])
        y = _same_conv(w, b, 1, f, f("Reshape", y, [d * d, channels, part, part]))
        y = f("Transpose", f("Reshape", y, [d, d, channels, part, part]), perm=[2, 3, 0, 4, 1])
        return f("Reshape", y, [1, channels, size, size])

    forms = {USUAL: lambda f, x: f("Conv", x, w, b, pads=[d] * 4, dilations=[d, d]), "space to batch": batches}
    return Kernel({"x": drawn(1, channels, size, size)}, forms, 2 * w.size * size**2)


@slow("ORT PR 27248", "Conv {2} × {2}, stride {3}, {0} → {1}, {4}²", tiny=(2, 3, 5, 2, 9), sizes=[
    (3, 64, 11, 4, 224), (3, 64, 7, 2, 224), (3, 768, 16, 16, 224),
])  # fmt: skip
def stem(inp: int, out: int, kernel: int, stride: int, size: int) -> Kernel:
    w, b, pad = weight(out, inp, kernel, kernel), drawn(out), (kernel - stride) // 2
    places, taps = (size + 2 * pad - kernel) // stride + 1, -(-kernel // stride)
    behind = (places - 1 + taps) * stride - size - pad

    def blocks(f, x):
        wide = np.pad(w, [(0, 0), (0, 0), *[(0, taps * stride - kernel)] * 2])
        wide = wide.reshape(out, inp, taps, stride, taps, stride).transpose(0, 3, 5, 1, 2, 4)
        y = f("Pad", x, [0, 0, pad, pad, 0, 0, behind, behind])
        return f("Conv", f("SpaceToDepth", y, blocksize=stride), wide.reshape(out, -1, taps, taps), b)

    forms = {USUAL: lambda f, x: f("Conv", x, w, b, pads=[pad] * 4, strides=[stride] * 2),
             "SpaceToDepth, convolution without stride": blocks}  # fmt: skip
    return Kernel({"x": drawn(1, inp, size, size)}, forms, 2 * w.size * places**2)


@slow("", "depthwise Conv {1} × {1}, {0} channels, {2}²", tiny=(3, 5, 6), sizes=[(96, 7, 56)])
def depthwise(channels: int, kernel: int, size: int) -> Kernel:
    w, b, pad = weight(channels, 1, kernel, kernel), drawn(channels), kernel // 2

    def rows(f, x):
        y = f("Pad", x, [0, 0, pad, 0, 0, 0, pad, 0])
        parts = [f("Slice", y, [k], [k + size], [2]) for k in range(kernel)]
        biases = [b] + [None] * (kernel - 1)
        terms = [
            f("Conv", part, w[:, :, k : k + 1], biases[k], pads=[0, pad, 0, pad], group=channels)
            for k, part in enumerate(parts)
        ]
        return f("Sum", *terms)

    forms = {USUAL: partial(_same_conv, w, b, channels), "one convolution a row of the kernel, summed": rows}
    return Kernel({"x": drawn(1, channels, size, size)}, forms, 2 * w.size * size**2)


@slow("", "Resize linear × 4, Conv 1 × 1, {} → {}, {}²", tiny=(4, 3, 3), sizes=[(256, 21, 32)])
def pointwise_behind_resize(inp: int, out: int, size: int) -> Kernel:
    w, b = weight(out, inp, 1, 1), drawn(out)

    def larger(f, x):
        return f("Resize", x, None, np.array([1, 1, 4, 4], np.float32), mode="linear")

    forms = {USUAL: lambda f, x: f("Conv", larger(f, x), w, b),
             "Conv, Resize": lambda f, x: larger(f, f("Conv", x, w, b))}  # fmt: skip
    return Kernel({"x": drawn(1, inp, size, size)}, forms, 32 * w.size * size**2)


@slow("", "Conv 1 × 1, stride 2, {} → {}, {}²", tiny=(4, 3, 6), sizes=[(256, 512, 56)])
def strided_pointwise(inp: int, out: int, size: int) -> Kernel:
    w, b = weight(out, inp, 1, 1), drawn(out)

    def sliced(f, x):
        return f("Conv", f("Slice", x, [0, 0], [size, size], [2, 3], [2, 2]), w, b)

    forms = {USUAL: lambda f, x: f("Conv", x, w, b, strides=[2, 2]), "Slice, Conv": sliced}
    return Kernel({"x": drawn(1, inp, size, size)}, forms, w.size * size**2 / 2)
