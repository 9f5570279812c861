"""Test reading and writing of ONNX files: nothing is lost, and messages name what is wrong in bad input."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from rlflow.common.errors import RLFlowError
from rlflow.graph import onnx_writer
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.ir import Constant
from rlflow.graph.limits import check_expansion
from rlflow.graph.onnx_reader import file_bytes, load_graph, model_files
from rlflow.graph.onnx_writer import save_graph, to_model
from rlflow.rules.apply import apply
from rlflow.rules.language import load_rules
from rlflow.rules.locations import explain
from tests.rules.instances import random_feeds, run

RULES = load_rules()


def model(text: str, opset: int = 20, ir_version: int = 8, domains: str = "") -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}{domains}]> {text}')


def rewritten(graph, *names: str):
    """Return the graph after the named rules, each applied at its first location."""
    for name in names:
        matches, refusals = explain(graph, RULES, name)
        assert matches, (name, refusals)
        graph = apply(graph, RULES[matches[0].xfer_id], matches[0])
    return graph


def in_onnxruntime(model: onnx.ModelProto, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def assert_equal(before: onnx.ModelProto, after: onnx.ModelProto, evaluate=run, feeds=None, tolerance=1e-5) -> None:
    onnx.checker.check_model(after, full_check=True)
    # old files list weights as inputs
    fixed = {t.name for t in before.graph.initializer} if before.ir_version < 4 else set()
    assert [v.name for v in before.graph.input if v.name not in fixed] == [v.name for v in after.graph.input]
    assert [v.name for v in before.graph.output] == [v.name for v in after.graph.output]
    feeds = random_feeds(before, 0) | (feeds or {})
    for a, b in zip(evaluate(before, feeds), evaluate(after, feeds), strict=True):
        if np.asarray(a).dtype.kind in "OUS":
            assert np.asarray(a).tolist() == np.asarray(b).tolist()
        else:
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)
        assert np.asarray(a).dtype == np.asarray(b).dtype


# -- round trips -----------------------------------------------------------------------------------

IF = """
  {
    a = Identity(x)
    y = If (c) <
      then_branch = t () => (float[3] u) { u = Add(a, w) },
      else_branch = e () => (float[3] v) { b = Neg(a) v = Mul(b, a) }
    >
  }"""
LOOP = """(float[3] x, int64 n) => (float[3] y) <bool go = {1}, float[3] w = {1, 2, 3}> {
    a = Relu(x)
    s = Relu(a)
    y = Loop (n, go, x) <body = l (int64 i, bool c, float[3] h) => (bool d, float[3] k) {
      d = Identity(c)
      p = Mul(h, w)
      k = Add(p, s)
    }>
  }"""
SQUEEZE_9 = """g (float[1,4,1] x)
    => (float[4,1] y, float[1,1] m, float[1,4,1] c, float[1,6,1] p, float[1,2,1] s, float[1,2,1] t) {
    y = Squeeze <axes = [0]> (x)
    m = ReduceMean <axes = [1], keepdims = 0> (x)
    c = Clip <min = -0.5, max = 0.5> (x)
    p = Pad <pads = [0, 1, 0, 0, 1, 0], value = 2.0> (x)
    u = Unsqueeze <axes = [0, 1]> (x)
    v = Squeeze <axes = [0, 1]> (u)
    w = Slice <axes = [1], starts = [0], ends = [4]> (v)
    s, t = Split <axis = 1, split = [2, 2]> (w)
  }"""
CONSTANTS = """g (float[2] x) => (float[2] y, float f, float[2] g, int64 i, int64[3] k, float[2,2] o) {
    v = Constant <value = float[2] {1.5, 2.5}> ()
    f = Constant <value_float = 3.5> ()
    g = Constant <value_floats = [3.5, 4.5]> ()
    i = Constant <value_int = 7> ()
    k = Constant <value_ints = [7, 8, 9]> ()
    n = Constant <value = int64[2] {2, 2}> ()
    o = ConstantOfShape <value = float[1] {0.5}> (n)
    a = Add(x, v)
    b = Add(a, f)
    y = Mul(b, g)
  }"""
ROUND_TRIPS = {
    # name → (model, evaluator)
    "if": (model(f"g (float[3] x, bool c) => (float[3] y) <float[3] w = {{1, 2, 3}}> {IF}"), in_onnxruntime),
    "loop": (model(f"g {LOOP}"), in_onnxruntime),
    "opset 9": (model(SQUEEZE_9, opset=9), in_onnxruntime),
    "constants": (model(CONSTANTS, opset=13), run),
    "initialisers as inputs": (model("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> "
        "{ y = Add(x, w) }", ir_version=3), run),
    "a default": (model("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"), run),
    "an output twice": (model("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Identity(y) }"), run),
    "an input as output": (model("g (float[2] x, float[2] z) => (float[2] x, float[2] y) { y = Relu(z) }"), run),
    "a constant as output": (model("g (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1, 2}> "
        "{ y = Add(x, w) }"), in_onnxruntime),
    "a computed constant as output": (model("g (float[2] x) => (float[2] y, float[2] v) <float[2] w = {1, 2}> "
        "{ v = Neg(w) y = Add(x, v) }"), run),
    "an omitted input": (model("g (float[2] x, float h) => (float[2] y) { y = Clip(x, , h) }"), run),
    "an omitted output": (model("g (float[2,1,1] x) => (float[1,1,1] h) "
        "<float[1,3,1] w = {1, 2, 3}, float[1,3,1] r = {4, 5, 6}> "
        "{ , h = GRU <hidden_size = 1> (x, w, r) }"), in_onnxruntime),
    "no weights": (model("g (float[2] x) => (float[2] y) { a = Neg(x) y = Relu(a) }"), run),
    "no nodes": (model("g (float[2] x) => (float[2] x) { }"), run),
    "no inputs": (model("g () => (float[2] y) <float[2] w = {1, 2}> { y = Neg(w) }"), run),
    "scalars": (model("g (float x) => (float y) <float w = {2}> { y = Mul(x, w) }"), run),
    "empty tensors": (model("g (float[0,2] x) => (float[0,2] y) <float[0,2] w = {}> "
        "{ y = Add(x, w) }"), in_onnxruntime),
    "a function": (parser.parse_model("""<ir_version: 8, opset_import: ["": 18, "own": 1]>
        g (float[3] x) => (float[3] y) { a = own.twice <by = 3.0> (x) y = Relu(a) }
        <domain: "own", opset_import: ["": 18]> twice <by> (x) => (y) {
            f = Constant <value_float: float = @by> () y = Mul(x, f) }"""),
        in_onnxruntime),
    "another domain": (model("g (float[3] x) => (float[3] y) "
        "{ a = Relu(x) y = com.microsoft.Gelu(a) }", domains=', "com.microsoft": 1'),
        in_onnxruntime),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_a_round_trip_keeps_everything(name, tmp_path):
    before, evaluate = ROUND_TRIPS[name]
    graph = load_graph(before)
    save_graph(graph, tmp_path / "m.onnx")
    after = onnx.load(tmp_path / "m.onnx")
    assert_equal(before, after, evaluate)
    again = load_graph(tmp_path / "m.onnx")
    assert again.hash == graph.hash
    assert to_model(again) == after
    assert list(after.graph.output) == list(before.graph.output)


def test_the_documentation_and_the_metadata_of_a_model_are_kept():
    before = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    before.producer_name, before.doc_string, before.graph.doc_string, before.model_version = "us", "what", "for", 7
    before.graph.node[0].name = "clamp"
    before.metadata_props.add(key="k", value="v")
    before.graph.metadata_props.add(key="g", value="w")
    assert to_model(load_graph(before)) == before


def test_strings_are_carried_through():
    texts = helper.make_tensor("c", TensorProto.STRING, [2], [b"a", b"b"])
    before = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Constant", [], ["c"], value=texts),
                helper.make_node("Equal", ["x", "c"], ["e"]),
                helper.make_node("Equal", ["x", "w"], ["f"]),
                helper.make_node("And", ["e", "f"], ["y"]),
            ],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.STRING, [2])],
            [helper.make_tensor_value_info("y", TensorProto.BOOL, [2])],
            [helper.make_tensor("w", TensorProto.STRING, [2], [b"a", b"c"])],
        ),
        opset_imports=[helper.make_opsetid("", 19)], ir_version=9,
    )  # fmt: skip
    feeds = {"x": np.array(["a", "c"], object)}
    assert_equal(before, to_model(load_graph(before)), feeds=feeds)


def test_a_sparse_weight_is_carried_through():
    values = numpy_helper.from_array(np.array([3.0, 4.0], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([0, 2], np.int64), "i"), [3])
    before = model("g (float[3] x) => (float[3] y) { y = Add(x, w) }")
    before.graph.sparse_initializer.append(sparse)
    after = to_model(load_graph(before))
    x = np.ones(3, np.float32)
    np.testing.assert_array_equal(in_onnxruntime(after, {"x": x})[0], [4, 1, 5])


def test_an_unknown_operator_is_carried_through():
    before = model("g (float[3] x) => (float[3] y) "
        "{ a = Relu(x) b = own.Thing <k = 3> (a) y = Relu(b) }", domains=', "own": 1')
    graph = load_graph(before)
    assert to_model(graph) == before
    assert not any(node.constant for node in graph.nodes.values())


def test_overloads_of_a_function_are_distinguished():
    before = parser.parse_model("""<ir_version: 10, opset_import: ["": 18, "own": 1]>
        g (float[3] x) => (float[3] y, float[3] z) { a = Identity(x) y = own.f (a) z = own.f (a) }
        <domain: "own", opset_import: ["": 18]> f (x) => (y) { y = Add(x, x) }
        <domain: "own", opset_import: ["": 18]> f (x) => (y) { y = Mul(x, x) }""")
    for function, node, overload in zip(before.functions, before.graph.node[1:], ("sum", "product"), strict=True):
        function.overload = node.overload = overload
    graph = load_graph(before, bodies=False)
    assert to_model(graph) == before
    assert [node.overload for node in to_model(rewritten(graph, "identity")).graph.node] == ["sum", "product"]
    assert [node.op_type for node in to_model(rewritten(load_graph(before), "identity")).graph.node] == ["Add", "Mul"]


@pytest.mark.parametrize("kind", ["value_int = 7", "value_float = 7.0", "value = int64 {7}"])
def test_a_scalar_constant_stays_a_scalar(kind):
    before = model(f"g () => ({'float' if 'float' in kind else 'int64'} y) {{ c = Constant <{kind}> () y = Neg(c) }}")
    (constant,) = load_graph(before).constants.values()
    assert constant.type.shape == ()
    assert Constant.of(np.array(7)).type.shape == ()


# -- rewrites around what is carried through ---------------------------------------------------------


def test_a_rule_may_remove_a_tensor_that_a_subgraph_reads():
    before = model(f"g (float[3] x, bool c) => (float[3] y) <float[3] w = {{1, 2, 3}}> {IF}")
    after = to_model(rewritten(load_graph(before), "identity"))
    for branch in (True, False):
        assert_equal(before, after, in_onnxruntime, {"c": np.array(branch)})


def test_a_rule_may_remove_a_tensor_that_two_subgraphs_read():
    branches = """then_branch = t () => (float[3] u{0}) {{ u{0} = Neg(a) }},
                  else_branch = e () => (float[3] v{0}) {{ v{0} = Abs(a) }}"""
    before = model(f"""g (float[3] x, bool c) => (float[3] y, float[3] a) {{
        b = Relu(x) a = Identity(b)
        i = If (c) <{branches.format(1)}> j = If (c) <{branches.format(2)}> y = Add(i, j) }}""")
    assert_equal(before, to_model(rewritten(load_graph(before), "identity")), in_onnxruntime)


def test_a_rule_may_replace_a_tensor_that_a_loop_reads():
    before = model(f"g {LOOP}")
    after = to_model(rewritten(load_graph(before), "relu-relu"))
    assert sum(node.op_type == "Relu" for node in after.graph.node) == 1
    assert_equal(before, after, in_onnxruntime, {"n": np.array(3)})


def test_new_names_avoid_names_inside_subgraphs():
    before = model("""g (float[1,3] x, bool c) => (float[1,3] y) <float[3,3] w = {1,2,3,4,5,6,7,8,9}, float k = {2}> {
        m = MatMul(x, w) a = Mul(m, k)
        y = If (c) <then_branch = t () => (float[1,3] rlflow_0) { rlflow_0 = Neg(a) },
                    else_branch = e () => (float[1,3] v) { rlflow_1 = Abs(a) v = Relu(rlflow_1) }> }""")
    assert_equal(before, to_model(rewritten(load_graph(before), "mul-into-weight")), in_onnxruntime)


def test_outputs_keep_their_names_when_nodes_are_removed():
    before = model("""g (float[2] x) => (float[2] y, float[2] z, float[2] a) <float o = {1}> {
        y = Identity(x) a = Relu(x) b = Identity(a) z = Mul(b, o) }""")
    graph = load_graph(before)
    assert_equal(before, to_model(rewritten(graph, "identity", "mul-one", "identity")))
    both = model("""g (float[2] x, float[2] w) => (float[2] v, float[2] u) <int64[2] s = {2, 2}> {
        c = Concat <axis = 0> (w, x) v, u = Split(c, s) }""")
    assert_equal(both, to_model(rewritten(load_graph(both), "split-of-concat")))


def test_equal_graphs_give_equal_bytes():
    text = """g (float[1,3] x) => (float[1,3] y) <float[3,3] w = {1,2,3,4,5,6,7,8,9}, float k = {2}> {
        m = MatMul(x, w) y = Mul(m, k) }"""
    first, second = (to_model(rewritten(load_graph(model(text)), "mul-into-weight")) for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


# -- opsets ----------------------------------------------------------------------------------------


def test_operators_of_old_opsets_keep_their_old_form():
    before = model(SQUEEZE_9, opset=9)
    after = to_model(load_graph(before))
    assert {node.op_type: {a.name for a in node.attribute} for node in after.graph.node} == {
        node.op_type: {a.name for a in node.attribute} for node in before.graph.node
    }
    assert not after.graph.initializer
    gone = to_model(rewritten(load_graph(before), "squeeze-unsqueeze"))
    assert_equal(before, gone, in_onnxruntime)


def test_a_rule_writes_the_form_of_the_models_opset():
    before = model("""g (float[1,2] x) => (float[1,2] y, float[1,1] z)
        <float[2,2] w = {1, 2, 3, 4}, float[2,1] u = {5, 6}> {
        y = MatMul(x, w) z = MatMul(x, u) }""", opset=9)
    after = to_model(rewritten(load_graph(before), "matmul-merge"))
    (split,) = (node for node in after.graph.node if node.op_type == "Split")
    assert len(split.input) == 1
    assert helper.get_attribute_value(next(a for a in split.attribute if a.name == "split")) == [2, 1]
    assert_equal(before, after, in_onnxruntime)


def test_weights_are_folded_by_the_models_own_opset():
    """Weights are folded by the model's own opset, in which Softmax flattens its input and Pad has no input `pads`."""
    before = model("""g (float[1,2,3,3] x) => (float[1,2,3,3] y, float[1,1,3,3] z)
        <float[2,2,1,1] w = {1, 2, 3, 5}, float[1,2,3,3] u = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9}> {
        s = Softmax(w) y = Conv(x, s) z = Conv <pads = [1, 1, 1, 1]> (x, u) }""", opset=9)
    after = to_model(rewritten(load_graph(before), "conv-enlarge-without-bias"))
    assert_equal(before, after, in_onnxruntime)


