"""Known faults of ONNX Runtime's optimisations: correct graphs that ONNX Runtime runs wrongly or refuses.

Each fault was found through a proved rewrite: outputs were equal without ONNX Runtime's optimisations, and differed
with them. A graph that triggers a fault more often than the original is not delivered. The rewrites that lead to the
trigger are left out (`rlflow.optimisation.repair`). docs/FAULTS.md shows each fault with its smallest model.

A function on graphs detects each fault without a run (`fault_triggers`). Faults are checked at delivery and not in
action masks, because intermediate graphs are never run, and because the pattern of a fusion is larger than a match.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlflow.graph.ir import Graph
from rlflow.optimisation.validate import fault_triggers as triggers

ONNXRUNTIME = "1.31.1"  # the version in which the faults were observed


@dataclass(frozen=True)
class KnownFault:
    """One fault of ONNX Runtime's optimisations.

    Attributes:
      name: the name of the faulty optimisation; further faults of one optimisation have a suffix, as in
        "PadFusion-width".
      what: a description of the graph and of the wrong result.
      model: the smallest model that shows the fault, in ONNX's text format.
      triggers: a function that yields the ids of a graph's nodes that trigger the fault.
    """

    name: str
    what: str
    model: str
    triggers: Callable[[Graph], Iterator[int]]


def known_faults(graph: Graph, sizes: Sequence[Mapping[str, int]] = ({},)) -> Counter[str]:
    """Count how often a graph triggers each known fault.

    Args:
      graph: the graph.
      sizes: one or more assignments symbol → size. The largest count at any of these sizes counts.

    Returns:
      Name of a fault → number of nodes that trigger it; faults that are not triggered are left out.
    """
    counts: Counter[str] = Counter()
    for each in sizes:
        view = graph.at(each)
        counts |= Counter({fault.name: len(list(fault.triggers(view))) for fault in KNOWN})
    return +counts


def named(name: str) -> KnownFault:
    return next(fault for fault in KNOWN if fault.name == name)


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
        "a Pad with zeros that only a MaxPool reads becomes the padding of the MaxPool, which stands for minus "
        "infinity: the result is wrong where all elements of a window are negative",
        """<ir_version: 8, opset_import: ["" : 15]>
g (float[1,1,4,4] x) => (float[1,1,2,2] y) <int64[8] p = {0, 0, 0, 0, 0, 0, 1, 1}> {
  t = Pad (x, p)
  y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (t)
}""",
        triggers.zero_pad_before_maxpool,
    ),
    KnownFault(
        "PadFusion-width",
        "a Pad with zeros as wide as the window of the pool that is its single consumer becomes padding of the pool, "
        "which may not be so wide: no session can be made",
        """<ir_version: 8, opset_import: ["" : 15]>
g (float[1,1,4,4] x) => (float[1,1,5,4] y) <int64[8] p = {0, 0, 2, 0, 0, 0, 0, 0}> {
  t = Pad (x, p)
  y = AveragePool <kernel_shape = [2, 1]> (t)
}""",
        triggers.wide_zero_pad,
    ),
    KnownFault(
        "NchwcTransformer-AveragePool",
        "an AveragePool, computed in blocks, with a window of which nothing lies inside (it is dilated, and both sides "
        "are padding): not a number, where it is 0 otherwise",
        """<ir_version: 10, opset_import: ["" : 21]>
g (float[1,16,1,1] x) => (float[1,16,1,2] y) {
  y = AveragePool <dilations = [2, 1], kernel_shape = [2, 2], pads = [1, 1, 1, 1]> (x)
}""",
        triggers.average_of_nothing,
    ),
    KnownFault(
        "FuseReluClip",
        "a Clip in float64 with a lower bound that follows a Relu: no session can be made",
        """<ir_version: 8, opset_import: ["" : 15]>
g (double[4] x) => (double[4] y) <double low = {0.0}> {
  t = Relu (x)
  y = Clip (t, low)
}""",
        triggers.clip_after_relu_in_float64,
    ),
    KnownFault(
        "ConvAddActivationFusion",
        "the sum of two convolutions that are not computed in blocks (grouped, or of weights that are inputs), the "
        "first of which is an output of the model as well: its tensor is gone, and no session can be made",
        f"""<ir_version: 8, opset_import: ["" : 15]>
g (float[1,3,4,4] x) => (float[1,6,4,4] y, float[1,6,4,4] p)
  <float[6,1,1,1] w = {{{NUMBERS}}}, float[6,1,1,1] v = {{{NUMBERS}}}, float[6] b = {{{NUMBERS}}}> {{
  p = Conv <group = 3> (x, w, b)
  q = Conv <group = 3> (x, v, b)
  s = Add (p, q)
  y = Mul (s, s)
}}""",
        triggers.convolutions_added,
    ),
    KnownFault(
        "GemmTransposeFusion",
        "a Gemm, or what becomes one, of two transposed matrices, one of which is an output of the model as well: it "
        "is gone, and no session can be made",
        """<ir_version: 8, opset_import: ["" : 15]>
g (float[2,3] x, float[1,2] z, float[3,1] w) => (float[3,1] y, float[3,2] a) {
  a = Transpose (x)
  b = Transpose (z)
  y = Gemm (a, b, w)
}""",
        triggers.transposed_outputs,
    ),
    KnownFault(
        "MatMulAddFusion",
        "the product of no columns with no rows, and an offset: it becomes a Gemm behind a Reshape that is not valid, "
        "and no session can be made",
        """<ir_version: 8, opset_import: ["" : 15]>
