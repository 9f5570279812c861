"""Mixtures of Gaussians, one per latent dimension (Ha & Schmidhuber 2018; Bishop 1994)."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

MIN_LOG_SIGMA, MAX_LOG_SIGMA = -2.0, 4.0  # in units of a standardised target


class Mixture(NamedTuple):
    """D independent mixtures of K Gaussians. All fields are [.., D, K]."""

    logits: tf.Tensor
    mean: tf.Tensor
    log_sigma: tf.Tensor


def mixture_from_parameters(
    parameters: tf.Tensor, size: int, gaussians: int, least_log_sigma: float = MIN_LOG_SIGMA
) -> Mixture:
    """Parameters [.., D · 3 · K], as a linear layer gives them, to D mixtures of K."""
    shape = tf.concat([tf.shape(parameters)[:-1], [size, 3 * gaussians]], axis=0)
    logits, mean, log_sigma = tf.split(tf.reshape(parameters, shape), 3, axis=-1)
    return Mixture(logits, mean, tf.clip_by_value(log_sigma, least_log_sigma, MAX_LOG_SIGMA))


def log_likelihood(mixture: Mixture, x: tf.Tensor) -> tf.Tensor:
    """log p(x) of each dimension: x [.., D] to [.., D]."""
    deviation = (x[..., None] - mixture.mean) * tf.exp(-mixture.log_sigma)
    log_normal = -0.5 * tf.square(deviation) - mixture.log_sigma - 0.5 * np.log(2 * np.pi)
    return tf.reduce_logsumexp(tf.nn.log_softmax(mixture.logits) + log_normal, axis=-1)


def cumulative(mixture: Mixture, x: tf.Tensor) -> tf.Tensor:
    """P(X ≤ x) of each dimension: x [.., D] to [.., D]."""
    deviation = (x[..., None] - mixture.mean) * tf.exp(-mixture.log_sigma)
    below = 0.5 * (1 + tf.math.erf(deviation / np.sqrt(2)))
    return tf.reduce_sum(tf.nn.softmax(mixture.logits) * below, axis=-1)


def sample(mixture: Mixture, temperature: tf.Tensor, seed: tf.Tensor, scale_sigma: bool = True) -> tf.Tensor:
    """A draw at temperature τ, [.., D]; seed is int [2]. τ = 1 is the model's own distribution.

    The component comes from softmax(logits / τ) (RLFlow, section 3.3.2), by the Gumbel trick argmax(logits + τ g),
    which holds at τ = 0 too. With `scale_sigma` the standard deviation is σ √τ (Ha & Schmidhuber), else σ. τ = 0 is
    deterministic in either case: the mode component's mean.
    """
    seeds = tf.random.split(seed, 2)
    uniform = tf.random.stateless_uniform(tf.shape(mixture.logits), seeds[0], minval=1e-7, maxval=1.0)
    gumbel = -tf.math.log(-tf.math.log(uniform))
    component = tf.argmax(mixture.logits + temperature * gumbel, axis=-1)
    mean, sigma = _pick(mixture.mean, component), tf.exp(_pick(mixture.log_sigma, component))
    scale = tf.sqrt(temperature) if scale_sigma else tf.sign(temperature)
    return mean + scale * sigma * tf.random.stateless_normal(tf.shape(mean), seeds[1])


def _pick(values: tf.Tensor, component: tf.Tensor) -> tf.Tensor:
    return tf.gather(values, component, batch_dims=component.shape.rank)
