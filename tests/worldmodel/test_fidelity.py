import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import spearmanr

from tests.toys import letters as toy
from tests.toys.oracle import Oracle
from worldmodel import fidelity as module
from worldmodel import train_and_load as trainings
from worldmodel.fidelity import ERRORS, PREDICTORS, fidelity, fidelity_by_model, improvement, model_key
from worldmodel.fidelity_report import fidelity_table, training_page, worst_model, write_fidelity

EPISODES = toy.episodes(40, seed=9)
HORIZONS = (1, 3, 5, 99)


def measured(model=None, **options) -> dict:
    return fidelity(model or Oracle(), EPISODES, horizons=HORIZONS, rank_steps=4, **options)


@pytest.mark.nightly
def test_a_trained_model_learns_the_toy(trained):
    """Open loop on held-out episodes, the trained model is far better than the baselines; its training results say so,
    too."""
    model, results = trained
    result = fidelity(model, toy.episodes(60, seed=9), horizons=(1, 5), rank_steps=5)
    for horizon, entry in result["horizons"].items():
        assert entry["model"]["mask_exact"] >= 0.95, (horizon, entry)
        error, *baselines = (entry[name]["cumulative_reward_error"] for name in PREDICTORS)
        assert error < 0.5 * min(baselines), (horizon, entry)
    assert result["horizons"]["1"]["model"]["reward_r2"] > 0.95
    assert result["horizons"]["1"]["model"]["termination_accuracy"] == 1
    assert result["ranks"]["anywhere"]["model"]["concordance"] == 1
    assert results["fidelity"]["horizons"]["1"]["model"]["mask_exact"] >= 0.95
    assert json.loads(json.dumps(results)) == results


def test_an_exact_model_has_no_error_at_any_horizon():
    result = measured()
    for starts in ("horizons", "first"):
        for horizon in ("1", "3", "5"):
            errors = result[starts][horizon]["model"]
            assert {errors[key] for key in ERRORS[:3]} == {0}
            assert {errors[key] for key in ERRORS[3:]} == {1}
            assert result[starts][horizon]["uncertain"] == 0
            assert result[starts][horizon]["certain"] == {"starts": result[starts][horizon]["starts"], **errors}
    for starts in ("anywhere", "first"):
        assert result["ranks"][starts]["model"]["correlation"] == pytest.approx(1)
        assert result["ranks"][starts]["model"]["interval"] == pytest.approx([1, 1])
    assert result["calibration"] == {"coverage_50": 0.5, "coverage_90": 0.9}


class PoorOnOne(Oracle):
    """A model that predicts half of the rewards of the episodes that begin at one graph."""

    def __init__(self, key: str):
        super().__init__()
        self.key = key

    def _stretch(self, episode, start, horizon):
        self.factor = 0.5 if model_key(episode) == self.key else 1.0
        return super()._stretch(episode, start, horizon)


def test_poor_predictions_on_one_graph_are_shown_separately():
    # With one graph there is no average that could hide it.
    assert fidelity_by_model(Oracle(), EPISODES, horizons=(1,), rank_steps=4) == {}
    odd = [replace(episode, costs=episode.costs + 1.0) for episode in EPISODES[::3]]
    result = fidelity_by_model(PoorOnOne(model_key(odd[0])), EPISODES + odd, horizons=(1,), rank_steps=4)
    assert list(result) == [model_key(EPISODES[0]), model_key(odd[0])]
    one, other = (entry["horizons"]["1"]["model"]["cumulative_reward_relative"] for entry in result.values())
    assert one == 0 and other == 0.5 and result[model_key(odd[0])]["episodes"] == len(odd)
    page = training_page(result[model_key(odd[0])], result)
    assert all(f"## {key}: " in page for key in result)
    result[model_key(odd[0])]["horizons"]["1"]["model"]["mask_exact"] = 0.5
    assert worst_model(result)[0] == model_key(odd[0])


