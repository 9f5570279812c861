"""What is seen of one operator: which it is, its attributes, and how many tensors it reads and gives."""

import struct
from functools import lru_cache

import onnx

from rlflow.env.observation.scales import FINGERPRINT, exactly, fingerprint, is_exact, row_of, shown
from rlflow.graph import contrib
from rlflow.graph.model import ABSENT, Graph, Node
from rlflow.rules.match import REDUNDANT, attributes_of


def _vocabulary() -> list[tuple[str, str]]:
    """(domain, name) of ONNX's operators up to opset 23, so that a newer onnx package does not renumber them, and of
    those of ONNX Runtime's that rules know."""
    schemas = onnx.defs.get_all_schemas_with_history()
    standard = {("", s.name) for s in schemas if s.domain == "" and s.since_version <= 23}
    return sorted(standard | {(contrib.DOMAIN, name) for name in contrib.OPERATORS})


OPS = {operator: number for number, operator in enumerate(_vocabulary(), start=1)}
OTHER_OP, INPUT_OP, OUTPUT_OP = (len(OPS) + k for k in (1, 2, 3))
N_OPS = OUTPUT_OP + 1  # with 0 for padding

# Attribute → columns. Lists that are longer, and all others, go into the fingerprint.
LISTS = {"perm": 6, "kernel_shape": 3, "strides": 3, "dilations": 3, "pads": 6}
INTEGERS = (
    "axis", "group", "keepdims", "transA", "transB", "to", "num_heads", "ceil_mode", "count_include_pad", "allowzero",
    "blocksize",
)  # fmt: skip
FLOATS = ("epsilon", "alpha", "beta", "scale")  # two columns each: `shown`, and the number itself
LARGEST_FLOAT = 1e9

N_COUNTS = 9
ATTRIBUTE_FEATURES = sum(LISTS.values()) + len(INTEGERS) + 2 * len(FLOATS)
OPERATOR_FEATURES = N_COUNTS + ATTRIBUTE_FEATURES + FINGERPRINT


def operator_id(node: Node) -> int:
    return OPS.get((node.domain, node.op), OTHER_OP)


def operator_features(graph: Graph, node: Node) -> bytes:
    """float32 [OPERATOR_FEATURES] of one operator: counts, attributes, fingerprint."""
    given = [tensor for tensor in node.inputs if tensor != ABSENT]
    outputs = [tensor for tensor in node.outputs if tensor != ABSENT]
    unread = tuple([slot for slot, t in enumerate(node.outputs) if t != ABSENT and not graph.is_used(t)])
    counts = (
        float(node.constant),
        float(len(node.inputs)),
        float(len(given)),
        float(sum(map(graph.is_constant, given))),
        float(len(node.outputs)),
        float(len(outputs)),
        float(len(unread)),
        float(sum(tensor in graph.outputs for tensor in outputs)),
        float(len(node.captured)),
    )
    hidden = tuple([(slot, graph.types.get(node.outputs[slot])) for slot in unread])  # no edge shows these
    absent = tuple([slot for slot, tensor in enumerate(node.outputs) if tensor == ABSENT])
    unsaid = (exactly(hidden), absent) if hidden or absent else ()
    return struct.pack(f"{N_COUNTS}f", *counts) + attribute_features(graph, node, unsaid)


def attribute_features(graph: Graph, node: Node, unsaid: tuple = (), redundant: bool = False) -> bytes:
    """float32 [ATTRIBUTE_FEATURES + FINGERPRINT] of one operator, whatever it reads and gives.

    unsaid: what else the fingerprint is to tell apart.  redundant: show what the shapes of its inputs say as well.
    """
    values, others = attributes_of(graph, node)
    if operator_id(node) == OTHER_OP or node.overload:
        unsaid = (*unsaid, node.domain, node.op, node.overload)
    shown_here = [pair for pair in values.items() if redundant or (node.op, pair[0]) not in REDUNDANT]
    return _attributes(tuple(shown_here), others, unsaid)


@lru_cache(maxsize=65536)
def _attributes(values: tuple, others: tuple, unsaid: tuple) -> bytes:
    """values: (name, value), defaults filled in.  others: those that are not at their default."""
    row, named = [], dict(values)
    for name, width in LISTS.items():
        value = named.get(name) or ()
        row += row_of(value, width)
        if len(value) > width or not all(map(is_exact, value)):
            unsaid = (*unsaid, (name, exactly(value)))
    for name in INTEGERS:
        value = named.get(name)
        row.append(shown(value) if isinstance(value, int) else 0.0)
        if value is not None and not is_exact(value):
            unsaid = (*unsaid, (name, value))
    for name in FLOATS:
        value = named.get(name)
        row += (shown(value), value) if isinstance(value, float) and abs(value) < LARGEST_FLOAT else (0.0, 0.0)
        if value is not None and not (isinstance(value, float) and abs(value) < LARGEST_FLOAT):
            unsaid = (*unsaid, (name, value))
    unsaid = (*unsaid, *[pair for pair in others if pair[0] not in _NAMED])
    return struct.pack(f"{ATTRIBUTE_FEATURES + FINGERPRINT}f", *row, *fingerprint(unsaid))


_NAMED = frozenset((*LISTS, *INTEGERS, *FLOATS))
