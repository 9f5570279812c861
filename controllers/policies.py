"""The networks of PPO: a trunk on [z, h], a value head, and one of two policy heads.

`two-stage` is the head of the paper (sections 3.1.3 and 3.4): a rule head, then a location head that also receives an
embedding of the chosen rule. `match-classes` chooses among the match classes that have a match (worldmodel/base.py)
and takes the first match of the chosen class. It begins with a greedy prior (`controller.ppo.greedy_prior`): initial
logits that grow with the median reward of each class in the data.

A *choice* is an element of the distribution: (xfer_id, location), int32 [B, 2], or the index of a match class, int32
[B], with NO-OP last. z and h need no scaling: the world model standardises z, and h lies within ±1.
"""

from functools import partial

import numpy as np
import sonnet as snt
import tensorflow as tf

from controllers.masked import MaskedCategorical, TwoStage, count_of

RELUCTANCE = 0.01  # share of the median gain above which the prior prefers a match class to NO-OP


class Orthogonal(snt.initializers.Initializer):
    """An initialiser: orthogonal weights times `gain`, drawn from a NumPy generator."""

    def __init__(self, rng: np.random.Generator, gain: float):
        self.rng, self.gain = rng, gain

    def __call__(self, shape, dtype):
        q, r = np.linalg.qr(self.rng.standard_normal((max(shape), min(shape))))
        q = q * np.sign(np.diag(r))
        return tf.constant(self.gain * (q if shape[0] >= shape[1] else q.T), dtype)


def linear(rng: np.random.Generator, inputs: int, outputs: int, gain: float, name: str) -> snt.Linear:
    """Return a linear layer whose variables exist already, with orthogonal weights and a bias of 0.

    Args:
      rng: the generator of the weights.
      inputs: the size of the input.
      outputs: the size of the output.
      gain: the factor of the orthogonal weights.
      name: the name of the layer, a part of the names of its variables.
    """
    layer = snt.Linear(outputs, w_init=Orthogonal(rng, gain), name=name)
    layer(tf.zeros([1, inputs]))  # creates the variables
    return layer


