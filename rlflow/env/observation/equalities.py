"""Which tensors around an edge are one and the same, which shapes and axes are equal: what most conditions ask.

A network that passes messages sees two readers of one tensor and readers of two tensors that look alike as the same;
so whether inputs are the same tensor stands on the edges.
"""

import struct
from functools import lru_cache

from rlflow.graph.model import ABSENT, Graph, Node

INPUTS = 4  # of the receiver, that an input is compared with
AXES = 4  # of each shape, that are compared with each other
FAMILY = 3  # the tensor and the first two inputs of the operator that gives it
EQUALITY_FEATURES = INPUTS + FAMILY**2 - 1 + 2 * (1 + AXES**2)


def equalities(graph: Graph, node: Node, slot: int) -> bytes:
    """float32 [EQUALITY_FEATURES], 0 or 1, of one input of a node.

    Whether it is the same tensor as inputs 0 … 3 (0 for itself); then, with the other input (the first one; of the
    first the second): which of the tensor and the first two inputs of its operator are the same as which of that one's
    (but for the two tensors themselves); whether the shapes are equal, and which of the first four axes are equal to
    which; the same of the shapes of the input and of the node's first output. Weights of equal content are the same.
    """
    tensor = node.inputs[slot]
    other = node.inputs[0 if slot else 1] if len(node.inputs) > 1 else ABSENT
    same = [float(k != slot and _same(graph, tensor, t)) for k, t in enumerate(node.inputs[:INPUTS])]
    same += [0.0] * (INPUTS - len(same))
    mine, others = _family(graph, tensor), _family(graph, other)
    same += [float(_same(graph, a, b)) for a in mine for b in others][1:]
    shapes = [_shape(graph, t) for t in (tensor, other, node.outputs[0])]
    return struct.pack(f"{len(same)}f", *same) + _equal(shapes[0], shapes[1]) + _equal(shapes[0], shapes[2])


def _family(graph: Graph, tensor: int) -> tuple[int, ...]:
    producer = graph.producers.get(tensor)
    inputs = graph.nodes[producer].inputs[: FAMILY - 1] if producer is not None else ()
    return (tensor, *inputs, *[ABSENT] * (FAMILY - 1 - len(inputs)))


def _same(graph: Graph, a: int, b: int) -> bool:
    if a == b:
        return a != ABSENT
    weights = graph.constants.get(a), graph.constants.get(b)
    return None not in weights and weights[0].digest == weights[1].digest


def _shape(graph: Graph, tensor: int) -> tuple | None:
    kind = graph.types.get(tensor)
    return kind.shape if kind is not None else None


@lru_cache(maxsize=65536)
def _equal(a: tuple | None, b: tuple | None) -> bytes:
    """Sizes in symbols are equal if they are at every size."""
    if a is None or b is None:
        return bytes(4 * (1 + AXES**2))
    row = [float(a == b)]
    for i in range(AXES):
        row += [float(i < len(a) and j < len(b) and a[i] == b[j]) for j in range(AXES)]
    return struct.pack(f"{len(row)}f", *row)


NO_EQUALITIES = bytes(4 * EQUALITY_FEATURES)
