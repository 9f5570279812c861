"""The tables of the placements, CMA-ES on a problem that is counted by hand elsewhere, and MiniMalloc's instances."""

import numpy as np
import pytest

from benchmarks.placement import CAPACITY, METHODS, cma_es, cp_sat, minimalloc, tables
from rlflow.tasks.placement.packing import pack, section_bound
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
    packed = {"A": {"buffers": 154, "bound": 2**20, "seconds": 2.94, "cp_sat": None}}
    ranked = {"additive": {"rank": 0.9651, "ratio": [1.24, 1.55, 2.04]}}
    result = tables(programs, methods, {"resnet50": {"resnet18": 0.5}}, packed, ranked, ("resnet50",))
    assert result["packing"].rows == [["A", 154, 2**20, "2.9", "–"]]
    assert result["ranks"].rows == [["additive", "0.965", "1.24", "1.55", "2.04"]]
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


def test_the_instances_of_minimalloc_fit_in_one_mebibyte():
    """The sections of eight instances are as large as the memory, so no address may be lost."""
    sizes = {name: len(minimalloc(name)[0]) for name in "ABCDEFGHIJK"}
    assert list(sizes.values()) == [154, 170, 203, 213, 215, 296, 308, 316, 374, 409, 454]
    bounds = {name: section_bound(*minimalloc(name)) for name in sizes}
    assert [name for name, bound in bounds.items() if bound != CAPACITY] == ["C", "D", "J"]
    assert max(bounds.values()) == CAPACITY


def test_an_instance_of_minimalloc_is_packed():
    pytest.importorskip("numba")
    lower, upper, size = buffers = minimalloc("F")
    offsets = pack(*buffers, CAPACITY)
    together = (lower[:, None] < upper) & (lower < upper[:, None]) & ~np.eye(len(size), dtype=bool)
    apart = (offsets[:, None] + size[:, None] <= offsets) | (offsets + size <= offsets[:, None])
    assert (apart | ~together).all() and (offsets >= 0).all() and (offsets + size).max() <= CAPACITY


def test_cp_sat_packs_the_example_of_minimalloc():
    pytest.importorskip("ortools")
    buffers = np.array([[0, 3, 4], [3, 9, 4], [0, 9, 4], [9, 21, 4], [0, 21, 4]]).T
    assert (cp_sat(*buffers, 12, 10) + buffers[2]).max() <= 12 and cp_sat(*buffers, 11, 10) is None
