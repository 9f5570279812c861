"""Test the tables of placements, EGRL on two graphs, CMA-ES on hand-counted problems, and the MiniMalloc instances."""

import os
import sys

import numpy as np
import pytest

from benchmarks import placement
from benchmarks.placement import CAPACITY, METHODS, TIMED, cma_es, cp_sat, learned_on_all, minimalloc, tables
from benchmarks.shared import MODELS
from controllers.controller_options import EGRLConfig
from controllers.egrl.agent import EGRL
from controllers.egrl.networks import observe
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
        ("resnet50", "additive", "egrl", seed): {"us": us, "seconds": 60.0} for seed, us in enumerate((110.0, 130.0))
    }
    methods["resnet50", "additive", TIMED[1], 0] = {"us": 103.0, "seconds": 29.7}
    packed = {"A": {"buffers": 154, "bound": 2**20, "seconds": 2.94, "cp_sat": None}}
    ranked = {"additive": {"rank": 0.9651, "ratio": [1.24, 1.55, 2.04]}}
    result = tables(programs, methods, {"resnet50": 124.5}, packed, ranked, ("resnet50",))
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
    assert rows["egrl", "additive"] == ["+20.00 ± 14.14 % (2)", "60"]
    assert rows[TIMED[1], "additive"] == ["+3.00 % (1)", "30"]
    assert len(rows) == 2 * len(METHODS) and rows["pg", "compiler"] == ["–", "–"]
    speed = next(row for row in result["figure3"].rows if row[:2] == ["egrl", "additive"])
    assert speed[2:] == [f"{np.mean([150 / 110, 150 / 130]):.2f}", "1.28", "1.78", "1.66"]
    assert result["zero_shot"].rows == [["resnet50", "150.0", "124.5", "101.0", "52 %"]]  # 25.5 of 49 µs are saved
    one["best"] = 149.9
    result = tables(programs, {}, {"resnet50": 124.5}, {}, {}, ())
    assert result["zero_shot"].rows[0][-1] == "–"


def test_long_trainings_have_fewer_seeds_and_random_search_has_all():
    seeds_of = placement.seeds_of
    assert {seeds_of("resnet50", simulator, "egrl", 5) for simulator in SIMULATORS} == {5}
    assert seeds_of("bert_base_fused", "compiler", "egrl", 5) == seeds_of("resnet101", "compiler", "pg", 5) == 3
    assert seeds_of("bert_base_fused", "compiler", "egrl", 2) == 2
    assert seeds_of("bert_base_fused", "compiler", "pg", 5) == 1
    assert seeds_of("resnet50", "additive", "ea", 5) == 0 and seeds_of("resnet50", "compiler", "ea", 5) == 5
    assert {seeds_of(model, "additive", "random", 5) for model in placement.PAPER} == {5}


def test_folds_place_each_network_once_and_train_on_the_others(monkeypatch):
    folds = []

    class NoRecord:
        status = 0

        def __init__(self, *_):
            pass

        def all_parts(self, calls, at_once=1) -> dict:
            folds.extend(call[1:3] for call in calls.values() if call[0] is placement.zero_shot)
            return {}

        def publish(self, *_) -> None:
            pass

    monkeypatch.setattr(placement, "Record", NoRecord)
    monkeypatch.setattr(sys, "argv", ["placement"])
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert placement.main() == 0
    assert sorted(sum((placed for _, placed in folds), ())) == sorted(MODELS)
    assert all(len(placed) == 3 and sorted(trained + placed) == sorted(MODELS) for trained, placed in folds)


@pytest.mark.usefixtures("eager")
def test_a_training_on_two_graphs_ends_with_the_network_that_is_best_on_both(monkeypatch):
    def agent_of(graph, variant, invalid, limit, seed, **options):
        config = EGRLConfig(
            variant=variant, invalid=invalid, evaluations=limit, hidden=8, output=8, depth=1, heads=2, population=5,
            elites=1, critic_width=8, batch=4, **options,
        )  # fmt: skip
        return EGRL(config, graph, seed)

    monkeypatch.setattr(placement, "agent_of", agent_of)
    one, two, unseen = (instance(random_workload(n, n), "additive", sram=90) for n in (5, 7, 9))
    agent, untrained = learned_on_all([one, two], "rectified", 24, 0), agent_of(one, "egrl", "rectified", 24, 0)
    assert not np.array_equal(agent.sac.actor, untrained.sac.actor)
    assert agent.evaluations == 2 * agent.per_generation == 12 and agent.actions.shape[1] == 5

    def reward(network: np.ndarray) -> float:
        logits = [agent.forward(network[None], observe(graph.arrays())).numpy()[0] for graph in (one, two)]
        decisions = [agent.joined(each.argmax(axis=-1)) for each in logits]
        return sum(
            np.divide(*graph.evaluate(np.stack([graph.control(), decision])).objectives) ** 2
            for graph, decision in zip((one, two), decisions, strict=True)
        )

    others = [*agent.population.networks, agent.sac.actor.numpy()]
    assert reward(agent.champion) == pytest.approx(max(map(reward, others)))
    assert agent.act(unseen, 3, np.random.default_rng(0)).shape == (4, 9)


def test_the_instances_of_minimalloc_fit_in_one_mebibyte():
    """Eight of the instances have sections as large as the memory, so a packing must not waste any address."""
    sizes = {name: len(minimalloc(name)[0]) for name in "ABCDEFGHIJK"}
    assert list(sizes.values()) == [154, 170, 203, 213, 215, 296, 308, 316, 374, 409, 454]
    bounds = {name: section_bound(*minimalloc(name)) for name in sizes}
    assert [name for name, bound in bounds.items() if bound != CAPACITY] == ["C", "D", "J"]
    assert max(bounds.values()) == CAPACITY


def test_an_instance_of_minimalloc_is_packed_without_overlap():
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
