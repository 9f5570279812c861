"""PPO's networks: a trunk on [z, h], a value head, and one of two heads that choose what to do.

`two-stage` is the paper's (sections 3.1.3 and 3.4): a rule head, then a location head that also sees an embedding of
the chosen rule. To it a location is a number. `match-classes` chooses among the match classes that have a match
(worldmodel/base.py), and takes the first match of that class. It begins with a greedy prior
(`controller.ppo.greedy_prior`), by the usual reward of each class in the data, and learns what to do otherwise.

A *choice* is what a distribution is over: (xfer_id, location), int32 [B, 2], or the number of a match class, int32 [B],
NO-OP being the last. z and h enter as they are: the world model standardises z, and h lies in ±1.
"""

import numpy as np
import sonnet as snt
import tensorflow as tf

from controllers.masked import MaskedCategorical, TwoStage, count_of

RELUCTANCE = 0.01  # of a middling usual reward: what a match class has to earn to be preferred to NO-OP


class Orthogonal(snt.initializers.Initializer):
    """Orthogonal weights times `gain`, drawn from a NumPy generator: a function of its seed alone."""

    def __init__(self, rng: np.random.Generator, gain: float):
        self.rng, self.gain = rng, gain

    def __call__(self, shape, dtype):
        q, r = np.linalg.qr(self.rng.standard_normal((max(shape), min(shape))))
        q = q * np.sign(np.diag(r))
        return tf.constant(self.gain * (q if shape[0] >= shape[1] else q.T), dtype)


class Policy(snt.Module):
    """What both have. Its ways to act are compiled once each, for any batch size.

    A subclass states `observes_counts`, which counts of the observation it sees, and fills the methods that raise
    NotImplementedError.
    """

    observes_counts: str

    def __init__(self, shapes, config, rng: np.random.Generator):
        super().__init__("policy")
        self.shapes, self.rng = shapes, rng
        self.trunk = [
            self.linear(shapes.z + shapes.h, config.hidden, np.sqrt(2), "trunk_0"),
            self.linear(config.hidden, config.hidden, np.sqrt(2), "trunk_1"),
        ]
        self.add_heads(config)
        self.value_head = self.linear(config.hidden, 1, 1.0, "value_head")

        observation = [
            tf.TensorSpec([None, shapes.z], tf.float32),
            tf.TensorSpec([None, shapes.h], tf.float32),
            tf.TensorSpec([None, self.counted], tf.int32),
        ]
        self.mode = tf.function(self._mode, input_signature=observation)
        self.sample = tf.function(self._sample, input_signature=[*observation, tf.TensorSpec([2, 2], tf.int64)])
        self.value = tf.function(self._value, input_signature=observation[:2])

    def linear(self, inputs: int, outputs: int, gain: float, name: str) -> snt.Linear:
        layer = snt.Linear(outputs, w_init=Orthogonal(self.rng, gain), name=name)
        layer(tf.zeros([1, inputs]))  # makes the variables
        return layer

    def add_heads(self, config) -> None:
        raise NotImplementedError("add_heads(config) -> None")

    @property
    def counted(self) -> int:
        """How many counts it sees."""
        raise NotImplementedError("counted -> int")

    @property
    def memory(self) -> dict[str, tf.TensorSpec]:
        """Of what `remember` gives."""
        raise NotImplementedError("memory -> {name: TensorSpec}")

    def remember(self, counts, choice) -> dict[str, tf.Tensor]:
        """What of the counts int32 [B, counted] the learner needs to weigh the choice again."""
        raise NotImplementedError("remember(counts, choice) -> {name: tensor}")

    def acting(self, features, counts) -> MaskedCategorical | TwoStage:
        """The distribution over choices."""
        raise NotImplementedError("acting(features, counts) -> distribution")

    def learning(self, features, memory) -> MaskedCategorical | TwoStage:
        """The same distribution, as far as the remembered choice asks for it."""
        raise NotImplementedError("learning(features, memory) -> distribution")

    def action(self, counts, choice) -> tf.Tensor:
        """int32 [B, 2]."""
        raise NotImplementedError("action(counts, choice) -> (xfer_id, location)")

    def features(self, z, h):
        """float32 [B, hidden]."""
        x = tf.concat([z, h], axis=1)
        for layer in self.trunk:
            x = tf.tanh(layer(x))
        return x

    def values(self, features):
        """float32 [B], in units of the scaled reward."""
        return tf.squeeze(self.value_head(features), axis=1)

    def _mode(self, z, h, counts):
        return self.action(counts, self.acting(self.features(z, h), counts).mode())

    def _sample(self, z, h, counts, seeds):
        """The actions, and what the learner stores of a step."""
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
    observes_counts = "counts"

    def add_heads(self, config):
        # The paper's names for them. TensorFlow orders float sums of a compiled program by operators' names: others
        # would give other last bits.
        s, hidden = self.shapes, config.hidden
        self.rule_head = self.linear(hidden, s.n_xfer_ids, 0.01, "xfer_head")
        self.embedding = self.linear(s.n_xfer_ids, config.embedding, 1.0, "xfer_embedding")
        self.location_hidden = self.linear(hidden + config.embedding, hidden, np.sqrt(2), "location_hidden")
        self.location_head = self.linear(hidden, s.locations, 0.01, "location_head")

    @property
    def counted(self):
        return self.shapes.n_xfer_ids

    @property
    def memory(self):
        """Which rules were valid, and how many locations the chosen one had."""
        return {"rules": tf.TensorSpec([None, self.counted], tf.bool), "count": tf.TensorSpec([None], tf.int32)}

    def remember(self, counts, choice):
        return {"rules": counts > 0, "count": count_of(counts, choice[:, 0])}

    def acting(self, features, counts):
        return self._distribution(features, counts > 0, lambda xfer_id: count_of(counts, xfer_id))

    def learning(self, features, memory):
        return self._distribution(features, memory["rules"], lambda _: memory["count"])

    def action(self, counts, choice):
        return choice

    def _distribution(self, features, valid, count) -> TwoStage:
        """valid bool [B, N + 1]; `count(xfer_id)` gives the locations of that rule int32 [B]."""

        def locations(xfer_id):
            x = tf.concat([features, self.embedding(tf.one_hot(xfer_id, self.shapes.n_xfer_ids))], axis=1)
            return self.location_head(tf.tanh(self.location_hidden(x))), count(xfer_id)

        return TwoStage(self.rule_head(features), valid, locations)


