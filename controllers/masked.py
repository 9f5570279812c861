"""Masked distributions over actions: sampling, log-probability, entropy and argmax.

`MaskedCategorical` is a softmax over the valid entries of each row. `TwoStage` chooses an action in two stages (RLFlow,
section 3.1.3): first a rule that has a location, then one of the rule's locations 0 to count - 1.

    π(rule, location) = π(rule) · π(location | rule)

CMA-ES uses `TwoStage` with match classes instead of rules, and with the matches of a class instead of locations.

Everything here is TensorFlow and works inside `tf.function`. B is the batch size, N + 1 the number of rules with NO-OP
last, L the largest number of locations of a rule.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

LIMIT = 1e30  # bound of logits, which keeps their differences finite in float32
TINY = float(np.finfo(np.float32).tiny)


def count_of(counts: tf.Tensor, xfer_id: tf.Tensor) -> tf.Tensor:
    """Return the entry counts[i, xfer_id[i]] of every row i, int32 [B].

    Args:
      counts: int32 [B, N + 1], or [B, K] with any other kind of column.
      xfer_id: int32 [B], the column to read in each row.
    """
    return tf.gather(counts, xfer_id, batch_dims=1)


class MaskedCategorical:
    """One categorical distribution per row: the softmax over the valid entries; invalid entries have probability zero.

    Args:
      logits: float32 [B, K].
      valid: bool [B, K], with at least one true entry in every row.
    """

    def __init__(self, logits: tf.Tensor, valid: tf.Tensor):
        self.valid = valid
        logits = tf.clip_by_value(logits, -LIMIT, LIMIT)
        top = tf.stop_gradient(tf.reduce_max(tf.where(valid, logits, -LIMIT), axis=1, keepdims=True))
        # Masked entries are replaced before the exponential, because a gradient through them would be inf · 0.
        shifted = tf.where(valid, logits - top, 0.0)
        total = tf.reduce_sum(tf.where(valid, tf.exp(shifted), 0.0), axis=1, keepdims=True)
        self.log_probs = tf.where(valid, shifted - tf.math.log(total), -np.inf)

    def sample(self, seeds: tf.Tensor) -> tf.Tensor:
        """Draw one valid entry per row, int32 [B], by the Gumbel-max method.

        seeds: int [2], or int [k, 2], where only the first row is used; equal seeds give equal samples.
        """
        seed = tf.reshape(seeds, [-1, 2])[0]
        uniform = tf.random.stateless_uniform(tf.shape(self.log_probs), seed, minval=TINY)
        return tf.argmax(self.log_probs - tf.math.log(-tf.math.log(uniform)), axis=1, output_type=tf.int32)

    def mode(self) -> tf.Tensor:
        """Return the most probable entry of each row, int32 [B]; the first one if several are equal."""
        return tf.argmax(self.log_probs, axis=1, output_type=tf.int32)

    def log_prob(self, index: tf.Tensor) -> tf.Tensor:
        """Return the log-probability of one entry per row (index: int32 [B]), float32 [B] in nats; -inf if invalid."""
        return tf.gather(self.log_probs, index, batch_dims=1)

    def entropy(self) -> tf.Tensor:
        """Return the entropy of each row's distribution, float32 [B], in nats."""
        log_probs = tf.where(self.valid, self.log_probs, 0.0)
        return -tf.reduce_sum(tf.where(self.valid, tf.exp(log_probs) * log_probs, 0.0), axis=1)

    def log_prob_and_entropy(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (log-probability of the entry `index`, entropy) for each row, each float32 [B] in nats."""
        return self.log_prob(index), self.entropy()


class TwoStage:
    """The distribution π(rule) · π(location | rule).

    Args:
      rule_logits: float32 [B, N + 1].
      valid: bool [B, N + 1], True for rules that have a location.
      locations: a function from rules, xfer_id int32 [B], to (location logits float32 [B, L], number of locations int32
        [B]) of one rule per row. It is called only for rules that are sampled or evaluated.
    """

    def __init__(
        self,
        rule_logits: tf.Tensor,
        valid: tf.Tensor,
        locations: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    ):
        self.xfer_ids, self._locations = MaskedCategorical(rule_logits, valid), locations

    def locations(self, xfer_id: tf.Tensor) -> MaskedCategorical:
        """Return the distribution over the locations of one given rule per row, xfer_id int32 [B]."""
        logits, count = self._locations(xfer_id)
        return MaskedCategorical(logits, tf.sequence_mask(count, logits.shape[1]))

    def sample(self, seeds: tf.Tensor) -> tf.Tensor:
        """Draw one action per row, int32 [B, 2] (xfer_id, location); `seeds`, int [2, 2], holds one seed for the
        draw of the xfer_id and one for the draw of the location."""
        xfer_id = self.xfer_ids.sample(seeds[0])
        return tf.stack([xfer_id, self.locations(xfer_id).sample(seeds[1])], axis=1)

    def mode(self) -> tf.Tensor:
        """Return int32 [B, 2]: the most probable rule, then its most probable location.

        Each stage is greedy, as in the paper, so the result need not be the most probable (rule, location).
        """
        xfer_id = self.xfer_ids.mode()
        return tf.stack([xfer_id, self.locations(xfer_id).mode()], axis=1)

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Return log π(rule, location) of one action per row, int32 [B, 2]: float32 [B] in nats, -inf if invalid."""
        return self.log_prob_and_entropy(actions)[0]

    def log_prob_and_entropy(self, actions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return log π(rule, location) and H(rule) + H(location | rule of `actions`), each float32 [B], in nats.

        The joint entropy is H(rule) + Σ_x π(x) H(location | x). If the rules of `actions` are drawn from π, the second
        value is an unbiased estimate of it, and needs the location logits of one rule instead of N + 1.

        Args:
          actions: int32 [B, 2], (xfer_id, location).
        """
        xfer_id, location = actions[:, 0], actions[:, 1]
        second = self.locations(xfer_id)
        return self.xfer_ids.log_prob(xfer_id) + second.log_prob(location), self.xfer_ids.entropy() + second.entropy()