def test_float16_weights_are_folded():
    before = model("""g (float16[1,2] x) => (float16[1,2] y) <float16[2,2] w = {1, 2, 3, 4}, float16 k = {2}> {
        m = MatMul(x, w) y = Mul(m, k) }""")
    assert_equal(before, to_model(rewritten(load_graph(before), "mul-into-weight")), tolerance=1e-2)


def test_a_default_survives_and_its_override_still_acts():
    text = """g (float[1,2] x, float[2,2] w) => (float[1,2] y) <float[2,2] w = {1, 2, 3, 4}, float k = {2}> {
        a = Identity(x) m = MatMul(a, w) y = Mul(m, k) }"""
    before = model(text)
    graph = rewritten(load_graph(before), "identity")
    assert explain(graph, RULES, "mul-into-weight")[1][0].reason == "weight or factor is not constant"
    after = to_model(graph)
    assert_equal(before, after)
    assert_equal(before, after, feeds={"w": np.full((2, 2), 7, np.float32)})
    old = model(text.replace("float[2,2] w)", "float[2,2] w, float k)"), ir_version=3)
    after = to_model(rewritten(load_graph(old), "mul-into-weight"))
    x = {"x": np.ones((1, 2), np.float32)}
    np.testing.assert_array_equal(run(after, x)[0], run(old, x)[0])


