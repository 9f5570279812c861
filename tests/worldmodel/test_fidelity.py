import json

import numpy as np

from tests.worldmodel import toy
from worldmodel.fidelity import fidelity, markdown_table


def test_the_model_learns_the_toy(trained):
    """Far better than the baselines on episodes that it never saw, open loop."""
    model, results = trained
    horizons = fidelity(model, toy.episodes(60, seed=9))["horizons"]
    for horizon in ("1", "5"):
        entry = horizons[horizon]
        assert entry["model"]["mask_exact"] >= 0.95, entry
        error = entry["model"]["cumulative_reward_error"]
        assert error < 0.5 * min(entry[name]["cumulative_reward_error"] for name in ("no_change", "rule_mean")), entry
    assert horizons["1"]["model"]["reward_r2"] > 0.95
    assert horizons["1"]["model"]["termination_accuracy"] == 1
    assert results["fidelity"]["horizons"]["1"]["model"]["mask_exact"] >= 0.95


def test_the_baselines_are_what_they_say(trained):
    """The no-change error over one step is the mean |reward|, and so on."""
    model, _ = trained
    episodes = toy.episodes(10, seed=9)
    entry = fidelity(model, episodes, horizons=(1,))["horizons"]["1"]
    rewards = np.concatenate([e.rewards for e in episodes])
    xfers = np.concatenate([e.actions[:, 0] for e in episodes])
    unchanged = [(e.counts[:-1] == e.counts[1:]).all(-1) for e in episodes]
    of_rule = np.array([rewards[xfers == x].mean() if (xfers == x).any() else 0 for x in range(4)])
    assert entry["starts"] == len(rewards)
    np.testing.assert_allclose(entry["no_change"]["cumulative_reward_error"], np.abs(rewards).mean(), rtol=1e-5)
    np.testing.assert_allclose(entry["rule_mean"]["reward_mae"], np.abs(rewards - of_rule[xfers]).mean(), rtol=1e-5)
    np.testing.assert_allclose(entry["no_change"]["counts_exact"], np.concatenate(unchanged).mean())


def test_the_table_is_json_and_markdown(trained):
    _, results = trained
    assert json.loads(json.dumps(results)) == results
    lines = markdown_table(results["fidelity"]).splitlines()
    assert len(lines) == 2 + 3 * 4
    assert len({line.count("|") - line.count("|Σ") * 2 for line in lines}) == 1
