"""The tables of benchmarks.expressions, from parts in the form that its functions return."""

from benchmarks.expressions import (
    EVALUATIONS,
    PROGRAMS,
    RULES,
    binding_expressions,
    part_of,
    searched,
    tables,
    task_of,
)
from rlflow.tasks.expressions.sharing import sharing_search


def test_the_test_expressions_are_the_papers():
    test, train = binding_expressions()
    assert (len(test), len(train)) == (12, 36) and not {one.model for one in test} & {one.model for one in train}
    assert (sum(one.before for one in test), sum(one.after for one in test)) == (1_610_000, 1_252_000)


def test_tables_show_all_parts():
    row = {"model": "(add x y)", "before": 20_000, "binding": 20_000, "cost": 10_000, "greedy": 10_000, "limit": None}
    program = dict.fromkeys(("before", "greedy", "beam", "annealing", "macros", "sketch", "peak", "recorded"), 10_000)
    parts = {
        "arithmetic-beam": {str(limit): [150.0, 152.0] for limit in EVALUATIONS},
        "replays": {"chains": {"recorded": 2, "replayed": 2, "equal": 2, "steps": 9}},
        "yardstick": [row | {"inlined": 20_000, "nodes": 3, "seconds": 1.0}],
        part_of(PROGRAMS[0], RULES[0]): program,
    }
    made = tables(parts)
    assert ["beam", "151.0", "151.0", "151.0"] in made["arithmetic"].rows
    assert made["yardstick"].rows[-1][:5] == ["total", "2.0", "2.0", "1.0", "1.0"]
    assert made["programs"].rows == [[PROGRAMS[0], RULES[0], *["1.0"] * 8]] and made["replays"].rows[0][-1] == 2


def test_a_search_gets_its_evaluations():
    test, _ = binding_expressions()
    task = task_of(test[0].model, "binding")
    assert searched(task, "random", 50, max_steps=5, episodes=100) <= task.initial.objective
    assert searched(task, "greedy", 50) == task.initial.objective
    assert searched(task, sharing_search, 50) < task.initial.objective
