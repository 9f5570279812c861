"""Test that every rewrite rule preserves the type, the free variables and the value of an expression."""

from collections import Counter

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.tasks.expressions.evaluate import difference, run
from rlflow.tasks.expressions.expr import BOOL, FLOAT, INTEGER, Expr, constant, make, vec
from rlflow.tasks.expressions.rules import SETS, Binding, all_rules, parse_rule
from rlflow.tasks.expressions.state import ExpressionState, ExpressionTask, rules_of
from rlflow.tasks.expressions.syntax import Program, parse_expression, read_lists, to_text
from tests.suite import at_night, each_of
from tests.toys.expressions import KINDS, Generator

ML = rules_of("ml")


def state_of(expr: Expr, rules=ML) -> ExpressionState:
    return ExpressionTask(Program("", expr), rules, 10_000).initial


def values(expr: Expr, seeds: int = 3):
    return [run(expr, seed) for seed in range(seeds)]


def check_equal(before: Expr, after: Expr, what: str) -> bool:
    """Check a rewrite, and return whether the values could be compared."""
    assert after.type == before.type, what
    assert not after.free & ~before.free, f"{what}: a variable left its binder"
    externals = [{node.value.name for node in one.nodes() if node.op == "external"} for one in (before, after)]
    assert externals[1] <= externals[0], what
    try:
        wanted = values(before)
        if not all(np.isfinite(difference(one, one)) for one in wanted):
            return False
    except RLFlowError:
        return False
    assert all(difference(one, other) < 1e-6 for one, other in zip(wanted, values(after), strict=True)), (
        f"{what}: {to_text(before)} → {to_text(after)}"
    )
    return True


def test_the_sets_have_the_sizes_of_the_paper():
    sizes = {name: len(rules_of(name)) for name in SETS}
    assert sizes == {"simplify": 34, "binding": 6, "both": 38, "ml": 62, "ml-no-bind": 58}


def instance(rule, generator: Generator) -> Expr | None:
    """Return a random expression that the left side of a rule matches, or None if the drawn types do not fit."""
    kinds = {"Real": [FLOAT, FLOAT, vec(FLOAT)], "Any": KINDS, FLOAT: [FLOAT], INTEGER: [INTEGER], BOOL: [BOOL]}
    common = INTEGER if rule.name == "let_recover" else generator.pick(KINDS)  # `build` makes variables of this type.
    found = {}
    for name, condition in rule.arguments.items():
        is_common = common in kinds[condition] and (len(rule.arguments) == 1 or generator.rng.random() < 0.8)
        kind = common if is_common else generator.pick(kinds[condition])
        scope = rule.scopes[name]
        found[name] = Binding(generator.draw(kind, 2, (INTEGER,) * len(scope)), scope)
    try:
        return rule.left.build(found, common if common in (INTEGER, FLOAT) else FLOAT)
    except RLFlowError:
        return None


@each_of([rule.name for rule in all_rules().values() if rule.left is not None])
def test_a_pattern_rule_holds_on_random_expressions(name):
    rule, generator, compared, enough = all_rules()[name], Generator(7), 0, at_night(12, 6)
    for _ in range(400):
        expr = instance(rule, generator)
        if expr is None or (after := rule.rewritten(expr)) is None:
            continue
        compared += check_equal(expr, after, name)
        if compared == enough:
            break
    assert compared == enough


