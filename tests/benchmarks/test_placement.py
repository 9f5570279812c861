"""The tables of the placements, and CMA-ES on a problem that is counted by hand elsewhere."""

import numpy as np

from benchmarks.placement import METHODS, cma_es, tables
from rlflow.tasks.placement.searches import all_slowest
from rlflow.tasks.placement.simulators import SIMULATORS
from tests.tasks.placement.models import instance, random_workload


def test_cma_es_counts_its_evaluations_and_its_placement_is_valid():
    problem = instance(random_workload(8, 0), "compiler", sram=90, staging=16)
    found = cma_es(problem, 200, 0)
    result = problem.evaluate(found.decision[None])
    assert result.objectives[0] == found.objective < problem.evaluate(all_slowest(problem)[None]).objectives[0]
    assert not result.repaired[0] and 200 <= found.evaluations < 220


def test_tables_state_distances_from_the_bound_and_speed_ups():
    one = {"operators": 57, "bound": 100.0, "best": 101.0, "heuristic": 150.0, "greedy": 140.0, "seconds": 2.0,
           "evaluation_us": 5.0}  # fmt: skip
    programs = {("resnet50", simulator): one for simulator in SIMULATORS}
    methods = {
        ("resnet50", "additive", "egrl", seed): {
            "us": us,
            "seconds": 60.0,
            "timed": {"cma-es": 102.0, "annealing": 103.0},
        }
        for seed, us in enumerate((110.0, 130.0))
    }
    result = tables(programs, methods, {"resnet50": {"resnet18": 0.5}}, ("resnet50",))
    assert result["programs"].rows[0] == [
        "resnet50",
        "additive",
        57,
        "150.0",
        "140.0",
        "101.0",
        "1.000 %",
        "2.0",
        "5.0",
    ]
    rows = {tuple(row[:2]): row[2:] for row in result["methods"].rows}
    assert rows["egrl", "additive"] == ["+20.00 ± 10.00 %"] and rows["annealing, EGRL's seconds", "additive"] == [
        "+3.00 ± 0.00 %"
    ]
    assert len(rows) == 2 * (len(METHODS) + 2) and rows["pg", "compiler"] == ["–"]
    speed = next(row for row in result["figure3"].rows if row[:2] == ["egrl", "additive"])
    assert speed[2:] == [f"{np.mean([150 / 110, 150 / 130]):.2f}", "1.28", "1.78", "1.66"]
    assert result["zero_shot"].rows == [["resnet50", "resnet18", "50 %"]]
