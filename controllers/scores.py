"""What CMA-ES searches through: vectors of weights, each of which scores all choices and names a location.

`priorities` scores the choices once and for all; `linear` is W [z, h] + b (Ha & Schmidhuber 2018; RLFlow paper, section
3.4); `mlp` puts a narrow layer of tanh in between, which has far fewer weights where there are many choices. z and h
enter as they are (the world model standardises z, and h lies in ±1). A layer's inputs are divided by the root of their
number, so that a weight means as much as a bias does.
"""

import numpy as np
import tensorflow as tf

RELUCTANCE = 0.3  # three times the default sigma0: of the choices that gain nothing, few are tried by one individual


class Scores:
    """I inputs to O outputs, for a population of P weight vectors float32 [P, size].

    Attributes:
      size: the weights of a vector.
      start: float64 [size], where the search begins: outputs are `bias` there, whatever z and h.
    """

    def __init__(self, policy: str, inputs: int, hidden: int, bias: np.ndarray):
        """bias: float [O]."""
        self.policy, outputs = policy, len(bias)
        last = {"priorities": 0, "linear": inputs, "mlp": hidden}[policy]
        self.shapes = [(last + 1, outputs)]  # the last row of a layer is its bias
        self.start = np.concatenate([np.zeros(last * outputs), bias])
        if policy == "mlp":
            self.shapes.insert(0, (inputs + 1, hidden))
            # Were it zero too, nothing would depend on z.
            first = np.random.default_rng(0).standard_normal((inputs + 1, hidden))
            first[-1] = 0.0
            self.start = np.concatenate([first.ravel(), self.start])
        self.size = len(self.start)

    def __call__(self, weights: tf.Tensor, z: tf.Tensor, h: tf.Tensor) -> tf.Tensor:
        """float32 [B, O] of a batch of which each vector of weights owns B / P rows side by side."""
        population, rows = tf.shape(weights)[0], tf.shape(z)[0]
        x = tf.concat([z, h], axis=1) if self.policy != "priorities" else z[:, :0]
        x = tf.reshape(x, [population, rows // population, x.shape[1]])
        layers = tf.split(weights, [n * m for n, m in self.shapes], axis=1)
        for number, (layer, shape) in enumerate(zip(layers, self.shapes, strict=True)):
            layer = tf.reshape(layer, [population, *shape])
            x = (tf.tanh(x) if number else x) / max(shape[0] - 1, 1) ** 0.5 @ layer[:, :-1] + layer[:, -1:]
        return tf.reshape(x, [rows, self.shapes[-1][1]])


def by_usual_reward(usual_rewards: np.ndarray) -> np.ndarray:
    """float64 [C] in ±1, of usual rewards [C]: the greedy prior by their ranks, whatever their unit.

    The last choice is to stop; what gains nothing comes RELUCTANCE behind it.
    """
    gains, losses = np.unique(usual_rewards[usual_rewards > 0]), np.unique(-usual_rewards[usual_rewards < 0])
    above = np.searchsorted(gains, usual_rewards, side="right") / max(len(gains), 1)
    below = np.searchsorted(losses, -usual_rewards, side="right") / max(len(losses), 1)
    scores = above - RELUCTANCE * (usual_rewards <= 0) - (1 - RELUCTANCE) * below
    scores[-1] = 0.0
    return scores