def test_every_rewrite_of_random_expressions_holds():
    """Check random expressions also with the native rules, whose conditions depend on the context of the redex."""
    tried = Counter()
    for seed in range(60):
        generator = Generator(seed)
        state = state_of(generator.draw(generator.pick(KINDS), 4))
        for match in state.matches[:: max(1, len(state.matches) // 40)]:
            if tried[match.xfer_id] < 12:
                rule = ML[match.xfer_id]
                tried[match.xfer_id] += check_equal(state.expr, state.follow(match).expr, rule)
    used = {ML[number] for number, times in tried.items() if times}
    for name in ("inline_let", "new_bind", "lift_bind", "lift_if", "delete_let", "select_of_tuple", "commute_mul"):
        assert name in used


@pytest.mark.parametrize("rule, before, after", [
    ("cse_bind", "(let (a (add x y)) (let (b (add x y)) (mul a b)))", "(let (a (add x y)) (mul a a))"),
    ("lift_bind", "(sumbuild 3 (lam (i : Integer) (let (t x) (mul t (to_float i)))))",
     "(let (t x) (sumbuild 3 (lam (i : Integer) (mul t (to_float i)))))"),
    ("lift_bind", "(if p (let (t (sumbuild 3 (lam (k : Integer) x))) (mul t t)) x)",
     "(let (t (sumbuild 3 (lam (k : Integer) x))) (if p (mul t t) x))"),
    ("lift_if", "(mul (if p x y) z)", "(if p (mul x z) (mul y z))"),
    ("inline_call", "(let f (lam (q : Float) (mul q y)) (add x (f x)))",
     "(let f (lam (q : Float) (mul q y)) (add x (let (q x) (mul q y))))"),
    ("sumbuild_of_tuple", "(sumbuild 3 (lam (i : Integer) (tuple x (to_float i))))",
     "(tuple (sumbuild 3 (lam (i : Integer) x)) (sumbuild 3 (lam (i : Integer) (to_float i))))"),
    ("add_tuples", "(add (tuple x y) (tuple y z))", "(tuple (add x y) (add y z))"),
    ("mul_tuple_scalar", "(mul (tuple x y) z)", "(tuple (mul x z) (mul y z))"),
    ("sumbuild_of_zero_vec", "(sumbuild 3 (lam (i : Integer) (constVec 2 0.0)))", "(constVec 2 0.0)"),
    ("cprop_div", "(div 7 2)", "3"),
    ("cprop_gt", "(gt 3.0 2.0)", "true"),
    ("div_by_self", "(div (add x y) (add x y))", "1.0"),
])  # fmt: skip
def test_a_native_rule_gives_the_expected_equal_expression(rule, before, after):
    state = state_of(parse_expression(before).expr)
    results = [state.follow(match).expr for match in state.matches if ML[match.xfer_id] == rule]
    assert parse_expression(after).expr in results
    for result in results:
        check_equal(state.expr, result, rule)


@pytest.mark.parametrize("rule, expression", [
    ("lift_bind", "(sumbuild 3 (lam (i : Integer) (let (t (to_float i)) (mul t t))))"),  # t mentions i.
    ("lift_bind", "(if p (let (t (index 9 u)) (mul t t)) x)"),  # The `if` may guard the index.
    ("lift_bind", "(if p (let (t (sumbuild i (lam (k : Integer) x))) (mul t t)) x)"),  # The `if` may guard the size.
    ("cse_bind", "(let (a (add x y)) (let (b (add a y)) (mul a b)))"),
    ("sumbuild_invariant", "(sumbuild 3 (lam (i : Integer) (to_float i)))"),
    ("sumbuild_of_build", "(sumbuild 3 (lam (i : Integer) (build i (lam (j : Integer) x))))"),
    ("delete_let", "(let (t x) (mul t y))"),
    ("div_by_self", "(div 0.0 0.0)"),
    ("cprop_div", "(div 1.0 0.0)"),
    ("mul_zero", "(mul 0.0 u)"),  # A number would stand where a vector was.
    ("assoc_mul_div", "(mul (div i j) k)"),  # The division of integers rounds down.
])  # fmt: skip
def test_rules_do_not_match_where_they_are_wrong(rule, expression):
    state = state_of(parse_expression(expression).expr)
    assert rule not in {ML[match.xfer_id] for match in state.matches}


def test_substitution_avoids_capture():
    """Move a value that mentions i below a binder that the file also calls i: the binder is renamed."""
    text = "(build 3 (lam (i : Integer) (let (t (to_float i)) (sumbuild 2 (lam (i : Integer) (mul t (to_float i)))))))"
    state = state_of(parse_expression(text).expr)
    inlined = [state.follow(match).expr for match in state.matches if ML[match.xfer_id] == "inline_let"]
    assert len(inlined) == 1
    assert to_text(inlined[0]).count("(to_float i)") == 2 and "(to_float i_2)" in to_text(inlined[0])
    assert np.array_equal(run(inlined[0], 0), run(state.expr, 0))


@pytest.mark.parametrize("text, reason", [
    ("(rule r (a : Any) (add a b) a)", "no argument or variable 'b'"),
    ("(rule r (a : Any) (add 1.0 2.0) a)", "only the right side has the argument a"),
    ("(rule r (a : Odd) (add a a) a)", "no condition on types is named Odd"),
    ("(rule r (a : Any) (plus a a) a)", "no operator 'plus'"),
    ("(rule r (a : Any))", "is not"),
])  # fmt: skip
def test_wrong_rules_are_refused(text, reason):
    with pytest.raises(RLFlowError, match=reason):
        parse_rule(read_lists(text)[0])


def test_constants_keep_their_type():
    assert all_rules()["mul_zero"].rewritten(make("mul", constant(0), constant(3))) == constant(0)
    assert all_rules()["sub_self"].rewritten(make("sub", constant(2.0), constant(2.0))) == constant(0.0)
