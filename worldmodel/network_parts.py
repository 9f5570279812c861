"""Parts of networks that the world models share: message passing, mixtures of Gaussians, and normalisers.

Message passing uses the blocks of graph_nets (Battaglia et al. 2018). A `Mixture` has one mixture of Gaussians for each
latent dimension (Bishop 1994; Ha & Schmidhuber 2018). The temperature of a dream divides the mixture's logits (RLFlow,
section 3.3.2).

A normaliser stores statistics of the training data in non-trainable variables. In the shapes, N is the number of rules.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf
from graph_nets import modules
from graph_nets.graphs import GraphsTuple


def full_step(width: int, pooled: Callable, to_edges: bool = True) -> modules.GraphNetwork:
    """Return a full graph network block, which updates edges, nodes and globals.

    Each update also reads the old embedding and the globals. Edges read their two nodes, nodes read incoming and
    outgoing edges, and globals read pooled nodes and edges.

    Args:
      width: size of the embeddings of edges, nodes and globals.
      pooled: reduction to one vector per graph, such as `tf.math.unsorted_segment_sum`.
      to_edges: whether edges read the globals. With many edges, this takes a third of the time of the block.
    """
    model = _model_of(width)
    return modules.GraphNetwork(
        model, model, model,
        edge_block_opt={"use_globals": to_edges}, node_block_opt={"use_sent_edges": True},
        global_block_opt={"nodes_reducer": pooled, "edges_reducer": pooled},
    )  # fmt: skip


def messages(width: int) -> modules.InteractionNetwork:
    """Return an interaction network, which updates edges from their two nodes and nodes from their incoming edges.

    Args:
      width: size of the embeddings of edges and nodes.
    """
    model = _model_of(width)
    return modules.InteractionNetwork(model, model)


def _model_of(width: int) -> Callable[[], snt.Module]:
    def model() -> snt.Module:
        return snt.Sequential([snt.nets.MLP([width, width]), snt.LayerNorm(-1, True, True)])

    return model


def processed(graphs: GraphsTuple, steps: list[modules.GraphNetwork]) -> GraphsTuple:
    """Apply graph network blocks one after the other, each with a residual connection for edges, nodes and globals."""
    for core in steps:
        update = core(graphs)
        graphs = graphs.replace(
            nodes=graphs.nodes + update.nodes,
            edges=graphs.edges + update.edges,
            globals=graphs.globals + update.globals,
        )
    return graphs


MIN_LOG_SIGMA, MAX_LOG_SIGMA = -2.0, 4.0  # bounds of log σ of a Gaussian over a standardised target


class Mixture(NamedTuple):
    """D independent mixtures of K Gaussians each.

    Attributes:
      logits: float32 [.., D, K], unnormalised log-probabilities of the components.
      mean: float32 [.., D, K], the means of the Gaussians.
      log_sigma: float32 [.., D, K], the logarithms of their standard deviations.
    """

    logits: tf.Tensor
    mean: tf.Tensor
    log_sigma: tf.Tensor


def mixture_from_parameters(
    parameters: tf.Tensor, size: int, gaussians: int, least_log_sigma: float = MIN_LOG_SIGMA
) -> Mixture:
    """Return the mixtures whose parameters are the outputs of a linear layer.

    Args:
      parameters: float32 [.., D · 3 · K], for each mixture K logits, K means and K values of log σ.
      size: D, the number of mixtures.
      gaussians: K, the number of components of each mixture.
      least_log_sigma: lower bound to which log σ is clipped; the upper bound is MAX_LOG_SIGMA.
    """
    shape = tf.concat([tf.shape(parameters)[:-1], [size, 3 * gaussians]], axis=0)
    logits, mean, log_sigma = tf.split(tf.reshape(parameters, shape), 3, axis=-1)
    return Mixture(logits, mean, tf.clip_by_value(log_sigma, least_log_sigma, MAX_LOG_SIGMA))


def log_likelihood(mixture: Mixture, x: tf.Tensor) -> tf.Tensor:
    """Return float32 [.., D], the log-density of each of the D mixtures at its entry of x, float32 [.., D]."""
    deviation = (x[..., None] - mixture.mean) * tf.exp(-mixture.log_sigma)
    log_normal = -0.5 * tf.square(deviation) - mixture.log_sigma - 0.5 * np.log(2 * np.pi)
    return tf.reduce_logsumexp(tf.nn.log_softmax(mixture.logits) + log_normal, axis=-1)


def cumulative(mixture: Mixture, x: tf.Tensor) -> tf.Tensor:
    """Return float32 [.., D], P(X ≤ x) of each of the D mixtures X for its entry of x, float32 [.., D]."""
    deviation = (x[..., None] - mixture.mean) * tf.exp(-mixture.log_sigma)
    below = 0.5 * (1 + tf.math.erf(deviation / np.sqrt(2)))
    return tf.reduce_sum(tf.nn.softmax(mixture.logits) * below, axis=-1)


def sample_mixture(mixture: Mixture, temperature: tf.Tensor, seed: tf.Tensor, scale_sigma: bool = True) -> tf.Tensor:
    """Draw one sample from each mixture at temperature τ.

    The component is drawn from softmax(logits / τ) (RLFlow, section 3.3.2) by the Gumbel trick argmax(logits + τ g),
    which also works at τ = 0.

    Args:
      mixture: D mixtures of K Gaussians.
      temperature: τ; 1 samples the mixtures themselves, and 0 gives the mean of the most likely component.
      seed: int [2].
      scale_sigma: True for the standard deviation σ √τ of the drawn Gaussian (Ha & Schmidhuber 2018), False for σ.

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


