"""Match patterns and what rewriting them does, without saying where (lifted, as the action schemas of planning are).

A *match pattern* is which operators a match consists of and how they hang together, with tensors numbered by their
first mention; its *signature* are the operators' attributes and the tensors' shapes. Both together make the match
class.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from rlflow.graph.ir import ABSENT

# op type (in a pattern) or operator (in an effect and in a graph), tensors read, tensors made
NodePattern = tuple[int, tuple[int, ...], tuple[int, ...]]
Signature = tuple[int, ...]  # the operators of a pattern's nodes, then the tensor signatures by local number


def node_signature(inputs: Iterable[int], outputs: Iterable[int], signature_of: Callable[[int], int]) -> Signature:
    """The signatures of the tensors that a node reads, how many they are, and of those that it makes; 0 where one is
    omitted."""
    read = [signature_of(t) if t != ABSENT else 0 for t in inputs]
    made = [signature_of(t) if t != ABSENT else 0 for t in outputs]
    return (*read, len(read), *made)


class MatchPattern(NamedTuple):
    """xfer_id; nodes: in the rule's order; operands: what the variables hold, then what is replaced; rank_signatures:
    of each tensor.

    Tensors are local numbers, ABSENT for an omitted one.
    """

    xfer_id: int
    nodes: tuple[NodePattern, ...]
    operands: tuple[int, ...]
    rank_signatures: tuple[int, ...]


class Effect(NamedTuple):
    """What rewriting a pattern does; local numbers go on behind the pattern's own for the tensors that it makes.

    removed: positions of nodes that go whatever else is there (others go when nothing reads them any more). added:
    nodes, in topological order. rewired: (tensor, the one that its consumers read instead). made: (rank signature,
    signature) of every new tensor.
    """

    removed: tuple[int, ...]
    added: tuple[NodePattern, ...]
    rewired: tuple[tuple[int, int], ...]
    made: tuple[tuple[int, int], ...]


class Numbering:
    """Local numbers of tensors, by first mention."""

    def __init__(self, tensors: Iterable[int] = ()):
        self.number: dict[int, int] = {}
        for tensor in tensors:
            self(tensor)

    def __call__(self, tensor: int) -> int:
        return ABSENT if tensor == ABSENT else self.number.setdefault(tensor, len(self.number))

    def node(self, operator: int, inputs: Iterable[int], outputs: Iterable[int]) -> NodePattern:
        return operator, tuple([self(t) for t in inputs]), tuple([self(t) for t in outputs])


def lift(
    xfer_id: int, nodes: Iterable[NodePattern], operands: Iterable[int], rank_signatures, op_types: Mapping[int, int]
) -> tuple[MatchPattern, tuple[int, ...]]:
    """The pattern of a match, and the tensors by their local numbers.

    nodes: (operator, inputs, outputs). rank_signatures: tensor → its own. op_types: operator → op type.
    """
    numbering = Numbering()
    local = tuple([numbering(t) for t in operands])
    patterns = tuple([numbering.node(op_types[operator], inputs, outputs) for operator, inputs, outputs in nodes])
    tensors = tuple(numbering.number)
    return MatchPattern(xfer_id, patterns, local, tuple([rank_signatures[t] for t in tensors])), tensors


def operators_of(pattern: MatchPattern) -> tuple:
    """Equal for patterns of one rule with the same op types, however they hang together."""
    return pattern.xfer_id, tuple([op_type for op_type, _, _ in pattern.nodes])


def wirings_of(pattern: MatchPattern) -> tuple[tuple, tuple]:
    """Two keys, the closer one first. Equal for patterns of one rule that hang together in the same way, whatever their
    op types and rank signatures; and of the second also in whatever order their nodes read: where a rule matches in
    both orders, its effect, which names tensors by the operands that they are first, is the same."""
    rule = pattern.xfer_id, pattern.operands
    nodes = tuple([(reads, makes) for _, reads, makes in pattern.nodes])
    unordered = tuple([(tuple(sorted(reads)), makes) for reads, makes in nodes])
    return ("ordered", *rule, nodes), ("unordered", *rule, unordered)
