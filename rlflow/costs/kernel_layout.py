"""The layouts in which ONNX Runtime runs operators: blocks of channels, and integers between quantisation borders.

Between convolutions and poolings ONNX Runtime keeps 4-D float tensors in blocks of 8 or 16 channels (operators of the
domain com.microsoft.nchwc). A tensor is reordered once when it leaves a blocked region (ReorderOutput) or enters it
(ReorderInput). The layout of a convolution or pooling follows from its own shapes. Operators between convolutions or
poolings (CARRIERS) have the layout of their inputs. The search for that layout follows at most DEPTH carriers upwards,
so that a cost depends on a bounded neighbourhood. Where the search stops, a tensor whose channels fill whole blocks
counts as blocked.

A quantisation border is a DequantizeLinear or a QuantizeLinear. An operator between two borders runs in integers. Its
borders belong to its group and are timed with the operator, so ONNX Runtime itself decides whether to fuse them.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from onnx import TensorProto, helper

from rlflow.common.errors import first_line
from rlflow.graph import contrib, custom_ops
from rlflow.graph.ir import ABSENT, Graph, Node, TensorType
from rlflow.graph.onnx_runtime import PROVIDERS, add_weights
from rlflow.graph.onnx_writer import write_weights_to
from rlflow.graph.shapes import shape_value


class NoTimingOfItsOwn(Exception):
    """Raised for operators that cannot be timed by themselves; the message is the reason."""


def optimised(model: onnx.ModelProto, apart: Mapping[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """Return the model after all optimisations that ONNX Runtime applies when it loads the model.

    Args:
      model: the model.
      apart: weights that the model does not contain, by name (see `to_model`). If there are any, the result also lacks
        the content of all other weights of `onnx_writer.SMALLEST_OUTSIDE` bytes or more.

    Raises:
      NoTimingOfItsOwn: ONNX Runtime refuses the model.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_prepacking", "1")  # The session will not run.
    custom_ops.register(options)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    with TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "model.onnx")
        try:
            if apart:
                add_weights(options, apart)
                Path(folder, "weights").symlink_to(os.devnull)  # where ONNX Runtime writes the weights, unread
                write_weights_to(options, "weights")
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=PROVIDERS)
        except Exception as error:  # The exception classes of ONNX Runtime are undocumented.
            raise NoTimingOfItsOwn(first_line(error)) from error
        return onnx.load(options.optimized_model_filepath, load_external_data=not apart)


ENTERS, LEAVES = "DequantizeLinear", "QuantizeLinear"  # borders from integers to floats and back
BORDERS = frozenset((ENTERS, LEAVES))
SCALED = BORDERS | {"Resize", "Upsample"}  # operators whose inputs after the first are scales