def mean_of_likeliest(mixture: Mixture) -> tf.Tensor:
    """Return the mean of the most likely component of each mixture, float32 [.., D], as `sample_mixture` at τ = 0."""
    return _of_component(mixture.mean, tf.argmax(mixture.logits, axis=-1))


def _of_component(values: tf.Tensor, component: tf.Tensor) -> tf.Tensor:
    return tf.gather(values, component, batch_dims=component.shape.rank)


CLIP = 10.0  # standardised values are clipped to ±CLIP; differences beyond it carry no information


class Normaliser(snt.Module):
    """A standardisation of each feature, x → (x − mean) / std, clipped to ±CLIP. A constant feature has std 1.

    Args:
      size: the number of features.
      name: the name of the module.
    """

    def __init__(self, size: int, name: str | None = None):
        super().__init__(name)
        self.mean = tf.Variable(tf.zeros([size]), trainable=False, name="mean")
        self.variance = tf.Variable(tf.ones([size]), trainable=False, name="variance")
        self.low = tf.Variable(tf.fill([size], -float("inf")), trainable=False, name="low")
        self.high = tf.Variable(tf.fill([size], float("inf")), trainable=False, name="high")
        self.fitted = tf.Variable(False, trainable=False, name="fitted")

    def update(self, values: tf.Tensor, rate: float = 1.0) -> None:
        """Replace mean, variance and range by the statistics of a mixture of old and new data.

        Args:
          values: float32 [n, size], the new data.
          rate: weight of the new data in the mixture. Weight 1, which the first update always has, forgets old data.
        """
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
        """Undo the standardisation of x, float32 [.., size], and clip each feature to its range in the data."""
        return tf.clip_by_value(x * _std(self.mean, self.variance) + self.mean, self.low, self.high)


