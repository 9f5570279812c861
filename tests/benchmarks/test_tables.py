"""Test the tables of all pages with made-up figures, and the formatting of figures in cells."""

import numpy as np
import pytest

from benchmarks import (
    equal_seconds,
    first_use,
    memory,
    optimise,
    searches,
    speed,
    temperatures,
    transfer,
    valleys,
    world_models,
)
from benchmarks.shared import MODELS, NOTHING, number, percent, ratio
from rlflow.common.errors import RLFlowError
from rlflow.graph.onnx_runtime import run, session
from rlflow.memory.problem import Problem

MEASURED = {
    "ratio": 0.9, "interval": [0.85, 0.95], "verdict": "faster", "original_memory_bytes": 2e6,
    "candidate_memory_bytes": 1e6,
}  # fmt: skip


def rows_of(tables: dict, name: str) -> list:
    for table in tables.values():
        assert table.markdown()
    return [list(row) for row in tables[name].rows]


def test_cells_without_a_measurement_show_a_placeholder():
    assert number(None) == percent(None) == percent([]) == ratio(None) == NOTHING
    assert number(1234.5, 0) == "1,234" and percent(2.0) == percent([2.0]) == "2.00 %"
    assert percent([1.0, 2.0, 3.0]) == "2.00 ± 2.48 %"  # Student's t with two degrees of freedom
    assert ratio(MEASURED) == "0.900 (0.850 to 0.950)"


def test_the_tables_show_no_measurement_for_a_kept_original():
    found = {"seconds": 120.0, "equal": True, "nodes": [9, 8], "delivered": "beam", "reason": "?", "verdicts": {}}
    made = {"a": found | {"estimated": 5.0, "measured": MEASURED, "replayed": True},
            "b": found | {"estimated": None, "measured": None, "replayed": None}}  # fmt: skip
    one, other = (row[:4] for row in rows_of(optimise.tables(made), "measured"))
    assert one == ["a", "5.0 %", "0.900 (0.850 to 0.950)", "faster"]
    assert other == ["b", NOTHING, NOTHING, "the original was kept"]
    spent = {"spent": {"kernels": 2.0}}
    one, other = (
        made["a"] | spent | {"rewrites": 99, "unfinished": [60, 8]},
        made["b"] | spent | {"rewrites": 7, "unfinished": []},
    )
    one, other = one | {"seed": 0}, other | {"seed": 3}
    figures = {"a-predicted": [one], "a-profiled": [other], "b-predicted": [one]}
    tables = first_use.tables(figures, {"a": one}, {"`make demo`": 90.0})
    rows = rows_of(tables, "found")  # a model that has only one of the two runs gets no row
    assert rows[0] == ["a", "0.900 (0.850 to 0.950)", "1", "99", "7", "8", NOTHING, "2.0", "2.0", "120", "120"]
    assert rows[1:] == [["geometric mean", "0.900", "1.000", *[NOTHING] * 8]]
    assert rows_of(tables, "clone") == [["`make demo`", "90"]]
    assert rows_of(tables, "kept") == [["a", "profiled", 3, "?", NOTHING]]
    assert rows_of(tables, "long") == [["a", "0.900 (0.850 to 0.950)", "0.900 (0.850 to 0.950)", "100%"]]
    faster = one | {"measured": MEASURED | {"ratio": 0.9**3}, "unfinished": [5]}
    tables = first_use.tables({"a-predicted": [one, faster], "a-profiled": [other, other]}, {"a": faster}, None)
    (row,) = rows_of(tables, "found")[:-1]
    assert row[1].startswith("0.810 (") and row[2] == "1.000 (1.000 to 1.000)" and row[5] == "5"
    assert rows_of(tables, "long")[0][-1] == "67%"


def test_the_gap_is_the_share_of_the_result_above_the_bound():
    one = {"start_ps": 1000, "best_ps": 800, "seconds": 1.0, "interactions": 9}
    figures = {"a": {"searches": dict.fromkeys(searches.METHODS, one), "bound_ps": 600, "scope": ""}}
    row = rows_of(searches.tables(figures), "gaps")[0]
    assert row[:3] == ["a", "40.00 %", "20.00 %, gap 25.00 %"]
    figures["a"]["bound_ps"] = 801
    with pytest.raises(RLFlowError, match="the bound is wrong"):
        searches.tables(figures)


