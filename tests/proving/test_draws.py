"""Check that the cases of a rule draw every operator and attribute of the shipped rules, with ONNX's defaults."""

import onnx
import pytest
from onnx import helper

from rlflow.graph import contrib
from rlflow.proving import draws
from rlflow.proving.draws import REST, counts_of, coverage, cut_axes, demanded, ranks_of, sets_of_axes
from rlflow.proving.semantics import MICROSOFT, STANDARD, is_defined
from rlflow.rules.language import families, load_rules, parse
from tests.suite import check_each

RULES = {rule.name: rule for rule in load_rules(families())}
# Attributes that no case draws: they do not change the numbers, or the matcher removes them, or a definition
# requires their default (and `coverage` says so).
NOT_DRAWN = {
    ("Conv", "kernel_shape"), ("ConvTranspose", "kernel_shape"), ("FusedConv", "kernel_shape"), ("Cast", "saturate"),
    ("Cast", "round_mode"), ("LayerNormalization", "stash_type"), ("RMSNormalization", "stash_type"),
    ("GroupNormalization", "stash_type"),
    ("MaxPool", "storage_order"),
    ("BatchNormalization", "momentum"), ("BatchNormalization", "training_mode"), ("Split", "num_outputs"),
    ("FusedConv", "activation_params"), ("FusedGemm", "activation_alpha"), ("FusedGemm", "activation_beta"),
    ("FusedGemm", "activation_gamma"), ("FusedMatMul", "transBatchA"), ("FusedMatMul", "transBatchB"),
    ("MultiHeadAttention", "unidirectional"), ("MultiHeadAttention", "mask_filter_value"),
    *(("Attention", name) for name in (
        "is_causal", "softcap", "softmax_precision", "qk_matmul_output_mode", "q_num_heads", "kv_num_heads",
        "left_window_size", "right_window_size",
    )),
    ("SpaceToDepth", "mode"),
    *(("Resize", name) for name in (
        "axes", "antialias", "keep_aspect_ratio_policy", "exclude_outside", "cubic_coeff_a", "extrapolation_value",
    )),
}  # fmt: skip


def schema_of(op: str) -> onnx.defs.OpSchema:
    """Return the ONNX schema of an operator; of DFT the last one whose axis is an attribute."""
    if op == "DFT":
        return onnx.defs.get_schema(op, 17)
    return onnx.defs.get_schema(op, "" if op in STANDARD else "com.microsoft")


def operators_are_defined_and_drawn(rule) -> None:
    for op in (*rule.ops, *rule.target_ops):
        assert is_defined(op.op, op.domain), op.op
    for op in rule.ops:
        drawn = set(REST.get(op.op, {})) | {attribute for attribute, _ in op.attributes}
        if op.rest is not None:
            carried = {attribute for attribute in schema_of(op.op).attributes if (op.op, attribute) not in NOT_DRAWN}
            assert carried <= drawn or op.op == "Dropout", f"{op.op}: {carried - drawn}"


def test_every_operator_of_a_shipped_rule_is_defined_and_drawn():
    check_each(operators_are_defined_and_drawn, RULES.values(), name=lambda rule: rule.name)


def has_the_declared_defaults(op: str) -> None:
    declared = schema_of(op).attributes
    for name, (kind, default) in REST[op].items():
        value = declared[name].default_value
        wanted = helper.get_attribute_value(value) if value.name else None
        if kind == "pick" and name != "to":
            assert default[0] == wanted, name
        elif wanted is not None:
            assert default == pytest.approx(wanted), name
    named = {name for name in declared if (op, name) not in NOT_DRAWN}
    assert named == set(REST[op]), "an attribute of the operator is not drawn, or is no attribute of it"


def test_drawn_operators_have_their_declared_defaults():
    check_each(has_the_declared_defaults, sorted(op for op in REST if op in STANDARD or op in contrib.OPERATORS))


def test_ranks_that_a_rule_asks_for_are_drawn():
    assert demanded(RULES["attention"]) == ()
    (rule,) = parse(
        "six: six axes\n  Transpose(x, perm=(0, 1, 3, 2, 4, 5)) => x\n  if dim(x, 3) == 1 and dim(x, 2) == 1\n", "new"
    )
    assert ranks_of(rule, [("Transpose", 0)])[-1] == 6
    (rule,) = parse("conv: three axes\n  Conv(x, w) => Conv(x, w)\n  if rank(x) == 5\n", "new")
    assert ranks_of(rule, [("Conv", 0)]) == (*draws.SPATIAL, 5) and "one, two or three axes" in coverage(rule)
    (rule,) = parse("conv: no rank\n  Conv(x, w) => Conv(x, w)\n  if rank(x) == 4\n", "new")
    assert ranks_of(rule, [("Conv", 0)]) == draws.SPATIAL and "one or two axes" in coverage(rule)


def test_a_starred_operand_stands_for_every_number_of_inputs():
    (rule,) = parse("slice: all of it\n  Slice(x, *s) => x\n", "new")
    assert counts_of(rule, rule.ops[0]) == (2, 3, 4)
    (rule,) = parse("expand: all of it\n  Expand(x, *s) => x\n", "new")
    assert counts_of(rule, rule.ops[0]) == (1,)


def test_drawn_axes_contain_no_axis_twice():
    for rank in range(5):
        for axes in (*sets_of_axes(rank), *cut_axes(rank, 2)):
            assert len({k % rank for k in axes}) == len(axes)
        assert {frozenset(k % rank for k in axes) for axes in sets_of_axes(rank)} >= {
            frozenset({k}) for k in range(rank)
        }


def test_the_coverage_text_states_what_is_left_out():
    assert "cuts of at most 2 axes" in coverage(RULES["slice-of-relu"])
    assert "three parts" in coverage(RULES["concat-of-split"])
    (rule,) = parse(
        "six: six axes\n  Transpose(x, perm=(0, 1, 3, 2, 4, 5)) => x\n  if dim(x, 3) == 1 and dim(x, 2) == 1\n", "new"
    )
    assert "ranks to 4 and 6" in coverage(rule)
    assert MICROSOFT.keys() - REST.keys() <= {"BiasGelu", "FastGelu"}
