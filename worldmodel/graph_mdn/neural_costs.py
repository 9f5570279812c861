"""Costs of nodes: recalled where the data contain them, otherwise by laws and the node network.

    cost = launch + (compute^s + memory^s)^(1/s),   compute = Σ a_k · work_k,   memory = Σ b_k · elements_k

Each kind of operator has a law of this form, the roofline model (Williams et al. 2009): a kernel is bound by arithmetic
or by memory. work_k counts multiplications for the given sizes, elements_k counts the elements of an input or output,
and s is the sharpness of the corner between both bounds. All coefficients are non-negative and fitted to logged costs.
A kind with few nodes uses the law of a kind with more nodes if that law fits equally well.

The node network predicts the residual: log(1 + cost in ns) of a node minus the same logarithm by its law. The error of
a network grows with the range of its targets. Residuals have a small range, whereas costs differ by a factor of a
thousand. If the cost of a graph is a sum over operators, the cost of a node needs no neighbourhood (reach 0). Otherwise
the network sees all nodes within `reach` edges, and a node of a known signature is recalled by its widest known
neighbourhood, as in `edits`.
"""

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import tensorflow as tf
from scipy.optimize import least_squares

from rlflow.env.features import AXES, LIST_ATTRIBUTES, N_OPS, SIZE
from rlflow.graph.ir import ABSENT
from worldmodel.edits.cost_model import CostModel, RewriteGains, node_costs_at
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.node_values import costs_unknown, single_node_costs
from worldmodel.graph_mdn.network import (
    NODE_INPUTS,
    NODE_OUTPUTS,
    NODE_SLOTS,
    TABLE,
    NodeBatch,
    NodeNetwork,
    Table,
    likeliest,
)
from worldmodel.graph_mdn.network_inputs import SignatureTable
from worldmodel.train_and_load import checked_array

WORKS = 4  # works: multiplications of a convolution, of a matrix product, of a pool, and the number of output elements
TERMS = WORKS + NODE_SLOTS  # number of terms of a law: all work_k and all elements_k
PARAMETERS = 2 + TERMS  # logarithms of launch, s − 1, all a_k and all b_k
KERNEL = slice(
    LIST_ATTRIBUTES["perm"], LIST_ATTRIBUTES["perm"] + LIST_ATTRIBUTES["kernel_shape"]
)  # columns of `SignatureTable.attributes` with the kernel's shape
CONSTANT = 1  # column of `SignatureTable.tensors` that is positive for constants
NEVER = -50.0  # log coefficient of a term that is 0 for all nodes of a kind
# CORNER is the initial value of log(s − 1). OUTLIER is the error of log(1 + ns) above which the loss of a fit grows
# linearly instead of quadratically.
CORNER, OUTLIER = 1.0, 0.05
APART = 2.0  # reduction of the log coefficients of all other terms when a fit starts with one dominant term
PRIOR = 1e-4  # weight of a parameter's distance from its initial value
SPENT = 0.03  # weight of a penalty on each term's share of the cost, which removes terms that do not improve the fit
EVALUATIONS = 200  # largest number of evaluations of the errors in one fit
AS_WELL = 1e-3  # a law with at most this root mean square error of log(1 + ns) counts as fitting perfectly


class CostLaws:
    """The cost law of each kind of operator. Costs are logarithms: log(1 + ns), where ns is the cost in nanoseconds.

    Attributes:
      kinds: int64 [K], the kinds of operators (see `_kinds`) that have a law, ascending.
      parameters: float64 [K, PARAMETERS], the parameters of each law.
      usual: the mean log(1 + ns) of the fitted nodes, which is the prediction for a kind without a law.
    """

    def __init__(self, kinds: np.ndarray, parameters: np.ndarray, usual: float):
        self.kinds, self.parameters, self.usual = kinds, parameters, usual

    @classmethod
    def unknown(cls) -> Self:
        return cls(np.zeros(0, np.int64), np.zeros((0, PARAMETERS)), 0.0)

    @classmethod
    def fit(cls, nodes: NodeBatch, log_ns: np.ndarray, table: SignatureTable) -> Self:
        """Fit the laws to logged costs. Nodes of one kind with equal terms count once, with their mean log(1 + ns).

        Args:
          nodes: n nodes.
          log_ns: float [n], the logged log(1 + ns) of each node.
          table: the features of signatures.
        """
        of, terms = _kinds(nodes, table), _terms(nodes, table)
        alike, which = np.unique(np.column_stack([of, terms]), axis=0, return_inverse=True)
        which = which.reshape(-1)
        means = np.bincount(which, log_ns) / np.bincount(which)
        kinds = np.unique(of)
        samples = [(alike[alike[:, 0] == kind, 1:], means[alike[:, 0] == kind]) for kind in kinds]
        own = [_fitted_law(*sample) for sample in samples]
        parameters = [_best_law(k, own, samples) for k in range(len(kinds))]
        return cls(kinds, np.array(parameters), float(means.mean()))

    def __call__(self, nodes: NodeBatch, table: SignatureTable) -> np.ndarray:
        """Return the log(1 + ns) that the laws predict for each of n nodes, float32 [n]."""
        of, terms = _kinds(nodes, table), _terms(nodes, table)
        result = np.full(len(of), self.usual)
        for kind, parameters in zip(self.kinds, self.parameters, strict=True):
            here = of == kind
            result[here] = _log_ns(parameters, terms[here])
        return result.astype(np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"kinds": self.kinds, "laws": self.parameters, "usual": np.array([self.usual])}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> Self:
        """Restore the laws from the result of `arrays`.

        Raises:
          KeyError, ValueError: the arrays are damaged.
        """
        kinds = checked_array(arrays, "kinds", np.int64, None)
        parameters = checked_array(arrays, "laws", np.float64, len(kinds), PARAMETERS)
        return cls(kinds, parameters, float(checked_array(arrays, "usual", np.float64, 1)[0]))