# -- symbolic dimensions ---------------------------------------------------------------------------

SYMBOLIC = "g (float[N,2] x, float[N,2] z) => (float[N,2] y) {body}"


def symbols(value: onnx.ValueInfoProto) -> list:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_a_dimension_is_bound_by_name_or_by_input():
    before = model(SYMBOLIC.format(body="{ a = Neg(x) y = Add(a, z) }"))
    hashes = set()
    for shapes in ({"N": 3}, {"x": (3, 2)}, {"z": (3, 2), "N": 3}):
        graph = load_graph(before, shapes)
        assert {kind.shape for kind in graph.types.values()} == {(3, 2)}
        hashes.add(graph.hash)
    assert len(hashes) == 1


def test_a_bound_dimension_stays_bound_after_any_rewrite():
    """Whether the two sides of a rule are equal at other sizes is not checked if the user has fixed the sizes."""
    before = model(SYMBOLIC.format(body="{ a = Neg(x) b = Neg(a) y = Add(b, z) }"))
    after = to_model(rewritten(load_graph(before, {"N": 3}), "neg-neg"))
    assert [symbols(value) for value in after.graph.input] == [[3, 2]] * 2
    unchanged = to_model(load_graph(before, {"N": 3}))
    assert [symbols(value) for value in (*unchanged.graph.input, *unchanged.graph.output)] == [["N", 2]] * 3


