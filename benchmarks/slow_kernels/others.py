"""Products, selections, recurrences and low precision in the catalogue, with the forms that compute the same."""

from functools import partial

import numpy as np
from onnx import TensorProto, helper

from benchmarks.slow_kernels.form import CONTRIB, USUAL, Kernel, drawn, ones, slow, weight, zeros

# -- products and transforms -------------------------------------------------------------------------


@slow("ORT#5897", "Einsum bsnh,btnh→bnts, {} places, {} heads of {}", tiny=(3, 2, 4), sizes=[(128, 12, 64)])
def einsum_scores(places: int, heads: int, features: int) -> Kernel:
    def product(f, a, b):
        return f("MatMul", f("Transpose", b, perm=[0, 2, 1, 3]), f("Transpose", a, perm=[0, 2, 3, 1]))

    shape = 1, places, heads, features
    forms = {USUAL: lambda f, a, b: f("Einsum", a, b, equation="bsnh,btnh->bnts"), "MatMul": product}
    return Kernel({"a": drawn(*shape), "b": drawn(*shape)}, forms, 2 * heads * places**2 * features)


@slow("ORT#27154", "Einsum nchw,c→nchw, {} × {}²", tiny=(4, 5), sizes=[(64, 56)])
def einsum_scale(channels: int, size: int) -> Kernel:
    forms = {USUAL: lambda f, x, c: f("Einsum", x, c, equation="nchw,c->nchw"),
             "Mul": lambda f, x, c: f("Mul", x, f("Reshape", c, [channels, 1, 1]))}  # fmt: skip
    return Kernel({"x": drawn(1, channels, size, size), "c": drawn(channels)}, forms)


def fourier(size: int) -> np.ndarray:
    """Return the matrix [size, bins, 2] of the discrete Fourier transform of real numbers."""
    angles = 2 * np.pi / size * np.outer(np.arange(size), np.arange(size // 2 + 1))
    return np.stack([np.cos(angles), -np.sin(angles)], axis=-1).astype(np.float32)


@slow("ORT#32403", "DFT of {} frames of {}", tiny=(3, 6), sizes=[(300, 400), (300, 512)])
def dft(frames: int, size: int) -> Kernel:
    def product(f, x):
        y = f("MatMul", f("Reshape", x, [1, frames, size]), fourier(size).reshape(size, -1))
        return f("Reshape", y, [1, frames, -1, 2])

    forms = {USUAL: lambda f, x: f("DFT", x, axis=2, onesided=1), "product": product}
    return Kernel({"x": drawn(1, frames, size, 1)}, forms)


@slow("ORT#32403", "STFT of {:,} samples, frames of {}, step {}", tiny=(20, 6, 3), sizes=[(16000, 400, 160)])
def stft(samples: int, size: int, step: int) -> Kernel:
    window, frames = np.hanning(size + 1)[:-1].astype(np.float32), (samples - size) // step + 1
    matrix = fourier(size) * window[:, None, None]

    def convolution(f, x):
        y = f("Conv", f("Unsqueeze", x, [1]), matrix.transpose(2, 1, 0).reshape(-1, 1, size), strides=[step])
        return f("Transpose", f("Reshape", y, [1, 2, -1, frames]), perm=[0, 3, 2, 1])

    def product(f, x):
        places = np.arange(frames)[:, None] * step + np.arange(size)
        y = f("MatMul", f("Gather", x, places, axis=1), matrix.reshape(size, -1))
        return f("Reshape", y, [1, frames, -1, 2])

    forms = {USUAL: lambda f, x: f("STFT", x, np.array(step), window, np.array(size)),
             "Conv with the Fourier matrix": convolution, "Gather of the frames, product": product}  # fmt: skip
    return Kernel({"x": drawn(1, samples)}, forms)


@slow("", "CumSum, {} × {}", tiny=(3, 5), sizes=[(256, 512)])
def cum_sum(rows: int, columns: int) -> Kernel:
    triangle = np.triu(ones(columns, columns))
    forms = {USUAL: lambda f, x: f("CumSum", x, np.array(1)), "product": lambda f, x: f("MatMul", x, triangle)}
    return Kernel({"x": drawn(rows, columns)}, forms)


@slow("ORT#19924", "attention, {} places, {} heads of {}", tiny=(5, 2, 8), sizes=[(1500, 6, 64), (197, 12, 64)])
def attention(places: int, heads: int, features: int) -> Kernel:
    shape = [1, places, heads, features]

    def usual(f, q, k, v):
        q, k, v = (
            f("Transpose", f("Reshape", x, shape), perm=perm)
            for x, perm in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3]))
        )
        scores = f("Softmax", f("Mul", f("MatMul", q, k), features**-0.5), axis=-1)
        return f("Reshape", f("Transpose", f("MatMul", scores, v), perm=[0, 2, 1, 3]), [1, places, heads * features])

    def fused(f, q, k, v):
        return f(f"{CONTRIB}.MultiHeadAttention", q, k, v, num_heads=heads)

    inputs = {name: drawn(1, places, heads * features) for name in "qkv"}
    return Kernel(inputs, {USUAL: usual, "MultiHeadAttention": fused}, 4 * heads * places**2 * features)