def test_the_tables_compare_agents_with_the_untrained_policy_and_the_searches():
    agent = {"gain": 3.0, "greedy_episode": 2.0, "acting_seconds": 1.0, "dreamt": 2.5, "seconds": 9.0}
    ways = dict.fromkeys(("greedy", "beam"), {"gain": 4.0})
    every = dict.fromkeys((*temperatures.AGENTS, "untrained", "no prior"), agent)
    run = {"agents": every, "searches": ways, "played": 1.0}
    fidelity = {"horizons": {"1": {"model": {"mask_exact": 0.5}}}}
    judged = {("a", "edits"): [{"fidelity": fidelity, "seconds": 7.0}]}
    tables = world_models.tables(judged, {"a": [run, run]}, {"a": {"gain": 5.0}})
    assert rows_of(tables, "fidelity") == [["a", "edits", 1, "50.0 %", *[NOTHING] * 10, "7"]]
    (row,) = rows_of(tables, "agents")
    assert row == ["a", 2, *["3.00 ± 0.00 %"] * 7, *["4.00 ± 0.00 %"] * 2, "5.00 %", "1.00 ± 0.00 %", "9"]
    assert rows_of(tables, "dreams")[2] == ["a", "ppo, τ=1", "2.50 ± 0.00 %", "2.00 ± 0.00 %", "0.50 ± 0.00 %"]
    for label in (*temperatures.AGENTS,)[1:]:
        del every[label]
    (row,) = rows_of(world_models.tables({}, {"a": [run, run]}, {}), "agents")
    assert row == ["a", 2, *["3.00 ± 0.00 %"] * 3, *["4.00 ± 0.00 %"] * 2, NOTHING, "1.00 ± 0.00 %", "9"]


def test_the_folds_partition_the_models_and_the_tables_show_their_results():
    assert sorted(sum(transfer.FOLDS, ())) == sorted(MODELS) and set(transfer.LEARN_ON) <= set(MODELS)
    acted, search = {"gain": 2.0, "greedy_episode": 1.0, "seconds": 0.5}, {"gain": 3.0}
    one = {"learnt": acted, "untrained": acted, "greedy": search, "beam": search, "beam_same_seconds": search}
    size = {"learnt": acted, "untrained": acted, "receipt": 2.5, "beam": search}
    tables = transfer.tables([[{"a": one}], []], {"b": [{"64": size}]})
    assert rows_of(tables, "models") == [
        ["a", 1, "2.00 %", "1.00 %", "2.00 %", "3.00 %", "3.00 %", "3.00 %", "3.00 %", "0.5"]
    ]
    assert rows_of(tables, "sizes") == [["b at 64", 1, "2.00 %", "2.00 %", "3.00 %", "2.50 %"]]


def test_no_agent_learns_on_a_graph_on_which_it_is_judged(monkeypatch):
    search, played = {"gain": 3.0}, []

    def acted(player, model: str, seed: int) -> dict:
        played.append((player, model))
        return {"gain": 2.0, "seconds": 0.5}

    monkeypatch.setattr(transfer, "learn", lambda seed, models, folder: tuple(models))
    monkeypatch.setattr(transfer, "agent", lambda seed: "untrained")
    monkeypatch.setattr(transfer, "acted", acted)
    monkeypatch.setattr(transfer, "search_gain", lambda *_: search)
    for fold, models in enumerate(transfer.FOLDS):
        assert tuple(transfer.fold_gains(fold, 0)) == models
        learnt_on = set(transfer.LEARN_ON) - set(models)
        assert learnt_on and all(set(player) == learnt_on for player, _ in played[::2])
        assert [model for _, model in played] == [model for model in models for _ in range(2)]
        played.clear()


def test_an_order_is_called_proved_if_its_peak_equals_the_bound():
    one = {"usual": 4e6, "peak": 2e6, "bound": 2e6, "rewrites": 0, "added": [4e6, None], "latency": 1.0}
    learned = {"methods": {m: {"peak": 110, "seconds": 1.0, "beam": 100, "random": 110} for m in memory.LEARNED}}
    tables = memory.tables({"a": one, "b": one | {"bound": 1e6}}, {"a": one}, {"100-0": learned | {"bound": 55}})
    proved, other, mean = rows_of(tables, "orders")
    assert proved[3] == "yes" and other[3] == "≥ 1.00" and other[-1] == NOTHING and mean[4] == "0.500"
    row = rows_of(tables, "learned")[0]
    assert row == [100, "learned beam", 1, "+10.00 %", "+0.00 %", "+100.00 %", "1.00"]