def test_a_dimension_that_a_rule_states_is_bound():
    before = model("g (float[N,2] x) => (float[N,2] y) <int64[2] s = {3, 2}> { a = Reshape(x, s) y = Neg(a) }")
    graph = load_graph(before, {"N": 3})
    after = to_model(rewritten(graph, "reshape-nothing"))
    assert symbols(after.graph.input[0]) == [3, 2]
    assert symbols(to_model(graph).graph.input[0]) == ["N", 2]
    onnx.checker.check_model(after, full_check=True)


def test_an_unnamed_dimension_can_be_bound():
    before = model("g (float[?,2] x) => (float[A,B] y) <int64[2] s = {3, 2}> { a = Reshape(x, s) y = Neg(a) }")
    after = to_model(rewritten(load_graph(before, {"x": (3, 2)}), "reshape-nothing"))
    assert symbols(after.graph.input[0]) == [3, 2]


OPEN = "the model leaves sizes of its inputs open: {}; say which it will run with, for example {}"
BINDINGS = [
    # (input, given shapes, expected message)
    ("float[N,2] x", {}, OPEN.format("'x' is [N, 2]", "--shape N=1")),
    ("float[?,2] x", {}, OPEN.format("'x' is [?, 2]", "--shape x=1x2")),
    ("float[N,M] x, float[N] z", {"M": 2}, OPEN.format("'x' is [N, M], 'z' is [N]", "--shape N=1")),
    (
        "float[N,M] x, float[?,M] z", {},
        OPEN.format("'x' is [N, M], 'z' is [?, M]", "--shape N=1 --shape M=1 --shape z=1x1"),
    ),
    ("float[N,2] x", {"x": (3,)}, "input 'x' has 2 dimensions, --shape gives 1"),
    ("float[N,2] x", {"x": (3, 3)}, "input 'x' has a fixed size 2, --shape gives 3"),
    ("float[N,2] x", {"x": (3, 2), "N": 4}, "--shape gives dimension 'N' two sizes, 4 and 3; give it one size"),
    ("float[N,N] x", {"x": (3, 4)}, "--shape gives dimension 'N' two sizes, 3 and 4; give it one size"),
    (
        "float[N,2] x", {"M": 3, "N": 3},
        "--shape names 'M', which is neither an input nor a symbolic dimension; there are N, x",
    ),
    ("float[N,2] x", {"N": -3}, "--shape gives 'N' a negative size"),
    ("float[N,2] x", {"x": (-1, 2)}, "--shape gives 'x' a negative size"),
]


