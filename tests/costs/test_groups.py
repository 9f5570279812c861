"""Test groups of operators: what is charged as one kernel is one node in ONNX Runtime's own optimised graph."""

from collections import Counter
from zlib import crc32

import numpy as np
import onnx
import pytest

from rlflow.costs import graph_cost
from rlflow.costs.analytic import VIEWS
from rlflow.costs.groups import Groups
from rlflow.costs.kernel_layout import Layout, block, is_removed, optimised
from rlflow.costs.kernel_models import NCHWC, group_model, in_blocks
from rlflow.costs.profiled import ProfiledCost
from rlflow.costs.timing import Timing
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.zoo import load
from tests.costs.graphs import check_is_local, graph, only
from tests.suite import slow

REORDERS = ("ReorderInput", "ReorderOutput")


def charged(g: Graph) -> Counter:
    """Return the number of kernels, and of reorders of each kind, that the profiled cost charges."""
    groups = Groups(g, Layout(g))
    result = Counter()
    for node in g.nodes.values():
        group = () if node.constant else groups.of(node)
        if not group:
            continue
        result.update(op for op, _ in groups.reorders(group))
        if not (len(group) == 1 and (node.op in VIEWS or is_removed(g, node))):
            result["kernels"] += 1
    return result


def executed(g: Graph) -> Counter:
    result = Counter()
    for node in optimised(to_model(g)).graph.node:
        if node.op_type in REORDERS:
            result[node.op_type] += 1
        elif node.op_type not in VIEWS:
            result["kernels"] += 1
    return result


def images(nodes: str, channels: int = 32) -> Graph:
    """Return a graph on the images x and z, [1, channels, 6, 6], with weights for its nodes.

    w and b belong to a 1 × 1 convolution, d to a depthwise one; s and v hold one number for each channel, s as an image
    and v as a vector.
    """
    c = channels
    shape = f"float[1,{c},6,6]"
    weights = [("w", (c, c, 1, 1)), ("b", (c,)), ("v", (c,)), ("s", (1, c, 1, 1)), ("d", (c, 1, 1, 1))]
    return with_weights(f"g ({shape} x, {shape} z) => (float y) {{{nodes}}}", weights, {"l": 0.0, "h": 6.0})


def sequences(nodes: str) -> Graph:
    """Return a graph on the sequences x and z, [2, 4, 8], with weights w [8, 8], b and g [8], and scalar constants."""
    numbers = {"root": 2**0.5, "one": 1.0, "half": 0.5, "two": 2.0, "e": 1e-5, "k": 8.0}
    weights = [("w", (8, 8)), ("b", (8,)), ("g", (8,))]
    return with_weights(f"f (float[2,4,8] x, float[2,4,8] z) => (float y) {{{nodes}}}", weights, numbers)


def padded(pads: str, channels: int) -> Graph:
    """Return a Pad of x [1, 18, 6, 6] that gives `channels` channels, followed by a depthwise convolution."""
    nodes = f"p = Constant<value_ints=[{pads}]>() a = Pad(x, p) y = Conv<group={channels}>(a, d)"
    return with_weights(f"g (float[1,18,6,6] x) => (float y) {{{nodes}}}", [("d", (channels, 1, 3, 3))])


def with_weights(body: str, weights, numbers=None) -> Graph:
    text = f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> {body}'
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    arrays = {name: rng.random(shape, np.float32) for name, shape in weights}
    arrays |= {name: np.float32(value) for name, value in (numbers or {}).items()}
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items() if n in read
    )
    bare = model.graph.output.pop()
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    model.graph.output.extend(value for value in inferred if value.name == bare.name)
    return load_graph(model)


