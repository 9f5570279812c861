"""Test macros: how they are learnt from paths, and that they cross valleys that single rewrites do not cross."""

from types import SimpleNamespace

import pytest

from rlflow.optimisation.candidates import states_along
from rlflow.search import macros as module
from rlflow.search.base import Limits, run_search
from rlflow.search.macros import ALL, ONCE, UNTIL, Step, learn, macro_search
from rlflow.tasks.expressions.sketches import inlined, learnt_macros
from rlflow.tasks.expressions.state import ExpressionTask, rules_of
from rlflow.tasks.expressions.syntax import parse_expression, parse_programs

BINDING = rules_of("binding")


def task_of(text: str) -> ExpressionTask:
    return ExpressionTask(parse_expression(text), BINDING, 200)


def solved(text: str, interactions: int):
    task = task_of(text)
    result = run_search("beam", task.initial, Limits(interactions=interactions), width=8, depth=8, radius=1)
    return states_along(task, result.actions), result.actions


@pytest.fixture(scope="module")
def macros():
    texts = [
        f"(mul (add {e} 1.0) (mul {e} {other}))"
        for e, other in (("(mul x y)", "z"), ("(div x z)", "y"), ("(log x)", "y"))
    ]
    return learn([solved(text, 3000) for text in texts])


def test_macros_are_the_sequences_between_new_lowest_costs(macros):
    long = [macro for macro in macros if len(macro) > 2]
    assert long and all(any(step.sort == BINDING.index("cse_bind") for step in macro) for macro in long)
    task = task_of("(let (t (mul x y)) (add (add t t) z))")
    inline, delete = task.number["inline_let"], task.number["delete_let"]
    actions = [(inline, 0), (inline, 0), (delete, 0)]
    states = states_along(task, actions)
    assert learn([(states, actions)] * 2) == []  # No new lowest cost, so no macro.
    cheap = task_of("(let (t x) (add (add t t) z))")
    states = states_along(cheap, actions)
    assert learn([(states, actions)] * 2) == [(Step(inline, ALL), Step(delete))]
    assert learn([(states, actions)]) == []  # One occurrence is not enough for a macro.


def test_macros_cross_a_valley_of_another_expression(macros):
    """The cost rises by two lets before the common subexpression saves; a search by single steps therefore stays."""
    start = task_of("(div (add (exp y) 2.0) (sub 1.0 (exp y)))").initial
    greedy = run_search("greedy", start, max_steps=50)
    crossed = run_search(macro_search, start, Limits(interactions=300), macros=macros)
    # The result has one exp less and two lets more.
    assert greedy.state.objective == start.objective >= crossed.state.objective + 38_000
    assert states_along(start.task, crossed.actions)[-1].hash == crossed.state.hash
    blind = run_search(macro_search, start, Limits(interactions=crossed.interactions), macros=[])
    assert blind.state.objective > crossed.state.objective


def test_a_repeated_last_step_of_a_macro_continues_until_the_cost_falls():
    """The `let` that binds a product inside two loops costs 0.1 in every iteration until the rules move it out of a
    loop."""
    inner = "(build i (lam (m : Integer) (add (sub (div (exp x) (to_float m)) y) (to_float k))))"
    start = task_of(f"(build i (lam (k : Integer) {inner}))").initial
    hoist = (Step(BINDING.index("new_bind")), Step(BINDING.index("lift_bind"), UNTIL))
    found = run_search(macro_search, start, Limits(interactions=60), macros=[hoist])
    costs = [state.objective for state in states_along(start.task, found.actions)]
    assert max(costs) > costs[0] > costs[-1] + 255 * 40_000  # One exponential instead of 256.
    blind = run_search(macro_search, start, Limits(interactions=60), macros=[hoist[:1], hoist[1:]])
    assert blind.state.objective > costs[-1]


def test_a_sketch_leads_through_states_of_higher_cost():
    """The cost must rise first: the vector that is built once and read in a loop is then built inside the loop, until
    the rules remove it."""
    text = """
    (def scal (Vec Float) ((a : Float) (v : Vec Float)) (build (size v) (lam (i : Integer) (mul a (index i v)))))
    (def f (Vec Float) ((a : Float) (v : Vec Float) (w : Vec Float))
      (let (s (scal a v)) (build (size s) (lam (i : Integer) (add (index i s) (index i w))))))
    """
    task = ExpressionTask(parse_programs(text)["f"], rules_of("ml-no-bind"), 200)
    known = learnt_macros(task.rules)
    assert (Step(task.number["inline_let"], ALL), Step(task.number["delete_let"])) in known
    # The rule set has no binding rules.
    assert not any("bind" in task.rules[step.sort] for macro in known for step in macro)
    found = run_search(macro_search, task.initial, Limits(interactions=2000), macros=known, sketch=inlined)
    states = states_along(task, found.actions)
    assert inlined(states[0])[0] == 1 and not any(inlined(states[-1]))
    assert max(state.objective for state in states) > 2 * states[0].objective > 2 * states[-1].objective
    greedy = run_search("greedy", task.initial, max_steps=200)
    assert greedy.state.objective > states[-1].objective


def test_macros_of_equal_counts_are_sorted_though_only_one_needs_the_plan_of_a_step(monkeypatch):
    macros = [(Step(3), Step(5), Step(3, ONCE, 0)), (Step(3), Step(5), Step(3))]
    states = [SimpleNamespace(objective=objective) for objective in (2, 1)]
    monkeypatch.setattr(module, "_macro", lambda states, actions: actions[0])
    assert learn([(states, [macro]) for macro in macros] * 2) == macros[::-1]
