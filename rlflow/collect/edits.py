"""Edits: the nodes, tensors and matches that a rewrite removes and adds, and features of what they name.

Rewriting is deterministic and local, so an edit describes a step completely at a fraction of the graph's size. World
models that predict edits learn from them (worldmodel/edits); an edit says nothing about how a rule works. The ids of
the episode name nodes, tensors and matches. Operators and tensors also have a signature, a hash that tells equal
from different. `SignatureFeatures` holds, once for each signature, the columns of the observation that depend on that
operator or tensor alone, so a network can judge signatures that it never met.
"""

import hashlib
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple, Self

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.env.features import (
    ATTRIBUTE_FEATURES,
    FINGERPRINT,
    OUTPUT_OP,
    TENSOR_FEATURES,
    attribute_features,
    operator_id,
    tensor_features,
)
from rlflow.env.state import RewriteState
from rlflow.graph.ir import ABSENT, Graph, Node
from rlflow.rules.apply import content_of_constant, operands, rewired_tensors
from rlflow.rules.match import Match, attributes_of

# Of packed edits; raised when what is hashed into a signature changes, since models learnt from others do not fit.
FORMAT = 2
OUTPUT = 0  # the operator of the node that stands for an output of the whole graph


class TensorRecord(NamedTuple):
    """One tensor. rank_signature: int64 hash of its data type, its rank, and whether it is constant.

    signature: int64 hash of its data type, its shape and its content, if it is a small constant or follows from sizes;
    symbols stay symbols, so it is the same at every size, and it is odd where there are any. size: elements at the
    typical sizes (their geometric mean), −1 if not known.
    """

    id: int
    rank_signature: int
    signature: int
    size: int


class NodeRecord(NamedTuple):
    """One node. op_type: int64 hash of its operator's name and domain. operator: the same with its attributes, defaults
    filled in.

    inputs, outputs: ids of tensors, ABSENT for an omitted one. runtime_ps: estimated.

    An output of the whole graph is a node too, with a negative id, that reads one tensor and is never removed.
    """

    id: int
    op_type: int
    operator: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    runtime_ps: int


class MatchRecord(NamedTuple):
    """One match of a rule: its nodes in the rule's order; the tensors that its variables hold, then those it
    replaces."""

    xfer_id: int
    nodes: tuple[int, ...]
    operands: tuple[int, ...]


class Edit(NamedTuple):
    """removed: ids of nodes. tensors: those that nodes name for the first time. nodes: new ones, and those of which
    anything changed. rewired: (old tensor, new tensor) for all consumers.

    lost, appeared: matches; of a rule with two alike roots, both ways to name them.

    sizes: of an episode's first edit, int64 hash of the typical sizes that its runtimes and tensor sizes are of; 0
    where no size is symbolic.
    """

    removed: tuple[int, ...]
    tensors: tuple[TensorRecord, ...]
    nodes: tuple[NodeRecord, ...]
    rewired: tuple[tuple[int, int], ...]
    lost: tuple[MatchRecord, ...]
    appeared: tuple[MatchRecord, ...]
    sizes: int = 0


NO_EDIT = Edit((), (), (), (), (), ())


def _hash(content) -> int:
    return int.from_bytes(hashlib.sha256(repr(content).encode()).digest()[:8], "little", signed=True)


@lru_cache(maxsize=4)
def first_edit(state: RewriteState) -> Edit:
    """The whole state, as if all of it had just appeared."""
    nodes = [_record(state, state.graph.nodes[node_id]) for node_id in state.graph.order]
    matches = [match_record(state, match) for match in state.table.all_matches()]
    nodes += _outputs(state.graph)
    typical = [sorted(sizes.items()) for sizes in state.task.sizes]
    sizes = _hash(typical) if any(typical) else 0
    return Edit((), _tensors(state, nodes, {}), tuple(nodes), (), (), tuple(matches), sizes)


def edit_between(before: RewriteState, match: Match, after: RewriteState) -> Edit:
    """What rewriting the match did."""
    old, new = before.graph, after.graph
    removed = [node_id for node_id in sorted(new.changed) if node_id in old.nodes and node_id not in new.nodes]
    changed = [node_id for node_id in sorted(after.graph_cost.recounted) if node_id in new.nodes]
    # new ones as the rule made them, wherever they come to lie
    changed.sort(key=lambda node_id: (node_id in old.nodes, node_id))
    nodes = []
    for node_id in changed:
        record = _record(after, new.nodes[node_id])
        if node_id not in old.nodes or record != _record(before, old.nodes[node_id]):
            nodes.append(record)
    if new.outputs != old.outputs:
        nodes += [record for record, was in zip(_outputs(new), _outputs(old), strict=True) if record != was]
    lost, appeared = after.table.difference(before.table)
    return Edit(
        tuple(removed),
        _tensors(after, nodes, old.types),
        tuple(nodes),
        rewired_tensors(old, before.task.rules[match.xfer_id], match),
        tuple([match_record(before, match) for match in lost]),
        tuple([match_record(after, match) for match in appeared]),
    )


