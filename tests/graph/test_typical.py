import numpy as np
import onnx
import pytest

from rlflow.common import messages
from rlflow.common.errors import RLFlowError
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.typical import input_shapes, load_at, typical_sizes

TEXT = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[batch,seq,4] x, float[batch,past,4] cache, bool[batch,total] mask, float[?,3,height,width] image,
       float[n,heads,length,4] keys) => (float[a,b,c] y) {
        y = Concat <axis = 1> (cache, x)
    }"""
DEFAULTS = {
    "batch": 1, "seq": 128, "past": 128, "image_0": 1, "height": 224, "width": 224, "n": 1, "heads": 128, "length": 128
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """Return a model with a growing cache, a mask of the sum of two lengths, and an image with an unnamed batch."""
    result = onnx.parser.parse_model(TEXT)
    result.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "past + seq"
    return result


@pytest.fixture(scope="module")
def interface(model):
    return load_graph(model).interface


def test_unnamed_sizes_have_defaults(interface):
    """An input of four axes is an image only if both of its last axes are open, so the third axis of `keys` is a
    length."""
    assert typical_sizes(interface) == (DEFAULTS,)


def test_the_batch_axis_is_found_by_its_name_and_is_otherwise_the_first():
    for axes, expected in {
        "steps,batch,8": (128, 1), "batch,steps,8": (1, 128), "rows,cols": (1, 128), "T,Batch_Size,4": (128, 1),
        "seq,bs": (128, 1), "batch": (1,), "2*batch,seq": (1, 128), "c,batch,h,w": (128, 1, 224, 224),
    }.items():  # fmt: skip
        dims = [int(text) if text.isdecimal() else text for text in axes.split(",")]
        given, made = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims) for name in "xy")
        graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [given], [made])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        (sizes,) = typical_sizes(load_graph(model).interface)
        names = [text.removeprefix("2*") for text in dims if isinstance(text, str)]
        assert tuple(sizes[name] for name in names) == expected, axes


def test_a_cache_may_grow_along_its_first_axis():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[past,4] cache, float[n,4] x) => (float[m,4] y)'
        "{ y = Concat <axis = 0> (cache, x) }"
    )
    interface = load_graph(model).interface
    assert set(interface.symbols.values()) == {0} and typical_sizes(interface) == ({"past": 128, "n": 128},)


@pytest.mark.parametrize(
    "shapes, changed",
    [
        ({"seq": 16}, {"seq": 16}),
        ({"x": (2, 16, 4)}, {"batch": 2, "seq": 16}),
        ({"x": [2, 16, 4], "past": 8, "mask": (2, 24)}, {"batch": 2, "seq": 16, "past": 8}),
        ({"image_0": 4, "past + seq": 256}, {"image_0": 4}),
        ({"image": (4, 3, 32, 64)}, {"image_0": 4, "height": 32, "width": 64}),
    ],
)
def test_sizes_are_named_by_symbol_or_by_input(interface, shapes, changed):
    assert typical_sizes(interface, shapes) == (DEFAULTS | changed,)


def test_several_sizes_are_combined_with_all_others(interface):
    sizes = typical_sizes(interface, {"seq": (16, 128, 16), "batch": [1, 8], "past": 1})
    assert [(each["batch"], each["seq"], each["past"]) for each in sizes] == [
        (1, 16, 1), (8, 16, 1), (1, 128, 1), (8, 128, 1)
    ]  # fmt: skip
    assert len(typical_sizes(interface, {"seq": range(1, 17)})) == 16


@pytest.mark.parametrize(
    "shapes, message",
    [
        ({"other": 3}, "'other', which is neither an input nor a symbolic dimension; there are batch, .*image_0"),
        ({"x": (1, 2)}, "input 'x' has 3 dimensions, --shape gives 2"),
        ({"x": (1, 2, 3)}, "input 'x' has a fixed size 4, --shape gives 3"),
        ({"x": (1, 2, 4), "batch": 2}, "dimension 'batch' two sizes, 2 and 1"),
        ({"seq": 16, "mask": (1, 16)}, "'past [+] seq' of input 'mask' is 16 by --shape, but .*past = 128, seq = 16"),
        ({"seq": range(1, 10), "batch": (1, 2)}, r"18 combinations of sizes \(9 of seq × 2 of batch\); give at"),
        ({"seq": 10**20}, "--shape gives 'seq' a size that is too large for a tensor: 1" + 20 * "0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_one_line(interface, shapes, message):
    with pytest.raises(RLFlowError, match=message) as caught:
        typical_sizes(interface, shapes)
    assert "\n" not in str(caught.value)


def test_default_sizes_are_reported_once(interface, capsys, monkeypatch):
    monkeypatch.setattr(messages, "_shown_lines", set())
    named = dict(DEFAULTS)
    del named["past"], named["seq"]
    for _ in range(2):
        typical_sizes(interface, named)
    said = capsys.readouterr().err
    assert said == "default sizes: past = 128, seq = 128; set others with --shape seq=SIZE\n"
    typical_sizes(interface, DEFAULTS)
    assert capsys.readouterr().err == ""


def test_only_a_few_of_many_default_sizes_are_reported(capsys):
    inputs = ", ".join(f"float[size{k}] x{k}" for k in range(500))
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float[k] y) {{ y = Neg (x0) }}'
    typical_sizes(load_graph(onnx.parser.parse_model(text)).interface)
    said = capsys.readouterr().err
    assert said.count(" = 1") == 12 and "and 488 others; set others with --shape" in said


def test_inputs_are_drawn_at_the_given_sizes(model, interface):
    """Sizes that are sums are computed, and ONNX Runtime accepts the inputs."""
    sizes = DEFAULTS | {"seq": 3, "past": 5, "batch": 2, "height": 8, "width": 8, "heads": 1, "length": 1}
    shapes = input_shapes(interface, sizes)
    assert shapes == {
        "x": (2, 3, 4), "cache": (2, 5, 4), "mask": (2, 8), "image": (1, 3, 8, 8), "keys": (1, 1, 1, 4)
    }  # fmt: skip
    inputs = random_inputs(model, 0, shapes)
    assert {name: np.shape(array) for name, array in inputs.items()} == shapes
    assert run(session(model, 1), inputs)[0].shape == (2, 8, 4)


@pytest.mark.parametrize("text", ["past - 1", "past*groups", "past + seq", "2*past", "8*width", "seq"])
def test_inputs_have_the_sizes_of_the_graph_if_a_symbol_may_be_0(text):
    """A size such as "past - 1" is a symbol of its own if the cache may be empty, and otherwise an expression."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[seq, 4] x, float[past, 4] cache, float[other, 4] z) => (float[all, 4] y, float[other, 4] w) {
            y = Concat<axis = 0>(cache, x) w = Relu(z)
        }"""
    )
    for value in (model.graph.input[2], model.graph.output[1]):
        value.type.tensor_type.shape.dim[0].dim_param = text
    for shapes in ({}, {"past": 3, "seq": 5}):
        graph, (sizes,) = load_at(model, shapes)
        types = graph.at(sizes).types
        assert input_shapes(graph.interface, sizes) == {
            value.name: types[tensor].shape for value, tensor in zip(model.graph.input, graph.inputs, strict=True)
        }


def test_fixed_sizes_are_bound_and_others_stay_symbolic(model):
    graph, (sizes,) = load_at(model, {"seq": 16, "image": (1, 3, 32, 32)}, fix=True)
    assert graph.interface.symbols.keys() == {"batch", "past", "n", "heads", "length"} == sizes.keys()
    shapes = input_shapes(graph.interface, sizes | {"past": 1})
    assert shapes["x"] == (1, 16, 4) and shapes["mask"] == (1, 17) and shapes["image"] == (1, 3, 32, 32)
    assert load_at(model, DEFAULTS, fix=True)[1] == ({},)


@pytest.mark.parametrize(
    "shapes, message",
    [
        ({}, "--fix freezes the sizes that --shape names; say which, for example .*--shape seq=128"),
        ({"seq": (16, 128)}, "--fix freezes one size of each: --shape seq=SIZE, not seq=16,128"),
        ({"other": 1}, "'other', which is neither"),
    ],
)
def test_only_one_named_size_of_each_symbol_can_be_fixed(model, shapes, message):
    with pytest.raises(RLFlowError, match=message):
        load_at(model, shapes, fix=True)


def test_a_task_has_symbolic_or_fixed_sizes(model):
    shapes = (("seq", (16, 32)), ("past", 1))
    task = EnvSpec("", shapes, cost="analytic").open(model)
    assert [each["seq"] for each in task.sizes] == [16, 32] and "seq" in task.graph.interface.symbols
    fixed = EnvSpec("", tuple(DEFAULTS.items()), fix=True, cost="analytic").open(model)
    assert fixed.sizes == ({},) and not fixed.graph.interface.symbols


def test_sizes_at_which_a_tensor_is_too_large_are_refused_before_anything_is_done(model):
    with pytest.raises(RLFlowError, match="at batch = 1, .*seq = 99999999999.* would take .* GiB, .* name other sizes"):
        load_at(model, {"seq": (16, 99999999999)})


@pytest.mark.parametrize("number, message", [("9" * 30, None), ("-3", "negative size")])
def test_a_symbol_named_like_a_number_is_accepted_unless_the_number_is_negative(number, message):
    body = "g (float[named] x) => (float[k] y) { y = Neg (x) }"
    named = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{body}')
    named.graph.input[0].type.tensor_type.shape.dim[0].dim_param = number
    if message is None:
        assert load_graph(named).interface.symbols == {number: 1}
    else:
        with pytest.raises(RLFlowError, match=message):
            load_graph(named)


def test_a_model_without_symbols_has_one_empty_combination():
    assert EnvSpec("tiny_resnet18", cost="analytic").make_task().sizes == ({},)


def test_an_unnamed_size_differs_from_a_symbol_with_its_generated_name():
    body = "g (float[?] x, float[x_0] z) => (float[k] y) { y = Concat <axis = 0> (x, z) }"
    text = f'<ir_version: 8, opset_import: ["" : 17]>\n{body}'
    graph = load_graph(onnx.parser.parse_model(text))
    assert len(graph.interface.symbols) == 2
    assert load_graph(onnx.parser.parse_model(text), {"x": (3,), "z": (5,)}).types[graph.outputs[0]].shape == (8,)


def test_a_symbol_in_a_quotient_that_may_be_zero_has_a_default(model):
    third = onnx.ModelProto()
    third.CopyFrom(model)
    third.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "seq//3"
    assert typical_sizes(load_graph(third).interface)[0]["seq"] == 128


def test_a_size_that_grows_out_of_bounds_is_a_lost_shape():
    inputs = ", ".join(f"float[a{k}, b{k}] x{k}" for k in range(9))
    flat = "".join(f"f{k} = Flatten <axis = 0> (x{k})\n" for k in range(9))
    names = ", ".join(f"f{k}" for k in range(9))
    body = f"{flat} c = Concat <axis = 1> ({names})\n t = Transpose (c)\n p = MatMul (t, c)\n s = Shape (p)\n"
    text = f'<ir_version: 8, opset_import: ["" : 17]>\ng ({inputs}) => (float[k, l] y) {{ {body} y = Reshape (p, s) }}'
    graph = load_graph(onnx.parser.parse_model(text))
    ((_, reason),) = graph.lost
    assert reason == "the shape that Reshape gives cannot be known: a size grows out of bounds"
