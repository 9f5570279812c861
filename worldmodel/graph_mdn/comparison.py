"""How what may stand in a slot looks beside what the match has: what is equal.

Rules copy sizes and attributes. Which numbers of two things are equal no network reads off logarithms; it is told.
"""

import sonnet as snt
import tensorflow as tf

from worldmodel.graph_mdn.effects import COPIES
from worldmodel.graph_mdn.match_graphs import SAME


class Comparison(snt.Module):
    """Of one sort of thing with another: which of their numbers are equal; of the same sort, by how much they
    differ."""

    def __init__(self, width: int):
        super().__init__(name="comparison")
        self.pair = snt.Linear(width, name="pair")
        self.positions = snt.Embed(COPIES, width, densify_gradients=True, name="positions")

    def __call__(
        self, where: tf.Tensor, rows: tf.Tensor, mine: tf.Tensor, theirs: tf.Tensor, beside: tf.Tensor
    ) -> tf.Tensor:
        """[F, width]; 0 where `where`, bool [F], does not hold.

        rows: int32 [F], of `mine`; beside: int32 [F, COPIES], of `theirs`, 0 for none; both are tables of logarithms,
        float32 [.., numbers], 0 for none.
        """
        which = tf.cast(tf.where((beside > 0) & where[:, None]), tf.int32)  # [P, 2]: a filling, a position
        size = tf.shape(theirs)[0]
        both = tf.gather(rows, which[:, 0]) * size + tf.gather_nd(beside, which)
        pairs, number = tf.unique(both)  # many of a batch are the same two
        one, other = tf.gather(mine, pairs // size), tf.gather(theirs, pairs % size)
        equal = (tf.abs(one[:, :, None] - other[:, None, :]) < SAME) & (one[:, :, None] != 0)
        seen = [tf.reshape(tf.cast(equal, tf.float32), [-1, mine.shape[1] * theirs.shape[1]])]
        if mine.shape[1] == theirs.shape[1]:
            seen.append(one - other)
        each = tf.gather(self.pair(tf.concat(seen, axis=-1)), number) + self.positions(which[:, 1])
        return tf.math.unsorted_segment_sum(tf.nn.relu(each), which[:, 0], tf.shape(rows)[0])
