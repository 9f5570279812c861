import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from worldmodel import network_parts

WEIGHTS, MEANS, SIGMAS = (0.7, 0.3), (-2.0, 1.0), (0.5, 0.25)


def known_mixture(copies: int) -> network_parts.Mixture:
    """Return a batch of `copies` equal mixtures, [copies, 2]."""
    fields = np.log(WEIGHTS), MEANS, np.log(SIGMAS)
    return network_parts.Mixture(*(tf.constant(np.tile(field, (copies, 1)), tf.float32) for field in fields))


def test_likelihood_is_the_density_of_the_mixture():
    x = np.linspace(-4, 3, 50).astype(np.float32)
    density = sum(
        w / (s * np.sqrt(2 * np.pi)) * np.exp(-0.5 * ((x - m) / s) ** 2)
        for w, m, s in zip(WEIGHTS, MEANS, SIGMAS, strict=True)
    )
    np.testing.assert_allclose(
        network_parts.log_likelihood(known_mixture(50), x), np.log(density), rtol=1e-4, atol=1e-5
    )


@pytest.mark.nightly
def test_maximum_likelihood_recovers_a_known_mixture():
    random = np.random.default_rng(0)
    component = random.choice(2, 4000, p=WEIGHTS)
    data = random.normal(np.array(MEANS)[component], np.array(SIGMAS)[component]).astype(np.float32)[:, None]
    parameters = tf.Variable([0.0, 0.0, -0.5, 0.5, 0.0, 0.0])
    optimiser = snt.optimizers.Adam(0.05)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(
                network_parts.log_likelihood(network_parts.mixture_from_parameters(parameters, 1, 2), data)
            )
        optimiser.apply(tape.gradient(loss, [parameters]), [parameters])

    for _ in range(400):
        step()
    result = network_parts.mixture_from_parameters(parameters, 1, 2)
    np.testing.assert_allclose(tf.nn.softmax(result.logits)[0], WEIGHTS, atol=0.03)
    np.testing.assert_allclose(result.mean[0], MEANS, atol=0.05)
    np.testing.assert_allclose(tf.exp(result.log_sigma)[0], SIGMAS, atol=0.03)


def mode_component(mixture: network_parts.Mixture) -> np.ndarray:
    """Return the mean of the most probable component, [.., D]."""
    component = np.argmax(mixture.logits, axis=-1)
    return np.take_along_axis(mixture.mean.numpy(), component[..., None], axis=-1)[..., 0]


def test_temperature_zero_gives_the_mode_component_whatever_the_seed():
    mixture = known_mixture(100)
    for seed in range(5):
        np.testing.assert_array_equal(network_parts.sample_mixture(mixture, 0.0, (seed, 0)), MEANS[0])
    np.testing.assert_array_equal(mode_component(mixture), MEANS[0])


def test_a_temperature_that_goes_to_zero_gives_the_mode():
    mixture = known_mixture(1000)
    distances = [np.abs(network_parts.sample_mixture(mixture, t, (1, 2)) - MEANS[0]).max() for t in (1e-2, 1e-4, 1e-8)]
    assert distances[0] > distances[1] > distances[2] and distances[2] < 1e-3


def test_a_temperature_of_only_the_logits_leaves_the_variances_as_they_are():
    mixture, size = known_mixture(40_000), 40_000
    for temperature in (0.5, 2.0):
        expected = np.array(WEIGHTS) ** (1 / temperature)
        expected /= expected.sum()
        drawn = network_parts.sample_mixture(mixture, temperature, (1, 2), scale_sigma=False).numpy()
        mean = expected @ MEANS
        variance = expected @ (np.square(SIGMAS) + np.square(MEANS)) - mean**2
        assert abs(drawn.mean() - mean) < 5 * np.sqrt(variance / size)
        np.testing.assert_allclose(drawn.var(), variance, rtol=0.05)
    np.testing.assert_array_equal(
        network_parts.sample_mixture(known_mixture(10), 0.0, (1, 2), scale_sigma=False), MEANS[0]
    )


def test_temperature_divides_the_logits_and_scales_the_variance():
    mixture, size = known_mixture(40_000), 40_000
    for temperature in (0.05, 0.5, 1.0, 2.0):
        expected = np.array(WEIGHTS) ** (1 / temperature)
        expected /= expected.sum()
        drawn = network_parts.sample_mixture(mixture, temperature, (1, 2)).numpy()
        mean = expected @ MEANS
        variance = expected @ (temperature * np.square(SIGMAS) + np.square(MEANS)) - mean**2
        assert abs(drawn.mean() - mean) < 5 * np.sqrt(variance / size) + 1e-6
        np.testing.assert_allclose(drawn.var(), variance, rtol=0.05)


def test_a_seed_repeats_and_another_differs():
    mixture = known_mixture(10)
    first, again, other = (
        network_parts.sample_mixture(mixture, 1.0, seed).numpy() for seed in ((3, 4), (3, 4), (3, 5))
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


def test_the_cumulative_probabilities_of_samples_are_uniform():
    """At τ = 1 a draw's cumulative probability is uniform: the model's own distribution, calibrated by definition."""
    mixture = known_mixture(40_000)
    below = network_parts.cumulative(mixture, network_parts.sample_mixture(mixture, 1.0, (5, 6))).numpy()
    for share in (0.1, 0.5, 0.9):
        assert abs((np.abs(below - 0.5) <= share / 2).mean() - share) < 0.01
        assert abs((below <= share).mean() - share) < 0.01
