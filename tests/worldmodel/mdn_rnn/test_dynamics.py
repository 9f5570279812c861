import numpy as np
import tensorflow as tf

from tests.toys import letters as toy
from worldmodel.mdn_rnn.batching import Steps, pack_episodes
from worldmodel.mdn_rnn.model import MDNRNNWorldModel


def packed(model: MDNRNNWorldModel, n: int = 6) -> Steps:
    episodes = toy.episodes(n, seed=5)
    return pack_episodes(episodes, model.encode([graph for episode in episodes for graph in episode.graphs]))


def tensors(steps: Steps) -> Steps:
    return Steps(*map(tf.constant, steps))


def test_the_loss_ignores_padding_exactly(trained):
    """Random values beyond the end of a sequence do not change a bit of the loss or of its gradient."""
    model, _ = trained
    steps, random = packed(model), np.random.default_rng(0)
    beyond = np.arange(steps.rewards.shape[1]) >= steps.length[:, None]
    beyond_states = np.arange(steps.z.shape[1]) > steps.length[:, None]
    assert beyond.any()
    garbage = steps._replace(
        z=np.where(beyond_states[..., None], random.normal(size=steps.z.shape), steps.z).astype(np.float32),
        counts=np.where(beyond_states[..., None], 3, steps.counts),
        actions=np.where(beyond[..., None], 1, steps.actions),
        rewards=np.where(beyond, np.float32(1e6), steps.rewards),
        terminated=np.where(beyond, np.float32(1), steps.terminated),
    )
    results = []
    for version in (steps, garbage):
        with tf.GradientTape() as tape:
            loss, _ = model.dynamics.loss(tensors(version), model.dynamics.initial_state(len(steps.length)))
        gradients = tape.gradient(loss, model.dynamics.trainable_variables)
        results.append([loss, *map(tf.convert_to_tensor, gradients)])
    for clean, dirty in zip(*results, strict=True):
        np.testing.assert_array_equal(clean, dirty)


def test_the_loss_does_not_depend_on_the_amount_of_padding(trained):
    model, _ = trained
    steps = packed(model)
    longer = Steps(*(
        np.pad(field, [(0, 0), (0, 7)] + [(0, 0)] * (field.ndim - 2)) if field.ndim > 1 else field for field in steps
    ))
    state = model.dynamics.initial_state(len(steps.length))
    losses = [model.dynamics.loss(tensors(version), state)[0] for version in (steps, longer)]
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_an_unrolled_episode_ends_in_the_same_state_as_single_steps(trained):
    """The state after an unrolled episode is the state after the same steps one by one."""
    model, _ = trained
    steps = packed(model)
    unrolled = model.dynamics.warm(tensors(steps._replace(length=np.full_like(steps.length, steps.rewards.shape[1]))))
    state = model.initial_state(len(steps.length))
    for t in range(steps.rewards.shape[1]):
        state = model.step(steps.z[:, t], steps.counts[:, t], steps.actions[:, t], state).state
    np.testing.assert_allclose(state.h, unrolled.hidden, atol=1e-5)
    np.testing.assert_allclose(state.c, unrolled.cell, atol=1e-5)


def test_the_state_of_a_finished_sequence_stays(trained):
    model, _ = trained
    steps = packed(model)
    shorter = Steps(*(field[:1] for field in steps))
    final = model.dynamics.warm(tensors(steps)).hidden[0]
    np.testing.assert_allclose(final, model.dynamics.warm(tensors(shorter)).hidden[0], atol=1e-5)


def test_the_losses_of_two_windows_average_to_the_loss_of_the_episode(trained):
    """The loss of an episode is the length-weighted mean of the loss of its first steps and the loss of the remaining
    window."""
    model, _ = trained
    steps, dynamics = packed(model), model.dynamics
    row, cut = np.array([int(steps.length.argmax())]), 3
    whole, before, after = (
        tensors(steps.window(row, np.array([start]), np.array([stop])))
        for start, stop in ((0, steps.length[row[0]]), (0, cut), (cut, steps.length[row[0]]))
    )
    total, _ = dynamics.loss(whole, dynamics.initial_state(1))
    first, _ = dynamics.loss(before, dynamics.initial_state(1))
    second, _ = dynamics.loss(after, dynamics.warm(before))
    n = int(steps.length[row[0]])
    np.testing.assert_allclose(total, (cut * first + (n - cut) * second) / n, rtol=1e-4)


def test_invalid_actions_are_left_out_of_the_sequences():
    episode = toy.episode(0)
    counts, actions = episode.counts, episode.actions.copy()
    z = np.arange(len(counts), dtype=np.float32)[:, None]
    actions[1] = 0, toy.SPEC.max_locations - 1  # No state of the toy has this location.
    episode.actions, episode.rewards = actions, np.where(np.arange(len(actions)) == 1, -100, episode.rewards)
    steps = pack_episodes([episode], z)
    assert steps.length[0] == len(episode) - 1
    assert -100 not in steps.rewards
    np.testing.assert_array_equal(steps.z[0, :, 0], np.delete(z[:, 0], 1))
