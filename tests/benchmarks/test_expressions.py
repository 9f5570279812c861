"""Test the tables of benchmarks.expressions and benchmarks.expression_programs with hand-made measurements."""

from benchmarks import expression_programs
from benchmarks.expression_programs import PROGRAMS, RULES, part_of, workload
from benchmarks.expressions import EVALUATIONS, binding_expressions, searched, tables, task_of
from rlflow.tasks.expressions.sharing import sharing_search


def test_the_test_expressions_are_the_expressions_of_the_paper():
    test, train = binding_expressions()
    assert (len(test), len(train)) == (12, 36) and not {one.model for one in test} & {one.model for one in train}
    assert (sum(one.before for one in test), sum(one.after for one in test)) == (1_610_000, 1_252_000)


def test_tables_show_all_parts():
    row = {"model": "(add x y)", "before": 20_000, "binding": 20_000, "cost": 10_000, "greedy": 10_000, "limit": None}
    parts = {
        "arithmetic-beam": {str(limit): [150.0, 152.0] for limit in EVALUATIONS},
        "replays": {"chains": {"recorded": 2, "replayed": 2, "equal": 2, "steps": 9}},
        "yardstick": [row | {"inlined": 20_000, "nodes": 3, "seconds": 1.0}],
    }
    made = tables(parts)
    assert ["beam", "151.0", "151.0", "151.0"] in made["arithmetic"].rows
    assert made["yardstick"].rows[-1][:5] == ["total", "2.0", "2.0", "1.0", "1.0"]
    assert made["replays"].rows[0][-1] == 2


def test_tables_of_programs_show_all_parts():
    searches = ("greedy", "beam", "annealing", "macros", "sketch")
    program = dict.fromkeys(("before", *searches, "peak", "recorded"), 10_000)
    found = dict.fromkeys(searches, 30_000) | {"peak": 90_000}
    workloads = [{"before": 40_000, "equal": True} | found, {"before": 60_000, "equal": False} | found]
    made = expression_programs.tables({part_of(PROGRAMS[0], RULES[0]): program, f"gmm_test-{RULES[1]}": workloads})
    assert made["programs"].rows == [[PROGRAMS[0], RULES[0], *["1.0"] * 8]]
    assert made["workloads"].rows == [["gmm_test", RULES[1], "10.0", *["-40.0 %"] * 4, "2.25", "1 of 2", "-16 %"]]


def test_the_sharing_search_improves_an_expression_that_greedy_cannot():
    test, _ = binding_expressions()
    task = task_of(test[0].model, "binding")
    assert searched(task, "random", 50, max_steps=5, episodes=100) <= task.initial.objective
    assert searched(task, "greedy", 50) == task.initial.objective
    assert searched(task, sharing_search, 50) < task.initial.objective


def test_a_workload_is_searched_with_all_methods(monkeypatch):
    monkeypatch.setattr(expression_programs, "WORKLOAD_EVALUATIONS", 30)
    monkeypatch.setattr(expression_programs, "recorded_names", lambda name: [f"{name}/sqnorm"])
    (row,) = workload("gmm_test", "ml")
    assert row.pop("model") == "gmm_test/sqnorm" and row.pop("equal") is True and row["peak"] >= row["before"]
    assert max(row[name] for name in ("greedy", "beam", "annealing", "sketch")) <= row["before"]
