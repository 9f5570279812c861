"""Edits: the nodes, tensors and matches that a rewrite removes and adds, and features of these operators and tensors.

Rewriting is deterministic and local, so an edit describes a step completely at a fraction of the graph's size. World
models that predict edits learn from them (worldmodel/edits). An edit contains the effect of a rewrite, not the rule's
definition. Nodes and tensors have ids that are unique within the episode. Operators and tensors also have a signature,
a hash of their type, attributes and content. `SignatureFeatures` stores, once for each signature, the columns of the
observation that depend on that operator or tensor alone. Networks can therefore predict for signatures that no training
data contained.
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
from rlflow.rules.apply import operands, rewired_tensors
from rlflow.rules.match import Match, attributes_of
from rlflow.rules.segments import facts

# Version of packed edits. It must also increase if signatures are computed differently, because a trained model stores
# signatures.
FORMAT = 2
OUTPUT = 0  # `op_type` and `operator` of the record of a graph output


class TensorRecord(NamedTuple):
    """The description of one tensor in an edit.

    Attributes:
      id: the id of the tensor in the episode.
      rank_signature: int64 hash of the data type, the rank, and whether the tensor is constant.
      signature: int64 hash of the data type, the shape, and the content if the tensor is a small constant or is
        computed from sizes. Symbols are hashed by name, so typical sizes do not change the signature. It is odd if the
        shape or a content that is computed from sizes contains symbols.
      size: number of elements, as the geometric mean over the typical sizes; −1 if unknown.
    """

    id: int
    rank_signature: int
    signature: int
    size: int


class NodeRecord(NamedTuple):
    """The description of one node in an edit.

    A graph output is also described as a node, with a negative id. This node reads one tensor, has one output with the
    same id as the node, and is never removed.

    Attributes:
      id: the id of the node in the episode.
      op_type: int64 hash of the operator's name and domain.
      operator: int64 hash of the operator's name, domain and attributes, with defaults filled in, and of the number of
        captured tensors.
      inputs, outputs: ids of tensors; ABSENT for an omitted tensor.
      runtime_ps: estimated runtime of the node in ps.
    """

    id: int
    op_type: int
    operator: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    runtime_ps: int


class MatchRecord(NamedTuple):
    """The description of one match in an edit.

    Attributes:
      xfer_id: index of the rule in the rule set.
      nodes: ids of the matched nodes, in the order of the rule's operators.
      operands: ids of the tensors that the rule's variables match, then ids of the tensors that the rewrite replaces.
    """

    xfer_id: int
    nodes: tuple[int, ...]
    operands: tuple[int, ...]


class Edit(NamedTuple):
    """The difference between two successive graphs of an episode.

    Attributes:
      removed: ids of the removed nodes.
      tensors: the tensors that records in `nodes` read or make and that the old graph did not contain.
      nodes: the new nodes, and the old nodes whose `NodeRecord` differs between the two graphs.
      rewired: (old tensor, new tensor) pairs; all consumers of the old tensor now read the new tensor.
      lost: the matches that disappeared. For a rule with two symmetric roots, both orders of the roots are listed.
      appeared: the matches that are new. Symmetric matches are listed as in `lost`.
      sizes: in the first edit of an episode, int64 hash of the typical sizes at which runtimes and tensor sizes were
        computed; 0 if no size is symbolic, and in all other edits.
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
    """Return the edit from the empty graph to the graph of a state."""
    nodes = [_node_record(state, state.graph.nodes[node_id]) for node_id in state.graph.order]
    matches = [match_record(state, match) for match in state.table.all_matches()]
    nodes += _output_records(state.graph)
    typical = [sorted(sizes.items()) for sizes in state.task.sizes]
    sizes = _hash(typical) if any(typical) else 0
    return Edit((), _new_tensor_records(state, nodes, {}), tuple(nodes), (), (), tuple(matches), sizes)


