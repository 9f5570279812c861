"""What a substitution changes, told as it is seen: nodes and matches that disappear and that appear.

Rewriting is deterministic and local, so an edit says all of a step at a fraction of a graph's size. It is what a world model
that predicts edits learns from (worldmodel/edits); nothing in it tells how a rule works.

Nodes, tensors and matches are named by the ids that they have in this episode.
"""

import hashlib
from collections.abc import Container, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.env.state import RewriteState
from rlflow.graph.model import ABSENT, Graph, Node
from rlflow.rules.apply import content_of_constant, operands, rewired_tensors
from rlflow.rules.match import Match, attributes_of

FORMAT = 1  # of what edits tell; changed with what a kind, a look or a fact is, since what was learnt from others does not fit
OUTPUT = 0  # the kind of the node that stands for an output of the whole graph


class TensorRecord(NamedTuple):
    """One tensor. form: int64 hash of its data type, its rank, and whether it is constant.

    fact: the same with its sizes and, of a small constant, its content. size: elements, −1 if that is not known.
    """

    id: int
    form: int
    fact: int
    size: int


class NodeRecord(NamedTuple):
    """One operator: id, op and kind (int64 hashes of the operator alone, and with its attributes, defaults filled in), tensors read and made (ABSENT
    for an omitted one), estimated runtime (ps).

    An output of the whole graph is a node too, with a negative id, that reads one tensor and is never removed.
    """

    id: int
    op: int
    kind: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    runtime_ps: int


class MatchRecord(NamedTuple):
    """One place where a rule applies: its nodes in the rule's order; the tensors that its variables hold, then those it replaces."""

    xfer_id: int
    nodes: tuple[int, ...]
    operands: tuple[int, ...]


class Edit(NamedTuple):
    """gone: ids of nodes. tensors: those that nodes name for the first time. nodes: new ones, and those of which anything changed.
    rewired: (old tensor, new tensor) for all readers.

    lost, appeared: matches; of a rule with two alike roots, both ways to name them.
    """

    gone: tuple[int, ...]
    tensors: tuple[TensorRecord, ...]
    nodes: tuple[NodeRecord, ...]
    rewired: tuple[tuple[int, int], ...]
    lost: tuple[MatchRecord, ...]
    appeared: tuple[MatchRecord, ...]


NOTHING = Edit((), (), (), (), (), ())


def _hash(facts) -> int:
    return int.from_bytes(hashlib.sha256(repr(facts).encode()).digest()[:8], "little", signed=True)


@lru_cache(maxsize=4)
def first_edit(state: RewriteState) -> Edit:
    """The whole state, as found."""
    nodes = [_record(state, state.graph.nodes[node_id]) for node_id in state.graph.order]
    result = [_match(state.graph, state, match) for match in state.table.all_matches()]
    nodes += _outputs(state.graph)
    return Edit((), _tensors(state.graph, nodes, {}), tuple(nodes), (), (), tuple(result))


def edit_between(before: RewriteState, match: Match, after: RewriteState) -> Edit:
    """What following the match did."""
    old, new = before.graph, after.graph
    gone = [node_id for node_id in sorted(new.changed) if node_id in old.nodes and node_id not in new.nodes]
    changed = [node_id for node_id in sorted(after.graph_cost.recounted) if node_id in new.nodes]
    changed.sort(key=lambda node_id: (node_id in old.nodes, node_id))  # new ones as the rule made them, wherever they come to lie
    nodes = [record for node_id in changed if (record := _record(after, new.nodes[node_id])) != _known(before, node_id)]
    if new.outputs != old.outputs:
        nodes += [record for record, was in zip(_outputs(new), _outputs(old), strict=True) if record != was]
    lost, result = after.table.difference(before.table)
    return Edit(
        tuple(gone), _tensors(new, nodes, old.types), tuple(nodes), rewired_tensors(old, before.task.rules[match.xfer_id], match),
        tuple(_match(old, before, match) for match in lost), tuple(_match(new, after, match) for match in result),
    )  # fmt: skip


def match_record(state: RewriteState, match: Match) -> MatchRecord:
    return _match(state.graph, state, match)


def _match(graph: Graph, state: RewriteState, match: Match) -> MatchRecord:
    bound = operands(graph, state.task.rules[match.xfer_id], match.nodes, match.bindings)
    return MatchRecord(match.xfer_id, match.nodes, tuple(bound))


def _record(state: RewriteState, node: Node) -> NodeRecord:
    cost = state.graph_cost.nodes[node.id]
    return NodeRecord(node.id, _hash(node.key()[:2]), _hash((*node.key()[:2], sorted(attributes_of(state.graph, node)[0].items()), len(node.captured))), node.inputs, node.outputs, cost.runtime_ps)


