"""What ONNX Runtime's own optimisations are known to get wrong: right graphs that are run wrongly, or not at all.

Each was met by a rewrite that is proved: outputs stayed what they were without ONNX Runtime's optimisations, and not
with them. Such a graph is not delivered: the rewrites that lead to what triggers the fault are left out
(`rlflow.deliver.repair`). docs/FAULTS.md shows each with its smallest model, made and run by `python -m
benchmarks.known_faults`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from rlflow.graph.model import ABSENT, Graph, Node
from rlflow.graph.shapes import shape_value

ONNXRUNTIME = "1.31.1"  # the version in which they were seen


@dataclass(frozen=True)
class KnownFault:
    """One fault of ONNX Runtime.

    Attributes:
      name: of the optimisation.
      what: it does wrong, in a sentence.
      model: the smallest model that shows it, in ONNX's text format.
      triggers: the nodes of a graph at which it is triggered.
    """

    name: str
    what: str
    model: str
    triggers: Callable[[Graph], Iterator[int]]


def known_faults(graph: Graph) -> Counter[str]:
    """How often each known fault is triggered in a graph, by name."""
    return Counter({fault.name: count for fault in KNOWN if (count := len(list(fault.triggers(graph))))})


def named(name: str) -> KnownFault:
    return next(fault for fault in KNOWN if fault.name == name)


# -- triggers --------------------------------------------------------------------------------------


def _of(graph: Graph, *operators: str) -> Iterator[Node]:
    return (graph.nodes[n] for n in sorted(graph.nodes) if graph.nodes[n].op in operators and not graph.nodes[n].constant)


def _maker(graph: Graph, tensor: int) -> Node | None:
    producer = graph.producers.get(tensor)
    return None if producer is None else graph.nodes[producer]


def _readers(graph: Graph, tensor: int) -> list[Node]:
    return [graph.nodes[n] for n in graph.consumers.get(tensor, ())]


def _zero_pads(graph: Graph, *pools: str) -> Iterator[tuple[Node, np.ndarray]]:
    """(pool, the pads of all its axes) wherever a Pad with zeros has that pool as its single consumer."""
    for pool in _of(graph, *pools):
        pad = _maker(graph, pool.inputs[0])
        if pad is None or pad.op != "Pad" or len(_readers(graph, pool.inputs[0])) > 1 or pool.inputs[0] in graph.outputs:
            continue
        value = pad.inputs[2] if len(pad.inputs) > 2 and pad.inputs[2] != ABSENT else None
        is_zero = value is None or (value in graph.constants and not graph.constants[value].load().any())
        sizes = _pads(graph, pad)
        if dict(pad.attributes).get("mode", b"constant") == b"constant" and is_zero and sizes is not None and sizes.max(initial=0) > 0:
            yield pool, sizes


def _pads(graph: Graph, pad: Node) -> np.ndarray | None:
    """int64 [2 · rank]: before all axes, then behind them; None if they are not known."""
    sizes, kind = shape_value(graph, pad.inputs[1]) if len(pad.inputs) > 1 else None, graph.types.get(pad.inputs[0])
    if sizes is None or kind is None or kind.shape is None or len(pad.inputs) < 4 or pad.inputs[3] == ABSENT:
        return sizes
    axes = shape_value(graph, pad.inputs[3])
    if axes is None:
        return None
    result = np.zeros((2, len(kind.shape)), np.int64)
    result[:, axes] = sizes.reshape(2, -1)
    return result.reshape(-1)


def _zero_pad_before_maxpool(graph: Graph) -> Iterator[int]:
    return (pool.id for pool, _ in _zero_pads(graph, "MaxPool"))


def _wide_zero_pad(graph: Graph) -> Iterator[int]:
    for pool, sizes in _zero_pads(graph, "MaxPool", "AveragePool"):
        given, axes = dict(pool.attributes), len(sizes) // 2 - 2
        own = given.get("pads", (0,) * (2 * axes))
        wide = [sizes[end * (axes + 2) + 2 + k] + own[end * axes + k] >= given["kernel_shape"][k] for end in (0, 1) for k in range(axes)]
        if len(own) == 2 * axes and any(wide):
            yield pool.id


def _clip_after_relu_in_float64(graph: Graph) -> Iterator[int]:
    for clip in _of(graph, "Clip"):
        kind = graph.types.get(clip.inputs[0])
        if kind is None or kind.dtype != TensorProto.DOUBLE or len(clip.inputs) < 2 or clip.inputs[1] == ABSENT:
            continue
        before = _maker(graph, clip.inputs[0])
        while before is not None and before.op in ("Transpose", "Reshape", "Squeeze", "Unsqueeze"):
            before = _maker(graph, before.inputs[0])  # which ONNX Runtime moves out of between
        if before is not None and before.op == "Relu":
            yield clip.id


def _convolutions_added(graph: Graph) -> Iterator[int]:
    for node in _of(graph, "Add", "Sum"):
        added = [tensor for tensor in node.inputs if _is_convolution(graph, tensor)]
        if len(added) > 1 and any(tensor in graph.outputs for tensor in added):
            yield node.id


def _is_convolution(graph: Graph, tensor: int) -> bool:
    """Of it only, or of it and an offset."""
    node = _maker(graph, tensor)
    if node is None or node.constant:
        return False
    if node.op == "Add":
        return any(graph.is_constant(t) for t in node.inputs) and any(_is_convolution(graph, t) for t in node.inputs)
    return node.op == "Conv"


def _transposed_outputs(graph: Graph) -> Iterator[int]:
    for product in _of(graph, "Gemm", "MatMul"):
        operands = product.inputs[:2]
        if all((maker := _maker(graph, t)) is not None and maker.op == "Transpose" for t in operands) and any(t in graph.outputs for t in operands):
            yield product.id


def _empty_product_and_offset(graph: Graph) -> Iterator[int]:
    for product in _of(graph, "MatMul"):
        kind = graph.types.get(product.inputs[0])
        if kind is not None and kind.shape is not None and kind.shape[-1:] == (0,):
            yield from (node.id for node in _readers(graph, product.outputs[0]) if node.op == "Add")


PRODUCTS = ("MatMul", "FusedMatMul")


def _scale(graph: Graph, node: Node | None) -> float | None:
    """The number that a node multiplies with, or the inverse of that by which it divides; NaN if it is computed."""
    if node is None or node.op not in ("Mul", "Div") or node.constant:
        return None
    numbers = [t for t in node.inputs[1 if node.op == "Div" else 0 :] if graph.is_constant(t)]
    if len(numbers) != 1 or (kind := graph.types.get(numbers[0])) is None or kind.size != 1:
        return None
    number = float(graph.constants[numbers[0]].load().reshape(())) if numbers[0] in graph.constants else np.nan
    return 1 / number if node.op == "Div" and number else number


def _products(graph: Graph, tensor: int) -> list[Node]:
    """Those that read the tensor, transposed or not."""
    readers = _readers(graph, tensor)
    transposed = [product for node in readers if node.op == "Transpose" for product in _products(graph, node.outputs[0])]
    return [node for node in readers if node.op in PRODUCTS] + transposed


def _scale_of_two_products(graph: Graph) -> Iterator[int]:
    for first in _of(graph, "Mul", "Div"):
        if _scale(graph, first) is None or not any(node.op in PRODUCTS for node in _readers(graph, first.outputs[0])):
            continue
        if any(_scale(graph, second) is not None and _products(graph, second.outputs[0]) for second in _readers(graph, first.outputs[0])):
            yield first.id


def _digits_of_a_scale(graph: Graph) -> Iterator[int]:
    for node in _of(graph, "Mul", "Div"):
        kind, number = graph.types.get(node.outputs[0]), _scale(graph, node)
        if kind is None or kind.dtype != TensorProto.DOUBLE or number is None or float(np.float32(number)) == number:
            continue
        if _before_product(graph, node) or _after_product(graph, node):
            yield node.id


def _before_product(graph: Graph, scale: Node) -> bool:
    """Whether a product reads it, or another such number does that comes before one."""
    readers = _readers(graph, scale.outputs[0])
    return bool(_products(graph, scale.outputs[0])) or any(_scale(graph, node) is not None and _before_product(graph, node) for node in readers)


def _after_product(graph: Graph, scale: Node) -> bool:
    makers = [maker for tensor in scale.inputs if (maker := _maker(graph, tensor)) is not None]
    return any(maker.op in PRODUCTS or (_scale(graph, maker) is not None and _after_product(graph, maker)) for maker in makers)


class _Normalisation(NamedTuple):
    """d / sqrt(mean(d²) + e) · g, written out; d of a layer normalisation is x − mean(x)."""

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
            square = _maker(graph, made.inputs[0]) if (made := _maker(graph, mean)) is not None and made.op == "ReduceMean" else None
            if square is None or square.op not in ("Pow", "Mul") or not graph.is_constant(epsilon):
                continue
            for quotient in _readers(graph, root.outputs[0]):
                if quotient.op == "Div" and quotient.inputs[0] == square.inputs[0]:
                    products = [node for node in _readers(graph, quotient.outputs[0]) if node.op == "Mul"]
                    yield from (_Normalisation(epsilon, inner, quotient, product) for product in products)


def _epsilon_of_each_feature(graph: Graph) -> Iterator[int]:
    return (result.product.id for result in _normalisations(graph) if graph.types[result.epsilon].size != 1)


def _epsilon_first(graph: Graph) -> Iterator[int]:
    for result in _normalisations(graph):
        deviation = _maker(graph, result.quotient.inputs[0])
        if result.sum.inputs[0] == result.epsilon and deviation is not None and deviation.op == "Sub":
            yield result.product.id


def _normalised_in_float64(graph: Graph) -> Iterator[int]:
    for result in _normalisations(graph):
        if graph.types[result.epsilon].dtype == TensorProto.DOUBLE and not _is_layer_normalisation(graph, result.quotient):
            yield result.product.id


def _epsilon_of_others_in_float16(graph: Graph) -> Iterator[int]:
    """One Cast for all that read the same number hides it."""
    for result in _normalisations(graph):
        constant = graph.constants.get(result.epsilon)
        if constant is not None and constant.type.dtype == TensorProto.FLOAT16:
            same = [tensor for tensor, other in graph.constants.items() if other.digest == constant.digest]
            if sum(len(_readers(graph, tensor)) for tensor in same) > 1:
                yield result.product.id


def _normalised_vector(graph: Graph) -> Iterator[int]:
    for _, _, quotient, product in _normalisations(graph):
        kind, scale = graph.types.get(quotient.outputs[0]), graph.types.get(product.inputs[1])
        if kind is not None and kind.shape is not None and len(kind.shape) == 1:
            offset_first = any(node.op == "Add" and node.inputs[0] != product.outputs[0] for node in _readers(graph, product.outputs[0]))
            if product.inputs[0] != quotient.outputs[0] or scale is None or scale.shape == () or offset_first:
                yield product.id


def _is_layer_normalisation(graph: Graph, quotient: Node) -> bool:
    """Whether all of one is there, and none of it is read by others: that is fused rightly."""
    deviation = _maker(graph, quotient.inputs[0])
    mean = _maker(graph, deviation.inputs[1]) if deviation is not None and deviation.op == "Sub" else None
    scaled = _readers(graph, quotient.outputs[0])
    offset = _readers(graph, scaled[0].outputs[0]) if len(scaled) == 1 and scaled[0].op == "Mul" else []
    if mean is None or mean.op != "ReduceMean" or len(offset) != 1 or offset[0].op != "Add":
        return False
    kind = graph.types.get(quotient.outputs[0])
    last = kind.shape[-1:] if kind is not None and kind.shape else None
    affine = [t for node, made in ((scaled[0], quotient), (offset[0], scaled[0])) for t in node.inputs if t != made.outputs[0]]
    if len(affine) != 2 or any(not graph.is_constant(t) or graph.types[t].shape != last for t in affine):
        return False
    square = next((node for node in _readers(graph, deviation.outputs[0]) if node.op in ("Pow", "Mul")), None)
    variance = _readers(graph, square.outputs[0]) if square is not None else []
    if len(variance) != 1 or graph.types.get(variance[0].outputs[0]) != graph.types.get(mean.outputs[0]):
        return False  # the means are along other axes
    inner = (mean.outputs[0], 1), (deviation.outputs[0], 2), (quotient.outputs[0], 1), (scaled[0].outputs[0], 1)
    return all(tensor not in graph.outputs and len(_readers(graph, tensor)) == count for tensor, count in inner)


# -- the faults ------------------------------------------------------------------------------------

NUMBERS = "1.0, 2.0, 3.0, 4.0, 5.0, 6.0"
NORMALISED = """  q = Pow (x, two)
  m = ReduceMean <keepdims = 1> (q, last)
  s = Add (m, e)
  r = Sqrt (s)
  k = Div (x, r)