class RewardNormaliser(snt.Module):
    """A standardisation of rewards: the difference from the mean reward of the rule, over one std for all rules.

    A network that predicts 0 therefore predicts the rule's mean reward. `invert` clips rewards to the range of the
    rule's rewards in the training data, so a dream never exceeds them.

    Args:
      n_actions: the number of rules, with NO-OP.
      name: the name of the module.
    """

    def __init__(self, n_actions: int, name: str | None = None):
        super().__init__(name)
        self.count = tf.Variable(tf.zeros([n_actions]), trainable=False, name="count")
        self.mean = tf.Variable(tf.zeros([n_actions]), trainable=False, name="mean")
        self.low = tf.Variable(tf.zeros([n_actions]), trainable=False, name="low")
        self.high = tf.Variable(tf.zeros([n_actions]), trainable=False, name="high")
        self.variance = tf.Variable(1.0, trainable=False, name="variance")

    def update(self, rewards: tf.Tensor, xfer_ids: tf.Tensor, rate: float = 1.0) -> None:
        """Add n steps to the statistics.

        Args:
          rewards: float32 [n], the rewards of the steps.
          xfer_ids: int32 [n], the rules of the steps.
          rate: 1 to forget all earlier steps; any other value keeps them.
        """
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
        """Convert standardised rewards to rewards, clipped to the range of the rule's rewards in the data.

        Args:
          x: float32 [..], standardised rewards.
          xfer_ids: int32 [..], the rule of each reward.
        """
        rewards = x * self._scale() + tf.gather(self.mean, xfer_ids)
        return tf.clip_by_value(rewards, tf.gather(self.low, xfer_ids), tf.gather(self.high, xfer_ids))

    def _scale(self) -> tf.Tensor:
        return tf.sqrt(tf.where(self.variance > 1e-12, self.variance, 1.0))


class ChangeFrequencies(snt.Module):
    """Log-probabilities of the changes that an action makes to each rule's location count, from their frequencies.

    A network adds state-dependent terms to these logits. The prediction for an action with few examples, which dreams
    exploit most, therefore stays close to the observed changes.

    Args:
      n_actions: the number of rules, with NO-OP.
      n_rules: N.
      n_changes: the number of classes of changes; the middle class is "no change".
      name: the name of the module.
    """

    def __init__(self, n_actions: int, n_rules: int, n_changes: int, name: str | None = None):
        super().__init__(name)
        self.counts = tf.Variable(tf.zeros([n_actions, n_rules, n_changes]), trainable=False, name="counts")

    def update(self, changes: tf.Tensor, xfer_ids: tf.Tensor, rate: float = 1.0) -> None:
        """Count the changes of n steps.

        Args:
          changes: int32 [n, N], for each step the class of the change of each rule's location count.
          xfer_ids: int32 [n], the rules of the steps.
          rate: 1 to forget all earlier steps; any other value keeps them.
        """
        seen = tf.one_hot(changes, self.counts.shape[2])
        added = tf.math.unsorted_segment_sum(seen, xfer_ids, self.counts.shape[0])
        self.counts.assign(self.counts * (0.0 if rate == 1 else 1.0) + added)

    def __call__(self, xfer_ids: tf.Tensor) -> tf.Tensor:
        """Return float32 [.., N, n_changes], the smoothed log-probabilities of the changes by actions int32 [..].

        For an action without data, "no change" is the most likely class.
        """
        middle = self.counts.shape[2] // 2
        smoothed = self.counts + 0.05 + 0.5 * tf.one_hot(middle, self.counts.shape[2])
        return tf.gather(tf.math.log(smoothed / tf.reduce_sum(smoothed, -1, keepdims=True)), xfer_ids)


def _extremes(choose, old: tf.Tensor, new: tf.Tensor, seen: tf.Tensor, added: tf.Tensor) -> tf.Tensor:
    """Return the smallest or largest reward of each rule in old and new data, float32 [n_actions]; 0 without data.

    Args:
      choose: `tf.minimum` or `tf.maximum`.
      old, new: float32 [n_actions], the extreme reward of each rule in the old and in the new data.
      seen, added: float32 [n_actions], the number of steps of each rule in the old and in the new data.
    """
    either = tf.where(seen > 0, tf.where(added > 0, choose(old, new), old), new)
    return tf.where(seen + added > 0, either, 0.0)


def standardise(x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    """Return (x − mean) / std, float32 [.., size], clipped to ±CLIP. A constant feature has std 1.

    Args:
      x: float32 [.., size], the values of the features.
      mean: float32 [size], the mean of each feature.
      variance: float32 [size], the variance of each feature.
    """
    return tf.clip_by_value((x - mean) / _std(mean, variance), -CLIP, CLIP)


def _std(mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    constant = variance <= 1e-9 * (1 + tf.square(mean))  # a smaller variance is a rounding error of float32
    return tf.sqrt(tf.where(constant, 1.0, variance))
