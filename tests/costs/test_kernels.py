"""Test descriptions of kernels: they can be read from signatures, contain no names, and are equal for equal kernels."""

import numpy as np
import onnx
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.costs.groups import Groups
from rlflow.costs.kernel_features import NUMBERS, baseline_ps, describe, described, feature_names, features
from rlflow.costs.kernel_layout import Layout
from rlflow.costs.kernels import read_kernel
from rlflow.costs.signatures import group_signature, signature_text
from rlflow.costs.speeds import SETS, Speeds, vector_bits
from rlflow.graph.ir import ABSENT, Graph, Opaque
from rlflow.graph.onnx_reader import load_graph
from rlflow.zoo import load
from tests.costs.graphs import conv, graph

MODELS = ("tiny_resnet18", "tiny_bert_base", "tiny_shufflenet_v2", "tiny_vit_base_fused")
SPEEDS = Speeds(10.0, 12.0, 20.0, 40.0, 60.0, 1e6, 256)


def groups_of(graph: Graph) -> list[tuple]:
    groups = Groups(graph, Layout(graph))
    found = [groups.of(node) for node in graph.nodes.values() if not node.constant]
    return [group for group in found if group]


def text_of(graph: Graph, group: tuple) -> str:
    return signature_text((group_signature(graph, group), ()))


def descriptions(graph: Graph) -> list:
    return sorted((describe(read_kernel(text_of(graph, group))) for group in groups_of(graph)), key=repr)


@pytest.mark.parametrize("name", MODELS)
def test_reading_the_signature_of_a_kernel_recovers_its_operators(name):
    graph = load_graph(load(name))
    for group in groups_of(graph):
        kernel = read_kernel(text_of(graph, group))
        assert [(op.domain, op.op) for op in kernel.operators] == [(node.domain, node.op) for node in group]
        numbers: dict[int, int] = {}
        for op, node in zip(kernel.operators, group, strict=True):
            plain = [(key, value) for key, value in node.attributes if not isinstance(value, Opaque)]
            assert all(op.attribute(key) == value for key, value in plain)
            read = [one for one in op.inputs if one is not None]
            assert [one.kind[:2] for one in read] == [graph.types[t][:2] for t in node.reads()]
            assert [one.constant for one in read] == [graph.is_constant(t) for t in node.reads()]
            assert [one.kind[:2] for one in op.outputs] == [graph.types[t][:2] for t in node.outputs if t != ABSENT]
            if len(group) > 1:  # the signature states which operators share a tensor
                ids = [*node.reads(), *node.outputs]
                operands = [*read, *op.outputs]
                assert all(
                    numbers.setdefault(t, one.number) == one.number for t, one in zip(ids, operands, strict=True)
                )


@pytest.mark.parametrize("text", ["((('','Relu',17", "(('','Relu',17,()))", "(((1,2),(3)),())"])
def test_a_malformed_signature_is_refused_in_one_line(text):
    with pytest.raises(RLFlowError, match="not a signature of a kernel") as refused:
        read_kernel(text)
    assert "\n" not in str(refused.value)


def test_calibration_timings_are_not_read_as_kernels():
    assert read_kernel("session") is None and read_kernel("roofline: flop") is None


@pytest.mark.parametrize(
    "text",
    [
        "((('','Relu',17", "('','Conv',17,())", "((('','Relu',17,(),(((1,('a','b')),False,None)),((1,(2)))),())",
        "((('','If',17,(('then_branch',<0123456789abcdef>)),(((9,()),False,None)),((1,(2)))),())",
    ],
)  # fmt: skip
def test_a_signature_with_too_little_information_has_no_description(text):
    assert described(text) is None


@pytest.mark.parametrize("name", MODELS)
def test_descriptions_of_kernels_do_not_depend_on_names(name):
    model = load(name)
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)
    for node in renamed.graph.node:
        node.name = f"other {node.name}"
        node.input[:] = [one and f"other {one}" for one in node.input]
        node.output[:] = [one and f"other {one}" for one in node.output]
    for value in (*renamed.graph.input, *renamed.graph.output, *renamed.graph.initializer, *renamed.graph.value_info):
        value.name = f"other {value.name}"
    assert descriptions(load_graph(model)) == descriptions(load_graph(renamed))