def edit_between(before: RewriteState, match: Match, after: RewriteState) -> Edit:
    """Return the edit of one rewrite.

    Args:
      before: the state before the rewrite.
      match: the match in `before` at which the rule was applied.
      after: the state after the rewrite.
    """
    old, new = before.graph, after.graph
    removed = [node_id for node_id in sorted(new.changed) if node_id in old.nodes and node_id not in new.nodes]
    changed = [node_id for node_id in sorted(after.graph_cost.recounted) if node_id in new.nodes]
    # New nodes come first, in the order in which the rule made them rather than in canonical order.
    changed.sort(key=lambda node_id: (node_id in old.nodes, node_id))
    nodes = []
    for node_id in changed:
        record = _node_record(after, new.nodes[node_id])
        if node_id not in old.nodes or record != _node_record(before, old.nodes[node_id]):
            nodes.append(record)
    if new.outputs != old.outputs:
        pairs = zip(_output_records(new), _output_records(old), strict=True)
        nodes += [record for record, was in pairs if record != was]
    lost, appeared = after.table.difference(before.table)
    return Edit(
        tuple(removed),
        _new_tensor_records(after, nodes, old.types),
        tuple(nodes),
        rewired_tensors(old, before.task.rules[match.xfer_id], match),
        tuple([match_record(before, match) for match in lost]),
        tuple([match_record(after, match) for match in appeared]),
    )


def match_record(state: RewriteState, match: Match) -> MatchRecord:
    """Return the `MatchRecord` of a match.

    Args:
      state: a state in which the match is valid.
      match: the match.
    """
    bound = operands(state.graph, state.task.rules[match.xfer_id], match.nodes, match.bindings)
    return MatchRecord(match.xfer_id, match.nodes, tuple(bound))


def _node_record(state: RewriteState, node: Node) -> NodeRecord:
    """Return the `NodeRecord` of a node of the state's graph."""
    op_type, attributes = node.key()[:2], attributes_of(state.graph, node)[0]
    operator = (*op_type, sorted(attributes.items()), len(node.captured))
    runtime = state.graph_cost.nodes[node.id].runtime_ps
    return NodeRecord(node.id, _hash(op_type), _hash(operator), node.inputs, node.outputs, runtime)


def _new_tensor_records(
    state: RewriteState, nodes: Iterable[NodeRecord], known: Container[int]
) -> tuple[TensorRecord, ...]:
    """Return the records of the tensors that the nodes read or make, except the tensors whose ids are in `known`."""
    named = dict.fromkeys(t for node in nodes for t in (*node.inputs, *node.outputs) if t != ABSENT and t not in known)
    views = [state.graph.at(sizes) for sizes in state.task.sizes]
    return tuple([_tensor_record(state.graph, views, tensor) for tensor in named])


def _tensor_record(graph: Graph, views: list[Graph], tensor: int) -> TensorRecord:
    """Return the `TensorRecord` of a tensor.

    Args:
      graph: the graph.
      views: the graph at each of the typical sizes.
      tensor: id of the tensor.
    """
    known, content = facts(graph, tensor)
    if known is None:
        return TensorRecord(tensor, _hash((None, bool(content))), _hash((None, content)) & ~1, -1)
    dtype_and_rank = known.dtype, None if known.shape is None else len(known.shape)
    size, symbolic = -1, False
    if known.shape is not None:
        sizes = [view.types[tensor].size for view in views]
        size, symbolic = round(prod(sizes) ** (1 / len(sizes))), known != views[0].types[tensor]
    signature = _hash((known.dtype, known.shape, content or known.content)) & ~1 | symbolic
    return TensorRecord(tensor, _hash((dtype_and_rank, bool(content))), signature, size)


def _output_records(graph: Graph) -> list[NodeRecord]:
    return [NodeRecord(-2 - k, OUTPUT, OUTPUT, (tensor,), (-2 - k,), 0) for k, tensor in enumerate(graph.outputs)]


# -- as one array ----------------------------------------------------------------------------------


def pack(edits: Iterable[Edit], taken: Iterable[MatchRecord | None]) -> np.ndarray:
    """Pack the edits of an episode of T steps into one array.

    Args:
      edits: T + 1 edits: `first_edit` of the initial state, then the edit of each step.
      taken: for each step the match that was applied, or None for NO-OP.

    Returns:
      int64 [k], which `unpack` reads.
    """
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
    """Return the two arguments of `pack` from its result: the edits, and the match of each step (None for NO-OP).

    Raises:
      RLFlowError: the array is damaged, has another FORMAT, or contains an id that no earlier edit introduced.
    """
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
        whole = _is_consistent(edits, taken)
    if not whole:
        raise RLFlowError(f"the edits of an episode are damaged, or not of format {FORMAT}; collect the episodes again")
    return edits, taken


