"""Standardisation by statistics of the training data, kept in non-trainable variables."""

import sonnet as snt
import tensorflow as tf

CLIP = 10.0  # standard deviations; beyond it an input tells no more than "far outside the training data"


class Normaliser(snt.Module):
    """x → (x − mean) / std per feature, clipped; a feature that never varied has std 1.

    `update` blends in the statistics of new data; a first update, or one of rate 1, replaces them.
    """

    def __init__(self, size: int, name: str | None = None):
        super().__init__(name)
        self.mean = tf.Variable(tf.zeros([size]), trainable=False, name="mean")
        self.variance = tf.Variable(tf.ones([size]), trainable=False, name="variance")
        self.low = tf.Variable(tf.fill([size], -float("inf")), trainable=False, name="low")
        self.high = tf.Variable(tf.fill([size], float("inf")), trainable=False, name="high")
        self.fitted = tf.Variable(False, trainable=False, name="fitted")

    def update(self, values: tf.Tensor, rate: float = 1.0) -> None:
        """Blends in the mean, variance and range of values [n, size]: the moments of the mixture of old and new."""
        rate = tf.where(self.fitted, rate, 1.0)
        mean, variance = tf.nn.moments(values, axes=[0])
        new_mean = self.mean + rate * (mean - self.mean)
        new_variance = (1 - rate) * self.variance + rate * variance + rate * (1 - rate) * tf.square(mean - self.mean)
        low, high = tf.reduce_min(values, 0), tf.reduce_max(values, 0)
        self.low.assign(tf.where(rate < 1, tf.minimum(self.low, low), low))
        self.high.assign(tf.where(rate < 1, tf.maximum(self.high, high), high))
        self.mean.assign(new_mean)
        self.variance.assign(new_variance)
        self.fitted.assign(True)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return standardise(x, self.mean, self.variance)

    def invert(self, x: tf.Tensor) -> tf.Tensor:
        """Back to the data's unit, and into the range that the training data had."""
        return tf.clip_by_value(x * _std(self.mean, self.variance) + self.mean, self.low, self.high)


def standardise(x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value((x - mean) / _std(mean, variance), -CLIP, CLIP)


def _std(mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    constant = variance <= 1e-9 * (1 + tf.square(mean))  # no more than float32 rounding leaves
    return tf.sqrt(tf.where(constant, 1.0, variance))
