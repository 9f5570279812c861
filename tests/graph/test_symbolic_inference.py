"""Test symbolic shapes and contents: at every size they equal the shapes and contents that the model has there.

The references are ONNX's own inference for the model with fixed sizes, and ONNX Runtime, which computes every tensor.
"""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.random_models.open_model import random_open_model
from benchmarks.random_models.random_model import random_values
from rlflow.graph import contents, symbolic
from rlflow.graph.dims import Dim
from rlflow.graph.ir import ABSENT, Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from tests.suite import at_night, each_of

OPSET = 18


def values(model: onnx.ModelProto, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """Return random inputs; a size may also be two times a symbol."""
    doubled = {f"2*{name}": 2 * size for name, size in sizes.items()}
    return random_values(model, seed, sizes | doubled)


def computed(model: onnx.ModelProto, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """Return all tensors that ONNX Runtime computes at these sizes, by name."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    names = [name for node in model.graph.node if node.op_type != "Constant" for name in node.output if name]
    del watched.graph.output[:]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return dict(zip(names, run(session(watched, 1, optimise=False), values(model, sizes, seed)), strict=True))


def disagreements(graph: Graph, model: onnx.ModelProto, sizes: dict[str, int], seed: int) -> tuple[list[str], Counter]:
    """Compare the inferred types with the tensors at these sizes; return (the differences, numbers of comparisons)."""
    arrays, wrong, compared = computed(model, sizes, seed), [], Counter()
    for node in graph.nodes.values():
        for tensor in node.outputs:
            name = graph.interface.names.get(tensor)
            kind = graph.types.get(tensor)
            if tensor == ABSENT or name not in arrays or kind is None or kind.shape is None:
                compared["unknown"] += 1
                continue
            array, inferred = arrays[name], graph.at(sizes).types[tensor]
            compared["shapes"] += 1
            compared["shapes in symbols"] += any(type(size) is Dim for size in kind.shape)
            if inferred.shape != array.shape:
                wrong.append(f"{node.op} {name}: {kind.shape} is {inferred.shape} at {sizes}, but {array.shape}")
            elif inferred.content is not None:
                compared["contents"] += 1
                if not np.allclose(np.array(inferred.content, np.float64), array.reshape(-1).astype(np.float64)):
                    wrong.append(f"{node.op} {name}: {kind.content} is {inferred.content} at {sizes}, but {array}")
    return wrong, compared


GROUP = at_night(40, 15)  # models in one parametrised test


@pytest.mark.parametrize("first", range(0, at_night(120, GROUP), GROUP))
def test_inferred_types_of_random_models_hold_at_every_size(first):
    compared = Counter()
    for seed in range(first, first + GROUP):
        model, sizes = random_open_model(seed)
        graph = load_graph(model)
        assert graph.interface.symbols.keys() == sizes[0].keys()
        for each in sizes:
            wrong, count = disagreements(graph, model, each, seed)
            assert not wrong, f"seed {seed}: {wrong}"
            compared += count
            fixed = load_graph(model, each)
            for tensor, kind in fixed.types.items():
                if tensor in graph.types and kind.shape is not None and graph.types[tensor].shape is not None:
                    assert graph.at(each).types[tensor].shape == kind.shape, (seed, each, kind)
    assert compared["unknown"] < 0.05 * compared["shapes"], compared
    assert compared["shapes in symbols"] > 0.25 * compared["shapes"], compared
    assert compared["contents"] > 100, compared


# -- operator by operator --------------------------------------------------------------------------

X = ("batch", "seq", 6)
IMAGE = ("batch", 4, "height", "width")
SIZES = [  # sizes at which each operator runs; "height" and "width" are large enough for windows
    {"batch": 1, "seq": 1, "past": 0, "height": 9, "width": 8},
    {"batch": 2, "seq": 7, "past": 3, "height": 16, "width": 13},
    {"batch": 3, "seq": 8, "past": 1, "height": 10, "width": 31},
]
SHAPE = "s = Shape (x)\n"
EACH = {  # name → (shape of the input x, body); the result is y
    "transposed, joined, split": (X, "a = Concat <axis = 1> (x, x)\n y, z = Split <axis = 2, num_outputs = 2> (a)"),
    "split along a size": (X, "a = Concat <axis = 1> (x, x, x)\n y, z, w = Split <axis = 1, num_outputs = 3> (a)"),
    "flattened": (X, "a = Flatten <axis = 2> (x)\n y = Flatten <axis = 0> (a)"),
    "zero and minus one": (X, "t = Constant <value_ints = [0, -1, 3, 2]> ()\n y = Reshape (x, t)"),
    "one minus one": (X, "t = Constant <value_ints = [-1, 3]> ()\n y = Reshape (x, t)"),
    "computed target": (X, SHAPE + """i = Constant <value_ints = [0, 1]> ()
        a = Gather (s, i)
        h = Constant <value_ints = [2, -1]> ()
        t = Concat <axis = 0> (a, h)
        y = Reshape (x, t)"""),
    "product of sizes": (X, SHAPE + """i = Constant <value_ints = [0]> ()
        j = Constant <value_ints = [1]> ()
        a = Gather (s, i)
        b = Gather (s, j)
        c = Mul (a, b)
        d = Constant <value_ints = [6]> ()
        t = Concat <axis = 0> (c, d)
        y = Reshape (x, t)"""),
    "cut at both ends": (X, """f = Constant <value_ints = [0]> ()
        l = Constant <value_ints = [9223372036854775807]> ()
        a = Constant <value_ints = [1]> ()
        y = Slice (x, f, l, a)"""),
    "every second": (X, """f = Constant <value_ints = [0]> ()
        l = Constant <value_ints = [9223372036854775807]> ()
        a = Constant <value_ints = [1]> ()
        k = Constant <value_ints = [2]> ()
        y = Slice (x, f, l, a, k)"""),
    "without the first": (X, """f = Constant <value_ints = [1]> ()
        l = Constant <value_ints = [9223372036854775807]> ()
        a = Constant <value_ints = [1]> ()
        y = Slice (x, f, l, a)"""),
    "without the last": (X, """f = Constant <value_ints = [0]> ()
        l = Constant <value_ints = [-1]> ()
        a = Constant <value_ints = [1]> ()
        y = Slice (x, f, l, a)"""),
    "the last one": (X, """f = Constant <value_ints = [-1]> ()
        l = Constant <value_ints = [9223372036854775807]> ()
        a = Constant <value_ints = [1]> ()
        y = Slice (x, f, l, a)"""),
    "a shape's shape, backwards": (X, SHAPE + """f = Constant <value_ints = [-1]> ()
        l = Constant <value_ints = [-9223372036854775807]> ()
        a = Constant <value_ints = [0]> ()
        k = Constant <value_ints = [-1]> ()
        y = Slice (s, f, l, a, k)"""),
    "expanded": (("batch", 1, 6), SHAPE + """o = Constant <value_ints = [1, 5, 1]> ()
        t = Max (s, o)
        y = Expand (x, t)"""),
    "tiled": (X, "t = Constant <value_ints = [2, 3, 1]> ()\n y = Tile (x, t)"),
    "filled": (X, SHAPE + "y = ConstantOfShape (s)"),
    "positions": (X, SHAPE + """i = Constant <value_int = 1> ()
        n = Gather (s, i)
        o = Constant <value_int = 0> ()
        k = Constant <value_int = 2> ()
        y = Range (o, n, k)"""),
    "positions backwards": (X, SHAPE + """i = Constant <value_int = 1> ()
        n = Gather (s, i)
        o = Constant <value_int = 0> ()
        k = Constant <value_int = -1> ()
        y = Range (n, o, k)"""),
    "padded": (X, "p = Constant <value_ints = [0, 1, 0, 0, 2, 1]> ()\n y = Pad (x, p)"),
    "a mask's target": (X, SHAPE + """m = Constant <value_ints = [-1]> ()
        o = Constant <value_ints = [1, 1, 1]> ()
        e = Equal (s, m)
        t = Where (e, o, s)
        y = ConstantOfShape (t)"""),
    "sums and quotients": (X, SHAPE + """o = Constant <value_ints = [5]> ()
        k = Constant <value_ints = [2]> ()
        a = Add (s, o)
        b = Div (a, k)
        c = Mul (b, k)
        y = Sub (a, c)"""),
    "remainders": (X, SHAPE + "k = Constant <value_ints = [4]> ()\n y = Mod (s, k)"),
    "remainders of either sign": (X, SHAPE + """k = Constant <value_ints = [-4]> ()
        i = Constant <value_ints = [2]> ()
        six = Gather (s, i)
        a = Mod (six, k)
        b = Mod <fmod = 1> (six, k)
        c = Neg (six)
        d = Mod <fmod = 1> (c, k)
        five = Constant <value_ints = [5]> ()
        e = Mod <fmod = 1> (s, five)
        y = Concat <axis = 0> (a, b, d, e)"""),
    "the largest of many": (X, SHAPE + """k = Constant <value_ints = [5]> ()
        l = Constant <value_ints = [100]> ()
        i = Constant <value_ints = [2]> ()
        six = Gather (s, i)
        a = Max (six, k, l)
        b = Min (l, six, k, six)
        c = Max (s)
        zero = Constant <value_ints = [0]> ()
        d = Max (s, zero, zero)
        y = Concat <axis = 0> (a, b, c, d)"""),
    "integers and fractions": (X, SHAPE + """i = Constant <value_ints = [2, 2]> ()
        six = Gather (s, i)
        half = Constant <value_floats = [1.5, 0.5]> ()
        a = Pow (six, half)
        b = Cast <to = 1> (a)
        f = Cast <to = 1> (s)
        c = Concat <axis = 0> (half, b, f)
        d = Floor (c)
        e = Ceil (c)
        g = Round (c)
        j = Constant <value_float = 0.5> ()
        h = Div (c, j)
        o = Max (c, j)
        q = Less (c, j)
        y = Equal (c, d)"""),
    "small integers": (X, SHAPE + """i = Constant <value_ints = [2, 2]> ()
        a = Cast <to = 3> (s)
        t = Gather (s, i)
        six = Cast <to = 2> (t)
        b = Mul (six, six)
        c = Mul (b, six)
        z = Sub (c, b)
        u = Div (six, b)
        d = Cast <to = 7> (u)
        w = Cast <to = 10> (s)
        v = Cast <to = 7> (w)
        y = Mul (v, s)"""),
    "signs of zero": (X, SHAPE + """i = Constant <value_ints = [2]> ()
        t = Gather (s, i)
        a = Cast <to = 1> (t)
        b = Sub (a, a)
        y = Neg (b)"""),
    "cut backwards from before the beginning": (("batch", "seq", 5), """f = Constant <value_ints = [-10]> ()
        l = Constant <value_ints = [-20]> ()
        a = Constant <value_ints = [2]> ()
        k = Constant <value_ints = [-1]> ()
        y = Slice (x, f, l, a, k)"""),
    "extremes": (X, SHAPE + """k = Constant <value_ints = [0]> ()
        a = Max (s, k)
        b = Min (s, k)
        c = Neg (a)
        d = Abs (c)
        e = Identity (d)
        y = Sub (e, b)"""),
    "whole numbers": (X, SHAPE + """a = Cast <to = 1> (s)
        b = Floor (a)
        c = Ceil (b)
        y = Round (c)"""),
    "powers of a size": (X, SHAPE + """i = Constant <value_ints = [2]> ()
        a = Gather (s, i)
        b = Cast <to = 1> (a)
        e = Constant <value_floats = [0.5]> ()
        c = Pow (b, e)
        y = Reciprocal (c)"""),
    "comparisons of sizes": (X, SHAPE + """k = Constant <value_ints = [1]> ()
        a = GreaterOrEqual (s, k)
        b = LessOrEqual (s, k)
        c = And (a, b)
        d = Not (c)
        y = Xor (d, a)"""),
    "means and sums": (X, """i = Constant <value_ints = [1]> ()
        a = ReduceSum (x, i)
        b = Sum (x, a, x)
        c = Mean (a, b)
        d = Min (c, x)
        y = PRelu (d, a)"""),
    "comparisons": (X, SHAPE + """k = Constant <value_ints = [0]> ()
        a = Greater (s, k)
        b = Less (s, k)
        y = Or (a, b)"""),
    "a root of a size": (X, SHAPE + """i = Constant <value_ints = [2]> ()
        a = Gather (s, i)
        b = Cast <to = 1> (a)
        y = Sqrt (b)"""),
    "a product of all": (X, SHAPE + "y = ReduceProd <keepdims = 0> (s)"),
    "how many": (X, "y = Size (x)"),
    "part of a shape": (X, "y = Shape <start = -2, end = 3> (x)"),
    "squeezed": (X, SHAPE + """i = Constant <value_ints = [1]> ()
        a = Gather (s, i)
        z = Constant <value_ints = [0]> ()
        b = Squeeze (a, z)
        y = Unsqueeze (b, z)"""),
    "window": (IMAGE, "y = MaxPool <kernel_shape = [3, 2], strides = [2, 3], pads = [1, 0, 1, 1]> (x)"),
    "window, same": (IMAGE, 'y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER"> (x)'),
    "window, valid": (IMAGE, 'y = AveragePool <kernel_shape = [3, 2], strides = [2, 1], auto_pad = "VALID"> (x)'),
    "window, up": (IMAGE, "y = MaxPool <kernel_shape = [2, 2], strides = [1, 2], ceil_mode = 1> (x)"),
    "window, up, of known sides": (("batch", 4, 4, 9), "y = MaxPool <kernel_shape = [1, 2], strides = [2, 2], "
                                   "ceil_mode = 1> (x)"),
    "split unevenly": (IMAGE, "y, z = Split <axis = 2, num_outputs = 2> (x)"),
    "depth": (IMAGE, "y = DepthToSpace <blocksize = 2> (x)"),
    "space": (("batch", 4, "2*height", "2*width"), "y = SpaceToDepth <blocksize = 2> (x)"),
    "scaled": (IMAGE, """r = Constant <value_floats = [1.0, 1.0, 2.0, 0.5]> ()
        y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric"> (x, , r)"""),
    "scaled to a size": (IMAGE, SHAPE + """k = Constant <value_ints = [1, 1, 2, 2]> ()
        t = Mul (s, k)
        y = Resize <mode = "nearest"> (x, , , t)"""),
    "convolved": (IMAGE, """n = Constant <value_ints = [12]> ()
        w = ConstantOfShape (n)
        t = Constant <value_ints = [1, 4, 1, 3]> ()
        v = Reshape (w, t)
        a = Conv <strides = [2, 1], pads = [0, 1, 0, 1], dilations = [1, 2]> (x, v)
        u = Constant <value_ints = [1, 2, 2, 3]> ()
        b = Reshape (w, u)
        y = ConvTranspose <strides = [2, 3], pads = [0, 1, 0, 1], output_padding = [1, 0]> (a, b)"""),
    "powers of windows": (IMAGE, "y = LpPool <kernel_shape = [2, 2], strides = [2, 2]> (x)"),
    "product": (X, "t = Transpose <perm = [0, 2, 1]> (x)\n a = MatMul (x, t)\n y = Softmax (a)"),
    "reduced": (X, "i = Constant <value_ints = [1]> ()\n y = ReduceMean <keepdims = 0> (x, i)"),
    "broadcast": (X, "t = Transpose <perm = [0, 2, 1]> (x)\n i = Constant <value_ints = [1]> ()\n"
                     "a = ReduceSum (x, i)\n y = Add (a, x)"),
}  # fmt: skip