LAYER_NORMALISATION = (
    "m = ReduceMean<axes=[-1]>({x}) d = Sub({x}, m) q = Pow(d, two) n = ReduceMean<axes=[-1]>(q) p = Add(n, e)"
    " r = Sqrt(p) o = Div(d, r) u = Mul(o, g) y = Add(u, b)"
)
ONE_KERNEL = [
    sequences(LAYER_NORMALISATION.format(x="x")),
    sequences("t = Add(x, z) " + LAYER_NORMALISATION.format(x="t")),
    sequences("t = Add(x, z) y = LayerNormalization<axis=-1>(t, g, b)"),
    sequences("c = Add(x, b) t = Add(c, z) y = LayerNormalization<axis=-1>(t, g, b)"),
    sequences("q = Pow(x, two) n = ReduceMean<axes=[-1]>(q) p = Add(n, e) r = Sqrt(p) o = Div(x, r) y = Mul(o, g)"),
    sequences("d = Div(x, root) e1 = Erf(d) p = Add(e1, one) m = Mul(x, p) y = Mul(m, half)"),
    sequences("d = Div(x, root) e1 = Erf(d) p = Add(e1, one) m = Mul(x, half) y = Mul(m, p)"),
    sequences("c = Add(x, b) d = Div(c, root) e1 = Erf(d) p = Add(e1, one) m = Mul(c, p) y = Mul(m, half)"),
    sequences("s = Sigmoid(x) y = Mul(x, s)"),
    sequences("a = Mul(x, half) s = Sigmoid(a) y = Mul(x, s)"),
    sequences("a = MatMul(x, w) y = Add(a, b)"),
    sequences("a = MatMul(x, w) y = Add(b, a)"),
    sequences("t = Transpose<perm=[0,2,1]>(z) a = MatMul(x, t) y = Div(a, k)"),
    sequences("t = Mul(x, half) y = MatMul(t, w)"),
    padded("0,0,1,1,0,0,1,1", 18),
    images("a = Conv(x, w, b) y = Relu(a)", 18),
    images("a = Conv(x, w, b) s1 = Add(a, z) y = Relu(s1)", 18),
    images("a = Conv(x, w) c = BatchNormalization(a, v, v, v, v) m = Mul(c, s) n = Add(m, s) y = LeakyRelu(n)", 18),
]
SEVERAL_KERNELS = [
    sequences("t = Add(x, z) a = LayerNormalization<axis=-1>(t, g, b) y = Mul(a, t)"),
    sequences("d = Div(x, root) e1 = Erf(d) p = Add(e1, one) h = Mul(p, half) y = Mul(x, h)"),
    sequences("a = MatMul(x, w) c = Add(a, b) d = Relu(c) y = Mul(d, a)"),
    padded("0,0,0,0,0,14,0,0", 32),
    images("a = Conv(x, w) s1 = Add(a, z) y = Relu(s1)", 18),
    images("a = Conv(x, w, b) r = Relu(a) y = Mul(r, a)", 18),
    images("c = BatchNormalization(x, v, v, v, v) y = Relu(c)", 18),
]
NEAREST = 'mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"'
RESIZED = f"q = Constant<value_ints=[1,32,6,6]>() c = Conv(m, w, b) u = Resize<{NEAREST}>(c, , , q)"
BLOCKS = [
    images("a = Conv(x, w, b) c = Conv(a, w, b) y = Relu(c)"),
    images("a = Conv(x, w, b) c = Conv(a, w, b) e = Add(a, c) y = Relu(e)"),
    images("a = Conv(x, w, b) c = Conv(z, w, b) e = Add(a, c) y = Relu(e)"),
    images("a = Conv(x, w, b) e = Add(a, z) y = Relu(e)"),
    images("a = Conv(x, w, b) n = Abs(a) y = Conv(n, w, b)"),
    images(
        "a = MaxPool<kernel_shape=[2,2]>(x) c = BatchNormalization(a, v, v, v, v) m = Mul(c, s) r = Relu(m) y = "
        "GlobalAveragePool(r)"
    ),
    images(
        "a = Conv(x, w, b) c = Conv(x, w) e = Concat<axis=1>(a, c) f = Relu(e) y = AveragePool<kernel_shape=[2,2]>(f)"
    ),
    images("a = Conv(x, w, b) c = Clip(a, l, h) y = Conv<group=20>(c, d)", 20),
    images("a = Conv(x, w, b) c = Sigmoid(a) e = Mul(a, c) y = Conv(e, w, b)"),
    images("a = Conv(x, w, b) c = com.microsoft.QuickGelu(a) y = Conv(c, w, b)"),
    images("a = Conv(x, w, b) c = Sigmoid(a) e = Mul(x, c) y = Conv(e, w, b)"),
    images("a = Conv(x, w, b) c = Identity(a) y = Conv(c, w, b)", 20),
    images(f"m = GlobalAveragePool(z) {RESIZED} a = Conv(x, w, b) e = Mul(a, u) y = Conv(e, w, b)"),
    images("a = Conv(x, w, b) y = MaxPool<kernel_shape=[2,2]>(a)", 20),
    images("a = Conv(x, w, b) c = HardSigmoid(a) y = MaxPool<kernel_shape=[2,2]>(c)"),
]


@pytest.mark.parametrize("g", ONE_KERNEL)
def test_operators_that_onnx_runtime_fuses_are_charged_as_one_kernel(g):
    assert charged(g) == executed(g) == {"kernels": 1}


