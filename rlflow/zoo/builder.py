"""Build ONNX models as an exporter writes them, with unique names, seeded weights and a final check."""

from contextlib import contextmanager
from math import prod

import numpy as np
import onnx
from onnx import TensorProto, helper

# Mean scale of the last normalisation on a residual branch. With the default scale and random weights, the variance
# would double at every residual sum.
BRANCH_SCALE = 0.25


def add_initializer(graph: onnx.GraphProto, name: str, values: np.ndarray) -> None:
    """Append an initializer to a graph in place, because copying the weights of a large model is slow.

    Args:
      graph: graph to extend.
      name: name of the initializer.
      values: content, of a data type that NumPy and ONNX share.
    """
    dtype = helper.np_dtype_to_tensor_dtype(values.dtype)
    graph.initializer.add(name=name, data_type=dtype, dims=values.shape, raw_data=values.tobytes())


class Weights:
    """A generator of random float32 parameters, at scales that keep activations neither tiny nor huge."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def normal(self, shape, std: float = 1.0, mean: float = 0.0) -> np.ndarray:
        values = self.rng.standard_normal(tuple(shape), dtype=np.float32)
        values *= np.float32(std)
        return values + np.float32(mean) if mean else values

    def scaled(self, shape, fan_in: int, gain: float = 2.0) -> np.ndarray:
        """Draw a weight with variance gain / fan_in, which preserves the second moment (He et al., arXiv:1502.01852).

        Args:
          shape: shape of the weight.
          fan_in: number of input elements from which one output element is computed.
          gain: 2 if a ReLU follows, else 1.
        """
        return self.normal(shape, std=(gain / fan_in) ** 0.5)

    def scale(self, size: int, mean: float = 0.95) -> np.ndarray:
        """Draw the [size] scales of a normalisation; E[scale² / running variance] is 1 at the default mean."""
        return self.normal([size], std=0.1 * mean, mean=mean)

    def bias(self, size: int) -> np.ndarray:
        return self.normal([size], std=0.1)

    def variance(self, size: int) -> np.ndarray:
        """Draw the [size] running variances of a normalisation, uniform between 0.5 and 1.5."""
        return self.rng.random(size, dtype=np.float32) + np.float32(0.5)


class Builder:
    """A builder of one ONNX model, whose methods add nodes and return the names of the nodes' outputs.

    Args:
      name: name of the graph.
      seed: seed of the weights.
      opset: ONNX opset version.

    Attributes:
      weights: generator of parameters.
      channels: tensor name → size of its channel axis (axis 1), for tensors that convolutions read.
    """

    def __init__(self, name: str, seed: int, opset: int = 17):
        opsets = [helper.make_opsetid("", opset)]
        self._model = onnx.ModelProto(
            ir_version=helper.find_min_ir_version_for(opsets), opset_import=opsets, producer_name="rlflow.zoo"
        )
        self._graph = self._model.graph
        self._graph.name = name
        self._path: tuple[str, ...] = ()
        self._node_names: dict[str, int] = {}
        self._constants: dict[tuple, str] = {}
        self.weights = Weights(seed)
        self.channels: dict[str, int] = {}

    @contextmanager
    def scope(self, name: str):
        """Prefix the names of all nodes and weights that the `with` block adds with `name`."""
        outer, self._path = self._path, (*self._path, name)
        yield
        self._path = outer

    def input(self, name: str, shape, dtype: int = TensorProto.FLOAT) -> str:
        self._graph.input.append(helper.make_tensor_value_info(name, dtype, shape))
        self.channels[name] = shape[1]
        return name

    def output(self, x: str, name: str, shape) -> None:
        """Rename a tensor and declare it as a float32 graph output.

        Args:
          x: name of the tensor.
          name: new name of the tensor.
          shape: shape of the tensor.
        """
        for node in self._graph.node:
            for names in (node.input, node.output):
                names[:] = [name if n == x else n for n in names]
        self._graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def model(self) -> onnx.ModelProto:
        onnx.checker.check_model(self._model)
        return self._model

    def parameter(self, name: str, values: np.ndarray) -> str:
        """Add an initializer, prefix its name with the current scope, and return the full name.

        Args:
          name: name within the scope.
          values: content.
        """
        name = ".".join((*self._path, name))
        add_initializer(self._graph, name, values)
        return name

    def constant(self, value, dtype=np.float32) -> str:
        """Add a constant and return its name; equal constants share one initializer.

        Args:
          value: number or array.
          dtype: NumPy data type.
        """
        values = np.asarray(value, dtype=dtype)
        key = (values.dtype.str, values.shape, values.tobytes())
        if key not in self._constants:
            self._constants[key] = f"constant_{len(self._constants)}"
            add_initializer(self._graph, self._constants[key], values)
        return self._constants[key]

    def op(self, op_type: str, *inputs: str, **attributes) -> str:
        """Add a node with one output and return the output's name.

        Args:
          op_type: ONNX operator.
          *inputs: names of the inputs.
          **attributes: attributes of the node.
        """
        name = "/".join((".".join(self._path), op_type))
        count = self._node_names[name] = self._node_names.get(name, -1) + 1
        name += f"_{count}" if count else ""
        output = f"{name}_output_0"
        self._graph.node.append(helper.make_node(op_type, inputs, [output], name, **attributes))
        if inputs[0] in self.channels:
            self.channels[output] = self.channels[inputs[0]]
        return output

    # Layers of convolutional networks. x is [N, C, H, W].

    def conv(
        self, x: str, name: str, channels: int, kernel, stride: int = 1, pad=0, bias: bool = False, groups: int = 1
    ) -> str:
        """Add a Conv with random weights.

        Args:
          x: input [N, C, H, W].
          name: scope of the weights.
          channels: number of output channels.
          kernel, pad: size of the kernel, and padding on each side: one number or (height, width).
          stride: stride in both directions.
          bias: True to add a bias.
          groups: number of groups.
        """
        kernel, pad = np.broadcast_to(kernel, 2).tolist(), np.broadcast_to(pad, 2).tolist()
        shape = [channels, self.channels[x] // groups, *kernel]
        with self.scope(name):
            inputs = [self.parameter("weight", self.weights.scaled(shape, fan_in=prod(shape[1:])))]
            if bias:
                inputs.append(self.parameter("bias", self.weights.bias(channels)))
            y = self.op("Conv", x, *inputs, dilations=[1, 1], group=groups, kernel_shape=kernel, pads=pad * 2,
                        strides=[stride, stride])
        self.channels[y] = channels
        return y

    def batch_norm(self, x: str, name: str, epsilon: float = 1e-5, scale: float = 0.95) -> str:
        size = self.channels[x]
        with self.scope(name):
            return self.op(
                "BatchNormalization",
                x,
                self.parameter("weight", self.weights.scale(size, mean=scale)),
                self.parameter("bias", self.weights.bias(size)),
                self.parameter("running_mean", self.weights.bias(size)),
                self.parameter("running_var", self.weights.variance(size)),
                epsilon=epsilon,
                momentum=0.9,
            )

    def max_pool(self, x: str, kernel: int, stride: int, pad: int = 0, ceil: bool = False) -> str:
        return self.op("MaxPool", x, ceil_mode=int(ceil), kernel_shape=[kernel] * 2, pads=[pad] * 4,
                       strides=[stride] * 2)

    def relu(self, x: str) -> str:
        return self.op("Relu", x)

    def concat(self, *xs: str) -> str:
        """Concatenate feature maps [N, Cᵢ, H, W] along the channels."""
        y = self.op("Concat", *xs, axis=1)
        self.channels[y] = sum(self.channels[x] for x in xs)
        return y

    def split(self, x: str, *sizes: int) -> list[str]:
        """Split feature maps [N, C, H, W] into parts with `sizes` channels and return the names of the parts."""
        first = self.op("Split", x, self.constant(sizes, np.int64), axis=1)
        node = self._graph.node[-1]
        node.output.extend(f"{first[:-1]}{slot}" for slot in range(1, len(sizes)))
        self.channels |= dict(zip(node.output, sizes, strict=True))
        return list(node.output)

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.constant(shape, np.int64))

    def gemm(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """Add a linear layer as a Gemm, [N, inputs] → [N, outputs].

        Args:
          x: name of the input tensor.
          name: scope of the weights.
          inputs, outputs: numbers of input and output features.
        """
        with self.scope(name):
            weight = self.parameter("weight", self.weights.scaled([outputs, inputs], fan_in=inputs, gain=1.0))
            bias = self.parameter("bias", self.weights.bias(outputs))
            return self.op("Gemm", x, weight, bias, alpha=1.0, beta=1.0, transB=1)

    def pooled_features(self, x: str) -> str:
        """Add global average pooling over height and width, [N, C, H, W] → [N, C]."""
        return self.op("Flatten", self.op("GlobalAveragePool", x), axis=1)
