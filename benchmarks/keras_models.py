"""Keras's own networks, with random weights, as frozen TensorFlow graphs and as ONNX models of the very same function.

For what these networks are made of; a layer of another kind is refused. TensorFlow is imported where it is used.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 17
# name → (in tf.keras.applications, pixels)
NETWORKS = {"resnet50": ("ResNet50", 224), "inception_v3": ("InceptionV3", 299)}


def export(name: str, folder: Path, seed: int) -> int:
    """Writes NAME.pb, which takes float32 [1, pixels, pixels, 3], and NAME.onnx, which takes [1, 3, pixels, pixels];
    the number of parameters."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    network, pixels = NETWORKS[name]
    tf.keras.utils.set_random_seed(seed)
    model = getattr(tf.keras.applications, network)(weights=None)
    draw_statistics(model, np.random.default_rng(seed))
    traced = tf.function(lambda image: model(image, training=False)).get_concrete_function(
        tf.TensorSpec([1, pixels, pixels, 3], tf.float32)
    )
    frozen = convert_variables_to_constants_v2(traced)
    (folder / f"{name}.pb").write_bytes(frozen.graph.as_graph_def().SerializeToString())
    onnx.save(to_onnx(model, pixels), folder / f"{name}.onnx")
    return model.count_params()


def draw_statistics(model, rng: np.random.Generator) -> None:
    """Draws shifts, means and variances, which Keras leaves at 0 and 1 and either side's optimiser could exploit."""
    for layer in model.layers:
        for weight in layer.weights:
            if weight.name in ("beta", "bias", "moving_mean", "mean"):
                weight.assign(rng.normal(0, 0.1, weight.shape))
            elif weight.name in ("gamma", "moving_variance", "variance"):
                weight.assign(rng.uniform(0.5, 1.5, weight.shape))
        if hasattr(layer, "finalize_state"):  # a Normalization reads its mean and variance there
            layer.finalize_state()


def load_frozen(path: Path):
    """A function of an image, float32 [1, pixels, pixels, 3], that runs the whole graph with TensorFlow's own
    optimisations, on one thread.

    A session, as frozen graphs are run: a tf.function holds several times as many copies of the weights.
    """
    import tensorflow as tf

    definition = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    (source,) = [node.name for node in definition.node if node.op == "Placeholder"]
    result = definition.node[-1].name
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(definition, name="")
    options = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    return tf.compat.v1.Session(graph=graph, config=options).make_callable(f"{result}:0", [f"{source}:0"])


def to_onnx(model, pixels: int) -> onnx.ModelProto:
    """The same function in NCHW, written as an exporter would: an operator a layer, nothing folded."""
    nodes, weights = [], []

    def constant(name: str, value) -> str:
        weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    for layer in model.layers:
        given = layer.input if isinstance(layer.input, list) else [layer.input]
        operators = LAYERS[type(layer).__name__](layer, constant)
        inputs = [tensor.name for tensor in given]
        for position, (op, operands, attributes) in enumerate(operators):
            output = layer.output.name if position == len(operators) - 1 else f"{layer.name}/{position}"
            nodes.append(helper.make_node(op, [*inputs, *operands], [output], f"{layer.name}/{op}", **attributes))
            inputs = [output]
    image = helper.make_tensor_value_info(model.input.name, onnx.TensorProto.FLOAT, [1, 3, pixels, pixels])
    result = helper.make_tensor_value_info(model.output.name, onnx.TensorProto.FLOAT, [1, *model.output.shape[1:]])
    graph = helper.make_graph(nodes, model.name, [image], [result], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return made


# -- layers: (layer, constant) → list of (operator, names of further inputs, attributes) ------------


def _convolution(layer, constant) -> list[tuple]:
    values = [weight.numpy() for weight in layer.weights]
    operands = [
        constant(f"{layer.name}/kernel", values[0].transpose(3, 2, 0, 1)),
        *(constant(f"{layer.name}/bias", value) for value in values[1:]),
    ]
    return [
        ("Conv", operands, {"strides": layer.strides, "pads": _pads(layer, layer.kernel_size)}),
        *_activation(layer, constant),
    ]


def _normalisation(layer, constant) -> list[tuple]:
    channels = layer.moving_mean.shape[0]
    gamma = layer.gamma.numpy() if layer.scale else np.ones(channels, np.float32)
    values = {
        "scale": gamma,
        "shift": layer.beta.numpy(),
        "mean": layer.moving_mean.numpy(),
        "variance": layer.moving_variance.numpy(),
    }
    return [
        (
            "BatchNormalization",
            [constant(f"{layer.name}/{key}", value) for key, value in values.items()],
            {"epsilon": layer.epsilon},
        )
    ]


def _pooling(op: str):
    return lambda layer, constant: [
        (op, [], {"kernel_shape": layer.pool_size, "strides": layer.strides, "pads": _pads(layer, layer.pool_size)})
    ]


def _pads(layer, size: tuple[int, ...]) -> list[int]:
    if layer.padding == "valid":
        return [0] * 4
    assert tuple(layer.strides) == (1, 1) and all(k % 2 for k in size), "TensorFlow's padding is uneven"
    return [k // 2 for k in size] * 2


def _padding(layer, constant) -> list[tuple]:
    (top, bottom), (left, right) = layer.padding
    return [("Pad", [constant(f"{layer.name}/pads", np.array([0, 0, top, left, 0, 0, bottom, right]))], {})]


def _activation(layer, constant) -> list[tuple]:
    name = layer.activation.__name__
    return {"linear": [], "relu": [("Relu", [], {})], "softmax": [("Softmax", [], {"axis": -1})]}[name]


def _dense(layer, constant) -> list[tuple]:
    operands = [
        constant(f"{layer.name}/kernel", layer.kernel.numpy()),
        constant(f"{layer.name}/bias", layer.bias.numpy()),
    ]
    return [("Gemm", operands, {}), *_activation(layer, constant)]


LAYERS = {
    "InputLayer": lambda layer, constant: [],
    "Conv2D": _convolution,
    "BatchNormalization": _normalisation,
    "Activation": _activation,
    "MaxPooling2D": _pooling("MaxPool"),
    "AveragePooling2D": _pooling("AveragePool"),
    "GlobalAveragePooling2D": lambda layer, constant: [("GlobalAveragePool", [], {}), ("Flatten", [], {})],
    "ZeroPadding2D": _padding,
    "Add": lambda layer, constant: [("Add", [], {})],
    "Concatenate": lambda layer, constant: [("Concat", [], {"axis": 1})],
    "Dense": _dense,
}