@pytest.mark.parametrize("declared, shapes, message", BINDINGS, ids=range(len(BINDINGS)))
def test_a_wrong_binding_is_named(declared, shapes, message):
    with pytest.raises(RLFlowError) as error:
        random_inputs(model(f"g ({declared}) => (float[A,B] y) {{ y = Neg(x) }}"), 0, shapes)
    assert str(error.value) == message


# -- files -----------------------------------------------------------------------------------------


def with_external_weights(folder, location="w.bin") -> onnx.ModelProto:
    before = model("g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1, 2, 3, 4}, float k = {2}> "
        "{ m = MatMul(x, w) y = Mul(m, k) }")
    outside = onnx.ModelProto()
    outside.CopyFrom(before)
    weight = outside.graph.initializer[0]
    data = numpy_helper.to_array(weight).tobytes()
    weight.CopyFrom(onnx.TensorProto(name="w", data_type=1, dims=[2, 2], data_location=onnx.TensorProto.EXTERNAL))
    weight.external_data.add(key="location", value=location)
    (folder / location).write_bytes(data)
    (folder / "m.onnx").write_bytes(outside.SerializeToString())
    return before


def test_external_weights_are_read(tmp_path):
    before = with_external_weights(tmp_path)
    graph = load_graph(tmp_path / "m.onnx")
    assert graph.hash == load_graph(before).hash
    assert_equal(before, to_model(graph), in_onnxruntime)
    assert_equal(before, to_model(rewritten(graph, "mul-into-weight")), in_onnxruntime)


