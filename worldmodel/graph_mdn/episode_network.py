"""The recurrent mixture-density state h of an episode, which predicts what the graph alone does not determine.

An imagined graph determines which rewrites are valid and what nodes cost. Other quantities depend on the course of the
episode. A measured reward can belong to several steps together, or to the NO-OP that ends the episode. A GRU (Cho et
al. 2014) therefore follows the episode, and two heads read its state h:

- *reward*: a mixture of Gaussians (Bishop 1994) for the *rest* of the reward: the reward minus the reward that the
  graph explains. A dream draws the component from softmax(logits / τ) (RLFlow, section 3.3.2). If there are several
  components, the first is narrow and fixed at 0, because most predictions are exact. The other components are learned.
  If the graph explains every reward, the mixture is the distribution of the dream's own errors.
- *ends*: the probability that the step ends the episode.

The same cell runs in the dream and in the real environment. Its inputs at each step are:

- the latent state z of the graph after the step, and the rule of the step;
- the runtime saved by the step and by all steps so far, and the number of earlier steps;
- the uncertainty of the predicted graph, which is 0 in the real environment.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from worldmodel.network_parts import (
    Mixture,
    Normaliser,
    log_likelihood,
    mean_of_likeliest,
    mixture_from_parameters,
    sample_mixture,
)

SCALARS = 4  # inputs besides z: gain, saved, steps, uncertainty
STEPS = 50.0  # number of steps that count as 1 in the inputs
EMBEDDING = 32  # size of the embedding of a rule
LEAST_LOG_SIGMA = -7.0  # lower bound of log σ of a component, where σ is in standard deviations of the rests of rewards
RARE = -4.0  # initial logit of an end, so that without examples no end is predicted
EPISODES = 16  # episodes in a batch


def inputs_of(
    z: np.ndarray, gain: np.ndarray, saved: np.ndarray, steps: np.ndarray, uncertainty: np.ndarray
) -> np.ndarray:
    """Return the inputs of the cell for n steps, float32 [n, Z + SCALARS].

    Args:
      z: float32 [n, Z], the latent states after the steps.
      gain: float64 [n], the runtime saved by each step, in percent of the initial runtime.
      saved: float64 [n], the runtime saved by all steps so far, in the same unit.
      steps: int [n], the number of steps before each step.
      uncertainty: float32 [n], the uncertainty of the predicted graph.
    """
    scalars = np.stack([np.arcsinh(gain), np.arcsinh(saved), steps / STEPS, uncertainty], axis=1)
    return np.concatenate([z, scalars], axis=1).astype(np.float32)


class Heads(NamedTuple):
    """The outputs for n steps.

    Attributes:
      rewards: the mixtures of the standardised rest of each reward, with fields [n, K].
      ends: float32 [n], logits that the step ends the episode.
    """

    rewards: Mixture
    ends: tf.Tensor


class EpisodeNetwork(snt.Module):
    """A GRU over the steps of an episode with two heads; see the module's docstring.

    Args:
      n_rules: N, the number of rules.
      latent: Z, the size of z.
      hidden: H, the size of h.
      gaussians: K, the number of components of the reward mixture.

    Attributes:
      rests: the standardisation of the rests of rewards, with mean 0.
    """

    def __init__(self, n_rules: int, latent: int, hidden: int, gaussians: int):
        super().__init__(name="episode_network")
        self.gaussians = gaussians
        self.rules = snt.Embed(n_rules + 1, EMBEDDING, name="rules")
        self.cell = snt.GRU(hidden, name="cell")
        self.trunk = snt.Sequential([snt.Linear(hidden), tf.nn.relu], name="trunk")
        self.reward = snt.Linear(3 * gaussians, name="reward")
        self.ends = snt.Linear(1, b_init=snt.initializers.Constant(RARE), name="ends")
        self.rests = Normaliser(1, "rests")
        self.step(tf.zeros([1, latent + SCALARS]), tf.zeros([1], tf.int32), tf.zeros([1, hidden]))

    def step(self, inputs: tf.Tensor, rules: tf.Tensor, h: tf.Tensor) -> tuple[tf.Tensor, Heads]:
        """Follow one step of n episodes.

        Args:
          inputs: float32 [n, Z + SCALARS], see `inputs_of`.
          rules: int32 [n], the rule of each step; N is NO-OP.
          h: float32 [n, H], the recurrent states before the step.

        Returns:
          (the recurrent states after the step, the outputs of the heads).
        """
        seen = self._seen(inputs, rules)
        h, _ = self.cell(seen, h)
        return h, self._heads(h, seen)

    def unroll(self, inputs: tf.Tensor, rules: tf.Tensor) -> tuple[tf.Tensor, Heads]:
        """Follow B whole episodes of at most T steps from the initial state.

        Args:
          inputs: float32 [B, T, Z + SCALARS].
          rules: int32 [B, T].

        Returns:
          (the recurrent state after each step, [B, T, H]; the outputs of the heads for B · T steps).
        """
        seen = self._seen(inputs, rules)
        start = self.cell.initial_state(tf.shape(inputs)[0])
        states = tf.scan(lambda h, x: self.cell(x, h)[0], tf.transpose(seen, [1, 0, 2]), start)
        states = tf.transpose(states, [1, 0, 2])
        flat = tf.reshape(states, [-1, states.shape[-1]]), tf.reshape(seen, [-1, seen.shape[-1]])
        return states, self._heads(*flat)

    def _seen(self, inputs: tf.Tensor, rules: tf.Tensor) -> tf.Tensor:
        return tf.concat([inputs, self.rules(rules)], axis=-1)

    def _heads(self, h: tf.Tensor, seen: tf.Tensor) -> Heads:
        features = self.trunk(tf.concat([h, seen], axis=-1))
        mixture = mixture_from_parameters(self.reward(features), 1, self.gaussians, LEAST_LOG_SIGMA)
        rewards = Mixture(*[part[:, 0] for part in mixture])
        if self.gaussians > 1:
            others = tf.constant([0.0] + [1.0] * (self.gaussians - 1))
            sigma = others * rewards.log_sigma + (1 - others) * LEAST_LOG_SIGMA
            rewards = Mixture(rewards.logits, others * rewards.mean, sigma)
        return Heads(rewards, self.ends(features)[:, 0])


class Followed(NamedTuple):
    """The recurrent prediction for one step of n episodes.

    Attributes:
      h: float32 [n, H], the recurrent states after the step.
      rests: float64 [n], the part of the rewards that the graphs do not explain.
      expected: float64 [n], the same at the temperature 0.
      ends: bool [n], True if the step is predicted to end the episode.
    """

    h: np.ndarray
    rests: np.ndarray
    expected: np.ndarray
    ends: np.ndarray


class EpisodeState:
    """The compiled functions of an `EpisodeNetwork` on NumPy arrays.

    Args:
      network: the network.
      latent: Z, the size of z.
      hidden: H, the size of h.
    """

    def __init__(self, network: EpisodeNetwork, latent: int, hidden: int):
        self.network = network
        row = latent + SCALARS
        self._step = tf.function(
            self._drawn,
            [
                tf.TensorSpec([None, row]), tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, hidden]),
                tf.TensorSpec([]), tf.TensorSpec([2], tf.int32),
            ],
            autograph=False,
        )  # fmt: skip
        self._unroll = tf.function(
            lambda inputs, rules: network.unroll(inputs, rules)[0],
            [tf.TensorSpec([None, None, row]), tf.TensorSpec([None, None], tf.int32)],
            autograph=False,
        )

    def __call__(
        self, inputs: np.ndarray, rules: np.ndarray, h: np.ndarray, temperature: float, seed: tuple[int, int]
    ) -> Followed:
        """Follow one step of n episodes.

        Args:
          inputs, rules, h: see `EpisodeNetwork.step`.
          temperature: τ; 0 gives the mean of the most likely Gaussian.
          seed: two integers that seed the drawing.
        """
        h, *rests, ends = self._step(
            inputs, rules.astype(np.int32), h, np.float32(temperature), np.array(seed, np.int64).astype(np.int32)
        )
        rests, expected = (part.numpy().astype(np.float64) for part in rests)
        return Followed(h.numpy(), rests, expected, ends.numpy() > 0.5)

    def states(self, inputs: np.ndarray, rules: np.ndarray) -> np.ndarray:
        """Return the recurrent state after each step of B episodes, float32 [B, T, H]; see `EpisodeNetwork.unroll`."""
        return self._unroll(inputs, rules.astype(np.int32)).numpy()

    def _drawn(self, inputs: tf.Tensor, rules: tf.Tensor, h: tf.Tensor, temperature: tf.Tensor, seed: tf.Tensor):
        h, heads = self.network.step(inputs, rules, h)
        mixture = Mixture(*[part[:, None] for part in heads.rewards])
        drawn = sample_mixture(mixture, temperature, seed), mean_of_likeliest(mixture)
        rests, expected = (self.network.rests.invert(rest)[:, 0] for rest in drawn)
        return h, rests, expected, tf.sigmoid(heads.ends)


class Sequences(NamedTuple):
    """B episodes of at most T steps, as the dream predicted them open loop, with the errors of these predictions.

    Attributes:
      inputs: float32 [B, T, Z + SCALARS], see `inputs_of`.
      rules: int32 [B, T], the rule of each step.
      rests: float32 [B, T], the real reward minus the predicted one.
      ends: float32 [B, T], 1 if the step ended the episode otherwise than by NO-OP.
      within: float32 [B, T], 1 for steps, 0 for padding.
    """

    inputs: np.ndarray
    rules: np.ndarray
    rests: np.ndarray
    ends: np.ndarray
    within: np.ndarray


class SequenceBatches:
    """A function from the number of a training step to EPISODES randomly drawn episodes of `Sequences`.

    The errors of the other parts of the model show only on episodes from which these parts did not learn. If there are
    such episodes, the first half of a batch comes from them, and the second half from all episodes.

    Args:
      sequences: the episodes.
      apart: the number of episodes from which the other parts did not learn; these are the last episodes.
      seed: the seed of the drawing.
    """

    def __init__(self, sequences: Sequences, apart: int, seed: int):
        self.sequences, self.apart, self.seed = sequences, apart, seed

    def __call__(self, step: int) -> Sequences:
        random, size = np.random.default_rng([self.seed, step]), len(self.sequences.rules)
        rows = random.integers(size, size=EPISODES)
        if self.apart:
            rows[: EPISODES // 2] = random.integers(size - self.apart, size, size=EPISODES // 2)
        return Sequences(*[part[rows] for part in self.sequences])


def sequence_signature(latent: int) -> Sequences:
    """Return the specifications of the tensors of a batch, where `latent` is Z."""
    numbers = tf.TensorSpec([None, None])
    return Sequences(
        tf.TensorSpec([None, None, latent + SCALARS]), tf.TensorSpec([None, None], tf.int32), *[numbers] * 3
    )


def fit_rests(network: EpisodeNetwork, sequences: Sequences) -> None:
    """Fit the standardisation `network.rests` to the rests of rewards in the data and to their negatives.

    The mean is therefore 0, so the component that is fixed at 0 stands for the rest 0.

    Args:
      network: the network; modified.
      sequences: the episodes.
    """
    rests = sequences.rests[sequences.within > 0][:, None]
    network.rests.update(tf.constant(np.concatenate([rests, -rests])))


def episode_loss(network: EpisodeNetwork):
    """Return a function from the fields of `Sequences` to the losses of the network, in nats a step.

    "loss" is the sum of "reward" (the negative log-density of the standardised rest) and "ends" (a cross-entropy).
    """

    def loss(
        inputs: tf.Tensor, rules: tf.Tensor, rests: tf.Tensor, ends: tf.Tensor, within: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        _, heads = network.unroll(inputs, rules)
        rests, ends, within = (tf.reshape(part, [-1]) for part in (rests, ends, within))
        mixture = Mixture(*[part[:, None] for part in heads.rewards])
        parts = {
            "reward": -log_likelihood(mixture, network.rests(rests[:, None]))[:, 0],
            "ends": tf.nn.sigmoid_cross_entropy_with_logits(ends, heads.ends),
        }
        means = {name: tf.reduce_sum(part * within) / tf.reduce_sum(within) for name, part in parts.items()}
        return {"loss": tf.add_n(list(means.values())), **means}

    return loss


def padded(parts: Sequence[np.ndarray], steps: int) -> np.ndarray:
    """Stack arrays [t_i, …] of different lengths to one array [B, steps, …], padded with zeros."""
    result = np.zeros((len(parts), steps, *parts[0].shape[1:]), parts[0].dtype)
    for row, part in zip(result, parts, strict=True):
        row[: len(part)] = part
    return result