"""

KNOWN = (
    KnownFault(
        "PadFusion",
        "a Pad with zeros that only a MaxPool reads becomes the padding of the MaxPool, which stands for minus infinity: the result is "
        "wrong where all elements of a window are negative",
        """<ir_version: 8, opset_import: ["" : 15]>
g (float[1,1,4,4] x) => (float[1,1,2,2] y) <int64[8] p = {0, 0, 0, 0, 0, 0, 1, 1}> {
  t = Pad (x, p)
  y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (t)
}""",
        _zero_pad_before_maxpool,
    ),
    KnownFault(
        "PadFusion-width",
        "a Pad with zeros as wide as the window of the pool that is its single consumer becomes padding of the pool, which may not be so wide: no "
        "session can be made",
        """<ir_version: 8, opset_import: ["" : 15]>
g (float[1,1,4,4] x) => (float[1,1,5,4] y) <int64[8] p = {0, 0, 2, 0, 0, 0, 0, 0}> {
  t = Pad (x, p)
  y = AveragePool <kernel_shape = [2, 1]> (t)
}""",
        _wide_zero_pad,
    ),
    KnownFault(
        "FuseReluClip",
        "a Clip in float64 with a lower bound that follows a Relu: no session can be made",
        """<ir_version: 8, opset_import: ["" : 15]>
