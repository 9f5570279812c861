"""Small models that walks of substitutions start from: two by hand, others drawn from a seed; all float64."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """Writes nodes, each with one output unless said otherwise."""

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
    """A stem, a residual block, an inception block with a grouped branch, pooling and a classifier."""
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
    """One encoder layer as exporters take it apart, with two heads."""
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


def drawn(seed: int, n_nodes: int = 24) -> onnx.ModelProto:
    """A random graph of four-channel images, of operators that the rules are about."""
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
