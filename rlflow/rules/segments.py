"""Consecutive inputs of one node as one value, so that a match of a wide node needs constant time and memory.

`Concat(*l, Relu(x), Relu(y), *r)` can match between any two inputs of a Concat. If each match copied `l` and `r`,
the matches of a Concat of n inputs would hold n² tensors. A `Segment` refers to the inputs of the node instead. A `Row`
numbers the types of all inputs once, and `Segment.key` looks these numbers up.
"""

from collections.abc import Callable, Iterator
from itertools import count

from rlflow.graph.ir import ABSENT, Constant, Graph, Node, TensorType
from rlflow.graph.shapes import steers
from rlflow.rules.expressions import FLOATS, holds_factors


def content_of_constant(constant: Constant) -> str | bool:
    """Return the digest of a constant whose content any rule may read (sizes, flags, factors, one number), else True.

    The functions `finite`, `zeros` and `nonzeros` read other constants, too; `match_signature` adds their digests.
    """
    kind = constant.type
    if kind.size == 1 or holds_factors(constant) or (steers(kind) and kind.dtype not in FLOATS):
        return constant.digest
    return True


def facts(graph: Graph, tensor: int) -> tuple[TensorType | None, str | bool]:
    """Return what conditions and the right side of every rule may depend on at an operand.

    A rule with `counts_readers` or `content_names` depends on further properties, see `match_signature`.

    Args:
      graph: the graph.
      tensor: id of the tensor.

    Returns:
      (type or None; for a weight or literal the result of `content_of_constant`, else of `Graph.is_constant`).
    """
    constant = graph.constants.get(tensor)
    return graph.types.get(tensor), graph.is_constant(tensor) if constant is None else content_of_constant(constant)


# (number of the sequence without its last element, last element) → number of the sequence. Numbers are never used
# again after the table is cleared, so that an old number never stands for another sequence.
_SEQUENCES: dict[tuple, int] = {}
_NUMBERS = count(2)
FROM_THE_FRONT, FROM_THE_BACK = 0, 1  # numbers of the empty sequences
MAX_SEQUENCES = 1_000_000


def _longer(sequence: int, element: tuple) -> int:
    """Return the number of a sequence with one more element."""
    number = _SEQUENCES.get((sequence, element))
    if number is None:
        if len(_SEQUENCES) >= MAX_SEQUENCES:
            _SEQUENCES.clear()
        number = _SEQUENCES[sequence, element] = next(_NUMBERS)
    return number


class Row:
    """The inputs of one node without the omitted inputs at the end.

    Attributes:
      node: id of the node.
      tensors: ids of the tensors.
      fronts, backs: numbers of the sequences of facts of the first k and of the last k tensors, for each k; None before
        the first call of `number`.
    """

    def __init__(self, node: int, tensors: tuple[int, ...]):
        self.node, self.tensors = node, tensors
        self.fronts: list[int] | None = None
        self.backs: list[int] | None = None
        self._fits: bool | None = None
        self._varying: int | None = None

    def __reduce__(self):
        return Row, (self.node, self.tensors)  # numbers of sequences have a meaning in this process only

    @classmethod
    def of(cls, node: Node) -> "Row":
        tensors = node.inputs
        while tensors and tensors[-1] == ABSENT:
            tensors = tensors[:-1]
        return cls(node.id, tensors)

    def number(self, graph: Graph) -> None:
        """Compute `fronts` and `backs`, at the first call only."""
        if self.fronts is not None:
            return
        known = [facts(graph, tensor) for tensor in self.tensors]
        self.fronts, self.backs = [FROM_THE_FRONT], [FROM_THE_BACK]
        for element in known:
            self.fronts.append(_longer(self.fronts[-1], element))
        for element in reversed(known):
            self.backs.append(_longer(self.backs[-1], element))

    def fits(self, graph: Graph, axis: int, whole: TensorType | None) -> bool:
        """Return True if the types show that a Concat of the tensors has the type `whole`.

        All types must be known, and the sizes along the other axes must be the same expressions.

        Args:
          graph: the graph.
          axis: the axis along which the node joins the tensors, counted from 0; always the same for one row.
          whole: type of the node's output.
        """
        if self._fits is None:
            self._fits = self._all_fit(graph, axis, whole)
        return self._fits

    def _all_fit(self, graph: Graph, axis: int, whole: TensorType | None) -> bool:
        kinds = [whole, *(graph.types.get(tensor) for tensor in self.tensors)]
        if any(kind is None or kind.shape is None or not 0 <= axis < len(kind.shape) for kind in kinds):
            return False
        others = {(kind.dtype, kind.shape[:axis], kind.shape[axis + 1 :]) for kind in kinds}
        return len(others) == 1 and sum(kind.shape[axis] for kind in kinds[1:]) == whole.shape[axis]

    def varying(self, graph: Graph) -> int:
        """Return the number of tensors that are not constant."""
        if self._varying is None:
            self._varying = sum(not graph.is_constant(tensor) for tensor in self.tensors)
        return self._varying


class Segment:
    """Consecutive inputs of one node, the value of a `Star`; an immutable sequence of tensor ids.

    Attributes:
      row: the inputs of the node.
      start, stop: the range of positions in the row.
    """

    __slots__ = ("row", "start", "stop")

    def __init__(self, row: Row, start: int, stop: int):
        self.row, self.start, self.stop = row, start, stop

    def __iter__(self) -> Iterator[int]:
        return iter(self.row.tensors[self.start : self.stop])

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, position: int) -> int:
        return self.row.tensors[range(self.start, self.stop)[position]]

    def __eq__(self, other) -> bool:
        if type(other) is not Segment or len(self) != len(other):
            return False
        mine, others = self.row.tensors, other.row.tensors
        return (mine is others and self.start == other.start) or (
            mine[self.start : self.stop] == others[other.start : other.stop]
        )

    def __hash__(self) -> int:
        return hash((len(self), *((self[0], self[-1]) if len(self) else ())))

    def __repr__(self) -> str:
        return f"Segment({list(self)})"

    def renamed(self, name: Callable[[int], int | None]) -> "Segment":
        """Return the segment with other ids: `name` maps an id of a tensor to the new id."""
        return Segment(Row(self.row.node, tuple(map(name, self.row.tensors))), self.start, self.stop)

    def key(self, graph: Graph) -> int:
        """Return a number for the sequence of the `facts` of the tensors: equal numbers mean equal sequences.

        Equal sequences may have different numbers, because a segment at the end of a row is numbered from the back.
        """
        self.row.number(graph)
        if self.start == 0:
            return self.row.fronts[self.stop]
        if self.stop == len(self.row.tensors):
            return self.row.backs[len(self)]
        number = FROM_THE_FRONT
        for tensor in self:
            number = _longer(number, facts(graph, tensor))
        return number
