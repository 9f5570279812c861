"""Small models from which random walks of rewrites start: some are written by hand, others drawn from a seed; all
float64."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """A builder of nodes, which have one output by default."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.nodes, self.weights = [], []

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes):
        names = [f"t{len(self.nodes)}_{slot}" for slot in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def weight(self, *sizes: int, positive: bool = False) -> str:
        array = self.random.uniform(0.5, 1.5, sizes) if positive else self.random.uniform(-1, 1, sizes)
        return self.array(np.asarray(array))

    def array(self, values) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def conv(self, x: str, inputs: int, outputs: int, size: int = 3, bias: bool = True, **attributes) -> str:
        weights = [self.weight(outputs, inputs, size, size)] + ([self.weight(outputs)] if bias else [])
        return self.op("Conv", x, *weights, **{"pads": [size // 2] * 4} | attributes)

    def batch_norm(self, x: str, channels: int) -> str:
        statistics = [self.weight(channels) for _ in range(3)] + [self.weight(channels, positive=True)]
        return self.op("BatchNormalization", x, *statistics)

    def model(self, inputs: dict[str, tuple], outputs: list[str]) -> onnx.ModelProto:
        given = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, sizes) for name, sizes in inputs.items()]
        declared = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(outputs)]
        graph = helper.make_graph(self.nodes, "small", given, declared, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        del model.graph.value_info[:]
        return model


def tiny_cnn() -> onnx.ModelProto:
    """Return a CNN: stem, residual block, inception block with a grouped branch, pooling and classifier."""
    b = Builder(0)
    x = b.op("Relu", b.batch_norm(b.conv("x", 3, 4, bias=False, strides=[2, 2]), 4))
    y = b.op("Relu", b.batch_norm(b.conv(x, 4, 4), 4))
    x = b.op("Relu", b.op("Add", b.batch_norm(b.conv(y, 4, 4, bias=False), 4), x))
    one, three, grouped = b.conv(x, 4, 2, size=1), b.conv(x, 4, 3), b.conv(x, 2, 2, group=2)
    pooled = b.conv(b.op("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4), 4, 2, size=1)
    x = b.op("Concat", *(b.op("Relu", branch) for branch in (one, three, grouped, pooled)), axis=1)
    x = b.op("MaxPool", b.op("Relu", b.op("Dropout", x)), kernel_shape=[2, 2])
    x = b.op("GlobalAveragePool", b.conv(x, 9, 4, size=1))
    x = b.op("Gemm", b.op("Flatten", x), b.weight(4, 5), b.weight(5))
    return b.model({"x": (1, 3, 8, 8)}, [b.op("Add", b.op("Identity", x), b.weight(5)), x])


def tiny_transformer() -> onnx.ModelProto:
    """Return one encoder layer with two heads, decomposed as exporters write it."""
    b = Builder(1)

    def linear(x: str, inputs: int, outputs: int) -> str:
        return b.op("Add", b.op("MatMul", x, b.weight(inputs, outputs)), b.weight(outputs))

    def heads(x: str, perm: list[int]) -> str:
        return b.op("Transpose", b.op("Reshape", x, b.array([1, 3, 2, 4])), perm=perm)

    def layer_norm(x: str) -> str:
        centred = b.op("Sub", x, b.op("ReduceMean", x, b.array([-1])))
        variance = b.op("ReduceMean", b.op("Pow", centred, b.array(2.0)), b.array([-1]))
        scaled = b.op("Div", centred, b.op("Sqrt", b.op("Add", variance, b.array(1e-5))))
        return b.op("Add", b.op("Mul", scaled, b.weight(8)), b.weight(8))

    def gelu(x: str) -> str:
        erf = b.op("Erf", b.op("Div", x, b.array(2.0**0.5)))
        return b.op("Mul", b.op("Mul", x, b.op("Add", erf, b.array(1.0))), b.array(0.5))

    q, k, v = (heads(linear("x", 8, 8), perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    scores = b.op("Softmax", b.op("Div", b.op("MatMul", q, k), b.array(2.0)), axis=-1)
    context = b.op("Transpose", b.op("MatMul", scores, v), perm=[0, 2, 1, 3])
    x = layer_norm(b.op("Add", linear(b.op("Reshape", context, b.array([1, 3, 8])), 8, 8), "x"))
    y = linear(gelu(linear(x, 8, 16)), 16, 8)
    return b.model({"x": (1, 3, 8)}, [layer_norm(b.op("Add", y, x))])


def in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the same model in float32, for which ONNX Runtime has more kernels."""
    graph = model.graph
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.DOUBLE:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    return model


def tiny_cuts() -> onnx.ModelProto:
    """Return a model with reductions, and with slices behind operators that commute with them."""
    b = Builder(2)

    def cut(x: str, axis: int, start: int = 0, end: int = 2, *more) -> str:
        return b.op("Slice", x, *(b.array([number]) for number in (start, end, axis, *more)))

    def reduced(kind: str, x: str, *axes: int, keepdims: int = 1) -> str:
        return b.op(kind, x, b.array(list(axes)), keepdims=keepdims)

    moved = b.op("Transpose", "x", perm=[0, 2, 1])
    norm = b.op("LayerNormalization", "x", b.weight(6), b.weight(6))
    linear = b.op("MatMul", b.op("Mul", "x", b.weight(6)), b.weight(6, 3))
    wide = [b.op(kind, "x", b.weight(positive=True)) for kind in ("Sub", "Div", "Mul")]
    pairs = [b.op(kind, "x", "z") for kind in ("Add", "Sub", "Div")]
    outputs = [
        *(cut(b.op(kind, "x"), 1) for kind in ("Tanh", "Erf", "Relu")), cut(b.op("Sqrt", b.op("Abs", "x")), 2),
        *(cut(y, 1) for y in (*wide, *pairs, norm, linear, moved, b.op("Pow", "z", b.array(3.0)))),
        cut(linear, -1, 1, 3),
        cut(b.op("Reshape", "x", b.array([2, 4, 3, 2])), 1), cut(b.op("Concat", "x", "z", axis=1), 1, 4, 6),
        cut(reduced("ReduceMean", "x", 2), 1), cut(cut("x", 1), 2, 1, 4), cut("x", 1, 0, 3, 1), cut("x", 1, 0, 9),
        b.op("Mul", cut("x", 2), cut("z", 2)), cut(b.op("Softmax", "x", axis=2), 1),
        b.op("Gather", "x", b.array(1), axis=1),
        *(reduced(kind, reduced(kind, "x", 1), 2) for kind in ("ReduceSum", "ReduceMean", "ReduceMax")),
        *(reduced(kind, moved, 1) for kind in ("ReduceSum", "ReduceMean")), reduced("ReduceMean", linear, 1),
        *(b.op("Squeeze", reduced(kind, "x", 1), b.array([1])) for kind in ("ReduceSum", "ReduceMean")),
        *(reduced(kind, "x", 1, keepdims=0) for kind in ("ReduceSum", "ReduceMean")),
        b.op("Div", reduced("ReduceSum", "x", 2), b.array(6.0)),
        reduced("ReduceSum", b.op("Mul", "x", b.array(2.0)), 1),
    ]  # fmt: skip
    return b.model({"x": (2, 4, 6), "z": (2, 4, 6)}, outputs)


def tiny_mobile() -> onnx.ModelProto:
    """Return a model with explicit padding, depthwise and grouped convolutions, permuted channels and all pools."""
    b = Builder(3)

    def padded(x: str, *more: str) -> str:
        return b.op("Pad", x, b.array([0, 0, 1, 1, 0, 0, 1, 1]), *more)

    def pool(kind: str, x: str, size: int = 3, **attributes) -> str:
        return b.op(kind, x, kernel_shape=[size, size], **attributes)

    valid, channel = dict(pads=[0] * 4), [b.weight(4, 1, 1) for _ in range(4)]
    cut = b.op("Slice", "x", b.array([0]), b.array([3]), b.array([1]))
    order, gathered = b.array([0, 2, 1, 3]), b.op("Gather", "x", b.array([2, 0, 3, 1]), axis=1)
    scaled, raised = b.op("Mul", "x", channel[0]), b.op("Add", "x", channel[1])
    up = [b.op("ConvTranspose", "x", b.weight(4, 4, 2, 2), *bias) for bias in ([], [], [], [b.weight(4)])]
    outputs = [
        b.conv(padded("x"), 4, 4, **valid), b.conv(padded("x", b.array(0.0)), 4, 4, **valid), b.conv(scaled, 4, 4),
        pool("AveragePool", padded("x")), pool("AveragePool", "x", pads=[1] * 4, count_include_pad=1),
        pool("MaxPool", padded(b.op("Relu", "x"))), padded(padded("x")), b.op("Pad", "x", b.array([0] * 8)),
        b.conv(cut, 1, 3, group=3), b.conv(cut, 1, 3, group=3, bias=False), b.conv(raised, 4, 4, bias=True, **valid),
        b.op("Gather", gathered, order, axis=1), b.conv(gathered, 4, 4),
        b.op("Gather", b.conv("x", 4, 4, bias=False), order, axis=1),
        b.op("Concat", b.conv("x", 2, 4, group=2, bias=False), b.conv(raised, 2, 4, group=2, bias=False), axis=1),
        b.op("Concat", b.conv("x", 4, 4), b.conv("x", 4, 2), axis=1),
        b.conv("x", 4, 4, size=1, strides=[2, 2], **valid),
        b.op("Concat", b.conv("x", 4, 4, bias=False), b.conv("x", 4, 2, bias=False), axis=1),
        b.op("Relu", pool("MaxPool", "x")),
        *(b.op(kind, "x") for kind in ("GlobalMaxPool", "GlobalAveragePool")), b.op("ReduceMax", "x", b.array([2, 3])),
        *(b.op("GlobalAveragePool", y) for y in (scaled, raised)),
        b.op("Mul", b.op("GlobalAveragePool", "x"), channel[2]),
        *(pool(kind, "x", size=6) for kind in ("AveragePool", "MaxPool")),
        b.op("Add", b.op("GlobalAveragePool", "x"), channel[3]),
        *(pool("AveragePool", y) for y in (scaled, raised)), b.op("Add", pool("MaxPool", "x"), channel[0]),
        b.op("Concat", pool("AveragePool", "x"), pool("AveragePool", raised), axis=1), b.batch_norm(up[0], 4),
        b.batch_norm(up[3], 4),
        b.op("Concat", pool("MaxPool", "x"), pool("MaxPool", raised), axis=1), b.op("Mul", up[1], channel[1]),
        b.op("Add", up[2], channel[2]),
        b.op("Concat", b.batch_norm("x", 4), b.batch_norm(raised, 4), axis=1),
        b.op("Mul", b.batch_norm("x", 4), channel[3]),
        b.op("Mul", b.conv("x", 4, 4, bias=False), channel[0]), b.op("Mul", b.conv("x", 4, 4), channel[1]),
        b.conv(b.op("GlobalAveragePool", "x"), 4, 3, size=1), b.op("Add", b.conv("x", 4, 4), b.conv("x", 4, 4)),
    ]  # fmt: skip
    return b.model({"x": (1, 4, 6, 6)}, outputs)


def tiny_products() -> onnx.ModelProto:
    """Return a model with parallel and successive products and linear layers, and with decomposed activation
    functions."""
    b = Builder(4)

    def gemm(x: str, *more: str, **attributes) -> str:
        return b.op("Gemm", x, b.weight(4, 4), *(more or [b.weight(4)]), **attributes)

    def with_number(kind: str, x: str, number: float) -> str:
        return b.op(kind, x, b.array(number))

    def clip(x: str, low: float, high: float) -> str:
        return b.op("Clip", x, b.array(low), b.array(high))

    across = {name: b.op("Transpose", name, perm=[1, 0]) for name in "xz"}
    scaled, weight = b.op("Mul", "x", b.weight(4)), b.weight(4, 4)
    statistics = [b.weight(4) for _ in range(3)] + [b.weight(4, positive=True)]
    half, hard = with_number("Mul", "x", 0.5), clip(with_number("Add", "x", 3.0), 0.0, 6.0)
    inner = with_number("Mul", with_number("Pow", "x", 3.0), 0.044715)
    bell = b.op("Tanh", with_number("Mul", b.op("Add", "x", inner), 0.7978845608028654))
    curve = with_number("Add", b.op("Erf", with_number("Div", "x", 2.0**0.5)), 1.0)
    outputs = [
        gemm("x"), gemm("x"), gemm("x", transB=1), gemm("x", alpha=0.5), gemm(scaled), gemm(across["x"]),
        b.op("MatMul", *across.values()),
        b.op("Mul", gemm("x", transB=1), b.weight(4)), b.op("BatchNormalization", gemm("x"), *statistics),
        b.op("Gemm", "x", across["z"], b.weight(4)),
        b.op("BatchNormalization", b.op("MatMul", "x", weight), *statistics),
        b.op("Add", b.op("MatMul", "x", weight), b.weight(4)),
        b.op("MatMul", b.op("MatMul", "x", weight), b.weight(4, 4)),
        b.op("Mul", b.op("MatMul", "x", weight), b.weight(4)), b.op("MatMul", b.op("MatMul", "x", "z"), "u"),
        b.op("Add", b.op("MatMul", "x", "u"), b.op("MatMul", "z", "u")), b.op("MatMul", b.op("Add", "x", "z"), "u"),
        b.op("Concat", b.op("MatMul", "x", weight), b.op("MatMul", "z", weight), axis=0),
        b.op("MatMul", b.op("Concat", "x", "z", axis=0), weight),
        b.op("Transpose", b.op("MatMul", "x", "z"), perm=[1, 0]),
        with_number("Mul", b.op("Reshape", "x", b.array([2, 8])), 3.0), b.op("Mul", *across.values()),
        *(b.op("Transpose", b.op(kind, "x", "z"), perm=[1, 0]) for kind in ("Add", "Mul")),
        *(b.op(kind, b.op("Reshape", "x", b.array([8, 2]))) for kind in ("Sigmoid", "Tanh")),
        b.op("Softmax", across["x"], axis=1),
        b.op("Transpose", b.op("Softmax", "x", axis=1), perm=[1, 0]),
        b.op("Unsqueeze", b.op("Squeeze", "v", b.array([0])), b.array([0])),
        b.op("Transpose", "v", perm=[1, 0, 2]), b.op("Expand", "x", b.array([4, 4])),
        b.op("Tile", "x", b.array([1, 1])),
        b.op("Cast", "x", to=TensorProto.DOUBLE), b.op("Log", b.op("Softmax", "z", axis=1)), b.op("HardSwish", "x"),
        b.op("Mul", "x", b.op("HardSigmoid", "x", alpha=1 / 6, beta=0.5)), with_number("Div", hard, 6.0),
        with_number("Mul", hard, 1 / 6),
        b.op("Div", b.array(1.0), b.op("Exp", "z")), b.op("Mul", "x", b.op("Reciprocal", b.op("Exp", "z"))),
        with_number("Pow", b.op("Abs", "x"), 0.5), b.op("Sum", "x", "z", "u"), b.op("Sum", "x"),
        b.op("Min", "x", "z", "u"),
        b.op("Clip", b.op("Relu", "x"), b.array(0.0), b.array(2.0)), b.op("Relu", clip("x", 0.5, 2.0)),
        b.op("Neg", b.op("Neg", "x")),
        with_number("Add", "x", 0.0), with_number("Mul", "x", 1.0),
        with_number("Mul", with_number("Mul", "z", 2.0), 3.0),
        with_number("Mul", with_number("Add", "z", 2.0), 3.0),
        b.op("Add", with_number("Mul", "x", 5.0), with_number("Mul", "z", 5.0)),
        b.op("Add", b.op("Mul", "x", "z"), b.op("Mul", "x", "u")), b.op("Mul", half, with_number("Add", bell, 1.0)),
        b.op("Mul", half, curve), b.op("Mul", "x", with_number("Mul", curve, 0.5)),
    ]  # fmt: skip
    return b.model({"x": (4, 4), "z": (4, 4), "u": (4, 4), "v": (1, 3, 2)}, outputs)


def drawn(seed: int, n_nodes: int = 24) -> onnx.ModelProto:
    """Return a random graph of four-channel images from operators that the rules match."""
    b = Builder(seed)
    images = ["x"]

    def pick() -> str:
        return images[-1 - min(int(b.random.geometric(0.4)) - 1, len(images) - 1)]

    def halves() -> str:
        one, two = b.op("Split", pick(), b.array([1, 3]), outputs=2, axis=1)
        return b.op("Concat", b.op("Relu", two), b.op("Relu", one), axis=1)

    def cut() -> str:
        kept = b.op("Slice", b.op("Add", pick(), b.weight(5)), b.array([0]), b.array([2]), b.array([1]))
        return b.op("Concat", kept, b.op("Slice", pick(), b.array([2]), b.array([4]), b.array([1])), axis=1)

    pool = dict(kernel_shape=[3, 3], pads=[1] * 4)
    makers = [
        lambda: b.op("Relu", pick()),
        lambda: b.op("Neg", pick()),
        lambda: b.op("Identity", pick()),
        lambda: b.op("Add", pick(), pick()),
        lambda: b.op("Sum", pick(), pick()),
        lambda: b.op("Add", b.weight(4, 1, 1), pick()),
        lambda: b.op("Sub", pick(), b.weight(1, 4, 1, 1)),
        lambda: b.op("Mul", pick(), b.weight()),
        lambda: b.op("Div", pick(), b.weight(4, 1, 1, positive=True)),
        lambda: b.op("MaxPool", pick(), **pool),
        lambda: b.op("AveragePool", pick(), **pool),
        lambda: b.batch_norm(pick(), 4),
        lambda: b.conv(pick(), 4, 4, size=1),
        lambda: b.conv(pick(), 4, 4, bias=False),
        lambda: b.conv(pick(), 2, 4, group=2),
        lambda: b.op("Transpose", b.op("Transpose", pick(), perm=[0, 1, 3, 2]), perm=[0, 1, 3, 2]),
        lambda: b.op("Reshape", b.op("Relu", b.op("Reshape", pick(), b.array([4, -1]))), b.array([1, 4, 5, 5])),
        lambda: b.op("Squeeze", b.op("Unsqueeze", pick(), b.array([0])), b.array([0])),
        lambda: b.op("MatMul", pick(), b.weight(5, 5)),
        lambda: b.op("Add", b.op("MatMul", pick(), b.weight(5, 5)), b.op("MatMul", pick(), b.weight(5, 5))),
        lambda: b.op("Sigmoid", b.op("Transpose", pick(), perm=[0, 1, 3, 2])),
        lambda: b.op("Clip", b.op("Clip", pick(), b.array(-1.0), b.array(1.0)), b.array(0.0), b.array(2.0)),
        lambda: b.op("Mul", pick(), b.op("ReduceMean", pick(), b.array([2, 3]))),
        lambda: b.op("Softmax", b.op("Div", pick(), b.array(2.0)), axis=-1),
        lambda: b.op("Gather", pick(), b.array([0, 2, 1, 3]), axis=1),
        lambda: b.conv(b.op("Pad", pick(), b.array([0, 0, 1, 1, 0, 0, 1, 1])), 4, 4, pads=[0] * 4),
        lambda: b.op("Add", b.conv(pick(), 4, 4, size=1, bias=False), b.conv(pick(), 4, 4, size=1, bias=False)),
        lambda: b.op("Max", pick(), pick(), pick()),
        cut,
        halves,
    ]
    for _ in range(n_nodes):
        images.append(makers[b.random.integers(len(makers))]())
    read = {name for node in b.nodes for name in node.input}
    loose = [name for name in images[1:] if name not in read]
    return b.model({"x": (1, 4, 5, 5)}, [*loose, images[-1]])
