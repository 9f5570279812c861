"""Test the selection of rules: no rule twice, no rule without a proof, and clear names and reasons."""

from collections import Counter

import pytest

from rlflow.proving.generator.operators import Named, Node, Pattern, label
from rlflow.proving.generator.selection import FAMILY, canonical_equation, write
from rlflow.proving.generator.text import names_of, why
from rlflow.rules.language import load_rules, parse
from rlflow.rules.rule import RuleSet

RULES = load_rules()
ADD, MATMUL, RELU = label("Add"), label("MatMul"), label("Relu")
CONCAT = label("Concat", axis=Named("i"))


def add(*terms):
    return Node(ADD, terms)


def matmul(*terms):
    return Node(MATMUL, terms)


def concat(*terms):
    return Node(CONCAT, terms)


def test_no_generated_rule_occurs_twice():
    forms = [canonical_equation(rule) for rule in RULES if rule.family == FAMILY]
    assert len(set(forms)) == len(forms) > 0
    assert not set(forms) & {canonical_equation(rule) for rule in RULES if rule.family != FAMILY}


SAME = [
    ("Add(MatMul(x, y), MatMul(x, z)) => MatMul(x, Add(y, z))",
        "Add(MatMul(a, c), MatMul(a, b)) => MatMul(a, Add(c, b))", True),
    ("Add(x, Add(y, z)) => Add(y, Add(z, x))", "Add(Add(x, c), y) => Add(Add(x, y), c)", True),
    ("Concat(Relu(x), Relu(y), axis=i) => Relu(Concat(x, y, axis=i))",
     "Concat(*l, Relu(a), Relu(b), *r, axis=1) => Concat(*l, Relu(Concat(a, b, axis=1)), *r, axis=1)", True),
    ("MatMul(MatMul(x, y), z) => MatMul(x, MatMul(y, z))", "MatMul(x, MatMul(y, z)) => MatMul(MatMul(x, y), z)", False),
    ("MatMul(x, Add(y, z)) => Add(MatMul(x, y), MatMul(x, z))",
        "MatMul(Add(y, z), x) => Add(MatMul(y, x), MatMul(z, x))", False),
]  # fmt: skip


@pytest.mark.parametrize("one, other, same", SAME)
def test_equations_that_differ_only_in_letters_have_one_canonical_form(one, other, same):
    rules = [parse(f"some-name: why\n  {text}", "family")[0] for text in (one, other)]
    assert (canonical_equation(rules[0]) == canonical_equation(rules[1])) is same


@pytest.mark.nightly
def test_a_refuted_rule_is_dropped_or_gets_a_stricter_condition():
    joined = Pattern(
        (concat(add("x", "y"), add("z", "w")),), (add(concat("x", "z"), concat("y", "w")),),
        stricter=(("shape(x) == shape(y)",),),
    )  # fmt: skip
    wrong = Pattern((Node(RELU, (add("x", "y"),)),), (add(Node(RELU, ("x",)), Node(RELU, ("y",))),))
    reasons = Counter()
    text = write([joined, wrong], RuleSet(()), reasons)
    assert reasons == {"refuted": 1}
    assert [rule.name for rule in parse(text, FAMILY)] == ["concat-of-sums"]
    assert 'if shape(x) == shape(y) else "the operands have different shapes"' in text


def test_a_rule_that_a_family_already_has_is_named_and_not_written():
    reasons = Counter()
    known = RuleSet(tuple(parse("by-hand: why\n  Add(MatMul(x, y), MatMul(x, z)) => MatMul(x, Add(y, z))", "family")))
    text = write([Pattern((add(matmul("x", "y"), matmul("x", "z")),), (matmul("x", add("y", "z")),))], known, reasons)
    assert reasons == {"written by hand": 1} and "by-hand (family.rules)" in text and not parse(text, FAMILY)


WORDS = [
    ((add(matmul("x", "y"), matmul("x", "z")),), (matmul("x", add("y", "z")),),
     "sum-of-matmuls-sharing-left", "two MatMuls become one"),
    ((matmul("x", add("y", "z")),), (add(matmul("x", "y"), matmul("x", "z")),), "matmul-by-sum",
        "a MatMul becomes two"),
    ((Node(RELU, (Node(RELU, ("x",)),)),), (Node(RELU, ("x",)),), "relu-of-relu", "two Relus become one"),
    ((Node(RELU, (concat("x", "y"),)),), (concat(Node(RELU, ("x",)), Node(RELU, ("y",))),), "relu-of-concat",
        "a Relu becomes two"),
]  # fmt: skip


@pytest.mark.parametrize("source, target, name, reason", WORDS)
def test_a_generated_rule_is_named_after_its_pattern_and_states_its_effect(source, target, name, reason):
    pattern = Pattern(source, target)
    assert next(names_of(pattern)) == name
    assert why(pattern) == reason