def with_borders(graph: Graph, group: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return a group with the quantisation borders at its inputs (and weights) and outputs, in topological order."""
    if group[0].op in BORDERS:
        return group
    before, after = borders_before(graph, group), _borders_after(graph, group)
    return (*before, *group, *after) if before or after else group


def is_quantised(group: tuple[Node, ...]) -> bool:
    """Check if the group has quantisation borders and no Transpose."""
    return any(node.op in BORDERS for node in group) and all(node.op != "Transpose" for node in group)


def is_inner_border(graph: Graph, node: Node) -> bool:
    """Check if the node is a quantisation border that is charged with the groups of its neighbours.

    A DequantizeLinear belongs to the groups of its readers. A QuantizeLinear that is the only reader of its input
    belongs to the group of the producer.
    """
    if node.op == ENTERS:
        readers = [graph.nodes[reader] for reader in graph.consumers.get(node.outputs[0], ())]
        return bool(readers) and node.outputs[0] not in graph.outputs and not any(r.op in BORDERS for r in readers)
    if node.op == LEAVES:
        before = graph.nodes.get(graph.producers.get(node.inputs[0]))
        if before is None or before.op in BORDERS or before.constant:
            return False
        return len(graph.consumers[node.inputs[0]]) == 1 and node.inputs[0] not in graph.outputs
    return False


def borders_before(graph: Graph, group: tuple[Node, ...]) -> list[Node]:
    """Return the DequantizeLinear nodes that compute inputs of the group, each node once."""
    before = []
    for node in group:
        for tensor in node.inputs:
            if tensor in graph.producers:
                border = graph.nodes[graph.producers[tensor]]
                if border.op == ENTERS and border not in before:
                    before.append(border)
    return before


def is_scale(graph: Graph, tensor: int) -> bool:
    """Check if the tensor is the scale or zero point of a quantisation border, or a scale of a Resize."""
    readers = [graph.nodes[reader] for reader in graph.consumers.get(tensor, ())]
    return any(reader.op in SCALED and tensor in reader.inputs[1:] for reader in readers)


def _borders_after(graph: Graph, group: tuple[Node, ...]) -> list[Node]:
    """Return each QuantizeLinear that is the only reader of an output of the group."""
    after = []
    for node in group:
        for tensor in node.outputs:
            readers = graph.consumers.get(tensor, ())
            if len(readers) == 1 and graph.nodes[readers[0]].op == LEAVES and tensor not in graph.outputs:
                after.append(graph.nodes[readers[0]])
    return after


# -- a kernel by itself ----------------------------------------------------------------------------


def in_channels_last(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the optimised form of a quantised model without the layout transposes at its inputs and outputs.

    Quantised kernels store the channels last, so ONNX Runtime adds transposes at the inputs and outputs of the model. A
    whole graph runs no transposes between two such kernels. The result's inputs and outputs have the channels last.
    """
    result = optimised(model)
    graph = result.graph
    kinds = {value.name: value.type.tensor_type for value in (*graph.input, *graph.output)}
    read = [name for node in graph.node for name in node.input]
    for node in list(graph.node):
        perm = next((list(a.ints) for a in node.attribute if (node.op_type, a.name) == ("Transpose", "perm")), None)
        if perm == [0, 2, 3, 1] and node.input[0] in kinds and read.count(node.input[0]) == 1:
            _replace(graph.input, node.input[0], _transposed(kinds[node.input[0]], node.output[0], perm))
        elif perm == [0, 3, 1, 2] and node.output[0] in kinds:
            _replace(graph.output, node.output[0], _transposed(kinds[node.output[0]], node.input[0], [0, 2, 3, 1]))
        else:
            continue
        graph.node.remove(node)
    return result


def _replace(values, name: str, new: onnx.ValueInfoProto) -> None:
    (old,) = [value for value in values if value.name == name]
    old.CopyFrom(new)


def _transposed(kind: onnx.TypeProto.Tensor, name: str, perm: list[int]) -> onnx.ValueInfoProto:
    sizes = [kind.shape.dim[axis].dim_value for axis in perm]
    return helper.make_tensor_value_info(name, kind.elem_type, sizes)


DEPTH = 2  # largest number of carriers that the search for a layout follows upwards
BY_FOUR = 4  # channels that a reorder and a depthwise kernel process at once
CONVOLUTIONS = frozenset(("Conv", "FusedConv"))
POOLS = frozenset(("MaxPool", "AveragePool"))
ALIGNED = frozenset(("Concat", "GlobalAveragePool", "GlobalMaxPool"))  # carriers that need whole blocks of channels
SUMS = frozenset(("Add", "Sum", "Mul"))
REMOVED = frozenset(("Identity", "Dropout"))
CARRIERS = ALIGNED | SUMS | REMOVED | frozenset((
    "Relu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Gelu", "QuickGelu", "BatchNormalization", "Resize",
))  # fmt: skip
FUSED = frozenset(("LeakyRelu", "Clip"))  # activations that run in blocks only if a convolution computes them itself
FOLDED = frozenset(("BatchNormalization", "Mul", "Add"))  # with constants, these fold into the preceding convolution
FOLDS = 3  # largest number of operators that fold into one convolution
NHWC = (0, 2, 3, 1)
_WINDOWED = CONVOLUTIONS | POOLS
_KINDS = _WINDOWED | CARRIERS | FUSED

# A 1x1 convolution from 1 to 1 channel, whose optimised weight is padded to a block.
POINT_CONVOLUTION = """<ir_version: 8, opset_import: ["" : 17]>
block (float[1, 1, 2, 2] x) => (float[1, 1, 2, 2] y) <float[1, 1, 1, 1] w = {1}> { y = Conv(x, w) }"""


@cache
def block() -> int:
    """Return the number of channels in a block on this machine; 0 if ONNX Runtime has no blocked layout here."""
    result = optimised(onnx.parser.parse_model(POINT_CONVOLUTION))
    (conv,) = [node for node in result.graph.node if node.op_type == "Conv"]
    (weight,) = [tensor for tensor in result.graph.initializer if tensor.name == conv.input[1]]
    return weight.dims[0] if conv.domain else 0


def only_reader(graph: Graph, tensor: int) -> Node | None:
    """Return the node that reads a tensor; None for no reader, several readers, or an output of the graph."""
    readers = graph.consumers.get(tensor, ())
    return graph.nodes[readers[0]] if len(readers) == 1 and tensor not in graph.outputs else None


def producer(graph: Graph, tensor: int) -> Node | None:
    """Return the node that computes a tensor at run time; None for a graph input or a constant."""
    node_id = graph.producers.get(tensor)
    node = graph.nodes[node_id] if node_id is not None else None
    return None if node is None or node.constant else node


def varying(graph: Graph, node: Node) -> list[int]:
    """Return the ids of the inputs of a node that are neither constant nor absent."""
    if len(node.inputs) == 1:  # A node with a single constant input would be constant itself.
        return list(node.inputs)
    return [tensor for tensor in node.inputs if tensor != ABSENT and not graph.is_constant(tensor)]


def have_same_type(graph: Graph, tensors: Iterable[int]) -> bool:
    """Check if the tensors have the same element type and shape; two unknown types count as the same type."""
    kinds = [graph.types.get(tensor) for tensor in tensors]
    return len({kind and kind[:2] for kind in kinds}) == 1


def is_removed(graph: Graph, node: Node) -> bool:
    """Check if ONNX Runtime removes the node when it loads a graph: Identity, and Dropout in inference."""
    if node.domain != "" or node.op not in REMOVED:
        return False
    return node.op == "Identity" or not (
        any(map(graph.is_used, node.outputs[1:])) or any(t != ABSENT for t in node.inputs[2:])
    )


def folds_into(graph: Graph, node: Node, more: int = FOLDS) -> Node | None:
    """Return the operator before a per-channel normalisation, factor or offset that folds into a convolution.

    Args:
      graph: the graph.
      node: the normalisation, factor or offset.
      more: largest number of folded operators behind the convolution, up to and including the node.

    Returns:
      the producer of the node's input: the convolution, or another operator that folds into the convolution; None if
      the node does not fold into a convolution.
    """
    if more == 0 or node.op not in FOLDED or node.domain != "":
        return None
    varied = varying(graph, node)
    if len(varied) != 1 or only_reader(graph, varied[0]) is not node or not _each_channel(graph, node, varied[0]):
        return None
    before = producer(graph, varied[0])
    if before is None or before.domain != "":
        return None
    if before.op == "Conv":
        return before if all(graph.is_constant(t) for t in before.inputs[1:] if t != ABSENT) else None
    return before if folds_into(graph, before, more - 1) else None


def padding_reader(graph: Graph, node: Node) -> Node | None:
    """Return the convolution or pooling into which ONNX Runtime fuses a Pad; None if the Pad runs by itself."""
    reader = only_reader(graph, node.outputs[0])
    if (
        reader is None
        or reader.op not in ("Conv", *POOLS)
        or reader.domain != ""
        or reader.attribute("auto_pad", b"NOTSET") != b"NOTSET"
    ):
        return None
    same = node.attribute("mode", b"constant") == b"constant" and len(varying(graph, node)) == 1
    return reader if same and reader.inputs[0] == node.outputs[0] and _pads_positions(graph, node) else None


def _pads_positions(graph: Graph, node: Node) -> bool:
    """Check if a Pad has known widths and enlarges only spatial axes, so that it neither crops nor pads channels."""
    widths = shape_value(graph, node.inputs[1])
    if widths is None:
        return False
    ends = widths.reshape(2, -1)
    return bool((ends >= 0).all() and not ends[:, :2].any())


def _each_channel(graph: Graph, node: Node, data: int) -> bool:
    """Check if the operands of the node other than `data` hold one number for each channel of the tensor `data`."""
    if node.op == "BatchNormalization":
        return node.inputs[0] == data
    kind = graph.types.get(data)
    others = [graph.types.get(t) for t in node.inputs if t != data]
    if kind is None or kind.shape is None or len(kind.shape) < 3 or len(others) != 1 or others[0] is None:
        return False
    channels = (kind.shape[1], *(1,) * (len(kind.shape) - 2))
    return others[0].shape in (channels, (1, *channels))


class Layout:
    """The layouts, blocked or plain, in which the operators of one graph run; computed on demand and cached."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self._blocked: dict[tuple[int, int], bool] = {}
        self._folds: dict[int, Node | None] = {}

    def folds_into(self, node: Node) -> Node | None:
        """Return the result of the function `folds_into` for a node of the graph; results are cached."""
        if node.op not in FOLDED:
            return None
        if node.id not in self._folds:
            self._folds[node.id] = folds_into(self.graph, node)
        return self._folds[node.id]

    def runs_blocked(self, node: Node, depth: int = DEPTH) -> bool:
        """Check if the operator runs in blocks of channels and writes its result in blocks.

        Args:
          node: the operator.
          depth: number of carriers that the search for the layout may still follow upwards.
        """
        if node.op not in _KINDS:
            return False
        if node.op not in CARRIERS:
            depth = DEPTH  # The shapes of the node, or of its convolution, determine the layout.
        result = self._blocked.get((node.id, depth))
        if result is None:
            result = self._blocked[node.id, depth] = self._runs_blocked(node, depth)
        return result

    def is_blocked(self, tensor: int) -> bool:
        """Check if a node of the graph computes the tensor in blocks of channels."""
        before = producer(self.graph, tensor)
        return before is not None and self.runs_blocked(before)

    def reads_blocked(self, node: Node) -> bool:
        """Check if the operator reads blocks of channels.

        Most operators read the layout that they write. A Pad reads blocks if the convolution or pooling that does its
        padding reads blocks. A convolution with fewer input channels than a block reads plain images.
        """
        # A reorder can also write the channels last, so a transpose to NHWC needs no reorder of its own.
        if node.op == "Transpose":
            return node.attribute("perm", ()) == NHWC and self.is_blocked(node.inputs[0])
        if node.op == "Pad":
            reader = padding_reader(self.graph, node)
            return reader is not None and self.reads_blocked(reader)
        return self.runs_blocked(node) and not self._reads_image(node)

    def reorders(self, node: Node, inner: Collection[int] = ()) -> Iterator[tuple[str, TensorType]]:
        """Yield the reorders for which the node is charged: (ReorderInput or ReorderOutput, type of the tensor).

        The node is charged for reorders of its outputs. It is charged for the reorder of a graph input if it is the
        first reader that reads the input in blocks.

        Args:
          node: the node.
          inner: ids of outputs that stay inside a group and are not reordered.
        """
        graph = self.graph
        for tensor in node.outputs:
            if tensor in inner or not _is_image(graph.types.get(tensor)):
                continue
            readers = [graph.nodes[reader] for reader in graph.consumers.get(tensor, ())]
            if self.runs_blocked(node):
                if tensor in graph.outputs or not all(map(self.reads_blocked, readers)):
                    yield "ReorderOutput", graph.types[tensor]
            elif any(map(self.reads_blocked, readers)):
                yield "ReorderInput", graph.types[tensor]
        for tensor in varying(graph, node):
            if (
                tensor not in graph.producers
                and _is_image(graph.types.get(tensor))
                and node.id == self._first_in_blocks(tensor)
            ):
                yield "ReorderInput", graph.types[tensor]

    def _first_in_blocks(self, tensor: int) -> int | None:
        """Return the id of the first node that reads a graph input in blocks; None if there is no such node."""
        readers = self.graph.consumers.get(tensor, ())
        return next((reader for reader in readers if self.reads_blocked(self.graph.nodes[reader])), None)

    # -- one operator ------------------------------------------------------------------------------

    def _runs_blocked(self, node: Node, depth: int) -> bool:
        graph = self.graph
        if node.constant or not block() or not _is_image(graph.types.get(node.outputs[0])):
            return False
        if node.op in _WINDOWED and borders_before(graph, (node,)):
            return False
        if node.op in CONVOLUTIONS:
            return self._is_blocked_convolution(node)
        if node.domain not in ("", contrib.DOMAIN):
            return False
        if node.op in POOLS:
            return self._is_aligned(node.inputs[0]) and len(node.outputs) == 1
        before = self._activated(node) if node.op in FUSED else self.folds_into(node)
        if before is not None:
            return self.runs_blocked(before, depth)
        data = varying(graph, node)
        if node.op in FUSED or not self._carries(node, data):
            return False
        return all(self._comes_blocked(tensor, depth) for tensor in data)

    def _comes_blocked(self, tensor: int, depth: int) -> bool:
        before = producer(self.graph, tensor)
        if before is None:
            return False
        if depth == 0 and before.op in CARRIERS and not self.folds_into(before):
            return self._is_aligned(tensor)
        return self.runs_blocked(before, max(depth - 1, 0))

    def _activated(self, node: Node) -> Node | None:
        """Return the producer of an activation's input if its convolution computes the activation itself, else None.

        The producer is the convolution, or the last operator that folds into the convolution.
        """
        before = producer(self.graph, node.inputs[0])
        if before is None or only_reader(self.graph, node.inputs[0]) is not node or len(varying(self.graph, node)) > 1:
            return None
        return before if (before.op == "Conv" and before.domain == "") or self.folds_into(before) else None

    def _carries(self, node: Node, data: list[int]) -> bool:
        """Check if a carrier runs in blocks on condition that all its varying inputs `data` are in blocks."""
        if node.op in ALIGNED and not all(map(self._is_aligned, data)):
            return False
        if node.op == "Resize" and not _repeats_pixels(node):
            return False
        if node.op == "Concat":
            return node.attribute("axis", None) == 1 and len(data) == len(node.inputs)
        if node.op in SUMS and len(data) == len(node.inputs):
            return have_same_type(self.graph, data)
        if node.op in SUMS:
            return node.op == "Mul" and len(data) == 1 and _each_channel(self.graph, node, data[0])
        if node.op in REMOVED and not is_removed(self.graph, node):
            return False
        return data == [node.inputs[0]]

    def _is_blocked_convolution(self, node: Node) -> bool:
        weight = self.graph.types.get(node.inputs[1])
        if weight is None or weight.shape is None or len(weight.shape) != 4 or len(node.outputs) > 1:
            return False
        if not all(self.graph.is_constant(tensor) for tensor in node.inputs[1:3] if tensor != ABSENT):
            return False
        channels, inner, group = weight.shape[0], weight.shape[1], node.attribute("group", 1)
        if group == 1:
            return inner < block() or inner % BY_FOUR == 0
        if inner == 1 and channels == group:
            return channels % BY_FOUR == 0
        return inner % block() == 0 and channels % group == 0 and channels // group % block() == 0

    def _reads_image(self, node: Node) -> bool:
        """Check if the node is a convolution with fewer input channels than a block, which reads a plain tensor."""
        if node.op not in CONVOLUTIONS or node.attribute("group", 1) != 1:
            return False
        return self.graph.types[node.inputs[1]].shape[1] < block()

    def _is_aligned(self, tensor: int) -> bool:
        kind = self.graph.types.get(tensor)
        return _is_image(kind) and kind.shape[1] % block() == 0


def _repeats_pixels(node: Node) -> bool:
    """Check if a Resize repeats each pixel (nearest, asymmetric, floor); only then does it have a blocked kernel."""
    wanted = (b"nearest", b"asymmetric", b"floor")
    names = ("mode", "coordinate_transformation_mode", "nearest_mode")
    return tuple(node.attribute(name, b"") for name in names) == wanted


def _is_image(kind: TensorType | None) -> bool:
    """Check if the type is float32 [batch, channels, height, width]."""
    return kind is not None and kind.dtype == TensorProto.FLOAT and kind.shape is not None and len(kind.shape) == 4