@pytest.mark.parametrize("g", SEVERAL_KERNELS)
def test_operators_that_onnx_runtime_does_not_fuse_are_charged_separately(g):
    assert charged(g) == executed(g) and charged(g)["kernels"] > 1


@pytest.mark.parametrize("g", BLOCKS)
def test_blocked_regions_are_reordered_only_at_their_borders(g):
    assert charged(g) == executed(g)


def test_a_transpose_to_channels_last_needs_no_separate_reorder():
    g = images("a = Conv(x, w, b) y = Transpose<perm=[0,2,3,1]>(a)")
    assert sum(charged(g).values()) == sum(executed(g).values()) and charged(g)["ReorderOutput"] == 0


@pytest.mark.skipif(not block(), reason="ONNX Runtime has no blocked layout on this machine")
def test_a_blocked_group_is_timed_without_the_reorders_at_its_borders():
    g = images("a = Conv(x, w, b) c = Conv(a, w, b) e = Add(a, c) r = Relu(e) y = Neg(r)", 20)
    groups = Groups(g, Layout(g))
    (group,) = [groups.of(node) for node in g.nodes.values() if len(groups.of(node)) == 3]
    kinds = {f"t{t}": g.types[t] for t in groups.blocked_inputs(group)}
    single = in_blocks(group_model(g, group), kinds).graph
    assert [(node.domain, node.op_type, len(node.input)) for node in single.node] == [(NCHWC, "Conv", 4)]
    shapes = {tuple(d.dim_value for d in value.type.tensor_type.shape.dim) for value in (*single.input, *single.output)}
    assert shapes == {(1, -(-20 // block()) * block(), 6, 6)}


def test_slices_that_cover_a_tensor_are_charged_as_one_split():
    def parts(*bounds):
        body = " ".join(f"o{k} = Slice(x, f{k}, t{k}, a)" for k in range(len(bounds)))
        outputs = ", ".join(f"float[2,{high - low}] o{k}" for k, (low, high) in enumerate(bounds))
        consts = ", ".join(
            f"int64[1] f{k} = {{{low}}}, int64[1] t{k} = {{{high}}}" for k, (low, high) in enumerate(bounds)
        )
        return graph(f"g (float[2,8] x) => ({outputs}) <int64[1] a = {{1}}, {consts}> {{{body}}}")

    assert charged(parts((0, 4), (4, 8))) == executed(parts((0, 4), (4, 8))) == {"kernels": 1}
    assert charged(parts((0, 4), (5, 8))) == executed(parts((0, 4), (5, 8))) == {"kernels": 2}


@pytest.mark.parametrize(
    "name",
    [
        "tiny_squeezenet1_1",
        "tiny_resnet18",
        "tiny_inception_v3",
        "tiny_shufflenet_v2",
        "tiny_mobilenet_v2",
        "tiny_bert_base",
        "tiny_vit_base",
    ],
)
def test_the_charged_kernels_of_zoo_models_equal_the_executed_ones(name):
    g = load_graph(load(name))
    assert charged(g) == executed(g)


@pytest.fixture
def pseudo(tmp_path, monkeypatch):
    """Return a profiled cost whose timings follow from the signatures, so that every context changes the total."""
    timing = lambda self, name, build: Timing(*[100 + crc32(name.encode()) % 100_000] * 3, 3)  # noqa: E731
    monkeypatch.setattr(ProfiledCost, "_timing", timing)
    return ProfiledCost(tmp_path / "costs.sqlite")


@pytest.mark.parametrize("name", ["tiny_resnet18", *slow("tiny_bert_base", "tiny_shufflenet_v2", "tiny_mobilenet_v2")])
def test_the_incrementally_updated_cost_equals_the_cost_counted_anew(name, pseudo):
    check_is_local(pseudo, load_graph(load(name)))


def test_the_cost_of_a_kernel_ignores_its_weights_and_depends_on_its_wiring(pseudo):
    first, second = (sequences(f"a = MatMul(x, {w}) y = Add(a, {b})") for w, b in (("w", "b"), ("w", "g")))
    assert graph_cost(pseudo, first) == graph_cost(pseudo, second)
    skip, same = (sequences(f"t = Add(x, {other}) y = LayerNormalization<axis=-1>(t, g, b)") for other in "zx")
    assert graph_cost(pseudo, skip) != graph_cost(pseudo, same)


def test_a_fused_group_is_charged_at_its_anchor(pseudo):
    g = sequences("a = MatMul(x, w) y = Add(a, b)")
    assert pseudo.node_cost(g, only(g, "MatMul")).launches == 1 and pseudo.node_cost(g, only(g, "Add")).launches == 0