class Asked(Oracle):
    """A model that remembers the questions of its last replay, as (row, start)."""

    def replay(self, episodes, rows, starts, horizon):
        self.asked = set(zip(rows.tolist(), starts.tolist(), strict=True))
        return super().replay(episodes, rows, starts, horizon)


def test_copied_steps_are_judged_only_if_copies_are_included():
    copied = [replace(episode, copied=k % len(episode)) for k, episode in enumerate(EPISODES)]
    assert max(episode.copied for episode in copied) > 2
    for copies in (True, False):
        model = Asked()
        fidelity(model, copied, horizons=(1,), rank_steps=4, copies=copies)
        expected = set()
        for row, episode in enumerate(copied):
            expected |= {(row, start) for start in range(0 if copies else episode.copied, len(episode))}
        assert model.asked == expected


def test_a_training_is_judged_by_the_steps_that_only_held_out_episodes_played(monkeypatch, tmp_path):
    model, config, held_out = Asked(), SimpleNamespace(name="asked", mode="offline"), []
    monkeypatch.setattr(trainings.TRAININGS, "get", lambda name: lambda *_: trainings.Trained(model, held_out, {}))
    held_out += [replace(episode, copied=len(episode)) for episode in EPISODES[:2]]
    assert trainings.train(config, toy.SPEC, iter, tmp_path, 0)["fidelity"] is None
    held_out.append(replace(EPISODES[2], copied=1))
    assert trainings.train(config, toy.SPEC, iter, tmp_path, 0)["fidelity"]["episodes"] == 1
    assert model.asked == {(0, start) for start in range(1, len(EPISODES[2]))}


def test_a_horizon_that_no_episode_reaches_has_no_figures():
    entry = measured()["horizons"]["99"]
    assert entry["starts"] == 0 and entry["uncertain"] is None
    assert all(value is None for name in PREDICTORS for value in entry[name].values())


def test_a_reward_that_is_ten_percent_off_is_ten_percent_off():
    """A model that multiplies every reward by 1.1 has a relative error of 0.1, the MAE of 10 % and perfect ranks."""
    result, rewards = measured(Oracle(factor=1.1)), np.concatenate([e.rewards for e in EPISODES])
    for horizon in ("1", "3"):
        assert result["horizons"][horizon]["model"]["cumulative_reward_relative"] == pytest.approx(0.1)
    assert result["horizons"]["1"]["model"]["reward_mae"] == pytest.approx(0.1 * np.abs(rewards).mean())
    unexplained = 0.01 * np.square(rewards).sum() / rewards.var() / rewards.size
    assert result["horizons"]["1"]["model"]["reward_r2"] == pytest.approx(1 - unexplained)
    assert result["ranks"]["anywhere"]["model"]["correlation"] == pytest.approx(1)
    gained = improvement(Oracle(factor=1.1), EPISODES)
    assert gained["relative_error"] == pytest.approx(0.1)
    assert gained["real"] == pytest.approx([e.rewards.sum() for e in EPISODES])
    assert gained["predicted"] == pytest.approx(1.1 * np.array(gained["real"]))
    assert measured(Oracle(factor=-1))["ranks"]["anywhere"]["model"]["correlation"] == pytest.approx(-1)


def test_errors_count_the_step_at_the_horizon_and_uncertainty_all_steps_up_to_it():
    """Test a model that is wrong and uncertain from its fourth step on: perfect at horizon 3, wrong in every count at
    5."""
    result = measured(Oracle(wrong_after=3))["horizons"]
    assert result["3"]["model"]["counts_exact"] == 1 and result["3"]["uncertain"] == 0
    wrong = result["5"]
    assert wrong["model"]["counts_exact"] == wrong["model"]["counts_of_rules"] == 0
    # The wrong counts are all positive, so every rule is shown.
    assert wrong["model"]["mask_recall"] == 1 and wrong["model"]["mask_precision"] < 1
    assert wrong["uncertain"] == pytest.approx(2 / 5)
    assert wrong["certain"]["starts"] == 0 and wrong["certain"]["counts_exact"] is None
    assert measured(Oracle(wrong_after=3), uncertainty_limit=1.0)["horizons"]["5"]["uncertain"] == 0