class Policy(snt.Module):
    """The base class of both policies.

    A subclass sets `observes_counts` ("counts" or "class_counts") and implements the methods that raise
    NotImplementedError. The following functions are compiled once, for any batch size:

      mode: (z, h, counts) → the greedy actions, int32 [B, 2]: the mode of the distribution that `acting` returns.
      sample: (z, h, counts, seeds int64 [2, 2]) → (sampled actions, tensors that an update needs; see `_sample`).
      value: (z, h) → state values, float32 [B].

    Args:
      shapes: the sizes of observations and actions (`controllers.base.LatentShapes`).
      config: the options (`PPOConfig`).
      rng: the generator of the initial weights.
    """

    observes_counts: str

    def __init__(self, shapes, config, rng: np.random.Generator):
        super().__init__("policy")
        self.shapes, self.rng = shapes, rng
        self.trunk = [
            linear(self.rng, shapes.z + shapes.h, config.hidden, np.sqrt(2), "trunk_0"),
            linear(self.rng, config.hidden, config.hidden, np.sqrt(2), "trunk_1"),
        ]
        self.add_heads(config)
        self.value_head = linear(self.rng, config.hidden, 1, 1.0, "value_head")

        observation = [
            tf.TensorSpec([None, shapes.z], tf.float32),
            tf.TensorSpec([None, shapes.h], tf.float32),
            tf.TensorSpec([None, self.counted], tf.int32),
        ]
        # AutoGraph would translate the source of every layer, which takes seconds and changes nothing.
        compiled = partial(tf.function, autograph=False)
        self.mode = compiled(self._mode, input_signature=observation)
        self.sample = compiled(self._sample, input_signature=[*observation, tf.TensorSpec([2, 2], tf.int64)])
        self.value = compiled(self._value, input_signature=observation[:2])

    def add_heads(self, config) -> None:
        raise NotImplementedError("add_heads(config) -> None")

    @property
    def counted(self) -> int:
        """The length of the observed counts: N + 1 for "counts", K for "class_counts"."""
        raise NotImplementedError("counted -> int")

    @property
    def memory(self) -> dict[str, tf.TensorSpec]:
        """The specifications of the tensors that `remember` returns."""
        raise NotImplementedError("memory -> {name: TensorSpec}")

    @property
    def stopped(self) -> dict[str, np.ndarray]:
        """The values of "choice" and of the tensors of `remember` for one step in which NO-OP is chosen.

        The values have no batch axis. Tensors that do not depend on the choice are left out.
        """
        raise NotImplementedError("stopped -> {name: array}")

    def remember(self, counts, choice) -> dict[str, tf.Tensor]:
        """Return the tensors from which `learning` rebuilds the distribution of a choice in a later gradient step.

        Args:
          counts: int32 [B, counted], the observed counts.
          choice: int32 [B] or [B, 2], the choices that were taken.
        """
        raise NotImplementedError("remember(counts, choice) -> {name: tensor}")

    def acting(self, features, counts) -> MaskedCategorical | TwoStage:
        """Return the distribution over all valid choices.

        Args:
          features: float32 [B, hidden], the output of the trunk.
          counts: int32 [B, counted], the observed counts.
        """
        raise NotImplementedError("acting(features, counts) -> distribution")

    def learning(self, features, memory) -> MaskedCategorical | TwoStage:
        """Return the distribution of `acting` from remembered tensors; it is valid for the remembered choices only.

        Args:
          features: float32 [B, hidden], the output of the trunk.
          memory: the tensors that `remember` returned.
        """
        raise NotImplementedError("learning(features, memory) -> distribution")

    def action(self, counts, choice) -> tf.Tensor:
        """Return the (xfer_id, location) of each choice, int32 [B, 2]; counts: int32 [B, counted]."""
        raise NotImplementedError("action(counts, choice) -> (xfer_id, location)")

    def choices(self, counts: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the choice that comes nearest to each (xfer_id, location), int32 [B] or [B, 2].

        Args:
          counts: int32 [B, counted], the observed counts.
          actions: int64 [B, 2], valid actions.
        """
        raise NotImplementedError("choices(counts, actions) -> choices")

    def features(self, z, h):
        """Return the output of the trunk, float32 [B, hidden], for z float32 [B, Z] and h float32 [B, H]."""
        x = tf.concat([z, h], axis=1)
        for layer in self.trunk:
            x = tf.tanh(layer(x))
        return x

    def values(self, features):
        """Return the estimated state values, float32 [B]: discounted sums of scaled rewards (`RewardScale` in ppo.py).

        features: float32 [B, hidden], the output of the trunk.
        """
        return tf.squeeze(self.value_head(features), axis=1)

    def _mode(self, z, h, counts):
        return self.action(counts, self.acting(self.features(z, h), counts).mode())

    def _sample(self, z, h, counts, seeds):
        """Return the sampled actions, int32 [B, 2], and the tensors of this step that a later update needs.

        These are z, h, the choice, its log-probability, the state value and the tensors of `remember`.
        """
        features = self.features(z, h)
        distribution = self.acting(features, counts)
        choice = distribution.sample(seeds)
        return self.action(counts, choice), {
            "z": z,
            "h": h,
            "choice": choice,
            **self.remember(counts, choice),
            "log_probs": distribution.log_prob(choice),
            "values": self.values(features),
        }

    def _value(self, z, h):
        return self.values(self.features(z, h))


class TwoStagePolicy(Policy):
    """The policy of the paper: it chooses a rule, then a location of this rule. A choice is (xfer_id, location)."""

    observes_counts = "counts"

    def add_heads(self, config):
        # These names must stay. TensorFlow orders float sums of a compiled program by the operators' names, so other
        # names would change the last bits of results.
        s, hidden = self.shapes, config.hidden
        self.rule_head = linear(self.rng, hidden, s.n_xfer_ids, 0.01, "xfer_head")
        self.embedding = linear(self.rng, s.n_xfer_ids, config.embedding, 1.0, "xfer_embedding")
        self.location_hidden = linear(self.rng, hidden + config.embedding, hidden, np.sqrt(2), "location_hidden")
        self.location_head = linear(self.rng, hidden, s.locations, 0.01, "location_head")

    @property
    def counted(self):
        return self.shapes.n_xfer_ids

    @property
    def memory(self):
        """The specifications of "rules", the mask of valid rules, and "count", the locations of the chosen rule."""
        return {"rules": tf.TensorSpec([None, self.counted], tf.bool), "count": tf.TensorSpec([None], tf.int32)}

    @property
    def stopped(self):
        return {"choice": np.array([self.counted - 1, 0]), "count": np.array(1)}

    def remember(self, counts, choice):
        return {"rules": counts > 0, "count": count_of(counts, choice[:, 0])}

    def acting(self, features, counts):
        return self._distribution(features, counts > 0, lambda xfer_id: count_of(counts, xfer_id))

    def learning(self, features, memory):
        return self._distribution(features, memory["rules"], lambda _: memory["count"])

    def action(self, counts, choice):
        return choice

    def choices(self, counts, actions):
        return actions.astype(np.int32)

    def _distribution(self, features, valid, count) -> TwoStage:
        """Return the distribution over (rule, location).

        Args:
          features: float32 [B, hidden], the output of the trunk.
          valid: bool [B, N + 1], True for rules that have a location.
          count: a function from rules int32 [B] to their numbers of locations int32 [B].
        """

        def locations(xfer_id):
            x = tf.concat([features, self.embedding(tf.one_hot(xfer_id, self.shapes.n_xfer_ids))], axis=1)
            return self.location_head(tf.tanh(self.location_hidden(x))), count(xfer_id)

        return TwoStage(self.rule_head(features), valid, locations)


class MatchClassPolicy(Policy):
    """A policy that chooses a match class or NO-OP, with a greedy prior added to its logits.

    Args:
      shapes, config, rng: the sizes, the options and the generator of the initial weights.
      match_classes: int32 [K], the rule of each match class.
      usual_rewards: float32 [K], the median class rewards in the data.
    """

    observes_counts = "class_counts"

    def __init__(self, shapes, config, rng, match_classes: np.ndarray, usual_rewards: np.ndarray):
        self.xfer_ids = np.append(match_classes, shapes.n_xfer_ids - 1).astype(np.int32)
        self.start = np.searchsorted(self.xfer_ids, self.xfer_ids)  # the first match class of the same rule
        gains = usual_rewards[usual_rewards > 0]
        usual = np.median(gains) if len(gains) else 1.0
        # NO-OP has a small positive prior, so it is preferred to classes without gain. asinh is logarithmic for large
        # rewards, so a class with a very large gain does not make all other classes improbable.
        scaled = np.arcsinh(np.append(usual_rewards / usual, RELUCTANCE))
        self.greedy_prior = (config.greedy_prior * scaled).astype(np.float32)
        super().__init__(shapes, config, rng)

    def add_heads(self, config):
        self.class_head = linear(self.rng, config.hidden, len(self.xfer_ids), 0.0, "class_head")

    @property
    def counted(self):
        return len(self.xfer_ids) - 1

    @property
    def memory(self):
        """The specification of "valid", the mask of the match classes that have a match."""
        return {"valid": tf.TensorSpec([None, self.counted], tf.bool)}

    @property
    def stopped(self):
        return {"choice": np.array(self.counted)}

    def remember(self, counts, choice):
        return {"valid": counts > 0}

    def acting(self, features, counts):
        return self._distribution(features, counts > 0)

    def learning(self, features, memory):
        return self._distribution(features, memory["valid"])

    def _distribution(self, features, valid) -> MaskedCategorical:
        no_op = tf.fill(tf.shape(valid[:, :1]), self.shapes.stop)
        return MaskedCategorical(self.class_head(features) + self.greedy_prior, tf.concat([valid, no_op], axis=1))

    def action(self, counts, choice):
        """Return the first match of each chosen class as (xfer_id, location), int32 [B, 2].

        The locations of a rule are ordered by match class. The first location of a class is therefore the number of
        matches in the earlier classes of its rule.

        Args:
          counts: int32 [B, K], the number of matches of each match class.
          choice: int32 [B], the index of a match class; K is NO-OP.
        """
        before = tf.pad(tf.cumsum(counts, axis=1), [[0, 0], [1, 0]])  # [B, K + 1]: locations of earlier classes
        location = count_of(before, choice) - count_of(before, tf.gather(self.start, choice))
        return tf.stack([tf.gather(self.xfer_ids, choice), location], axis=1)

    def choices(self, counts, actions):
        """Return the match class of each action, int32 [B]; the policy chooses no match within a class."""
        until = np.cumsum(np.pad(counts, [[0, 0], [1, 0]]), axis=1)  # [B, K + 1]: locations of earlier classes
        rules, locations = actions.T
        passed = until[np.arange(len(actions)), np.searchsorted(self.xfer_ids, rules)] + locations
        classes = (until[:, 1:] <= passed[:, None]).sum(axis=1)
        return np.where(rules == self.shapes.n_xfer_ids - 1, self.counted, classes).astype(np.int32)
