"""Test the optimality certificate: the e-graph and the integer program, on expressions whose best form is known."""

import pytest

from rlflow.common.errors import RLFlowError
from rlflow.tasks.expressions.certificate import STEP, cheapest, egglog_rules, without_lets
from rlflow.tasks.expressions.cost import cost_of
from rlflow.tasks.expressions.evaluate import TOLERANCE, largest_difference
from rlflow.tasks.expressions.state import ExpressionTask, rules_of
from rlflow.tasks.expressions.syntax import UNITS, parse_expression


def expr(text: str):
    return parse_expression(text).expr


def test_rules_are_written_in_both_directions():
    lines = list(egglog_rules())

    def has(left: str, right: str) -> bool:
        return any(f"(= e {left})" in line and f"(union e {right})" in line for line in lines)

    assert has("(add_ a b)", "(add_ b a)")
    assert has("(div_ a (mul_ b c))", "(div_ (div_ a b) c)") and has("(div_ (div_ a b) c)", "(div_ a (mul_ b c))")
    assert not any("(= e (Num" in line for line in lines)  # The rule 0 * a → 0 has no reverse.


def test_lets_are_inlined():
    text = "(let (a (mul x y)) (let (b (add a x)) (div b (add a b))))"
    assert without_lets(expr(text)) == expr("(div (add (mul x y) x) (add (mul x y) (add (mul x y) x)))")


@pytest.mark.parametrize("text, cost", [
    ("(add (mul x y) (mul x x))", 3.0),  # x · (y + x)
    ("(add (mul x y) (mul y x))", 3.0),  # x · (y + y)
    ("(let (a (div 1.0 x)) (div a (add 1.0 a)))", 3.0),  # 1 / (1 + x)
    ("(mul (exp x) (add y (exp x)))", 7.1),  # One exp, bound by a let.
    ("(sub (log x) (log x))", 0.0),
])  # fmt: skip
def test_the_best_form_is_found_and_proved(text, cost):
    pytest.importorskip("egglog")
    found = cheapest(expr(text), most_steps=1)
    assert cost_of(found.expr) / UNITS == pytest.approx(cost) and cost_of(found.greedy) >= cost_of(found.expr)
    assert found.limit == found.inlined + STEP
    assert largest_difference(expr(text), found.expr) < TOLERANCE


@pytest.mark.parametrize("text", ["(add (mul x y) (mul (mul x x) y))", "(div (add (mul x 2.0) (mul x y)) (mul x z))"])
def test_no_expression_that_single_rewrites_reach_within_the_limit_is_cheaper(text):
    pytest.importorskip("egglog")
    found = cheapest(expr(text), most_steps=1)
    task = ExpressionTask(parse_expression(text), rules_of("simplify"), 10_000)
    seen, queue = {task.initial.hash}, [task.initial]
    for state in queue:
        assert with_sharing(state.expr) >= cost_of(found.expr)
        for match in state.matches:
            after = state.follow(match)
            if after.objective <= found.limit and after.hash not in seen:
                seen.add(after.hash)
                queue.append(after)
    assert len(queue) > 30 and cost_of(found.expr) < cost_of(expr(text))


def with_sharing(flat) -> int:
    """Return the cost of an expression without `let`s if equal subexpressions are shared for free, which is a lower
    bound."""
    return sum(cost_of(node) - sum(map(cost_of, node.args)) for node in set(flat.nodes()))


def test_an_e_graph_that_may_not_grow_proves_nothing():
    pytest.importorskip("egglog")
    text = "(div (add (mul 2.0 (add x y)) (add x y)) (mul x 2.0))"
    assert cheapest(expr(text), most_steps=0, most_nodes=5).limit is None


def test_binders_and_divisions_by_zero_are_refused():
    pytest.importorskip("egglog")
    with pytest.raises(RLFlowError, match="arithmetic on numbers only"):
        cheapest(expr("(sumbuild i (lam (k : Integer) x))"))
    with pytest.raises(RLFlowError, match="some denominator is 0"):
        cheapest(expr("(div (sub x x) (sub y y))"))