# -- images ------------------------------------------------------------------------------------------


@slow("ORT#23391", "Resize linear × 2, {} × {}²", tiny=(3, 4), sizes=[(256, 28), (64, 64)])
def resize_linear(channels: int, size: int) -> Kernel:
    centres = np.clip((np.arange(2 * size) + 0.5) / 2 - 0.5, 0, size - 1)
    matrix = np.maximum(0, 1 - abs(centres[:, None] - np.arange(size))).astype(np.float32)
    forms = {
        USUAL: lambda f, x: f("Resize", x, None, np.array([1, 1, 2, 2], np.float32), mode="linear"),
        "two products": lambda f, x: f("MatMul", matrix, f("MatMul", x, matrix.T)),
    }
    return Kernel({"x": drawn(1, channels, size, size)}, forms)


@slow("ORT#23391", "Resize nearest × 2, {} × {}²", tiny=(3, 4), sizes=[(64, 64)])
def resize_nearest(channels: int, size: int) -> Kernel:
    def expanded(f, x):
        y = f("Expand", f("Reshape", x, [channels, size, 1, size, 1]), [channels, size, 2, size, 2])
        return f("Reshape", y, [1, channels, 2 * size, 2 * size])

    forms = {
        USUAL: lambda f, x: f("Resize", x, None, np.array([1, 1, 2, 2], np.float32), mode="nearest",
                              nearest_mode="floor", coordinate_transformation_mode="asymmetric"),
        "Concat, DepthToSpace": lambda f, x: f("DepthToSpace", f("Concat", x, x, x, x, axis=1), blocksize=2),
        "Expand": expanded,
    }  # fmt: skip
    return Kernel({"x": drawn(1, channels, size, size)}, forms)


@slow("ORT#27155", "GridSample, {} × {}², border", tiny=(3, 4), sizes=[(64, 64)])
def grid_sample(channels: int, size: int) -> Kernel:
    def gathered(f, x, grid):
        places = f("Clip", f("Mul", f("Add", grid, 1.0), (size - 1) / 2), 0.0, float(size - 1))
        low = f("Floor", places)
        rest, high = f("Sub", places, low), f("Min", f("Add", low, 1.0), float(size - 1))
        flat, (fx, fy), terms = f("Reshape", x, [channels, -1]), f("Split", rest, axis=3, num_outputs=2, outputs=2), []
        (x0, y0), (x1, y1) = (f("Split", one, axis=3, num_outputs=2, outputs=2) for one in (low, high))
        for column, wx in ((x0, f("Sub", 1.0, fx)), (x1, fx)):
            for row, wy in ((y0, f("Sub", 1.0, fy)), (y1, fy)):
                index = f("Cast", f("Add", f("Mul", row, float(size)), column), to=TensorProto.INT64)
                values = f("Gather", flat, f("Reshape", index, [-1]), axis=1)
                terms.append(f("Mul", values, f("Reshape", f("Mul", wx, wy), [1, -1])))
        return f("Reshape", f("Sum", *terms), [1, channels, size, size])

    inputs = {"x": drawn(1, channels, size, size), "grid": np.tanh(drawn(1, size, size, 2))}
    usual = partial(_grid_sample, mode="bilinear", padding_mode="border", align_corners=1)
    return Kernel(inputs, {USUAL: usual, "four Gather": gathered})


