"""Test operators of ONNX Runtime's own domain: their shape inference, and rewrites that add or remove them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, checker, parser, shape_inference

from rlflow.cli.command import open_run
from rlflow.cli.main import make_parser
from rlflow.cli.optimise import chosen_options
from rlflow.common.errors import RLFlowError
from rlflow.costs import graph_cost
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.profiled import ProfiledCost
from rlflow.env.features import OPS, OTHER_OP
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.graph import contrib
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.ir import TensorType
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import has_kernel, run, session
from rlflow.graph.onnx_writer import save_graph, to_model
from rlflow.optimisation.receipt import make_receipt, replay
from rlflow.rules.apply import apply
from rlflow.rules.explain import explain_rules
from rlflow.rules.language import RuleSet, load_rules, only_standard, parse
from rlflow.rules.locations import explain

RULES = load_rules(["fused"])


def model(text: str, domains: str = "", opset: int = 17) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}{domains}]> g {text}')


def of_runtime(text: str) -> onnx.ModelProto:
    return model(text, ', "com.microsoft": 1')


def after(source: onnx.ModelProto, *names: str):
    """Return the graph after the named rules, each applied at its first location."""
    graph = load_graph(source)
    for name in names:
        graph = apply(graph, RULES[RULES.index(name)], explain(graph, RULES, name)[0][0])
    return graph


PRODUCT = "(float[2,3] x, float[4,3] w) => (float[2,4] y) { t = Transpose <perm = [1, 0]> (w) y = MatMul(x, t) }"


def test_a_rewrite_adds_and_removes_the_import_of_the_runtime_domain(tmp_path):
    source = model(PRODUCT)
    fused = after(source, "fused-matmul-second")
    save_graph(fused, tmp_path / "fused.onnx")
    written = onnx.load(tmp_path / "fused.onnx")
    checker.check_model(written, full_check=True)
    assert {o.domain: o.version for o in written.opset_import} == {"": 17, "com.microsoft": 1}
    again = load_graph(tmp_path / "fused.onnx")
    assert again.hash == fused.hash and to_model(again) == written
    feeds = random_inputs(source, 0)
    for wanted, result in zip(*(run(session(m, 1, optimise=False), feeds) for m in (source, written)), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-6)
    apart = after(source, "fused-matmul-second", "fused-matmul-second-inverse")
    assert apart.hash == load_graph(source).hash
    assert {o.domain for o in to_model(apart).opset_import} == {""}


def test_an_unused_import_of_a_model_is_kept():
    source = of_runtime("(float[2] x) => (float[2] y) { y = Relu(x) }")
    assert {o.domain for o in to_model(load_graph(source)).opset_import} == {"", "com.microsoft"}
    assert load_graph(source).hash == load_graph(model("(float[2] x) => (float[2] y) { y = Relu(x) }")).hash


def test_a_receipt_replays_whether_or_not_other_domains_are_allowed():
    source = model("(float[2,3] x, float[3,4] w) => (float[2,4] y) { a = MatMul(x, w) b = Identity(a) y = Relu(b) }")
    every = load_rules()
    standard = only_standard(every)
    assert len(standard) < len(every) and standard.hash == every.hash
    assert not any(op.domain for rule in standard for op in rule.target_ops)
    graph, name = load_graph(source), "identity"
    result = apply(graph, every[every.index(name)], explain(graph, every, name)[0][0])
    receipt = make_receipt(graph, standard, [], [(standard.index(name), 0)], result, {})
    assert replay(receipt, source).hash == result.hash


def test_the_standard_operators_switch_leaves_out_rules_that_introduce_another_domain(tmp_path):
    tasks = [
        EnvSpec("tiny_bert_base", cost="analytic", standard_operators_only=only).make_task() for only in (True, False)
    ]
    introducing = [{rule.name for rule in task.rules if any(op.domain for op in rule.target_ops)} for task in tasks]
    assert not introducing[0] and "bias-gelu" in introducing[1]
    assert {rule.name for rule in tasks[0].rules} == {rule.name for rule in tasks[1].rules} - introducing[1]
    parsed = make_parser().parse_args(["optimise", "tiny_bert_base", "--out", "x.onnx", "--standard-operators-only"])
    parsed.overrides = []
    with open_run(parsed, tmp_path / "run", chosen_options(parsed)) as run_folder:
        assert run_folder.spec.standard_operators_only


@pytest.mark.parametrize(
    "inputs, fires", [("q, q, q, , , m", True), ("q, q, q, b, , m", False), ("q, q, q, , p, m", False)]
)
def test_an_omitted_input_matches_only_none(inputs, fires):
    graph = load_graph(of_runtime(
        "(float[2,3,8] q, float[24] b, int32[2,3] p, float[1,1,3,3] m) => (float[2,3,8] y) "
        f"{{ y = com.microsoft.MultiHeadAttention <num_heads = 2, scale = 0.5> ({inputs}) }}"
    ))  # fmt: skip
    masked = (
        "masked: a summand\n"
        "  com.microsoft.MultiHeadAttention(a, b, c, None, None, m, num_heads=n, scale=f) => Add(a, b)\n"
    )
    assert len(explain(graph, RuleSet(tuple(parse(masked, "new"))), "masked")[0]) == fires
    assert not explain(graph, load_rules(["attention"]), "attention-apart")[0]


# -- what onnx knows ------------------------------------------------------------------------------


def test_the_schemas_equal_the_schemas_of_onnxruntime():
    from onnxruntime.capi._pybind_state import get_all_operator_schema

    theirs = {s.name: s for s in get_all_operator_schema() if s.domain == contrib.DOMAIN}
    for name in contrib.OPERATORS:
        ours, other = onnx.defs.get_schema(name, 1, contrib.DOMAIN), theirs[name]
        for one, two in ((ours.inputs, other.inputs), (ours.outputs, other.outputs)):
            assert [p.name for p in one] == [p.name for p in two]
            assert [p.option.name for p in one] == [p.option.name for p in two]
        assert ours.attributes.keys() == other.attributes.keys()
        for key, attribute in ours.attributes.items():
            default = onnx.AttributeProto.FromString(other.attributes[key]._default_value)
            assert attribute.default_value.SerializeToString() == default.SerializeToString(), (name, key)
            assert attribute.required == other.attributes[key].required


TYPES = {
    "FusedMatMul": ("(float[5,3,2] a, float[4,3] b)", "<transA = 1, transB = 1> (a, b)", [5, 2, 4]),
    "FusedMatMul of vectors": ("(float[3] a, float[5,4,3] b)", "<transA = 1, transB = 1> (a, b)", [5, 4]),
    "FusedGemm": ("(float[3,2] a, float[4,3] b)", '<transA = 1, transB = 1, activation = "Relu"> (a, b)', [2, 4]),
    "FusedConv": (
        "(float[1,4,5,5] a, float[6,2,3,3] b)",
        '<group = 2, strides = [2, 2], activation = "Relu"> (a, b)',
        [1, 6, 2, 2],
    ),
    "BiasGelu": ("(float[2,3] a, float[3] b)", "(a, b)", [2, 3]),
    "QuickGelu": ("(float[2,3] a)", "(a)", [2, 3]),
    "SkipLayerNormalization": ("(float[2,3,4] a, float[4] b)", "(a, a, b)", [2, 3, 4]),
    "MultiHeadAttention": ("(float[2,3,8] a, float[2,5,6] b, float[2,5,8] c)", "<num_heads = 2> (a, c, b)", [2, 3, 6]),
}


@pytest.mark.parametrize("name", TYPES)
def test_inferred_types_equal_the_types_that_onnxruntime_computes(name):
    inputs, call, shape = TYPES[name]
    source = of_runtime(f"{inputs} => (float{shape} y) {{ y = com.microsoft.{name.split()[0]} {call} }}")
    graph = load_graph(source)
    assert graph.types[graph.outputs[0]] == TensorType(TensorProto.FLOAT, tuple(shape))
    assert run(session(source, 1), random_inputs(source, 0))[0].shape == tuple(shape)


MISFITS = {
    "FusedMatMul": ("(float[2,3] a, float[4,3] b)", "(a, b)"),
    "FusedConv": (
        "(float[1,4,5,5] a, float[6,4,3,3] b, float[6] c, float[6,1,1] d)",
        '<activation = "Relu"> (a, b, c, d)',
    ),
    "MultiHeadAttention": ("(float[2,3,8] a, float[2,5,8] b)", "<num_heads = 3> (a, b, b)"),
    "MultiHeadAttention of two batches": ("(float[2,3,8] a, float[1,5,8] b)", "<num_heads = 2> (a, b, b)"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_inputs_that_do_not_fit_an_operator_are_refused_in_one_line(name):
    inputs, call = MISFITS[name]
    source = of_runtime(f"{inputs} => (float[N] y) {{ y = com.microsoft.{name.split()[0]} {call} }}")
    with pytest.raises(RLFlowError, match="shape inference fails") as caught:
        load_graph(source)
    assert "\n" not in str(caught.value)


def test_a_model_function_with_the_name_of_a_runtime_operator_is_refused():
    text = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[3] x) => (float[3] y) { y = com.microsoft.QuickGelu(x) }
        <domain: "com.microsoft", opset_import: ["": 17]> QuickGelu (x) => (y) { y = Neg(x) }"""
    with pytest.raises(RLFlowError, match="its own function com.microsoft.QuickGelu"):
        load_graph(parser.parse_model(text))


