import numpy as np
import tensorflow as tf

from worldmodel.network_parts import CLIP, ChangeFrequencies, Normaliser, RewardNormaliser


def test_fitted_data_have_mean_zero_and_variance_one():
    data = np.random.default_rng(0).normal([3, -20], [0.01, 7], (1000, 2)).astype(np.float32)
    normaliser = Normaliser(2)
    normaliser.update(data)
    standard = normaliser(data).numpy()
    np.testing.assert_allclose(standard.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(standard.std(0), 1, atol=1e-3)
    np.testing.assert_allclose(normaliser.invert(standard), data, rtol=1e-4)


def test_blending_gives_the_moments_of_the_mixture():
    random = np.random.default_rng(0)
    old, new = (random.normal(mean, 1, (100, 1)).astype(np.float32) for mean in (0, 5))
    normaliser = Normaliser(1)
    normaliser.update(old, 0.5)  # The first update replaces the initial statistics.
    normaliser.update(new, 0.5)
    both = np.concatenate([old, new])
    np.testing.assert_allclose(normaliser.mean, both.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normaliser.variance, both.var(0), rtol=1e-4)
    assert normaliser.low == both.min() and normaliser.high == both.max()


def test_a_constant_feature_stays_finite_and_an_outlier_is_clipped():
    normaliser = Normaliser(2)
    normaliser.update(np.array([[7.3, 0], [7.3, 1]], np.float32))
    np.testing.assert_allclose(normaliser(np.array([7.3, 1e9], np.float32)), [0, CLIP], atol=1e-5)


def test_invert_stays_in_the_range_of_the_data():
    normaliser = Normaliser(1)
    normaliser.update(np.array([[-1.0], [2.0]], np.float32))
    np.testing.assert_array_equal(normaliser.invert(np.array([[-9.0], [9.0]], np.float32)), [[-1], [2]])


def test_a_reward_never_leaves_the_range_of_its_rule():
    rewards, xfer_ids = np.float32([1.0, 3.0, -2.0, -4.0]), np.int32([0, 0, 1, 1])
    statistics = RewardNormaliser(3)
    statistics.update(rewards, xfer_ids)
    np.testing.assert_allclose(statistics.mean.numpy(), [2.0, -3.0, 0.0])
    np.testing.assert_allclose(statistics.invert(statistics(rewards, xfer_ids), xfer_ids), rewards, rtol=1e-6)
    for wild in (-1e6, 1e6):
        predicted = statistics.invert(tf.fill([3], wild), tf.constant([0, 1, 2])).numpy()
        np.testing.assert_allclose(predicted, [1.0, -4.0, 0.0] if wild < 0 else [3.0, -2.0, 0.0])


def test_reward_totals_of_a_stream_equal_the_totals_of_one_batch():
    random = np.random.default_rng(0)
    rewards, xfer_ids = random.normal(size=60).astype(np.float32), random.integers(0, 4, 60).astype(np.int32)
    whole, stream = RewardNormaliser(5), RewardNormaliser(5)
    whole.update(rewards, xfer_ids)
    for part in np.split(np.arange(60), 6):
        stream.update(rewards[part], xfer_ids[part], 0.05)
    for name in ("count", "mean", "low", "high"):
        np.testing.assert_allclose(getattr(stream, name).numpy(), getattr(whole, name).numpy(), rtol=1e-5)


def test_the_most_frequent_change_of_an_action_is_the_expected_one():
    frequencies = ChangeFrequencies(n_actions=3, n_rules=2, n_changes=5)
    frequencies.update(tf.constant([[1, 2], [1, 2], [1, 4]]), tf.constant([0, 0, 0]))
    logits = frequencies(tf.constant([0, 1])).numpy()
    assert logits[0].argmax(axis=-1).tolist() == [1, 2]
    assert logits[1].argmax(axis=-1).tolist() == [2, 2], "an action never seen is believed to change nothing"
    np.testing.assert_allclose(np.exp(logits).sum(axis=-1), 1.0, rtol=1e-5)
    frequencies.update(tf.constant([[3, 2]]), tf.constant([0]), rate=1.0)
    assert frequencies(tf.constant([0])).numpy()[0, 0].argmax() == 3, "rate 1 begins anew"