def _grid_sample(f, x, grid, **attributes):
    return f("GridSample", x, grid, **attributes)


@slow("", "Pad reflect, {} × {}²", tiny=(3, 5), sizes=[(64, 64)])
def pad_reflect(channels: int, size: int) -> Kernel:
    places = np.array([1, *range(size), size - 2])

    def joined(f, x):
        for axis in (2, 3):
            first, last = (f("Slice", x, [k], [k + 1], [axis]) for k in (1, size - 2))
            x = f("Concat", first, x, last, axis=axis)
        return x

    forms = {USUAL: lambda f, x: f("Pad", x, [0, 0, 1, 1, 0, 0, 1, 1], mode="reflect"),
             "Slice, Concat": joined,
             "Gather": lambda f, x: f("Gather", f("Gather", x, places, axis=2), places, axis=3)}  # fmt: skip
    return Kernel({"x": drawn(1, channels, size, size)}, forms)


# -- selections --------------------------------------------------------------------------------------


@slow("ORT#28584", "ScatterElements add, {2:,} of {1} features into {0:,}", tiny=(4, 3, 7), sizes=[(1000, 64, 4000)])
def scatter(nodes: int, features: int, edges: int) -> Kernel:
    def usual(f, updates, index):
        wide = f("Expand", f("Unsqueeze", index, [1]), [edges, features])
        return f("ScatterElements", zeros(nodes, features), wide, updates, axis=0, reduction="add")

    def rows(f, updates, index):
        return f("ScatterND", zeros(nodes, features), f("Unsqueeze", index, [1]), updates, reduction="add")

    def product(f, updates, index):
        return f("MatMul", f("OneHot", index, np.array(nodes), np.array([0, 1], np.float32), axis=0), updates)

    inputs = {"updates": drawn(edges, features), "index": np.arange(edges) * 7919 % nodes}
    return Kernel(inputs, {USUAL: usual, "ScatterND of rows": rows, "one-hot product": product})


@slow("ORT#11195", "GatherElements, {2} of {1:,} in {0} rows", tiny=(3, 5, 4), sizes=[(512, 1000, 100)])
def gather_elements(rows: int, columns: int, picked: int) -> Kernel:
    def flat(f, x, index):
        places = f("Add", index, np.arange(rows)[:, None] * columns)
        return f("Gather", f("Reshape", x, [-1]), places)

    inputs = {"x": drawn(rows, columns), "index": (np.arange(rows * picked) * 7919 % columns).reshape(rows, picked)}
    return Kernel(inputs, {USUAL: lambda f, x, index: f("GatherElements", x, index, axis=1), "Gather, flat": flat})


# -- recurrences -------------------------------------------------------------------------------------


@slow("", "LSTM of one step, {} → {}", tiny=(3, 4), sizes=[(256, 512)])
def lstm_step(inp: int, hidden: int) -> Kernel:
    w, r, b = weight(4 * hidden, inp), weight(4 * hidden, hidden), drawn(8 * hidden)

    def usual(f, x, h, c):
        return f("LSTM", x, w[None], r[None], b[None], None, h, c, hidden_size=hidden, outputs=2)[1]

    def parts(f, x, h, c):
        gates = f("MatMul", f("Concat", x, h, axis=2), np.concatenate([w, r], axis=1).T)
        gates = f("Add", gates, b[: 4 * hidden] + b[4 * hidden :])
        i, o, forget, new = f("Split", gates, axis=2, num_outputs=4, outputs=4)
        kept = f("Mul", f("Sigmoid", forget), c)
        state = f("Add", kept, f("Mul", f("Sigmoid", i), f("Tanh", new)))
        return f("Mul", f("Sigmoid", o), f("Tanh", state))

    inputs = {"x": drawn(1, 1, inp), "h": drawn(1, 1, hidden), "c": drawn(1, 1, hidden)}
    return Kernel(inputs, {USUAL: usual, "one product and the gates": parts}, 2 * (w.size + r.size))