def test_growth_is_reported_as_an_exponent():
    times = {"load": 1, "first": 2, "step": 3, "arrays": 4, "session": 5}
    sizes = {
        f"chain-{n}": {"shape": "chain", "nodes": n, "check": None} | {what: k * n / 100 for what, k in times.items()}
        for n in (100, 1000, 10000)
    }
    dreams = {"edits": {"rates": {"64": 1e4, "256": 2e4, "1024": 3e4}, "single": {"median": 1, "p99": 2}}}
    tables = speed.tables({}, sizes, dreams)
    assert rows_of(tables, "growth")[1] == ["chain", "first", "2.0", "–", "20.0", "–", "200", "–", "1.00"]
    assert rows_of(tables, "growth")[4] == ["chain", "check", *"–––––––"]
    assert rows_of(tables, "dreams") == [["edits", "10,000", "20,000", "30,000", "1.00", "2.00"]]


def test_ratios_over_seeds_are_geometric_means():
    runs = [{"ratio": value, "interval": [value * 0.99, value * 1.01]} for value in (0.5, 2.0)]
    mean = equal_seconds.together(runs)
    assert mean["ratio"] == pytest.approx(1.0)
    assert mean["interval"][0] < 0.5 and mean["interval"][1] > 2.0  # two seeds, of which each interval is narrow
    one = {"ratio": 1.0, "interval": [1.0, 1.0], "seconds": 60.0, "probed": 3}
    tables = equal_seconds.tables({"a": [dict.fromkeys(equal_seconds.METHODS, one)]})
    assert rows_of(tables, "latency")[0][2] == "1.000 (1.000 to 1.000)"
    assert rows_of(tables, "spent")[0][1] == "60 s, 3 graphs"


def test_the_depth_of_a_valley_is_the_excess_over_the_lowest_earlier_cost():
    assert valleys.valley_of([100, 90, 95, 99, 80]) == {"steps": 4, "losses": 2, "depth": 9.0}
    assert valleys.valley_of([100]) == {"steps": 0, "losses": 0, "depth": 0.0}
    found = {"gain": 20.0, "seconds": 60.0, "path": {"steps": 4, "losses": 2, "depth": 9.0}}
    tables = valleys.tables({"a": {"beam, single": [found], "xrlflow": [found | {"gain": 10.0}]}})
    assert rows_of(tables, "paths") == [["a", "beam, single", "20.00 %", 4, 2, "9.00 %"]]
    gains = [row for row in rows_of(tables, "gains") if row[1] != "–"]
    assert gains == [["beam, single", "20.00 %"], ["xrlflow", "10.00 %"]]


@pytest.mark.parametrize("model", [valleys.volumes(0, 4, 1, 8), valleys.decoder(0, (16, 8), 4, 4)])
def test_networks_with_valleys_run(model):
    (given,) = model.graph.input
    sizes = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    (result,) = run(session(model, 1), {given.name: np.ones(sizes, np.float32)})
    assert result.shape == tuple(dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim)
    assert 1e-3 < np.abs(result).max() < 1e3


def test_the_cheapest_prefix_of_actions_ends_at_the_cheapest_state(monkeypatch):
    class Some:
        rules = range(5)

    costs = iter([9, 7, 8])
    states = [type("State", (), {"objective": cost}) for cost in costs]
    monkeypatch.setattr(equal_seconds, "states_along", lambda task, actions: states)
    assert equal_seconds.cheapest(Some, np.array([[1, 0], [2, 0], [5, 0]])) == [(1, 0)]  # action 5 is NO-OP


def test_random_depth_first_orders_continue_with_the_newly_ready_nodes():
    problem = Problem.of_nodes([1] * 6, [0] * 6, [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5)])
    orders = memory.random_depth_first(problem, 1000, 0)
    for order in ([0, 1, 3, 2, 4, 5], [0, 2, 4, 1, 3, 5]):  # the only depth-first orders
        assert abs(np.mean((orders == order).all(axis=1)) - 0.5) < 0.05