g (double[4] x) => (double[4] y) <double low = {0.0}> {
  t = Relu (x)
  y = Clip (t, low)
}""",
        _clip_after_relu_in_float64,
    ),
    KnownFault(
        "ConvAddActivationFusion",
        "the sum of two convolutions that are not computed in blocks (grouped, or of weights that are inputs), the first of which is an output of the "
        "model as well: its tensor is gone, and no session can be made",
        f"""<ir_version: 8, opset_import: ["" : 15]>
g (float[1,3,4,4] x) => (float[1,6,4,4] y, float[1,6,4,4] p) <float[6,1,1,1] w = {{{NUMBERS}}}, float[6,1,1,1] v = {{{NUMBERS}}}, float[6] b = {{{NUMBERS}}}> {{
  p = Conv <group = 3> (x, w, b)
  q = Conv <group = 3> (x, v, b)
  s = Add (p, q)
  y = Mul (s, s)
}}""",
        _convolutions_added,
    ),
    KnownFault(
        "GemmTransposeFusion",
        "a Gemm, or what becomes one, of two transposed matrices, one of which is an output of the model as well: it is gone, and no session can be made",
        """<ir_version: 8, opset_import: ["" : 15]>
g (float[2,3] x, float[1,2] z, float[3,1] w) => (float[3,1] y, float[3,2] a) {
  a = Transpose (x)
  b = Transpose (z)
  y = Gemm (a, b, w)
}""",
        _transposed_outputs,
    ),
    KnownFault(
        "MatMulAddFusion",
        "the product of no columns with no rows, and an offset: it becomes a Gemm behind a Reshape that is not valid, and no session can be made",
        """<ir_version: 8, opset_import: ["" : 15]>