def _kinds(nodes: NodeBatch, table: SignatureTable) -> np.ndarray:
    """Return the kind of each node, int64 [n]: its operator id, plus N_OPS if its output is a constant."""
    made = nodes.tensor_slots >= NODE_INPUTS
    constant = np.zeros(len(nodes.operators), bool)
    constant[nodes.tensor_owners[made]] = table.tensors[nodes.tensors[made], CONSTANT] > 0
    return table.operators[nodes.operators, 0].astype(np.int64) + N_OPS * constant


def _terms(nodes: NodeBatch, table: SignatureTable) -> np.ndarray:
    """Return the terms of the law for each node, float64 [n, TERMS]: the works, then the elements in each slot.

    Args:
      nodes: n nodes.
      table: the features of signatures.
    """
    n, owners, slots = len(nodes.operators), nodes.tensor_owners, nodes.tensor_slots
    result = np.zeros((n, TERMS))
    np.add.at(result, (owners, WORKS + slots), _numbers(table.tensors[nodes.tensors, SIZE]))
    first, second = (_axes(nodes, table, slot) for slot in (0, 1))
    summed = np.take_along_axis(first, np.maximum((first > 0).sum(axis=1) - 1, 0)[:, None], axis=1)[:, 0]
    kernel = _numbers(table.attributes[nodes.operators, KERNEL])
    made = result[:, WORKS + NODE_INPUTS]
    works = np.maximum(second[:, 1:], 1).prod(axis=1), np.maximum(summed, 1), np.maximum(kernel, 1).prod(axis=1), 1
    for k, work in enumerate(works):
        result[:, k] = made * work
    return result


def _axes(nodes: NodeBatch, table: SignatureTable, slot: int) -> np.ndarray:
    """Return the axis sizes of the tensor in one slot of each node, float64 [n, AXES]; 0 for a missing axis."""
    here, result = nodes.tensor_slots == slot, np.zeros((len(nodes.operators), AXES))
    result[nodes.tensor_owners[here]] = _numbers(table.numbers[nodes.tensors[here], :AXES])
    return result


def _numbers(logarithms: np.ndarray) -> np.ndarray:
    return np.rint(np.expm1(logarithms.astype(np.float64)))


