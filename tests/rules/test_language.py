"""Test the text format of rules: its meaning, and its messages about mistakes."""

import ast
import re

import onnx
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.expressions import Tensor, compile_expression
from rlflow.rules.language import ONLY_BY_NAME, families, load_rules, parse
from rlflow.rules.patterns import Literal, Output
from tests.suite import at_night

MISTAKES = [
    # The text, and the required message.
    ("a: why\n  Relu(x) => Relu(y)", "rule a: 'y' does not occur on the side that is matched"),
    ("a: why\n  Relu(x) => Conv(x, x, **a)", "rule a: 'a' does not occur"),
    ("a: why\n  Relu(x) => Transpose(x, perm=p)", "rule a: 'p' does not occur"),
    ("a: why\n  Relu(x) => x\n  if konstant(x)", "rule a: 'konstant(x)' is not part of the rule language"),
    ("a: why\n  Conv(x, w, strides=s) => Reshape(x, s)", "rule a: 's' is an attribute; as a tensor write [*…]"),
    ("a: why\n  Relu(x) => x\n  if rank(y) == 2", "rule a: 'y' does not occur"),
    ("a: why\n  Relu(x) => x\n  let k = rank(y)\n  if k == 2", "rule a: 'y' does not occur"),
    ("a: why\n  Relu(x) => Reshape(x, [dim(y, 0)])", "rule a: 'y' does not occur"),
    ("a: why\n  Relu(x)", "rule a: no '=>' in its equation"),
    ("a: why", "rule a: no '=>' in its equation"),
    ("a: why\n  Relu(x => x", "rule a: cannot read 'Relu(x'"),
    ("a: why\n  Relu(x) => x\n  if rank(x ==", "rule a: cannot read 'if rank(x =='"),
    ("a: why\n  x => Relu(x)", "rule a: the side to match is a bare tensor"),
    ("a: why\n  Relu(x) <=> x", "rule a-inverse: the side to match is a bare tensor; write '=>' instead of '<=>'"),
    ("a: why\n  y = Relu(x) => z = x", "rule a: the two sides do not give the same outputs"),
    ("a: why\n  relu(x) => x", "rule a: 'relu(x)' is not part of the rule language"),
    ("a: why\n  y1 = Relu(x)\n  y2 = Relu(z)\n    => y1 = Neg(x)\n       y2 = Neg(z)",
     "rule a: every tensor that is not constant must occur under each output"),
    ("a: why\n  y1 = MatMul(x, w)\n  y2 = MatMul(x, u)\n    => y1, y2 = Split(MatMul(x, Concat(w, u, axis=1)), axis=1)",
     "rule a: every tensor that is not constant must occur under each output"),
    ("A b: why\n  Relu(x) => x", "t.rules: 'A b: why' does not begin a rule (name: why)"),
    ("  Relu(x) => x", "t.rules: an indented line before the first rule"),
    ("a: why\n  amazon.Relu(x) => x", "rule a: 'amazon.Relu' is not an operator that rules can use"),
]  # fmt: skip


