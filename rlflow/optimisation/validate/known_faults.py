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
      triggers: a function that yields the ids of a graph's nodes that trigger the fault.
    """

    name: str
    what: str
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


KNOWN = (
    KnownFault(
        "PadFusion",
        "a Pad with zeros that only a MaxPool reads becomes the padding of the MaxPool, which stands for minus "
        "infinity: the result is wrong where all elements of a window are negative",
        triggers.zero_pad_before_maxpool,
    ),
    KnownFault(
        "PadFusion-width",
        "a Pad with zeros as wide as the window of the pool that is its single consumer becomes padding of the pool, "
        "which may not be so wide: no session can be made",
        triggers.wide_zero_pad,
    ),
    KnownFault(
        "NchwcTransformer-AveragePool",
        "an AveragePool, computed in blocks, with a window of which nothing lies inside (it is dilated, and both sides "
        "are padding): not a number, where it is 0 otherwise",
        triggers.average_of_nothing,
    ),
    KnownFault(
        "FuseReluClip",
        "a Clip in float64 with a lower bound that follows a Relu: no session can be made",
        triggers.clip_after_relu_in_float64,
    ),
    KnownFault(
        "ConvAddActivationFusion",
        "the sum of two convolutions that are not computed in blocks (grouped, or of weights that are inputs), the "
        "first of which is an output of the model as well: its tensor is gone, and no session can be made",
        triggers.convolutions_added,
    ),
    KnownFault(
        "GemmTransposeFusion",
        "a Gemm, or what becomes one, of two transposed matrices, one of which is an output of the model as well: it "
        "is gone, and no session can be made",
        triggers.transposed_outputs,
    ),
    KnownFault(
        "MatMulAddFusion",
        "the product of no columns with no rows, and an offset: it becomes a Gemm behind a Reshape that is not valid, "
        "and no session can be made",
        triggers.empty_product_and_offset,
    ),
    KnownFault(
        "MatmulTransposeFusion",
        "batches of products of no columns with no rows, one of which is transposed: the fused kernel leaves in the "
        "result what was in its memory before",
        triggers.empty_product_of_transposed,
    ),
    KnownFault(
        "ReshapeFusion",
        "a Reshape of what is empty to sizes one of which is computed: that becomes -1, which says nothing beside a 0, "
        "and the model is refused",
        triggers.size_of_empty_left_open,
    ),
    KnownFault(
        "ReshapeFusion-sizes",
        "a Reshape that computes the sizes for a second Reshape, and nothing else reads it: the two are taken for a "
        "chain of one tensor, and the result is the sizes in place of the data, or no session can be made",
        triggers.reshape_of_sizes,
    ),
    KnownFault(
        "MatMulScaleFusion",
        "a product with a number that is read by a MatMul, and by a second such product before another MatMul: it is "
        "removed while it is still read, and no session can be made",
        triggers.scale_of_two_products,
    ),
    KnownFault(
        "MatMulScaleFusion-digits",
        "a number before or after a MatMul in float64 becomes a float32 attribute: digits are lost",
        triggers.digits_of_a_scale,
    ),
    KnownFault(
        "LayerNormFusion-epsilon",
        "the epsilon of a normalisation that is written out is one for each feature, not one number: the fused kernel "
        "takes another one",
        triggers.epsilon_of_each_feature,
    ),
    KnownFault(
        "LayerNormFusion-order",
        "a layer normalisation that is written out with the epsilon as the first of the summands: the fused kernel "
        "takes another one",
        triggers.epsilon_first,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion",
        "an RMS normalisation in float64, written out: the fused kernel gives other numbers",
        triggers.normalised_in_float64,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion-empty",
        "an RMS normalisation, written out, over an axis of size 0: the fused kernel refuses the empty axis",
        triggers.normalised_over_nothing,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion-float16",
        "an RMS normalisation in float16, written out, whose epsilon is a number that another operator reads, too: the "
        "fused kernel takes another one",
        triggers.epsilon_of_others_in_float16,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion-vector",
        "a normalisation of a vector, written out, with the scale or the offset first: it is removed while it is still "
        "read, and no session can be made",
        triggers.normalised_vector,
    ),
)