def _log_ns(parameters: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Return log(1 + ns) by one law, float64 [n].

    Args:
      parameters: float64 [PARAMETERS], the parameters of the law.
      terms: float64 [n, TERMS], the terms of n nodes.
    """
    launch, sharp, weights = np.exp(parameters[0]), 1 + np.exp(parameters[1]), np.exp(parameters[2:])
    compute, memory = terms[:, :WORKS] @ weights[:WORKS], terms[:, WORKS:] @ weights[WORKS:]
    most = np.maximum(np.maximum(compute, memory), 1e-12)
    return np.log1p(launch + most * ((compute / most) ** sharp + (memory / most) ** sharp) ** (1 / sharp))


def _best_law(kind: int, own: list[np.ndarray], samples: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the parameters of the law of one kind, or of another kind with more nodes if that law fits equally well.

    A few nodes do not determine all parameters. The law of convolutions, for example, also fits fused convolutions.

    Args:
      kind: the index of the kind.
      own: the law fitted to each kind.
      samples: for each kind, the terms [n, TERMS] and the log(1 + ns) [n] of its nodes.
    """
    terms, log_ns = samples[kind]
    errors = [float(np.sqrt(np.square(_log_ns(law, terms) - log_ns).mean())) for law in own]
    others = [k for k, (_, of) in enumerate(samples) if len(of) > len(log_ns)]
    best = min(others, key=errors.__getitem__, default=kind)
    return own[best if errors[best] <= max(errors[kind], AS_WELL) else kind]


def _fitted_law(terms: np.ndarray, log_ns: np.ndarray) -> np.ndarray:
    """Fit the parameters of the law of one kind, float64 [PARAMETERS].

    The first fit starts with terms of similar size. If this fit leaves an error above OUTLIER, further fits start with
    one dominant term each, since the problem has local minima. The fit with the smallest sum of squared errors and
    penalties is returned.

    Args:
      terms: float64 [n, TERMS], the terms of the nodes of this kind.
      log_ns: float64 [n], the logged log(1 + ns) of these nodes.
    """
    there = terms.max(axis=0) > 0
    shown = np.concatenate([[True, True], there])
    usual = np.log(np.maximum(terms, 1)).mean(axis=0)
    launch = np.log(max(np.expm1(log_ns.min()), 1e-3))
    start = np.concatenate([[launch, CORNER], max(log_ns.mean(), 0) - np.log(4) - usual])[shown]
    share = (terms / np.maximum(np.expm1(log_ns), 1)[:, None]).mean(axis=0)
    result = np.full(PARAMETERS, NEVER)

    def errors(values: np.ndarray) -> np.ndarray:
        result[shown] = values
        spent = np.exp(result[2:]) * share
        return np.concatenate([_log_ns(result, terms) - log_ns, PRIOR * (values - start), SPENT * np.sqrt(spent)])

    def fit(first: np.ndarray, loss: str = "linear"):
        return least_squares(errors, first, loss=loss, f_scale=OUTLIER, max_nfev=EVALUATIONS)

    best = fit(start, "soft_l1")
    for term in range(2, len(start) if np.abs(best.fun[: len(log_ns)]).max() > OUTLIER else 0):
        apart = np.where(np.arange(len(start)) < 2, start, start - APART)
        apart[term] = start[term] + np.log(4)
        best = min(best, fit(apart), key=lambda one: np.square(one.fun).sum())
    result[shown] = best.x
    return result


class NodeRows:
    """The operators and tensors of every node of a grounding as rows of the signature table.

    `batch` first adds the nodes that are new in the grounding.

    Args:
      index: the grounding.
      table: the features of signatures.

    Attributes:
      operators: for each node, the row of its operator.
      tensors: for each node, the rows of its inputs and outputs.
      slots: for each node, the slots of these tensors; see `NodeBatch.tensor_slots`.
    """

    def __init__(self, index: GroundingIndex, table: SignatureTable):
        self.index, self.table = index, table
        self.operators: list[int] = []
        self.tensors: list[list[int]] = []
        self.slots: list[list[int]] = []

    def batch(self, nodes: np.ndarray, senders: np.ndarray, receivers: np.ndarray, makes: np.ndarray) -> NodeBatch:
        """Return nodes of the grounding as a batch for the node network.

        Args:
          nodes: int [n], numbers of nodes.
          senders, receivers: int [e], the ends of each edge as positions in `nodes`.
          makes: bool [e], True if the sender makes a tensor that the receiver reads.
        """
        self._grow()
        known = nodes.tolist()
        sizes = [len(self.tensors[node]) for node in known]
        return NodeBatch(
            np.array([self.operators[node] for node in known], np.int32), _flat(self.tensors, known),
            _flat(self.slots, known), np.repeat(np.arange(len(known)), sizes).astype(np.int32),
            senders.astype(np.int32), receivers.astype(np.int32), makes.astype(np.float32),
        )  # fmt: skip

    def _grow(self) -> None:
        grounding = self.index.grounding
        for node in range(len(self.operators), len(grounding.nodes)):
            operator, inputs, outputs = grounding.nodes[node]
            tensors, slots = [], []
            for of, first, last in ((inputs, 0, NODE_INPUTS - 1), (outputs, NODE_INPUTS, NODE_OUTPUTS - 1)):
                for slot, tensor in enumerate(of):
                    if tensor != ABSENT:
                        tensors.append(grounding.signatures[tensor])
                        slots.append(first + min(slot, last))
            self.operators += self.table.operator_rows([operator])
            self.tensors.append(self.table.tensor_rows(tensors))
            self.slots.append(slots)


def _flat(lists: Sequence[Sequence[int]], chosen: Sequence[int]) -> np.ndarray:
    return np.array([value for node in chosen for value in lists[node]], np.int32)


def joined_nodes(batches: Sequence[NodeBatch]) -> NodeBatch:
    """Concatenate batches of nodes, without edges between the batches."""
    first, parts = 0, []
    for batch in batches:
        shifted = {name: getattr(batch, name) + first for name in ("tensor_owners", "senders", "receivers")}
        parts.append(batch._replace(**shifted))
        first += len(batch.operators)
    return NodeBatch(*[np.concatenate(field) for field in zip(*parts, strict=True)])


Logged = tuple[np.ndarray, np.ndarray, np.ndarray]  # see `NeuralCosts.recalled`

_INTS = tf.TensorSpec([None], tf.int32)
NODE_SIGNATURE = (
    NodeBatch(*[_INTS] * 6, tf.TensorSpec([None])),
    TABLE,
)


class NeuralCosts:
    """The prediction of costs of nodes by the cost laws and the node network, with a memory of logged costs.

    Attributes:
      network: the node network.
      table: the features of signatures.
      memory: the logged costs of nodes, and the observed gains of rewrites, which predict the gain of a rewrite with an
        unknown effect.
      recalls: False if the network also predicts the costs of nodes with logged signatures.
      laws: the cost laws.
    """

    def __init__(
        self, network: NodeNetwork, table: SignatureTable, memory: CostModel, laws: CostLaws, recalls: bool = True
    ):
        self.network, self.table, self.memory, self.laws, self.recalls = network, table, memory, laws, recalls
        self._call = tf.function(self._means, input_signature=NODE_SIGNATURE, autograph=False)

    @property
    def reach(self) -> int:
        """The distance in edges up to which other nodes influence the cost of a node: 0 or REACH."""
        return self.memory.reach

    @property
    def gains(self) -> RewriteGains:
        return self.memory.gains

    def recalled(self, index: GroundingIndex) -> Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Logged]:
        """Return a function that recalls logged costs of k nodes after a step.

        The function has these arguments (see `CostModel.__call__`):

        - nodes: int [k], the nodes.
        - keys: uint32 [W, k], their neighbourhood keys after the step.
        - paid: float64 [k], their costs before the step (ps).
        - before: uint32 [W, k], their neighbourhood keys before the step.

        It returns (float64 [k] costs in ps, float64 [k] standard deviations in ps, bool [k] True where the data contain
        a node of this signature). Where the last array is False, the caller asks the network instead.

        Args:
          index: the grounding of the nodes.
        """
        table, memory = node_costs_at(index.grounding.first, self.memory.nodes), self.memory
        single, unknown = single_node_costs(index, table, estimates=False), costs_unknown(index, table)

        def recall(nodes: np.ndarray, keys: np.ndarray, paid: np.ndarray, before: np.ndarray) -> Logged:
            known = unknown(nodes) == 0 if self.recalls else np.zeros(len(nodes), bool)
            cost, spread = single(nodes), np.zeros(len(nodes))
            if self.reach:
                cost, spread, _ = memory(cost, keys, paid, before)
            return cost, spread, known

        return recall

    def __call__(
        self, rows: NodeRows, nodes: np.ndarray, senders: np.ndarray, receivers: np.ndarray, makes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Predict the costs of n nodes.

        Args:
          rows: the rows of the nodes' grounding.
          nodes, senders, receivers, makes: the nodes and the edges between them; see `NodeRows.batch`.

        Returns:
          (most likely costs, standard deviations): float64 [n] in ps each.
        """
        batch = rows.batch(nodes, senders, receivers, makes)
        table = Table.of(self.table)
        left, deviation = (part.numpy() for part in self._call(batch, table))
        ns = np.maximum(np.expm1(left.astype(np.float64) + self.laws(batch, self.table)), 0.0)
        return 1e3 * ns, 1e3 * (ns + 1.0) * deviation.astype(np.float64)

    def _means(self, batch: NodeBatch, table: Table) -> tuple[tf.Tensor, tf.Tensor]:
        """Return each node's most likely residual (see `likeliest`) and the deviation σ of its mixture, [n] each."""
        mixture, costs = self.network(batch, table), self.network.costs
        weights = tf.nn.softmax(mixture.logits)
        mean = tf.reduce_sum(weights * mixture.mean, axis=-1, keepdims=True)
        variance = tf.reduce_sum(weights * (tf.exp(2 * mixture.log_sigma) + tf.square(mixture.mean - mean)), axis=-1)
        return costs.invert(likeliest(mixture)[:, None])[:, 0], tf.sqrt(variance * costs.variance[0])
