"""Facts about the elements of weights, for the conditions of rules: which are finite, and which rows are zero.

A weight is read once for each fact. The cache holds the fact, not the weight. A weight that rewrites made of other
weights (a folded normalisation, the rows that an earlier rewrite kept) is computed before it is read.
"""

import hashlib
from functools import lru_cache

import numpy as np

from rlflow.graph.ir import ABSENT, Constant, Graph

FLOATS = (1, 10, 11, 16)  # onnx.TensorProto FLOAT, FLOAT16, DOUBLE, BFLOAT16
MAX_READ = 1 << 28  # elements; a larger weight is not searched for zeros
_FINITE: dict[str, bool] = {}  # digest of a constant → True if all its elements are finite
_HOLDS_ZERO: dict[str, bool] = {}  # digest of a constant → True if some element is zero
_ZEROS: dict[tuple[str, int], tuple[int, ...]] = {}  # (digest, axis) → positions along the axis that hold only zeros


def digest_of(graph: Graph, tensor: int) -> str | None:
    """Return a digest of a constant's content.

    Equal digests mean equal contents. The digest of a computed constant is the digest of its computation, so two
    computed constants of equal content may have different digests.

    Args:
      graph: the graph.
      tensor: id of a tensor.

    Returns:
      The digest; None if the tensor is not constant, or is computed in an e-graph.
    """
    if tensor not in graph.constants and (not isinstance(graph, Graph) or not graph.is_constant(tensor)):
        return None
    known, waiting = {ABSENT: ""}, [tensor]
    while waiting:
        last = waiting[-1]
        if (constant := graph.constants.get(last)) is not None:
            known[last] = constant.digest
        elif last not in known:
            node = graph.nodes[graph.producers[last]]
            if unknown := [t for t in node.inputs if t not in known]:
                waiting += unknown
                continue
            inputs = tuple(known[t] for t in node.inputs)
            for number, output in enumerate(node.outputs):
                known[output] = _digest_of_result((node.op, node.domain, node.attributes, inputs, number))
        waiting.pop()
    return known[tensor]


@lru_cache(maxsize=65536)
def _digest_of_result(computed: tuple) -> str:
    return hashlib.sha256(repr(computed).encode()).hexdigest()


def is_finite(constant: Constant) -> bool:
    """Return True if a constant has no infinite element and no NaN."""
    if constant.digest not in _FINITE:
        _FINITE[constant.digest] = bool(np.isfinite(constant.load()).all())
    return _FINITE[constant.digest]


def zero_positions(graph: Graph, tensor: int, axis: int) -> tuple[int, ...] | None:
    """Return the positions along an axis of a constant at which all elements are zero; None if they are not known.

    The result is () for a constant that is computed from weights without any zero, even if the computation makes zeros
    (see `_content`).

    Args:
      graph: the graph.
      tensor: id of the constant.
      axis: the axis, counted from 0.
    """
    digest = digest_of(graph, tensor)
    if digest is None or graph.types[tensor].size > MAX_READ:
        return None
    if (digest, axis) not in _ZEROS:
        _ZEROS[digest, axis] = _zero_rows(_content(graph, tensor), axis)
    return _ZEROS[digest, axis]


def _zero_rows(array: np.ndarray | None, axis: int) -> tuple[int, ...]:
    if array is None or not array.size:
        return ()
    rows = np.moveaxis(array, axis, 0)
    rows = rows.reshape(len(rows), -1)
    # One element shows that a row is not zero, so a dense weight is hardly read.
    return tuple(int(k) for k in np.flatnonzero(rows[:, 0] == 0) if not rows[k].any())


def _content(graph: Graph, tensor: int) -> np.ndarray | None:
    """Return the elements of a constant, or None if the constant is computed from weights without any zero.

    Searches compute many weights, and only few models hold zeros.
    """
    from rlflow.graph.onnx_writer import constant_cone, evaluate  # the writer imports much that most commands lack

    if tensor in graph.constants:
        return graph.constants[tensor].load()
    cone = sorted(constant_cone(graph, tensor), key=graph.rank.__getitem__)
    read = {t for node_id in cone for t in graph.nodes[node_id].inputs if t in graph.constants}
    weights = [graph.constants[t] for t in read if graph.types[t].dtype in FLOATS and graph.types[t].size > 1]
    return evaluate(graph, cone, [tensor])[0] if any(map(_holds_zero, weights)) else None


def _holds_zero(constant: Constant) -> bool:
    if constant.digest not in _HOLDS_ZERO:
        _HOLDS_ZERO[constant.digest] = constant.type.size <= MAX_READ and bool((constant.load() == 0).any())
    return _HOLDS_ZERO[constant.digest]
