"""Test `edits` with each reward function: it predicts rewards that depend on runtimes alone, and refuses the others."""

from functools import cache

import numpy as np
import pytest

from rlflow.collect.rollouts import play_random
from rlflow.common.errors import RLFlowError
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.rewards import REWARDS, incremental, make_reward, new_runtime, relative
from tests.commands import EDITS, in_process
from tests.suite import at_night, slow
from tests.toys.latencies import planted_reward
from tests.toys.systems import SIGNS_AND_PRODUCTS, fitted, said, signs_and_products, task_of
from tests.toys.tiny import tiny_task
from tests.worldmodel.edits.test_neighbourhood import Fused, with_cost
from worldmodel.base import UnpredictableRewardError
from worldmodel.edits.model import EditsWorldModel
from worldmodel.edits.reward_scales import RewardScales

ROUNDING = 1e-6  # Relative to the largest reward; episodes store float32.
PREDICTED = ("incremental", "relative", "new-runtime")


@pytest.fixture(scope="module")
def task():
    return tiny_task("tiny_squeezenet1_1")


def episodes_of(task, reward, n=12, seed=0):
    return [play_random(task, reward, 15, np.random.default_rng([seed, k]), k) for k in range(n)]


def shipped(name):
    return make_reward(name, 0.8, 0.2)


@cache
def few(name):
    """Return (a few episodes, a model fitted to them)."""
    task = tiny_task("tiny_squeezenet1_1")
    episodes = episodes_of(task, shipped(name))
    return episodes, fitted(episodes, task)


@cache
def learnt(name):
    """Return a model fitted to so much data that held-out episodes contain hardly anything new."""
    task = tiny_task("tiny_squeezenet1_1")
    return fitted(episodes_of(task, shipped(name), at_night(120, 60)), task)


def walked(task, reward, start, steps, seed=0):
    """Play random steps on the real graph; return their actions (the environment's numbering), rewards and start
    states."""
    env, rng = GraphRewriteEnv(task, reward, 100), np.random.default_rng(seed)
    env.restore_state((start, *env.save_state()[1:]))
    actions, rewards, states = [], [], []
    for _ in range(steps):
        valid = env.state.valid_actions()[:-1]
        states.append(env.state)
        actions.append(valid[rng.integers(len(valid))])
        rewards.append(env.step(actions[-1])[1])
    return actions, rewards, states


def dreamt(model, start, actions, states, temperature=0.0):
    """Return the rewards of the same actions in an imagined rollout, and the running sums in a searchable dream; each
    [steps]."""
    observer, imagined, state, rewards, sums = (
        model.observer(),
        model.imagine(start, 1),
        model.searchable(start, 0.25),
        [],
        [],
    )
    observer.begin(start)
    for t, (xfer_id, location) in enumerate(actions):
        own = next(
            k for k in range(observer.counts[xfer_id]) if observer.real_action((xfer_id, k)) == (xfer_id, location)
        )
        rewards.append(imagined.advance(np.array([[xfer_id, own]]), np.ones(1, bool), temperature, (7, t)).rewards[0])
        state = state.follow(state.match(xfer_id, own))
        sums.append(state.gained)
        observer.follow((xfer_id, own), states[t].apply(xfer_id, location))
    return np.array(rewards), np.array(sums)


BY_DAY = ("combined", "new-runtime")  # The first is refused, the second predicted.


@pytest.mark.parametrize("name", [*BY_DAY, *slow(*sorted(set(REWARDS) - {"measured", *BY_DAY}))])
def test_every_shipped_reward_is_predicted_or_refused(name):
    if name not in PREDICTED:
        with pytest.raises(UnpredictableRewardError, match="mdn-rnn"):
            few(name)
        return
    episodes, model = few(name)
    predicted = said(model, episodes)
    assert len(predicted.rewards) > 100 and predicted.reward_error <= ROUNDING * np.abs(predicted.real_rewards).max()
    assert model.calibration(episodes) == {"coverage_50": 1.0, "coverage_90": 1.0}


def test_calibration_predicts_a_bounded_number_of_steps_from_all_episodes(monkeypatch):
    episodes, model = few("new-runtime")
    monkeypatch.setattr("worldmodel.edits.model.CALIBRATION_STEPS", 7)
    asked, replayer = [], EditsWorldModel.replayer

    def noted(model, rows, starts, horizon):
        asked.extend(rows.tolist())
        return replayer(model, rows, starts, horizon)

    monkeypatch.setattr(EditsWorldModel, "replayer", noted)
    assert model.calibration(episodes) == {"coverage_50": 1.0, "coverage_90": 1.0}
    assert len(asked) == 7 and asked[0] == 0 and asked[-1] == len(episodes) - 1


@pytest.mark.parametrize("every", [5, *slow(1, None)])
def test_measured_rewards_are_refused(task, tmp_path, every):
    reward, _ = planted_reward(tmp_path, every)
    with pytest.raises(UnpredictableRewardError, match="mdn-rnn"):
        fitted(episodes_of(task, reward), task)


def test_a_reward_that_pays_only_no_op_is_refused(task, tmp_path):
    reward, _ = planted_reward(tmp_path, every=None)
    episodes = episodes_of(task, reward, at_night(40, 20))
    stopped = [one for one in episodes if one.actions[-1, 0] == task.no_op and len(one) > 1]
    assert stopped and not any(one.rewards[:-1].any() for one in stopped)
    with pytest.raises(UnpredictableRewardError, match="mdn-rnn"):
        RewardScales.learn(stopped, task.no_op)