def _tensors(graph: Graph, nodes: Iterable[NodeRecord], known: Container[int]) -> tuple[TensorRecord, ...]:
    """The tensors of the nodes that are not known yet."""
    named = dict.fromkeys(t for node in nodes for t in (*node.inputs, *node.outputs) if t != ABSENT and t not in known)
    return tuple([_tensor(graph, tensor) for tensor in named])


def _tensor(graph: Graph, tensor: int) -> TensorRecord:
    kind, constant = graph.types.get(tensor), graph.constants.get(tensor)
    content = graph.is_constant(tensor) if constant is None else content_of_constant(constant)
    form = (kind.dtype, None if kind.shape is None else len(kind.shape)) if kind else None
    size = kind.size if kind and kind.shape is not None else -1
    return TensorRecord(tensor, _hash((form, bool(content))), _hash((kind, content)), size)


def _known(state: RewriteState, node_id: int) -> NodeRecord | None:
    node = state.graph.nodes.get(node_id)
    return None if node is None else _record(state, node)


def _outputs(graph: Graph) -> list[NodeRecord]:
    return [NodeRecord(-2 - k, OUTPUT, OUTPUT, (tensor,), (-2 - k,), 0) for k, tensor in enumerate(graph.outputs)]


# -- as one array ----------------------------------------------------------------------------------


def pack(edits: Iterable[Edit], taken: Iterable[MatchRecord | None]) -> np.ndarray:
    """int64 [...]: the edits of an episode, the first one of its initial state, and the match that each action took."""
    edits, taken = list(edits), list(taken)
    flat = [FORMAT, len(edits)]
    for edit in edits:
        flat += (len(edit.gone), *edit.gone, len(edit.tensors))
        for tensor in edit.tensors:
            flat += tensor
        flat.append(len(edit.nodes))
        for node in edit.nodes:
            flat += (node.id, node.op, node.kind, node.runtime_ps, len(node.inputs), *node.inputs, len(node.outputs), *node.outputs)
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
    """What `pack` packed. Raises RLFlowError if the array is damaged, of another format, or speaks of what it never told."""
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
    """Whether they name only what was told and is still there."""
    nodes, tensors, matches = set(), {ABSENT}, set()
    for edit, match in zip(edits, [None, *taken], strict=True):
        old, ends = (*edit.lost, match) if match else edit.lost, len(nodes) - len(edit.gone)
        if not all(m in matches and nodes.issuperset(m.nodes) for m in old) or not nodes.issuperset(edit.gone):
            return False
        nodes.difference_update(edit.gone)
        matches.difference_update(edit.lost)
        if len(nodes) != ends:
            return False
        tensors.update(tensor.id for tensor in edit.tensors)
        nodes.update(node.id for node in edit.nodes)
        matches.update(edit.appeared)
        named = [t for node in edit.nodes for t in (*node.inputs, *node.outputs)] + [t for pair in edit.rewired for t in pair]
        if not tensors.issuperset(named) or not all(set(node.outputs) - {ABSENT} for node in edit.nodes):
            return False
        if not all(m.xfer_id >= 0 and nodes.issuperset(m.nodes) and tensors.issuperset(m.operands) and m.operands for m in edit.appeared):
            return False
    return True


def _unpack_edit(numbers: Iterator[int]) -> Edit:
    gone = _some(numbers)
    tensors = tuple([TensorRecord(next(numbers), next(numbers), next(numbers), next(numbers)) for _ in _counted(numbers)])
    nodes = []
    for _ in _counted(numbers):
        node_id, op, kind, runtime = next(numbers), next(numbers), next(numbers), next(numbers)
        nodes.append(NodeRecord(node_id, op, kind, _some(numbers), _some(numbers), runtime))
    rewired = tuple([(next(numbers), next(numbers)) for _ in _counted(numbers)])
    lost = tuple([_unpack_match(numbers) for _ in _counted(numbers)])
    result = tuple([_unpack_match(numbers) for _ in _counted(numbers)])
    return Edit(gone, tensors, tuple(nodes), rewired, lost, result)


def _unpack_match(numbers: Iterator[int]) -> MatchRecord:
    return MatchRecord(next(numbers), _some(numbers), _some(numbers))


def _some(numbers: Iterator[int]) -> tuple[int, ...]:
    return tuple([next(numbers) for _ in _counted(numbers)])


def _counted(numbers: Iterator[int]) -> range:
    return range(next(numbers))
