from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.paper import CONTROLLERS, REAL, bars_of, best_met, table, temperatures_table, way_of


def run(*real: float, dreamt_off: float = 0.01) -> dict:
    return {
        "real": list(real), "best": max(real), "relative_error": 0.0, "dreamt": 20.0 * (1 + dreamt_off),
        "real_as_long": 20.0,
        "world_model_seconds": 60.0, "training_seconds": 30.0, "acting_seconds": 0.5,
    }  # fmt: skip


def figures(**improvements: float) -> dict:
    """model → what both controllers gained at best, where greedy descent gained 10 %."""
    search = {"greedy": {"improvement": 10.0, "seconds": 1.0}, "beam": {"improvement": 12.0, "seconds": 2.0}}
    result = {}
    for name, gain in improvements.items():
        runs = {controller: [run(gain - 1, gain)] for controller in CONTROLLERS}
        result[name] = {"search": search, "controllers": runs | {REAL: [run(7.0)]}}
    return result


def held(figures: dict) -> dict[str, bool]:
    return {bar["name"]: bar["holds"] for bar in bars_of(figures)}


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_a_controller_is_to_be_above_greedy_on_half_of_the_graphs_and_never_far_below(controller):
    assert held(figures(a=10.1, b=9.95))[f"{controller}: graphs above greedy"]
    assert not held(figures(a=10.0, b=9.95))[f"{controller}: graphs above greedy"]
    far = held(figures(a=10.1, b=9.8))
    assert far[f"a, {controller}: against greedy, relative"] and not far[f"b, {controller}: against greedy, relative"]


def test_what_is_dreamt_is_to_be_near_to_what_is():
    result = figures(a=11.0)
    result["a"]["controllers"]["ppo"] = [run(11.0, dreamt_off=-0.06)]
    bars = held(result)
    assert not bars["a, ppo: dreamt, off by"] and bars["a, cma-es: dreamt, off by"]


def test_the_table_has_the_best_episode_the_greedy_one_and_the_controls():
    heads, _, row = table(figures(a=11.0)).splitlines()
    assert len(heads.split("|")) == len(row.split("|"))
    cells = dict(zip(map(str.strip, heads.split("|")), map(str.strip, row.split("|")), strict=True))
    assert cells["ppo: best of nine"] == "11.00 %" and cells["ppo, no dream"] == "7.00 %"
    assert cells["greedy descent"] == "10.00 %" and cells["beam"] == "12.00 %" and cells["learning s"] == "90"


def test_temperatures_are_compared_seed_by_seed():
    result = figures(a=11.0, b=12.0)
    result["a"]["controllers"]["ppo"] = [run(8.0), run(9.0)]
    result["a"]["controllers"][way_of("ppo", 3.0)] = [run(8.5), run(9.5)]
    rows = [list(map(str.strip, line.split("|")[1:-1])) for line in temperatures_table(result).splitlines()[2:]]
    assert [row[:2] for row in rows] == [["a", "1"], ["a", "3"], ["a", "best less worst"]]  # b has one alone
    assert rows[-1][4] == "0.50 ± 0.00 %" and rows[1][3].startswith("20.20")


def test_the_best_graph_on_the_ways_counts_not_the_last_one():
    episodes = [SimpleNamespace(rewards=np.array(rewards)) for rewards in ([1.0, 2.0, -1.5], [2.5], [-1.0])]
    assert best_met(episodes) == 3.0
    assert best_met(episodes[2:]) == 0.0  # the original itself