def match_record(state: RewriteState, match: Match) -> MatchRecord:
    bound = operands(state.graph, state.task.rules[match.xfer_id], match.nodes, match.bindings)
    return MatchRecord(match.xfer_id, match.nodes, tuple(bound))


def _record(state: RewriteState, node: Node) -> NodeRecord:
    op_type, attributes = node.key()[:2], attributes_of(state.graph, node)[0]
    operator = (*op_type, sorted(attributes.items()), len(node.captured))
    runtime = state.graph_cost.nodes[node.id].runtime_ps
    return NodeRecord(node.id, _hash(op_type), _hash(operator), node.inputs, node.outputs, runtime)


def _tensors(state: RewriteState, nodes: Iterable[NodeRecord], known: Container[int]) -> tuple[TensorRecord, ...]:
    """The tensors of the nodes that are not known yet."""
    named = dict.fromkeys(t for node in nodes for t in (*node.inputs, *node.outputs) if t != ABSENT and t not in known)
    views = [state.graph.at(sizes) for sizes in state.task.sizes]
    return tuple([_tensor(state.graph, views, tensor) for tensor in named])


def _tensor(graph: Graph, views: list[Graph], tensor: int) -> TensorRecord:
    """views: the graph at each of the typical sizes."""
    known, constant = graph.types.get(tensor), graph.constants.get(tensor)
    content = graph.is_constant(tensor) if constant is None else content_of_constant(constant)
    if known is None:
        return TensorRecord(tensor, _hash((None, bool(content))), _hash((None, content)) & ~1, -1)
    dtype_and_rank = known.dtype, None if known.shape is None else len(known.shape)
    size, symbolic = -1, False
    if known.shape is not None:
        sizes = [view.types[tensor].size for view in views]
        size, symbolic = round(prod(sizes) ** (1 / len(sizes))), known != views[0].types[tensor]
    signature = _hash((known.dtype, known.shape, content or known.content)) & ~1 | symbolic
    return TensorRecord(tensor, _hash((dtype_and_rank, bool(content))), signature, size)


def _outputs(graph: Graph) -> list[NodeRecord]:
    return [NodeRecord(-2 - k, OUTPUT, OUTPUT, (tensor,), (-2 - k,), 0) for k, tensor in enumerate(graph.outputs)]


# -- as one array ----------------------------------------------------------------------------------


def pack(edits: Iterable[Edit], taken: Iterable[MatchRecord | None]) -> np.ndarray:
    """int64 [...]: the edits of an episode, the first one of its initial state, and the match that each action took."""
    edits, taken = list(edits), list(taken)
    flat = [FORMAT, len(edits)]
    for edit in edits:
        flat += (edit.sizes, len(edit.removed), *edit.removed, len(edit.tensors))
        for tensor in edit.tensors:
            flat += tensor
        flat.append(len(edit.nodes))
        for node in edit.nodes:
            flat += (node.id, node.op_type, node.operator, node.runtime_ps)
            flat += (len(node.inputs), *node.inputs, len(node.outputs), *node.outputs)
        flat.append(len(edit.rewired))
        for pair in edit.rewired:
            flat += pair
        for matches in (edit.lost, edit.appeared):
            flat.append(len(matches))
            for match in matches:
                _pack_match(flat, match)
    for match in taken:
        _pack_match(flat, match or MatchRecord(-1, (), ()))
    return np.array(flat, np.int64)


def _pack_match(flat: list[int], match: MatchRecord) -> None:
    flat += (match.xfer_id, len(match.nodes), *match.nodes, len(match.operands), *match.operands)


def unpack(packed: np.ndarray) -> tuple[list[Edit], list[MatchRecord | None]]:
    """What `pack` packed. Raises RLFlowError if the array is damaged, of another format, or names what never
    appeared."""
    whole = packed.dtype == np.int64 and packed.ndim == 1
    numbers = iter(packed.tolist() if whole else ())
    try:
        format_number, count = next(numbers), next(numbers)
        edits = [_unpack_edit(numbers) for _ in range(count)]
        taken = [_unpack_match(numbers) for _ in range(count - 1)]
        whole = format_number == FORMAT and count > 0 and next(numbers, None) is None
    except StopIteration:
        whole = False
    if whole:
        taken = [match if match.xfer_id >= 0 else None for match in taken]
        whole = _hang_together(edits, taken)
    if not whole:
        raise RLFlowError(f"the edits of an episode are damaged, or not of format {FORMAT}; collect it anew")
    return edits, taken


def _hang_together(edits: list[Edit], taken: list[MatchRecord | None]) -> bool:
    """Whether they name only what has appeared and is still there."""
    nodes, tensors, matches = set(), {ABSENT}, set()
    for edit, match in zip(edits, [None, *taken], strict=True):
        old = (*edit.lost, match) if match else edit.lost
        if not all(m in matches and nodes.issuperset(m.nodes) for m in old) or not nodes.issuperset(edit.removed):
            return False
        left = len(nodes) - len(edit.removed)
        nodes.difference_update(edit.removed)
        matches.difference_update(edit.lost)
        if len(nodes) != left:  # one was removed twice
            return False
        tensors.update(tensor.id for tensor in edit.tensors)
        nodes.update(node.id for node in edit.nodes)
        matches.update(edit.appeared)
        if not _names_only(edit, nodes, tensors):
            return False
    return True


