"""The two networks: the match network predicts conditions and effects, the node network predicts costs.

Both are graph networks (graph_nets; Battaglia et al. 2018), over a match or over the neighbourhood of a node. They do
not depend on the size of a graph or on its model.

Rules copy sizes and attributes. A network cannot detect equal numbers from logarithms, so `Comparison` makes equality
an input.
"""

from functools import partial
from typing import NamedTuple, Self

import numpy as np
import sonnet as snt
import tensorflow as tf
from graph_nets.graphs import GraphsTuple

from rlflow.collect.edits import OPERATOR_COLUMNS
from rlflow.env.features import N_OPS, TENSOR_FEATURES
from worldmodel.graph_mdn.effects import COPIES, Choices
from worldmodel.graph_mdn.network_inputs import ATTRIBUTES, NUMBERS, ROLES, SAME, WAVES, MatchBatch, SignatureTable
from worldmodel.network_parts import Mixture, Normaliser, full_step, messages, mixture_from_parameters, processed


class Comparison(snt.Module):
    """A layer that compares each filling with the operators, or with the tensors, of its match.

    Each number of a filling is compared with each number of an operator or tensor of the match; the inputs show which
    of these pairs are equal. If both sides have the same columns (two operators or two tensors), the differences of
    their numbers are inputs as well.
    """

    def __init__(self, width: int):
        super().__init__(name="comparison")
        self.pair = snt.Linear(width, name="pair")
        self.positions = snt.Embed(COPIES, width, name="positions")

    def __call__(
        self, where: tf.Tensor, rows: tf.Tensor, mine: tf.Tensor, theirs: tf.Tensor, beside: tf.Tensor
    ) -> tf.Tensor:
        """Return, for each filling, the sum of embeddings of its comparisons.

        Args:
          where: bool [F], True for fillings to compare; the result for all other fillings is 0.
          rows: int32 [F], each filling as a row of `mine`.
          mine: float32 [.., numbers], the numbers of operators or tensors, as logarithms; 0 for a missing number.
          theirs: float32 [.., numbers], likewise, for the operators or tensors of matches.
          beside: int32 [F, COPIES], the operators or tensors of each filling's match as rows of `theirs`; 0 for none.

        Returns:
          float32 [F, width].
        """
        which = tf.cast(tf.where((beside > 0) & where[:, None]), tf.int32)  # [P, 2]: a filling, a position
        size = tf.shape(theirs)[0]
        both = tf.gather(rows, which[:, 0]) * size + tf.gather_nd(beside, which)
        pairs, number = tf.unique(both)  # many pairs of a batch are equal
        one, other = tf.gather(mine, pairs // size), tf.gather(theirs, pairs % size)
        equal = (tf.abs(one[:, :, None] - other[:, None, :]) < SAME) & (one[:, :, None] != 0)
        seen = [tf.reshape(tf.cast(equal, tf.float32), [-1, mine.shape[1] * theirs.shape[1]])]
        if mine.shape[1] == theirs.shape[1]:
            seen.append(one - other)
        each = tf.gather(self.pair(tf.concat(seen, axis=-1)), number) + self.positions(which[:, 1])
        return tf.math.unsorted_segment_sum(tf.nn.relu(each), which[:, 0], tf.shape(rows)[0])


NODE_INPUTS, NODE_OUTPUTS = 8, 4  # slots for the inputs and outputs of a node; later tensors share the last slot
NODE_SLOTS = NODE_INPUTS + NODE_OUTPUTS
LEAST_LOG_SIGMA = -7.0  # lower bound of log σ of a residual, where σ is in standard deviations of all residuals


class Table(NamedTuple):
    """The arrays of a `SignatureTable` as TensorFlow tensors."""

    operators: tf.Tensor
    tensors: tf.Tensor
    numbers: tf.Tensor
    attributes: tf.Tensor
    operator_waves: tf.Tensor
    tensor_waves: tf.Tensor

    @classmethod
    def of(cls, table: SignatureTable) -> Self:
        """Return the arrays of a table as tensors. The result is cached until the table grows."""
        sizes = len(table.operators), len(table.tensors)
        if table.shown is None or sizes != (len(table.shown.operators), len(table.shown.tensors)):
            table.shown = cls(*[tf.constant(getattr(table, name)) for name in cls._fields])
        return table.shown


TABLE = Table(  # any size, so that functions are traced once
    tf.TensorSpec([None, OPERATOR_COLUMNS]), tf.TensorSpec([None, TENSOR_FEATURES]), tf.TensorSpec([None, NUMBERS]),
    tf.TensorSpec([None, ATTRIBUTES]), tf.TensorSpec([None, 2 * WAVES * (OPERATOR_COLUMNS - 1)]),
    tf.TensorSpec([None, 2 * WAVES * TENSOR_FEATURES]),
)  # fmt: skip


class Judgement(NamedTuple):
    """The output of the match network for M matches and their `Choices`, as logits.

    Attributes:
      applies: [M], the logit that the rule applies to the match.
      structures: [C], the logit of each structure; the softmax is over the structures of a match.
      fillings: [F], the logit of each filling; the softmax is over the fillings of a slot.
    """

    applies: tf.Tensor
    structures: tf.Tensor
    fillings: tf.Tensor


class SignatureEncoder(snt.Module):
    """An encoder from a `Table` to embeddings of its operators, float32 [O, width], and tensors, float32 [S, width]."""

    def __init__(self, width: int):
        super().__init__(name="signatures")
        self.operator_statistics = Normaliser(OPERATOR_COLUMNS - 1, "operator_statistics")
        self.tensor_statistics = Normaliser(TENSOR_FEATURES, "tensor_statistics")
        self.operator_embedding = snt.Embed(N_OPS, width, name="operators")
        self.operator = snt.nets.MLP([width, width], name="operator")
        self.tensor = snt.nets.MLP([width, width], name="tensor")

    def fit(self, table: SignatureTable) -> None:
        """Set the normalisers to the statistics of the table."""
        self.operator_statistics.update(table.operators[1:, 1:])
        self.tensor_statistics.update(table.tensors[1:])

    def __call__(self, table: Table) -> tuple[tf.Tensor, tf.Tensor]:
        ids = tf.cast(table.operators[:, 0], tf.int32)
        of_operators = [
            self.operator_embedding(ids), self.operator_statistics(table.operators[:, 1:]), table.operator_waves
        ]  # fmt: skip
        of_tensors = [self.tensor_statistics(table.tensors), table.tensor_waves]
        return self.operator(tf.concat(of_operators, axis=-1)), self.tensor(tf.concat(of_tensors, axis=-1))


class NodeBatch(NamedTuple):
    """A batch of n nodes, with the k inputs and outputs of all nodes, and e edges between nodes.

    Attributes:
      operators: int32 [n], the operator of each node as a row of the table.
      tensors: int32 [k], the inputs and outputs of all nodes as rows of the table.
      tensor_slots: int32 [k], the position of each tensor among the inputs of its node, or NODE_INPUTS plus its
        position among the outputs.
      tensor_owners: int32 [k], the index of the node that reads or makes each tensor.
      senders, receivers: int32 [e], indices of nodes.
      makes: float32 [e], 1 if the sender makes a tensor that the receiver reads, 0 for the opposite direction.
    """

    operators: np.ndarray
    tensors: np.ndarray
    tensor_slots: np.ndarray
    tensor_owners: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    makes: np.ndarray


class NodeEncoder(snt.Module):
    """A graph network from nodes to embeddings.

    A node is first encoded from its operator, inputs and outputs. After s rounds of message passing, its embedding
    depends on all nodes within s edges.

    Args:
      width: the width of embeddings and hidden layers.
      message_passing_steps: s.
    """

    def __init__(self, width: int, message_passing_steps: int):
        super().__init__(name="node_encoder")
        self.signatures = SignatureEncoder(width)
        self.slots = snt.Embed(NODE_SLOTS, width, name="slots")
        self.tensor = snt.nets.MLP([width, width], name="tensor")
        self.node = snt.nets.MLP([2 * width, width], name="node")
        self.process = [messages(width) for _ in range(message_passing_steps)]

    def __call__(self, batch: NodeBatch, table: Table) -> tf.Tensor:
        """Return the embedding of each node, float32 [n, width]."""
        operators, tensors = self.signatures(table)
        of_tensors = tf.concat([tf.gather(tensors, batch.tensors), self.slots(batch.tensor_slots)], axis=-1)
        size = tf.shape(batch.operators)[0]
        around = tf.math.unsorted_segment_sum(self.tensor(of_tensors), batch.tensor_owners, size)
        nodes = self.node(tf.concat([tf.gather(operators, batch.operators), around], axis=-1))
        edges = tf.stack([batch.makes, 1 - batch.makes], axis=-1)
        graph = GraphsTuple(
            nodes=nodes, edges=edges, globals=None, receivers=batch.receivers, senders=batch.senders,
            n_node=size[None], n_edge=tf.shape(batch.senders),
        )  # fmt: skip
        for core in self.process:
            graph = graph.replace(nodes=graph.nodes + core(graph).nodes)
        return graph.nodes


class NodeNetwork(snt.Module):
    """A network that predicts, for each node, the residual of log(1 + cost in ns) as a mixture of K Gaussians.

    The residual is log(1 + cost in ns) minus the same logarithm by the cost law (neural_costs.py), standardised.

    Args:
      width: the width of embeddings and hidden layers.
      message_passing_steps: the number of edges up to which other nodes influence the cost of a node.
      gaussians: K.
    """

    def __init__(self, width: int, message_passing_steps: int, gaussians: int):
        super().__init__(name="node_network")
        self.gaussians = gaussians
        self.encoder = NodeEncoder(width, message_passing_steps)
        self.mixture = snt.nets.MLP([width, 3 * gaussians], name="mixture")
        self.costs = Normaliser(1, "costs")

    def __call__(self, batch: NodeBatch, table: Table) -> Mixture:
        """Return the mixture of each node; the fields of the result are [n, K]."""
        parameters = self.mixture(self.encoder(batch, table))
        return _one_dimension(mixture_from_parameters(parameters, 1, self.gaussians, LEAST_LOG_SIGMA))


def likeliest(mixture: Mixture) -> tf.Tensor:
    """Return the mean of the Gaussian with the highest peak (weight / σ) in each mixture, [n].

    The Gaussian with the largest weight may be wide, so its mean may be an improbable value.
    """
    best = tf.argmax(mixture.logits - mixture.log_sigma, axis=-1, output_type=tf.int32)
    return tf.gather(mixture.mean, best, batch_dims=1)


def _one_dimension(mixture: Mixture) -> Mixture:
    return Mixture(*[part[:, 0] for part in mixture])


class MatchNetwork(snt.Module):
    """A graph network that predicts for each match whether its rule applies, and the effect of the rewrite."""

    def __init__(self, n_rules: int, n_structures: int, n_slots: int, width: int, message_passing_steps: int):
        """Create the network.

        Args:
          n_rules: N, the number of rules.
          n_structures, n_slots: the numbers of structures and of slots in the `Vocabulary`.
          width: the width of embeddings and hidden layers.
          message_passing_steps: the number of rounds of message passing between the nodes and tensors of a match.
        """
        super().__init__(name="match_network")
        self.signatures = SignatureEncoder(width)
        self.rules = snt.Embed(n_rules, width, name="rules")
        self.roles = snt.Embed(ROLES, width, name="roles")
        self.vertex = snt.nets.MLP([width, width], name="vertex")
        self.edge = snt.Linear(width, name="edge")
        step = partial(full_step, width, tf.math.unsorted_segment_sum, to_edges=False)  # nodes know the rule
        self.process = [step() for _ in range(message_passing_steps)]
        self.applies = snt.nets.MLP([width, 1], name="applies")
        self.query = snt.Linear(width, name="query")
        self.structures = snt.Embed(max(n_structures, 1), width, name="structures")
        self.slots = snt.Embed(max(n_slots, 1), width, name="slots")
        self.slot = snt.nets.MLP([2 * width, width + COPIES], name="slot")
        self.comparisons = [Comparison(width) for _ in range(4)]
        self.filling = snt.Linear(width, name="filling")
        self.fits = snt.nets.MLP([width, 1], name="fits")

    def __call__(self, batch: MatchBatch, choices: Choices, table: Table) -> Judgement:
        """Return the judgement of M matches.

        Args:
          batch: the matches.
          choices: the possible structures and fillings of the matches.
          table: the features of signatures.
        """
        operators, tensors = self.signatures(table)
        matches = self._matches(batch, operators, tensors)
        structure = self.query(tf.gather(matches, choices.structure_owners)) * self.structures(choices.structures)
        of_slots = tf.concat([tf.gather(matches, choices.slot_owners), self.slots(choices.slots)], axis=-1)
        slots = tf.gather(self.slot(of_slots), choices.filling_owners)
        rows, width = choices.fillings, operators.shape[-1]
        filling = tf.where(
            choices.are_tensors[:, None],
            tf.gather(tensors, tf.where(choices.are_tensors, rows, 0)),
            tf.gather(operators, tf.where(choices.are_tensors, 0, rows)),
        )
        described = tf.concat([filling, choices.copies, self._beside(choices, table)], axis=-1)
        fits = self.fits(tf.nn.relu(slots[:, :width] + self.filling(described)))
        copied = tf.reduce_sum(slots[:, width:] * choices.copies, axis=-1)
        return Judgement(self.applies(matches)[:, 0], tf.reduce_sum(structure, axis=-1), fits[:, 0] + copied)

    def condition(self, batch: MatchBatch, table: Table) -> tf.Tensor:
        """Return `Judgement.applies` alone, float32 [M]."""
        return self.applies(self._matches(batch, *self.signatures(table)))[:, 0]

    def _beside(self, choices: Choices, table: Table) -> tf.Tensor:
        """Return the comparison of each filling with the operators and tensors of its match, [F, width + 2 · AXES].

        The last 2 · AXES columns are `choices.sums`.
        """
        of_tensors, of_operators = choices.are_tensors, ~choices.are_tensors
        numbers, attributes, rows = table.numbers, table.attributes, choices.fillings
        seen = (
            (of_tensors, numbers, numbers, choices.tensors), (of_tensors, numbers, attributes, choices.operators),
            (of_operators, attributes, numbers, choices.tensors),
            (of_operators, attributes, attributes, choices.operators),
        )  # fmt: skip
        beside = tf.add_n([
            compared(where, tf.where(where, rows, 0), mine, theirs, of_match)
            for compared, (where, mine, theirs, of_match) in zip(self.comparisons, seen, strict=True)
        ])  # fmt: skip
        return tf.concat([beside, choices.sums], -1)

    def _matches(self, batch: MatchBatch, operators: tf.Tensor, tensors: tf.Tensor) -> tf.Tensor:
        """Return an embedding of each match, [M, width].

        Args:
          batch: the matches.
          operators, tensors: the embeddings of all operators [O, width] and tensors [S, width] of the table.
        """
        rules = self.rules(batch.rules)
        is_node = tf.cast(batch.operators > 0, tf.float32)[:, None]
        vertices = is_node * tf.gather(operators, batch.operators) + (1 - is_node) * tf.gather(tensors, batch.tensors)
        seen = tf.concat([vertices, self.roles(batch.roles), tf.gather(rules, batch.owners)], axis=-1)
        graphs = GraphsTuple(
            nodes=self.vertex(seen), edges=self.edge(batch.edges), globals=rules, receivers=batch.receivers,
            senders=batch.senders, n_node=batch.n_vertices, n_edge=batch.n_edges,
        )  # fmt: skip
        return processed(graphs, self.process).globals