def written(shape: tuple, body: str) -> onnx.ModelProto:
    text = f'<ir_version: 9, opset_import: ["" : {OPSET}]>\nagraph (x) => (y) {{\n{body}\n}}'
    model = onnx.parser.parse_model(text)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape))
    (array,) = run(session(model, 1, optimise=False), values(model, SIZES[1], 0))
    dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", dtype, [None] * array.ndim))
    return model


# the first two belong to other opsets and domains; the last one takes unsigned integers only
NOT_WRITTEN = {"Upsample", "FusedConv", "BitShift"}


def test_every_operator_with_symbolic_inference_is_tested():
    reckoned = symbolic._SHAPES.keys() | contents._COMPUTE.keys()
    tried = {node.op_type for case in EACH.values() for node in written(*case).graph.node}
    assert reckoned - tried == NOT_WRITTEN


@each_of(EACH)
def test_inferred_shapes_and_contents_of_operators_hold_at_every_size(what):
    model = written(*EACH[what])
    graph = load_graph(model)
    assert not graph.lost
    for sizes in SIZES:
        wrong, compared = disagreements(graph, model, {name: sizes[name] for name in graph.interface.symbols}, 0)
        assert not wrong
        assert not compared["unknown"]


def content_of(body: str, name: str) -> tuple | None:
    graph = load_graph(written(X, body))
    (tensor,) = [tensor for tensor, known in graph.interface.names.items() if known == name]
    return graph.types[tensor].content


