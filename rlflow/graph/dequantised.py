"""Quantised models, and their conversion to the float32 computation that they approximate.

A quantised model rounds activations to 8 bits. ONNX Runtime computes it in integers, which a processor without 8-bit
dot products does more slowly than in float32. `dequantised` leaves out the rounding and keeps what quantisation stored:
the weights with their rounding, and the range of each activation, to which a quantised value saturates. A saturated
range is often the only trace of a Relu. Three forms are converted:

- A QuantizeLinear and its DequantizeLinear become a Clip to the range [(least - zero) · scale, (most - zero) · scale].
  The Clip is omitted where an operator before it leaves the range by at most one step (the scale).
- A DequantizeLinear of a constant becomes (Cast(weight) - zero) · scale. ONNX Runtime computes this once for each
  session, so the file keeps the size of the original.
- DynamicQuantizeLinear, MatMulInteger or ConvInteger, Cast, and Mul with both scales become MatMul or Conv of the input
  itself. The range of a dynamic quantisation contains all elements, so there is no Clip.

Every other use of integers stays as it is. Each value that is rounded in the original moves by at most half a step, and
by one step where a Clip is omitted; the conversion changes nothing else.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rlflow.common.errors import RLFlowError
from rlflow.graph.half_precision import graphs
from rlflow.graph.naming import FreshNames
from rlflow.graph.repairs import plain_domain

QUANTISERS = ("QuantizeLinear", "DynamicQuantizeLinear")
LEAST_OPSET = 11  # oldest opset in which the bounds of a Clip are inputs
WEIGHTS_APART = 4  # IR version from which a weight need not be an input, and an input of its name replaces it
# Operators whose outputs lie between the least and the greatest element of their first input.
KEEP_RANGE = frozenset((
    "MaxPool", "GlobalMaxPool", "GlobalAveragePool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice",
    "Gather", "Identity", "Expand", "Split", "DepthToSpace", "SpaceToDepth",
))  # fmt: skip
RANGES = {"Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "HardSigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0)}


def is_quantised(model: onnx.ModelProto) -> bool:
    """Return True if the model quantises a tensor while it runs, also in functions and subgraphs."""
    return any(node.op_type in QUANTISERS and not node.domain for graph in graphs(model) for node in graph.node)


class Quantised(NamedTuple):
    """A quantised tensor, and the tensor of float32 from which it was made.

    Attributes:
      real: the name of the float32 tensor, limited to the range of the quantised values.
      parameters: scale and zero point, as contents or as names of tensors; a reader must have the same.
    """

    real: str
    parameters: tuple


def dequantised(model: onnx.ModelProto, folder: str, keep: Sequence[str] = ()) -> onnx.ModelProto:
    """Return a copy of a quantised model that computes in float32, as the module describes.

    Args:
      model: the model; its functions must have been inlined.
      folder: the folder of the model's external weights; "" if it has none.
      keep: names of tensors and nodes that the user protected.

    Raises:
      RLFlowError: no quantised operator of the main graph can be converted, the opset is below LEAST_OPSET, or `keep`
        names a tensor.
    """
    opset = next((entry.version for entry in model.opset_import if not plain_domain(entry.domain)), 0)
    if opset < LEAST_OPSET:
        raise RLFlowError(f"the model stays quantised, because its opset {opset} is below {LEAST_OPSET}")
    tensors = {name for node in model.graph.node for name in (*node.input, *node.output)}
    if protected := sorted(tensors & set(keep)):
        raise RLFlowError(f"the model stays quantised, because --keep protects the tensor '{protected[0]}'")
    result = onnx.ModelProto()
    result.CopyFrom(model)
    # In older files weights are inputs, too, which nobody feeds.
    given = {value.name for value in result.graph.input} if model.ir_version >= WEIGHTS_APART else set()
    converter = _Converter(result.graph, folder, given)
    if not converter.convert():
        raise RLFlowError("the model stays quantised, because none of its quantised operators has a known form")
    return result


class _Converter:
    """The conversion of one graph in place.

    Attributes:
      nodes: the nodes of the result.
      quantised: name of a tensor → how it was quantised with a constant scale.
      dynamic: name of the output of a DynamicQuantizeLinear → how it was quantised.
      ranges: name of a tensor → a range that contains its elements.
      makers, readers: name of a tensor → the node that computes it, and the last node that reads it.
      renamed: name of a tensor that nothing computes any more → the name of the tensor that its readers read.
    """

    def __init__(self, graph: onnx.GraphProto, folder: str, given: set[str]):
        self.graph, self.folder = graph, folder
        self.names = FreshNames(
            {name for node in graph.node for name in (*node.input, *node.output)}
            | {one.name for one in (*graph.input, *graph.output, *graph.initializer)}
        )
        self.constants = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in given}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = node.attribute[0].t
        self.outputs = {value.name for value in graph.output}
        self.inner = {name for node in graph.node for name in _names_in_bodies(node)}
        self.reads = Counter(name for node in graph.node for name in node.input) + Counter(self.inner)
        self.makers = {name: node for node in graph.node for name in node.output}
        self.readers = {name: node for node in graph.node for name in node.input}
        self.nodes: list[onnx.NodeProto] = []
        self.quantised: dict[str, Quantised] = {}
        self.dynamic: dict[str, Quantised] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self.renamed: dict[str, str] = {}
        self.skipped: set[str] = set()  # outputs of nodes that a converted product replaces
        self.converted = 0

    def convert(self) -> int:
        """Convert the graph and return the number of converted operators."""
        for node in self.graph.node:
            if node.output[0] in self.skipped:
                continue
            for k, name in enumerate(node.input):
                node.input[k] = self.renamed.get(name, name)
            made = self._replacement(node)
            # A quantisation alone stays if operators that compute in integers read it.
            self.converted += made is not None and node.op_type != "QuantizeLinear"
            self.nodes += [node] if made is None else made
            self._note_range(node)
        self._write()
        return self.converted

    def _replacement(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return the nodes that take the place of a node; None if it stays."""
        if node.domain:
            return None
        if node.op_type == "QuantizeLinear":
            return self._clip(node)
        if node.op_type == "DequantizeLinear":
            return self._real(node)
        if node.op_type == "DynamicQuantizeLinear":
            self.dynamic[node.output[0]] = Quantised(node.input[0], tuple(node.output[1:]))
        if node.op_type in ("MatMulInteger", "ConvInteger"):
            return self._product(node)
        return None

    def _array(self, name: str) -> np.ndarray | None:
        """Return the content of a constant; None for other tensors."""
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor, self.folder)

    def _constant(self, wanted: str, array: np.ndarray) -> str:
        name = self.names.new(wanted)
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    # -- pairs of QuantizeLinear and DequantizeLinear --------------------------------------------------

    def _clip(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return a Clip to the range of a QuantizeLinear, and the QuantizeLinear for readers that stay quantised.

        The Clip is omitted if the input is known to leave the range by at most one step. Return None if the scale or
        the zero point is not a constant of a known form.
        """
        kind = next((one.i for one in node.attribute if one.name == "output_dtype" and one.i), TensorProto.UINT8)
        scale, zero = self._array(node.input[1]), np.zeros((), helper.tensor_dtype_to_np_dtype(kind))
        if len(node.input) > 2 and node.input[2]:
            zero = self._array(node.input[2])
        if scale is None or zero is None or scale.size != 1 or scale.dtype != np.float32 or zero.dtype.kind not in "iu":
            return None
        step, limits = float(scale.reshape(())), np.iinfo(zero.dtype)
        low, high = (step * (float(bound) - float(zero.reshape(()))) for bound in (limits.min, limits.max))
        real, made = node.input[0], [node]
        least, most = self.ranges.get(real, (-np.inf, np.inf))
        if least < low - step or most > high + step:
            real = self.names.new(f"{node.output[0]} (float32)")
            bounds = [self._constant(f"{real} {which}", np.float32(b)) for which, b in (("low", low), ("high", high))]
            made.insert(0, helper.make_node("Clip", [node.input[0], *bounds], [real], name=f"{node.name} (clip)"))
            self.ranges[real] = low, high
        self.quantised[node.output[0]] = Quantised(real, (step, int(zero.reshape(())), zero.dtype))
        return made

    def _real(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return the nodes that replace a DequantizeLinear; None if it stays.

        If `node` reads a converted QuantizeLinear with the same scale and zero point, the readers of `node` read the
        float32 tensor instead; an Identity remains only for an output of the graph or a reader in a body. If `node`
        reads a stored weight, the nodes compute the weight in float32.
        """
        scale, zero = self._array(node.input[1]), None
        if len(node.input) > 2 and node.input[2]:
            zero = self._array(node.input[2])
            if zero is None:
                return None
        if scale is None or scale.dtype != np.float32:
            return None
        source, result = self.quantised.get(node.input[0]), node.output[0]
        if source is not None:
            offset = 0 if zero is None else int(zero.reshape(-1)[0])
            if scale.size != 1 or (float(scale.reshape(())), offset) != source.parameters[:2]:
                return None
            if result in self.outputs | self.inner:
                return [helper.make_node("Identity", [source.real], [result], name=node.name)]
            self.renamed[result] = source.real
            return []
        tensor = self.constants.get(node.input[0])
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        blocks = any(attribute.name == "block_size" and attribute.i for attribute in node.attribute)
        if tensor is None or blocks:
            return None
        shape = [1] * len(tensor.dims)
        if scale.size != 1:
            shape[axis] = scale.size
        return self._weight(node.input[0], scale.reshape(shape if scale.ndim else ()), _offset(zero, shape), result)

    def _weight(self, name: str, scale: np.ndarray, zero: np.ndarray | None, result: str) -> list[onnx.NodeProto]:
        """Return nodes that compute (Cast(weight) - zero) · scale.

        Args:
          name: the name of the stored weight.
          scale: the factors, which broadcast to the weight.
          zero: the summands, which broadcast to the weight; None for 0.
          result: the name of the result.
        """
        whole = self.names.new(f"{name} (float32)")
        nodes = [helper.make_node("Cast", [name], [whole], name=f"{name} (cast)", to=TensorProto.FLOAT)]
        if zero is not None and zero.any():
            moved = self.names.new(f"{name} (centred)")
            offset = self._constant(f"{name} (zero)", zero.astype(np.float32))
            nodes.append(helper.make_node("Sub", [whole, offset], [moved], name=f"{name} (centre)"))
            whole = moved
        factor = self._constant(f"{name} (scale)", scale)
        return [*nodes, helper.make_node("Mul", [whole, factor], [result], name=f"{name} (scaled)")]

    # -- products of dynamically quantised inputs ------------------------------------------------------

    def _product(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return nodes that multiply the float32 input by the stored weight in float32; None if the pattern differs.

        The result takes the name of the output of the Mul that scales the integer product, and replaces this Mul.
        """
        source, (weight, *zeros) = self.dynamic.get(node.input[0]), node.input[1:]
        if source is None or weight not in self.constants or not zeros or zeros[0] != source.parameters[1]:
            return None
        zero = self._array(zeros[1]) if len(zeros) > 1 and zeros[1] else np.zeros((), np.int8)
        cast = self._only_reader(node.output[0], "Cast")
        last = cast and self._only_reader(cast.output[0], "Mul")
        if zero is None or last is None:
            return None
        scale = self._own_scale(next(x for x in last.input if x != cast.output[0]), source.parameters[0])
        if scale is None:
            return None
        shape = [1] * len(self.constants[weight].dims)
        shape[0 if node.op_type == "ConvInteger" else -1] = -1
        result = self.names.new(f"{weight} (real)")
        made = self._weight(weight, scale.reshape(shape), zero.reshape(shape), result)
        kind = node.op_type.removesuffix("Integer")
        product = helper.make_node(kind, [source.real, result], [last.output[0]], name=node.name)
        product.attribute.extend(node.attribute)
        self.skipped |= {cast.output[0], last.output[0]}
        return [*made, product]

    def _only_reader(self, name: str, kind: str) -> onnx.NodeProto | None:
        """Return the only node that reads a tensor; None if there are several, or if it is of another kind."""
        reader = self.readers.get(name)
        alone = self.reads[name] == 1 and name not in self.outputs and reader is not None
        return reader if alone and reader.op_type == kind and not reader.domain else None

    def _own_scale(self, name: str, scale: str) -> np.ndarray | None:
        """Return the constant c of a tensor that is computed as `scale` · c; None if it is computed otherwise."""
        node = self.makers.get(name)
        if node is None or node.op_type != "Mul" or scale not in node.input:
            return None
        return next((self._array(other) for other in node.input if other != scale), None)

    # -- ranges and the result -------------------------------------------------------------------------

    def _note_range(self, node: onnx.NodeProto) -> None:
        known = self.ranges.get(node.input[0]) if node.input else None
        if node.op_type in RANGES:
            known = RANGES[node.op_type]
        elif node.op_type == "Relu":
            known = 0.0, max(known[1], 0.0) if known else np.inf
        elif node.op_type not in KEEP_RANGE:
            known = None
        if known is not None and not node.domain:
            self.ranges.update(dict.fromkeys(node.output, known))

    def _write(self) -> None:
        """Put the nodes into the graph, without quantisations, scales and weights that nothing reads any more."""
        needed, kept = self.outputs | self.inner, []
        for node in reversed(self.nodes):
            if needed & set(node.output):
                needed |= {*node.input, *_names_in_bodies(node)}
                kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
        _replace(self.graph.node, reversed(kept))
        needed |= {value.name for value in self.graph.input}
        _replace(self.graph.initializer, [tensor for tensor in self.graph.initializer if tensor.name in needed])
        made = {name for node in self.graph.node for name in node.output}
        _replace(self.graph.value_info, [value for value in self.graph.value_info if value.name in made])


def _replace(field, values: Iterable) -> None:
    values = list(values)
    del field[:]
    field.extend(values)


def _offset(zero: np.ndarray | None, shape: Sequence[int]) -> np.ndarray | None:
    return None if zero is None else zero.reshape(shape if zero.size > 1 else ())


def _names_in_bodies(node: onnx.NodeProto) -> set[str]:
    """Return the names of the tensors that the bodies of a node read."""
    bodies = [body for attribute in node.attribute for body in (attribute.g, *attribute.graphs)]
    return {
        name for body in bodies for inner in body.node for name in {*inner.input, *_names_in_bodies(inner)}
    } | {value.name for body in bodies for value in body.output}  # fmt: skip