class MatchClassPolicy(Policy):
    """match_classes: int32 [K], the rule of each; usual_rewards: float32 [K], of each in the data."""

    observes_counts = "class_counts"

    def __init__(self, shapes, config, rng, match_classes: np.ndarray, usual_rewards: np.ndarray):
        self.xfer_ids = np.append(match_classes, shapes.n_xfer_ids - 1).astype(np.int32)
        self.start = np.searchsorted(self.xfer_ids, self.xfer_ids)  # the first match class of the same rule
        gains = usual_rewards[usual_rewards > 0]
        usual = np.median(gains) if len(gains) else 1.0
        # NO-OP's reward is 0, and it comes before what gains nothing. Logarithmic in large rewards, so that small ones
        # differ from none and the others are tried beside large ones.
        scaled = np.arcsinh(np.append(usual_rewards / usual, RELUCTANCE))
        self.greedy_prior = (config.greedy_prior * scaled).astype(np.float32)
        super().__init__(shapes, config, rng)

    def add_heads(self, config):
        self.class_head = self.linear(config.hidden, len(self.xfer_ids), 0.0, "class_head")

    @property
    def counted(self):
        return len(self.xfer_ids) - 1

    @property
    def memory(self):
        """Which match classes had a match."""
        return {"valid": tf.TensorSpec([None, self.counted], tf.bool)}

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
        """The first match of the class: a rule's locations are ordered by match class."""
        before = tf.pad(tf.cumsum(counts, axis=1), [[0, 0], [1, 0]])  # [B, K + 1]: locations of earlier classes
        location = count_of(before, choice) - count_of(before, tf.gather(self.start, choice))
        return tf.stack([tf.gather(self.xfer_ids, choice), location], axis=1)