def test_masks_are_judged_by_precision_recall_and_f1():
    """Predicted counts that are all too high have the precision and recall that are computed by hand."""
    shown = np.concatenate([e.counts[1:] for e in EPISODES])
    errors = measured(Oracle(wrong_after=0))["horizons"]["1"]["model"]
    precision = (shown > 0).mean()
    assert errors["mask_precision"] == pytest.approx(precision) and errors["mask_recall"] == 1
    assert errors["mask_f1"] == pytest.approx(2 * precision / (1 + precision))
    assert errors["mask_exact"] == pytest.approx((shown > 0).all(axis=1).mean())


def test_the_share_of_exact_rules_omits_rules_without_a_location():
    after = np.concatenate([e.counts[1:] for e in EPISODES])
    before = np.concatenate([e.counts[:-1] for e in EPISODES])
    either = (after > 0) | (before > 0)
    errors = measured()["horizons"]["1"]["no_change"]
    assert errors["counts_of_rules"] == pytest.approx((after == before)[either].mean())
    assert errors["counts_exact"] == pytest.approx((after == before).all(axis=1).mean())


def test_the_baselines_have_the_errors_of_their_definitions():
    """The no-change error over one step is the mean |reward|; the rule means come from the training episodes."""
    rewards = np.concatenate([e.rewards for e in EPISODES])
    xfer_ids = np.concatenate([e.actions[:, 0] for e in EPISODES])
    for training in (None, toy.episodes(7, seed=1)):
        theirs = np.concatenate([e.rewards for e in training or EPISODES])
        played = np.concatenate([e.actions[:, 0] for e in training or EPISODES])
        of_rule = np.array([theirs[played == x].mean() if (played == x).any() else 0 for x in range(4)])
        entry = measured(training=training)["horizons"]["1"]
        assert entry["starts"] == len(rewards)
        assert entry["no_change"]["cumulative_reward_error"] == pytest.approx(np.abs(rewards).mean())
        assert entry["no_change"]["cumulative_reward_relative"] == pytest.approx(1)
        assert entry["rule_mean"]["reward_mae"] == pytest.approx(np.abs(rewards - of_rule[xfer_ids]).mean(), rel=1e-5)
        ends = np.concatenate([e.terminated for e in EPISODES]).mean()
        assert entry["no_change"]["termination_accuracy"] == pytest.approx(1 - ends)


def test_an_end_by_no_op_counts_as_predicted_for_every_model():
    """The oracle itself predicts no end, and still every end by NO-OP counts as predicted."""
    assert any(e.terminated.any() for e in EPISODES)
    assert measured()["horizons"]["1"]["model"]["termination_accuracy"] == 1


def test_first_starts_count_each_long_enough_episode_once():
    result = measured()
    assert result["first"]["1"]["starts"] == len(EPISODES)
    assert result["first"]["5"]["starts"] == sum(len(e) >= 5 for e in EPISODES)
    assert result["horizons"]["5"]["starts"] == sum(max(0, len(e) - 4) for e in EPISODES)


def test_many_starts_are_thinned_evenly(monkeypatch):
    monkeypatch.setattr(module, "MOST_STARTS", 20)
    assert measured()["horizons"]["1"]["starts"] == 20