def test_external_weights_that_are_carried_through_move_with_the_model(tmp_path):
    """External weights move with the model: a default of an input, and tensors of Constant nodes also in subgraphs."""
    text = """g (float[2,2] x, bool c, float[2,2] w) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> {
        k = Constant <value = float[2,2] {1, 2, 3, 4}> () a = Add(x, k)
        y = If (c) <then_branch = t () => (float[2,2] u) { l = Constant <value = float[2,2] {1, 2, 3, 4}> ()
                                                               u = Add(a, l) },
                    else_branch = e () => (float[2,2] v) { v = Add(a, w) }> }"""
    before, outside = model(text), model(text)
    inner = outside.graph.node[2].attribute[0].g.node[0].attribute[0].t
    for tensor in (outside.graph.initializer[0], outside.graph.node[0].attribute[0].t, inner):
        (tmp_path / "w.bin").write_bytes(numpy_helper.to_array(tensor).tobytes())
        tensor.ClearField("float_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.bin")
    (tmp_path / "m.onnx").write_bytes(outside.SerializeToString())
    after = to_model(load_graph(tmp_path / "m.onnx"))
    for branch in (True, False):
        assert_equal(before, after, in_onnxruntime, {"c": np.array(branch)})


def test_large_models_are_written_with_external_weights(tmp_path, monkeypatch):
    weights = [numpy_helper.from_array(np.full((16, 32), k, np.float32), f"w{k}") for k in range(3)]
    before = model("g (float[16,32] x) => (float[16,32] y) { a = Add(x, w0) b = Add(a, w1) y = Add(b, w2) }")
    before.graph.initializer.extend(weights)
    monkeypatch.setattr(onnx_writer, "EXTERNAL_DATA_THRESHOLD", 1000)
    save_graph(load_graph(before), tmp_path / "big.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.onnx", "big.onnx.data"]
    assert (tmp_path / "big.onnx.data").stat().st_size == 3 * 16 * 32 * 4
    assert (tmp_path / "big.onnx").stat().st_size < 1000
    onnx.checker.check_model(str(tmp_path / "big.onnx"), full_check=True)
    assert_equal(before, onnx.load(tmp_path / "big.onnx"), in_onnxruntime)
    assert load_graph(tmp_path / "big.onnx").hash == load_graph(before).hash