def _names_only(edit: Edit, nodes: set[int], tensors: set[int]) -> bool:
    """Whether what came with an edit names these alone, and every node of it makes a tensor."""
    for node in edit.nodes:
        if not tensors.issuperset((*node.inputs, *node.outputs)) or not set(node.outputs) - {ABSENT}:
            return False
    for match in edit.appeared:
        if match.xfer_id < 0 or not match.operands:
            return False
        if not nodes.issuperset(match.nodes) or not tensors.issuperset(match.operands):
            return False
    return all(tensors.issuperset(pair) for pair in edit.rewired)


def _unpack_edit(numbers: Iterator[int]) -> Edit:
    sizes, removed = next(numbers), _some(numbers)
    tensors, nodes = [], []
    for _ in _counted(numbers):
        tensors.append(TensorRecord(next(numbers), next(numbers), next(numbers), next(numbers)))
    for _ in _counted(numbers):
        node_id, op_type, operator, runtime = next(numbers), next(numbers), next(numbers), next(numbers)
        nodes.append(NodeRecord(node_id, op_type, operator, _some(numbers), _some(numbers), runtime))
    rewired = tuple([(next(numbers), next(numbers)) for _ in _counted(numbers)])
    lost = tuple([_unpack_match(numbers) for _ in _counted(numbers)])
    appeared = tuple([_unpack_match(numbers) for _ in _counted(numbers)])
    return Edit(removed, tuple(tensors), tuple(nodes), rewired, lost, appeared, sizes)


def _unpack_match(numbers: Iterator[int]) -> MatchRecord:
    return MatchRecord(next(numbers), _some(numbers), _some(numbers))


def _some(numbers: Iterator[int]) -> tuple[int, ...]:
    return tuple([next(numbers) for _ in _counted(numbers)])


def _counted(numbers: Iterator[int]) -> range:
    return range(next(numbers))


OPERATOR_COLUMNS = 1 + ATTRIBUTE_FEATURES + FINGERPRINT  # the operator's id comes first


class SignatureFeatures(NamedTuple):
    """operators: int64 [k], ascending, as in `NodeRecord.operator`; operator_features: float32 [k, OPERATOR_COLUMNS].
    tensors: int64 [m], ascending, as in `TensorRecord.signature`; tensor_features: float32 [m, TENSOR_FEATURES]."""

    operators: np.ndarray
    operator_features: np.ndarray
    tensors: np.ndarray
    tensor_features: np.ndarray

    @classmethod
    def of(cls, states: Sequence[RewriteState], edits: Sequence[Edit]) -> Self:
        """Of all that the edits name; each led to its state, the first one is of the whole first state."""
        operators: dict[int, np.ndarray] = {}
        tensors: dict[int, np.ndarray] = {}
        for state, edit in zip(states, edits, strict=True):
            for node in edit.nodes:
                if node.operator not in operators:
                    operators[node.operator] = _operator_row(state, node.id)
            for tensor in edit.tensors:
                if tensor.signature not in tensors:
                    tensors[tensor.signature] = _tensor_row(state, tensor.id)
        return cls(*_sorted_table(operators, OPERATOR_COLUMNS), *_sorted_table(tensors, TENSOR_FEATURES))


def merged_signatures(parts: Iterable[SignatureFeatures]) -> SignatureFeatures:
    """All of them in one, each once."""
    whole = SignatureFeatures(*map(np.concatenate, zip(*parts, strict=True)))
    operators, of_operators = np.unique(whole.operators, return_index=True)
    tensors, of_tensors = np.unique(whole.tensors, return_index=True)
    features = whole.operator_features[of_operators], whole.tensor_features[of_tensors]
    return SignatureFeatures(operators, features[0], tensors, features[1])


def _operator_row(state: RewriteState, node_id: int) -> np.ndarray:
    if node_id < 0:  # an output of the whole graph
        return np.append(np.float32(OUTPUT_OP), np.zeros(OPERATOR_COLUMNS - 1, np.float32))
    node = state.graph.nodes[node_id]
    attributes = attribute_features(state.graph, node, redundant=True)
    return np.append(np.float32(operator_id(node)), np.frombuffer(attributes, np.float32))


def _tensor_row(state: RewriteState, tensor: int) -> np.ndarray:
    view = state.graph.at(state.task.sizes[0])
    return np.frombuffer(tensor_features(state.graph, view, tensor, shared=False), np.float32)


def _sorted_table(rows: dict[int, np.ndarray], width: int) -> tuple[np.ndarray, np.ndarray]:
    keys = np.array(sorted(rows), np.int64)
    return keys, np.array([rows[key] for key in keys.tolist()], np.float32).reshape(-1, width)
