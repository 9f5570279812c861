import numpy as np

from worldmodel.normaliser import CLIP, Normaliser


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
    normaliser.update(old, 0.5)  # the first update replaces
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
