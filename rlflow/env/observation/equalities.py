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


def equalities(graph: Graph, node: Node) -> list[bytes]:
    """float32 [EQUALITY_FEATURES], 0 or 1, of each input of a node.

    Whether it is the same tensor as inputs 0 … 3 (0 for itself); then, with the other input (the first one; of the
    first the second): which of the tensor and the first two inputs of its operator are the same as which of that one's
    (but for the two tensors themselves); whether the shapes are equal, and which of the first four axes are equal to
    which; the same of the shapes of the input and of the node's first output. Weights of equal content are the same.
    """
    families = [_family(graph, tensor) for tensor in node.inputs]
    shapes = [_shape(graph, tensor) for tensor in node.inputs]
    result, output = [], _shape(graph, node.outputs[0])
    for slot, mine in enumerate(families):
        other = 0 if slot else 1
        theirs, shape = (families[other], shapes[other]) if len(families) > 1 else (NOBODY, None)
        row = [k != slot and mine[0] == family[0] for k, family in enumerate(families[:INPUTS])]
        row += [False] * (INPUTS - len(row))
        row += [a == b for a in mine for b in theirs][1:]
        result.append(_packed_bits(tuple(row)) + _equal(shapes[slot], shape) + _equal(shapes[slot], output))
    return result


def _family(graph: Graph, tensor: int) -> tuple:
    """What the tensor and the first two inputs of its operator are: equal where they are the same."""
    producer = graph.producers.get(tensor)
    if producer is None:
        return _identity(graph, tensor), NOTHING, NOTHING
    first = [_identity(graph, t) for t in graph.nodes[producer].inputs[: FAMILY - 1]]
    return (_identity(graph, tensor), *first, *[NOTHING] * (FAMILY - 1 - len(first)))


def _identity(graph: Graph, tensor: int) -> int | str | float:
    weight = graph.constants.get(tensor)
    if weight is not None:
        return weight.digest
    return NOTHING if tensor == ABSENT else tensor


NOTHING = float("nan")  # which equals nothing
NOBODY = (NOTHING,) * FAMILY


@lru_cache(maxsize=4096)
def _packed_bits(row: tuple[bool, ...]) -> bytes:
    return struct.pack(f"{len(row)}f", *row)


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
