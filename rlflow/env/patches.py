"""What a match would make of its graph, without making it.

A rewrite copies the dictionaries of a graph, which is nothing for one step and too much for hundreds of candidates. A
graph network that passes messages along the edges `reach` times sees of a rewrite only the nodes that it adds, and
those that stay within so many edges behind them; so a *patch* holds these alone: the new nodes, the copies of nodes
that see a difference, and the edges into both. What these edges come from and is no part of the patch is the same in
both graphs, at every layer. tests/env/test_candidates.py holds patches to the graphs that the rewrites really give.

Weights and inputs of the graph are no nodes here: their shapes are part of what the nodes that read them are.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from rlflow.env.observation.operators import operator_id
from rlflow.graph.model import ABSENT, Graph, Node
from rlflow.graph.types import TensorType, TypesAt
from rlflow.rules.apply import apply, operands
from rlflow.rules.match import Match
from rlflow.rules.rule import Rule

RANK = 4  # axes whose sizes are shown, the last ones
LARGEST_SIZE = 4096.0  # sizes are shown as multiples of it (X-RLflow, table 4)
NODE_COLUMNS = 2 + RANK  # operator id (rlflow/env/observation/operators.py), constant, the sum of all incoming shapes

NodeRow = tuple[float, ...]  # NODE_COLUMNS numbers


class Patch(NamedTuple):
    """The part of a rewritten graph whose nodes see the rewrite, within `reach` edges along the data.

    rows: int32 [m], the new nodes as −1, −2, …; then the copies, as ids of the nodes that they are copies of.
    new: float32 [new nodes, NODE_COLUMNS].
    senders: int32 [e], of the edges into the patch: a node's id, or ~k for row k of the patch.
    receivers: int32 [e], row of the patch.
    replaced: int32 [r], ids of the nodes of the graph before that disappear, or have a copy.
    depends: ids of the nodes of which, if a later rewrite touches none, the patch stays as it is.
    """

    rows: np.ndarray
    new: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    replaced: np.ndarray
    depends: frozenset[int]


def patch_of(graph: Graph, sizes: Mapping[str, int], rule: Rule, match: Match, reach: int) -> Patch:
    """The patch of a match of this graph. sizes: the typical size of each symbol."""
    after = _After(graph, rule, match)
    new = [node for node in after.new if node not in after.gone]
    copies = list(after.behind(reach))
    row_of = {node: row for row, node in enumerate([*new, *copies])}
    senders, receivers = [], []
    for node, row in row_of.items():
        for sender in after.sources(node):
            senders.append(~row_of[sender] if sender in row_of else sender)
            receivers.append(row)
    gone = [node for node in after.gone if node >= 0]
    types = after.types(sizes)
    features = [node_row(match.plan.added[~node], after.reads(node), types) for node in new]
    return Patch(
        _ints([*map(lambda row: ~row, range(len(new))), *copies]),
        np.array(features, np.float32).reshape(-1, NODE_COLUMNS),
        _ints(senders), _ints(receivers), _ints(gone + copies), frozenset({*gone, *copies, *after.asked}),
    )  # fmt: skip


def whole_graph_of(graph: Graph, sizes: Mapping[str, int], rule: Rule, match: Match) -> Patch:
    """The rewritten graph, made and shown from end to end: a patch in which all nodes are new."""
    after = apply(graph, rule, match)
    types, row_of = after.at(sizes).types, {node_id: row for row, node_id in enumerate(after.order)}
    nodes = [after.nodes[node_id] for node_id in after.order]
    edges = [(~row_of[source], row_of[node.id]) for node in nodes for source in sources(after, node)]
    features = [node_row(node, node.reads(), types) for node in nodes]
    return Patch(
        _ints([~row for row in range(len(nodes))]),
        np.array(features, np.float32).reshape(-1, NODE_COLUMNS),
        _ints([sender for sender, _ in edges]), _ints([receiver for _, receiver in edges]),
        _ints(list(graph.nodes)), frozenset(graph.nodes),
    )  # fmt: skip


def node_row(node: Node, reads: Iterable[int], types: Mapping[int, TensorType]) -> NodeRow:
    """What is seen of a node that reads these tensors: NODE_COLUMNS numbers."""
    shapes = [_shape_row(types.get(tensor)) for tensor in reads]
    return (float(operator_id(node)), float(node.constant), *map(sum, zip(*shapes or [(0.0,) * RANK], strict=True)))


def sources(graph: Graph, node: Node) -> tuple[int, ...]:
    """The nodes that give the tensors that a node reads, once for each tensor in turn."""
    producers = graph.producers
    return tuple([producers[tensor] for tensor in node.reads() if tensor in producers])


def _shape_row(kind: TensorType | None) -> tuple[float, ...]:
    """The last RANK sizes; zeros before those of a lower rank, and of a shape that is not known."""
    sizes = kind.shape[-RANK:] if kind is not None and kind.shape is not None else ()
    return (0.0,) * (RANK - len(sizes)) + tuple([size / LARGEST_SIZE for size in sizes])


def _ints(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


class _After:
    """The graph after a match, seen through the graph before it. New nodes are ~0, ~1, …, new tensors −2, −3, ….

    gone: nodes that disappear, new ones that nobody reads among them.  asked: nodes whose readers decided that.
    """

    def __init__(self, graph: Graph, rule: Rule, match: Match):
        bound, self.plan = operands(graph, rule, match.nodes, match.bindings), match.plan

        def real(number: int) -> int:
            return -2 - number if number >= 0 else number if number == ABSENT else bound[-2 - number]

        self.graph, self.replaced = graph, bound[len(bound) - len(rule.replaced) :]
        self.instead = {real(old): real(new) for old, new in self.plan.rewired}
        self.new = {~k: node for k, node in enumerate(self.plan.added)}
        self._reads = {n: [real(t) for t in node.inputs if t != ABSENT] for n, node in self.new.items()}
        self._gives = {n: [real(t) for t in node.outputs if t != ABSENT] for n, node in self.new.items()}
        self._made = {tensor: n for n, given in self._gives.items() for tensor in given}
        self._olds: dict[int, list[int]] = {}  # tensor → those whose readers it gets
        for old in self.instead:
            self._olds.setdefault(self._named(old), []).append(old)
        self._readers: dict[int, list[int]] = {}  # node → the new ones that read it
        for node in self.new:
            for source in self.sources(node):
                self._readers.setdefault(source, []).append(node)
        self.gone = {match.nodes[position] for position in rule.root_positions}
        self.asked: set[int] = set()
        self._remove_dead([source for node in self.gone for source in self.sources(node)] + list(self.new))

    def types(self, sizes: Mapping[str, int]) -> Mapping[int, TensorType]:
        """Of the tensors that new nodes read."""
        kinds = {-2 - number: kind for number, kind in self.plan.types}
        kinds |= {t: self.graph.types[t] for read in self._reads.values() for t in read if t in self.graph.types}
        return TypesAt(kinds, sizes) if self.graph.interface.symbols else kinds

    def reads(self, node: int) -> Iterable[int]:
        return self._reads[node] if node < 0 else self.graph.nodes[node].reads()

    def sources(self, node: int) -> list[int]:
        """The nodes that give the tensors that a node reads, once for each tensor in turn."""
        made, producers, result = self._made, self.graph.producers, []
        for tensor in self.reads(node):
            tensor = self._named(tensor) if self.instead else tensor
            source = made.get(tensor, producers.get(tensor))
            if source is not None:
                result.append(source)
        return result

    def behind(self, reach: int) -> Iterator[int]:
        """The nodes of the graph before that stay, within so many edges behind the replaced tensors, nearest first."""
        nodes, consumers, seen = self.graph.nodes, self.graph.consumers, set(self.gone)
        tensors = self.replaced
        for _ in range(reach):
            around = [reader for tensor in tensors for reader in consumers.get(tensor, ()) if reader not in seen]
            around = list(dict.fromkeys(around))
            yield from around
            seen.update(around)
            tensors = [tensor for node in around for tensor in nodes[node].outputs]

    def _named(self, tensor: int) -> int:
        while tensor in self.instead:
            tensor = self.instead[tensor]
        return tensor

    def _remove_dead(self, waiting: list[int]) -> None:
        while waiting:
            node = waiting.pop()
            if node not in self.gone and not self._is_read(node):
                self.gone.add(node)
                waiting += self.sources(node)

    def _is_read(self, node: int) -> bool:
        """Whether a node that stays, or the interface, reads what this one gives."""
        if any(reader not in self.gone for reader in self._readers.get(node, ())):
            return True
        if node >= 0:
            self.asked.add(node)
        for given in self._gives[node] if node < 0 else self.graph.nodes[node].outputs:
            for tensor in (given, *self._olds.get(given, ())):
                readers = self.graph.consumers.get(tensor, ())
                if tensor in self.graph.outputs or any(reader not in self.gone for reader in readers):
                    return True
        return False
