"""What benchmarks.controllers says of a run: which options it changed, and the tables of its page."""

from argparse import Namespace
from pathlib import Path

from benchmarks.controllers import Job, errors_table, iterations_table, losses_table, summary, table
from benchmarks.harness import THREADS
from rlflow.runs.config import load_config


def parsed(**changes) -> Namespace:
    usual = {
        "default": False,
        "cost": "analytic",
        "episodes": 60,
        "iterations": 6,
        "measure_seconds": 0.0,
        "overrides": [],
        "folder": Path("x"),
    }
    return Namespace(**usual | changes)


def test_by_default_no_option_is_changed_but_the_threads():
    job, defaults = Job("squeezenet1_1", 0, parsed(default=True)), load_config((), [f"cost.threads={THREADS}"])
    assert load_config((), job.options()) == defaults
    assert (job.spec.cost, job.spec.threads) == (defaults.cost.name, THREADS) == ("profiled", 1)
    tuned = Job("squeezenet1_1", 0, parsed())
    changed = load_config((), tuned.options())
    assert (changed.cost.name, changed.iterations.count, changed.collect.episodes, tuned.spec.cost) == (
        "analytic", 6, 60, "analytic",
    )  # fmt: skip
    assert Job("squeezenet1_1", 0, parsed(default=True, overrides=["cost.threads=2"])).spec.threads == 2


def test_plain_searches_with_the_same_interactions_and_seconds_stand_beside_what_was_learnt():
    row = table({"toy": [run()]}).splitlines()[-1]
    assert "| 4.00 % | 6.00 % | 6.00 % |" in row  # simulator, same seconds, the best known of both
    old = run()
    del old["known"]["same_seconds"]
    assert "| 4.00 % | – |" in table({"toy": [old]}).splitlines()[-1]  # older than that column
    # one iteration: nothing was played between
    assert summary("toy", 0, job() | {"iterations": []}, {})["best_known"] == 6.0


def test_iterations_below_greedy_are_counted():
    lines = iterations_table({"toy": [run()], "other": [run()]}).splitlines()
    assert lines[0] == "| model | after 1 | after 2 | the last plan | greedy |"
    assert lines[-1] == "| **below greedy** | 2 of 2 | 0 of 2 | 0 of 2 |  |"  # the second by rounding alone


def test_errors_are_of_whole_episodes_and_those_of_plans_apart():
    text = errors_table({"toy": [run()]})
    assert "| toy | 50.0 % | 2.0 % |" in text
    assert "All 2: median 26.0 %, greatest 50.0 %." in text and "greatest 1e+00 %" in text


def test_the_deepest_loss_of_a_plan():
    assert losses_table({"toy": [run()]}).splitlines()[-1] == "| toy | 1 | 1.000 |"
    straight = job()
    straight["controllers"]["planner"]["candidates"]["controller"]["path_ms"] = [10.0, 9.0]
    assert losses_table({"toy": [summary("toy", 0, straight, {})]}).splitlines()[-1] == "| toy | – | – |"


def run() -> dict:
    return summary("toy", 0, job(), {})


def job() -> dict:
    """Greedy gains 3 %; the plan 2 % after one iteration, greedy's less a rounding after two, and 5 % at last."""
    greedy = {"estimated_improvement_percent": 3.0, "interactions": 9}
    controller = {"estimated_improvement_percent": 5.0, "interactions": 100, "path_ms": [10.0, 9.8, 9.9, 9.5]}
    return {
        "stages": {"collect": 1.0, "train-wm": 2.0}, "interactions": 90,
        "iterations": [
            {"interactions": 30, "dreamt_return": None, "improvement": None},
            {
                "interactions": 30, "dreamt_return": 2.0,
                "improvement": {"real": [2.0, -1.0], "predicted": [2.0, 0.5], "relative_error": 0.5},
            },
            {
                "interactions": 30, "dreamt_return": 3.0,
                "improvement": {"real": [3.0 - 1e-8, 1.0], "predicted": [3.03, 1.0], "relative_error": 0.02},
            },
        ],
        "controllers": {"planner": {
            "dreamt": [{"dreamt_return": 5.0, "real_return": 5.0, "acting_seconds": 0.1}], "delivered": "controller",
            "candidates": {
                "controller": controller, "greedy": greedy, "random": greedy | {"estimated_improvement_percent": 1.0},
            },
            "seconds": {"train-controller": 3.0, "eval": 4.0},
        }},
        "simulator": {"improvement_percent": 4.0, "method": "beam", "seconds": 1.0, "interactions": 10},
        "same_seconds": {"improvement_percent": 6.0, "method": "annealing", "seconds": 6.1, "interactions": 50},
    }  # fmt: skip