g (float[0] x) => (float[2] y) <float[0,2] w = {}, float[2] b = {1.0, 2.0}> {
  t = MatMul (x, w)
  y = Add (t, b)
}""",
        triggers.empty_product_and_offset,
    ),
    KnownFault(
        "MatmulTransposeFusion",
        "batches of products of no columns with no rows, one of which is transposed: the fused kernel leaves in the "
        "result what was in its memory before",
        """<ir_version: 8, opset_import: ["" : 15]>
g (float[2,3,3] u, float[2,3,0] x, float[2,3,0] z) => (float[2,3,3] y) {
  a = Exp (u)
  m = ReduceMax <keepdims = 0> (a)
  s = Mul (x, m)
  t = Transpose <perm = [0, 2, 1]> (z)
  p = MatMul (s, t)
  y = Neg (p)
}""",
        triggers.empty_product_of_transposed,
    ),
    KnownFault(
        "ReshapeFusion",
        "a Reshape of what is empty to sizes one of which is computed: that becomes -1, which says nothing beside a 0, "
        "and the model is refused",
        """<ir_version: 8, opset_import: ["" : 15]>
g (float[2,0] x, int64[1] n) => (float[4,0] y) <int64[1] z = {0}> {
  k = Mul (n, n)
  s = Concat <axis = 0> (k, z)
  y = Reshape (x, s)
}""",
        triggers.size_of_empty_left_open,
    ),
    KnownFault(
        "MatMulScaleFusion",
        "a product with a number that is read by a MatMul, and by a second such product before another MatMul: it is "
        "removed while it is still read, and no session can be made",
        """<ir_version: 8, opset_import: ["" : 15]>
g (float[2,3] x, float[3,2] y) => (float[2,2] u, float[2,2] v) <float c = {2.0}, float d = {3.0}> {
  a = Mul (x, c)
  u = MatMul (a, y)
  b = Mul (a, d)
  v = MatMul (b, y)
}""",
        triggers.scale_of_two_products,
    ),
    KnownFault(
        "MatMulScaleFusion-digits",
        "a number before or after a MatMul in float64 becomes a float32 attribute: digits are lost",
        """<ir_version: 8, opset_import: ["" : 15]>
g (double[2,2] x, double[2,2] y) => (double[2,2] v) <double k = {0.7}> {
  u = MatMul (x, y)
  v = Mul (u, k)
}""",
        triggers.digits_of_a_scale,
    ),
    KnownFault(
        "LayerNormFusion-epsilon",
        "the epsilon of a normalisation that is written out is one for each feature, not one number: the fused kernel "
        "takes another one",
        f"""<ir_version: 8, opset_import: ["" : 20]>
g (float[3,4] x) => (float[3,4] y)
  <int64[1] last = {{-1}}, float two = {{2.0}}, float[4] e = {{0.5, 0.5, 0.5, 0.5}},
   float[4] g = {{1.25, -0.5, -1.5, -0.625}}> {{
{NORMALISED}  y = Mul (k, g)
}}""",
        triggers.epsilon_of_each_feature,
    ),
    KnownFault(
        "LayerNormFusion-order",
        "a layer normalisation that is written out with the epsilon as the first of the summands: the fused kernel "
        "takes another one",
        f"""<ir_version: 8, opset_import: ["" : 20]>
g (float[3,4] z) => (float[3,4] w)
  <int64[1] last = {{-1}}, float two = {{2.0}}, float e = {{0.5}}, float[4] g = {{1.25, -0.5, -1.5, -0.625}}> {{
  c = ReduceMean <keepdims = 1> (z, last)
  x = Sub (z, c)
{NORMALISED.replace("Add (m, e)", "Add (e, m)")}  y = Mul (k, g)
  w = Add (y, g)
}}""",
        triggers.epsilon_first,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion",
        "an RMS normalisation in float64, written out: the fused kernel gives other numbers",
        f"""<ir_version: 8, opset_import: ["" : 20]>
g (double[3,4] x) => (double[3,4] y)
  <int64[1] last = {{-1}}, double two = {{2.0}}, double e = {{0.5}}, double[4] g = {{1.25, -0.5, -1.5, -0.625}}> {{
{NORMALISED}  y = Mul (k, g)
}}""",
        triggers.normalised_in_float64,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion-empty",
        "an RMS normalisation, written out, over an axis of size 0: the fused kernel refuses the empty axis",
        f"""<ir_version: 8, opset_import: ["" : 20]>
g (float[3,0] x) => (float[3,0] y)
  <int64[1] last = {{-1}}, float two = {{2.0}}, float e = {{0.5}}, float[1] g = {{1.25}}> {{
{NORMALISED}  y = Mul (k, g)
}}""",
        triggers.normalised_over_nothing,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion-float16",
        "an RMS normalisation in float16, written out, whose epsilon is a number that another operator reads, too: the "
        "fused kernel takes another one",
        f"""<ir_version: 8, opset_import: ["" : 20]>
g (float16[5,2] x, float16[2,1] z) => (float16[5,2] y, float16[2,1] u)
  <int64[1] last = {{-1}}, float16 two = {{16384}}, float16 e = {{14336}}, float16[1] g = {{48640}}> {{
  u = Mul (z, e)
{NORMALISED}  y = Mul (k, g)
}}""",
        triggers.epsilon_of_others_in_float16,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion-vector",
        "a normalisation of a vector, written out, with the scale or the offset first: it is removed while it is still "
        "read, and no session can be made",
        f"""<ir_version: 8, opset_import: ["" : 20]>
g (float[3] x) => (float[3] y)
  <int64[1] last = {{-1}}, float two = {{2.0}}, float e = {{0.5}}, float[3] g = {{1.25, -0.5, -1.5}}> {{
{NORMALISED}  y = Mul (g, k)
}}""",
        triggers.normalised_vector,
    ),
)