@slow("ORT#27188", "GRU of one step, {} → {}", tiny=(3, 4), sizes=[(256, 512)])
def gru_step(inp: int, hidden: int) -> Kernel:
    w, r, b = weight(3 * hidden, inp), weight(3 * hidden, hidden), drawn(6 * hidden)

    def usual(f, x, h):
        return f("GRU", x, w[None], r[None], b[None], None, h, hidden_size=hidden, linear_before_reset=1, outputs=2)[1]

    def parts(f, x, h):
        given = f("Add", f("MatMul", x, w.T), b[: 3 * hidden])
        kept = f("Add", f("MatMul", h, r.T), b[3 * hidden :])
        (gz, gr, gn), (kz, kr, kn) = (f("Split", y, axis=2, num_outputs=3, outputs=3) for y in (given, kept))
        update, reset = f("Sigmoid", f("Add", gz, kz)), f("Sigmoid", f("Add", gr, kr))
        new = f("Tanh", f("Add", gn, f("Mul", reset, kn)))
        return f("Add", new, f("Mul", update, f("Sub", h, new)))

    inputs = {"x": drawn(1, 1, inp), "h": drawn(1, 1, hidden)}
    return Kernel(inputs, {USUAL: usual, "two products and the gates": parts}, 2 * (w.size + r.size))


@slow("ORT#27796", "Loop h = a·h + b, {} steps of {}", tiny=(5, 3), sizes=[(256, 512)])
def scan(steps: int, features: int) -> Kernel:
    def usual(f, a, b):
        return f("Loop", np.array(steps), None, zeros(features), body=_step(True, features), outputs=2)[1]

    def by_scan(f, a, b):
        return f("Scan", zeros(features), a, b, body=_step(False, features), num_scan_inputs=2, outputs=2)[1]

    def doubled(f, a, b):
        step = 1
        while step < steps:
            kept = [f("Slice", x, [0], [steps - step], [0]) for x in (a, b)]
            a_before = f("Concat", ones(step, features), kept[0], axis=0)
            b_before = f("Concat", zeros(step, features), kept[1], axis=0)
            b, a, step = f("Add", b, f("Mul", a, b_before)), f("Mul", a, a_before), 2 * step
        return b

    inputs = {"a": np.tanh(drawn(steps, features)), "b": drawn(steps, features)}
    return Kernel(inputs, {USUAL: usual, "Scan": by_scan, "sums over doubled distances": doubled})


def _step(of_loop: bool, features: int):
    """Return the body of Loop, which reads row `i` of a and b, or of Scan, which gets the rows."""
    value, kind = helper.make_tensor_value_info, TensorProto.FLOAT
    state, row = value("h", kind, [features]), [value(name, kind, [features]) for name in ("ai", "bi")]
    nodes = [helper.make_node(*node) for node in (
        ("Mul", ["ai", "h"], ["kept"]), ("Add", ["kept", "bi"], ["new"]), ("Identity", ["new"], ["y"])
    )]  # fmt: skip
    outputs = [value("new", kind, [features]), value("y", kind, [features])]
    if not of_loop:
        return helper.make_graph(nodes, "step", [state, *row], outputs)
    nodes = [helper.make_node("Gather", [x, "i"], [f"{x}i"]) for x in "ab"] + nodes
    nodes.append(helper.make_node("Identity", ["go"], ["still"]))
    inputs = [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), state]
    return helper.make_graph(nodes, "step", inputs, [value("still", TensorProto.BOOL, []), *outputs])


# -- number formats ----------------------------------------------------------------------------------


@slow("ORT#7448", "MatMul {0} × {0} × {0}, half of the weights denormal", tiny=(6,), sizes=[(256,)])
def denormal(size: int) -> Kernel:
    w = weight(size, size)
    w[:, ::2] = 1e-39
    x, flushed = np.abs(drawn(size, size)), np.where(abs(w) < 1e-38, np.float32(0), w)
    forms = {USUAL: lambda f, x: f("MatMul", x, w), "zeros": lambda f, x: f("MatMul", x, flushed)}
    return Kernel({"x": x * np.float32(1e-3)}, forms, 2 * size**3)


