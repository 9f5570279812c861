"""Detect the nodes at which a graph triggers a known fault of ONNX Runtime's optimisations.

Each public function detects one fault and yields the ids of the nodes at which the fault is triggered. `KNOWN` in
`rlflow.optimisation.validate.known_faults` describes the fault of each function.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from rlflow.graph.ir import ABSENT, Graph, Node
from rlflow.graph.shapes import shape_value


def _of(graph: Graph, *operators: str) -> Iterator[Node]:
    return (
        graph.nodes[n] for n in sorted(graph.nodes) if graph.nodes[n].op in operators and not graph.nodes[n].constant
    )


def _maker(graph: Graph, tensor: int) -> Node | None:
    producer = graph.producers.get(tensor)
    return None if producer is None else graph.nodes[producer]


def _readers(graph: Graph, tensor: int) -> list[Node]:
    return [graph.nodes[n] for n in graph.consumers.get(tensor, ())]


def _zero_pads(graph: Graph, *pools: str) -> Iterator[tuple[Node, np.ndarray, int]]:
    """Yield (pool, padding, tensor before the padding) for each pool into which PadFusion merges Pad nodes.

    `padding`, int64 [2 · rank], is the sum of the widths of these Pad nodes, before and after all axes.

    Args:
      graph: the graph.
      *pools: operators of pools, such as "MaxPool".
    """
    for pool in _of(graph, *pools):
        total, tensor = 0, pool.inputs[0]
        while (widths := _zero_pad(graph, tensor)) is not None:
            total, tensor = total + widths, _maker(graph, tensor).inputs[0]
        if len(pool.outputs) == 1 and _pads_itself(pool) and np.max(total, initial=0) > 0:
            yield pool, total, tensor


def _pads_itself(pool: Node) -> bool:
    return dict(pool.attributes).get("auto_pad", b"NOTSET") == b"NOTSET"


def _zero_pad(graph: Graph, tensor: int) -> np.ndarray | None:
    """Return the widths of the Pad that makes a tensor, int64 [2 · rank], before and after all axes.

    Return None if the tensor is not made by a Pad with zeros whose only reader is one node. Also return None if
    PadFusion does not merge the Pad: it names axes, pads with -0.0, pads batch or channels, or has negative widths.
    """
    pad = _maker(graph, tensor)
    if pad is None or pad.op != "Pad" or len(_readers(graph, tensor)) > 1 or tensor in graph.outputs:
        return None
    if len(pad.inputs) > 3 or dict(pad.attributes).get("mode", b"constant") != b"constant":
        return None
    value = pad.inputs[2] if len(pad.inputs) > 2 and pad.inputs[2] != ABSENT else None
    if value is not None and (value not in graph.constants or any(graph.constants[value].load().tobytes())):
        return None
    widths = shape_value(graph, pad.inputs[1])
    if widths is None or widths.min(initial=0) < 0 or widths.reshape(2, -1)[:, :2].any():
        return None
    return widths


NEVER_NEGATIVE = ("Relu", "Sigmoid", "Softmax", "Exp", "Abs")


def zero_pad_before_maxpool(graph: Graph) -> Iterator[int]:
    for pool, _, padded in _zero_pads(graph, "MaxPool"):
        maker = _maker(graph, padded)
        if maker is None or maker.op not in NEVER_NEGATIVE:
            yield pool.id


def wide_zero_pad(graph: Graph) -> Iterator[int]:
    for pool, widths, _ in _zero_pads(graph, "MaxPool", "AveragePool"):
        given, axes = dict(pool.attributes), len(widths) // 2 - 2
        own = given.get("pads", (0,) * (2 * axes))
        wide = [
            widths[end * (axes + 2) + 2 + k] + own[end * axes + k] >= given["kernel_shape"][k]
            for end in (0, 1)
            for k in range(axes)
        ]
        if len(own) == 2 * axes and any(wide):
            yield pool.id


def average_of_nothing(graph: Graph) -> Iterator[int]:
    """Yield average pools with a window that lies in the padding only.

    The number of channels is not checked, because the processor decides whether ONNX Runtime blocks them.
    """
    for pool in _of(graph, "AveragePool"):
        given, kinds = dict(pool.attributes), [graph.types.get(t) for t in (pool.inputs[0], pool.outputs[0])]
        if given.get("count_include_pad") or not _pads_itself(pool) or any(k is None or not k.shape for k in kinds):
            continue
        size, made = (kind.shape[2:] for kind in kinds)
        ones, zeros = (1,) * len(size), (0,) * 2 * len(size)
        strides, dilations, pads = (
            given.get(name, usual) for name, usual in (("strides", ones), ("dilations", ones), ("pads", zeros))
        )
        for axis, kernel in enumerate(given["kernel_shape"]):
            first = np.arange(made[axis]) * strides[axis] - pads[axis]  # [windows], positions
            seen = first[:, None] + dilations[axis] * np.arange(kernel)
            if not ((seen >= 0) & (seen < size[axis])).any(axis=1).all():
                yield pool.id
                break


def clip_after_relu_in_float64(graph: Graph) -> Iterator[int]:
    for clip in _of(graph, "Clip"):
        kind = graph.types.get(clip.inputs[0])
        if kind is None or kind.dtype != TensorProto.DOUBLE or len(clip.inputs) < 2 or clip.inputs[1] == ABSENT:
            continue
        before = _maker(graph, clip.inputs[0])
        while before is not None and before.op in ("Transpose", "Reshape", "Squeeze", "Unsqueeze"):
            before = _maker(graph, before.inputs[0])  # ONNX Runtime moves these views away
        if before is not None and before.op == "Relu":
            yield clip.id


def convolutions_added(graph: Graph) -> Iterator[int]:
    for node in _of(graph, "Add", "Sum"):
        added = [tensor for tensor in node.inputs if _is_convolution(graph, tensor)]
        if len(added) > 1 and any(tensor in graph.outputs for tensor in added):
            yield node.id


def _is_convolution(graph: Graph, tensor: int) -> bool:
    """Return whether the tensor is the result of a convolution, or the sum of such a result and a constant."""
    node = _maker(graph, tensor)
    if node is None or node.constant:
        return False
    if node.op == "Add":
        return any(graph.is_constant(t) for t in node.inputs) and any(_is_convolution(graph, t) for t in node.inputs)
    return node.op == "Conv"


def transposed_outputs(graph: Graph) -> Iterator[int]:
    for product in _of(graph, "Gemm", "MatMul"):
        operands = product.inputs[:2]
        if all((maker := _maker(graph, t)) is not None and maker.op == "Transpose" for t in operands) and any(
            t in graph.outputs for t in operands
        ):
            yield product.id


def empty_product_and_offset(graph: Graph) -> Iterator[int]:
    for product in _of(graph, "MatMul"):
        kind = graph.types.get(product.inputs[0])
        if kind is not None and kind.shape is not None and kind.shape[-1:] == (0,):
            yield from (node.id for node in _readers(graph, product.outputs[0]) if node.op == "Add")


PRODUCTS = ("MatMul", "FusedMatMul")


def empty_product_of_transposed(graph: Graph) -> Iterator[int]:
    for product in _of(graph, *PRODUCTS):
        kind, given = graph.types.get(product.inputs[0]), dict(product.attributes)
        if kind is None or len(kind.shape or ()) < 3 or kind.shape[-2 if given.get("transA") else -1] != 0:
            continue
        makers = [_maker(graph, tensor) for tensor in product.inputs]
        if given.get("transA") or given.get("transB") or any(m is not None and m.op == "Transpose" for m in makers):
            yield product.id


def size_of_empty_left_open(graph: Graph) -> Iterator[int]:
    for reshape in _of(graph, "Reshape"):
        listed, kind = _maker(graph, reshape.inputs[1]), graph.types.get(reshape.outputs[0])
        if listed is None or listed.op != "Concat" or kind is None or 0 not in (kind.shape or ()):
            continue
        parts = [graph.types.get(part) for part in listed.inputs]
        if None in parts or sum(part.size for part in parts) != len(kind.shape):
            continue
        axis = 0
        for part, of in zip(listed.inputs, parts, strict=True):
            others = (*kind.shape[:axis], *kind.shape[axis + 1 :])
            if 0 in others and not graph.is_constant(part) and not _is_copied(graph, part, reshape.inputs[0], axis):
                yield reshape.id
                break
            axis += of.size


def reshape_of_sizes(graph: Graph) -> Iterator[int]:
    for first in _of(graph, "Reshape"):
        tensor = first.outputs[0]
        while len(readers := _readers(graph, tensor)) == 1 and tensor not in graph.outputs:
            node, kind = readers[0], graph.types.get(readers[0].outputs[0])
            # A file can declare the shape of an output that does not follow from the graph.
            known = (kind is not None and kind.shape is not None) or node.outputs[0] in graph.outputs
            if node.op not in ("Reshape", "Squeeze", "Unsqueeze") or not known:
                break
            if node.inputs[0] != tensor:
                yield node.id
                break
            tensor = node.outputs[0]


def _is_copied(graph: Graph, listed: int, tensor: int, axis: int) -> bool:
    """Return whether Shape, Gather and Unsqueeze compute a tensor as the size of one axis of another tensor.

    Args:
      graph: the graph.
      listed: the tensor that may hold the size.
      tensor: the tensor whose shape is read.
      axis: the axis of `tensor`.
    """
    unsqueeze = _maker(graph, listed)
    gather = _maker(graph, unsqueeze.inputs[0]) if unsqueeze is not None and unsqueeze.op == "Unsqueeze" else None
    shape = _maker(graph, gather.inputs[0]) if gather is not None and gather.op == "Gather" else None
    if shape is None or shape.op != "Shape" or shape.inputs[0] != tensor:
        return False
    index = shape_value(graph, gather.inputs[1])
    return index is not None and index.tolist() in (axis, [axis])


def _scale(graph: Graph, node: Node | None) -> float | None:
    """Return the constant factor of a Mul node, or the reciprocal of the constant divisor of a Div node.

    Return NaN if the constant is not stored in the graph, and None if the node has no such constant number.
    """
    if node is None or node.op not in ("Mul", "Div") or node.constant:
        return None
    numbers = [t for t in node.inputs[1 if node.op == "Div" else 0 :] if graph.is_constant(t)]
    if len(numbers) != 1 or (kind := graph.types.get(numbers[0])) is None or kind.size != 1:
        return None
    number = float(graph.constants[numbers[0]].load().reshape(())) if numbers[0] in graph.constants else np.nan
    return 1 / number if node.op == "Div" and number else number


def _products(graph: Graph, tensor: int) -> list[Node]:
    """Return the matrix products that read the tensor, directly or through Transpose nodes."""
    readers = _readers(graph, tensor)
    transposed = [
        product for node in readers if node.op == "Transpose" for product in _products(graph, node.outputs[0])
    ]
    return [node for node in readers if node.op in PRODUCTS] + transposed


def scale_of_two_products(graph: Graph) -> Iterator[int]:
    for first in _of(graph, "Mul", "Div"):
        if _scale(graph, first) is None or not any(node.op in PRODUCTS for node in _readers(graph, first.outputs[0])):
            continue
        if any(
            _scale(graph, second) is not None and _products(graph, second.outputs[0])
            for second in _readers(graph, first.outputs[0])
        ):
            yield first.id


def digits_of_a_scale(graph: Graph) -> Iterator[int]:
    for node in _of(graph, "Mul", "Div"):
        kind, number = graph.types.get(node.outputs[0]), _scale(graph, node)
        if kind is None or kind.dtype != TensorProto.DOUBLE or number is None or float(np.float32(number)) == number:
            continue
        if _before_product(graph, node) or _after_product(graph, node):
            yield node.id


def _before_product(graph: Graph, scale: Node) -> bool:
    """Return whether a matrix product reads the result of a scaling node, possibly through further scaling nodes."""
    readers = _readers(graph, scale.outputs[0])
    return bool(_products(graph, scale.outputs[0])) or any(
        _scale(graph, node) is not None and _before_product(graph, node) for node in readers
    )


def _after_product(graph: Graph, scale: Node) -> bool:
    makers = [maker for tensor in scale.inputs if (maker := _maker(graph, tensor)) is not None]
    return any(
        maker.op in PRODUCTS or (_scale(graph, maker) is not None and _after_product(graph, maker)) for maker in makers
    )


class _Normalisation(NamedTuple):
    """A normalisation made of single operators: d / sqrt(mean(d²) + e) · g, or d · (1 / sqrt(mean(d²) + e)) · g.

    In a layer normalisation, d is x − mean(x).

    Attributes:
      deviation: the tensor d.
      epsilon: the tensor e.
      sum: the node that adds e.
      quotient: the node whose result is d / sqrt(mean(d²) + e).
      product: the node that multiplies by g.
    """

    deviation: int
    epsilon: int
    sum: Node
    quotient: Node
    product: Node


def _normalisations(graph: Graph) -> Iterator[_Normalisation]:
    for root in _of(graph, "Sqrt"):
        inner = _maker(graph, root.inputs[0])
        if inner is None or inner.op != "Add":
            continue
        for mean, epsilon in (inner.inputs, inner.inputs[::-1]):
            square = (
                _maker(graph, made.inputs[0])
                if (made := _maker(graph, mean)) is not None and made.op == "ReduceMean"
                else None
            )
            if square is None or square.op not in ("Pow", "Mul") or not graph.is_constant(epsilon):
                continue
            deviation = square.inputs[0]
            for quotient in _quotients(graph, deviation, root.outputs[0]):
                products = [node for node in _readers(graph, quotient.outputs[0]) if node.op == "Mul"]
                yield from (_Normalisation(deviation, epsilon, inner, quotient, product) for product in products)


def _quotients(graph: Graph, dividend: int, divisor: int) -> Iterator[Node]:
    """Yield the nodes that divide a tensor by a divisor, or multiply the tensor by the reciprocal of the divisor.

    Args:
      graph: the graph.
      dividend: the tensor that is divided.
      divisor: the tensor that divides.
    """
    for node in _readers(graph, divisor):
        if node.op == "Div" and node.inputs[0] == dividend:
            yield node
        elif node.op == "Div" and _is_one(graph, node.inputs[0]):
            readers = _readers(graph, node.outputs[0])
            yield from (product for product in readers if product.op == "Mul" and dividend in product.inputs)


def _is_one(graph: Graph, tensor: int) -> bool:
    constant = graph.constants.get(tensor)
    return constant is not None and constant.type.size == 1 and constant.load().item() == 1


def epsilon_of_each_feature(graph: Graph) -> Iterator[int]:
    return (result.product.id for result in _normalisations(graph) if graph.types[result.epsilon].size != 1)


def epsilon_first(graph: Graph) -> Iterator[int]:
    for result in _normalisations(graph):
        deviation = _maker(graph, result.deviation)
        if result.sum.inputs[0] == result.epsilon and deviation is not None and deviation.op == "Sub":
            yield result.product.id


def normalised_in_float64(graph: Graph) -> Iterator[int]:
    for result in _normalisations(graph):
        if graph.types[result.epsilon].dtype == TensorProto.DOUBLE and not _is_layer_normalisation(graph, result):
            yield result.product.id


def epsilon_of_others_in_float16(graph: Graph) -> Iterator[int]:
    """Yield float16 normalisations whose epsilon, or a constant equal to it, has another reader.

    ONNX Runtime inserts one Cast for all readers, and this Cast hides the epsilon from the fusion.
    """
    for result in _normalisations(graph):
        constant = graph.constants.get(result.epsilon)
        if constant is not None and constant.type.dtype == TensorProto.FLOAT16:
            same = [tensor for tensor, other in graph.constants.items() if other.digest == constant.digest]
            if sum(len(_readers(graph, tensor)) for tensor in same) > 1:
                yield result.product.id


def normalised_over_nothing(graph: Graph) -> Iterator[int]:
    for result in _normalisations(graph):
        kind = graph.types.get(result.deviation)
        if kind is not None and kind.shape and kind.shape[-1] == 0:
            yield result.product.id


def normalised_vector(graph: Graph) -> Iterator[int]:
    for _, _, _, quotient, product in _normalisations(graph):
        kind, scale = graph.types.get(quotient.outputs[0]), graph.types.get(product.inputs[1])
        if kind is not None and kind.shape is not None and len(kind.shape) == 1:
            offset_first = any(
                node.op == "Add" and node.inputs[0] != product.outputs[0]
                for node in _readers(graph, product.outputs[0])
            )
            if product.inputs[0] != quotient.outputs[0] or scale is None or scale.shape == () or offset_first:
                yield product.id


def _is_layer_normalisation(graph: Graph, result: _Normalisation) -> bool:
    """Return whether ONNX Runtime fuses the normalisation into a correct LayerNormalization.

    This requires the subtraction of the mean, a constant scale and offset over the last axis, equal axes of the mean
    and of the variance, and no other reader of a tensor inside the normalisation.
    """
    deviation, quotient = _maker(graph, result.deviation), result.quotient
    mean = _maker(graph, deviation.inputs[1]) if deviation is not None and deviation.op == "Sub" else None
    scaled = _readers(graph, quotient.outputs[0])
    offset = _readers(graph, scaled[0].outputs[0]) if len(scaled) == 1 and scaled[0].op == "Mul" else []
    if mean is None or mean.op != "ReduceMean" or len(offset) != 1 or offset[0].op != "Add":
        return False
    kind = graph.types.get(quotient.outputs[0])
    last = kind.shape[-1:] if kind is not None and kind.shape else None
    affine = [
        t for node, made in ((scaled[0], quotient), (offset[0], scaled[0])) for t in node.inputs if t != made.outputs[0]
    ]
    if len(affine) != 2 or any(not graph.is_constant(t) or graph.types[t].shape != last for t in affine):
        return False
    square = next((node for node in _readers(graph, deviation.outputs[0]) if node.op in ("Pow", "Mul")), None)
    variance = _readers(graph, square.outputs[0]) if square is not None else []
    if len(variance) != 1 or graph.types.get(variance[0].outputs[0]) != graph.types.get(mean.outputs[0]):
        return False  # the two means have different axes
    inner = (mean.outputs[0], 1), (deviation.outputs[0], 2), (quotient.outputs[0], 1), (scaled[0].outputs[0], 1)
    return all(tensor not in graph.outputs and len(_readers(graph, tensor)) == count for tensor, count in inner)
