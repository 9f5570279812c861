"""Where a real episode stands in a grounding: the episode's ids in the grounding's numbers."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import count

from rlflow.collect.edits import Edit, MatchRecord, NodeRecord, TensorRecord
from rlflow.graph.ir import ABSENT
from worldmodel.edits.grounding import Grounding


class EpisodeFollower:
    """Kept up by the episode's edits.

    Attributes: nodes: the episode's node id → the grounding's number, of those that are there. tensors: likewise, of
    all so far.
    matches: where rules apply, in the episode's ids.
    """

    def __init__(self, grounding: Grounding, first: Edit):
        self.grounding = grounding
        self.tensors: dict[int, int] = {}
        self.nodes: dict[int, int] = {}
        rank = {t: k for k, record in enumerate(first.nodes) for t in record.outputs}
        for record in first.tensors:
            self.tensors[record.id] = grounding.initial_tensor(
                record.id, rank.get(record.id, -1), record.rank_signature, record.signature
            )
        for record in first.nodes:
            self.nodes[record.id] = self._ground(record)
        self._there = set(self.nodes.values())
        self.matches = set(first.appeared)

    def follow(self, edit: Edit, taken: MatchRecord | None) -> None:
        """An edit happened. taken: the match that was rewritten, None for NO-OP."""
        if taken is not None:
            self._number_new_tensors(edit, self.tensors[taken.operands[-1]])
        changed = (*edit.removed, *[record.id for record in edit.nodes])
        self._there.difference_update([self.nodes[n] for n in changed if n in self.nodes])
        self.nodes |= {record.id: self._ground(record) for record in edit.nodes}
        self._there.update([self.nodes[record.id] for record in edit.nodes])
        for node_id in edit.removed:
            del self.nodes[node_id]
        self.matches -= set(edit.lost)
        self.matches |= set(edit.appeared)

    def _number_new_tensors(self, edit: Edit, owner: int) -> None:
        """Gives numbers to the tensors that the rewrite made: the first ones of these names that are not in use."""
        new = {record.id: record for record in edit.tensors}
        for copy in count():
            copies = defaultdict(lambda copy=copy: copy)
            for record in edit.nodes:
                self._number_tensors_of(record, owner, new, copies)
            if not self._in_use(new):
                return
            for tensor in new:
                del self.tensors[tensor]

    def _in_use(self, tensors: Iterable[int]) -> bool:
        """Whether a node that is there reads one of them."""
        consumers = self.grounding.consumers
        return not self._there.isdisjoint(node for tensor in tensors for node in consumers[self.tensors[tensor]])

    def _number_tensors_of(
        self, record: NodeRecord, owner: int, new: dict[int, TensorRecord], copies: dict[tuple, int]
    ) -> None:
        gives = next((self.tensors[t] for t in record.outputs if t in self.tensors), owner)
        for position, tensor in enumerate(record.inputs):
            if tensor not in self.tensors and tensor != ABSENT:  # a constant
                self._number_tensor(new[tensor], gives, (record.operator, (), position), copies)
        inputs = self._ground_tensors(record.inputs)
        for slot, tensor in enumerate(record.outputs):
            if tensor not in self.tensors and tensor != ABSENT:
                self._number_tensor(new[tensor], owner, (record.operator, inputs, slot), copies)

    def _number_tensor(self, record: TensorRecord, owner: int, maker: tuple, copies: dict[tuple, int]) -> None:
        number = self.grounding.made_tensor(owner, maker, record.rank_signature, record.signature, copies)
        self.tensors[record.id] = number

    def _ground(self, record: NodeRecord) -> int:
        self.grounding.rules.op_types.setdefault(record.operator, record.op_type)
        inputs, outputs = self._ground_tensors(record.inputs), self._ground_tensors(record.outputs)
        return self.grounding.node(record.operator, inputs, outputs)

    def _ground_tensors(self, tensors: Iterable[int]) -> tuple[int, ...]:
        return tuple([t if t == ABSENT else self.tensors[t] for t in tensors])

    def grounded(self, match: MatchRecord) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The match's nodes and operands in the grounding's numbers."""
        return tuple([self.nodes[n] for n in match.nodes]), self._ground_tensors(match.operands)

    def match(self, match: MatchRecord) -> int | None:
        """The grounding's number of the match; None if its pattern was never seen."""
        return self.grounding.match(match.xfer_id, *self.grounded(match))