def _in_half(layers, weights):
    """Return the forms of float16 layers between float32 inputs and outputs, and of the same layers in float32.

    Args:
        layers: function (form, input, *weights) → output.
        weights: float32 weights, which are rounded to float16.
    """
    half = [w.astype(np.float16) for w in weights]

    def usual(f, x):
        y = layers(f, f("Cast", x, to=TensorProto.FLOAT16), *half)
        return f("Cast", y, to=TensorProto.FLOAT)

    return {USUAL: usual, "float32": lambda f, x: layers(f, x, *(w.astype(np.float32) for w in half))}


@slow("ORT#25824", "float16 MLP, {} × {} → {}", tiny=(3, 4, 5), sizes=[(128, 768, 3072)])
def half_matmul(rows: int, features: int, inner: int) -> Kernel:
    def layers(f, x, w1, b1, w2, b2):
        return f("Add", f("MatMul", f("Relu", f("Add", f("MatMul", x, w1), b1)), w2), b2)

    weights = [weight(inner, features).T, drawn(inner), weight(features, inner).T, drawn(features)]
    return Kernel({"x": drawn(rows, features)}, _in_half(layers, weights), 4 * rows * features * inner)


@slow("ORT#16778", "two float16 Conv 3 × 3, {} channels, {}²", tiny=(3, 4), sizes=[(64, 56)])
def half_conv(channels: int, size: int) -> Kernel:
    def layers(f, x, w1, b1, w2, b2):
        return f("Conv", f("Relu", f("Conv", x, w1, b1, pads=[1] * 4)), w2, b2, pads=[1] * 4)

    weights = [weight(channels, channels, 3, 3), drawn(channels)] * 2
    return Kernel({"x": drawn(1, channels, size, size)}, _in_half(layers, weights), 36 * channels**2 * size**2)


@slow("ORT#6732, #12854", "QDQ Conv {2} × {2}, {0} channels, {1}²", tiny=(4, 5, 3, 1), sizes=[(64, 56, 3, 1)])
@slow("ORT#16009, #20052", "QDQ depthwise Conv {2} × {2}, {0} channels, {1}²", sizes=[(256, 28, 3, 256)])
def quantised_conv(channels: int, size: int, kernel: int, groups: int) -> Kernel:
    w = weight(channels, channels // groups, kernel, kernel)
    scales = abs(w).max(axis=(1, 2, 3)) / np.float32(127)
    stored = np.round(w / scales[:, None, None, None]).astype(np.int8)
    pads = [kernel // 2] * 4

    def rounded(f, x):
        step, zero = np.array(0.04, np.float32), np.array(128, np.uint8)
        return f("DequantizeLinear", f("QuantizeLinear", x, step, zero), step, zero)

    def usual(f, x):
        kept = f("DequantizeLinear", stored, scales, zeros(channels).astype(np.int8), axis=0)
        return rounded(f, f("Conv", rounded(f, x), kept, pads=pads, group=groups))

    def dequantised(f, x):
        return f("Conv", x, stored * scales[:, None, None, None], pads=pads, group=groups)

    forms = {USUAL: usual, "float32 with the stored weights": dequantised}
    return Kernel({"x": drawn(1, channels, size, size)}, forms, 2 * w.size * size**2)


@slow("ORT#13198", "dynamically quantised MatMul, {} × {} → {}", tiny=(3, 8, 4), sizes=[(128, 768, 768)])
def dynamic_matmul(rows: int, features: int, out: int) -> Kernel:
    w = weight(out, features).T
    scale = abs(w).max() / np.float32(63)  # 7 bits: ONNX Runtime's product of 8 bits saturates on AVX2
    stored = np.round(w / scale).astype(np.int8)

    def usual(f, x):
        small, scale_x, zero = f("DynamicQuantizeLinear", x, outputs=3)
        y = f("Cast", f("MatMulInteger", small, stored, zero), to=TensorProto.FLOAT)
        return f("Mul", y, f("Mul", scale_x, float(scale)))

    forms = {USUAL: usual, "float32 with the stored weights": lambda f, x: f("MatMul", x, stored * scale)}
    return Kernel({"x": drawn(rows, features)}, forms, 2 * rows * features * out)
