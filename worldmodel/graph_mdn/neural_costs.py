"""What nodes cost, by laws and the node network, in place of the tables of "edits"; remembered by neighbourhood.

The network predicts by how much a node's log(1 + ns) differs from what its law says (`CostLaws`).

A cost that is a sum over single operators needs no neighbourhood (reach 0): then a node costs what its operator
signature says. Where kernels span several operators, the network looks at all within `reach` edges, and what it said of
a neighbourhood is kept under the neighbourhood's key.
"""

import numpy as np
import tensorflow as tf

from worldmodel.edits.cost_model import RewriteGains
from worldmodel.graph_mdn.cost_laws import CostLaws
from worldmodel.graph_mdn.network import TABLE, NodeBatch, NodeNetwork, Table, likeliest
from worldmodel.graph_mdn.node_batches import NodeRows
from worldmodel.graph_mdn.signature_table import SignatureTable

SURE = 0.05  # a node's cost is known if it is predicted to be off by at most this share

_INTS = tf.TensorSpec([None], tf.int32)
NODES = (
    NodeBatch(*[_INTS] * 6, tf.TensorSpec([None])),
    TABLE,
)


class NeuralCosts:
    """network, table, laws: what it predicts with. reach: edges that a cost looks at. gains: of rewrites that nobody
    can carry out in a dream."""

    def __init__(self, network: NodeNetwork, table: SignatureTable, reach: int, gains: RewriteGains, laws: CostLaws):
        self.network, self.table, self.reach, self.gains, self.laws = network, table, reach, gains, laws
        self._call = tf.function(self._means, input_signature=NODES, autograph=False)

    def __call__(
        self, rows: NodeRows, nodes: np.ndarray, senders: np.ndarray, receivers: np.ndarray, makes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(likeliest cost, its standard deviation, whether that is large), float64 [n] in ps and bool [n], of nodes
        with these edges between them."""
        batch = rows.batch(nodes, senders, receivers, makes)
        table = Table.of(self.table)
        left, deviation = (part.numpy() for part in self._call(batch, table))
        ns = np.maximum(np.expm1(left.astype(np.float64) + self.laws(batch, self.table)), 0.0)
        return 1e3 * ns, 1e3 * (ns + 1.0) * deviation.astype(np.float64), deviation > SURE

    def _means(self, batch: NodeBatch, table: Table) -> tuple[tf.Tensor, tf.Tensor]:
        """(mean of the Gaussian that is densest there, the mixture's standard deviation), [n], of what laws leave
        over."""
        mixture, costs = self.network(batch, table), self.network.costs
        weights = tf.nn.softmax(mixture.logits)
        mean = tf.reduce_sum(weights * mixture.mean, axis=-1, keepdims=True)
        variance = tf.reduce_sum(weights * (tf.exp(2 * mixture.log_sigma) + tf.square(mixture.mean - mean)), axis=-1)
        return costs.invert(likeliest(mixture)[:, None])[:, 0], tf.sqrt(variance * costs.variance[0])
