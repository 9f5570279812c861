"""Known faults of ONNX Runtime's optimisations: correct graphs that ONNX Runtime runs wrongly or refuses.

Each fault was found through a proved rewrite: outputs were equal without ONNX Runtime's optimisations. With them the
outputs differed, or ONNX Runtime refused the model. A graph that triggers a fault more often than the original is not
delivered. The rewrites that lead to the trigger are left out (`rlflow.optimisation.repair`). docs/FAULTS.md shows each
fault with its smallest model.

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
      triggers: a function that takes a graph and yields the ids of the nodes that trigger the fault.
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
    """Return the fault with a name in KNOWN."""
    return next(fault for fault in KNOWN if fault.name == name)


KNOWN = (
    KnownFault(
        "PadFusion",
        "a Pad with zeros becomes the padding of the MaxPool that alone reads its result. Padding of a MaxPool stands "
        "for minus infinity, so the result is wrong where all elements of a window are negative",
        triggers.zero_pad_before_maxpool,
    ),
    KnownFault(
        "PadFusion-width",
        "a Pad with zeros, as wide as the window of the pool that alone reads its result, becomes the padding of the "
        "pool. A pool refuses padding as wide as its window, so no session can be made",
        triggers.wide_zero_pad,
    ),
    KnownFault(
        "NchwcTransformer-AveragePool",
        "an AveragePool in blocks has a window that contains padding only (it is dilated, with padding on both "
        "sides). The result is NaN there, and 0 without optimisations",
        triggers.average_of_nothing,
    ),
    KnownFault(
        "FuseReluClip",
        "a Clip in float64 with a lower bound follows a Relu. No session can be made",
        triggers.clip_after_relu_in_float64,
    ),
    KnownFault(
        "ConvAddActivationFusion",
        "an Add reads two convolutions that do not run in blocks (they are grouped, or their weights are inputs), and "
        "the first convolution is an output of the model, too. The fusion removes this output, so no session can be "
        "made",
        triggers.convolutions_added,
    ),
    KnownFault(
        "GemmTransposeFusion",
        "a Gemm, or a product that becomes a Gemm, reads two transposed matrices, and one of them is an output of the "
        "model, too. The fusion removes this output, so no session can be made",
        triggers.transposed_outputs,
    ),
    KnownFault(
        "MatMulAddFusion",
        "an offset is added to a product whose inner dimension is 0. The product becomes a Gemm behind an invalid "
        "Reshape, so no session can be made",
        triggers.empty_product_and_offset,
    ),
    KnownFault(
        "MatmulTransposeFusion",
        "a batched product with inner dimension 0 reads a transposed operand. The fused kernel does not write its "
        "result, which keeps the former content of its memory",
        triggers.empty_product_of_transposed,
    ),
    KnownFault(
        "ReshapeFusion",
        "a Reshape of an empty tensor reads a computed size. The fusion replaces this size by -1, which is invalid "
        "beside a 0, so the model is refused",
        triggers.size_of_empty_left_open,
    ),
    KnownFault(
        "ReshapeFusion-sizes",
        "a Reshape computes the sizes of a second Reshape, and no other operator reads them. The fusion takes both "
        "for a chain on one tensor, so the result is the sizes instead of the data, or no session can be made",
        triggers.reshape_of_sizes,
    ),
    KnownFault(
        "MatMulScaleFusion",
        "a MatMul reads a tensor times a number, and a second MatMul reads this product times another number. The "
        "fusion removes the first multiplication while its result is still read, so no session can be made",
        triggers.scale_of_two_products,
    ),
    KnownFault(
        "MatMulScaleFusion-digits",
        "a number that scales an operand or the result of a MatMul in float64 becomes a float32 attribute. Digits are "
        "lost",
        triggers.digits_of_a_scale,
    ),
    KnownFault(
        "LayerNormFusion-epsilon",
        "a normalisation of single operators has one epsilon for each feature instead of one number. The fused kernel "
        "uses another epsilon",
        triggers.epsilon_of_each_feature,
    ),
    KnownFault(
        "LayerNormFusion-order",
        "a layer normalisation of single operators adds the variance to the epsilon, with the epsilon first. The "
        "fused kernel uses another epsilon",
        triggers.epsilon_first,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion",
        "an RMS normalisation of single operators computes in float64. The fused kernel returns other numbers",
        triggers.normalised_in_float64,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion-empty",
        "an RMS normalisation of single operators runs over an axis of size 0. The fused kernel refuses an empty axis",
        triggers.normalised_over_nothing,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion-float16",
        "an RMS normalisation of single operators computes in float16, and another operator reads its epsilon, too. "
        "The fused kernel uses another epsilon",
        triggers.epsilon_of_others_in_float16,
    ),
    KnownFault(
        "SimplifiedLayerNormFusion-vector",
        "a normalisation of a vector by single operators has the scale or the offset as the first operand. The fusion "
        "removes this operand while it is still read, so no session can be made",
        triggers.normalised_vector,
    ),
)
