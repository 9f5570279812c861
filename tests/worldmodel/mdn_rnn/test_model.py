import dataclasses

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_arrays, write_arrays
from tests.toys import letters as toy
from worldmodel import TRAININGS, WORLD_MODELS
from worldmodel.dream import DreamEnv
from worldmodel.mdn_rnn.model import MDNRNNWorldModel


def test_every_registered_world_model_imports():
    assert list(WORLD_MODELS) == list(TRAININGS)
    assert all(WORLD_MODELS.get(name) and TRAININGS.get(name) for name in WORLD_MODELS)


def test_save_and_load_change_nothing(trained, tmp_path):
    model, _ = trained
    model.save(tmp_path / "a")
    again = MDNRNNWorldModel.load(tmp_path / "a", toy.SPEC)
    again.save(tmp_path / "b")
    for name in ("model.json", "weights.npz"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    graphs = toy.episode(0).graphs
    np.testing.assert_array_equal(model.encode(graphs), again.encode(graphs))


@pytest.mark.parametrize(("name", "was", "now"), [("n_rules", 3, 7), ("version", 1, 2)])
def test_another_encoding_is_refused_with_one_clear_line(trained, tmp_path, name, was, now):
    model, _ = trained
    model.save(tmp_path)
    other = dataclasses.replace(toy.SPEC, **{name: now})
    with pytest.raises(RLFlowError, match=f"made for another encoding: {name} is {was}, not {now}$") as error:
        MDNRNNWorldModel.load(tmp_path, other)
    assert "\n" not in str(error.value)


def test_weights_of_another_shape_are_refused(trained, tmp_path):
    model, _ = trained
    model.save(tmp_path)
    arrays = read_arrays(tmp_path / "weights.npz")
    name = next(name for name in arrays if arrays[name].ndim == 2)
    write_arrays(tmp_path / "weights.npz", arrays | {name: np.zeros((2, 2))})
    with pytest.raises(RLFlowError, match=f"'{name}' has shape"):
        MDNRNNWorldModel.load(tmp_path)
    del arrays[name]
    write_arrays(tmp_path / "weights.npz", arrays)
    with pytest.raises(RLFlowError, match=f"lacks '{name}'"):
        MDNRNNWorldModel.load(tmp_path)


def test_a_missing_or_damaged_folder_is_a_clear_error(trained, tmp_path):
    with pytest.raises(RLFlowError, match="cannot read"):
        MDNRNNWorldModel.load(tmp_path)
    trained[0].save(tmp_path)
    (tmp_path / "weights.npz").write_bytes((tmp_path / "weights.npz").read_bytes()[:1000])
    with pytest.raises(RLFlowError, match="cannot read"):
        MDNRNNWorldModel.load(tmp_path)


@pytest.mark.nightly
def test_a_replay_is_the_dream_of_the_recorded_actions(trained):
    """From the start of an episode, a replay predicts the same as a dream at temperature 0 with the same actions."""
    model, _ = trained
    episode = next(e for e in toy.episodes(20) if e.terminated[-1] and len(e) > 4)
    replay = model.replay([toy.episode(1), episode], np.array([1]), np.array([0]), len(episode))
    env = DreamEnv(model, toy.ToyState(toy.START), temperature=0.0)
    env.reset(seed=0)
    for k, action in enumerate(episode.actions):
        observation, reward, terminated, *_ = env.step(action)
        if reward == -100:  # The dream has refused the recorded action, so the two differ from here on.
            break
        np.testing.assert_allclose(replay.rewards[0, k], reward, atol=1e-4)
        np.testing.assert_array_equal(replay.counts[0, k], observation["counts"][:-1])
        assert replay.terminated[0, k] == terminated
    assert k == len(episode) - 1


def test_a_replay_starts_at_the_given_step_with_the_hidden_state_of_earlier_steps(trained):
    """Replay one step from each step of an episode: the start state is real, and the hidden state has seen the earlier
    steps."""
    model, _ = trained
    episode = next(e for e in toy.episodes(20) if len(e) > 5)
    starts = np.arange(len(episode))
    replay = model.replay([episode], np.zeros_like(starts), starts, 1)
    z, state = model.encode(episode.graphs), model.initial_state(1)
    for t in starts:
        step = model.step(z[t][None], episode.counts[t][None], episode.actions[t][None], state)
        state = step.state
        if episode.actions[t][0] < toy.SPEC.n_rules:
            np.testing.assert_allclose(replay.rewards[t, 0], step.reward[0], atol=1e-4)
            np.testing.assert_array_equal(replay.counts[t, 0], step.shown_counts[0])
            assert replay.terminated[t, 0] == (step.terminated[0] > 0.5)


def test_an_invalid_action_in_a_replay_costs_and_changes_nothing(trained):
    model, _ = trained
    episode = toy.episode(0)
    again = dataclasses.replace(
        episode, actions=np.insert(episode.actions, 1, [0, toy.SPEC.max_locations - 1], 0),
        rewards=np.insert(episode.rewards, 1, -100),
        counts=np.insert(episode.counts, 1, episode.counts[1], 0), graphs=[*episode.graphs[:2], *episode.graphs[1:]],
        terminated=np.insert(episode.terminated, 1, False),
    )  # fmt: skip
    clean = model.replay([episode], np.array([0, 0]), np.array([0, 1]), 3)
    dirty = model.replay([again], np.array([0, 0]), np.array([0, 2]), 4)
    assert dirty.rewards[0, 1] == -100
    np.testing.assert_array_equal(dirty.counts[0, 1], dirty.counts[0, 0])
    np.testing.assert_allclose(np.delete(dirty.rewards[0], 1), clean.rewards[0], atol=1e-5)
    np.testing.assert_allclose(dirty.rewards[1, :3], clean.rewards[1], atol=1e-5)


def test_calibration_values_are_shares_that_grow_with_the_interval(trained):
    half, most = trained[0].calibration(toy.episodes(20, seed=9)).values()
    assert 0 < half < most <= 1