WEIGHT, BIAS = ",".join(["0.5"] * 128), ",".join(["1"] * 16)
PRODUCT = f"one (float[2,8] x) => (float[2,16] y) <float[8,16] w = {{{WEIGHT}}}, float[16] b = {{{BIAS}}}> {{ %s }}"
ROWS = "one (float[1,3,4] x, float[1,3,4] z) => (float[1,3,4] y) <float[4] s = {1, 1, 1, 1}> { %s }"
IMAGE = "one (float[1,8,6,6] x) => (float[1,8,6,6] y) { %s }"


@pytest.mark.parametrize(
    "one, other",
    [
        (conv("y = Conv(x, w, b)"), conv("a = Conv(x, w) y = BatchNormalization(a, b, b, b, b)")),
        (conv("a = Conv(x, w, b) y = Relu(a)"), conv('y = com.microsoft.FusedConv <activation = "Relu"> (x, w, b)')),
        (graph(PRODUCT % "y = Gemm(x, w, b)"), graph(PRODUCT % "a = MatMul(x, w) y = Add(a, b)")),
        (
            graph(ROWS % "a = Add(x, z) y = LayerNormalization <axis = -1> (a, s)"),
            graph(ROWS % "y = com.microsoft.SkipLayerNormalization <epsilon = 0.00001> (x, z, s)"),
        ),
        (graph(IMAGE % "s = Sigmoid(x) y = Mul(x, s)"), graph(IMAGE % "y = com.microsoft.QuickGelu <alpha = 1.0> (x)")),
    ],
)
def test_equal_kernels_of_different_operators_are_described_alike(one, other):
    assert text_of(one, groups_of(one)[0]) != text_of(other, groups_of(other)[0])
    assert descriptions(one) == descriptions(other)


@pytest.mark.parametrize(
    "one, other",
    [
        (conv("y = Conv(x, w, b)"), conv("a = Conv(x, w, b) y = Sigmoid(a)")),
        (graph(IMAGE % "y = Exp(x)"), graph(IMAGE % "y = Relu(x)")),
        (
            graph("one (float[4,6,8] x) => (float[6,4,8] y) { y = Transpose <perm = [1, 0, 2]> (x) }"),
            graph("one (float[4,6,8] x) => (float[4,8,6] y) { y = Transpose <perm = [0, 2, 1]> (x) }"),
        ),
        (
            graph("one (float[4,6,8] x, float[6,8] z) => (float[4,6,8] y) { y = Add(x, z) }"),
            graph("one (float[4,6,8] x, float[4,6,1] z) => (float[4,6,8] y) { y = Add(x, z) }"),
        ),
    ],
)
def test_kernels_of_different_work_are_described_differently(one, other):
    assert descriptions(one) != descriptions(other)


def test_features_have_one_name_each_and_encode_the_kind_one_hot():
    (what,) = descriptions(conv("y = Conv(x, w, b)"))
    kinds = ("Conv spatial", "Softmax")
    row = dict(zip(feature_names(kinds), features(what, SPEEDS, 2, kinds), strict=True))
    assert (row["is Conv spatial"], row["is Softmax"], row["threads"], row["vector bits"]) == (1.0, 0.0, 1.0, 8.0)
    assert all(np.isfinite(list(row.values()))) and {*NUMBERS} <= row.keys()


def test_a_faster_machine_has_a_lower_baseline_and_a_larger_kernel_a_higher_one():
    (small,) = descriptions(graph("one (float[64,64] x) => (float[64,64] y) { y = Exp(x) }"))
    (large,) = descriptions(graph("one (float[512,512] x) => (float[512,512] y) { y = Exp(x) }"))
    assert baseline_ps(small, SPEEDS) < baseline_ps(large, SPEEDS)
    for field in ("near", "cached", "far", "launch"):
        slower = SPEEDS._replace(**{field: 2 * getattr(SPEEDS, field)})
        assert baseline_ps(large, slower) >= baseline_ps(large, SPEEDS)


def test_bandwidth_is_measured_at_the_working_sets_and_interpolated_between_them():
    assert [SPEEDS.byte(size) for size in SETS] == pytest.approx([20.0, 40.0, 60.0])
    assert SPEEDS.byte(1) == pytest.approx(20.0) and SPEEDS.byte(1e12) == pytest.approx(60.0)
    assert 20.0 < SPEEDS.byte((SETS[0] * SETS[1]) ** 0.5) < 40.0


def test_the_vector_width_is_read_from_the_name_of_the_machine():
    names = ("Xeon (AVX-512), 2 cores", "AMD EPYC (AVX2), 2 cores", "Apple M3, 8 cores")
    assert [vector_bits(name) for name in names] == [512, 256, 128]
