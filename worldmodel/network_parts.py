"""Parts of networks that the world models share: message passing, mixtures of Gaussians, and normalisers.

Message passing follows graph_nets (Battaglia et al. 2018). A mixture has one distribution for each latent dimension
(Bishop 1994; Ha & Schmidhuber 2018), and the temperature of a dream divides its logits (RLFlow, section 3.3.2).

A normaliser standardises by statistics of the training data, which non-trainable variables hold.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf
from graph_nets import modules
from graph_nets.graphs import GraphsTuple


def full_step(width: int, pooled: Callable) -> modules.GraphNetwork:
    """Return a full graph network block.

    Edges are updated from their ends, nodes from incoming and outgoing edges, and globals from nodes and edges.

    Args:
      width: size of every embedding.
      pooled: reduces nodes and edges to one vector per graph.
    """
    model = _model_of(width)
    return modules.GraphNetwork(
        model, model, model,
        node_block_opt={"use_sent_edges": True},
        global_block_opt={"nodes_reducer": pooled, "edges_reducer": pooled},
    )  # fmt: skip


def messages(width: int) -> modules.InteractionNetwork:
    """Return an interaction network of this width: edges from their ends, nodes from incoming edges."""
    model = _model_of(width)
    return modules.InteractionNetwork(model, model)


def _model_of(width: int) -> Callable[[], snt.Module]:
    def model() -> snt.Module:
        return snt.Sequential([snt.nets.MLP([width, width]), snt.LayerNorm(-1, True, True)])

    return model


def processed(graphs: GraphsTuple, steps: list[modules.GraphNetwork]) -> GraphsTuple:
    """Apply the steps in turn, each with a residual connection."""
    for core in steps:
        update = core(graphs)
        graphs = graphs.replace(
            nodes=graphs.nodes + update.nodes,
            edges=graphs.edges + update.edges,
            globals=graphs.globals + update.globals,
        )
    return graphs


MIN_LOG_SIGMA, MAX_LOG_SIGMA = -2.0, 4.0  # in units of a standardised target


class Mixture(NamedTuple):
    """D independent mixtures of K Gaussians. All fields are [.., D, K]."""

    logits: tf.Tensor
    mean: tf.Tensor
    log_sigma: tf.Tensor


def mixture_from_parameters(
    parameters: tf.Tensor, size: int, gaussians: int, least_log_sigma: float = MIN_LOG_SIGMA
) -> Mixture:
    """Split the outputs of a linear layer into mixtures.

    Args:
      parameters: float32 [.., D · 3 · K].
      size: D.
      gaussians: K.
      least_log_sigma: lower bound of log σ.
    """
    shape = tf.concat([tf.shape(parameters)[:-1], [size, 3 * gaussians]], axis=0)
    logits, mean, log_sigma = tf.split(tf.reshape(parameters, shape), 3, axis=-1)
    return Mixture(logits, mean, tf.clip_by_value(log_sigma, least_log_sigma, MAX_LOG_SIGMA))


def log_likelihood(mixture: Mixture, x: tf.Tensor) -> tf.Tensor:
    """Return log p(x) per dimension: x [.., D] to [.., D]."""
    deviation = (x[..., None] - mixture.mean) * tf.exp(-mixture.log_sigma)
    log_normal = -0.5 * tf.square(deviation) - mixture.log_sigma - 0.5 * np.log(2 * np.pi)
    return tf.reduce_logsumexp(tf.nn.log_softmax(mixture.logits) + log_normal, axis=-1)


def cumulative(mixture: Mixture, x: tf.Tensor) -> tf.Tensor:
    """Return P(X ≤ x) per dimension: x [.., D] to [.., D]."""
    deviation = (x[..., None] - mixture.mean) * tf.exp(-mixture.log_sigma)
    below = 0.5 * (1 + tf.math.erf(deviation / np.sqrt(2)))
    return tf.reduce_sum(tf.nn.softmax(mixture.logits) * below, axis=-1)


def sample_mixture(mixture: Mixture, temperature: tf.Tensor, seed: tf.Tensor, scale_sigma: bool = True) -> tf.Tensor:
    """Draw a sample at temperature τ.

    The component comes from softmax(logits / τ) (RLFlow, section 3.3.2) by the Gumbel trick argmax(logits + τ g), which
    also works at τ = 0.

    Args:
      mixture: D mixtures of K Gaussians; τ = 1 samples their own distribution.
      temperature: τ; 0 gives the mean of the most likely component.
      seed: int [2].
      scale_sigma: use the standard deviation σ √τ (Ha & Schmidhuber) instead of σ.

    Returns:
      float32 [.., D].
    """
    seeds = tf.random.split(seed, 2)
    uniform = tf.random.stateless_uniform(tf.shape(mixture.logits), seeds[0], minval=1e-7, maxval=1.0)
    gumbel = -tf.math.log(-tf.math.log(uniform))
    component = tf.argmax(mixture.logits + temperature * gumbel, axis=-1)
    mean, sigma = _of_component(mixture.mean, component), tf.exp(_of_component(mixture.log_sigma, component))
    scale = tf.sqrt(temperature) if scale_sigma else tf.sign(temperature)
    return mean + scale * sigma * tf.random.stateless_normal(tf.shape(mean), seeds[1])


def _of_component(values: tf.Tensor, component: tf.Tensor) -> tf.Tensor:
    return tf.gather(values, component, batch_dims=component.shape.rank)


CLIP = 10.0  # standard deviations; an input beyond this is just "far outside the training data"


class Normaliser(snt.Module):
    """A per-feature standardisation x → (x − mean) / std, clipped. A constant feature has std 1.

    `update` blends in the statistics of new data. The first update, or an update with rate 1, replaces them.
    """

    def __init__(self, size: int, name: str | None = None):
        super().__init__(name)
        self.mean = tf.Variable(tf.zeros([size]), trainable=False, name="mean")
        self.variance = tf.Variable(tf.ones([size]), trainable=False, name="variance")
        self.low = tf.Variable(tf.fill([size], -float("inf")), trainable=False, name="low")
        self.high = tf.Variable(tf.fill([size], float("inf")), trainable=False, name="high")
        self.fitted = tf.Variable(False, trainable=False, name="fitted")

    def update(self, values: tf.Tensor, rate: float = 1.0) -> None:
        """Blend in the mean, variance and range of values [n, size], as moments of the mixture of old and new data."""
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
        """Return x in the data's unit, clipped to the range of the training data."""
        return tf.clip_by_value(x * _std(self.mean, self.variance) + self.mean, self.low, self.high)