@pytest.mark.parametrize("text, message", MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_in_a_rule_file_is_reported(text, message):
    with pytest.raises(RLFlowError) as error:
        parse(text, "t")
    assert str(error.value).startswith(message)


def test_two_rules_of_one_name_are_refused(tmp_path):
    (tmp_path / "a.rules").write_text("same: why\n  Relu(Relu(x)) => Relu(x)\n")
    (tmp_path / "b.rules").write_text("same: why\n  Neg(Neg(x)) => x\n")
    with pytest.raises(RLFlowError, match="two rules are named 'same'"):
        load_rules(folder=tmp_path)


def test_an_unknown_family_or_rule_is_refused():
    with pytest.raises(RLFlowError, match="unknown rule family 'convulsion'; known: algebra, attention, channels, "):
        load_rules(["convulsion"])
    with pytest.raises(RLFlowError, match="no rule is named 'relu-rule'"):
        load_rules().index("relu-rule")


FORBIDDEN = [
    "x.graph", "().__class__", "__import__('os')", "lambda: 1", "(lambda x: x)(1)", "open('f')",
    "eval('1')", "exec('1')",
    "[x for x in y if z.w]", "{1: 2}", "{1, 2}", "f'{x}'", "(y := 1)", "getattr(x, 'y')", "x @ y",
    "await x", "1 if x.y else 2",
    "shape(*x)", "shape(**x)", "[a for a in b for c in d]", "2 ** 999999999", "'a' % x.y",
]  # fmt: skip


@pytest.mark.parametrize("text", FORBIDDEN)
def test_expressions_cannot_run_code(text):
    with pytest.raises(RLFlowError, match="is not part of the rule language"):
        compile_expression(ast.parse(text, mode="eval").body, "rule a")


COMPUTED = [
    ("[1, *t, 2 + 3 * 4]", (1, 7, 8, 14)), ("t[0] - t[-1]", -1), ("t[1:]", (8,)),
    ("-1 in t or not t", False), ("7 // 2 % 2", 1),
    ("tuple(i + 1 for i in t if i > 7)", (9,)), ("1 if t is None else 2", 2),
    ("len(t) < 3 <= max(t)", True), ("'text'", b"text"),
    ("compose((1, 2, 0), (0, 2, 1))", (1, 0, 2)), ("inverse((1, 2, 0))", (2, 0, 1)), ("prod(t)", 56),
    ("all(i > 7 for i in t)", False),
]  # fmt: skip


@pytest.mark.parametrize("text, value", COMPUTED)
def test_expressions_compute(text, value):
    assert compile_expression(ast.parse(text, mode="eval").body, "rule a")({"t": (7, 8)}) == value


def test_a_rule_keeps_its_parts_and_prints_its_equation_and_condition():
    equation = "y1 = com.microsoft.QuickGelu(x)\n    => y1 = Mul(x, Neg(x))"
    rule = parse(f'a: why\n  {equation}\n  if rank(x) > 1 else "too flat"  # a remark\n', "t")[0]
    assert (rule.name, rule.family, rule.why) == ("a", "t", "why")
    assert [condition.reason for condition in rule.conditions] == ["too flat"]
    assert rule.text == 'a:\n  y1 = com.microsoft.QuickGelu(x) => y1 = Mul(x, Neg(x))\n  if rank(x) > 1 else "too flat"'


def plain(pattern):
    """Return a pattern as nested tuples without the numbers of operators; a list compares by its elements."""
    match pattern:
        case Output(op, slot):
            return slot, op.domain, op.op, *map(plain, op.inputs), [(n, plain(v)) for n, v in op.attributes], op.rest
        case Literal(text=text):
            return text
    return pattern


def test_a_printed_rule_means_the_same_if_it_is_read_again():
    """A canonical text with another output than the first, such as `Split(x, s).1`, cannot be read by `parse`."""
    rules = [rule for rule in load_rules(families()) if not re.search(r"\)\.[\d*]", rule.text)]
    assert len(rules) > 500
    for rule in rules[:: at_night(1, 5)]:
        (again,) = parse(rule.text, rule.family)
        for one, other in zip((*rule.source, *rule.target), (*again.source, *again.target), strict=True):
            assert (one[0], plain(one[1])) == (other[0], plain(other[1])), rule.text
        reasons = [[condition.reason for condition in each.conditions] for each in (rule, again)]
        assert reasons[0] == reasons[1] and rule.text == again.text
        assert [name for name, _ in rule.lets] == [name for name, _ in again.lets]


def test_the_hash_follows_the_text_of_the_rules(tmp_path):
    hashes = set()
    for text in ("Relu(Relu(x)) => Relu(x)", "Relu(Relu(x)) => Relu(x)  # a remark", "Neg(Neg(x)) => x"):
        (tmp_path / "a.rules").write_text(f"a: why\n  {text}\n")
        hashes.add(load_rules(folder=tmp_path).hash)
    assert len(hashes) == 2
    usual = [family for family in families() if family not in ONLY_BY_NAME]
    assert load_rules().hash == load_rules(usual).hash != load_rules(families()).hash


def test_directions_have_their_own_conditions():
    clauses = ['if rank(x) > 0 else "both"']
    clauses += ['forward if rank(x) > 1 else "there"', 'backward if rank(x) > 2 else "back"']
    there, back = parse("\n  ".join(["a: why", "Neg(x) <=> Abs(x)", *clauses]), "t")
    assert (there.name, [c.reason for c in there.conditions]) == ("a", ["both", "there"])
    assert (back.name, [c.reason for c in back.conditions]) == ("a-inverse", ["both", "back"])
    assert there.ops[0].op == back.target_ops[0].op == "Neg"


def test_a_rule_for_several_operators_becomes_one_rule_each():
    text = "twice-Op: why\n  Op(Op(x)) => Op(x)\n  for Op in Relu, Neg\nonce: why\n  Abs(Abs(x)) => Abs(x)\n"
    rules = parse(text, "t")
    assert [rule.name for rule in rules] == ["twice-relu", "twice-neg", "once"]
    assert [[op.op for op in rule.ops] for rule in rules] == [["Relu"] * 2, ["Neg"] * 2, ["Abs"] * 2]


def test_axes_and_shapes_in_expressions_follow_onnx():
    text = """(double[2,3,4] x) => (double[6,4] y)
              <int64[2] s = {0, -1}, int64[2] t = {-1, 0}, int64[0] n = {}, int64[2] r = {-1, 4}>
              { a = Reshape(x, r) b = Reshape(x, s) c = ReduceSum(x, t) d = ReduceSum(x, n) y = Identity(a) }"""
    graph = load_graph(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 20]> g {text}'))
    names = {name: Tensor(graph, tensor) for tensor, name in graph.interface.names.items()}
    result = [
        compile_expression(ast.parse(text, mode="eval").body, "rule a")(names)
        for text in ("reshaped(x, r)", "axes(r, 5)", "axes(r, 0)", "dtype(x)")
    ]
    assert result == [(6, 4), (4,), (), 11]