def test_an_operator_without_an_inferred_shape_is_carried_through():
    """The shape of attention is unknown if keys and values have an axis of heads; the operator is carried through."""
    source = of_runtime(
        "(float[2,3,8] q, float[2,2,5,4] k) => (float[2,3,8] y) "
        "{ a = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, k) y = Relu(a) }"
    )
    graph = load_graph(source)
    assert {node.op for node in graph.nodes.values()} == {"MultiHeadAttention", "Relu"}
    feeds = random_inputs(source, 0)
    wanted, result = (run(session(m, 1), feeds)[0] for m in (source, to_model(graph)))
    np.testing.assert_array_equal(wanted, result)


def test_shape_inference_continues_behind_runtime_operators():
    source = of_runtime(
        "(float[2,3] x, float[3,4] w) => (float[N,M] y) { a = com.microsoft.FusedMatMul(x, w) y = Relu(a) }"
    )
    assert shape_inference.infer_shapes(source).graph.value_info[0].type.tensor_type.shape.dim[1].dim_value == 4


# -- kernels ---------------------------------------------------------------------------------------

CALLS = {
    "float32": (True, "(float[2,3] x, float[3,4] w) => (float[2,4] y)", "com.microsoft.FusedMatMul (x, w)"),
    "float64": (True, "(double[2,3] x, double[3,4] w) => (double[2,4] y)", "com.microsoft.FusedMatMul (x, w)"),
    "casts": (False, "(float16[2,3] x, float16[3,4] w) => (float16[2,4] y)", "com.microsoft.FusedMatMul (x, w)"),
    "an attribute": (
        True,
        "(float[1,4,5] x, float[6,4,3] w) => (float[1,6,3] y)",
        'com.microsoft.FusedConv <activation = "Relu"> (x, w)',
    ),
    "another one": (
        False,
        "(float[1,4,5] x, float[6,4,3] w) => (float[1,6,3] y)",
        'com.microsoft.FusedConv <activation = "Fancy"> (x, w)',
    ),
    "a standard operator": (False, "(double[2] x) => (double[2] y)", "HardSwish (x)"),
    "what was an attribute": (True, "(double[2,3] x) => (double[2,1] y)", "ReduceMax <axes = [1]> (x)"),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_existence_of_a_kernel_depends_on_types_and_attributes(name):
    there, interface, call = CALLS[name]
    graph = load_graph(of_runtime(f"{interface} {{ y = {call} }}"))
    (node,) = graph.nodes.values()
    assert has_kernel(graph, node, graph.types.get, lambda tensor: graph.constants[tensor].load()) is there


def test_a_rule_without_a_kernel_never_fires_and_says_why(monkeypatch):
    graph = load_graph(model(PRODUCT))
    monkeypatch.setattr("rlflow.graph.onnx_runtime.has_kernel", lambda *_: False)
    entry = explain_rules(graph, RULES, ["fused-matmul-second"])[0]
    assert not entry["locations"]
    assert entry["nearest_miss"]["reason"].startswith("the installed ONNX Runtime has no com.microsoft.FusedMatMul")


# -- costs and features ----------------------------------------------------------------------------


def test_costs_count_the_work_of_runtime_operators(tmp_path):
    fused = load_graph(of_runtime(f"{TYPES['MultiHeadAttention'][0]} => (float[2,3,6] y) "
                                  "{ y = com.microsoft.MultiHeadAttention <num_heads = 2> (a, c, b) }"))
    assert graph_cost(AnalyticCost(), fused).flops == 2 * (2 * 3 * 5 * 8) + 5 * (2 * 2 * 3 * 5) + 2 * (2 * 3 * 5 * 6)
    profiled = ProfiledCost(tmp_path / "costs.sqlite", budget_ms=1)
    for source in (fused, after(model(PRODUCT), "fused-matmul-second")):
        assert graph_cost(profiled, source).launches == 1
    assert profiled.fallbacks == {}


def test_features_distinguish_the_runtime_operators():
    numbers = {OPS[contrib.DOMAIN, name] for name in contrib.OPERATORS} | {
        OPS["", "Attention"],
        OPS["", "RMSNormalization"],
    }
    assert len(numbers) == len(contrib.OPERATORS) + 2 and max(OPS.values()) < OTHER_OP


def test_sizes_with_different_names_are_accepted_and_different_numbers_are_refused():
    """Sizes of different names do not contradict each other, but different numbers do.

    ONNX's inference makes up a name for each unnamed size, and a model may use two names for one size.
    """
    call = "y = com.microsoft.MultiHeadAttention <num_heads = 2> (a, b, c)"
    interface = "(float[2,N,8] a, float[2,N,8] b, float[2,M,8] c) => (float[2,K,8] y)"
    checker.check_model(of_runtime(f"{interface} {{ {call} }}"), full_check=True)
    wrong = interface.replace("M", "3").replace("N,8] b", "4,8] b")
    with pytest.raises(shape_inference.InferenceError, match="do not agree"):
        checker.check_model(of_runtime(f"{wrong} {{ {call} }}"), full_check=True)