class RewardNormaliser(snt.Module):
    """Rewards as deviations from the mean reward of their rule, in units of a common std.

    A prediction of 0 is therefore the rule's mean. Predictions are clipped to the rewards of the rule in the training
    data, so a dream cannot promise more for a rewrite than was ever seen.
    """

    def __init__(self, n_actions: int, name: str | None = None):
        super().__init__(name)
        self.count = tf.Variable(tf.zeros([n_actions]), trainable=False, name="count")
        self.mean = tf.Variable(tf.zeros([n_actions]), trainable=False, name="mean")
        self.low = tf.Variable(tf.zeros([n_actions]), trainable=False, name="low")
        self.high = tf.Variable(tf.zeros([n_actions]), trainable=False, name="high")
        self.variance = tf.Variable(1.0, trainable=False, name="variance")

    def update(self, rewards: tf.Tensor, xfer_ids: tf.Tensor, rate: float = 1.0) -> None:
        """Add rewards float32 [n] of rules xfer_ids int32 [n] to the totals; rate 1 resets the totals first."""
        n = self.count.shape[0]
        seen = self.count * (0.0 if rate == 1 else 1.0)
        added = tf.math.unsorted_segment_sum(tf.ones_like(rewards), xfer_ids, n)
        total = tf.maximum(seen + added, 1.0)
        mean = (self.mean * seen + tf.math.unsorted_segment_sum(rewards, xfer_ids, n)) / total
        squares = tf.reduce_sum(tf.square(rewards - tf.gather(mean, xfer_ids)))
        variance = (self.variance * tf.reduce_sum(seen) + squares) / tf.maximum(tf.reduce_sum(seen + added), 1.0)
        low = tf.math.unsorted_segment_min(rewards, xfer_ids, n)
        high = tf.math.unsorted_segment_max(rewards, xfer_ids, n)
        self.low.assign(_extremes(tf.minimum, self.low, low, seen, added))
        self.high.assign(_extremes(tf.maximum, self.high, high, seen, added))
        self.mean.assign(mean)
        self.variance.assign(variance)
        self.count.assign(seen + added)

    def __call__(self, rewards: tf.Tensor, xfer_ids: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value((rewards - tf.gather(self.mean, xfer_ids)) / self._scale(), -CLIP, CLIP)

    def invert(self, x: tf.Tensor, xfer_ids: tf.Tensor) -> tf.Tensor:
        """Return x in the reward's unit, clipped to the rewards that the rule has had."""
        rewards = x * self._scale() + tf.gather(self.mean, xfer_ids)
        return tf.clip_by_value(rewards, tf.gather(self.low, xfer_ids), tf.gather(self.high, xfer_ids))

    def _scale(self) -> tf.Tensor:
        return tf.sqrt(tf.where(self.variance > 1e-12, self.variance, 1.0))


class ChangeFrequencies(snt.Module):
    """Log-probabilities of the changes of each rule's location count, per action, from their frequencies.

    A network adds state-dependent terms to these logits. Rules with few examples, which dreams exploit most, then start
    from their known effects.
    """

    def __init__(self, n_actions: int, n_rules: int, n_changes: int, name: str | None = None):
        super().__init__(name)
        self.counts = tf.Variable(tf.zeros([n_actions, n_rules, n_changes]), trainable=False, name="counts")

    def update(self, changes: tf.Tensor, xfer_ids: tf.Tensor, rate: float = 1.0) -> None:
        """Add the changes of actions xfer_ids int32 [n] to the totals; rate 1 resets the totals first.

        Args:
          changes: int32 [n, N], classes of changes from 0.
          xfer_ids: int32 [n].
          rate: 1 to forget earlier data.
        """
        seen = tf.one_hot(changes, self.counts.shape[2])
        added = tf.math.unsorted_segment_sum(seen, xfer_ids, self.counts.shape[0])
        self.counts.assign(self.counts * (0.0 if rate == 1 else 1.0) + added)

    def __call__(self, xfer_ids: tf.Tensor) -> tf.Tensor:
        """Return logits [.., N, changes] for actions [..]. An action without data gets "no change" as most likely."""
        middle = self.counts.shape[2] // 2
        smoothed = self.counts + 0.05 + 0.5 * tf.one_hot(middle, self.counts.shape[2])
        return tf.gather(tf.math.log(smoothed / tf.reduce_sum(smoothed, -1, keepdims=True)), xfer_ids)


class UsualMeanings(snt.Module):
    """The mean embedding of the nodes that each (rule, location) matched in the data.

    A location without data has the mean of its rule, and a rule without data has the mean of all rules.
    """

    def __init__(self, n_actions: int, n_locations: int, size: int, name: str | None = None):
        super().__init__(name)
        self.counts = tf.Variable(tf.zeros([n_actions, n_locations, 1]), trainable=False, name="counts")
        self.sums = tf.Variable(tf.zeros([n_actions, n_locations, size]), trainable=False, name="sums")
        self.means = tf.Variable(tf.zeros([n_actions, n_locations, size]), trainable=False, name="means")

    def update(self, meanings: tf.Tensor, actions: tf.Tensor, rate: float = 1.0) -> None:
        """Add embeddings [n, M] for actions int32 [n, 2]; rate 1 resets the totals first."""
        kept, (n_actions, n_locations, _) = 0.0 if rate == 1 else 1.0, self.sums.shape
        for total, values in ((self.counts, tf.ones_like(meanings[:, :1])), (self.sums, meanings)):
            cells = actions[:, 0] * n_locations + actions[:, 1]
            added = tf.math.unsorted_segment_sum(values, cells, n_actions * n_locations)
            total.assign(total * kept + tf.reshape(added, total.shape))
        means = _mean_where_counted(self.counts, self.sums, axis=(0, 1), otherwise=tf.zeros_like(self.sums))
        means = _mean_where_counted(self.counts, self.sums, axis=1, otherwise=means)
        self.means.assign(tf.where(self.counts > 0, self.sums / tf.maximum(self.counts, 1.0), means))

    def __call__(self, actions: tf.Tensor) -> tf.Tensor:
        """Return embeddings [.., M] for actions int32 [.., 2]."""
        return tf.gather_nd(self.means, actions)


def _mean_where_counted(counts: tf.Tensor, sums: tf.Tensor, axis, otherwise: tf.Tensor) -> tf.Tensor:
    count = tf.reduce_sum(counts, axis, keepdims=True)
    return tf.where(count > 0, tf.reduce_sum(sums, axis, keepdims=True) / tf.maximum(count, 1.0), otherwise)


def _extremes(choose, old: tf.Tensor, new: tf.Tensor, seen: tf.Tensor, added: tf.Tensor) -> tf.Tensor:
    """Return the extreme of old and new rewards per rule; 0 for a rule without rewards."""
    either = tf.where(seen > 0, tf.where(added > 0, choose(old, new), old), new)
    return tf.where(seen + added > 0, either, 0.0)


def standardise(x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value((x - mean) / _std(mean, variance), -CLIP, CLIP)


def _std(mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    constant = variance <= 1e-9 * (1 + tf.square(mean))  # at most float32 rounding
    return tf.sqrt(tf.where(constant, 1.0, variance))
