"""The workload of a placement: the operators of an ONNX model in run order, their tensors and the paper's 19 features.

A convolution absorbs the elementwise operators that follow it, as compilers of accelerators do. An absorbed operator
reads no other tensor that depends on the model's inputs, except that a sum may read one further summand. ResNet-50 then
has 57 operators and ResNet-101 has 108, as in the paper (Khadka et al. 2021). Every other operator stands alone. It
reads and writes its data even if ONNX Runtime would return a view, as for Reshape.

An operator has at most two tensors to place: its weights (all its constant inputs together; operators that share
constants have copies) and its activation (all its outputs together).
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.costs.analytic import PICKS, flops
from rlflow.costs.kernel_layout import varying
from rlflow.env.features import N_OPS, operator_id
from rlflow.graph.ir import ABSENT, Graph, Node, TensorType

# Operators that a convolution absorbs if its result is their only varying input, and SUMS, which may have a second one.
ABSORBED = frozenset((
    "BatchNormalization", "Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Mul",
    "Dropout", "Identity",
))  # fmt: skip
SUMS = frozenset(("Add", "Sum"))
REAL = frozenset((1, 10, 11, 16))  # onnx.TensorProto data types that are stored with `element_bytes`
FEATURES = (
    "opid", "weight_size", "ifmx", "ifmy", "ifmz", "ofmx", "ofmy", "ofmz", "ifm_size", "ofm_size", "n_ops_left",
    "n_w_left", "groups", "kernelx", "kernely", "stride", "pad", "dilation", "batch",
)  # fmt: skip
LOGARITHMIC = frozenset(FEATURES) - {"opid", "stride", "pad", "dilation", "kernelx", "kernely"}


@dataclass(frozen=True, eq=False)
class Workload:
    """The n operators of a model in run order. All sizes are in bytes.

    Attributes:
      names: the name of the first node of each operator.
      ops: int32 [n], operator ids (`rlflow.env.features.operator_id`) of the first nodes.
      features: float32 [n, 19], the columns FEATURES. LOGARITHMIC columns hold log(1 + x), opid is relative to N_OPS.
      flops: int64 [n], floating-point operations.
      weights, weight_reads: int64 [n], the size of the weights and the part of them that one run reads.
      outputs: int64 [n], the size of the activation.
      last: int64 [n], the last step at which the activation exists: its last reader's, n − 1 for results of the model.
      starts: int64 [n + 1], the reads of operator i are sources[starts[i] : starts[i + 1]].
      sources, reads: int64 [e], the operator whose activation is read, and the bytes that are read.
      given: int64 [n], bytes of the model's inputs that an operator reads.
    """

    names: tuple[str, ...]
    ops: np.ndarray
    features: np.ndarray
    flops: np.ndarray
    weights: np.ndarray
    weight_reads: np.ndarray
    outputs: np.ndarray
    last: np.ndarray
    starts: np.ndarray
    sources: np.ndarray
    reads: np.ndarray
    given: np.ndarray

    @property
    def n(self) -> int:
        """The number of operators."""
        return len(self.names)

    @property
    def edges(self) -> np.ndarray:
        """(source, reader) pairs of operators, int64 [e, 2]."""
        return np.stack([self.sources, np.repeat(np.arange(self.n), np.diff(self.starts))], axis=1)


def workload_of(graph: Graph, element_bytes: int) -> Workload:
    """Return the workload of a graph without symbolic sizes (see `Graph.at`).

    Args:
      graph: the graph; tensors of unknown size count as 0 bytes, and their operators as 0 FLOPs.
      element_bytes: the size of a real number on the device; other data types keep their size.

    Raises:
      RLFlowError: the model has bodies (If, Loop, Scan), or no operator that depends on its inputs.
    """
    if graph.interface.bodies:
        raise RLFlowError("a model with If, Loop or Scan cannot be placed: its run order is not fixed")
    groups = _operators(graph)
    if not groups:
        raise RLFlowError("there is nothing to place: every result of the model is constant")
    owner = {tensor: k for k, group in enumerate(groups) for node in group for tensor in node.outputs}

    def size(tensor: int) -> int:
        kind = graph.types.get(tensor)
        if kind is None or kind.shape is None:
            return 0
        return kind.size * element_bytes if kind.dtype in REAL else kind.nbytes

    n = len(groups)
    work, weights, weight_reads, outputs, given = (np.zeros(n, np.int64) for _ in range(5))
    last = np.arange(n)
    sources, reads, starts = [], [], [0]
    for k, group in enumerate(groups):
        inside = {tensor for node in group for tensor in node.outputs if tensor != ABSENT}
        outputs[k] = sum(size(t) for t in inside if _leaves(graph, t, group))
        read: dict[int, int] = {}
        for node in group:
            work[k] += _flops(graph, node)
            for slot, tensor in enumerate(dict.fromkeys(node.reads())):
                # An operator that picks elements, such as Gather, reads as much of its first input as it writes.
                part = min(size(tensor), outputs[k]) if node.op in PICKS and slot == 0 else size(tensor)
                if graph.is_constant(tensor):
                    weights[k] += size(tensor)
                    weight_reads[k] += part
                elif tensor in inside:
                    continue
                elif tensor in owner:
                    read[owner[tensor]] = read.get(owner[tensor], 0) + part
                    last[owner[tensor]] = k
                else:
                    given[k] += part
        sources += read
        reads += read.values()
        starts.append(len(sources))
    for tensor in graph.outputs:
        if tensor in owner:
            last[owner[tensor]] = n - 1
    features = _features(graph, groups, weights)
    return Workload(
        tuple(_name(graph, group[0]) for group in groups),
        np.array([operator_id(group[0]) for group in groups], np.int32), features, work, weights, weight_reads, outputs,
        last, *(np.array(column, np.int64) for column in (starts, sources, reads)), given,
    )  # fmt: skip


def _operators(graph: Graph) -> list[list[Node]]:
    """Return the nodes of each operator, in run order: the canonical order of the last nodes of the operators."""
    groups: list[list[Node]] = []
    of: dict[int, list[Node]] = {}  # result of a convolution with its absorbed operators → their nodes
    for node_id in graph.order:
        node = graph.nodes[node_id]
        if node.constant:
            continue
        group = _absorbing(graph, node, of, groups)
        if group is None:
            group = []
        else:
            groups.remove(group)
        group.append(node)
        groups.append(group)
        if group[0].op == "Conv" and not group[0].domain:
            of[node.outputs[0]] = group
    return groups


def _absorbing(graph: Graph, node: Node, of: dict, groups: list) -> list[Node] | None:
    """Return the nodes of the convolution that absorbs a node, or None if no convolution absorbs it.

    Only this node may read the result of the convolution. Of two such convolutions the later one absorbs the node.

    Args:
      graph: the graph.
      node: the node.
      of: result of a convolution with its absorbed operators → their nodes.
      groups: the nodes of each operator so far, in run order.
    """
    inputs = varying(graph, node)
    may = len(inputs) == 1 and node.op in ABSORBED | SUMS or len(set(inputs)) == 2 and node.op in SUMS
    if not may or node.domain:
        return None
    found = [
        of[t] for t in inputs if t in of and graph.consumers[t] == (node.id,) and t not in graph.output_set
    ]  # fmt: skip
    return max(found, key=groups.index) if found else None


def _leaves(graph: Graph, tensor: int, group: list[Node]) -> bool:
    """Return whether a tensor of an operator is a result of the model, or is read outside the operator."""
    own = {node.id for node in group}
    return tensor in graph.output_set or any(reader not in own for reader in graph.consumers.get(tensor, ()))


def _flops(graph: Graph, node: Node) -> int:
    inputs = [graph.types.get(t) if t != ABSENT else TensorType(0, (0,)) for t in node.inputs]
    outputs = [graph.types.get(t) for t in node.outputs if t != ABSENT]
    if any(kind is None or kind.shape is None for kind in (*inputs, *outputs)):
        return 0
    return flops(node, inputs, outputs)


def _name(graph: Graph, node: Node) -> str:
    return node.name or graph.interface.names.get(node.outputs[0]) or f"{node.op}_{node.id}"


def _features(graph: Graph, groups: list[list[Node]], weights: np.ndarray) -> np.ndarray:
    """Return the features of Table 1 of the paper, float32 [n, 19].

    The sizes (x, y, z) of a feature map are its width, height and channels.
    """
    n, rows = len(groups), []
    for k, group in enumerate(groups):
        node = group[0]
        given = varying(graph, node)
        first, made = (graph.types.get(t) for t in (given[0] if given else ABSENT, group[-1].outputs[0]))
        (batch, *source), (_, *target) = _map(first), _map(made)
        is_conv = node.op in ("Conv", "ConvTranspose")
        kernel = _pair(node.attribute("kernel_shape") or (_shape(graph, node.inputs[1])[2:] if is_conv else ()))
        rows.append((
            operator_id(node) / N_OPS, weights[k], *source, *target, prod(source), prod(target), n - 1 - k,
            weights[k:].sum(), node.attribute("group", 1) if is_conv else 0, *kernel,
            *(max(_pair(node.attribute(name, ()))) for name in ("strides", "pads", "dilations")), batch,
        ))  # fmt: skip
    columns = np.array(rows, np.float64)
    for column, name in enumerate(FEATURES):
        if name in LOGARITHMIC:
            columns[:, column] = np.log1p(columns[:, column])
    return columns.astype(np.float32)


def _shape(graph: Graph, tensor: int) -> tuple:
    kind = graph.types.get(tensor)
    return kind.shape if kind is not None and kind.shape is not None else ()


def _pair(sizes) -> tuple[int, int]:
    """Return (x, y) of an attribute that lists [y, x]; (0, 0) for an empty list, (x, x) for one number."""
    sizes = tuple(sizes or ())
    return (sizes[-1], sizes[max(len(sizes) - 2, 0)]) if sizes else (0, 0)


def _map(kind: TensorType | None) -> tuple[int, int, int, int]:
    """Return (batch, x, y, z) of a tensor [batch, z, y, x], or [batch, y, z] of a transformer; 0 for unknown shapes."""
    if kind is None or kind.shape is None:
        return 0, 0, 0, 0
    batch, *sizes = kind.shape if len(kind.shape) > 1 else (1, *kind.shape)
    if len(sizes) >= 3:
        return batch, prod(sizes[2:]), sizes[1], sizes[0]
    return (batch, 1, *sizes) if len(sizes) == 2 else (batch, 1, 1, prod(sizes))