def _is_consistent(edits: list[Edit], taken: list[MatchRecord | None]) -> bool:
    """Check that each edit refers only to nodes, tensors and matches that earlier edits added and did not remove."""
    nodes, tensors, matches = set(), {ABSENT}, set()
    for edit, match in zip(edits, [None, *taken], strict=True):
        old = (*edit.lost, match) if match else edit.lost
        if not all(m in matches and nodes.issuperset(m.nodes) for m in old) or not nodes.issuperset(edit.removed):
            return False
        left = len(nodes) - len(edit.removed)
        nodes.difference_update(edit.removed)
        matches.difference_update(edit.lost)
        if len(nodes) != left:  # A node was removed twice.
            return False
        tensors.update(tensor.id for tensor in edit.tensors)
        nodes.update(node.id for node in edit.nodes)
        matches.update(edit.appeared)
        if not _names_only(edit, nodes, tensors):
            return False
    return True


def _names_only(edit: Edit, nodes: set[int], tensors: set[int]) -> bool:
    """Check that the nodes, matches and rewired pairs of an edit refer only to the given ids.

    Every node must also have an output, and every match an operand.

    Args:
      edit: the edit.
      nodes: ids of all nodes after the edit.
      tensors: ids of all tensors so far, and ABSENT.
    """
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
    sizes, removed = next(numbers), _read_tuple(numbers)
    tensors, nodes = [], []
    for _ in _read_range(numbers):
        tensors.append(TensorRecord(next(numbers), next(numbers), next(numbers), next(numbers)))
    for _ in _read_range(numbers):
        node_id, op_type, operator, runtime = next(numbers), next(numbers), next(numbers), next(numbers)
        nodes.append(NodeRecord(node_id, op_type, operator, _read_tuple(numbers), _read_tuple(numbers), runtime))
    rewired = tuple([(next(numbers), next(numbers)) for _ in _read_range(numbers)])
    lost = tuple([_unpack_match(numbers) for _ in _read_range(numbers)])
    appeared = tuple([_unpack_match(numbers) for _ in _read_range(numbers)])
    return Edit(removed, tuple(tensors), tuple(nodes), rewired, lost, appeared, sizes)


def _unpack_match(numbers: Iterator[int]) -> MatchRecord:
    return MatchRecord(next(numbers), _read_tuple(numbers), _read_tuple(numbers))


def _read_tuple(numbers: Iterator[int]) -> tuple[int, ...]:
    return tuple([next(numbers) for _ in _read_range(numbers)])


def _read_range(numbers: Iterator[int]) -> range:
    return range(next(numbers))


OPERATOR_COLUMNS = 1 + ATTRIBUTE_FEATURES + FINGERPRINT  # the first column is the operator id


class SignatureFeatures(NamedTuple):
    """Tables of the features of operators and tensors, with one row for each signature.

    Attributes:
      operators: int64 [k], ascending, signatures as in `NodeRecord.operator`.
      operator_features: float32 [k, OPERATOR_COLUMNS], the features of each of these operators.
      tensors: int64 [m], ascending, signatures as in `TensorRecord.signature`.
      tensor_features: float32 [m, TENSOR_FEATURES], the features of each of these tensors.
    """

    operators: np.ndarray
    operator_features: np.ndarray
    tensors: np.ndarray
    tensor_features: np.ndarray

    @classmethod
    def of(cls, states: Sequence[RewriteState], edits: Sequence[Edit]) -> Self:
        """Compute the features of all signatures in the edits of an episode.

        Args:
          states: T + 1 states of the episode.
          edits: T + 1 edits: `first_edit` of the first state, then the edit that led to each further state.
        """
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
    """Merge the tables of several episodes into tables that contain each signature once."""
    whole = SignatureFeatures(*map(np.concatenate, zip(*parts, strict=True)))
    operators, of_operators = np.unique(whole.operators, return_index=True)
    tensors, of_tensors = np.unique(whole.tensors, return_index=True)
    features = whole.operator_features[of_operators], whole.tensor_features[of_tensors]
    return SignatureFeatures(operators, features[0], tensors, features[1])


def _operator_row(state: RewriteState, node_id: int) -> np.ndarray:
    if node_id < 0:  # a graph output
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
