"""The MDN-RNN: an LSTM that predicts the effect of an action on the latent state (RLFlow, section 3.3.2).

One cell, `MDNRNN.cell`, is used in training (`loss` unrolls it over padded episodes) and in dreams (`__call__` takes
one step). The recurrent state is an argument and a return value of both.
"""

from functools import partial
from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from rlflow.common.task import EncodingSpec
from worldmodel import network_parts
from worldmodel.mdn_rnn.batching import Steps
from worldmodel.network_parts import ChangeFrequencies, Normaliser, RewardNormaliser
from worldmodel.spaces import Z_BOUND
from worldmodel.world_model_options import MDNRNNConfig

MAX_DELTA = 8  # the largest change of a rule's location count that one step can predict
EMBEDDING = 32  # size of the embedding of a rule, and of the embedding of a location


class Prediction(NamedTuple):
    """The outputs of the heads for one action; [..] are the batch dimensions.

    Attributes:
      z_change: mixtures for the standardised change z' − z, [.., Z, K].
      reward: [..], the deviation of the reward from the rule's mean reward, standardised.
      termination: [..], the logit that the action terminates the episode.
      count_change: [.., N, 2 · MAX_DELTA + 1], logits of the changes −MAX_DELTA … MAX_DELTA of each rule's location
        count; None without mask heads.
      xfer_mask: [.., N], logits that each rule has a location after the action; None without mask heads.
    """

    z_change: network_parts.Mixture
    reward: tf.Tensor
    termination: tf.Tensor
    count_change: tf.Tensor | None
    xfer_mask: tf.Tensor | None


class Outcome(NamedTuple):
    """One predicted step.

    Attributes:
      z: [B, Z], the next latent state.
      counts: int32 [B, N], the predicted number of locations of each rule, an input of the next step.
      shown_counts: int32 [B, N], the counts that controllers observe: `counts`, but 0 where the mask head predicts that
        the rule has no location.
      reward: [B], in the unit of the environment's rewards.
      terminated: [B], the probability that the action terminates the episode.
    """

    z: tf.Tensor
    counts: tf.Tensor
    shown_counts: tf.Tensor
    reward: tf.Tensor
    terminated: tf.Tensor


