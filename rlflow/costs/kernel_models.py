"""Models of single groups of operators, which are timed instead of the whole graph.

A group is timed as a small model that ONNX Runtime optimises like a user's model. Blocked operators are timed in blocks
of channels: the small model gets a convolution in front of every blocked input, and ONNX Runtime optimises the model.
Then the operators before those inputs and the reorders behind the outputs are removed (`in_blocks`). The remaining
kernels are the kernels that ONNX Runtime runs in the whole graph.

With several threads, an additional operator in the small model wakes the threads (`roused`), because a whole graph
waits for sleeping threads only once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from rlflow.costs.kernel_layout import NoTimingOfItsOwn, block, is_scale, optimised
from rlflow.costs.signatures import has_content
from rlflow.graph.ir import ABSENT, Constant, Graph, Interface, Node, TensorType
from rlflow.graph.onnx_reader import has_subgraph
from rlflow.graph.onnx_writer import constant_cone, evaluate, to_model

NCHWC = "com.microsoft.nchwc"
DRAWN = 1 << 20  # number of random numbers that are drawn for a weight; a larger weight repeats the numbers
# The matrix product of `roused` has 32 rows for each thread, or 131,072 multiplications. ONNX Runtime gives a product
# no further thread for less than 65,536 multiplications.
ROUSING = 32


class Timed(NamedTuple):
    """A model to time.

    Attributes:
      model: the model.
      optimise: True if ONNX Runtime has to optimise the model; False if the model is optimised already.
      given: name → array, for the inputs that must not be random.
      apart: name → array, for the weights that the model does not contain.
    """

    model: onnx.ModelProto
    optimise: bool = True
    given: dict[str, np.ndarray] = {}
    apart: dict[str, np.ndarray] = {}


def group_model(graph: Graph, group: tuple[Node, ...], apart: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """Return a model of the nodes of a group alone. Constants stay constants, but weights get random content.

    Args:
      graph: the graph of the nodes; all other tensors that the nodes read become inputs of the model.
      group: nodes in topological order.
      apart: receives the large weights (see `to_model`).

    Raises:
      NoTimingOfItsOwn: a node has a subgraph, or an input has an unknown shape.
    """
    made, reads = _made_and_read(group)
    if any(node.captured or has_subgraph(node.attributes) for node in group):
        raise NoTimingOfItsOwn("it holds a subgraph")
    if any(graph.types.get(t) is None or graph.types[t].shape is None for t in reads):
        raise NoTimingOfItsOwn("the shape of an input is not known")
    constants = {t: _stand_in(graph, t) for t in reads if graph.is_constant(t)}
    inputs = [t for t in reads if t not in constants]
    inner = {t for node in group for t in node.inputs}
    outputs = [t for t in sorted(made) if t not in inner]
    template = onnx.ModelProto()
    template.CopyFrom(graph.interface.template)
    del template.graph.initializer[:], template.graph.value_info[:]
    names = {tensor: f"t{tensor}" for tensor in (*reads, *made)}
    types = {t: graph.types[t] for t in (*reads, *made) if t in graph.types}
    declared = {t: helper.make_tensor_value_info(names[t], kind.dtype, kind.shape) for t, kind in types.items()}
    interface = Interface(
        template,
        tuple(declared[t] for t in inputs),
        tuple(declared.get(t, onnx.ValueInfoProto(name=names[t])) for t in outputs),
        names,
        graph.interface.opsets,
    )
    group = tuple([replace(node, body=0) if node.body else node for node in group])
    return to_model(Graph.build(interface, group, types, constants, inputs, outputs), apart)


def known_inputs(graph: Graph, group: tuple[Node, ...]) -> dict[str, np.ndarray]:
    """Return the input arrays of `group_model` that must not be random, such as a target shape, by input name.

    The content of these inputs follows from the sizes. They are inputs and not constants, because ONNX Runtime would
    fold constants into their readers, which it cannot do in a model with symbolic sizes.

    Args:
      graph: the graph of the nodes.
      group: nodes in topological order.
    """
    result = {}
    for tensor in _made_and_read(group)[1]:
        kind = graph.types.get(tensor)  # None for a sequence or a map
        if kind is not None and kind.content is not None and not graph.is_constant(tensor):
            dtype = helper.tensor_dtype_to_np_dtype(kind.dtype)
            result[f"t{tensor}"] = np.array(kind.content, dtype).reshape(kind.shape)
    return result


def _made_and_read(group: tuple[Node, ...]) -> tuple[set[int], list[int]]:
    """Return the ids of the tensors that a group computes, and the ids of all other tensors that it reads."""
    made = {tensor for node in group for tensor in node.outputs if tensor != ABSENT}
    return made, [t for t in dict.fromkeys(t for node in group for t in node.reads()) if t not in made]


def _stand_in(graph: Graph, tensor: int) -> Constant:
    """Return a constant that replaces a constant tensor in a timing; a float32 weight gets random content.

    Content that is part of a signature is kept. Quantisation scales are kept, too, because ONNX Runtime requires that
    the scale of a bias equals the product of two other scales. The scales of a Resize are kept because they determine
    the size of its result, and whether ONNX Runtime runs it in blocks of channels. A tensor that constant nodes compute
    is evaluated.
    """
    kind = graph.types[tensor]
    if tensor not in graph.constants:
        cone = constant_cone(graph, tensor)
        return Constant.of(evaluate(graph, [n for n in graph.order if n in cone], [tensor])[0])
    if has_content(kind) or kind.dtype != TensorProto.FLOAT or is_scale(graph, tensor):
        return graph.constants[tensor]
    return Constant("", kind, lambda: _random_numbers(kind.shape))


def _random_numbers(shape: Sequence[int]) -> np.ndarray:
    """Return float32 numbers above zero, because a variance must be positive and denormal numbers are slow.

    The numbers repeat after DRAWN numbers, because drawing is slower than copying.
    """
    size = math.prod(shape)
    drawn = np.random.default_rng(0).random(min(size, DRAWN), np.float32) + np.float32(0.5)
    if size > DRAWN:
        drawn = np.broadcast_to(drawn, (-(-size // DRAWN), DRAWN)).reshape(-1)[:size]
    return drawn.reshape(shape)


def empty_model() -> onnx.ModelProto:
    """Return a model with one node, which ONNX Runtime folds at load, so its latency is the overhead of any run."""
    one = helper.make_tensor("c", TensorProto.FLOAT, [1], [1.0])
    return float_model([helper.make_node("Identity", ["c"], ["y"])], {"x": [1]}, {"y": [1]}, [one])


def roused(model: onnx.ModelProto, threads: int) -> onnx.ModelProto:
    """Return a copy of the model with an additional first operator, a matrix product that wakes all threads.

    Between two runs the threads sleep, and the first operator that needs several threads waits some microseconds. A
    whole graph waits once, but each separately timed kernel would wait again. The empty model gets the same product, so
    subtracting the time of the empty model also subtracts the product.

    Args:
      model: the model.
      threads: threads of ONNX Runtime.
    """
    shapes = {"rouse a": [ROUSING * threads, 2 * ROUSING], "rouse b": [2 * ROUSING, 2 * ROUSING]}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for name, shape in shapes.items():
        result.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    product = helper.make_tensor_value_info("rouse", TensorProto.FLOAT, shapes["rouse a"])
    result.graph.output.append(product)
    result.graph.node.insert(0, helper.make_node("MatMul", list(shapes), [product.name]))
    return result


def reorder_model(op: str, kind: TensorType) -> onnx.ModelProto:
    """Return a model whose only operator is a reorder between a plain tensor and blocks of channels.

    Args:
      op: ReorderInput or ReorderOutput.
      kind: type of the tensor, [batch, channels, height, width].
    """
    image, blocks = {"image": kind.shape}, {"blocks": blocked_shape(kind)}
    given, made = (image, blocks) if op == "ReorderInput" else (blocks, image)
    channels = {} if op == "ReorderInput" else {"channels": kind.shape[1]}
    return float_model([helper.make_node(op, list(given), list(made), domain=NCHWC, **channels)], given, made)


def float_model(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]],
    weights: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:  # fmt: skip
    """Return the model of some nodes; inputs and outputs are float32 and given as name → shape."""
    given, made = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values.items()]
        for values in (inputs, outputs)
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(NCHWC, 1)]
    graph = helper.make_graph(nodes, "alone", given, made, weights)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


# -- blocks ----------------------------------------------------------------------------------------


def blocked_shape(kind: TensorType) -> list[int]:
    """Return the shape of a tensor type [batch, channels, height, width] with the channels padded to whole blocks."""
    batch, channels, *image = kind.shape
    return [batch, -(-channels // block()) * block(), *image]


def in_blocks(model: onnx.ModelProto, blocked: dict[str, TensorType]) -> onnx.ModelProto:
    """Return the optimised form of a model that reads inputs in blocks of channels.

    Outputs that ONNX Runtime computes in blocks are outputs in blocks, without the reorder.

    Args:
      model: the model; the call modifies it.
      blocked: name of each input that comes in blocks → type of the plain tensor.
    """
    graph = model.graph
    for name, kind in blocked.items():
        (given,) = [value for value in graph.input if value.name == name]
        graph.output.append(given)  # A second reader prevents fusions into the convolution.
        graph.input.remove(given)
        graph.input.append(
            helper.make_tensor_value_info(f"image of {name}", kind.dtype, [kind.shape[0], 1, *kind.shape[2:]])
        )
        weight = np.ones((kind.shape[1], 1, 1, 1), np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(weight, f"weight of {name}"))
        graph.node.insert(0, helper.make_node("Conv", [f"image of {name}", f"weight of {name}"], [name]))
    result = optimised(model)
    return _without_borders(result, blocked)


def _without_borders(model: onnx.ModelProto, blocked: dict[str, TensorType]) -> onnx.ModelProto:
    graph = model.graph
    made = {tensor: node for node in graph.node for tensor in node.output}
    images = {f"image of {name}": kind for name, kind in blocked.items()}
    borders = [node for node in graph.node if node.input and node.input[0] in images]
    inputs = [
        helper.make_tensor_value_info(n.output[0], TensorProto.FLOAT, blocked_shape(images[n.input[0]]))
        for n in borders
    ]
    inputs += [value for value in graph.input if value.name not in images]
    outputs = []
    for value in graph.output:
        border = made.get(value.name)
        if border is None or border.domain != NCHWC or border.op_type != "ReorderOutput" or _channels_last(border):
            outputs.append(value)
            continue
        borders.append(border)
        if value.name not in blocked:
            kind = TensorType(TensorProto.FLOAT, tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim))
            outputs.append(helper.make_tensor_value_info(border.input[0], TensorProto.FLOAT, blocked_shape(kind)))
    kept = [node for node in graph.node if node not in borders]
    read = {name for node in kept for name in node.input}
    weights = [tensor for tensor in graph.initializer if tensor.name in read]
    cut = helper.make_graph(kept, "alone", inputs, outputs, weights)
    return helper.make_model(cut, opset_imports=model.opset_import, ir_version=model.ir_version)


def _channels_last(node: onnx.NodeProto) -> bool:
    return any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute)