g (float[0] x) => (float[2] y) <float[0,2] w = {}, float[2] b = {1.0, 2.0}> {
  t = MatMul (x, w)
  y = Add (t, b)
}""",
        _empty_product_and_offset,
    ),
    KnownFault(
        "MatMulScaleFusion",
        "a product with a number that is read by a MatMul, and by a second such product before another MatMul: it is removed while it is still "
        "read, and no session can be made",
        """<ir_version: 8, opset_import: ["" : 15]>
g (float[2,3] x, float[3,2] y) => (float[2,2] u, float[2,2] v) <float c = {2.0}, float d = {3.0}> {
  a = Mul (x, c)
  u = MatMul (a, y)
  b = Mul (a, d)
  v = MatMul (b, y)
}""",
        _scale_of_two_products,
    ),
    KnownFault(
        "MatMulScaleFusion-digits",
        "a number before or after a MatMul in float64 becomes a float32 attribute: digits are lost",
        """<ir_version: 8, opset_import: ["" : 15]>
g (double[2,2] x, double[2,2] y) => (double[2,2] v) <double k = {0.7}> {
  u = MatMul (x, y)
  v = Mul (u, k)
}""",
        _digits_of_a_scale,
    ),
    KnownFault(
        "LayerNormFusion-epsilon",
        "the epsilon of a normalisation that is written out is one for each feature, not one number: the fused kernel takes another one",
        f"""<ir_version: 8, opset_import: ["" : 20]>
