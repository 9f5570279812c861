import pytest
from scipy import stats

from benchmarks.fidelity import COLUMNS, VARIANTS, Job, bars_of, best_row, over_seeds, summary, table, within
from rlflow.runs.config import load_config
from tests.toys import letters as toy
from tests.toys.oracle import Oracle
from worldmodel.fidelity import fidelity, improvement
from worldmodel.world_model_options import world_model_config

EPISODES = toy.episodes(40, seed=9)


def job(factor: float, controller: bool = True) -> dict:
    """What a job finds of a model whose rewards are off by the factor."""
    model = Oracle(factor)
    result = {
        "interactions": 100,
        "training_seconds": 1.0,
        "random": fidelity(model, EPISODES, horizons=(1, 20), rank_steps=3),
    }
    judged = {
        **fidelity(model, EPISODES, horizons=(1,)),
        "dreamt_return": 1.0,
        "improvement": improvement(model, EPISODES),
    }
    return result | ({"controller": judged} if controller else {})


def test_episodes_within_a_budget_are_the_first_ones():
    lengths = [len(episode) for episode in EPISODES]
    assert within(EPISODES, sum(lengths[:3])) == EPISODES[:3]
    assert within(EPISODES, sum(lengths[:3]) - 1) == EPISODES[:2]
    assert within(EPISODES, 0) == [] and within(EPISODES, 10**6) == EPISODES
    assert within(iter(EPISODES), lengths[0]) == EPISODES[:1]


def test_means_have_students_interval_over_the_seeds_that_have_the_figure():
    jobs = [{"a": {"b": value}} for value in (1.0, 2.0, 4.0)]
    result = over_seeds([*jobs, {"a": {"b": None}}, {}], "a.b")
    low, high = stats.t.interval(0.95, 2, loc=result["mean"], scale=stats.sem([1, 2, 4]))
    assert result["mean"] == pytest.approx(7 / 3) and result["seeds"] == 3
    assert result["half"] == pytest.approx((high - low) / 2)
    assert over_seeds(jobs[:1], "a.b") == {"mean": 1.0, "half": None, "seeds": 1}
    assert over_seeds(jobs, "a.c.d") == {"mean": None, "half": None, "seeds": 0}


def test_the_bars_are_of_the_best_world_model_and_of_no_ablation():
    rows = {
        "edits full": summary([job(1.2)]),
        "mdn-rnn full": summary([job(1.1)]),
        "mdn-rnn paper": summary([job(1.0)]),
    }
    for row, error in zip(rows.values(), (0.2, 0.1, 0.0), strict=True):
        row["columns"]["summed reward error"]["mean"] = error  # the toy's episodes do not reach 20 steps
    assert best_row(rows) == "mdn-rnn full"
    bars = {bar["name"]: bar for bar in bars_of("toy", rows)}
    assert not bars["toy, mdn-rnn full: summed reward error"]["holds"]
    assert bars["toy, mdn-rnn full: improvement error"]["value"] == pytest.approx(0.1)
    assert bars["toy, mdn-rnn full: rank correlation"]["holds"] and bars["toy, mdn-rnn full: training s"]["holds"]
    # not reached
    assert bars["toy, mdn-rnn full: mask F1"] == bars["toy, mdn-rnn full: mask F1"] | {"value": None, "holds": False}
    without = bars_of("toy", {"edits full": summary([job(1.0, controller=False)])})
    assert not any("improvement" in bar["name"] for bar in without)


def test_the_tables_have_a_row_for_each_variant_and_horizon():
    figures = {"toy": {"edits full": summary([job(1.0), job(1.1)]), "mdn-rnn paper": summary([job(1.2)])}}
    first, second = table(figures).split("\n\n")
    assert len(first.splitlines()) == 2 + 2 and len(second.splitlines()) == 2 + 2 * 2
    assert all(len({line.count("|") for line in part.splitlines()}) == 1 for part in (first, second))
    assert all(column in first for column in COLUMNS) and "0.05 ± " in first and "| mdn-rnn | paper |" in first


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_a_configuration_that_there_is(variant):
    config = load_config((), Job.overrides("mdn-rnn", VARIANTS[variant], "analytic"))
    assert world_model_config(config.world_model).name == "mdn-rnn"