def test_ranks_agree_with_scipy_and_ties_are_ties():
    result = fidelity(Oracle(), EPISODES, horizons=(1,), rank_steps=4)["ranks"]["anywhere"]
    assert result["sequences"] == min(200, sum(max(0, len(e) - 3) for e in EPISODES))
    said = result["rule_mean"]["returns"]
    expected = spearmanr(np.round(result["real"], 3), np.round(said, 3)).statistic
    assert result["rule_mean"]["correlation"] == pytest.approx(expected, abs=1e-3)
    low, high = result["rule_mean"]["interval"]
    assert low <= result["rule_mean"]["correlation"] <= high and high - low > 0
    real = np.array([1.0, 1.0, 2.0, 3.0])
    nearly = real + np.array([1e-7, -1e-7, 1e-7, 0])
    assert module._rank_correlation(real, nearly, np.arange(4), 0)[0] == pytest.approx(1)
    assert module._rank_correlation(real, np.ones(4), np.arange(4), 0) == (None, None)
    assert module._concordance(real, real + [0.0, 0.01, 0, 0]) == 1  # The order of equal returns does not matter.
    assert module._concordance(real, np.array([0.0, 2, 1, 3])) == 4 / 5
    assert module._concordance(real, np.ones(4)) == 1 / 2 and module._concordance(np.ones(4), real) is None


def test_copied_stretches_do_not_narrow_the_confidence_interval():
    """Ten copies of each stretch do not make the confidence interval narrower as ten times the data would."""
    random = np.random.default_rng(0)
    real = random.standard_normal(30)
    said = real + random.standard_normal(30)
    once = module._rank_correlation(real, said, np.arange(30), 0)[1]
    copied = module._rank_correlation(np.repeat(real, 10), np.repeat(said, 10), np.repeat(np.arange(30), 10), 0)[1]
    assert copied[1] - copied[0] > 0.8 * (once[1] - once[0])


def test_a_bootstrap_sample_has_the_rank_correlation_of_its_repeated_stretches():
    random = np.random.default_rng(0)
    real, said = (np.round(random.standard_normal(20), 1) for _ in range(2))
    times = random.integers(3, size=(9, 20))
    expected = [spearmanr(np.repeat(real, row), np.repeat(said, row)).statistic for row in times]
    assert module._spearman(real, said, times) == pytest.approx(expected)
    assert np.isnan(module._spearman(real, said, np.eye(20)[:1]))


def test_episodes_too_short_to_rank_give_no_ranks():
    result = fidelity(Oracle(), EPISODES, horizons=(1,))["ranks"]
    assert result["first"]["sequences"] == 0 and result["anywhere"]["model"]["correlation"] is None


def test_episodes_without_rewards_have_no_relative_error():
    quiet = [e for e in toy.episodes(200, seed=3) if not e.rewards.any()]
    assert quiet and improvement(Oracle(), quiet)["relative_error"] is None


def test_the_result_is_json_and_the_same_twice():
    result = measured(Oracle(factor=0.9, wrong_after=2))
    assert json.loads(json.dumps(result, allow_nan=False)) == result == measured(Oracle(factor=0.9, wrong_after=2))


def test_the_table_has_a_row_for_each_horizon_that_was_reached():
    sure, uncertain = measured(), measured(Oracle(wrong_after=3))
    assert len(fidelity_table(sure).splitlines()) == 2 + 2 * 3 * 3
    lines = fidelity_table(uncertain).splitlines()
    assert len(lines) == 2 + 2 * (3 * 3 + 1)  # At horizon 5 the model's certain predictions have a row of their own.
    assert len({line.count("|") for line in lines}) == 1


def test_the_report_is_markdown_with_a_plot(tmp_path):
    controller = measured(Oracle(factor=0.9)) | {"improvement": improvement(Oracle(factor=0.9), EPISODES[:2])}
    short = fidelity(Oracle(), EPISODES)
    path = write_fidelity(tmp_path, {"random": measured(), "controller": controller, "short": short})
    text = path.read_text()
    assert f"## random: {len(EPISODES)} episodes" in text and "relative error 0.1" in text and "coverage_90 0.9" in text
    assert (tmp_path / "world-model.png").read_bytes().startswith(b"\x89PNG")