def test_the_element_count_of_an_unknown_shape_is_unknown():
    assert content_of("a = NonZero (x)\n y = Size (a)", "y") is None


def test_a_number_that_overflows_its_data_type_is_unknown():
    assert content_of(
        SHAPE + """k = Constant <value_ints = [1, 1, 4611686018427387904]> ()
        a = Mul (s, k)
        i = Constant <value_ints = [2]> ()
        b = Gather (a, i)
        y = Add (b, i)""",
        "a",
    ) is None  # fmt: skip


def test_a_float_that_is_no_exact_integer_is_unknown():
    """Squares of exact integers would otherwise double their digits at each of these operators."""
    text = SHAPE + "w0 = Cast <to = 1> (s)\n k = Constant <value_floats = [1.0, 1.0, 1e20]> ()\n w1 = Mul (w0, k)\n"
    text += "\n".join(f"w{k + 1} = Mul (w{k}, w{k})" for k in range(1, 40)) + "\n y = Neg (w40)"
    assert content_of(text, "w1") is None


@pytest.mark.parametrize("opset", [9, 10, 13])
def test_a_slice_whose_size_is_no_polynomial_has_no_known_shape(opset):
    """The result's size is no polynomial, so its shape is unknown; ONNX below opset 11 infers an unchanged size."""
    bounds = "<starts: ints = [4], ends: ints = [9], axes: ints = [0]> (x)" if opset < 10 else "(x, s, e, a)"
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g (float[seq, 2] x) => (float[n, 2] y)
    <int64[1] s = {{4}}, int64[1] e = {{9}}, int64[1] a = {{0}}> {{ y = Slice {bounds} }}"""
    graph = load_graph(onnx.parser.parse_model(text))
    assert graph.types[graph.outputs[0]].shape is None