@pytest.mark.parametrize("name", ["new-runtime", *slow("incremental", "relative")])
@pytest.mark.parametrize("before", [0, *slow(4)])
def test_a_dream_pays_the_real_rewards_from_any_start(task, name, before):
    model, start = learnt(name), task.initial
    for action in walked(task, shipped(name), start, before, 1)[0]:
        start = start.apply(*map(int, action))
    actions, real, states = walked(task, shipped(name), start, 10)
    rewards, sums = dreamt(model, start, actions, states)
    tolerance = ROUNDING * np.abs(real).max()
    assert (
        np.abs(real).max() > 0
        and rewards == pytest.approx(real, abs=tolerance)
        and sums == pytest.approx(np.cumsum(real), abs=10 * tolerance)
    )


@pytest.mark.nightly
def test_noise_belongs_to_the_runtime_of_a_state_and_adds_up():
    """Check that the noisy rewards of single steps add up to the noisy reward of all steps together."""
    task, paid = with_cost(task_of(signs_and_products(), SIGNS_AND_PRODUCTS), Fused()), []
    for reward in (incremental, new_runtime):
        model = fitted(episodes_of(task, reward, 80), task)
        for means in model.costs.neighbourhoods:
            means.spread = np.full_like(means.mean, 1e6)  # ps
        actions, real, states = walked(task, reward, task.initial, 6)
        paid.append(dreamt(model, task.initial, actions, states, 1.0)[0])
        assert np.abs(paid[-1] - real).min() > 0
    assert np.cumsum(paid[0]) == pytest.approx(paid[1], rel=1e-6)


@pytest.mark.nightly
def test_usual_rewards_do_not_depend_on_how_gains_are_rewarded():
    each, level = learnt("incremental").usual_rewards, learnt("new-runtime").usual_rewards
    assert each == pytest.approx(level, rel=1e-5) and np.abs(each).max() > 0


# -- rewards of a user -------------------------------------------------------------------------------


OWN = {
    "launches": lambda before, after, initial: float(before.cost.launches - after.cost.launches),
    "bytes": lambda before, after, initial: (before.cost.bytes - after.cost.bytes) / 1e6,
    "root": lambda before, after, initial: float(np.cbrt(before.objective - after.objective)),
    "a little of the bytes": lambda before, after, initial: (
        relative(before, after, initial) + 1e-6 * (before.cost.bytes - after.cost.bytes)
    ),
    "step and level": lambda before, after, initial: (
        incremental(before, after, initial) + new_runtime(before, after, initial)
    ),
}


@pytest.mark.parametrize("name", ["launches", "step and level", *slow("bytes", "root", "a little of the bytes")])
def test_a_custom_reward_that_is_no_multiple_of_a_gain_is_refused(task, name):
    with pytest.raises(UnpredictableRewardError):
        fitted(episodes_of(task, OWN[name]), task)


@pytest.mark.parametrize(
    "reward, level",
    [*slow((lambda b, a, i: -3.0 * relative(b, a, i), False)), (lambda b, a, i: 2.0 * new_runtime(b, a, i), True)],
)
def test_a_custom_reward_that_is_a_multiple_of_a_gain_is_predicted(task, reward, level):
    episodes = episodes_of(task, reward, at_night(12, 6))
    model = fitted(episodes, task)
    predicted = said(model, episodes)
    assert model.rewards.level == level and predicted.reward_error <= ROUNDING * np.abs(predicted.real_rewards).max()


def test_a_reward_of_zero_is_predicted_as_zero(task):
    episodes = episodes_of(task, lambda *_: 0.0, at_night(12, 4))
    assert not said(fitted(episodes, task), episodes).rewards.any()


def test_each_graph_has_its_own_scale_and_one_unpredictable_graph_is_refused(task):
    other = tiny_task("tiny_resnet18")
    both = [*episodes_of(task, relative), *episodes_of(other, relative)]
    learnt = RewardScales.learn(both, task.no_op)
    for of in (task, other):
        runtime = of.initial.cost.runtime_ps
        assert learnt.of(runtime).per_ps == pytest.approx(100 / runtime, rel=1e-6) and not learnt.level
    with pytest.raises(UnpredictableRewardError):
        RewardScales.learn([*episodes_of(task, relative), *episodes_of(other, shipped("combined"))], task.no_op)


def test_a_saved_model_pays_the_same(tmp_path):
    episodes, model = few("new-runtime")
    model.save(tmp_path)
    back = EditsWorldModel.load(tmp_path)
    assert back.rewards.level and np.array_equal(said(model, episodes).rewards, said(back, episodes).rewards)


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [(), *slow((("--iterations", "2"),))])
def test_train_wm_names_a_refused_reward_and_a_model_that_learns_it_and_writes_nothing(tmp_path, capsys, more):
    folder = tmp_path / "run"
    options = (*EDITS, "controller.name=random", "env.reward=combined")
    assert in_process(capsys, "collect", "--run", folder, "--model", "tiny_resnet18", *options).code == 0
    error = in_process(capsys, "train-wm", "--run", folder, *more, "iterations.interactions=200").error
    assert "env.reward=combined" in error and "world_model.name=mdn-rnn" in error
    assert not (folder / "train-wm.json").exists() and not list(folder.rglob("learnt.json"))


def test_a_combined_reward_of_the_runtime_alone_is_learnt(tmp_path, capsys):
    folder = tmp_path / "run"
    options = (*EDITS, "env.reward=combined", "env.alpha=1.0", "env.beta=0.0")
    assert in_process(capsys, "collect", "--run", folder, "--model", "tiny_resnet18", *options).code == 0
    assert in_process(capsys, "train-wm", "--run", folder).code == 0


def test_an_unpredictable_reward_error_is_an_rlflow_error():
    assert issubclass(UnpredictableRewardError, RLFlowError)