class MDNRNN(snt.Module):
    """A model of p(z', reward, termination, counts', rule mask' | z, counts, action, recurrent state)."""

    def __init__(self, spec: EncodingSpec, config: MDNRNNConfig):
        super().__init__(name="mdn_rnn")
        self.spec, self.config = spec, config
        latent, hidden, n_rules = config.latent, config.hidden, spec.n_rules
        self.cell = snt.LSTM(hidden, name="cell")
        self.xfer_ids = snt.Embed(n_rules + 1, EMBEDDING, name="xfers")
        self.locations = snt.Embed(spec.max_locations, EMBEDDING, name="locations")
        self.count_statistics = Normaliser(n_rules, "count_statistics")
        self.change_statistics = Normaliser(latent, "change_statistics")
        self.reward_statistics = RewardNormaliser(n_rules + 1, "reward_statistics")
        self.trunk = snt.Sequential([snt.Linear(hidden), tf.nn.relu], name="trunk")
        self.z_head = snt.Linear(latent * 3 * config.gaussians, name="z_head")
        sizes = [hidden, hidden // 2, 1] if config.reward_network else [hidden // 2, 1]
        self.reward_head = snt.nets.MLP(sizes, name="reward_head")
        self.termination_head = snt.Linear(1, name="termination_head")
        if config.mask_heads:
            self.changes = ChangeFrequencies(n_rules + 1, n_rules, 2 * MAX_DELTA + 1, "changes")
            self.count_head = snt.Linear(n_rules * (2 * MAX_DELTA + 1), name="count_head")
            self.mask_head = snt.Linear(n_rules, name="mask_head")

    def initial_state(self, batch_size: int) -> snt.LSTMState:
        """Return the recurrent state of a new episode, zeros: hidden [B, H] (h of the observation) and cell [B, H]."""
        return self.cell.initial_state(batch_size)

    def __call__(
        self, z: tf.Tensor, counts: tf.Tensor, actions: tf.Tensor, state: snt.LSTMState
    ) -> tuple[Prediction, snt.LSTMState]:
        """Predict one step.

        Args:
          z: [B, Z], the latent states.
          counts: int32 [B, N], the number of locations of each rule.
          actions: int32 [B, 2], (xfer_id, location).
          state: the recurrent state.

        Returns:
          The outputs of the heads and the next recurrent state.
        """
        inputs = self._inputs(z, counts, actions)
        output, state = self.cell(inputs, state)
        return self._heads(output, inputs, actions), state

    def outcome(
        self, prediction: Prediction, z: tf.Tensor, counts: tf.Tensor, actions: tf.Tensor, temperature: tf.Tensor,
        seed: tf.Tensor,
    ) -> Outcome:
        """Draw the next z at temperature τ, and take the most likely value of every other prediction.

        Args:
          prediction: the outputs of the heads.
          z: [B, Z], the latent states before the action.
          counts: int32 [B, N], the location counts before the action.
          actions: int32 [B, 2], (xfer_id, location).
          temperature: τ; 0 gives the mean of the most likely Gaussian.
          seed: int32 [2], the seed of the drawing.
        """
        drawn = network_parts.sample_mixture(prediction.z_change, temperature, seed, self.config.sigma_temperature)
        counts, shown = self._predicted_counts(prediction, counts)
        return Outcome(
            z=tf.clip_by_value(z + self.change_statistics.invert(drawn), -Z_BOUND, Z_BOUND),
            counts=counts,
            shown_counts=shown,
            reward=self.reward_statistics.invert(prediction.reward, actions[:, 0]),
            terminated=tf.sigmoid(prediction.termination),
        )

    def _predicted_counts(self, prediction: Prediction, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return `counts` and `shown_counts` of an `Outcome`; without mask heads, both equal the argument `counts`."""
        if not self.config.mask_heads:
            return counts, counts
        delta = tf.argmax(prediction.count_change, axis=-1, output_type=tf.int32) - MAX_DELTA
        counts = tf.clip_by_value(counts + delta, 0, self.spec.max_locations)
        return counts, tf.where(prediction.xfer_mask > 0, counts, 0)

    def fit(self, steps: Steps, rate: float = 1.0) -> None:
        """Update the statistics of all normalisers with the valid steps of episodes.

        Args:
          steps: the episodes.
          rate: 1 to replace the statistics. A smaller rate is the weight of the new data in moving averages; totals
            (of rewards and changes of counts) are added up.
        """
        within = tf.sequence_mask(steps.length, tf.shape(steps.rewards)[1])
        counts = tf.boolean_mask(steps.counts[:, :-1], within)
        self.count_statistics.update(tf.math.log1p(tf.cast(counts, tf.float32)), rate)
        self.change_statistics.update(tf.boolean_mask(steps.z[:, 1:] - steps.z[:, :-1], within), rate)
        rewards, actions = tf.boolean_mask(steps.rewards, within), tf.boolean_mask(steps.actions, within)
        self.reward_statistics.update(rewards, actions[:, 0], rate)
        if self.config.mask_heads:
            self.changes.update(tf.boolean_mask(_count_changes(steps), within), actions[:, 0], rate)

    def recur(self, z: tf.Tensor, counts: tf.Tensor, actions: tf.Tensor, state: snt.LSTMState) -> snt.LSTMState:
        """Return the recurrent state after one step, without a prediction; see `__call__` for the arguments."""
        return self.cell(self._inputs(z, counts, actions), state)[1]

    def warm(self, steps: Steps) -> snt.LSTMState:
        """Return the recurrent state after whole sequences that begin in the initial state, without gradient."""
        inputs = self._inputs(steps.z[:, :-1], steps.counts[:, :-1], steps.actions)
        _, state = self._unroll(inputs, self.initial_state(tf.shape(steps.length)[0]), steps.length)
        return tf.nest.map_structure(tf.stop_gradient, state)

    def loss(self, steps: Steps, state: snt.LSTMState) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the loss, and its parts by name, as means over all steps that are not padding.

        The loss is the sum of the parts "z", "reward", "termination", "counts" and "xfer_mask"; the last two exist only
        with `config.mask_heads`. Each part is a negative log-likelihood in nats, except "reward", a squared error. "z"
        is a mean over the latent dimensions. "counts" and "xfer_mask" are sums over the rules, because a single wrong
        entry spoils a dream.

        Args:
          steps: the sequences.
          state: the recurrent state before the first step of each sequence.
        """
        z, counts = steps.z[:, :-1], steps.counts[:, :-1]
        inputs = self._inputs(z, counts, steps.actions)
        outputs, _ = self._unroll(inputs, state, steps.length)
        predicted = self._heads(outputs, inputs, steps.actions)

        cross_entropy = tf.nn.sigmoid_cross_entropy_with_logits
        reward = self.reward_statistics(steps.rewards, steps.actions[..., 0])
        change = self.change_statistics(steps.z[:, 1:] - z)
        per_step = {
            "z": -tf.reduce_mean(network_parts.log_likelihood(predicted.z_change, change), -1),
            "reward": tf.square(predicted.reward - reward),
            "termination": cross_entropy(labels=steps.terminated, logits=predicted.termination),
        }
        if self.config.mask_heads:
            delta, mask = _count_changes(steps), tf.cast(steps.counts[:, 1:] > 0, tf.float32)
            wrong = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=delta, logits=predicted.count_change)
            per_step["counts"] = tf.reduce_sum(wrong, -1)
            per_step["xfer_mask"] = tf.reduce_sum(cross_entropy(labels=mask, logits=predicted.xfer_mask), -1)
        within = tf.sequence_mask(steps.length, tf.shape(steps.rewards)[1])
        parts = {name: tf.reduce_mean(tf.boolean_mask(value, within)) for name, value in per_step.items()}
        return tf.add_n(list(parts.values())), parts

    def coverage(self, steps: Steps) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the shares of real changes of z within the central 50 %, and 90 %, of the predicted distributions.

        A calibrated model gives 0.5 and 0.9. The shares are means over all steps and latent dimensions.
        """
        z = steps.z[:, :-1]
        inputs = self._inputs(z, steps.counts[:, :-1], steps.actions)
        outputs, _ = self._unroll(inputs, self.initial_state(tf.shape(steps.length)[0]), steps.length)
        predicted = self._heads(outputs, inputs, steps.actions)
        below = network_parts.cumulative(predicted.z_change, self.change_statistics(steps.z[:, 1:] - z))
        within = tf.sequence_mask(steps.length, tf.shape(steps.rewards)[1])
        aside = 2 * tf.abs(tf.boolean_mask(below, within) - 0.5)  # 0 in the middle of a mixture, 1 at its ends
        return tuple(tf.reduce_mean(tf.cast(aside <= share, tf.float32)) for share in (0.5, 0.9))

    def _inputs(self, z: tf.Tensor, counts: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
        """Return the inputs of the cell, [.., features]: z, counts, rule and location.

        A count enters as standardised log(1 + count), and as 1 if it is positive or else 0.
        """
        logs = tf.math.log1p(tf.cast(counts, tf.float32))
        xfer_id, location = actions[..., 0], actions[..., 1]
        locations = tf.concat([counts, tf.ones_like(counts[..., :1])], axis=-1)  # NO-OP has the one location 0
        here = tf.cast(tf.gather(locations, xfer_id, batch_dims=xfer_id.shape.rank), tf.float32)
        which, applies = self.xfer_ids(xfer_id), tf.cast(counts > 0, tf.float32)
        where, number = self.locations(location), tf.cast(location, tf.float32)
        numbers = tf.stack([tf.math.log1p(here), tf.math.log1p(number), number / tf.maximum(here, 1.0)], axis=-1)
        return tf.concat([z, self.count_statistics(logs), applies, which, where, which * where, numbers], axis=-1)

    def _unroll(self, inputs: tf.Tensor, state: snt.LSTMState, length: tf.Tensor) -> tuple[tf.Tensor, snt.LSTMState]:
        """Run the cell over sequences; return its outputs, [B, T, H], and the recurrent state after each sequence.

        Args:
          inputs: [B, T, features], the result of `_inputs`.
          state: the recurrent state before the first step.
          length: int32 [B], the number of steps of each sequence. The state of a sequence stays the same after that.
        """
        steps = tf.shape(inputs)[1]
        rows = tf.TensorArray(inputs.dtype, steps).unstack(tf.transpose(inputs, [1, 0, 2]))

        # Not snt.dynamic_unroll: it translates the cell with AutoGraph for every program that contains it, which takes
        # seconds and never gives the memory back.
        def step(t, output, state, outputs):
            after = self.cell(rows.read(t), state)
            keep = partial(tf.where, tf.expand_dims(t >= length, -1))
            output, state = tf.nest.map_structure(keep, (output, state), after)
            return t + 1, output, state, outputs.write(t, output)

        first = step(0, tf.zeros_like(state.hidden), state, tf.TensorArray(inputs.dtype, steps))
        _, _, state, outputs = tf.while_loop(lambda t, *_: t < steps, step, first, parallel_iterations=1)
        return tf.transpose(outputs.stack(), [1, 0, 2]), state

    def _heads(self, outputs: tf.Tensor, inputs: tf.Tensor, actions: tf.Tensor) -> Prediction:
        """Return the outputs of the heads, whose input is the LSTM's output concatenated with its inputs.

        If `config.reward_network` is set, the input of the reward head is the LSTM's inputs alone.

        Args:
          outputs: [.., H], outputs of the LSTM.
          inputs: [.., features], inputs of the LSTM.
          actions: int32 [.., 2], (xfer_id, location).
        """
        shape = tf.shape(outputs)[:-1]
        features = tf.reshape(tf.concat([outputs, inputs], axis=-1), [-1, outputs.shape[-1] + inputs.shape[-1]])
        trunk = self.trunk(features)

        def shaped(flat: tf.Tensor, *sizes: int) -> tf.Tensor:
            return tf.reshape(flat, tf.concat([shape, sizes], axis=0) if sizes else shape)

        config, n_rules = self.config, self.spec.n_rules
        z_change = network_parts.mixture_from_parameters(self.z_head(trunk), config.latent, config.gaussians)
        reward = self.reward_head(tf.reshape(inputs, [-1, inputs.shape[-1]]) if config.reward_network else features)
        prediction = Prediction(
            z_change=network_parts.Mixture(*(shaped(field, config.latent, config.gaussians) for field in z_change)),
            reward=shaped(reward), termination=shaped(self.termination_head(trunk)), count_change=None, xfer_mask=None,
        )
        if not config.mask_heads:
            return prediction
        return prediction._replace(
            count_change=shaped(self.count_head(trunk), n_rules, 2 * MAX_DELTA + 1) + self.changes(actions[..., 0]),
            xfer_mask=shaped(self.mask_head(trunk), n_rules),
        )


def _count_changes(steps: Steps) -> tf.Tensor:
    """Return the change of each location count in each step, int32 [B, T, N], clipped to ±MAX_DELTA, plus MAX_DELTA."""
    return tf.clip_by_value(steps.counts[:, 1:] - steps.counts[:, :-1], -MAX_DELTA, MAX_DELTA) + MAX_DELTA
