"""The yardstick: what the e-graph and the integer program find, on expressions whose best form is known."""

import pytest

from rlflow.common.errors import RLFlowError
from rlflow.tasks.expressions.certificate import cheapest, egglog_rules, without_lets
from rlflow.tasks.expressions.cost import cost_of
from rlflow.tasks.expressions.evaluate import TOLERANCE, largest_difference
from rlflow.tasks.expressions.syntax import parse_expression


def expr(text: str):
    return parse_expression(text).expr


def test_rules_are_written_in_both_directions():
    lines = egglog_rules()
    assert "(rewrite (add_ a b) (add_ b a))" in lines and len(set(lines)) == len(lines)
    assert "(rewrite (div_ a (mul_ b c)) (div_ (div_ a b) c))" in lines
    assert "(rewrite (div_ (div_ a b) c) (div_ a (mul_ b c)))" in lines
    assert not any(line.startswith("(rewrite (Num 0.0)") for line in lines)  # 0 * a → 0 has no reverse


def test_lets_are_inlined():
    text = "(let (a (mul x y)) (let (b (add a x)) (div b (add a b))))"
    assert without_lets(expr(text)) == expr("(div (add (mul x y) x) (add (mul x y) (add (mul x y) x)))")


@pytest.mark.parametrize("text, cost", [
    ("(add (mul x y) (mul x x))", 3.0),  # x · (y + x)
    ("(add (mul x y) (mul y x))", 3.0),  # x · (y + y)
    ("(let (a (div 1.0 x)) (div a (add 1.0 a)))", 3.0),  # 1 / (1 + x)
    ("(mul (exp x) (add y (exp x)))", 7.1),  # one exp, bound by a let
    ("(sub (log x) (log x))", 0.0),
])  # fmt: skip
def test_the_best_form_is_found(text, cost):
    pytest.importorskip("egglog")
    pytest.importorskip("highspy")
    found = cheapest(expr(text), iterations=4, most_nodes=2000, seconds=30)
    assert cost_of(found.expr) / 1e4 == pytest.approx(cost) and cost_of(found.greedy) >= cost_of(found.expr)
    assert largest_difference(expr(text), found.expr) < TOLERANCE


def test_binders_and_divisions_by_zero_are_refused():
    pytest.importorskip("egglog")
    with pytest.raises(RLFlowError, match="arithmetic on numbers only"):
        cheapest(expr("(sumbuild i (lam (k : Integer) x))"))
    with pytest.raises(RLFlowError, match="some denominator is 0"):
        cheapest(expr("(div (sub x x) (sub y y))"), iterations=5)