def test_bad_files_are_named(tmp_path):
    good = model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }").SerializeToString()
    path = tmp_path / "m.onnx"
    with pytest.raises(RLFlowError, match=f"no such file: {path}"):
        load_graph(path)
    for content in (b"", b"hello, this is no model\n" * 9, bytes(range(256)), good[: len(good) // 2], good[:-1]):
        path.write_bytes(content)
        with pytest.raises(RLFlowError, match="is not an ONNX file|the ONNX checker refuses"):
            load_graph(path)


def test_missing_weights_are_named(tmp_path):
    with_external_weights(tmp_path)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(RLFlowError, match="w.bin"):
        load_graph(tmp_path / "m.onnx")


def test_truncated_weights_are_named(tmp_path):
    with_external_weights(tmp_path)
    (tmp_path / "w.bin").write_bytes(b"1234")
    with pytest.raises(RLFlowError, match="'w'"):
        load_graph(tmp_path / "m.onnx")


@pytest.mark.parametrize("location", ["../w.bin", "sub/../../w.bin"])
def test_weights_outside_the_folder_are_refused(location, tmp_path):
    folder = tmp_path / "inner"
    (folder / "sub").mkdir(parents=True)
    with_external_weights(folder, location)
    with pytest.raises(RLFlowError, match="w.bin"):
        load_graph(folder / "m.onnx")
    unnamed = onnx.load(folder / "m.onnx", load_external_data=False)
    unnamed.graph.name = ""  # the checker, which would refuse the location, does not see the file of a repaired model
    (folder / "m.onnx").write_bytes(unnamed.SerializeToString())
    for function in (load_graph, model_files, file_bytes):
        with pytest.raises(RLFlowError, match="w.bin"):
            function(folder / "m.onnx")


def test_functions_that_call_each_other_in_a_long_chain_are_refused():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[2] x) => (float[2] y) { y = f.f0 (x) }'
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("f", 1)]
    for k in range(1000):
        op, domain = (f"f{k + 1}", "f") if k < 999 else ("Relu", "")
        node = onnx.helper.make_node(op, ["a"], ["b"], domain=domain)
        model.functions.append(onnx.helper.make_function("f", f"f{k}", ["a"], ["b"], [node], opsets))
    with pytest.raises(RLFlowError, match="nested deeper than"):
        check_expansion(model)


REFUSED = {
    "a name twice": "g (float[2] x) => (float[2] y) { a = Neg(x) a = Abs(x) y = Neg(a) }",
    "a cycle": "g (float[2] x) => (float[2] y) { a = Add(x, b) b = Neg(a) y = Neg(b) }",
    "an undefined tensor": "g (float[2] x) => (float[2] y) { y = Add(x, b) }",
    "an unknown operator": "g (float[2] x) => (float[2] y) { y = Gelato(x) }",
    "an undefined output": "g (float[2] x) => (float[2] y) { z = Neg(x) }",
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("as_file", [True, False])
def test_a_model_that_the_checker_refuses_is_refused(name, as_file, tmp_path):
    bad = model(REFUSED[name])
    (tmp_path / "m.onnx").write_bytes(bad.SerializeToString())
    with pytest.raises(RLFlowError, match="the ONNX checker refuses"):
        load_graph(tmp_path / "m.onnx" if as_file else bad)


def test_an_input_without_a_rank_is_refused():
    bad = model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    bad.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(RLFlowError, match="input 'x' has no declared rank. .* --shape x=1x128 --fix"):
        load_graph(bad)