g (float[3,4] x) => (float[3,4] y) <int64[1] last = {{-1}}, float two = {{2.0}}, float[4] e = {{0.5, 0.5, 0.5, 0.5}}, float[4] g = {{1.25, -0.5, -1.5, -0.625}}> {{
{NORMALISED}  y = Mul (k, g)
}}""",
        _epsilon_of_each_feature,
    ),
    KnownFault(
        "LayerNormFusion-order",
        "a layer normalisation that is written out with the epsilon as the first of the summands: the fused kernel takes another one",
        f"""<ir_version: 8, opset_import: ["" : 20]>
g (float[3,4] z) => (float[3,4] w) <int64[1] last = {{-1}}, float two = {{2.0}}, float e = {{0.5}}, float[4] g = {{1.25, -0.5, -1.5, -0.625}}> {{
  c = ReduceMean <keepdims = 1> (z, last)
  x = Sub (z, c)
{NORMALISED.replace("Add (m, e)", "Add (e, m)")}  y = Mul (k, g)
  w = Add (y, g)
}}""",
        _epsilon_first,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion",
        "an RMS normalisation in float64, written out: the fused kernel gives other numbers",
        f"""<ir_version: 8, opset_import: ["" : 20]>
g (double[3,4] x) => (double[3,4] y) <int64[1] last = {{-1}}, double two = {{2.0}}, double e = {{0.5}}, double[4] g = {{1.25, -0.5, -1.5, -0.625}}> {{
{NORMALISED}  y = Mul (k, g)
}}""",
        _normalised_in_float64,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion-float16",
        "an RMS normalisation in float16, written out, whose epsilon is a number that another operator reads, too: the fused kernel takes another one",
        f"""<ir_version: 8, opset_import: ["" : 20]>
g (float16[5,2] x, float16[2,1] z) => (float16[5,2] y, float16[2,1] u) <int64[1] last = {{-1}}, float16 two = {{16384}}, float16 e = {{14336}}, float16[1] g = {{48640}}> {{
  u = Mul (z, e)
{NORMALISED}  y = Mul (k, g)
}}""",
        _epsilon_of_others_in_float16,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion-vector",
        "a normalisation of a vector, written out, with the scale or the offset first: it is removed while it is still read, and no session can be made",
        f"""<ir_version: 8, opset_import: ["" : 20]>
g (float[3] x) => (float[3] y) <int64[1] last = {{-1}}, float two = {{2.0}}, float e = {{0.5}}, float[3] g = {{1.25, -0.5, -1.5}}> {{
{NORMALISED}  y = Mul (g, k)
}}""",
        _normalised_vector,
    ),
)
