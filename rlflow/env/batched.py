"""Batched rewrites: the same rewrite at all equal places of a graph at once, for example in twelve equal blocks.

Two matches are alike if they have one rule and one match class, and if their nodes and the makers of their operands
have equal neighbourhood signatures up to DISTANCE edges (`Neighbourhoods`, after Weisfeiler and Lehman). Matches that
share a node are never alike. A `Move` holds all alike matches of a state. It rewrites them in canonical order and skips
a match that an earlier one invalidated. If the matches are independent, which is the normal case, the graph is copied,
matched and costed once.

Moves of one rule are numbered by their number of matches, largest first, so masks stay prefixes and a search rewrites
all blocks before it turns to another rule. `BatchedState.actions` and all receipts list single rewrites.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.task import GraphArrays, LocalState, State, valid_actions
from rlflow.common.task import Task as AnyTask
from rlflow.costs import NodeCost, neighbourhood
from rlflow.env import BATCHED, MOVES
from rlflow.env.state import RewriteState, Task
from rlflow.graph.ir import Graph, Node
from rlflow.rules.apply import apply, apply_all, content_of_constant, independent, match_signature, operands
from rlflow.rules.locations import MatchTable
from rlflow.rules.match import Match


class Neighbourhoods:
    """The signatures of all nodes of one graph.

    levels: node id → int, for the distances 0 … k.
    """

    def __init__(self, graph: Graph, levels: list[dict[int, int]]):
        self.graph, self.levels = graph, levels

    @classmethod
    def of(cls, graph: Graph, distance: int) -> "Neighbourhoods":
        """Those of a graph that nothing is known of."""
        result = cls(graph, [{} for _ in range(distance + 1)])
        result._count(graph.nodes)
        return result

    def after(self, graph: Graph, touched: Iterable[int]) -> "Neighbourhoods":
        """Those of a graph that rewrites made of this one, which touched these nodes."""
        result = Neighbourhoods(graph, [level.copy() for level in self.levels])
        result._count(touched)
        return result

    def __getitem__(self, node_id: int) -> int:
        """At the greatest distance."""
        return self.levels[-1][node_id]

    def _count(self, node_ids: Iterable[int]) -> None:
        """Anew for these nodes, which may be gone, and all that see them."""
        for distance, level in enumerate(self.levels):
            node_ids = neighbourhood(self.graph, node_ids, min(distance, 1))
            for node_id in node_ids:
                if node_id not in self.graph.nodes:
                    level.pop(node_id, None)
                elif distance:
                    level[node_id] = self._joined(self.graph.nodes[node_id], self.levels[distance - 1])
                else:
                    level[node_id] = _signature(self.graph, self.graph.nodes[node_id])

    def _joined(self, node: Node, nearer: dict[int, int]) -> int:
        graph = self.graph
        read = [nearer.get(graph.producers.get(tensor, -1), -1) for tensor in node.reads()]
        readers = [sorted(nearer[reader] for reader in graph.consumers.get(t, ())) for t in node.outputs]
        return hash((nearer[node.id], *read, *map(tuple, readers)))


def _signature(graph: Graph, node: Node) -> int:
    """Of operator, attributes, and the types of inputs and outputs; of small constants the content."""
    read = []
    for tensor in node.reads():
        constant = graph.constants.get(tensor)
        content = graph.is_constant(tensor) if constant is None else content_of_constant(constant)
        read.append((graph.types.get(tensor), content))
    made = [(graph.types.get(t), t in graph.outputs, len(graph.consumers.get(t, ()))) for t in node.outputs]
    return hash((node.key(), node.constant, *read, *made))


DISTANCE = 0  # edges


def start_of(task: AnyTask, moves: str | None = None) -> State:
    """Where episodes and searches of a task begin.

    moves: which it offers: those of `search.moves`; by default of `env.moves`.
    """
    if not isinstance(task, Task):
        return task.initial
    moves = moves or task.moves
    if moves not in MOVES:
        raise RLFlowError(f"moves is one of {', '.join(MOVES)}, not {moves!r}")
    return BatchedState(task.initial) if moves == BATCHED else task.initial


class Move:
    """Alike matches, in canonical order; the first one stands for all. See `rlflow.common.task.Match`.

    Attributes:
      nodes: ids of the nodes of all of them.
    """

    __slots__ = ("members", "nodes")

    def __init__(self, members: tuple[Match, ...]):
        self.members = members
        self.nodes = tuple(dict.fromkeys(node_id for match in members for node_id in match.nodes))

    @property
    def xfer_id(self) -> int:
        return self.members[0].xfer_id

    @property
    def plan(self):
        return self.members[0].plan

    def same_as(self, members: list[Match]) -> bool:
        return len(members) == len(self.members) and all(map(lambda a, b: a is b, members, self.members))


class BatchedState(LocalState):
    """A state whose choices are moves; see `rlflow.common.task.CompoundState`.

    Attributes:
      single: the same state, whose choices are single rewrites.
      began: the single state that the last move began at.
      made: the matches that it rewrote.
      touched: ids of the nodes that they concerned.
    """

    def __init__(self, single: RewriteState, before: "BatchedState | None" = None, made=(), touched=frozenset()):
        self.single, self.made, self.touched = single, tuple(made), touched
        self._before = before  # until what is known of it is taken over
        self.began = before and before.single

    # -- as the single state -----------------------------------------------------------------------

    @property
    def task(self) -> Task:
        return self.single.task

    @property
    def graph(self) -> Graph:
        return self.single.graph

    @property
    def cost(self) -> NodeCost:
        return self.single.cost

    @property
    def objective(self) -> int:
        return self.single.objective

    @property
    def runtime_ms(self) -> float:
        return self.single.runtime_ms

    @property
    def hash(self) -> str:
        return self.single.hash

    @property
    def strain(self) -> Mapping[int, int] | None:
        return self.single.strain

    @property
    def reach(self) -> int:
        return self.single.reach

    def near(self, nodes: Iterable[int], reach: int) -> set[int]:
        return self.single.near(nodes, reach)

    def rows(self, nodes: Iterable[int]) -> np.ndarray:
        return self.single.rows(nodes)

    def arrays(self) -> GraphArrays:
        return self.single.arrays()

    # -- moves -------------------------------------------------------------------------------------

    @cached_property
    def actions(self) -> tuple[tuple[int, int], ...]:
        """(xfer_id, location) of the single rewrites that the last move made, numbered when first asked for."""
        result, state = [], self.began
        for match in self.made:
            location = state.table.location_of(match)
            if location is not None:  # else an earlier one left it without readers
                result.append((match.xfer_id, location))
                state = state.follow(match)
        return tuple(result)

    @cached_property
    def _known(self) -> tuple[Neighbourhoods, dict[int, tuple[Match, tuple]], dict[int, Move]]:
        """(neighbourhoods, id of a match → it and in what it is like others, id of a move's first match → the move)."""
        before, self._before = self._before, None
        if before is None:
            around, keys, moves = Neighbourhoods.of(self.graph, DISTANCE), {}, {}
        else:
            around, keys, moves = before._known
            around = around.after(self.graph, self.touched)
            near = self.near(self.touched, DISTANCE + 1)  # the signatures of operands are part of a key
            keys = {number: known for number, known in keys.items() if near.isdisjoint(known[0].nodes)}
        of_matches, groups = {}, {}
        for match in self.single.matches:
            _, key = of_matches[id(match)] = keys.get(id(match)) or (match, self._key(around, match))
            _add(groups.setdefault(key, []), match)
        apart = [members for of_key in groups.values() for members, _ in of_key]
        return around, of_matches, {id(members[0]): _move(members, moves) for members in apart}

    def _key(self, around: Neighbourhoods, match: Match) -> tuple:
        graph, rule = self.graph, self.task.rules[match.xfer_id]
        read = [graph.producers.get(t) for t in operands(graph, rule, match.nodes, match.bindings)]
        return (
            match_signature(graph, rule, match.nodes, match.bindings),
            tuple([around[node_id] for node_id in match.nodes]),
            tuple([None if node_id is None else around[node_id] for node_id in read]),
        )

    @cached_property
    def matches(self) -> list[Move]:
        """All moves, by rule and index."""
        return sorted(self._known[2].values(), key=lambda move: (move.xfer_id, -len(move.members)))

    @cached_property
    def counts(self) -> np.ndarray:
        """int32 [N]: moves of each rule."""
        rules = [move.xfer_id for move in self.matches]
        return np.bincount(rules, minlength=len(self.task.rules)).astype(np.int32)

    def match(self, sort: int, index: int) -> Move:
        return self._of_rule(sort)[index]

    def index_of(self, match: Move) -> int:
        return self._of_rule(match.xfer_id).index(match)

    def _of_rule(self, xfer_id: int) -> list[Move]:
        return [move for move in self.matches if move.xfer_id == xfer_id]

    def valid_actions(self) -> np.ndarray:
        """int64 [n, 2]: all valid (xfer_id, index of a move), NO-OP last."""
        return valid_actions(self.counts, stop=True)

    def apply(self, sort: int, index: int) -> "BatchedState":
        if not (0 <= sort < len(self.counts) and 0 <= index < self.counts[sort]):
            raise RLFlowError(f"rule {sort} has no move {index} in this graph")
        return self.follow(self.match(sort, index))

    def follow(self, match: Move) -> "BatchedState":
        rule, few = self.task.rules[match.xfer_id], self.task.max_locations // 2
        if self.single.counts[match.xfer_id] > few or not independent(self.graph, rule, match.members):
            return self._one_by_one(match)
        graph = apply_all(self.graph, rule, match.members)
        single = self.single.rewritten(graph, self.single.table, graph.touched)
        return BatchedState(single, self, match.members, graph.touched)

    def _one_by_one(self, match: Move) -> "BatchedState":
        """`follow` where some may be no matches any more after others, or beyond the limit on locations."""
        rule, graph, tables, made, touched = self.task.rules[match.xfer_id], self.graph, [self.single.table], [], set()
        for member in match.members:
            if tables[-1].graph is not graph:
                tables.append(MatchTable(self.task.rules, graph, tables[-1]))
            location = tables[-1].location_of(member)
            if location is not None and location < self.task.max_locations:
                graph = apply(graph, rule, member)
                made.append(member)
                touched |= graph.touched
        before = tables[-1] if tables[-1].graph is not graph else tables[-2]
        single = self.single.rewritten(graph, before, frozenset(touched))
        return BatchedState(single, self, made, frozenset(touched))

    def choices(self, match: Move) -> tuple[Match, ...]:
        return match.members

    def carrying(self) -> "Carrying":
        return Carrying(self)


class Carrying:
    """See `rlflow.common.task.Carrying`. What is added gets ids from the start's first free one on, here and there."""

    def __init__(self, start: BatchedState):
        self.rules = start.task.rules
        self.names: dict[int, int] = {}  # id of a node or tensor that the choices added → that among all
        self.next_id = start.graph.next_id  # after the choices
        self.firsts: dict[tuple, int] = {}  # (xfer_id, nodes) of a match that was made → the first id that it added

    def match(self, state: BatchedState, choice: Match) -> Move | None:
        here = self._here(choice)
        return next((move for move in state.matches if here in move.members), None)

    def followed(self, after: BatchedState) -> None:
        first = after.began.graph.next_id
        for match in after.made:
            self.firsts[match.xfer_id, match.nodes] = first
            first += match.plan.n_new

    def is_made(self, choice: Match) -> bool:
        here = self._here(choice)
        return (here.xfer_id, here.nodes) in self.firsts

    def passed(self, choice: Match) -> None:
        here = self._here(choice)
        first = self.firsts[here.xfer_id, here.nodes]
        self.names.update((self.next_id + k, first + k) for k in range(choice.plan.n_new))
        self.next_id += choice.plan.n_new

    def _here(self, choice: Match) -> Match:
        names, bindings = self.names, dict(choice.bindings)
        for name in self.rules[choice.xfer_id].tensor_names:
            value = bindings[name]
            several = isinstance(value, tuple)
            bindings[name] = tuple([names.get(t, t) for t in value]) if several else names.get(value, value)
        return Match(choice.xfer_id, tuple([names.get(n, n) for n in choice.nodes]), bindings, choice.plan)


def _add(groups: list[tuple[list[Match], set[int]]], match: Match) -> None:
    """Adds a match to the first group, of (matches, their nodes), that has none of its nodes."""
    for members, nodes in groups:
        if nodes.isdisjoint(match.nodes):
            members.append(match)
            nodes.update(match.nodes)
            return
    groups.append(([match], set(match.nodes)))


def _move(members: list[Match], known: dict[int, Move]) -> Move:
    """The move of these matches: the known one, if it is of the same, as searches compare matches by identity."""
    move = known.get(id(members[0]))
    return move if move is not None and move.same_as(members) else Move(tuple(members))
